//! What the comparators have in common: slots of one size in a circle, and a head that says where reading starts.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Bits, Medium, Off, Op, Word, persistent};

use super::append::{Error, Line, Region};

persistent! {
    /// Line 0 of a region.
    pub struct Head: align(64) {
        /// Word 0: the oldest entry.
        pub oldest: Word<Cursor>,
        /// Words 1 to 7: unused.
        pub unused: [Word; 7],
    }
}

/// A place in the circle: a slot, and how often the circle has been gone round before, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Number of the slot, below 2^40.
    pub slot: u64,
    /// The pass, modulo 2^24; fresh memory counts as pass 0.
    pub pass: u64,
}

const SLOT_BITS: u32 = 40;

impl Bits for Cursor {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.pass << SLOT_BITS | self.slot
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Cursor { slot: bits & ((1 << SLOT_BITS) - 1), pass: bits >> SLOT_BITS }
    }
}

/// Words of an entry with `words` words in all: half a line if that is enough, else whole lines. No entry overlaps a
/// line more than it must.
pub const fn stride_words(words: usize) -> usize {
    if words <= 4 { 4 } else { words.next_multiple_of(8) }
}

/// The geometry of a circle whose entries have `STRIDE` words, 4 or a multiple of 8 up to [`MAX_STRIDE`].
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    region: Region,
    slots: u64,
    stride: u64,
    striped: bool,
}

/// Slots of half a line in a stripe of 64 lines.
const STRIPE: u64 = 128;

/// Words of the largest entry.
pub const MAX_STRIDE: usize = 64;

impl Ring {
    /// The circle that fits into `region` behind its head, with entries of `stride_words` words. Half lines are striped if
    /// wanted, as those of `durix-cso` are: the front halves of 64 lines, then their back halves, so that no line
    /// is written again while its last write-back is still on its way, which costs half as much again.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if there is no room for two.
    #[inline]
    pub fn new(region: Region, stride_words: usize, striped: bool) -> Result<Ring, Error> {
        let stride = stride_words as u64 * 8;
        let slots = region.len.saturating_sub(size_of::<Head>() as u64) / stride;
        if slots < 2 {
            return Err(Error::TooSmall { len: region.len, stride });
        }
        let striped = striped && stride == 32 && slots >= STRIPE;
        let slots = if striped { slots / STRIPE * STRIPE } else { slots };
        Ok(Ring { region, slots, stride, striped })
    }

    /// Number of slots.
    #[inline(always)]
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// The place after `cursor`.
    #[inline(always)]
    pub fn next(&self, cursor: Cursor) -> Cursor {
        if cursor.slot + 1 == self.slots {
            Cursor { slot: 0, pass: (cursor.pass + 1) & ((1 << (64 - SLOT_BITS)) - 1) }
        } else {
            Cursor { slot: cursor.slot + 1, ..cursor }
        }
    }

    /// The words from the start of a slot on.
    #[inline(always)]
    pub fn entry<'s, M: Medium, const STRIDE: usize>(&self, op: &Op<'s, M>, slot: u64) -> &'s [Word; STRIDE] {
        op.at(self.off(slot))
    }

    /// Stores the words of an entry and starts writing its lines back, each as soon as it is complete: at eight lines that
    /// is a quarter faster than all write-backs at the end, because stores and write-backs overlap. With the number of words a
    /// constant of the caller, everything is unrolled.
    #[inline(always)]
    #[track_caller]
    pub fn put<M: Medium>(&self, op: &Op<'_, M>, slot: u64, words: usize, word: impl Fn(usize) -> u64) {
        let entry: &[Word; MAX_STRIDE] = self.entry(op, slot);
        let mut i = 0;
        while i < words {
            let end = words.min(i + 8);
            if let Some(whole) = entry[i..end].first_chunk::<8>() {
                op.store_words(whole, &std::array::from_fn(|at| word(i + at)));
            } else {
                entry[i..end].iter().enumerate().for_each(|(at, to)| op.store(to, word(i + at), Relaxed));
            }
            let line: &Line = op.at(self.off::<Line>(slot).byte_add(i as u64 * 8));
            op.write_back(line);
            i = end;
        }
    }

    #[inline(always)]
    fn off<T>(&self, slot: u64) -> Off<T> {
        let within = if self.striped {
            slot / STRIPE * (STRIPE * 32) + slot % 64 * 64 + slot / 64 % 2 * 32
        } else {
            slot * self.stride
        };
        Off::new(self.region.off + size_of::<Head>() as u64 + within)
    }

    /// Where reading starts.
    pub fn oldest<M: Medium>(&self, op: &Op<'_, M>) -> Cursor {
        let cursor = op.load(&op.at(Off::<Head>::new(self.region.off)).oldest, Acquire);
        Cursor { slot: cursor.slot % self.slots, ..cursor }
    }

    /// Makes everything before `cursor` free, durably.
    #[inline]
    pub fn set_oldest<M: Medium>(&self, op: &Op<'_, M>, cursor: Cursor) {
        let head = op.at(Off::<Head>::new(self.region.off));
        op.store(&head.oldest, cursor, Relaxed);
        op.persist(head);
    }
}

/// Loads as many words as `from` has, at most `W`; the others are zero.
#[inline(always)]
pub fn load_words<M: Medium, const W: usize>(op: &Op<'_, M>, from: &[Word]) -> [u64; W] {
    let mut to = [0; W];
    for (value, word) in to.iter_mut().zip(from) {
        *value = op.load(word, Relaxed);
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn striped_slots_tile_the_region_with_the_halves_of_a_line_apart() {
        let region = Region { off: 64, len: 64 + 3 * 4096 + 100 };
        let ring = Ring::new(region, 4, true).unwrap();
        assert_eq!(ring.slots(), 3 * STRIPE);
        let mut places: Vec<_> = (0..ring.slots()).map(|slot| ring.off::<Word>(slot).get()).collect();
        assert!(places.windows(2).all(|pair| pair[0] / 64 != pair[1] / 64));
        places.sort_unstable();
        assert_eq!(places, (0..3 * STRIPE).map(|i| 128 + i * 32).collect::<Vec<_>>());
        let plain = Ring::new(region, 4, false).unwrap();
        assert_eq!([0, 1, 2].map(|slot| plain.off::<Word>(slot).get()), [128, 160, 192]);
    }
}
