//! Torture: a process works on a real file under `Shadow`, is killed at a random moment (in recovery and growth too), and
//! what its operations had promised must be found.
//!
//! The test runs itself as a child. Each thread of the child works on keys of its own, in an order that only depends on
//! the seed, and counts in a shared file how many operations it has begun and ended. The parent replays the same
//! operations on a model: ended ones must be found, the one in between may have happened or not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durix_killing::{Board, MAX_SIZE, POOL, Progress, kill, mix, open, rounds, task};
use durix_pmem::{Medium, Mutating, Mutation, Plan, Pool, PoolOptions, SiteKind};
use durix_pset::{PersistentSet, SetOptions};

const THREADS: u64 = 2;
const KEYS: u64 = 40;

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an operation does to a key: a new value, or none.
fn step(seed: u64, thread: u64, number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let random = mix(seed ^ mix(thread << 40 | number));
    let key_number = random % KEYS;
    let mut key = format!("{thread}:{key_number}").into_bytes();
    key.resize(key.len() + (key_number as usize % 4) * 50, b'k');
    let value = !(random >> 20).is_multiple_of(3);
    let len = (random >> 30) % 300;
    (key, value.then(|| (0..len).map(|i| (random >> 8).wrapping_add(i) as u8).collect()))
}

// ---- the child ----

fn work<M: Medium>(pool: &Pool<M>, dir: &Path, seed: u64) {
    let set: Arc<PersistentSet<M>> = PersistentSet::open_with(pool, "set", &SetOptions::default().shards(4)).unwrap();
    let board = Board::open(dir, THREADS);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (set, board) = (&set, &board);
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for number in 0.. {
                    let (key, value) = step(seed, thread, number);
                    board.begin(thread, number);
                    let op = session.enter().unwrap();
                    match value {
                        Some(value) => _ = set.insert(&op, &key, &value).unwrap(),
                        None => _ = set.remove(&op, &key).unwrap(),
                    }
                    drop(op);
                    board.end(thread, number);
                }
            });
        }
    });
}

/// Not a test of its own: the body of the child, which ends when it is killed.
#[test]
fn child() {
    let Some(words) = task() else { return };
    let [dir, seed, mutant] = &words[..] else { panic!("dir seed mutant") };
    let (dir, seed, mutant) = (PathBuf::from(dir), seed.parse().unwrap(), mutant == "mutant");
    if !mutant {
        return work(&open(&dir, seed, |shadow| shadow), &dir, seed);
    }
    let plan = Plan::new();
    let pool = open(&dir, seed, |shadow| Mutating::new(shadow, plan));
    let set: Arc<PersistentSet<_>> = PersistentSet::open(&pool, "set").unwrap();
    let before: BTreeMap<_, _> = plan.sites().into_iter().collect();
    let mut session = pool.session().unwrap();
    set.insert(&session.enter().unwrap(), b"probe", b"").unwrap();
    let fence = plan.sites().into_iter().find(|(site, hits)| {
        site.kind == SiteKind::Fence
            && site.file.contains("pset/src/")
            && before.get(site).copied().unwrap_or(0) < *hits
    });
    plan.mutate(fence.expect("an insert has a fence").0, Mutation::Drop);
    drop((session, set));
    work(&pool, &dir, seed);
}

// ---- the parent ----

struct Torture {
    dir: tempfile::TempDir,
    model: Contents,
    mutant: bool,
}

impl Torture {
    fn new(mutant: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pool: Pool =
            PoolOptions::new().initial_size(1 << 20).max_size(MAX_SIZE).create(dir.path().join(POOL)).unwrap();
        let set: Arc<PersistentSet> = PersistentSet::open(&pool, "set").unwrap();
        drop(set);
        pool.close().unwrap();
        Torture { dir, model: Contents::new(), mutant }
    }

    /// Runs a child for a while and kills it; returns how many operations it had ended.
    fn round(&mut self, seed: u64) -> Result<u64, String> {
        let dir = self.dir.path();
        let board = Board::open(dir, THREADS);
        let task = format!("{} {seed} {}", dir.display(), if self.mutant { "mutant" } else { "sound" });
        kill(&board, &task, seed)?;
        self.verify(&board, seed)
    }

    fn verify(&mut self, board: &Board, seed: u64) -> Result<u64, String> {
        let mut open_ended = BTreeMap::new();
        let mut done = 0;
        for thread in 0..THREADS {
            let Progress { begun, ended } = board.progress(thread);
            done += ended;
            for number in 0..ended {
                apply(&mut self.model, step(seed, thread, number));
            }
            if begun > ended {
                let (key, value) = step(seed, thread, ended);
                open_ended.insert(key, value);
            }
        }
        let pool: Pool = PoolOptions::new().open(self.dir.path().join(POOL)).map_err(|e| e.to_string())?;
        let set: Arc<PersistentSet> = PersistentSet::open(&pool, "set").map_err(|e| e.to_string())?;
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut found = Contents::new();
        set.for_each(&op, |key, value| _ = found.insert(key.to_vec(), value.to_vec())).map_err(|e| e.to_string())?;
        found.remove(&b"probe"[..]);
        if let Some(finding) = set.check(&op).map_err(|e| e.to_string())?.first() {
            return Err(finding.to_string());
        }
        for (key, value) in open_ended {
            if found.get(&key) == value.as_ref() {
                apply(&mut self.model, (key, value));
            }
        }
        if found != self.model {
            let differs = |(k, v): &(&Vec<u8>, &Vec<u8>)| found.get(*k) != Some(*v);
            let lost = self.model.iter().find(differs).map(|(k, _)| String::from_utf8_lossy(k).into_owned());
            return Err(format!("{} entries found, {} promised; wrong: {lost:?}", found.len(), self.model.len()));
        }
        Ok(done)
    }
}

fn apply(model: &mut Contents, (key, value): (Vec<u8>, Option<Vec<u8>>)) {
    match value {
        Some(value) => _ = model.insert(key, value),
        None => _ = model.remove(&key),
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    let rounds = rounds(25);
    let mut torture = Torture::new(false);
    let mut done = 0;
    for round in 0..rounds {
        done += torture.round(round).unwrap_or_else(|e| panic!("round {round} (its number is its seed): {e}"));
    }
    println!("{rounds} kills, {done} acknowledged operations, none lost");
    assert!(done > rounds, "the children hardly worked: {done} operations in {rounds} rounds");
}

#[test]
fn a_set_without_its_fence_is_found_out() {
    let mut torture = Torture::new(true);
    let found = (0..50).find_map(|round| torture.round(1000 + round).err().map(|error| (round, error)));
    let (round, error) = found.expect("50 rounds without the fence lost nothing");
    println!("found in round {round}: {error}");
    assert!(error.contains("promised") || error.contains("wrong"), "lost operations, not something else: {error}");
}
