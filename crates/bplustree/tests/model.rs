//! The tree against a model, and its exact costs.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use durix_bplustree::{BPlusTree, Options};
use durix_index::{Batch, Direction, Index, KeyRange, OrderedIndex};
use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::{FaultBacking, Faults};
use durix_pmem::{Counting, Hardware, Pool, PoolOptions, Session, Tick};
use proptest::prelude::*;

type M = Counting<Hardware>;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(chunk: u64) -> PoolOptions {
    PoolOptions::new().chunk_size(chunk).initial_size(64 * chunk).lanes(1).max_indices(2)
}

fn pool(chunk: u64, chunks: u64) -> (Pool<M>, M) {
    let medium = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
    (options(chunk).create_on(HeapBacking::new(chunks * chunk), medium).unwrap(), medium)
}

fn tree(pool: &Pool<M>, options: Options) -> Arc<BPlusTree<M>> {
    BPlusTree::open_with(pool, "it", &options).unwrap()
}

fn assert_sound(tree: &BPlusTree<M>, session: &mut Session<M>) {
    let findings = Index::check(tree, session).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}

fn walk(
    tree: &BPlusTree<M>,
    session: &mut Session<M>,
    range: &KeyRange,
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut cursor, mut found) = (tree.range(range, direction), Vec::new());
    while let Some((key, value)) = cursor.next(&session.enter().unwrap()).unwrap() {
        found.push((key.to_vec(), value.to_vec()));
    }
    found
}

#[derive(Clone, Debug)]
enum Act {
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Swap(Vec<u8>, Option<Vec<u8>>),
    Batch(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    Range(Vec<u8>, Vec<u8>),
    Trim,
    Reopen,
    /// The process dies with everything in the caches.
    Die,
}

/// Keys that are neighbours, with shared prefixes of all lengths around the 8 bytes of a slot.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(0..3u8, 0..4);
    (prop::sample::select(vec![0usize, 2, 6, 7, 8, 9, 30]), tail)
        .prop_map(|(shared, tail)| [vec![7; shared], tail].concat())
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let len = prop::sample::select(vec![0usize, 1, 7, 8, 9, 16, 100, 1100, 3000]);
    (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len])
}

fn act() -> impl Strategy<Value = Act> {
    let changes = prop::collection::vec((key(), prop::option::weighted(0.7, value())), 0..40);
    prop_oneof![
        30 => (key(), value()).prop_map(|(k, v)| Act::Put(k, v)),
        20 => key().prop_map(Act::Remove),
        5 => (key(), prop::option::of(value())).prop_map(|(k, v)| Act::Swap(k, v)),
        2 => changes.prop_map(Act::Batch),
        4 => (key(), key()).prop_map(|(a, b)| Act::Range(a, b)),
        1 => Just(Act::Trim),
        1 => Just(Act::Reopen),
        1 => Just(Act::Die),
    ]
}

struct Both {
    pool: Pool<M>,
    medium: M,
    tree: Option<Arc<BPlusTree<M>>>,
    model: Model,
}

const CHUNK: u64 = 4096;

impl Both {
    fn new() -> Both {
        let (pool, medium) = pool(CHUNK, 1200);
        let tree = Some(tree(&pool, Options::default()));
        Both { pool, medium, tree, model: Model::new() }
    }

    fn apply(&mut self, act: Act) {
        let tree = Arc::clone(self.tree.as_ref().unwrap());
        let mut session = self.pool.session().unwrap();
        let op = session.enter().unwrap();
        match act {
            Act::Put(k, v) => {
                let is_new = self.model.insert(k.clone(), v.clone()).is_none();
                assert_eq!(tree.insert(&op, &k, &v).unwrap(), is_new);
                assert_eq!(tree.get_vec(&op, &k).unwrap(), Some(v));
            }
            Act::Remove(k) => {
                assert_eq!(tree.remove(&op, &k).unwrap(), self.model.remove(&k).is_some());
                assert!(!tree.contains(&op, &k).unwrap());
            }
            Act::Swap(k, v) => {
                let old = self.model.get(&k).cloned();
                assert!(!tree.compare_and_set(&op, &k, Some(b"no such value"), v.as_deref()).unwrap());
                assert!(tree.compare_and_set(&op, &k, old.as_deref(), v.as_deref()).unwrap());
                assert_eq!(tree.update(&op, &k, b"new").unwrap(), v.is_some());
                match v {
                    Some(_) => _ = self.model.insert(k, b"new".to_vec()),
                    None => _ = self.model.remove(&k),
                }
            }
            Act::Batch(changes) => {
                let mut batch = Batch::new();
                for (k, v) in changes {
                    match &v {
                        Some(v) => batch.insert(&k, v),
                        None => batch.remove(&k),
                    };
                    match v {
                        Some(v) => self.model.insert(k, v),
                        None => self.model.remove(&k),
                    };
                }
                tree.apply(&op, &batch).unwrap();
            }
            Act::Range(a, b) => {
                drop(op);
                let bounds = [Bound::Included(&a[..]), Bound::Excluded(&a[..]), Bound::Unbounded];
                for lower in bounds {
                    let range = KeyRange::new(lower, Bound::Excluded(&b));
                    let inside = self.model.iter().filter(|(k, _)| range.contains(k));
                    let mut expected: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
                    assert_eq!(walk(&tree, &mut session, &range, Direction::Forward), expected);
                    expected.reverse();
                    assert_eq!(walk(&tree, &mut session, &range, Direction::Backward), expected);
                }
            }
            Act::Trim => {
                drop(op);
                tree.trim(&mut session).unwrap();
            }
            Act::Reopen => {
                drop(op);
                drop((session, tree, self.tree.take()));
                self.tree = Some(self::tree(&self.pool, Options::default()));
            }
            Act::Die => {
                let image = HeapBacking::image_of(self.pool.mapping());
                self.pool.mapping().shut();
                drop(op);
                drop((session, tree, self.tree.take()));
                let found = options(CHUNK).open_on(HeapBacking::from_image(image), self.medium).unwrap();
                self.pool = found.recover().unwrap();
                self.tree = Some(self::tree(&self.pool, Options::default()));
            }
        }
    }

    fn check(&mut self) {
        let (tree, mut session) = (self.tree.as_ref().unwrap(), self.pool.session().unwrap());
        let all = walk(tree, &mut session, &KeyRange::all(), Direction::Forward);
        assert!(all.iter().map(|(k, v)| (k, v)).eq(&self.model), "{all:?} {:?}", self.model);
        assert_sound(tree, &mut session);
        assert_eq!(Index::stats(&**tree, &mut session).unwrap().keys, self.model.len() as u64);
        let mut saved = Model::new();
        Index::salvage(&**tree, &mut session, &mut |k, v| _ = saved.insert(k.to_vec(), v.to_vec())).unwrap();
        assert_eq!(saved, self.model);
        tree.dump(&session.enter().unwrap(), &mut String::new()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("DURIX_DEEP").is_some() { 2000 } else { 48 }, ..Default::default() })]
    #[test]
    fn it_is_a_map(acts in prop::collection::vec(act(), 0..250)) {
        let mut both = Both::new();
        for (number, act) in acts.into_iter().enumerate() {
            both.apply(act);
            if number % 16 == 0 {
                both.check();
            }
        }
        both.check();
    }
}

/// Keys in order, in reverse order and shuffled; all removed again in another order: nothing is left but one leaf.
#[test]
fn trees_of_several_levels_grow_and_shrink() {
    for (step, long) in [(1u64, false), (9_973, false), (19_999, true), (7, true)] {
        let (pool, _) = pool(16 << 10, 1000);
        let (tree, mut session) = (tree(&pool, Options::default()), pool.session().unwrap());
        let count = 20_000u64;
        let key = |i: u64| {
            let word = (i * step % count).to_be_bytes();
            if long { [&b"shared by all"[..], &word].concat() } else { word.to_vec() }
        };
        let op = session.enter().unwrap();
        for i in 0..count {
            assert!(tree.insert(&op, &key(i), &i.to_le_bytes()).unwrap());
        }
        for i in 0..count {
            assert_eq!(tree.get_vec(&op, &key(i)).unwrap(), Some(i.to_le_bytes().to_vec()));
        }
        drop(op);
        assert_sound(&tree, &mut session);
        let stats = BPlusTree::stats(&tree, &session.enter().unwrap());
        assert!(stats.levels >= 4, "{stats:?}");
        println!("step {step}, long {long}: {stats:?}");
        for i in (0..count).map(|i| i * 7_919 % count) {
            assert!(tree.remove(&session.enter().unwrap(), &key(i)).unwrap());
        }
        assert_sound(&tree, &mut session);
        let stats = BPlusTree::stats(&tree, &session.enter().unwrap());
        assert!(stats.keys == 0 && stats.leaves + stats.interiors <= 3, "{stats:?}");
    }
}

/// 8 bytes of key and value: a redo record of one line, and one fence. Growth of the log, splits and trimming are charged.
#[test]
fn an_update_of_words_costs_one_fence_and_one_line_of_log() {
    for ticks in [false, true] {
        let (pool, medium) = pool(64 << 10, 2000);
        let (tree, mut session) = (tree(&pool, Options::default()), pool.session().unwrap());
        let count = 20_000u64;
        let key = |i: u64| (i * 7_919 % count).to_be_bytes();
        let mut run = |what: &str, each: &mut dyn FnMut(&durix_pmem::Op<'_, M>, u64)| {
            let before = medium.counts();
            for i in 0..count {
                each(&session.enter().unwrap(), i);
                if ticks && i % 64 == 0 {
                    while pool.tick(&mut session).unwrap() == Tick::Worked {}
                }
            }
            let cost = medium.counts() - before;
            let per = |n: u64| n as f64 / count as f64;
            println!("{what}, ticks {ticks}: {} fences, {} lines", per(cost.fences), per(cost.write_backs));
            (per(cost.fences), per(cost.write_backs))
        };
        let inserts = run("insert", &mut |op, i| assert!(tree.insert(op, &key(i), &[1; 8]).unwrap()));
        let updates = run("update", &mut |op, i| assert!(tree.update(op, &key(i), &i.to_le_bytes()).unwrap()));
        let gets = run("get", &mut |op, i| assert!(tree.contains(op, &key(i)).unwrap()));
        let removes = run("remove", &mut |op, i| assert!(tree.remove(op, &key(i)).unwrap()));
        for (fences, _) in [inserts, updates, removes] {
            assert!((1.0..=1.01).contains(&fences), "{fences}");
        }
        assert!(gets.0 <= 0.001, "a read fences nothing: {gets:?}");
        // The log's first segments are charged, too: their zeroes are a line each.
        // A service that trims often writes a line back more often.
        assert!(inserts.1 < 5.4 && updates.1 < 3.5 && removes.1 < 2.9, "{inserts:?} {updates:?} {removes:?}");
    }
}

/// What one call of each kind costs, apart from the log's segments.
#[test]
fn calls_cost_exactly() {
    let (pool, medium) = pool(64 << 10, 200);
    let (tree, mut session) = (tree(&pool, Options::default()), pool.session().unwrap());
    let op = session.enter().unwrap();
    for i in 0..10u8 {
        tree.insert(&op, &[i; 8], &[i; 8]).unwrap();
    }
    let cost = |call: &mut dyn FnMut()| {
        let before = medium.counts();
        call();
        let cost = medium.counts() - before;
        (cost.fences, cost.write_backs)
    };
    // The log goes on at a line's beginning.
    let (one_fence, lines) = cost(&mut || assert!(tree.insert(&op, &[20; 8], &[1; 8]).unwrap()));
    assert!(one_fence == 1 && lines <= 2, "{lines}");
    let (one_fence, lines) = cost(&mut || assert!(!tree.insert(&op, &[20; 8], &[2; 8]).unwrap()));
    assert!(one_fence == 1 && lines <= 2, "{lines}");
    assert_eq!(cost(&mut || assert!(!tree.insert_if_absent(&op, &[20; 8], &[2; 8]).unwrap())), (0, 0));
    assert_eq!(cost(&mut || assert!(!tree.remove(&op, &[30; 8]).unwrap())), (0, 0));
    assert_eq!(cost(&mut || assert_eq!(tree.get_vec(&op, &[20; 8]).unwrap(), Some(vec![2; 8]))), (0, 0));
    // A batch is one record.
    let mut batch = Batch::new();
    (0..10u8).for_each(|i| _ = batch.insert(&[i; 8], &[9; 8]));
    let (one_fence, lines) = cost(&mut || tree.apply(&op, &batch).unwrap());
    assert!(one_fence == 1 && lines <= 6, "{lines}");
}

/// A pool that is full takes removals, and gives their room back.
#[test]
fn a_full_pool_takes_removals_and_their_room_comes_back() {
    let (pool, _) = pool(4096, 64);
    let (tree, mut session) = (tree(&pool, Options::default()), pool.session().unwrap());
    let op = session.enter().unwrap();
    let mut counts = Vec::new();
    for _ in 0..4 {
        let mut count = 0u64;
        let full = loop {
            match tree.insert(&op, &count.to_be_bytes(), &[7; 100]) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, durix_index::Error::Pool(durix_pmem::Error::Full { .. })), "{full}");
        assert_eq!(tree.get_vec(&op, &count.to_be_bytes()).unwrap(), None);
        assert_eq!(BPlusTree::check(&tree, &op), []);
        // What goes makes room at once for what is of its size, however short the log is.
        for i in 0..20u64 {
            assert!(tree.remove(&op, &i.to_be_bytes()).unwrap());
            assert!(tree.insert(&op, &i.to_be_bytes(), &[8; 100]).unwrap(), "{i} of {count}");
        }
        for i in 0..count {
            assert!(tree.remove(&op, &i.to_be_bytes()).unwrap(), "{i} of {count}");
        }
        assert_eq!(BPlusTree::check(&tree, &op), []);
        counts.push(count);
    }
    assert!(counts.iter().all(|count| *count > 100 && count.abs_diff(counts[0]) < counts[0] / 4), "{counts:?}");
}

/// The same where it is the disk that is full: blocks that were freed wait for a trim of the log, which comes in time.
#[test]
fn a_full_disk_takes_changes_as_a_full_pool_does() {
    let faults = Faults::default();
    let medium = Counting::new(Hardware::PAGE_CACHE);
    let pool = options(4096).create_on(FaultBacking::new(HeapBacking::new(16 << 20), faults.clone()), medium).unwrap();
    let (tree, mut session) = (tree(&pool, Options::default()), pool.session().unwrap());
    faults.room(Some(pool.mapping().len()));
    let mut count = 0u64;
    let full = loop {
        match tree.insert(&session.enter().unwrap(), &count.to_be_bytes(), &[7; 1000]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, durix_index::Error::Pool(durix_pmem::Error::DiskFull { .. })), "{full}");
    for turn in 0..1000u64 {
        let (op, key) = (session.enter().unwrap(), (turn % count).to_be_bytes());
        assert!(tree.remove(&op, &key).unwrap());
        let inserted = tree.insert(&op, &key, &[turn as u8; 1000]);
        assert!(matches!(inserted, Ok(true)), "{turn}: {inserted:?}");
    }
    assert_sound(&tree, &mut session);
}

/// Values up to many blocks, of which the log holds the short ones only.
#[test]
fn values_of_any_length() {
    let (pool, _) = pool(4096, 6000);
    let (tree, mut session) = (tree(&pool, Options::default()), pool.session().unwrap());
    let op = session.enter().unwrap();
    let long_key: Vec<u8> = (0..65_535u32).map(|i| (i * i) as u8).collect();
    for len in [0usize, 1, 8, 9, 999, 1000, 1016, 1017, 1024, 1025, 2000, 10_000, 1 << 20, 3 << 20] {
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        for key in [&b"k"[..], &long_key] {
            tree.insert(&op, key, &value).unwrap();
            assert_eq!(tree.get_vec(&op, key).unwrap().as_ref(), Some(&value), "{len}");
        }
        assert_eq!(BPlusTree::check(&tree, &op), []);
    }
    let too_long = vec![0; (16 << 20) + 1];
    assert!(matches!(tree.insert(&op, b"k", &too_long), Err(durix_index::Error::ValueTooLong { .. })));
    assert!(matches!(tree.insert(&op, &[0; 65_536], b""), Err(durix_index::Error::KeyTooLong { .. })));
}
