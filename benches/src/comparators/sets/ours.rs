//! `PersistentSet` of `durix-pset` (STPS), through its public interface.

use std::sync::Arc;

use durix_pmem::{Medium, Op, Pool};
use durix_pset::{Error, PersistentSet};

use super::Map;

/// The single-trip persistent set, safe for any number of threads.
#[derive(Debug)]
pub struct Ours<M: Medium>(Arc<PersistentSet<M>>);

impl<M: Medium> Ours<M> {
    /// A set in a pool.
    ///
    /// # Errors
    /// What the set refuses.
    pub fn new(pool: &Pool<M>) -> Result<Self, Error> {
        PersistentSet::open(pool, "bench").map(Ours)
    }
}

impl<M: Medium> Map<M> for Ours<M> {
    const NAME: &'static str = "STPS";

    #[inline(always)]
    fn put(&mut self, op: &Op<'_, M>, key: u64, value: &[u8]) {
        self.0.insert(op, &key.to_le_bytes(), value).expect("the pool was made large enough");
    }

    #[inline(always)]
    fn get(&self, op: &Op<'_, M>, key: u64, value: &mut Vec<u8>) -> bool {
        self.0.get(op, &key.to_le_bytes(), value).expect("nothing panicked")
    }
}
