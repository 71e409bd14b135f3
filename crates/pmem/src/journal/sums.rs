//! The checksums of a journaled pool's pages, in a file of their own beside the pool.
//!
//! ```text
//!        0  header slot 0    80 bytes in a block of 4096: even turns
//!     4096  header slot 1    the same: odd turns
//!     8192  entries          8 bytes for each page of 4096 bytes of the pool's file
//! ```
//!
//! | word of a header | what |
//! |---|---|
//! | 0 | checksum of words 1 to 9 |
//! | 1 | [`MAGIC`] |
//! | 2 | one of [`VERSIONS`] |
//! | 3–4 | id of the pool |
//! | 5 | turn: counts headers; the larger counts |
//! | 6–7 | salts of the journals that this table goes with: the one that the pool's header names, and the next one |
//! | 8–9 | zero |
//!
//! | entry | the page |
//! |---|---|
//! | 0, or beyond the end of the file | was never written: all of it is zero |
//! | [`UNKNOWN`] | has no checksum yet: it was written without a journal |
//! | [`DAMAGED`] | was found damaged by a checkpoint or a recovery, which then changed other lines of it |
//! | anything else | has this checksum: XXH3, seeded with the pool's id and the page's number |
//!
//! The first word and lines 2 and 3 of page 0 are left out of its checksum: they are written past the journal. The first word has one
//! value only in a pool, and each word of those lines that is read has a checksum of its own.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | JN-S0 the table, and a header with the next salt < JN-J2 that salt in the pool's header | sync of the checksums | a header that names the old salt and the next one, or the header before | both go with the old salt |
//! | JN-S4 a header with the salt of the pool's header and no other one < JN-S2, JN-S3 | sync of the checksums | either header; what a restored copy of the pool's file names goes with the older one, whose entries are as they were | both go with the salt of the pool's header |
//! | as JN-S1: the intent of a generation < JN-T2 its lines in the pool's file | sync of the journal | no intent; pages agree with the table | judges pages by the table, then replays |
//! | as JN-T2: lines < JN-S2 the table | sync of the pool's file | the intent, some of the lines | replays that generation, judges pages by the intent |
//! | as JN-S2: the table < JN-T3 a header that skips the generation | sync of the checksums | the intent, any part of the table | the same, and writes the table again |

use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::carry::{TOGETHER, is_unreadable};
use super::file::{JournalFile, JournalPlace, refuse_foreign};
use super::layout::{Images, SLOT, sealed, word};
use super::lock;
use super::notes::PAGE;
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::ids::PoolId;
use crate::layout;
use crate::line::LINE;
use crate::version::{Version, Versions};

/// Second word of a header.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DURIXcs\x1a");
/// Versions of the checksums: the third word of a header. Whatever else a version changes, words 0 to 4 of a header stay what they are, and the
/// checksum covers 80 bytes, so that every build can tell the versions of all others.
pub const VERSIONS: Versions = Versions::only(Version::of(1, LAYOUT));
/// The entry of a page that has no checksum yet. Many bits away from zero, the entry of a page that was never written.
pub const UNKNOWN: u64 = u64::from_le_bytes(*b"unknown\x1a");
/// The entry of a page that was found damaged.
pub const DAMAGED: u64 = u64::from_le_bytes(*b"damaged\x1a");
/// Where entries begin.
pub const ENTRIES: u64 = 2 * SLOT;
/// Bytes of a header.
const HEADER: usize = 10 * 8;
/// What the checksums depend on.
const LAYOUT: u32 = layout!([], MAGIC, UNKNOWN, DAMAGED, ENTRIES, HEADER, SELF_CHECKED.start, SELF_CHECKED.end, SAMPLE);
/// XXH3 of a header, but for its checksum and version, and of the checksums of two pages: a test compares it with theirs, so that what they mean is
/// part of the version.
const SAMPLE: u64 = 0x84af_7460_49ed_bc72;
/// What is left out of the checksum of page 0, beside its first word.
const SELF_CHECKED: std::ops::Range<usize> = 2 * LINE..4 * LINE;

/// The bytes of a page.
pub(crate) type Page = [u8; PAGE as usize];

static ZEROES: Page = [0; PAGE as usize];

/// What a page is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Sound,
    Unknown,
    Damaged,
}

/// The table of an open pool.
#[derive(Debug)]
pub(crate) struct Sums {
    file: Arc<dyn JournalFile>,
    pool: PoolId,
    /// The header that counts: its turn, and the salts that it names.
    header: Mutex<(u64, [u64; 2])>,
}

/// Why there is no table to judge by, as a sentence goes on after "the pages have no checksums: ".
pub(crate) type Missing = String;

fn decode(bytes: &[u8; HEADER]) -> Option<(PoolId, u64, [u64; 2])> {
    let (_, pool) = sealed(bytes, MAGIC).filter(|(version, _)| VERSIONS.opens(*version))?;
    Some((pool, word(bytes, 5), [word(bytes, 6), word(bytes, 7)]))
}

fn encode(pool: PoolId, turn: u64, salts: [u64; 2]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let (low, high) = pool.0.split_at(8);
    let id = [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes")));
    for (place, word) in
        bytes[8..].chunks_exact_mut(8).zip([MAGIC, VERSIONS.writes.to_word(), id[0], id[1], turn, salts[0], salts[1]])
    {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let checksum = xxh3_64(&bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

impl Sums {
    /// The table of a pool whose header names that salt, or why there is none that can be used. One of another version is an error.
    pub(crate) fn open(
        place: &dyn JournalPlace,
        read_only: bool,
        pool: PoolId,
        salt: u64,
    ) -> Result<std::result::Result<Self, Missing>> {
        let name = place.describe();
        let Some(file) = place.open(read_only)? else { return Ok(Err(format!("there is no {name}"))) };
        let slots = [0, SLOT].map(|at| {
            let mut bytes = [0; HEADER];
            file.read_at(at, &mut bytes).ok()?;
            Some((at, bytes))
        });
        let sound = |(at, bytes): &(u64, [u8; HEADER])| decode(bytes).filter(|(_, turn, _)| turn % 2 * SLOT == *at);
        let sound = slots.iter().flatten().filter_map(sound).max_by_key(|(_, turn, _)| *turn);
        let Some((of, turn, salts)) = sound else {
            let mut headers = slots.iter().flatten().filter_map(|(_, bytes)| sealed(bytes, MAGIC));
            if let Some((found, _)) = headers.find(|(version, of)| *of == pool && !VERSIONS.opens(*version)) {
                return Err(Error::OtherVersion { what: "file of checksums", file: name, found, known: VERSIONS });
            }
            return Ok(Err(format!("{name} is damaged: no sound header in its first 8192 bytes")));
        };
        if of != pool {
            return Ok(Err(format!("{name} belongs to pool {of}, and this is pool {pool}")));
        }
        if !salts.contains(&salt) {
            return Ok(Err(format!("{name} belongs to another opening of this pool")));
        }
        Ok(Ok(Sums { file, pool, header: Mutex::new((turn, salts)) }))
    }

    /// An empty table: the checksums of the first `pages` pages are unknown, all others were never written. It counts once it is
    /// [bound](Self::bind).
    pub(crate) fn begin(place: &dyn JournalPlace, pool: PoolId, pages: u64) -> Result<Self> {
        let file = place.create()?;
        refuse_foreign(&*file, MAGIC)?;
        file.set_len(0)?;
        file.allocate(ENTRIES)?;
        let unknown: Vec<u8> = UNKNOWN.to_le_bytes().repeat(pages.min(32 << 10) as usize);
        let mut page = 0;
        while page < pages {
            let count = (pages - page).min(32 << 10);
            file.write_at(ENTRIES + page * 8, &unknown[..count as usize * 8])?;
            page += count;
        }
        Ok(Sums { file, pool, header: Mutex::default() })
    }

    /// Says that the table goes with a pool whose header names either salt. Durable on return (JN-S0).
    pub(crate) fn bind(&self, salts: [u64; 2]) -> Result<()> {
        self.name(salts)?; // PERSIST JN-S0<JN-J2: sync
        self.file.sync_name()
    }

    /// Says that the table goes with that salt and no other one, which the pool's header names by now: entries are about to change, and an
    /// older copy of the pool's file must not be judged by them. Durable on return (JN-S4). Nothing where the table says so already.
    pub(crate) fn settle_on(&self, salt: u64) -> Result<()> {
        if lock(&self.header).1 == [salt; 2] {
            return Ok(());
        }
        self.name([salt; 2]) // PERSIST JN-S4<JN-S2: sync
    }

    /// Writes the next header.
    fn name(&self, salts: [u64; 2]) -> Result<()> {
        let mut header = lock(&self.header);
        let turn = header.0 + 1;
        self.file.write_at(turn % 2 * SLOT, &encode(self.pool, turn, salts))?;
        self.file.sync()?;
        *header = (turn, salts);
        Ok(())
    }

    /// Makes room for the entries of a pool of `len` bytes. A new entry is zero. Nothing is durable yet.
    pub(crate) fn grow(&self, len: u64) -> Result<()> {
        self.file.allocate(ENTRIES + len.div_ceil(PAGE) * 8)
    }

    /// The entries of successive pages.
    pub(crate) fn entries(&self, first: u64, count: usize) -> Result<Vec<u64>> {
        let (at, mut bytes) = (ENTRIES + first * 8, vec![0; count * 8]);
        let there = self.file.len()?.saturating_sub(at).min(bytes.len() as u64);
        self.file.read_at(at, &mut bytes[..there as usize])?;
        Ok(bytes.chunks_exact(8).map(|bytes| word(bytes, 0)).collect())
    }

    /// Sets entries, by ascending number of their pages. Durable after the next [`sync`](Self::sync).
    pub(crate) fn set(&self, entries: &[(u64, u64)]) -> Result<()> {
        if let Some((last, _)) = entries.last() {
            self.grow((last + 1) * PAGE)?;
        }
        for block in entries.chunk_by(|a, b| a.0 / BLOCK == b.0 / BLOCK) {
            // Those in between are written again as they are: of each sector a crash leaves what was there before or after, as without them.
            let (first, last) = (block[0].0, block[block.len() - 1].0);
            let count = (last - first + 1) as usize;
            let mut all = if count == block.len() { vec![0; count] } else { self.entries(first, count)? };
            block.iter().for_each(|(page, entry)| all[(page - first) as usize] = *entry);
            let bytes: Vec<u8> = all.iter().flat_map(|entry| entry.to_le_bytes()).collect();
            self.file.write_at(ENTRIES + first * 8, &bytes)?;
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    /// The checksum of a page: its address is in the seed.
    pub(crate) fn sum(&self, page: u64, bytes: &Page) -> u64 {
        let seed = word(&self.pool.0, 0) ^ (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sum = if page == 0 {
            let mut rest = *bytes;
            rest[..8].fill(0);
            rest[SELF_CHECKED].fill(0);
            xxh3_64_with_seed(&rest, seed)
        } else {
            xxh3_64_with_seed(bytes, seed)
        };
        // Three values have a meaning of their own.
        if [0, UNKNOWN, DAMAGED].contains(&sum) { !sum } else { sum }
    }

    /// What a page is worth by its entry.
    pub(crate) fn judge(&self, page: u64, bytes: &Page, entry: u64) -> Verdict {
        match entry {
            UNKNOWN => Verdict::Unknown,
            DAMAGED => Verdict::Damaged,
            0 if *bytes == ZEROES => Verdict::Sound,
            0 => Verdict::Damaged,
            sum if sum == self.sum(page, bytes) => Verdict::Sound,
            _ => Verdict::Damaged,
        }
    }

    /// The entry that a page gets when it changes from what was judged to `bytes`; `whole` if all of its lines are new.
    pub(crate) fn next(&self, page: u64, bytes: &Page, was: Verdict, whole: bool) -> u64 {
        // A checksum never covers damage.
        if was == Verdict::Damaged && !whole { DAMAGED } else { self.sum(page, bytes) }
    }

    /// The entries of all pages that `images` change, when they have been written. Each page is read and judged before.
    pub(crate) fn after(&self, backing: &dyn Backing, images: &Images) -> Result<Vec<(u64, u64)>> {
        self.each(backing, &images.pages(), |page, bytes, noted| {
            let was = self.judge(page, bytes, noted);
            let whole = images.overlay(page, bytes);
            self.next(page, bytes, was, whole)
        })
    }

    /// Calls `entry` with each of these pages, ascending, its bytes in the pool's file and its entry, for its new entry. Pages that follow one
    /// another are read together. One that the system cannot read is a damaged one, of zeroes.
    pub(crate) fn each(
        &self,
        backing: &dyn Backing,
        pages: &[u64],
        mut entry: impl FnMut(u64, &mut Page, u64) -> u64,
    ) -> Result<Vec<(u64, u64)>> {
        let (mut new, len) = (Vec::with_capacity(pages.len()), backing.len()?);
        let (mut bytes, mut block) = (vec![[0; PAGE as usize]; TOGETHER.min(pages.len())], (0, Vec::new()));
        for run in pages.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(TOGETHER)) {
            let (at, bytes) = (run[0] * PAGE, &mut bytes[..run.len()]);
            let flat = bytes.as_flattened_mut();
            let there = len.saturating_sub(at).min(flat.len() as u64) as usize;
            let mut damaged = Vec::new();
            match backing.read(at, &mut flat[..there]) {
                Err(error) if is_unreadable(&error) => damaged = read_each(backing, run, flat, len)?,
                read => read?,
            }
            flat[there..].fill(0);
            for (page, bytes) in run.iter().zip(bytes) {
                if page / BLOCK != block.0 || block.1.is_empty() {
                    block = (page / BLOCK, self.entries(page / BLOCK * BLOCK, BLOCK as usize)?);
                }
                let noted = if damaged.contains(page) { DAMAGED } else { block.1[(page % BLOCK) as usize] };
                new.push((*page, entry(*page, bytes, noted)));
            }
        }
        Ok(new)
    }
}

/// Entries that are read, or written, at a time: a page of the table.
const BLOCK: u64 = 512;

/// Reads pages that could not be read together. Returns those that cannot be read at all; their bytes are zero.
fn read_each(backing: &dyn Backing, pages: &[u64], flat: &mut [u8], len: u64) -> Result<Vec<u64>> {
    let mut damaged = Vec::new();
    for (page, bytes) in pages.iter().zip(flat.chunks_mut(PAGE as usize)) {
        let there = len.saturating_sub(page * PAGE).min(PAGE) as usize;
        match backing.read(page * PAGE, &mut bytes[..there]) {
            Err(error) if is_unreadable(&error) => {
                bytes.fill(0);
                damaged.push(*page);
            }
            read => read?,
        }
    }
    Ok(damaged)
}

/// A page of the pool's file. Behind its end there are zeroes.
pub(crate) fn read_page(backing: &dyn Backing, page: u64) -> Result<Box<Page>> {
    let mut bytes = Box::new([0; PAGE as usize]);
    let there = backing.len()?.saturating_sub(page * PAGE).min(PAGE) as usize;
    backing.read(page * PAGE, &mut bytes[..there])?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::DiskJournal;

    /// A table in a file that has lost its name.
    fn sums() -> Sums {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(DiskJournal::create(dir.path().join("sums")).unwrap());
        Sums { file, pool: PoolId([7; 16]), header: Mutex::default() }
    }

    #[test]
    fn a_page_of_another_pool_has_another_checksum() {
        let (one, other) = (sums(), Sums { pool: PoolId([8; 16]), ..sums() });
        assert_ne!(one.sum(1, &[1; PAGE as usize]), other.sum(1, &[1; PAGE as usize]));
    }

    #[test]
    fn a_header_that_strayed_and_entries_of_an_older_table_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        std::fs::write(&path, []).unwrap();
        let (place, pool) = (crate::journal::BesidePool::new(&path).sums().unwrap(), PoolId([7; 16]));
        let old = Sums::begin(&*place, pool, 0).unwrap();
        old.set(&[(3, 9)]).unwrap();
        old.bind([1; 2]).unwrap();
        let opens = |salt| Sums::open(&*place, true, pool, salt).unwrap().is_ok();
        assert_eq!([1, 2].map(opens), [true, false]);
        old.file.write_at(0, &encode(pool, 3, [2; 2])).unwrap();
        assert_eq!([1, 2].map(opens), [true, false], "an odd turn in the first slot");
        assert_eq!(Sums::begin(&*place, pool, 0).unwrap().entries(3, 1).unwrap(), [0]);
    }

    #[test]
    fn what_the_words_mean_is_part_of_the_version() {
        let (sums, header) = (sums(), encode(PoolId([7; 16]), 3, [5, 6]));
        let pages = [0, 3].map(|page| sums.sum(page, &[9; PAGE as usize]).to_le_bytes());
        let all = [&header[8..16], &header[24..], pages.as_flattened()].concat();
        assert_eq!(
            xxh3_64(&all),
            SAMPLE,
            "{:#x}: the format has changed; if that is meant, this is the new SAMPLE",
            xxh3_64(&all)
        );
    }

    #[test]
    fn where_everything_lies() {
        assert_eq!((HEADER, ENTRIES), (80, 8192));
        let bytes = encode(PoolId([7; 16]), 3, [5, 6]);
        let words: Vec<u64> = bytes.chunks(8).map(|bytes| word(bytes, 0)).collect();
        let id = 0x0707_0707_0707_0707;
        assert_eq!(words[1..], [MAGIC, VERSIONS.writes.to_word(), id, id, 3, 5, 6, 0, 0]);
        assert_eq!((MAGIC, UNKNOWN, DAMAGED), (0x1a73_6358_4952_5544, 0x1a6e_776f_6e6b_6e75, 0x1a64_6567_616d_6164));
        assert!(UNKNOWN.count_ones() > 8 && DAMAGED.count_ones() > 8, "no few bits lead from zero to them");
        for bit in 0..HEADER * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn a_header_is_never_written_over_the_one_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(DiskJournal::create(dir.path().join("sums")).unwrap());
        let sums = Sums { file, pool: PoolId([7; 16]), header: Mutex::default() };
        for (turn, salt) in [(1, 5), (2, 6), (3, 6), (4, 7)] {
            if turn == 3 {
                (0..2).for_each(|_| sums.settle_on(salt).unwrap());
            } else {
                sums.bind([salt, salt + 1]).unwrap();
            }
            let headers = [0, SLOT].map(|at| {
                let mut bytes = [0; HEADER];
                sums.file.read_at(at, &mut bytes).ok().and_then(|()| decode(&bytes))
            });
            let there: Vec<u64> = headers.into_iter().flatten().map(|(_, turn, _)| turn).collect();
            assert!(there.contains(&turn) && (turn == 1 || there.contains(&(turn - 1))), "turn {turn}: {there:?}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_page_is_seen_and_the_page_at_another_address_too() {
        let sums = sums();
        let mut bytes: Page = std::array::from_fn(|i| (i * 7) as u8);
        for page in [0, 1, 9] {
            let entry = sums.sum(page, &bytes);
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                let left_out = page == 0 && (bit < 64 || SELF_CHECKED.contains(&(bit / 8)));
                assert_eq!(sums.judge(page, &bytes, entry) == Verdict::Sound, left_out, "page {page}, bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(sums.judge(page, &bytes, entry), Verdict::Sound);
            assert_eq!(sums.judge(page + 1, &bytes, entry), Verdict::Damaged, "its address is in it");
        }
        let zero = [0; PAGE as usize];
        assert_eq!((sums.judge(4, &zero, 0), sums.judge(4, &bytes, 0)), (Verdict::Sound, Verdict::Damaged));
        assert_eq!(
            (sums.judge(4, &zero, UNKNOWN), sums.judge(4, &zero, DAMAGED)),
            (Verdict::Unknown, Verdict::Damaged)
        );
    }

    #[test]
    fn damage_stays_known_until_the_whole_page_is_written_again() {
        let (sums, bytes) = (sums(), [3; PAGE as usize]);
        assert_eq!(sums.next(4, &bytes, Verdict::Damaged, false), DAMAGED);
        for (was, whole) in [(Verdict::Damaged, true), (Verdict::Sound, false), (Verdict::Unknown, false)] {
            assert_eq!(sums.next(4, &bytes, was, whole), sums.sum(4, &bytes));
        }
    }

    #[test]
    fn entries_behind_the_end_are_zero_and_runs_are_written_where_they_belong() {
        let sums = sums();
        assert_eq!(sums.entries(5, 2).unwrap(), [0, 0]);
        sums.set(&[(1, 10), (2, 20), (7, 70)]).unwrap();
        assert_eq!(sums.entries(0, 10).unwrap(), [0, 10, 20, 0, 0, 0, 0, 70, 0, 0]);
    }
}
