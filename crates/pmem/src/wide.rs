//! Comparing many words at a time, where the processor can.
//!
//! [`Wide`] is the right to use such instructions: a [medium](crate::Medium) that is the real machine gives one out where the
//! processor has them, every other gives none, and whoever searches then loads word by word through the medium. A simulator so
//! sees each load.
//!
//! The words are atomics that others may be writing. Being assembly, the loads are no data race in the sense of the language; what
//! they bring is each word at some moment, and words of different moments side by side, as a loop of relaxed loads would. A
//! caller validates what it concludes, by a version.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::arch;
use crate::word::{Persistent, Word};

/// The right to compare many words at a time, by instructions of this processor ([`Medium::wide`](crate::Medium::wide)). What is
/// loaded is each word at some moment, as by relaxed loads; a caller validates what it concludes, by a version.
#[derive(Clone, Copy, Debug)]
pub struct Wide(());

/// What is known of the processor.
static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

#[cold]
fn find_out() -> bool {
    let has = arch::has_wide();
    FOUND.store(if has { YES } else { NO }, Ordering::Relaxed);
    has
}

impl Wide {
    /// Where this processor can. Costs a load once it has been found out.
    #[inline(always)]
    pub(crate) fn of_this_processor() -> Option<Wide> {
        let has = match FOUND.load(Ordering::Relaxed) {
            YES => true,
            NO => false,
            _ => find_out(),
        };
        has.then_some(Wide(()))
    }

    /// How many of the words are at most `value`.
    #[inline(always)]
    pub fn count_at_most(self, words: &[Word; 15], value: u64) -> usize {
        // SAFETY: a `Wide` exists only where the processor has the instructions (its field is private; `Medium::wide` hands out what this
        // crate has made); the words are valid for reads, and any values do.
        let count = unsafe { arch::wide_count_at_most(words.words().as_ptr(), value) };
        // SAFETY: it counts some of fifteen. Said for the compiler, which then checks no index that is made of it.
        unsafe { std::hint::assert_unchecked(count <= words.len()) };
        count
    }

    /// Which of some pairs have `value` as their first word: a bit for each place of `order`. Which pairs say the bits of `order` from
    /// the fifth on, four for each, and how many of them the argument `len`, at most 15. Pairs that are not named do not count: whoever
    /// looked at all would have to tell the ones from the others by jumps that nobody foresees.
    #[inline(always)]
    pub fn equal(self, pairs: &[[Word; 2]; 16], value: u64, order: u64, len: usize) -> u32 {
        debug_assert!(len <= 15);
        // SAFETY: as in `count_at_most`.
        unsafe { arch::wide_equal(pairs.words().as_ptr(), value, order, (1 << len) - 1) }
    }

    /// How many of some pairs have a first word below `value`. Which ones say the bits of `order` from the fifth on, four for each,
    /// and how many of them the argument `len`, at most 15.
    #[inline(always)]
    pub fn count_below(self, pairs: &[[Word; 2]; 16], value: u64, order: u64, len: usize) -> usize {
        debug_assert!(len <= 15);
        // SAFETY: as in `count_at_most`.
        unsafe { arch::wide_count_below(pairs.words().as_ptr(), value, order, (1 << len) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hardware, Mapping, Off, Op};
    use std::sync::atomic::Ordering::Relaxed;

    /// Numbers that look random, many of them near each other and near the ends.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed;
        std::iter::from_fn(move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let random = state >> 7;
            Some(match random % 5 {
                0 => random,
                1 => random << 40,
                2 => (1 << 63) | (random % 3),
                3 => u64::MAX - random % 3,
                _ => random % 3,
            })
        })
    }

    fn with_op(test: impl Fn(&Op<'_, Hardware>, Wide)) {
        let Some(wide) = Wide::of_this_processor() else { return };
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        test(&mapping.session().unwrap().enter().unwrap(), wide);
    }

    #[test]
    fn counts_agree_with_a_loop() {
        with_op(|op, wide| {
            let words = op.at(Off::<[Word; 15]>::new(32));
            let mut numbers = numbers(1);
            for _ in 0..20_000 {
                let values: [u64; 15] = std::array::from_fn(|_| numbers.next().unwrap());
                words.iter().zip(values).for_each(|(word, value)| op.store(word, value, Relaxed));
                for value in values.into_iter().take(3).chain(numbers.by_ref().take(3)) {
                    let expected = values.iter().filter(|v| **v <= value).count();
                    assert_eq!(wide.count_at_most(words, value), expected, "{value:#x} in {values:x?}");
                }
            }
        });
    }

    #[test]
    fn pairs_agree_with_a_loop() {
        with_op(|op, wide| {
            let pairs = op.at(Off::<[[Word; 2]; 16]>::new(64));
            let mut numbers = numbers(2);
            for _ in 0..20_000 {
                let values: [[u64; 2]; 16] = std::array::from_fn(|_| std::array::from_fn(|_| numbers.next().unwrap()));
                pairs.iter().flatten().zip(values.iter().flatten()).for_each(|(w, v)| op.store(w, *v, Relaxed));
                let order = numbers.next().unwrap() ^ numbers.next().unwrap().rotate_left(31);
                let len = (order & 15) as usize;
                for value in values.iter().flatten().copied().take(4).chain(numbers.by_ref().take(2)) {
                    let slot = |rank: usize| (order >> (4 + 4 * rank) & 15) as usize;
                    let equal =
                        (0..len).filter(|rank| values[slot(*rank)][0] == value).fold(0, |bits, rank| bits | 1 << rank);
                    assert_eq!(wide.equal(pairs, value, order, len), equal, "{value:#x}, {order:#x}, {values:x?}");
                    let below = (0..len).filter(|rank| values[slot(*rank)][0] < value).count();
                    assert_eq!(
                        wide.count_below(pairs, value, order, len),
                        below,
                        "{value:#x}, {order:#x}, {values:x?}"
                    );
                }
            }
        });
    }
}
