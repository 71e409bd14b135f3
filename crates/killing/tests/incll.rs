//! Torture: a process works on a real file under `Shadow`, with writers, a scanner, and boundaries by ticks and `sync`; it
//! is killed at a random moment, in recovery too. What was promised must be found, and what is found must be one
//! consistent cut. With `DURIX_DEEP` set, 500 rounds on a million keys.
//!
//! The test runs itself as a child. Each writer works on keys of its own, in an order that only depends on the seed, and
//! in the same operation notes in the tree how many operations it has done and how many of the others' it had seen to
//! end. So a tree says which cut it is: the parent replays that many operations on a model, and everything must agree.
//!
//! One operation in four is on keys that both writers share. For these the child writes down when each operation began and ended, and
//! what it answered. Those of the cut, with what is found, are a history with a crash in it, and have to be durably linearizable.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use durix_crashsim::Contract;
use durix_crashsim::linear::{History, Moment, Moments, Spec, Verdict, check};
use durix_incll::Masstree;
use durix_killing::{Board, POOL, Progress, kill_when, mix, open_up_to, rounds, task};
use durix_pmem::{Medium, Mutating, Mutation, Op, Plan, Pool, PoolOptions, Session, SiteKind};

const WRITERS: u64 = 2;
/// Keys that both writers share.
const SHARED: u64 = 5;
/// Operations of a writer that have room; it stops there.
const MOST: u64 = 1 << 22;

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// How much is done.
#[derive(Clone, Copy)]
struct Size {
    /// Keys of a writer.
    keys: u64,
    /// Bytes of the pool at most.
    pool: u64,
    /// The longest life of a child in microseconds.
    life: u64,
}

const QUICK: Size = Size { keys: 60, pool: 64 << 20, life: 50_000 };
const DEEP: Size = Size { keys: 500_000, pool: 1 << 30, life: 900_000 };

/// Eight bytes for most; for some two layers and a suffix.
fn key(writer: u64, number: u64) -> Vec<u8> {
    let mut key = (writer << 48 | mix(number) >> 24 << 8 | number & 0xff).to_be_bytes().to_vec();
    if number.is_multiple_of(8) {
        key.truncate(2);
        key.extend(format!("shared--prefix{number}").into_bytes());
    }
    key
}

/// In place for most; out of line for some, and now and then in an extent of its own.
fn value(random: u64) -> Vec<u8> {
    let len = match random % 64 {
        0 => 20_000,
        1..12 => random as usize / 64 % 300,
        _ => 8,
    };
    (0..len).map(|i| (random >> 8).wrapping_add(i as u64) as u8).collect()
}

/// What an operation does to a key: a new value, or none.
fn step(size: Size, seed: u64, writer: u64, number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let random = mix(seed ^ mix(writer << 40 | number));
    (key(writer, random % size.keys), (random >> 40 & 3 != 0).then(|| value(random >> 20)))
}

/// An operation on a key that both writers share: a new value, or none. Each value comes once.
#[derive(Clone, Copy, Debug)]
struct Shared {
    key: u64,
    value: Option<u64>,
}

/// The operation with that number, if it is on such a key.
fn shared(seed: u64, writer: u64, number: u64) -> Option<Shared> {
    let random = mix(seed ^ mix(writer << 40 | number) ^ 1);
    let value = (random >> 40 & 3 != 0).then_some(number * WRITERS + writer);
    (random & 3 == 0).then_some(Shared { key: (random >> 8) % SHARED, value })
}

/// Beside those of the writers, in one layer or in two.
fn shared_key(number: u64) -> Vec<u8> {
    [b"\x80shared-".as_slice(), &b"with more "[..number as usize * 2], &[number as u8]].concat()
}

/// In place, or out of line.
fn shared_value(number: u64) -> Vec<u8> {
    let len = [8, 20, 250][number as usize % 3];
    number.to_le_bytes().into_iter().chain((8..len).map(|i| number as u8 ^ i)).collect()
}

fn shared_number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, shared_value(number), "the bytes of no value");
    number
}

impl Shared {
    /// Whether the key was there before.
    fn run<M: Medium>(self, tree: &Masstree<M>, op: &Op<'_, M>) -> bool {
        let key = shared_key(self.key);
        match self.value {
            Some(value) => !tree.insert(op, &key, &shared_value(value)).unwrap(),
            None => tree.remove(op, &key).unwrap(),
        }
    }
}

/// A key by itself. What is found after the kill is told by an operation that removes nothing: see [`judge`].
struct Key;

#[derive(Clone, Copy, Debug)]
enum Seen {
    Change(Shared),
    Found(u64),
}

impl Spec for Key {
    type Op = Seen;
    type Ret = Option<u64>;
    type State = Option<u64>;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn step(&self, state: &mut Option<u64>, seen: &Seen) -> Option<u64> {
        match seen {
            Seen::Change(shared) => Some(u64::from(std::mem::replace(state, shared.value).is_some())),
            Seen::Found(_) => *state,
        }
    }

    fn key(&self, seen: &Seen) -> Option<u64> {
        let (Seen::Change(Shared { key, .. }) | Seen::Found(key)) = seen;
        Some(*key)
    }
}

/// Whether the operations of a cut on shared keys, by their moments, explain what is found, where `before` was found before them.
fn judge(
    before: &BTreeMap<u64, u64>,
    acts: &[(usize, Seen, Moment)],
    found: &BTreeMap<u64, u64>,
) -> Result<(), String> {
    let mut history = History::new();
    for (key, value) in before {
        history.runs(0, Seen::Change(Shared { key: *key, value: Some(*value) }), Some(0));
    }
    history.add_moments(acts);
    history.crash();
    for key in 0..SHARED {
        history.runs(0, Seen::Found(key), found.get(&key).copied());
    }
    match check(&Key, &history, Contract::Strict) {
        Verdict::Legal => Ok(()),
        Verdict::Undecided(_) => Err("the keys that both writers share: undecided".into()),
        Verdict::Illegal(why) => {
            let mut of_key: Vec<_> = acts.iter().filter(|(_, act, _)| Key.key(act) == why.key).collect();
            of_key.sort_unstable_by_key(|(_, _, moment)| moment.begin);
            let last = &of_key[of_key.len().saturating_sub(12)..];
            Err(format!("wrong: keys of both writers hold {found:?}, after {last:?}: {why}"))
        }
    }
}

fn moments(dir: &Path) -> Moments {
    Moments::open(&dir.join("moments"), MOST).unwrap()
}

/// Where a writer says which operation of which round was its last, and how many of the other's it had seen.
fn mark_of(writer: u64) -> Vec<u8> {
    vec![0xff, writer as u8]
}

fn mark(seed: u64, done: u64, seen: u64) -> Vec<u8> {
    [seed, done, seen].into_iter().flat_map(u64::to_le_bytes).collect()
}

fn read_mark(bytes: &[u8]) -> [u64; 3] {
    [0, 8, 16].map(|at| bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap())))
}

// ---- the child ----

fn work<M: Medium>(pool: &Pool<M>, dir: &Path, size: Size, seed: u64) {
    let tree = Masstree::open(pool, "tree").unwrap();
    tree.epochs().set_interval(Duration::from_millis(1));
    let (board, done) = (Board::open(dir, WRITERS), [(); WRITERS as usize].map(|()| AtomicU64::new(0)));
    let moments = moments(dir);
    std::thread::scope(|s| {
        for writer in 0..WRITERS {
            let (tree, board, done, moments) = (&tree, &board, &done, &moments);
            s.spawn(move || write(tree, &mut pool.session().unwrap(), (writer, board, moments), done, size, seed));
        }
        s.spawn(|| scan(&tree, &mut pool.session().unwrap(), seed));
    });
}

fn write<M: Medium>(
    tree: &Masstree<M>,
    session: &mut Session<M>,
    (writer, board, moments): (u64, &Board, &Moments),
    done: &[AtomicU64],
    size: Size,
    seed: u64,
) {
    let (mut ticket, mut promised) = (None, 0);
    // All that a checkpoint covers is promised.
    let mut promise = |done: u64| {
        promised = promised.max(done);
        board.end(writer, promised - 1);
    };
    for number in 0.. {
        let (key, value) = step(size, seed, writer, number);
        board.begin(writer, number);
        {
            let op = session.enter().unwrap();
            let seen = done[(1 - writer) as usize].load(Ordering::SeqCst);
            match (shared(seed, writer, number).filter(|_| number < MOST), value) {
                (Some(shared), _) => {
                    moments.call(writer, number, || Some(u64::from(shared.run(tree, &op)))).unwrap();
                }
                (None, Some(value)) => _ = tree.insert(&op, &key, &value).unwrap(),
                (None, None) => _ = tree.remove(&op, &key).unwrap(),
            }
            tree.insert(&op, &mark_of(writer), &mark(seed, number + 1, seen)).unwrap();
            if ticket.is_none() {
                ticket = Some((tree.ticket(&op), number + 1));
            }
        }
        done[writer as usize].store(number + 1, Ordering::SeqCst);
        if number.is_multiple_of(8) {
            tree.tick(session).unwrap();
        }
        if number % 300 == 299 {
            tree.sync(session).unwrap();
            promise(number + 1);
        }
        if let Some((_, done)) = ticket.take_if(|(ticket, _)| tree.epochs().is_durable(*ticket)) {
            promise(done);
        }
    }
}

/// Scans for ever: keys ascend, and what a writer has done never becomes less.
fn scan<M: Medium>(tree: &Masstree<M>, session: &mut Session<M>, seed: u64) {
    let mut last = [0; WRITERS as usize];
    let mut from = Vec::new();
    loop {
        let op = session.enter().unwrap();
        let (mut left, mut before) = (200, from.clone());
        tree.range(&op, Bound::Excluded(&from), Bound::Unbounded, |key, value| {
            assert!(key > &before[..], "keys out of order");
            before = key.to_vec();
            if let [0xff, writer] = *key {
                let [round, done, _] = read_mark(&value.to_vec());
                assert!(round == seed || last[writer as usize] == 0, "the mark of an earlier round again");
                if round == seed {
                    assert!(done >= last[writer as usize], "an older state");
                    last[writer as usize] = done;
                }
            }
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        from = if left == 0 { before } else { Vec::new() };
    }
}

/// Not a test of its own: the body of the child, which ends when it is killed.
#[test]
fn child() {
    let Some(words) = task() else { return };
    let [dir, seed, size, mutant] = &words[..] else { panic!("dir seed size mutant") };
    let (dir, seed) = (PathBuf::from(dir), seed.parse().unwrap());
    let size = if size == "deep" { DEEP } else { QUICK };
    if mutant == "sound" {
        return work(&open_up_to(size.pool, &dir, seed, |shadow| shadow), &dir, size, seed);
    }
    // The write-backs of a boundary: the site that is met again and again when many lines are dirty.
    let plan = Plan::new();
    let pool = open_up_to(size.pool, &dir, seed, |shadow| Mutating::new(shadow, plan));
    {
        // In another tree: what is done to this one is not promised.
        let tree = Masstree::open(&pool, "probe").unwrap();
        let mut session = pool.session().unwrap();
        (0..100).for_each(|n| _ = tree.insert(&session.enter().unwrap(), &key(0, n), &value(n)).unwrap());
        let before: BTreeMap<_, _> = plan.sites().into_iter().collect();
        tree.sync(&mut session).unwrap();
        let hits = |(site, now): &(durix_pmem::Site, u64)| now - before.get(site).copied().unwrap_or(0);
        let in_epochs = plan
            .sites()
            .into_iter()
            .filter(|(site, _)| site.kind == SiteKind::WriteBack && site.file.contains("epoch"));
        plan.mutate(in_epochs.max_by_key(hits).expect("a boundary writes back").0, Mutation::Drop);
    }
    work(&pool, &dir, size, seed);
}

// ---- the parent ----

struct Torture {
    dir: tempfile::TempDir,
    model: Contents,
    /// What the keys that both writers share held after the last kill.
    shared: BTreeMap<u64, u64>,
    size: Size,
    mutant: bool,
    failed_ranges: usize,
}

impl Torture {
    fn new(size: Size, mutant: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = PoolOptions::new().initial_size(8 << 20).max_size(size.pool);
        let pool: Pool = options.create(dir.path().join(POOL)).unwrap();
        let mut model = Contents::new();
        {
            let tree = Masstree::open(&pool, "tree").unwrap();
            let mut session = pool.session().unwrap();
            for (writer, number) in (0..WRITERS).flat_map(|w| (0..size.keys).map(move |n| (w, n))) {
                let (key, value) = (key(writer, number), number.to_le_bytes());
                tree.insert(&session.enter().unwrap(), &key, &value).unwrap();
                model.insert(key, value.to_vec());
                tree.tick(&mut session).unwrap();
            }
        }
        pool.close().unwrap();
        Torture { dir, model, shared: BTreeMap::new(), size, mutant, failed_ranges: 0 }
    }

    /// Runs a child for a while and kills it; returns how many operations were found.
    fn round(&mut self, seed: u64) -> Result<u64, String> {
        let dir = self.dir.path();
        let board = Board::open(dir, WRITERS);
        moments(dir).clear().unwrap();
        let size = if self.size.keys == DEEP.keys { "deep" } else { "quick" };
        let mutant = if self.mutant { "mutant" } else { "sound" };
        // The kills before anything is promised are those of every fourth round.
        let has_promised = || seed.is_multiple_of(4) || board.total().ended > 0;
        let more = Duration::from_micros(3000 + mix(seed) % self.size.life);
        kill_when(&board, &format!("{} {seed} {size} {mutant}", dir.display()), has_promised, more)?;
        self.verify(&board, seed)
    }

    fn verify(&mut self, board: &Board, seed: u64) -> Result<u64, String> {
        let pool: Pool = PoolOptions::new().open(self.dir.path().join(POOL)).map_err(|e| e.to_string())?;
        let tree = Masstree::open(&pool, "tree").map_err(|e| e.to_string())?;
        self.failed_ranges = self.failed_ranges.max(tree.epochs().stats().failed_ranges);
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        if let Some(finding) = tree.check(&op).map_err(|e| e.to_string())?.first() {
            return Err(finding.to_string());
        }
        let mut found = Contents::new();
        let mut all = |key: &[u8], value: durix_incll::Value<'_, _>| {
            found.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        };
        tree.range(&op, Bound::Unbounded, Bound::Unbounded, &mut all).map_err(|e| e.to_string())?;
        let marks: Vec<_> = (0..WRITERS).map(|w| found.remove(&mark_of(w)).unwrap_or_default()).collect();
        let of_both = |key| found.remove(&shared_key(key)).map(|bytes| (key, shared_number(&bytes)));
        let found_shared: BTreeMap<u64, u64> = (0..SHARED).filter_map(of_both).collect();
        let (moments, mut acts) = (moments(self.dir.path()), Vec::new());
        let mut done = [0; WRITERS as usize];
        let mut seen = [0; WRITERS as usize];
        for writer in 0..WRITERS as usize {
            if let [round, count, other] = read_mark(&marks[writer])
                && round == seed
            {
                (done[writer], seen[writer]) = (count, other);
            }
            let Progress { begun, ended: promised } = board.progress(writer as u64);
            if !(promised..=begun).contains(&done[writer]) {
                return Err(format!("{} operations found, {promised} promised, {begun} begun", done[writer]));
            }
            for number in 0..done[writer] {
                match shared(seed, writer as u64, number).filter(|_| number < MOST) {
                    Some(shared) => {
                        let moment = moments.get(writer as u64, number).unwrap().ok_or("found, and never begun")?;
                        acts.push((writer, Seen::Change(shared), moment));
                    }
                    None => apply(&mut self.model, step(self.size, seed, writer as u64, number)),
                }
            }
        }
        if seen[0] > done[1] || seen[1] > done[0] {
            return Err(format!("no consistent cut: {done:?} done, {seen:?} of each other seen"));
        }
        judge(&self.shared, &acts, &found_shared)?;
        self.shared = found_shared;
        if found != self.model {
            let differs = |(k, v): &(&Vec<u8>, &Vec<u8>)| found.get(*k) != Some(*v);
            let wrong = self.model.iter().find(differs).map(|(k, _)| k.clone());
            return Err(format!("{} entries found, {} promised; wrong: {wrong:x?}", found.len(), self.model.len()));
        }
        Ok(done.iter().sum())
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
    let change = |writer, value, begin, end, was| {
        (writer, Seen::Change(Shared { key: 2, value }), Moment { begin, end: Some((end, Some(was))) })
    };
    let (first, second) = (change(0, Some(7), 1, 4, 0), change(1, Some(8), 2, 3, 1));
    judge(&held(None), &[first, second], &held(Some(8))).unwrap();
    // The second found a key that only the first can have made.
    let wrong = judge(&held(None), &[first, second], &held(Some(7))).unwrap_err();
    assert!(wrong.contains("wrong: keys of both writers hold {2: 7}"), "{wrong}");
    judge(&held(None), &[second], &held(Some(8))).unwrap_err();
    judge(&held(Some(3)), &[second], &held(Some(8))).unwrap();
    judge(&held(Some(3)), &[change(0, None, 1, 2, 1)], &held(Some(3))).unwrap_err();
}

#[test]
fn nothing_promised_is_lost_and_what_is_found_is_one_cut() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let rounds = rounds(25);
    let mut torture = Torture::new(if deep { DEEP } else { QUICK }, false);
    let mut done = 0;
    // From 1 on: zero is what an unwritten mark says.
    let first = std::env::var("DURIX_TORTURE_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(1u64).max(1);
    for round in first..first + rounds {
        done += torture.round(round).unwrap_or_else(|e| panic!("round {round} (its number is its seed): {e}"));
        if round.is_multiple_of(50) {
            println!("{round} kills, {done} operations found");
        }
    }
    println!("{rounds} kills, {done} operations found, at most {} ranges of failed epochs", torture.failed_ranges);
    assert!(done > rounds, "the children hardly worked: {done} operations in {rounds} rounds");
}

#[test]
fn a_boundary_without_its_write_backs_is_found_out() {
    let mut torture = Torture::new(QUICK, true);
    let found = (0..50).find_map(|round| torture.round(1000 + round).err().map(|error| (round, error)));
    let (round, error) = found.expect("50 rounds without the write-backs lost nothing");
    println!("found in round {round}: {error}");
    assert!(!error.contains("ended by itself"), "lost operations, not something else: {error}");
}
