//! The comparators are sets, for one thread and for several, and their write-backs and fences are those of their papers.

use durix_pmem::{Counting, Hardware};

use super::super::sets_logged::Set;
use super::super::sets_logged::tests::{is_a_map, is_shared, mapping};
use super::flit::Flit;
use super::harris::Harris;
use super::scheme::LinkFree;
use super::soft::Soft;
use super::tower::Tower;

const KEYS: u64 = 64;

#[test]
fn each_is_a_set() {
    is_a_map(&Harris::<LinkFree>::table(KEYS));
    is_a_map(&Harris::<LinkFree>::list(KEYS));
    is_a_map(&Harris::<Flit<false>>::table(KEYS));
    is_a_map(&Harris::<Flit<true>>::table(KEYS));
    is_a_map(&Harris::<Flit<false>>::list(KEYS));
    is_a_map(&Soft::table(KEYS));
    is_a_map(&Soft::list(KEYS));
    is_a_map(&Tower::<LinkFree>::new(KEYS));
    is_a_map(&Tower::<Flit<false>>::new(KEYS));
    is_a_map(&Tower::<Flit<true>>::new(KEYS));
}

#[test]
fn threads_share_each() {
    for threads in [2, 4] {
        is_shared(&Harris::<LinkFree>::table(KEYS), threads);
        is_shared(&Harris::<LinkFree>::list(KEYS), threads);
        is_shared(&Harris::<Flit<false>>::table(KEYS), threads);
        is_shared(&Harris::<Flit<true>>::table(KEYS), threads);
        is_shared(&Harris::<Flit<false>>::list(KEYS), threads);
        is_shared(&Soft::table(KEYS), threads);
        is_shared(&Soft::list(KEYS), threads);
        is_shared(&Tower::<LinkFree>::new(KEYS), threads);
        is_shared(&Tower::<Flit<false>>::new(KEYS), threads);
        is_shared(&Tower::<Flit<true>>::new(KEYS), threads);
    }
}

/// Write-backs and fences of one thread, each of an insert, a remove; reads and updates that change nothing have none.
fn costs(set: &impl Set<Counting<Hardware>>) -> [(f64, f64); 2] {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = mapping(set, counting);
    let (mut local, mut session) = (set.local(0), mapping.session().unwrap());
    let mut spread = |insert: bool| {
        let before = counting.counts();
        for key in 1..=KEYS {
            // In an order that makes new predecessors and old ones.
            let (key, op) = (key * 37 % (KEYS + 1), session.enter().unwrap());
            assert!(if insert { set.insert(&mut local, &op, key, 1) } else { set.remove(&mut local, &op, key) });
        }
        let changed = counting.counts() - before;
        for key in 1..=KEYS {
            let op = session.enter().unwrap();
            assert_eq!(set.contains(&mut local, &op, key), insert, "{}", set.name());
            assert!(!if insert { set.insert(&mut local, &op, key, 1) } else { set.remove(&mut local, &op, key) });
        }
        let unchanged = counting.counts() - before - changed;
        assert_eq!((unchanged.write_backs, unchanged.fences), (0, 0), "{}", set.name());
        assert_eq!(changed.implicit_drains, 0, "{}", set.name());
        [changed.write_backs, changed.fences].map(|count| count as f64 / KEYS as f64).into()
    };
    // Twice, so that nodes are used again, too.
    let first = [spread(true), spread(false)];
    assert_eq!(first, [spread(true), spread(false)], "{}", set.name());
    first
}

#[test]
fn write_backs_and_fences_are_those_of_the_papers() {
    for set in [Soft::table(KEYS), Soft::list(KEYS)] {
        assert_eq!(costs(&set), [(1.0, 1.0); 2]);
    }
    for set in [Harris::<LinkFree>::table(KEYS), Harris::<LinkFree>::list(KEYS)] {
        assert_eq!(costs(&set), [(1.0, 1.0); 2]);
    }
    assert_eq!(costs(&Tower::<LinkFree>::new(KEYS)), [(1.0, 1.0); 2]);
    assert_eq!(costs(&Harris::<Flit<false>>::table(KEYS)), [(2.0, 2.0); 2]);
    assert_eq!(costs(&Harris::<Flit<true>>::table(KEYS)), [(2.0, 2.0); 2]);
    assert_eq!(costs(&Harris::<Flit<true>>::list(KEYS)), [(2.0, 2.0); 2]);
    assert_eq!(costs(&Tower::<Flit<false>>::new(KEYS)), [(2.0, 2.0); 2]);
    assert_eq!(costs(&Tower::<Flit<true>>::new(KEYS)), [(2.0, 2.0); 2]);
}

/// A reader that meets an insert that is not durable yet makes it durable itself.
fn helped<S: Set<Counting<Hardware>>>(set: &S, begin: impl Fn(&durix_pmem::Op<'_, Counting<Hardware>>)) -> (u64, u64) {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = mapping(set, counting);
    let (mut local, mut session) = (set.local(0), mapping.session().unwrap());
    assert!(set.insert(&mut local, &session.enter().unwrap(), 5, 1));
    begin(&session.enter().unwrap());
    let before = counting.counts();
    assert!(set.contains(&mut local, &session.enter().unwrap(), 5));
    let counts = counting.counts() - before;
    (counts.write_backs, counts.fences)
}

#[test]
fn a_read_makes_durable_what_is_not() {
    use super::scheme::{FIRST, Line};
    use durix_pmem::Rmw;
    use std::sync::atomic::Ordering::Relaxed;
    // The only node is the first of the first thread, right behind the head.
    let node = FIRST + 64;
    // As if the inserter had not come so far as to set the flag.
    let cleared = |op: &durix_pmem::Op<'_, _>| {
        let line: &Line = op.lines().at(node);
        op.store(&line.own, op.load(&line.own, Relaxed) & !4, Relaxed);
    };
    assert_eq!(helped(&Harris::<LinkFree>::list(KEYS), cleared), (1, 1));
    // As if the inserter were between its exchange and its fence: the counter beside the head.
    let counted = |op: &durix_pmem::Op<'_, _>| _ = op.rmw(super::scheme::word(op, FIRST + 8), Rmw::Add, 1);
    assert_eq!(helped(&Harris::<Flit<false>>::list(KEYS), counted), (1, 1));
}
