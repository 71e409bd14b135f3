//! A B+-tree over a buffer manager with two tiers, DRAM and persistent memory (van Renen et al., Managing Non-Volatile Memory in Database
//! Systems, SIGMOD 2018), as the paper of DPTree compares itself with one: pages of 16 KiB with hashed entries, frames in DRAM for a part
//! of them, filled and written back line by line; a physiological log with images before and after, and checkpoints when it is full.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | records of an insert < its commit record | write-back, fence | undone by the images before |
//! | commit record < return | write-back, fence | either |
//! | a page's new neighbour < the record of the split | write-back of its lines, one fence | the neighbour is free |
//! | record of the split < lines of the page | write-back, fence | keys that went are removed again |
//! | dirty lines < the log is used from its beginning | write-backs, one fence | the log is replayed |
//!
//! An insert logs three lines with two fences (the paper's takes four with two). A split marks the keys that go as deleted and leaves the
//! others in their slots, so that a page that is written back in part can be repaired by the log. What is left out, in its favour: removal,
//! threads, recovery, inner nodes in persistent memory, mini pages (frames have no more than they need: an array finds them, which is a
//! swizzled pointer's cost).

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Mapping, Medium, Off, Op, Word};

use super::index::Index;
use super::memory::Memory;

const LINE: u64 = 64;
const PAGE: u64 = 16 << 10;
const PAGE_WORDS: usize = (PAGE / 8) as usize;
const LINES: usize = (PAGE / LINE) as usize;
/// Line 0 holds the number of entries; then slots of two words.
const SLOTS: usize = (LINES - 1) * 4;
/// Entries of a page before it is split: 70%.
const FULL: u64 = SLOTS as u64 * 7 / 10;
/// Entries of a page on average, with random keys: how many pages there will be.
const AVERAGE: u64 = FULL * 69 / 100;
const NONE: u32 = u32::MAX;
/// The value of a slot whose entry was deleted; of an empty one it is 0.
const DELETED: u64 = u64::MAX;

/// A page in DRAM.
#[derive(Clone, Debug)]
struct Frame {
    page: u32,
    /// Was it used since the clock's hand came by?
    used: bool,
    resident: [u64; LINES / 64],
    dirty: [u64; LINES / 64],
}

/// The tree.
#[derive(Debug)]
pub struct TwoTier {
    memory: Memory,
    index: Index,
    /// Where each page lies.
    pages: Vec<u64>,
    /// The frame of each page, or [`NONE`].
    frame_of: Vec<u32>,
    frames: Vec<Frame>,
    /// The words of all frames.
    words: Vec<u64>,
    most_frames: usize,
    hand: usize,
    log: Log,
}

/// The log: lines that are used round and round.
#[derive(Debug)]
struct Log {
    first: u64,
    lines: u64,
    next: u64,
    sequence: u64,
}

impl Log {
    /// Writes a record of a line, and starts writing it back.
    #[inline(always)]
    fn append<M: Medium>(&mut self, op: &Op<'_, M>, words: [u64; 7]) {
        let line: &[Word; 8] = op.at(Off::new(self.first + self.next * LINE));
        self.sequence += 1;
        let [a, b, c, d, e, f, g] = words;
        // The sequence number and its record are on one line.
        op.store_words(line, &[self.sequence, a, b, c, d, e, f, g]);
        op.write_back(&line[0]);
        self.next += 1;
    }
}

/// Kinds of records.
const UPDATE: u64 = 1;
const COMMIT: u64 = 2;
const SPLIT: u64 = 3;

#[inline(always)]
fn home(key: u64) -> usize {
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * SLOTS as u128) >> 64) as usize
}

/// The first word of a slot, within its page.
#[inline(always)]
fn slot_word(slot: usize) -> usize {
    8 + slot * 2
}

#[inline(always)]
fn bit(line: usize) -> (usize, u64) {
    (line / 64, 1 << (line % 64))
}

impl TwoTier {
    /// Bytes of persistent memory for so many keys.
    pub fn bytes(keys: u64) -> u64 {
        ((keys / AVERAGE + keys / AVERAGE / 4 + 16) * PAGE + Self::log_lines(keys) * LINE + (1 << 20))
            .next_multiple_of(4096)
    }

    /// 30% of keys and values, as in the paper.
    fn log_lines(keys: u64) -> u64 {
        (keys * 16 * 3 / 10 / LINE).max(64)
    }

    /// A tree for so many keys, of which `percent` are to be in DRAM in the end, in a mapping of zeroes.
    pub fn create<M: Medium>(mapping: &Mapping<M>, keys: u64, percent: u64) -> Self {
        let mut memory = Memory::new(mapping.len());
        let lines = Self::log_lines(keys);
        let log = Log { first: memory.take(lines * LINE), lines, next: 0, sequence: 0 };
        let first = memory.take(PAGE);
        let all = keys / AVERAGE + 16;
        // A page and its neighbour are in DRAM together when it is split; all pages have frames at 100%.
        let most = if percent >= 100 { all * 2 } else { (all * percent / 100).max(2) };
        let index = Index::new(0, all);
        let (frames, words) = (Vec::new(), Vec::new());
        let most_frames = most as usize;
        TwoTier { memory, index, pages: vec![first], frame_of: vec![NONE], frames, words, most_frames, hand: 0, log }
    }

    /// The value of a key.
    #[inline]
    pub fn get<M: Medium>(&mut self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        let frame = self.fix(op, self.index.leaf_of(key) as usize);
        self.find(op, frame, key).ok().map(|slot| self.words[frame * PAGE_WORDS + slot_word(slot) + 1])
    }

    /// Inserts a key, or gives it another value, durably when this returns; whether it is new.
    #[inline]
    pub fn insert<M: Medium>(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        // Two updates, a commit, and a split.
        if self.log.next + 4 > self.log.lines {
            self.checkpoint(op);
        }
        let mut page = self.index.leaf_of(key) as usize;
        let mut frame = self.fix(op, page);
        let found = self.find(op, frame, key);
        let slot = match found {
            Ok(slot) => slot,
            Err(_) if self.read(op, frame, 0) >= FULL => {
                page = self.split(op, page, key);
                frame = self.fix(op, page);
                self.find(op, frame, key).expect_err("the key is new")
            }
            Err(slot) => slot,
        };
        let at = slot_word(slot);
        let before = [self.read(op, frame, at), self.read(op, frame, at + 1)];
        self.log.append(op, [UPDATE, self.pages[page] + at as u64 * 8, before[0], before[1], key, value, 0]);
        if found.is_err() {
            let count = self.read(op, frame, 0);
            self.log.append(op, [UPDATE, self.pages[page], count, 0, count + 1, 0, 0]);
            self.write(frame, 0, count + 1);
        }
        op.fence();
        self.write(frame, at, key);
        self.write(frame, at + 1, value);
        self.log.append(op, [COMMIT, 0, 0, 0, 0, 0, 0]);
        op.fence();
        found.is_err()
    }

    /// The slot of a key, or the one where it belongs.
    #[inline(always)]
    fn find<M: Medium>(&mut self, op: &Op<'_, M>, frame: usize, key: u64) -> Result<usize, usize> {
        let (home, mut free) = (home(key), None);
        for step in 0..SLOTS {
            let slot = if home + step < SLOTS { home + step } else { home + step - SLOTS };
            let at = slot_word(slot);
            match self.read(op, frame, at + 1) {
                0 => return Err(free.unwrap_or(slot)),
                DELETED => free = free.or(Some(slot)),
                _ if self.words[frame * PAGE_WORDS + at] == key => return Ok(slot),
                _ => {}
            }
        }
        Err(free.expect("a page is never full"))
    }

    /// A word of a page in a frame; its line is loaded first where it is not there.
    #[inline(always)]
    fn read<M: Medium>(&mut self, op: &Op<'_, M>, frame: usize, word: usize) -> u64 {
        let (at, mask) = bit(word / 8);
        if self.frames[frame].resident[at] & mask == 0 {
            self.load(op, frame, word / 8);
        }
        self.words[frame * PAGE_WORDS + word]
    }

    #[inline(never)]
    fn load<M: Medium>(&mut self, op: &Op<'_, M>, frame: usize, line: usize) {
        let (at, mask) = bit(line);
        let state = &mut self.frames[frame];
        state.resident[at] |= mask;
        let from: &[Word; 8] = op.at(Off::new(self.pages[state.page as usize] + line as u64 * LINE));
        let to = &mut self.words[frame * PAGE_WORDS + line * 8..][..8];
        to.iter_mut().zip(from).for_each(|(to, from)| *to = op.load(from, Relaxed));
    }

    /// Writes a word of a line that is there.
    #[inline(always)]
    fn write(&mut self, frame: usize, word: usize, value: u64) {
        let (at, mask) = bit(word / 8);
        debug_assert!(self.frames[frame].resident[at] & mask != 0);
        self.frames[frame].dirty[at] |= mask;
        self.words[frame * PAGE_WORDS + word] = value;
    }

    /// The frame of a page.
    #[inline(always)]
    fn fix<M: Medium>(&mut self, op: &Op<'_, M>, page: usize) -> usize {
        match self.frame_of[page] {
            NONE => self.take_frame(op, page),
            frame => {
                self.frames[frame as usize].used = true;
                frame as usize
            }
        }
    }

    /// A frame for a page that has none: a new one, or the next that was not used.
    #[inline(never)]
    fn take_frame<M: Medium>(&mut self, op: &Op<'_, M>, page: usize) -> usize {
        let new = Frame { page: page as u32, used: true, resident: [0; LINES / 64], dirty: [0; LINES / 64] };
        let frame = if self.frames.len() < self.most_frames {
            self.frames.push(new);
            self.words.resize(self.frames.len() * PAGE_WORDS, 0);
            self.frames.len() - 1
        } else {
            while std::mem::take(&mut self.frames[self.hand].used) {
                self.hand = (self.hand + 1) % self.frames.len();
            }
            let frame = self.hand;
            self.hand = (self.hand + 1) % self.frames.len();
            if self.write_out(op, frame) {
                op.fence();
            }
            self.frame_of[self.frames[frame].page as usize] = NONE;
            self.frames[frame] = new;
            frame
        };
        self.frame_of[page] = frame as u32;
        frame
    }

    /// Starts writing the dirty lines of a frame back; whether there are any.
    fn write_out<M: Medium>(&mut self, op: &Op<'_, M>, frame: usize) -> bool {
        let page = self.pages[self.frames[frame].page as usize];
        let dirty = std::mem::replace(&mut self.frames[frame].dirty, [0; LINES / 64]);
        for line in (0..LINES).filter(|line| dirty[bit(*line).0] & bit(*line).1 != 0) {
            let from = &self.words[frame * PAGE_WORDS + line * 8..][..8];
            let to: &[Word; 8] = op.at(Off::new(page + line as u64 * LINE));
            op.store_words(to, from.try_into().expect("eight words"));
            op.write_back(&to[0]);
        }
        dirty.iter().any(|dirty| *dirty != 0)
    }

    /// Writes all dirty lines back, and uses the log from its beginning.
    fn checkpoint<M: Medium>(&mut self, op: &Op<'_, M>) {
        for frame in 0..self.frames.len() {
            self.write_out(op, frame);
        }
        op.fence();
        // Records of before have smaller sequence numbers than the first that comes.
        self.log.next = 0;
        self.log.append(op, [COMMIT, 0, 0, 0, 0, 0, 0]);
        op.fence();
    }

    /// Moves the upper half of a page's keys to a new page; returns the page for `key`.
    fn split<M: Medium>(&mut self, op: &Op<'_, M>, page: usize, key: u64) -> usize {
        let frame = self.fix(op, page);
        let mut entries = Vec::with_capacity(FULL as usize);
        for slot in 0..SLOTS {
            let at = slot_word(slot);
            let value = self.read(op, frame, at + 1);
            if value != 0 && value != DELETED {
                entries.push((self.words[frame * PAGE_WORDS + at], value, slot));
            }
        }
        entries.sort_unstable();
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let (separator, new_at) = (upper[0].0, self.memory.take(PAGE));
        let mut words = vec![0u64; PAGE_WORDS];
        words[0] = upper.len() as u64;
        for (key, value, _) in upper {
            let mut slot = home(*key);
            while words[slot_word(slot) + 1] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            words[slot_word(slot)..][..2].copy_from_slice(&[*key, *value]);
        }
        for (line, words) in words.as_chunks::<8>().0.iter().enumerate().filter(|(_, words)| **words != [0; 8]) {
            let to: &[Word; 8] = op.at(Off::new(new_at + line as u64 * LINE));
            op.store_words(to, words);
            op.write_back(&to[0]);
        }
        op.fence();
        self.log.append(op, [SPLIT, self.pages[page], new_at, separator, 0, 0, 0]);
        op.fence();
        for (_, _, slot) in upper {
            self.write(frame, slot_word(*slot) + 1, DELETED);
        }
        self.write(frame, 0, lower.len() as u64);
        let new = self.pages.len();
        self.pages.push(new_at);
        self.frame_of.push(NONE);
        self.index.insert(separator, new as u64);
        if key < separator { page } else { new }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Counting, Counts, Hardware};
    use std::collections::BTreeMap;

    /// Inserts keys of a space, some twice, and looks all up, at a part of the pages in DRAM.
    fn is_a_map(percent: u64, keys: u64, space: u64) -> (Counts, u64) {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(TwoTier::bytes(keys) as usize, counting);
        let (mut tree, mut model) = (TwoTier::create(&mapping, keys, percent), BTreeMap::new());
        let (mut session, mut state) = (mapping.session().unwrap(), 7u64);
        let op = session.enter().unwrap();
        for value in 1..=keys {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (state ^ state >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) % space;
            assert_eq!(tree.insert(&op, key, value), model.insert(key, value).is_none(), "insert {key}");
            if value % 3 == 0 {
                let other = key.wrapping_mul(5) % space;
                assert_eq!(tree.get(&op, other), model.get(&other).copied(), "get {other}");
            }
        }
        let counts = counting.counts();
        assert!(model.iter().all(|(key, value)| tree.get(&op, *key) == Some(*value)));
        assert!((1..1000).map(|i| u64::MAX - i).all(|key| model.contains_key(&key) || tree.get(&op, key).is_none()));
        (counts, tree.frames.len() as u64 * 100 / tree.pages.len() as u64)
    }

    #[test]
    fn it_is_a_map_with_any_part_of_its_pages_in_dram() {
        for percent in [1, 30, 100] {
            let (_, share) = is_a_map(percent, 20_000, 5000);
            let (_, more) = is_a_map(percent, 20_000, u64::MAX);
            assert!(percent != 100 || (share == 100 && more == 100), "{share}, {more}");
        }
    }

    /// 4.83 and 2.01 an insert with all pages in DRAM: 3 write-backs for the log, others for checkpoints and splits. The paper: 8.5 (4 for
    /// the log) and 2.
    #[test]
    fn write_backs_and_fences_of_an_insert() {
        let (counts, _) = is_a_map(100, 50_000, u64::MAX);
        assert_eq!((counts.write_backs, counts.fences), (241_382, 100_320));
    }
}
