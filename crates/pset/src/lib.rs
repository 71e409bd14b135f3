//! A concurrent hash map from byte strings to byte strings in persistent memory (kind `pset`, the default of `Db::map`). Use it where keys
//! need no order. An update is durable when it returns, and costs one write-back for each line and one fence; a batch is atomic. Opening
//! takes time in the number of keys. It is the single-trip persistent set (STPS, section 4 of Cohen, Friedman and Larus, *Efficient Logging
//! in Non-Volatile Memory by Exploiting Coherency Protocols*, OOPSLA 2017).
//!
//! Entries lie in persistent memory, in slots of size classes. The index over them lies in volatile memory. It is rebuilt when the set is
//! opened, from the entry with the highest version of each key. Beyond the paper: threads (readers without locks, writers that lock one
//! shard), keys and values of any length up to [`MAX_KEY`] and [`MAX_VALUE`], reuse of slots with tombstones of mixed sizes, and
//! transactions whose entries can be reused one by one.
//!
//! | module | what it holds |
//! |---|---|
//! | `layout` | persistent structs, line map, size classes |
//! | `entry` | how an entry is written so that it is found whole or not at all (edges PS-E1 to PS-E5) |
//! | `set` | the set and its options: what is open, and the operations on one key |
//! | `shard` | a part of the keys |
//! | `table` | the volatile index of a shard |
//! | `reuse` | which slot may be overwritten when |
//! | `unsettled` | the records of entries that are not durable yet |
//! | `arena` | extents, and slots that no shard has yet (PS-X1, PS-X2) |
//! | `update`, `txn` | updates (PS-U1 to PS-U5) and transactions (PS-T1 to PS-T3) |
//! | `later` | updates that return before they are durable (PS-L1 to PS-L5) |
//! | `read`, `iter` | reads |
//! | `recover`, `check` | recovery (PS-R1), findings, statistics, dump |
//! | `index` | the set as an [`Index`](durix_index::Index), and its entry among the kinds |
//!
//! # Guarantees
//! Every operation on one key is durably linearizable: an update is durable when it returns, a read returns only what is
//! durable. A transaction is atomic with respect to crashes and to other transactions; plain reads may see some of its
//! keys changed before the others. What is assumed beyond 8-byte atomicity: stores to one cache line reach memory in order
//! (PCSO). On a medium that tears lines, an entry may be found with a mixture of old and new bytes.

mod arena;
mod check;
mod entry;
mod error;
mod index;
mod iter;
mod later;
mod layout;
mod read;
mod recover;
mod reuse;
mod set;
mod shard;
mod table;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod txn;
mod unsettled;
mod update;

pub use check::Stats;
pub use durix_index::Finding;
pub use error::{Error, Result};
pub use index::kinds;
pub use iter::Cursor;
pub use layout::{LAYOUT_VERSION, MAX_KEY, MAX_TRANSACTION, MAX_VALUE};
pub use set::{MAX_SHARDS, PersistentSet, SetOptions};
pub use txn::{Batch, Txn};

#[cfg(test)]
mod tests;
