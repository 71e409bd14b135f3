//! Logs for many threads: one log for each session, and a sequence number in every record that orders them all (3.1).
//!
//! A shared log is a number of *lanes*, each a log of its own. A session appends to the lane of its slot, so that sessions
//! do not meet, except on one volatile counter: a fetch-and-add, made before the record is written, because a locked
//! instruction between a write-back and its fence would wait for the write-back. Records of one lane have ascending
//! numbers; readers merge the lanes. A number that was given to a record that did not survive is a gap.
//!
//! The counter is not persistent: recovery sets it behind the largest number found in a record, and not below the number
//! that trims have stored beside the heads of their lanes.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-S1 magic cleared < lanes zeroed | flush+fence, the first lane's CS-F1 | the old log whole, or no log | opens the old log, or `NotALog` |
//! | CS-S2 lanes formatted < header with magic | flush+fence, the last one of each lane | no log | `NotALog` |
//! | CS-S3 words of the header < magic | same line | no log | `NotALog` |
//! | as CS-T1: floor < head of a lane | same line | the old floor with the old head | the numbers are still in the records |

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{LINE, Lock, Medium, Off, Op, Rmw, Word};

use super::error::{Error, Result};
use super::layout::{SHARED_MAGIC, SharedHeader, VERSION};
use super::record::Record;
use super::ring::Region;
use super::source::Source;
use super::{Finding, LinesLog, Log, Position};

/// Bytes of the header.
const HEADER: u64 = size_of::<SharedHeader>() as u64;

/// What is decided when a [`SharedLog`] is created.
#[derive(Debug)]
pub struct SharedOptions<L: Log> {
    /// Number of lanes, a power of two: as many as there are sessions that append at the same time. Sessions that share a lane
    /// wait for each other.
    pub lanes: u64,
    /// Options of each lane.
    pub lane: L::Options,
}

impl<L: Log> Clone for SharedOptions<L> {
    fn clone(&self) -> Self {
        SharedOptions { lanes: self.lanes, lane: self.lane.clone() }
    }
}

impl<L: Log> Default for SharedOptions<L> {
    /// Eight lanes.
    fn default() -> Self {
        SharedOptions { lanes: 8, lane: L::Options::default() }
    }
}

/// A log that many threads append to: `&self` everywhere.
///
/// The payload that a lane takes is shorter by the eight bytes of the sequence number.
pub struct SharedLog<L: Log = LinesLog> {
    lanes: Box<[Lock<L>]>,
    /// The number that the next record gets.
    sequence: AtomicU64,
}

impl<L: Log> fmt::Debug for SharedLog<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLog").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}

impl<L: Log> SharedLog<L> {
    /// Writes an empty log into `region`. Durable on return.
    ///
    /// # Errors
    /// [`Error::BadOption`] if the number of lanes is not a power of two; [`Error::BadRegion`].
    pub fn format<M: Medium>(op: &Op<'_, M>, region: Region, options: &SharedOptions<L>) -> Result<Self> {
        let count = options.lanes;
        if !count.is_power_of_two() {
            return Err(Error::BadOption { option: "lanes", value: count, must: "a power of two" });
        }
        let lane_len = region.len.saturating_sub(HEADER) / count / LINE as u64 * LINE as u64;
        if !region.off.is_multiple_of(LINE as u64) || lane_len == 0 {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: HEADER + count * LINE as u64 });
        }
        op.slice("a log's region", Off::<Word>::new(region.off), region.len / 8)?;
        let header = op.at(Off::<SharedHeader>::new(region.off));
        op.store(&header.magic, 0, Ordering::Relaxed);
        // PERSIST CS-S1: flush, and the fence with which the first lane starts its formatting (CS-F1)
        op.write_back(header);
        // PERSIST CS-S2: each lane ends its formatting with a fence
        let lanes = (0..count).map(|lane| L::format(op, lane_of(region, lane, lane_len), &options.lane));
        let lanes = lanes.map(|lane| lane.map(Lock::new)).collect::<Result<_>>()?;
        let words = [VERSION.to_word(), count, lane_len];
        for (word, value) in [&header.version, &header.lanes, &header.lane_len].into_iter().zip(words) {
            op.store(word, value, Ordering::Relaxed);
        }
        op.store(&header.check, check(words), Ordering::Relaxed);
        // PERSIST CS-S3: same line
        op.store(&header.magic, SHARED_MAGIC, Ordering::Release);
        op.write_back(header);
        op.fence();
        Ok(SharedLog { lanes, sequence: AtomicU64::new(0) })
    }

    /// Opens the log in `region`: recovers every lane, and the counter. Costs what the lanes' recoveries cost, and a walk
    /// over all records.
    ///
    /// # Errors
    /// [`Error::NotALog`], [`Error::Mismatch`], [`Error::Corrupt`], [`Error::BadRegion`].
    pub fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let Region { off, len } = region;
        if !off.is_multiple_of(LINE as u64) || len < HEADER {
            return Err(Error::BadRegion { off, len, min: HEADER });
        }
        op.slice("a log's region", Off::<Word>::new(off), len / 8)?;
        let header = op.at(Off::<SharedHeader>::new(off));
        let get = |word: &Word| op.load(word, Ordering::Relaxed);
        let magic = get(&header.magic);
        if magic != SHARED_MAGIC {
            return Err(Error::NotALog { off, found: magic });
        }
        let [version, count, lane_len] = [get(&header.version), get(&header.lanes), get(&header.lane_len)];
        if version != VERSION.to_word() {
            return Err(Error::Mismatch { off, what: "version", found: version, expected: VERSION.to_word() });
        }
        let found = get(&header.check);
        if found != check([version, count, lane_len]) {
            return Err(Error::Corrupt { off, what: "header checksum", found });
        }
        let total = count.checked_mul(lane_len).and_then(|l| l.checked_add(HEADER));
        if !count.is_power_of_two() || lane_len == 0 || total.is_none_or(|t| t > len) {
            return Err(Error::Corrupt { off, what: "number of lanes", found: count });
        }
        let mut next = 0;
        let mut lanes = Vec::new();
        for lane in 0..count {
            let log = L::recover(op, lane_of(region, lane, lane_len))?;
            let numbers = log.iter(op).filter_map(Record::split_word).map(|(number, _)| number.saturating_add(1));
            next = numbers.fold(log.floor(op).max(next), u64::max);
            lanes.push(Lock::new(log));
        }
        Ok(SharedLog { lanes: lanes.into(), sequence: AtomicU64::new(next) })
    }

    #[inline(always)]
    fn lane<M: Medium>(&self, op: &Op<'_, M>) -> &Lock<L> {
        &self.lanes[op.slot() as usize & (self.lanes.len() - 1)]
    }

    /// Appends a record to the lane of the operation's session: durable on return. Gives its sequence number. One write-back
    /// for each line touched, one fence; two locked instructions, both before the first write-back.
    ///
    /// # Errors
    /// As [`Log::stage_from`]; [`Error::Full`] is about the session's own lane.
    #[inline]
    pub fn append<M: Medium>(&self, op: &Op<'_, M>, tag: u8, payload: &[u8]) -> Result<u64> {
        self.put(op, tag, payload, true)
    }

    /// As [`append`](SharedLog::append), without the fence: durable after any fence of the same operation, or
    /// [`commit`](SharedLog::commit).
    ///
    /// # Errors
    /// As [`append`](SharedLog::append).
    #[inline]
    pub fn stage<M: Medium>(&self, op: &Op<'_, M>, tag: u8, payload: &[u8]) -> Result<u64> {
        self.put(op, tag, payload, false)
    }

    /// As [`append`](SharedLog::append), with a payload of words.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn append_words<M: Medium>(&self, op: &Op<'_, M>, tag: u8, payload: &[u64]) -> Result<u64> {
        self.put(op, tag, payload, true)
    }

    #[inline]
    fn put<M: Medium, S: Source>(&self, op: &Op<'_, M>, tag: u8, payload: S, durable: bool) -> Result<u64> {
        let mut lane = self.lane(op).lock(op.medium());
        let number = op.medium().shared_rmw(&self.sequence, Rmw::Add, 1);
        lane.stage_from(op, tag, (number, payload))?;
        if durable {
            lane.commit(op);
        }
        Ok(number)
    }

    /// Waits until everything staged in the session's lane is durable. One fence.
    pub fn commit<M: Medium>(&self, op: &Op<'_, M>) {
        self.lane(op).lock(op.medium()).commit(op);
    }

    /// Removes all records with numbers below `number`, in every lane. Durable with the operation's next fence; each lane uses
    /// the space again after its own next fence.
    ///
    /// # Errors
    /// None that a sound log gives.
    pub fn trim<M: Medium>(&self, op: &Op<'_, M>, number: u64) -> Result<()> {
        let number = number.min(op.medium().shared_load(&self.sequence, Ordering::Acquire));
        for lane in &self.lanes {
            let mut log = lane.lock(op.medium());
            let kept = log.iter(op).find(|r| r.len() < 8 || r.word(0) >= number).map(|r| r.position());
            let to = kept.unwrap_or(log.tail());
            if to != log.head() {
                log.trim_with(op, to, Some(number))?;
            }
        }
        Ok(())
    }

    /// Calls `f` with every record in the order of their numbers. Appends wait meanwhile: `f` must not append to this log.
    pub fn for_each<M: Medium>(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, Record<'_, M>)) {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.lock(op.medium())).collect();
        let mut iters: Vec<_> =
            lanes.iter().map(|log| log.iter(op).filter_map(Record::split_word).peekable()).collect();
        loop {
            let first = iters.iter_mut().filter_map(|i| Some((i.peek()?.0, i))).min_by_key(|(number, _)| *number);
            let Some((number, record)) = first.and_then(|(_, lane)| lane.next()) else { return };
            f(number, record);
        }
    }

    /// The number that the next record will get.
    pub fn next_number<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        op.medium().shared_load(&self.sequence, Ordering::Acquire)
    }

    /// Walks all lanes, and reports what contradicts itself, with the lane.
    pub fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<(usize, Finding)> {
        let mut findings = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            let log = lane.lock(op.medium());
            findings.extend(log.check(op).into_iter().map(|f| (number, f)));
            let mut last = None;
            for record in log.iter(op) {
                let position: Position = record.position();
                let sequence = record.split_word().map(|(number, _)| number);
                if sequence.is_none() || sequence <= last || sequence >= Some(self.next_number(op)) {
                    findings
                        .push((number, Finding { position, what: format!("sequence {sequence:?} after {last:?}") }));
                }
                last = sequence;
            }
        }
        findings
    }
}

fn lane_of(region: Region, lane: u64, len: u64) -> Region {
    Region { off: region.off + HEADER + lane * len, len }
}

pub(super) fn check(words: [u64; 3]) -> u64 {
    let bytes: Vec<u8> = [SHARED_MAGIC].iter().chain(&words).flat_map(|w| w.to_le_bytes()).collect();
    u64::from(crc32c::crc32c(&bytes))
}
