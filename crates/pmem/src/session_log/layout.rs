//! What a segment of a session log begins with.

use crate::word::{Bits, Word};
use crate::{LINE, persistent};

persistent! {
    /// The first line of a segment. The rest of the segment is the client's.
    ///
    /// | word | what | written |
    /// |---|---|---|
    /// | 0 | the use: zero, or number, chain and whether it is over, with a check | when the segment is added, entered, given back |
    /// | 1–7 | zero, not read | |
    pub struct SegmentHead: align(64) {
        /// Word 0.
        pub state: Word<SegmentUse>,
        /// Words 1 to 7.
        pub reserved: [Word; 7],
    }
}

/// The head's word: zero in a new segment, else which use of a segment this is, of which chain, and whether it is over.
///
/// | bits | what |
/// |---|---|
/// | 0–35 | number of the use: from 1 on, higher than that of every earlier use |
/// | 36–46 | chain |
/// | 47 | 1: the segment was given back, and is spare |
/// | 48–63 | the low half of the CRC-32C over bits 0–47, as 8 bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUse(u64);

/// What a [`SegmentUse`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The segment is spare; its last use had this number, or none.
    Spare { number: u64 },
    /// The use with this number, of this chain.
    Used { number: u64, chain: u32 },
    /// Nothing that is ever written.
    Damaged,
}

const NUMBER_BITS: u32 = 36;
const OVER: u32 = 47;
const CHECK_SHIFT: u32 = 48;

/// Chains that there can be, live and orphaned.
pub const MAX_CHAINS: u32 = 1 << (OVER - NUMBER_BITS);

impl SegmentUse {
    /// The use with a number, of a chain.
    pub(super) fn new(number: u64, chain: u32) -> Self {
        debug_assert!((1..1 << NUMBER_BITS).contains(&number) && chain < MAX_CHAINS);
        Self::sealed(number | u64::from(chain) << NUMBER_BITS)
    }

    /// The use with a number is over.
    pub(super) fn over(number: u64) -> Self {
        Self::sealed(number | 1 << OVER)
    }

    fn sealed(low: u64) -> Self {
        SegmentUse(low | Self::check(low) << CHECK_SHIFT)
    }

    pub(super) fn decode(self) -> Found {
        let low = self.0 & ((1 << CHECK_SHIFT) - 1);
        let number = low & ((1 << NUMBER_BITS) - 1);
        match self.0 {
            0 => Found::Spare { number: 0 },
            word if number == 0 || Self::check(low) != word >> CHECK_SHIFT => Found::Damaged,
            _ if low >> OVER == 1 => Found::Spare { number },
            _ => Found::Used { number, chain: (low >> NUMBER_BITS) as u32 },
        }
    }

    fn check(low: u64) -> u64 {
        u64::from(crc32c::crc32c(&low.to_le_bytes())) & 0xFFFF
    }
}

impl Bits for SegmentUse {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        SegmentUse(bits)
    }
}

/// Bytes of the head.
pub(super) const HEAD: u64 = LINE as u64;

const _: () =
    assert!(size_of::<SegmentHead>() == LINE, "the use is one word; the client's words start on the next line");

#[cfg(test)]
mod tests {
    use super::*;

    /// Here to prevent any accidental change: a change of these numbers is a change of the format.
    #[test]
    fn layout_is_frozen() {
        assert_eq!((size_of::<SegmentHead>(), align_of::<SegmentHead>()), (64, 64));
        assert_eq!(std::mem::offset_of!(SegmentHead, state), 0);
        assert_eq!(SegmentUse::new(1, 0).to_bits() & 0xFFFF_FFFF_FFFF, 1);
        assert_eq!(SegmentUse::new(0x8_0000_0001, 0x3BC).to_bits() & 0xFFFF_FFFF_FFFF, 0x3BC8_0000_0001);
        assert_eq!(SegmentUse::over(2).to_bits() & 0xFFFF_FFFF_FFFF, 0x8000_0000_0002);
        assert_eq!(SegmentUse::new(1, 0).to_bits() >> 48, u64::from(crc32c::crc32c(&1u64.to_le_bytes())) & 0xFFFF);
        assert_eq!(MAX_CHAINS, 2048);
    }

    #[test]
    fn a_use_decodes_and_a_flipped_bit_is_noticed() {
        for (number, chain) in [(1, 0), (77, 2047), ((1 << 36) - 1, 9)] {
            let word = SegmentUse::new(number, chain);
            assert_eq!(word.decode(), Found::Used { number, chain });
            for bit in 0..64 {
                assert_eq!(SegmentUse::from_bits(word.to_bits() ^ 1 << bit).decode(), Found::Damaged, "bit {bit}");
            }
        }
        assert_eq!(SegmentUse::from_bits(0).decode(), Found::Spare { number: 0 });
        assert_eq!(SegmentUse::over(8).decode(), Found::Spare { number: 8 });
        assert_eq!(SegmentUse::from_bits(5 << 36).decode(), Found::Damaged, "a use without a number");
    }
}
