//! The persistent structs of the logs, their words and their line maps.

use durix_pmem::{Bits, Word, persistent};

/// First word of every log, `DURIXLOG` read as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DURIXLOG");

/// Version of the format; 999 while it is under development.
pub const VERSION: u32 = 999;

persistent! {
    /// The two lines in front of a log's data.
    ///
    /// | line | words | written | why there |
    /// |---|---|---|---|
    /// | 0 | magic, kind, unit, units, params, check | once, by `format` | one line: the magic is stored last and so stands for all of it |
    /// | 1 | floor, head | by trims | the floor is stored before the head, and reaches memory no later: same line |
    pub struct Header: align(64) {
        /// [`MAGIC`], or anything else where no log is.
        pub magic: Word,
        /// `VERSION << 32 | kind`.
        pub kind: Word,
        /// Bytes of a unit (slot or line).
        pub unit: Word,
        /// Units of the ring.
        pub units: Word,
        /// What the kind needs.
        pub params: [Word; 3],
        /// CRC-32C of the seven words before.
        pub check: Word,
        /// Position of the oldest record; one word gives index and polarity.
        pub head: Word<Head>,
        /// A number that outlives the records: the sequence number below which none will be given again.
        pub floor: Word,
        /// Unused, zero.
        pub rest: [Word; 6],
    }

    /// A line of eight words.
    pub struct Line: align(64) {
        /// The words.
        pub words: [Word; 8],
    }

    /// Half a line: three payload words, then the meta word.
    pub struct HalfSlot: align(32) {
        /// Words 0 to 2.
        pub payload: [Word; 3],
        /// Word 3, stored last.
        pub meta: Word<Meta>,
    }

    /// A line: seven payload words, then the meta word.
    pub struct LineSlot: align(64) {
        /// Words 0 to 6.
        pub payload: [Word; 7],
        /// Word 7, stored last.
        pub meta: Word<Meta>,
    }

    /// Two lines with a contiguous payload of 119 bytes between the meta word and the last byte.
    pub struct PairSlot: align(64) {
        /// Line 0, word 0; the last store to its line.
        pub meta: Word<Meta>,
        /// Line 0, words 1 to 7, and line 1, words 0 to 6.
        pub payload: [Word; 14],
        /// Line 1, word 7: seven payload bytes, and the validity bit of line 1 in the eighth; the last store to its
        /// line.
        pub last: Word,
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() == 128 && offset_of!(Header, head) == 64 && offset_of!(Header, floor) == 72);
    assert!(offset_of!(Header, magic) / 64 == offset_of!(Header, check) / 64, "magic and check share a line");
    assert!(offset_of!(Header, head) / 64 == offset_of!(Header, floor) / 64, "head and floor share a line");
    assert!(size_of::<Line>() == 64 && size_of::<HalfSlot>() == 32 && size_of::<LineSlot>() == 64);
    assert!(size_of::<PairSlot>() == 128 && offset_of!(PairSlot, last) == 120);
};

/// A log position with a check byte: what the head word holds.
///
/// Bits 0 to 55 are the position (at five million lines a second they last 450 years), bits 56 to 63 the exclusive or
/// of its bytes with `0xd5`: a flipped bit, and a word of zeroes, are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(u64);

impl Head {
    /// Largest position.
    pub const MAX: u64 = (1 << 56) - 1;

    /// The word for `position`, which is taken modulo 2^56.
    pub fn new(position: u64) -> Self {
        let position = position & Self::MAX;
        Head(position | u64::from(Self::check(position)) << 56)
    }

    /// The position, if the check byte is right.
    pub fn position(self) -> Option<u64> {
        let position = self.0 & Self::MAX;
        (Self::check(position) == (self.0 >> 56) as u8).then_some(position)
    }

    fn check(position: u64) -> u8 {
        position.to_le_bytes().iter().fold(0xd5, |check, byte| check ^ byte)
    }
}

impl Bits for Head {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        Head(bits)
    }
}

/// The meta word of a slot or line: validity bit, role, tag and length.
///
/// | bits | |
/// |---|---|
/// | 0 | validity: equal to the polarity of the lap means VALID |
/// | 1 | continuation: not the first line of its record |
/// | 8 to 15 | the user's tag (first line only) |
/// | 32 to 63 | payload length in bytes (first line), or the line's number within its record |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(u64);

impl Meta {
    /// The meta word of a record's only or first line.
    #[inline(always)]
    pub fn first(valid: u64, tag: u8, len: u32) -> Self {
        Meta(valid & 1 | u64::from(tag) << 8 | u64::from(len) << 32)
    }

    /// The meta word of the `number`th line of a record, from 1.
    #[inline(always)]
    pub fn continuation(valid: u64, number: u32) -> Self {
        Meta(valid & 1 | 2 | u64::from(number) << 32)
    }

    /// The validity bit.
    #[inline(always)]
    pub fn valid(self) -> u64 {
        self.0 & 1
    }

    /// Whether this belongs to a line that continues a record.
    #[inline(always)]
    pub fn is_continuation(self) -> bool {
        self.0 & 2 != 0
    }

    /// The user's tag.
    #[inline(always)]
    pub fn tag(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Payload length in bytes, or the line's number.
    #[inline(always)]
    pub fn len(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The same with the other validity bit.
    #[inline(always)]
    #[must_use]
    pub fn flipped(self) -> Self {
        Meta(self.0 ^ 1)
    }
}

impl Bits for Meta {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Meta(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layout_is_frozen() {
        assert_eq!(VERSION, 999);
        assert_eq!(MAGIC, 0x474f_4c58_4952_5544);
        let header = [
            offset_of!(Header, magic),
            offset_of!(Header, kind),
            offset_of!(Header, unit),
            offset_of!(Header, units),
            offset_of!(Header, params),
            offset_of!(Header, check),
            offset_of!(Header, head),
            offset_of!(Header, floor),
            offset_of!(Header, rest),
            size_of::<Header>(),
        ];
        assert_eq!(header, [0, 8, 16, 24, 32, 56, 64, 72, 80, 128]);
        assert_eq!([offset_of!(HalfSlot, payload), offset_of!(HalfSlot, meta), size_of::<HalfSlot>()], [0, 24, 32]);
        assert_eq!([offset_of!(LineSlot, payload), offset_of!(LineSlot, meta), size_of::<LineSlot>()], [0, 56, 64]);
        assert_eq!(
            [offset_of!(PairSlot, meta), offset_of!(PairSlot, payload), offset_of!(PairSlot, last)],
            [0, 8, 120]
        );
        assert_eq!(Meta::first(1, 0xab, 0x1234).to_bits(), 0x0000_1234_0000_ab01);
        assert_eq!(Meta::continuation(0, 3).to_bits(), 0x0000_0003_0000_0002);
        assert_eq!(Head::new(0).to_bits(), 0xd5 << 56);
    }

    #[test]
    fn a_head_word_shows_every_single_flipped_bit() {
        for position in [0, 1, 77, 1 << 40, Head::MAX] {
            let bits = Head::new(position).to_bits();
            assert_eq!(Head::from_bits(bits).position(), Some(position));
            for bit in 0..64 {
                assert_eq!(Head::from_bits(bits ^ 1 << bit).position(), None, "bit {bit} of position {position}");
            }
        }
        assert_eq!(Head::from_bits(0).position(), None);
    }

    #[test]
    fn meta_words_give_back_what_was_put_in() {
        for valid in [0, 1] {
            for tag in 0..=255 {
                for len in [0, 1, 56, u32::MAX] {
                    let meta = Meta::first(valid, tag, len);
                    assert_eq!(
                        (meta.valid(), meta.is_continuation(), meta.tag(), meta.len()),
                        (valid, false, tag, len)
                    );
                    assert_eq!(meta.flipped().valid(), 1 - valid);
                    assert_eq!(meta.flipped().flipped(), meta);
                }
            }
            let meta = Meta::continuation(valid, 9);
            assert_eq!((meta.valid(), meta.is_continuation(), meta.len()), (valid, true, 9));
        }
    }
}
