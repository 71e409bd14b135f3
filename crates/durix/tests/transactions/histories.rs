//! Recorded histories of threads are serialisable, in an order that agrees with real time.
//!
//! Every write stores a number of its own and has read the number before, so each key has one known order of versions. A history is
//! serialisable exactly if the graph of its dependencies (version before version, writer before reader, reader before the
//! next writer, ended before begun) has no cycle.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use durix::{Db, Error, Level, Map, PoolOptions};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;
use durix_pmem::journal::DiskJournal;

use crate::{memory, words};

type Key = (usize, u64);

/// What a transaction, or a plain update, has done.
#[derive(Clone, Debug, Default)]
struct Done {
    thread: usize,
    begun: u64,
    ended: u64,
    reads: BTreeMap<Key, u64>,
    writes: BTreeMap<Key, u64>,
}

/// A cycle, if there is one: the numbers of some of its transactions.
fn cycle(history: &[Done]) -> Option<Vec<usize>> {
    let mut writer: HashMap<(Key, u64), usize> = HashMap::new();
    let mut next: HashMap<(Key, u64), usize> = HashMap::new();
    for (number, done) in history.iter().enumerate() {
        for (key, value) in &done.writes {
            assert!(writer.insert((*key, *value), number).is_none(), "a value was written twice");
            if let Some(other) = next.insert((*key, done.reads[key]), number) {
                // Two have replaced the same version: an update is lost.
                return Some(vec![other, number]);
            }
        }
    }
    let mut edges = vec![Vec::new(); history.len()];
    for (number, done) in history.iter().enumerate() {
        for version in &done.reads {
            let version = (*version.0, *version.1);
            if let Some(from) = writer.get(&version).filter(|from| **from != number) {
                edges[*from].push(number);
            }
            if let Some(to) = next.get(&version).filter(|to| **to != number) {
                edges[number].push(*to);
            }
        }
    }
    for (number, done) in history.iter().enumerate() {
        // Of each thread the last that had ended: the others come before it.
        let mut last: BTreeMap<usize, (u64, usize)> = BTreeMap::new();
        for (before, other) in history.iter().enumerate().filter(|(_, other)| other.ended < done.begun) {
            let entry = last.entry(other.thread).or_insert((other.ended, before));
            *entry = (*entry).max((other.ended, before));
        }
        last.values().for_each(|(_, before)| edges[*before].push(number));
    }
    let mut incoming = vec![0; history.len()];
    edges.iter().flatten().for_each(|to| incoming[*to] += 1);
    let mut free: Vec<usize> = (0..history.len()).filter(|number| incoming[*number] == 0).collect();
    let mut sorted = 0;
    while let Some(number) = free.pop() {
        sorted += 1;
        for to in &edges[number] {
            incoming[*to] -= 1;
            if incoming[*to] == 0 {
                free.push(*to);
            }
        }
    }
    (sorted < history.len()).then(|| (0..history.len()).filter(|number| incoming[*number] > 0).take(8).collect())
}

#[test]
fn the_checker_finds_what_is_not_serialisable() {
    let done = |thread, begun, ended, reads: &[(u64, u64)], writes: &[(u64, u64)]| Done {
        thread,
        begun,
        ended,
        reads: reads.iter().map(|(key, value)| ((0, *key), *value)).collect(),
        writes: writes.iter().map(|(key, value)| ((0, *key), *value)).collect(),
    };
    let lost = [done(0, 1, 10, &[(1, 0)], &[(1, 5)]), done(1, 2, 9, &[(1, 0)], &[(1, 6)])];
    assert!(cycle(&lost).is_some(), "a lost update");
    let skew = [done(0, 1, 10, &[(1, 0), (2, 0)], &[(1, 5)]), done(1, 2, 9, &[(1, 0), (2, 0)], &[(2, 6)])];
    assert!(cycle(&skew).is_some(), "write skew");
    let stale = [done(0, 1, 2, &[(1, 0)], &[(1, 5)]), done(1, 3, 4, &[(1, 0)], &[])];
    assert!(cycle(&stale).is_some(), "a read of what had been replaced before it began");
    let torn = [done(0, 1, 9, &[(1, 0), (2, 0)], &[(1, 5), (2, 6)]), done(1, 2, 8, &[(1, 5), (2, 0)], &[])];
    assert!(cycle(&torn).is_some(), "half of a transaction was seen");
    let fine =
        [done(0, 1, 9, &[(1, 0)], &[(1, 5)]), done(1, 2, 8, &[(1, 5)], &[(1, 6)]), done(1, 10, 11, &[(1, 6)], &[])];
    assert_eq!(cycle(&fine), None);
}

struct Recorder<'a> {
    db: &'a Db,
    maps: [&'a Map<u64, u64>; 2],
    clock: &'a AtomicU64,
    thread: usize,
    random: u64,
}

impl Recorder<'_> {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    /// A transaction over two or three of the keys.
    fn transaction(&mut self) -> Done {
        let keys: Vec<Key> = (0..2 + self.random(2)).map(|_| (self.random(2) as usize, self.random(3))).collect();
        let writes: Vec<bool> = keys.iter().map(|_| self.random(3) > 0).collect();
        let walks = self.random(8) == 0;
        let begun = self.clock.fetch_add(1, SeqCst);
        let mut done = self
            .db
            .transaction(|tx| {
                let maps = [tx.map(self.maps[0])?, tx.map(self.maps[1])?];
                let mut done = Done::default();
                if walks {
                    let found: BTreeMap<u64, u64> = maps[1].iter()?.collect::<Result<_, _>>()?;
                    (0..3).for_each(|key| _ = done.reads.insert((1, key), found.get(&key).copied().unwrap_or(0)));
                }
                for (key, write) in keys.iter().zip(&writes) {
                    let map = &maps[key.0];
                    let found = map.get(&key.1)?.unwrap_or(0);
                    let own = done.writes.get(key).copied();
                    assert_eq!(found, own.unwrap_or(found), "its own write");
                    if own.is_none() {
                        let before = *done.reads.entry(*key).or_insert(found);
                        assert_eq!(found, before, "a read repeats");
                    }
                    if *write && own.is_none() {
                        let value = self.clock.fetch_add(1, SeqCst);
                        map.insert(&key.1, &value)?;
                        done.writes.insert(*key, value);
                    }
                    std::thread::yield_now();
                }
                Ok(done)
            })
            .unwrap();
        (done.thread, done.begun) = (self.thread, begun);
        done.ended = self.clock.fetch_add(1, SeqCst);
        done
    }

    /// A plain update of one key.
    fn plain(&mut self) -> Option<Done> {
        let key: Key = (self.random(2) as usize, self.random(3));
        let map = self.maps[key.0];
        let begun = self.clock.fetch_add(1, SeqCst);
        let before = map.get(&key.1).unwrap().unwrap_or(0);
        let value = self.clock.fetch_add(1, SeqCst);
        let expected = (before != 0).then_some(before);
        let changed = match map.compare_and_set(&key.1, expected.as_ref(), Some(&value)) {
            Err(Error::Locked { .. }) => false,
            changed => changed.unwrap(),
        };
        let ended = self.clock.fetch_add(1, SeqCst);
        let (reads, writes) = (BTreeMap::from([(key, before)]), BTreeMap::from([(key, value)]));
        changed.then_some(Done { thread: self.thread, begun, ended, reads, writes })
    }
}

#[test]
fn threads_are_serialisable() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let (rounds, steps) = if deep { (60, 600) } else { (3, 150) };
    let pairs = [
        ["hash", "skiplist"],
        ["pset", "hash-fast-open"],
        ["hash", "masstree"],
        ["masstree", "masstree"],
        ["bplustree", "dptree"],
        ["dptree", "masstree"],
        ["hash", "bplustree"],
    ];
    for (round, kinds) in (0..rounds).flat_map(|round| pairs.map(|kinds| (round, kinds))) {
        for tables_go in [false, true] {
            let db = memory();
            if tables_go {
                // Plain updates have lock tables go whenever no lock is held, and the next transaction has them come back.
                db.set_idle_tables(1, Duration::ZERO);
            }
            let maps = [words(&db, "a", kinds[0]), words(&db, "b", kinds[1])];
            let clock = AtomicU64::new(1);
            let never = AtomicBool::new(false);
            let plain = if tables_go { 3 } else { 1 };
            let mut history = mixed_work((&db, &maps, &clock), plain, steps, round + 1, &never, || {});
            history.push(last_look(&maps, &clock));
            assert_serialisable(kinds, &history);
        }
    }
}

/// Three threads, each with so many transactions and plain updates, or fewer if `stop` is set; `beside` runs at the same time.
fn work(
    db: &Db,
    maps: &[Map<u64, u64>; 2],
    clock: &AtomicU64,
    steps: u64,
    seed: u64,
    stop: &AtomicBool,
    beside: impl FnOnce(),
) -> Vec<Done> {
    mixed_work((db, maps, clock), 1, steps, seed, stop, beside)
}

/// The same with so many plain updates among four steps.
fn mixed_work(
    (db, maps, clock): (&Db, &[Map<u64, u64>; 2], &AtomicU64),
    plain: u64,
    steps: u64,
    seed: u64,
    stop: &AtomicBool,
    beside: impl FnOnce(),
) -> Vec<Done> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let random = 0x9E37_79B9 * (thread as u64 + 1) + seed;
                let maps = [&maps[0], &maps[1]];
                let mut recorder = Recorder { db, maps, clock, thread, random };
                scope.spawn(move || {
                    let mut done = Vec::new();
                    for step in (0..steps).take_while(|_| !stop.load(SeqCst)) {
                        if step % 4 >= 4 - plain {
                            done.extend(recorder.plain())
                        } else {
                            done.push(recorder.transaction())
                        }
                    }
                    done
                })
            })
            .collect();
        beside();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn all_keys() -> impl Iterator<Item = Key> {
    (0..2).flat_map(|map| (0..3).map(move |key| (map, key)))
}

/// Reads all keys when nobody else works.
fn last_look(maps: &[Map<u64, u64>; 2], clock: &AtomicU64) -> Done {
    let begun = clock.fetch_add(2, SeqCst);
    let reads = all_keys().map(|key| (key, maps[key.0].get(&key.1).unwrap().unwrap_or(0))).collect();
    Done { thread: 9, begun, ended: begun + 1, reads, writes: BTreeMap::new() }
}

fn assert_serialisable(kinds: [&str; 2], history: &[Done]) {
    if let Some(cycle) = cycle(history) {
        let told: Vec<_> = cycle.iter().map(|number| &history[*number]).collect();
        panic!("{kinds:?}: not serialisable: {told:#?}");
    }
}

/// What a crash has left of a history, by the values that are found. `begun`: when the crash came, at the earliest; what had ended before
/// must be there. What a crash has taken must be whole transactions, on which nothing that is left rests.
fn recovered(history: Vec<Done>, found: &BTreeMap<Key, u64>, begun: u64) -> Result<Vec<Done>, String> {
    // The versions that are there: those that are found, and what they have replaced.
    let before: HashMap<(Key, u64), u64> = history
        .iter()
        .flat_map(|done| done.writes.iter().map(|(key, value)| ((*key, *value), done.reads[key])))
        .collect();
    let mut there: HashSet<(Key, u64)> = HashSet::new();
    for (key, value) in found {
        let mut version = Some(*value);
        while let Some(value) = version {
            there.insert((*key, value));
            version = before.get(&(*key, value)).copied();
            if version.is_none() && value != 0 {
                return Err(format!("{key:?} holds {value}, which nobody has written"));
            }
        }
    }
    let mut left = Vec::new();
    for done in history {
        let is_there = |(key, value): (&Key, &u64)| there.contains(&(*key, *value));
        let (reads, writes) = (done.reads.iter().all(is_there), done.writes.iter().filter(|w| is_there(*w)).count());
        if writes != 0 && writes != done.writes.len() {
            return Err(format!("half of it is left: {done:?}"));
        }
        let is_left = reads && writes == done.writes.len();
        if writes != 0 && !reads {
            return Err(format!("it is left without what it has read: {done:?}"));
        }
        if done.ended < begun && !is_left {
            return Err(format!("it had returned, and is lost: {done:?}"));
        }
        left.extend(is_left.then_some(done));
    }
    Ok(left)
}

#[test]
fn the_checker_finds_what_no_crash_may_leave() {
    let done = |begun, ended, reads: &[(u64, u64)], writes: &[(u64, u64)]| Done {
        thread: 0,
        begun,
        ended,
        reads: reads.iter().map(|(key, value)| ((0, *key), *value)).collect(),
        writes: writes.iter().map(|(key, value)| ((0, *key), *value)).collect(),
    };
    let both = done(1, 4, &[(1, 0), (2, 0)], &[(1, 2), (2, 3)]);
    let reads = done(5, 8, &[(1, 2)], &[]);
    let rests = done(5, 8, &[(1, 2), (3, 0)], &[(3, 6)]);
    let found =
        |values: [u64; 3]| (1..4).zip(values).map(|(key, value)| ((0, key), value)).collect::<BTreeMap<Key, u64>>();
    let left = |history: &[&Done], values, begun| {
        recovered(history.iter().map(|done| (*done).clone()).collect(), &found(values), begun).map(|left| left.len())
    };
    assert_eq!(left(&[&both, &rests], [2, 3, 6], 9), Ok(2));
    assert_eq!(left(&[&both, &rests], [2, 3, 0], 8), Ok(1), "it had not returned");
    assert_eq!(left(&[&both, &reads], [0, 0, 0], 4), Ok(0));
    assert!(left(&[&both], [2, 0, 0], 1).is_err(), "half of it");
    assert!(left(&[&both], [0, 0, 0], 5).is_err(), "it had returned");
    assert!(left(&[&both, &reads], [0, 0, 0], 9).is_err());
    assert!(left(&[&both, &rests], [0, 0, 6], 1).is_err(), "what it has read is gone");
    assert!(left(&[&both], [7, 3, 0], 1).is_err(), "of nobody");
}

/// What the death of the process would leave of a journaled database now: its file is not written before the journal is full.
fn copied(path: &Path, to: &str) -> PathBuf {
    let copy = path.with_file_name(to);
    let files: [fn(&Path) -> PathBuf; 3] = [Path::to_path_buf, DiskJournal::sums_of, DiskJournal::path_of];
    for of in files {
        std::fs::copy(of(path), of(&copy)).unwrap();
    }
    copy
}

/// Journaled pools, whose transactions are commits of whole operations: crashed while three threads work, and gone on with.
#[test]
fn what_had_returned_is_in_the_order_that_a_crash_leaves() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let (rounds, crashes) = if deep { (20, 6) } else { (1, 3) };
    let pairs = [["bplustree", "dptree"], ["masstree", "bplustree"], ["hash", "skiplist"], ["dptree", "pset"]];
    for (round, kinds) in (0..rounds).flat_map(|round| pairs.map(|kinds| (round, kinds))) {
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().join("0");
        let builder = || Db::builder().durability(Level::Immediate).no_background_threads().accept_copy(true);
        drop(builder().initial_size(16 << 20).create(&path).unwrap());
        let (clock, mut history) = (AtomicU64::new(1), Vec::new());
        let mut taken = 0;
        for crash in 0..crashes {
            let db = builder().open(&path).unwrap();
            let maps = [words(&db, "a", kinds[0]), words(&db, "b", kinds[1])];
            let (mut begun, mut next, stop) = (0, PathBuf::new(), AtomicBool::new(false));
            let beside = || {
                // Some fifty transactions, however long a flush takes.
                let until = clock.load(SeqCst) + 250;
                while clock.load(SeqCst) < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                begun = clock.fetch_add(1, SeqCst);
                next = copied(&path, &format!("{}", crash + 1));
                stop.store(true, SeqCst);
            };
            history.extend(work(&db, &maps, &clock, 100_000, round * 100 + crash + 1, &stop, beside));
            drop((maps, db));
            path = next;
            let db = builder().open(&path).unwrap();
            let maps = [words(&db, "a", kinds[0]), words(&db, "b", kinds[1])];
            let look = last_look(&maps, &clock);
            let all = history.len();
            history = recovered(history, &look.reads, begun).unwrap_or_else(|what| panic!("{kinds:?}: {what}"));
            taken += all - history.len();
            history.push(look);
            assert_serialisable(kinds, &history);
        }
        println!("{kinds:?}: {} are left, {taken} were lost before they had returned", history.len());
        assert!(history.len() > 20, "{}", history.len());
    }
}

/// Pools without a journal, whose transactions have intents: the process dies when no operation is open, and leaves records to be made again.
#[test]
fn records_that_are_made_again_keep_the_order() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let (rounds, crashes, steps) = if deep { (20, 8, 200) } else { (1, 4, 40) };
    let pairs = [["bplustree", "dptree"], ["hash", "bplustree"], ["dptree", "skiplist"], ["pset", "hash-values"]];
    let options = || PoolOptions::new().initial_size(16 << 20);
    let over = |pool| Db::builder().no_background_threads().over(pool).unwrap();
    for (round, kinds) in (0..rounds).flat_map(|round| pairs.map(|kinds| (round, kinds))) {
        let mut db = over(options().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap());
        let (clock, mut history, never) = (AtomicU64::new(1), Vec::new(), AtomicBool::new(false));
        for crash in 0..crashes {
            if crash % 2 == 1 {
                db.set_idle_tables(1, Duration::ZERO);
            }
            let maps = [words(&db, "a", kinds[0]), words(&db, "b", kinds[1])];
            history.extend(work(&db, &maps, &clock, steps, round * 100 + crash + 1, &never, || {}));
            let (begun, image) = (clock.fetch_add(1, SeqCst), HeapBacking::image_of(db.pool().mapping()));
            assert!(image.windows(8).step_by(64).any(|words| words == b"DURIXtxn"), "no record was written");
            drop(maps);
            let pool = options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
            db = over(pool.recover().unwrap());
            let look = last_look(&[words(&db, "a", kinds[0]), words(&db, "b", kinds[1])], &clock);
            let all = history.len();
            history = recovered(history, &look.reads, begun).unwrap_or_else(|what| panic!("{kinds:?}: {what}"));
            assert_eq!(history.len(), all, "all had returned");
            history.push(look);
            assert_serialisable(kinds, &history);
        }
    }
}
