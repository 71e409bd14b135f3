//! Every state that a crash can leave, of inserts and updates that split nodes: the comparators keep what they promise, so the figures
//! compare like with like. What opens them again is written for these tests.

use std::collections::BTreeMap;

use durix_crashsim::{Explorer, Report, Simulated, Sites, Subject, mutation_sweep};
use durix_pmem::{Mapping, Mutating, Plan, Session};

use super::Reopen;
use super::fast_fair::FastFair;
use super::fptree::FpTree;
use super::lb_tree::LbTree;
use super::wort::Wort;

type M = Mutating<Simulated>;

/// A tree that has had some keys before.
struct Crashed<T> {
    before: Vec<u64>,
    plan: &'static Plan,
    tree: std::marker::PhantomData<T>,
}

/// A key, which is inserted or gets a new value, and that value.
type Put = (u64, u64);

impl<T: Reopen<M>> Subject for Crashed<T> {
    type Op = Put;
    type Ret = bool;
    type State = Vec<Put>;
    type Model = BTreeMap<u64, u64>;
    type Store = Mapping<M>;
    type Live = (T, Session<M>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(32 << 10, Mutating::new(medium, self.plan))
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

/// The keys 10, 20 and so on, so many, in an order that is not theirs.
fn mixed(number: u64) -> Vec<u64> {
    (0..number).map(|i| 10 * (1 + i * 5 % number)).collect()
}

/// The same from the last to the first: what is split then has a neighbour.
fn descending(number: u64) -> Vec<u64> {
    (1..=number).rev().map(|i| 10 * i).collect()
}

/// Explores inserts below, among and above the keys that were there before, and new values, everywhere.
fn explored<T: Reopen<M>>(befores: &[Vec<u64>], plan: &'static Plan) -> Report {
    let mut all = Report::default();
    for before in befores {
        let most = 10 * before.len() as u64;
        let keys = [5, most / 20 * 10 + 5, most + 5, 10, most, 6, most - 5];
        let puts: Vec<Put> = (1..).zip(keys).map(|(value, key)| (key, value)).collect();
        let subject = Crashed::<T> { before: before.clone(), plan, tree: std::marker::PhantomData };
        let report = Explorer::new().run(&subject, &puts);
        assert!(report.failure.is_some() || report.complete, "{report}");
        all.merge(report);
    }
    all
}

/// The same, with every write-back and fence of a file dropped in turn. Returns how many of these nobody noticed.
fn survives<T: Reopen<M>>(file: &str, befores: &[Vec<u64>]) -> usize {
    let sweep = mutation_sweep(&Sites::in_files(file), |plan| explored::<T>(befores, plan));
    println!("{sweep}");
    assert!(sweep.mutants.len() >= 4, "{sweep}");
    sweep.missed().count()
}

/// Its sweep takes a minute, so only the deep form drops write-backs and fences.
#[test]
fn every_state_of_fast_fair() {
    // One before the split, and at it; a split with a sibling.
    let befores = [mixed(26), mixed(27), descending(41)];
    if std::env::var_os("DURIX_DEEP").is_some_and(|deep| deep == "1") {
        // The root's fence: keys are found by siblings until it is there.
        assert_eq!(survives::<FastFair>("fast_fair.rs", &befores), 1);
    } else {
        println!("{}", explored::<FastFair>(&befores, Plan::new()).assert_ok());
    }
}

#[test]
fn every_state_of_the_fptrees() {
    let befores = [mixed(56), descending(84)];
    // The paper persists each step by itself, also the fingerprint, which is on the bitmap's line, and each step of a logged split: much of
    // that is more than is needed where lines keep the order of their stores.
    assert_eq!(survives::<FpTree<true>>("fptree.rs", &befores), 7);
    assert_eq!(survives::<FpTree<false>>("fptree.rs", &befores), 0);
}

#[test]
fn every_state_of_the_lb_tree() {
    // Its first line has room, or not; a split, and one with a neighbour.
    let befores = [mixed(2), mixed(4), mixed(14), descending(21)];
    assert_eq!(survives::<LbTree>("lb_tree.rs", &befores), 0);
}

#[test]
fn every_state_of_wort() {
    assert_eq!(survives::<Wort>("wort.rs", &[mixed(7)]), 0);
}
