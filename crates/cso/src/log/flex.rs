//! The kernel of CSO-FVB: writing a line so that one bit tells whether all of it was written (3.1.3, listing 1).
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-X1 words before the last word that differs < that word | same line, release store | the old value of the chosen bit | the pair does not hold: the line is not whole |
//!
//! The words behind the last one that differs equal what is there already, and are not stored. What is compared with
//! must be what is in memory, not only what is in the cache: a bit that differs from the cached content alone may be
//! right in memory before anything is written. All users of this module therefore overwrite only lines whose content
//! is durable: written and fenced before their space became reusable, or written back by recovery.

use std::sync::atomic::Ordering;

use durix_pmem::{Medium, Op};

use super::layout::{Line, Pair};
use super::source::Source;

/// Writes words `from..from + 8` of the payload, or as many as it has, to a line, the last differing word last, and
/// issues the write-back, if anything differs. The payload has word `from`.
#[inline(always)]
pub(super) fn write_line<M: Medium, S: Source>(op: &Op<'_, M>, line: &Line, payload: S, from: usize) -> Pair {
    if let Some(new) = payload.whole::<8>(from) {
        let diff = op.load(&line.words[7], Ordering::Relaxed) ^ new[7];
        if diff != 0 {
            let [first @ .., _] = &new;
            op.store_words::<7>(line.words.first_chunk().expect("eight words"), first);
            return finish(op, line, 7, new[7], diff);
        }
    }
    write_line_from_behind(op, line, payload, from)
}

/// Stores the last differing word, and gives the pair of its last differing bit.
#[inline(always)]
fn finish<M: Medium>(op: &Op<'_, M>, line: &Line, last: usize, new: u64, diff: u64) -> Pair {
    // PERSIST CS-X1: same line
    op.store(&line.words[last], new, Ordering::Release);
    op.write_back(line);
    let bit = diff.trailing_zeros();
    Pair::new(last, bit, new >> bit)
}

#[inline(never)]
fn write_line_from_behind<M: Medium, S: Source>(op: &Op<'_, M>, line: &Line, payload: S, from: usize) -> Pair {
    let count = (payload.len().div_ceil(8) - from).min(8);
    for last in (0..count).rev() {
        let new = payload.word(from + last);
        let diff = op.load(&line.words[last], Ordering::Relaxed) ^ new;
        if diff != 0 {
            payload.store_some(op, from, &line.words[..last]);
            return finish(op, line, last, new, diff);
        }
    }
    Pair::new(0, 0, payload.word(from))
}

/// Whether the line was written whole, by its pair.
#[inline(always)]
pub(super) fn line_holds<M: Medium>(op: &Op<'_, M>, line: &Line, pair: Pair) -> bool {
    pair.holds(op.load(&line.words[pair.word()], Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Counting, Hardware, Mapping, Off};

    /// All pairs of lines over few words: the chosen bit is the old one until the last store, and holds after it.
    #[test]
    fn the_pair_fails_on_every_proper_prefix_and_holds_at_the_end() {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(4096, counting);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let line = op.at(Off::<Line>::new(64));
        let values = [0u64, 1, 2, u64::MAX];
        for old in 0..64 {
            for new in 0..64 {
                let spread = |i: usize| [values[i & 3], values[i >> 2 & 3], values[i >> 4]];
                let (old, new) = (spread(old), spread(new));
                for (word, value) in line.words.iter().zip(old) {
                    op.store(word, value, Ordering::Relaxed);
                }
                let before = counting.counts();
                let pair = write_line(&op, line, &new[..], 0);
                let cost = counting.counts() - before;
                assert_eq!(cost.write_backs, u64::from(old != new));
                assert!(line_holds(&op, line, pair));
                let last = (0..3).rev().find(|w| old[*w] != new[*w]);
                assert_eq!(cost.stores, last.map_or(0, |l| l as u64 + 1));
                if let Some(last) = last {
                    assert_eq!(pair.word(), last);
                    assert!(!pair.holds(old[last]), "the bit differs from the old content");
                }
            }
        }
    }
}
