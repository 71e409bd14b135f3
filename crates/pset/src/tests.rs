//! Tests of the set as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Counts, Error as PoolError, Hardware, Medium, Op, Pool, PoolOptions, Session};
use proptest::prelude::*;

mod damage;
mod faults;
mod later;

fn options() -> SetOptions {
    SetOptions::default().shards(2)
}

/// A pool with small chunks in memory.
fn pool<M: Medium>(len: u64, medium: M) -> Pool<M> {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(len).max_size(len);
    options.create_on(HeapBacking::new(len), medium).unwrap()
}

fn open<M: Medium>(pool: &Pool<M>, options: &SetOptions) -> Arc<PersistentSet<M>> {
    PersistentSet::open_with(pool, "set", options).unwrap()
}

/// What recovery finds now, beside the set that is open.
fn again<M: Medium>(set: &PersistentSet<M>, options: &SetOptions) -> PersistentSet<M> {
    let mut session = set.root.pool().session().unwrap();
    PersistentSet::recover(&mut session, set.root.clone(), options).unwrap()
}

fn content<M: Medium>(set: &PersistentSet<M>, op: &Op<'_, M>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut pairs = BTreeMap::new();
    set.for_each(op, |k, v| assert!(pairs.insert(k.to_vec(), v.to_vec()).is_none(), "{k:?} came twice")).unwrap();
    pairs
}

#[test]
fn a_set_opens_where_its_session_is_the_last() {
    let pool = pool(16 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    // Enough for more than one thread.
    let keys = 70_000u64;
    (0..keys).for_each(|key| assert!(set.insert(&op, &key.to_le_bytes(), b"1").unwrap()));
    drop(op);
    drop(session);
    let mut all: Vec<_> = std::iter::from_fn(|| pool.session().ok()).collect();
    let mut last = all.pop().unwrap();
    let again = PersistentSet::recover(&mut last, set.root.clone(), &options().recovery_threads(4)).unwrap();
    assert_eq!(again.len(&last.enter().unwrap()), keys);
}

#[test]
fn keys_come_and_go() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert!(set.insert(&op, b"a", b"1").unwrap());
    assert!(!set.insert(&op, b"a", b"2").unwrap());
    assert_eq!(set.get_vec(&op, b"a").unwrap().unwrap(), b"2");
    assert!(!set.insert_if_absent(&op, b"a", b"3").unwrap());
    assert!(set.insert_if_absent(&op, b"b", b"3").unwrap());
    assert!(set.update(&op, b"b", b"4").unwrap());
    assert!(!set.update(&op, b"c", b"4").unwrap());
    assert!(!set.compare_and_set(&op, b"b", Some(b"3"), Some(b"5")).unwrap());
    assert!(set.compare_and_set(&op, b"b", Some(b"4"), Some(b"5")).unwrap());
    assert!(!set.compare_and_set(&op, b"b", None, Some(b"6")).unwrap());
    assert!(set.compare_and_set(&op, b"", None, Some(b"")).unwrap());
    assert!(set.compare_and_set(&op, b"x", None, None).unwrap());
    assert_eq!((set.len(&op), set.is_empty(&op)), (3, false));
    assert!(set.contains(&op, b"").unwrap());
    assert!(set.compare_and_set(&op, b"", Some(b""), None).unwrap());
    assert!(!set.contains(&op, b"").unwrap());
    assert!(set.remove(&op, b"a").unwrap());
    assert!(!set.remove(&op, b"a").unwrap());
    let mut value = b"left over".to_vec();
    assert!(!set.get(&op, b"a", &mut value).unwrap());
    assert!(value.is_empty());
    assert_eq!(content(&set, &op), BTreeMap::from([(b"b".to_vec(), b"5".to_vec())]));
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn keys_with_the_same_tag_are_told_apart() {
    let pool = pool(16 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options().shards(1));
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let keys: Vec<[u8; 8]> = (0..30_000u64).map(u64::to_le_bytes).collect();
    let mut tags: Vec<u64> = keys.iter().map(|k| set.hash(k) >> 40).collect();
    tags.sort_unstable();
    tags.dedup();
    assert!(tags.len() < keys.len(), "some keys share a tag");
    for round in 0..3u8 {
        // From the second round on, the entry is there and a slot waits.
        keys.iter().for_each(|k| assert_eq!(set.insert(&op, k, &[k[0], round]).unwrap(), round == 0));
        let is = |k: &[u8; 8], value: &[u8; 2]| set.get_vec(&op, k).unwrap().as_deref() == Some(value);
        assert!(keys.iter().all(|k| is(k, &[k[0], round])));
    }
    keys.iter().step_by(2).for_each(|k| assert!(set.remove(&op, k).unwrap()));
    assert!(keys.iter().enumerate().all(|(i, k)| set.contains(&op, k).unwrap() == (i % 2 == 1)));
    assert_eq!(set.check(&op).unwrap(), []);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, u8),
    IfAbsent(u8, u8),
    Update(u8, u8),
    Remove(u8),
    Swap(u8, Option<u8>, Option<u8>),
    Commit(Vec<(u8, Option<u8>)>),
    Reopen(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0u8..12;
    let value = || 0u8..6;
    let step = prop_oneof![
        6 => (key(), value()).prop_map(|(k, v)| Step::Insert(k, v)),
        1 => (key(), value()).prop_map(|(k, v)| Step::IfAbsent(k, v)),
        1 => (key(), value()).prop_map(|(k, v)| Step::Update(k, v)),
        4 => key().prop_map(Step::Remove),
        1 => (key(), prop::option::of(value()), prop::option::of(value())).prop_map(|(k, a, b)| Step::Swap(k, a, b)),
        2 => prop::collection::vec((key(), prop::option::of(value())), 0..6).prop_map(Step::Commit),
        1 => (0u8..3).prop_map(Step::Reopen),
    ];
    prop::collection::vec(step, 0..120)
}

/// Keys and values of different sizes: one line, several, keys that reach beyond line 0.
fn key_of(k: u8) -> Vec<u8> {
    vec![k; [0, 8, 16, 60, 130][usize::from(k) % 5] + usize::from(k)]
}

fn value_of(v: u8) -> Vec<u8> {
    vec![v; [3, 30, 90, 200, 400, 900][usize::from(v)]]
}

fn run_step<M: Medium>(set: &PersistentSet<M>, op: &Op<'_, M>, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, step: Step) {
    match step {
        Step::Insert(k, v) => {
            let new = model.insert(key_of(k), value_of(v)).is_none();
            assert_eq!(set.insert(op, &key_of(k), &value_of(v)).unwrap(), new);
        }
        Step::IfAbsent(k, v) => {
            let absent = !model.contains_key(&key_of(k));
            model.entry(key_of(k)).or_insert_with(|| value_of(v));
            assert_eq!(set.insert_if_absent(op, &key_of(k), &value_of(v)).unwrap(), absent);
        }
        Step::Update(k, v) => {
            let old = model.get_mut(&key_of(k)).map(|old| *old = value_of(v));
            assert_eq!(set.update(op, &key_of(k), &value_of(v)).unwrap(), old.is_some());
        }
        Step::Remove(k) => assert_eq!(set.remove(op, &key_of(k)).unwrap(), model.remove(&key_of(k)).is_some()),
        Step::Swap(k, a, b) => {
            let (a, b) = (a.map(value_of), b.map(value_of));
            let as_expected = model.get(&key_of(k)) == a.as_ref();
            assert_eq!(set.compare_and_set(op, &key_of(k), a.as_deref(), b.as_deref()).unwrap(), as_expected);
            match b {
                _ if !as_expected => {}
                Some(value) => drop(model.insert(key_of(k), value)),
                None => drop(model.remove(&key_of(k))),
            }
        }
        Step::Commit(changes) => {
            let mut batch = Batch::new();
            for (k, v) in changes {
                match v {
                    Some(v) => {
                        batch.insert(&key_of(k), &value_of(v));
                        model.insert(key_of(k), value_of(v));
                    }
                    None => {
                        batch.remove(&key_of(k));
                        model.remove(&key_of(k));
                    }
                }
            }
            set.commit(op, &batch).unwrap();
        }
        Step::Reopen(_) => unreachable!("done by the caller"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn does_what_a_map_does(steps in steps(), overlap: bool) {
        let pool = pool(4 << 20, Hardware::PAGE_CACHE);
        let options = options().overlap(overlap);
        let mut set = open(&pool, &options);
        let mut model = BTreeMap::new();
        let mut session = pool.session().unwrap();
        for step in steps {
            if let Step::Reopen(log) = step {
                let op = session.enter().unwrap();
                prop_assert_eq!(set.check(&op).unwrap(), []);
                drop(op);
                let options = options.clone().shards(1 << log).recovery_threads(3).hash_seed(u64::from(log));
                set = Arc::new(again(&set, &options));
            } else {
                run_step(&set, &session.enter().unwrap(), &mut model, step);
            }
            let op = session.enter().unwrap();
            prop_assert_eq!(set.len(&op), model.len() as u64);
        }
        let op = session.enter().unwrap();
        prop_assert_eq!(content(&set, &op), model.clone());
        prop_assert_eq!(set.check(&op).unwrap(), []);
        for (key, value) in &model {
            let found = set.get_vec(&op, key).unwrap();
            prop_assert_eq!(found.as_ref(), Some(value));
        }
        let again = again(&set, &options);
        prop_assert_eq!(content(&again, &op), model);
        prop_assert_eq!(again.check(&op).unwrap(), []);
    }
}

struct Counted {
    counting: Counting<Hardware>,
    pool: Pool<Counting<Hardware>>,
}

impl Counted {
    fn new() -> Self {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        Counted { counting, pool: pool(1 << 20, counting) }
    }

    /// Write-backs and fences of `f`, which must not run into a drain by a locked instruction.
    fn cost<R>(&self, f: impl FnOnce() -> R) -> (R, u64, u64) {
        let before = self.counting.counts();
        let result = f();
        let cost: Counts = self.counting.counts() - before;
        assert_eq!(cost.implicit_drains, 0);
        (result, cost.write_backs, cost.fences)
    }
}

#[test]
fn updates_cost_a_write_back_a_line_and_one_fence() {
    for overlap in [false, true] {
        let counted = Counted::new();
        let set = open(&counted.pool, &SetOptions::default().shards(1).overlap(overlap));
        let mut session = counted.pool.session().unwrap();
        let op = session.enter().unwrap();
        // Extents and slots are there after the first entries of each size.
        for len in [1, 88, 100, 300] {
            for key in [b"k1", b"k2", b"k3"] {
                set.insert(&op, key, &vec![1; len]).unwrap();
            }
        }
        assert_eq!(counted.cost(|| set.insert(&op, b"new", b"value").unwrap()), (true, 1, 1));
        assert_eq!(counted.cost(|| set.insert(&op, b"new", b"other").unwrap()), (false, 1, 1));
        assert_eq!(counted.cost(|| set.insert(&op, b"new", &[7; 40]).unwrap()), (false, 1, 1));
        assert_eq!(counted.cost(|| set.insert(&op, b"new", &[7; 88]).unwrap()), (false, 2, 1));
        assert_eq!(counted.cost(|| set.insert(&op, b"new", &[7; 89]).unwrap()), (false, 3, 1));
        assert_eq!(counted.cost(|| set.update(&op, b"new", &[7; 300]).unwrap()), (true, 6, 1));
        assert_eq!(counted.cost(|| set.insert_if_absent(&op, b"new", b"").unwrap()), (false, 0, 0));
        assert_eq!(counted.cost(|| set.update(&op, b"none", b"").unwrap()), (false, 0, 0));
        assert_eq!(counted.cost(|| set.remove(&op, b"none").unwrap()), (false, 0, 0));
        assert_eq!(counted.cost(|| set.contains(&op, b"none").unwrap()), (false, 0, 0));
        assert_eq!(counted.cost(|| set.get_vec(&op, b"new").unwrap().unwrap().len()), (300, 0, 0));
        assert_eq!(counted.cost(|| set.compare_and_set(&op, b"new", Some(b"x"), None).unwrap()), (false, 0, 0));
        assert_eq!(counted.cost(|| set.remove(&op, b"new").unwrap()), (true, 1, 1));
        assert_eq!(counted.cost(|| set.for_each(&op, |_, _| ()).unwrap()), ((), 0, 0));
    }
}

#[test]
fn transactions_cost_a_write_back_a_line_one_for_the_watermark_and_one_fence() {
    let counted = Counted::new();
    let set = open(&counted.pool, &SetOptions::default().shards(4));
    let mut session = counted.pool.session().unwrap();
    let op = session.enter().unwrap();
    for key in 0..64u8 {
        set.insert(&op, &[key], b"").unwrap();
    }
    let mut batch = Batch::new();
    for key in 0..5u8 {
        batch.insert(&[key], b"one");
    }
    batch.remove(b"not there").insert(&[0], b"two");
    assert_eq!(counted.cost(|| set.commit(&op, &batch).unwrap()), ((), 5, 1));
    assert_eq!(counted.cost(|| set.commit(&op, &batch).unwrap()), ((), 6, 1));
    assert_eq!(set.get_vec(&op, &[0]).unwrap().unwrap(), b"two");
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(counted.cost(|| set.commit(&op, &batch).unwrap()), ((), 0, 0));
    batch.remove(b"not there");
    assert_eq!(counted.cost(|| set.commit(&op, &batch).unwrap()), ((), 0, 0));
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn slots_are_reused_so_that_steady_work_takes_no_space() {
    let pool = pool(4 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &SetOptions::default().shards(4));
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let round = |n: u64| {
        for i in 0..n {
            let key = (i % 50).to_le_bytes();
            // Sizes change, and the large class is written for some time only: tombstones must not wait for it for ever.
            let len = if i % 3000 < 300 { 500 } else { 20 };
            match i % 7 {
                0 | 3 => drop(set.remove(&op, &key).unwrap()),
                _ => drop(set.insert(&op, &key, &vec![1; len]).unwrap()),
            }
        }
        set.stats(&op)
    };
    let before = round(6000);
    let after = round(30_000);
    assert_eq!(after.extent_bytes, before.extent_bytes, "{before:?} {after:?}");
    assert!(after.stale + after.tombstones < 300, "{after:?}");
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn limits_are_errors_that_change_nothing() {
    let pool = pool(8 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let (key, value) = (vec![1; MAX_KEY], vec![2; MAX_VALUE]);
    assert!(set.insert(&op, &key, &value).unwrap());
    assert_eq!(set.get_vec(&op, &key).unwrap().unwrap(), value);
    let long = vec![1; MAX_KEY + 1];
    let error = set.insert(&op, &long, b"").unwrap_err().to_string();
    assert_eq!(error, "a key of 16385 bytes is longer than 16384; store a hash of it, and the key in the value");
    let error = set.insert(&op, b"", &vec![0; MAX_VALUE + 1]).unwrap_err().to_string();
    assert_eq!(error, "a value of 1048577 bytes is longer than 1048576; split it over several keys in one transaction");
    assert!(matches!(set.update(&op, &key, &vec![0; MAX_VALUE + 1]), Err(Error::ValueTooLong { .. })));
    assert!(matches!(set.get_vec(&op, &long), Err(Error::KeyTooLong { len: 16385 })));
    assert!(matches!(set.remove(&op, &long), Err(Error::KeyTooLong { .. })));
    let mut batch = Batch::new();
    (0..=MAX_TRANSACTION as u32).for_each(|i| {
        batch.insert(&i.to_le_bytes(), b"");
    });
    let error = set.commit(&op, &batch).unwrap_err().to_string();
    assert_eq!(error, "a transaction of 65536 keys is larger than 65535; split it");
    assert_eq!(content(&set, &op), BTreeMap::from([(key, value)]));
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn a_full_pool_refuses_inserts_and_lets_everything_be_removed() {
    let pool = pool(64 << 10, Hardware::PAGE_CACHE);
    let set = open(&pool, &SetOptions::default().shards(1));
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut model = BTreeMap::new();
    // Two classes, so that what one has left is of no use to the other.
    for i in 0..2000u64 {
        let (key, value) = (i.to_le_bytes().to_vec(), vec![7; if i % 5 == 0 { 300 } else { 20 }]);
        match set.insert(&op, &key, &value) {
            Ok(new) => {
                assert!(new);
                model.insert(key, value);
            }
            Err(error) => assert!(matches!(error, Error::Pool(_)), "{error}"),
        }
    }
    assert!(model.len() > 200 && model.len() < 1500);
    let mut batch = Batch::new();
    batch.insert(&7u64.to_le_bytes(), b"changed").insert(b"new 1", &[1; 20]).insert(b"new 2", &[1; 300]);
    assert!(matches!(set.commit(&op, &batch), Err(Error::Pool(_))));
    assert_eq!(content(&set, &op), model);
    assert_eq!(set.check(&op).unwrap(), []);
    let again = again(&set, &options());
    assert_eq!(content(&again, &op), model);
    for key in model.keys() {
        assert!(again.remove(&op, key).unwrap());
    }
    assert!(again.is_empty(&op));
    assert_eq!(again.check(&op).unwrap(), []);
    assert!(again.insert(&op, b"room again", &[1; 20]).unwrap());
    let again = PersistentSet::recover(&mut pool.session().unwrap(), set.root.clone(), &options()).unwrap();
    assert_eq!(again.len(&op), 1);
}

/// The keys of a set have many shards, each with slots of its own: what is removed from one is of use to all.
#[test]
fn in_a_full_pool_a_key_makes_room_for_one_of_its_size_in_any_shard() {
    let pool = pool(256 << 10, Hardware::PAGE_CACHE);
    let set = open(&pool, &SetOptions::default());
    let mut session = pool.session().unwrap();
    let value = |number: u64| vec![number as u8; if number.is_multiple_of(5) { 300 } else { 20 }];
    let insert = |op: &Op<'_, _>, number: u64| set.insert(op, &number.to_le_bytes(), &value(number));
    let full = (0..).find(|number| insert(&session.enter().unwrap(), *number).is_err()).unwrap();
    // Until the other size does not fit either.
    let there = (0..2 * full).filter(|number| insert(&session.enter().unwrap(), *number).is_ok()).collect::<Vec<_>>();
    let mut model: BTreeMap<u64, _> = (0..full).chain(there).map(|number| (number, value(number))).collect();
    for number in (0..full).step_by(10) {
        let op = session.enter().unwrap();
        let new = 10 * full + number;
        assert!(insert(&op, new).is_err(), "there is room without a removal");
        assert!(set.remove(&op, &number.to_le_bytes()).unwrap());
        assert!(insert(&op, new).unwrap());
        model.remove(&number);
        model.insert(new, value(new));
    }
    let model: BTreeMap<_, _> = model.into_iter().map(|(k, v)| (k.to_le_bytes().to_vec(), v)).collect();
    let op = session.enter().unwrap();
    assert!(content(&set, &op) == model && set.check(&op).unwrap().is_empty());
    let again = PersistentSet::recover(&mut pool.session().unwrap(), set.root.clone(), &options()).unwrap();
    assert!(content(&again, &op) == model && again.check(&op).unwrap().is_empty());
}

#[test]
fn errata_transaction_entry_superseded_and_reused_does_not_drop_the_others() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &SetOptions::default().shards(1));
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut batch = Batch::new();
    batch.insert(b"a", b"1").insert(b"b", b"1").insert(b"c", b"1");
    set.commit(&op, &batch).unwrap();
    // The entry of `a` is superseded, and its slot reused as soon as that is allowed.
    for i in 0..20u8 {
        set.insert(&op, b"a", &[i]).unwrap();
        let again = again(&set, &SetOptions::default().shards(1));
        assert_eq!(again.len(&op), 3, "after update {i}");
        assert_eq!(again.get_vec(&op, b"b").unwrap().unwrap(), b"1");
        assert_eq!(again.get_vec(&op, b"a").unwrap().unwrap(), [i]);
    }
    let stats = set.stats(&op);
    assert_eq!(stats.watermark, stats.committed, "an update that wanted the slot has stored the watermark");
    assert!(stats.stale <= 2, "the slot is reused: {stats:?}");
}

#[test]
fn errata_tombstones_of_mixed_sizes_never_outlive_their_key() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let options = SetOptions::default().shards(1);
    let set = open(&pool, &options);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    // A stale entry of a large class, whose tombstone is small; the large class is never written again.
    set.insert(&op, b"big", &[1; 500]).unwrap();
    set.remove(&op, b"big").unwrap();
    for i in 0..200u64 {
        set.insert(&op, &(i % 3).to_le_bytes(), b"x").unwrap();
        set.remove(&op, &(i % 3).to_le_bytes()).unwrap();
        assert!(again(&set, &options).is_empty(&op), "after round {i}");
    }
    let stats = set.stats(&op);
    assert!(stats.stale + stats.tombstones < 20, "{stats:?}");
}

#[test]
fn transactions_read_what_they_write_and_abort_without_a_trace() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    set.insert(&op, b"a", b"1").unwrap();
    let read = set
        .txn(&op, |t| {
            assert_eq!(t.get(b"a")?.unwrap(), b"1");
            t.insert(b"b", b"2");
            t.remove(b"a");
            assert_eq!(t.get(b"a")?, None);
            Ok::<_, Error>(t.get(b"b")?.unwrap())
        })
        .unwrap();
    assert_eq!(read, b"2");
    assert_eq!(content(&set, &op), BTreeMap::from([(b"b".to_vec(), b"2".to_vec())]));
    let failed: Result<()> = set.txn(&op, |t| {
        t.insert(b"c", b"3");
        Err(Error::KeyTooLong { len: 0 })
    });
    assert!(failed.is_err());
    assert_eq!(set.len(&op), 1);
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn transactions_that_are_disturbed_run_again_and_get_through() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let mut other = pool.session().unwrap();
    let op = session.enter().unwrap();
    let disturbing = other.enter().unwrap();
    let mut runs = 0u8;
    set.txn(&op, |t| {
        let seen = t.get(b"n")?;
        runs += 1;
        // Not while all shards are locked, which is the last resort.
        if runs <= 8 {
            set.insert(&disturbing, b"n", &[runs])?;
        }
        t.insert(b"copy", seen.as_deref().unwrap_or_default());
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(runs, 9);
    assert_eq!(set.get_vec(&op, b"copy").unwrap().unwrap(), [8]);
}

#[test]
fn a_run_that_lost_leaves_nothing_to_the_next_one() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let (mut session, mut other) = (pool.session().unwrap(), pool.session().unwrap());
    let (op, disturbing) = (session.enter().unwrap(), other.enter().unwrap());
    set.insert(&op, b"stays", b"1").unwrap();
    let mut runs = 0;
    set.txn(&op, |t| {
        runs += 1;
        t.get(b"n")?;
        if runs == 1 {
            set.insert(&disturbing, b"n", b"1")?;
            t.insert(b"of the first run", b"1");
            t.remove(b"stays");
        }
        t.insert(b"of every run", b"1");
        Ok::<_, Error>(())
    })
    .unwrap();
    // It compares what the second run has read, and nothing of the first.
    assert_eq!(runs, 2);
    assert!(set.contains(&op, b"stays").unwrap() && set.contains(&op, b"of every run").unwrap());
    assert!(!set.contains(&op, b"of the first run").unwrap());
}

#[test]
fn a_panic_in_an_update_poisons_the_set_and_recovery_heals_it() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    set.insert(&op, b"a", b"1").unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _armed = set.poison.guard(&op);
        panic!("as if inside an update");
    }));
    assert!(panicked.is_err());
    assert!(matches!(set.insert(&op, b"b", b"2"), Err(Error::Pool(PoolError::Poisoned { .. }))));
    assert!(matches!(set.commit(&op, Batch::new().insert(b"b", b"2")), Err(Error::Pool(PoolError::Poisoned { .. }))));
    assert_eq!(set.get_vec(&op, b"a").unwrap().unwrap(), b"1", "what is durable can still be read");
    assert_eq!(again(&set, &options()).len(&op), 1);
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |v| u64::from_le_bytes(v[..8].try_into().unwrap()))
}

#[test]
fn readers_see_each_key_grow_and_never_a_mixture() {
    let pool = pool(8 << 20, Hardware::PAGE_CACHE);
    let set = &*open(&pool, &SetOptions::default().shards(2));
    let pool = &pool;
    let (writing, rounds) = (&AtomicU64::new(2), 3000u64);
    // Lengths that change the class, keys that share shards, keys that come and go beside them.
    let value_at = |n: u64| n.to_le_bytes().repeat(1 + (n % 30) as usize);
    std::thread::scope(|s| {
        for writer in 0..2u64 {
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for n in 1..=rounds {
                    let op = session.enter().unwrap();
                    for key in 0..4u64 {
                        set.insert(&op, &(writer * 10 + key).to_le_bytes(), &value_at(n)).unwrap();
                    }
                    let passing = (1000 + writer * 100 + n % 20).to_le_bytes();
                    if n % 2 == 0 {
                        set.insert(&op, &passing, &value_at(n)).unwrap();
                    } else {
                        set.remove(&op, &passing).unwrap();
                    }
                }
                writing.fetch_sub(1, Ordering::Release);
            });
        }
        for _ in 0..2 {
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                let mut last = BTreeMap::new();
                let mut value = Vec::new();
                while writing.load(Ordering::Acquire) > 0 {
                    let op = session.enter().unwrap();
                    for key in [0u64, 1, 2, 3, 10, 11, 12, 13] {
                        let there = set.get(&op, &key.to_le_bytes(), &mut value).unwrap();
                        let n = number(there.then(|| value.clone()));
                        let seen = last.entry(key).or_insert(0);
                        assert!(n >= *seen, "key {key} went back from {seen} to {n}");
                        assert!(!there || value == value_at(n), "key {key} is a mixture");
                        *seen = n;
                    }
                }
            });
        }
    });
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!(set.check(&op).unwrap(), []);
    assert_eq!(content(&again(set, &options()), &op), content(set, &op));
}

#[test]
fn concurrent_transactions_keep_the_sum() {
    let pool = &pool(8 << 20, Hardware::PAGE_CACHE);
    let set = &*open(pool, &SetOptions::default().shards(4));
    let accounts = 10u64;
    std::thread::scope(|s| {
        for thread in 0..3u64 {
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for i in 0..500u64 {
                    let op = session.enter().unwrap();
                    let (from, to) = ((i * 7 + thread) % accounts, (i * 3 + 1) % accounts);
                    if from == to {
                        continue;
                    }
                    set.txn(&op, |t| {
                        let a = number(t.get(&from.to_le_bytes())?).wrapping_sub(1);
                        let b = number(t.get(&to.to_le_bytes())?).wrapping_add(1);
                        t.insert(&from.to_le_bytes(), &a.to_le_bytes());
                        t.insert(&to.to_le_bytes(), &b.to_le_bytes());
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            });
        }
    });
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let sum = |set: &PersistentSet<Hardware>| {
        (0..accounts).fold(0u64, |s, a| s.wrapping_add(number(set.get_vec(&op, &a.to_le_bytes()).unwrap())))
    };
    assert_eq!(sum(set), 0);
    assert_eq!(sum(&again(set, &options())), 0);
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn concurrent_compare_and_set_counts_every_success() {
    let pool = &pool(4 << 20, Hardware::PAGE_CACHE);
    let set = &*open(pool, &options());
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for _ in 0..1000 {
                    loop {
                        let op = session.enter().unwrap();
                        let old = set.get_vec(&op, b"n").unwrap();
                        let new = (number(old.clone()) + 1).to_le_bytes();
                        if set.compare_and_set(&op, b"n", old.as_deref(), Some(&new)).unwrap() {
                            break;
                        }
                    }
                }
            });
        }
    });
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!(number(set.get_vec(&op, b"n").unwrap()), 3000);
}

#[test]
fn the_same_name_is_the_same_set_and_sets_do_not_share_space() {
    let pool = pool(1 << 19, Hardware::PAGE_CACHE);
    let one = open(&pool, &options());
    assert!(Arc::ptr_eq(&one, &open(&pool, &SetOptions::default())));
    let other = PersistentSet::open(&pool, "other").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    one.insert(&op, b"k", b"one").unwrap();
    other.insert(&op, b"k", b"other").unwrap();
    assert_eq!(one.get_vec(&op, b"k").unwrap().unwrap(), b"one");
    drop(op);
    drop(one);
    let one = open(&pool, &options());
    let op = session.enter().unwrap();
    assert_eq!(one.get_vec(&op, b"k").unwrap().unwrap(), b"one");
    assert_eq!(one.check(&op).unwrap(), []);
    assert_eq!(other.check(&op).unwrap(), []);
}

#[test]
fn recovery_by_several_threads_finds_the_same() {
    let pool = pool(24 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    for i in 0..120_000u64 {
        set.insert(&op, &(i % 90_000).to_le_bytes(), &i.to_le_bytes()).unwrap();
    }
    drop(op);
    let op = session.enter().unwrap();
    for threads in [1, 4] {
        let again = again(&set, &options().recovery_threads(threads));
        assert_eq!(again.len(&op), 90_000);
        for key in (0..90_000u64).step_by(997) {
            let expected = if key < 30_000 { key + 90_000 } else { key };
            assert_eq!(number(again.get_vec(&op, &key.to_le_bytes()).unwrap()), expected);
        }
        assert_eq!(again.check(&op).unwrap(), []);
    }
}
