//! `Masstree` of `durix-incll`: durable, and the same tree without any logging.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use durix_bench::place::Place;
use durix_bench::workload::medium;
use durix_incll::{BareOptions, Durable, Masstree, Policy, Transient};
use durix_pmem::backing::FileBacking;
use durix_pmem::{Hardware, Mapping, Medium, Op, Pool, PoolOptions, Reserve, Session};

use super::peer::{Error, Peer, Worker};
use super::value::{is_value_of, value_of};
use crate::plan::{Plan, SCAN};

/// Keys of one operation; between two operations a boundary may come.
const BATCH: usize = 64;

/// Bytes a key that are set aside, with values of `n` bytes.
const fn room(n: usize) -> u64 {
    if n <= 8 { 64 } else { (n as u64 + 72) * 3 / 2 }
}

/// The name of the durable tree's row.
pub const BARE: &str = "Durix Masstree";

struct Tree<P: Policy, const N: usize> {
    tree: Arc<Masstree<Hardware, P>>,
    mapping: Mapping<Hardware>,
    setup: String,
    /// Of the durable tree.
    pool: Option<Pool>,
    /// Whether keys are inserted and looked up in batches.
    batches: bool,
}

/// A pool with room for the plan's keys with values of so many bytes: a file that is removed at once, taken for persistent memory.
pub(super) fn pool_for(plan: &Plan, place: &Place, value: usize) -> durix_pmem::Result<Pool> {
    let path = place.unused_path();
    let backing = FileBacking::create(&path)?;
    let options = PoolOptions::new().initial_size(plan.all_keys() * room(value) + (64 << 20)).assume_pmem(true);
    let pool = options.create_on(backing, medium());
    let _ = std::fs::remove_file(&path);
    pool
}

/// The durable tree in a pool of its own, a file in `DURIX_DIR`, taken for persistent memory.
pub(super) fn durable<const N: usize>(plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("Durix Masstree");
    let place = Place::from_env();
    let pool = pool_for(plan, &place, N).map_err(|e| error(&e))?;
    let tree = Masstree::<_, Durable>::open(&pool, "compare").map_err(|e| error(&e))?;
    let setup = format!("{}, {}, epochs of 64 ms, sync() for each insert", medium().describe(), place.pages);
    Ok(Box::new(Tree::<_, N> { tree, mapping: pool.mapping().clone(), setup, pool: Some(pool), batches: false }))
}

/// The tree without logging, in anonymous memory.
fn volatile_in(plan: &Plan, huge: bool, batches: bool) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("Durix Masstree, volatile");
    let bytes = plan.all_keys() * room(8) + (64 << 20);
    let reserve = Reserve::pages(bytes, bytes).map_err(|e| error(&e))?;
    let huge = huge && reserve.advise_huge_pages();
    let mapping = Mapping::new(reserve, bytes, Hardware::PAGE_CACHE, false).map_err(|e| error(&e))?;
    let mut session = mapping.session().map_err(|e| error(&e))?;
    let tree = Masstree::<_, Transient>::volatile(&mut session, &mapping, BareOptions::default());
    let tree = Arc::new(tree.map_err(|e| error(&e))?);
    let pages = if huge { "2 MiB pages" } else { "4 KiB pages" };
    let calls = if batches { ", insert_many() and get_many() of 64" } else { "" };
    let setup = format!("no logging, no write-backs, {pages}{calls}");
    Ok(Box::new(Tree::<_, 8> { tree, mapping, setup, pool: None, batches }))
}

pub(super) fn volatile_batches(plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    volatile_in(plan, false, true)
}

pub(super) fn volatile(plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    volatile_in(plan, false, false)
}

pub(super) fn volatile_huge(plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    volatile_in(plan, true, false)
}

impl<P: Policy, const N: usize> Peer for Tree<P, N> {
    fn name(&self) -> &str {
        match (P::DURABLE, self.setup.contains("2 MiB")) {
            _ if self.batches => "Durix Masstree, volatile, in batches",
            (true, _) => BARE,
            (false, false) => "Durix Masstree, volatile",
            (false, true) => "Durix Masstree, volatile, huge pages",
        }
    }
    fn durability(&self) -> &'static str {
        if P::DURABLE { "power failure" } else { "nothing" }
    }
    fn parameters(&self) -> String {
        self.setup.clone()
    }
    fn is_durable(&self) -> bool {
        P::DURABLE
    }
    fn storage(&self) -> u64 {
        let stats = self.pool.as_ref().and_then(|pool| pool.stats().ok());
        stats.map_or(0, |stats| stats.space.by_owner.iter().map(|(_, bytes)| bytes).sum())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        let session = self.mapping.session().expect("a session for each thread");
        Box::new(TreeWorker::<_, N> { tree: &self.tree, session, batches: self.batches, found: Vec::with_capacity(N) })
    }
}

struct TreeWorker<'a, P: Policy, const N: usize> {
    tree: &'a Masstree<Hardware, P>,
    session: Session<Hardware>,
    batches: bool,
    found: Vec<u8>,
}

/// Whether this is the value of a key. Longer values than words are copied.
#[inline(always)]
fn is_right<const N: usize>(value: durix_incll::Value<'_, Hardware>, key: u64, found: &mut Vec<u8>) -> bool {
    if N == 8 {
        return value.as_u64() == key;
    }
    value.read_into(found);
    is_value_of::<N>(found, key)
}

impl<P: Policy, const N: usize> TreeWorker<'_, P, N> {
    fn put(tree: &Masstree<Hardware, P>, op: &Op<'_>, key: u64) {
        assert!(tree.insert(op, &key.to_be_bytes(), &value_of::<N>(key)).expect("room"), "a new key");
    }

    fn put_all(tree: &Masstree<Hardware, P>, op: &Op<'_>, keys: &[u64]) {
        let entries: Vec<_> = keys.iter().map(|key| (key.to_be_bytes(), value_of::<N>(*key))).collect();
        assert_eq!(tree.insert_many(op, &entries).expect("room"), keys.len(), "new keys");
    }

    fn get_all(tree: &Masstree<Hardware, P>, op: &Op<'_>, keys: &[u64]) -> usize {
        let bytes: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let found = tree.get_many(op, &bytes).expect("a sound tree");
        found.iter().zip(keys).filter(|(value, key)| value.is_some_and(|value| value.as_u64() == **key)).count()
    }

    fn scan_from(tree: &Masstree<Hardware, P>, op: &Op<'_>, start: u64, found: &mut Vec<u8>) -> usize {
        let (mut count, mut seen) = (0, 0);
        let visit = |key: &[u8], value: durix_incll::Value<'_, Hardware>| {
            seen += 1;
            let key = u64::from_be_bytes(key.try_into().expect("eight bytes"));
            count += usize::from(is_right::<N>(value, key, found));
            if seen < SCAN { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let from = start.to_be_bytes();
        tree.range_expecting(op, Bound::Included(&from), Bound::Unbounded, SCAN, visit).expect("a sound tree");
        count
    }
}

impl<P: Policy, const N: usize> Worker for TreeWorker<'_, P, N> {
    fn insert(&mut self, keys: &[u64]) {
        for batch in keys.chunks(BATCH) {
            let op = self.session.enter().expect("the pool is open");
            if self.batches {
                Self::put_all(self.tree, &op, batch);
            } else {
                batch.iter().for_each(|key| Self::put(self.tree, &op, *key));
            }
            drop(op);
            self.tree.tick(&mut self.session).expect("a boundary");
        }
        if P::DURABLE {
            self.tree.sync(&mut self.session).expect("a boundary");
        }
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        for key in keys {
            Self::put(self.tree, &self.session.enter().expect("the pool is open"), *key);
            self.tree.sync(&mut self.session).expect("a boundary");
        }
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let mut count = 0;
        for batch in keys.chunks(BATCH) {
            let op = self.session.enter().expect("the pool is open");
            if self.batches {
                count += Self::get_all(self.tree, &op, batch);
                continue;
            }
            for key in batch {
                let value = self.tree.get(&op, &key.to_be_bytes()).expect("a sound tree");
                count += usize::from(value.is_some_and(|value| is_right::<N>(value, *key, &mut self.found)));
            }
        }
        count
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        let mut count = 0;
        for batch in starts.chunks(BATCH) {
            let op = self.session.enter().expect("the pool is open");
            let found = &mut self.found;
            count += batch.iter().map(|start| Self::scan_from(self.tree, &op, *start, found)).sum::<usize>();
        }
        count
    }
}
