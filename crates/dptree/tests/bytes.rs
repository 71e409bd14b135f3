//! Keys of any length: against a `BTreeMap` with merges and restarts at any moment, in a full pool, by several threads; and what an update costs.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use durix_dptree::{DpTreeBytes, MAX_BATCH, Options, Shape};
use durix_index::{Batch, Direction, Error, Index, KeyRange, Lengths, OrderedIndex};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Hardware, Medium, Op, Pool, PoolOptions, Session};

fn pool<M: Medium>(len: u64, medium: M) -> Pool<M> {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(len).max_size(len);
    options.create_on(HeapBacking::new(len), medium).unwrap()
}

fn small() -> Options {
    Options::default().shape(Shape { slots: 16, leaves: 4, page_lines: 8 }).least_front(8)
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Mostly short; some in parts.
fn value(random: u64) -> Vec<u8> {
    let len = match random % 16 {
        0 => 4000 + random % 6000,
        1 => 0,
        _ => random % 200,
    };
    vec![random as u8; len as usize]
}

/// Keys that share nothing, eight bytes, more than eight; keys that are others with zeroes behind; long ones.
fn key(number: u64) -> Vec<u8> {
    match number % 8 {
        0 => number.to_le_bytes().to_vec(),
        1 => format!("user:{number:06}").into_bytes(),
        2 => format!("https://example.org/{number:04}").into_bytes(),
        3 => [&b"user:"[..], &vec![0; (number / 8 % 9) as usize]].concat(),
        4 => [&b"12345678"[..], &vec![0; (number / 8 % 12) as usize]].concat(),
        5 => [&vec![b'k'; 1500][..], &number.to_be_bytes()].concat(),
        6 => format!("{number}").into_bytes(),
        _ => vec![255; (number / 8 % 40) as usize],
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn pairs<M: Medium>(map: &DpTreeBytes<M>, op: &Op<'_, M>, range: &KeyRange, direction: Direction) -> Pairs {
    let (mut cursor, mut found) = (map.range(range, direction), Vec::new());
    while let Some((key, value)) = cursor.next(op).unwrap() {
        found.push((key.to_vec(), value.to_vec()));
    }
    found
}

fn assert_sound<M: Medium>(map: &DpTreeBytes<M>, session: &mut Session<M>) {
    let findings = Index::check(map, session).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn a_tree_of_byte_strings_is_a_map() {
    let pool = pool(24 << 20, Hardware::PAGE_CACHE);
    let mut map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
    let (mut session, mut model, mut seed) = (pool.session().unwrap(), BTreeMap::new(), 88_172_645_463_325_252);
    for step in 0..30_000 {
        // Shrinks in the end, so that nodes are joined.
        let shrinks = step > 20_000;
        let (what, k) = (random(&mut seed) % 16, key(random(&mut seed) % 1600));
        let what = if shrinks && what < 5 { 10 } else { what };
        let new = value(random(&mut seed));
        {
            let op = session.enter().unwrap();
            match what {
                0..6 => assert_eq!(map.insert(&op, &k, &new).unwrap(), model.insert(k, new).is_none()),
                6 => {
                    assert_eq!(map.insert_if_absent(&op, &k, &new).unwrap(), !model.contains_key(&k));
                    model.entry(k).or_insert(new);
                }
                7 | 8 => {
                    let there = map.update(&op, &k, &new).unwrap();
                    assert_eq!(there, model.get_mut(&k).map(|old| *old = new).is_some());
                }
                9 => {
                    let old = if step % 2 == 0 { model.get(&k).cloned() } else { Some(vec![7; 3]) };
                    let new = (step % 3 != 0).then_some(new);
                    let matches = map.compare_and_set(&op, &k, old.as_deref(), new.as_deref()).unwrap();
                    assert_eq!(matches, model.get(&k) == old.as_ref());
                    match new {
                        Some(new) if matches => drop(model.insert(k, new)),
                        None if matches => drop(model.remove(&k)),
                        _ => {}
                    }
                }
                10 if step % 4 == 0 => {
                    let mut batch = Batch::new();
                    for _ in 0..random(&mut seed) % 40 {
                        let (k, v) = (key(random(&mut seed) % 1600), value(random(&mut seed)));
                        if !random(&mut seed).is_multiple_of(3) {
                            batch.insert(&k, &v);
                            model.insert(k, v);
                        } else {
                            batch.remove(&k);
                            model.remove(&k);
                        }
                    }
                    map.apply(&op, &batch).unwrap();
                }
                10..14 => assert_eq!(map.remove(&op, &k).unwrap(), model.remove(&k).is_some()),
                14 => {
                    assert_eq!(map.get_vec(&op, &k).unwrap(), model.get(&k).cloned());
                    assert_eq!(map.contains(&op, &k).unwrap(), model.contains_key(&k));
                    let keys: Vec<_> = (0..random(&mut seed) % 40).map(|_| key(random(&mut seed) % 1600)).collect();
                    let mut found = Vec::new();
                    let refs: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                    let mut note = |number, value: Option<&[u8]>| found.push((number, value.map(<[u8]>::to_vec)));
                    map.get_many(&op, &refs, &mut note).unwrap();
                    assert!(found.into_iter().eq(keys.iter().map(|key| model.get(key).cloned()).enumerate()));
                }
                _ => {
                    let mut ends = [k, key(random(&mut seed) % 1600)];
                    ends.sort();
                    let bounds = [Bound::Included(&ends[0][..]), Bound::Excluded(&ends[0][..])];
                    let lower = bounds[step % 2];
                    let upper = [Bound::Included(&ends[1][..]), Bound::Excluded(&ends[1][..])][step / 2 % 2];
                    let range = KeyRange::new(lower, upper);
                    let within = model.iter().filter(|(key, _)| range.contains(key));
                    let mut expected: Vec<_> = within.map(|(k, v)| (k.clone(), v.clone())).collect();
                    assert!(pairs(&map, &op, &range, Direction::Forward) == expected, "{range:?}");
                    expected.reverse();
                    assert!(pairs(&map, &op, &range, Direction::Backward) == expected, "{range:?}");
                }
            }
        }
        if step % 50 == 0 {
            map.tree().tick(&mut session).unwrap();
        }
        if step % 3000 == 2999 {
            assert_sound(&map, &mut session);
            drop(map);
            map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
            assert_sound(&map, &mut session);
            let all = pairs(&map, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
            assert!(all.into_iter().eq(model.iter().map(|(k, v)| (k.clone(), v.clone()))));
            assert_eq!(map.count(&mut session).unwrap(), model.len() as u64);
        }
    }
    let stats = map.tree().stats(&session.enter().unwrap());
    assert!(stats.ranges > 2 && stats.leaves > 8, "merges split leaves and ranges: {stats:?}");
}

#[test]
fn prefixes_and_ends_are_found() {
    let pool = pool(16 << 20, Hardware::PAGE_CACHE);
    let map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    assert!(!map.first(&op, &mut key, &mut value).unwrap() && !map.last(&op, &mut key, &mut value).unwrap());
    for number in 0..500 {
        map.insert(&op, format!("user:{number:03}").as_bytes(), &[1]).unwrap();
    }
    for other in [&b""[..], b"a", b"user", b"user;", &[255; 20]] {
        map.insert(&op, other, &[2]).unwrap();
    }
    assert!(map.first(&op, &mut key, &mut value).unwrap() && key.is_empty());
    assert!(map.last(&op, &mut key, &mut value).unwrap() && key == [255; 20]);
    for (prefix, expected) in [(&b"user:1"[..], 100), (b"user:12", 10), (b"user:499", 1), (b"user", 502), (b"", 505)] {
        for direction in [Direction::Forward, Direction::Backward] {
            let mut cursor = map.prefix(prefix, direction);
            let mut count = 0;
            while let Some((key, _)) = cursor.next(&op).unwrap() {
                assert!(key.starts_with(prefix));
                count += 1;
            }
            assert_eq!(count, expected, "{}", prefix.escape_ascii());
        }
    }
}

/// A large batch of one group, whose nodes are written again and again, takes the space of what it leaves.
#[test]
fn a_batch_in_a_full_pool_is_refused_whole() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
    let mut session = pool.session().unwrap();
    let batch = |keys: std::ops::Range<u64>, value: &[u8]| {
        let mut batch = Batch::new();
        for number in keys {
            batch.insert(&[&b"a name for all:"[..], &number.to_be_bytes()].concat(), value);
        }
        batch
    };
    map.apply(&session.enter().unwrap(), &batch(0..3000, &[1; 40])).unwrap();
    assert_sound(&map, &mut session);
    let before = pairs(&map, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
    assert_eq!(before.len(), 3000);
    assert!(is_full(map.apply(&session.enter().unwrap(), &batch(0..3000, &[2; 400]))));
    assert!(pairs(&map, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward) == before);
    assert_sound(&map, &mut session);
    let many = map.apply(&session.enter().unwrap(), &batch(0..MAX_BATCH as u64 + 1, &[]));
    assert!(matches!(many, Err(Error::BatchTooLarge { keys, limit }) if keys == limit + 1));
}

fn is_full<T: std::fmt::Debug>(result: durix_index::Result<T>) -> bool {
    match result {
        Err(Error::Pool(durix_pmem::Error::Full { .. })) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

/// Keys that share their first bytes, so that removals need new nodes, which there is no space for.
#[test]
fn a_full_pool_is_emptied_and_filled_again() {
    for name in [&b"a name that all keys share:"[..], b""] {
        let pool = pool(1 << 20, Hardware::PAGE_CACHE);
        let mut map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
        let (value, mut counts) = ([3; 100], Vec::new());
        let key = |number: u64| [name, &number.to_be_bytes()].concat();
        for round in 0..4 {
            let mut session = pool.session().unwrap();
            let mut fits = |number: &u64| !is_full(map.insert(&session.enter().unwrap(), &key(*number), &value));
            let keys = (0_u64..).take_while(&mut fits).count() as u64;
            counts.push(keys);
            assert_eq!(map.count(&mut session).unwrap(), keys, "what was refused is not there");
            assert_sound(&map, &mut session);
            for number in 0..keys {
                let op = session.enter().unwrap();
                assert!(map.remove(&op, &key(number)).unwrap(), "key {number}");
                assert!(!map.contains(&op, &key(number)).unwrap() && !map.remove(&op, &key(number)).unwrap());
                drop(op);
                if number == keys / 2 {
                    assert_sound(&map, &mut session);
                    assert_eq!(map.count(&mut session).unwrap(), keys - number - 1);
                    let all = pairs(&map, &session.enter().unwrap(), &KeyRange::all(), Direction::Backward);
                    assert!(all.iter().rev().map(|(key, _)| key.clone()).eq((number + 1..keys).map(key)));
                }
            }
            assert_sound(&map, &mut session);
            map.tree().merge_all(&mut session).unwrap();
            drop(session);
            if round % 2 == 1 {
                drop(map);
                map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
            }
        }
        println!("{counts:?}");
        assert!(counts[0] > 1000 && counts.iter().all(|count| count * 2 > counts[0]), "{counts:?}");
    }
}

/// Each key has one writer, who knows what is there; readers meet whole values only.
#[test]
fn several_threads_write_and_read_whole_values() {
    let pool = pool(32 << 20, Hardware::PAGE_CACHE);
    let map = DpTreeBytes::open_with(&pool, "map", &small()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = |thread: u64| {
            let (mut session, mut seed, mut model) = (pool.session().unwrap(), thread + 1, BTreeMap::new());
            for step in 0..4000 {
                let key = format!("{}shared by all{}", random(&mut seed) % 4, random(&mut seed) % 64 * 4 + thread);
                let new = value(random(&mut seed));
                let op = session.enter().unwrap();
                if step % 5 == 0 {
                    assert_eq!(map.remove(&op, key.as_bytes()).unwrap(), model.remove(&key).is_some());
                } else {
                    assert_eq!(map.get_vec(&op, key.as_bytes()).unwrap(), model.get(&key).cloned());
                    map.insert(&op, key.as_bytes(), &new).unwrap();
                    model.insert(key, new);
                }
            }
            model
        };
        let writers: Vec<_> = (0..3).map(|thread| scope.spawn(move || write(thread))).collect();
        scope.spawn(|| {
            let mut session = pool.session().unwrap();
            while !done.load(Relaxed) {
                while map.tree().tick(&mut session).unwrap() {}
                let all = pairs(&map, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
                assert!(all.iter().all(|(_, value)| value.iter().all(|byte| *byte == value[0])));
            }
        });
        let models: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Relaxed);
        let model: BTreeMap<_, _> = models.into_iter().flat_map(|model| model.unwrap()).collect();
        let mut session = pool.session().unwrap();
        let all = pairs(&map, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
        assert!(all.into_iter().eq(model.into_iter().map(|(key, value)| (key.into_bytes(), value))));
        assert_sound(&map, &mut session);
    });
}

#[test]
fn an_update_costs_two_fences_and_the_lines_of_its_records() {
    let medium = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
    let pool = pool(64 << 20, medium);
    let map = DpTreeBytes::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let mut of = |f: &dyn Fn(&Op<'_, Counting<Hardware>>) -> bool| {
        let before = medium.counts();
        assert!(f(&session.enter().unwrap()));
        let after = medium.counts();
        (after.write_backs - before.write_backs, after.fences - before.fences)
    };
    // The first ones make pages active.
    of(&|op| map.insert(op, b"1", &[1; 90]).unwrap());
    of(&|op| map.insert(op, b"2", &[1; 290]).unwrap());
    // 24 bytes and the key before the value: two lines; and a line of the log.
    assert_eq!(of(&|op| map.insert(op, b"3", &[2; 90]).unwrap()), (3, 2));
    assert_eq!(of(&|op| map.update(op, b"3", &[3; 90]).unwrap()), (3, 2));
    assert_eq!(of(&|op| map.compare_and_set(op, b"3", Some(&[3; 90]), Some(&[4; 90])).unwrap()), (3, 2));
    assert_eq!(of(&|op| map.remove(op, b"3").unwrap()), (1, 1));
    assert_eq!(of(&|op| !map.update(op, b"3", &[3; 90]).unwrap()), (0, 0));
    assert_eq!(of(&|op| !map.insert_if_absent(op, b"2", &[2; 290]).unwrap()), (0, 0));
    assert_eq!(of(&|op| map.get_vec(op, b"2").unwrap() == Some(vec![1; 290])), (0, 0));
    // In random order: costs of the whole, merges included.
    for (what, name, most) in [("no first bytes", "", [2.8, 2.1]), ("first bytes", "a name for all:", [21.0, 2.1])] {
        let (before, mut seed) = (medium.counts(), 5);
        let mut session = pool.session().unwrap();
        let keys = 20_000;
        for _ in 0..keys {
            let key = [name.as_bytes(), &random(&mut seed).to_be_bytes()].concat();
            assert!(map.insert(&session.enter().unwrap(), &key, &[1; 8]).unwrap());
        }
        let after = medium.counts();
        let costs = [after.write_backs - before.write_backs, after.fences - before.fences];
        let costs = costs.map(|count| count as f64 / f64::from(keys));
        println!("{what}: {costs:.2?} write-backs and fences an insert");
        assert!(costs[0] < most[0] && costs[1] < most[1], "{what}: {costs:?}");
    }
}

#[test]
fn a_key_or_a_value_that_is_too_long_is_refused_and_changes_nothing() {
    let pool = pool(32 << 20, Hardware::PAGE_CACHE);
    let map = DpTreeBytes::open(&pool, "map").unwrap();
    let mut session = pool.session().unwrap();
    let limits = map.limits();
    let (Lengths::UpTo(longest), Lengths::UpTo(most)) = (limits.key, limits.value) else { panic!("of one length") };
    let op = session.enter().unwrap();
    let key = vec![7; longest];
    assert!(map.insert(&op, &key, &vec![1; most]).unwrap());
    for refused in [
        map.insert(&op, &key, &vec![2; most + 1]),
        map.insert_if_absent(&op, b"", &vec![2; most + 1]),
        map.update(&op, &key, &vec![2; most + 1]),
    ] {
        assert!(matches!(refused, Err(Error::ValueTooLong { len, limit }) if len == most + 1 && limit == most));
    }
    let long = vec![7; longest + 1];
    let many = map.get_many(&op, &[b"short", &long], &mut |_, _| panic!("a key is too long"));
    assert!(matches!(many, Err(Error::KeyTooLong { len, limit }) if len == longest + 1 && limit == longest));
    for refused in [map.insert(&op, &long, &[]), map.remove(&op, &long), map.contains(&op, &long)] {
        assert!(matches!(refused, Err(Error::KeyTooLong { len, limit }) if len == longest + 1 && limit == longest));
    }
    assert_eq!(map.get_vec(&op, &key).unwrap(), Some(vec![1; most]));
    drop(op);
    assert_eq!(map.count(&mut session).unwrap(), 1);
    assert_sound(&map, &mut session);
}
