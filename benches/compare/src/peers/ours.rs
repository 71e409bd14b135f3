//! `PersistentSet` of `durix-pset`.

use std::sync::Arc;

use durix_bench::place::Place;
use durix_bench::workload::medium;
use durix_pmem::backing::FileBacking;
use durix_pmem::{Pool, PoolOptions, Session};
use durix_pset::PersistentSet;

use super::peer::{Error, Peer, Worker};
use crate::plan::Plan;

struct Set {
    set: Arc<PersistentSet>,
    pool: Pool,
}

/// The set in a pool of its own, a file in `DURIX_DIR`, taken for persistent memory.
pub(super) fn set(plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("Durix PersistentSet");
    let path = Place::from_env().unused_path();
    let backing = FileBacking::create(&path).map_err(|e| error(&e))?;
    // Space for all keys from the start, as persistent memory is given to a pool.
    let options = PoolOptions::new().initial_size(plan.all_keys() * 64 * 3 / 2 + (64 << 20)).assume_pmem(true);
    let pool = options.create_on(backing, medium());
    let _ = std::fs::remove_file(&path);
    let pool = pool.map_err(|e| error(&e))?;
    let set = PersistentSet::open(&pool, "compare").map_err(|e| error(&e))?;
    Ok(Box::new(Set { set, pool }))
}

impl Peer for Set {
    fn name(&self) -> &str {
        "Durix PersistentSet"
    }
    fn durability(&self) -> &'static str {
        "power failure"
    }
    fn parameters(&self) -> String {
        format!("defaults (256 shards), {}; every insert is durable when it returns", medium_text())
    }
    fn is_ordered(&self) -> bool {
        false
    }
    fn storage(&self) -> u64 {
        let stats = self.pool.stats().map(|s| s.space.by_owner);
        stats.map_or(0, |owners| owners.iter().map(|(_, bytes)| bytes).sum())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        let session = self.pool.session().expect("a session for each thread");
        Box::new(SetWorker { set: &self.set, session, found: Vec::new() })
    }
}

fn medium_text() -> String {
    durix_pmem::Medium::describe(medium())
}

struct SetWorker<'a> {
    set: &'a PersistentSet,
    session: Session,
    found: Vec<u8>,
}

impl Worker for SetWorker<'_> {
    fn insert(&mut self, keys: &[u64]) {
        for key in keys {
            let bytes = key.to_be_bytes();
            let op = self.session.enter().expect("the pool is open");
            assert!(self.set.insert(&op, &bytes, &bytes).expect("the pool has room"), "a new key");
        }
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        self.insert(keys);
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let mut count = 0;
        for key in keys {
            let bytes = key.to_be_bytes();
            let op = self.session.enter().expect("the pool is open");
            let there = self.set.get(&op, &bytes, &mut self.found).expect("nothing panicked");
            count += usize::from(there && self.found == bytes);
        }
        count
    }
    fn scan(&mut self, _starts: &[u64]) -> usize {
        0
    }
}
