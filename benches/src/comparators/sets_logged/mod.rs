//! The sets of ATC'18, section 6, as the figures use them: ours, and those that are made durable by logs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`lazy`] | lazy list; hash table of lazy lists |
//! | [`tower`] | lock-based skip list of Herlihy et al. |
//! | [`bst_tk`] | binary search tree with versioned locks |
//! | [`redo`] | the logs under them: the paper's protocol, and the best we can build |
//! | [`nodes`] | their memory and locks |
//! | [`ours`] | ours, behind the same trait |

pub mod bst_tk;
pub mod lazy;
pub mod nodes;
pub mod ours;
pub mod redo;
#[cfg(test)]
pub(super) mod tests;
pub mod tower;

use durix_pmem::{Mapping, Medium, Op};

/// Threads that a comparator has logs for.
pub const MAX_THREADS: u64 = 4;

/// A durable map of words, as these benches use it: shared by threads, each of which has something of its own.
pub trait Set<M: Medium>: Send + Sync + 'static {
    /// What a thread has of its own: its log and its nodes.
    type Local: Send;

    /// The name in tables.
    fn name(&self) -> &'static str;

    /// Bytes of persistent memory that it needs for so many threads; 0 for a set that has a pool.
    fn bytes(&self, threads: u64) -> u64;

    /// Makes an empty set in zeroed memory.
    fn create(&self, mapping: &Mapping<M>);

    /// What thread number `thread` has of its own.
    fn local(&self, thread: u64) -> Self::Local;

    /// Whether a key is there.
    fn contains(&self, local: &mut Self::Local, op: &Op<'_, M>, key: u64) -> bool;

    /// Inserts a key that is not there; returns whether it was not.
    fn insert(&self, local: &mut Self::Local, op: &Op<'_, M>, key: u64, value: u64) -> bool;

    /// Removes a key; returns whether it was there.
    fn remove(&self, local: &mut Self::Local, op: &Op<'_, M>, key: u64) -> bool;
}
