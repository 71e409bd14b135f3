//! Not in the paper: how long an upsert is held up while merges run and the pool grows. (The published code stops its writers for 130 ms
//! when a merge begins.)
//!
//! One and two threads upsert into a tree that begins empty in a pool of 16 MiB: half of the keys are new, half are among those that are
//! there. The database's own threads merge and grow the pool. What counts as held up: see [`pauses`](crate::paper::pauses).
//!
//! Where the machine itself is a guest, its host takes processors away, too, and nothing tells a thread of that. So a thread that only looks
//! at the clock, for as long as the upserts took, is measured in the same way: what holds that up, is not ours.

use std::fmt;
use std::time::{Duration, Instant};

use durix::{Db, Index, PoolOptions};
use durix_pmem::backing::FileBacking;

use super::trees::{Random, figure, key};
use crate::cso_append::medium;
use crate::machine::Bytes;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::pauses::{LONG, WAITED, Waits, Watched, page_faults};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::{Place, free_bytes};

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-stalls",
    "how long an upsert is held up while merges run and the pool grows (not in the paper)",
    "upserts, instead of 50 million (2 million with --quick)",
    run,
);

const START: u64 = 16 << 20;
/// The goals: at p99.99, and ever.
const RARE: Duration = Duration::from_micros(100);
const MOST: Duration = Duration::from_millis(1);
const THREADS: [u64; 2] = [1, 2];
/// The thread that only looks at the clock does so for as long, at most.
const IDLE: Duration = Duration::from_secs(10);
/// Longest pauses whose parts are told.
const TOLD: usize = 5;
const PARTS: [(&str, f64); 5] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("greatest", 1.0)];

// ---- distributions ----

/// Times, counted in steps of a sixteenth of their size.
#[derive(Clone, Debug)]
struct Times {
    counts: Vec<u64>,
    longest: Duration,
}

const STEP_BITS: u32 = 4;

fn bucket_of(nanos: u64) -> usize {
    let top = (nanos | 1 << STEP_BITS).ilog2() - STEP_BITS;
    (u64::from(top) << STEP_BITS) as usize + (nanos >> top) as usize
}

/// The largest time of a bucket, in nanoseconds.
fn end_of(bucket: usize) -> u64 {
    let (top, low) = ((bucket >> STEP_BITS).saturating_sub(1) as u32, bucket as u64 & ((1 << STEP_BITS) - 1));
    match bucket >> STEP_BITS {
        0 => low,
        _ => (((1 << STEP_BITS) + low) << top) + ((1 << top) - 1),
    }
}

impl Times {
    fn new() -> Self {
        Times { counts: vec![0; bucket_of(u64::MAX) + 1], longest: Duration::ZERO }
    }

    fn add(&mut self, time: Duration) {
        self.counts[bucket_of(time.as_nanos() as u64)] += 1;
        self.longest = self.longest.max(time);
    }

    fn merge(&mut self, other: &Times) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(all, more)| *all += more);
        self.longest = self.longest.max(other.longest);
    }

    /// The time that this part of all does not exceed, rounded up by a sixteenth at most.
    fn at(&self, part: f64) -> Duration {
        let number = self.counts.iter().sum::<u64>();
        let mut left = (number as f64 * part).ceil() as u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            if left <= *count {
                return Duration::from_nanos(end_of(bucket)).min(self.longest);
            }
            left -= count;
        }
        self.longest
    }
}

/// A pause, and what it consisted of.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    pause: Duration,
    /// Waiting for a lock or at the gate, with or without a processor.
    waited: Duration,
    faults: u64,
    /// Upserts of the thread before it.
    at: u64,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [pause, waited] = [self.pause, self.waited].map(|time| time.as_secs_f64() * 1e6);
        write!(f, "{pause:.0} µs after {} upserts (waiting {waited:.0} µs, {} page faults)", self.at, self.faults)
    }
}

/// All upserts of a run.
#[derive(Clone, Debug)]
struct Held {
    wall: Times,
    pause: Times,
    strict: Times,
    /// The longest pauses, the longest one first.
    longest: Vec<Pause>,
    took: Duration,
}

impl Held {
    fn new() -> Self {
        let times = Times::new;
        Held { wall: times(), pause: times(), strict: times(), longest: Vec::new(), took: Duration::ZERO }
    }

    fn note(&mut self, pause: Pause) {
        let at = self.longest.partition_point(|longer| longer.pause >= pause.pause);
        self.longest.insert(at, pause);
        self.longest.truncate(TOLD);
    }

    fn merge(&mut self, other: &Held) {
        self.wall.merge(&other.wall);
        self.pause.merge(&other.pause);
        self.strict.merge(&other.strict);
        other.longest.iter().for_each(|pause| self.note(*pause));
        self.took = self.took.max(other.took);
    }
}

// ---- runs ----

/// One thread's upserts: keys with the same remainder as its number.
fn upsert(db: &Db<Watched>, index: &dyn Index<Watched>, (me, threads): (u64, u64), number: u64) -> Result<Held, Error> {
    let pool = db.pool();
    let mut session = pool.session()?;
    let mut waits = Waits::of_this_thread();
    let (mut held, mut faults, start) = (Held::new(), page_faults(), Instant::now());
    let (mut random, mut new) = (Random(88_172_645_463_325_252 ^ me), 0);
    for i in 0..number {
        let of = |number: u64| key(number * threads + me).to_be_bytes();
        let is_new = i % 2 == 0;
        let key = if is_new { of(new) } else { of(random.next() % new) };
        new += u64::from(is_new);
        let (waited, begin) = (WAITED.get(), Instant::now());
        pool.services().admit(&mut session)?;
        let was_new = index.insert(&session.enter()?, &key, &i.to_be_bytes())?;
        let wall = begin.elapsed();
        assert_eq!(was_new, is_new, "the answer of upsert {i}");
        let (mut pause, mut strict) = (wall, wall);
        if wall > LONG {
            let without = waits.as_mut().map_or(Duration::ZERO, Waits::since);
            pause = wall.saturating_sub(without);
            let waited = WAITED.get() - waited;
            strict = wall.saturating_sub(without.saturating_sub(waited));
            let now = page_faults();
            held.note(Pause { pause, waited, faults: now - std::mem::replace(&mut faults, now), at: i });
        }
        held.wall.add(wall);
        held.pause.add(pause);
        held.strict.add(strict);
    }
    held.took = start.elapsed();
    Ok(held)
}

/// The pauses of a thread that does nothing but look at the clock.
fn idle(time: Duration) -> Times {
    let (mut times, mut waits) = (Times::new(), Waits::of_this_thread());
    let start = Instant::now();
    let mut last = start;
    while last - start < time {
        let now = Instant::now();
        let mut pause = now - last;
        last = now;
        if pause > LONG {
            pause = pause.saturating_sub(waits.as_mut().map_or(Duration::ZERO, Waits::since));
            // Reading the clock of the system does not count.
            last = Instant::now();
        }
        times.add(pause);
    }
    times
}

fn measure(place: &Place, threads: u64, upserts: u64) -> Result<(Held, u64), Error> {
    let path = place.unused_path();
    let backing = FileBacking::create(&path)?;
    // Nobody else needs the name, and so the file goes with the process, whatever happens.
    let _ = std::fs::remove_file(&path);
    let options = PoolOptions::new().initial_size(START).max_size(2 * most_bytes(upserts));
    let db = Db::builder().over(options.create_on(backing, Watched(medium()))?)?;
    let index = db.open_index("stalls", Some("dptree"))?;
    let all = std::thread::scope(|scope| {
        let (db, index) = (&db, &*index);
        let threads: Vec<_> =
            (0..threads).map(|me| scope.spawn(move || upsert(db, index, (me, threads), upserts / threads))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    });
    let mut held = Held::new();
    all?.iter().for_each(|one| held.merge(one));
    Ok((held, db.pool().mapping().len()))
}

/// What a tree of half as many keys takes, and more.
fn most_bytes(upserts: u64) -> u64 {
    upserts * 24 + (128 << 20)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let upserts = context.keys_or(if context.quick { 2_000_000 } else { 50_000_000 });
    context.expect(THREADS.len(), 1);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        if let Some(free) = free_bytes(&place.dir).filter(|free| *free < most_bytes(upserts)) {
            let (what, needed) = (format!("a tree of {upserts} upserts"), Bytes(most_bytes(upserts)));
            return Err(Error::Room { what, needed, free: Bytes(free), dir: place.dir.display().to_string() });
        }
        let method = format!("{upserts} upserts, half of them new keys, into a pool that begins with {}", Bytes(START));
        let panel = Panel::new("time of an upsert", place, crate::paper::figure::medium_text(medium()), method);
        let x = PARTS.map(|(name, _)| name.to_owned()).to_vec();
        let mut panel = panel.axes("part of all upserts", x, "µs", Form::Bars);
        for threads in THREADS {
            context.now(format!("{threads} of {}, {}", THREADS.len(), place.pages));
            let (held, len) = measure(place, threads, upserts)?;
            report(place, threads, &held, &mut panel, &mut measured);
            let control = idle(held.took.min(IDLE));
            let count = |times: &Times| times.counts[bucket_of(MOST.as_nanos() as u64)..].iter().sum::<u64>();
            measured.notes.push(format!(
                "{threads} threads: {} pauses of a millisecond or more in {:.1} s; of a thread that only looks at the clock {} in {:.1} s, the longest \
                 {:.0} µs",
                count(&held.pause),
                held.took.as_secs_f64(),
                count(&control),
                held.took.min(IDLE).as_secs_f64(),
                control.longest.as_secs_f64() * 1e6
            ));
            let rate = upserts as f64 / held.took.as_secs_f64() / 1e6;
            measured.notes.push(format!("{threads} threads: {rate:.2} million a second, a pool of {}", Bytes(len)));
            context.tick();
        }
        measured.panels.push(panel);
    }
    measured.notes.push(
        "pause: without the time in which the thread could run and had no processor; strict pause: that time counts where it was spent \
         waiting for a lock"
            .into(),
    );
    Ok(measured)
}

fn report(place: &Place, threads: u64, held: &Held, panel: &mut Panel, measured: &mut Measured) {
    for (what, times) in [("pause", &held.pause), ("strict pause", &held.strict), ("time", &held.wall)] {
        for (at, (_, part)) in PARTS.iter().enumerate() {
            panel.set(&format!("{what}, {threads} threads"), at, Point::exact(times.at(*part).as_secs_f64() * 1e6));
        }
    }
    for ((name, part), goal) in [(PARTS[3], RARE), (PARTS[4], MOST)] {
        let micros = |times: &Times| format!("{:.0}", times.at(part).as_secs_f64() * 1e6);
        measured.claims.push(Claim {
            what: format!("pause of an upsert, {name}, {threads} threads, {}", place.pages),
            paper: format!("its own code 130 ms; goal {} µs", goal.as_micros()),
            ours: format!("{} µs (strict {}, time {})", micros(&held.pause), micros(&held.strict), micros(&held.wall)),
            holds: Some(held.pause.at(part) <= goal),
        });
    }
    for pause in &held.longest {
        measured.notes.push(format!("{threads} threads, a long pause: {pause}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_small() {
        let mut last = None;
        for nanos in (0..100_000u64).chain([1 << 40, u64::MAX]) {
            let bucket = bucket_of(nanos);
            assert!(end_of(bucket) >= nanos && end_of(bucket) - nanos <= nanos / 16, "{nanos} to {}", end_of(bucket));
            assert!(last <= Some(bucket));
            last = Some(bucket);
        }
    }

    #[test]
    fn parts_are_found() {
        let mut times = Times::new();
        (1..=10_000).for_each(|micros| times.add(Duration::from_micros(micros)));
        for (_, part) in PARTS {
            let (found, exact) = (times.at(part).as_secs_f64(), part * 0.01);
            assert!((exact..=exact * 1.07).contains(&found), "{part}: {found}");
        }
    }

    #[test]
    fn a_short_run_counts_each_upsert() {
        let (held, _) = measure(&Place::at(std::env::temp_dir()), 2, 20_000).unwrap();
        assert_eq!(held.pause.counts.iter().sum::<u64>(), 20_000);
        assert!(held.pause.longest <= held.strict.longest && held.strict.longest <= held.wall.longest);
    }
}
