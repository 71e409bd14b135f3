//! What a transaction keeps in volatile memory: its writes, a word once, with its last value, and the locks that it holds.
//!
//! A thread keeps the memory of its last transaction for the next one, so that transactions allocate nothing once they have
//! become as large as they will be.

use std::cell::Cell;

/// Writes that are looked through one by one; where there are more, they go into an index.
const FEW: usize = 24;
/// Writes whose memory is kept for the next transaction, at most.
const KEPT: usize = 1 << 12;

/// Bits of hashes, 4096 of them.
#[derive(Debug)]
struct Filter([u64; 64]);

impl Default for Filter {
    fn default() -> Self {
        Filter([0; 64])
    }
}

impl Filter {
    #[inline]
    fn place(off: u64) -> (usize, u64) {
        let hash = hash(off);
        ((hash >> 58) as usize, 1 << (hash >> 52 & 63))
    }

    #[inline]
    fn add(&mut self, off: u64) {
        let (word, bit) = Self::place(off);
        self.0[word] |= bit;
    }

    #[inline]
    fn may_have(&self, off: u64) -> bool {
        let (word, bit) = Self::place(off);
        self.0[word] & bit != 0
    }

    fn clear(&mut self, writes: &[[u64; 2]]) {
        if writes.len() < self.0.len() {
            writes.iter().for_each(|write| self.0[Self::place(write[0]).0] = 0);
        } else {
            self.0.fill(0);
        }
    }
}

#[inline]
fn hash(off: u64) -> u64 {
    (off >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

thread_local! {
    static SPARE: Cell<Option<Box<Buffer>>> = const { Cell::new(None) };
}

/// Offsets and values, in the order of the first write to each; and stripes of locks.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    writes: Vec<[u64; 2]>,
    /// By hash of the offset, a power of two of them, at most half full: the round in the upper half, the place in `writes` in the
    /// lower one. Those of other rounds are empty.
    index: Vec<u64>,
    round: u32,
    /// Writes that the index has. Zero: it has to begin a round first.
    indexed: usize,
    /// A bit for the hash of each offset that was [set](Buffer::set): most words that are read were not.
    filter: Filter,
    /// Writes that the filter has: all, unless one was [added](Buffer::add).
    filtered: usize,
    /// Stripes that are locked.
    pub(super) stripes: Vec<u32>,
}

impl Buffer {
    /// An empty one, with the memory of the thread's last one.
    #[inline]
    pub(super) fn new() -> Box<Buffer> {
        SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    #[inline]
    pub(super) fn writes(&self) -> &[[u64; 2]] {
        &self.writes
    }

    /// The value of a word that was set. It may look through all writes since the last [`set`](Self::set) or [`tidy`](Self::tidy).
    #[inline]
    pub(super) fn get(&self, off: u64) -> Option<u64> {
        self.place_of(off).map(|at| self.writes[at][1])
    }

    #[inline]
    fn place_of(&self, off: u64) -> Option<usize> {
        if self.writes.is_empty() || self.filtered == self.writes.len() && !self.filter.may_have(off) {
            return None;
        }
        self.find(off)
    }

    #[inline]
    pub(super) fn set(&mut self, off: u64, value: u64) {
        self.tidy();
        match self.place_of(off) {
            Some(at) => self.writes[at][1] = value,
            None => {
                if self.filtered == self.writes.len() {
                    self.filter.add(off);
                    self.filtered += 1;
                }
                self.add(off, value);
            }
        }
    }

    /// Sets a word that was not set before.
    #[inline]
    pub(super) fn add(&mut self, off: u64, value: u64) {
        self.writes.push([off, value]);
    }

    /// Makes sure that few writes are not in the index.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.writes.len() - self.indexed > FEW {
            self.keep_up();
        }
    }

    #[inline]
    fn find(&self, off: u64) -> Option<usize> {
        let others = self.indexed..;
        let found = if self.indexed > 0 { self.find_in_index(off) } else { None };
        found.or_else(|| Some(self.indexed + self.writes[others].iter().position(|write| write[0] == off)?))
    }

    fn find_in_index(&self, off: u64) -> Option<usize> {
        let mut at = self.slot(off);
        loop {
            let entry = self.index[at];
            if entry >> 32 != u64::from(self.round) {
                return None;
            }
            let place = entry as u32 as usize;
            if self.writes[place][0] == off {
                return Some(place);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    #[inline]
    fn slot(&self, off: u64) -> usize {
        (hash(off) >> (64 - self.index.len().trailing_zeros())) as usize
    }

    /// Puts the writes into the index that it does not have.
    fn keep_up(&mut self) {
        let count = self.writes.len();
        if count * 2 > self.index.len() {
            (self.index, self.round, self.indexed) = (vec![0; (count * 8).next_power_of_two()], 0, 0);
        }
        if self.indexed == 0 {
            // Where rounds begin again, entries of long ago would count.
            self.round = self.round.checked_add(1).unwrap_or_else(|| {
                self.index.fill(0);
                1
            });
        }
        (self.indexed..count).for_each(|place| self.enter(place));
        self.indexed = count;
    }

    #[inline]
    fn enter(&mut self, place: usize) {
        let mut at = self.slot(self.writes[place][0]);
        while self.index[at] >> 32 == u64::from(self.round) {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = u64::from(self.round) << 32 | place as u64;
    }

    /// Keeps the memory for the thread's next transaction.
    #[inline]
    pub(super) fn give_back(mut self: Box<Self>) {
        if self.writes.capacity().max(self.stripes.capacity()) <= KEPT {
            if self.filtered > 0 {
                self.filter.clear(&self.writes);
            }
            self.writes.clear();
            self.stripes.clear();
            (self.indexed, self.filtered) = (0, 0);
            // At the end of a thread it is freed.
            let _ = SPARE.try_with(|spare| spare.set(Some(self)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(writes in prop::collection::vec((0..60u64, any::<u64>()), 0..200)) {
            let (mut buffer, mut model) = (Buffer::new(), HashMap::new());
            for (word, value) in writes {
                buffer.set(word * 8, value);
                model.insert(word * 8, value);
                prop_assert_eq!(buffer.get(word * 8), Some(value));
            }
            for word in 0..60u64 {
                prop_assert_eq!(buffer.get(word * 8), model.get(&(word * 8)).copied());
            }
            let all: HashMap<u64, u64> = buffer.writes().iter().map(|w| (w[0], w[1])).collect();
            prop_assert_eq!(all.len(), buffer.writes().len());
            prop_assert_eq!(all, model);
        }
    }

    #[test]
    fn a_buffer_has_nothing_of_the_one_before() {
        for round in 0..3u64 {
            let mut buffer = Buffer::new();
            assert!(buffer.writes().is_empty() && buffer.stripes.is_empty());
            buffer.stripes.push(1);
            assert_eq!(buffer.indexed, 0);
            for word in 0..40 {
                assert_eq!(buffer.get(word * 8), None);
                buffer.set(word * 8, round);
                // While this one is in use, another one is empty, too.
                assert!(Buffer::new().writes().is_empty());
            }
            buffer.give_back();
        }
    }

    #[test]
    fn entries_of_a_round_of_long_ago_do_not_count() {
        let mut buffer = Buffer::new();
        (0..100).for_each(|word| buffer.set(word * 8, 1));
        assert_eq!(buffer.get(0), Some(1));
        // As after 2^32 - 1 rounds, of which the first was this one.
        (buffer.indexed, buffer.filtered, buffer.round) = (0, 0, u32::MAX);
        buffer.writes.clear();
        (100..200).for_each(|word| buffer.set(word * 8, 2));
        assert!((0..100).all(|word| buffer.get(word * 8).is_none()));
        assert!((100..200).all(|word| buffer.get(word * 8) == Some(2)));
    }
}
