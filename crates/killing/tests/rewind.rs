//! Torture: a process runs transactions on a real file under `Shadow` and is killed at a random moment, in recovery and growth too.
//! What had committed must be found, whole; of what had not, nothing.
//!
//! The test runs itself as a child. Each thread of the child has cells of its own; what transaction number n writes follows from
//! the seed. It counts in a shared file how many transactions it has begun and ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use durix_killing::{Board, MAX_SIZE, POOL, Progress, kill_when, mix, rounds, task};
use durix_pmem::testing::Shadow;
use durix_pmem::{Hardware, Medium, Mutating, Mutation, Off, Plan, Pool, PoolOptions, Session, SiteKind, Word};
use durix_rewind::testing::all_options;
use durix_rewind::{Error, LogKind, LogRecovery, Options, TransactionManager};

const THREADS: u64 = 2;
/// Cells of a thread: three numbers and a block.
const CELLS: usize = 4;

/// What a transaction writes, if it commits.
fn step(seed: u64, thread: u64, number: u64) -> (u64, bool) {
    let random = mix(seed ^ mix(thread << 40 | number));
    (random | 1, !(random >> 8).is_multiple_of(5))
}

fn configurations() -> Vec<Options> {
    let mut all = all_options();
    all.push(Options::default().bucket(8).lanes(2));
    assert!(all.len() % 2 == 1);
    all
}

// ---- the child ----

fn open<M: Medium>(dir: &Path, seed: u64, medium: impl FnOnce(Shadow<Hardware>) -> M) -> Pool<M> {
    let pool = durix_killing::open(dir, seed, medium);
    pool.recover_logs(&[&LogRecovery]).unwrap();
    pool
}

fn transaction<M: Medium>(
    tm: &TransactionManager<M>,
    session: &mut Session<M>,
    thread: usize,
    (value, commits): (u64, bool),
) {
    let done = tm.transaction(session, |tx| {
        for cell in 0..3 {
            tx.set(tm.cell(thread * CELLS + cell), value + cell as u64)?;
        }
        let old = tx.get(tm.cell(thread * CELLS + 3))?;
        if old != 0 {
            tx.free(Off::<Word>::new(old))?;
        }
        let block = tx.alloc(&[value, value ^ 7])?;
        tx.set(tm.cell(thread * CELLS + 3), block.get())?;
        if commits { Ok(()) } else { Err(Error::RolledBack) }
    });
    assert_eq!(done.is_ok(), commits, "{done:?}");
}

fn work<M: Medium>(pool: &Pool<M>, dir: &Path, seed: u64, options: &Options) {
    let tm = TransactionManager::open(pool, "log", options).unwrap();
    let board = Board::open(dir, THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tm, board) = (&tm, &board);
            scope.spawn(move || {
                let mut session = pool.session().unwrap();
                for number in 0.. {
                    board.begin(thread, number);
                    transaction(tm, &mut session, thread as usize, step(seed, thread, number));
                    board.end(thread, number);
                    if number % 16 == 15 {
                        tm.checkpoint(&mut session).unwrap();
                    }
                }
            });
        }
    });
}

/// Not a test of its own: the body of the child, which ends when it is killed.
#[test]
fn child() {
    let Some(words) = task() else { return };
    let [dir, seed, configuration, mutant] = &words[..] else { panic!("dir seed configuration mutant") };
    let (dir, seed) = (PathBuf::from(dir), seed.parse().unwrap());
    let (options, mutant) = (configurations()[configuration.parse::<usize>().unwrap()], mutant == "mutant");
    if !mutant {
        return work(&open(&dir, seed, |shadow| shadow), &dir, seed, &options);
    }
    let plan = Plan::new();
    let pool = open(&dir, seed, |shadow| Mutating::new(shadow, plan));
    let tm = TransactionManager::open(&pool, "probe", &options).unwrap();
    plan.forget();
    let mut session = pool.session().unwrap();
    tm.transaction(&mut session, |tx| tx.set(tm.cell(0), 1)).unwrap();
    // The last fence of an append: what makes the commit durable.
    let fences =
        plan.sites().into_iter().filter(|(site, _)| site.kind == SiteKind::Fence && site.file.ends_with("/log.rs"));
    let last = fences.map(|(site, _)| site).max_by_key(|site| site.line).expect("an append has a fence");
    plan.mutate(last, Mutation::Drop);
    drop((session, tm));
    work(&pool, &dir, seed, &options);
}

// ---- the parent ----

struct Torture {
    dir: tempfile::TempDir,
    configuration: usize,
    /// What each thread's cells must hold: 0 before its first commit.
    model: [u64; THREADS as usize],
    mutant: bool,
}

impl Torture {
    fn new(configuration: usize, mutant: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pool: Pool =
            PoolOptions::new().initial_size(1 << 20).max_size(MAX_SIZE).create(dir.path().join(POOL)).unwrap();
        drop(TransactionManager::open(&pool, "log", &configurations()[configuration]).unwrap());
        pool.close().unwrap();
        Torture { dir, configuration, model: [0; THREADS as usize], mutant }
    }

    /// Runs a child for a while and kills it. Returns how many transactions had ended.
    fn round(&mut self, seed: u64) -> Result<u64, String> {
        let dir = self.dir.path();
        let board = Board::open(dir, THREADS);
        let mutant = if self.mutant { "mutant" } else { "sound" };
        let task = format!("{} {seed} {} {mutant}", dir.display(), self.configuration);
        // Half of them early, in opening and recovery; the others when they have done something.
        let (start, least) = (Instant::now(), 5 + mix(seed ^ 1) % 150);
        let is_due =
            || !seed.is_multiple_of(2) || board.total().ended >= least || start.elapsed() > Duration::from_secs(20);
        kill_when(&board, &task, is_due, Duration::from_micros(3000 + mix(seed) % 40_000))?;
        self.verify(&board, seed)
    }

    fn verify(&mut self, board: &Board, seed: u64) -> Result<u64, String> {
        let found = PoolOptions::new().open_file(self.dir.path().join(POOL)).map_err(|e| e.to_string())?;
        let pool: Pool = found.recover_with(&[&LogRecovery]).map_err(|e| e.to_string())?;
        let options = &configurations()[self.configuration];
        let tm = TransactionManager::open(&pool, "log", options).map_err(|e| e.to_string())?;
        let mut session = pool.session().unwrap();
        let mut done = 0;
        let mut held = Vec::new();
        for thread in 0..THREADS {
            let Progress { begun, ended } = board.progress(thread);
            done += ended;
            let commits = |number: &u64| step(seed, thread, *number).1;
            if let Some(last) = (0..ended).rev().find(commits) {
                self.model[thread as usize] = step(seed, thread, last).0;
            }
            let (value, block) = contents(&tm, &mut session, thread as usize)?;
            held.extend(Some(block).filter(|block| *block != 0));
            let in_flight = (ended..begun).find(commits).map(|number| step(seed, thread, number).0);
            if value != self.model[thread as usize] && Some(value) != in_flight {
                return Err(format!("thread {thread}: {value:#x} found, {:#x} promised", self.model[thread as usize]));
            }
            self.model[thread as usize] = value;
        }
        held.sort_unstable();
        let op = session.enter().unwrap();
        let blocks: Vec<u64> = pool.space().blocks(&op, tm.root().owner()).into_iter().map(|(off, _)| off).collect();
        if blocks != held {
            return Err(format!("blocks {blocks:x?} are allocated, {held:x?} are held"));
        }
        drop(op);
        match tm.check(&mut session).map_err(|e| e.to_string())?.first() {
            Some(finding) => Err(finding.clone()),
            None => Ok(done),
        }
    }
}

/// What the cells of a thread hold, which must be of one transaction.
fn contents(tm: &Arc<TransactionManager>, session: &mut Session, thread: usize) -> Result<(u64, u64), String> {
    let op = session.enter().unwrap();
    let load = |off: u64| op.load(op.at(Off::<Word>::new(off)), Acquire);
    let cells: [u64; CELLS] = std::array::from_fn(|cell| load(tm.cell(thread * CELLS + cell).get()));
    let [value, second, third, block] = cells;
    let block_is = if block == 0 { [0; 2] } else { [load(block), load(block + 8)] };
    let expected = if value == 0 { ([0; 2], [0; 2]) } else { ([value + 1, value + 2], [value, value ^ 7]) };
    if ([second, third], block_is) != expected {
        return Err(format!("thread {thread}: half a transaction: {cells:x?}, block {block_is:x?}"));
    }
    Ok((value, block))
}

#[test]
fn nothing_committed_is_lost() {
    let rounds = rounds(26);
    let count = configurations().len();
    let mut tortures: Vec<Torture> = (0..count.min(rounds as usize)).map(|at| Torture::new(at, false)).collect();
    let mut done = 0;
    for round in 0..rounds {
        // With an odd number of configurations each is killed early and late.
        let torture = &mut tortures[round as usize % count];
        let options = configurations()[torture.configuration];
        done += torture.round(round).unwrap_or_else(|e| panic!("{options}, round {round} (its seed): {e}"));
    }
    println!("{rounds} kills, {done} transactions that had ended, none lost");
    assert!(done > rounds, "the children hardly worked: {done} transactions in {rounds} rounds");
}

#[test]
fn a_log_without_its_fence_is_found_out() {
    let optimized =
        configurations().iter().position(|options| *options == Options::default().log(LogKind::Optimized).bucket(8));
    let mut torture = Torture::new(optimized.expect("it is among all"), true);
    let found = (0..100).find_map(|round| torture.round(1000 + round).err().map(|error| (round, error)));
    let (round, error) = found.expect("100 rounds without the fence lost nothing");
    println!("found in round {round}: {error}");
    assert!(error.contains("promised") || error.contains("half") || error.contains("block"), "{error}");
}
