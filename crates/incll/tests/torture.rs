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
use std::fs::File;
use std::io::Write;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use durix_crashsim::Contract;
use durix_crashsim::linear::{History, Moment, Moments, Spec, Verdict, check};
use durix_incll::Masstree;
use durix_pmem::backing::FileBacking;
use durix_pmem::testing::Shadow;
use durix_pmem::{Hardware, Medium, Mutating, Mutation, Op, Plan, Pool, PoolOptions, Session, SiteKind};

const WRITERS: u64 = 2;
/// Keys that both writers share.
const SHARED: u64 = 5;
/// Operations of a writer that have room; it stops there.
const MOST: u64 = 1 << 22;
const CHILD: &str = "DURIX_TORTURE_CHILD";

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

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

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

/// Fields of a writer in the file of counts.
const BEGUN: u64 = 0;
const PROMISED: u64 = 1;

struct Counter<'a> {
    file: &'a File,
    writer: u64,
}

impl Counter<'_> {
    fn set(&self, field: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), (self.writer * 2 + field) * 8).unwrap();
    }

    fn get(&self, field: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, (self.writer * 2 + field) * 8).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn counts(dir: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(dir.join("counts")).unwrap()
}

fn open<M: Medium>(dir: &Path, size: Size, seed: u64, medium: impl FnOnce(Shadow<Hardware>) -> M) -> Pool<M> {
    let file = FileBacking::create(dir.join("pool")).unwrap();
    let (backing, shadow) = Shadow::over(Hardware::PAGE_CACHE, file, 200, seed);
    PoolOptions::new().max_size(size.pool).open_on(backing, medium(shadow)).unwrap().recover().unwrap()
}

fn work<M: Medium>(pool: &Pool<M>, dir: &Path, size: Size, seed: u64) {
    let tree = Masstree::open(pool, "tree").unwrap();
    tree.epochs().set_interval(Duration::from_millis(1));
    let (file, done) = (counts(dir), [(); WRITERS as usize].map(|()| AtomicU64::new(0)));
    let moments = moments(dir);
    std::thread::scope(|s| {
        for writer in 0..WRITERS {
            let (tree, file, done, moments) = (&tree, &file, &done, &moments);
            s.spawn(move || {
                let counter = Counter { file, writer };
                write(tree, &mut pool.session().unwrap(), (&counter, moments), done, size, seed);
            });
        }
        s.spawn(|| scan(&tree, &mut pool.session().unwrap(), seed));
    });
}

fn write<M: Medium>(
    tree: &Masstree<M>,
    session: &mut Session<M>,
    (counter, moments): (&Counter<'_>, &Moments),
    done: &[AtomicU64],
    size: Size,
    seed: u64,
) {
    let writer = counter.writer;
    let mut ticket = None;
    for number in 0.. {
        let (key, value) = step(size, seed, writer, number);
        counter.set(BEGUN, number + 1);
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
            counter.set(PROMISED, number + 1);
        }
        if let Some((_, promised)) = ticket.take_if(|(ticket, _)| tree.epochs().is_durable(*ticket)) {
            counter.set(PROMISED, promised.max(counter.get(PROMISED)));
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
    let Ok(task) = std::env::var(CHILD) else { return };
    end_at_the_first_panic();
    let words: Vec<_> = task.split(' ').collect();
    let [dir, seed, size, mutant] = words[..] else { panic!("dir seed size mutant") };
    let (dir, seed) = (PathBuf::from(dir), seed.parse().unwrap());
    let size = if size == "deep" { DEEP } else { QUICK };
    if mutant == "sound" {
        return work(&open(&dir, size, seed, |shadow| shadow), &dir, size, seed);
    }
    // The write-backs of a boundary: the site that is met again and again when many lines are dirty.
    let plan = Plan::new();
    let pool = open(&dir, size, seed, |shadow| Mutating::new(shadow, plan));
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

/// A panic in any thread ends the child at once, and is told: after the kill nobody would hear of it.
fn end_at_the_first_panic() {
    std::panic::set_hook(Box::new(|info| {
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{info}");
        std::process::exit(70);
    }));
}

// ---- the parent ----

/// Waits until a child has promised something, or has ended. On a busy machine its start may take longer than its life is to be;
/// the kills that come before are those of every fourth round.
fn wait_until_at_work(file: &File, child: &mut std::process::Child) {
    let promised = || (0..WRITERS).any(|writer| Counter { file, writer }.get(PROMISED) > 0);
    while !promised() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(500));
    }
}

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
        let pool: Pool = options.create(dir.path().join("pool")).unwrap();
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
        let file = counts(dir);
        file.set_len(0).unwrap();
        file.set_len(WRITERS * 16).unwrap();
        moments(dir).clear().unwrap();
        let size = if self.size.keys == DEEP.keys { "deep" } else { "quick" };
        let mutant = if self.mutant { "mutant" } else { "sound" };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--test-threads=1"])
            .env(CHILD, format!("{} {seed} {size} {mutant}", dir.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if !seed.is_multiple_of(4) {
            wait_until_at_work(&file, &mut child);
        }
        std::thread::sleep(Duration::from_micros(3000 + mix(seed) % self.size.life));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        // What it told counts, too, if the kill came before its end.
        if output.status.code().is_some() || !output.stderr.is_empty() {
            return Err(format!("the child ended by itself: {}", String::from_utf8_lossy(&output.stderr)));
        }
        self.verify(&file, seed)
    }

    fn verify(&mut self, file: &File, seed: u64) -> Result<u64, String> {
        let pool: Pool = PoolOptions::new().open(self.dir.path().join("pool")).map_err(|e| e.to_string())?;
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
            let counter = Counter { file, writer: writer as u64 };
            if let [round, count, other] = read_mark(&marks[writer])
                && round == seed
            {
                (done[writer], seen[writer]) = (count, other);
            }
            let (promised, begun) = (counter.get(PROMISED), counter.get(BEGUN));
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

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn nothing_promised_is_lost_and_what_is_found_is_one_cut() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let rounds = number("DURIX_TORTURE_ROUNDS").unwrap_or(if deep { 500 } else { 25 });
    let mut torture = Torture::new(if deep { DEEP } else { QUICK }, false);
    let mut done = 0;
    // From 1 on: zero is what an unwritten mark says.
    let first = number("DURIX_TORTURE_FIRST").unwrap_or(1).max(1);
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
