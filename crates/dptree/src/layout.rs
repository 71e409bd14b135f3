//! The persistent structs, their words and their line maps.
//!
//! Sizes of units and pages are parameters of a tree, so blocks and leaves are laid out by [`Shape`], line by line.

use durix_pmem::{Bits, LINE, Medium, Off, Op, Persistent, Root, Version, Word, layout, persistent};

/// Version of the layout of trees of words.
pub const LAYOUT_VERSION: Version = Version::of(1, LAYOUT);
/// Version of the layout of trees with records, which are experimental.
pub const RECORDS_LAYOUT_VERSION: Version =
    Version::unreleased(layout!([], LAYOUT, durix_logfree::RECORDS_LAYOUT_VERSION.to_word()));
const LAYOUT: u32 = layout!(
    [ExtentHead, RecordLine, RangeHead, Descriptor, SlotLine, RootWords],
    UNITS_MAGIC,
    PAGE_MAGIC,
    RANGE_MAGIC,
    NAMED,
    ROOT_MAGIC,
    LINE_SLOTS,
    MAX_SLOTS,
    MAX_LEAVES,
    LINE_RECORDS,
    MAX_VERSION,
    REVISION,
);
/// Counts changes of what the words mean, those of `record.rs` included.
const REVISION: u64 = 1;
/// First word of an extent of units, `DURIXDPU` read as little-endian bytes.
pub(crate) const UNITS_MAGIC: u64 = u64::from_le_bytes(*b"DURIXDPU");
/// First word of a log page.
pub(crate) const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"DURIXDPL");
/// In the head of a range block.
pub(crate) const RANGE_MAGIC: u64 = u64::from_le_bytes(*b"DURIXDPR");
/// In the head of a range block: see [`RangeHead::named`].
pub(crate) const NAMED: u64 = u64::from_le_bytes(*b"DURIXDPN");
/// The last of the tree's root words.
pub(crate) const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"DURIXDPT");
/// Slots of a line.
pub(crate) const LINE_SLOTS: usize = 4;
/// Most slots of a leaf: the bits of a descriptor.
pub const MAX_SLOTS: usize = 256;
/// Most leaves of a range.
pub const MAX_LEAVES: usize = 64;
/// Records of a line.
pub(crate) const LINE_RECORDS: u64 = 2;
/// Largest version: 60 bits.
pub(crate) const MAX_VERSION: u64 = (1 << 60) - 1;
/// Versions above can only come from damage: a range would take centuries to get there. Records have bits for larger ones.
pub(crate) const SANE_VERSION: u64 = MAX_VERSION / 8;

persistent! {
    /// First line of each extent. Written once, but for the polarity, and for what leads from page to page (DP-P4).
    pub struct ExtentHead: align(64) {
        /// What the extent is.
        pub magic: Word,
        /// Bytes of a unit, or lines of records.
        pub size: Word,
        /// Of a log page: the validity bit of records that exist.
        pub polarity: Word,
        /// Checksum over magic and size.
        pub sum: Word,
        /// Of a log page: where the batch goes on whose record is the last of the page. Counts if that record says that it goes on.
        pub next: Word,
        /// Of a log page: the page that the batch of its first record comes from. Counts if that record says that it joins.
        pub before: Word,
        /// Unused.
        pub unused: [Word; 2],
    }

    /// A line of two log records. A record is valid if bit 0 of its four words is the page's polarity. The fourth is a checksum.
    pub struct RecordLine: align(64) {
        /// Two records.
        pub records: [[Word; 4]; 2],
    }

    /// First line of a range block.
    pub struct RangeHead: align(64) {
        /// Side and floor; changed by one store (DP-B1).
        pub state: Word<State>,
        /// Smallest key of the range; never changes.
        pub low: Word,
        /// [`RANGE_MAGIC`].
        pub magic: Word,
        /// [`NAMED`] where the first descriptor of a side without leaves holds its own place: so that one that was zeroed is found.
        pub named: Word,
        /// Unused.
        pub unused: [Word; 4],
    }

    /// A leaf, as a range block describes it. One line, so that a changed leaf costs one write-back.
    pub struct Descriptor: align(64) {
        /// Where its slots lie. In the first descriptor of a side without leaves, where that descriptor lies.
        pub leaf: Word,
        /// Smallest key it may hold.
        pub low: Word,
        /// Which slots are taken.
        pub taken: [Word; 4],
        /// In the first descriptor of a side: how many count.
        pub count: Word,
        /// In the first descriptor of a side: the next range, 0 after the last.
        pub next: Word<Off<RangeHead>>,
    }

    /// Four slots of a leaf.
    pub struct SlotLine: align(64) {
        /// Key and value.
        pub slots: [[Word; 2]; LINE_SLOTS],
    }

    /// The structure's words in its root entry.
    pub struct RootWords: align(8) {
        /// The range block of the smallest keys.
        pub first: Word<Off<RangeHead>>,
        /// Slots of a leaf, in the low half; leaves of a range, in the high half.
        pub units: Word,
        /// Lines of records of a log page.
        pub page_lines: Word,
        /// [`ROOT_MAGIC`].
        pub magic: Word,
        /// The records of a tree with values of any length: their first segment, 0 without one.
        pub records: Word,
        /// The same: bytes of a page of records.
        pub record_page: Word,
        /// The facade's.
        pub others: [Word; 2],
    }
}

const _: () = {
    assert!(size_of::<ExtentHead>() == LINE && size_of::<RecordLine>() == LINE && size_of::<RangeHead>() == LINE);
    assert!(size_of::<Descriptor>() == LINE && size_of::<SlotLine>() == LINE && size_of::<RootWords>() == LINE);
};

/// The structure's words in its root entry.
pub(crate) fn root_words<'s, M: Medium>(op: &Op<'s, M>, root: &Root<M>) -> &'s RootWords {
    root.words(op).view()
}

/// Side and floor of a range.
///
/// | bits | what |
/// |---|---|
/// | 0 | the side whose descriptors count |
/// | 1–60 | floor: records with a smaller version are merged |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

impl State {
    /// # Panics
    /// If the floor is larger than [`MAX_VERSION`].
    pub(crate) fn new(side: usize, floor: u64) -> Self {
        assert!(side < 2 && floor <= MAX_VERSION, "a side of {side} or a floor of {floor}");
        State(floor << 1 | side as u64)
    }

    /// 0 or 1.
    pub fn side(self) -> usize {
        (self.0 & 1) as usize
    }

    /// Records with a smaller version are merged.
    pub(crate) fn floor(self) -> u64 {
        self.0 >> 1
    }
}

impl Bits for State {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        State(bits)
    }
}

/// The parameters that decide what lies where. Fixed when a tree is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots of a leaf: a multiple of four up to [`MAX_SLOTS`].
    pub slots: usize,
    /// Most leaves of a range, from 2 to [`MAX_LEAVES`].
    pub leaves: usize,
    /// Lines of records of a log page.
    pub page_lines: u64,
}

/// Most lines of a log page: 4 MiB.
const MAX_PAGE_LINES: u64 = 1 << 16;

impl Shape {
    /// Whether the parameters are within their bounds.
    pub(crate) fn is_sound(&self) -> bool {
        let slots = self.slots.is_multiple_of(LINE_SLOTS) && (LINE_SLOTS..=MAX_SLOTS).contains(&self.slots);
        slots && (2..=MAX_LEAVES).contains(&self.leaves) && (1..=MAX_PAGE_LINES).contains(&self.page_lines)
    }

    /// Lines of a leaf.
    pub(crate) fn leaf_lines(&self) -> usize {
        self.slots / LINE_SLOTS
    }

    /// Bytes of a unit: a range block or a leaf.
    pub(crate) fn unit(&self) -> u64 {
        (self.leaf_lines().max(1 + 2 * self.leaves) * LINE) as u64
    }

    /// Bytes of a log page with its head.
    pub(crate) fn page_bytes(&self) -> u64 {
        (self.page_lines + 1) * LINE as u64
    }

    /// Records of a log page.
    pub(crate) fn page_records(&self) -> u64 {
        self.page_lines * LINE_RECORDS
    }

    /// The two words that stand for the shape in the root.
    pub(crate) fn to_words(self) -> [u64; 2] {
        [self.slots as u64 | (self.leaves as u64) << 32, self.page_lines]
    }

    /// The shape that two words stand for, if it is one.
    pub(crate) fn from_words([units, page_lines]: [u64; 2]) -> Option<Shape> {
        let shape = Shape { slots: units as u32 as usize, leaves: (units >> 32) as usize, page_lines };
        shape.is_sound().then_some(shape)
    }

    /// Where a descriptor lies.
    pub fn descriptor(&self, block: Off<RangeHead>, side: usize, index: usize) -> Off<Descriptor> {
        block.byte_add(((1 + side * self.leaves + index) * LINE) as u64).cast()
    }
}

/// The slots of a leaf, seen at once: as many as the largest leaf has.
pub(crate) type Slots = [[Word; 2]; MAX_SLOTS];

/// Where a line of a leaf lies.
pub(crate) fn slot_line(leaf: u64, slot: usize) -> Off<SlotLine> {
    Off::new(leaf + (slot / LINE_SLOTS * LINE) as u64)
}

/// Where a line of records of a page lies.
pub(crate) fn record_line(page: u64, line: u64) -> Off<RecordLine> {
    Off::new(page + (1 + line) * LINE as u64)
}

/// The checksum in an extent's head.
pub(crate) fn head_sum(magic: u64, size: u64) -> u64 {
    (magic ^ size.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_frozen() {
        let heads = [
            offset_of!(ExtentHead, magic),
            offset_of!(ExtentHead, size),
            offset_of!(ExtentHead, polarity),
            offset_of!(ExtentHead, sum),
            offset_of!(ExtentHead, next),
            offset_of!(ExtentHead, before),
        ];
        assert_eq!(heads, [0, 8, 16, 24, 32, 40]);
        assert_eq!((offset_of!(RecordLine, records), size_of::<RecordLine>()), (0, 64));
        assert_eq!(
            [
                offset_of!(RangeHead, state),
                offset_of!(RangeHead, low),
                offset_of!(RangeHead, magic),
                offset_of!(RangeHead, named)
            ],
            [0, 8, 16, 24]
        );
        let descriptor = [
            offset_of!(Descriptor, leaf),
            offset_of!(Descriptor, low),
            offset_of!(Descriptor, taken),
            offset_of!(Descriptor, count),
            offset_of!(Descriptor, next),
        ];
        assert_eq!(descriptor, [0, 8, 16, 48, 56]);
        let root = [
            offset_of!(RootWords, first),
            offset_of!(RootWords, units),
            offset_of!(RootWords, page_lines),
            offset_of!(RootWords, magic),
            offset_of!(RootWords, records),
            offset_of!(RootWords, record_page),
            offset_of!(RootWords, others),
        ];
        assert_eq!(root, [0, 8, 16, 24, 32, 40, 48]);
        let shape = Shape { slots: 256, leaves: 31, page_lines: 1023 };
        assert_eq!((shape.unit(), shape.page_bytes(), shape.page_records()), (4096, 65536, 2046));
        assert_eq!(shape.descriptor(Off::new(4096), 1, 2).get(), 4096 + 64 * 34);
        assert_eq!((slot_line(640, 7).get(), record_line(640, 3).get()), (704, 896));
        assert_eq!(head_sum(UNITS_MAGIC, 4096), 14_909_019_789_773_368_980);
    }

    #[test]
    fn state_words_come_back() {
        for side in 0..2 {
            for floor in [0, 1, 77, MAX_VERSION] {
                let state = State::from_bits(State::new(side, floor).to_bits());
                assert_eq!((state.side(), state.floor()), (side, floor));
            }
        }
    }

    #[test]
    fn shapes_come_back_and_others_are_refused() {
        let shape = Shape { slots: 4, leaves: 2, page_lines: 1 };
        assert_eq!(Shape::from_words(shape.to_words()), Some(shape));
        for bad in [[0, 1], [5 | 2 << 32, 1], [4 | 1 << 32, 1], [4 | 65 << 32, 1], [260 | 2 << 32, 1], [4 | 2 << 32, 0]]
        {
            assert_eq!(Shape::from_words(bad), None, "{bad:x?}");
        }
    }
}
