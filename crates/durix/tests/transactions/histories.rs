//! Recorded histories of threads are serialisable, in an order that agrees with real time.
//!
//! Every write stores a number of its own and has read the number before, so each key has one known order of versions. A history is
//! serialisable exactly if the graph of its dependencies (version before version, writer before reader, reader before the
//! next writer, ended before begun) has no cycle.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use durix::{Db, Error, Map};

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
    let pairs = [["hash", "skiplist"], ["pset", "hash-fast-open"], ["hash", "masstree"], ["masstree", "masstree"]];
    for (round, kinds) in (0..rounds).flat_map(|round| pairs.map(|kinds| (round, kinds))) {
        let db = memory();
        let maps = [words(&db, "a", kinds[0]), words(&db, "b", kinds[1])];
        let clock = AtomicU64::new(1);
        let mut history: Vec<Done> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let random = 0x9E37_79B9 * (thread as u64 + 1) + round + 1;
                    let maps = [&maps[0], &maps[1]];
                    let mut recorder = Recorder { db: &db, maps, clock: &clock, thread, random };
                    scope.spawn(move || {
                        let mut done = Vec::new();
                        for step in 0..steps {
                            if step % 4 == 3 {
                                done.extend(recorder.plain())
                            } else {
                                done.push(recorder.transaction())
                            }
                        }
                        done
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let end = clock.fetch_add(2, SeqCst);
        let all = (0..2).flat_map(|map| (0..3).map(move |key| (map, key)));
        let reads = all.map(|key: Key| (key, maps[key.0].get(&key.1).unwrap().unwrap_or(0))).collect();
        history.push(Done { thread: 9, begun: end, ended: end + 1, reads, writes: BTreeMap::new() });
        if let Some(cycle) = cycle(&history) {
            let told: Vec<_> = cycle.iter().map(|number| &history[*number]).collect();
            panic!("{kinds:?}: not serialisable: {told:#?}");
        }
    }
}
