//! Cache lines and the one place where their range arithmetic is done.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

use crate::word::Persistent;

/// Bytes in a cache line: the unit of write-back in every persistency model of this workspace.
pub const LINE: usize = 64;

/// The cache lines that a live object overlaps.
///
/// A value of this type can only be made from a reference, so the lines it names are mapped for `'a`. That is what
/// lets a [`Medium`](crate::Medium) write them back from safe code.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    first: *const u8,
    count: usize,
    _object: PhantomData<&'a [AtomicU64]>,
}

impl<'a> Lines<'a> {
    /// The lines of `words`; none for an empty slice.
    #[inline(always)]
    pub fn of_words(words: &'a [AtomicU64]) -> Self {
        let start = words.as_ptr().cast::<u8>();
        let (lead, count) = span(start.addr(), size_of_val(words));
        Lines { first: start.wrapping_sub(lead), count, _object: PhantomData }
    }

    /// The lines of an object. For a type aligned to a line, or to its own size (a word), their number is a constant, so
    /// that the write-back of a one-line object compiles to one instruction.
    #[inline(always)]
    pub fn of<T: Persistent>(object: &'a T) -> Self {
        if align_of::<T>() >= LINE {
            Lines { first: std::ptr::from_ref(object).cast(), count: size_of::<T>() / LINE, _object: PhantomData }
        } else if size_of::<T>() <= align_of::<T>() {
            let start = std::ptr::from_ref(object).cast::<u8>();
            Lines { first: start.map_addr(|a| a & !(LINE - 1)), count: 1, _object: PhantomData }
        } else {
            Lines::of_words(object.words())
        }
    }

    /// A number of whole lines from the line-aligned address `first` on.
    ///
    /// # Safety
    /// All `count` lines must stay mapped for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(first: *const u8, count: usize) -> Self {
        Lines { first, count, _object: PhantomData }
    }

    /// Address of the first line, a multiple of [`LINE`].
    #[inline(always)]
    pub fn first(self) -> *const u8 {
        self.first
    }

    /// Number of lines.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.count
    }

    /// Only the first line (what a faulty range computation might write back).
    #[must_use]
    pub fn first_only(self) -> Self {
        Lines { count: self.count.min(1), ..self }
    }

    /// All lines but the last (what a faulty range computation might write back).
    #[must_use]
    pub fn without_last(self) -> Self {
        Lines { count: self.count.saturating_sub(1), ..self }
    }

    /// A line elsewhere in the same page: what a faulty address computation might write back.
    #[must_use]
    pub fn astray(self) -> Self {
        Lines { first: self.first.map_addr(|a| a ^ (16 * LINE)), count: self.count.min(1), ..self }
    }

    /// The addresses of the lines, ascending.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = *const u8> {
        (0..self.count).map(move |i| self.first.wrapping_add(i * LINE))
    }
}

/// For the bytes `[addr, addr + len)`: how far `addr` lies behind the start of its line, and how many lines are
/// overlapped.
#[inline(always)]
const fn span(addr: usize, len: usize) -> (usize, usize) {
    let lead = addr & (LINE - 1);
    if len == 0 { (lead, 0) } else { (lead, (lead + len).div_ceil(LINE)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_counts_each_overlapped_line_for_every_alignment_and_length() {
        for addr in 0..3 * LINE {
            for len in 0..6 * LINE {
                let overlapped: std::collections::BTreeSet<_> = (addr..addr + len).map(|b| b / LINE).collect();
                let (lead, count) = span(addr, len);
                assert_eq!(count, overlapped.len(), "addr {addr} len {len}");
                assert_eq!((addr - lead) % LINE, 0);
                assert!(lead < LINE);
                if let Some(first) = overlapped.first() {
                    assert_eq!((addr - lead) / LINE, *first);
                }
            }
        }
    }

    #[test]
    fn lines_of_words_start_at_a_line_and_cover_the_words() {
        crate::persistent! { struct Block: align(64) { words: [crate::Word; 24] } }
        // SAFETY: all-zero words are valid.
        let block: Block = unsafe { std::mem::zeroed() };
        let words = block.words();
        for from in 0..24 {
            for to in from..=24 {
                let lines = Lines::of_words(&words[from..to]);
                assert_eq!(lines.first().addr() % LINE, 0);
                let expected: std::collections::BTreeSet<_> = (from..to).map(|w| w / 8).collect();
                assert_eq!(lines.count(), expected.len());
                let base = words.as_ptr().cast::<u8>();
                let found: Vec<_> = lines.iter().map(|l| (l.addr() - base.addr()) / LINE).collect();
                assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            }
        }
        assert_eq!(Lines::of(&block).count(), 3);
        assert_eq!(Lines::of(&block.words[9]).count(), 1);
        assert_eq!(Lines::of(&block).first_only().count(), 1);
        assert_eq!(Lines::of(&block).without_last().count(), 2);
    }
}
