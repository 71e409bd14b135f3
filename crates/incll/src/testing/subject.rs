//! A durable tree in a small mapping, with a map as its model.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::{BareOptions, Durable, Masstree, Policy};
use durix_crashsim::{Concurrent, Simulated, Subject};
use durix_pmem::{Killable, Mapping, Mutating, Op, Plan, Session};

pub type M = Killable<Mutating<Simulated>>;
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// An operation. Keys and values are numbers that stand for bytes, see [`key`] and [`value`].
#[derive(Clone, Debug)]
pub enum Act {
    /// Inserts, or replaces the value.
    Put(u8, u8),
    /// Removes.
    Remove(u8),
    /// Inserts key number so many of a wider range, with a value in place.
    PutWide(u16),
    /// Removes it.
    RemoveWide(u16),
    /// A boundary.
    Sync,
    /// Writes back ahead of the boundary.
    Ahead,
    /// Looks a key up: after a restart this recovers nodes.
    Get(u8),
    /// The process dies and another opens the tree, with all stores still in the caches: back to the last boundary.
    Restart,
    /// An operation in which the process dies, at its first fence or at its end, with all of it in the caches and nothing
    /// written back; then as `Restart`.
    Killed(Box<Act>),
    /// An operation by another session.
    Other(Box<Act>),
}

/// Eight bytes up to 199; from 200 on two slices that are shared, from 230 on three, and a tail.
pub fn key(k: u8) -> Vec<u8> {
    match k {
        0..200 => vec![0, 0, 0, 0, 0, 0, 1, k],
        200..230 => [&b"shared--"[..], &[k], b"-tail"].concat(),
        _ => [&b"shared--shared--"[..], &[k; 10]].concat(),
    }
}

/// Eight bytes, behind those of [`key`].
pub fn wide(k: u16) -> Vec<u8> {
    (1u64 << 16 | u64::from(k)).to_be_bytes().to_vec()
}

/// In place below 100; out of line from there on, with an extent of its own from 250 on.
pub fn value(v: u8) -> Vec<u8> {
    match v {
        0..100 => vec![v; 8],
        100..250 => vec![v; 12],
        _ => vec![v; 1500],
    }
}

/// What is tested, and how.
pub struct Tested<P = Durable> {
    pub plan: &'static Plan,
    /// Done before what is tested, and durable.
    pub before: Vec<Act>,
    /// Number of the first epoch.
    pub first_epoch: u64,
    /// Bytes of the mapping.
    pub len: usize,
    /// Lines of a step of the sweep.
    pub sweep_step: u64,
    pub policy: PhantomData<fn() -> P>,
}

impl Tested {
    pub fn new(plan: &'static Plan, before: Vec<Act>) -> Self {
        Tested::of(plan, before)
    }
}

impl<P: Policy> Tested<P> {
    /// A tree of another policy.
    pub fn of(plan: &'static Plan, before: Vec<Act>) -> Self {
        Tested { plan, before, first_epoch: 1, len: 64 << 10, sweep_step: 2048, policy: PhantomData }
    }

    fn open(&self, mapping: &Mapping<M>) -> Result<Live<P>, String> {
        let mut session = mapping.session().map_err(|e| e.to_string())?;
        let options = BareOptions::default().chunk(4096).first_epoch(self.first_epoch).sweep_step(self.sweep_step);
        let tree = Masstree::open_bare_as(&mut session, mapping, options).map_err(|e| e.to_string())?;
        Ok(Live { tree: Arc::new(tree), other: mapping.session().map_err(|e| e.to_string())?, session })
    }
}

pub struct Live<P: Policy = Durable> {
    tree: Arc<Masstree<M, P>>,
    session: Session<M>,
    other: Session<M>,
}

fn run<P: Policy>(tree: &Masstree<M, P>, op: &Op<'_, M>, act: &Act) -> bool {
    match act {
        Act::Put(k, v) => tree.insert(op, &key(*k), &value(*v)).unwrap(),
        Act::Remove(k) => tree.remove(op, &key(*k)).unwrap(),
        Act::PutWide(k) => tree.insert(op, &wide(*k), &value(1)).unwrap(),
        Act::RemoveWide(k) => tree.remove(op, &wide(*k)).unwrap(),
        Act::Get(k) => tree.contains(op, &key(*k)).unwrap(),
        Act::Sync | Act::Ahead | Act::Restart | Act::Killed(_) | Act::Other(_) => {
            unreachable!("taken apart by the caller")
        }
    }
}

/// The tree as it is, and as it was at the last boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    now: Map,
    durable: Map,
}

fn step(model: &mut Model, act: &Act) -> bool {
    match act {
        Act::Put(k, v) => model.now.insert(key(*k), value(*v)).is_none(),
        Act::Remove(k) => model.now.remove(&key(*k)).is_some(),
        Act::PutWide(k) => model.now.insert(wide(*k), value(1)).is_none(),
        Act::RemoveWide(k) => model.now.remove(&wide(*k)).is_some(),
        Act::Get(k) => model.now.contains_key(&key(*k)),
        Act::Sync => {
            model.durable = model.now.clone();
            true
        }
        Act::Ahead => true,
        Act::Restart => {
            model.now = model.durable.clone();
            true
        }
        Act::Killed(act) => {
            step(model, act);
            model.now = model.durable.clone();
            true
        }
        Act::Other(act) => step(model, act),
    }
}

impl<P: Policy> Subject for Tested<P> {
    type Op = Act;
    type Ret = bool;
    type State = Map;
    type Model = Model;
    type Store = Mapping<M>;
    type Live = Live<P>;

    fn store(&self, medium: Simulated) -> Mapping<M> {
        Mapping::heap(self.len, Killable::new(Mutating::new(medium, self.plan)))
    }

    fn create(&self, mapping: &Mapping<M>) -> Live<P> {
        let mut live = self.open(mapping).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        live.tree.sync(&mut live.session).unwrap();
        live
    }

    fn recover(&self, mapping: &Mapping<M>) -> Result<Live<P>, String> {
        self.open(mapping)
    }

    fn apply(&self, live: &mut Live<P>, act: &Act) -> bool {
        match act {
            Act::Sync => live.tree.sync(&mut live.session).is_ok(),
            Act::Ahead => live.tree.epochs().write_ahead(&mut live.other).is_ok(),
            Act::Restart => {
                let mapping = live.session.mapping().clone();
                *live = self.open(&mapping).unwrap();
                true
            }
            Act::Killed(act) => {
                let dying = live.session.mapping().medium();
                // At its first fence, or at its end.
                let _ = dying.dying_at(1, || _ = self.apply(live, act));
                self.apply(live, &Act::Restart)
            }
            Act::Other(act) if matches!(**act, Act::Sync) => live.tree.sync(&mut live.other).is_ok(),
            Act::Other(act) => run(&live.tree, &live.other.enter().unwrap(), act),
            act => run(&live.tree, &live.session.enter().unwrap(), act),
        }
    }

    fn observe(&self, live: &mut Live<P>) -> Map {
        let op = live.session.enter().unwrap();
        let mut map = Map::new();
        let read = live.tree.range(&op, Bound::Unbounded, Bound::Unbounded, |k, v| {
            assert!(map.insert(k.to_vec(), v.to_vec()).is_none(), "a key twice");
            ControlFlow::Continue(())
        });
        read.unwrap();
        for (k, v) in &map {
            assert_eq!(live.tree.get_vec(&op, k).unwrap().as_ref(), Some(v));
        }
        map
    }

    fn check(&self, live: &mut Live<P>) -> Vec<String> {
        let op = live.session.enter().unwrap();
        live.tree.check(&op).unwrap().iter().map(ToString::to_string).collect()
    }

    fn model(&self) -> Model {
        let mut model = Model::default();
        for act in self.before.iter().chain([&Act::Sync]) {
            step(&mut model, act);
        }
        model
    }

    fn step(&self, model: &mut Model, act: &Act) -> bool {
        step(model, act)
    }

    fn expect(&self, model: &Model) -> Map {
        model.now.clone()
    }

    fn is_sync(&self, act: &Act) -> bool {
        match act {
            Act::Sync | Act::Restart | Act::Killed(_) => true,
            Act::Other(act) => self.is_sync(act),
            _ => false,
        }
    }
}

impl<P: Policy> Concurrent for Tested<P> {
    type Thread = (Session<M>, Arc<Masstree<M, P>>);

    fn thread(&self, live: &Live<P>, _number: usize) -> Self::Thread {
        (live.session.mapping().session().unwrap(), Arc::clone(&live.tree))
    }

    fn run(&self, (session, tree): &mut Self::Thread, act: &Act) -> bool {
        match act {
            Act::Sync => tree.sync(session).is_ok(),
            Act::Ahead => tree.epochs().write_ahead(session).is_ok(),
            act => run(tree, &session.enter().unwrap(), act),
        }
    }

    fn hidden(&self) -> Option<String> {
        Some("lists of free blocks and of dirty lines, behind locks or by session".into())
    }
}
