//! Not in a paper: how long an insert is held up while its pool grows from 16 MiB to 2 GiB under two inserting threads.
//!
//! # What counts as held up
//! The *time* of an insert is from before the database admits it until its operation has ended. On a machine with two
//! processors and three threads most of the longest times are waits for a processor, which the system's scheduler hands out, not
//! we. So the *pause* of an insert is its time without the time in which its thread could run and did not. Linux tells that time for
//! each thread (the second number of `/proc/thread-self/schedstat`); it is read after each insert that took long. (What inserts in
//! between have waited, each less than that bound, is taken off too.) The rest is what our own code does or waits for: the insert's
//! work, its page faults, its system calls, waiting for a lock or at the gate.
//!
//! A thread that waits for a lock gives its processor away after some turns. While it has none, the lock's holder may be at work
//! for it. So the *strict pause* takes no time off that was spent waiting for a lock or at the gate: it is too long where the holder
//! itself has no processor.
//!
//! The notes say of the longest pause of each run what it consisted of: waiting for a lock or at the gate, page faults of its thread
//! (those of the inserts just before it, each short, are counted with it), the rest.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix::{Db, DbBuilder, Durability, Index, PoolOptions};
use durix_pmem::backing::FileBacking;
use durix_pmem::medium::Survives;
use durix_pmem::{Hardware, Lines, Medium, Pool, Rmw};

use super::figure::{Context, Error, Figure, Measured};
use super::report::{Claim, Form, Panel, Point};
use crate::cso_append::medium;
use crate::machine::Bytes;
use crate::place::{Place, free_bytes};

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
/// Inserts that took longer have their share without a processor looked up.
const LONG: Duration = Duration::from_micros(20);
/// The longest pause that there may be.
const MOST: Duration = Duration::from_millis(1);
const KINDS: [&str; 2] = ["masstree", "pset"];
const WAYS: [&str; 2] = ["by its own threads", "inside of inserts"];

// ---- waiting, measured ----

thread_local! {
    /// Time that this thread has spent waiting for locks and at the gate.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The hardware, with a clock for those who wait.
#[derive(Clone, Copy, Debug)]
struct Watched(Hardware);

// SAFETY: every call is handed on unchanged.
unsafe impl Medium for Watched {
    fn describe(self) -> String {
        self.0.describe()
    }
    fn survives(self) -> Survives {
        self.0.survives()
    }
    #[inline(always)]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.0.load(word, order)
    }
    #[inline(always)]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.0.store(word, value, order);
    }
    #[inline(always)]
    fn store_words<const N: usize>(self, to: &[AtomicU64; N], values: &[u64; N]) {
        self.0.store_words(to, values);
    }
    #[inline(always)]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.0.store_nt(word, value);
    }
    #[inline(always)]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.0.store_nt_line(line, values);
    }
    #[inline(always)]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(word, current, new)
    }
    #[inline(always)]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.0.rmw(word, op, operand)
    }
    #[inline(always)]
    fn wide(self) -> Option<durix_pmem::Wide> {
        self.0.wide()
    }
    #[inline(always)]
    fn order(self) {
        self.0.order();
    }
    #[inline(always)]
    fn write_back(self, lines: Lines<'_>) {
        self.0.write_back(lines);
    }
    #[inline(always)]
    fn fence(self) {
        self.0.fence();
    }
    fn spin(self, turn: u32) {
        let start = Instant::now();
        self.0.spin(turn);
        WAITED.set(WAITED.get() + start.elapsed());
    }
}

/// Reads how long this thread has waited for a processor.
struct Waits {
    file: File,
    last: Duration,
}

impl Waits {
    fn of_this_thread() -> Option<Waits> {
        let mut waits = Waits { file: File::open("/proc/thread-self/schedstat").ok()?, last: Duration::ZERO };
        waits.last = waits.read()?;
        Some(waits)
    }

    fn read(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let len = self.file.read_at(&mut text, 0).ok()?;
        let second = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?;
        Some(Duration::from_nanos(second.parse().ok()?))
    }

    /// Since the last call.
    fn since(&mut self) -> Duration {
        let now = self.read().unwrap_or(self.last);
        now.saturating_sub(std::mem::replace(&mut self.last, now))
    }
}

// ---- what is measured ----

/// Page faults of this thread so far that needed no disk.
fn page_faults() -> u64 {
    // SAFETY: all zeroes are a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to such a struct of ours.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    if done == 0 { usage.ru_minflt as u64 } else { 0 }
}

/// The longest pause of a run, and what it consisted of.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    pause: Duration,
    /// Waiting for a lock or at the gate, with or without a processor.
    waited: Duration,
    faults: u64,
    /// Bytes of the pool then.
    len: u64,
}

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [pause, waited] = [self.pause, self.waited].map(|time| time.as_secs_f64() * 1e3);
        write!(
            f,
            "{pause:.2} ms at {}, of it waiting for a lock or at the gate {waited:.2} ms; {} page faults",
            Bytes(self.len),
            self.faults
        )
    }
}

/// Inserts by how long they took: up to 1, 2, 4, … µs.
#[derive(Clone, Debug, Default)]
struct Times {
    counts: [u64; BUCKETS],
    longest: Duration,
}

const BUCKETS: usize = 20;

impl Times {
    fn add(&mut self, time: Duration) {
        let micros = time.as_nanos().div_ceil(1000).max(1) as u64;
        let bucket = micros.next_power_of_two().trailing_zeros() as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.longest = self.longest.max(time);
    }

    fn merge(&mut self, other: &Times) {
        self.counts.iter_mut().zip(other.counts).for_each(|(all, more)| *all += more);
        self.longest = self.longest.max(other.longest);
    }
}

fn bucket_name(bucket: usize) -> String {
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
    longest: Longest,
    inserts: u64,
    took: Duration,
    /// The boundaries, of a buffered kind.
    checkpoints: Option<String>,
}

impl Held {
    fn merge(&mut self, other: &Held) {
        self.wall.merge(&other.wall);
        self.pause.merge(&other.pause);
        self.strict.merge(&other.strict);
        self.longest = if other.longest.pause > self.longest.pause { other.longest } else { self.longest };
        self.inserts += other.inserts;
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One thread's inserts, until the pool is large enough.
fn insert(db: &Db<Watched>, index: &dyn Index<Watched>, me: u64, end: u64, stop: &AtomicBool) -> Result<Held, Error> {
    let pool: &Pool<Watched> = db.pool();
    let mut session = pool.session()?;
    let mut waits = Waits::of_this_thread();
    let (mut held, mut faults, start) = (Held::default(), page_faults(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let key = mix(held.inserts * THREADS + me + 1).to_be_bytes();
        let (waited, begin) = (WAITED.get(), Instant::now());
        pool.services().admit(&mut session)?;
        index.insert(&session.enter()?, &key, &key)?;
        let wall = begin.elapsed();
        let (mut pause, mut strict) = (wall, wall);
        if wall > LONG {
            let without = waits.as_mut().map_or(Duration::ZERO, Waits::since);
            pause = wall.saturating_sub(without);
            let waited = WAITED.get() - waited;
            strict = wall.saturating_sub(without.saturating_sub(waited));
            let now = page_faults();
            let found =
                Longest { pause, waited, faults: now - std::mem::replace(&mut faults, now), len: pool.mapping().len() };
            held.longest = if pause > held.longest.pause { found } else { held.longest };
        }
        held.wall.add(wall);
        held.pause.add(pause);
        held.strict.add(strict);
        held.inserts += 1;
        if held.inserts % 256 == 0 && pool.mapping().len() >= end {
            stop.store(true, Ordering::Relaxed);
        }
    }
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
        room(place, end)?;
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
                measured
                    .notes
                    .push(format!("{kind}, grown {way}: {} inserts, {rate:.2} million a second", held.inserts));
                measured.notes.push(format!("{kind}, grown {way}, longest pause: {}", held.longest));
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

fn room(place: &Place, end: u64) -> Result<(), Error> {
    let (needed, free) = (end + (128 << 20), free_bytes(&place.dir).unwrap_or(u64::MAX));
    if free >= needed {
        return Ok(());
    }
    let dir = place.dir.display().to_string();
    Err(Error::Room { what: "a pool that grows".into(), needed: Bytes(needed), free: Bytes(free), dir })
}

fn show(panel: &mut Panel, way: &str, held: &Held) {
    for (what, times) in [("pause", &held.pause), ("strict pause", &held.strict), ("time", &held.wall)] {
        let name = format!("{what}, grown {way}");
        times.counts.iter().enumerate().for_each(|(at, count)| panel.set(&name, at, Point::exact(*count as f64)));
    }
}

fn claim(place: &Place, kind: &str, way: &str, held: &Held) -> Claim {
    let millis = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    let [pause, strict, wall] = [&held.pause, &held.strict, &held.wall].map(|times| millis(times.longest));
    Claim {
        what: format!("longest pause of an insert, {kind}, grown {way}, {}", place.pages),
        paper: if way == WAYS[0] { "goal: at most 1 ms".into() } else { "–".into() },
        ours: format!("{pause} (strict {strict}, time {wall})"),
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
