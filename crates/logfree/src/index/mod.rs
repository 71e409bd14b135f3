//! The log-free maps as [`Index`](durix_index::Index), and their entries among the kinds.

mod bytes;
mod order;
mod words;

use durix_index::{Entry, Openable};
use durix_pmem::{Medium, Structure};

use crate::{
    BlobBst, BlobHash, BlobList, BlobSkipList, Bst, BytesHash, Error, HashTable, List, SkipList, SoftHash, SoftList,
    SoftSkipList,
};

/// A map of this crate: what [`each`] lists. Where tests are compiled in, it can be tested, too.
#[cfg(not(feature = "testing"))]
pub trait Listed<M: Medium>: Openable<M> + Structure<M, Error = Error> {}
#[cfg(not(feature = "testing"))]
impl<M: Medium, S: Openable<M> + Structure<M, Error = Error>> Listed<M> for S {}

/// A map of this crate: what [`each`] lists.
#[cfg(feature = "testing")]
pub trait Listed<M: Medium>: Openable<M> + Structure<M, Error = Error> + crate::testing::Map<M> {}
#[cfg(feature = "testing")]
impl<M: Medium, S: Openable<M> + Structure<M, Error = Error> + crate::testing::Map<M>> Listed<M> for S {}

/// What is done with each map. Closures cannot be generic, so this stands for one.
pub trait Visit<M: Medium> {
    /// Takes a map, and its entry among the kinds.
    fn map<S: Listed<M>>(&mut self, entry: Entry<M>);
}

/// Shows `all` each map of this crate. No other place lists them.
pub fn each<M: Medium>(all: &mut impl Visit<M>) {
    show::<M, SoftHash<M>>(
        all,
        "hash",
        "hash map of 8-byte keys and values, durable on return with one fence an update (SOFT); opening reads all of it",
        |entry| entry,
    );
    show::<M, HashTable<M>>(
        all,
        "hash-fast-open",
        "lock-free hash map of 8-byte keys and values, durable on return (link-and-persist); opens in milliseconds at any size",
        |entry| entry,
    );
    show::<M, BytesHash<M>>(
        all,
        "hash-bytes",
        "lock-free hash map of bytes, durable on return (link-and-persist); opens in milliseconds at any size",
        |entry| entry,
    );
    show::<M, BlobHash<M>>(all, "hash-values", "as hash-fast-open, with values of any length", |entry| entry);
    show::<M, SkipList<M>>(
        all,
        "skiplist",
        "lock-free skip list of 8-byte keys and values, durable on return (link-and-persist); opens in milliseconds at any size",
        Entry::ordered,
    );
    show::<M, BlobSkipList<M>>(all, "skiplist-values", "as skiplist, with values of any length", Entry::ordered);
    show::<M, Bst<M>>(
        all,
        "bst",
        "lock-free search tree of 8-byte keys and values, not balanced, durable on return (link-and-persist)",
        |entry| entry.ordered().unbalanced(),
    );
    show::<M, BlobBst<M>>(all, "bst-values", "as bst, with values of any length", |entry| entry.ordered().unbalanced());
    show::<M, SoftSkipList<M>>(
        all,
        "skiplist-rebuilt",
        "skip list of 8-byte keys and values, durable on return with one fence an update (SOFT); opening reads all of it",
        // Measured: hardly faster than `skiplist`, slower than `bst`.
        |entry| entry.ordered().experimental(),
    );
    show::<M, SoftList<M>>(
        all,
        "list-rebuilt",
        "sorted list of 8-byte keys and values, durable on return with one fence an update (SOFT)",
        // Measured: slower than `list`.
        |entry| entry.ordered().meant_for(FEW).experimental(),
    );
    show::<M, List<M>>(
        all,
        "list",
        "lock-free sorted list of 8-byte keys and values, durable on return; for hundreds of keys",
        // Measured: slower than `bst` with any number of keys, and a `bst` of keys in order is no worse than a list.
        |entry| entry.ordered().meant_for(FEW).experimental(),
    );
    show::<M, BlobList<M>>(all, "list-values", "as list, with values of any length", |entry| {
        entry.ordered().meant_for(FEW).experimental()
    });
}

/// Keys that a list is meant for: its operations are linear.
const FEW: u64 = 1000;

fn show<M: Medium, S: Listed<M>>(
    all: &mut impl Visit<M>,
    name: &'static str,
    about: &'static str,
    differs: fn(Entry<M>) -> Entry<M>,
) {
    all.map::<S>(differs(Entry::new::<S>(name, about)));
}

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let mut kinds = Kinds(Vec::new());
    each(&mut kinds);
    kinds.0
}

struct Kinds<M: Medium>(Vec<Entry<M>>);

impl<M: Medium> Visit<M> for Kinds<M> {
    fn map<S: Listed<M>>(&mut self, entry: Entry<M>) {
        self.0.push(entry);
    }
}
