//! The rounds.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix::{Durability, Hardware, Index, Pool, PoolOptions};
use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::mix;

use crate::Random;
use crate::history::{Act, Event, Held, linearizable};
use crate::hold::Holdable;
use crate::keys::Keys;
use crate::worker::{Worker, is_full};

/// Largest pool.
const LARGEST: u64 = 64 << 20;
/// A pool that is to be full.
const FULL: u64 = 768 << 10;
/// Rounds on one pool.
const ROUNDS_A_POOL: u64 = 12;
/// Kinds whose removals succeed in a full pool, and that give space back by leaves and log pages, when they merge: one removal makes no
/// room for one insert.
const ROOM_BY_MERGES: [&str; 3] = ["dptree", "dptree-values", "dptree-bytes"];
/// Operations of a thread in a round.
const OPERATIONS: u64 = 1_000;

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Threads that work.
    pub threads: usize,
    /// Keys that they share.
    pub keys: u64,
    /// Whether the pool is full from the start.
    pub full: bool,
    /// Of everything random but the scheduler.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
}

impl Setting {
    /// Threads, keys, and whether the pool is full: what each kind is tried in.
    pub const SHAPES: [(usize, u64, bool); 4] = [(2, 32, false), (4, 8, false), (4, 64, false), (2, 16, true)];
}

/// How much was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rounds.
    pub rounds: u64,
    /// Operations, and looks of walks at keys.
    pub events: u64,
    /// Operations that found the pool full.
    pub refused: u64,
}

/// Works on indices of a kind.
///
/// # Errors
/// In words, what was wrong.
pub fn contend(kind: &Entry, setting: Setting) -> Result<Report, String> {
    let (start, mut report) = (Instant::now(), Report::default());
    for number in 0.. {
        let pool = Contended::new(kind, setting, number)?;
        let done = pool.rounds(start + setting.time, &mut report);
        done.map_err(|what| format!("{}, {setting:?}, pool {number}, round {}: {what}", kind.name, report.rounds))?;
        if start.elapsed() >= setting.time {
            break;
        }
    }
    Ok(report)
}

/// An index that threads meet in.
struct Contended {
    pool: Pool,
    index: Arc<dyn Index>,
    keys: Keys,
    setting: Setting,
    seed: u64,
    clock: AtomicU64,
    /// Keys that fill the pool.
    filling: u64,
    /// Whether a removal makes room for an insert.
    makes_room: bool,
}

impl Contended {
    fn new(kind: &Entry, setting: Setting, number: u64) -> Result<Self, String> {
        let limit = if setting.full { FULL } else { LARGEST };
        let chunk = if setting.full { 4096 } else { 64 << 10 };
        let options = PoolOptions::new().chunk_size(chunk).initial_size(limit.min(1 << 20)).max_size(limit);
        let pool = options.create_on(HeapBacking::new(limit), Hardware::PAGE_CACHE).map_err(said)?;
        let index = kind.open_or_create(&pool, "contended").map_err(said)?;
        let (keys, seed) = (Keys::new(kind.limits, setting.keys), mix(setting.seed ^ mix(number)));
        let clock = AtomicU64::new(1);
        let makes_room = !ROOM_BY_MERGES.contains(&kind.name);
        let mut contended = Contended { pool, index, keys, setting, seed, clock, filling: 0, makes_room };
        if setting.full {
            contended.fill(kind)?;
        }
        Ok(contended)
    }

    /// A key that only fills.
    fn filler(&self, number: u64) -> Vec<u8> {
        // Threads have the numbers below.
        self.keys.own(63, number)
    }

    /// Inserts until the pool is full. A list is filled by what else is in the pool: its operations are linear.
    fn fill(&mut self, kind: &Entry) -> Result<(), String> {
        let mut session = self.pool.session().map_err(said)?;
        if kind.meant_for < u64::MAX {
            let other = durix::kind::named::<Hardware>("hash-fast-open")
                .and_then(|kind| kind.open_or_create(&self.pool, "filling"));
            let other = other.map_err(said)?;
            let insert =
                |n: u64| other.insert(&session.enter().map_err(durix::Error::from)?, &n.to_be_bytes(), &[0; 8]);
            return until_full(insert).map(drop);
        }
        let insert = |number: u64| {
            let (key, value) = (self.filler(number), self.keys.value(mix(number)));
            self.index.insert(&session.enter().map_err(durix::Error::from)?, &key, &value)
        };
        self.filling = until_full(insert)?;
        Ok(())
    }

    fn rounds(mut self, end: Instant, report: &mut Report) -> Result<(), String> {
        for round in 0..ROUNDS_A_POOL {
            self.round(mix(self.seed ^ round), report)?;
            report.rounds += 1;
            if Instant::now() >= end {
                break;
            }
        }
        if self.makes_room { self.make_room() } else { Ok(()) }
    }

    /// In a full pool, what is removed makes room for one of its size. In a tree that is buffered the new one may come to a full
    /// node, which is split only where several blocks are free.
    fn make_room(&mut self) -> Result<(), String> {
        let mut session = self.pool.session().map_err(said)?;
        let removals = if self.index.durability() == Durability::Strict { 1 } else { 32 };
        for number in (0..self.filling.saturating_sub(removals)).step_by(removals as usize + self.filling as usize / 40)
        {
            let mut outcome = Err("nothing was removed".to_owned());
            for removed in number..number + removals {
                self.index.remove(&session.enter().map_err(said)?, &self.filler(removed)).map_err(said)?;
                // Memory is used again when the removal is durable.
                (0..2).try_for_each(|_| self.index.sync(&mut session)).map_err(said)?;
                let (key, value) = (self.keys.own(62, removed), self.keys.value(mix(removed)));
                outcome = self.index.insert(&session.enter().map_err(said)?, &key, &value).map_err(said);
                if outcome.is_ok() {
                    break;
                }
            }
            outcome.map_err(|what| format!("{removals} removed from a full pool, and no room for one: {what}"))?;
        }
        Ok(())
    }

    /// What each key holds, while nobody is at work.
    fn look(&self) -> Result<Vec<Held>, String> {
        let mut session = self.pool.session().map_err(said)?;
        let look = |key: &Vec<u8>| {
            let found = self.index.get_vec(&session.enter().map_err(said)?, key).map_err(said)?;
            let number =
                |bytes: Vec<u8>| self.keys.value_of(&bytes).ok_or_else(|| "a value that nobody wrote".to_owned());
            found.map(number).transpose()
        };
        self.keys.shared.iter().map(look).collect()
    }

    fn round(&self, seed: u64, report: &mut Report) -> Result<(), String> {
        let before = self.look()?;
        let workers = self.work(seed)?;
        let now = self.clock.fetch_add(2, Ordering::SeqCst);
        let after = self.look()?;
        for (key, held) in before.into_iter().enumerate() {
            let mut threads: Vec<Vec<Event>> = workers.iter().map(|worker| worker.seen[key].clone()).collect();
            report.events += threads.iter().map(|events| events.len() as u64).sum::<u64>();
            threads.push(vec![Event { begin: now, end: now + 1, act: Act::Read(after[key]) }]);
            linearizable(held, &threads)
                .map_err(|what| format!("key {key} ({}): {what}", self.keys.shared[key].escape_ascii()))?;
        }
        report.refused += workers.iter().map(|worker| worker.refused).sum::<u64>();
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        let mut session = self.pool.session().map_err(said)?;
        let findings = self.index.check(&mut session).map_err(said)?;
        match findings.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(format!("check: {} findings, the first: {first}", findings.len())),
        }
    }

    /// Lets all threads work until each has made its operations; beside them checkpoints are taken, and they are held up.
    fn work(&self, seed: u64) -> Result<Vec<Worker<'_>>, String> {
        let (wrong, running, over) = (Mutex::new(None), AtomicUsize::new(self.setting.threads), AtomicBool::new(false));
        let holdable = Holdable::new();
        let fail = |what: String| _ = wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        let workers = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.setting.threads)
                .map(|thread| {
                    let (holdable, running, fail) = (&holdable, &running, &fail);
                    scope.spawn(move || {
                        let _done = Leaves(running);
                        let _registered = holdable.register();
                        let mut worker = self.worker(thread, seed).map_err(fail).ok()?;
                        worker.work(OPERATIONS).and_then(|()| worker.leave_none()).map_err(fail).ok()?;
                        Some(worker)
                    })
                })
                .collect();
            let services = scope.spawn(|| self.services(|| over.load(Ordering::SeqCst)).unwrap_or_else(&fail));
            holdable.hold_until(&mut Random::new(seed), || running.load(Ordering::SeqCst) == 0);
            over.store(true, Ordering::SeqCst);
            let workers: Vec<_> = threads.into_iter().map(|thread| thread.join().ok().flatten()).collect();
            services.join().map(|()| workers)
        });
        match (wrong.into_inner().unwrap_or_else(PoisonError::into_inner), workers) {
            (Some(what), _) => Err(what),
            (None, Ok(workers)) => workers.into_iter().collect::<Option<_>>().ok_or_else(|| "a thread panicked".into()),
            (None, Err(_)) => Err("the thread of the services panicked".into()),
        }
    }

    fn worker(&self, thread: usize, seed: u64) -> Result<Worker<'_>, String> {
        Ok(Worker {
            index: &*self.index,
            keys: &self.keys,
            clock: &self.clock,
            session: self.pool.session().map_err(said)?,
            thread,
            may_be_full: self.setting.full,
            random: Random::new(seed ^ mix(thread as u64)),
            seen: vec![Vec::new(); self.keys.shared.len()],
            own: Vec::new(),
            refused: 0,
        })
    }

    /// What goes on beside the threads.
    fn services(&self, is_over: impl Fn() -> bool) -> Result<(), String> {
        let mut session = self.pool.session().map_err(said)?;
        while !is_over() {
            self.index.sync(&mut session).map_err(|error| format!("sync failed: {error}"))?;
            std::thread::sleep(Duration::from_micros(300));
        }
        Ok(())
    }
}

/// Counts a thread down when it leaves, also by a panic.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn until_full(mut insert: impl FnMut(u64) -> durix::Result<bool>) -> Result<u64, String> {
    for number in 0.. {
        match insert(number) {
            Ok(_) => {}
            Err(error) if is_full(&error) => return Ok(number),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(0)
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}
