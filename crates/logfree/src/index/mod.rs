//! The log-free maps as [`Index`](durix_index::Index), and their entries among the kinds.

mod bytes;
mod words;

use durix_index::Entry;
use durix_pmem::Medium;

use crate::{
    BlobBst, BlobHash, BlobList, BlobSkipList, Bst, BytesHash, HashTable, List, SkipList, SoftHash, SoftList,
    SoftSkipList,
};

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    vec![
        Entry::new::<SoftHash<M>>(
            "hash",
            "hash map of 8-byte keys and values, durable on return with one fence an update (SOFT); opening reads all of it",
        ),
        Entry::new::<HashTable<M>>(
            "hash-fast-open",
            "lock-free hash map of 8-byte keys and values, durable on return (link-and-persist); opens in milliseconds at any size",
        ),
        Entry::new::<BytesHash<M>>(
            "hash-bytes",
            "lock-free hash map of bytes, durable on return (link-and-persist); opens in milliseconds at any size",
        ),
        Entry::new::<BlobHash<M>>("hash-values", "as hash-fast-open, with values of any length"),
        Entry::new::<SkipList<M>>(
            "skiplist",
            "lock-free skip list of 8-byte keys and values, durable on return (link-and-persist); opens in milliseconds at any size",
        )
        .ordered(),
        Entry::new::<BlobSkipList<M>>("skiplist-values", "as skiplist, with values of any length").ordered(),
        Entry::new::<Bst<M>>(
            "bst",
            "lock-free search tree of 8-byte keys and values, not balanced, durable on return (link-and-persist)",
        )
        .ordered()
        .unbalanced(),
        Entry::new::<BlobBst<M>>("bst-values", "as bst, with values of any length").ordered().unbalanced(),
        Entry::new::<SoftSkipList<M>>(
            "skiplist-rebuilt",
            "skip list of 8-byte keys and values, durable on return with one fence an update (SOFT); opening reads all of it",
        )
        .ordered()
        // Measured: hardly faster than `skiplist`, slower than `bst`.
        .experimental(),
        Entry::new::<SoftList<M>>(
            "list-rebuilt",
            "sorted list of 8-byte keys and values, durable on return with one fence an update (SOFT)",
        )
        .ordered()
        .meant_for(FEW)
        // Measured: slower than `list`.
        .experimental(),
        Entry::new::<List<M>>(
            "list",
            "lock-free sorted list of 8-byte keys and values, durable on return; for hundreds of keys",
        )
        .ordered()
        .meant_for(FEW),
        Entry::new::<BlobList<M>>("list-values", "as list, with values of any length").ordered().meant_for(FEW),
    ]
}

/// Keys that a list is meant for: its operations are linear.
const FEW: u64 = 1000;
