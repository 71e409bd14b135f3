//! The persistent structs of the logs, their words and their line maps.

use durix_pmem::{Bits, Version, Word, layout, persistent};

/// First word of every log, `DURIXLOG` read as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DURIXLOG");

/// First word of every shared log.
pub const SHARED_MAGIC: u64 = u64::from_le_bytes(*b"DURIXSHL");

/// Version of the format. Logs are not released with the kinds of index.
pub const VERSION: Version = Version::unreleased(LAYOUT);
const LAYOUT: u32 =
    layout!([Header, SharedHeader, Line, RandomLine, HalfSlot, LineSlot, PairSlot], MAGIC, SHARED_MAGIC, REVISION);
/// What stands for the version in half a word: its digest, or once it is released its number.
pub(crate) const MARK: u32 = if VERSION.is_released() { VERSION.number() } else { VERSION.layout() };
/// Counts changes of what the words mean.
const REVISION: u64 = 1;

persistent! {
    /// The two lines in front of a log's data.
    ///
    /// | line | words | written | why there |
    /// |---|---|---|---|
    /// | 0 | magic, kind, unit, units, params, check | once, by `format` | one line: the magic is stored last and so stands for all of it |
    /// | 1 | floor, head | by trims | the floor is stored before the head, and reaches memory no later: same line |
    /// | 1 | state | by a chain that enters the segment | one word: sequence and polarity change together |
    pub struct Header: align(64) {
        /// [`MAGIC`], or anything else where no log is.
        pub magic: Word,
        /// `MARK << 32 | kind`.
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
        /// Of a chain's segment: which use of it this is, and the bit that means VALID.
        pub state: Word<SegmentState>,
        /// Unused, zero.
        pub rest: [Word; 5],
    }

    /// The line in front of a [`SharedLog`](super::SharedLog)'s lanes; written once, by `format`.
    pub struct SharedHeader: align(64) {
        /// [`SHARED_MAGIC`], or anything else where no log is; stored last and so stands for all of the line.
        pub magic: Word,
        /// `VERSION`.
        pub version: Word,
        /// Number of lanes.
        pub lanes: Word,
        /// Bytes of a lane.
        pub lane_len: Word,
        /// Unused, zero.
        pub rest: [Word; 3],
        /// CRC-32C of the four words before `rest`.
        pub check: Word,
    }

    /// A line of eight words.
    pub struct Line: align(64) {
        /// The words.
        pub words: [Word; 8],
    }

    /// A line of CSO-Random: the first of a record has the meta word, the others nothing but payload.
    pub struct RandomLine: align(64) {
        /// Word 0; cleared with the line.
        pub meta: Word<RandomMeta>,
        /// Words 1 to 6.
        pub payload: [Word; 6],
        /// Word 7, stored last; the pattern while nothing is written.
        pub last: Word,
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
    assert!(size_of::<RandomLine>() == 64 && offset_of!(RandomLine, last) == 56);
    assert!(size_of::<SharedHeader>() == 64);
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

/// The state of a chain's segment: bit 0 is the validity bit that means VALID in it, bits 1 to 63 its sequence number; zero
/// is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentState(u64);

impl SegmentState {
    /// The state of the segment that is number `sequence` of the chain.
    pub fn new(sequence: u64, polarity: u64) -> Self {
        SegmentState(sequence << 1 | polarity & 1)
    }

    /// The sequence number.
    pub fn sequence(self) -> u64 {
        self.0 >> 1
    }

    /// The validity bit that means VALID.
    pub fn polarity(self) -> u64 {
        self.0 & 1
    }
}

impl Bits for SegmentState {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        SegmentState(bits)
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

/// Where the flexible validity bit of a line is, and its value: bits 0 to 8 the position within the line's 512 bits,
/// bit 9 the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(u16);

impl Pair {
    /// Bits of a pair.
    pub const BITS: usize = 10;

    /// The pair for bit `bit` of word `word`, which has the value `value & 1`.
    #[inline(always)]
    pub fn new(word: usize, bit: u32, value: u64) -> Self {
        Pair((word as u16 & 7) << 6 | bit as u16 & 63 | (value as u16 & 1) << 9)
    }

    /// The pair in bits `shift` to `shift + 9` of a metadata word.
    #[inline(always)]
    pub fn from_bits(word: u64, shift: usize) -> Self {
        Pair((word >> shift) as u16 & 0x3ff)
    }

    /// The pair's ten bits, at `shift`.
    #[inline(always)]
    pub fn to_bits(self, shift: usize) -> u64 {
        u64::from(self.0) << shift
    }

    /// The word of the line.
    #[inline(always)]
    pub fn word(self) -> usize {
        usize::from(self.0 >> 6 & 7)
    }

    /// Whether the bit in `word` (the word that [`word`](Pair::word) names) has the value.
    #[inline(always)]
    pub fn holds(self, word: u64) -> bool {
        word >> (self.0 & 63) & 1 == u64::from(self.0 >> 9)
    }
}

/// The first metadata word of a CSO-FVB slot; the last store to its line.
///
/// | bits | |
/// |---|---|
/// | 0 | validity |
/// | 1 | unused, zero |
/// | 2 to 9 | the user's tag |
/// | 10 to 33 | payload length in bytes |
/// | 34 to 63 | the [`Pair`]s of lines 1 to 3 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlexMeta(u64);

impl FlexMeta {
    /// Pairs in this word.
    pub const PAIRS: usize = 3;
    /// Where the first pair starts.
    pub const SHIFT: usize = 34;
    /// Largest length.
    pub const MAX_LEN: usize = (1 << 24) - 1;

    /// The word without its pairs. `len` is at most [`MAX_LEN`](Self::MAX_LEN).
    #[inline(always)]
    pub fn new(valid: u64, tag: u8, len: usize) -> Self {
        FlexMeta(valid & 1 | u64::from(tag) << 2 | ((len & Self::MAX_LEN) as u64) << 10)
    }

    /// With the pairs that `bits` holds in bits 34 and up.
    #[inline(always)]
    #[must_use]
    pub fn with_pairs(self, bits: u64) -> Self {
        FlexMeta(self.0 | bits)
    }

    /// The validity bit.
    #[inline(always)]
    pub fn valid(self) -> u64 {
        self.0 & 1
    }

    /// The user's tag.
    #[inline(always)]
    pub fn tag(self) -> u8 {
        (self.0 >> 2) as u8
    }

    /// Payload length in bytes.
    #[inline(always)]
    pub fn len(self) -> usize {
        (self.0 >> 10) as usize & Self::MAX_LEN
    }

    /// The same with the other validity bit.
    #[must_use]
    pub fn flipped(self) -> Self {
        FlexMeta(self.0 ^ 1)
    }
}

impl Bits for FlexMeta {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        FlexMeta(bits)
    }
}

/// The first word of a CSO-Random record.
///
/// | bits | |
/// |---|---|
/// | 0 to 1 | role: 0 nothing was written, 1 a record, 2 a sentinel, 3 the unused end of the ring |
/// | 8 to 15 | the user's tag |
/// | 32 to 63 | payload length in bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomMeta(u64);

impl RandomMeta {
    /// Role of a user's record.
    pub const RECORD: u64 = 1;
    /// Role of a sentinel: says that the record at the position in its second word is whole.
    pub const SENTINEL: u64 = 2;
    /// Role of what fills the ring up to its end.
    pub const FILLER: u64 = 3;
    /// What re-initialisation leaves.
    pub const EMPTY: Self = RandomMeta(0);

    /// The word for a record.
    #[inline(always)]
    pub fn new(role: u64, tag: u8, len: u32) -> Self {
        RandomMeta(role | u64::from(tag) << 8 | u64::from(len) << 32)
    }

    /// The role.
    #[inline(always)]
    pub fn role(self) -> u64 {
        self.0 & 3
    }

    /// The user's tag.
    pub fn tag(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Payload length in bytes.
    pub fn len(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl Bits for RandomMeta {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        RandomMeta(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layout_is_frozen() {
        assert_eq!(VERSION.number(), 999);
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
            offset_of!(Header, state),
            offset_of!(Header, rest),
            size_of::<Header>(),
        ];
        let shared = [
            offset_of!(SharedHeader, magic),
            offset_of!(SharedHeader, version),
            offset_of!(SharedHeader, lanes),
            offset_of!(SharedHeader, lane_len),
            offset_of!(SharedHeader, check),
        ];
        assert_eq!(shared, [0, 8, 16, 24, 56]);
        assert_eq!(header, [0, 8, 16, 24, 32, 56, 64, 72, 80, 88, 128]);
        assert_eq!(
            [offset_of!(RandomLine, meta), offset_of!(RandomLine, payload), offset_of!(RandomLine, last)],
            [0, 8, 56]
        );
        assert_eq!([offset_of!(HalfSlot, payload), offset_of!(HalfSlot, meta), size_of::<HalfSlot>()], [0, 24, 32]);
        assert_eq!([offset_of!(LineSlot, payload), offset_of!(LineSlot, meta), size_of::<LineSlot>()], [0, 56, 64]);
        assert_eq!(
            [offset_of!(PairSlot, meta), offset_of!(PairSlot, payload), offset_of!(PairSlot, last)],
            [0, 8, 120]
        );
        assert_eq!(Meta::first(1, 0xab, 0x1234).to_bits(), 0x0000_1234_0000_ab01);
        assert_eq!(Meta::continuation(0, 3).to_bits(), 0x0000_0003_0000_0002);
        assert_eq!(Head::new(0).to_bits(), 0xd5 << 56);
        let state = SegmentState::new(5, 1);
        assert_eq!((state.to_bits(), state.sequence(), state.polarity()), (11, 5, 1));
        assert_eq!(FlexMeta::new(1, 0xab, 0x12_3456).to_bits(), 1 | 0xab << 2 | 0x12_3456 << 10);
        assert_eq!(Pair::new(5, 17, 1).to_bits(34), (1 << 9 | 5 << 6 | 17) << 34);
        assert_eq!(RandomMeta::new(RandomMeta::SENTINEL, 0xab, 0x1234).to_bits(), 0x0000_1234_0000_ab02);
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

    #[test]
    fn flexible_metadata_gives_back_what_was_put_in() {
        for word in 0..8 {
            for bit in 0..64 {
                for value in [0, 1] {
                    let pair = Pair::new(word, bit, value);
                    for shift in [0, 10, 50, 54] {
                        assert_eq!(Pair::from_bits(pair.to_bits(shift), shift), pair);
                    }
                    assert_eq!(pair.word(), word);
                    assert!(pair.holds(value << bit) && !pair.holds((1 - value) << bit));
                }
            }
        }
        for (valid, tag, len) in [(0, 0, 0), (1, 255, FlexMeta::MAX_LEN), (0, 7, 300)] {
            let meta = FlexMeta::new(valid, tag, len).with_pairs(u64::MAX << FlexMeta::SHIFT);
            assert_eq!((meta.valid(), meta.tag(), meta.len()), (valid, tag, len));
            assert_eq!(meta.flipped().valid(), 1 - valid);
        }
        let meta = RandomMeta::new(RandomMeta::FILLER, 9, 70_000);
        assert_eq!((meta.role(), meta.tag(), meta.len()), (RandomMeta::FILLER, 9, 70_000));
        assert_eq!(RandomMeta::EMPTY.role(), 0);
    }
}
