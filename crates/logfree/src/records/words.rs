//! What a map of words says of its records.

use durix_pmem::{Kind, Medium};

use crate::layout::{LIST_RECORDS_LAYOUT_VERSION, RECORDS_LAYOUT_VERSION, ROOT_PAGE};
use crate::linked::{bst::BstCore, hash::HashCore, list::ListCore, skip::SkipCore};
use crate::map::WordMap;

/// A map of words whose values can be offsets of records, as [`Blobs`](crate::Blobs) need it: one that is durable on return.
pub trait RecordMap<M: Medium>: WordMap<M> {
    /// What it is called with records.
    const BLOBS: Kind;
    /// The root word that holds the bytes of a page of records. Word 4 is that of the records, too.
    const PAGE_WORD: usize = ROOT_PAGE;
}

impl<M: Medium> RecordMap<M> for ListCore<M> {
    const BLOBS: Kind = Kind { tag: *b"LF-LISTV", version: LIST_RECORDS_LAYOUT_VERSION };
}

impl<M: Medium> RecordMap<M> for BstCore<M> {
    const BLOBS: Kind = Kind { tag: *b"LF-BST V", version: RECORDS_LAYOUT_VERSION };
}

impl<M: Medium> RecordMap<M> for SkipCore<M> {
    const BLOBS: Kind = Kind { tag: *b"LF-SKIPV", version: RECORDS_LAYOUT_VERSION };
}

impl<M: Medium> RecordMap<M> for HashCore<M> {
    const BLOBS: Kind = Kind { tag: *b"LF-HASHV", version: RECORDS_LAYOUT_VERSION };
}
