//! Not in a paper: what a journal costs where nobody waits for it: a pool at `Interval(64 ms)` beside one at `Process`, in the same rounds;
//! how long its writers are held up; and what gets cost beside writers that wait for each of their updates.
//!
//! Syncs of the journal take a fixed time, as in [`journal_commit`](super::journal_commit). What counts as a pause: see
//! [`pauses`](super::pauses). Here waits for locks and at the gate are not told from others.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use durix::{Db, Level, Map, PoolOptions};
use durix_pmem::backing::FileBacking;

use super::figure::{Context, Error, Figure, Measured};
use super::journal_commit::{Beside, FIXED, remove};
use super::pauses::{LONG, Waits, processor_time, usage, without};
use super::pool_growth::{BUCKETS, Times, bucket_name};
use super::report::{Claim, Form, Panel, Point};
use crate::interleave::{Series, Stopwatch};
use crate::place::Place;
use crate::workload::{Random, key};

pub(super) const FIGURE: Figure = Figure {
    name: "journal-interval",
    title: "a pool with a journal at intervals beside one without (not in a paper)",
    source: "none: a measurement of this project",
    keys: None,
    run,
};

const INTERVAL: Level = Level::Interval(Duration::from_millis(64));
const KINDS: [&str; 2] = ["pset", "masstree"];
/// Keys that are read.
const KEYS: u64 = 1 << 16;
/// Keys of writers begin there.
const OTHERS: u64 = 1 << 32;
const WRITERS: u64 = 8;
/// The longest pause that there may be.
const MOST: Duration = Duration::from_millis(2);

/// A database at a level, with a map that holds [`KEYS`] keys, all of it durable.
struct Filled {
    path: PathBuf,
    db: Db,
    map: Map<u64, u64>,
    next: u64,
}

impl Filled {
    fn new(place: &Place, kind: &str, level: Level) -> Result<Self, Error> {
        let path = place.unused_path();
        let made = Self::at(&path, kind, level);
        if made.is_err() {
            remove(&path);
        }
        made
    }

    fn at(path: &Path, kind: &str, level: Level) -> Result<Self, Error> {
        let options = PoolOptions::new().durability(level).initial_size(64 << 20).max_size(16 << 30);
        let pool = match level {
            Level::Process => options.create(path)?,
            _ => options.create_journaled_on(FileBacking::create(path)?, Beside::pool(path, Some(FIXED)))?,
        };
        let db = Db::builder().over(pool)?;
        let map = db.map_of_kind("map", kind)?;
        let filled = Filled { path: path.to_owned(), db, map, next: OTHERS };
        for chunk in 0..KEYS / 1024 {
            filled.db.transaction(|tx| {
                let map = tx.map(&filled.map)?;
                (chunk * 1024..(chunk + 1) * 1024).try_for_each(|number| map.insert(&key(number), &number).map(drop))
            })?;
        }
        filled.db.sync()?;
        Ok(filled)
    }

    /// Inserts new keys for that long. Returns how many a second.
    fn inserts(&mut self, time: Duration) -> Result<f64, Error> {
        let (mut handle, start, first) = (self.map.handle()?, Instant::now(), self.next);
        while start.elapsed() < time {
            for _ in 0..64 {
                handle.insert(&key(self.next), &self.next)?;
                self.next += 1;
            }
        }
        Ok((self.next - first) as f64 / start.elapsed().as_secs_f64())
    }

    /// Gets of keys that are there for that long. Returns how many a second, by the clock and by the processor time of the thread.
    fn gets(&self, time: Duration, seed: u64) -> Result<[f64; 2], Error> {
        let (mut handle, mut random, mut count) = (self.map.handle()?, Random(seed), 0);
        let (start, worked) = (Instant::now(), Stopwatch::start());
        while start.elapsed() < time {
            for _ in 0..64 {
                let number = random.below(KEYS);
                assert_eq!(handle.get(&key(number))?, Some(number), "a key that was inserted");
            }
            count += 64;
        }
        Ok([start.elapsed(), worked.elapsed()].map(|time| f64::from(count) / time.as_secs_f64()))
    }

    /// The same beside writers of other keys.
    fn gets_beside_writers(&mut self, time: Duration, seed: u64) -> Result<[f64; 2], Error> {
        let (stop, first) = (AtomicBool::new(false), self.next);
        let (gets, last) = std::thread::scope(|scope| {
            let (map, stop) = (&self.map, &stop);
            let write = move |me: u64| -> Result<u64, Error> {
                let (mut handle, mut number) = (map.handle()?, first + me);
                while !stop.load(Ordering::Relaxed) {
                    handle.insert(&key(number), &number)?;
                    number += WRITERS;
                }
                Ok(number)
            };
            let writers: Vec<_> = (0..WRITERS).map(|me| scope.spawn(move || write(me))).collect();
            let gets = self.gets(time, seed);
            stop.store(true, Ordering::Relaxed);
            let last: Result<Vec<u64>, Error> =
                writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
            (gets, last)
        });
        self.next = last?.into_iter().max().unwrap_or(first) + WRITERS;
        gets
    }

    /// Inserts new keys for that long, and how long each was held up.
    fn pauses(&mut self, time: Duration) -> Result<Held, Error> {
        let (mut handle, mut waits, start) = (self.map.handle()?, Waits::of_this_thread(), Instant::now());
        let (mut held, mut used) = (Held::default(), usage());
        while start.elapsed() < time {
            let (worked, begin) = (processor_time(), Instant::now());
            handle.insert(&key(self.next), &self.next)?;
            let wall = begin.elapsed();
            self.next += 1;
            let mut pause = wall;
            if wall > LONG {
                let (work, now) = (processor_time() - worked, usage());
                let sleeps = now.sleeps - std::mem::replace(&mut used, now).sleeps;
                let queued = waits.as_mut().map_or(Duration::ZERO, Waits::since);
                pause = wall.saturating_sub(without(wall, work, queued, sleeps > 0));
            }
            held.wall.add(wall);
            held.pause.add(pause);
        }
        Ok(held)
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        // Closed or not, nobody opens it again.
        let _ = self.db.close();
        remove(&self.path);
    }
}

/// Inserts by how long they took, and by how long of that was our own code's doing.
#[derive(Clone, Debug, Default)]
struct Held {
    wall: Times,
    pause: Times,
}

/// What the rounds of one kind gave: of the pool with a journal, and of the one without.
#[derive(Debug, Default)]
struct Rounds {
    inserts: [Vec<f64>; 2],
    gets: [Vec<f64>; 2],
    /// By the clock, and by processor time.
    beside: [[Vec<f64>; 2]; 2],
    held: Held,
}

fn measure(place: &Place, kind: &str, rounds: u64, time: Duration) -> Result<Rounds, Error> {
    let levels = [INTERVAL, Level::Process];
    let mut all = Rounds::default();
    let [mut journaled, mut plain] = [Filled::new(place, kind, levels[0])?, Filled::new(place, kind, levels[1])?];
    for round in 1..=rounds {
        // Whoever comes first in one round comes last in the next.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            let filled = if at == 0 { &mut journaled } else { &mut plain };
            all.inserts[at].push(filled.inserts(time)?);
        }
        for at in order {
            let filled = if at == 0 { &journaled } else { &plain };
            all.gets[at].push(filled.gets(time / 2, round)?[0]);
        }
        let held = journaled.pauses(time)?;
        all.held.wall.merge(&held.wall);
        all.held.pause.merge(&held.pause);
    }
    drop((journaled, plain));
    let [mut immediate, mut plain] =
        [Filled::new(place, kind, Level::Immediate)?, Filled::new(place, kind, Level::Process)?];
    for round in 1..=rounds {
        for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let filled = if at == 0 { &mut immediate } else { &mut plain };
            let [clock, processor] = filled.gets_beside_writers(time, round)?;
            all.beside[at][0].push(clock);
            all.beside[at][1].push(processor);
        }
    }
    Ok(all)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let (rounds, time) = if context.quick { (5, Duration::from_millis(200)) } else { (21, Duration::from_secs(1)) };
    context.expect(KINDS.len(), 1);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        for kind in KINDS {
            context.now(format!("{kind} at intervals, {}", place.pages));
            let all = measure(place, kind, rounds, time)?;
            show(&mut measured, place, kind, &all, &format!("{rounds} rounds in turn, {time:?} each"));
            context.tick();
        }
    }
    Ok(measured)
}

fn show(measured: &mut Measured, place: &Place, kind: &str, all: &Rounds, method: &str) {
    let x = ["inserts", "gets", "gets beside 8 writers"].map(String::from).to_vec();
    let title = format!("a {kind}, syncs of {FIXED:?}");
    let mut panel = Panel::new(title, place, "journal", method);
    panel = panel.axes("", x, "calls a second", Form::Bars);
    let both = |samples: &[Vec<f64>; 2]| samples.clone().map(Series::new);
    let names = [["at intervals of 64 ms", "without a journal"], ["with a wait for each update", "without a journal"]];
    let beside = |of: usize| all.beside.each_ref().map(|samples| samples[of].clone());
    let figures = [(all.inserts.clone(), 0), (all.gets.clone(), 0), (beside(0), 1)];
    for (at, (samples, which)) in figures.iter().enumerate() {
        for (name, series) in names[*which].into_iter().zip(both(samples)) {
            panel.set(name, at, Point::nanoseconds(&series));
        }
    }
    measured.panels.push(panel);
    let mut claim = |what: &str, samples: &[Vec<f64>; 2], least: f64| {
        let [ours, plain] = both(samples);
        let ratio = ours.ratio_to(&plain).median();
        measured.claims.push(Claim {
            what: format!("{kind}, {what}"),
            paper: format!("goal: at least {least}"),
            ours: format!("{ratio:.3}"),
            holds: Some(ratio >= least),
        });
    };
    claim("inserts at intervals against none without a journal", &all.inserts, 0.9);
    claim("gets at intervals against none without a journal", &all.gets, 0.98);
    claim("gets beside 8 writers that wait against 8 without a journal, by the clock", &beside(0), 0.9);
    claim("the same by the reader's processor time", &beside(1), 0.9);
    let [pause, wall] = [&all.held.pause, &all.held.wall].map(|times| times.longest.as_secs_f64() * 1e3);
    measured.claims.push(Claim {
        what: format!("{kind}, longest pause of an insert at intervals"),
        paper: format!("goal: at most {MOST:?}"),
        ours: format!("{pause:.2} ms (by the clock {wall:.2} ms)"),
        holds: Some(all.held.pause.longest <= MOST),
    });
    let title = format!("inserts into a {kind} at intervals, by how long they were held up");
    let x = (0..BUCKETS).map(bucket_name).collect();
    let mut panel = Panel::new(title, place, "journal", method).axes("at most", x, "inserts", Form::Bars);
    for (name, times) in [("pause", &all.held.pause), ("time", &all.held.wall)] {
        times.counts.iter().enumerate().for_each(|(at, count)| panel.set(name, at, Point::exact(*count as f64)));
    }
    measured.panels.push(panel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_measured_at_both_levels() {
        let all = measure(&Place::from_env(), "pset", 2, Duration::from_millis(5)).unwrap();
        let samples = all.inserts.iter().chain(&all.gets).chain(all.beside.iter().flatten());
        for samples in samples {
            assert!(samples.len() == 2 && samples.iter().all(|rate| *rate > 0.0), "{all:?}");
        }
        assert!(all.held.pause.counts.iter().sum::<u64>() > 0 && all.held.pause.longest <= all.held.wall.longest);
    }

    #[test]
    fn at_intervals_the_journal_is_used_and_without_it_is_not() {
        let place = Place::from_env();
        for (level, journal) in [(INTERVAL, true), (Level::Process, false)] {
            let mut filled = Filled::new(&place, "pset", level).unwrap();
            filled.inserts(Duration::from_millis(1)).unwrap();
            filled.db.sync().unwrap();
            let commits = filled.db.pool().journal_stats().map(|stats| stats.commits);
            assert_eq!(commits.is_some_and(|commits| commits > 0), journal, "{level}: {commits:?}");
            assert_eq!(durix_pmem::journal::DiskJournal::sums_of(&filled.path).exists(), journal, "{level}");
        }
    }
}
