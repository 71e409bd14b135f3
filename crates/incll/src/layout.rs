//! The persistent structs of the tree and its allocator, their words and their line maps.

use durix_pmem::{Bits, Checksum, Off, Version, Word, layout, persistent};

/// Version of the layout.
pub const LAYOUT_VERSION: Version = Version::of(1, LAYOUT);
const LAYOUT: u32 = layout!(
    [Node, Border, Interior, Slotted, SlabHead, Bitmap, TreeRoot],
    SLAB_MAGIC,
    SLOTS,
    KEYS,
    NODE_LINES,
    GROUP,
    SLOTTED,
    FACTOR,
    PLACE_FREE,
    slab_kind::NODES,
    slab_kind::INTERIORS,
    REVISION,
);
/// Counts changes of what the words mean.
const REVISION: u64 = 1;
/// First word of a slab, `DURIXSLB` read as little-endian bytes.
pub const SLAB_MAGIC: u64 = u64::from_le_bytes(*b"DURIXSLB");
/// Slots of a border node.
pub const SLOTS: usize = 15;
/// Keys of an interior node; it has one child more.
pub const KEYS: usize = 15;
/// Lines of a node.
pub const NODE_LINES: u32 = 5;
/// Blocks that one bitmap line describes.
pub const GROUP: u64 = 192;

persistent! {
    /// A node of either kind: what both have in the same place, and the rest as words.
    pub struct Node: align(64) {
        /// Word 0: locks and counts; volatile in meaning.
        pub version: Word,
        /// Words 1 and 2.
        pub middle: [Word; 2],
        /// Word 3.
        pub stamp: Word<Stamp>,
        /// Words 4 to 39.
        pub rest: [Word; 36],
    }

    /// A border node.
    ///
    /// | line | words | what | why there |
    /// |---|---|---|---|
    /// | 0 | version | locked, being changed, deleted; changes | |
    /// | 0 | permutation, saved, stamp | InCLLp: the permutation, as it was at the start of the stamp's epoch | one line: IN-P1, IN-P2 |
    /// | 0 | next, high | right sibling, and the slice where it starts | change only after the node was logged |
    /// | 0 | kinds, inline | four bits and one bit a slot | bits of a slot change only with the slot |
    /// | 0 | inline, bits 16–63 | [`place_of`] the node, and the seal of its layer | written with the new node |
    /// | 1–4 | slots | key slice and value of four slots | an update dirties one of these lines |
    /// | 4 | layer, above | the [layer](LayerName) of the node | written with the new node |
    pub struct Border: align(64) {
        /// See [`Node`].
        pub version: Word,
        /// Which slots are live, in key order.
        pub permutation: Word<Permutation>,
        /// The permutation at the start of the stamp's epoch (permutationInCLL).
        pub saved: Word<Permutation>,
        /// See [`Node`].
        pub stamp: Word<Stamp>,
        /// Right sibling.
        pub next: Word<Off<Node>>,
        /// Smallest slice of the right sibling, where there is one.
        pub high: Word,
        /// Four bits a slot.
        pub kinds: Word<Kinds>,
        /// One bit a slot: the value word is the value. Above them, the place of the node, and the seal of its layer.
        pub inline: Word,
        /// Key slice and value; in the last one, the [layer](LayerName) of the node.
        pub slots: [[Word; 2]; SLOTS + 1],
    }

    /// An interior node. Changes only after it was logged.
    ///
    /// | line | words |
    /// |---|---|
    /// | 0 | version, count, place, stamp, keys 0–3 |
    /// | 1 | keys 4–11 |
    /// | 2 | keys 12–14, children 0–4 |
    /// | 3 | children 5–12 |
    /// | 4 | children 13–15, –, –, –, –, – |
    pub struct Interior: align(64) {
        /// See [`Node`].
        pub version: Word,
        /// Number of keys.
        pub count: Word,
        /// [`place_of`] the node.
        pub place: Word,
        /// See [`Node`].
        pub stamp: Word<Stamp>,
        /// Child `i + 1` holds the slices from key `i` on. Those that do not count are the largest number, so that all can be
        /// compared without asking how many there are.
        pub keys: [Word; KEYS],
        /// One more than keys.
        pub children: [Word<Off<Node>>; KEYS + 1],
        /// Unused.
        pub rest: [Word; 5],
    }

    /// An interior node under InCLL (section 6.1), of trees with [`Policy::INTERIOR_IN_LINE`](crate::Policy::INTERIOR_IN_LINE)
    /// alone: keys and children lie in slots, as in a border node, and a change of the permutation is undone as there.
    ///
    /// | line | words | what | why there |
    /// |---|---|---|---|
    /// | 0 | version | as in [`Border`] | |
    /// | 0 | permutation, saved, stamp | InCLLp | one line: IN-P1, IN-P2 |
    /// | 0 | first | the leftmost child | changes only after the node was logged |
    /// | 1–4 | slots | a key and the child to its right, four of them | a new separator dirties one of these lines |
    pub struct Slotted: align(64) {
        /// See [`Node`].
        pub version: Word,
        /// Which slots count, in key order.
        pub permutation: Word<Permutation>,
        /// The permutation at the start of the stamp's epoch.
        pub saved: Word<Permutation>,
        /// See [`Node`].
        pub stamp: Word<Stamp>,
        /// The child that holds the slices before the first key.
        pub first: Word<Off<Node>>,
        /// Unused.
        pub unused: [Word; 2],
        /// [`place_of`] the node.
        pub place: Word,
        /// Key, and the child that holds the slices from there on; the last one is not used.
        pub slots: [[Word; 2]; SLOTS + 1],
    }

    /// The first line of a slab or of an extent of another kind; written once.
    pub struct SlabHead: align(64) {
        /// [`SLAB_MAGIC`].
        pub magic: Word,
        /// [`kind`](slab_kind).
        pub kind: Word,
        /// Bytes of a block.
        pub block: Word,
        /// Number of blocks.
        pub blocks: Word,
        /// Exclusive or of the words before.
        pub check: Word,
        /// Unused, zero.
        pub rest: [Word; 3],
    }

    /// Which of 192 blocks are taken, under InCLL: one line (IN-A1, IN-A2).
    pub struct Bitmap: align(64) {
        /// Epoch and round of the last change.
        pub stamp: Word<Stamp>,
        /// One bit a block.
        pub now: [Word; 3],
        /// The same at the start of that epoch.
        pub then: [Word; 3],
        /// Unused, zero.
        pub rest: Word,
    }

    /// The tree's own line: in a pool the words of its root entry.
    pub struct TreeRoot: align(64) {
        /// The root of the first layer, with [`SLOTTED`] where interior nodes are [`Slotted`]; written once.
        pub root: Word<Off<Node>>,
        /// Not this structure's: zero, but for the last two words, which belong to whoever opens the root.
        pub rest: [Word; 7],
    }
}

/// Bit of the link to the root that says that interior nodes are [`Slotted`]: who does not know them does not open the tree.
pub const SLOTTED: u64 = 1;

/// What a node says of the place where it lies, so that one that was copied over another shows: bits 16–63 of a checksum. A border node
/// adds the [seal](LayerName::seal) of its layer, by exclusive or.
pub fn place_of(off: u64) -> u64 {
    Checksum::at(off).finish() & !PLACE_FREE
}

/// Which layer of the tree a border node belongs to: the slice under which the layer above leads to it, and the number of that layer, from
/// which follows the slice under which the layer above that one leads there, if its own number is known. So the keys of a node can be
/// told although nothing leads to it any more, and although nothing is left of the layer above: layer by layer, from the first one on.
/// They stay while the root of a layer is an interior node, which does not use them:
///
/// | word | what |
/// |---|---|
/// | 0 of the slot that is not used | the slice; zero in the first layer |
/// | 1 of that slot | the [number](Self::number) of the layer above; zero in the first layer |
/// | `inline`, bits 16–63 | [`place_of`] the node, and the [seal](Self::seal): a checksum of both words, and of the layer above the one above |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerName {
    slice: u64,
    above: u64,
    seal: u64,
}

impl LayerName {
    /// The first layer.
    pub const FIRST: LayerName = LayerName { slice: 0, above: 0, seal: 0 };
    const FIRST_NUMBER: u64 = 1;

    /// The layer that a slice of this one leads to.
    pub fn below(self, slice: u64) -> Self {
        let above = self.number();
        LayerName { slice, above, seal: mark_of(slice, above) ^ grandchild_mark(self.above) }
    }

    /// The layer whose keys begin with these bytes, a multiple of eight.
    pub fn of(prefix: &[u8]) -> Self {
        let slices = prefix.as_chunks::<8>().0.iter().map(|slice| u64::from_be_bytes(*slice));
        slices.fold(Self::FIRST, Self::below)
    }

    /// The slice that leads to it, unless it is the first layer.
    pub fn slice(self) -> Option<u64> {
        (self != Self::FIRST).then_some(self.slice)
    }

    /// The number of the layer above.
    pub fn above(self) -> u64 {
        self.above
    }

    /// 64 bits. From them and the number of the layer above follows the slice: [`below_by_number`](Self::below_by_number).
    pub fn number(self) -> u64 {
        if self == Self::FIRST {
            return Self::FIRST_NUMBER;
        }
        scrambled(self.slice ^ Checksum::at(self.above).finish())
    }

    /// The layer of a number, if this is the one above it.
    pub fn below_by_number(self, number: u64) -> Self {
        self.below(unscrambled(number) ^ Checksum::at(self.number()).finish())
    }

    /// 48 bits, in bits 16–63: the same for all nodes of the layer.
    pub fn seal(self) -> u64 {
        self.seal
    }

    /// What the layer above the one above has as [mark](Self::mark), if this name is right. None of the first layer, and of those below it.
    pub fn mark_above(self) -> Option<u64> {
        (self != Self::FIRST && self.above != Self::FIRST_NUMBER).then(|| self.seal ^ mark_of(self.slice, self.above))
    }

    /// What the layers two below it know it by: bits 16–63.
    pub fn mark(self) -> u64 {
        grandchild_mark(self.number())
    }

    /// Its words, in the slot that is not used.
    pub fn words(self) -> [u64; 2] {
        [self.slice, self.above]
    }

    /// What a node at `off` says: its words, and what it says of its place.
    pub fn read(words: [u64; 2], place: u64, off: u64) -> Self {
        LayerName { slice: words[0], above: words[1], seal: place ^ place_of(off) }
    }
}

fn mark_of(slice: u64, above: u64) -> u64 {
    Checksum::at(above).pair(slice, above).finish() & !PLACE_FREE
}

fn grandchild_mark(number: u64) -> u64 {
    Checksum::at(number).finish() & !PLACE_FREE
}

/// Odd, so that a product can be taken back.
const FACTOR: u64 = 0xa076_1d64_78bd_642f;
const BACK: u64 = {
    // Each step doubles the number of right bits, of which an odd number has three to begin with.
    let (mut back, mut step) = (FACTOR, 0);
    while step < 5 {
        back = back.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(back)));
        step += 1;
    }
    back
};

fn scrambled(word: u64) -> u64 {
    let mixed = (word ^ word >> 32).wrapping_mul(FACTOR);
    mixed ^ mixed >> 32
}

fn unscrambled(word: u64) -> u64 {
    let mixed = (word ^ word >> 32).wrapping_mul(BACK);
    mixed ^ mixed >> 32
}

/// The bits of the word of a place that are something else's.
pub const PLACE_FREE: u64 = 0xffff;

/// What an extent holds.
pub mod slab_kind {
    /// Records of one size.
    pub const RECORDS: u64 = 1;
    /// One block larger than any class.
    pub const LARGE: u64 = 2;
    /// A segment of the external log.
    pub const LOG: u64 = 3;
    /// Nodes, and nothing else: what a sweep finds there has a stamp. Those that are made as border nodes.
    pub const NODES: u64 = 4;
    /// The same, those that are made as interior ones.
    pub const INTERIORS: u64 = 5;
}

/// Which slots are live, in key order: bits 0–3 how many, then four bits a rank. Ranks beyond that are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Permutation(u64);

impl Permutation {
    /// No slot.
    pub const EMPTY: Permutation = Permutation(0);

    /// Slots `0..len`, in this order. Precondition: `len <= SLOTS`.
    pub fn first(len: usize) -> Self {
        Permutation(0xEDCB_A987_6543_2100).truncate(len)
    }

    /// How many; at most [`SLOTS`], whatever the bits.
    #[inline(always)]
    pub fn len(self) -> usize {
        (self.0 & 15) as usize
    }

    /// Whether no slot is live.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The slot of a rank, at most 15. Precondition: `rank < SLOTS`.
    #[inline(always)]
    pub fn slot(self, rank: usize) -> usize {
        (self.0 >> (4 + 4 * rank) & 15) as usize
    }

    /// The live slots as bits. Without branches: the length of a node cannot be foreseen. Two ranks at a time, by a table.
    #[inline(always)]
    pub fn mask(self) -> u16 {
        const PAIRS: [u16; 256] = {
            let (mut pairs, mut byte) = ([0; 256], 0);
            while byte < 256 {
                pairs[byte] = 1 << (byte & 15) | 1 << (byte >> 4);
                byte += 1;
            }
            pairs
        };
        // Ranks that do not count, and the sixteenth, stand for the slot that is not used.
        let all = self.0 >> 4 | u64::MAX << (4 * self.len());
        let mask = all.to_le_bytes().into_iter().fold(0, |mask, pair| mask | PAIRS[usize::from(pair)]);
        mask & ((1 << SLOTS) - 1)
    }

    /// Whether a slot is live. Precondition: `slot < SLOTS`.
    #[inline(always)]
    pub fn contains(self, slot: usize) -> bool {
        const ONES: u64 = u64::MAX / 15;
        // Four bits are zero where the slot is; where ranks do not count, none is.
        let differs = (self.0 >> 4 ^ (slot as u64 * ONES)) | u64::MAX << (4 * self.len());
        differs.wrapping_sub(ONES) & !differs & ONES << 3 != 0
    }

    /// The first `len` of them. Precondition: `len <= self.len()`.
    #[must_use]
    pub fn truncate(self, len: usize) -> Self {
        Permutation(self.0 & (u64::MAX >> (60 - 4 * len)) & !15 | len as u64)
    }

    /// With `slot` at `rank`, those from there on moved up. Preconditions: `rank <= len < SLOTS`.
    #[must_use]
    pub fn insert(self, rank: usize, slot: usize) -> Self {
        let shift = 4 + 4 * rank;
        let below = self.0 & ((1 << shift) - 1);
        let above = if shift >= 60 { 0 } else { self.0 >> shift << (shift + 4) };
        Permutation((below | (slot as u64 & 15) << shift | above) + 1)
    }

    /// Without `rank`. Precondition: `rank < len`.
    #[must_use]
    pub fn remove(self, rank: usize) -> Self {
        let shift = 4 + 4 * rank;
        let below = self.0 & ((1 << shift) - 1);
        let above = if shift >= 60 { 0 } else { self.0 >> (shift + 4) << shift };
        Permutation((below | above) - 1)
    }

    /// With `slot` in place of the one at `rank`. Precondition: `rank < len`.
    #[must_use]
    pub fn replace(self, rank: usize, slot: usize) -> Self {
        let shift = 4 + 4 * rank;
        Permutation(self.0 & !(15 << shift) | (slot as u64 & 15) << shift)
    }
}

impl Bits for Permutation {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        Permutation(bits)
    }
}

/// What a slot holds.
pub mod kind {
    /// A key that ends in this slice has its number of bytes, up to this, as kind.
    pub const LAST_SHORT: u64 = 8;
    /// A key with a suffix; the value is a record.
    pub const SUFFIX: u64 = 9;
    /// The root of the next layer.
    pub const LAYER: u64 = 10;
}

/// Four bits a slot: see [`kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Kinds(u64);

impl Kinds {
    /// The kind of a slot, below 16.
    #[inline(always)]
    pub fn get(self, slot: usize) -> u64 {
        self.0 >> (4 * slot) & 15
    }

    /// With another kind for a slot.
    #[must_use]
    #[inline(always)]
    pub fn with(self, slot: usize, kind: u64) -> Self {
        Kinds(self.0 & !(15 << (4 * slot)) | kind << (4 * slot))
    }
}

impl Bits for Kinds {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        Kinds(bits)
    }
}

/// When and how a node was first changed: bits 0–39 the epoch, bit 40 whether nothing more needs to be logged in it, bit
/// 41 whether the node is interior, bits 42–47 the round of the epoch in which it was last changed, bits 48–52 which lines
/// are on the dirty list of that round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// All lines.
    pub const ALL_LINES: u64 = (1 << NODE_LINES) - 1;
    const LOGGED: u64 = 1 << 40;
    const INTERIOR: u64 = 1 << 41;
    const ROUND: u32 = 42;
    const LINES: u32 = 48;

    /// A stamp. Preconditions: `epoch < 2^40`, `lines <= ALL_LINES`.
    #[inline(always)]
    pub fn new(epoch: u64, interior: bool, logged: bool, lines: u64) -> Self {
        let flags = u64::from(logged) << 40 | u64::from(interior) << 41;
        Stamp(epoch | flags | lines << Self::LINES)
    }

    /// The epoch.
    #[inline(always)]
    pub fn epoch(self) -> u64 {
        self.0 & (Self::LOGGED - 1)
    }

    /// Whether the epoch is before one.
    #[inline(always)]
    pub fn is_before(self, epoch: Before) -> bool {
        self.0 << Before::SHIFT < epoch.0
    }

    /// Whether a node can have it in an epoch: all bits without meaning are zero.
    pub fn is_plausible(self, epoch: u64) -> bool {
        (1..=epoch).contains(&self.epoch()) && self.0 >> (Self::LINES + NODE_LINES) == 0
    }

    /// The round.
    #[inline(always)]
    pub fn round(self) -> u64 {
        self.0 >> Self::ROUND & 63
    }

    /// Of another kind of node.
    #[must_use]
    #[inline(always)]
    pub fn of_kind(self, interior: bool) -> Self {
        Stamp(self.0 & !Self::INTERIOR | u64::from(interior) << 41)
    }

    /// In a round, with these lines and no others. Preconditions: `round < 64`, `lines <= ALL_LINES`.
    #[must_use]
    #[inline(always)]
    pub fn in_round(self, round: u64, lines: u64) -> Self {
        let kept = self.0 & ((1 << Self::ROUND) - 1);
        Stamp(kept | round << Self::ROUND | lines << Self::LINES)
    }

    /// Whether the node may be changed at will in this epoch.
    #[inline(always)]
    pub fn is_logged(self) -> bool {
        self.0 & Self::LOGGED != 0
    }

    /// Whether these lines may be changed at will in this epoch, and are on the dirty list of this round: whoever changes them has
    /// nothing else to do. One comparison. Preconditions: as of [`new`](Self::new) and [`in_round`](Self::in_round).
    #[inline(always)]
    pub fn is_settled(self, epoch: u64, round: u64, lines: u64) -> bool {
        let wanted = epoch | Self::LOGGED | round << Self::ROUND | lines << Self::LINES;
        let looked_at = (Self::LOGGED - 1) | Self::LOGGED | 63 << Self::ROUND | lines << Self::LINES;
        (self.0 ^ wanted) & looked_at == 0
    }

    /// Whether the node is interior.
    #[inline(always)]
    pub fn is_interior(self) -> bool {
        self.0 & Self::INTERIOR != 0
    }

    /// The lines that are on the dirty list, a bit each.
    #[inline(always)]
    pub fn lines(self) -> u64 {
        self.0 >> Self::LINES & Self::ALL_LINES
    }

    /// With more lines.
    #[must_use]
    #[inline(always)]
    pub fn with_lines(self, lines: u64) -> Self {
        Stamp(self.0 | lines << Self::LINES)
    }
}

/// An epoch in the form in which stamps are [compared](Stamp::is_before) with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before(u64);

impl Before {
    const SHIFT: u32 = 24;

    /// For an epoch. Precondition: `epoch < 2^40`.
    pub fn epoch(epoch: u64) -> Self {
        Before(epoch << Self::SHIFT)
    }

    /// Whether there is no epoch before it.
    pub fn is_never(self) -> bool {
        self.0 == 0
    }
}

impl Bits for Stamp {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        Stamp(bits)
    }
}

/// The bits of a version word: bit 0 locked, bit 1 dirty, bit 2 deleted, bits 3–11 the owner of the lock, and above them the
/// number of changes.
pub mod version {
    /// A writer has the node.
    pub const LOCKED: u64 = 1;
    /// It is being changed: readers wait.
    pub const DIRTY: u64 = 2;
    /// It is no longer part of the tree.
    pub const DELETED: u64 = 4;
    /// One change.
    pub const STEP: u64 = 1 << 12;
    /// All bits that a lock sets. A reader ignores them: a locked node that is not dirty has not changed yet.
    pub const HELD: u64 = LOCKED | (MAX_OWNERS - 1) << OWNER;

    const OWNER: u32 = 3;
    const MAX_OWNERS: u64 = 1 << 9;
    const _: () = assert!(durix_pmem::MAX_SESSIONS as u64 <= MAX_OWNERS);

    /// What the session of a slot sets to lock a node. Precondition: `slot < MAX_SESSIONS`.
    #[inline(always)]
    pub fn held_by(slot: u32) -> u64 {
        LOCKED | u64::from(slot) << OWNER
    }

    /// The slot of the session that has locked a node. Meaningful only while the node is locked.
    pub fn owner(version: u64) -> u32 {
        (version >> OWNER & (MAX_OWNERS - 1)) as u32
    }
}

/// First word of a record: bits 0–28 bytes of the value, bits 29–45 bytes of the key suffix, bits 46–63 a checksum of where the record
/// lies, these lengths, suffix and value, each of these filled up with zeroes to whole words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead(u64);

impl RecordHead {
    const SUFFIX: u32 = 29;
    const SUM: u32 = 46;

    /// A head without its checksum. Preconditions: a suffix of at most [`MAX_KEY`](crate::MAX_KEY), a value of at most
    /// [`MAX_VALUE`](crate::MAX_VALUE).
    pub fn new(suffix: usize, value: usize) -> Self {
        RecordHead((suffix as u64) << Self::SUFFIX | value as u64)
    }

    /// The beginning of the checksum of the record at an offset.
    #[inline(always)]
    pub(crate) fn checksum(self, off: u64) -> Checksum {
        Checksum::at(off).pair(self.0 & ((1 << Self::SUM) - 1), 0)
    }

    /// With its checksum, in place of any other.
    #[must_use]
    #[inline(always)]
    pub(crate) fn with_sum(self, sum: Checksum) -> Self {
        RecordHead(self.0 & ((1 << Self::SUM) - 1) | sum.finish() << Self::SUM)
    }

    /// Bytes of the suffix.
    pub fn suffix(self) -> usize {
        (self.0 >> Self::SUFFIX & 0x1_ffff) as usize
    }

    /// Bytes of the value.
    pub fn value(self) -> usize {
        (self.0 & 0x1fff_ffff) as usize
    }

    /// Words of suffix and value.
    pub fn words(self) -> usize {
        self.suffix().div_ceil(8) + self.value().div_ceil(8)
    }

    /// Bytes of the record.
    pub fn bytes(self) -> u64 {
        8 + 8 * self.words() as u64
    }
}

impl Bits for RecordHead {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        RecordHead(bits)
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Node>() == 320 && size_of::<Border>() == 320 && size_of::<Interior>() == 320);
    assert!(align_of::<Border>() == 64, "a node starts a line, so that these are shared:");
    assert!(
        offset_of!(Border, permutation) / 64 == offset_of!(Border, saved) / 64
            && offset_of!(Border, saved) / 64 == offset_of!(Border, stamp) / 64,
        "InCLLp shares the permutation's line"
    );
    assert!(offset_of!(Border, slots) == 64 && size_of::<[Word; 2]>() * 4 == 64, "a slot lies on one line");
    assert!(offset_of!(Interior, rest) <= 64 + SLOTS * 16, "an interior node leaves the name of a layer alone");
    assert!(
        offset_of!(Node, stamp) == offset_of!(Border, stamp) && offset_of!(Node, stamp) == offset_of!(Interior, stamp)
    );
    assert!(
        size_of::<Slotted>() == size_of::<Border>()
            && offset_of!(Slotted, permutation) == offset_of!(Border, permutation)
            && offset_of!(Slotted, saved) == offset_of!(Border, saved)
            && offset_of!(Slotted, stamp) == offset_of!(Border, stamp)
            && offset_of!(Slotted, slots) == offset_of!(Border, slots),
        "InCLLp of both is the same code"
    );
    assert!(
        KEYS == SLOTS && offset_of!(Slotted, permutation) == offset_of!(Interior, count),
        "the low bits of a permutation are how many keys count"
    );
    assert!(size_of::<Bitmap>() == 64 && align_of::<Bitmap>() == 64, "a bitmap shares its line with its undo copy");
    assert!(size_of::<SlabHead>() == 64 && size_of::<TreeRoot>() == 64);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Here to prevent any accidental change: a change of these numbers is a change of the format.
    #[test]
    fn layout_is_frozen() {
        assert_eq!(
            [offset_of!(Border, version), offset_of!(Border, permutation), offset_of!(Border, saved)],
            [0, 8, 16]
        );
        assert_eq!([offset_of!(Border, stamp), offset_of!(Border, next), offset_of!(Border, high)], [24, 32, 40]);
        assert_eq!([offset_of!(Border, kinds), offset_of!(Border, inline), offset_of!(Border, slots)], [48, 56, 64]);
        assert_eq!(
            [offset_of!(Interior, count), offset_of!(Interior, keys), offset_of!(Interior, children)],
            [8, 32, 152]
        );
        assert_eq!(
            [offset_of!(Slotted, permutation), offset_of!(Slotted, saved), offset_of!(Slotted, stamp)],
            [8, 16, 24]
        );
        assert_eq!([offset_of!(Slotted, first), offset_of!(Slotted, slots), SLOTTED as usize], [32, 64, 1]);
        assert_eq!(
            [offset_of!(SlabHead, kind), offset_of!(SlabHead, block), offset_of!(SlabHead, blocks)],
            [8, 16, 24]
        );
        assert_eq!(offset_of!(SlabHead, check), 32);
        assert_eq!([offset_of!(Bitmap, stamp), offset_of!(Bitmap, now), offset_of!(Bitmap, then)], [0, 8, 32]);
        assert_eq!((offset_of!(TreeRoot, root), slab_kind::NODES, slab_kind::INTERIORS), (0, 4, 5));
        assert_eq!(Stamp::new(5, true, true, 3).to_bits(), 0x0003_0300_0000_0005);
        assert_eq!(Permutation::first(3).to_bits(), 0x2103);
        assert_eq!(RecordHead::new(2, 3).to_bits(), 0x4000_0003);
        assert_eq!(
            RecordHead::new(2, 3).with_sum(RecordHead::new(2, 3).checksum(64)).to_bits(),
            17_976_469_757_443_964_931
        );
        let longest = RecordHead::new(crate::MAX_KEY, crate::MAX_VALUE);
        assert_eq!((longest.suffix(), longest.value()), (crate::MAX_KEY, crate::MAX_VALUE));
        assert_eq!(SLAB_MAGIC, 0x424c_5358_4952_5544);
    }

    #[test]
    fn a_layer_is_known_from_the_layer_two_above_it() {
        let first = LayerName::FIRST;
        assert_eq!((first.seal(), first.words(), first.number()), (0, [0, 0], 1));
        assert_eq!(
            (BACK.wrapping_mul(FACTOR), unscrambled(scrambled(0x1234_5678_9abc_def0))),
            (1, 0x1234_5678_9abc_def0)
        );
        let mut prefix = b"the first bytes of keys and more".to_vec();
        prefix.extend([0; 24]);
        for len in (8..=prefix.len()).step_by(8) {
            let name = LayerName::of(&prefix[..len]);
            let above = LayerName::of(&prefix[..len - 8]);
            assert_eq!((name.above(), name == first), (above.number(), false));
            assert_eq!(LayerName::read(name.words(), place_of(640) ^ name.seal(), 640), name);
            match name.mark_above() {
                None => assert_eq!(len, 8),
                Some(mark) => {
                    let two_above = LayerName::of(&prefix[..len - 16]);
                    assert_eq!((mark, two_above.below_by_number(name.above())), (two_above.mark(), above));
                }
            }
        }
        assert_eq!(LayerName::of(b"eight by").below(7).words(), [7, 0x22cc_7f00_97f2_e26b]);
        assert_eq!(LayerName::of(b"eight by").below(7).seal(), 0x6aae_d218_8379_0000);
    }

    #[test]
    fn settled_is_what_the_parts_of_a_stamp_say() {
        for (epoch, logged, interior) in [(5, true, false), (5, false, false), (4, true, false), (7, true, true)] {
            for (round, noted) in [(0, 1), (3, 1), (3, 0b11), (3, 0b10101), (63, Stamp::ALL_LINES), (35, 0b11)] {
                let stamp = Stamp::new(epoch, interior, logged, 0).in_round(round, noted);
                for (now, of, line) in [(5, 0), (5, 3), (5, 63), (4, 3), (7, 3)]
                    .into_iter()
                    .flat_map(|(now, of)| (0..5).map(move |line| (now, of, 1 << line)))
                {
                    let settled = epoch == now && logged && round == of && noted & line != 0;
                    assert_eq!(stamp.is_settled(now, of, line), settled, "{stamp:?} in {now}, {of}: {line:b}");
                }
            }
        }
    }

    #[test]
    fn permutations_agree_with_vectors() {
        let list = |p: Permutation| (0..p.len()).map(|rank| p.slot(rank)).collect::<Vec<_>>();
        let mut state = 1u64;
        let (mut p, mut v) = (Permutation::EMPTY, Vec::new());
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (state >> 33) as usize;
            let free = (0..SLOTS).find(|s| !v.contains(s));
            match (random % 3, free) {
                (0, Some(slot)) => {
                    let rank = random / 3 % (v.len() + 1);
                    (p, _) = (p.insert(rank, slot), v.insert(rank, slot));
                }
                (1, Some(slot)) if !v.is_empty() => {
                    let rank = random / 3 % v.len();
                    (p, v[rank]) = (p.replace(rank, slot), slot);
                }
                _ if !v.is_empty() => {
                    let rank = random / 3 % v.len();
                    (p, _) = (p.remove(rank), v.remove(rank));
                }
                _ => {}
            }
            assert_eq!(list(p), v);
            assert_eq!(p.mask(), v.iter().fold(0, |m, s| m | 1 << s));
            assert!((0..SLOTS).all(|slot| p.contains(slot) == v.contains(&slot)));
            let len = random / 7 % (v.len() + 1);
            assert_eq!(list(p.truncate(len)), v[..len]);
            let again = v[..len].iter().enumerate().fold(Permutation::EMPTY, |p, (rank, slot)| p.insert(rank, *slot));
            assert_eq!(p.truncate(len), again, "ranks that do not count are zero");
        }
        assert_eq!(list(Permutation::first(SLOTS)), (0..SLOTS).collect::<Vec<_>>());
    }

    #[test]
    fn kinds_and_stamps_keep_their_neighbours() {
        for slot in 0..SLOTS {
            let kinds = Kinds::from_bits(0x0123_4567_89ab_cdef).with(slot, 10);
            assert_eq!(kinds.get(slot), 10);
            assert!((0..16).all(|s| s == slot || kinds.get(s) == Kinds::from_bits(0x0123_4567_89ab_cdef).get(s)));
        }
        let stamp = Stamp::new((1 << 40) - 1, false, true, 1).with_lines(16);
        assert_eq!(
            (stamp.epoch(), stamp.is_logged(), stamp.is_interior(), stamp.lines()),
            ((1 << 40) - 1, true, false, 17)
        );
        let later = stamp.in_round(63, 2);
        assert_eq!((later.epoch(), later.is_logged(), later.is_interior()), ((1 << 40) - 1, true, false));
        assert_eq!((later.round(), later.lines(), stamp.round()), (63, 2, 0));
        assert_eq!(later.in_round(0, 17), stamp);
    }
}
