//! What the figures of the DPTree share: trees in fresh pools, keys, the floor.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_dptree::{DpTree, Options};
use durix_pmem::backing::FileBacking;
use durix_pmem::{Hardware, Medium, Off, Pool, PoolOptions, Session, Word};

use crate::cso_append::medium;
use crate::interleave::Stopwatch;
use crate::machine::Bytes;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::place::{Place, free_bytes};

pub(super) const SOURCE: &str = "Zhou et al., DPTree: Differential Indexing for Persistent Memory, VLDB 2019";

pub(super) const fn figure(
    name: &'static str,
    title: &'static str,
    keys: &'static str,
    run: fn(&Context<'_>) -> Result<Measured, Error>,
) -> Figure {
    Figure { name, title, source: SOURCE, keys: Some(keys), run }
}

/// Operations between two calls of `tick`.
pub(super) const TICK: u64 = 64;
/// Bytes that the floor goes over.
const FLOOR: u64 = 64 << 20;

/// The `i`th of keys that look random; different for each `i`.
pub(in crate::paper) fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A xorshift generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A tree, the session that works on it, and how many keys it has.
pub(in crate::paper) struct Tree<M: Medium> {
    pub(in crate::paper) tree: Arc<DpTree<M>>,
    pub(in crate::paper) session: Session<M>,
    pub(in crate::paper) keys: u64,
}

impl<M: Medium> Tree<M> {
    pub(in crate::paper) fn new(pool: &Pool<M>) -> Result<Self, Error> {
        let tree = DpTree::open_with(pool, "tree", &Options::default())?;
        Ok(Tree { tree, session: pool.session()?, keys: 0 })
    }

    /// Inserts new keys, and merges what is to be merged.
    pub(in crate::paper) fn insert(&mut self, number: u64) -> Result<(), Error> {
        for i in self.keys..self.keys + number {
            let op = self.session.enter()?;
            self.tree.insert(&op, key(i), i)?;
            drop(op);
            self.tick(i)?;
        }
        self.keys += number;
        Ok(())
    }

    /// Calls `tick` after each [`TICK`]th operation.
    pub(super) fn tick(&mut self, i: u64) -> Result<(), Error> {
        if i.is_multiple_of(TICK) {
            self.tree.tick(&mut self.session)?;
        }
        Ok(())
    }
}

/// A pool in a file without a name, in which so many keys have room twice over.
pub(in crate::paper) fn pool_for(place: &Place, keys: u64) -> Result<Pool<Hardware>, Error> {
    pool_on(place, keys, medium())
}

/// The same on another medium.
pub(in crate::paper) fn pool_on<M: Medium>(place: &Place, keys: u64, medium: M) -> Result<Pool<M>, Error> {
    let size = keys * 48 + (96 << 20);
    if let Some(free) = free_bytes(&place.dir).filter(|free| *free < size) {
        let dir = place.dir.display().to_string();
        return Err(Error::Room {
            what: format!("a tree of {keys} keys"),
            needed: Bytes(size),
            free: Bytes(free),
            dir,
        });
    }
    new_pool(place, size, medium)
}

fn new_pool<M: Medium>(place: &Place, size: u64, medium: M) -> Result<Pool<M>, Error> {
    let path = place.unused_path();
    let pool = PoolOptions::new().initial_size(size).assume_pmem(true).create_on(FileBacking::create(&path)?, medium);
    let _ = std::fs::remove_file(&path);
    Ok(pool?)
}

/// The floor: a store, a write-back and a fence over successive lines of a pool of its own.
pub(super) struct Floor {
    session: Session<Hardware>,
    first: u64,
    next: u64,
    _owner: Arc<DpTree<Hardware>>,
}

impl Floor {
    pub(super) fn new(place: &Place) -> Result<Self, Error> {
        let pool = new_pool(place, FLOOR + (32 << 20), medium())?;
        let owner = DpTree::open(&pool, "owner")?;
        let mut session = pool.session()?;
        let op = session.enter()?;
        let reserved = pool.space().reserve_extent(&op, owner.root().owner(), FLOOR)?;
        let first = reserved.off();
        // It goes with the pool, which has no name.
        std::mem::forget(reserved);
        drop(op);
        let mut floor = Floor { session, first, next: 0, _owner: owner };
        // The first touch of a page would count as part of a floor.
        floor.round(FLOOR / 64)?;
        Ok(floor)
    }

    /// Nanoseconds of a persist, the mean of so many.
    pub(super) fn round(&mut self, persists: u64) -> Result<f64, Error> {
        let op = self.session.enter()?;
        let start = Stopwatch::start();
        for _ in 0..persists {
            let word = op.at(Off::<Word>::new(self.first + self.next % FLOOR));
            op.store(word, self.next, Relaxed);
            op.persist(word);
            self.next += 64;
        }
        Ok(start.elapsed().as_nanos() as f64 / persists as f64)
    }
}
