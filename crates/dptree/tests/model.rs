//! The tree against a `BTreeMap`: random operations, merges at any moment, reopening, everything deleted and then reused.

use std::collections::BTreeMap;
use std::sync::Arc;

use durix_dptree::{Direction, DpTree, Options, Shape};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Pool, PoolOptions, Session};
use proptest::collection::vec;
use proptest::prelude::*;

const LEN: u64 = 4 << 20;

fn pool() -> Pool<Hardware> {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN);
    options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap()
}

fn tiny() -> Options {
    Options::default().shape(Shape { slots: 4, leaves: 2, page_lines: 2 }).least_front(2)
}

fn small() -> Options {
    Options::default().shape(Shape { slots: 16, leaves: 5, page_lines: 8 }).least_front(8)
}

#[derive(Clone, Debug)]
enum Act {
    Insert(u64, u64),
    InsertIfAbsent(u64, u64),
    Update(u64, u64),
    Swap(u64, Option<u64>, Option<u64>),
    Remove(u64),
    Get(u64),
    Range(u64, u64, bool),
    Many(Vec<(u64, Option<u64>)>),
    Load(Vec<(u64, u64)>),
    Tick,
    MergeAll,
    Reopen,
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..60, 1 => Just(u64::MAX), 1 => Just(1 << 63), 1 => u64::MAX - 5..u64::MAX]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..4, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (key(), value()).prop_map(|(k, v)| Act::Insert(k, v)),
        2 => (key(), value()).prop_map(|(k, v)| Act::InsertIfAbsent(k, v)),
        2 => (key(), value()).prop_map(|(k, v)| Act::Update(k, v)),
        2 => (key(), proptest::option::of(0u64..4), proptest::option::of(value())).prop_map(|(k, a, b)| Act::Swap(k, a, b)),
        5 => key().prop_map(Act::Remove),
        3 => key().prop_map(Act::Get),
        2 => (key(), key(), any::<bool>()).prop_map(|(a, b, back)| Act::Range(a.min(b), a.max(b), back)),
        1 => vec((key(), proptest::option::weighted(0.7, value())), 0..20).prop_map(Act::Many),
        1 => vec((key(), value()), 0..40).prop_map(Act::Load),
        3 => Just(Act::Tick),
        1 => Just(Act::MergeAll),
        1 => Just(Act::Reopen),
    ]
}

struct Both {
    pool: Pool<Hardware>,
    session: Session<Hardware>,
    tree: Option<Arc<DpTree<Hardware>>>,
    options: Options,
    model: BTreeMap<u64, u64>,
}

impl Both {
    fn new(options: Options) -> Self {
        let pool = pool();
        let (session, tree) = (pool.session().unwrap(), DpTree::open_with(&pool, "tree", &options).unwrap());
        Both { pool, session, tree: Some(tree), options, model: BTreeMap::new() }
    }

    fn run(&mut self, act: &Act) {
        let tree = Arc::clone(self.tree.as_ref().unwrap());
        match act {
            Act::Tick => drop(tree.tick(&mut self.session).unwrap()),
            Act::MergeAll => tree.merge_all(&mut self.session).unwrap(),
            Act::Reopen => {
                drop(tree);
                self.tree = None;
                self.tree = Some(DpTree::open_with(&self.pool, "tree", &self.options).unwrap());
            }
            Act::Load(pairs) => {
                tree.load(&mut self.session, pairs.iter().copied()).unwrap();
                self.model.extend(pairs.iter().copied());
            }
            act => self.operate(&tree, act),
        }
    }

    fn operate(&mut self, tree: &DpTree<Hardware>, act: &Act) {
        let op = self.session.enter().unwrap();
        let model = &mut self.model;
        match *act {
            Act::Insert(k, v) => assert_eq!(tree.insert(&op, k, v).unwrap(), model.insert(k, v).is_none()),
            Act::InsertIfAbsent(k, v) => {
                let new = !model.contains_key(&k);
                model.entry(k).or_insert(v);
                assert_eq!(tree.insert_if_absent(&op, k, v).unwrap(), new);
            }
            Act::Update(k, v) => {
                let there = model.get_mut(&k).map(|old| *old = v).is_some();
                assert_eq!(tree.update(&op, k, v).unwrap(), there);
            }
            Act::Swap(k, a, b) => {
                let matches = model.get(&k).copied() == a;
                match b {
                    _ if !matches => {}
                    Some(b) => drop(model.insert(k, b)),
                    None => drop(model.remove(&k)),
                }
                assert_eq!(tree.compare_and_set(&op, k, a, b).unwrap(), matches);
            }
            Act::Remove(k) => assert_eq!(tree.remove(&op, k).unwrap(), model.remove(&k).is_some()),
            Act::Get(k) => assert_eq!(tree.get(&op, k).unwrap(), model.get(&k).copied()),
            Act::Range(a, b, back) => {
                let mut found = Vec::new();
                let direction = if back { Direction::Backward } else { Direction::Forward };
                tree.scan(&op, a..=b, direction, |k, v| {
                    found.push((k, v));
                    true
                })
                .unwrap();
                let pairs = model.range(a..=b).map(|(k, v)| (*k, *v));
                let expected: Vec<_> = if back { pairs.rev().collect() } else { pairs.collect() };
                assert_eq!(found, expected);
            }
            Act::Many(ref changes) => {
                tree.change_many(&op, &mut changes.clone()).unwrap();
                for (key, new) in changes {
                    match new {
                        Some(value) => drop(model.insert(*key, *value)),
                        None => drop(model.remove(key)),
                    }
                }
            }
            Act::Tick | Act::MergeAll | Act::Reopen | Act::Load(_) => unreachable!("not an operation"),
        }
    }

    fn verify(&mut self) {
        let tree = Arc::clone(self.tree.as_ref().unwrap());
        let op = self.session.enter().unwrap();
        assert_eq!(tree.check(&op), []);
        let mut found = BTreeMap::new();
        tree.scan(&op, .., Direction::Forward, |k, v| found.insert(k, v).is_none()).unwrap();
        assert_eq!(found, self.model);
        let keys: Vec<u64> = (0..60).chain([u64::MAX, 1 << 63]).collect();
        let mut seen = 0;
        tree.get_many(&op, &keys, |number, value| {
            assert_eq!(value, self.model.get(&keys[number]).copied());
            seen += 1;
        })
        .unwrap();
        assert_eq!(seen, keys.len());
        assert_eq!(tree.len(&op), self.model.len() as u64);
        assert_eq!(tree.is_empty(&op).unwrap(), self.model.is_empty());
        assert_eq!(tree.first(&op).unwrap(), self.model.first_key_value().map(|(k, v)| (*k, *v)));
        assert_eq!(tree.last(&op).unwrap(), self.model.last_key_value().map(|(k, v)| (*k, *v)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("DURIX_DEEP").is_some() { 5000 } else { 150 }, ..ProptestConfig::default() })]

    #[test]
    fn a_tiny_tree_is_a_map(acts in vec(act(), 1..250)) {
        let mut both = Both::new(tiny());
        acts.iter().for_each(|act| both.run(act));
        both.verify();
    }

    #[test]
    fn a_small_tree_is_a_map(acts in vec(act(), 1..400)) {
        let mut both = Both::new(small());
        acts.iter().for_each(|act| both.run(act));
        both.verify();
        both.run(&Act::MergeAll);
        both.verify();
    }
}

fn shuffled(len: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..len).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    keys.rotate_left(len as usize / 3);
    keys
}

#[test]
fn everything_is_deleted_and_the_space_is_used_again() {
    let mut both = Both::new(small());
    let keys = shuffled(2000);
    let mut sizes = Vec::new();
    for round in 0..4 {
        for (i, key) in keys.iter().enumerate() {
            both.run(&Act::Insert(*key, round));
            if i % 7 == 0 {
                both.run(&Act::Tick);
            }
        }
        both.verify();
        keys.iter().for_each(|key| both.run(&Act::Remove(*key)));
        both.run(&Act::MergeAll);
        both.verify();
        let op = both.session.enter().unwrap();
        let stats = both.tree.as_ref().unwrap().stats(&op);
        assert_eq!((stats.keys, stats.leaves, stats.active, stats.frozen), (0, 0, 0, 0), "{stats:?}");
        sizes.push(stats.unit_bytes + stats.log_bytes);
    }
    assert!(sizes[3] <= sizes[1] * 5 / 4, "the tree keeps growing: {sizes:?}");
}

#[test]
fn nobody_ticks_and_the_log_and_the_fronts_stay_bounded() {
    let mut both = Both::new(small());
    for key in shuffled(5000) {
        both.run(&Act::Insert(key, key));
    }
    both.verify();
    let op = both.session.enter().unwrap();
    let stats = both.tree.as_ref().unwrap().stats(&op);
    assert!(stats.active + stats.frozen < 2500, "{stats:?}");
}

/// A record of a range that nothing else is written to keeps the log's pages, until its front is merged for that.
#[test]
fn nobody_ticks_and_one_old_record_does_not_keep_the_log() {
    let mut both = Both::new(small());
    for key in shuffled(200) {
        both.run(&Act::Insert(key, key));
    }
    both.run(&Act::MergeAll);
    both.run(&Act::Insert(0, 1));
    for round in 0..20_000 {
        both.run(&Act::Insert(u64::MAX - round % 40, round));
        both.run(&Act::Remove(u64::MAX - round % 40));
    }
    both.verify();
    let stats = both.tree.as_ref().unwrap().stats(&both.session.enter().unwrap());
    assert!(stats.log_pages < 30, "{stats:?}");
}

/// With ascending keys a split gives all of the active front to the new range: the old one needs no record any more.
#[test]
fn the_log_stays_short_while_ranges_are_split() {
    let pool = pool();
    let tree = DpTree::open_with(&pool, "tree", &small()).unwrap();
    let mut session = pool.session().unwrap();
    for key in 0..20_000 {
        assert!(tree.insert(&session.enter().unwrap(), key, key).unwrap());
        if key % 13 == 0 {
            while tree.tick(&mut session).unwrap() {}
        }
    }
    let stats = tree.stats(&session.enter().unwrap());
    assert!(stats.ranges > 100 && stats.log_pages < 10, "{stats:?}");
}

#[test]
fn a_large_tree_after_a_restart() {
    let mut both = Both::new(Options::default());
    let keys = shuffled(60_000);
    for key in &keys {
        both.run(&Act::Insert(*key, !*key));
    }
    both.run(&Act::Reopen);
    for key in keys.iter().step_by(7) {
        both.run(&Act::Get(*key));
    }
    both.run(&Act::Get(12345));
    both.run(&Act::Reopen);
    both.verify();
}

/// Fronts of more entries than a step of a scan copies, beside a second front that waits, over leaves of many keys: first where all keys are in
/// fronts, then with removals, and values replaced in place, between merges.
#[test]
fn scans_cross_large_fronts_and_leaves_in_both_directions() {
    let mut both = Both::new(Options::default());
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let mut had_second_front = 0;
    for round in 0..40_u64 {
        for _ in 0..90 {
            // The last keys there are, too.
            let key = u64::MAX - random() % 3000;
            both.run(&match random() % 4 {
                0 => Act::Remove(key),
                1 => Act::Update(key, round),
                _ => Act::Insert(key, round),
            });
        }
        if round % 7 == 6 {
            both.run(&Act::MergeAll);
        }
        had_second_front += {
            let op = both.session.enter().unwrap();
            both.tree.as_ref().unwrap().stats(&op).frozen
        };
        for _ in 0..8 {
            let (a, b) = (u64::MAX - random() % 3000, u64::MAX - random() % 3000);
            [true, false].into_iter().for_each(|back| both.run(&Act::Range(a.min(b), a.max(b), back)));
        }
        [true, false].into_iter().for_each(|back| both.run(&Act::Range(0, u64::MAX, back)));
    }
    assert!(had_second_front > 0, "no scan has met a second front");
    both.verify();
}

#[test]
fn a_full_pool_is_an_error_and_nothing_is_lost() {
    let len = 40 * 4096;
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(len).max_size(len);
    let pool = options.create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap();
    let tree = DpTree::open_with(&pool, "tree", &small()).unwrap();
    let mut session = pool.session().unwrap();
    let mut kept = 0;
    for key in 0.. {
        let op = session.enter().unwrap();
        match tree.insert(&op, key, key) {
            Ok(new) => assert!(new),
            Err(durix_dptree::Error::Pool(durix_pmem::Error::Full { .. })) => break,
            Err(error) => panic!("{error}"),
        }
        kept = key + 1;
    }
    assert!(kept > 300, "{kept}");
    assert_eq!(tree.check(&session.enter().unwrap()), []);
    drop(tree);
    let tree = DpTree::open_with(&pool, "tree", &small()).unwrap();
    assert_eq!(tree.check(&session.enter().unwrap()), []);
    let op = session.enter().unwrap();
    assert_eq!(tree.len(&op), kept);
    assert!((0..kept).all(|key| tree.get(&op, key).unwrap() == Some(key)));
}

/// A tree in a file of 40 chunks, without the room that a merge needs.
struct FullInAMerge {
    path: tempfile::TempPath,
    pool: Pool<Hardware>,
    session: Session<Hardware>,
    tree: Arc<DpTree<Hardware>>,
    /// Number of keys: those of 0, 1 and so on.
    kept: u64,
}

fn is_full<T>(result: &durix_dptree::Result<T>) -> bool {
    matches!(result, Err(durix_dptree::Error::Pool(durix_pmem::Error::Full { .. })))
}

/// Numbers that lie near each other have keys far apart.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl FullInAMerge {
    fn new() -> Self {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::remove_file(&path).unwrap();
        let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(SMALL).max_size(SMALL);
        let pool = options.create(&path).unwrap();
        let tree = DpTree::open_with(&pool, "tree", &small()).unwrap();
        let session = pool.session().unwrap();
        let mut full = FullInAMerge { path, pool, session, tree, kept: 0 };
        let refused = loop {
            assert!(full.insert().unwrap(), "an insert has found no room before a merge has");
            let ticked = full.tree.tick(&mut full.session);
            if ticked.is_err() {
                break ticked;
            }
        };
        assert!(is_full(&refused), "{refused:?}");
        assert!(full.frozen() > 0, "a merge has failed, and no second front waits");
        full
    }

    fn insert(&mut self) -> durix_dptree::Result<bool> {
        let inserted = self.tree.insert(&self.session.enter().unwrap(), scattered(self.kept), self.kept);
        self.kept += u64::from(inserted.is_ok());
        inserted
    }

    fn frozen(&mut self) -> u64 {
        self.tree.stats(&self.session.enter().unwrap()).frozen
    }

    /// Keys from this number on are there, and no others; a merge has nothing left half done.
    fn has_all_from(&mut self, first: u64) {
        let op = self.session.enter().unwrap();
        assert_eq!(self.tree.check(&op), []);
        assert_eq!(self.tree.len(&op), self.kept - first);
        for number in 0..self.kept {
            let expected = (number >= first).then_some(number);
            assert_eq!(self.tree.get(&op, scattered(number)).unwrap(), expected, "{number}, those from {first} stay");
        }
        let mut seen = 0;
        self.tree
            .scan(&op, .., Direction::Forward, |_, value| {
                assert!(value >= first);
                seen += 1;
                true
            })
            .unwrap();
        assert_eq!(seen, self.kept - first, "pairs of a scan");
    }

    /// Merges all.
    fn goes_on(&mut self, first: u64) {
        self.tree.merge_all(&mut self.session).unwrap();
        assert_eq!(self.frozen(), 0, "all was merged");
        self.has_all_from(first);
    }
}

const SMALL: u64 = 40 * 4096;

#[test]
fn a_merge_that_finds_the_pool_full_loses_nothing_and_says_so() {
    let mut full = FullInAMerge::new();
    full.has_all_from(0);
    let again = full.tree.tick(&mut full.session);
    assert!(is_full(&again), "{again:?}");
    let message = again.unwrap_err().to_string();
    assert!(message.contains("the pool is full") && message.contains("larger maximal size"), "{message}");
    full.has_all_from(0);
    // Fronts and log take what they have room for, and what is refused changes nothing.
    let refused = (0..100_000).find_map(|_| full.insert().err()).expect("the pool does not grow");
    assert!(is_full::<()>(&Err(refused)));
    assert!(full.frozen() > 0);
    full.has_all_from(0);
}

#[test]
fn a_merge_that_found_the_pool_full_goes_on_when_keys_are_removed() {
    let mut full = FullInAMerge::new();
    let mut removed = 0;
    while full.tree.merge_all(&mut full.session).is_err() {
        assert!(full.tree.remove(&full.session.enter().unwrap(), scattered(removed)).unwrap());
        removed += 1;
        assert!(removed < full.kept / 2, "half of the keys were removed, and merges find no room");
    }
    full.goes_on(removed);
    assert!(full.insert().unwrap());
    full.has_all_from(removed);
}

#[test]
fn a_merge_that_found_the_pool_full_goes_on_when_the_pool_may_grow() {
    let FullInAMerge { path, pool, session, tree, kept } = FullInAMerge::new();
    drop((session, tree));
    pool.close().unwrap();
    drop(pool);
    let pool = PoolOptions::new().max_size(4 * SMALL).open(&path).unwrap();
    let (tree, session) = (DpTree::open_with(&pool, "tree", &small()).unwrap(), pool.session().unwrap());
    let mut full = FullInAMerge { path, pool, session, tree, kept };
    full.has_all_from(0);
    full.goes_on(0);
    for _ in 0..kept {
        assert!(full.insert().unwrap());
        full.tree.tick(&mut full.session).unwrap();
    }
    full.goes_on(0);
}

/// In pools of several sizes, so that units and log pages run out at different moments; two sessions share the tree.
#[test]
fn everything_can_be_removed_from_a_full_pool() {
    for (chunks, options) in [(24, tiny()), (40, small()), (61, small()), (160, Options::default())] {
        let len = chunks * 4096;
        let pool_options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(len).max_size(len);
        let pool = pool_options.create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap();
        let tree = DpTree::open_with(&pool, "tree", &options).unwrap();
        let mut sessions = [pool.session().unwrap(), pool.session().unwrap()];
        let key = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let kept = (0..).find(|i| tree.insert(&sessions[0].enter().unwrap(), key(*i), *i).is_err()).unwrap();
        assert!(kept > 60, "{kept} keys in {chunks} chunks");
        for i in (0..kept).rev() {
            let op = sessions[i as usize % 2].enter().unwrap();
            let removed = tree.remove(&op, key(i));
            assert!(removed.as_ref().is_ok_and(|was| *was), "{i} of {kept} in {chunks} chunks: {removed:?}");
            if i == kept / 4 {
                drop(op);
                let op = sessions[0].enter().unwrap();
                assert!(
                    tree.insert(&op, key(kept), 0).unwrap(),
                    "no room in {chunks} chunks after three quarters were removed"
                );
                assert!(tree.remove(&op, key(kept)).unwrap());
            }
        }
        let op = sessions[0].enter().unwrap();
        assert_eq!((tree.len(&op), tree.check(&op)), (0, vec![]));
        let again = (0..kept / 2).find(|i| tree.insert(&op, key(*i), *i).is_err());
        assert!(again.is_none_or(|again| again > kept / 4), "only {again:?} of {kept} keys fit again");
    }
}

/// In a full pool a range loses its first leaf, and the next one begins above the range. Later there is room again, and the keys come that the
/// first leaf would have had.
#[test]
fn keys_below_the_first_leaf_that_is_left_are_merged() {
    for (chunks, options, group) in [(40, tiny(), 8), (60, small(), 64)] {
        let len = chunks * 4096;
        let pool_options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(len).max_size(len);
        let pool = pool_options.create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap();
        let tree = DpTree::open_with(&pool, "tree", &options).unwrap();
        let mut session = pool.session().unwrap();
        let mut keys = BTreeMap::new();
        while tree.insert(&session.enter().unwrap(), keys.len() as u64 * 100, 1).is_ok() {
            keys.insert(keys.len() as u64 * 100, 1);
        }
        let all = keys.len() as u64;
        assert!(all > 5 * group, "{all} keys in {chunks} chunks");
        let goes = |number: u64| number > all / 2 || number % group < group / 2;
        for number in (0..all).filter(|number| goes(*number)) {
            assert!(tree.remove(&session.enter().unwrap(), number * 100).unwrap());
            keys.remove(&(number * 100));
        }
        for number in (0..all / 2).filter(|number| goes(*number)) {
            let inserted = tree.insert(&session.enter().unwrap(), number * 100 + 1, 2);
            assert!(
                matches!(inserted, Ok(true)),
                "{number} of {all}: {inserted:?}, {:?}",
                tree.stats(&session.enter().unwrap())
            );
            keys.insert(number * 100 + 1, 2);
        }
        tree.merge_all(&mut session).unwrap();
        let op = session.enter().unwrap();
        assert_eq!(tree.check(&op), []);
        let mut found = BTreeMap::new();
        let visit = |key, value| found.insert(key, value).is_none();
        tree.scan(&op, .., Direction::Forward, visit).unwrap();
        assert_eq!(found, keys);
    }
}

#[test]
fn threads_insert_remove_and_read_while_another_merges() {
    let pool = pool();
    let tree = DpTree::open_with(&pool, "tree", &small()).unwrap();
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|s| {
        for thread in 0..3u64 {
            let (pool, tree, done) = (&pool, &tree, &done);
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for round in 0..3 {
                    for key in 0..1500u64 {
                        let op = session.enter().unwrap();
                        let key = key * 3 + thread;
                        assert!(tree.insert(&op, key, round).unwrap());
                        assert_eq!(tree.get(&op, key).unwrap(), Some(round));
                        let other = tree.get(&op, key.wrapping_sub(1)).unwrap();
                        assert!(other.is_none_or(|value| value < 3));
                    }
                    for key in 0..1500u64 {
                        let op = session.enter().unwrap();
                        assert!(tree.remove(&op, key * 3 + thread).unwrap());
                        assert_eq!(tree.get(&op, key * 3 + thread).unwrap(), None);
                    }
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        let mut session = pool.session().unwrap();
        while done.load(std::sync::atomic::Ordering::Relaxed) < 3 {
            tree.tick(&mut session).unwrap();
            let op = session.enter().unwrap();
            let mut before = None;
            tree.scan(&op, .., Direction::Forward, |key, _| {
                assert!(before.is_none_or(|before| before < key));
                before = Some(key);
                true
            })
            .unwrap();
        }
        tree.merge_all(&mut session).unwrap();
        assert_eq!(tree.check(&session.enter().unwrap()), []);
        assert_eq!(tree.len(&session.enter().unwrap()), 0);
    });
}
