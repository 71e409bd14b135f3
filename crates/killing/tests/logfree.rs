//! Torture: a process works on a real file under `Shadow`, is killed at a random moment (in recovery and growth too), and
//! what its operations had promised must be found, and nothing leaked.
//!
//! The test runs itself as a child. Each of its threads works on keys of its own, which share buckets and neighbours with
//! the others', in an order that only depends on the seed, and counts in a shared file how many operations it has begun and
//! ended. The parent replays the same operations on a model: ended ones must be found, the one in between may have happened
//! or not.
//!
//! One operation in four is on keys that all threads share. For these the child writes down when each operation began and ended, and
//! what it answered. With what is found after the kill, that is a history with a crash in it, and has to be durably linearizable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durix_crashsim::Contract;
use durix_crashsim::linear::{History, Moment, Moments, Spec, Verdict, check};
use durix_index::Entry;
use durix_killing::{Board, MAX_SIZE, POOL, Progress, kill, mix, open, rounds, task};
use durix_logfree::testing::Act::{self, Get, Insert, Remove, Update};
use durix_logfree::testing::{Contents, Listed, Map, Visit, each, run, small, step};
use durix_logfree::{BytesHash, Error, HashTable, LinkCacheMode, List, Options, SoftHash};
use durix_pmem::testing::Shadow;
use durix_pmem::{Error as PoolError, Hardware, Medium, Mutating, Mutation, Plan, Pool, PoolOptions, SiteKind};

const THREADS: u64 = 4;
const KEYS: u64 = 40;
/// Keys that all threads share, from this one on.
const SHARED: u64 = 1000;
const SHARED_KEYS: u64 = 5;
/// Operations of a thread whose moments have room; it stops there.
const MOST: u64 = 1 << 20;

/// The operation with that number. Keys of threads alternate.
fn act(seed: u64, thread: u64, number: u64) -> Act {
    let random = mix(seed ^ mix(thread << 40 | number));
    if random >> 36 & 3 == 0 {
        // Each value once, so that an answer names the operation that it comes from.
        let (key, value) = (SHARED + (random >> 40) % SHARED_KEYS, number * THREADS + thread);
        return match random >> 61 {
            0..2 => Insert(key, value),
            2..4 => Remove(key),
            4..6 => Update(key, value),
            _ => Get(key),
        };
    }
    let (key, value) = (random % KEYS * THREADS + thread, random >> 8);
    match (random >> 60) % 8 {
        0..3 => Insert(key, value),
        3..6 => Remove(key),
        _ => Update(key, value),
    }
}

// ---- the child ----

fn moments(dir: &Path) -> Moments {
    Moments::open(&dir.join("moments"), MOST).unwrap()
}

fn is_shared(act: &Act) -> bool {
    matches!(act, Insert(key, _) | Remove(key) | Update(key, _) | Get(key) if *key >= SHARED)
}

fn work<M: Medium, S: Map<M>>(pool: &Pool<M>, dir: &Path, seed: u64, options: &S::Options) {
    let map: Arc<S> = pool.open_structure("map", options).unwrap();
    let board = Board::open(dir, THREADS);
    let moments = moments(dir);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (map, board, moments) = (&map, &board, &moments);
            s.spawn(move || {
                let mut session = pool.session().unwrap();
                for number in 0..MOST {
                    let act = act(seed, thread, number);
                    board.begin(thread, number);
                    let mut run = || run(&**map, &session.enter().unwrap(), &act);
                    if is_shared(&act) {
                        moments.call(thread, number, run).unwrap();
                    } else {
                        run();
                    }
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

/// The fence that makes an update durable is left out.
fn mutate<S: Map<Mutating<Shadow<Hardware>>>>(pool: &Pool<Mutating<Shadow<Hardware>>>, plan: &'static Plan) {
    let map: Arc<S> = pool.open_structure("map", &S::small()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    map.insert(&op, u64::MAX, 1).unwrap();
    let before: BTreeMap<_, _> = plan.sites().into_iter().collect();
    map.remove(&op, u64::MAX).unwrap();
    let fence = plan.sites().into_iter().find(|(site, hits)| {
        site.kind == SiteKind::Fence
            && site.file.contains("logfree/src")
            && !site.file.contains("/src/testing")
            && before.get(site).copied().unwrap_or(0) < *hits
    });
    plan.mutate(fence.expect("a remove has a fence").0, Mutation::Drop);
}

fn unsound<S: Map<Mutating<Shadow<Hardware>>>>(dir: &Path, seed: u64) {
    let plan = Plan::new();
    let pool = open(dir, seed, |shadow| Mutating::new(shadow, plan));
    mutate::<S>(&pool, plan);
    work::<_, S>(&pool, dir, seed, &S::small());
}

fn sound<S: Map<Shadow<Hardware>>>(dir: &Path, seed: u64, options: &S::Options) {
    work::<_, S>(&open(dir, seed, |shadow| shadow), dir, seed, options);
}

/// Few lines, so that threads meet in them.
fn link_cache() -> Options {
    small().link_cache(LinkCacheMode::Durable, 2)
}

/// Not a test of its own: the body of the child, which ends when it is killed.
#[test]
fn child() {
    let Some(words) = task() else { return };
    let [kind, dir, seed, mutant] = &words[..] else { panic!("kind dir seed mutant") };
    let (dir, seed, mutant) = (PathBuf::from(dir), seed.parse().unwrap(), mutant == "mutant");
    match (kind.as_str(), mutant) {
        ("hash", true) => unsound::<SoftHash<_>>(&dir, seed),
        ("hash-fast-open", true) => unsound::<HashTable<_>>(&dir, seed),
        ("list-link-cache", _) => sound::<List<_>>(&dir, seed, &link_cache()),
        ("hash-fast-open-link-cache", _) => sound::<HashTable<_>>(&dir, seed, &link_cache()),
        // The options of tests give every second key the same hash: no record holds so many keys.
        ("hash-bytes", _) => sound::<BytesHash<_>>(&dir, seed, &small().hash_bits(64)),
        (kind, _) => each(&mut Child { kind, dir: &dir, seed }),
    }
}

/// The child works on the map of a kind.
struct Child<'a> {
    kind: &'a str,
    dir: &'a Path,
    seed: u64,
}

impl Visit<Shadow<Hardware>> for Child<'_> {
    fn map<S: Listed<Shadow<Hardware>>>(&mut self, entry: Entry<Shadow<Hardware>>) {
        if entry.name == self.kind {
            sound::<S>(self.dir, self.seed, &S::small());
        }
    }
}

// ---- the parent ----

/// A key by itself.
struct Key;

impl Spec for Key {
    type Op = Act;
    type Ret = Option<u64>;
    type State = Option<u64>;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn step(&self, state: &mut Option<u64>, act: &Act) -> Option<u64> {
        let mut one: Contents = state.map(|value| (0, value)).into_iter().collect();
        let answer = match *act {
            Insert(_, value) => step(&mut one, &Insert(0, value)),
            Remove(_) => step(&mut one, &Remove(0)),
            Update(_, value) => step(&mut one, &Update(0, value)),
            _ => step(&mut one, &Get(0)),
        };
        *state = one.get(&0).copied();
        answer
    }

    fn key(&self, act: &Act) -> Option<u64> {
        let (Insert(key, _) | Remove(key) | Update(key, _) | Get(key)) = act else {
            unreachable!("nothing else is run")
        };
        Some(*key)
    }
}

/// Whether operations on shared keys, by their moments, explain what is found after the kill, where `before` was found before them.
fn judge(before: &Contents, acts: &[(usize, Act, Moment)], found: &Contents) -> Result<(), String> {
    let mut history = History::new();
    for (key, value) in before {
        history.runs(0, Insert(*key, *value), Some(*value));
    }
    history.add_moments(acts);
    history.crash();
    for key in SHARED..SHARED + SHARED_KEYS {
        history.runs(0, Get(key), found.get(&key).copied());
    }
    match check(&Key, &history, Contract::Strict) {
        Verdict::Legal => Ok(()),
        Verdict::Undecided(_) => Err("the keys that all threads share: undecided".into()),
        Verdict::Illegal(why) => {
            let key = why.key.unwrap_or(0);
            let mut of_key: Vec<_> = acts.iter().filter(|(_, act, _)| Key.key(act) == why.key).collect();
            of_key.sort_unstable_by_key(|(_, _, moment)| moment.begin);
            let last = &of_key[of_key.len().saturating_sub(12)..];
            Err(format!("wrong: key {key} of all threads holds {:?}, after {last:?}: {why}", found.get(&key)))
        }
    }
}

struct Torture {
    kind: &'static str,
    dir: tempfile::TempDir,
    model: Contents,
    /// What the keys that all threads share held after the last kill.
    shared: Contents,
    mutant: bool,
}

impl Torture {
    fn new(kind: &'static str, mutant: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = PoolOptions::new().initial_size(1 << 20).max_size(MAX_SIZE);
        options.create(dir.path().join(POOL)).unwrap().close().unwrap();
        Torture { kind, dir, model: Contents::new(), shared: Contents::new(), mutant }
    }

    /// Runs a child for a while and kills it; returns how many operations it had ended.
    fn round<S: Map<Hardware>>(&mut self, seed: u64) -> Result<u64, String> {
        let dir = self.dir.path();
        let board = Board::open(dir, THREADS);
        moments(dir).clear().unwrap();
        let task = format!("{} {} {seed} {}", self.kind, dir.display(), if self.mutant { "mutant" } else { "sound" });
        kill(&board, &task, seed)?;
        self.verify::<S>(&board, seed)
    }

    fn verify<S: Map<Hardware>>(&mut self, board: &Board, seed: u64) -> Result<u64, String> {
        let (mut open_ended, mut shared) = (Vec::new(), Vec::new());
        let moments = moments(self.dir.path());
        let mut done = 0;
        for thread in 0..THREADS {
            let Progress { begun, ended } = board.progress(thread);
            done += ended;
            for number in 0..begun {
                let act = act(seed, thread, number);
                if is_shared(&act) {
                    // Counted, and not begun yet: the kill came in between.
                    shared.extend(moments.get(thread, number).unwrap().map(|moment| (thread as usize, act, moment)));
                } else if number < ended {
                    step(&mut self.model, &act);
                } else {
                    open_ended.push(act);
                }
            }
        }
        let pool: Pool = PoolOptions::new().open(self.dir.path().join(POOL)).map_err(|e| e.to_string())?;
        // Not made here where the kill came before: the child has options of its own.
        let map: Arc<S> = match pool.open_existing("map", &S::small()) {
            Err(Error::Pool(PoolError::NoSuchIndex { .. })) if self.model.is_empty() && done == 0 => return Ok(done),
            opened => opened.map_err(|e: Error| e.to_string())?,
        };
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut found = Contents::new();
        map.for_each(&op, &mut |key, value| _ = found.insert(key, value)).map_err(|e| e.to_string())?;
        found.remove(&u64::MAX);
        let found_shared = found.split_off(&SHARED);
        judge(&self.shared, &shared, &found_shared)?;
        self.shared = found_shared;
        if let Some(finding) = map.check(&op).map_err(|e| e.to_string())?.first() {
            return Err(finding.to_string());
        }
        for act in open_ended {
            // Threads have keys of their own: each open operation is judged by its own key.
            let (Insert(key, _) | Remove(key) | Update(key, _)) = act else { unreachable!("nothing else is run") };
            let mut after = self.model.clone();
            step(&mut after, &act);
            if found.get(&key) == after.get(&key) {
                self.model = after;
            }
        }
        if found != self.model {
            let wrong: Vec<_> = (0..KEYS * THREADS).filter(|k| found.get(k) != self.model.get(k)).collect();
            return Err(format!("{} keys found, {} promised; wrong: {wrong:?}", found.len(), self.model.len()));
        }
        Ok(done)
    }
}

/// The judge itself.
#[test]
fn a_history_of_shared_keys_is_judged_with_what_is_found() {
    let held = |value: Option<u64>| value.map(|value| (SHARED, value)).into_iter().collect::<Contents>();
    let act = |thread, act, begin, end, answer| {
        let end = (end > 0).then_some((end, answer));
        (thread, act, Moment { begin, end })
    };
    let ended = act(0, Insert(SHARED, 7), 1, 4, Some(7));
    let seen = act(1, Get(SHARED), 2, 3, Some(7));
    // Ended, or seen by somebody, it stays; begun, it may be there.
    judge(&held(None), &[ended.clone(), seen.clone()], &held(Some(7))).unwrap();
    judge(&held(None), std::slice::from_ref(&ended), &held(None)).unwrap_err();
    let begun = act(0, Insert(SHARED, 7), 1, 0, None);
    for found in [None, Some(7)] {
        judge(&held(None), std::slice::from_ref(&begun), &held(found)).unwrap();
    }
    let lost = judge(&held(None), &[begun.clone(), seen], &held(None)).unwrap_err();
    assert!(lost.contains("wrong: key 1000 of all threads holds None"), "{lost}");
    // What was there before this child counts, and answers do.
    judge(&held(Some(3)), &[act(1, Remove(SHARED), 5, 6, Some(3)), begun.clone()], &held(Some(7))).unwrap();
    judge(&held(Some(3)), &[act(1, Remove(SHARED), 5, 6, Some(4)), begun], &held(None)).unwrap_err();
    // Two removals of one key.
    let both = [act(0, Remove(SHARED), 1, 3, Some(3)), act(1, Remove(SHARED), 2, 4, Some(3))];
    judge(&held(Some(3)), &both, &held(None)).unwrap_err();
}

fn nothing_is_lost<S: Map<Hardware>>(kind: &'static str) {
    let rounds = rounds(15);
    let mut torture = Torture::new(kind, false);
    let mut done = 0;
    for round in 0..rounds {
        done += torture.round::<S>(round).unwrap_or_else(|e| panic!("round {round} (its number is its seed): {e}"));
    }
    println!("{kind}: {rounds} kills, {done} acknowledged operations, none lost");
    assert!(done > rounds, "the children hardly worked: {done} operations in {rounds} rounds");
}

struct NothingIsLost;

impl Visit<Hardware> for NothingIsLost {
    fn map<S: Listed<Hardware>>(&mut self, entry: Entry) {
        nothing_is_lost::<S>(entry.name);
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    each(&mut NothingIsLost);
    nothing_is_lost::<List>("list-link-cache");
    nothing_is_lost::<HashTable>("hash-fast-open-link-cache");
}

fn is_found_out<S: Map<Hardware>>(kind: &'static str) {
    let mut torture = Torture::new(kind, true);
    let found = (0..80).find_map(|round| torture.round::<S>(1000 + round).err().map(|error| (round, error)));
    let (round, error) = found.expect("80 rounds without the fence lost nothing");
    println!("{kind}: found in round {round}: {error}");
    assert!(!error.contains("ended by itself"), "lost operations, not something else: {error}");
}

#[test]
fn a_map_without_its_fence_is_found_out() {
    is_found_out::<HashTable>("hash-fast-open");
    is_found_out::<SoftHash>("hash");
}
