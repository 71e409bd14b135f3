//! Not in a paper: commits a second of a pool with a journal that is synced for each update.
//!
//! The floor is what one thread can do at most: overwriting 4 KiB of a file that is filled with zeroes, and a sync of its data. A real
//! disk varies by a factor of ten from one second to the next. So there are two syncs: the file system's, in the temporary
//! directory, and one of a fixed time in the directory of the figure, where syncs of the journal, of the checksums of pages and of the floor
//! take 140 µs instead: they sleep, and then wait for the clock, because a sleep alone takes longer than it is asked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use durix::{Db, Level, PoolOptions};
use durix_pmem::backing::FileBacking;
use durix_pmem::journal::DiskJournal;
use durix_pmem::{JournalFile, JournalPlace};

use super::report::{Claim, Form, Panel, Point};
use super::{Context, Error, Figure, Measured, working};
use crate::interleave::Series;
use crate::place::Place;

pub(super) const FIGURE: Figure = Figure {
    name: "journal-commit",
    title: "commits a second with a sync for each (not in a paper)",
    source: "–",
    keys: None,
    run,
};

/// About as much as a sync of an SSD.
pub(super) const FIXED: Duration = Duration::from_micros(140);
/// A sleep takes longer than it is asked for by up to so much, where a processor is free. What is left is waited for by the clock.
const OVERSLEPT: Duration = Duration::from_micros(80);
const THREADS: [u64; 3] = [1, 8, 64];
const KINDS: [&str; 2] = ["pset", "masstree"];
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
const VALUE: [u8; 100] = [7; 100];

/// A file whose syncs take a fixed time, or as long as they take.
#[derive(Debug)]
struct Synced {
    file: DiskJournal,
    fixed: Option<Duration>,
}

impl JournalFile for Synced {
    fn describe(&self) -> String {
        self.file.describe()
    }
    fn len(&self) -> durix_pmem::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> durix_pmem::Result<()> {
        self.file.read_at(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> durix_pmem::Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> durix_pmem::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> durix_pmem::Result<()> {
        self.file.allocate(len)
    }
    fn sync(&self) -> durix_pmem::Result<()> {
        match self.fixed {
            Some(time) => {
                take(time);
                Ok(())
            }
            None => self.file.sync(),
        }
    }
    fn sync_name(&self) -> durix_pmem::Result<()> {
        self.file.sync_name()
    }
}

/// Returns after that time. The processor is free for most of it, as it is while a disk works.
fn take(time: Duration) {
    let start = Instant::now();
    if let Some(sleep) = time.checked_sub(OVERSLEPT).filter(|sleep| !sleep.is_zero()) {
        std::thread::sleep(sleep);
    }
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A journal beside a pool, or the checksums of its pages, with such syncs.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    path: PathBuf,
    /// Where the checksums of the pool's pages lie, beside a journal.
    sums: Option<PathBuf>,
    fixed: Option<Duration>,
}

impl Beside {
    pub(super) fn pool(path: &Path, fixed: Option<Duration>) -> Self {
        Beside { path: DiskJournal::path_of(path), sums: Some(DiskJournal::sums_of(path)), fixed }
    }
}

impl JournalPlace for Beside {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }
    fn open(&self, _read_only: bool) -> durix_pmem::Result<Option<Arc<dyn JournalFile>>> {
        let file = DiskJournal::open(&self.path)?;
        Ok(file.map(|file| Arc::new(Synced { file, fixed: self.fixed }) as Arc<dyn JournalFile>))
    }
    fn create(&self) -> durix_pmem::Result<Arc<dyn JournalFile>> {
        Ok(Arc::new(Synced { file: DiskJournal::create(&self.path)?, fixed: self.fixed }))
    }
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        let path = self.sums.clone()?;
        Some(Arc::new(Beside { path, sums: None, fixed: self.fixed }))
    }
}

/// Removes a pool and what lies beside it.
pub(super) fn remove(path: &Path) {
    for path in [path.to_owned(), DiskJournal::path_of(path), DiskJournal::sums_of(path)] {
        let _ = std::fs::remove_file(path);
    }
}

/// Overwrites and syncs a second.
fn floor(path: &Path, fixed: Option<Duration>, time: Duration) -> Result<f64, Error> {
    let file = Synced { file: DiskJournal::create(path)?, fixed };
    file.allocate(BLOCKS * BLOCK as u64)?;
    file.file.sync()?;
    let (block, start, mut count) = ([3; BLOCK], Instant::now(), 0);
    while start.elapsed() < time {
        file.write_at(count % BLOCKS * BLOCK as u64, &block)?;
        file.sync()?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// What one run of threads has done.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Updates a second.
    rate: f64,
    /// Updates a sync of the journal.
    shared: f64,
    /// Bytes of the journal an update.
    bytes: f64,
}

/// Inserts of 8 + 100 bytes by some threads, each of which waits for its commit.
fn inserts(path: &Path, kind: &str, fixed: Option<Duration>, threads: u64, time: Duration) -> Result<Run, Error> {
    let options = PoolOptions::new().durability(Level::Immediate);
    let beside = Beside::pool(path, fixed);
    let db = Db::builder().over(options.create_journaled_on(FileBacking::create(path)?, beside)?)?;
    let map = db.map_of_kind::<u64, Vec<u8>>("commits", kind)?;
    let before = db.pool().journal_stats().unwrap_or_default();
    let done = working::work(threads, time, || {
        let (mut handle, value) = (map.handle()?, VALUE.to_vec());
        Ok(move |key: u64| Ok(handle.insert(&key.swap_bytes(), &value).map(drop)?))
    })?;
    let count = done.pieces;
    let after = db.pool().journal_stats().unwrap_or_default();
    let syncs = (after.commits - before.commits) as f64;
    Ok(Run { rate: count / done.seconds, shared: count / syncs, bytes: (after.bytes - before.bytes) as f64 / count })
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let (rounds, time) = if context.quick { (5, Duration::from_millis(60)) } else { (11, Duration::from_millis(300)) };
    context.expect(2 * context.places.len(), 1);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let disk = Place::at(std::env::temp_dir());
        for (place, fixed) in [(place, Some(FIXED)), (&disk, None)] {
            context.now(format!("syncs of {}", name(fixed)));
            compare(&mut measured, place, fixed, rounds, time)?;
            context.tick();
        }
    }
    Ok(measured)
}

fn name(fixed: Option<Duration>) -> &'static str {
    if fixed.is_some() { "a fixed time" } else { "the file system" }
}

/// One panel: floor and threads in turn.
fn compare(
    measured: &mut Measured,
    place: &Place,
    fixed: Option<Duration>,
    rounds: usize,
    time: Duration,
) -> Result<(), Error> {
    let path = place.unused_path();
    let mut floors = Vec::new();
    let mut runs = vec![Vec::new(); KINDS.len() * THREADS.len()];
    for _ in 0..rounds {
        let rate = floor(&path, fixed, time);
        let _ = std::fs::remove_file(&path);
        floors.push(rate?);
        for (at, runs) in runs.iter_mut().enumerate() {
            let (kind, threads) = (KINDS[at / THREADS.len()], THREADS[at % THREADS.len()]);
            let run = inserts(&path, kind, fixed, threads, time);
            remove(&path);
            runs.push(run?);
        }
    }
    let floors = Series::new(floors);
    let method = format!("{rounds} rounds in turn, {time:?} each, inserts of 8 + 100 bytes");
    let title = format!("a sync for each commit, syncs of {}", name(fixed));
    let x = THREADS.iter().map(u64::to_string).collect();
    let mut panel = Panel::new(title, place, "journal", method).axes("threads", x, "commits a second", Form::Bars);
    panel.set("overwriting 4 KiB and a sync", 0, Point::exact(floors.median()));
    for (which, kind) in KINDS.iter().enumerate() {
        let runs = &runs[which * THREADS.len()..][..THREADS.len()];
        let series = |of: fn(&Run) -> f64| -> Vec<Series> {
            runs.iter().map(|runs| Series::new(runs.iter().map(of).collect())).collect()
        };
        let (rates, shared) = (series(|run| run.rate), series(|run| run.shared));
        rates.iter().enumerate().for_each(|(at, rates)| panel.set(kind, at, Point::exact(rates.median())));
        measured.claims.extend(claims(kind, fixed, &floors, &rates, &shared));
        let bytes = series(|run| run.bytes)[0].median();
        measured
            .notes
            .push(format!("{kind}, one thread, syncs of {}: {bytes:.0} bytes of journal an insert", name(fixed)));
    }
    measured.panels.push(panel);
    Ok(())
}

fn claims(kind: &str, fixed: Option<Duration>, floors: &Series, rates: &[Series], shared: &[Series]) -> Vec<Claim> {
    // A real disk is shown, and judged by nobody.
    let judge = |ratio: f64, least: f64| fixed.is_some().then_some(ratio >= least);
    let claim = |what: &str, ratio: f64, least: f64| Claim {
        what: format!("{kind}, {what}, syncs of {}", name(fixed)),
        paper: format!("goal: at least {least}"),
        ours: format!("{ratio:.3}"),
        holds: judge(ratio, least),
    };
    vec![
        claim("one thread against the floor", rates[0].ratio_to(floors).median(), 0.95),
        claim("commits a sync, 8 threads", shared[1].median(), 7.0),
        claim("commits a sync, 64 threads", shared[2].median(), 55.0),
        claim("64 threads against one", rates[2].ratio_to(&rates[0]).median(), 12.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_of_a_fixed_time_takes_that_time() {
        let times = || {
            let start = Instant::now();
            take(FIXED);
            start.elapsed()
        };
        let times: Vec<_> = (0..50).map(|_| times()).collect();
        assert!(times.iter().all(|time| *time >= FIXED), "{times:?}");
        // A busy machine may take the processor away; not always.
        assert!(times.iter().any(|time| *time < FIXED + OVERSLEPT), "{times:?}");
    }

    #[test]
    fn each_insert_of_one_thread_costs_one_sync() {
        let path = Place::from_env().unused_path();
        let run = inserts(&path, "pset", Some(Duration::ZERO), 1, Duration::from_millis(20)).unwrap();
        assert!(DiskJournal::sums_of(&path).exists(), "measured without checksums of pages");
        remove(&path);
        // The database's own threads may commit once more.
        assert!(run.shared > 0.9 && run.shared <= 1.0 && run.rate > 0.0 && run.bytes > 100.0, "{run:?}");
    }
}
