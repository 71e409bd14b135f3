//! One thread: what a transaction sees, commits and rolls back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use durix::{Db, Durability, Error, Map, MapBatch, OrderedMap, PoolOptions};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;

use crate::{CLASSES, index, kinds, memory, over, words};

fn pairs(map: &Map<u64, u64>) -> Vec<(u64, u64)> {
    let mut pairs: Vec<_> = map.iter().collect::<Result<_, _>>().unwrap();
    pairs.sort();
    pairs
}

/// A program that changes its maps by transactions alone learns of it, too.
#[test]
fn what_a_service_has_failed_at_is_told_to_the_next_transaction_that_writes() {
    let db = memory();
    let map = words(&db, "map", CLASSES[0]);
    let planted = || durix_pmem::Error::Io { action: "planted".into(), source: std::io::ErrorKind::Other.into() };
    db.pool().services().report(planted());
    assert_eq!(db.transaction(|tx| tx.map(&map)?.get(&1)).unwrap(), None, "a read is not bothered");
    let refused = db.transaction(|tx| tx.map(&map)?.insert(&1, &10));
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("planted")), "{refused:?}");
    assert_eq!(pairs(&map), []);
    db.transaction(|tx| tx.map(&map)?.insert(&1, &10)).unwrap();
    assert_eq!(pairs(&map), [(1, 10)]);
}

#[test]
fn changes_of_two_maps_of_any_kinds_are_made_together() {
    for a in kinds() {
        for b in CLASSES {
            let db = memory();
            let (first, second) = (words(&db, "first", a), words(&db, "second", b));
            first.insert(&1, &10).unwrap();
            let got = db.transaction(|tx| {
                let (first, second) = (tx.map(&first)?, tx.map(&second)?);
                assert!(!first.insert(&1, &11)?, "{a} {b}");
                assert!(first.insert(&2, &20)? && second.insert(&3, &30)?);
                assert!(second.insert_if_absent(&4, &40)? && !second.insert_if_absent(&3, &31)?);
                assert!(first.update(&2, &21)? && !first.update(&5, &50)?);
                assert!(second.remove(&4)? && !second.remove(&4)?);
                assert_eq!(
                    (first.get(&1)?, first.get(&5)?, second.get(&3)?, second.get(&4)?),
                    (Some(11), None, Some(30), None)
                );
                assert!(first.contains(&2)? && !second.contains(&4)?);
                assert_eq!((first.count()?, second.count()?), (2, 1));
                first.get(&2)
            });
            assert_eq!(got.unwrap(), Some(21), "{a} {b}");
            assert_eq!(pairs(&first), [(1, 11), (2, 21)], "{a} {b}");
            assert_eq!(pairs(&second), [(3, 30)], "{a} {b}");
            let failed = db.transaction(|tx| {
                tx.map(&first)?.insert(&1, &0)?;
                tx.map(&second)?.remove(&3)?;
                Err::<(), _>(Error::abort("no"))
            });
            assert!(matches!(failed, Err(Error::Aborted(_))), "{failed:?}");
            assert_eq!((pairs(&first), pairs(&second)), (vec![(1, 11), (2, 21)], vec![(3, 30)]), "{a} {b}");
            assert!(first.check().unwrap().is_empty() && second.check().unwrap().is_empty());
            drop((first, second));
            db.close().unwrap();
        }
    }
}

#[test]
fn a_panic_rolls_back_and_gives_the_locks_back() {
    let db = memory();
    let (a, b) = (words(&db, "a", "hash"), words(&db, "b", "skiplist"));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        db.transaction::<()>(|tx| {
            tx.map(&a)?.insert(&1, &1)?;
            tx.map(&b)?.insert(&1, &1)?;
            panic!("on purpose")
        })
    }));
    assert!(panics.is_err());
    assert_eq!((pairs(&a), pairs(&b)), (vec![], vec![]));
    a.insert(&1, &2).unwrap();
    db.transaction(|tx| tx.map(&b)?.insert(&1, &2)).unwrap();
    assert_eq!((pairs(&a), pairs(&b)), (vec![(1, 2)], vec![(1, 2)]));
}

#[test]
fn walks_show_the_transactions_own_changes() {
    for kind in kinds() {
        let db = memory();
        let map = words(&db, "m", kind);
        for key in (0..40).step_by(2) {
            map.insert(&key, &key).unwrap();
        }
        db.transaction(|tx| {
            let at = tx.map(&map)?;
            // First, last, between, changed, removed, and a key that was not there and is not there again.
            for key in [0, 7, 20, 39, 41] {
                at.insert(&key, &(key + 1000))?;
            }
            at.remove(&2)?;
            at.remove(&38)?;
            at.insert(&11, &1)?;
            at.remove(&11)?;
            let mut expected: Vec<(u64, u64)> = (4..38).step_by(2).filter(|k| *k != 20).map(|k| (k, k)).collect();
            expected.extend([0, 7, 20, 39, 41].map(|key| (key, key + 1000)));
            expected.sort();
            let mut found: Vec<_> = at.iter()?.collect::<Result<_, _>>()?;
            let ordered = map.index().as_ordered().is_some();
            if !ordered {
                found.sort();
            }
            assert_eq!(found, expected, "{kind}");
            if ordered {
                let within: Vec<_> = expected.iter().copied().filter(|(key, _)| (7..39).contains(key)).collect();
                let up: Vec<_> = at.range(&7..&39)?.collect::<Result<_, _>>()?;
                let mut down: Vec<_> = at.range(&7..&39)?.rev().collect::<Result<_, _>>()?;
                down.reverse();
                assert_eq!((&up, &down), (&within, &within), "{kind}");
            } else {
                assert!(matches!(at.range(&7..&39), Err(Error::NotOrdered { .. })));
            }
            // What is written while a walk goes on does not change it.
            let mut walk = at.iter()?;
            let first = walk.next().unwrap()?;
            at.remove(&first.0)?;
            at.insert(&100, &100)?;
            assert_eq!(walk.count() + 1, expected.len(), "{kind}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn before_the_commit_nobody_sees_a_change() {
    let db = over(Db::builder().lock_timeout(Duration::from_millis(30)));
    let (a, b) = (words(&db, "a", "pset"), words(&db, "b", "bst"));
    a.insert(&1, &1).unwrap();
    let tx = db.begin().unwrap();
    let (ta, tb) = (tx.map(&a).unwrap(), tx.map(&b).unwrap());
    ta.insert(&1, &2).unwrap();
    tb.insert(&1, &2).unwrap();
    assert_eq!((a.get(&1).unwrap(), b.get(&1).unwrap()), (Some(1), None));
    for (what, refused) in [
        ("insert", a.insert(&1, &3)),
        ("update", a.update(&1, &3)),
        ("remove", a.remove(&1)),
        ("compare", a.compare_and_set(&1, Some(&1), None)),
        ("absent", b.insert_if_absent(&1, &3)),
    ] {
        assert!(matches!(refused, Err(Error::Locked { .. })), "{what}: {refused:?}");
    }
    let mut batch = MapBatch::new();
    batch.insert(&2, &9).unwrap().insert(&1, &9).unwrap();
    assert!(matches!(a.apply(&batch), Err(Error::Locked { .. })));
    assert_eq!(a.get(&2).unwrap(), None);
    a.insert(&2, &3).unwrap();
    tx.commit().unwrap();
    assert_eq!((pairs(&a), pairs(&b)), (vec![(1, 2), (2, 3)], vec![(1, 2)]));
    a.apply(&batch).unwrap();
    assert_eq!(pairs(&a), [(1, 9), (2, 9)]);
}

#[test]
fn an_update_in_the_callers_own_operation_never_waits() {
    let db = memory();
    let map = words(&db, "m", "hash-fast-open");
    let tx = db.begin().unwrap();
    tx.map(&map).unwrap().insert(&1, &1).unwrap();
    let mut session = db.pool().session().unwrap();
    let (index, op) = (map.index(), session.enter().unwrap());
    let (key, other) = (1u64.to_be_bytes(), 2u64.to_be_bytes());
    let locked = |result: Result<bool, Error>| assert!(matches!(result, Err(Error::Locked { .. })), "{result:?}");
    locked(index.insert(&op, &key, &key));
    locked(index.insert_if_absent(&op, &key, &key));
    locked(index.update(&op, &key, &key));
    locked(index.remove(&op, &key));
    locked(index.compare_and_set(&op, &key, None, Some(&key)));
    let mut batch = durix::Batch::new();
    batch.insert(&other, &other).insert(&key, &key);
    locked(index.apply(&op, &batch).map(|()| true));
    assert!(!index.contains(&op, &other).unwrap());
    assert!(index.insert(&op, &other, &other).unwrap());
    drop(op);
    tx.rollback();
    assert!(index.insert(&session.enter().unwrap(), &key, &key).unwrap());
}

#[test]
fn bad_use_is_told() {
    let db = memory();
    let other = memory();
    let (map, foreign) = (words(&db, "m", "hash"), words(&other, "m", "hash"));
    let nested = db.transaction(|_| db.transaction(|_| Ok(())));
    assert!(matches!(nested, Err(Error::Nested)), "{nested:?}");
    db.transaction(|_| other.transaction(|tx| tx.map(&foreign)?.insert(&1, &1))).unwrap();
    let of_another = db.transaction(|tx| tx.map(&foreign)?.insert(&1, &1));
    assert!(matches!(of_another, Err(Error::ForeignMap { .. })), "{of_another:?}");
    // A plain update in the closure would wait for the closure.
    let own = db.transaction(|tx| {
        tx.map(&map)?.insert(&1, &1)?;
        map.insert(&1, &2)
    });
    assert!(matches!(own, Err(Error::Locked { .. })), "{own:?}");
    assert_eq!(map.get(&1).unwrap(), None);
    let wrong = db.transaction(|tx| index(tx, &map)?.insert(b"short", &[0; 8]));
    assert!(matches!(wrong, Err(Error::WrongLength { .. })), "{wrong:?}");
    let tx = db.begin().unwrap();
    let later = tx.later();
    assert!(!later.is_durable() && matches!(later.wait(), Err(Error::NotCommitted)));
    tx.commit().unwrap();
    later.wait().unwrap();
    let bytes: Map<Vec<u8>, Vec<u8>> = db.map("bytes").unwrap();
    let large = db.transaction(|tx| {
        let (bytes, map) = (tx.map(&bytes)?, tx.map(&map)?);
        map.insert(&1, &1)?;
        (0..70u8).try_for_each(|key| bytes.insert(&[key][..], &[key; 1 << 20][..]).map(drop))
    });
    assert!(matches!(large, Err(Error::TransactionTooLarge { .. })), "{large:?}");
    assert_eq!((bytes.count().unwrap(), map.count().unwrap()), (0, 0));
}

#[test]
fn a_full_pool_changes_nothing() {
    for (a, b) in [("hash", "hash-bytes"), ("pset", "skiplist"), ("masstree", "hash-bytes"), ("masstree", "masstree")] {
        let options = PoolOptions::new().initial_size(4 << 20).max_size(4 << 20);
        let db = Db::over(options.create_on(HeapBacking::new(4 << 20), Hardware::PAGE_CACHE).unwrap());
        let first: Map<u64, u64> = db.map_of_kind("first", a).unwrap();
        let kind = if b == "skiplist" { "skiplist-values" } else { b };
        let second: Map<u64, Vec<u8>> = match b {
            "hash-bytes" | "masstree" | "skiplist" => db.map_of_kind("second", kind).unwrap(),
            _ => unreachable!(),
        };
        let mut round = 0;
        let refused = loop {
            let done = db.transaction(|tx| {
                let (first, second) = (tx.map(&first)?, tx.map(&second)?);
                first.insert(&round, &round)?;
                for part in 0..4 {
                    second.insert(&(round * 4 + part), &[round as u8; 20_000][..])?;
                }
                Ok(())
            });
            match done {
                Ok(()) => round += 1,
                Err(error) => break error,
            }
        };
        println!("{a} {b}: {round} rounds, then {refused}");
        assert!(round > 5, "{a} {b}");
        if matches!(refused, Error::Pool(_)) {
            assert_eq!(first.count().unwrap(), round, "{a} {b}");
            assert_eq!(second.count().unwrap(), round * 4, "{a} {b}");
        } else {
            // Committed in a mixture: it is finished when there is room.
            assert!(matches!(refused, Error::Unsettled { .. }), "{refused}");
        }
        if a != "masstree" {
            second.remove(&0).unwrap();
            db.transaction(|tx| tx.map(&first)?.insert(&1_000_000, &1)).unwrap();
        }
    }
}

#[test]
fn the_guarantee_is_the_weakest_of_the_maps_touched() {
    let db = memory();
    let (strict, buffered) = (words(&db, "s", "pset"), words(&db, "b", "masstree"));
    let tx = db.begin().unwrap();
    tx.map(&strict).unwrap();
    assert_eq!(tx.guarantee().durability, Durability::Strict);
    tx.map(&buffered).unwrap();
    assert_eq!(tx.guarantee().durability, Durability::Buffered);
}

#[test]
fn a_mixed_transaction_waits_for_its_checkpoint_or_gives_a_ticket() {
    let db = over(Db::builder().lock_timeout(Duration::from_millis(200)));
    let (strict, buffered) = (words(&db, "s", "skiplist"), words(&db, "b", "masstree"));
    let both = |value: u64, later: bool| {
        db.transaction(|tx| {
            tx.map(&strict)?.insert(&1, &value)?;
            tx.map(&buffered)?.insert(&1, &value)?;
            Ok(later.then(|| tx.later()))
        })
        .unwrap()
    };
    let epoch = || db.pool().epochs().unwrap().stats().epoch;
    let before = epoch();
    both(1, false);
    assert_eq!((strict.get(&1).unwrap(), buffered.get(&1).unwrap()), (Some(1), Some(1)));
    assert_eq!(epoch(), before + 1, "it has waited for its boundary");
    let later = both(2, true).unwrap();
    assert!(!later.is_durable());
    assert_eq!((strict.get(&1).unwrap(), buffered.get(&1).unwrap()), (Some(1), Some(2)), "the strict part comes after");
    later.wait().unwrap();
    assert!(later.is_durable());
    assert_eq!(strict.get(&1).unwrap(), Some(2));
    // A sync finishes it, and so does whoever wants a key of it.
    let later = both(3, true).unwrap();
    db.sync().unwrap();
    assert!(later.is_durable() && strict.get(&1).unwrap() == Some(3));
    let later = both(4, true).unwrap();
    assert!(strict.compare_and_set(&1, Some(&4), Some(&5)).unwrap());
    assert!(later.is_durable());
    // One that reads a buffered map and writes a strict one is mixed, too.
    let before = epoch();
    db.transaction(|tx| {
        let sum = tx.map(&buffered)?.get(&1)?.unwrap_or(0);
        tx.map(&strict)?.insert(&2, &sum)
    })
    .unwrap();
    assert_eq!((strict.get(&2).unwrap(), epoch()), (Some(4), before + 1));
    // Dropped without waiting: it is finished when the database goes.
    let later = both(6, true).unwrap();
    drop(later);
    let image = {
        let pool = db.pool().clone();
        drop((strict, buffered));
        db.close().unwrap();
        HeapBacking::image_of(pool.mapping())
    };
    let pool = PoolOptions::new().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE);
    let db = Db::over(pool.unwrap().recover().unwrap());
    assert_eq!(words(&db, "s", "skiplist").get(&1).unwrap(), Some(6));
    assert_eq!(words(&db, "b", "masstree").get(&1).unwrap(), Some(6));
    let listed: Vec<_> = db.indices().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(listed.len(), 2, "the log is nobody's index: {listed:?}");
}

#[test]
fn a_deadlock_is_not_waited_for() {
    let db = memory();
    let (a, b) = (words(&db, "a", "hash"), words(&db, "b", "hash"));
    let older = db.begin().unwrap();
    let younger = db.begin().unwrap();
    older.map(&a).unwrap().insert(&1, &1).unwrap();
    younger.map(&b).unwrap().insert(&1, &2).unwrap();
    let lost = younger.map(&a).unwrap().insert(&1, &2);
    assert!(matches!(lost, Err(Error::Conflict { .. })), "{lost:?}");
    let after = younger.map(&b).unwrap().get(&7);
    assert!(matches!(after, Err(Error::Conflict { .. })), "it can only be rolled back: {after:?}");
    assert!(matches!(younger.commit(), Err(Error::Conflict { .. })));
    older.map(&b).unwrap().insert(&1, &1).unwrap();
    older.commit().unwrap();
    assert_eq!((a.get(&1).unwrap(), b.get(&1).unwrap()), (Some(1), Some(1)));
}

#[test]
fn a_range_keeps_phantoms_out() {
    let db = over(Db::builder().lock_timeout(Duration::from_millis(20)));
    let map: OrderedMap<u64, u64> = db.ordered_map("m").unwrap();
    for key in [10, 20] {
        map.insert(&key, &key).unwrap();
    }
    let tx = db.begin().unwrap();
    let at = tx.map(&map).unwrap();
    assert_eq!(at.range(&10..&20).unwrap().count(), 1);
    assert!(matches!(map.insert(&15, &1), Err(Error::Locked { .. })), "inserted into the range");
    assert!(matches!(map.remove(&10), Err(Error::Locked { .. })));
    map.insert(&20, &1).unwrap();
    assert_eq!(at.range(&10..&20).unwrap().count(), 1);
}

#[test]
fn a_closure_that_loses_runs_again() {
    let db = memory();
    let (a, b) = (words(&db, "a", "hash"), words(&db, "b", "hash"));
    let counted = |first: &Map<u64, u64>, second: &Map<u64, u64>, runs: &mut u32| {
        db.transaction(|tx| {
            *runs += 1;
            let (first, second) = (tx.map(first)?, tx.map(second)?);
            let sum = first.get(&1)?.unwrap_or(0) + 1;
            first.insert(&1, &sum)?;
            std::thread::yield_now();
            let sum = second.get(&1)?.unwrap_or(0) + 1;
            second.insert(&1, &sum)
        })
        .unwrap();
    };
    let again = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for turned in [false, true] {
            let (a, b, again, counted) = (&a, &b, &again, &counted);
            scope.spawn(move || {
                for _ in 0..300 {
                    let mut runs = 0;
                    if turned {
                        counted(b, a, &mut runs)
                    } else {
                        counted(a, b, &mut runs)
                    }
                    again.fetch_or(runs > 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((a.get(&1).unwrap(), b.get(&1).unwrap()), (Some(600), Some(600)));
    println!("a closure ran more than once: {}", again.into_inner());
}

#[test]
fn what_nobody_waits_for_is_finished_by_the_threads_of_the_database() {
    let options = PoolOptions::new();
    let pool = options.create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
    let db = Db::builder().checkpoint_every(Duration::from_millis(5)).over(pool).unwrap();
    let (strict, buffered) = (words(&db, "s", "skiplist"), words(&db, "b", "masstree"));
    let later = db
        .transaction(|tx| {
            tx.map(&strict)?.insert(&1, &1)?;
            tx.map(&buffered)?.insert(&1, &1)?;
            Ok(tx.later())
        })
        .unwrap();
    let start = std::time::Instant::now();
    while !later.is_durable() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(later.is_durable());
    assert_eq!(strict.get(&1).unwrap(), Some(1));
}

#[test]
fn a_savepoint_takes_back_what_came_after_it() {
    let db = Db::over(PoolOptions::new().create_on(HeapBacking::new(32 << 20), Hardware::PAGE_CACHE).unwrap());
    let maps = [db.map_of_kind::<u64, u64>("a", "skiplist").unwrap(), db.map_of_kind("b", "pset").unwrap()];
    maps[0].insert(&1, &1).unwrap();
    db.transaction(|tx| {
        let first = tx.map(&maps[0])?;
        first.insert(&1, &2)?;
        let outer = tx.savepoint();
        first.remove(&1)?;
        let second = tx.map(&maps[1])?;
        // More keys than are looked through one by one.
        (0..40).try_for_each(|key| second.insert(&key, &key).map(drop))?;
        let inner = tx.savepoint();
        second.remove(&7)?;
        inner.rollback();
        assert_eq!((first.get(&1)?, second.get(&7)?, second.count()?), (None, Some(7), 40));
        outer.rollback();
        assert_eq!((first.get(&1)?, second.get(&7)?, second.count()?), (Some(2), None, 0));
        second.insert(&3, &9).map(drop)
    })
    .unwrap();
    assert_eq!(maps[0].get(&1).unwrap(), Some(2));
    assert_eq!(pairs(&maps[1]), [(3, 9)]);
    // With all changes taken back nothing is committed.
    db.transaction(|tx| {
        let before = tx.savepoint();
        tx.map(&maps[0])?.insert(&1, &50)?;
        tx.map(&maps[1])?.insert(&1, &50)?;
        before.rollback();
        Ok(())
    })
    .unwrap();
    assert_eq!((maps[0].get(&1).unwrap(), maps[1].get(&1).unwrap()), (Some(2), None));
}

#[test]
fn a_key_changes_by_its_value() {
    let db = Db::over(PoolOptions::new().create_on(HeapBacking::new(32 << 20), Hardware::PAGE_CACHE).unwrap());
    let counts = db.map::<String, u64>("counts").unwrap();
    db.transaction(|tx| {
        let counts = tx.map(&counts)?;
        assert_eq!(counts.update_with("a", |old| Some(old.unwrap_or(0) + 1))?, Some(1));
        assert_eq!(counts.update_with("a", |old| Some(old.unwrap_or(0) + 1))?, Some(2));
        assert!(counts.compare_and_set("b", None, Some(&5))?);
        assert!(!counts.compare_and_set("b", None, Some(&6))?);
        assert!(counts.compare_and_set("b", Some(&5), Some(&7))?);
        assert_eq!(counts.get_for_update("b")?, Some(7));
        assert!(counts.compare_and_set("c", None, None)?, "absent, as expected");
        assert_eq!(counts.update_with("b", |_| None)?, None);
        Ok(())
    })
    .unwrap();
    assert_eq!((counts.get("a").unwrap(), counts.get("b").unwrap()), (Some(2), None));
}

/// Recovery makes the changes of a record again, also where others have filled the pool since: a crash after the acknowledged
/// transaction, and one while a transaction waits for room.
#[test]
fn recovery_finds_room_in_a_full_pool() {
    const LEN: u64 = 8 << 20;
    let options = || PoolOptions::new().initial_size(LEN).max_size(LEN);
    for kind in kinds() {
        let pool = options().create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let maps = [words(&db, "first", kind), words(&db, "second", "pset")];
        let filler: Map<u64, Vec<u8>> = db.map_of_kind("filler", "hash-bytes").unwrap();
        let both = |value: u64| {
            db.transaction(|tx| {
                let (first, second) = (tx.map(&maps[0])?, tx.map(&maps[1])?);
                (0..4).try_for_each(|key| {
                    first.insert(&key, &(value + key))?;
                    second.insert(&key, &(value + key)).map(drop)
                })
            })
        };
        both(100).unwrap();
        // Nobody changes one of the transaction's keys, so its retirement is not durable.
        let fill =
            |bytes: usize| (0u64..).find_map(|key| filler.insert(&(key << 32 | bytes as u64), &vec![7; bytes]).err());
        for bytes in [20_000, 2_000, 100] {
            assert!(matches!(fill(bytes), Some(Error::Pool(durix_pmem::Error::Full { .. }))), "{kind}");
        }
        for map in &maps {
            let full = (1000u64..200_000).find_map(|key| map.insert(&key, &key).err());
            assert!(full.is_some(), "{kind}: {:?} is not full", map.index().root().name());
        }
        let copy = |pool: &durix_pmem::Pool| {
            let image = HeapBacking::image_of(pool.mapping());
            let pool = options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
            let pool = pool.recover().unwrap_or_else(|error| panic!("{kind}: {error}"));
            Db::builder().no_background_threads().over(pool)
        };
        let again = copy(db.pool()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(words(&again, "second", "pset").get(&3).unwrap(), Some(103), "{kind}");
        // The commit is refused: nothing has changed, or what has is taken back or finished by the next opening.
        let refused = both(200);
        let again = copy(db.pool()).unwrap_or_else(|error| panic!("{kind}, {refused:?}: {error}"));
        let found = [words(&again, "first", kind), words(&again, "second", "pset")].map(|map| map.get(&3).unwrap());
        let all = if refused.is_ok() || matches!(refused, Err(Error::Unsettled { .. })) { 203 } else { 103 };
        if kind != "masstree" {
            assert_eq!(found, [Some(all); 2], "{kind}, {refused:?}");
        }
    }
}

/// Keys of any length that differ in their last byte alone: locks, changes and old values are of the one or of the other.
#[test]
fn keys_that_begin_alike_are_told_apart() {
    let db = memory();
    let map: Map<Vec<u8>, u64> = db.map_of_kind("m", "hash-bytes").unwrap();
    for len in [1, 7, 8, 9, 29, 30, 31, 32, 33, 64, 255] {
        let [one, other] = [1u8, 2].map(|last| [vec![9; len - 1], vec![last]].concat());
        map.insert(&one, &1).unwrap();
        let snapshot = db.snapshot().unwrap();
        let tx = db.begin().unwrap();
        let changed = tx.map(&map).unwrap();
        changed.insert(&one, &2).unwrap();
        assert_eq!([&one, &other].map(|key| changed.get(key).unwrap()), [Some(2), None], "{len}");
        let mut session = db.pool().session().unwrap();
        let mut beside = |key: &[u8]| map.index().insert(&session.enter().unwrap(), key, &[0; 8]);
        assert!(matches!(beside(&one), Err(Error::Locked { .. })), "{len}");
        changed.insert(&other, &3).unwrap();
        tx.commit().unwrap();
        assert_eq!([&one, &other].map(|key| map.get(key).unwrap()), [Some(2), Some(3)], "{len}");
        let then = snapshot.map(&map).unwrap();
        assert_eq!([&one, &other].map(|key| then.get(key).unwrap()), [Some(1), None], "{len}");
        let again = db.begin().unwrap();
        again.map(&map).unwrap().insert(&one, &4).unwrap();
        map.remove(&other).unwrap();
        again.commit().unwrap();
        assert_eq!([&one, &other].map(|key| map.get(key).unwrap()), [Some(4), None], "{len}");
    }
}

/// Each run meets another transaction that is older, holds what this one needs, and ends then.
#[test]
fn a_closure_that_always_loses_is_run_so_often_and_no_more() {
    const BOUND: usize = 1000;
    let db = memory();
    let map = words(&db, "m", "hash");
    let older: Vec<_> = (0..=BOUND as u64).map(|_| db.begin().unwrap()).collect();
    for (key, tx) in older.iter().enumerate() {
        tx.map(&map).unwrap().insert(&(key as u64), &1).unwrap();
    }
    let (mut older, mut runs) = (older.into_iter(), 0);
    let lost = db.transaction(|tx| {
        let key = runs;
        runs += 1;
        tx.map(&map)?.insert(&u64::MAX, &2)?;
        let done = tx.map(&map)?.insert(&key, &2);
        older.next().expect("as many as runs").rollback();
        done.map(drop)
    });
    assert!(matches!(lost, Err(Error::Conflict { attempts }) if attempts as usize == BOUND), "{lost:?}");
    assert_eq!(runs, BOUND as u64);
    drop(older);
    assert_eq!(map.count().unwrap(), 0, "nothing was changed");
    db.transaction(|tx| tx.map(&map)?.insert(&1, &1)).unwrap();
}

#[test]
fn an_index_that_is_open_is_not_dropped() {
    let db = memory();
    for kind in CLASSES {
        let map = words(&db, kind, kind);
        db.transaction(|tx| tx.map(&map)?.insert(&1, &7)).unwrap();
        let in_use = |dropped: Result<(), Error>| {
            assert!(
                matches!(&dropped, Err(Error::Pool(durix_pmem::Error::InUse { name })) if name == kind),
                "{dropped:?}"
            );
        };
        in_use(db.drop_index(kind));
        // A transaction that has touched it keeps it open, too.
        let tx = db.begin().unwrap();
        tx.map(&map).unwrap().insert(&1, &8).unwrap();
        drop(map);
        in_use(db.drop_index(kind));
        tx.commit().unwrap();
        assert_eq!(words(&db, kind, kind).get(&1).unwrap(), Some(8));
        db.drop_index(kind).unwrap();
        assert_eq!(words(&db, kind, kind).get(&1).unwrap(), None);
    }
}
