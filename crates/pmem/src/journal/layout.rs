//! What lies in a journal file.
//!
//! ```text
//!        0  header slot 0    112 bytes in a block of 4096   the turn of a header is even
//!     4096  header slot 1    the same                       odd
//!     8192  place 0          `segment` + 2 `intent_len`     a segment, and room for intents
//!           place 1          the same
//!           ...              as many as the header says
//! ```
//!
//! | in a place | bytes | what |
//! |---|---|---|
//! | the segment | `segment` | the records of one generation, any |
//! | then | `intent_len` | a part of the intent of a checkpoint |
//! | then | `intent_len` | a part of the intent of a recovery |
//!
//! A generation lies where its first record does: that names its generation and its address. Which place a generation takes does not matter.
//!
//! | word of a header | what |
//! |---|---|
//! | 0 | checksum of words 1 to 13 |
//! | 1 | [`MAGIC`] |
//! | 2 | one of [`VERSIONS`] |
//! | 3–4 | id of the pool |
//! | 5 | salt: random, drawn whenever a journal begins anew |
//! | 6 | turn: counts headers; the larger counts |
//! | 7 | bytes of a segment |
//! | 8 | oldest generation that is not checkpointed |
//! | 9 | sequence number of its first record |
//! | 10 | places |
//! | 11–13 | zero |
//!
//! | word of a record | what |
//! |---|---|
//! | 0 | checksum of all that follows, seeded with the salt |
//! | 1 | [`RECORD`] |
//! | 2 | generation |
//! | 3 | sequence number |
//! | 4 | where the record lies in the file |
//! | 5 | bytes of the runs |
//! | 6 | operations that had ended in this opening of the pool: a figure for whoever looks at it from outside |
//! | 7 | oldest generation that was not checkpointed: for whoever reads a journal without a sound header |
//! | 8… | runs: a word of `first line << 16 | count`, and `count` lines of 64 bytes |
//!
//! | word of an intent | what |
//! |---|---|
//! | 0 | checksum of all that follows, seeded with the salt |
//! | 1 | [`INTENT`] |
//! | 2 | oldest generation that is not checkpointed |
//! | 3 | 0 for that of a checkpoint; for that of a recovery the sequence number after the last record |
//! | 4 | its address in the file |
//! | 5 | pages |
//! | 6 | newest generation that it covers |
//! | 7 | for that of a checkpoint the sequence number after the last record of these; zero for that of a recovery |
//! | 8… | for each page its number, and its entry in the [checksums](super::sums) once these generations are written |
//!
//! An intent with more pages than fit into a place has parts in the next ones; each part is an intent by itself.
//!
//! A record is a commit: all lines that were written back since the last one, as they were at a moment without operations.
//! Checksums are XXH3 with 64 bits. That of a record covers its generation, its sequence number and its address, and is seeded with the
//! salt: a record of an earlier turn of the segment, of an earlier journal, of another pool, or one that strayed, is never taken for
//! the next one.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::notes::{PAGE, PAGE_LINES};
use crate::ids::PoolId;
use crate::layout;
use crate::line::LINE;
use crate::version::{Version, Versions};

/// Second word of a header.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DURIXjn\x1a");
/// Versions of a journal: the third word of a header. Whatever else a version changes, words 0 to 4 of a header stay what they are, and the
/// checksum covers 112 bytes, so that every build can tell the versions of all others.
pub const VERSIONS: Versions = Versions::only(Version::of(1, LAYOUT));
/// Second word of a record.
pub const RECORD: u64 = u64::from_le_bytes(*b"record\x1a\x00");
/// Bytes between header slots: no write of one touches a page of the other.
pub const SLOT: u64 = 4096;
/// Bytes of a header.
pub const HEADER: usize = 14 * 8;
/// Where segments begin.
pub const SEGMENTS: u64 = 2 * SLOT;
/// Bytes of a record before its runs.
pub const RECORD_HEAD: usize = 8 * 8;
/// Second word of an intent.
pub const INTENT: u64 = u64::from_le_bytes(*b"intent\x1a\x00");
/// Bytes of an intent before its pages.
pub const INTENT_HEAD: usize = 8 * 8;
/// Bytes that a draft keeps, whatever the last record needed.
const MEMORY: usize = 4 << 20;
/// Lines of a run, at most.
const MAX_RUN: u64 = 0xffff;

/// What a journal depends on.
const LAYOUT: u32 =
    layout!([], MAGIC, RECORD, INTENT, SLOT, HEADER, SEGMENTS, RECORD_HEAD, INTENT_HEAD, MAX_PLACES, SAMPLE);

/// XXH3 of a header, a record and an intent, but for the header's checksum and version: a test compares it with theirs, so that what their words
/// mean is part of the version.
const SAMPLE: u64 = 0xaa2e_7bcc_41b8_b388;

/// A header of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its version. That of a journal stays until it begins anew.
    pub version: Version,
    /// The pool.
    pub pool: PoolId,
    /// Drawn when the journal began.
    pub salt: u64,
    /// Counts headers.
    pub turn: u64,
    /// Bytes of a segment.
    pub segment: u64,
    /// The oldest generation that is not checkpointed.
    pub oldest: u64,
    /// The sequence number of its first record.
    pub first: u64,
    /// How many places there are, each with a segment.
    pub places: u64,
}

/// Places of a journal, at most.
pub const MAX_PLACES: u64 = 64;

pub(crate) fn word(bytes: &[u8], number: usize) -> u64 {
    u64::from_le_bytes(bytes[number * 8..number * 8 + 8].try_into().expect("8 bytes"))
}

/// Version and pool of the header that these bytes are, if they are a sound one, of any version, of a file with that magic.
pub(super) fn sealed(bytes: &[u8], magic: u64) -> Option<(Version, PoolId)> {
    let is_sound = word(bytes, 0) == xxh3_64(&bytes[8..]) && word(bytes, 1) == magic;
    let pool = PoolId(bytes[24..40].try_into().expect("16 bytes"));
    is_sound.then(|| (Version::from_word(word(bytes, 2)), pool))
}

impl Header {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let (low, high) = self.pool.0.split_at(8);
        let id = [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes")));
        let Header { salt, turn, segment, oldest, first, places, .. } = *self;
        let words = [MAGIC, self.version.to_word(), id[0], id[1], salt, turn, segment, oldest, first, places, 0, 0, 0];
        let mut bytes = [0; HEADER];
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header that these bytes are, if they are sound, and of a version that this build opens.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let (version, pool) = sealed(bytes, MAGIC)?;
        if !VERSIONS.opens(version) {
            return None;
        }
        let [salt, turn, segment, oldest, first, places] = [5, 6, 7, 8, 9, 10].map(|n| word(bytes, n));
        let sane = segment >= SLOT
            && segment.is_multiple_of(SLOT)
            && segment < u64::MAX / (4 * MAX_PLACES)
            // Both are counted up from zero.
            && oldest.max(first) < 1 << 62
            && (2..=MAX_PLACES).contains(&places);
        sane.then_some(Header { version, pool, salt, turn, segment, oldest, first, places })
    }

    /// Where this header lies.
    pub fn slot(&self) -> u64 {
        self.turn % 2 * SLOT
    }

    /// Where a place begins, and its segment.
    pub fn place(&self, number: u64) -> u64 {
        SEGMENTS + number * (self.segment + 2 * self.intent_len())
    }

    /// Where a part of an intent begins: the one in that place.
    pub fn intent(&self, of: IntentOf, place: u64) -> u64 {
        self.place(place) + self.segment + of as u64 * self.intent_len()
    }

    /// Bytes of a part of an intent. The parts of all places hold the pages of all records, each of which takes 64 bytes at least.
    pub fn intent_len(&self) -> u64 {
        (INTENT_HEAD as u64 + self.segment / 64 * 16).next_multiple_of(SLOT)
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.place(self.places)
    }
}

/// Who has intents: each has places of its own, because a recovery needs those of the checkpoint that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentOf {
    /// A checkpoint.
    Checkpoint = 0,
    /// A recovery.
    Recovery = 1,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The salt of its journal.
    pub salt: u64,
    /// Its generation.
    pub generation: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// Where it lies in the file.
    pub at: u64,
}

/// A record that is being put together.
#[derive(Debug, Default)]
pub struct Draft {
    bytes: Vec<u8>,
    /// Where the word of the last run lies.
    run: usize,
    /// The line after the last one.
    next: u64,
    /// Operations that have ended in this opening of the pool.
    pub operations: u64,
    /// The oldest generation that is not checkpointed.
    pub oldest: u64,
}

impl Draft {
    /// Begins anew, with the memory that it has; but one that was far too large for the last record gives it back.
    pub fn clear(&mut self) {
        let enough = MEMORY.max(4 * self.bytes.len());
        self.bytes.clear();
        if self.bytes.capacity() > enough {
            self.bytes.shrink_to(enough);
        }
        self.bytes.resize(RECORD_HEAD, 0);
        (self.run, self.next) = (0, 0);
    }

    /// Adds a line.
    pub fn push(&mut self, line: u64, content: &[u64; 8]) {
        let joins = self.run != 0 && line == self.next && word(&self.bytes[self.run..], 0) & MAX_RUN < MAX_RUN;
        if joins {
            let run = word(&self.bytes[self.run..], 0) + 1;
            self.bytes[self.run..self.run + 8].copy_from_slice(&run.to_le_bytes());
        } else {
            self.run = self.bytes.len();
            self.bytes.extend((line << 16 | 1).to_le_bytes());
        }
        self.next = line + 1;
        let mut line = [0; LINE];
        line.as_chunks_mut::<8>().0.iter_mut().zip(content).for_each(|(place, word)| *place = word.to_le_bytes());
        self.bytes.extend_from_slice(&line);
    }

    /// Whether no line was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= RECORD_HEAD
    }

    /// Bytes of the record.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The record, for its place.
    pub fn seal(&mut self, place: Place) -> &[u8] {
        let runs = (self.bytes.len() - RECORD_HEAD) as u64;
        let words = [RECORD, place.generation, place.sequence, place.at, runs, self.operations, self.oldest];
        for (at, word) in self.bytes[8..RECORD_HEAD].chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64_with_seed(&self.bytes[8..], place.salt);
        self.bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        &self.bytes
    }
}

/// The bytes of the record that `bytes` begins with, if it is sound and belongs there.
pub fn record_at(bytes: &[u8], place: Place) -> Option<&[u8]> {
    if bytes.len() < RECORD_HEAD
        || [1, 2, 3, 4].map(|n| word(bytes, n)) != [RECORD, place.generation, place.sequence, place.at]
    {
        return None;
    }
    let len = usize::try_from(word(bytes, 5)).ok()?.checked_add(RECORD_HEAD)?;
    let record = bytes.get(..len)?;
    (xxh3_64_with_seed(&record[8..], place.salt) == word(record, 0)).then_some(record)
}

/// The checksums that pages have once some generations are written, or once a recovery has ended; or a part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// The oldest generation that is not checkpointed.
    pub generation: u64,
    /// The newest generation that it covers.
    pub last: u64,
    /// For a checkpoint the sequence number after the last record of these; zero for a recovery.
    pub next: u64,
    /// Zero for a checkpoint; for a recovery the sequence number after the last record.
    pub end: u64,
    /// Pages and their entries, ascending.
    pub pages: Vec<(u64, u64)>,
}

impl Intent {
    /// Its bytes, for a place.
    pub fn encode(&self, salt: u64, at: u64) -> Vec<u8> {
        let head = [0, INTENT, self.generation, self.end, at, self.pages.len() as u64, self.last, self.next];
        let pages = self.pages.iter().flat_map(|(page, entry)| [*page, *entry]);
        let mut bytes: Vec<u8> = head.into_iter().chain(pages).flat_map(u64::to_le_bytes).collect();
        let checksum = xxh3_64_with_seed(&bytes[8..], salt);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The intent that `bytes` begin with, if it is sound and belongs there.
    pub fn decode(bytes: &[u8], salt: u64, generation: u64, at: u64) -> Option<Intent> {
        if bytes.len() < INTENT_HEAD || [1, 2, 4].map(|n| word(bytes, n)) != [INTENT, generation, at] {
            return None;
        }
        let len = usize::try_from(word(bytes, 5)).ok()?.checked_mul(16)?.checked_add(INTENT_HEAD)?;
        let bytes = bytes.get(..len)?;
        let pages = bytes[INTENT_HEAD..].chunks_exact(16).map(|pair| (word(pair, 0), word(pair, 1))).collect();
        let found = Intent { generation, last: word(bytes, 6), next: word(bytes, 7), end: word(bytes, 3), pages };
        (xxh3_64_with_seed(&bytes[8..], salt) == word(bytes, 0)).then_some(found)
    }

    /// Its bytes for the places of a journal, and where they go: as many parts as are needed.
    pub fn parts(&self, header: &Header, of: IntentOf) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let pages = (header.intent_len() as usize - INTENT_HEAD) / 16;
        let Intent { generation, last, next, end, .. } = *self;
        (0..).zip(self.pages.chunks(pages)).map(move |(place, pages)| {
            let at = header.intent(of, place);
            (at, Intent { generation, last, next, end, pages: pages.to_vec() }.encode(header.salt, at))
        })
    }

    /// Adds the pages of the next part.
    pub fn join(&mut self, part: Intent) {
        self.pages.extend(part.pages);
    }

    /// The entry of a page.
    pub fn entry(&self, page: u64) -> Option<u64> {
        self.pages.binary_search_by_key(&page, |(page, _)| *page).ok().map(|at| self.pages[at].1)
    }
}

/// The operations that had ended when a sound record was made.
pub fn operations_of(record: &[u8]) -> u64 {
    word(record, 6)
}

/// What the head of a record or an intent says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// [`RECORD`] or [`INTENT`].
    pub what: u64,
    /// The generation.
    pub generation: u64,
    /// The sequence number of a record; the `end` of an intent.
    pub number: u64,
    /// Where it says that it lies.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// Of all of them but these 8 bytes.
    pub checksum: u64,
    /// The oldest generation that was not checkpointed then.
    pub oldest: u64,
}

impl Head {
    /// The first head in a part of a journal that may begin at `from` or later, and where: its second word says what it is. Both are multiples
    /// of 8.
    pub fn next(part: &[u8], from: usize) -> Option<(usize, Head)> {
        let marks = part.as_chunks::<8>().0.iter().enumerate().skip(from / 8 + 1);
        marks.map(|(mark, word)| ((mark - 1) * 8, u64::from_le_bytes(*word))).find_map(|(at, what)| {
            let unit = match what {
                RECORD => 1,
                INTENT => 16,
                _ => return None,
            };
            let head = part.get(at..at + RECORD_HEAD)?;
            let [checksum, generation, number, at_it, units] = [0, 2, 3, 4, 5].map(|n| word(head, n));
            let len = units.saturating_mul(unit).saturating_add(RECORD_HEAD as u64);
            let oldest = if what == RECORD { word(head, 7) } else { generation };
            Some((at, Head { what, generation, number, at: at_it, len, checksum, oldest }))
        })
    }
}

const _: () = assert!(RECORD_HEAD == INTENT_HEAD, "heads of both are read alike");

/// What records say of lines: the last word on each of them.
#[derive(Debug, Default)]
pub struct Images {
    sheets: BTreeMap<u64, Sheet>,
    count: usize,
}

/// The lines of a page.
#[derive(Debug, Default)]
struct Sheet {
    /// Which of them there are.
    mask: u64,
    /// Those, ascending.
    lines: Vec<[u8; LINE]>,
}

const _: () = assert!(PAGE_LINES == u64::BITS as u64, "a bit for each line");

impl Sheet {
    /// Adds lines that follow one another. Returns how many of them are new.
    fn put(&mut self, first: u64, lines: &[[u8; LINE]]) -> usize {
        let before = self.lines.len();
        let below = |number: u64| (1u64 << number) - 1;
        let new = (first..first + lines.len() as u64).filter(|number| self.mask >> number & 1 == 0).count();
        // Most pages of scattered commits have one line, and there are many of them.
        self.lines.reserve_exact(new);
        if self.mask >> first == 0 {
            // Behind all others.
            self.lines.extend_from_slice(lines);
            self.mask |= (u64::MAX >> (PAGE_LINES - lines.len() as u64)) << first;
        } else {
            for (number, line) in (first..).zip(lines) {
                let rank = (self.mask & below(number)).count_ones() as usize;
                if self.mask >> number & 1 == 1 {
                    self.lines[rank] = *line;
                } else {
                    self.lines.insert(rank, *line);
                    self.mask |= 1 << number;
                }
            }
        }
        self.lines.len() - before
    }

    /// Numbers and bytes of the lines, ascending.
    fn iter(&self) -> impl Iterator<Item = (u64, &[u8; LINE])> {
        let mut left = self.mask;
        self.lines.iter().map(move |line| {
            let number = u64::from(left.trailing_zeros());
            left &= left - 1;
            (number, line)
        })
    }
}

impl Images {
    /// Adds a sound record, which follows those that were added before. Returns whether its runs make sense.
    pub fn add(&mut self, record: &[u8]) -> bool {
        let mut runs = &record[RECORD_HEAD..];
        while let Some((run, rest)) = runs.split_at_checked(8) {
            let run = word(run, 0);
            let Some((lines, rest)) = rest.split_at_checked((run & MAX_RUN) as usize * LINE) else { return false };
            let (mut first, mut lines) = (run >> 16, lines.as_chunks::<LINE>().0);
            while !lines.is_empty() {
                let (page, number) = (first / PAGE_LINES, first % PAGE_LINES);
                let here = lines.len().min((PAGE_LINES - number) as usize);
                self.count += self.sheets.entry(page).or_default().put(number, &lines[..here]);
                (first, lines) = (first + here as u64, &lines[here..]);
            }
            runs = rest;
        }
        runs.is_empty()
    }

    /// The pages of these lines, ascending.
    pub fn pages(&self) -> Vec<u64> {
        self.sheets.keys().copied().collect()
    }

    /// Puts the lines of a page into its bytes. Returns whether they are all of its lines.
    pub fn overlay(&self, page: u64, bytes: &mut [u8; PAGE as usize]) -> bool {
        let Some(sheet) = self.sheets.get(&page) else { return false };
        sheet.iter().for_each(|(number, line)| bytes[number as usize * LINE..][..LINE].copy_from_slice(line));
        sheet.mask == u64::MAX
    }

    /// Which lines of a page there are, a bit for each.
    pub fn lines_of(&self, page: u64) -> u64 {
        self.sheets.get(&page).map_or(0, |sheet| sheet.mask)
    }

    /// The line after the last one.
    pub fn end(&self) -> u64 {
        let last =
            self.sheets.last_key_value().and_then(|(page, sheet)| Some(page * PAGE_LINES + sheet.iter().last()?.0));
        last.map_or(0, |line| line + 1)
    }

    /// How many lines.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The lines, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8; LINE])> {
        self.sheets
            .iter()
            .flat_map(|(page, sheet)| sheet.iter().map(move |(number, line)| (page * PAGE_LINES + number, line)))
    }

    /// Calls `write` with offset and bytes of each contiguous part of at most `most` bytes, ascending.
    ///
    /// # Errors
    /// The first of `write`.
    pub fn write<E>(&self, most: usize, mut write: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let (mut start, mut part) = (0, Vec::new());
        for (line, bytes) in self.iter() {
            let at = line * LINE as u64;
            if !part.is_empty() && (at != start + part.len() as u64 || part.len() + LINE > most) {
                write(start, &part)?;
                part.clear();
            }
            if part.is_empty() {
                start = at;
            }
            part.extend_from_slice(bytes);
        }
        if part.is_empty() { Ok(()) } else { write(start, &part) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Header = Header {
        version: VERSIONS.writes,
        pool: PoolId([7; 16]),
        salt: 3,
        turn: 5,
        segment: 8192,
        oldest: 9,
        first: 11,
        places: 3,
    };
    const PLACE: Place = Place { salt: 3, generation: 9, sequence: 11, at: 4096 };

    fn record() -> Vec<u8> {
        let mut draft = Draft::default();
        draft.clear();
        assert!(draft.is_empty());
        [4u64, 5, 6, 9].into_iter().for_each(|line| draft.push(line, &[line; 8]));
        (draft.operations, draft.oldest) = (5, 8);
        draft.seal(PLACE).to_vec()
    }

    #[test]
    fn a_record_says_how_many_operations_had_ended() {
        assert_eq!(operations_of(&record()), 5);
    }

    #[test]
    fn where_everything_lies() {
        assert_eq!((HEADER, SLOT, SEGMENTS, RECORD_HEAD), (112, 4096, 8192, 64));
        assert_eq!((HEAD.slot(), HEAD.place(0), HEAD.place(2), HEAD.file_len()), (4096, 8192, 40960, 57344));
        let intents = [(IntentOf::Checkpoint, 0), (IntentOf::Recovery, 0), (IntentOf::Checkpoint, 2)];
        assert_eq!(intents.map(|(of, place)| HEAD.intent(of, place)), [16384, 20480, 49152]);
        assert_eq!(Header { segment: 4 << 20, ..HEAD }.intent_len(), (1 << 20) + 4096);
        let words: Vec<u64> = HEAD.encode().chunks(8).map(|w| word(w, 0)).collect();
        let id = 0x0707_0707_0707_0707;
        assert_eq!(words[1..], [MAGIC, VERSIONS.writes.to_word(), id, id, 3, 5, 8192, 9, 11, 3, 0, 0, 0]);
        let record = record();
        assert_eq!(record.len(), RECORD_HEAD + 2 * 8 + 4 * LINE);
        let words: Vec<u64> = record.chunks(8).map(|w| word(w, 0)).collect();
        assert_eq!(words[1..9], [RECORD, 9, 11, 4096, 272, 5, 8, 4 << 16 | 3]);
        assert_eq!((words[9], words[33], words[34]), (4, 9 << 16 | 1, 9));
    }

    #[test]
    fn what_the_words_mean_is_part_of_the_version() {
        let intent = Intent { generation: 9, last: 12, next: 40, end: 5, pages: vec![(3, 30), (7, 70)] };
        let header = HEAD.encode();
        let all = [&header[8..16], &header[24..], &record(), &intent.encode(3, 4096)].concat();
        assert_eq!(
            xxh3_64(&all),
            SAMPLE,
            "{:#x}: the format has changed; if that is meant, this is the new SAMPLE",
            xxh3_64(&all)
        );
    }

    #[test]
    fn a_sound_header_of_another_version_is_told_from_a_damaged_one() {
        let other = Header { version: Version::new(77), ..HEAD }.encode();
        assert_eq!((Header::decode(&other), sealed(&other, MAGIC)), (None, Some((Version::new(77), HEAD.pool))));
        assert_eq!(sealed(&other, super::super::sums::MAGIC), None);
        for bit in 0..HEADER * 8 {
            let mut bad = other;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sealed(&bad, MAGIC), None, "bit {bit}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_seen() {
        let good = HEAD.encode();
        assert_eq!(Header::decode(&good), Some(HEAD));
        for bit in 0..HEADER * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), None, "bit {bit}");
        }
        let sealed = Header { segment: 100, ..HEAD }.encode();
        assert_eq!(Header::decode(&sealed), None, "a segment that is no number of blocks");
        for (oldest, first) in [(1 << 62, 11), (9, u64::MAX)] {
            assert_eq!(
                Header::decode(&Header { oldest, first, ..HEAD }.encode()),
                None,
                "numbers that nobody counts to"
            );
        }
        for (places, sane) in [(0, false), (1, false), (2, true), (MAX_PLACES, true), (MAX_PLACES + 1, false)] {
            assert_eq!(Header::decode(&Header { places, ..HEAD }.encode()).is_some(), sane, "{places} places");
        }
    }

    #[test]
    fn a_record_is_taken_only_where_it_belongs_and_whole() {
        let good = record();
        assert_eq!(record_at(&good, PLACE), Some(&good[..]));
        let mut longer = good.clone();
        longer.extend([9; 100]);
        assert_eq!(record_at(&longer, PLACE), Some(&good[..]), "what follows does not matter");
        let others = [
            Place { salt: 4, ..PLACE },
            Place { generation: 7, ..PLACE },
            Place { sequence: 12, ..PLACE },
            Place { at: 8192, ..PLACE },
        ];
        assert!(others.iter().all(|place| record_at(&good, *place).is_none()));
        assert!((0..good.len()).all(|len| record_at(&good[..len], PLACE).is_none()), "cut off");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(record_at(&bad, PLACE).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn every_flipped_bit_of_an_intent_is_seen() {
        let intent = Intent { generation: 9, last: 12, next: 40, end: 0, pages: vec![(3, 30), (7, 70)] };
        let good = intent.encode(3, 4096);
        assert_eq!(good.len(), INTENT_HEAD + 32);
        assert_eq!(Intent::decode(&good, 3, 9, 4096), Some(intent.clone()));
        assert_eq!((intent.entry(7), intent.entry(4)), (Some(70), None));
        assert!(
            [(4, 9, 4096), (3, 7, 4096), (3, 9, 0)].iter().all(|(s, g, a)| Intent::decode(&good, *s, *g, *a).is_none())
        );
        assert!((0..good.len()).all(|len| Intent::decode(&good[..len], 3, 9, 4096).is_none()), "cut off");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Intent::decode(&bad, 3, 9, 4096).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn an_intent_of_many_pages_has_parts_in_several_places() {
        let pages: Vec<(u64, u64)> = (0..600).map(|page| (page, page + 1)).collect();
        let intent = Intent { generation: 9, last: 11, next: 40, end: 0, pages };
        let parts: Vec<_> = intent.parts(&HEAD, IntentOf::Checkpoint).collect();
        let places = [0, 1, 2].map(|place| HEAD.intent(IntentOf::Checkpoint, place));
        assert_eq!(parts.iter().map(|(at, _)| *at).collect::<Vec<_>>(), places);
        assert!(parts.iter().all(|(_, bytes)| bytes.len() as u64 <= HEAD.intent_len()));
        let decoded = parts.iter().map(|(at, bytes)| Intent::decode(bytes, 3, 9, *at).unwrap());
        let joined = decoded.reduce(|mut all, part| {
            all.join(part);
            all
        });
        assert_eq!(joined, Some(intent));
    }

    #[test]
    fn heads_are_found_where_all_of_them_is_there() {
        let mut part = vec![0; 128];
        part.extend(record());
        let next = |part: &[u8], from| Head::next(part, from).map(|(at, _)| at);
        assert_eq!([0, 120, 128, 136].map(|from| next(&part, from)), [Some(128), Some(128), Some(128), None]);
        let checksum = word(&record(), 0);
        let len = record().len() as u64;
        let head = Head { what: RECORD, generation: 9, number: 11, at: 4096, len, checksum, oldest: 8 };
        assert_eq!(Head::next(&part[..128 + RECORD_HEAD], 0), Some((128, head)));
        assert_eq!(Head::next(&part[..128 + RECORD_HEAD - 8], 0), None, "cut off");
        assert_eq!(Head::next(&[], 0), None);
        let intent = Intent { generation: 9, last: 12, next: 0, end: 2, pages: vec![(3, 30), (7, 70)] }.encode(3, 4096);
        let head = Head { what: INTENT, number: 2, len: 96, checksum: word(&intent, 0), oldest: 9, ..head };
        assert_eq!(Head::next(&intent, 0), Some((0, head)));
    }

    #[test]
    fn the_last_record_of_a_line_counts() {
        let mut images = Images::default();
        assert!(images.add(&record()));
        let mut draft = Draft::default();
        draft.clear();
        draft.push(5, &[50; 8]);
        assert!(images.add(draft.seal(PLACE)));
        assert!(!images.add(&record()[..RECORD_HEAD + 100]), "runs that end in the middle of a line");
        let mut written = Vec::new();
        let write = |at: u64, bytes: &[u8]| {
            written.push((at / 64, bytes.chunks(64).map(|line| line[0]).collect::<Vec<_>>()));
            Ok::<_, ()>(())
        };
        images.write(128, write).unwrap();
        assert_eq!(written, [(4, vec![4, 50]), (6, vec![6]), (9, vec![9])]);
        assert_eq!((images.end(), images.count()), (10, 4));
    }

    #[test]
    fn lines_of_a_page_come_in_any_order() {
        let mut images = Images::default();
        let mut expected = BTreeMap::new();
        let runs = [(60u64, 10u64), (3, 2), (0, 1), (2, 5), (63, 1), (130, 1), (0, 64), (128, 64)];
        for (turn, (first, len)) in runs.into_iter().enumerate() {
            let mut draft = Draft::default();
            draft.clear();
            (first..first + len).for_each(|line| {
                draft.push(line, &[turn as u64; 8]);
                expected.insert(line, turn as u8);
            });
            assert!(images.add(draft.seal(PLACE)));
            let found: BTreeMap<u64, u8> = images.iter().map(|(line, bytes)| (line, bytes[0])).collect();
            assert_eq!(found, expected);
            assert!(images.iter().is_sorted_by_key(|(line, _)| line));
            assert_eq!((images.count(), images.end()), (expected.len(), expected.last_key_value().unwrap().0 + 1));
            let mut page = [0xff; PAGE as usize];
            let whole = images.overlay(0, &mut page);
            assert_eq!(whole, (0..64).all(|line| expected.contains_key(&line)));
            assert!((0..64).all(|line| (images.lines_of(0) >> line & 1 == 1) == expected.contains_key(&line)));
            for line in 0..64 {
                assert_eq!(page[line * 64], expected.get(&(line as u64)).copied().unwrap_or(0xff));
            }
        }
        assert_eq!(images.pages(), [0, 1, 2]);
        assert!(!images.overlay(7, &mut [0; PAGE as usize]));
    }

    /// Most pages of scattered commits have one line.
    #[test]
    fn lines_take_the_memory_that_they_need() {
        let mut images = Images::default();
        for turn in [3, 5, 4] {
            let mut draft = Draft::default();
            draft.clear();
            (0..100).for_each(|page| draft.push(page * PAGE_LINES + turn, &[turn; 8]));
            assert!(images.add(draft.seal(PLACE)));
            let spare: usize = images.sheets.values().map(|sheet| sheet.lines.capacity() - sheet.lines.len()).sum();
            assert_eq!(spare, 0, "after line {turn}");
        }
    }

    /// One commit can be larger than all others together.
    #[test]
    fn a_draft_gives_memory_back_that_it_does_not_need_any_more() {
        let mut draft = Draft::default();
        let mut push = |lines: u64| {
            draft.clear();
            (0..lines).for_each(|line| draft.push(line, &[line; 8]));
            draft.bytes.capacity()
        };
        let large = push(1 << 18);
        assert!(large >= 16 << 20);
        assert!(push(10) >= large, "its memory is not given back before the next one has shown what is needed");
        assert!(push(10) <= 4 << 20);
        let usual = push(1000);
        assert_eq!([10, 10, 1000].map(push), [usual; 3], "what is usual stays");
    }

    #[test]
    fn long_runs_are_cut() {
        let mut draft = Draft::default();
        draft.clear();
        (0..70_000).for_each(|line| draft.push(line, &[line; 8]));
        let mut images = Images::default();
        assert!(images.add(draft.seal(PLACE)));
        assert_eq!((images.count(), images.end()), (70_000, 70_000));
    }
}
