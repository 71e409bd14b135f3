//! Torture: a process works on a real file under `Shadow`, is killed at a random moment (in recovery and growth too), and
//! what its operations had promised must be found.
//!
//! The test runs itself as a child. Each thread of the child works on keys of its own, in an order that only depends on
//! the seed, and counts in a shared file how many operations it has begun and ended. The parent replays the same
//! operations on a model: ended ones must be found, the one in between may have happened or not.
//!
//! One operation in four is on keys that all threads share. For these the child writes down when each operation began and ended, and
//! what it answered. With what is found after the kill, that is a history with a crash in it, and has to be durably linearizable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durix_crashsim::Contract;
use durix_crashsim::linear::{History, Moment, Moments, Spec, Verdict, check};
use durix_killing::{Board, MAX_SIZE, POOL, Progress, kill, mix, open, rounds, task};
use durix_pmem::{Medium, Mutating, Mutation, Op, Plan, Pool, PoolOptions, SiteKind};
use durix_pset::{PersistentSet, SetOptions};

const THREADS: u64 = 2;
const KEYS: u64 = 40;
/// Keys that all threads share.
const SHARED: u64 = 5;
/// Operations of a thread that have room; it stops there.
const MOST: u64 = 1 << 20;

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

/// An operation on a key that all threads share. Each value comes once, so that an answer names the operation that it comes from.
#[derive(Clone, Copy, Debug)]
enum Shared {
    Insert(u64, u64),
    Update(u64, u64),
    Remove(u64),
    Get(u64),
}

/// The operation with that number, if it is on such a key.
fn shared(seed: u64, thread: u64, number: u64) -> Option<Shared> {
    let random = mix(seed ^ mix(thread << 40 | number) ^ 1);
    let (key, value) = ((random >> 8) % SHARED, number * THREADS + thread);
    (random & 3 == 0).then_some(match random >> 61 {
        0..2 => Shared::Insert(key, value),
        2..4 => Shared::Update(key, value),
        4..6 => Shared::Remove(key),
        _ => Shared::Get(key),
    })
}

impl Shared {
    fn key(self) -> u64 {
        let (Shared::Insert(key, _) | Shared::Update(key, _) | Shared::Remove(key) | Shared::Get(key)) = self;
        key
    }

    /// The value found, or whether it did something.
    fn run<M: Medium>(self, set: &PersistentSet<M>, op: &Op<'_, M>) -> Option<u64> {
        let key = shared_key(self.key());
        match self {
            Shared::Insert(_, value) => Some(u64::from(set.insert(op, &key, &shared_value(value)).unwrap())),
            Shared::Update(_, value) => Some(u64::from(set.update(op, &key, &shared_value(value)).unwrap())),
            Shared::Remove(_) => Some(u64::from(set.remove(op, &key).unwrap())),
            Shared::Get(_) => set.get_vec(op, &key).unwrap().map(|bytes| shared_number(&bytes)),
        }
    }
}

/// A key by itself.
struct Key;

impl Spec for Key {
    type Op = Shared;
    type Ret = Option<u64>;
    type State = Option<u64>;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn step(&self, state: &mut Option<u64>, act: &Shared) -> Option<u64> {
        let there = state.is_some();
        match *act {
            Shared::Insert(_, value) => {
                *state = Some(value);
                Some(u64::from(!there))
            }
            Shared::Update(_, value) => {
                *state = state.map(|_| value);
                Some(u64::from(there))
            }
            Shared::Remove(_) => {
                *state = None;
                Some(u64::from(there))
            }
            Shared::Get(_) => *state,
        }
    }

    fn key(&self, act: &Shared) -> Option<u64> {
        Some(act.key())
    }
}

fn shared_key(number: u64) -> Vec<u8> {
    format!("shared:{number}{}", "-".repeat(number as usize * 40)).into_bytes()
}

fn shared_value(number: u64) -> Vec<u8> {
    let len = [8, 100, 250][number as usize % 3];
    number.to_le_bytes().into_iter().chain((8..len).map(|i| number as u8 ^ i)).collect()
}

fn shared_number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, shared_value(number), "the bytes of no value");
    number
}

/// Whether operations on shared keys, by their moments, explain what is found after the kill, where `before` was found before them.
fn judge(
    before: &BTreeMap<u64, u64>,
    acts: &[(usize, Shared, Moment)],
    found: &BTreeMap<u64, u64>,
) -> Result<(), String> {
    let mut history = History::new();
    for (key, value) in before {
        history.runs(0, Shared::Insert(*key, *value), Some(1));
    }
    history.add_moments(acts);
    history.crash();
    for key in 0..SHARED {
        history.runs(0, Shared::Get(key), found.get(&key).copied());
    }
    match check(&Key, &history, Contract::Strict) {
        Verdict::Legal => Ok(()),
        Verdict::Undecided(_) => Err("the keys that all threads share: undecided".into()),
        Verdict::Illegal(why) => {
            let mut of_key: Vec<_> = acts.iter().filter(|(_, act, _)| Some(act.key()) == why.key).collect();
            of_key.sort_unstable_by_key(|(_, _, moment)| moment.begin);
            let last = &of_key[of_key.len().saturating_sub(12)..];
            Err(format!("wrong: keys of all threads hold {found:?}, after {last:?}: {why}"))
        }
    }
}

fn moments(dir: &Path) -> Moments {
    Moments::open(&dir.join("moments"), MOST).unwrap()
}

// ---- the child ----

fn work<M: Medium>(pool: &Pool<M>, dir: &Path, seed: u64) {
    let set: Arc<PersistentSet<M>> = PersistentSet::open_with(pool, "set", &SetOptions::default().shards(4)).unwrap();
    let board = Board::open(dir, THREADS);
    let moments = moments(dir);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (set, board, moments) = (&set, &board, &moments);
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for number in 0..MOST {
                    let (key, value) = step(seed, thread, number);
                    board.begin(thread, number);
                    if let Some(shared) = shared(seed, thread, number) {
                        moments.call(thread, number, || shared.run(set, &session.enter().unwrap())).unwrap();
                        board.end(thread, number);
                        continue;
                    }
                    let op = session.enter().unwrap();
                    match value {
                        Some(value) => _ = set.insert(&op, &key, &value).unwrap(),
                        None => _ = set.remove(&op, &key).unwrap(),
                    }
                    drop(op);
                    board.end(thread, number);
                }
                // A child that returned would have ended by itself.
                loop {
                    std::thread::park();
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
    /// What the keys that all threads share held after the last kill.
    shared: BTreeMap<u64, u64>,
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
        Torture { dir, model: Contents::new(), shared: BTreeMap::new(), mutant }
    }

    /// Runs a child for a while and kills it; returns how many operations it had ended.
    fn round(&mut self, seed: u64) -> Result<u64, String> {
        let dir = self.dir.path();
        let board = Board::open(dir, THREADS);
        moments(dir).clear().unwrap();
        let task = format!("{} {seed} {}", dir.display(), if self.mutant { "mutant" } else { "sound" });
        kill(&board, &task, seed)?;
        self.verify(&board, seed)
    }

    fn verify(&mut self, board: &Board, seed: u64) -> Result<u64, String> {
        let (mut open_ended, mut acts) = (BTreeMap::new(), Vec::new());
        let moments = moments(self.dir.path());
        let mut done = 0;
        for thread in 0..THREADS {
            let Progress { begun, ended } = board.progress(thread);
            done += ended;
            for number in 0..begun {
                if let Some(shared) = shared(seed, thread, number) {
                    // Counted, and not begun yet: the kill came in between.
                    acts.extend(moments.get(thread, number).unwrap().map(|moment| (thread as usize, shared, moment)));
                } else if number < ended {
                    apply(&mut self.model, step(seed, thread, number));
                } else {
                    let (key, value) = step(seed, thread, number);
                    open_ended.insert(key, value);
                }
            }
        }
        let pool: Pool = PoolOptions::new().open(self.dir.path().join(POOL)).map_err(|e| e.to_string())?;
        let set: Arc<PersistentSet> = PersistentSet::open(&pool, "set").map_err(|e| e.to_string())?;
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut found = Contents::new();
        set.for_each(&op, |key, value| _ = found.insert(key.to_vec(), value.to_vec())).map_err(|e| e.to_string())?;
        found.remove(&b"probe"[..]);
        let of_all = |key| found.remove(&shared_key(key)).map(|bytes| (key, shared_number(&bytes)));
        let shared: BTreeMap<u64, u64> = (0..SHARED).filter_map(of_all).collect();
        judge(&self.shared, &acts, &shared)?;
        self.shared = shared;
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

/// The judge itself.
#[test]
fn a_history_of_shared_keys_is_judged_with_what_is_found() {
    let held = |value: Option<u64>| value.map(|value| (2, value)).into_iter().collect::<BTreeMap<_, _>>();
    let ended = (0, Shared::Insert(2, 7), Moment { begin: 1, end: Some((4, Some(1))) });
    let begun = (0, Shared::Insert(2, 7), Moment { begin: 1, end: None });
    let seen = (1, Shared::Get(2), Moment { begin: 2, end: Some((3, Some(7))) });
    judge(&held(None), &[ended, seen], &held(Some(7))).unwrap();
    judge(&held(None), &[ended], &held(None)).unwrap_err();
    judge(&held(None), &[begun], &held(None)).unwrap();
    judge(&held(None), &[begun], &held(Some(7))).unwrap();
    let lost = judge(&held(None), &[begun, seen], &held(None)).unwrap_err();
    assert!(lost.contains("wrong: keys of all threads hold {}"), "{lost}");
    // It answers that the key was new, and what was there before this child was seen by nobody.
    judge(&held(Some(3)), &[ended], &held(Some(7))).unwrap_err();
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
