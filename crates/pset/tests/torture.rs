//! Torture: a process works on a real file under `Shadow`, is killed at a random moment (in recovery and growth too), and
//! what its operations had promised must be found.
//!
//! The test runs itself as a child. Each thread of the child works on keys of its own, in an order that only depends on
//! the seed, and counts in a shared file how many operations it has begun and ended. The parent replays the same
//! operations on a model: ended ones must be found, the one in between may have happened or not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use durix_pmem::backing::FileBacking;
use durix_pmem::medium::Shadow;
use durix_pmem::{Hardware, Medium, Mutating, Mutation, Plan, Pool, PoolOptions, SiteKind};
use durix_pset::{PersistentSet, SetOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

const THREADS: u64 = 2;
const KEYS: u64 = 40;
const CHILD: &str = "DURIX_TORTURE_CHILD";

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

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

/// Where a thread counts: begun at 0, ended at 8.
struct Counter<'a> {
    file: &'a std::fs::File,
    at: u64,
}

impl Counter<'_> {
    fn set(&self, field: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), self.at + field * 8).unwrap();
    }

    fn get(&self, field: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, self.at + field * 8).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn counters(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn open<M: Medium>(dir: &Path, seed: u64, medium: impl FnOnce(Shadow<Hardware>) -> M) -> Pool<M> {
    let file = FileBacking::create(dir.join("pool")).unwrap();
    let (backing, shadow) = Shadow::over(Hardware::PAGE_CACHE, file, 200, seed);
    let options = PoolOptions::new().max_size(64 << 20);
    options.open_on(backing, medium(shadow)).unwrap().recover().unwrap()
}

fn work<M: Medium>(pool: &Pool<M>, dir: &Path, seed: u64) {
    let set: Arc<PersistentSet<M>> = PersistentSet::open_with(pool, "set", &SetOptions::default().shards(4)).unwrap();
    let file = counters(&dir.join("counters"));
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (set, file) = (&set, &file);
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                let counter = Counter { file, at: thread * 16 };
                for number in 0.. {
                    let (key, value) = step(seed, thread, number);
                    counter.set(0, number + 1);
                    let op = session.enter().unwrap();
                    match value {
                        Some(value) => _ = set.insert(&op, &key, &value).unwrap(),
                        None => _ = set.remove(&op, &key).unwrap(),
                    }
                    drop(op);
                    counter.set(1, number + 1);
                }
            });
        }
    });
}

/// Not a test of its own: the body of the child, which ends when it is killed.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    end_at_the_first_panic();
    let mut words = task.split(' ');
    let mut word = || words.next().expect("dir seed mutant");
    let (dir, seed, mutant) = (PathBuf::from(word()), word().parse().unwrap(), word() == "mutant");
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

/// A panic in any thread ends the child at once, and is told: after the kill nobody would hear of it.
fn end_at_the_first_panic() {
    std::panic::set_hook(Box::new(|info| {
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{info}");
        std::process::exit(70);
    }));
}

// ---- the parent ----

/// Waits until a child has begun its first operation, or has ended. On a busy machine its start may take longer than its life is
/// to be; the kills that come before are those of every fourth round.
fn wait_until_at_work(file: &std::fs::File, child: &mut std::process::Child) {
    let begun = || (0..THREADS).any(|thread| Counter { file, at: thread * 16 }.get(0) > 0);
    while !begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(500));
    }
}

struct Torture {
    dir: tempfile::TempDir,
    model: Contents,
    mutant: bool,
}

impl Torture {
    fn new(mutant: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pool: Pool =
            PoolOptions::new().initial_size(1 << 20).max_size(64 << 20).create(dir.path().join("pool")).unwrap();
        let set: Arc<PersistentSet> = PersistentSet::open(&pool, "set").unwrap();
        drop(set);
        pool.close().unwrap();
        Torture { dir, model: Contents::new(), mutant }
    }

    /// Runs a child for a while and kills it; returns how many operations it had ended.
    fn round(&mut self, seed: u64) -> Result<u64, String> {
        let dir = self.dir.path();
        let file = counters(&dir.join("counters"));
        file.set_len(0).unwrap();
        file.set_len(THREADS * 16).unwrap();
        let task = format!("{} {seed} {}", dir.display(), if self.mutant { "mutant" } else { "sound" });
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--test-threads=1"])
            .env(CHILD, task)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if !seed.is_multiple_of(4) {
            wait_until_at_work(&file, &mut child);
        }
        std::thread::sleep(Duration::from_micros(3000 + mix(seed) % 45_000));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        // What it told counts, too, if the kill came before its end.
        if output.status.code().is_some() || !output.stderr.is_empty() {
            return Err(format!("the child ended by itself: {}", String::from_utf8_lossy(&output.stderr)));
        }
        self.verify(&file, seed)
    }

    fn verify(&mut self, file: &std::fs::File, seed: u64) -> Result<u64, String> {
        let mut open_ended = BTreeMap::new();
        let mut done = 0;
        for thread in 0..THREADS {
            let counter = Counter { file, at: thread * 16 };
            let (begun, ended) = (counter.get(0), counter.get(1));
            done += ended;
            for number in 0..ended {
                apply(&mut self.model, step(seed, thread, number));
            }
            if begun > ended {
                let (key, value) = step(seed, thread, ended);
                open_ended.insert(key, value);
            }
        }
        let pool: Pool = PoolOptions::new().open(self.dir.path().join("pool")).map_err(|e| e.to_string())?;
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
    let rounds = std::env::var("DURIX_TORTURE_ROUNDS").ok().and_then(|r| r.parse().ok());
    let rounds = rounds.unwrap_or(if std::env::var_os("DURIX_DEEP").is_some() { 500 } else { 25 });
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
