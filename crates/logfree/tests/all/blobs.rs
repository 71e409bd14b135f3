//! Maps of byte strings against a model: lengths, counts, ranges, errors, pools that are full or damaged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_logfree::{
    BlobBst, BlobHash, BlobList, BlobSkipList, Blobs, BytesHash, Error, Finding, LinkCacheMode, MAX_KEY, MAX_VALUE,
    Options, OrderedWordMap,
};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Hardware, Off, Pool, PoolOptions, Word};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, prop_oneof, proptest};

use crate::maps::{M, act, against_model_with, cost, pool};
use durix_logfree::testing::Act::Grow;
use durix_logfree::testing::{Map, small};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn a_hash_table_of_byte_strings_that_grows_is_a_map(acts in vec(prop_oneof![20 => act(), 1 => Just(Grow)], 0..150)) {
        against_model_with::<BlobHash<M>>(&acts, &small().buckets(1));
        against_model_with::<BlobHash<M>>(&acts, &small().buckets(1).grow_at(1));
    }

    /// With all hashes equal, with few, and with all different.
    #[test]
    fn byte_strings_are_keys_whatever_their_hash(acts in vec(act(), 0..150)) {
        for bits in [0, 2, 64] {
            // All entries of a hash are one record.
            against_model_with::<BytesHash<M>>(&acts, &small().page_size(1024).hash_bits(bits));
        }
    }
}

#[test]
fn values_of_all_lengths_come_back() {
    let (pool, _) = pool();
    let mut expected = BTreeMap::new();
    for round in 0..2 {
        let map = BlobHash::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert_eq!(map.max_value(), MAX_VALUE as u64);
        let lengths = [0, 1, 47, 48, 49, 4015, 4016, 4017, 4024, 4025, 8048, 8049, 100_000, MAX_VALUE - 1, MAX_VALUE];
        for (key, len) in (0u64..).zip(lengths) {
            let value: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + key + round) as u8).collect();
            if round == 0 {
                assert!(map.insert(&op, key, &value).unwrap());
            } else {
                let mut old = Vec::new();
                assert!(map.replace(&op, key, &value, &mut old).unwrap());
                assert_eq!(Some(&old), expected.get(&key));
            }
            expected.insert(key, value);
        }
        let too_long = vec![0; MAX_VALUE + 1];
        for result in [map.insert(&op, 99, &too_long), map.update(&op, 0, &too_long)] {
            assert!(matches!(result, Err(Error::TooLong { len, limit, .. }) if len == limit + 1));
        }
        let mut found = BTreeMap::new();
        map.for_each(&op, |key, value| assert!(found.insert(key, value.to_vec()).is_none())).unwrap();
        assert!(found == expected, "what is found is not what was put there");
        assert_eq!(map.check(&op).unwrap(), []);
    }
}

#[test]
fn keys_of_all_lengths_come_back() {
    let (pool, _) = pool();
    let lengths = [0, 1, 7, 8, 9, 64, 4000, 4024, MAX_KEY];
    for round in 0..2 {
        let map = BytesHash::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let (op, mut value) = (session.enter().unwrap(), Vec::new());
        for len in lengths {
            let key = vec![len as u8; len];
            assert_eq!(map.insert(&op, &key, &key).unwrap(), round == 0, "{len}");
            assert!(map.get(&op, &key, &mut value).unwrap() && value == key, "{len}");
            assert!(
                !map.contains(&op, &[&key[..], b"x"].concat()[..len + usize::from(len < MAX_KEY)]).unwrap()
                    || len == MAX_KEY
            );
        }
        let too_long = vec![0; MAX_KEY + 1];
        assert!(matches!(map.insert(&op, &too_long, b""), Err(Error::TooLong { what: "a key", .. })));
        let longest = vec![1; map.max_value() as usize];
        assert!(map.set(&op, &vec![9; MAX_KEY], &longest).is_ok());
        let longer = vec![1; longest.len() + 1];
        assert!(matches!(map.set(&op, b"k", &longer), Err(Error::TooLong { what: "a value", .. })));
        assert!(map.update(&op, &vec![MAX_KEY as u8; MAX_KEY], &vec![MAX_KEY as u8; MAX_KEY]).unwrap());
        assert!(!map.contains(&op, &too_long).unwrap());
        map.remove(&op, &vec![9; MAX_KEY]).unwrap();
        assert_eq!(map.check(&op).unwrap(), []);
        assert_eq!(map.len(&op).unwrap(), lengths.len() as u64);
    }
}

/// Some values of 8 bytes are there, and pages of each kind are active.
fn settled_counts<S: Map<M, Options = Options>>(record_lines: u64) {
    let (pool, medium) = pool();
    let map: Arc<S> = pool.open_structure("map", &Options::default()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (10..14).for_each(|k| assert!(map.insert(&op, k, 4).unwrap()));
    let (fences, write_backs, _) = cost(medium, || assert!(map.insert(&op, 1, 4).unwrap()));
    assert_eq!((fences, write_backs), (2, 2 + record_lines), "insert");
    assert_eq!(cost(medium, || assert!(!map.insert(&op, 1, 4).unwrap())), (0, 0, 0), "insert of a key that is there");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 1).unwrap(), Some(4))), (0, 0, 0), "get");
    assert_eq!(cost(medium, || assert_eq!(map.get(&op, 2).unwrap(), None)), (0, 0, 0), "get of no key");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 2).unwrap(), None)), (0, 0, 0), "remove of no key");
    assert_eq!(cost(medium, || assert_eq!(map.update(&op, 2, 4).unwrap(), None)), (0, 0, 0), "update of no key");
    assert_eq!(cost(medium, || assert!(!map.compare_and_set(&op, 1, 8, 4).unwrap())), (0, 0, 0), "failed exchange");
    assert_eq!(cost(medium, || assert_eq!(map.update(&op, 1, 8).unwrap(), Some(4))).0, 2, "update");
    assert!(cost(medium, || assert_eq!(map.remove(&op, 1).unwrap(), Some(8))).0 <= 2, "remove");
    assert_eq!(cost(medium, || assert_eq!(map.remove(&op, 1).unwrap(), None)), (0, 0, 0), "remove again");
}

#[test]
fn a_record_costs_no_fence_of_its_own() {
    settled_counts::<BlobList<M>>(1);
    settled_counts::<BlobHash<M>>(1);
    settled_counts::<BlobBst<M>>(1);
    // With key and lengths, two lines.
    settled_counts::<BytesHash<M>>(2);
}

#[test]
fn pages_newly_active_cost_one_fence_more() {
    let (pool, medium) = pool();
    {
        let map = BlobHash::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        for key in 0..100 {
            assert!(map.insert(&op, key, &[7; 100]).unwrap());
        }
    }
    let map = BlobHash::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    // Pages are active no longer: one for the node, with the fence of the mark, and one for the record.
    assert_eq!(cost(medium, || assert!(map.remove(&op, 0).unwrap())).0, 2);
    assert_eq!(cost(medium, || assert!(map.remove(&op, 1).unwrap())).0, 1);
    // A value of 300 kB has 75 parts on as many pages. They become active under one fence; the others are those of new extents and of
    // the table's segments.
    let value = vec![1; 300_000];
    let fences = cost(medium, || assert!(map.insert(&op, 1, &value).unwrap())).0;
    assert!(fences <= 24, "{fences} fences");
    // The same units again.
    assert_eq!(cost(medium, || assert!(map.remove(&op, 1).unwrap())).0, 1);
    assert_eq!(cost(medium, || assert!(map.insert(&op, 1, &value).unwrap())).0, 2);
}

#[test]
fn values_that_are_replaced_over_and_over_take_no_more_room() {
    let (pool, _) = pool();
    let map = BytesHash::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let free = || pool.space_stats_free();
    let round = |number: u64, session: &mut durix_pmem::Session<M>| {
        let op = session.enter().unwrap();
        for key in 0..20u64 {
            map.set(&op, &key.to_le_bytes(), &vec![number as u8; (key * 331) as usize]).unwrap();
        }
    };
    (0..30).for_each(|number| round(number, &mut session));
    let before = free();
    (0..300).for_each(|number| round(number, &mut session));
    assert_eq!(free(), before);
    assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
}

trait Free {
    fn space_stats_free(&self) -> u64;
}

impl Free for Pool<M> {
    fn space_stats_free(&self) -> u64 {
        let mut session = self.session().unwrap();
        self.space().stats(&session.enter().unwrap()).free
    }
}

#[test]
fn a_callback_may_change_the_map() {
    let (pool, _) = pool();
    let map = BlobHash::open_with(&pool, "map", &small()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..100u64).for_each(|key| assert!(map.insert(&op, key, &key.to_le_bytes()).unwrap()));
    let mut seen = 0;
    map.for_each(&op, |key, value| {
        if key >= 1000 {
            return;
        }
        assert_eq!(value, key.to_le_bytes());
        assert!(map.remove(&op, key).unwrap() && map.insert(&op, key + 1000, b"later").unwrap());
        seen += 1;
    })
    .unwrap();
    assert_eq!((seen, map.len(&op).unwrap()), (100, 100));
    assert_eq!(map.check(&op).unwrap(), []);
}

/// How a map is opened.
type Open<S> = fn(&Pool<M>, &str) -> Result<Arc<Blobs<S, M>>, Error>;

fn ranges_both_ways<S: OrderedWordMap<M>>(open: Open<S>) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let (pool, _) = pool();
    let map = open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let value = |key: u64| vec![key as u8; key as usize % 200];
    let keys = [0, 1, 5, u64::MAX - 1, u64::MAX].into_iter().chain((0..200).map(|n| 1000 + n * 7919 % 200));
    let model: BTreeMap<u64, Vec<u8>> = keys.map(|key| (key, value(key))).collect();
    model.iter().for_each(|(key, value)| assert!(map.insert(&op, *key, value).unwrap()));
    for from in [Unbounded, Included(1), Excluded(1), Excluded(1010), Excluded(u64::MAX)] {
        for to in [Unbounded, Included(5), Excluded(1100), Excluded(0)] {
            let within = |key: &u64| std::ops::RangeBounds::contains(&(from, to), key);
            let expected: Vec<_> = model.iter().filter(|(key, _)| within(key)).map(|(k, v)| (*k, v.clone())).collect();
            let (mut up, mut down) = (Vec::new(), Vec::new());
            map.range(&op, (from, to), |k, v| up.push((k, v.to_vec()))).unwrap();
            map.range_rev(&op, (from, to), |k, v| down.push((k, v.to_vec()))).unwrap();
            down.reverse();
            assert_eq!((&up, &down), (&expected, &expected), "{from:?} to {to:?}");
        }
    }
}

#[test]
fn ranges_of_a_list_of_byte_strings() {
    ranges_both_ways(BlobList::open);
}

#[test]
fn ranges_of_a_skip_list_of_byte_strings() {
    ranges_both_ways(BlobSkipList::open);
}

#[test]
fn ranges_of_a_search_tree_of_byte_strings() {
    ranges_both_ways(BlobBst::open);
}

/// A step of a walk ends where it has read enough, and the walk goes on there.
#[test]
fn long_values_are_walked_a_few_at_a_time() {
    let (pool, _) = pool();
    let map = BlobSkipList::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..10u64).for_each(|key| assert!(map.insert(&op, key, &vec![key as u8; 400_000]).unwrap()));
    let (mut up, mut down) = (Vec::new(), Vec::new());
    assert_eq!(map.walk(&op, 0, &mut up).unwrap(), Some(3));
    assert_eq!(map.walk_back(&op, 9, &mut down).unwrap(), Some(6));
    assert_eq!((up.len(), down.len()), (3, 3));
    let mut keys = Vec::new();
    map.range_rev(&op, .., |key, value| keys.push((key, value[399_999]))).unwrap();
    assert_eq!(keys, (0..10).rev().map(|key| (key, key as u8)).collect::<Vec<_>>());
}

#[test]
fn a_link_cache_is_refused() {
    let (pool, _) = pool();
    let options = Options::default().link_cache(LinkCacheMode::Buffered, 4);
    assert!(matches!(BlobHash::open_with(&pool, "hash", &options), Err(Error::BadOption { .. })));
    assert!(matches!(BytesHash::open_with(&pool, "bytes", &options), Err(Error::BadOption { .. })));
    assert!(matches!(BlobList::open_with(&pool, "list", &options), Err(Error::BadOption { .. })));
    BlobHash::open(&pool, "hash").unwrap();
    // What is there is another kind than the map without records.
    assert!(matches!(durix_logfree::HashTable::open(&pool, "hash"), Err(Error::Pool(_))));
}

#[test]
fn a_full_pool_is_told_and_the_map_goes_on() {
    let options = PoolOptions::new().initial_size(2 << 20).max_size(2 << 20);
    let pool = options.create_on(HeapBacking::new(2 << 20), Counting::new(Hardware::PAGE_CACHE)).unwrap();
    let map = BytesHash::<M>::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let (op, mut value, mut keys) = (session.enter().unwrap(), Vec::new(), 0u64);
    let full = |error: &Error| matches!(error, Error::Pool(durix_pmem::Error::Full { .. }));
    loop {
        match map.insert(&op, &keys.to_le_bytes(), &[keys as u8; 5000]) {
            Ok(inserted) => assert!(inserted),
            Err(error) => break assert!(full(&error), "{error}"),
        }
        keys += 1;
    }
    assert!(keys > 100, "{keys}");
    assert!(full(&map.update(&op, &0u64.to_le_bytes(), &[1; 100_000]).unwrap_err()));
    assert_eq!(map.check(&op).unwrap(), []);
    // What was removed makes room at once, however little it is.
    for removed in [1, 3, 20] {
        (0..removed).for_each(|key: u64| assert!(map.remove(&op, &key.to_le_bytes()).unwrap()));
        (0..removed).for_each(|key| assert!(map.insert(&op, &key.to_le_bytes(), &[key as u8; 5000]).unwrap()));
    }
    for key in 0..keys {
        assert!(map.get(&op, &key.to_le_bytes(), &mut value).unwrap() && value == [key as u8; 5000]);
        assert!(map.remove(&op, &key.to_le_bytes()).unwrap());
    }
    (0..keys / 2).for_each(|key| assert!(map.insert(&op, &key.to_le_bytes(), &[3; 5000]).unwrap()));
    assert_eq!(map.check(&op).unwrap(), []);
}

/// Every word of the pool's chunks is changed in turn, to a few values: the map is opened, read, walked, written and checked, and says
/// an error or something wrong, but nothing panics or hangs.
/// Replaces values in a pool with room for records, and none for nodes: while another operation is open, the nodes that are
/// replaced are not free.
fn a_full_pool_leaves_nothing_behind<S: Map<Hardware, Options = Options>>() {
    let options = PoolOptions::new().chunk_size(4096).initial_size(1 << 20).max_size(1 << 20);
    let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
    let map = pool.open_structure::<S>("map", &Options::default()).unwrap();
    let is_full = |error: &Error| matches!(error, Error::Pool(durix_pmem::Error::Full { .. }));
    let (mut session, mut other) = (pool.session().unwrap(), pool.session().unwrap());
    // A value of 400 bytes, and one of 8.
    let (long, short) = (3, 0);
    (0..400).for_each(|key| assert!(map.insert(&session.enter().unwrap(), key, long).unwrap()));
    (0..400).for_each(|key| assert!(map.remove(&session.enter().unwrap(), key).unwrap().is_some()));
    let keys = (0..).find(|key| map.insert(&session.enter().unwrap(), *key, short).is_err()).unwrap();
    let open = other.enter().unwrap();
    let mut refused = (0..keys).filter_map(|key| map.update(&session.enter().unwrap(), key, long).err());
    assert!(refused.by_ref().take(100).all(|error| is_full(&error)) && refused.next().is_some());
    drop((refused, open));
    assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
}

#[test]
fn an_update_that_finds_a_full_pool_leaves_nothing_behind() {
    a_full_pool_leaves_nothing_behind::<BlobList>();
    a_full_pool_leaves_nothing_behind::<BlobHash>();
    a_full_pool_leaves_nothing_behind::<BlobSkipList>();
    a_full_pool_leaves_nothing_behind::<BlobBst>();
}

#[test]
fn a_damaged_pool_is_told() {
    let options =
        || PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(64 << 10).max_size(128 << 10);
    let pool = options().create_on(HeapBacking::new(128 << 10), Hardware::PAGE_CACHE).unwrap();
    {
        let map: Arc<BytesHash> = pool.open_structure("map", &small()).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        for key in 0..6u64 {
            assert!(map.insert(&op, &vec![key as u8; key as usize], &vec![1; key as usize * 70]).unwrap());
        }
    }
    let image = HeapBacking::image_of(pool.mapping());
    let (mut told, mut unseen, words) = (0, 0, image.len() / 8);
    // The pool's own tables are somebody else's test.
    let used: Vec<usize> = (4096 * 3 / 8..words).filter(|word| image[word * 8..word * 8 + 8] != [0; 8]).collect();
    assert!(used.len() > 100, "{}", used.len());
    for (number, word) in used.into_iter().enumerate() {
        let values = [0, 1, u64::MAX, 1 << 63 | 0x40, (word as u64 * 8) & !63, 0x1000];
        let mut image = image.clone();
        image[word * 8..word * 8 + 8].copy_from_slice(&values[number % values.len()].to_le_bytes());
        let backing = HeapBacking::from_image(image);
        let Ok(pool) = options().open_on(backing, Hardware::PAGE_CACHE).and_then(|pool| pool.recover()) else {
            told += 1;
            continue;
        };
        match use_all(&pool) {
            Ok(()) => unseen += 1,
            Err(_) => told += 1,
        }
    }
    println!("{told} told, {unseen} not seen");
    assert!(told >= 10, "{told}");
}

fn use_all(pool: &Pool) -> Result<(), Error> {
    let map: Arc<BytesHash> = pool.open_structure("map", &small())?;
    let mut session = pool.session()?;
    let (op, mut value, mut first) = (session.enter()?, Vec::new(), Ok(()));
    let mut note = |result: Result<(), Error>| {
        if first.is_ok() {
            first = result;
        }
    };
    note(map.check(&op).map(drop));
    note(map.for_each(&op, |_, _| ()));
    for key in 0..6u64 {
        let name = vec![key as u8; key as usize];
        note(map.get(&op, &name, &mut value).map(drop));
        note(map.update(&op, &name, &[9; 300]).map(drop));
        note(map.remove(&op, &name).map(drop));
        note(map.insert(&op, &name, &[8; 30]).map(drop));
    }
    first
}

/// What lies in the pool of a record that was damaged is told by name.
#[test]
fn a_damaged_record_is_an_error_that_names_it() {
    let (pool, _) = pool();
    let map = BlobHash::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let (op, mut value) = (session.enter().unwrap(), Vec::new());
    assert!(map.insert(&op, 0x1234_5678_9ABC, &[7; 20]).unwrap());
    let all = op.slice("all", Off::<Word>::new(0), pool.mapping().len() / 8).unwrap();
    // The length in the lower half, the checksum above it.
    let is_record = |line: &&[Word]| {
        op.load(&line[0], Relaxed) & 0x7fff_ffff == 20 && op.load(&line[1], Relaxed) == 0x1234_5678_9ABC
    };
    let lines = || all.chunks(8).filter(is_record);
    assert_eq!(lines().count(), 1);
    let record = lines().next().unwrap();
    for (word, damaged) in [(0, u64::MAX), (0, 1 << 30), (0, 1 << 63 | 64), (1, 5)] {
        let before = op.load(&record[word], Relaxed);
        op.store(&record[word], damaged, Relaxed);
        for result in [
            map.get(&op, 0x1234_5678_9ABC, &mut value),
            map.update(&op, 0x1234_5678_9ABC, b"new"),
            map.remove(&op, 0x1234_5678_9ABC),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Corrupt { offset, .. } if offset == op.off_of(&record[0]).get()), "{error}");
        }
        assert!(map.check(&op).is_err());
        op.store(&record[word], before, Relaxed);
    }
    let off = op.off_of(&record[0]).get();
    for (word, bit) in [(0, 31), (0, 62), (2, 0), (4, 31)] {
        let before = op.load(&record[word], Relaxed);
        op.store(&record[word], before ^ 1 << bit, Relaxed);
        let error = map.get(&op, 0x1234_5678_9ABC, &mut value).unwrap_err();
        assert!(matches!(error, Error::Corrupt { offset, .. } if offset == off), "{error}");
        assert_eq!(map.check(&op).unwrap(), [Finding::Damaged { off }], "bit {bit} of word {word}");
        op.store(&record[word], before, Relaxed);
    }
    assert!(map.get(&op, 0x1234_5678_9ABC, &mut value).unwrap() && value == [7; 20]);
    assert_eq!(map.check(&op).unwrap(), []);
}

/// All threads at the same keys; every value is of one write.
#[test]
fn threads_share_a_map_of_byte_strings() {
    let options = PoolOptions::new().initial_size(1 << 20).max_size(64 << 20);
    let pool = options.create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
    let map: Arc<BytesHash> = pool.open_structure("map", &small().page_size(1024).hash_bits(4)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (map, pool) = (&map, &pool);
            scope.spawn(move || {
                let (mut session, mut value) = (pool.session().unwrap(), Vec::new());
                for number in 0..4000u64 {
                    let (key, byte) = ((number * 7919 + thread) % 40, (number % 251) as u8);
                    let op = session.enter().unwrap();
                    match (number + thread) % 4 {
                        0 => _ = map.remove(&op, &key.to_le_bytes()).unwrap(),
                        1 => _ = map.set(&op, &key.to_le_bytes(), &vec![byte; byte as usize * 3]).unwrap(),
                        _ => {
                            let there = map.get(&op, &key.to_le_bytes(), &mut value).unwrap();
                            let sound = value.iter().all(|b| *b == value[0] && value.len() == *b as usize * 3);
                            assert!(sound && (there || value.is_empty()), "a mixture of two values");
                        }
                    }
                }
            });
        }
    });
    let mut session = pool.session().unwrap();
    assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
}
