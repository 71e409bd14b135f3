//! Recovery: what a journal says, and carrying it to the pool's file.
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
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
    HEADER, Head, Header, INTENT_HEAD, Images, Intent, IntentOf, MAGIC, Place, RECORD, RECORD_HEAD, SLOT, VERSIONS,
    operations_of, record_at, sealed, word,
};
use super::search::{PIECE, Search};
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

/// What a journal says that its pool's file does not yet.
#[derive(Debug)]
pub(crate) struct Replay {
    file: Arc<dyn JournalFile>,
    header: Header,
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
    pub(crate) fn read(place: &dyn JournalPlace, read_only: bool, name: &str, pool: PoolId, salt: u64) -> Result<Self> {
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
        let mut replay = Self::of(file, header);
        replay.checkpoint = replay.intent(IntentOf::Checkpoint, 0)?;
        replay.read_records()?;
        replay.recovery = replay.intent(IntentOf::Recovery, header.first + replay.records)?;
        Ok(replay)
    }

    fn of(file: Arc<dyn JournalFile>, header: Header) -> Self {
        Replay {
            file,
            header,
            parts: Vec::new(),
            images: Images::default(),
            begun: Images::default(),
            records: 0,
            operations: 0,
            checkpoint: None,
            recovery: None,
        }
    }

    /// Refuses to begin a journal of pool `name` where one of another pool lies, with records. One without a sound header has none.
    pub(crate) fn refuse_stray(place: &dyn JournalPlace, name: &str, pool: PoolId) -> Result<()> {
        let Some(file) = place.open(true)? else { return Ok(()) };
        let stray = |of: PoolId| {
            Err(Error::StrayJournal { name: name.into(), journal: place.describe(), pool: of.to_string() })
        };
        if let Some((_, of)) = Self::other_version(&*file).filter(|(_, of)| *of != pool) {
            // Nobody here knows whether it has records.
            return stray(of);
        }
        let Some(header) = Self::header(&*file).ok().filter(|header| header.pool != pool) else { return Ok(()) };
        let mut there = Self::of(file, header);
        if there.read_records().is_ok() && there.records == 0 {
            return Ok(());
        }
        stray(header.pool)
    }

    /// The intent of these generations that ends there, if there is a sound one. Where a crash has left some of its parts only, no page was
    /// written yet, and those count.
    fn intent(&self, of: IntentOf, end: u64) -> Result<Option<Intent>> {
        let (header, mut all) = (&self.header, None::<Intent>);
        for place in 0..header.places {
            let (at, mut bytes) = (header.intent(of, place), vec![0; INTENT_HEAD]);
            self.file.read_at(at, &mut bytes)?;
            let len = word(&bytes, 5).saturating_mul(16).saturating_add(INTENT_HEAD as u64);
            if len > header.intent_len() {
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
    fn read_records(&mut self) -> Result<()> {
        let file = Arc::clone(&self.file);
        let Header { salt, first, oldest, .. } = self.header;
        let mut segments: Vec<Reading> =
            (0..self.header.places).map(|place| Reading::new(&*file, &self.header, place)).collect();
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
        for segment in &segments {
            if let Some(later) = segment.later(Place { generation: oldest, ..place })? {
                return Err(damaged(&*file, later.told(place.sequence)));
            }
        }
        // Behind what the header speaks of: a newer header is damaged, which was durable before anything was written there.
        let Header { places, .. } = self.header;
        let len = file.len()?.saturating_sub(self.header.file_len());
        let tail = Reading { len, ..Reading::new(&*file, &self.header, places) };
        let before = Place { generation: oldest, sequence: place.sequence.saturating_sub(1), ..place };
        if tail.later(before)?.is_some() {
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
    /// What was read, from the beginning on.
    bytes: Vec<u8>,
    /// Bytes of records that count.
    used: u64,
}

impl<'a> Reading<'a> {
    fn new(file: &'a dyn JournalFile, header: &Header, place: u64) -> Self {
        Reading { file, start: header.place(place), len: header.segment, bytes: Vec::new(), used: 0 }
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

    /// The record that begins at a place, if it is sound and belongs there.
    fn record(&mut self, place: Place) -> Result<Option<&[u8]>> {
        let at = place.at - self.start;
        self.reach(at + RECORD_HEAD as u64)?;
        let head = |bytes: &[u8]| {
            bytes
                .get(at as usize..)
                .filter(|head| head.len() >= RECORD_HEAD)
                .map(|head| [1, 2, 3, 5].map(|n| word(head, n)))
        };
        let Some([what, generation, sequence, len]) = head(&self.bytes) else { return Ok(None) };
        if [what, generation, sequence] != [RECORD, place.generation, place.sequence] {
            return Ok(None);
        }
        self.reach(at.saturating_add(len).saturating_add(RECORD_HEAD as u64))?;
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
    use super::super::layout::Draft;
    use super::*;
    use crate::journal::DiskJournal;

    const START: u64 = 4096;
    const PLACE: Place = Place { salt: 3, generation: 9, sequence: 11, at: START };

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
        Reading { file, start: START, len, bytes: Vec::new(), used: 0 }
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
    struct Here(Arc<DiskJournal>);

    impl JournalPlace for Here {
        fn describe(&self) -> String {
            self.0.describe()
        }
        fn open(&self, _: bool) -> Result<Option<Arc<dyn JournalFile>>> {
            Ok(Some(Arc::clone(&self.0) as Arc<dyn JournalFile>))
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
        let header = Header {
            version: VERSIONS.writes,
            pool: PoolId([7; 16]),
            salt: 3,
            turn: 4,
            segment: 4096,
            oldest: 8,
            first: 21,
            places: 2,
        };
        let file = Arc::new(file(header.file_len()));
        file.write_at(header.slot(), &header.encode()).unwrap();
        for (generation, sequence) in [(8, 21), (9, 22)] {
            let place = Place { salt: 3, generation, sequence, at: header.place(9 - generation) };
            file.write_at(place.at, &record(place)).unwrap();
        }
        let read =
            |file: &Arc<DiskJournal>| Replay::read(&Here(Arc::clone(file)), false, "pool", header.pool, 3).unwrap();
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
            let replay = Replay::read(&Here(Arc::clone(&file)), false, "pool", header.pool, 3).unwrap();
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
            let replay = Replay::read(&Here(file), false, "pool", header.pool, 3);
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
        let header = Header {
            version: VERSIONS.writes,
            pool: PoolId([7; 16]),
            salt: 3,
            turn: 4,
            segment: 4096,
            oldest: 8,
            first: 21,
            places: 2,
        };
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
            Replay::read(&Here(file), false, "pool", header.pool, 3).map(|replay| replay.records)
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
            let found = Replay::of(file, header).intent(IntentOf::Recovery, 5).unwrap();
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
            let replay = Replay::read(&Here(file), false, "pool", header.pool, 3).unwrap();
            assert_eq!(replay.apply(&backing, (0, [1; 8]), None).is_ok(), fits, "line {line}");
        }
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
