//! The maps against a model; counts of write-backs and fences; threads.

use std::sync::Arc;

use durix_index::Entry;
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{Contents, Listed, Map, Visit, each, run, small, step};
use durix_logfree::{
    Bst, Error, HashTable, LinkCacheMode, List, Options, OrderedWordMap, SkipList, SoftHash, SoftList, SoftOptions,
    SoftSkipList, WordMap, Words,
};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Counts, Hardware, MAX_SESSIONS, Op, Pool, PoolOptions, Unsettled};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};

pub(crate) type M = Counting<Hardware>;

/// How a map of words is opened.
type Open<S> = fn(&Pool<M>, &str) -> Result<Arc<Words<S, M>>, Error>;

pub(crate) fn pool() -> (Pool<M>, M) {
    let medium = Counting::new(Hardware::PAGE_CACHE);
    let options = PoolOptions::new().initial_size(1 << 20).max_size(64 << 20);
    (options.create_on(HeapBacking::new(64 << 20), medium).unwrap(), medium)
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let (key, value) = (|| 0u64..40, || 1u64..4);
    prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Insert(k, v)),
        3 => key().prop_map(Remove),
        2 => (key(), value()).prop_map(|(k, v)| Update(k, v)),
        1 => (key(), value(), value()).prop_map(|(k, e, v)| Cas(k, e, v)),
        1 => key().prop_map(Get),
    ]
}

fn against_model<S: Map<M>>(acts: &[Act]) {
    against_model_with::<S>(acts, &S::small());
}

pub(crate) fn against_model_with<S: Map<M>>(acts: &[Act], options: &S::Options) {
    let (pool, _) = pool();
    let mut model = Contents::new();
    for part in acts.chunks(50) {
        // Each part begins with a recovery.
        let map: Arc<S> = pool.open_structure("map", options).unwrap();
        let mut session = pool.session().unwrap();
        for act in part {
            let op = session.enter().unwrap();
            assert_eq!(run(&*map, &op, act), step(&mut model, act), "{act:?}");
        }
        let op = session.enter().unwrap();
        let mut found = Contents::new();
        map.for_each(&op, &mut |k, v| assert!(found.insert(k, v).is_none())).unwrap();
        assert_eq!(found, model);
        assert_eq!(map.check(&op).unwrap(), []);
    }
}

struct AgainstModel<'a>(&'a [Act]);

impl Visit<M> for AgainstModel<'_> {
    fn map<S: Listed<M>>(&mut self, entry: Entry<M>) {
        // In pages of these options no record holds half of the keys: see `byte_strings_are_keys_whatever_their_hash`.
        if entry.name != "hash-bytes" {
            against_model::<S>(self.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_map_is_what_a_btree_is(acts in vec(act(), 0..200)) {
        each(&mut AgainstModel(&acts));
    }

    #[test]
    fn a_hash_table_that_grows_is_a_map(acts in vec(prop_oneof![20 => act(), 1 => Just(Grow)], 0..200)) {
        against_model_with::<HashTable<M>>(&acts, &small().buckets(1));
        against_model_with::<HashTable<M>>(&acts, &small().buckets(1).link_cache(LinkCacheMode::Durable, 2));
    }

    #[test]
    fn with_a_link_cache_they_are_maps(acts in vec(act(), 0..200)) {
        for mode in [LinkCacheMode::Durable, LinkCacheMode::Buffered] {
            against_model_with::<List<M>>(&acts, &small().link_cache(mode, 2));
            against_model_with::<HashTable<M>>(&acts, &small().link_cache(mode, 2));
        }
    }
}

#[test]
fn put_sets_the_value_whether_the_key_is_there_or_not() {
    let (pool, medium) = pool();
    let (hash, skip) = (SoftHash::open(&pool, "hash").unwrap(), SoftSkipList::open(&pool, "skip").unwrap());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert!(hash.insert(&op, 9, 9).unwrap() && skip.insert(&op, 9, 9).unwrap());
    for old in [None, Some(1)] {
        assert_eq!(cost(medium, || assert_eq!(hash.put(&op, 1, 1).unwrap(), old)), (1, 1, 0));
        assert_eq!(cost(medium, || assert_eq!(skip.put(&op, 1, 1).unwrap(), old)), (1, 1, 0));
    }
}

/// Ranges both ways, of a few keys and of many, against a model; after a recovery, too.
fn ranges_of_many_keys<S: OrderedWordMap<M>>(open: Open<S>, keys: u64) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let (pool, _) = pool();
    let mut model = Contents::new();
    for round in 0..2u64 {
        let map = open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        for k in (0..keys).map(|i: u64| (i * 7919 + round * 13) % 10_000).chain([u64::MAX - round]) {
            if map.insert(&op, k, !k).unwrap() {
                assert_eq!(model.insert(k, !k), None);
            }
        }
        for k in (0..keys / 3).map(|i: u64| i * 7919 % 10_000) {
            assert_eq!(map.remove(&op, k).unwrap(), model.remove(&k));
        }
        assert_eq!(map.len(&op).unwrap(), model.len() as u64);
        assert_eq!(map.first(&op).unwrap(), model.first_key_value().map(|(k, v)| (*k, *v)));
        assert_eq!(map.last(&op).unwrap(), model.last_key_value().map(|(k, v)| (*k, *v)));
        for from in [Unbounded, Included(0), Excluded(0), Included(4711), Excluded(9000), Excluded(u64::MAX)] {
            for to in [Unbounded, Included(0), Excluded(5000), Included(5050), Included(u64::MAX)] {
                let within = |k: &u64| std::ops::RangeBounds::contains(&(from, to), k);
                let expected: Vec<_> = model.iter().filter(|(k, _)| within(k)).map(|(k, v)| (*k, *v)).collect();
                let (mut up, mut down) = (Vec::new(), Vec::new());
                map.range(&op, (from, to), |k, v| up.push((k, v))).unwrap();
                map.range_rev(&op, (from, to), |k, v| down.push((k, v))).unwrap();
                down.reverse();
                assert_eq!((&up, &down), (&expected, &expected), "{from:?} to {to:?}");
            }
        }
        assert_eq!(map.check(&op).unwrap(), []);
    }
}

#[test]
fn ranges_of_a_soft_list_are_what_a_btree_gives() {
    ranges_of_many_keys(SoftList::open, 300);
}

#[test]
fn ranges_of_a_soft_skip_list_are_what_a_btree_gives() {
    ranges_of_many_keys(SoftSkipList::open, 3000);
}

#[test]
fn ranges_of_a_list_are_what_a_btree_gives() {
    let (pool, _) = pool();
    let list = List::open(&pool, "list").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let keys = [0, 1, 5, 7, 100, 1 << 40, u64::MAX - 1, u64::MAX];
    keys.into_iter().chain(1000..1200).for_each(|k| assert!(list.insert(&op, k, !k).unwrap()));
    let model: Contents = keys.into_iter().chain(1000..1200).map(|k| (k, !k)).collect();
    let collect = |range: (std::ops::Bound<u64>, std::ops::Bound<u64>)| {
        let mut found = Vec::new();
        list.range(&op, range, |k, v| found.push((k, v))).unwrap();
        found
    };
    use std::ops::Bound::{Excluded, Included, Unbounded};
    for from in [Unbounded, Included(0), Excluded(0), Included(6), Excluded(u64::MAX), Included(u64::MAX)] {
        for to in [Unbounded, Included(7), Excluded(7), Included(u64::MAX), Included(1100)] {
            let expected: Vec<_> =
                model.iter().filter(|(k, _)| std::ops::RangeBounds::contains(&(from, to), *k)).collect();
            assert_eq!(collect((from, to)).iter().map(|(k, v)| (k, v)).collect::<Vec<_>>(), expected);
        }
    }
    assert_eq!(list.len(&op).unwrap(), model.len() as u64);
    // The callback may change the list.
    list.for_each(&op, |k, _| _ = list.remove(&op, k).unwrap()).unwrap();
    assert!(list.is_empty(&op).unwrap());
}

/// Ranges upwards and downwards, with every kind of bound, on keys near both ends and on more than one batch.
fn ranges_both_ways<S: OrderedWordMap<M>>(open: Open<S>) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let (pool, _) = pool();
    let map = open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!((map.first(&op).unwrap(), map.last(&op).unwrap()), (None, None));
    let keys = [0, 1, 5, 7, 100, 1 << 40, u64::MAX - 1, u64::MAX];
    let model: Contents = keys.into_iter().chain(1000..1400).map(|k| (k, !k)).collect();
    for i in 0..model.len() {
        let (k, v) = model.iter().nth(i * 7919 % model.len()).unwrap();
        assert!(map.insert(&op, *k, *v).unwrap());
    }
    let (mut first, mut last) = (model.first_key_value(), model.last_key_value());
    assert_eq!(map.first(&op).unwrap(), first.take().map(|(k, v)| (*k, *v)));
    assert_eq!(map.last(&op).unwrap(), last.take().map(|(k, v)| (*k, *v)));
    for from in [Unbounded, Included(0), Excluded(0), Included(6), Excluded(1010), Excluded(u64::MAX)] {
        for to in [Unbounded, Included(7), Excluded(7), Included(1100), Excluded(1 << 40), Excluded(0)] {
            let within = |k: &u64| std::ops::RangeBounds::contains(&(from, to), k);
            let mut expected: Vec<_> = model.iter().filter(|(k, _)| within(k)).map(|(k, v)| (*k, *v)).collect();
            let (mut up, mut down) = (Vec::new(), Vec::new());
            map.range(&op, (from, to), |k, v| up.push((k, v))).unwrap();
            map.range_rev(&op, (from, to), |k, v| down.push((k, v))).unwrap();
            assert_eq!(up, expected, "{from:?} {to:?}");
            expected.reverse();
            assert_eq!(down, expected, "{from:?} {to:?}, downwards");
        }
    }
    // The callback may change the map.
    map.range_rev(&op, .., |k, _| _ = map.remove(&op, k).unwrap()).unwrap();
    assert!(map.is_empty(&op).unwrap());
    assert_eq!(map.check(&op).unwrap(), []);
}

#[test]
fn ranges_of_a_skip_list_are_what_a_btree_gives() {
    ranges_both_ways(SkipList::open);
}

#[test]
fn ranges_of_a_search_tree_are_what_a_btree_gives() {
    ranges_both_ways(Bst::open);
}

// ---- counts ----

fn spent(medium: M, f: impl FnOnce()) -> Counts {
    let before = medium.counts();
    f();
    medium.counts() - before
}

/// Fences, write-backs and implicit drains.
pub(crate) fn cost(medium: M, f: impl FnOnce()) -> (u64, u64, u64) {
    let counts = spent(medium, f);
    (counts.fences, counts.write_backs, counts.implicit_drains)
}

fn settled_counts<S: Map<M>>() {
    let (pool, medium) = pool();
    let map: Arc<S> = pool.open_structure("map", &S::small()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    // Two pages are active; the last has nodes left.
    (10..14).for_each(|k| assert!(map.insert(&op, k, 1).unwrap()));
    assert_eq!(cost(medium, || assert!(map.insert(&op, 1, 1).unwrap())), (2, 2, 0), "insert");
    assert_eq!(cost(medium, || assert!(!map.insert(&op, 1, 1).unwrap())), (0, 0, 0), "insert of a key that is there");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 1).unwrap(), Some(1))), (0, 0, 0), "get");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 2).unwrap(), None)), (0, 0, 0), "get of no key");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 2).unwrap(), None)), (0, 0, 0), "remove of no key");
    assert_eq!(cost(medium, || assert_eq!(map.update(&op, 2, 1).unwrap(), None)), (0, 0, 0), "update of no key");
    assert_eq!(cost(medium, || assert!(!map.compare_and_set(&op, 1, 7, 8).unwrap())), (0, 0, 0), "failed exchange");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 1).unwrap(), Some(1))), (1, 1, 0), "remove");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 1).unwrap(), None)), (0, 0, 0), "remove again");
}

#[test]
fn write_backs_and_fences_of_single_operations() {
    settled_counts::<List<M>>();
    settled_counts::<HashTable<M>>();
    settled_counts::<Bst<M>>();
}

/// Without a fence for the link: an insert has one for its node, a remove none; who asks pays for all.
fn buffered_counts<S: Map<M, Options = Options>>() {
    let (pool, medium) = pool();
    let options = small().generation(64).link_cache(LinkCacheMode::Buffered, 1);
    let map: Arc<S> = pool.open_structure("map", &options).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (10..14).for_each(|k| assert!(map.insert(&op, k, 1).unwrap()));
    map.sync(&op);
    assert_eq!(cost(medium, || assert!(map.insert(&op, 1, 1).unwrap())), (1, 1, 0), "insert");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 11).unwrap(), Some(1))), (0, 0, 0), "remove");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 12).unwrap(), Some(1))), (0, 0, 0), "get of another key");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 11).unwrap(), None)), (1, 2, 0), "get of what was removed");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 1).unwrap(), Some(1))), (0, 0, 0), "get of what that settled");
    assert_eq!(cost(medium, || map.sync(&op)), (0, 0, 0), "sync of nothing");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 1).unwrap(), Some(1))), (0, 0, 0), "remove");
    assert_eq!(cost(medium, || map.sync(&op)), (1, 1, 0), "sync");
}

#[test]
fn a_buffered_update_does_not_wait_for_its_link() {
    buffered_counts::<List<M>>();
    buffered_counts::<HashTable<M>>();
}

#[test]
fn a_link_cache_is_for_lists_and_hash_tables() {
    let (pool, _) = pool();
    let options = Options::default().link_cache(LinkCacheMode::Durable, 32);
    assert!(matches!(SkipList::open_with(&pool, "skip", &options), Err(Error::BadOption { .. })));
    assert!(matches!(Bst::open_with(&pool, "bst", &options), Err(Error::BadOption { .. })));
}

/// However many updates a ticket stands for: each line once, and one fence. Afterwards nothing is left to be settled by whoever reads.
#[test]
fn updates_of_a_soft_hash_that_are_settled_later_share_a_fence() {
    let (pool, medium) = pool();
    let map = SoftHash::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    (1..=16).for_each(|key| assert!(map.insert(&session.enter().unwrap(), key, 0).unwrap()));
    for round in 1..4 {
        let mut ticket = Unsettled::new();
        for key in 1..=16 {
            let op = session.enter_later(&mut ticket).unwrap();
            assert!(map.update(&op, key, round).unwrap().is_some());
            ticket = op.finish();
        }
        assert_eq!(cost(medium, || pool.wait(&mut session, &mut ticket).unwrap()), (1, 16, 0), "round {round}");
        let op = session.enter().unwrap();
        assert_eq!(cost(medium, || assert_eq!(map.get(&op, 7).unwrap(), Some(round))), (0, 0, 0));
    }
}

#[test]
fn one_write_back_and_one_fence_an_update_of_a_soft_hash() {
    one_and_one(SoftHash::open);
}

#[test]
fn one_write_back_and_one_fence_an_update_of_a_soft_list() {
    one_and_one(SoftList::open);
}

#[test]
fn one_write_back_and_one_fence_an_update_of_a_soft_skip_list() {
    one_and_one(SoftSkipList::open);
}

fn one_and_one<S: WordMap<M>>(open: Open<S>) {
    let (pool, medium) = pool();
    let map = open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (10..14).for_each(|k| assert!(map.insert(&op, k, 1).unwrap()));
    assert_eq!(cost(medium, || assert!(map.insert(&op, 1, 1).unwrap())), (1, 1, 0), "insert");
    assert_eq!(cost(medium, || assert_eq!(map.update(&op, 1, 2).unwrap(), Some(1))), (1, 1, 0), "update");
    assert_eq!(cost(medium, || assert!(map.compare_and_set(&op, 1, 2, 1).unwrap())), (1, 1, 0), "exchange");
    assert_eq!(cost(medium, || assert!(map.insert(&op, 2, 3).unwrap())), (1, 1, 0), "insert");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 2).unwrap(), Some(3))), (1, 1, 0), "remove");
    assert_eq!(cost(medium, || assert!(!map.insert(&op, 1, 1).unwrap())), (0, 0, 0), "insert of a key that is there");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 1).unwrap(), Some(1))), (0, 0, 0), "get");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 2).unwrap(), None)), (0, 0, 0), "get of no key");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 2).unwrap(), None)), (0, 0, 0), "remove of no key");
    assert_eq!(cost(medium, || assert_eq!(map.update(&op, 2, 1).unwrap(), None)), (0, 0, 0), "update of no key");
    assert_eq!(cost(medium, || assert!(!map.compare_and_set(&op, 1, 7, 8).unwrap())), (0, 0, 0), "failed exchange");
    // Many: exactly one and one, whether the table grows or not.
    (0..2000).for_each(|k| _ = map.insert(&op, k, k).unwrap());
    let counts = spent(medium, || (0..500).for_each(|k| assert!(map.remove(&op, k).unwrap().is_some())));
    assert_eq!((counts.fences, counts.write_backs, counts.implicit_drains), (500, 500, 0));
    let counts = spent(medium, || (0..500).for_each(|k| assert!(map.insert(&op, k, k).unwrap())));
    assert_eq!((counts.fences, counts.write_backs, counts.implicit_drains), (500, 500, 0));
}

#[test]
fn a_soft_hash_grows_and_is_found_again() {
    let (pool, _) = pool();
    let keys = 20_000u64;
    for round in 0..3u64 {
        let map = SoftHash::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        (0..keys).for_each(|k| assert_eq!(map.put(&op, k * k, k + round).unwrap().is_none(), round == 0));
        (0..keys).for_each(|k| assert_eq!(map.get(&op, k * k).unwrap(), Some(k + round)));
        assert_eq!(map.len(&op).unwrap(), keys);
        assert_eq!(map.check(&op).unwrap(), []);
    }
}

#[test]
fn a_hash_table_grows_by_itself_and_costs_nothing_once_it_has() {
    const KEYS: u64 = 20_000;
    let (pool, medium) = pool();
    let options = Options::default().buckets(4);
    let table = HashTable::open_with(&pool, "map", &options).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let grown = spent(medium, || (0..KEYS).for_each(|k| assert!(table.insert(&op, k, k + 1).unwrap())));
    let buckets = table.buckets(&op);
    assert!((KEYS / 4..=KEYS).contains(&buckets), "{buckets} buckets for {KEYS} keys");
    // Two fences for eight buckets, three for an array, two for an insert, and pages.
    assert!(grown.fences < KEYS * 2 + buckets / 8 * 2 + KEYS / 30, "{grown:?}");
    assert_eq!((0..KEYS).filter(|k| table.get(&op, *k).unwrap() != Some(k + 1)).count(), 0);
    let settled = spent(medium, || {
        for k in 0..KEYS {
            assert!(!table.insert(&op, k, 0).unwrap());
            assert_eq!(table.remove(&op, KEYS + k).unwrap(), None);
            assert_eq!(table.get(&op, k).unwrap(), Some(k + 1));
        }
    });
    assert_eq!((settled.write_backs, settled.fences), (0, 0));
    assert_eq!(table.check(&op).unwrap(), []);
    drop((table, op));
    let table: Arc<HashTable<M>> = HashTable::open_with(&pool, "map", &options).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!((table.buckets(&op), table.len(&op).unwrap()), (buckets, KEYS));
    (0..KEYS).for_each(|k| assert_eq!(table.remove(&op, k).unwrap(), Some(k + 1)));
    assert!(table.is_empty(&op).unwrap() && table.check(&op).unwrap().is_empty());
}

#[test]
fn a_hash_table_that_finds_no_room_for_more_buckets_goes_on() {
    let options = PoolOptions::new().initial_size(64 << 10).max_size(64 << 10).chunk_size(4096).lanes(1).max_indices(1);
    let pool = options.create_on(HeapBacking::new(64 << 10), Counting::new(Hardware::PAGE_CACHE)).unwrap();
    let table = HashTable::open_with(&pool, "map", &Options::default().buckets(512)).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let full = (0..).find(|k| table.insert(&op, *k, 1).is_err()).unwrap();
    let error = (0..20).find_map(|_| table.grow(&op).err()).unwrap();
    assert!(matches!(error, Error::Pool(durix_pmem::Error::Full { .. })), "{error}");
    assert_eq!((table.len(&op).unwrap(), table.check(&op).unwrap()), (full, vec![]));
    assert!(table.remove(&op, 0).unwrap().is_some());
}

/// One thread inserts and makes the table grow, another walks over it: no key that was there before is missed or comes twice.
#[test]
fn a_walk_over_a_table_that_grows_misses_nothing() {
    let (pool, _) = pool();
    let table: Arc<HashTable<M>> = HashTable::open_with(&pool, "map", &Options::default().buckets(1)).unwrap();
    let mut session = pool.session().unwrap();
    (0..300).for_each(|k| assert!(table.insert(&session.enter().unwrap(), k, 1).unwrap()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = pool.session().unwrap();
            (300..20_000).for_each(|k| assert!(table.insert(&session.enter().unwrap(), k, 1).unwrap()));
        });
        for _ in 0..50 {
            let op = session.enter().unwrap();
            let mut seen = Contents::new();
            table.for_each(&op, |k, v| assert!(seen.insert(k, v).is_none(), "{k} twice")).unwrap();
            assert_eq!((0..300).filter(|k| !seen.contains_key(k)).count(), 0);
            assert!((0..300).all(|k| table.get(&op, k).unwrap() == Some(1)));
        }
    });
    assert_eq!(table.check(&session.enter().unwrap()).unwrap(), []);
}

#[test]
fn write_backs_and_fences_of_many_operations() {
    let (pool, medium) = pool();
    let table = HashTable::open_with(&pool, "map", &Options::default()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..512).for_each(|k| assert!(table.insert(&op, k * 2, k).unwrap()));
    let stats = table.page_stats(&op);
    let rounds = 20_000;
    let counts = spent(medium, || {
        for i in 0..rounds {
            let key = i * 7919 % 1024;
            assert!(table.insert(&op, key, 1).unwrap() || table.remove(&op, key).unwrap().is_some());
        }
    });
    let now = table.page_stats(&op);
    let (inserts, removes) = (now.allocations - stats.allocations, now.unlinks - stats.unlinks);
    assert_eq!(inserts + removes, rounds);
    let misses = now.allocation_misses + now.unlink_misses - stats.allocation_misses - stats.unlink_misses;
    // A fence for each generation of 64.
    assert!(counts.fences <= 2 * inserts + removes + removes / 64 + 1 + misses, "{counts:?}");
    assert!(counts.write_backs <= 2 * inserts + 2 * removes + 2 * misses, "{counts:?}");
    assert_eq!(counts.implicit_drains, 0, "{counts:?}");
    assert!(misses <= 2, "{misses} pages newly active in a table of 1024");
}

/// Two fences an insert, and one a remove, whatever the height of the tower; in a tree one more where a second branch is
/// spliced.
fn counts_of_many<S: WordMap<M>>(open: Open<S>, remove_fences: u64, lines_an_update: f64) {
    let (pool, medium) = pool();
    let map = open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..512u64).for_each(|k| assert!(map.insert(&op, k * 7919 % 1024, k).unwrap()));
    let (mut inserts, mut removes) = (0, 0);
    let stats = map.page_stats(&op);
    let counts = spent(medium, || {
        for i in 0..20_000u64 {
            let key = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
            match map.insert(&op, key, 1).unwrap() {
                true => inserts += 1,
                false => removes += u64::from(map.remove(&op, key).unwrap().is_some()),
            }
        }
    });
    let now = map.page_stats(&op);
    let misses = now.allocation_misses + now.unlink_misses - stats.allocation_misses - stats.unlink_misses;
    let generations = (now.unlinks - stats.unlinks) / 64 + 1;
    println!("{inserts} inserts, {removes} removes, {misses} pages: {counts:?}");
    assert!(counts.fences <= 2 * inserts + remove_fences * removes + generations + misses, "{counts:?}");
    let lines = (lines_an_update * (inserts + removes) as f64) as u64;
    assert!(counts.write_backs <= lines + 2 * misses, "{counts:?}");
    assert_eq!(counts.implicit_drains, 0, "{counts:?}");
    assert_eq!(map.check(&op).unwrap(), []);
}

#[test]
fn write_backs_and_fences_of_many_operations_on_a_skip_list() {
    // A third of a link more on upper levels, set and taken away.
    counts_of_many(SkipList::open, 1, 2.4);
}

#[test]
fn write_backs_and_fences_of_many_operations_on_a_search_tree() {
    counts_of_many(Bst::open, 2, 2.0);
}

/// What one session has changed another finds settled, although the marks of owners stay in the links.
fn settled_for_others<S: WordMap<M>>(open: Open<S>) {
    let (pool, medium) = pool();
    let [mut one, mut other] = [pool.session().unwrap(), pool.session().unwrap()];
    let map = open(&pool, "map").unwrap();
    let op = one.enter().unwrap();
    (0..200u64).for_each(|k| assert!(map.insert(&op, k * 7919 % 1009, k).unwrap()));
    (0..200u64).step_by(3).for_each(|k| assert!(map.remove(&op, k * 7919 % 1009).unwrap().is_some()));
    drop(op);
    for session in [&mut other, &mut one] {
        let op = session.enter().unwrap();
        let counts = spent(medium, || {
            for k in 0..200u64 {
                let (key, gone) = (k * 7919 % 1009, k % 3 == 0);
                assert_eq!(map.get(&op, key).unwrap(), (!gone).then_some(k));
                assert!(gone || !map.insert(&op, key, 0).unwrap());
                assert!(!gone || map.remove(&op, key).unwrap().is_none());
                assert!(!gone || map.update(&op, key, 0).unwrap().is_none());
            }
            assert_eq!(map.len(&op).unwrap(), 133);
        });
        assert_eq!((counts.write_backs, counts.fences), (0, 0));
    }
}

#[test]
fn others_find_a_list_settled() {
    settled_for_others(List::open);
}

#[test]
fn others_find_a_hash_table_settled() {
    settled_for_others(HashTable::open);
}

#[test]
fn others_find_a_skip_list_settled() {
    settled_for_others(SkipList::open);
}

#[test]
fn others_find_a_search_tree_settled() {
    settled_for_others(Bst::open);
}

// ---- threads ----

fn hammer<S: Map<M>>(options: &S::Options) {
    let (pool, _) = pool();
    let map: Arc<S> = pool.open_structure("map", options).unwrap();
    let (threads, rounds, keys) = (4u64, 4000u64, 24u64);
    let sums: Vec<i64> = std::thread::scope(|s| {
        let work = |thread: u64| {
            let (pool, map) = (&pool, &map);
            move || {
                let mut session = pool.session().unwrap();
                let (mut random, mut balance) = (thread + 1, 0i64);
                for _ in 0..rounds {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let (key, value) = (random % keys, (random % keys) << 32 | random >> 40);
                    let op = session.enter().unwrap();
                    match random >> 20 & 3 {
                        0 => balance += i64::from(map.insert(&op, key, value).unwrap()),
                        1 => {
                            let removed = map.remove(&op, key).unwrap();
                            assert!(removed.is_none_or(|v| v >> 32 == key));
                            balance -= i64::from(removed.is_some());
                        }
                        2 => assert!(map.update(&op, key, value).unwrap().is_none_or(|v| v >> 32 == key)),
                        _ => assert!(map.get(&op, key).unwrap().is_none_or(|v| v >> 32 == key)),
                    }
                }
                balance
            }
        };
        let handles: Vec<_> = (0..threads).map(|t| s.spawn(work(t))).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut len = 0;
    map.for_each(&op, &mut |_, _| len += 1).unwrap();
    assert_eq!(sums.iter().sum::<i64>(), len);
    assert_eq!(map.check(&op).unwrap(), []);
}

#[test]
fn threads_share_a_link_cache() {
    for mode in [LinkCacheMode::Durable, LinkCacheMode::Buffered] {
        hammer::<List<M>>(&small().link_cache(mode, 1));
        hammer::<HashTable<M>>(&small().link_cache(mode, 2));
    }
}

struct Hammered;

impl Visit<M> for Hammered {
    fn map<S: Listed<M>>(&mut self, entry: Entry<M>) {
        // No record has room for half of the keys: see `threads_share_a_map_of_byte_strings`.
        if entry.name != "hash-bytes" {
            hammer::<S>(&S::small());
        }
    }
}

#[test]
fn threads_share_every_map() {
    each(&mut Hammered);
}

// ---- options and corrupt pools ----

#[test]
fn pages_larger_than_chunks_are_refused() {
    let options = PoolOptions::new().chunk_size(4096).initial_size(1 << 20).max_size(1 << 20);
    let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
    let error = List::open_with(&pool, "list", &Options::default().page_size(8192)).unwrap_err();
    assert_eq!(error.to_string(), "page_size of 8192 is not possible: a page is at most as large as the pool's chunks");
    assert!(List::open(&pool, "list").is_ok(), "and nothing is left of it");
}

/// In a pool that is full, what was removed makes room at once.
fn what_was_removed_from_a_full_pool_makes_room<S: Map<M>>(options: &S::Options) {
    let pool = PoolOptions::new().initial_size(256 << 10).max_size(256 << 10).chunk_size(4096).lanes(1).max_indices(1);
    let pool = pool.create_on(HeapBacking::new(256 << 10), Counting::new(Hardware::PAGE_CACHE)).unwrap();
    let map: Arc<S> = pool.open_structure("map", options).unwrap();
    let mut session = pool.session().unwrap();
    let full = (0..).find(|k| map.insert(&session.enter().unwrap(), *k, 1).is_err()).unwrap();
    for removed in [1, 5, 40] {
        for k in 0..removed {
            assert!(map.remove(&session.enter().unwrap(), k).unwrap().is_some(), "{k} of {removed}");
        }
        for k in 0..removed {
            assert!(map.insert(&session.enter().unwrap(), k, 2).unwrap(), "{k} of {removed}");
        }
    }
    // Also where another process finds a page with one free node.
    let mut map = map;
    for act in [Remove(7), Insert(7, 3), Remove(200), Insert(200, 3)] {
        drop(map);
        map = pool.open_structure("map", options).unwrap();
        let op = session.enter().unwrap();
        match act {
            Remove(k) => assert!(map.remove(&op, k).unwrap().is_some()),
            Insert(k, v) => assert!(map.insert(&op, k, v).unwrap(), "{k}"),
            _ => unreachable!(),
        }
    }
    let op = session.enter().unwrap();
    assert_eq!(map.check(&op).unwrap(), []);
    let mut keys = 0;
    map.for_each(&op, &mut |_, _| keys += 1).unwrap();
    assert_eq!(keys, full);
}

#[test]
fn what_was_removed_from_a_full_pool_makes_room_in_each_map() {
    let options = Options::default();
    what_was_removed_from_a_full_pool_makes_room::<List<M>>(&options);
    what_was_removed_from_a_full_pool_makes_room::<HashTable<M>>(&options.clone().grow_at(0));
    what_was_removed_from_a_full_pool_makes_room::<SoftHash<M>>(&SoftOptions::default());
    what_was_removed_from_a_full_pool_makes_room::<SoftList<M>>(&SoftOptions::default());
    what_was_removed_from_a_full_pool_makes_room::<SoftSkipList<M>>(&SoftOptions::default());
    what_was_removed_from_a_full_pool_makes_room::<Bst<M>>(&options);
    // A tall node takes two lines.
    what_was_removed_from_a_full_pool_makes_room::<SkipList<M>>(&options.tower_ratio(16));
}

/// The new node may be a tall one, where the old one had one line: it becomes a lower one.
#[test]
fn a_node_removed_from_a_full_skip_list_makes_room_for_another() {
    let pool = PoolOptions::new().initial_size(256 << 10).max_size(256 << 10).chunk_size(4096).lanes(1).max_indices(1);
    let pool = pool.create_on(HeapBacking::new(256 << 10), Counting::new(Hardware::PAGE_CACHE)).unwrap();
    let map = SkipList::open_with(&pool, "map", &Options::default().tower_ratio(2)).unwrap();
    let mut session = pool.session().unwrap();
    let full = (0..).find(|k| map.insert(&session.enter().unwrap(), *k, 1).is_err()).unwrap();
    assert!(full > 1000, "{full}");
    for k in 0..full {
        assert_eq!(map.remove(&session.enter().unwrap(), k).unwrap(), Some(1));
        assert!(map.insert(&session.enter().unwrap(), full + k, 1).unwrap(), "in place of {k}");
    }
    assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
}

/// Runs a test in a pool that is full, on a map of 300 keys with many pages, while another operation is open: then a session can
/// make no more pages active when the cells of its one segment are used up, since no page leaves the table. Later pages can.
fn without_room<S: Map<M, Options = Options>>(
    options: &Options,
    test: impl Fn(&S, &Op<'_, M>),
    later: impl Fn(&S, &Op<'_, M>),
) {
    let pool = PoolOptions::new().initial_size(256 << 10).max_size(256 << 10).chunk_size(4096).lanes(1).max_indices(1);
    let pool = pool.create_on(HeapBacking::new(256 << 10), Counting::new(Hardware::PAGE_CACHE)).unwrap();
    let mut session = pool.session().unwrap();
    let map: Arc<S> = pool.open_structure("map", options).unwrap();
    (0..400).for_each(|k| assert!(map.insert(&session.enter().unwrap(), spread_out(k), 1).unwrap()));
    (300..400).for_each(|k| assert!(map.remove(&session.enter().unwrap(), spread_out(k)).unwrap().is_some()));
    drop(map);
    let map: Arc<S> = pool.open_structure("map", &Options::default()).unwrap();
    let (mut other, op) = (pool.session().unwrap(), session.enter().unwrap());
    let owner = pool.indices().unwrap()[0].owner;
    let _blocks: Vec<_> = std::iter::from_fn(|| pool.space().reserve_block(&op, owner, 512).ok()).collect();
    let _extents: Vec<_> = std::iter::from_fn(|| pool.space().reserve_extent(&op, owner, 4096).ok()).collect();
    drop(op);
    let open = other.enter().unwrap();
    test(&map, &session.enter().unwrap());
    drop(open);
    let op = session.enter().unwrap();
    assert_eq!(map.check(&op).unwrap(), []);
    later(&map, &op);
    assert_eq!(map.check(&op).unwrap(), []);
}

/// Keys in no order, so that a tree is not a list.
fn spread_out(k: u64) -> u64 {
    k.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An update that fails gives its new node back; so many more find room later.
fn an_update_that_fails_leaks_nothing<S: Map<M, Options = Options>>(more: u64) {
    let failed = std::cell::Cell::new(0);
    without_room::<S>(
        &small(),
        |map, op| {
            failed.set((0..300).find(|k| map.update(op, spread_out(*k), 2).is_err()).unwrap());
            assert!(failed.get() > 20, "{failed:?}");
            assert_eq!(map.get(op, spread_out(failed.get())).unwrap(), Some(1));
        },
        |map, op| {
            let next = failed.get()..failed.get() + more;
            next.for_each(|k| assert_eq!(map.update(op, spread_out(k), 2).unwrap(), Some(1), "{k}"));
        },
    );
}

#[test]
fn an_update_that_fails_leaks_nothing_in_any_map() {
    an_update_that_fails_leaks_nothing::<List<M>>(20);
    an_update_that_fails_leaks_nothing::<HashTable<M>>(20);
    an_update_that_fails_leaks_nothing::<SkipList<M>>(20);
    // There an update takes a line more.
    an_update_that_fails_leaks_nothing::<Bst<M>>(0);
}

/// A removal that fails has removed nothing, and one that has removed something does not fail.
fn a_removal_that_fails_changes_nothing<S: Map<M, Options = Options>>(options: &Options) {
    let failed = std::cell::Cell::new(0);
    without_room::<S>(
        options,
        |map, op| {
            // From all over the pages, so that many are active of which a neighbour is not.
            for k in (0..300).map(|n| spread_out(n * 37 % 300)) {
                let removed = map.remove(op, k);
                failed.set(failed.get() + u32::from(removed.is_err()));
                assert_eq!(map.get(op, k).unwrap().is_some(), removed.is_err(), "{k:#x}");
            }
            assert!(failed.get() > 0);
        },
        |map, op| {
            let left = (0..300).filter(|k| map.remove(op, spread_out(*k)).unwrap().is_some()).count();
            assert_eq!(left as u32, failed.get());
        },
    );
}

#[test]
fn a_removal_that_fails_changes_nothing_in_any_map() {
    a_removal_that_fails_changes_nothing::<List<M>>(&small());
    a_removal_that_fails_changes_nothing::<HashTable<M>>(&small());
    a_removal_that_fails_changes_nothing::<SkipList<M>>(&small());
    // With nodes that take lines of two pages.
    a_removal_that_fails_changes_nothing::<SkipList<M>>(&small().tower_ratio(2));
    a_removal_that_fails_changes_nothing::<Bst<M>>(&small());
}

/// An operation of another pool would find that pool's words at this one's offsets, and change them.
fn an_operation_of_another_pool_is_refused<S: Map<M>>() {
    let [a, b] = [(); 2].map(|()| pool().0);
    let [of_a, of_b]: [Arc<S>; 2] = [&a, &b].map(|pool| pool.open_structure("map", &S::small()).unwrap());
    let mut session = b.session().unwrap();
    let op = session.enter().unwrap();
    assert!(of_b.insert(&op, 1, 10).unwrap());
    let told = [
        of_a.insert(&op, 1, 11).unwrap_err(),
        of_a.insert(&op, 2, 11).unwrap_err(),
        of_a.remove(&op, 1).unwrap_err(),
        of_a.get(&op, 1).unwrap_err(),
        of_a.update(&op, 1, 11).unwrap_err(),
        of_a.compare_and_set(&op, 1, 10, 11).unwrap_err(),
        of_a.for_each(&op, &mut |_, _| ()).unwrap_err(),
        of_a.check(&op).unwrap_err(),
    ];
    assert!(told.iter().all(|error| matches!(error, Error::Pool(durix_pmem::Error::ForeignSession))), "{told:?}");
    assert_eq!((of_b.get(&op, 1).unwrap(), of_b.get(&op, 2).unwrap()), (Some(10), None));
    assert_eq!(of_b.check(&op).unwrap(), []);
    let mut own = a.session().unwrap();
    assert_eq!(of_a.get(&own.enter().unwrap(), 1).unwrap(), None);
}

struct Refused;

impl Visit<M> for Refused {
    fn map<S: Listed<M>>(&mut self, _: Entry<M>) {
        an_operation_of_another_pool_is_refused::<S>();
    }
}

#[test]
fn an_operation_of_another_pool_is_refused_by_every_map() {
    each(&mut Refused);
    let [a, b] = [(); 2].map(|()| pool().0);
    let table: Arc<HashTable<M>> = HashTable::open(&a, "map").unwrap();
    let mut session = b.session().unwrap();
    let op = session.enter().unwrap();
    assert!(matches!(table.grow(&op), Err(Error::Pool(durix_pmem::Error::ForeignSession))));
    assert!(matches!(table.sync(&op), Err(Error::Pool(durix_pmem::Error::ForeignSession))), "nothing would be durable");
    let list: Arc<List<M>> = List::open(&a, "list").unwrap();
    assert!(matches!(list.sync(&op), Err(Error::Pool(durix_pmem::Error::ForeignSession))));
}

/// Recovery by several threads is recovery by one where no sessions are left for them.
#[test]
fn a_map_is_recovered_with_the_last_session() {
    let (pool, _) = pool();
    let mut sessions: Vec<_> = std::iter::from_fn(|| pool.session().ok()).collect();
    let options = Options::default().page_size(256).recovery_threads(4);
    // To make a map takes some.
    let table: Arc<HashTable<M>> = loop {
        match HashTable::open_with(&pool, "hash", &options) {
            Ok(table) => break table,
            Err(_) => drop(sessions.pop().unwrap()),
        }
    };
    assert!(sessions.len() + 4 > MAX_SESSIONS as usize, "{}", sessions.len());
    let mut fill = |insert: &mut dyn FnMut(&Op<'_, M>, u64), keys| {
        (0..keys).for_each(|k| insert(&sessions[0].enter().unwrap(), k));
    };
    fill(&mut |op, k| assert!(table.insert(op, k, 1).unwrap()), 600);
    drop(table);
    let table: Arc<HashTable<M>> = HashTable::open_with(&pool, "hash", &options).unwrap();
    let soft = SoftOptions::default().recovery_threads(4);
    let hash: Arc<SoftHash<M>> = SoftHash::open_with(&pool, "soft", &soft).unwrap();
    fill(&mut |op, k| assert!(hash.insert(op, k, 1).unwrap()), 40_000);
    drop(hash);
    let hash: Arc<SoftHash<M>> = SoftHash::open_with(&pool, "soft", &soft).unwrap();
    fill(
        &mut |op, k| assert_eq!((hash.get(op, k).unwrap(), table.get(op, k % 600).unwrap()), (Some(1), Some(1))),
        40_000,
    );
}
