//! Readers in a map that changes under them: what they carry along from a node that others take out meanwhile must not
//! mislead them. Schedules that once did, by the simulator; and a few keys under several threads.

use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Explorer, Persistency, Threads};
use durix_logfree::testing::Act::{self, Get, Insert, Remove, Update, Walk};
use durix_logfree::testing::{Map, Sim, UnderTest};
use durix_logfree::{Bst, Error};
use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::mix;
use durix_pmem::{Hardware, Off, Op, Plan, Pool, PoolOptions, Word};

/// Every place where the first thread can be held up, while the second does all that it does.
#[track_caller]
fn held_up<S: Map<Sim>>(before: &[Act], reader: Act, writer: &[Act]) {
    let subject = UnderTest::<S> { before: before.to_vec(), ..UnderTest::new(Plan::new()) };
    let explorer = Explorer::new().model(Persistency::Eadr);
    let program = [vec![reader], writer.to_vec()];
    let report = Threads::new(explorer).preemptions(1).run(&subject.boxed(), &program, &[]).assert_ok();
    println!("{program:?}: {report}");
    assert!(report.complete, "{report}");
}

/// The topmost branch is at 9, with 5 on its left, and a branch at 10 on its right.
const TOP_IS_9: [Act; 3] = [Insert(5, 50), Insert(9, 90), Insert(10, 100)];

#[test]
fn a_search_has_passed_a_branch_that_is_spliced_out() {
    // Below the branch at 10 comes one at 3, which the branch at 9 had kept away.
    let writer = [Remove(5), Insert(3, 30), Update(3, 31), Remove(9)];
    for reader in [Get(9), Get(10), Insert(9, 91), Update(10, 101), Remove(9)] {
        held_up::<Bst<Sim>>(&TOP_IS_9, reader, &writer);
    }
}

#[test]
fn a_walk_has_passed_a_branch_that_is_spliced_out() {
    // The branch at 9 has another at 12 on its right, with 10 and 12. When the walk has met 5, that is removed, and comes
    // again below the branch at 12.
    let before = [&TOP_IS_9[..], &[Insert(12, 120), Remove(9)]].concat();
    held_up::<Bst<Sim>>(&before, Walk, &[Remove(5), Insert(5, 51)]);
    held_up::<Bst<Sim>>(&TOP_IS_9, Walk, &[Remove(5), Insert(3, 30), Update(3, 31), Remove(9)]);
}

/// What the readers forgive in a tree that changes they do not in one that is damaged.
#[test]
fn damaged_branches_are_reported_by_all_that_pass_them() {
    // Words of a branch: its edges, its router.
    for (what, word) in [("a circle", 1), ("a router below its room", 2)] {
        let pool = pool();
        let map = Bst::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        (0..10).for_each(|key| assert!(map.insert(&op, 10 * key, key).unwrap()));
        let branch = map.next_address(&op).unwrap();
        assert!(map.insert(&op, 100, 0).unwrap() && map.insert(&op, 110, 0).unwrap());
        let damage = if word == 2 { 5 } else { branch };
        op.store(op.at(Off::<Word>::new(branch + 8 * word)), damage, Relaxed);
        let refused = [
            ("get", map.get(&op, 120).map(drop)),
            ("insert", map.insert(&op, 120, 0).map(drop)),
            ("update", map.update(&op, 120, 0).map(drop)),
            ("remove", map.remove(&op, 120).map(drop)),
            ("range", map.range(&op, .., |_, _| ())),
            ("range_rev", map.range_rev(&op, .., |_, _| ())),
            ("check", map.check(&op).map(drop)),
        ];
        for (name, result) in refused {
            assert!(
                matches!(result, Err(Error::Corrupt { offset, .. }) if offset == branch),
                "{what}, {name}: {result:?}"
            );
        }
        assert_eq!(map.get(&op, 20).unwrap(), Some(2), "{what} elsewhere");
    }
}

/// Two threads, 32 keys, every operation; each walk has to ascend or descend, and no operation may fail.
#[test]
fn a_few_keys_under_two_threads() {
    let rounds = if std::env::var_os("DURIX_DEEP").is_some() { 2_000 } else { 20 };
    for round in 0..rounds {
        let pool = pool();
        let map = Bst::open(&pool, "map").unwrap();
        std::thread::scope(|scope| {
            let (pool, map) = (&pool, &map);
            (0..2).for_each(|thread| _ = scope.spawn(move || contend(pool, map, round * 2 + thread)));
        });
        let mut session = pool.session().unwrap();
        assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
    }
}

fn pool() -> Pool {
    let (len, options) = (16 << 20, PoolOptions::new());
    options.initial_size(len).max_size(len).create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap()
}

fn contend(pool: &Pool, map: &Bst, seed: u64) {
    let mut session = pool.session().unwrap();
    for number in 0..4_000 {
        let random = mix(seed << 32 | number);
        let (key, op) = (random % 32, session.enter().unwrap());
        match random >> 32 & 7 {
            0 | 1 => _ = map.insert(&op, key, number).unwrap(),
            2 | 3 => _ = map.remove(&op, key).unwrap(),
            4 | 5 => _ = map.update(&op, key, number).unwrap(),
            6 => _ = map.get(&op, key).unwrap(),
            _ => walk_both_ways(map, &op),
        }
    }
}

fn walk_both_ways(map: &Bst, op: &Op<'_, Hardware>) {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    map.range(op, .., |key, _| up.push(key)).unwrap();
    map.range_rev(op, .., |key, _| down.push(key)).unwrap();
    assert!(up.is_sorted_by(|one, next| one < next), "{up:?}");
    assert!(down.is_sorted_by(|one, next| one > next), "{down:?}");
}
