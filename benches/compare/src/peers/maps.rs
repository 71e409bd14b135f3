//! Volatile maps: what durability costs. All but `BTreeMap` are for threads.

use std::collections::BTreeMap;
use std::sync::RwLock;

use congee::U64Congee;
use crossbeam_skiplist::SkipMap;
use dashmap::DashMap;
use masstree::{MassTree, RangeBound};

use super::peer::{Error, Peer, Worker};
use crate::plan::{Plan, SCAN};

/// A volatile map of one kind: how it inserts, gets and scans.
trait Map: Send + Sync + Sized + 'static {
    const NAME: &'static str;
    const ORDERED: bool = true;
    const SETUP: &'static str = "defaults";
    fn insert(&self, keys: &[u64]);
    fn get(&self, keys: &[u64]) -> usize;
    fn scan(&self, _starts: &[u64]) -> usize {
        0
    }
}

struct Volatile<T>(T);

impl<T: Map> Peer for Volatile<T> {
    fn name(&self) -> &str {
        T::NAME
    }
    fn durability(&self) -> &'static str {
        "nothing"
    }
    fn parameters(&self) -> String {
        T::SETUP.into()
    }
    fn is_durable(&self) -> bool {
        false
    }
    fn is_ordered(&self) -> bool {
        T::ORDERED
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(&self.0)
    }
}

impl<T: Map> Worker for &T {
    fn insert(&mut self, keys: &[u64]) {
        T::insert(self, keys);
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        T::insert(self, keys);
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        T::get(self, keys)
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        T::scan(self, starts)
    }
}

fn peer<T: Map>(map: T) -> Result<Box<dyn Peer>, Error> {
    Ok(Box::new(Volatile(map)))
}

impl Map for MassTree<u64> {
    const NAME: &'static str = "masstree";
    const SETUP: &'static str = "MassTree<u64>: values inline, one guard a batch";
    fn insert(&self, keys: &[u64]) {
        let guard = self.guard();
        for key in keys {
            self.insert_with_guard(&key.to_be_bytes(), *key, &guard);
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        let guard = self.guard();
        keys.iter().filter(|k| self.get_with_guard(&k.to_be_bytes(), &guard) == Some(**k)).count()
    }
    fn scan(&self, starts: &[u64]) -> usize {
        let guard = self.guard();
        let scan = |start: &u64| {
            let (mut count, bytes) = (0, start.to_be_bytes());
            let visit = |_value: u64| {
                count += 1;
                count < SCAN
            };
            self.scan_values(RangeBound::Included(&bytes), RangeBound::Unbounded, visit, &guard);
            count
        };
        starts.iter().map(scan).sum()
    }
}

pub(super) fn masstree(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(MassTree::<u64>::new())
}

impl Map for U64Congee<usize> {
    const NAME: &'static str = "congee";
    const SETUP: &'static str = "U64Congee<usize>, one epoch guard a batch";
    fn insert(&self, keys: &[u64]) {
        let guard = crossbeam_epoch::pin();
        for key in keys {
            let _ = U64Congee::insert(self, *key, *key as usize, &guard).expect("memory for a node");
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        let guard = crossbeam_epoch::pin();
        keys.iter().filter(|k| U64Congee::get(self, **k, &guard) == Some(**k as usize)).count()
    }
    fn scan(&self, starts: &[u64]) -> usize {
        let guard = crossbeam_epoch::pin();
        let mut found = [([0; 8], 0); SCAN];
        starts.iter().map(|start| self.range(*start, u64::MAX, &mut found, &guard)).sum()
    }
}

pub(super) fn congee(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(U64Congee::<usize>::new())
}

impl Map for scc::TreeIndex<u64, u64> {
    const NAME: &'static str = "scc TreeIndex";
    fn insert(&self, keys: &[u64]) {
        for key in keys {
            let _ = self.insert_sync(*key, *key);
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|k| self.peek_with(*k, |_, v| v == *k) == Some(true)).count()
    }
    fn scan(&self, starts: &[u64]) -> usize {
        let guard = scc::Guard::new();
        starts
            .iter()
            .map(|start| self.range::<u64, _>(*start.., &guard).take(SCAN).filter(|(k, v)| k == v).count())
            .sum()
    }
}

pub(super) fn tree_index(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(scc::TreeIndex::<u64, u64>::new())
}

impl Map for scc::HashMap<u64, u64> {
    const NAME: &'static str = "scc HashMap";
    const ORDERED: bool = false;
    fn insert(&self, keys: &[u64]) {
        for key in keys {
            let _ = self.insert_sync(*key, *key);
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|k| self.read_sync(*k, |_, v| v == *k) == Some(true)).count()
    }
}

pub(super) fn hash_map(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(scc::HashMap::<u64, u64>::new())
}

impl Map for SkipMap<u64, u64> {
    const NAME: &'static str = "crossbeam-skiplist";
    fn insert(&self, keys: &[u64]) {
        for key in keys {
            SkipMap::insert(self, *key, *key);
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|k| SkipMap::get(self, *k).is_some_and(|e| e.value() == *k)).count()
    }
    fn scan(&self, starts: &[u64]) -> usize {
        starts.iter().map(|start| self.range(start..).take(SCAN).filter(|e| e.key() == e.value()).count()).sum()
    }
}

pub(super) fn skip_map(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(SkipMap::<u64, u64>::new())
}

impl Map for DashMap<u64, u64> {
    const NAME: &'static str = "dashmap";
    const ORDERED: bool = false;
    fn insert(&self, keys: &[u64]) {
        for key in keys {
            DashMap::insert(self, *key, *key);
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|k| DashMap::get(self, *k).is_some_and(|v| *v == **k)).count()
    }
}

pub(super) fn dash_map(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(DashMap::<u64, u64>::new())
}

impl Map for RwLock<BTreeMap<u64, u64>> {
    const NAME: &'static str = "BTreeMap";
    const SETUP: &'static str = "RwLock<BTreeMap>, taken once a batch";
    fn insert(&self, keys: &[u64]) {
        let mut map = self.write().expect("nothing panics");
        for key in keys {
            map.insert(*key, *key);
        }
    }
    fn get(&self, keys: &[u64]) -> usize {
        let map = self.read().expect("nothing panics");
        keys.iter().filter(|k| map.get(*k) == Some(*k)).count()
    }
    fn scan(&self, starts: &[u64]) -> usize {
        let map = self.read().expect("nothing panics");
        starts.iter().map(|start| map.range(start..).take(SCAN).filter(|(k, v)| k == v).count()).sum()
    }
}

pub(super) fn btree_map(_: &Plan) -> Result<Box<dyn Peer>, Error> {
    peer(RwLock::new(BTreeMap::<u64, u64>::new()))
}
