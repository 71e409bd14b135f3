//! Everything that lies in persistent memory.
//!
//! # Root (one line, the index's own words in its pool's root entry)
//! | word | list | hash table | search tree | skip list |
//! |---|---|---|---|---|
//! | 0 | bytes of a page | same | same | same |
//! | 1 | offset of the first [`Segment`] of active pages | same | same | same |
//! | 2 | [`Link`] to the first node | offset of the first array of buckets, one [`Link`] each, and the directory behind it | [`Link`] to the topmost branch | offset of the array of 11 first links |
//! | 3 | – | number of buckets when it was created, 2^n | – | number of the last run |
//! | 4 to 7 | zero | zero | zero | zero |
//!
//! # Page of nodes (a power of two of bytes, aligned to its size)
//! | line | what |
//! |---|---|
//! | 0 (to 1 for 64 KiB) | bitmap: bit `i` is set if line `i` is allocated; the bits of these lines stay 0 |
//! | rest | one [`Node`] each |
//!
//! # Node (one line)
//! | word | what | changes after publication |
//! |---|---|---|
//! | 0 | `next`: link to the next node, with the node's own deletion mark | yes |
//! | 1 | key | no |
//! | 2 | value | no: an update links a new node |
//! | 3 | [checksum](node_sum) of where the node lies, key and value | no |
//! | 4 to 7 | unused, arbitrary | no |
//!
//! # Hash table
//! The word `key` of a node is the spread key, which decides bucket and order. Buckets of 2^l are the runs of keys with the same
//! upper l bits.
//!
//! | what | where | changes |
//! |---|---|---|
//! | first array: heads of 2^n buckets | an extent; an [`end`](Link::end) where there is no node | yes |
//! | directory: 56 words, word `l` the offset of array `l`, or 0 | the same extent, on the first line behind the heads | once, from 0 |
//! | array `l`, n < l: heads of the odd buckets of 2^l, 2^(l-1) of them; 0 while the bucket is not cut from the one before | an extent of its own | yes |
//!
//! The head of an even bucket is that of half its number, in a table of half as many.
//!
//! # Branch of a search tree (one line, in the place of a node)
//! | word | what | changes after publication |
//! |---|---|---|
//! | 0, 1 | `edges`: the [`Link`]s to what is left and right: a branch, the branch's own leaf of that side, or nothing | yes |
//! | 2 | `router`: keys below it are on the left | no |
//! | 3, 4 | `leaves[0]`: key and value of the left leaf; zero if the edge has never led to it | no |
//! | 5, 6 | `leaves[1]`: those of the right leaf | no |
//! | 7 | [checksum](branch_sum) of where the branch lies, router and leaves | no |
//!
//! A leaf lies in the line of its branch: a search ends in the line where it makes its last turn, and an insert writes one
//! line and one link.
//!
//! # Node of a skip list (one line, in the place of a node)
//! | word | what | changes after publication |
//! |---|---|---|
//! | 0 to 2 | as in a list: the link on level 0, key, value | `next` does |
//! | 3 | number of levels, 1 to 11 (low 8 bits), the number of the run that wrote it (32 bits), and 24 bits of a [checksum](tall_sum) of where the node lies, key, value, this word, and word 7 | no |
//! | 4 to 6 | `tower`: links on levels 1 to 3 | yes |
//! | 7 | `more`: offset of the line with the upper links, 0 for at most 4 levels | no |
//!
//! # Upper links of a node with more than 4 levels (one line, in the place of a node; one node of 256)
//! | word | what | changes after publication |
//! |---|---|---|
//! | 0 | offset of the node | no |
//! | 1 to 7 | links on levels 4 to 10 | yes |
//!
//! The head of a skip list is an extent with a link for each of the 11 levels.
//!
//! # Records (`records/`): what is longer than a word
//! Word 4 of the root is the offset of the first [`Segment`] of active pages of records, word 5 (byte strings for keys) how many
//! bits of a key's hash count, and one. Pages of records lie in extents of their own, and are as large as those of nodes, at most 16 KiB.
//!
//! | line of a page | what |
//! |---|---|
//! | 0, words 0 to 3 | bitmap: bit `i` is set if the unit that begins in line `i` is allocated; bit 0 is set in every page of records, and in no page of nodes |
//! | 0, word 7 | [`RECORDS`], and how many lines a unit of this page has, 0 while that is not decided. On the line of the bitmap: durable with the first bit |
//! | rest | units |
//!
//! | word of a head (the first unit of a record) | what |
//! |---|---|
//! | 0 | bytes that follow (bits 0–30), checksum of where the record lies, this number, key, offsets of the parts, and bytes (bits 31–62); bit 63 is 0 |
//! | 1 | the key of the map |
//! | from 2 | the bytes; or, if they do not fit the largest unit, the offsets of the parts |
//!
//! | word of a part (a unit of the largest size) | what |
//! |---|---|
//! | 0 | bit 63, and the offset of the head |
//! | from 1 | bytes |
//!
//! A record never changes after publication, and lies on lines of its own.
//!
//! All decisions are single 8-byte words (a link, a bit of a bitmap, a cell of a segment), so nothing rests on the order of
//! stores within a line.
//!
//! # Versions that go up together
//! A kind of index has the version of one layout, and lies on what several share. Their digests follow this table by themselves:
//!
//! | a change of | raises |
//! |---|---|
//! | a page of nodes, its bitmap, [`Segment`], [`Link`] | all |
//! | [`Node`] | [`LIST_LAYOUT_VERSION`], [`HASH_LAYOUT_VERSION`], [`RECORDS_LAYOUT_VERSION`], [`LIST_RECORDS_LAYOUT_VERSION`] |
//! | the branch of a search tree | [`LAYOUT_VERSION`], [`RECORDS_LAYOUT_VERSION`], [`LIST_RECORDS_LAYOUT_VERSION`] |
//! | the node of a skip list, its upper links, its head | [`SKIP_LAYOUT_VERSION`], [`RECORDS_LAYOUT_VERSION`], [`LIST_RECORDS_LAYOUT_VERSION`] |
//! | arrays and directory of a hash table | [`HASH_LAYOUT_VERSION`], [`RECORDS_LAYOUT_VERSION`], [`LIST_RECORDS_LAYOUT_VERSION`] |
//! | a record, its page, its root words | [`RECORDS_LAYOUT_VERSION`], [`LIST_RECORDS_LAYOUT_VERSION`] |
//!
//! Maps with volatile links have a layout and a version of their own, in `soft/layout.rs`.

use durix_pmem::{Bits, Checksum, Off, Version, Word, layout, persistent};

/// Version of the layout of search trees with durable links.
pub const LAYOUT_VERSION: Version = Version::of(1, layout!([Branch, Leaf], SHARED));
/// Version of the layout of lists with durable links, which are experimental.
pub const LIST_LAYOUT_VERSION: Version = Version::unreleased(layout!([Node], SHARED));
/// Version of the layout of skip lists.
pub const SKIP_LAYOUT_VERSION: Version =
    Version::of(1, layout!([TallNode, Upper], SHARED, LEVELS, INNER, HEIGHT, RUN_SHIFT, RUNS, TALL_SUM));
/// Version of the layout of hash tables with durable links.
pub const HASH_LAYOUT_VERSION: Version = Version::of(1, layout!([Node], SHARED, DIRECTORY));
/// Version of the layout of records, and of maps with them.
pub const RECORDS_LAYOUT_VERSION: Version = Version::of(1, RECORDS_LAYOUT);
/// Version of the layout of lists with records, which are experimental.
pub const LIST_RECORDS_LAYOUT_VERSION: Version = Version::unreleased(RECORDS_LAYOUT);

/// What all of them depend on.
const SHARED: u32 =
    layout!([Segment], MIN_PAGE, MAX_PAGE, NODE, CELLS, DIRTY, DELETED, LEAF, OWNER, END, CUT, LEVEL_SHIFT, REVISION,);
const RECORDS_LAYOUT: u32 = layout!(
    [Node, TallNode, Upper, Leaf, Branch],
    SHARED,
    LEVELS,
    INNER,
    DIRECTORY,
    MAX_RECORD_PAGE,
    HEAD_TAG,
    RECORDS,
    PART,
    RECORD_MARKS,
    RECORD_SUM,
    RECORD_HEAD,
    PART_HEAD,
    ROOT_RECORDS,
    ROOT_HASH_BITS,
);
/// Counts changes of what the words mean: owners of links, checksums.
const REVISION: u64 = 4;

/// Words of the directory of a hash table.
pub(crate) const DIRECTORY: usize = 56;

/// Smallest page: a head and three nodes.
pub(crate) const MIN_PAGE: u64 = 256;
/// Largest page.
pub(crate) const MAX_PAGE: u64 = 64 << 10;
/// Bytes of a node.
pub(crate) const NODE: u64 = 64;

/// Root word: bytes of a page.
pub(crate) const ROOT_PAGE: usize = 0;
/// Root word: first segment.
pub(crate) const ROOT_SEGMENTS: usize = 1;
/// Root word: first node (list), or array of buckets (hash table).
pub(crate) const ROOT_HEAD: usize = 2;
/// Root word: number of buckets at creation.
pub(crate) const ROOT_BUCKETS: usize = 3;

/// Root word: number of the last run (skip list).
pub(crate) const ROOT_RUN: usize = 3;

/// Root word: first segment of active pages of records.
pub(crate) const ROOT_RECORDS: usize = 4;
/// Root word: bits of a key's hash that count, and one, so that it is never zero (byte strings for keys).
pub(crate) const ROOT_HASH_BITS: usize = 5;

/// Largest page of records: bitmap and [`RECORDS`] fit one line.
pub(crate) const MAX_RECORD_PAGE: u64 = 16 << 10;
/// Word of a page's head that says what it is.
pub(crate) const HEAD_TAG: usize = 7;
/// What it says; in the low 16 bits, the lines of a unit. No link and no offset has these bits.
pub(crate) const RECORDS: u64 = 0x0052_4543_4F52_0000;
/// Marks the first word of a part, and not that of a head.
pub(crate) const PART: u64 = 1 << 63;
/// Bits of the first word of a head that are the number of bytes.
pub(crate) const RECORD_BYTES: u64 = (1 << RECORD_SUM) - 1;
/// The bit of them that says that the first word of the bytes may change, and has no checksum: see [`RecordStore`](crate::RecordStore). Lengths
/// are below 2^25.
pub(crate) const RECORD_MARKS: u64 = 1 << 30;
/// Where its checksum begins.
pub(crate) const RECORD_SUM: u32 = 31;
/// Words of a head before the bytes.
pub(crate) const RECORD_HEAD: u64 = 2;
/// Words of a part before the bytes.
pub(crate) const PART_HEAD: u64 = 1;

/// Cells of a segment.
pub(crate) const CELLS: usize = 63;

/// Levels of a skip list.
pub(crate) const LEVELS: usize = 11;
/// Links of a tower in the node's own line.
pub(crate) const INNER: usize = 3;
/// The bits of a node's number of levels; those above hold the number of its run, and its checksum.
pub(crate) const HEIGHT: u64 = 0xff;
/// Where the number of its run begins.
pub(crate) const RUN_SHIFT: u32 = 8;
/// Numbers of runs.
pub(crate) const RUNS: u64 = 0xffff_ffff;
/// Where its checksum begins.
pub(crate) const TALL_SUM: u32 = 40;

persistent! {
    /// A node of a list or a bucket.
    pub(crate) struct Node: align(64) {
        /// The next node; its marks are this node's.
        pub(crate) next: Word<Link>,
        /// The key.
        pub(crate) key: Word,
        /// The value.
        pub(crate) value: Word,
        /// Its [`node_sum`].
        pub(crate) sum: Word,
        /// Not used.
        pub(crate) unused: [Word; 4],
    }

    /// A node of a skip list: a [`Node`] with a tower.
    pub(crate) struct TallNode: align(64) {
        /// As in a [`Node`].
        pub(crate) next: Word<Link>,
        /// As in a [`Node`].
        pub(crate) key: Word,
        /// As in a [`Node`].
        pub(crate) value: Word,
        /// Number of levels, and of the run that wrote it.
        pub(crate) height: Word,
        /// Links on levels 1 to 3.
        pub(crate) tower: [Word<Link>; INNER],
        /// The links above.
        pub(crate) more: Word<Off<Upper>>,
    }

    /// Links on levels 4 to 10 of a node of a skip list.
    pub(crate) struct Upper: align(64) {
        /// Offset of the node.
        pub(crate) node: Word,
        /// The links.
        pub(crate) links: [Word<Link>; LEVELS - 1 - INNER],
    }

    /// A key with its value, in the line of a branch.
    pub(crate) struct Leaf: align(8) {
        /// The key.
        pub(crate) key: Word,
        /// The value.
        pub(crate) value: Word,
    }

    /// A branch of a search tree, with its leaves.
    pub(crate) struct Branch: align(64) {
        /// What is left and right.
        pub(crate) edges: [Word<Link>; 2],
        /// Keys below it are on the left.
        pub(crate) router: Word,
        /// The leaves, where the edges say so.
        pub(crate) leaves: [Leaf; 2],
        /// Its [`branch_sum`].
        pub(crate) sum: Word,
    }

    /// A part of the table of active pages. Segments are never freed.
    pub(crate) struct Segment: align(64) {
        /// The next segment.
        pub(crate) next: Word<Off<Segment>>,
        /// Offsets of active pages; 0 for none. Which session a cell belongs to is volatile.
        pub(crate) cells: [Word; CELLS],
    }
}

/// The checksum of a node of a list or a bucket.
#[inline(always)]
pub(crate) fn node_sum(off: u64, key: u64, value: u64) -> u64 {
    Checksum::at(off).pair(key, value).finish()
}

/// The checksum of a node of a skip list, in its place. `height` is the word that it goes to; its upper bits do not count.
#[inline(always)]
pub(crate) fn tall_sum(off: u64, key: u64, value: u64, height: u64, more: u64) -> u64 {
    Checksum::at(off).pair(key, value).pair(height & ((1 << TALL_SUM) - 1), more).finish() << TALL_SUM
}

/// The checksum of a branch: of its router, and keys and values of its leaves.
#[inline(always)]
pub(crate) fn branch_sum(off: u64, router: u64, [left, right]: [(u64, u64); 2]) -> u64 {
    Checksum::at(off).pair(router, left.0).pair(left.1, right.0).pair(right.1, 0).finish()
}

const DIRTY: u64 = 1;
const DELETED: u64 = 2;
const LEAF: u64 = 4;
/// The ninth bit of an owner's slot.
const OWNER_TOP: u64 = 8;
/// There is an owner.
const OWNED: u64 = 16;
/// The low eight bits of an owner's slot.
const OWNER_LOW: u64 = 0xff << OWNER_SHIFT;
const OWNER_SHIFT: u32 = 48;
const OWNER: u64 = OWNED | OWNER_TOP | OWNER_LOW;
const MARKS: u64 = NODE - 1;
const END: u64 = 1 << 63;
const CUT: u64 = 1 << 62;
const LEVEL_SHIFT: u32 = 56;
/// Bits of an offset in a cut.
const REST: u64 = (1 << OWNER_SHIFT) - NODE;

/// The session that changes a link: its slot, as it stands in the link (bits 3, 4 and 48 to 55).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u64);

impl Owner {
    /// Nobody in particular.
    pub const NONE: Owner = Owner(0);

    /// The session in a slot, below 512.
    #[inline(always)]
    pub const fn of(slot: u32) -> Owner {
        let slot = slot as u64;
        Owner(OWNED | (slot & 0xff) << OWNER_SHIFT | (slot >> 8 & 1) << OWNER_TOP.trailing_zeros())
    }

    /// The slot; 0 for [`NONE`](Self::NONE).
    #[inline(always)]
    pub const fn slot(self) -> usize {
        ((self.0 & OWNER_LOW) >> OWNER_SHIFT | (self.0 & OWNER_TOP) << (8 - OWNER_TOP.trailing_zeros())) as usize
    }
}

/// A link to a node: its offset, and two marks in the low bits, which a node's alignment leaves free.
///
/// - *dirty* (bit 0): the link may not be durable yet. Who depends on it makes it durable first.
/// - *deleted* (bit 1): the node that holds the link is deleted; the link does not change any more.
/// - *leaf* (bit 2, search trees): the edge leads to the leaf that lies beside it.
/// - *owner* (bit 4, and a slot in bits 3 and 48 to 55), with *dirty*: who has changed it. It is durable unless that session
///   says otherwise: see `link.rs`. A dirty link without an owner may not be durable.
///
/// In a hash table the last link of a bucket is an *end*: bit 63, with a level in bits 56 to 61. While the bucket is cut in two it
/// is a *cut*: bit 62, too, and in bits 6 to 47 the offset of the first node that goes, or 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(u64);

impl Link {
    /// To nothing, durable, not deleted.
    pub const NULL: Link = Link(0);

    /// An edge to the leaf that lies beside it.
    pub(crate) const LEAF: Link = Link(LEAF);

    /// A durable link, not deleted. The low six bits of `off` are dropped.
    #[inline(always)]
    pub const fn to(off: u64) -> Link {
        Link(off & !MARKS)
    }

    /// Offset of the node, 0 for none.
    #[inline(always)]
    pub const fn off(self) -> u64 {
        self.0 & !(MARKS | OWNER_LOW)
    }

    /// Whether it may not be durable yet.
    #[inline(always)]
    pub const fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Whether the node that holds it is deleted.
    #[inline(always)]
    pub const fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }

    /// Whether it leads to the leaf beside it.
    #[inline(always)]
    pub(crate) const fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The same, not durable yet, whoever has changed it.
    #[inline(always)]
    #[must_use]
    pub const fn dirty(self) -> Link {
        Link(self.0 & !OWNER | DIRTY)
    }

    /// The same, not durable before its owner says so.
    #[inline(always)]
    #[must_use]
    pub const fn dirty_by(self, owner: Owner) -> Link {
        Link(self.0 & !OWNER | DIRTY | owner.0)
    }

    /// Who has changed it, if it is dirty.
    #[inline(always)]
    pub const fn owner(self) -> Owner {
        Owner(self.0 & OWNER)
    }

    /// The same, durable.
    #[inline(always)]
    #[must_use]
    pub const fn clean(self) -> Link {
        Link(self.0 & !(DIRTY | OWNER))
    }

    /// The same, in a deleted node.
    #[inline(always)]
    #[must_use]
    pub const fn deleted(self) -> Link {
        Link(self.0 | DELETED)
    }

    /// The same, in a node that is not deleted.
    #[must_use]
    pub(crate) const fn thawed(self) -> Link {
        Link(self.0 & !DELETED)
    }

    /// Whether it leads to no other line: [`NULL`](Self::NULL), an [`end`](Self::end) or a [`cut`](Self::cut).
    #[inline(always)]
    pub(crate) const fn is_null(self) -> bool {
        // Ends have the highest bit set, so one comparison does for all three.
        (self.0 & !OWNER_LOW).cast_signed() <= MARKS as i64
    }

    // ---- ends of runs, hash table ----

    /// The end of a run of a table of 2^`level` buckets: what follows belongs to another bucket. `level` is at most 63.
    pub(crate) const fn end(level: u32) -> Link {
        Link(END | (level as u64) << LEVEL_SHIFT)
    }

    /// The end of a run that is being cut from what `self` leads to (LF-K5): nobody goes on from here before that is in its own
    /// bucket, of a table of 2^`level`.
    pub(crate) const fn cut(self, level: u32) -> Link {
        let rest = if self.is_null() { 0 } else { self.off() };
        Link(END | CUT | (level as u64) << LEVEL_SHIFT | rest)
    }

    /// What a run was cut from: the first link of the new bucket.
    pub(crate) const fn rest(self) -> Link {
        let off = self.0 & REST;
        if off == 0 { Link::end(self.level()) } else { Link(off) }
    }

    /// Of an end or a cut, the level.
    #[inline(always)]
    pub(crate) const fn level(self) -> u32 {
        (self.0 >> LEVEL_SHIFT) as u32 & 63
    }

    /// Whether a run is being cut here.
    #[inline(always)]
    pub(crate) const fn is_cut(self) -> bool {
        self.0 & (END | CUT) == END | CUT
    }

    /// Of a link to nothing, whether it ends a run for who knows of 2^`level` buckets: it is no cut, and not younger.
    #[inline(always)]
    pub(crate) const fn ends_at(self, level: u32) -> bool {
        (self.0 >> LEVEL_SHIFT) as u32 & 127 <= level
    }

    #[inline(always)]
    pub(crate) fn node(self) -> Off<Node> {
        Off::new(self.off())
    }

    #[inline(always)]
    pub(crate) fn branch(self) -> Off<Branch> {
        Off::new(self.off())
    }
}

impl Bits for Link {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Link(bits)
    }
}

/// Where the lines of a page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageShape {
    /// Bytes, a power of two.
    pub(crate) bytes: u64,
    /// Lines that are allocated together: one for nodes.
    pub(crate) unit: u64,
}

impl PageShape {
    /// A page of nodes.
    pub(crate) const fn of_nodes(bytes: u64) -> Self {
        PageShape { bytes, unit: 1 }
    }

    /// Lines, the head's included.
    pub(crate) const fn lines(self) -> u64 {
        self.bytes / NODE
    }

    /// Words of the bitmap.
    pub(crate) const fn words(self) -> u64 {
        self.lines().div_ceil(64)
    }

    /// Lines of the head.
    pub(crate) const fn head_lines(self) -> u64 {
        self.words().div_ceil(8)
    }

    /// Nodes, or units.
    pub(crate) const fn nodes(self) -> u64 {
        (self.lines() - self.head_lines()) / self.unit
    }

    /// The bits of word `word` that stand for nodes.
    pub(crate) const fn mask(self, word: u64) -> u64 {
        if self.unit != 1 {
            return self.mask_of_units(word);
        }
        let all = self.all(word);
        if word == 0 { all & !((1 << self.head_lines()) - 1) } else { all }
    }

    /// The bits of word `word` that stand for lines, those of the head included.
    pub(crate) const fn all(self, word: u64) -> u64 {
        let in_word = self.lines() - word * 64;
        if in_word >= 64 { u64::MAX } else { (1 << in_word) - 1 }
    }

    const fn mask_of_units(self, word: u64) -> u64 {
        let (mut mask, mut number) = (0, 0);
        while number < self.nodes() {
            let line = self.head_lines() + number * self.unit;
            if line / 64 == word {
                mask |= 1 << (line % 64);
            }
            number += 1;
        }
        mask
    }

    /// The page of a node.
    #[inline(always)]
    pub(crate) const fn page_of(self, node: u64) -> u64 {
        node & !(self.bytes - 1)
    }

    /// Word and bit of a node in its page's bitmap.
    #[inline(always)]
    pub(crate) const fn bit_of(self, node: u64) -> (u64, u32) {
        let line = (node & (self.bytes - 1)) / NODE;
        (line / 64, (line % 64) as u32)
    }
}

const _: () = {
    assert!(size_of::<Node>() == NODE as usize, "a node is one line");
    assert!(size_of::<TallNode>() == NODE as usize && size_of::<Upper>() == NODE as usize);
    assert!(size_of::<Branch>() == NODE as usize, "a branch and its leaves are one line");
    assert!(size_of::<Segment>() == 512);
    assert!(MAX_PAGE / NODE / 64 <= 16, "the bitmap of a page fits its head");
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_format_is_frozen() {
        assert_eq!((offset_of!(Node, sum), offset_of!(Branch, sum)), (24, 56));
        let sums = [node_sum(64, 1, 2), tall_sum(64, 1, 2, 3, 4), branch_sum(64, 1, [(2, 3), (4, 5)])];
        assert_eq!(sums, [11_537_754_437_628_060_756, 8_966_993_413_048_107_008, 14_754_656_176_891_820_083]);
        assert_eq!(tall_sum(64, 1, 2, 3 | 1 << TALL_SUM, 4), tall_sum(64, 1, 2, 3, 4), "its own bits do not count");
        assert_eq!([offset_of!(Node, next), offset_of!(Node, key), offset_of!(Node, value)], [0, 8, 16]);
        let tall = [offset_of!(TallNode, next), offset_of!(TallNode, key), offset_of!(TallNode, value)];
        assert_eq!(tall, [offset_of!(Node, next), offset_of!(Node, key), offset_of!(Node, value)]);
        let tower = [offset_of!(TallNode, height), offset_of!(TallNode, tower), offset_of!(TallNode, more)];
        assert_eq!((tower, LEVELS, INNER), ([24, 32, 56], 11, 3));
        assert_eq!([offset_of!(Upper, node), offset_of!(Upper, links)], [0, 8]);
        assert_eq!([offset_of!(Branch, edges), offset_of!(Branch, router), offset_of!(Branch, leaves)], [0, 16, 24]);
        assert_eq!([offset_of!(Leaf, key), offset_of!(Leaf, value), size_of::<Leaf>()], [0, 8, 16]);
        assert_eq!(Link::LEAF.to_bits(), 4);
        assert_eq!([offset_of!(Segment, next), offset_of!(Segment, cells)], [0, 8]);
        assert_eq!([ROOT_PAGE, ROOT_SEGMENTS, ROOT_HEAD, ROOT_BUCKETS, ROOT_RUN], [0, 1, 2, 3, 3]);
        assert_eq!((HEIGHT, RUN_SHIFT, RUNS, TALL_SUM), (0xff, 8, 0xffff_ffff, 40));
        assert_eq!([Link::to(0x1240).dirty().to_bits(), Link::to(0x1240).deleted().to_bits()], [0x1241, 0x1242]);
    }

    #[test]
    fn the_format_of_records_is_frozen() {
        assert_eq!([ROOT_RECORDS, ROOT_HASH_BITS, HEAD_TAG], [4, 5, 7]);
        assert_eq!((RECORDS, PART), (0x0052_4543_4F52_0000, 1 << 63));
        assert_eq!((RECORD_BYTES, RECORD_MARKS, RECORD_SUM), (0x7fff_ffff, 1 << 30, 31));
        assert_eq!((RECORD_HEAD, PART_HEAD, MAX_RECORD_PAGE), (2, 1, 16384));
    }

    #[test]
    fn units_lie_one_after_the_other_behind_the_head() {
        for (bytes, unit) in [(256, 1), (256, 3), (4096, 2), (4096, 63), (16 << 10, 1), (16 << 10, 7), (16 << 10, 255)]
        {
            let page = PageShape { bytes, unit };
            let bits: u32 = (0..page.words()).map(|w| page.mask(w).count_ones()).sum();
            assert_eq!(u64::from(bits), page.nodes());
            for number in 0..page.nodes() {
                let (word, bit) = page.bit_of(3 * bytes + (1 + number * unit) * NODE);
                assert_eq!(page.mask(word) >> bit & 1, 1, "{page:?}, unit {number}");
            }
            assert!(page.nodes() * unit < page.lines() && page.mask(0) & 1 == 0);
        }
    }

    #[test]
    fn links_keep_their_marks_apart() {
        for off in [0, 64, 0x7fff_ffff_ffc0, 0xffff_ffff_ffc0] {
            for (dirty, deleted) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut link = Link::to(off);
                if dirty {
                    link = link.dirty();
                }
                if deleted {
                    link = link.deleted();
                }
                assert_eq!((link.off(), link.is_dirty(), link.is_deleted()), (off, dirty, deleted));
                assert_eq!(Link::from_bits(link.to_bits()), link);
                assert_eq!((link.clean().off(), link.clean().is_deleted()), (off, deleted));
                assert!(!link.clean().is_dirty());
            }
        }
    }

    #[test]
    fn owners_are_kept_apart_from_the_rest_of_a_link() {
        assert_eq!(Link::to(0x1240).dirty_by(Owner::of(0)).to_bits(), 0x1251);
        assert_eq!(Link::to(0x1240).dirty_by(Owner::of(0x1a5)).to_bits(), 0x00a5_0000_0000_1259);
        for slot in 0..durix_pmem::MAX_SESSIONS {
            let owner = Owner::of(slot);
            assert!(owner.slot() == slot as usize && owner != Owner::NONE);
            for link in [Link::NULL, Link::to(0x7fff_ffff_ffc0), Link::end(9), Link::to(0x1240).cut(9), Link::LEAF] {
                for link in [link, link.deleted()] {
                    let marked = link.dirty_by(owner);
                    assert!(marked.is_dirty() && marked.owner() == owner && marked.clean() == link);
                    assert_eq!((marked.off(), marked.level()), (link.off(), link.level()));
                    assert_eq!((marked.rest(), marked.is_cut()), (link.rest(), link.is_cut()));
                    assert_eq!((marked.is_null(), marked.is_deleted()), (link.is_null(), link.is_deleted()));
                    assert_eq!((marked.is_leaf(), marked.ends_at(9)), (link.is_leaf(), link.ends_at(9)));
                    assert_eq!((marked.dirty(), marked.dirty().owner()), (link.dirty(), Owner::NONE));
                }
            }
        }
    }

    #[test]
    fn ends_and_cuts_lead_nowhere_and_keep_what_they_hold() {
        assert_eq!(
            [Link::end(9).to_bits(), Link::to(0x1240).cut(9).to_bits()],
            [0x8900_0000_0000_0000, 0xC900_0000_0000_1240]
        );
        for level in 0..64 {
            let end = Link::end(level);
            assert!(end.is_null() && !end.is_cut() && end.clean() == end && end != Link::NULL);
            assert_eq!((end.level(), end.deleted().level(), end.dirty().level()), (level, level, level));
            assert_eq!(Link::to(end.deleted().off()), end);
            for off in [64, 0x7fff_ffff_ffc0] {
                let cut = Link::to(off).cut(level);
                assert!(cut.is_null() && cut.is_cut() && cut.dirty().is_cut() && !cut.is_dirty());
                assert_eq!((cut.rest(), cut.dirty().rest(), cut.level()), (Link::to(off), Link::to(off), level));
                assert!(!cut.ends_at(63));
            }
            assert_eq!(end.cut(level).rest(), end);
            assert!(end.ends_at(level) && end.deleted().ends_at(level) && (level == 0 || !end.ends_at(level - 1)));
        }
        assert!(
            Link::NULL.ends_at(0) && Link::NULL.is_null() && !Link::to(64).is_null() && Link::NULL.deleted().is_null()
        );
    }

    #[test]
    fn bits_of_a_page_cover_its_nodes_and_nothing_else() {
        for bytes in (8..=16).map(|shift| 1 << shift) {
            let page = PageShape::of_nodes(bytes);
            let bits: u32 = (0..page.words()).map(|w| page.mask(w).count_ones()).sum();
            assert_eq!(u64::from(bits), page.nodes());
            for line in 0..page.lines() {
                let node = 7 * MAX_PAGE + line * NODE;
                let (word, bit) = page.bit_of(node);
                assert_eq!(page.page_of(node), 7 * MAX_PAGE);
                assert_eq!(page.mask(word) >> bit & 1 == 1, line >= page.head_lines());
            }
        }
    }
}
