//! A durable linked list as a map from keys to values: one line a node, inserts at the head, removes by unlinking.
//! With planted bugs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Mapping, Mutating, Off, Op, Plan, Session, Word, persistent};

persistent! {
    struct Root: align(64) { head: Word<Off<Node>>, rest: [Word; 7] }
    struct Node: align(64) { key: Word, value: Word, next: Word<Off<Node>>, rest: [Word; 5] }
}

/// What is wrong with the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// The node is not written back before it is linked.
    NodeNotWrittenBack,
    /// Node and link are written back together, under one fence.
    OneFenceForBoth,
    /// The link is not written back before the operation returns.
    LinkNotWrittenBack,
    /// The removed link's predecessor is not written back.
    UnlinkNotFenced,
    /// Recovery writes a mark without making it idempotent: a crash in recovery drops the first node.
    RecoveryPops,
    /// Recovery reads something else every time.
    RecoveryFlips,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOp {
    /// Inserts a key and its value, or replaces the value.
    Insert(u64, u64),
    /// Removes a key.
    Remove(u64),
}

/// The list under test.
pub struct List {
    /// What is wrong with it.
    pub bug: Bug,
    /// The mutations.
    pub plan: &'static Plan,
    flips: std::cell::Cell<u64>,
}

impl List {
    /// Without mutations.
    pub fn new(bug: Bug) -> Self {
        List::with_plan(bug, Plan::new())
    }

    /// With mutations.
    pub fn with_plan(bug: Bug, plan: &'static Plan) -> Self {
        List { bug, plan, flips: Default::default() }
    }
}

type M = Mutating<Simulated>;

/// The list at work.
pub struct Live {
    session: Session<M>,
    next_free: u64,
    bug: Bug,
}

const ARENA: usize = 64 * 64;
const ROOT: Off<Root> = Off::new(64);
const FIRST: u64 = 128;

impl Live {
    fn find(op: &Op<'_, M>, key: u64) -> Option<(Off<Node>, Off<Node>)> {
        let mut before = Off::NULL;
        let mut at = op.load(&op.at(ROOT).head, Relaxed);
        let mut steps = 0;
        while let Some(node) = op.get(at) {
            if op.load(&node.key, Relaxed) == key {
                return Some((before, at));
            }
            before = at;
            at = op.load(&node.next, Relaxed);
            steps += 1;
            assert!(steps < 100, "a loop in the list");
        }
        None
    }

    fn insert(&mut self, key: u64, value: u64) -> Option<u64> {
        let op = self.session.enter().unwrap();
        if let Some((_, at)) = Self::find(&op, key) {
            let node = op.at(at);
            let old = op.load(&node.value, Relaxed);
            op.store(&node.value, value, Release);
            op.persist(&node.value);
            return Some(old);
        }
        let root = op.at(ROOT);
        let off = Off::<Node>::new(self.next_free);
        self.next_free += 64;
        let node = op.at(off);
        op.store(&node.key, key, Relaxed);
        op.store(&node.value, value, Relaxed);
        op.store(&node.next, op.load(&root.head, Relaxed), Relaxed);
        match self.bug {
            Bug::NodeNotWrittenBack => {}
            Bug::OneFenceForBoth => op.write_back(node),
            _ => {
                op.write_back(node);
                op.fence();
            }
        }
        op.store(&root.head, off, Release);
        if self.bug != Bug::LinkNotWrittenBack {
            op.write_back(root);
        }
        op.fence();
        None
    }

    fn remove(&mut self, key: u64) -> Option<u64> {
        let op = self.session.enter().unwrap();
        let (before, at) = Self::find(&op, key)?;
        let node = op.at(at);
        let value = op.load(&node.value, Relaxed);
        let link = op.get(before).map_or(&op.at(ROOT).head, |b| &b.next);
        op.store(link, op.load(&node.next, Relaxed), Release);
        op.write_back(link);
        if self.bug != Bug::UnlinkNotFenced {
            op.fence();
        }
        Some(value)
    }

    fn contents(&mut self) -> BTreeMap<u64, u64> {
        let op = self.session.enter().unwrap();
        let mut all = BTreeMap::new();
        let mut at = op.load(&op.at(ROOT).head, Relaxed);
        while let Some(node) = op.get(at) {
            assert!(all.len() < 100, "a loop in the list");
            assert!(all.insert(op.load(&node.key, Relaxed), op.load(&node.value, Relaxed)).is_none(), "a key twice");
            at = op.load(&node.next, Relaxed);
        }
        all
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
        Live { session: store.session().unwrap(), next_free: FIRST, bug: self.bug }
    }

    fn recover(&self, store: &Mapping<M>) -> Result<Live, String> {
        let mut session = store.session().map_err(|e| e.to_string())?;
        let op = session.enter().map_err(|e| e.to_string())?;
        let root = op.at(ROOT);
        if self.bug == Bug::RecoveryFlips {
            self.flips.set(self.flips.get() + 1);
            op.load(&op.at(Off::<Node>::new(FIRST + 64 * (self.flips.get() % 2))).value, Relaxed);
        }
        let mut next_free = FIRST;
        let mut at = op.load(&root.head, Relaxed);
        while let Some(node) = op.get(at) {
            next_free = next_free.max(at.get() + 64);
            if next_free > ARENA as u64 {
                return Err(format!("a node at {at:?}"));
            }
            // After the mere death of a process its last stores may not be durable, and others are going to rely on them.
            op.write_back(node);
            at = op.load(&node.next, Relaxed);
        }
        op.persist(root);
        if self.bug == Bug::RecoveryPops {
            // "Repairs" the head in two steps that a crash can part.
            let head = op.load(&root.head, Relaxed);
            op.store(&root.head, Off::NULL, Release);
            op.persist(root);
            op.store(&root.head, head, Release);
            op.persist(root);
        }
        drop(op);
        Ok(Live { session, next_free, bug: self.bug })
    }

    fn apply(&self, live: &mut Live, op: &ListOp) -> Option<u64> {
        match *op {
            ListOp::Insert(key, value) => live.insert(key, value),
            ListOp::Remove(key) => live.remove(key),
        }
    }

    fn observe(&self, live: &mut Live) -> BTreeMap<u64, u64> {
        live.contents()
    }

    fn model(&self) -> BTreeMap<u64, u64> {
        BTreeMap::new()
    }

    fn step(&self, model: &mut BTreeMap<u64, u64>, op: &ListOp) -> Option<u64> {
        match *op {
            ListOp::Insert(key, value) => model.insert(key, value),
            ListOp::Remove(key) => model.remove(&key),
        }
    }

    fn expect(&self, model: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        model.clone()
    }
}
