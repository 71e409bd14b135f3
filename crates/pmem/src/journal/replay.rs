//! Recovery: what a journal says, and carrying it to the pool's file.
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as JN-S4: a header of the checksums that names this journal alone < JN-S3 | sync of the checksums | either header | both go with this journal |
//! | JN-R1 the header and the records that are accepted, written again, and the intent of the recovery < JN-R2 the first write to the pool's file | sync of the journal | the journal, perhaps with fewer records; then no intent that ends where they do | begins anew with what it finds; nothing was used yet |
//! | JN-R2 all lines in the pool's file < JN-S3 the checksums of their pages | sync of the pool's file | the same journal, some of the lines | writes the same lines again, and judges pages by the intent |
//! | JN-S3 the checksums of their pages < JN-R3 state "replayed" | sync of the checksums | the same journal, all of the lines, some of the checksums | writes the same lines again |
//! | JN-R3 state "replayed" < JN-J1 the journal begins anew | sync of the pool's file | the same journal | writes the same lines again |
//!
//! JN-R1 is there because what is read may lie in the page cache alone: after the death of a process that had not synced yet, or after
//! a sync that failed and marked the pages clean. To use it, and to lose it in a power failure, would leave half a commit in the pool's
//! file.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::carry::carry;
use super::file::{JournalFile, JournalPlace};
use super::layout::{
    HEADER, Head, Header, INTENT, INTENT_HEAD, Images, Intent, IntentOf, MAGIC, Place, RECORD, RECORD_HEAD, SLOT,
    VERSIONS, operations_of, record_at, sealed, word,
};
use super::notes::PAGE;
use super::search::{PIECE, Search, checksum};
use super::sums::{Page, Sums, Verdict};
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::ids::PoolId;
use crate::line::LINE;
use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::version::Version;
use crate::word::Word;

/// Bytes that are written to the pool's file at a time, at most.
pub(crate) const PART: usize = 256 << 10;

/// A record of another pool that claims to be longer counts without a look at it.
const LONG: u64 = 1 << 30;

/// The pool whose journal is read: what it is called, and what its header says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    pub(crate) name: &'a str,
    pub(crate) pool: PoolId,
    pub(crate) salt: u64,
    /// Bytes of its file.
    pub(crate) len: u64,
}

/// What a journal says that its pool's file does not yet.
#[derive(Debug)]
pub(crate) struct Replay {
    file: Arc<dyn JournalFile>,
    header: Header,
    /// Bytes of the pool's file.
    pool_len: u64,
    /// The accepted records, as they lie in the file.
    parts: Vec<(u64, Vec<u8>)>,
    /// What the records say.
    images: Images,
    /// The same of the generations that a checkpoint has begun to write.
    begun: Images,
    records: u64,
    /// Operations that had ended at the last of them.
    operations: u64,
    /// What a checkpoint of the oldest generations has begun to write.
    checkpoint: Option<Intent>,
    /// What a recovery of these records has begun to write.
    recovery: Option<Intent>,
}

impl Replay {
    /// Reads the journal of a pool that was open with one of that salt.
    pub(crate) fn read(place: &dyn JournalPlace, read_only: bool, of: Of<'_>) -> Result<Self> {
        Self::read_as(place, read_only, of, true)
    }

    /// The same of a pool that may be open elsewhere. Commits can come while it is read: a later record says nothing of the one that was
    /// not there.
    pub(crate) fn peek(place: &dyn JournalPlace, of: Of<'_>) -> Result<Self> {
        Self::read_as(place, true, of, false)
    }

    fn read_as(place: &dyn JournalPlace, read_only: bool, of: Of<'_>, looks_for_later: bool) -> Result<Self> {
        let Of { name, pool, salt, len } = of;
        let journal = place.describe();
        let Some(file) = place.open(read_only)? else {
            return Err(Error::MissingJournal { name: name.into(), journal });
        };
        let foreign = |what| Error::ForeignJournal { name: name.into(), journal: journal.clone(), what };
        let of_another = |of| foreign(format!("it belongs to pool {of}, and this is pool {pool}"));
        if let Some((found, of)) = Self::other_version(&*file) {
            let other = || Error::OtherVersion { what: "journal", file: journal.clone(), found, known: VERSIONS };
            return Err(if of == pool { other() } else { of_another(of) });
        }
        let header = Self::header(&*file)?;
        if header.pool != pool {
            return Err(of_another(header.pool));
        }
        if header.salt != salt {
            return Err(foreign("it belongs to another opening of this pool".into()));
        }
        let mut replay = Self::of(file, header, len);
        replay.checkpoint = replay.intent(IntentOf::Checkpoint, 0)?;
        replay.read_records(looks_for_later)?;
        replay.recovery = replay.intent(IntentOf::Recovery, header.first + replay.records)?;
        Ok(replay)
    }

    fn of(file: Arc<dyn JournalFile>, header: Header, pool_len: u64) -> Self {
        Replay {
            file,
            header,
            pool_len,
            parts: Vec::new(),
            images: Images::default(),
            begun: Images::default(),
            records: 0,
            operations: 0,
            checkpoint: None,
            recovery: None,
        }
    }

    /// Refuses to begin a journal of pool `name` where one of another pool than `own` lies, with records. One without a sound header has
    /// none.
    pub(crate) fn refuse_stray(place: &dyn JournalPlace, name: &str, own: Option<PoolId>) -> Result<()> {
        let Some(file) = place.open(true)? else { return Ok(()) };
        let stray = |of: PoolId| {
            Err(Error::StrayJournal { name: name.into(), journal: place.describe(), pool: of.to_string() })
        };
        if let Some((_, of)) = Self::other_version(&*file).filter(|(_, of)| Some(*of) != own) {
            // Nobody here knows whether it has records.
            return stray(of);
        }
        let Some(header) = Self::header(&*file).ok().filter(|header| Some(header.pool) != own) else { return Ok(()) };
        let of = header.pool;
        if Self::of(file, header, u64::MAX).has_records().is_ok_and(|has| !has) {
            return Ok(());
        }
        stray(of)
    }

    /// Whether it may hold a record that counts. Takes no memory for what it holds.
    fn has_records(&self) -> Result<bool> {
        let Header { salt, first, oldest, places, .. } = self.header;
        for number in 0..places {
            let mut segment = self.segment(&*self.file, number);
            let place = Place { salt, generation: oldest, sequence: first, at: segment.start };
            let claimed = segment.claimed(place)?.map_or(0, |(len, _)| len);
            if claimed > LONG || segment.record_len(place)?.is_some() || segment.later(place)?.is_some() {
                return Ok(true);
            }
        }
        self.has_tail(Place { salt, generation: oldest, sequence: first, at: 0 })
    }

    fn segment<'a>(&self, file: &'a dyn JournalFile, place: u64) -> Reading<'a> {
        Reading::new(file, &self.header, self.pool_len, place)
    }

    /// Whether records lie behind what the header speaks of, as late as the one that comes next or later.
    fn has_tail(&self, next: Place) -> Result<bool> {
        let len = self.file.len()?.saturating_sub(self.header.file_len());
        let tail = Reading { len, ..self.segment(&*self.file, self.header.places) };
        Ok(tail.later(Place { sequence: next.sequence.saturating_sub(1), ..next })?.is_some())
    }

    /// The intent of these generations that ends there, if there is a sound one. Where a crash has left some of its parts only, no page was
    /// written yet, and those count.
    fn intent(&self, of: IntentOf, end: u64) -> Result<Option<Intent>> {
        let (header, mut all) = (&self.header, None::<Intent>);
        for place in 0..header.places {
            let (at, mut bytes) = (header.intent(of, place), vec![0; INTENT_HEAD]);
            self.file.read_at(at, &mut bytes)?;
            let len = word(&bytes, 5).saturating_mul(16).saturating_add(INTENT_HEAD as u64);
            let head = [1, 2, 3, 4].map(|number| word(&bytes, number));
            // None speaks of a page twice.
            let most = self.pool_len.div_ceil(PAGE).saturating_mul(16).saturating_add(INTENT_HEAD as u64);
            let may_count = head == [INTENT, header.oldest, end, at] && len <= header.intent_len().min(most);
            // Memory for what was checked.
            if !may_count || (len > PIECE && checksum(&*self.file, header.salt, at + 8..at + len)? != word(&bytes, 0)) {
                continue;
            }
            bytes.resize(len as usize, 0);
            self.file.read_at(at, &mut bytes)?;
            let part = Intent::decode(&bytes, header.salt, header.oldest, at).filter(|part| part.end == end);
            match (&mut all, part) {
                (Some(all), Some(part)) => all.join(part),
                (all, part) => *all = part.or(all.take()),
            }
        }
        Ok(all)
    }

    /// Version and pool of a journal that is of a version which this build does not open. All headers of a journal have one version.
    pub(super) fn other_version(file: &dyn JournalFile) -> Option<(Version, PoolId)> {
        if Self::headers(file).next().is_some() {
            return None;
        }
        let slots = [0, SLOT].map(|at| {
            let mut bytes = [0; HEADER];
            file.read_at(at, &mut bytes).ok()?;
            sealed(&bytes, MAGIC).filter(|(version, _)| !VERSIONS.opens(*version))
        });
        slots.into_iter().flatten().next()
    }

    /// The sound headers.
    pub(super) fn headers(file: &dyn JournalFile) -> impl Iterator<Item = Header> {
        let slots = [0, SLOT].map(|at| {
            let mut bytes = [0; HEADER];
            file.read_at(at, &mut bytes).ok()?;
            Header::decode(&bytes).filter(|header| header.slot() == at)
        });
        slots.into_iter().flatten()
    }

    /// The header that counts.
    fn header(file: &dyn JournalFile) -> Result<Header> {
        let header = Self::headers(file).max_by_key(|header| header.turn);
        let header = header.ok_or_else(|| damaged(file, "no sound header in its first 8192 bytes".into()))?;
        let len = file.len()?;
        if len < header.file_len() {
            let what = format!("it has {len} bytes, and its header speaks of {}", header.file_len());
            return Err(damaged(file, what));
        }
        Ok(header)
    }

    /// Accepts records from the oldest generation on, as long as each is the next one. A segment is used again only after the header has
    /// moved on.
    fn read_records(&mut self, looks_for_later: bool) -> Result<()> {
        let file = Arc::clone(&self.file);
        let Header { salt, first, oldest, .. } = self.header;
        let mut segments: Vec<Reading> = (0..self.header.places).map(|place| self.segment(&*file, place)).collect();
        let mut place = Place { salt, generation: oldest, sequence: first, at: 0 };
        // Those that a generation was found in come first.
        let mut found = 0;
        while let Some(at) = position(&mut segments[found..], place)? {
            segments.swap(found, found + at);
            let segment = &mut segments[found];
            let is_begun = self.checkpoint.as_ref().is_some_and(|intent| place.generation <= intent.last);
            place.at = segment.start;
            while let Some(record) = segment.record(place)? {
                if !self.images.add(record) || (is_begun && !self.begun.add(record)) {
                    let what = format!("the record at {:#x} has a sound checksum and makes no sense", place.at);
                    return Err(damaged(&*file, what));
                }
                self.operations = operations_of(record);
                segment.used += record.len() as u64;
                (place.sequence, place.at) = (place.sequence + 1, segment.start + segment.used);
            }
            if let Some(begun) = &self.checkpoint
                && begun.last == place.generation
                && begun.next != place.sequence
            {
                let Intent { next, .. } = begun;
                let what = format!(
                    "a checkpoint of all records before number {next} has begun, and number {} is damaged",
                    place.sequence
                );
                return Err(damaged(&*file, what));
            }
            (found, place.generation) = (found + 1, place.generation + 1);
        }
        // A record is written after the one before it was durable. So what is missing here is no torn end.
        for segment in segments.iter().filter(|_| looks_for_later) {
            if let Some(later) = segment.later(Place { generation: oldest, ..place })? {
                return Err(damaged(&*file, later.told(place.sequence)));
            }
        }
        // Behind what the header speaks of: a newer header is damaged, which was durable before anything was written there.
        let Header { places, .. } = self.header;
        if looks_for_later && self.has_tail(Place { generation: oldest, ..place })? {
            let what = format!(
                "records lie behind the {places} segments that its header speaks of: a newer header is damaged"
            );
            return Err(damaged(&*file, what));
        }
        self.records = place.sequence - first;
        if let Some(last) = self.checkpoint.as_ref().map(|intent| intent.last).filter(|last| place.generation <= *last)
        {
            let what = format!("a checkpoint of generations {oldest} to {last} has begun, and the records end before");
            return Err(damaged(&*file, what));
        }
        segments.truncate(found);
        self.parts = segments.into_iter().map(Reading::into_part).collect();
        Ok(())
    }

    /// What a page of the pool's file is worth, whatever a checkpoint or a recovery has written of it, and its entry in the checksums when
    /// all is written. `bytes` are those of the file, and afterwards those of the pool; `noted` is its entry in the checksums.
    pub(crate) fn judge(&self, sums: &Sums, page: u64, bytes: &mut Page, noted: u64) -> (Verdict, u64) {
        let entry = |intent: &Option<Intent>| intent.as_ref().and_then(|intent| intent.entry(page));
        let (was, whole) = if let Some(entry) = entry(&self.recovery) {
            // Any of the lines may be in the file.
            let whole = self.images.overlay(page, bytes);
            (sums.judge(page, bytes, entry), whole)
        } else {
            let (was, new) = if let Some(entry) = entry(&self.checkpoint) {
                let new = self.begun.overlay(page, bytes);
                (sums.judge(page, bytes, entry), new)
            } else {
                (sums.judge(page, bytes, noted), false)
            };
            (was, self.images.overlay(page, bytes) || new)
        };
        let entry = sums.next(page, bytes, was, whole);
        (if whole && was == Verdict::Damaged { Verdict::Sound } else { was }, entry)
    }

    /// The entries of all pages that are written, once they are.
    fn entries(&self, backing: &dyn Backing, sums: &Sums) -> Result<Vec<(u64, u64)>> {
        sums.each(backing, &self.images.pages(), |page, bytes, noted| self.judge(sums, page, bytes, noted).1)
    }

    /// Carries it to the pool's file, and the checksums of its pages to `sums`; durable on return. `replayed` is written at last.
    pub(crate) fn apply(
        &self,
        backing: &dyn Backing,
        (at, replayed): (u64, [u8; 8]),
        sums: Option<&Sums>,
    ) -> Result<()> {
        let (end, len) = (self.images.end() * LINE as u64, backing.len()?);
        if end > len {
            let what = format!("it speaks of byte {end:#x} of a pool of {len:#x} bytes");
            return Err(damaged(&*self.file, what));
        }
        self.file.write_at(self.header.slot(), &self.header.encode())?;
        self.parts.iter().try_for_each(|(at, bytes)| self.file.write_at(*at, bytes))?;
        let pages = sums.map_or(Ok(Vec::new()), |sums| self.entries(backing, sums))?;
        if !pages.is_empty() {
            let (generation, end) = (self.header.oldest, self.header.first + self.records);
            let intent = Intent { generation, last: u64::MAX, next: 0, end, pages: pages.clone() };
            for (at, part) in intent.parts(&self.header, IntentOf::Recovery) {
                self.file.write_at(at, &part)?;
            }
        }
        self.file.sync()?; // PERSIST JN-R1<JN-R2: sync
        carry(backing, &self.images)?;
        backing.sync()?; // PERSIST JN-R2<JN-S3: sync
        if let Some(sums) = sums.filter(|_| !pages.is_empty()) {
            sums.settle_on(self.header.salt)?; // PERSIST JN-S4<JN-S3: sync
            sums.set(&pages)?;
            sums.sync()?; // PERSIST JN-S3<JN-R3: sync
        }
        backing.write(at, &replayed)?;
        backing.sync() // PERSIST JN-R3<JN-J1: sync
    }

    /// Whether the journal has not been trimmed since it was read.
    pub(crate) fn is_current(&self) -> bool {
        Self::header(&*self.file).is_ok_and(|header| header == self.header)
    }

    /// The work on the pool since the journal began.
    pub(crate) fn progress(&self) -> Progress {
        let operations = (self.records > 0).then_some(self.operations);
        Progress { commits: Some(self.header.first + self.records), operations, counted: None }
    }

    /// The lines, for a pool that is only read.
    pub(crate) fn images(&self) -> &Images {
        &self.images
    }
}

/// The first segment whose first record is that one.
fn position(segments: &mut [Reading], place: Place) -> Result<Option<usize>> {
    for (at, segment) in segments.iter_mut().enumerate() {
        if segment.record(Place { at: segment.start, ..place })?.is_some() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// A segment that is read piece by piece, as far as its records go.
struct Reading<'a> {
    file: &'a dyn JournalFile,
    start: u64,
    len: u64,
    /// Bytes of a record, at most.
    longest: u64,
    /// What was read, from the beginning on.
    bytes: Vec<u8>,
    /// Bytes of records that count.
    used: u64,
}

impl<'a> Reading<'a> {
    fn new(file: &'a dyn JournalFile, header: &Header, pool_len: u64, place: u64) -> Self {
        let (start, len, longest) = (header.place(place), header.segment, longest_record(pool_len));
        Reading { file, start, len, longest, bytes: Vec::new(), used: 0 }
    }

    /// Reads on until so many bytes are there, if the segment has them.
    fn reach(&mut self, wanted: u64) -> Result<()> {
        let there = self.bytes.len() as u64;
        if there < wanted.min(self.len) {
            // A damaged record may want any number of bytes.
            let end = wanted.min(self.len).next_multiple_of(PIECE).min(self.len);
            self.bytes.resize(end as usize, 0);
            self.file.read_at(self.start + there, &mut self.bytes[there as usize..])?;
        }
        Ok(())
    }

    /// What the head of a record at a place says, if it belongs there: its length, and its checksum.
    fn claimed(&mut self, place: Place) -> Result<Option<(u64, u64)>> {
        let at = place.at - self.start;
        self.reach(at + RECORD_HEAD as u64)?;
        let head = self.bytes.get(at as usize..).filter(|head| head.len() >= RECORD_HEAD);
        let Some(head) = head else { return Ok(None) };
        let [sum, what, generation, sequence, _, runs] = [0, 1, 2, 3, 4, 5].map(|n| word(head, n));
        let len = runs.saturating_add(RECORD_HEAD as u64);
        let belongs = [what, generation, sequence] == [RECORD, place.generation, place.sequence];
        Ok((belongs && len <= self.longest.min(self.len - at)).then_some((len, sum)))
    }

    /// Bytes of the record that begins at a place, if it belongs there and may be sound. One that is longer than a piece is sound; for that
    /// it was not read into memory.
    fn record_len(&mut self, place: Place) -> Result<Option<u64>> {
        let Some((len, sum)) = self.claimed(place)? else { return Ok(None) };
        let is_sound = len <= PIECE || checksum(self.file, place.salt, place.at + 8..place.at + len)? == sum;
        Ok(is_sound.then_some(len))
    }

    /// The record that begins at a place, if it is sound and belongs there.
    fn record(&mut self, place: Place) -> Result<Option<&[u8]>> {
        let Some(len) = self.record_len(place)? else { return Ok(None) };
        let at = place.at - self.start;
        self.reach(at + len)?;
        Ok(record_at(&self.bytes[at as usize..], place))
    }

    /// Whether a sound record with a later number lies anywhere behind those that count. Then the one with that number was durable,
    /// because each is before the next one is written. Where heads are left untried, there may be one.
    fn later(&self, place: Place) -> Result<Option<Later>> {
        let (range, mut later) = (self.start + self.used..self.start + self.len, None);
        let is_later =
            |head: &Head| head.what == RECORD && head.generation >= place.generation && head.number > place.sequence;
        let mut search = Search::new(self.file, place.salt);
        search.each(range, is_later, |head| {
            later = Some(Later::Sound(head.number));
            ControlFlow::Break(())
        })?;
        Ok(later.or((!search.is_complete()).then_some(Later::Untried)))
    }

    /// Where the records that count lie, and what they are.
    fn into_part(mut self) -> (u64, Vec<u8>) {
        self.bytes.truncate(self.used as usize);
        (self.start, self.bytes)
    }
}

/// Bytes of a record of a pool of that length, at most: no line twice, each in a run of its own, and none behind the pool's end.
pub(super) fn longest_record(pool_len: u64) -> u64 {
    (pool_len / LINE as u64).saturating_mul(LINE as u64 + 8).saturating_add(RECORD_HEAD as u64)
}

/// What lies in a segment behind its last record that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    /// A sound record, of this sequence number.
    Sound(u64),
    /// More heads of records than were tried.
    Untried,
}

impl Later {
    /// Why the record with a sequence number is missing that should lie before it.
    fn told(self, sequence: u64) -> String {
        match self {
            Later::Sound(later) => {
                format!(
                    "the record with sequence number {sequence} is damaged: number {later}, which is later, is sound"
                )
            }
            Later::Untried => format!(
                "there is no sound record with sequence number {sequence}, and behind its place are more heads of records than were tried: a \
                 later one may be sound"
            ),
        }
    }
}

/// The work on a pool since it was opened, as its journal tells it to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Commits. `None` without a journal.
    pub commits: Option<u64>,
    /// Operations that had ended when they were counted, reads included: with a journal, at the last commit. `None` for a moment after a
    /// checkpoint has trimmed the journal.
    pub operations: Option<u64>,
    /// When they were counted. `None` with a journal, which does not say it.
    pub counted: Option<SystemTime>,
}

pub(super) fn damaged(file: &dyn JournalFile, what: String) -> Error {
    Error::DamagedJournal { journal: file.describe(), what }
}

impl Images {
    /// Stores the lines into a mapping that holds what the pool's file does.
    pub(crate) fn store<M: Medium>(&self, op: &Op<'_, M>) {
        self.iter().for_each(|(line, bytes)| store_line(op, line, bytes));
    }
}

/// Stores a line, if the mapping is that long.
pub(super) fn store_line<M: Medium>(op: &Op<'_, M>, line: u64, bytes: &[u8; LINE]) {
    let at = line * LINE as u64;
    if at >= op.mapping().len() {
        return;
    }
    let words = op.at(Off::<[Word; 8]>::new(at));
    for (word, bytes) in words.iter().zip(bytes.as_chunks::<8>().0) {
        op.store(word, u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use super::super::layout::Draft;
    use super::*;
    use crate::journal::{DiskJournal, Leftovers, lock};

    const START: u64 = 4096;
    const PLACE: Place = Place { salt: 3, generation: 9, sequence: 11, at: START };
    const OF: Of<'_> = Of { name: "pool", pool: PoolId([7; 16]), salt: 3, len: u64::MAX };

    /// A file that has lost its name.
    fn file(len: u64) -> DiskJournal {
        let file = DiskJournal::create(tempfile::tempdir().unwrap().path().join("journal")).unwrap();
        file.set_len(START + len).unwrap();
        file
    }

    fn record(place: Place) -> Vec<u8> {
        let mut draft = Draft::default();
        draft.clear();
        draft.push(7, &[1; 8]);
        draft.seal(place).to_vec()
    }

    fn segment(file: &DiskJournal, len: u64) -> Reading<'_> {
        Reading { file, start: START, len, longest: u64::MAX, bytes: Vec::new(), used: 0 }
    }

    #[test]
    fn a_later_record_is_found_wherever_a_piece_ends() {
        let size = record(PLACE).len() as u64;
        let ends = (PIECE - 160..PIECE + 160).chain(2 * PIECE - 160..2 * PIECE + 8).step_by(8);
        for at in [0, 8].into_iter().chain(ends) {
            let len = at + size;
            let file = file(len);
            let place = Place { sequence: 12, at: START + at, ..PLACE };
            file.write_at(place.at, &record(place)).unwrap();
            let later = |used: u64, place| Reading { used, ..segment(&file, len) }.later(place).unwrap();
            assert_eq!([later(0, PLACE), later(at, PLACE)], [Some(Later::Sound(12)); 2], "at {at}");
            assert_eq!(later(at + 8, PLACE), None, "it begins before");
            assert_eq!(later(0, place), None, "it is the one that is asked for");
            let strangers = [Place { generation: 10, ..PLACE }, Place { salt: 4, ..PLACE }];
            assert_eq!(strangers.map(|place| later(0, place)), [None; 2]);
            assert_eq!(segment(&file, len - 8).later(PLACE).unwrap(), None, "cut off");
            // One that strayed.
            file.write_at(place.at, &record(Place { at: place.at + 8, ..place })).unwrap();
            assert_eq!(later(0, PLACE), None);
        }
    }

    /// Nobody has looked at what made-up heads hide, so it is not taken for a torn end.
    #[test]
    fn where_heads_are_left_untried_there_may_be_a_later_record() {
        let len = PIECE;
        let (file, size) = (file(len), record(PLACE).len() as u64);
        let later = |heads: u64| {
            for at in (0..heads).map(|number| START + number * size) {
                let mut bytes = record(Place { sequence: 12, at, ..PLACE });
                bytes[80] ^= 1;
                file.write_at(at, &bytes).unwrap();
                // All of one length: each says that it reaches over the next ones.
                file.write_at(at + 40, &(16 * size).to_le_bytes()).unwrap();
            }
            segment(&file, len).later(PLACE).unwrap()
        };
        assert_eq!([1, 2, 8].map(later), [None, None, Some(Later::Untried)]);
        let told = [Later::Sound(12), Later::Untried].map(|later| later.told(11));
        assert!(told[0].contains("number 11 is damaged: number 12, which is later, is sound"), "{told:?}");
        assert!(
            told[1].contains("no sound record with sequence number 11") && told[1].ends_with("may be sound"),
            "{told:?}"
        );
    }

    /// A place with one file.
    #[derive(Debug)]
    struct Here(Arc<dyn JournalFile>);

    impl JournalPlace for Here {
        fn describe(&self) -> String {
            self.0.describe()
        }
        fn open(&self, _: bool) -> Result<Option<Arc<dyn JournalFile>>> {
            Ok(Some(Arc::clone(&self.0)))
        }
        fn create(&self) -> Result<Arc<dyn JournalFile>> {
            unreachable!("it is there")
        }
    }

    /// What was read may lie in the page cache alone, marked as written by a sync that has failed: the header and the records of both
    /// generations are written again.
    #[test]
    fn all_that_was_accepted_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let backing = crate::backing::FileBacking::create(dir.path().join("pool")).unwrap();
        backing.allocate(1 << 16).unwrap();
        let header = header_of(4096);
        let file = Arc::new(file(header.file_len()));
        file.write_at(header.slot(), &header.encode()).unwrap();
        for (generation, sequence) in [(8, 21), (9, 22)] {
            let place = Place { salt: 3, generation, sequence, at: header.place(9 - generation) };
            file.write_at(place.at, &record(place)).unwrap();
        }
        let read =
            |file: &Arc<DiskJournal>| Replay::read(&Here(Arc::clone(file) as Arc<dyn JournalFile>), false, OF).unwrap();
        let replay = read(&file);
        assert_eq!(replay.records, 2);
        file.write_at(0, &vec![0; header.file_len() as usize]).unwrap();
        replay.apply(&backing, (0, [1; 8]), None).unwrap();
        let again = read(&file);
        assert_eq!((again.header, again.parts), (header, replay.parts));
    }

    #[test]
    fn headers_and_intents_count_where_they_belong() {
        let header = Header {
            version: VERSIONS.writes,
            pool: PoolId([7; 16]),
            salt: 3,
            turn: 3,
            segment: 4096,
            oldest: 8,
            first: 21,
            places: 2,
        };
        let larger = Header { turn: 4, segment: 8192, ..header };
        let file = Arc::new(file(larger.file_len()));
        let write = |at, header: Header| file.write_at(at, &header.encode()).unwrap();
        write(header.slot(), header);
        write(larger.slot(), larger);
        assert_eq!(Replay::header(&*file).unwrap(), larger, "the newer one, of the same generation");
        write(0, Header { turn: 5, ..larger });
        assert_eq!(Replay::header(&*file).unwrap(), header, "the other one has strayed");
        for (end, counts) in [(21, true), (22, false), (0, false)] {
            let at = header.intent(IntentOf::Recovery, 0);
            let intent = Intent { generation: 8, last: u64::MAX, next: 0, end, pages: vec![(1, 2)] };
            file.write_at(at, &intent.encode(3, at)).unwrap();
            let replay = Replay::read(&Here(Arc::clone(&file) as Arc<dyn JournalFile>), false, OF).unwrap();
            assert_eq!(replay.recovery.is_some(), counts, "of a recovery of records up to {end}");
        }
    }

    /// Each in any place; one that is damaged, or one whose place a crash has not filled yet, ends them.
    #[test]
    fn generations_are_found_in_whatever_places_they_lie() {
        let header = Header {
            version: VERSIONS.writes,
            pool: PoolId([7; 16]),
            salt: 3,
            turn: 4,
            segment: 4096,
            oldest: 8,
            first: 21,
            places: 5,
        };
        let read_of = |places: &[u64], damaged: Option<u64>, last: Option<u64>, known: u64| {
            let file = Arc::new(file(header.file_len()));
            file.write_at(header.slot(), &header.encode()).unwrap();
            for (number, at) in (0..).zip(places) {
                // The first record of an older generation, under the same sequence number as another journal's.
                let stale = Place { salt: 3, generation: 3 + number, sequence: 4 + number, at: header.place(*at) };
                file.write_at(stale.at, &record(stale)).unwrap();
                let place = Place { generation: 8 + number, sequence: 21 + number, ..stale };
                file.write_at(place.at, &record(place)).unwrap();
                if damaged == Some(number) {
                    file.write_at(place.at + 80, &[9]).unwrap();
                }
            }
            if let Some(last) = last {
                let at = header.intent(IntentOf::Checkpoint, 0);
                let intent = Intent { generation: 8, last, next: 14 + last, end: 0, pages: vec![(1, 2)] };
                file.write_at(at, &intent.encode(3, at)).unwrap();
            }
            if known < places.len() as u64 {
                let older = Header { turn: 5, places: known, ..header };
                file.write_at(older.slot(), &older.encode()).unwrap();
            }
            let replay = Replay::read(&Here(file), false, OF);
            replay.map(|replay| (replay.records, replay.begun.count())).map_err(|error| error.to_string())
        };
        let read = |places: &[u64], damaged, last| read_of(places, damaged, last, 5);
        assert_eq!(read(&[], None, None), Ok((0, 0)));
        for places in [[0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 0, 4, 2, 3]] {
            assert_eq!(read(&places, None, None), Ok((5, 0)), "{places:?}");
            assert_eq!(read(&places[..3], None, Some(9)), Ok((3, 1)), "{places:?}");
            assert_eq!(read(&places, Some(4), None), Ok((4, 0)), "the last one: as a crash tears it");
            for damaged in 0..4 {
                let error = read(&places, Some(damaged), None).unwrap_err();
                assert!(error.contains(&format!("sequence number {} is damaged", 21 + damaged)), "{error}");
            }
            let error = read(&places[..2], None, Some(10)).unwrap_err();
            assert!(error.contains("of generations 8 to 10 has begun, and the records end before"), "{error}");
        }
        // The header that speaks of the last segments is damaged: the one before it does not know of their records.
        for known in 2..4 {
            let error = read_of(&[0, 1, 2, 3], None, None, known).unwrap_err();
            assert!(error.contains("a newer header is damaged"), "{known}: {error}");
        }
        assert_eq!(read_of(&[0, 1], None, None, 2), Ok((2, 0)), "an added segment without records");
    }

    /// All of its records were durable, so none of them is a torn end.
    #[test]
    fn the_last_record_of_a_checkpoint_that_has_begun_is_needed() {
        let header = header_of(4096);
        let read = |damaged: bool| {
            let file = Arc::new(file(header.file_len()));
            file.write_at(header.slot(), &header.encode()).unwrap();
            for (sequence, at) in [(21, header.place(0)), (22, header.place(0) + record(PLACE).len() as u64)] {
                let place = Place { salt: 3, generation: 8, sequence, at };
                file.write_at(at, &record(place)).unwrap();
                if damaged && sequence == 22 {
                    file.write_at(at + 80, &[9]).unwrap();
                }
            }
            let at = header.intent(IntentOf::Checkpoint, 0);
            let intent = Intent { generation: 8, last: 8, next: 23, end: 0, pages: vec![(1, 2)] };
            file.write_at(at, &intent.encode(3, at)).unwrap();
            Replay::read(&Here(file), false, OF).map(|replay| replay.records)
        };
        assert_eq!(read(false).unwrap(), 2);
        let error = read(true).unwrap_err().to_string();
        assert!(error.contains("all records before number 23 has begun, and number 22 is damaged"), "{error}");
    }

    /// A crash leaves any of the parts of an intent that was not synced. Those of an earlier checkpoint, or another recovery, do not count.
    #[test]
    fn the_parts_of_an_intent_are_read_together() {
        let header = Header {
            version: VERSIONS.writes,
            pool: PoolId([7; 16]),
            salt: 3,
            turn: 4,
            segment: 4096,
            oldest: 8,
            first: 21,
            places: 3,
        };
        let pages: Vec<(u64, u64)> = (0..600).map(|page| (page, page + 1)).collect();
        for there in 0..8u32 {
            let file = Arc::new(file(header.file_len()));
            for (generation, end) in [(7, 5), (8, 4), (8, 5)] {
                let intent = Intent { generation, last: u64::MAX, next: 0, end, pages: pages.clone() };
                let parts = intent.parts(&header, IntentOf::Recovery).enumerate();
                for (_, (at, bytes)) in parts.filter(|(part, _)| (generation, end) != (8, 5) || there >> part & 1 == 1)
                {
                    file.write_at(at, &bytes).unwrap();
                }
            }
            let found = Replay::of(file, header, u64::MAX).intent(IntentOf::Recovery, 5).unwrap();
            let entry = |page| found.as_ref().and_then(|intent| intent.entry(page));
            let expected = [0, 300, 599].map(|page| (there >> (page / 252) & 1 == 1).then_some(page + 1));
            assert_eq!([0, 300, 599].map(entry), expected, "{there:b}");
        }
    }

    #[test]
    fn lines_behind_the_end_of_the_pool_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let backing = crate::backing::FileBacking::create(dir.path().join("pool")).unwrap();
        backing.allocate(1 << 16).unwrap();
        let header = Header {
            version: VERSIONS.writes,
            pool: PoolId([7; 16]),
            salt: 3,
            turn: 0,
            segment: 4096,
            oldest: 0,
            first: 0,
            places: 2,
        };
        for (line, fits) in [((1 << 10) - 1, true), (1 << 10, false)] {
            let file = Arc::new(file(header.file_len()));
            file.write_at(0, &header.encode()).unwrap();
            let place = Place { salt: 3, generation: 0, sequence: 0, at: header.place(0) };
            let mut draft = Draft::default();
            draft.clear();
            draft.push(line, &[1; 8]);
            file.write_at(place.at, draft.seal(place)).unwrap();
            let replay = Replay::read(&Here(file), false, OF).unwrap();
            assert_eq!(replay.apply(&backing, (0, [1; 8]), None).is_ok(), fits, "line {line}");
        }
    }

    /// A file that notes how it is read.
    #[derive(Debug)]
    struct Noted {
        file: DiskJournal,
        /// Bytes of the longest read, and of all.
        longest: AtomicU64,
        all: AtomicU64,
        /// What somebody else writes once records were read.
        meanwhile: Mutex<Vec<(u64, Vec<u8>)>>,
    }

    impl Noted {
        fn new(len: u64) -> Arc<Self> {
            let (longest, all, meanwhile) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
            Arc::new(Noted { file: file(len), longest, all, meanwhile })
        }
        /// What was read since this was asked last.
        fn take(&self) -> (u64, u64) {
            (self.longest.swap(0, Ordering::Relaxed), self.all.swap(0, Ordering::Relaxed))
        }
    }

    impl JournalFile for Noted {
        fn describe(&self) -> String {
            self.file.describe()
        }
        fn len(&self) -> Result<u64> {
            self.file.len()
        }
        fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
            self.longest.fetch_max(bytes.len() as u64, Ordering::Relaxed);
            self.all.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.file.read_at(offset, bytes)?;
            let meanwhile = if offset == 2 * SLOT { std::mem::take(&mut *lock(&self.meanwhile)) } else { Vec::new() };
            meanwhile.iter().try_for_each(|(at, bytes)| self.file.write_at(*at, bytes))
        }
        fn data_from(&self, offset: u64) -> Option<u64> {
            self.file.data_from(offset)
        }
        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.file.write_at(offset, bytes)
        }
        fn set_len(&self, len: u64) -> Result<()> {
            self.file.set_len(len)
        }
        fn allocate(&self, len: u64) -> Result<()> {
            self.file.allocate(len)
        }
        fn sync(&self) -> Result<()> {
            self.file.sync()
        }
        fn sync_name(&self) -> Result<()> {
            self.file.sync_name()
        }
    }

    /// The header of a journal of two segments, whose next record is number 21.
    fn header_of(segment: u64) -> Header {
        let (version, pool) = (VERSIONS.writes, PoolId([7; 16]));
        Header { version, pool, salt: 3, turn: 4, segment, oldest: 8, first: 21, places: 2 }
    }

    /// No memory is taken for what a head says before its checksum is known to be right.
    #[test]
    fn heads_that_claim_more_than_there_is_cost_no_memory() {
        let segment = 64 << 20;
        let header = header_of(segment);
        for (what, at, unit) in [
            (RECORD, header.place(0), 1),
            (INTENT, header.intent(IntentOf::Checkpoint, 0), 16),
            (INTENT, header.intent(IntentOf::Recovery, 1), 16),
        ] {
            let file = Noted::new(header.file_len());
            file.write_at(header.slot(), &header.encode()).unwrap();
            let len = if what == RECORD { segment } else { header.intent_len() } - RECORD_HEAD as u64;
            let [number, end] = if what == RECORD { [21, 0] } else { [0, 0] };
            let head = [9, what, 8, number, at, len / unit, 8, end].into_iter().flat_map(u64::to_le_bytes);
            file.write_at(at, &head.collect::<Vec<u8>>()).unwrap();
            let place = Here(Arc::clone(&file) as Arc<dyn JournalFile>);
            let replay = Replay::read(&place, false, OF).unwrap();
            assert_eq!((replay.records, replay.checkpoint, replay.recovery), (0, None, None));
            let (longest, _) = file.take();
            assert!(longest <= 2 * PIECE, "{what:x}: {longest} bytes at a time");
        }
    }

    /// A file can have any length and take no room.
    #[test]
    fn holes_are_passed_over() {
        let segment = 1 << 20;
        let header = header_of(segment);
        let (file, other) = (Noted::new(4 << 30), Some(PoolId([8; 16])));
        if file.data_from(1 << 30).is_some() {
            // This file system has no holes.
            return;
        }
        let place = Here(Arc::clone(&file) as Arc<dyn JournalFile>);
        file.write_at(header.slot(), &header.encode()).unwrap();
        assert_eq!(Replay::read(&place, false, OF).unwrap().records, 0);
        Replay::refuse_stray(&place, "pool", other).unwrap();
        let nothing = Leftovers::read(&place, header.pool, Some(3), 0).unwrap();
        assert!(nothing.said.contains("no sound record"), "{}", nothing.said);
        let (_, all) = file.take();
        assert!(all < 64 << 20, "{all} bytes were read");
        // What lies behind them is found.
        let at = (3 << 30) + 5000 / 8 * 8;
        file.write_at(at, &record(Place { salt: 3, generation: 9, sequence: 40, at })).unwrap();
        let error = Replay::read(&place, false, OF).map(drop).unwrap_err().to_string();
        assert!(error.contains("a newer header is damaged"), "{error}");
        assert!(matches!(Replay::refuse_stray(&place, "pool", other), Err(Error::StrayJournal { .. })));
        let found = Leftovers::read(&place, header.pool, Some(3), 0).unwrap();
        assert!(found.said.contains("40 to 40 were read"), "{}", found.said);
        let (_, all) = file.take();
        assert!(all < 64 << 20, "{all} bytes were read");
    }

    /// A look at a live pool: what comes between two reads is later than what was not there.
    #[test]
    fn commits_that_come_while_a_journal_is_looked_at_are_no_damage() {
        let header = header_of(4096);
        let busy = || {
            let file = Noted::new(header.file_len());
            file.write_at(header.slot(), &header.encode()).unwrap();
            let len = record(PLACE).len() as u64;
            let records = (0..3).map(|number| {
                let at = header.place(0) + number * len;
                (at, record(Place { salt: 3, generation: 8, sequence: 21 + number, at }))
            });
            let records: Vec<_> = records.collect();
            file.write_at(records[0].0, &records[0].1).unwrap();
            *lock(&file.meanwhile) = records[1..].to_vec();
            Here(file)
        };
        assert_eq!(Replay::peek(&busy(), OF).unwrap().records, 1);
        assert!(Replay::read(&busy(), true, OF).is_err(), "it asks for what the look leaves out");
    }

    /// A bit of the length: the record ends anywhere, also behind the last byte that there can be.
    #[test]
    fn a_record_of_any_length_is_none() {
        let len = 3 * PIECE;
        let file = file(len);
        for at in [0, PIECE - 64, len - 200] {
            let place = Place { at: START + at, ..PLACE };
            let sound = record(place);
            file.write_at(place.at, &sound).unwrap();
            assert_eq!(segment(&file, len).record(place).unwrap(), Some(&sound[..]));
            for bit in 0..64 {
                let mut damaged = sound.clone();
                damaged[40 + bit / 8] ^= 1 << (bit % 8);
                file.write_at(place.at, &damaged).unwrap();
                assert_eq!(segment(&file, len).record(place).unwrap(), None, "bit {bit}");
                assert_eq!(segment(&file, len).later(Place { sequence: 0, ..PLACE }).unwrap(), None, "bit {bit}");
            }
            file.write_at(place.at + 40, &[0xff; 8]).unwrap();
            assert_eq!(segment(&file, len).record(place).unwrap(), None);
            file.write_at(place.at, &vec![0; sound.len()]).unwrap();
        }
    }
}
