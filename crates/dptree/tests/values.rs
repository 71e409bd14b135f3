//! Values of any length: against a `BTreeMap` with merges and restarts at any moment, in a full pool, by several threads; and what an update costs.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use durix_dptree::{DpTreeValues, Options, Shape};
use durix_index::{Direction, Error, Index, KeyRange, Lengths, OrderedIndex};
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

fn pairs<M: Medium>(
    values: &DpTreeValues<M>,
    op: &Op<'_, M>,
    range: &KeyRange,
    direction: Direction,
) -> Vec<(u64, Vec<u8>)> {
    let (mut cursor, mut found) = (values.range(range, direction), Vec::new());
    while let Some((key, value)) = cursor.next(op).unwrap() {
        found.push((u64::from_be_bytes(key.try_into().unwrap()), value.to_vec()));
    }
    found
}

fn assert_sound<M: Medium>(values: &DpTreeValues<M>, session: &mut Session<M>) {
    let findings = Index::check(values, session).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn a_tree_with_values_is_a_map() {
    let pool = pool(16 << 20, Hardware::PAGE_CACHE);
    let mut values = DpTreeValues::open_with(&pool, "values", &small()).unwrap();
    let (mut session, mut model, mut seed) = (pool.session().unwrap(), BTreeMap::new(), 88_172_645_463_325_252);
    for step in 0..30_000 {
        let (what, k) = (random(&mut seed) % 16, random(&mut seed) % 400);
        let (new, key) = (value(random(&mut seed)), k.to_be_bytes());
        {
            let op = session.enter().unwrap();
            match what {
                0..6 => {
                    assert_eq!(values.insert(&op, &key, &new).unwrap(), model.insert(k, new).is_none());
                }
                6 => {
                    assert_eq!(values.insert_if_absent(&op, &key, &new).unwrap(), !model.contains_key(&k));
                    model.entry(k).or_insert(new);
                }
                7 | 8 => {
                    let there = values.update(&op, &key, &new).unwrap();
                    assert_eq!(there, model.get_mut(&k).map(|old| *old = new).is_some());
                }
                9 => {
                    let old = if step % 2 == 0 { model.get(&k).cloned() } else { Some(vec![7; 3]) };
                    let matches = values.compare_and_set(&op, &key, old.as_deref(), Some(&new)).unwrap();
                    assert_eq!(matches, model.get(&k) == old.as_ref());
                    if matches {
                        model.insert(k, new);
                    }
                }
                10..14 => assert_eq!(values.remove(&op, &key).unwrap(), model.remove(&k).is_some()),
                14 => assert_eq!(values.get_vec(&op, &key).unwrap(), model.get(&k).cloned()),
                _ => {
                    let end = (k + 30).to_be_bytes();
                    let range = KeyRange::new(Bound::Included(&key), Bound::Excluded(&end));
                    let mut expected: Vec<_> = model.range(k..k + 30).map(|(k, v)| (*k, v.clone())).collect();
                    assert_eq!(pairs(&values, &op, &range, Direction::Forward), expected);
                    expected.reverse();
                    assert_eq!(pairs(&values, &op, &range, Direction::Backward), expected);
                }
            }
        }
        if step % 50 == 0 {
            values.tree().tick(&mut session).unwrap();
        }
        if step % 3000 == 2999 {
            assert_sound(&values, &mut session);
            drop(values);
            values = DpTreeValues::open_with(&pool, "values", &small()).unwrap();
            assert_sound(&values, &mut session);
            let all = pairs(&values, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
            assert!(all.into_iter().eq(model.iter().map(|(k, v)| (*k, v.clone()))));
            assert_eq!(values.count(&mut session).unwrap(), model.len() as u64);
        }
    }
    let stats = values.tree().stats(&session.enter().unwrap());
    assert!(stats.ranges > 2 && stats.leaves > 8, "merges split leaves and ranges: {stats:?}");
}

fn is_full<T: std::fmt::Debug>(result: durix_index::Result<T>) -> bool {
    match result {
        Err(Error::Pool(durix_pmem::Error::Full { .. })) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

#[test]
fn a_full_pool_is_emptied_and_filled_again() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let values = DpTreeValues::open_with(&pool, "values", &small()).unwrap();
    let mut session = pool.session().unwrap();
    let (value, mut counts) = ([3; 100], Vec::new());
    for _ in 0..4 {
        let mut fits = |key: &u64| !is_full(values.insert(&session.enter().unwrap(), &key.to_be_bytes(), &value));
        let keys = (0_u64..).take_while(&mut fits).count() as u64;
        counts.push(keys);
        assert_eq!(values.count(&mut session).unwrap(), keys, "what was refused is not there");
        assert_sound(&values, &mut session);
        for key in 0..keys {
            assert!(values.remove(&session.enter().unwrap(), &key.to_be_bytes()).unwrap(), "key {key}");
        }
        assert_sound(&values, &mut session);
        values.tree().merge_all(&mut session).unwrap();
    }
    assert!(counts[0] > 1000 && counts.iter().all(|count| count * 2 > counts[0]), "{counts:?}");
}

/// Each key has one writer, who knows what is there; readers meet whole values only.
#[test]
fn several_threads_write_and_read_whole_values() {
    let pool = pool(32 << 20, Hardware::PAGE_CACHE);
    let values = DpTreeValues::open_with(&pool, "values", &small()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = |thread: u64| {
            let (mut session, mut seed, mut model) = (pool.session().unwrap(), thread + 1, BTreeMap::new());
            for step in 0..4000 {
                let key = random(&mut seed) % 64 * 4 + thread;
                let new = value(random(&mut seed));
                let op = session.enter().unwrap();
                if step % 5 == 0 {
                    assert_eq!(values.remove(&op, &key.to_be_bytes()).unwrap(), model.remove(&key).is_some());
                } else {
                    assert_eq!(values.get_vec(&op, &key.to_be_bytes()).unwrap(), model.get(&key).cloned());
                    values.insert(&op, &key.to_be_bytes(), &new).unwrap();
                    model.insert(key, new);
                }
            }
            model
        };
        let writers: Vec<_> = (0..3).map(|thread| scope.spawn(move || write(thread))).collect();
        scope.spawn(|| {
            let mut session = pool.session().unwrap();
            while !done.load(Relaxed) {
                while values.tree().tick(&mut session).unwrap() {}
                let all = pairs(&values, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
                assert!(all.iter().all(|(_, value)| value.iter().all(|byte| *byte == value[0])));
            }
        });
        let models: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Relaxed);
        let model: BTreeMap<_, _> = models.into_iter().flat_map(|model| model.unwrap()).collect();
        let mut session = pool.session().unwrap();
        let all = pairs(&values, &session.enter().unwrap(), &KeyRange::all(), Direction::Forward);
        assert!(all.into_iter().eq(model));
        assert_sound(&values, &mut session);
    });
}

#[test]
fn an_update_costs_two_fences_and_the_lines_of_its_record() {
    let medium = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
    let pool = pool(16 << 20, medium);
    let values: Arc<DpTreeValues<_>> = DpTreeValues::open(&pool, "values").unwrap();
    let mut session = pool.session().unwrap();
    let mut of = |f: &dyn Fn(&Op<'_, Counting<Hardware>>) -> bool| {
        let before = medium.counts();
        assert!(f(&session.enter().unwrap()));
        let after = medium.counts();
        (after.write_backs - before.write_backs, after.fences - before.fences)
    };
    // The first ones make pages active.
    of(&|op| values.insert(op, &[1; 8], &[1; 100]).unwrap());
    of(&|op| values.insert(op, &[2; 8], &[1; 300]).unwrap());
    // 16 bytes before the value: two lines and five; and a line of the log.
    assert_eq!(of(&|op| values.insert(op, &[3; 8], &[2; 100]).unwrap()), (3, 2));
    assert_eq!(of(&|op| values.insert_if_absent(op, &[4; 8], &[2; 300]).unwrap()), (6, 2));
    assert_eq!(of(&|op| values.update(op, &[3; 8], &[3; 100]).unwrap()), (3, 2));
    assert_eq!(of(&|op| values.compare_and_set(op, &[3; 8], Some(&[3; 100]), Some(&[4; 90])).unwrap()), (3, 2));
    assert_eq!(of(&|op| values.remove(op, &[3; 8]).unwrap()), (1, 1));
    assert_eq!(of(&|op| !values.update(op, &[3; 8], &[3; 100]).unwrap()), (0, 0));
    assert_eq!(of(&|op| !values.insert_if_absent(op, &[4; 8], &[2; 300]).unwrap()), (0, 0));
    assert_eq!(of(&|op| values.get_vec(op, &[4; 8]).unwrap() == Some(vec![2; 300])), (0, 0));
}

#[test]
fn a_value_that_is_too_long_is_refused_and_changes_nothing() {
    let pool = pool(16 << 20, Hardware::PAGE_CACHE);
    let values = DpTreeValues::open(&pool, "values").unwrap();
    let mut session = pool.session().unwrap();
    let Lengths::UpTo(most) = values.limits().value else { panic!("values of one length") };
    let op = session.enter().unwrap();
    assert!(values.insert(&op, &[1; 8], &vec![1; most]).unwrap());
    for refused in [
        values.insert(&op, &[1; 8], &vec![2; most + 1]),
        values.insert_if_absent(&op, &[2; 8], &vec![2; most + 1]),
        values.update(&op, &[1; 8], &vec![2; most + 1]),
    ] {
        assert!(matches!(refused, Err(Error::ValueTooLong { len, limit }) if len == most + 1 && limit == most));
    }
    assert_eq!(values.get_vec(&op, &[1; 8]).unwrap(), Some(vec![1; most]));
    assert!(matches!(values.insert(&op, b"seven..", &[]), Err(Error::WrongLength { .. })));
    drop(op);
    assert_eq!(values.count(&mut session).unwrap(), 1);
    assert_sound(&values, &mut session);
}
