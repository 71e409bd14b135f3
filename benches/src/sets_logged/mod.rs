//! Sets that are made durable by logs: the comparators of the log-free sets (David et al., ATC 2018, section 6).

pub mod lazy_hash;

use std::sync::Arc;

use durix_logfree::{HashTable, SoftHash};
use durix_pmem::{Medium, Op};

/// A durable map of words, as these benches use it.
pub trait Set<M: Medium> {
    /// The name in tables.
    const NAME: &'static str;

    /// Inserts a key that is not there; returns whether it was not.
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool;

    /// Removes a key; returns whether it was there.
    fn remove(&mut self, op: &Op<'_, M>, key: u64) -> bool;
}

impl<M: Medium> Set<M> for Arc<HashTable<M>> {
    const NAME: &'static str = "link-and-persist";

    #[inline(always)]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        HashTable::insert(self, op, key, value).expect("room enough")
    }

    #[inline(always)]
    fn remove(&mut self, op: &Op<'_, M>, key: u64) -> bool {
        HashTable::remove(self, op, key).expect("room enough").is_some()
    }
}

impl<M: Medium> Set<M> for Arc<SoftHash<M>> {
    const NAME: &'static str = "volatile links (SOFT)";

    #[inline(always)]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        SoftHash::insert(self, op, key, value).expect("room enough")
    }

    #[inline(always)]
    fn remove(&mut self, op: &Op<'_, M>, key: u64) -> bool {
        SoftHash::remove(self, op, key).expect("room enough").is_some()
    }
}
