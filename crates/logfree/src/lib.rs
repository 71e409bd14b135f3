//! Lock-free maps that need no log: hash tables, skip lists, search trees and lists, from 8-byte keys to 8-byte values or to byte strings
//! (kinds `hash`, `hash-fast-open`, `skiplist`, `bst`, `list` and their relatives). Use them where several threads write at the same time. An
//! update is durable when it returns, after one or two fences. From David et al., *Log-Free Concurrent Data Structures* (ATC 2018), and
//! SOFT (Zuriel et al., OOPSLA 2019).
//!
//! | module | what it holds |
//! |---|---|
//! | [`link`] | link-and-persist: a link that tells whether it is durable |
//! | `linked` | the four maps whose links are durable, the list under them, and the link cache |
//! | `pages` | NV-epochs: memory of nodes, reclaimed without logging single nodes |
//! | `map` | [`WordMap`], [`OrderedWordMap`]: the one interface of maps of words |
//! | [`Words`] | the maps of words as programs use them: the four rows below |
//! | [`List`], [`HashTable`] | lock-free maps over durable links |
//! | [`SkipList`] | a lock-free skip list over durable links, on all levels |
//! | [`Bst`] | a lock-free search tree, leaves and branch in one line |
//! | [`SoftHash`], [`SoftSkipList`], [`SoftList`] | members in persistent memory, links in volatile memory: one fence an update |
//! | [`Blobs`], [`BytesHash`] | byte strings for values, over the four maps with durable links, and for keys, over the hash table |
//! | `leftovers` | what lies in the lines of a damaged map, for repair |
//! | `index` | the maps as [`Index`](durix_index::Index), and the list of them |
//!
//! # Guarantees
//! All operations are durably linearizable: an update is durable when it returns, and no operation returns what a crash
//! can take back. (With a link cache in [`LinkCacheMode::Buffered`], updates are durable after the next `sync`.) [`List`], [`HashTable`],
//! [`SkipList`] and [`Bst`] assume nothing of the memory beyond 8-byte atomicity; [`SoftHash`], [`SoftSkipList`] and [`SoftList`] assume that
//! stores to one cache line reach memory in order.

mod error;
mod finding;
mod index;
mod layout;
mod leftovers;
pub mod link;
mod linked;
mod map;
mod options;
mod pages;
mod range;
mod records;
mod row;
mod soft;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod words;

pub use error::{Error, Result};
pub use finding::Finding;
pub use index::kinds;
pub use layout::{
    HASH_LAYOUT_VERSION, LAYOUT_VERSION, LIST_LAYOUT_VERSION, LIST_RECORDS_LAYOUT_VERSION, RECORDS_LAYOUT_VERSION,
    SKIP_LAYOUT_VERSION,
};
pub use linked::bst::Bst;
pub use linked::hash::HashTable;
pub use linked::list::List;
pub use linked::skip::SkipList;
pub use map::{Found, OrderedWordMap, WordMap};
pub use options::{LinkCacheMode, Options};
pub use pages::PageStats;
pub use records::{
    BlobBst, BlobHash, BlobList, BlobSkipList, Blobs, BytesHash, MAX_BYTES_VALUE, MAX_KEY, MAX_VALUE, Record,
    RecordMap, RecordStore,
};
pub use soft::{LAYOUT_VERSION as SOFT_LAYOUT_VERSION, SoftHash, SoftList, SoftOptions, SoftSkipList};
pub use words::Words;
