//! What lies in the pool. All of it is made of units of whole lines, which the arena hands out.

use durix_pmem::{Bits, LINE, Off, Version, Word, layout, persistent};

/// Version of everything in this module.
pub const LAYOUT_VERSION: Version = Version::unreleased(LAYOUT);
const LAYOUT: u32 =
    layout!([ExtentHead, Anchor, Header, Node, Record, TreeNode], EXTENT_MAGIC, SLOTS_A_LINE, USER_CELLS, REVISION);
/// Counts changes of what the words mean.
const REVISION: u64 = 1;

/// First word of an extent.
pub(crate) const EXTENT_MAGIC: u64 = u64::from_le_bytes(*b"REWIND\0\x01");

/// Slots on a line of a bucket.
pub(crate) const SLOTS_A_LINE: u64 = (LINE / size_of::<u64>()) as u64;

/// Words that a user has in the anchor.
pub const USER_CELLS: usize = 8;

persistent! {
    /// The first line of an extent: says what the rest is divided into.
    pub(crate) struct ExtentHead: align(64) {
        /// Word 0: [`EXTENT_MAGIC`].
        pub(crate) magic: Word,
        /// Word 1: lines of a unit.
        pub(crate) lines: Word,
        /// Words 2 to 7: zero, not read.
        pub(crate) rest: [Word; 6],
    }

    /// The fixed part of a log.
    ///
    /// | line | words | what | why there |
    /// |---|---|---|---|
    /// | 0 | 0 | which of the two list headers counts | one word: a log is replaced by one store |
    /// | 0 | 1 | root of the tree of transactions (two layers) | as above |
    /// | 0 | 2 | number of the last complete checkpoint (no force): what ended before is in place | one word: decides about all records at once |
    /// | 0 | 3–7 | zero, not read | |
    /// | 1, 2 | all | list headers | the words of one header share a line: a write-back covers all of them |
    /// | 3 | all | the user's cells | away from the log's own words |
    pub(crate) struct Anchor: align(64) {
        /// Line 0, word 0.
        pub(crate) current: Word,
        /// Line 0, word 1.
        pub(crate) root: Word<Off<TreeNode>>,
        /// Line 0, word 2.
        pub(crate) checkpointed: Word,
        /// Line 0, words 3 to 7.
        pub(crate) rest: [Word; 5],
        /// Lines 1 and 2.
        pub(crate) headers: [Header; 2],
        /// Line 3.
        pub(crate) cells: [Word; USER_CELLS],
    }

    /// The header of a list: one line.
    pub(crate) struct Header: align(64) {
        /// Word 0: the first node.
        pub(crate) head: Word<Off<Node>>,
        /// Word 1: the last node.
        pub(crate) tail: Word<Off<Node>>,
        /// Word 2: the node whose append is pending.
        pub(crate) to_append: Word<Off<Node>>,
        /// Word 3: the node whose removal is pending.
        pub(crate) to_remove: Word<Off<Node>>,
        /// Words 4 to 7: zero, not read.
        pub(crate) rest: [Word; 4],
    }

    /// A node of the list: one line. In a list of records a record follows it, in a list of buckets the slots do.
    pub(crate) struct Node: align(64) {
        /// Word 0: the next node, or null.
        pub(crate) next: Word<Off<Node>>,
        /// Word 1: the node before, or null. The list's `lastTail` while the node's append is pending.
        pub(crate) prior: Word<Off<Node>>,
        /// Word 2: what the node is about: a record, or the first slot of a bucket.
        pub(crate) element: Word,
        /// Word 3: in a bucket of grouped records, how many slots are known to be durable.
        pub(crate) persistent: Word,
        /// Words 4 to 7: zero, not read.
        pub(crate) rest: [Word; 4],
    }

    /// A log record: one line.
    pub(crate) struct Record: align(64) {
        /// Word 0: number and kind.
        pub(crate) head: Word<RecordHead>,
        /// Word 1: the transaction.
        pub(crate) tx: Word,
        /// Word 2: offset of the word that is changed.
        pub(crate) addr: Word,
        /// Word 3: its old value.
        pub(crate) old: Word,
        /// Word 4: its new value. END: 1 after a rollback.
        pub(crate) new: Word,
        /// Word 5: of a CLR, the number of the record that it undoes.
        pub(crate) undone: Word,
        /// Word 6: the transaction's record before (two layers).
        pub(crate) prev: Word<Off<Record>>,
        /// Word 7: of ALLOC and DELETE, the block, or null where it is not allocated.
        pub(crate) block: Word<Off<Word>>,
    }

    /// A node of the tree of transactions: one line.
    pub(crate) struct TreeNode: align(64) {
        /// Word 0: the transaction.
        pub(crate) key: Word,
        /// Words 1 and 2: the children, lower keys first.
        pub(crate) child: [Word<Off<TreeNode>>; 2],
        /// Word 3: height, 1 for a leaf.
        pub(crate) height: Word,
        /// Word 4: the transaction's last record.
        pub(crate) last: Word<Off<Record>>,
        /// Words 5 to 7: zero, not read.
        pub(crate) rest: [Word; 3],
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A word is about to change.
    Update = 1,
    /// A change is about to be undone.
    Clr = 2,
    /// The transaction has ended.
    End = 3,
    /// The transaction is about to be rolled back.
    Rollback = 4,
    /// A block is to be freed once the transaction has committed.
    Delete = 5,
    /// A block was allocated by the transaction.
    Alloc = 6,
}

/// A record's number (bits 8 to 63) and kind (bits 0 to 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead(u64);

impl RecordHead {
    /// Of a record. Numbers are below 2^56.
    pub(crate) fn new(id: u64, kind: Kind) -> Self {
        debug_assert!(id < 1 << 56);
        RecordHead(id << 8 | kind as u64)
    }

    /// The number.
    pub(crate) fn id(self) -> u64 {
        self.0 >> 8
    }

    /// The kind, if it is one.
    pub(crate) fn kind(self) -> Option<Kind> {
        use Kind::{Alloc, Clr, Delete, End, Rollback, Update};
        let kinds = [Update, Clr, End, Rollback, Delete, Alloc];
        kinds.into_iter().find(|kind| *kind as u64 == self.0 & 0xff)
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

// The decisions of a list, and those of an anchor, share a line: a write-back of one covers all.
const _: () = assert!(size_of::<Header>() == LINE && size_of::<Node>() == LINE && size_of::<Record>() == LINE);
const _: () = assert!(size_of::<TreeNode>() == LINE && size_of::<ExtentHead>() == LINE);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Whoever changes one of these changes the format, and [`LAYOUT_VERSION`] with it.
    #[test]
    fn layout_is_frozen() {
        assert_eq!(EXTENT_MAGIC, 0x0100_444e_4957_4552);
        assert_eq!((offset_of!(ExtentHead, magic), offset_of!(ExtentHead, lines)), (0, 8));
        assert_eq!((offset_of!(Anchor, current), offset_of!(Anchor, root)), (0, 8));
        assert_eq!(offset_of!(Anchor, checkpointed), 16);
        assert_eq!((offset_of!(Anchor, headers), offset_of!(Anchor, cells), size_of::<Anchor>()), (64, 192, 256));
        assert_eq!((offset_of!(Header, head), offset_of!(Header, tail)), (0, 8));
        assert_eq!((offset_of!(Header, to_append), offset_of!(Header, to_remove)), (16, 24));
        assert_eq!((offset_of!(Node, next), offset_of!(Node, prior)), (0, 8));
        assert_eq!((offset_of!(Node, element), offset_of!(Node, persistent)), (16, 24));
        assert_eq!((offset_of!(Record, head), offset_of!(Record, tx), offset_of!(Record, addr)), (0, 8, 16));
        assert_eq!((offset_of!(Record, old), offset_of!(Record, new), offset_of!(Record, undone)), (24, 32, 40));
        assert_eq!((offset_of!(Record, prev), offset_of!(Record, block)), (48, 56));
        assert_eq!((offset_of!(TreeNode, key), offset_of!(TreeNode, child)), (0, 8));
        assert_eq!((offset_of!(TreeNode, height), offset_of!(TreeNode, last)), (24, 32));
    }

    #[test]
    fn record_heads_give_back_what_they_were_made_of() {
        for kind in [Kind::Update, Kind::Clr, Kind::End, Kind::Rollback, Kind::Delete, Kind::Alloc] {
            for id in [0, 1, (1 << 56) - 1] {
                let head = RecordHead::from_bits(RecordHead::new(id, kind).to_bits());
                assert_eq!((head.id(), head.kind()), (id, Some(kind)));
            }
        }
        assert_eq!(RecordHead::from_bits(0).kind(), None);
        assert_eq!(RecordHead::from_bits(8).kind(), None);
    }
}
