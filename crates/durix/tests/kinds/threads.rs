//! Several threads, long walks, borrowed bytes, and checkpoints beside them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use durix::kind::Entry;
use durix::{Batch, Db, Direction, Error, Hardware, KeyRange, Map, OrderedMap};

use super::{At, heap, kinds, numbers};

#[test]
fn writing_while_iterating_meets_what_is_there_all_along_once_in_every_kind() {
    for entry in kinds::<Hardware>() {
        let db = Db::over(heap());
        let map = numbers(&db, &entry, "m");
        (0..600).for_each(|i| _ = map.insert(&i, &(i as u64)).unwrap());
        let mut met = HashSet::new();
        for (step, pair) in map.iter().enumerate() {
            let ((key, value), step) = (pair.unwrap(), step as i64);
            assert!(met.insert(key), "{}: {key} came twice", entry.name);
            assert!(value == key as u64 || value == key as u64 + 1_000_000, "{}: {key} has {value}", entry.name);
            // The even ones stay; the odd ones go, new ones come, and values change.
            map.remove(&((step * 2 + 1) % 600)).unwrap();
            map.update(&(step * 2 % 600), &((step * 2 % 600) as u64 + 1_000_000)).unwrap();
            if step < 3000 {
                map.insert(&(10_000 + step), &(10_000 + step as u64)).unwrap();
            }
        }
        assert!((0..600).step_by(2).all(|i| met.contains(&i)), "{}: something that stayed was not met", entry.name);
    }
}

#[test]
fn walks_beside_writers_stay_in_order_and_miss_nothing_that_stays() {
    for entry in kinds::<Hardware>() {
        let db = Db::over(heap());
        let map = numbers(&db, &entry, "m");
        (0..400).for_each(|i| _ = map.insert(&(i * 10), &7).unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 1..3 {
                let (map, stop) = (&map, &stop);
                scope.spawn(move || {
                    for i in (0i64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let key = i % 400 * 10 + writer;
                        map.insert(&key, &1).unwrap();
                        map.remove(&key).unwrap();
                    }
                });
            }
            for round in 0..12 {
                walk(&entry, &map, round);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(map.check().unwrap(), [], "{}", entry.name);
        assert_eq!(map.count().unwrap(), 400, "{}", entry.name);
    }
}

/// Walks upwards, downwards, or from both ends by turns.
fn walk(entry: &Entry, map: &Map<i64, u64>, round: usize) {
    let keys: Vec<i64> = match OrderedMap::new(map.clone()) {
        Err(_) => map.iter().map(|pair| pair.unwrap().0).collect(),
        Ok(ordered) => {
            let mut range = ordered.iter();
            let from_front = |step: usize| round.is_multiple_of(3) || (round % 3 == 2 && step % 5 < 2);
            let (mut front, mut back) = (Vec::new(), Vec::new());
            for step in 0.. {
                let pair = if from_front(step) { range.next() } else { range.next_back() };
                let Some(pair) = pair else { break };
                if from_front(step) { &mut front } else { &mut back }.push(pair.unwrap().0);
            }
            front.extend(back.into_iter().rev());
            assert!(front.is_sorted_by(|a, b| a < b), "{}: out of order", entry.name);
            front
        }
    };
    let distinct: HashSet<i64> = keys.iter().copied().collect();
    assert_eq!(distinct.len(), keys.len(), "{}: a key came twice", entry.name);
    assert!((0..400).all(|i| distinct.contains(&(i * 10))), "{}: a key that stays was not met", entry.name);
}

#[test]
fn threads_that_count_by_compare_and_set_lose_no_count() {
    const THREADS: u64 = 4;
    const COUNTS: u64 = 500;
    for entry in kinds::<Hardware>() {
        let db = Db::over(heap());
        let map: Map<u64, u64> = db.map_of_kind("m", entry.name).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let mut handle = map.handle().unwrap();
                scope.spawn(move || {
                    for i in 0..COUNTS {
                        let key = i % 3;
                        loop {
                            let old = handle.get(&key).unwrap();
                            let new = old.unwrap_or(0) + 1;
                            if handle.compare_and_set(&key, old.as_ref(), Some(&new)).unwrap() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        let sum: u64 = map.iter().map(|pair| pair.unwrap().1).sum();
        assert_eq!(sum, THREADS * COUNTS, "{}", entry.name);
    }
}

#[test]
fn only_one_thread_takes_what_all_want() {
    for entry in kinds::<Hardware>() {
        let db = Db::over(heap());
        let map: Map<u64, u64> = db.map_of_kind("m", entry.name).unwrap();
        (0..300).for_each(|i| _ = map.insert(&i, &(i + 1)).unwrap());
        let taken: u64 = std::thread::scope(|scope| {
            let take = |thread: u64| {
                let map = &map;
                scope.spawn(move || {
                    let took = |i: &u64| match (i + thread) % 2 {
                        0 => map.remove(i).unwrap(),
                        _ => map.compare_and_set(i, Some(&(i + 1)), None).unwrap(),
                    };
                    (0..300).filter(took).count() as u64
                })
            };
            let threads: Vec<_> = (0..4).map(take).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((taken, map.count().unwrap()), (300, 0), "{}", entry.name);
    }
}

#[test]
fn bytes_and_cursors_of_every_kind_hold_nothing_up() {
    for entry in kinds::<Hardware>() {
        let mut at = At::new(entry);
        let word = |n: u64| n.to_be_bytes();
        for i in 0..300 {
            at.index.insert(&at.session.enter().unwrap(), &word(i), &word(i)).unwrap();
        }
        let mut reader = at.pool.session().unwrap();
        let mut cursors = vec![at.index.cursor()];
        if let Some(ordered) = at.index.as_ordered() {
            cursors.push(ordered.range(&KeyRange::all(), Direction::Backward));
        }
        for cursor in &mut cursors {
            let (key, value) = cursor.next(&reader.enter().unwrap()).unwrap().unwrap();
            // The pair is still lent out: a moment without operations is found at once, and writers go on.
            at.pool.mapping().quiesce(&mut at.session, Duration::from_millis(100), |_| ()).unwrap();
            at.index.remove(&at.session.enter().unwrap(), key).unwrap();
            assert_eq!(key, value, "{}", entry.name);
        }
        at.index.sync(&mut at.session).unwrap();
        // A cursor that is forgotten holds up nothing either.
        cursors.into_iter().for_each(std::mem::forget);
        assert_eq!(at.index.check(&mut at.session).unwrap(), [], "{}", entry.name);
    }
}

// ---- operations of another pool ----

#[test]
fn an_operation_of_another_pool_is_refused_by_every_kind() {
    let (key, value) = (7u64.to_be_bytes(), 8u64.to_be_bytes());
    for entry in kinds::<Hardware>() {
        let (ours, other) = (heap(), heap());
        let [index, same] = [&ours, &other].map(|pool| entry.open_or_create(pool, "tried").unwrap());
        let mut own = ours.session().unwrap();
        let mut foreign = other.session().unwrap();
        // The same history in both: what lies in one, lies in the other.
        for (index, session) in [(&index, &mut own), (&same, &mut foreign)] {
            index.insert(&session.enter().unwrap(), &key, &value).unwrap();
        }
        let op = foreign.enter().unwrap();
        let mut batch = Batch::new();
        batch.insert(&key, &value);
        let told = [
            ("get", index.get(&op, &key, &mut Vec::new()).map(drop)),
            ("contains", index.contains(&op, &key).map(drop)),
            ("get_many", index.get_many(&op, &[&key], &mut |_, _| ())),
            ("cursor", index.cursor().next(&op).map(drop)),
            ("insert", index.insert(&op, &key, &value).map(drop)),
            ("insert_if_absent", index.insert_if_absent(&op, &value, &value).map(drop)),
            ("update", index.update(&op, &key, &value).map(drop)),
            ("compare_and_set", index.compare_and_set(&op, &key, Some(&value), Some(&key)).map(drop)),
            ("remove", index.remove(&op, &key).map(drop)),
            ("apply", index.apply(&op, &batch)),
        ];
        for (call, told) in told {
            let is_refused = matches!(told, Err(Error::Pool(durix_pmem::Error::ForeignSession)));
            assert!(is_refused, "{}: {call}: {told:?}", entry.name);
        }
        if let Some(ordered) = index.as_ordered() {
            let told = ordered.range(&KeyRange::all(), Direction::Backward).next(&op).map(drop);
            assert!(matches!(told, Err(Error::Pool(durix_pmem::Error::ForeignSession))), "{}: {told:?}", entry.name);
        }
        drop(op);
        let told = index.sync(&mut foreign);
        let synced = matches!(told, Ok(()) | Err(Error::Pool(durix_pmem::Error::ForeignSession)));
        assert!(synced, "{}: sync: {told:?}", entry.name);
        assert_eq!(index.check(&mut own).unwrap(), []);
        assert_eq!(same.check(&mut foreign).unwrap(), []);
        assert!(index.contains(&own.enter().unwrap(), &key).unwrap());
        let db = Db::over(other);
        let refused = db.map_over::<u64, u64>(index).map(drop);
        assert!(matches!(refused, Err(Error::Pool(durix_pmem::Error::ForeignSession))), "{refused:?}");
    }
}
