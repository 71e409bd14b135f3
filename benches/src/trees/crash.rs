//! Every state that a crash can leave, of inserts and updates that split nodes: the comparators keep what they promise, so the figures
//! compare like with like. What opens them again is written for these tests.

use std::collections::BTreeMap;
use std::fmt::Debug;

use durix_crashsim::{Explorer, Simulated, Subject};
use durix_pmem::{Mapping, Medium, Session};

use super::Ordered;
use super::fast_fair::FastFair;
use super::fptree::FpTree;
use super::wort::Wort;

/// Opens a tree after a crash.
pub(super) trait Reopen<M: Medium>: Ordered<M> + Debug {
    fn reopen(mapping: &Mapping<M>) -> Self;
}

/// A tree that has had some keys before.
struct Crashed<T> {
    before: Vec<u64>,
    tree: std::marker::PhantomData<T>,
}

/// A key, which is inserted or gets a new value, and that value.
type Put = (u64, u64);

impl<T: Reopen<Simulated>> Subject for Crashed<T> {
    type Op = Put;
    type Ret = bool;
    type State = Vec<Put>;
    type Model = BTreeMap<u64, u64>;
    type Store = Mapping<Simulated>;
    type Live = (T, Session<Simulated>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(32 << 10, medium)
    }

    fn create(&self, store: &Self::Store) -> Self::Live {
        let (mut tree, mut session) = (T::create(store).unwrap(), store.session().unwrap());
        let op = session.enter().unwrap();
        self.before.iter().for_each(|key| assert!(tree.insert(&op, *key, 1000 + key)));
        drop(op);
        (tree, session)
    }

    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok((T::reopen(store), store.session().map_err(|error| error.to_string())?))
    }

    fn apply(&self, (tree, session): &mut Self::Live, (key, value): &Put) -> bool {
        tree.insert(&session.enter().unwrap(), *key, *value)
    }

    fn observe(&self, (tree, session): &mut Self::Live) -> Self::State {
        let (op, mut pairs) = (session.enter().unwrap(), Vec::new());
        tree.scan(&op, 0, |key, value| {
            pairs.push((key, value));
            pairs.len() < 1000
        });
        for (key, value) in &pairs {
            assert_eq!(tree.get(&op, *key), Some(*value), "a lookup finds what a scan does");
        }
        pairs
    }

    fn model(&self) -> Self::Model {
        self.before.iter().map(|key| (*key, 1000 + key)).collect()
    }

    fn step(&self, model: &mut Self::Model, (key, value): &Put) -> bool {
        model.insert(*key, *value).is_none()
    }

    fn expect(&self, model: &Self::Model) -> Self::State {
        model.iter().map(|(key, value)| (*key, *value)).collect()
    }
}

/// Keys 10, 20 and so on in an order that is not theirs, as many as fill a node or a leaf, then keys that split it, at its beginning, in
/// its middle, at its end; and new values.
fn puts<T>(full: u64) -> (Crashed<T>, Vec<Put>) {
    let before = (0..full).map(|i| 10 * (1 + i * 5 % full)).collect();
    let keys = [5, 10 * full / 2 + 5, 10 * full + 5, 10, 10 * full, 6, 10 * full - 5];
    (Crashed { before, tree: std::marker::PhantomData }, (0..).zip(keys).map(|(i, key)| (key, 1 + i)).collect())
}

fn survives<T: Reopen<Simulated>>(full: u64) {
    let (subject, puts) = puts::<T>(full);
    let report = Explorer::new().run(&subject, &puts).assert_ok();
    assert!(report.complete, "{report}");
}

#[test]
fn every_state_of_fast_fair() {
    // One before the split, and at it; 27 is full, and 5 does not divide it.
    survives::<FastFair>(26);
    survives::<FastFair>(27);
}

#[test]
fn every_state_of_the_fptrees() {
    survives::<FpTree<true>>(56);
    survives::<FpTree<false>>(56);
}

#[test]
fn every_state_of_wort() {
    survives::<Wort>(7);
}
