//! Not in a paper: how long an insert is held up while its pool grows from 16 MiB to 2 GiB under two inserting threads.
//!
//! What counts as held up: see [`pauses`](super::pauses). The *work* of an insert is the processor time that it took.
//!
//! The notes say of the longest pause of each run what it consisted of: waiting for a lock or at the gate, and where; how long another
//! thread of the process had no processor meanwhile, which may be the one that it waited for; page faults of its thread
//! (those of the inserts just before it, each short, are counted with it), the rest.

use std::fmt;
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use durix::{Db, DbBuilder, Durability, Index, PoolOptions};
use durix_pmem::Pool;
use durix_pmem::backing::FileBacking;

use super::figure::{Context, Error, Figure, Measured, check_room};
use super::pauses::{LONG, WAITED, WHERE, Waits, Watched, processor_time, usage, without, without_processor};
use super::report::{Claim, Form, Panel, Point};
use crate::machine::Bytes;
use crate::place::Place;
use crate::workload::{key, medium};

pub(super) const FIGURE: Figure = Figure {
    name: "pool-growth",
    title: "how long an insert is held up while its pool grows (not in a paper)",
    source: "–",
    keys: None,
    run,
};

const START: u64 = 16 << 20;
const END: u64 = 2 << 30;
const QUICK_END: u64 = 512 << 20;
const THREADS: u64 = 2;
/// The longest pause that there may be.
const MOST: Duration = Duration::from_millis(1);
const KINDS: [&str; 2] = ["masstree", "pset"];
const WAYS: [&str; 2] = ["by its own threads", "inside of inserts"];

/// The longest pause of a run, and what it consisted of.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    pause: Duration,
    /// Processor time.
    work: Duration,
    /// Waiting for a lock or at the gate, with or without a processor.
    waited: Duration,
    /// Where.
    place: Option<&'static Location<'static>>,
    /// How long another thread had no processor meanwhile.
    holder: Duration,
    faults: u64,
    /// How often it has given its processor up by itself.
    sleeps: u64,
    /// Bytes of the pool then.
    len: u64,
}

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = [self.pause, self.work, self.waited, self.holder];
        let [pause, work, waited, holder] = times.map(|time| time.as_secs_f64() * 1e3);
        write!(
            f,
            "{pause:.2} ms at {}, work {work:.2} ms, waiting for a lock or at the gate {waited:.2} ms",
            Bytes(self.len)
        )?;
        if let Some(place) = self.place {
            let file = Path::new(place.file()).components().rev().take(3).collect::<Vec<_>>();
            let file: std::path::PathBuf = file.into_iter().rev().collect();
            write!(f, " ({}:{}; another thread had no processor for {holder:.2} ms)", file.display(), place.line())?;
        }
        write!(f, "; {} page faults, slept {} times", self.faults, self.sleeps)
    }
}

/// Inserts by how long they took: up to 1, 2, 4, … µs.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) counts: [u64; BUCKETS],
    pub(super) longest: Duration,
}

pub(super) const BUCKETS: usize = 20;

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let micros = time.as_nanos().div_ceil(1000).max(1) as u64;
        let bucket = micros.next_power_of_two().trailing_zeros() as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.longest = self.longest.max(time);
    }

    pub(super) fn merge(&mut self, other: &Times) {
        self.counts.iter_mut().zip(other.counts).for_each(|(all, more)| *all += more);
        self.longest = self.longest.max(other.longest);
    }
}

pub(super) fn bucket_name(bucket: usize) -> String {
    match 1u64 << bucket {
        micros if bucket + 1 == BUCKETS => format!("> {} ms", micros / 2000),
        micros if micros < 1000 => format!("{micros} µs"),
        micros => format!("{} ms", micros / 1000),
    }
}

/// Of all inserts of a run.
#[derive(Clone, Debug, Default)]
struct Held {
    wall: Times,
    pause: Times,
    strict: Times,
    work: Times,
    longest: Longest,
    /// The insert with most work.
    hardest: Longest,
    inserts: u64,
    /// Page faults, of all inserts.
    faults: u64,
    took: Duration,
    /// The boundaries, of a buffered kind.
    checkpoints: Option<String>,
}

impl Held {
    fn merge(&mut self, other: &Held) {
        self.wall.merge(&other.wall);
        self.pause.merge(&other.pause);
        self.strict.merge(&other.strict);
        self.work.merge(&other.work);
        self.hardest = if other.hardest.work > self.hardest.work { other.hardest } else { self.hardest };
        self.longest = if other.longest.pause > self.longest.pause { other.longest } else { self.longest };
        self.inserts += other.inserts;
        self.faults += other.faults;
    }
}

/// One thread's inserts, until the pool is large enough.
fn insert(db: &Db<Watched>, index: &dyn Index<Watched>, me: u64, end: u64, stop: &AtomicBool) -> Result<Held, Error> {
    let pool: &Pool<Watched> = db.pool();
    let mut session = pool.session()?;
    let mut waits = Waits::of_this_thread();
    let (mut held, before, start) = (Held::default(), usage(), Instant::now());
    let mut used = before;
    while !stop.load(Ordering::Relaxed) {
        let key = key(held.inserts * THREADS + me).to_be_bytes();
        WHERE.set(None);
        let (waited, worked, begin) = (WAITED.get(), processor_time(), Instant::now());
        pool.services().admit(&mut session)?;
        index.insert(&session.enter()?, &key, &key)?;
        let wall = begin.elapsed();
        let (mut pause, mut strict, mut work) = (wall, wall, wall);
        if wall > LONG {
            work = processor_time() - worked;
            let now = usage();
            let last = std::mem::replace(&mut used, now);
            let (faults, sleeps) = (now.faults - last.faults, now.sleeps - last.sleeps);
            let queued = waits.as_mut().map_or(Duration::ZERO, Waits::since);
            let without = without(wall, work, queued, sleeps > 0);
            pause = wall.saturating_sub(without);
            let waited = WAITED.get() - waited;
            strict = wall.saturating_sub(without.saturating_sub(waited));
            if pause > held.longest.pause || work > held.hardest.work {
                let place = WHERE.get().filter(|_| waited > LONG);
                let holder = if place.is_some() { without_processor() } else { Duration::ZERO };
                let len = pool.mapping().len();
                let found = Longest { pause, work, waited, place, holder, faults, sleeps, len };
                held.longest = if pause > held.longest.pause { found } else { held.longest };
                held.hardest = if work > held.hardest.work { found } else { held.hardest };
            }
        }
        held.work.add(work);
        held.wall.add(wall);
        held.pause.add(pause);
        held.strict.add(strict);
        held.inserts += 1;
        if held.inserts % 256 == 0 && pool.mapping().len() >= end {
            stop.store(true, Ordering::Relaxed);
        }
    }
    held.faults = usage().faults - before.faults;
    held.took = start.elapsed();
    Ok(held)
}

/// A pool that grows under two threads.
fn grow(path: &Path, kind: &str, builder: &DbBuilder, end: u64) -> Result<Held, Error> {
    let options = PoolOptions::new().initial_size(START).max_size(4 * END);
    let db = builder.over(options.create_on(FileBacking::create(path)?, Watched(medium()))?)?;
    let index = db.open_index("grown", Some(kind))?;
    let stop = AtomicBool::new(false);
    let all = std::thread::scope(|scope| {
        let (db, index, stop) = (&db, &*index, &stop);
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || insert(db, index, me, end, stop))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    });
    let mut held = Held::default();
    for one in &all? {
        held.merge(one);
        held.took = held.took.max(one.took);
    }
    if index.durability() == Durability::Buffered {
        let stats = db.pool().epochs()?.stats();
        let longest = stats.longest_pause as f64 / 1e6;
        held.checkpoints = Some(format!(
            "{}, the longest kept operations out for {longest:.2} ms; {} lines written back in them, {} ahead of them",
            stats.boundaries, stats.lines, stats.ahead
        ));
    }
    Ok(held)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let end = if context.quick { QUICK_END } else { END };
    context.expect(KINDS.len() * WAYS.len(), 1);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        check_room(place, end + (128 << 20), || "a pool that grows".into())?;
        for kind in KINDS {
            let x = (0..BUCKETS).map(bucket_name).collect();
            let method = format!("{} to {}, two threads, keys in random order", Bytes(START), Bytes(end));
            let title = format!("inserts of a {kind}, by how long they were held up");
            let panel = Panel::new(title, place, super::figure::medium_text(medium()), method);
            let mut panel = panel.axes("at most", x, "inserts", Form::Bars);
            for way in WAYS {
                context.now(format!("{kind}, grown {way}, {}", place.pages));
                let builder = if way == WAYS[0] { Db::builder() } else { Db::builder().no_background_threads() };
                let path = place.unused_path();
                let held = grow(&path, kind, &builder, end);
                let _ = std::fs::remove_file(&path);
                let held = held?;
                show(&mut panel, way, &held);
                measured.claims.push(claim(place, kind, way, &held));
                let rate = held.inserts as f64 / held.took.as_secs_f64() / 1e6;
                let (inserts, faults) = (held.inserts, held.faults);
                measured.notes.push(format!(
                    "{kind}, grown {way}: {inserts} inserts, {rate:.2} million a second, {faults} page faults in them"
                ));
                measured.notes.push(format!("{kind}, grown {way}, longest pause: {}", held.longest));
                measured.notes.push(format!("{kind}, grown {way}, most work: {}", held.hardest));
                if let Some(checkpoints) = held.checkpoints {
                    measured.notes.push(format!("{kind}, grown {way}, checkpoints: {checkpoints}"));
                }
                context.tick();
            }
            measured.panels.push(panel);
        }
    }
    Ok(measured)
}

fn show(panel: &mut Panel, way: &str, held: &Held) {
    for (what, times) in
        [("pause", &held.pause), ("strict pause", &held.strict), ("work", &held.work), ("time", &held.wall)]
    {
        let name = format!("{what}, grown {way}");
        times.counts.iter().enumerate().for_each(|(at, count)| panel.set(&name, at, Point::exact(*count as f64)));
    }
}

fn claim(place: &Place, kind: &str, way: &str, held: &Held) -> Claim {
    let millis = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    let times = [&held.pause, &held.strict, &held.work, &held.wall];
    let [pause, strict, work, wall] = times.map(|times| millis(times.longest));
    Claim {
        what: format!("longest pause of an insert, {kind}, grown {way}, {}", place.pages),
        paper: if way == WAYS[0] { "goal: at most 1 ms".into() } else { "–".into() },
        ours: format!("{pause} (strict {strict}, work {work}, time {wall})"),
        holds: (way == WAYS[0]).then_some(held.pause.longest <= MOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_their_upper_bound() {
        let mut times = Times::default();
        for (nanos, bucket) in
            [(1, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 2), (1_000_000, 10), (9_000_000_000, 19)]
        {
            let before = times.counts[bucket];
            times.add(Duration::from_nanos(nanos));
            assert_eq!(times.counts[bucket], before + 1, "{nanos} ns");
        }
        assert_eq!(times.longest, Duration::from_secs(9));
        assert_eq!([0, 10, BUCKETS - 1].map(bucket_name), ["1 µs", "1 ms", "> 262 ms"]);
    }

    #[test]
    fn a_processor_that_did_not_run_is_told_from_sleep() {
        let [wall, work, queued] = [1000, 100, 300].map(Duration::from_micros);
        // Slept: only what the system's queue says. Not slept: it ran for its work, and not for the rest.
        assert_eq!(without(wall, work, queued, true), queued);
        assert_eq!(without(wall, work, queued, false), wall - work);
        // The queue may say more than the operation took: what those before it have waited is in it.
        assert_eq!(without(wall, work, 2 * wall, true), wall - work);
        assert_eq!(without(wall, 2 * wall, Duration::ZERO, false), Duration::ZERO);
        // And the system counts sleeps.
        let before = usage();
        std::thread::sleep(Duration::from_millis(1));
        assert!(usage().sleeps > before.sleeps);
    }

    #[test]
    fn a_pool_grows_under_two_threads_in_both_ways() {
        let dir = tempfile_dir();
        for (builder, name) in [(Db::builder(), "a"), (Db::builder().no_background_threads(), "b")] {
            let path = dir.join(format!("durix-pool-growth-{}-{name}", std::process::id()));
            let held = grow(&path, "pset", &builder, 2 * START);
            std::fs::remove_file(&path).unwrap();
            let held = held.unwrap();
            assert!(held.inserts > 10_000 && held.pause.counts.iter().sum::<u64>() == held.inserts);
            assert!(held.pause.longest <= held.strict.longest && held.strict.longest <= held.wall.longest);
        }
    }

    fn tempfile_dir() -> std::path::PathBuf {
        std::env::temp_dir()
    }
}
