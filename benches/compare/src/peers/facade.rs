//! `OrderedMap` of `durix` through handles: what programs use, over the same tree as `trees::durable`.

use durix::{Db, OrderedHandle, OrderedMap, Value};
use durix_bench::place::Place;
use durix_bench::workload::medium;
use durix_pmem::Medium;

use super::peer::{Error, Peer, Worker};
use super::trees::pool_for;
use super::value::{is_value_of, value_of};
use crate::plan::{Plan, SCAN};

/// The name of its row.
pub const FACADE: &str = "Durix OrderedMap";

struct Facade<const N: usize> {
    db: Db,
    map: OrderedMap<u64, [u8; N]>,
    setup: String,
}

/// A database in a pool of its own, a file in `DURIX_DIR`, taken for persistent memory. Its background thread takes the checkpoints.
pub(super) fn facade<const N: usize>(plan: &Plan) -> Result<Box<dyn Peer>, Error>
where
    [u8; N]: Value,
{
    let error = Error::of(FACADE);
    let place = Place::from_env();
    let pool = pool_for(plan, &place, N).map_err(|e| error(&e))?;
    let db = Db::builder().over(pool).map_err(|e| error(&e))?;
    let map = db.ordered_map("compare").map_err(|e| error(&e))?;
    let setup = format!("a handle for each thread, {}, {}, sync() for each insert", medium().describe(), place.pages);
    Ok(Box::new(Facade { db, map, setup }))
}

impl<const N: usize> Peer for Facade<N>
where
    [u8; N]: Value,
{
    fn name(&self) -> &str {
        FACADE
    }
    fn durability(&self) -> &'static str {
        "power failure"
    }
    fn parameters(&self) -> String {
        self.setup.clone()
    }
    fn storage(&self) -> u64 {
        let stats = self.db.pool().stats().ok();
        stats.map_or(0, |stats| stats.space.by_owner.iter().map(|(_, bytes)| bytes).sum())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(Handle { db: &self.db, handle: self.map.handle().expect("a session for each thread") })
    }
}

struct Handle<'a, const N: usize> {
    db: &'a Db,
    handle: OrderedHandle<u64, [u8; N]>,
}

impl<const N: usize> Worker for Handle<'_, N>
where
    [u8; N]: Value,
{
    fn insert(&mut self, keys: &[u64]) {
        for key in keys {
            assert!(self.handle.insert(key, &value_of(*key)).expect("room"), "a new key");
        }
        self.db.sync().expect("a checkpoint");
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        for key in keys {
            assert!(self.handle.insert(key, &value_of(*key)).expect("room"), "a new key");
            self.db.sync().expect("a checkpoint");
        }
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let mut get = |key: &u64| self.handle.get(key).expect("a sound tree");
        keys.iter().filter(|key| get(key).is_some_and(|value| is_value_of::<N>(&value, **key))).count()
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        let mut count = 0;
        for start in starts {
            for pair in self.handle.range(*start..).expect("a range").take(SCAN) {
                let (key, value) = pair.expect("a sound tree");
                count += usize::from(is_value_of::<N>(&value, key));
            }
        }
        count
    }
}
