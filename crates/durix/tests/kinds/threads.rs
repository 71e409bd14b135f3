//! Several threads, long walks, borrowed bytes, and checkpoints beside them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix::{Db, Direction, Hardware, KeyRange, Map, OrderedMap};
use durix_pmem::PoolOptions;

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
            for round in 0..10 {
                walk(&entry, &map, if round % 2 == 0 { Direction::Forward } else { Direction::Backward });
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(map.check().unwrap(), [], "{}", entry.name);
        assert_eq!(map.len().unwrap(), 400, "{}", entry.name);
    }
}

fn walk(entry: &Entry, map: &Map<i64, u64>, direction: Direction) {
    let ordered = OrderedMap::new(map.clone()).ok();
    let walk = match &ordered {
        Some(ordered) => ordered.range::<i64>(.., direction).unwrap(),
        None => map.iter(),
    };
    let keys: Vec<i64> = walk.map(|pair| pair.unwrap().0).collect();
    let ascending = |pair: &[i64]| (pair[0] < pair[1]) == (direction == Direction::Forward);
    assert!(ordered.is_none() || keys.windows(2).all(ascending), "{}: out of order", entry.name);
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
        assert_eq!((taken, map.len().unwrap()), (300, 0), "{}", entry.name);
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

// ---- checkpoints ----

/// How often the pool has crossed a boundary.
fn checkpoints(db: &Db) -> u64 {
    db.pool().epochs().unwrap().stats().boundaries
}

#[test]
fn a_database_takes_checkpoints_by_itself_only_if_it_is_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let quiet = Db::builder().create(dir.path().join("quiet")).unwrap();
    let tree = quiet.ordered_map::<u64, u64>("m").unwrap();
    tree.insert(&1, &1).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(checkpoints(&quiet), 0, "nobody has asked for one");
    assert!(quiet.tick().unwrap(), "the usual interval has passed");
    quiet.sync().unwrap();
    assert_eq!(checkpoints(&quiet), 2);

    let path = dir.path().join("busy");
    let busy = Db::builder().checkpoint_every(Duration::from_millis(2)).create(&path).unwrap();
    let tree = busy.ordered_map::<u64, u64>("m").unwrap();
    let start = Instant::now();
    let ticket = {
        tree.insert(&1, &1).unwrap();
        tree.ticket().unwrap().checkpoint().expect("a tree is buffered")
    };
    while !busy.pool().epochs().unwrap().is_durable(ticket) {
        assert!(start.elapsed() < Duration::from_secs(20), "no checkpoint came");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(busy.close().is_err(), "a map is open");
    let before = checkpoints(&busy);
    std::thread::sleep(Duration::from_millis(60));
    assert!(checkpoints(&busy) > before, "a database that could not be closed goes on");
    drop(tree);
    busy.close().unwrap();
    assert!(busy.sync().is_err(), "it is closed");
    let again = Db::builder().read_only(true).checkpoint_every(Duration::from_millis(1)).open(&path).unwrap();
    assert_eq!(again.ordered_map::<u64, u64>("m").unwrap().get(&1).unwrap(), Some(1));
}

#[test]
fn a_checkpoint_that_cannot_be_taken_is_told_by_the_next_sync() {
    let pool = PoolOptions::new().create_on(durix_pmem::backing::HeapBacking::new(16 << 20), Hardware::PAGE_CACHE);
    let db = Db::builder().checkpoint_every(Duration::from_millis(5)).over(pool.unwrap()).unwrap();
    db.sync().unwrap();
    let mut session = db.pool().session().unwrap();
    // An operation that takes longer than a checkpoint waits.
    let op = session.enter().unwrap();
    std::thread::sleep(Duration::from_secs(12));
    drop(op);
    let error = db.sync().unwrap_err().to_string();
    assert!(error.contains("operation"), "{error}");
    db.sync().unwrap();
}
