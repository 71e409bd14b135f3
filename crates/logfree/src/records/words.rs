//! What a map of words has to do so that its values can be offsets of records.

use durix_pmem::{Kind, Medium, Op, Root};

use crate::error::Result;
use crate::finding::Finding;
use crate::layout::{RECORDS_LAYOUT_VERSION, ROOT_PAGE};
use crate::pages::PageStats;
use crate::{Bst, HashTable, List, SkipList};

/// What is done with a value that was found, and the value: see [`WordMap`].
pub(super) type Found = Option<(u64, bool)>;

/// A map of words that is durable on return, as [`Blobs`](crate::Blobs) need it.
///
/// Where a closure gives the offset of a record, that was written back: the map fences before anything that a crash leaves leads to the
/// record (LF-I4). It fences before it returns, too, and what it returns no crash can take back (LF-I6, LF-I8). A closure may be called several times; an error
/// means that the map is as it was.
pub trait WordMap<M: Medium>: Send + Sync + Sized + 'static {
    /// What it is called with records.
    const BLOBS: Kind;
    /// Whether places of a walk are keys.
    const ORDERED: bool;
    /// The root word that holds the bytes of a page of records. Word 4 is that of the records, too.
    const PAGE_WORD: usize = ROOT_PAGE;

    /// Inserts a key that is not there, with what `value` gives when it is needed; returns whether it did.
    ///
    /// # Errors
    /// As the map's `insert`.
    fn insert_word(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool>;
    /// Replaces a value by what `new` makes of it. Returns the value found, and whether it was replaced.
    ///
    /// # Errors
    /// As the map's `update`.
    fn update_word(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found>;
    /// Removes a key if its value is `wanted`. Returns the value found, and whether it was removed.
    ///
    /// # Errors
    /// As the map's `remove`.
    fn remove_word(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found>;
    /// The value of a key.
    ///
    /// # Errors
    /// As the map's `get`.
    fn word(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>>;
    /// Appends entries from a place on, and says where to go on.
    ///
    /// # Errors
    /// As the map's `walk`.
    fn walk_words(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>>;
    /// Appends entries from a key down, and says where to go on; nothing, if the map is not ordered.
    ///
    /// # Errors
    /// As the map's `walk_back`.
    fn walk_words_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>>;
    /// Compares what is allocated with what is reachable.
    ///
    /// # Errors
    /// As the map's `check`.
    fn check_words(&self, op: &Op<'_, M>) -> Result<Vec<Finding>>;
    /// Its place in its pool.
    fn place(&self) -> &Root<M>;
    /// How the memory of its nodes is used; all zero where it has no pages of nodes.
    fn nodes(&self, op: &Op<'_, M>) -> PageStats {
        let _ = op;
        PageStats::default()
    }
}

macro_rules! word_map {
    ($map:ident, $tag:literal, $ordered:literal, $walk_back:expr) => {
        impl<M: Medium> WordMap<M> for $map<M> {
            const BLOBS: Kind = Kind { tag: *$tag, version: RECORDS_LAYOUT_VERSION };
            const ORDERED: bool = $ordered;

            fn insert_word(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
                self.insert_with(op, key, value)
            }
            fn update_word(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
                self.update_with(op, key, new)
            }
            fn remove_word(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
                self.remove_with(op, key, wanted)
            }
            fn word(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
                self.get(op, key)
            }
            fn walk_words(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
                self.walk(op, from, into)
            }
            fn walk_words_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
                $walk_back(self, op, to, into)
            }
            fn check_words(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
                self.check(op)
            }
            fn place(&self) -> &Root<M> {
                self.root()
            }
            fn nodes(&self, op: &Op<'_, M>) -> PageStats {
                self.page_stats(op)
            }
        }
    };
}

word_map!(List, b"LF-LISTV", true, List::walk_back);
word_map!(Bst, b"LF-BST V", true, Bst::walk_back);
word_map!(SkipList, b"LF-SKIPV", true, SkipList::walk_back);
word_map!(HashTable, b"LF-HASHV", false, |_, _, _, _| Ok(None));
