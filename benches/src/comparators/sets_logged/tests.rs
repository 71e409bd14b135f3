//! The comparators are maps, for one thread and for several, and their fences are those of their protocols.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use durix_pmem::{Counting, Hardware, Mapping, Medium};

use super::bst_tk::BstTk;
use super::lazy::Lazy;
use super::nodes::Nodes;
use super::tower::LockedSkipList;
use super::{MAX_THREADS, Set};

const KEYS: u64 = 64;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state >> 20
}

pub(in crate::comparators) fn mapping<M: Medium>(set: &impl Set<M>, medium: M) -> Mapping<M> {
    let mapping = Mapping::heap((set.bytes(MAX_THREADS) as usize).next_multiple_of(4096), medium);
    set.create(&mapping);
    mapping
}

pub(in crate::comparators) fn is_a_map(set: &impl Set<Hardware>) {
    let mapping = mapping(set, Hardware::PAGE_CACHE);
    let (mut local, mut session) = (set.local(0), mapping.session().unwrap());
    let (mut model, mut state) = (BTreeSet::new(), 7);
    for _ in 0..20_000 {
        let (key, op) = (1 + random(&mut state) % (2 * KEYS), session.enter().unwrap());
        assert_eq!(set.contains(&mut local, &op, key), model.contains(&key), "{}", set.name());
        if random(&mut state) & 1 == 0 {
            assert_eq!(set.insert(&mut local, &op, key, 1), model.insert(key), "{}", set.name());
        } else {
            assert_eq!(set.remove(&mut local, &op, key), model.remove(&key), "{}", set.name());
        }
    }
}

#[test]
fn each_is_a_map() {
    is_a_map(&Lazy::<false>::list(KEYS));
    is_a_map(&Lazy::<true>::list(KEYS));
    is_a_map(&Lazy::<false>::table(KEYS));
    is_a_map(&Lazy::<true>::table(KEYS));
    is_a_map(&LockedSkipList::<false>::new(KEYS));
    is_a_map(&LockedSkipList::<true>::new(KEYS));
    is_a_map(&BstTk::<false>::new(KEYS));
    is_a_map(&BstTk::<true>::new(KEYS));
}

/// Of each key, inserts and removes that succeed must alternate: their balance is 1 where it is there in the end, else 0.
pub(in crate::comparators) fn is_shared(set: &impl Set<Hardware>, threads: u64) {
    let mapping = mapping(set, Hardware::PAGE_CACHE);
    let balances: Vec<AtomicI64> = (0..=2 * KEYS).map(|_| AtomicI64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (mapping, balances) = (&mapping, &balances);
            scope.spawn(move || {
                let (mut local, mut session, mut state) = (set.local(thread), mapping.session().unwrap(), thread);
                for _ in 0..10_000 {
                    let (key, op) = (1 + random(&mut state) % (2 * KEYS), session.enter().unwrap());
                    set.contains(&mut local, &op, key);
                    let change = if random(&mut state) & 1 == 0 {
                        i64::from(set.insert(&mut local, &op, key, 1))
                    } else {
                        -i64::from(set.remove(&mut local, &op, key))
                    };
                    balances[key as usize].fetch_add(change, Ordering::Relaxed);
                }
            });
        }
    });
    let (mut local, mut session) = (set.local(0), mapping.session().unwrap());
    for (key, balance) in balances.iter().enumerate().skip(1) {
        let found = set.contains(&mut local, &session.enter().unwrap(), key as u64);
        let there = i64::from(set.remove(&mut local, &session.enter().unwrap(), key as u64));
        assert_eq!(i64::from(found), there, "{}, key {key}", set.name());
        assert_eq!(balance.load(Ordering::Relaxed), there, "{}, key {key}", set.name());
    }
}

#[test]
fn threads_share_each() {
    is_shared(&Lazy::<false>::list(KEYS), MAX_THREADS);
    is_shared(&Lazy::<false>::table(KEYS), MAX_THREADS);
    is_shared(&LockedSkipList::<false>::new(KEYS), MAX_THREADS);
    is_shared(&BstTk::<false>::new(KEYS), MAX_THREADS);
}

/// A thread without nodes panics, and the others go on: it holds no lock then.
#[test]
fn a_thread_without_nodes_leaves_no_lock_behind() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        fn goes_on<S: Set<Hardware>>(set: &S, exhaust: impl Fn(&mut S::Local)) {
            let mapping = mapping(set, Hardware::PAGE_CACHE);
            let (mut poor, mut rich, mut session) = (set.local(0), set.local(1), mapping.session().unwrap());
            exhaust(&mut poor);
            let insert = || set.insert(&mut poor, &session.enter().unwrap(), 1, 1);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(insert)).is_err());
            assert!(set.insert(&mut rich, &mapping.session().unwrap().enter().unwrap(), 1, 1), "{}", set.name());
        }
        goes_on(&Lazy::<false>::list(KEYS), |local| local.nodes = Nodes::new(0..0, 64));
        goes_on(&BstTk::<false>::new(KEYS), |local| local.nodes = Nodes::new(0..0, 64));
        goes_on(&LockedSkipList::<false>::new(KEYS), |local| {
            (local.low, local.high) = (Nodes::new(0..0, 64), Nodes::new(0..0, 192));
        });
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(60)).expect("somebody waits for a lock that nobody gives back");
}

/// Fences of an insert and of a remove.
fn fences(set: &impl Set<Counting<Hardware>>, counting: Counting<Hardware>) -> (f64, f64) {
    let mapping = mapping(set, counting);
    let (mut local, mut session) = (set.local(0), mapping.session().unwrap());
    let mut count = |insert: bool| {
        let before = counting.counts();
        for key in 1..=KEYS {
            let op = session.enter().unwrap();
            assert!(if insert { set.insert(&mut local, &op, key, 1) } else { set.remove(&mut local, &op, key) });
        }
        for key in 1..=KEYS {
            let op = session.enter().unwrap();
            assert!(!if insert { set.insert(&mut local, &op, key, 1) } else { set.remove(&mut local, &op, key) });
        }
        let counts = counting.counts() - before;
        assert_eq!(counts.implicit_drains, 0, "{}", set.name());
        counts.fences as f64 / KEYS as f64
    };
    (count(true), count(false))
}

#[test]
fn fences_are_those_of_the_protocol() {
    let counting = || Counting::new(Hardware::PAGE_CACHE);
    for set in [Lazy::<false>::list(KEYS), Lazy::<false>::table(KEYS)] {
        assert_eq!(fences(&set, counting()), (3.0, 3.0));
    }
    assert_eq!(fences(&BstTk::<false>::new(KEYS), counting()), (3.0, 3.0));
    // Two levels on average; a remove logs its mark, too.
    let (insert, remove) = fences(&LockedSkipList::<false>::new(KEYS), counting());
    assert!((4.5..7.5).contains(&insert) && remove == insert + 3.0, "{insert} {remove}");
    let near_one = |(insert, remove): (f64, f64)| (1.0..1.1).contains(&insert) && (1.0..1.1).contains(&remove);
    assert!(near_one(fences(&Lazy::<true>::table(KEYS), counting())));
    assert!(near_one(fences(&BstTk::<true>::new(KEYS), counting())));
    assert!(near_one(fences(&LockedSkipList::<true>::new(KEYS), counting())));
}
