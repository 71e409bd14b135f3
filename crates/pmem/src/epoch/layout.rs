//! The record of the checkpoint epochs.

use crate::persistent;
use crate::word::{Bits, Word};

/// Largest epoch number.
pub const MAX_EPOCH: u64 = (1 << 40) - 1;
/// Largest epoch that a boundary begins while a pool is open: at one boundary a millisecond, after 34.8 years. The numbers behind
/// it are kept for openings after a crash and for closing, so that what is in the pool can be read and copied.
pub const LAST_EPOCH: u64 = MAX_EPOCH - (1 << 20);
/// Ranges of failed epochs that a record holds.
pub const MAX_FAILED: usize = 112;

persistent! {
    /// A structure's part in the epochs: half a line, in the root entry of an index, or for the only structure of a bare
    /// mapping in the record. Zero: it has never taken part.
    ///
    /// | words | what | when it changes |
    /// |---|---|---|
    /// | 0 | the epoch in which the structure was last opened | EP-J1: before anything of that epoch is changed |
    /// | 1 | nothing that failed before this epoch is left in the structure | EP-W1: when a pass has ended |
    /// | 2 | what the word before becomes with the pass under way | EP-W2: behind the cursor |
    /// | 3 | how far the pass has come, in terms of the structure | EP-W1: after the boundary behind it |
    pub struct Seat: align(8) {
        /// Word 0.
        pub opened: Word,
        /// Word 1.
        pub swept: Word,
        /// Word 2.
        pub target: Word,
        /// Word 3.
        pub cursor: Word,
    }

    /// 1024 bytes: the epoch, and the epochs that a crash has ended.
    ///
    /// | line | words | what | why there |
    /// |---|---|---|---|
    /// | 0 | 0 | epoch in progress, and whether the pool was closed at its start | one word: changes at once |
    /// | 0 | 1–7 | zero, not read | |
    /// | 1–14 | all | failed epochs, a range a word, in no order; zero is free | a range grows by one store |
    /// | 15 | 0–3 | the seat of the only structure of a bare mapping; zero in a pool | fenced apart from the others |
    /// | 15 | 4–7 | zero, not read | |
    pub struct EpochRecord: align(64) {
        /// Line 0, word 0.
        pub epoch: Word<EpochWord>,
        /// Line 0, words 1 to 7.
        pub reserved: [Word; 7],
        /// Lines 1 to 14.
        pub failed: [Word<FailedRange>; MAX_FAILED],
        /// Line 15, words 0 to 3.
        pub seat: Seat,
        /// Line 15, words 4 to 7.
        pub rest: [Word; 4],
    }
}

/// The epoch in progress: bits 0–39 its number, bit 40 whether the pool was closed, bits 56–63 a check byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochWord(u64);

impl EpochWord {
    /// A record that was never used.
    pub const UNUSED: EpochWord = EpochWord(0);

    /// The word of an epoch. Precondition: `epoch <= MAX_EPOCH`. Never zero.
    pub fn new(epoch: u64, closed: bool) -> Self {
        let low = epoch & MAX_EPOCH | u64::from(closed) << 40;
        EpochWord(low | check(low) << 56)
    }

    /// The number and whether it is closed, if the check holds.
    pub fn get(self) -> Option<(u64, bool)> {
        let low = self.0 & ((1 << 56) - 1);
        (check(low) == self.0 >> 56 && low >> 41 == 0).then_some((low & MAX_EPOCH, low >> 40 == 1))
    }
}

impl Bits for EpochWord {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        EpochWord(bits)
    }
}

/// Failed epochs in a row: bits 0–39 the first, bits 40–55 how many, bits 56–63 a check byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRange(u64);

impl FailedRange {
    /// No range.
    pub const FREE: FailedRange = FailedRange(0);
    /// Most epochs of a range.
    pub const MAX_COUNT: u64 = u16::MAX as u64;

    /// A range. Preconditions: `first <= MAX_EPOCH`, `1 <= count <= MAX_COUNT`. Never zero.
    pub fn new(first: u64, count: u64) -> Self {
        let low = first & MAX_EPOCH | (count & Self::MAX_COUNT) << 40;
        FailedRange(low | check(low) << 56)
    }

    /// First and count, if the check holds and the range is not empty.
    pub fn get(self) -> Option<(u64, u64)> {
        let low = self.0 & ((1 << 56) - 1);
        let (first, count) = (low & MAX_EPOCH, low >> 40);
        (check(low) == self.0 >> 56 && count > 0).then_some((first, count))
    }
}

impl Bits for FailedRange {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        FailedRange(bits)
    }
}

/// The exclusive or of the bytes with `0xe5`: a flipped bit and a word of zeroes are noticed.
fn check(low: u64) -> u64 {
    u64::from(low.to_le_bytes().iter().fold(0xe5, |check, byte| check ^ byte))
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<EpochRecord>() == 1024);
    assert!(offset_of!(EpochRecord, epoch) / 64 != offset_of!(EpochRecord, failed) / 64, "fenced apart");
    assert!(offset_of!(EpochRecord, seat).is_multiple_of(64), "fenced apart, and on one line");
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Here to prevent any accidental change: a change of these numbers is a change of the format.
    #[test]
    fn layout_is_frozen() {
        assert_eq!((size_of::<EpochRecord>(), align_of::<EpochRecord>()), (1024, 64));
        assert_eq!((offset_of!(EpochRecord, epoch), offset_of!(EpochRecord, failed)), (0, 64));
        assert_eq!((offset_of!(EpochRecord, seat), size_of::<Seat>()), (960, 32));
        assert_eq!(
            [offset_of!(Seat, opened), offset_of!(Seat, swept), offset_of!(Seat, target), offset_of!(Seat, cursor)],
            [0, 8, 16, 24]
        );
        assert_eq!((MAX_EPOCH, LAST_EPOCH, MAX_FAILED), (0xff_ffff_ffff, 0xff_ffef_ffff, 112));
        assert_eq!(EpochWord::new(1, false).to_bits(), 0xe400_0000_0000_0001);
        assert_eq!(FailedRange::new(7, 2).to_bits(), 0xe000_0200_0000_0007);
    }

    #[test]
    fn words_come_back_and_flipped_bits_are_noticed() {
        for epoch in [0, 1, 0xffff, 0x1_0000, MAX_EPOCH] {
            for closed in [false, true] {
                let word = EpochWord::new(epoch, closed);
                assert_eq!(word.get(), Some((epoch, closed)));
                assert!((0..64).all(|bit| EpochWord::from_bits(word.to_bits() ^ 1 << bit).get().is_none()));
            }
            for count in [1, 2, FailedRange::MAX_COUNT] {
                let range = FailedRange::new(epoch, count);
                assert_eq!(range.get(), Some((epoch, count)));
                assert!((0..64).all(|bit| FailedRange::from_bits(range.to_bits() ^ 1 << bit).get().is_none()));
            }
        }
        assert_eq!((EpochWord::UNUSED.get(), FailedRange::FREE.get()), (None, None));
    }
}
