//! Snapshots: one moment, whatever is written later.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use durix::{Db, Error, Map, MapBatch, Snapshot};
use durix_pmem::backing::HeapBacking;
use durix_pmem::pool::{BeforeDrop, IndexInfo};
use durix_pmem::{Hardware, Medium, PoolOptions, Session};

use crate::{CLASSES, kinds, memory, over, words};

type Pairs = BTreeMap<u64, u64>;

/// That a snapshot shows exactly this, however it is asked.
fn shows(snapshot: &Snapshot, map: &Map<u64, u64>, expected: &Pairs, what: &str) {
    let view = snapshot.map(map).unwrap();
    let found: Vec<(u64, u64)> = view.iter().collect::<Result<_, _>>().unwrap();
    let pairs: Pairs = found.iter().copied().collect();
    assert_eq!((pairs.len(), &pairs), (found.len(), expected), "{what}: a walk");
    for key in 0..70 {
        assert_eq!(view.get(&key).unwrap(), expected.get(&key).copied(), "{what}: key {key}");
    }
    if map.index().as_ordered().is_none() {
        assert!(matches!(view.range(&5..&50), Err(Error::NotOrdered { .. })));
        return;
    }
    assert!(found.is_sorted(), "{what}");
    let within: Vec<_> = expected.range(5..50).map(|(k, v)| (*k, *v)).collect();
    let up: Vec<_> = view.range(&5..&50).unwrap().collect::<Result<_, _>>().unwrap();
    let mut down: Vec<_> = view.range(&5..&50).unwrap().rev().collect::<Result<_, _>>().unwrap();
    down.reverse();
    assert_eq!((&up, &down), (&within, &within), "{what}");
}

#[test]
fn a_snapshot_shows_its_moment_for_every_kind() {
    for kind in kinds() {
        let db = memory();
        let map = words(&db, "m", kind);
        let mut model = Pairs::new();
        for key in (0..60).step_by(2) {
            map.insert(&key, &key).unwrap();
            model.insert(key, key);
        }
        let first = db.snapshot().unwrap();
        let then = model.clone();
        let change = |model: &mut Pairs, by: u64| {
            for key in (0..60).step_by(3) {
                map.insert(&key, &(key + by)).unwrap();
                model.insert(key, key + by);
            }
            for key in (by % 7..60).step_by(7) {
                map.remove(&key).unwrap();
                model.remove(&key);
            }
            let mut batch = MapBatch::new();
            batch.insert(&61, &by).unwrap().remove(&4).unwrap();
            map.apply(&batch).unwrap();
            model.insert(61, by);
            model.remove(&4);
            map.compare_and_set(&8, model.get(&8), Some(&by)).unwrap();
            model.insert(8, by);
            db.transaction(|tx| tx.map(&map)?.insert(&9, &by)).unwrap();
            model.insert(9, by);
        };
        change(&mut model, 1000);
        shows(&first, &map, &then, kind);
        db.sync().unwrap();
        let second = db.snapshot().unwrap();
        let between = model.clone();
        change(&mut model, 2000);
        shows(&first, &map, &then, kind);
        shows(&second, &map, &between, kind);
        drop(first);
        change(&mut model, 3000);
        db.sync().unwrap();
        shows(&second, &map, &between, kind);
        let third = db.snapshot().unwrap();
        shows(&third, &map, &model, kind);
        let later: Map<u64, u64> = db.map_of_kind("later", kind).unwrap();
        later.insert(&1, &1).unwrap();
        shows(&third, &later, &Pairs::new(), "a map that was made later");
        assert_eq!(third.indices().len(), 1);
    }
}

/// Three maps of different kinds whose sum stays the same.
struct Bank {
    db: Db,
    maps: [Map<u64, u64>; 3],
}

const ACCOUNTS: u64 = 20;
const EACH: u64 = 1000;

impl Bank {
    fn new(kinds: [&str; 3]) -> Bank {
        let db = memory();
        let maps = [words(&db, "a", kinds[0]), words(&db, "b", kinds[1]), words(&db, "c", kinds[2])];
        for (map, key) in maps.iter().flat_map(|map| (0..ACCOUNTS).map(move |key| (map, key))) {
            map.insert(&key, &EACH).unwrap();
        }
        Bank { db, maps }
    }

    /// Takes from one account and gives to another; an account that is empty is removed.
    fn transfer(&self, random: u64) {
        let pick = |bits: u64| (&self.maps[(bits % 3) as usize], bits / 3 % ACCOUNTS);
        let ((from, payer), (to, payee)) = (pick(random >> 20), pick(random >> 40));
        self.db
            .transaction(|tx| {
                let (from, to) = (tx.map(from)?, tx.map(to)?);
                let had = from.get(&payer)?.unwrap_or(0);
                let amount = if random.is_multiple_of(5) { had } else { had.min(random % 100) };
                match had - amount {
                    0 => _ = from.remove(&payer)?,
                    left => _ = from.insert(&payer, &left)?,
                }
                let has = to.get(&payee)?.unwrap_or(0);
                if has + amount > 0 {
                    to.insert(&payee, &(has + amount))?;
                }
                Ok(())
            })
            .unwrap();
    }

    fn sum(&self, snapshot: &Snapshot) -> u64 {
        let view = |map| snapshot.map(map).unwrap().iter().map(|pair| pair.unwrap().1).sum::<u64>();
        self.maps.iter().map(view).sum()
    }
}

#[test]
fn the_sum_holds_in_every_snapshot() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let snapshots = if deep { 500 } else { 25 };
    for kinds in [["pset", "skiplist", "hash"], ["masstree", "bst", "hash-fast-open"], ["masstree", "masstree", "pset"]]
    {
        let bank = Bank::new(kinds);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 1..3u64 {
                let (bank, stop) = (&bank, &stop);
                scope.spawn(move || {
                    let mut random = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    while !stop.load(Ordering::Relaxed) {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        bank.transfer(random >> 3);
                    }
                });
            }
            let _stops = Stops(&stop);
            for _ in 0..snapshots {
                let snapshot = bank.db.snapshot().unwrap();
                let sum = bank.sum(&snapshot);
                bank.db.sync().unwrap();
                assert_eq!((sum, bank.sum(&snapshot)), (3 * ACCOUNTS * EACH, sum), "{kinds:?}");
            }
        });
    }
}

/// Stops writers also when the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_copy_is_of_one_moment() {
    let bank = Bank::new(["hash", "skiplist", "pset"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 77;
            while !stop.load(Ordering::Relaxed) {
                random = u64::wrapping_mul(random, 6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bank.transfer(random >> 3);
            }
        });
        let _stops = Stops(&stop);
        bank.db.copy_to(&path).unwrap();
    });
    let copy = Db::open(&path).unwrap();
    assert_eq!(copy.indices().unwrap().len(), 3);
    let sum = |name| copy.map::<u64, u64>(name).unwrap().iter().map(|pair| pair.unwrap().1).sum::<u64>();
    assert_eq!(["a", "b", "c"].map(sum).iter().sum::<u64>(), 3 * ACCOUNTS * EACH);
}

#[test]
fn too_many_versions_fail_the_snapshot_and_no_writer() {
    let db = over(Db::builder().snapshot_limit(10_000));
    let map = words(&db, "m", "hash");
    (0..500u64).for_each(|key| _ = map.insert(&key, &key).unwrap());
    let snapshot = db.snapshot().unwrap();
    (0..10u64).for_each(|key| _ = map.insert(&key, &7).unwrap());
    assert_eq!(snapshot.map(&map).unwrap().get(&3).unwrap(), Some(3));
    (0..500u64).for_each(|key| _ = map.insert(&key, &8).unwrap());
    let view = snapshot.map(&map).unwrap();
    assert!(matches!(view.get(&3), Err(Error::SnapshotTooOld { limit: 10_000 })));
    assert!(matches!(view.iter().next(), Some(Err(Error::SnapshotTooOld { .. }))));
    let next = db.snapshot().unwrap();
    map.insert(&3, &9).unwrap();
    assert_eq!(next.map(&map).unwrap().get(&3).unwrap(), Some(8));
    // A snapshot that has failed stands in nobody's way, nor once it is closed.
    (0..500u64).for_each(|key| _ = map.insert(&key, &10).unwrap());
    assert!(matches!(next.map(&map).unwrap().get(&3), Err(Error::SnapshotTooOld { .. })));
    let missing = |dropped| matches!(dropped, Err(Error::Pool(durix_pmem::Error::NoSuchIndex { .. })));
    assert!(missing(db.drop_index("nothing")));
    drop((snapshot, next));
    assert!(missing(db.drop_index("nothing")));
}

/// Threads that always have a transaction pending, which waits for a checkpoint: a snapshot is opened, and shows none of them half done.
#[test]
fn writers_that_never_pause_do_not_keep_a_snapshot_out() {
    const PENDING: usize = 4;
    let db = memory();
    let (strict, buffered) = (words(&db, "s", "pset"), words(&db, "b", "masstree"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (db, strict, buffered, stop) = (&db, &strict, &buffered, &stop);
            scope.spawn(move || {
                let mut pending = std::collections::VecDeque::new();
                for round in (1u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let key = thread * 100 + round % (2 * PENDING as u64);
                    let later = db.transaction(|tx| {
                        tx.map(strict)?.insert(&key, &round)?;
                        tx.map(buffered)?.insert(&key, &round)?;
                        Ok(tx.later())
                    });
                    pending.push_back(later.unwrap());
                    if pending.len() > PENDING {
                        pending.pop_front().unwrap().wait().unwrap();
                    }
                }
            });
        }
        let opened: Result<Vec<_>, _> = (0..10)
            .map(|_| {
                let snapshot = db.snapshot()?;
                let all = |map: &Map<u64, u64>| snapshot.map(map)?.iter().collect::<Result<Pairs, _>>();
                Ok((all(&strict)?, all(&buffered)?))
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        let opened: Vec<(Pairs, Pairs)> = opened.unwrap_or_else(|error: Error| panic!("{error}"));
        opened.iter().for_each(|(strict, buffered)| assert_eq!(strict, buffered));
    });
}

#[test]
fn a_snapshot_holds_nothing_up() {
    let db = memory();
    let (strict, buffered) = (words(&db, "s", "bst"), words(&db, "b", "masstree"));
    buffered.insert(&1, &1).unwrap();
    let snapshot = db.snapshot().unwrap();
    assert!(matches!(db.drop_index("nothing"), Err(Error::SnapshotOpen { .. })));
    let handed = std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in 0..50 {
                buffered.insert(&key, &2).unwrap();
                strict.insert(&key, &2).unwrap();
                db.sync().unwrap();
            }
        });
        let view = snapshot.map(&buffered).unwrap();
        let mut walk = view.iter();
        let first = walk.next().unwrap().unwrap();
        assert_eq!((first, walk.count()), ((1, 1), 0));
        drop(view);
        scope.spawn(move || snapshot).join().unwrap()
    });
    assert_eq!(handed.map(&strict).unwrap().iter().count(), 0);
    // A walk that is half done and forgotten, with its snapshot.
    let view = handed.map(&buffered).unwrap();
    let mut walk = view.iter();
    assert!(walk.next().is_some());
    std::mem::forget(walk);
    db.sync().unwrap();
    drop(view);
    std::mem::forget(handed);
    db.sync().unwrap();
    buffered.insert(&1, &3).unwrap();
    assert_eq!(db.snapshot().unwrap().map(&buffered).unwrap().get(&1).unwrap(), Some(3));
}

/// What a snapshot shows, no crash takes back: neither of a buffered map, nor in a journaled pool.
#[test]
fn what_a_snapshot_shows_is_durable() {
    let db = memory();
    let map = db.ordered_map_of_kind::<u64, u64>("map", "masstree").unwrap();
    map.insert(&1, &1).unwrap();
    let epochs = db.pool().epochs().unwrap();
    let before = epochs.stats().boundaries;
    drop(db.snapshot().unwrap());
    assert_eq!(epochs.stats().boundaries, before + 1);

    let dir = tempfile::tempdir().unwrap();
    let hour = durix::Level::Interval(Duration::from_secs(3600));
    let db = Db::builder().durability(hour).no_background_threads().create(dir.path().join("pool")).unwrap();
    let map = db.map_of_kind::<u64, u64>("map", "hash").unwrap();
    map.insert(&1, &1).unwrap();
    let commits = || db.pool().journal_stats().unwrap().commits;
    let before = commits();
    drop(db.snapshot().unwrap());
    assert_eq!(commits(), before + 1);
}

/// What the `n`-th update of a writer does: an insertion, or a removal.
fn nth(n: u64) -> (u64, Option<u64>) {
    let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
    (key, (!n.is_multiple_of(3)).then_some(n))
}

/// The snapshot shows what a number of updates have left: all that had ended before it was opened, and no more than had begun when it was.
#[test]
fn a_snapshot_beside_a_writer_shows_one_of_its_versions() {
    for kind in CLASSES {
        let db = memory();
        let map = words(&db, "m", kind);
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    begun.store(n + 1, Ordering::SeqCst);
                    let (key, value) = nth(n);
                    match value {
                        // In turn as a plain update and in a transaction.
                        Some(value) if n % 2 == 0 => _ = map.insert(&key, &value).unwrap(),
                        Some(value) => _ = db.transaction(|tx| tx.map(&map)?.insert(&key, &value)).unwrap(),
                        None => _ = map.remove(&key).unwrap(),
                    }
                    ended.store(n + 1, Ordering::SeqCst);
                }
            });
            let stops = Stops(&stop);
            let (mut model, mut done) = (Pairs::new(), 0);
            for turn in 0..20 {
                let least = ended.load(Ordering::SeqCst);
                let snapshot = db.snapshot().unwrap();
                let most = begun.load(Ordering::SeqCst);
                if turn % 4 == 0 {
                    db.sync().unwrap();
                }
                let step = |model: &mut Pairs, n| match nth(n) {
                    (key, Some(value)) => _ = model.insert(key, value),
                    (key, None) => _ = model.remove(&key),
                };
                (done..least).for_each(|n| step(&mut model, n));
                done = least;
                let mut found: Pairs = snapshot.map(&map).unwrap().iter().collect::<Result<_, _>>().unwrap();
                let mut then = model.clone();
                let mut versions = (least..=most).map(|n| {
                    let version = then.clone();
                    step(&mut then, n);
                    version
                });
                let version = versions.find(|version| *version == found);
                let version = version.unwrap_or_else(|| panic!("{kind}: no version of {least} to {most}: {found:?}"));
                // Later the same, whatever was written since.
                while ended.load(Ordering::SeqCst) < most + 50 {
                    assert!(!writer.is_finished(), "{kind}: the writer has failed");
                    std::thread::yield_now();
                }
                found = snapshot.map(&map).unwrap().iter().collect::<Result<_, _>>().unwrap();
                assert_eq!(found, version, "{kind}: once more");
            }
            drop(stops);
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_held_across_await_and_by_whichever_thread() {
    const TURNS: u64 = 10;
    let db = memory();
    let map = words(&db, "m", "masstree");
    (0..50).for_each(|key| _ = map.insert(&key, &key).unwrap());
    // How often was read, and was written.
    let (reads, writes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let reader = {
        let (db, map, reads, writes) = (db.clone(), map.clone(), Arc::clone(&reads), Arc::clone(&writes));
        tokio::spawn(async move {
            let snapshot = db.snapshot().unwrap();
            let expected: Pairs = (0..50).map(|key| (key, key)).collect();
            for turn in 1..=TURNS {
                reads.fetch_add(1, Ordering::SeqCst);
                while writes.load(Ordering::SeqCst) < turn {
                    tokio::task::yield_now().await;
                }
                shows(&snapshot, &map, &expected, "after an await");
            }
        })
    };
    for turn in 1..=TURNS {
        while reads.load(Ordering::SeqCst) < turn {
            assert!(!reader.is_finished(), "the reader has failed");
            tokio::task::yield_now().await;
        }
        (0..60).for_each(|key| _ = map.insert(&key, &(1000 + turn)).unwrap());
        // No checkpoint waits for the snapshot.
        db.sync().unwrap();
        writes.fetch_add(1, Ordering::SeqCst);
    }
    reader.await.unwrap();
    assert_eq!(map.get(&0).unwrap(), Some(1000 + TURNS));
}

/// Calls a closure before an index is dropped.
struct Asked<F>(F);

impl<M: Medium, F: Fn() + Send + Sync> BeforeDrop<M> for Asked<F> {
    fn before_drop(&self, _: &mut Session<M>, _: &IndexInfo) -> durix_pmem::Result<()> {
        (self.0)();
        Ok(())
    }
}

fn listed(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.indices().iter().map(|info| &*info.name).collect()
}

/// The pool itself refuses to drop an index while a snapshot is open, whoever asks it.
#[test]
fn the_pool_drops_no_index_of_a_snapshot() {
    let db = memory();
    let map = words(&db, "a", "hash");
    map.insert(&1, &1).unwrap();
    drop(map);
    let snapshot = db.snapshot().unwrap();
    let refused = db.pool().drop_index("a").unwrap_err();
    assert!(matches!(&refused, durix_pmem::Error::StillNeeded { name, .. } if name == "a"), "{refused}");
    let refused = db.drop_index("a").unwrap_err();
    assert!(matches!(&refused, Error::SnapshotOpen { index } if index == "a"), "{refused}");
    let map = words(&db, "a", "hash");
    assert_eq!(snapshot.map(&map).unwrap().get(&1).unwrap(), Some(1));
    drop((map, snapshot));
    db.pool().drop_index("a").unwrap();
    assert!(db.indices().unwrap().is_empty());
}

/// A drop has seen that no snapshot is open, and pauses. A snapshot that is opened then keeps the index.
#[test]
fn a_snapshot_that_is_opened_beside_a_drop_keeps_the_index() {
    let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
    let opened: Arc<Mutex<Option<Snapshot>>> = Arc::default();
    let source: Arc<Mutex<Option<Db>>> = Arc::default();
    let asked = {
        let (opened, source) = (Arc::clone(&opened), Arc::clone(&source));
        Arc::new(Asked(move || {
            let db = source.lock().unwrap();
            *opened.lock().unwrap() = db.as_ref().map(|db| db.snapshot().unwrap());
        }))
    };
    // Asked before the transactions of the database are.
    pool.ask_before_drops(&asked);
    let db = Db::builder().no_background_threads().over(pool).unwrap();
    words(&db, "a", "hash").insert(&1, &7).unwrap();
    *source.lock().unwrap() = Some(db.clone());
    let dropped = db.drop_index("a");
    *source.lock().unwrap() = None;
    // It would get the place of the first one.
    words(&db, "b", "hash").insert(&2, &2).unwrap();
    let snapshot = opened.lock().unwrap().take().unwrap();
    assert_eq!(listed(&snapshot), ["a"]);
    assert!(matches!(&dropped, Err(Error::SnapshotOpen { index }) if index == "a"), "{dropped:?}");
    let map = words(&db, "a", "hash");
    assert_eq!(snapshot.map(&map).unwrap().get(&1).unwrap(), Some(7));
}

/// The other way round: the drop has begun, and no snapshot was open. One that is opened in the middle does not list the index.
#[test]
fn a_snapshot_that_is_opened_in_the_middle_of_a_drop_does_not_list_the_index() {
    let db = memory();
    words(&db, "a", "hash").insert(&1, &7).unwrap();
    words(&db, "c", "hash").insert(&1, &7).unwrap();
    let (begun, done) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let begun = Arc::new(begun);
    // Asked after the transactions of the database are.
    let asked = {
        let (begun, done) = (Arc::clone(&begun), Arc::clone(&done));
        Arc::new(Asked(move || {
            begun.store(true, Ordering::SeqCst);
            let since = std::time::Instant::now();
            while !done.load(Ordering::SeqCst) && since.elapsed() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }))
    };
    db.pool().ask_before_drops(&asked);
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| db.drop_index("a"));
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let snapshot = db.snapshot().unwrap();
        done.store(true, Ordering::SeqCst);
        dropper.join().unwrap().unwrap();
        assert_eq!(listed(&snapshot), ["c"]);
    });
}
