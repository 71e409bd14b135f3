//! Journaled pools: ordinary files that survive power failure.
//!
//! Stores go to private memory, which the kernel never writes to the file. Where a structure writes a line back, the line is noted. A
//! *commit* finds a moment without operations, copies the noted lines, appends them as one record to the journal, and makes it durable
//! with one flush of a file that was filled with zeroes before. A *checkpoint* carries whole generations of records to the pool's
//! file, all that wait, from the copies that were flushed, never from live memory; then their segments are free again. A commit that finds no free
//! segment adds one, up to a limit. See `docs/design/journal.md`.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | JN-J1 the journal, begun anew < JN-J2 its salt in the pool's header | sync of the journal, sync of its name | a journal that no pool names | not looked at |
//! | JN-J2 salt < JN-J3 state "journaled" | sync of the pool's file | the state before | as before; the journal is not looked at |
//! | JN-J3 state "journaled" < JN-A1 the first record | sync of the pool's file | the state before, no record | as before |
//! | JN-A1 a record < JN-A2 whoever waits is told | sync of the journal | a part of a record, at the end | not accepted: its checksum, or a gap before it |
//! | JN-A2 < JN-A3 the next record | one record at a time | | so at most the last one is torn |
//! | JN-T1 all records of some generations < JN-T2 their lines in the pool's file | JN-A2 of each | records, some of the lines | replays all of the records |
//! | as JN-S4: a header of the checksums that names this journal alone < JN-S2 | sync of the checksums, once in an opening | either header | both go with this journal |
//! | JN-S1 the intent: the checksums that their pages get < JN-T2 | sync of the journal | no intent, or some parts of it; pages agree with the checksums | judges them by these |
//! | JN-T2 lines < JN-S2 the checksums | sync of the pool's file | the intent, some of the lines | replays the generations, judges their pages by the intent |
//! | JN-S2 the checksums < JN-T3 | sync of the checksums | the intent, some of the checksums | the same |
//! | JN-T2 lines < JN-T3 a header that skips the generations | sync of the pool's file | the header before | replays the generations again |
//! | JN-T3 header < JN-T4 the first record of another generation in one of their segments | sync of the journal | either header | both are right: the lines are in the file |
//! | JN-G1 the file longer < JN-G2 a header with one more segment | sync of the journal | the header before | ignores the tail |
//! | JN-G2 < JN-G3 the next header; JN-G2 < JN-A2 of the first record in the new segment | sync of the journal, under the lock of the header | either header | does not see the record |
//! | JN-E1 the file longer < JN-E2 a header with larger segments | sync of the journal; all generations are checkpointed before | the header before, nothing to replay | ignores the tail |
//! | JN-E2 < JN-A2 whoever waits for the first record in the larger segment is told | the sync of that record | the old header, any part of the record | does not see the record |
//! | JN-D1 JN-T2 of the newest record of a page < JN-D2 the page in memory is dropped | sync of the pool's file; the number of the newest commit that was carried over is raised after it | memory is gone | none |
//! | JN-Z1 the last record < JN-Z2 all lines in the pool's file < JN-Z3 state "closed" | syncs of the journal, of the pool's file | state "journaled" | replays |
//!
//! JN-R1 to JN-R3 of recovery are those of `replay`. Growth is the pool's (PL-G1 to PL-G3): its file is longer, and synced, before the new size is
//! in any record. After any write or sync that fails, the pool is of no more use until it is opened again: nothing is tried twice.

mod carry;
mod file;
mod group;
pub mod layout;
mod leftovers;
mod notes;
mod replay;
mod search;
pub mod sums;
#[cfg(test)]
mod tests;
mod written;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use file::refuse_foreign;
pub use file::{BesidePool, DiskJournal, JournalFile, JournalPlace};
pub(crate) use group::{Group, Turn};
pub(crate) use leftovers::Leftovers;
pub(crate) use notes::{MAX_JOURNALED, Notes, NotesTicket, PAGE_LINES};
pub use replay::Progress;
pub(crate) use replay::{Of, Replay};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::ids::PoolId;
use layout::{Draft, Header, Images, Intent, IntentOf, MAX_PLACES, Place, RECORD_HEAD, VERSIONS};
pub(crate) use notes::PAGE;
pub(crate) use replay::PART;
pub(crate) use sums::{Sums, Verdict, read_page};
pub(crate) use written::{Candidate, Written};

/// Bytes of a segment of a new journal; it has two at first. One that is too small for a commit becomes larger.
pub const DEFAULT_SEGMENT: u64 = 4 << 20;

/// Bytes of all segments of a journal: so many are added where commits outrun the checkpoints.
pub const DEFAULT_LIMIT: u64 = 64 << 20;

/// What returned means, on an ordinary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// It survives power failure: each update waits for a flush of the journal, which many share.
    Immediate,
    /// After any crash, the death of the process too, one consistent state of all indices is found, at most this old, and the time
    /// of a flush.
    Interval(Duration),
    /// It survives the death of the process, not a power failure. There is no journal.
    Process,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Immediate => f.write_str("immediate"),
            Level::Interval(time) => write!(f, "interval={time:?}"),
            Level::Process => f.write_str("process"),
        }
    }
}

impl std::str::FromStr for Level {
    type Err = String;

    /// `immediate`, `process`, or `interval=64ms`, in milliseconds or seconds.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no level of durability; there are immediate, interval=64ms and process");
        match (text, text.strip_prefix("interval=")) {
            ("immediate", _) => Ok(Level::Immediate),
            ("process", _) => Ok(Level::Process),
            (_, Some(time)) => {
                let (number, unit) = match time.strip_suffix("ms") {
                    Some(number) => (number, 1),
                    None => (time.strip_suffix('s').ok_or_else(wrong)?, 1000),
                };
                let time = number.parse::<u32>().map_err(|_| wrong())?;
                if time == 0 {
                    Err(wrong())
                } else {
                    Ok(Level::Interval(Duration::from_millis(u64::from(time) * unit)))
                }
            }
            _ => Err(wrong()),
        }
    }
}

/// Figures of a journal since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalStats {
    /// Records that were appended, each with one flush.
    pub commits: u64,
    /// Bytes of these records.
    pub bytes: u64,
    /// Checkpoints: each carries all generations that wait to the pool's file.
    pub checkpoints: u64,
    /// Bytes that were written to the pool's file by them.
    pub checkpoint_bytes: u64,
    /// Pages of the pool's file that got a new checksum by them.
    pub checkpoint_pages: u64,
    /// Pages that they found damaged before they wrote to them. `Pool::check_pages` names them.
    pub damaged_pages: u64,
    /// Bytes that written pages take in memory now, as far as commits have captured them.
    pub written_bytes: u64,
    /// Bytes that they may take: [`PoolOptions::written_memory`](crate::PoolOptions::written_memory).
    pub written_limit: u64,
    /// Bytes of pages that were dropped from memory.
    pub dropped_bytes: u64,
    /// Lines that were written back behind the end of the pool, through a damaged offset, and are in no commit. Check the pool then.
    pub stray_lines: u64,
    /// Pages that the scrub has read and compared with their checksums: [`PoolOptions::scrub_every`](crate::PoolOptions::scrub_every).
    pub scrubbed_pages: u64,
    /// Pages that it has found damaged, each once.
    pub scrub_damaged: u64,
}

/// The journal of an open pool.
#[derive(Debug)]
pub(crate) struct Journal {
    name: String,
    file: Arc<dyn JournalFile>,
    backing: Arc<dyn Backing>,
    /// Where the medium notes lines.
    pub(crate) notes: Arc<NotesTicket>,
    pub(crate) level: Level,
    writer: Mutex<Writer>,
    /// Held during a checkpoint: there is one at a time. Taken before all others but `writer`.
    checkpoint: Mutex<()>,
    /// Held while the journal's file is synced. The system tells of a write that fails once, whoever syncs.
    syncing: Mutex<()>,
    /// Held from the first write of a checkpoint to the pool's file until that is synced, and during other syncs of that file.
    pool_file: Mutex<()>,
    /// The header that counts. Whoever writes a new one holds it until that is durable.
    header: Mutex<Header>,
    segments: Mutex<Segments>,
    /// The oldest generation that is not checkpointed.
    oldest: AtomicU64,
    /// The checksums of the pages; `checkpoint` is held by whoever changes or compares them. If there are none, why.
    sums: Result<Sums, String>,
    /// Whether a generation waits for its checkpoint.
    has_full: AtomicBool,
    /// The written pages in memory. Taken while operations are kept out, so it is held for short only.
    written: Mutex<Written>,
    /// Bytes that they may take.
    pub(crate) written_limit: u64,
    /// How long a pass of the scrub takes; zero: there is none.
    pub(crate) scrub_every: Duration,
    /// The newest commit that was carried to the pool's file, as all before it.
    carried: AtomicU64,
    /// Records that were appended.
    records: AtomicU64,
    /// When the last of them was, in nanoseconds since `opened`.
    appended: AtomicU64,
    /// The newest commit that is durable.
    durable: AtomicU64,
    pub(crate) group: Group,
    failed: OnceLock<String>,
    opened: Instant,
    /// When the last commit was captured, in nanoseconds since `opened`.
    captured: AtomicU64,
    /// Of the commit that is gathered and of the one before, by the parity of their numbers: when the first operation was settled that it
    /// holds, in nanoseconds since `opened`, plus one. Zero: none was.
    first: [AtomicU64; 2],
    stats: Mutex<JournalStats>,
}

/// What appending needs, held by whoever commits.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) draft: Draft,
    salt: u64,
    generation: u64,
    sequence: u64,
    /// Bytes of a segment.
    segment: u64,
    /// The place of this generation, and where it begins in the file.
    place: (u64, u64),
    /// Bytes of its segment that are used.
    used: u64,
    /// The durable records of this generation.
    kept: Vec<u8>,
    /// The commit of the last record.
    last: u64,
}

/// The segments that the writer does not use.
#[derive(Debug)]
struct Segments {
    /// The places of those that hold nothing, the last one comes next.
    free: Vec<u64>,
    /// The generations that wait for a checkpoint, ascending.
    full: Vec<Full>,
    /// Places that there may be.
    most: u64,
}

/// A generation whose records are all durable.
#[derive(Debug)]
struct Full {
    generation: u64,
    place: u64,
    records: Vec<u8>,
    /// The sequence number of the record after them.
    next: u64,
    /// The commit of the last of them.
    last: u64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Begins a journal anew in a file, whatever it held. Durable on return (JN-J1).
    pub(crate) fn begin(begun: Begin, pool: PoolId) -> Result<Self> {
        let Begin { name, file, backing, notes, level, segment, limit, sums, written_limit, scrub_every } = begun;
        let salt = u64::from_le_bytes(PoolId::random()?.0[..8].try_into().expect("8 bytes"));
        let segment = segment.max(layout::SLOT).next_multiple_of(layout::SLOT);
        let header = Header { version: VERSIONS.writes, pool, salt, turn: 0, segment, oldest: 0, first: 0, places: 2 };
        if file.len()? > header.file_len() {
            file.set_len(header.file_len())?;
        }
        file.allocate(header.file_len())?;
        let mut slot = vec![0; layout::SLOT as usize];
        file.write_at(layout::SLOT, &slot)?;
        slot[..layout::HEADER].copy_from_slice(&header.encode());
        file.write_at(0, &slot)?;
        file.sync()?; // PERSIST JN-J1<JN-J2: sync
        file.sync_name()?;
        let sums = match sums {
            Some(sums) => Ok(sums.begin(&*backing, pool, salt)?),
            None => Err("no place for them was given".into()),
        };
        let (draft, kept) = (Draft::default(), Vec::new());
        let place = (0, header.place(0));
        let writer = Writer { draft, salt, generation: 0, sequence: 0, segment, place, used: 0, kept, last: 0 };
        let most = (limit / segment).clamp(2, MAX_PLACES);
        let written = Mutex::new(Written::new(backing.private_page()));
        Ok(Journal {
            name,
            file,
            backing,
            notes,
            level,
            writer: Mutex::new(writer),
            checkpoint: Mutex::default(),
            syncing: Mutex::default(),
            pool_file: Mutex::default(),
            header: Mutex::new(header),
            segments: Mutex::new(Segments { free: vec![1], full: Vec::new(), most }),
            oldest: AtomicU64::new(0),
            sums,
            has_full: AtomicBool::new(false),
            written,
            written_limit,
            scrub_every,
            carried: AtomicU64::new(0),
            records: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            group: Group::default(),
            failed: OnceLock::new(),
            opened: Instant::now(),
            captured: AtomicU64::new(0),
            first: [const { AtomicU64::new(0) }; 2],
            stats: Mutex::default(),
        })
    }

    /// What ties it to its pool.
    pub(crate) fn salt(&self) -> u64 {
        lock(&self.header).salt
    }

    /// The writer: whoever commits holds it from before the capture until the record is durable.
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        lock(&self.writer)
    }

    /// The newest commit that is durable.
    #[inline]
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn stats(&self) -> JournalStats {
        let (written_bytes, written_limit) = (self.written().bytes(), self.written_limit);
        JournalStats { written_bytes, written_limit, ..*lock(&self.stats) }
    }

    /// The written pages in memory.
    pub(crate) fn written(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }

    /// The newest commit that was carried to the pool's file and synced, as all before it.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::Acquire)
    }

    /// Records that were appended.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// How long ago the last of them was.
    pub(crate) fn quiet(&self) -> Duration {
        self.opened.elapsed().saturating_sub(Duration::from_nanos(self.appended.load(Ordering::Relaxed)))
    }

    pub(crate) fn note_dropped(&self, bytes: u64) {
        lock(&self.stats).dropped_bytes += bytes;
    }

    /// Lines behind the end of the pool are in no commit.
    pub(crate) fn note_left_out(&self, lines: u64) {
        if lines != 0 {
            lock(&self.stats).stray_lines += lines;
        }
    }

    pub(crate) fn note_scrubbed(&self, pages: u64, damaged: u64) {
        let mut stats = lock(&self.stats);
        stats.scrubbed_pages += pages;
        stats.scrub_damaged += damaged;
    }

    /// Whether pages have checksums.
    pub(crate) fn has_sums(&self) -> bool {
        self.sums.is_ok()
    }

    /// How long ago the last commit was captured.
    pub(crate) fn age(&self) -> Duration {
        self.opened.elapsed().saturating_sub(Duration::from_nanos(self.captured.load(Ordering::Relaxed)))
    }

    /// Commit `number` has been captured; operations are still kept out.
    pub(crate) fn note_capture(&self, number: u64) {
        self.captured.store(self.opened.elapsed().as_nanos() as u64, Ordering::Relaxed);
        // The commit before is durable: whoever captures is the only writer.
        self.first[(number + 1) as usize % 2].store(0, Ordering::Relaxed);
    }

    /// How long ago the oldest operation was settled that a crash can take back; to be asked after an operation that commit `number`
    /// holds. Zero if that commit is durable.
    ///
    /// A thread that is held up between its look at `durable` and its exchange may enter its time for a later commit with the same parity. Then
    /// that commit seems older than it is, by the time that the thread was held up, and a writer may wait for one flush too many.
    pub(crate) fn exposed(&self, number: u64) -> Duration {
        let durable = self.durable();
        if durable >= number {
            return Duration::ZERO;
        }
        let now = self.opened.elapsed().as_nanos() as u64 + 1;
        let since = |number: u64| Some(self.first[number as usize % 2].load(Ordering::Relaxed)).filter(|at| *at != 0);
        if since(number).is_none() {
            // Another thread may have entered its time meanwhile.
            let _ = self.first[number as usize % 2].compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        // The flush of the commit before may be under way.
        let oldest = [since(durable + 1), since(number)].into_iter().flatten().min().unwrap_or(now);
        Duration::from_nanos(now.saturating_sub(oldest))
    }

    /// Whether a generation waits for its checkpoint.
    pub(crate) fn is_full(&self) -> bool {
        self.has_full.load(Ordering::Acquire)
    }

    /// Why it is of no more use.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failed.get().map(|reason| Error::JournalFailed { name: self.name.clone(), reason: reason.clone() })
    }

    /// Syncs the journal's file, whatever of it was written by whom. A failure is noted before anybody else can sync: the system would not tell
    /// of it again.
    fn sync_journal(&self) -> Result<()> {
        let _alone = lock(&self.syncing);
        self.failure().map_or(Ok(()), Err)?;
        self.file.sync().map_err(|error| self.fail(&error))
    }

    /// To be held while the pool's file is synced for another reason than a checkpoint, so that its sync does not take what the system has to
    /// tell of the checkpoint's writes.
    pub(crate) fn pool_file(&self) -> MutexGuard<'_, ()> {
        lock(&self.pool_file)
    }

    /// Gives up for good. The first reason is kept.
    fn fail(&self, error: &Error) -> Error {
        let _ = self.failed.set(error.to_string());
        self.failure().expect("just set")
    }

    /// Makes the draft of the writer durable: commit `number`. One flush.
    ///
    /// # Errors
    /// [`Error::JournalFailed`], now and for ever.
    pub(crate) fn append(&self, writer: &mut Writer, number: u64) -> Result<()> {
        self.failure().map_or(Ok(()), Err)?;
        if !writer.draft.is_empty() {
            self.try_append(writer).map_err(|error| self.fail(&error))?;
            writer.last = number;
            self.records.fetch_add(1, Ordering::Relaxed);
            self.appended.store(self.opened.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        // PERSIST JN-A1<JN-A2: sync, in `try_append`
        self.durable.fetch_max(number, Ordering::AcqRel);
        Ok(())
    }

    fn try_append(&self, writer: &mut Writer) -> Result<()> {
        let len = writer.draft.len();
        if writer.used + len > writer.segment {
            self.make_room(writer, len)?;
        }
        writer.draft.oldest = self.oldest.load(Ordering::Acquire);
        let Writer { salt, generation, sequence, .. } = *writer;
        let at = writer.place.1 + writer.used;
        let record = writer.draft.seal(Place { salt, generation, sequence, at });
        self.file.write_at(at, record)?;
        self.sync_journal()?; // PERSIST JN-A1<JN-A2: sync
        if writer.kept.is_empty() {
            // Otherwise it doubles, and waits for its checkpoint with what it does not need.
            let _ = writer.kept.try_reserve_exact(writer.segment as usize);
        }
        writer.kept.extend_from_slice(record);
        writer.used += len;
        writer.sequence += 1;
        let mut stats = lock(&self.stats);
        stats.commits += 1;
        stats.bytes += len;
        Ok(())
    }

    /// Goes on in another segment, and has this one checkpointed; makes all of them larger if one record does not fit.
    fn make_room(&self, writer: &mut Writer, len: u64) -> Result<()> {
        if len > writer.segment {
            self.turn_over(writer);
            self.checkpoint()?;
            return self.enlarge(writer, len);
        }
        self.next_segment(writer)
    }

    /// Goes on in another segment.
    fn next_segment(&self, writer: &mut Writer) -> Result<()> {
        let place = self.free_place()?; // PERSIST JN-T3<JN-T4: its segment is free
        self.turn_over(writer);
        writer.place = place;
        Ok(())
    }

    /// A place whose segment holds nothing, and where it begins: adds one if there is none, or waits for a checkpoint.
    fn free_place(&self) -> Result<(u64, u64)> {
        loop {
            let (free, most) = {
                let mut segments = lock(&self.segments);
                (segments.free.pop(), segments.most)
            };
            let header = *lock(&self.header);
            if let Some(place) = free {
                return Ok((place, header.place(place)));
            }
            if header.places >= most || !self.add_segment()? {
                self.checkpoint()?;
            }
        }
    }

    /// Adds a segment. Returns whether there was room on the disk; if not, the journal stays as it is from now on.
    fn add_segment(&self) -> Result<bool> {
        let mut header = lock(&self.header);
        let next = Header { turn: header.turn + 1, places: header.places + 1, ..*header };
        match self.file.allocate(next.file_len()) {
            Err(Error::DiskFull { .. }) => {
                lock(&self.segments).most = header.places;
                return Ok(false);
            }
            allocated => allocated?,
        }
        self.sync_journal()?; // PERSIST JN-G1<JN-G2: sync
        self.file.write_at(next.slot(), &next.encode())?;
        self.sync_journal()?; // PERSIST JN-G2<JN-G3: sync
        lock(&self.segments).free.push(header.places);
        *header = next;
        Ok(true)
    }

    /// Hands the records of this generation over to the next checkpoint.
    fn turn_over(&self, writer: &mut Writer) {
        if writer.used == 0 {
            return;
        }
        let Writer { generation, place: (place, _), sequence: next, last, .. } = *writer;
        let records = std::mem::take(&mut writer.kept);
        lock(&self.segments).full.push(Full { generation, place, records, next, last });
        self.has_full.store(true, Ordering::Release);
        writer.generation += 1;
        writer.used = 0;
    }

    /// Makes segments that hold a record of `len` bytes. Nothing is left to replay.
    fn enlarge(&self, writer: &mut Writer, len: u64) -> Result<()> {
        let (_checkpoint, mut header) = (lock(&self.checkpoint), lock(&self.header));
        let segment = len.checked_next_power_of_two().ok_or(Error::TooLarge { bytes: len, limit: 1 << 62 })?;
        let Writer { generation: oldest, sequence: first, .. } = *writer;
        let next = Header { turn: header.turn + 1, segment, oldest, first, places: 2, ..*header };
        self.file.allocate(next.file_len())?;
        self.sync_journal()?; // PERSIST JN-E1<JN-E2: sync
        // PERSIST JN-E2<JN-A2: the sync of the record that needs the room
        self.file.write_at(next.slot(), &next.encode())?;
        let mut segments = lock(&self.segments);
        segments.most = (segments.most * header.segment / segment).max(2);
        segments.free = vec![1];
        *header = next;
        (writer.segment, writer.place) = (segment, (0, next.place(0)));
        Ok(())
    }

    /// Carries all generations that wait to the pool's file. Returns whether there were any.
    ///
    /// # Errors
    /// [`Error::JournalFailed`].
    pub(crate) fn checkpoint(&self) -> Result<bool> {
        let _one_at_a_time = lock(&self.checkpoint);
        self.failure().map_or(Ok(()), Err)?;
        // Before another one can begin: it would skip the generations that were not carried over.
        self.carry_waiting().map_err(|error| self.fail(&error))
    }

    /// Carries all records to the pool's file that are durable by now, also those of a generation that is not full. Returns whether there
    /// were any.
    ///
    /// # Errors
    /// [`Error::JournalFailed`].
    pub(crate) fn carry_over(&self) -> Result<bool> {
        let mut writer = self.writer();
        let has_records = writer.used > 0;
        if has_records {
            self.failure().map_or(Ok(()), Err)?;
            self.next_segment(&mut writer).map_err(|error| self.fail(&error))?;
        }
        drop(writer);
        Ok(self.checkpoint()? || has_records)
    }

    fn carry_waiting(&self) -> Result<bool> {
        let full = {
            let mut segments = lock(&self.segments);
            self.has_full.store(false, Ordering::Release);
            std::mem::take(&mut segments.full)
        };
        let (Some(oldest), Some(newest)) = (full.first(), full.last()) else { return Ok(false) };
        let mut images = Images::default();
        for record in full.iter().flat_map(|full| records(&full.records)) {
            images.add(record);
        }
        let pages = self.sums.as_ref().map_or(Ok(Vec::new()), |sums| sums.after(&*self.backing, &images))?;
        if let Ok(sums) = &self.sums {
            let header = *lock(&self.header);
            sums.settle_on(header.salt)?; // PERSIST JN-S4<JN-S2: sync
            let intent = Intent {
                generation: oldest.generation,
                last: newest.generation,
                next: newest.next,
                end: 0,
                pages: pages.clone(),
            };
            for (at, part) in intent.parts(&header, IntentOf::Checkpoint) {
                self.file.write_at(at, &part)?;
            }
            self.sync_journal()?; // PERSIST JN-S1<JN-T2: sync
        }
        // JN-T1: each of them was synced before it was kept.
        {
            let _alone = self.pool_file();
            carry::carry(&*self.backing, &images)?;
            self.backing.sync()?; // PERSIST JN-T2<JN-S2, JN-T2<JN-T3: sync
        }
        if let Ok(sums) = &self.sums {
            sums.set(&pages)?;
            sums.sync()?; // PERSIST JN-S2<JN-T3: sync
        }
        let mut header = lock(&self.header);
        let next = Header { turn: header.turn + 1, oldest: newest.generation + 1, first: newest.next, ..*header };
        self.file.write_at(next.slot(), &next.encode())?;
        self.sync_journal()?; // PERSIST JN-T3<JN-T4: sync
        *header = next;
        drop(header);
        self.oldest.store(next.oldest, Ordering::Release);
        // PERSIST JN-D1<JN-D2: all of it is synced
        self.carried.store(newest.last, Ordering::Release);
        lock(&self.segments).free.extend(full.iter().rev().map(|full| full.place));
        let mut stats = lock(&self.stats);
        stats.checkpoints += 1;
        stats.checkpoint_bytes += (images.count() * crate::LINE) as u64;
        stats.checkpoint_pages += pages.len() as u64;
        stats.damaged_pages += pages.iter().filter(|(_, entry)| *entry == sums::DAMAGED).count() as u64;
        Ok(true)
    }

    /// Makes room for the checksums of a pool of `len` bytes.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`].
    pub(crate) fn grow_sums(&self, len: u64) -> Result<()> {
        self.sums.as_ref().map_or(Ok(()), |sums| sums.grow(len))
    }

    /// Judges pages of the pool's file while no checkpoint changes them, and gives those without a checksum one if `adopt` says so.
    /// Calls `f` with each page that is not sound.
    pub(crate) fn judge(
        &self,
        pages: std::ops::Range<u64>,
        adopt: bool,
        f: &mut dyn FnMut(u64, Verdict),
    ) -> Result<Result<(), String>> {
        let sums = match &self.sums {
            Ok(sums) => sums,
            Err(why) => return Ok(Err(why.clone())),
        };
        let _no_checkpoint = lock(&self.checkpoint);
        let entries = sums.entries(pages.start, (pages.end - pages.start) as usize)?;
        let mut new = Vec::new();
        for (page, entry) in pages.zip(entries) {
            let bytes = read_page(&*self.backing, page)?;
            match sums.judge(page, &bytes, entry) {
                Verdict::Sound => {}
                Verdict::Unknown if adopt => new.push((page, sums.sum(page, &bytes))),
                other => f(page, other),
            }
        }
        if !new.is_empty() {
            sums.settle_on(self.salt())?; // PERSIST JN-S4<JN-S2: sync
            sums.set(&new)?;
            sums.sync()?;
        }
        Ok(Ok(()))
    }

    /// Carries everything that is durable to the pool's file (JN-Z2).
    pub(crate) fn finish(&self, writer: &mut Writer) -> Result<()> {
        self.checkpoint()?;
        self.turn_over(writer);
        self.checkpoint()?;
        Ok(())
    }
}

/// What a journal is begun with.
#[derive(Debug)]
pub(crate) struct Begin {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn JournalFile>,
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) notes: Arc<NotesTicket>,
    pub(crate) level: Level,
    pub(crate) segment: u64,
    /// Bytes of all segments together, at most, where records allow it.
    pub(crate) limit: u64,
    pub(crate) sums: Option<BeginSums>,
    pub(crate) written_limit: u64,
    pub(crate) scrub_every: Duration,
}

/// What the checksums of the pages are begun with.
#[derive(Debug)]
pub(crate) struct BeginSums {
    pub(crate) place: Arc<dyn JournalPlace>,
    /// Those that are right, and the salt that they go with.
    pub(crate) there: Option<(Sums, u64)>,
    /// Otherwise: how many pages may have been written to.
    pub(crate) pages: u64,
}

impl BeginSums {
    /// Durable on return (JN-S0).
    fn begin(self, backing: &dyn Backing, pool: PoolId, salt: u64) -> Result<Sums> {
        if let Some((sums, before)) = self.there {
            // Otherwise a checkpoint would make it longer while growth does, whose zeroes could then hit entries.
            sums.grow(backing.len()?)?;
            sums.bind([before, salt])?;
            return Ok(sums);
        }
        let sums = Sums::begin(&*self.place, pool, self.pages)?;
        // Creation has stored the header and its spare, on two pages. Of an older pool, only the header is known to be sound.
        let stored = if self.pages == 0 { 2 } else { 1 };
        for page in 0..stored {
            sums.set(&[(page, sums.sum(page, &*read_page(backing, page)?))])?;
        }
        sums.grow(backing.len()?)?;
        sums.bind([salt; 2])?;
        Ok(sums)
    }
}

/// The records that lie one after the other in memory.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let head = bytes.get(..RECORD_HEAD)?;
        let runs = u64::from_le_bytes(head[40..48].try_into().expect("8 bytes")) as usize;
        let (record, rest) = bytes.split_at_checked(RECORD_HEAD + runs)?;
        bytes = rest;
        Some(record)
    })
}
