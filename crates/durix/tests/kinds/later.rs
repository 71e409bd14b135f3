//! Updates that are acknowledged later, through the facade: all kinds, in memory and with a journal.

use durix::{Db, Error, Hardware, Level, Map, Pool, PoolOptions, Unsettled};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Error as PoolError};

use super::{heap, kinds};

fn is_foreign(result: Result<impl std::fmt::Debug, Error>) -> bool {
    matches!(result, Err(Error::Pool(PoolError::ForeignTicket)))
}

fn content(map: &Map<u64, u64>) -> Vec<(u64, u64)> {
    let mut pairs: Vec<_> = map.iter().map(|pair| pair.unwrap()).collect();
    pairs.sort_unstable();
    pairs
}

/// Every call, on a map and on a handle; the answers are those of the calls that wait.
#[test]
fn calls_of_every_kind_answer_as_those_that_wait() {
    for entry in kinds::<Hardware>() {
        let db = Db::over(heap());
        let map: Map<u64, u64> = db.map_of_kind("m", entry.name).unwrap();
        let mut handle = map.handle().unwrap();
        let mut unsettled = Unsettled::new();
        let u = &mut unsettled;
        assert!(map.insert_later(&1, &10, u).unwrap(), "{}", entry.name);
        assert!(!handle.insert_later(&1, &11, u).unwrap());
        assert!(!map.insert_if_absent_later(&1, &12, u).unwrap());
        assert!(handle.insert_if_absent_later(&2, &20, u).unwrap());
        assert!(!map.update_later(&3, &30, u).unwrap());
        assert!(map.update_later(&2, &21, u).unwrap());
        assert_eq!(map.get_later(&2, u).unwrap(), Some(21));
        assert_eq!(handle.get_later(&3, u).unwrap(), None);
        assert!(map.compare_and_set_later(&2, Some(&21), Some(&22), u).unwrap());
        assert!(!map.compare_and_set_later(&2, Some(&21), None, u).unwrap());
        assert!(map.remove_later(&1, u).unwrap());
        assert!(!handle.remove_later(&1, u).unwrap());
        assert!(map.compare_and_set_later(&1, None, Some(&13), u).unwrap());
        assert_eq!((map.get(&1).unwrap(), map.get(&2).unwrap()), (Some(13), Some(22)), "{}", entry.name);
        assert_eq!(map.count().unwrap(), 2);
        assert_eq!(content(&map), [(1, 13), (2, 22)]);
        unsettled.wait().unwrap();
        assert!(unsettled.is_empty());
        unsettled.wait().unwrap();
        // It can be used again, and dropped.
        map.remove_later(&1, &mut unsettled).unwrap();
        drop(unsettled);
        assert_eq!(content(&map), [(2, 22)]);
        drop((map, handle));
        db.close().unwrap();
    }
}

#[test]
fn with_a_journal_one_commit_is_enough_for_every_kind() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for entry in kinds::<Hardware>() {
        let db = Db::builder()
            .durability(Level::Immediate)
            .no_background_threads()
            .create(dir.path().join(entry.name))
            .unwrap();
        let map: Map<u64, u64> = db.map_of_kind("m", entry.name).unwrap();
        map.insert(&0, &0).unwrap();
        let commits = || db.pool().journal_stats().unwrap().commits;
        let before = commits();
        let mut unsettled = Unsettled::new();
        for key in 0..16 {
            map.insert_later(&key, &key, &mut unsettled).unwrap();
        }
        assert_eq!(commits() - before, 0, "{}: nothing was waited for", entry.name);
        unsettled.wait().unwrap();
        assert_eq!(commits() - before, 1, "{}", entry.name);
        // What is durable costs a read no commit; what is not is waited for.
        assert_eq!(map.get_later(&1, &mut unsettled).unwrap(), Some(1));
        unsettled.wait().unwrap();
        assert_eq!(commits() - before, 1, "{}", entry.name);
        map.insert_later(&1, &2, &mut unsettled).unwrap();
        let mut reads = Unsettled::new();
        assert_eq!(map.get_later(&1, &mut reads).unwrap(), Some(2));
        assert_eq!(commits() - before, 1, "{}", entry.name);
        reads.wait().unwrap();
        assert_eq!(commits() - before, 2, "{}", entry.name);
        unsettled.wait().unwrap();
        assert_eq!(commits() - before, 2, "{}: the same commit", entry.name);
        map.insert_later(&1, &3, &mut unsettled).unwrap();
        assert_eq!(map.get(&1).unwrap(), Some(3));
        assert_eq!(commits() - before, 3, "{}: the read has waited", entry.name);
        // A drop waits for no disk.
        map.insert_later(&1, &4, &mut unsettled).unwrap();
        drop(unsettled);
        assert_eq!(commits() - before, 3, "{}", entry.name);
    }
}

#[test]
fn a_ticket_is_one_of_one_database() {
    let (one, two) = (Db::over(heap()), Db::over(heap()));
    let [a, b]: [Map<u64, u64>; 2] = [&one, &two].map(|db| db.map("m").unwrap());
    let (mut of_one, mut of_two) = (Unsettled::new(), Unsettled::new());
    a.insert_later(&1, &1, &mut of_one).unwrap();
    assert!(is_foreign(b.insert_later(&1, &1, &mut of_one)));
    assert!(is_foreign(b.get_later(&1, &mut of_one)));
    b.insert_later(&2, &2, &mut of_two).unwrap();
    assert!(is_foreign(of_one.join(of_two)));
    of_one.wait().unwrap();
    assert_eq!((content(&a), content(&b)), (vec![(1, 1)], vec![(2, 2)]));
    // Empty, it goes anywhere.
    b.insert_later(&3, &3, &mut of_one).unwrap();
    let mut more = Unsettled::new();
    b.insert_later(&4, &4, &mut more).unwrap();
    of_one.join(more).unwrap();
    of_one.wait().unwrap();
    assert_eq!(content(&b).len(), 3);
}

#[test]
fn an_index_stays_open_while_a_ticket_has_changes_of_it() {
    let db = Db::over(heap());
    let map: Map<u64, u64> = db.map_of_kind("m", "pset").unwrap();
    let mut unsettled = Unsettled::new();
    map.insert_later(&1, &1, &mut unsettled).unwrap();
    drop(map);
    assert!(db.drop_index("m").is_err());
    unsettled.wait().unwrap();
    db.drop_index("m").unwrap();
}

/// Snapshots and transactions beside updates that are settled later.
#[test]
fn snapshots_and_transactions_see_what_is_durable() {
    for kind in ["pset", "hash"] {
        let db = Db::over(heap());
        let map: Map<u64, u64> = db.map_of_kind("m", kind).unwrap();
        let mut unsettled = Unsettled::new();
        map.insert_later(&1, &1, &mut unsettled).unwrap();
        let snapshot = db.snapshot().unwrap();
        map.insert_later(&1, &2, &mut unsettled).unwrap();
        map.insert_later(&2, &2, &mut unsettled).unwrap();
        let then = snapshot.map(&map).unwrap();
        assert_eq!((then.get(&1).unwrap(), then.get(&2).unwrap()), (Some(1), None), "{kind}");
        db.transaction(|tx| {
            let map = tx.map(&map)?;
            let sum = map.get(&1)?.unwrap() + map.get(&2)?.unwrap();
            map.insert(&3, &sum).map(drop)
        })
        .unwrap();
        map.remove_later(&3, &mut unsettled).unwrap();
        unsettled.wait().unwrap();
        assert_eq!(content(&map), [(1, 2), (2, 2)], "{kind}");
    }
}

/// A fence for all, on several maps, whichever thread waits.
#[test]
fn several_maps_are_settled_by_one_fence() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let pool: Pool<_> = PoolOptions::new().create_on(HeapBacking::new(64 << 20), counting).unwrap();
    let db = Db::builder().no_background_threads().over(pool).unwrap();
    let maps: Vec<Map<u64, u64, _>> = ["pset", "hash", "pset"]
        .iter()
        .enumerate()
        .map(|(n, kind)| db.map_of_kind(&n.to_string(), kind).unwrap())
        .collect();
    let mut unsettled = Unsettled::new();
    // New slots are taken, which costs fences.
    for (n, map) in maps.iter().enumerate() {
        (0..64).for_each(|key| _ = map.insert_later(&key, &(n as u64), &mut unsettled).unwrap());
    }
    unsettled.wait().unwrap();
    (0..64).for_each(|key| maps.iter().for_each(|map| _ = map.insert(&key, &1).unwrap()));
    let before = counting.counts();
    for key in 0..16 {
        maps.iter().for_each(|map| _ = map.insert_later(&key, &2, &mut unsettled).unwrap());
    }
    assert_eq!((counting.counts() - before).fences, 0);
    std::thread::scope(|scope| scope.spawn(|| unsettled.wait().unwrap()).join().unwrap());
    let counts = counting.counts() - before;
    assert_eq!((counts.write_backs, counts.fences), (48, 1));
}

/// A call that fails before its operation begins takes nothing from the ticket: what earlier calls put there is still to be waited for.
#[test]
fn a_call_that_fails_leaves_the_ticket_as_it_was() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder = Db::builder().durability(Level::Immediate).no_background_threads();
    let db = builder.create(dir.path().join("p")).unwrap();
    let map: Map<u64, u64> = db.map("m").unwrap();
    let mut unsettled = Unsettled::new();
    map.insert_later(&1, &10, &mut unsettled).unwrap();
    db.pool().mapping().shut();
    assert!(map.insert_later(&2, &20, &mut unsettled).is_err());
    assert!(map.get_later(&1, &mut unsettled).is_err());
    assert!(!unsettled.is_empty());
    assert!(unsettled.wait().is_err(), "nobody has made it durable");
}
