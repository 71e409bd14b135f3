//! A durable map from keys to values as a sorted list, for several threads: without locks, or under one lock. With planted
//! bugs.
//!
//! A node is one line. It is linked once and stays; a removed key has the value 0. Without locks, everything that an
//! answer rests on is durable before the answer is given, whoever stored it: each line that a search has passed is written
//! back, and so is the line of the value that was found.

#![allow(missing_docs, reason = "test code")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_crashsim::{Concurrent, Simulated, Subject};
use durix_pmem::{Lock, Mapping, Medium, Mutating, Off, Op, Plan, Rmw, Session, Word, persistent};

persistent! {
    struct Node: align(64) { next: Word<Off<Node>>, key: Word, value: Word, rest: [Word; 5] }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// A reader returns a value that is visible, and not yet durable.
    ReadNotDurable,
    /// An insert that finds the key there returns without writing back the winner's line.
    WinnerNotWrittenBack,
    /// An insert links its node behind one that is itself reached through a pointer that is not durable.
    PathNotDurable,
    /// The node is linked before it is durable.
    NodeNotDurable,
    /// (Under the lock.) The lock is given back before the link is written back.
    UnlockBeforeWriteBack,
    /// (Under the lock.) A thread that takes a second lock in the other order.
    Deadlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOp {
    /// Unless the key is there. Answers the value that was there.
    Insert(u64, u64),
    /// Answers the value that was removed.
    Remove(u64),
    Get(u64),
}

#[derive(Clone, Copy)]
pub struct List {
    pub locked: bool,
    pub bug: Bug,
    pub plan: &'static Plan,
    /// Keys that are there from the start.
    pub before: &'static [u64],
}

impl List {
    pub fn lock_free(bug: Bug) -> Self {
        List { locked: false, bug, plan: Plan::new(), before: &[] }
    }

    pub fn locked(bug: Bug) -> Self {
        List { locked: true, ..List::lock_free(bug) }
    }
}

pub type M = Mutating<Simulated>;

/// What all threads share: the next free node, and the lock.
pub struct Shared {
    free: AtomicU64,
    lock: Lock<Vec<u64>>,
    other: Lock<()>,
}

pub struct Live {
    mapping: Mapping<M>,
    shared: Arc<Shared>,
    alone: Handle,
}

pub struct Handle {
    session: Session<M>,
    shared: Arc<Shared>,
    list: List,
    number: usize,
}

const ARENA: usize = 64 * 64;
/// The head is a node without a key.
const HEAD: Off<Node> = Off::new(64);
const FIRST: u64 = 128;

/// Where a key is or belongs: the node before, and what its link says.
struct Place<'s> {
    before: &'s Node,
    at: Off<Node>,
    found: Option<&'s Node>,
}

impl Handle {
    fn find<'s>(list: &List, op: &Op<'s, M>, key: u64) -> Place<'s> {
        let mut before = op.at(HEAD);
        for _ in 0..100 {
            let at = op.load(&before.next, Acquire);
            // What was passed is durable before anything rests on it.
            if list.bug != Bug::PathNotDurable && !list.locked {
                op.write_back(before);
            }
            let Some(node) = op.get(at) else { return Place { before, at, found: None } };
            match op.load(&node.key, Relaxed) {
                k if k == key => return Place { before, at, found: Some(node) },
                k if k > key => return Place { before, at, found: None },
                _ => before = node,
            }
        }
        panic!("a loop in the list");
    }

    fn new_node<'s>(list: &List, op: &Op<'s, M>, off: u64, key: u64, value: u64, next: Off<Node>) -> Off<Node> {
        assert!(off < ARENA as u64, "no room");
        let off = Off::<Node>::new(off);
        let node = op.at(off);
        op.store(&node.key, key, Relaxed);
        op.store(&node.value, value, Relaxed);
        op.store(&node.next, next, Relaxed);
        op.write_back(node);
        if list.bug != Bug::NodeNotDurable {
            op.fence();
        }
        off
    }

    // ---- without locks ----

    fn insert(list: &List, shared: &Shared, op: &Op<'_, M>, key: u64, value: u64) -> Option<u64> {
        let mut fresh = None;
        loop {
            let place = Self::find(list, op, key);
            if let Some(node) = place.found {
                let old = op.load(&node.value, Acquire);
                if old == 0 && op.compare_exchange(&node.value, 0, value).is_err() {
                    continue;
                }
                if old == 0 || list.bug != Bug::WinnerNotWrittenBack {
                    op.write_back(node);
                    op.fence();
                }
                return (old != 0).then_some(old);
            }
            let off = *fresh.get_or_insert_with(|| op.medium().shared_rmw(&shared.free, Rmw::Add, 64));
            let off = Self::new_node(list, op, off, key, value, place.at);
            if op.compare_exchange(&place.before.next, place.at, off).is_ok() {
                op.write_back(place.before);
                op.fence();
                return None;
            }
        }
    }

    fn remove(list: &List, op: &Op<'_, M>, key: u64) -> Option<u64> {
        let node = Self::find(list, op, key).found?;
        loop {
            let old = op.load(&node.value, Acquire);
            if old == 0 || op.compare_exchange(&node.value, old, 0).is_ok() {
                op.write_back(node);
                op.fence();
                return (old != 0).then_some(old);
            }
        }
    }

    fn get(list: &List, op: &Op<'_, M>, key: u64) -> Option<u64> {
        let node = Self::find(list, op, key).found?;
        let value = op.load(&node.value, Acquire);
        if list.bug != Bug::ReadNotDurable {
            op.write_back(node);
            op.fence();
        }
        (value != 0).then_some(value)
    }

    // ---- under the lock ----

    fn under_lock(&mut self, what: &ListOp) -> Option<u64> {
        let Handle { session, shared, list, number } = self;
        let op = session.enter().unwrap();
        let m = op.medium();
        let _second = (list.bug == Bug::Deadlock && *number == 1).then(|| shared.other.lock(m));
        let mut free = shared.lock.lock(m);
        let _first = (list.bug == Bug::Deadlock && *number == 0).then(|| shared.other.lock(m));
        let (key, value) = match *what {
            ListOp::Insert(key, value) => (key, value),
            ListOp::Remove(key) | ListOp::Get(key) => (key, 0),
        };
        let place = Self::find(list, &op, key);
        let old = place.found.map_or(0, |node| op.load(&node.value, Relaxed));
        let changed = match (what, place.found) {
            (ListOp::Insert(..), None) => {
                let slot = free.pop().expect("enough nodes");
                let off = Self::new_node(list, &op, slot, key, value, place.at);
                op.store(&place.before.next, off, Release);
                Some(place.before)
            }
            (ListOp::Insert(..), Some(node)) if old == 0 => {
                op.store(&node.value, value, Release);
                Some(node)
            }
            (ListOp::Remove(_), Some(node)) if old != 0 => {
                op.store(&node.value, 0, Release);
                Some(node)
            }
            _ => None,
        };
        if list.bug == Bug::UnlockBeforeWriteBack {
            drop(free);
        }
        if let Some(line) = changed {
            op.write_back(line);
            op.fence();
        }
        (old != 0).then_some(old)
    }

    fn run(&mut self, what: &ListOp) -> Option<u64> {
        if self.list.locked {
            return self.under_lock(what);
        }
        let Handle { session, shared, list, .. } = self;
        let op = session.enter().unwrap();
        match *what {
            ListOp::Insert(key, value) => Self::insert(list, shared, &op, key, value),
            ListOp::Remove(key) => Self::remove(list, &op, key),
            ListOp::Get(key) => Self::get(list, &op, key),
        }
    }
}

impl List {
    fn live(&self, mapping: &Mapping<M>, used: u64) -> Result<Live, String> {
        let shared = Arc::new(Shared {
            free: AtomicU64::new(used),
            lock: Lock::new((used / 64..ARENA as u64 / 64).rev().map(|line| line * 64).collect()),
            other: Lock::new(()),
        });
        let session = mapping.session().map_err(|e| e.to_string())?;
        let alone = Handle { session, shared: Arc::clone(&shared), list: *self, number: usize::MAX };
        Ok(Live { mapping: mapping.clone(), shared, alone })
    }
}

impl Subject for List {
    type Op = ListOp;
    type Ret = Option<u64>;
    type State = BTreeMap<u64, u64>;
    type Model = BTreeMap<u64, u64>;
    type Store = Mapping<M>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Mapping<M> {
        Mapping::heap(ARENA, Mutating::new(medium, self.plan))
    }

    fn create(&self, store: &Mapping<M>) -> Live {
        let mut live = self.live(store, FIRST).unwrap();
        for key in self.before {
            live.alone.run(&ListOp::Insert(*key, 1));
        }
        live
    }

    fn recover(&self, store: &Mapping<M>) -> Result<Live, String> {
        let mut session = store.session().map_err(|e| e.to_string())?;
        let op = session.enter().map_err(|e| e.to_string())?;
        let (mut used, mut at) = (FIRST, op.load(&op.at(HEAD).next, Relaxed));
        while let Some(node) = op.get(at) {
            used = used.max(at.get() + 64);
            if used > ARENA as u64 {
                return Err(format!("a node at {at:?}"));
            }
            at = op.load(&node.next, Relaxed);
        }
        drop(op);
        self.live(store, used)
    }

    fn apply(&self, live: &mut Live, op: &ListOp) -> Option<u64> {
        live.alone.run(op)
    }

    fn observe(&self, live: &mut Live) -> BTreeMap<u64, u64> {
        let op = live.alone.session.enter().unwrap();
        let mut all = BTreeMap::new();
        let mut at = op.load(&op.at(HEAD).next, Relaxed);
        while let Some(node) = op.get(at) {
            assert!(all.len() < 100, "a loop in the list");
            let (key, value) = (op.load(&node.key, Relaxed), op.load(&node.value, Relaxed));
            assert!(all.last_key_value().is_none_or(|(last, _)| *last < key), "keys that do not ascend");
            all.insert(key, value);
            at = op.load(&node.next, Relaxed);
        }
        all.retain(|_, value| *value != 0);
        all
    }

    fn model(&self) -> BTreeMap<u64, u64> {
        self.before.iter().map(|key| (*key, 1)).collect()
    }

    fn step(&self, model: &mut BTreeMap<u64, u64>, op: &ListOp) -> Option<u64> {
        match *op {
            ListOp::Insert(key, value) => {
                let old = model.get(&key).copied();
                model.entry(key).or_insert(value);
                old
            }
            ListOp::Remove(key) => model.remove(&key),
            ListOp::Get(key) => model.get(&key).copied(),
        }
    }

    fn expect(&self, model: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        model.clone()
    }
}

impl Concurrent for List {
    type Thread = Handle;

    fn thread(&self, live: &Live, number: usize) -> Handle {
        let session = live.mapping.session().unwrap();
        Handle { session, shared: Arc::clone(&live.shared), list: *self, number }
    }

    fn run(&self, handle: &mut Handle, op: &ListOp) -> Option<u64> {
        handle.run(op)
    }
}
