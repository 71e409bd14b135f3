//! The experiment of flips: what `check` finds of damage, and what `repair` saves after it, kind by kind.
//!
//! A pool with one index is filled, partly emptied, and closed. Then one thing in it is changed at random: a bit, a byte, a word, a line
//! of 64 bytes or a page of 4096, in a line that is not all zero. Asked is what the commands do: `check` (of the pool's tables, its space
//! and the index), and `repair`. The same seed draws the same changes on every machine.
//!
//! `repair` should save every key of which no byte was damaged: in a tree, one node of keys more may be lost for each that is damaged. Where
//! the bytes of a key lie is found by searching the image for the words of its key and value, which are random numbers (`Bytes`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use durix::kind::{self, Entry};
use durix::repair::salvage_into;
use durix::{Hardware, Lengths, Level, Pool, PoolOptions};
use durix_pmem::backing::HeapBacking;
use durix_pmem::journal::DiskJournal;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 1024 * CHUNK;
const NAME: &str = "flipped";
/// Keys that are inserted; a third of them is removed again.
const KEYS: u64 = 1200;
/// Bytes of a segment of a journal: room for all commits.
const SEGMENT: u64 = 1 << 20;
/// As many where operations are linear.
const FEW: u64 = 180;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// How much of a pool changes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One bit is flipped.
    Bit,
    /// A byte gets another value.
    Byte,
    /// A word gets any value, that of another word, or zero.
    Word,
    /// A line is zeroed, or gets the bytes of another one.
    Line,
    /// A page is zeroed, or gets the bytes of another one.
    Page,
}

impl Size {
    /// All of them.
    pub const ALL: [Size; 5] = [Size::Bit, Size::Byte, Size::Word, Size::Line, Size::Page];

    fn bytes(self) -> usize {
        match self {
            Size::Bit | Size::Byte => 1,
            Size::Word => 8,
            Size::Line => 64,
            Size::Page => 4096,
        }
    }
}

/// A small generator: a seed draws the same flips everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ mixed >> 32
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// What became of the flips of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Flips.
    pub flips: u64,
    /// The pool does not open, or says that the index is lost: nothing is saved, whatever the kind. Not among `found`.
    pub refused: u64,
    /// The index was refused, or `check` found something.
    pub found: u64,
    /// `check` found nothing, and every pair is there, with its value.
    pub harmless: u64,
    /// `check` found nothing, and a pair is missing, has another value, or was never there.
    pub missed: u64,
    /// Keys of the index.
    pub keys: u64,
    /// Keys with their values that `repair` saved after what was found, of `keys` for each.
    pub saved: u64,
    /// The smallest number that it saved of one index.
    pub least: u64,
    /// Pairs that `repair` saved, and that were not in the index: a key that was never there or had been removed, or a wrong value.
    pub wrong: u64,
    /// Keys that it did not save with their values, of all finds, though no line was damaged that has a byte of them.
    pub lost_whole: u64,
    /// Those of them that lie in no node that was damaged either.
    pub lost_beyond: u64,
    /// The greatest number of these after one flip.
    pub most_beyond: u64,
}

/// What became of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pool does not open, or says that the index is lost.
    Refused,
    /// The index was refused, or `check` found something.
    Found {
        /// Keys that `repair` saved, with their values.
        saved: u64,
        /// Pairs that it saved and that were not in the index.
        wrong: u64,
        /// Keys that it did not save though no line with a byte of them was damaged.
        lost_whole: u64,
        /// Those of them that lie in no node that was damaged.
        lost_beyond: u64,
    },
    /// `check` found nothing, and every pair is there.
    Harmless,
    /// `check` found nothing, and a pair is missing or wrong.
    Missed,
}

impl Tally {
    fn count(&mut self, outcome: Outcome) {
        self.flips += 1;
        match outcome {
            Outcome::Refused => self.refused += 1,
            Outcome::Found { saved, wrong, lost_whole, lost_beyond } => {
                self.found += 1;
                self.saved += saved;
                self.least = self.least.min(saved);
                self.wrong += wrong;
                self.lost_whole += lost_whole;
                self.lost_beyond += lost_beyond;
                self.most_beyond = self.most_beyond.max(lost_beyond);
            }
            Outcome::Harmless => self.harmless += 1,
            Outcome::Missed => self.missed += 1,
        }
    }

    /// Keys saved of a thousand, after what was found; 1000 if nothing was.
    pub fn saved_per_mille(&self) -> u64 {
        (self.saved * 1000).checked_div(self.found * self.keys).unwrap_or(1000)
    }
}

/// Bytes of a node of a kind whose nodes hold several keys. A damaged one may cost all of them.
fn node_bytes(kind: &str) -> usize {
    match kind {
        "masstree" | "bplustree" => 320,
        // A leaf, its descriptors among it.
        "dptree" | "dptree-values" | "dptree-bytes" => 4096,
        _ => 0,
    }
}

/// The lines in which the bytes of each key and its value lie: all that hold eight bytes of it in a row, in either order; and where values lie
/// in records, the word that says where the record is.
struct Bytes(BTreeMap<Vec<u8>, BTreeSet<usize>>);

impl Bytes {
    fn of(entry: &Entry, pairs: &Pairs, image: &[u8]) -> Self {
        let has_records = matches!(entry.limits.value, Lengths::UpTo(_)) && entry.name != "pset";
        let mut records: HashMap<usize, Vec<&Vec<u8>>> = HashMap::new();
        let mut wanted: HashMap<[u8; 8], Vec<&Vec<u8>>> = HashMap::new();
        for (key, value) in pairs {
            // Keys of several words end with the same bytes; the others are this key's alone.
            let of_key = key.chunks_exact(8).chain(key.get(21..29)).filter(|word| is_random(word));
            for word in of_key.chain(value.chunks_exact(8).take(1)) {
                let mut word: [u8; 8] = word.try_into().expect("eight");
                wanted.entry(word).or_default().push(key);
                word.reverse();
                wanted.entry(word).or_default().push(key);
            }
        }
        let mut lines: BTreeMap<Vec<u8>, BTreeSet<usize>> =
            pairs.keys().map(|key| (key.clone(), BTreeSet::new())).collect();
        for (at, word) in image.windows(8).enumerate() {
            for key in wanted.get(word).into_iter().flatten() {
                lines.get_mut(*key).expect("one of them").extend([at / 64, (at + 7) / 64]);
                if has_records && pairs[*key].starts_with(word) {
                    // A record begins with its key.
                    records.entry((at - (key.len() + 8).min(at)) / 64).or_default().push(key);
                    records.entry(at / 64).or_default().push(key);
                }
            }
        }
        for (number, word) in image.chunks_exact(8).enumerate() {
            let off = u64::from_le_bytes(word.try_into().expect("eight")) << 16 >> 16;
            for key in records.get(&(off as usize / 64)).into_iter().flatten() {
                lines.get_mut(*key).expect("one of them").insert(number / 8);
            }
        }
        if entry.name.starts_with("dptree") {
            add_descriptors(image, &mut lines);
        }
        Bytes(lines)
    }

    /// Whether a byte of a key lies in one of these lines, or in a node of so many bytes that has a byte in them.
    fn are_hit(&self, key: &[u8], lines: &BTreeSet<usize>, node: usize) -> bool {
        let reach = node.div_ceil(64).saturating_sub(1);
        self.0.get(key).is_some_and(|of_key| {
            of_key.iter().any(|line| lines.range(line.saturating_sub(reach)..=line + reach).next().is_some())
        })
    }
}

/// Adds to the keys in a leaf of a DPTree the lines that say which of its slots are taken: nothing else does.
fn add_descriptors(image: &[u8], lines: &mut BTreeMap<Vec<u8>, BTreeSet<usize>>) {
    let reach = node_bytes("dptree") / 64;
    let mut leads_to: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, line) in image.chunks_exact(64).enumerate() {
        let word = |number: usize| u64::from_le_bytes(line[number * 8..][..8].try_into().expect("eight")) as usize;
        let (leaf, leaves, next) = (word(0), word(6), word(7));
        if leaf > 0 && [leaf, next].iter().all(|off| off.is_multiple_of(64) && *off < image.len()) && leaves < 32 {
            leads_to.entry(leaf / 64).or_default().push(number);
        }
    }
    for of_key in lines.values_mut() {
        let of_leaf = |line: &usize| leads_to.range(line.saturating_sub(reach - 1)..=*line).next_back();
        let more: Vec<usize> = of_key.iter().filter_map(of_leaf).flat_map(|(_, lines)| lines).copied().collect();
        of_key.extend(more);
    }
}

/// Whether a word of a long key is more than the bytes that all of them have.
fn is_random(word: &[u8]) -> bool {
    !(word.iter().all(|byte| *byte == 7) || b"the same beginning of".windows(8).any(|constant| constant == word))
}

/// The lines in which two images differ.
fn changed_lines(before: &[u8], after: &[u8]) -> BTreeSet<usize> {
    let lines = before.chunks(64).zip(after.chunks(64)).enumerate();
    lines.filter(|(_, (before, after))| before != after).map(|(line, _)| line).collect()
}

/// What `repair` saved, measured by what was there.
fn measured(pairs: &Pairs, saved: &Pairs, bytes: &Bytes, changed: &BTreeSet<usize>, node: usize) -> Outcome {
    let is_lost = |(key, value): &(&Vec<u8>, &Vec<u8>)| saved.get(*key) != Some(*value);
    let lost: Vec<&Vec<u8>> = pairs.iter().filter(is_lost).map(|(key, _)| key).collect();
    let right = (pairs.len() - lost.len()) as u64;
    let not_hit = |node| lost.iter().filter(|key| !bytes.are_hit(key, changed, node)).count() as u64;
    Outcome::Found {
        saved: right,
        wrong: saved.len() as u64 - right,
        lost_whole: not_hit(0),
        lost_beyond: not_hit(node),
    }
}

/// A closed pool of one kind, and what its index holds.
pub struct Subject {
    /// The kind.
    pub entry: Entry,
    image: Vec<u8>,
    /// Offsets of lines that are not all zero.
    lines: Vec<usize>,
    pairs: Pairs,
    bytes: Bytes,
}

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).initial_size(24 * CHUNK);
    options.pool_id([1; 16]).boot_id([2; 16])
}

fn key(entry: &Entry, number: u64) -> Vec<u8> {
    let word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    match entry.limits.key {
        Lengths::Exactly(_) => word.to_vec(),
        // Some share their first bytes, some are long.
        Lengths::UpTo(_) if number.is_multiple_of(5) => [b"the same beginning of", &word[..], &[7; 20]].concat(),
        Lengths::UpTo(_) => word.to_vec(),
    }
}

fn value(entry: &Entry, number: u64) -> Vec<u8> {
    let len = match entry.limits.value {
        Lengths::Exactly(len) => len,
        Lengths::UpTo(_) => 8 + (number % 4) as usize * 20,
    };
    number.wrapping_mul(0xd6e8_feb8_6659_fd93).to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Fills an index, and removes a third again. `pause` is called between parts.
fn fill(entry: &Entry, pool: &Pool, pause: &mut dyn FnMut()) -> Pairs {
    let index = entry.open_or_create(pool, NAME).expect("an index");
    let mut session = pool.session().expect("a session");
    let keys = if entry.meant_for < KEYS { FEW } else { KEYS };
    let mut pairs = Pairs::new();
    for number in 0..keys {
        let (key, value) = (key(entry, number), value(entry, number));
        index.insert(&session.enter().expect("open"), &key, &value).expect("room");
        pairs.insert(key, value);
        if number % (keys / 12) == 0 {
            index.sync(&mut session).expect("a sync");
            pause();
        }
    }
    index.sync(&mut session).expect("a sync");
    for number in (0..keys).step_by(3) {
        let key = key(entry, number);
        index.remove(&session.enter().expect("open"), &key).expect("removed");
        pairs.remove(&key);
    }
    index.sync(&mut session).expect("a sync");
    pairs
}

/// A changed copy of an image: one thing in one of these lines.
fn flipped(image: &[u8], lines: &[usize], size: Size, random: &mut Random) -> Vec<u8> {
    let mut image = image.to_vec();
    let mut place = || lines[random.below(lines.len())];
    let (line, other) = (place(), place());
    let bytes = size.bytes();
    let within = random.below(64);
    let at = (line + within) / bytes * bytes;
    match size {
        Size::Bit => image[at] ^= 1 << random.below(8),
        Size::Byte => image[at] ^= 1 + random.below(255) as u8,
        Size::Word | Size::Line | Size::Page => match random.below(if size == Size::Word { 3 } else { 2 }) {
            0 => image[at..at + bytes].fill(0),
            1 => image.copy_within(other / bytes * bytes..other / bytes * bytes + bytes, at),
            _ => image[at..at + 8].copy_from_slice(&random.next().to_le_bytes()),
        },
    }
    image
}

/// A flip: its size, where it lies, and the line before and after.
fn described(size: Size, before: &[u8], after: &[u8]) -> String {
    let changed = (0..after.len()).find(|at| before[*at] != after[*at]).expect("it differs");
    let line = changed / 64 * 64;
    let words = |image: &[u8]| {
        let words = image[line..line + 64].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8")));
        words.map(|word| format!("{word:x}")).collect::<Vec<_>>().join(" ")
    };
    format!("{size:?} at {changed:#x}: {} -> {}", words(before), words(after))
}

impl Subject {
    /// Fills an index of a kind.
    ///
    /// # Panics
    /// If that does not work.
    pub fn new(entry: Entry) -> Self {
        let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        let pairs = fill(&entry, &pool, &mut || {});
        pool.close().expect("nothing is open");
        let image = HeapBacking::image_of(pool.mapping());
        let is_used = |line: &usize| image[*line..*line + 64] != [0; 64];
        let lines = (0..image.len()).step_by(64).filter(is_used).collect();
        let bytes = Bytes::of(&entry, &pairs, &image);
        Subject { entry, image, lines, pairs, bytes }
    }

    /// Keys of the index.
    pub fn keys(&self) -> u64 {
        self.pairs.len() as u64
    }

    fn flipped(&self, size: Size, random: &mut Random) -> Vec<u8> {
        flipped(&self.image, &self.lines, size, random)
    }

    /// Draws flips, the same number of each size, until there are `flips`, and says what became of them.
    pub fn draw(&self, flips: u64, seed: u64) -> Tally {
        self.draw_and_tell(flips, seed, &mut |_, _| ())
    }

    /// The same, and calls `tell` with what became of each flip, and what was flipped: its size, where it lies, and the line before and
    /// after.
    pub fn draw_and_tell(&self, flips: u64, seed: u64, tell: &mut dyn FnMut(Outcome, &str)) -> Tally {
        let mut random = Random(seed);
        let mut tally = Tally { keys: self.keys(), least: self.keys(), ..Tally::default() };
        for size in Size::ALL.into_iter().cycle().take(flips as usize) {
            let mut image = self.flipped(size, &mut random);
            while image == self.image {
                image = self.flipped(size, &mut random);
            }
            let what = described(size, &self.image, &image);
            let outcome = self.look(image);
            tally.count(outcome);
            tell(outcome, &what);
        }
        tally
    }

    fn look(&self, image: Vec<u8>) -> Outcome {
        let Some(pool) = open(image.clone()).filter(has_index) else { return Outcome::Refused };
        if !is_clean(&pool) {
            // What the recovery of the check has stored is in its memory only: repair is another process.
            drop(pool);
            let changed = changed_lines(&self.image, &image);
            let saved = self.salvaged(image);
            measured(&self.pairs, &saved, &self.bytes, &changed, node_bytes(self.entry.name))
        } else if self.is_whole(&pool) {
            Outcome::Harmless
        } else {
            Outcome::Missed
        }
    }

    /// Whether all answers are right, in a pool whose check found nothing.
    fn is_whole(&self, pool: &Pool) -> bool {
        is_whole(&self.pairs, pool)
    }

    /// What `repair` would put into a new pool: the first value of each key.
    fn salvaged(&self, image: Vec<u8>) -> Pairs {
        open(image).map(|pool| repaired(&pool)).unwrap_or_default()
    }
}

/// What `repair` puts into a new pool.
fn repaired(pool: &Pool) -> Pairs {
    let target = options().max_indices(4).create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
    salvage_into(pool, &target).expect("room, and a pool that can be read");
    all_pairs(&target, usize::MAX).unwrap_or_default()
}

/// All pairs of the index by walking, at most so many.
fn all_pairs(pool: &Pool, most: usize) -> Option<Pairs> {
    let (index, mut session) = (kind::open_as_is(pool, NAME).ok()?, pool.session().ok()?);
    let (mut cursor, mut walked) = (index.cursor(), Pairs::new());
    while let Some((key, value)) = cursor.next(&session.enter().ok()?).ok()? {
        if walked.len() == most {
            return None;
        }
        walked.insert(key.to_vec(), value.to_vec());
    }
    Some(walked)
}

/// Whether an index has exactly these pairs, by walking and by asking.
fn is_whole(pairs: &Pairs, pool: &Pool) -> bool {
    let (Ok(index), Ok(mut session)) = (kind::open_as_is(pool, NAME), pool.session()) else { return false };
    let Ok(op) = session.enter() else { return false };
    let mut got = pairs.iter();
    all_pairs(pool, 2 * pairs.len()).is_some_and(|walked| walked == *pairs)
        && got.all(|(key, value)| matches!(index.get_vec(&op, key), Ok(Some(v)) if v == *value))
}

/// Opens a pool as `check` and `repair` do.
fn open(image: Vec<u8>) -> Option<Pool> {
    let backing = HeapBacking::from_image(image).with_limit(LIMIT);
    let opened = options().for_repair().open_on(backing, Hardware::PAGE_CACHE);
    opened.ok()?.recover().ok()
}

/// Whether the pool knows of the index.
fn has_index(pool: &Pool) -> bool {
    pool.readable_indices().is_ok_and(|(indices, _)| indices.iter().any(|info| info.name == NAME))
}

/// Whether `check` finds nothing.
fn is_clean(pool: &Pool) -> bool {
    let Ok((indices, damaged)) = pool.readable_indices() else { return false };
    let Ok(mut session) = pool.session() else { return false };
    let of_space = session.enter().map(|op| {
        let live = |owner| indices.iter().any(|info| info.owner == owner);
        pool.check_space(&op, live).is_empty()
    });
    damaged.is_empty()
        && indices.iter().any(|info| info.name == NAME)
        && of_space.is_ok_and(|sound| sound)
        && kind::open_as_is(pool, NAME).is_ok_and(|index| {
            index.check(&mut session).is_ok_and(|found| found.is_empty()) && index.count(&mut session).is_ok()
        })
}

/// What became of the flips of a file of a journaled pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournaledTally {
    /// Flips.
    pub flips: u64,
    /// The pool does not open, or says that the index is lost.
    pub refused: u64,
    /// `check` finds something.
    pub found: u64,
    /// `check` finds nothing, and every pair is there, with its value.
    pub harmless: u64,
    /// `check` finds nothing, and the pairs are not those of the index.
    pub missed: u64,
    /// The same after a flip in the last record of a journal, which cannot be told from one that a crash has torn.
    pub last: u64,
    /// Keys of the index.
    pub keys: u64,
    /// What `repair` saved after what was found, as in [`Tally`]; of a journal also after what was refused.
    pub repaired: Tally,
}

/// A pool with a journal in files, and what its index holds.
pub struct Journaled {
    /// The kind.
    pub entry: Entry,
    path: PathBuf,
    pairs: Pairs,
    bytes: Bytes,
    /// Where the last record of the journal lies, if it was not closed.
    last: Option<Range<usize>>,
}

impl Journaled {
    /// Fills an index of a kind in a pool in that directory, and closes it; or, if it is not to be `closed`, keeps the files as they are
    /// while it is open, with all of its commits in the journal.
    ///
    /// # Panics
    /// If that does not work.
    pub fn new(entry: Entry, directory: &Path, closed: bool) -> Self {
        let (made, path) = (directory.join("made"), directory.join("flipped"));
        let options = options().durability(Level::Immediate).journal_segment(SEGMENT);
        let pool = options.create(&made).expect("a pool");
        let mut session = pool.session().expect("a session");
        let pairs = fill(&entry, &pool, &mut || pool.commit(&mut pool.session().unwrap()).expect("a commit"));
        let bytes = || pool.journal_stats().expect("a journal").bytes as usize;
        pool.commit(&mut session).expect("a commit");
        let before = bytes();
        // A record of its own for what comes last: nothing that is asked for.
        drop(entry.open_or_create(&pool, "last").expect("an index"));
        pool.commit(&mut session).expect("a commit");
        assert!(closed || bytes() < SEGMENT as usize, "all commits in one segment");
        let last = (!closed).then(|| 8192 + before..8192 + bytes());
        drop(session);
        if closed {
            pool.close().expect("nothing is open");
        }
        for (from, to) in [
            (made.clone(), path.clone()),
            (DiskJournal::path_of(&made), DiskJournal::path_of(&path)),
            (DiskJournal::sums_of(&made), DiskJournal::sums_of(&path)),
        ] {
            std::fs::copy(from, to).expect("a copy");
        }
        let bytes = Bytes::of(&entry, &pairs, &std::fs::read(&path).expect("there"));
        Journaled { entry, path, pairs, bytes, last }
    }

    /// Keys of the index.
    pub fn keys(&self) -> u64 {
        self.pairs.len() as u64
    }

    /// Draws flips of the pool's file if it was closed, of its journal otherwise.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn draw(&self, flips: u64, seed: u64) -> JournaledTally {
        self.draw_and_tell(flips, seed, &mut |_, _| ())
    }

    /// The same, and calls `tell` after each with how many keys `repair` has lost beyond damaged nodes so far, and what was flipped.
    ///
    /// # Panics
    /// As [`draw`](Self::draw).
    pub fn draw_and_tell(&self, flips: u64, seed: u64, tell: &mut dyn FnMut(u64, &str)) -> JournaledTally {
        let path = if self.last.is_some() { DiskJournal::path_of(&self.path) } else { self.path.clone() };
        let image = std::fs::read(&path).expect("there");
        let file = OpenOptions::new().write(true).open(&path).expect("there");
        // All lines of the pool's file, free space too; of a journal those that were written.
        let is_wanted = |line: &usize| self.last.is_none() || image[*line..*line + 64] != [0; 64];
        let lines: Vec<usize> = (0..image.len()).step_by(64).filter(is_wanted).collect();
        let repaired = Tally { keys: self.keys(), least: self.keys(), ..Tally::default() };
        let (mut random, mut tally) =
            (Random(seed), JournaledTally { keys: self.keys(), repaired, ..Default::default() });
        for size in Size::ALL.into_iter().cycle().take(flips as usize) {
            let mut changed = flipped(&image, &lines, size, &mut random);
            while changed == image {
                changed = flipped(&image, &lines, size, &mut random);
            }
            let is_different = |at: &usize| changed[*at] != image[*at];
            let first = (0..image.len()).find(is_different).expect("it differs");
            let end = (0..image.len()).rfind(is_different).expect("it differs") + 1;
            write(&file, &changed, first..end);
            let in_last = self.last.as_ref().is_some_and(|last| first < last.end && last.start < end);
            // What a flip in the journal costs lies elsewhere: all lines count as damaged that the journal has and the file has not.
            let lines = if self.last.is_some() { BTreeSet::new() } else { changed_lines(&image, &changed) };
            self.look(in_last, &lines, &mut tally);
            tell(tally.repaired.lost_beyond, &described(size, &image, &changed));
            write(&file, &image, first..end);
        }
        tally
    }

    /// As `check` does, which opens no pool that was not closed in another way.
    fn open(&self) -> Option<Pool> {
        let pool = options().read_only(true).accept_copy(true).open(&self.path).ok()?;
        durix::recover(&pool).ok()?;
        has_index(&pool).then_some(pool)
    }

    /// What the command `repair` saves.
    fn salvaged(&self) -> Pairs {
        let source = options().for_repair().accept_copy(true).open(&self.path);
        source.map(|pool| repaired(&pool)).unwrap_or_default()
    }

    fn look(&self, in_last: bool, lines: &BTreeSet<usize>, tally: &mut JournaledTally) {
        tally.flips += 1;
        let measured = |salvaged| measured(&self.pairs, &salvaged, &self.bytes, lines, node_bytes(self.entry.name));
        let Some(pool) = self.open() else {
            tally.refused += 1;
            // A pool with a damaged journal is refused, and `repair` reads what can be read of both.
            if self.last.is_some() {
                tally.repaired.count(measured(self.salvaged()));
            }
            return;
        };
        let pages = pool.check_pages();
        let are_sound =
            pages.is_ok_and(|pages| pages.damaged.is_empty() && pages.missing.is_none() && pages.unknown == 0);
        if !are_sound || !is_clean(&pool) {
            drop(pool);
            tally.found += 1;
            tally.repaired.count(measured(self.salvaged()));
        } else if is_whole(&self.pairs, &pool) && (self.last.is_none() || has(&pool, "last")) {
            tally.harmless += 1;
        } else if in_last {
            tally.last += 1;
        } else {
            tally.missed += 1;
        }
    }
}

/// Damages one page after the other of a pool that was closed, at most so many; opens it for writing, reads all keys, removes one, and
/// closes it. Returns the numbers of pages that still have the wrong byte, and that their checksums then call sound. What a recovery has only
/// read it must not write back: a page of which all lines were written back counts as written anew.
///
/// # Panics
/// If a file cannot be written, or the pool does not open for reading.
pub fn taken_for_sound(entry: Entry, directory: &Path, most: usize) -> Vec<usize> {
    let subject = Journaled::new(entry, directory, true);
    let paths = [subject.path.clone(), DiskJournal::sums_of(&subject.path)];
    let whole = paths.each_ref().map(|path| std::fs::read(path).expect("there"));
    let is_used = |page: &usize| whole[0][page * 4096..][..4096].iter().any(|byte| *byte != 0);
    // Behind the header and the directory.
    let pages: Vec<usize> = (0..whole[0].len() / 4096).filter(is_used).skip(4).collect();
    let step = pages.len().div_ceil(most);
    let is_taken_for_sound = |page: &usize| {
        paths.iter().zip(&whole).for_each(|(path, bytes)| std::fs::write(path, bytes).expect("written"));
        let (file, at) = (OpenOptions::new().write(true).open(&subject.path).expect("there"), page * 4096 + 2048 + 56);
        // Not the lowest bit: a log that fills a page with the validity bit of its words may store just that.
        let wrong = whole[0][at] ^ 0x40;
        file.write_all_at(&[wrong], at as u64).expect("written");
        let journaled = options().durability(Level::Immediate).journal_segment(SEGMENT).accept_copy(true);
        let Ok(pool) = journaled.open(&subject.path) else { return false };
        if let (Ok(index), Ok(mut session)) = (kind::open_as_is(&pool, NAME), pool.session()) {
            for key in subject.pairs.keys() {
                let _ = index.get_vec(&session.enter().expect("open"), key);
            }
            let _ = index.remove(&session.enter().expect("open"), &key(&subject.entry, 1));
            let _ = index.sync(&mut session);
        }
        let _ = pool.close();
        drop(pool);
        let pool = options().read_only(true).accept_copy(true).open(&subject.path).expect("closed");
        // Where a change has filled the page, as that of a log, it is sound.
        let is_there = std::fs::read(&subject.path).expect("there")[at] == wrong;
        is_there && pool.check_pages().expect("readable").damaged.is_empty()
    };
    pages.into_iter().step_by(step).filter(is_taken_for_sound).collect()
}

fn has(pool: &Pool, name: &str) -> bool {
    pool.readable_indices().is_ok_and(|(indices, _)| indices.iter().any(|info| info.name == name))
}

fn write(file: &File, image: &[u8], range: Range<usize>) {
    file.write_all_at(&image[range.clone()], range.start as u64).expect("written");
}

/// The tables of all kinds on journaled pools, as Markdown: of flips in the pool's file, or in the journal of a pool that was not closed.
/// Files are made in that directory.
///
/// # Panics
/// If an index cannot be made.
pub fn journaled_table(directory: &Path, closed: bool, flips: u64, seed: u64) -> String {
    let last = if closed { "whole keys lost | beyond a node" } else { "in the last record" };
    let mut text = format!(
        "| kind | keys | flips | pool refused | found | harmless | missed | keys saved after a find | fewest saved | {last} |\n"
    );
    let _ = writeln!(text, "|{}", "---|".repeat(if closed { 11 } else { 10 }));
    for entry in kind::kinds::<Hardware>() {
        let (name, directory) = (entry.name, directory.join(entry.name));
        std::fs::create_dir_all(&directory).expect("a directory");
        let subject = Journaled::new(entry, &directory, closed);
        let JournaledTally { flips, refused, found, harmless, missed, last, keys, repaired } =
            subject.draw(flips, seed);
        let saved = repaired.saved_per_mille();
        let more =
            if closed { format!("{} | {}", repaired.lost_whole, repaired.lost_beyond) } else { last.to_string() };
        let _ = writeln!(
            text,
            "| `{name}` | {keys} | {flips} | {refused} | {found} | {harmless} | {missed} | {}.{}% | {} | {more} |",
            saved / 10,
            saved % 10,
            repaired.least,
        );
    }
    text
}

/// What was flipped in the files of closed journaled pools where `repair` lost keys that lie in no damaged node, a line each, with the number
/// of keys. Files are made in that directory.
///
/// # Panics
/// If an index cannot be made.
pub fn journaled_lost_beyond(directory: &Path, flips: u64, seed: u64, kinds: &[String]) -> String {
    let mut text = String::new();
    let is_wanted = |entry: &Entry| kinds.is_empty() || kinds.iter().any(|name| name == entry.name);
    for entry in kind::kinds::<Hardware>().into_iter().filter(is_wanted) {
        let (name, directory) = (entry.name, directory.join(entry.name));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut before = 0;
        Journaled::new(entry, &directory, true).draw_and_tell(flips, seed, &mut |lost, what| {
            if lost > before {
                let _ = writeln!(text, "{name}: {} lost, {what}", lost - before);
            }
            before = lost;
        });
    }
    text
}

/// What was flipped and missed in indices of these kinds, or of all if none is named, a line each.
///
/// # Panics
/// If an index cannot be made.
pub fn missed(flips: u64, seed: u64, kinds: &[String]) -> String {
    told(flips, seed, kinds, &|outcome, _| (outcome == Outcome::Missed).then(String::new))
}

/// What was flipped where `repair` saved fewer than `at_least` of a thousand keys, a line each, with the number of keys that it saved.
///
/// # Panics
/// If an index cannot be made.
pub fn lost(flips: u64, seed: u64, kinds: &[String], at_least: u64) -> String {
    told(flips, seed, kinds, &|outcome, keys| match outcome {
        Outcome::Found { saved, .. } if saved * 1000 < keys * at_least => Some(format!("{saved} of {keys} saved, ")),
        _ => None,
    })
}

fn told(flips: u64, seed: u64, kinds: &[String], asked: &dyn Fn(Outcome, u64) -> Option<String>) -> String {
    let mut text = String::new();
    let is_wanted = |entry: &Entry| kinds.is_empty() || kinds.iter().any(|name| name == entry.name);
    for entry in kind::kinds::<Hardware>().into_iter().filter(is_wanted) {
        let subject = Subject::new(entry);
        let (name, keys) = (subject.entry.name, subject.keys());
        subject.draw_and_tell(flips, seed, &mut |outcome, what| {
            if let Some(more) = asked(outcome, keys) {
                let _ = writeln!(text, "{name}: {more}{what}");
            }
        });
    }
    text
}

/// What was flipped where `repair` lost keys that lie in no damaged node, a line each, with the number of keys.
///
/// # Panics
/// If an index cannot be made.
pub fn lost_beyond(flips: u64, seed: u64, kinds: &[String]) -> String {
    told(flips, seed, kinds, &|outcome, _| match outcome {
        Outcome::Found { lost_beyond, .. } if lost_beyond > 0 => Some(format!("{lost_beyond} lost, ")),
        _ => None,
    })
}

/// The table of these kinds, or of all if none is named, as Markdown.
///
/// # Panics
/// If an index cannot be made.
pub fn table(flips: u64, seed: u64, kinds: &[String]) -> String {
    let mut text = String::from(
        "| kind | keys | flips | pool refused | found | harmless | missed | keys saved after a find | fewest saved | wrong pairs a find | whole keys lost | beyond a node |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let is_wanted = |entry: &Entry| kinds.is_empty() || kinds.iter().any(|name| name == entry.name);
    for entry in kind::kinds::<Hardware>().into_iter().filter(is_wanted) {
        let (name, tally) = (entry.name, Subject::new(entry).draw(flips, seed));
        let Tally { keys, flips, refused, found, harmless, missed, least, wrong, lost_whole, lost_beyond, .. } = tally;
        let saved = tally.saved_per_mille();
        let _ = writeln!(
            text,
            "| `{name}` | {keys} | {flips} | {refused} | {found} | {harmless} | {missed} | {}.{}% | {least} | {:.2} | {lost_whole} | {lost_beyond} |",
            saved / 10,
            saved % 10,
            wrong as f64 / found.max(1) as f64
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many flips of 2000 are missed at most: the table of `docs/measurements/damage.md`, and what it says of its causes.
    fn missed_at_most(kind: &str) -> u64 {
        match kind {
            // Bytes of a key in a record of several blocks.
            "bplustree" => 2,
            // A slot with the line of an erased one: one in 64 passes.
            "pset" => 1,
            _ => 0,
        }
    }

    /// What `repair` saves at least, in keys of a thousand, after the damage that is found: with the seed of the test, which draws the
    /// same flips everywhere.
    fn saved_at_least(kind: &str) -> u64 {
        match kind {
            // Few keys: a page has a third of them.
            "list" | "list-values" | "list-rebuilt" => 870,
            _ => 970,
        }
    }

    /// How many keys `repair` saves at least, whatever the flip: a page has the others, but for those of a layer, or of a group of keys with
    /// the same first bytes, whose root lies there.
    fn least(kind: &str) -> u64 {
        match kind {
            "list" | "list-values" | "list-rebuilt" => 77,
            "masstree" => 697,
            "dptree-bytes" => 561,
            _ => 698,
        }
    }

    /// What the experiment says of bytes is said of all keys.
    #[test]
    fn the_bytes_of_every_key_are_found() {
        for entry in kind::kinds::<Hardware>() {
            let subject = Subject::new(entry);
            let without = subject.bytes.0.values().filter(|lines| lines.is_empty()).count();
            assert_eq!(without, 0, "{}: keys whose bytes are nowhere", subject.entry.name);
            let all: BTreeSet<usize> = (0..subject.image.len() / 64).collect();
            assert!(subject.pairs.keys().all(|key| subject.bytes.are_hit(key, &all, 0)));
            assert!(!subject.pairs.keys().any(|key| subject.bytes.are_hit(key, &BTreeSet::new(), 4096)));
        }
    }

    #[test]
    fn repair_saves_most_keys_of_every_kind_and_every_flip_is_counted() {
        let flips = if crate::is_deep() { 2000 } else { 100 };
        for entry in kind::kinds::<Hardware>() {
            let subject = Subject::new(entry);
            let (name, tally) = (subject.entry.name, subject.draw(flips, 1));
            assert_eq!(tally.refused + tally.found + tally.harmless + tally.missed, flips, "{name}");
            assert!(tally.saved_per_mille() >= saved_at_least(name), "{name}: {tally:?}");
            assert!(tally.least >= least(name), "{name}: {tally:?}");
            assert_eq!(tally.lost_beyond, 0, "{name}: {tally:?}");
            // With the seed of the test, which draws the same flips everywhere.
            let most = if crate::is_deep() { missed_at_most(name) } else { 0 };
            assert!(tally.missed <= most, "{name}: {tally:?}, {most} missed at most");
        }
    }

    /// The pool's table of space says where the blocks of all indices lie. Whatever is in its place, blocks are found without it.
    #[test]
    fn a_lost_table_of_space_is_found_and_costs_no_key() {
        for entry in kind::kinds::<Hardware>() {
            let subject = Subject::new(entry);
            let table = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).unwrap();
            let table = table.geometry().heap_off() as usize;
            let with = |range: Range<usize>, change: &dyn Fn(&mut [u8])| {
                let mut image = subject.image.clone();
                change(&mut image[range]);
                image
            };
            let whole = table..table + CHUNK as usize;
            let other = subject.image[whole.end..][..CHUNK as usize].to_vec();
            let mut images = vec![
                ("zeroes", with(whole.clone(), &|page| page.fill(0))),
                ("ones", with(whole.clone(), &|page| page.fill(0xff))),
                ("another page", with(whole.clone(), &|page| page.copy_from_slice(&other))),
                (
                    "whatever",
                    with(whole.clone(), &|page| {
                        let mut random = Random(7);
                        page.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
                    }),
                ),
            ];
            let lines = subject.lines.iter().filter(|line| whole.contains(line));
            images.extend(lines.map(|line| ("a line of zeroes", with(*line..line + 64, &|line| line.fill(0)))));
            for (what, image) in images {
                let name = subject.entry.name;
                let pool = open(image.clone()).unwrap_or_else(|| panic!("{name}: not opened with {what}"));
                assert!(!is_clean(&pool), "{name}: {what} is missed");
                let saved = subject.salvaged(image);
                let lost = subject.pairs.iter().filter(|(key, value)| saved.get(*key) != Some(value)).count();
                assert_eq!((lost, saved.len()), (0, subject.pairs.len()), "{name}: {what}");
            }
        }
    }

    #[test]
    fn no_flip_of_a_journaled_pool_is_missed() {
        for (closed, quick) in [(true, 50), (false, 20)] {
            let flips = if crate::is_deep() { 2000 } else { quick };
            for entry in kind::kinds::<Hardware>() {
                let dir = tempfile::tempdir().unwrap();
                let subject = Journaled::new(entry, dir.path(), closed);
                let name = subject.entry.name;
                let pool = subject.open().unwrap_or_else(|| panic!("{name}: not opened"));
                assert_eq!(pool.check_pages().unwrap().missing, None, "{name}");
                assert!(is_clean(&pool) && is_whole(&subject.pairs, &pool), "{name}");
                drop(pool);
                let tally = subject.draw(flips, 1);
                assert_eq!(tally.missed, 0, "{name}: {tally:?}");
                if closed {
                    // Only the header and the directory can cost the pool. A damaged journal is refused, always.
                    assert!(tally.found > 0 && tally.refused * 5 <= flips, "{name}: {tally:?}");
                    assert_eq!(tally.repaired.lost_beyond, 0, "{name}: {tally:?}");
                }
                assert!(!closed || tally.last == 0, "{name}: {tally:?}");
            }
        }
    }

    #[test]
    fn a_damaged_page_stays_damaged_when_its_index_is_opened_and_changed() {
        for entry in kind::kinds::<Hardware>() {
            let (name, dir) = (entry.name, tempfile::tempdir().unwrap());
            let pages = if crate::is_deep() { usize::MAX } else { 5 };
            let taken = taken_for_sound(entry, dir.path(), pages);
            assert!(taken.is_empty(), "{name}: pages {taken:?} are taken for sound");
        }
    }

    /// Whichever lines of their root entries change places.
    #[test]
    fn two_indices_of_one_kind_are_told_apart() {
        const OTHER: &str = "other";
        for entry in kind::kinds::<Hardware>() {
            let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).unwrap();
            fill(&entry, &pool, &mut || {});
            pool.rename(NAME, OTHER).unwrap();
            let (mut session, mut pairs) = (pool.session().unwrap(), Pairs::new());
            {
                let index = entry.open_or_create(&pool, NAME).unwrap();
                for number in KEYS..KEYS + 40 {
                    let (key, value) = (key(&entry, number), value(&entry, number));
                    index.insert(&session.enter().unwrap(), &key, &value).unwrap();
                    pairs.insert(key, value);
                }
                index.sync(&mut session).unwrap();
            }
            drop(session);
            pool.close().unwrap();
            let image = HeapBacking::image_of(pool.mapping());
            let roots = pool.geometry().roots_off() as usize;
            for lines in 0..16 {
                let mut image = image.clone();
                for line in (0..4).filter(|line| lines >> line & 1 == 1) {
                    let at = roots + line * 64;
                    (at..at + 64).for_each(|byte| image.swap(byte, byte + 256));
                }
                let Some(pool) = open(image) else { continue };
                let is_other_clean = kind::open_as_is(&pool, OTHER)
                    .is_ok_and(|index| index.check(&mut pool.session().unwrap()).is_ok_and(|found| found.is_empty()));
                let is_missed = is_clean(&pool) && is_other_clean && !is_whole(&pairs, &pool);
                assert!(!is_missed, "{}: lines {lines:#b} changed places", entry.name);
                assert!(lines != 0 || is_clean(&pool) && is_other_clean, "{}", entry.name);
            }
        }
    }

    #[test]
    fn an_index_that_was_not_flipped_is_whole() {
        for entry in kind::kinds::<Hardware>() {
            let subject = Subject::new(entry);
            let pool = open(subject.image.clone()).expect("sound");
            assert!(is_clean(&pool) && subject.is_whole(&pool), "{}", subject.entry.name);
            assert_eq!(subject.salvaged(subject.image.clone()), subject.pairs, "{}", subject.entry.name);
        }
    }
}
