//! Not in a paper: how long opening takes: replaying a journal that lies in memory, after a time of load, and of a pool that was closed.
//!
//! What a crash leaves is a copy of all files, taken while the database is open and nothing is under way: the databases that are loaded
//! have no threads of their own, which would carry an idle journal to the pool's file. Their writer commits when it is held back, after two
//! intervals. What is left of the journal is what no checkpoint has trimmed: up to two segments.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use durix::{Db, Level, PoolOptions};
use durix_pmem::journal::DiskJournal;

use super::figure::{Context, Error, Figure, Measured, check_room};
use super::journal_commit::remove;
use super::report::{Claim, Form, Panel, Point};
use crate::interleave::Series;
use crate::machine::Bytes;
use crate::place::Place;
use crate::workload::key;

pub(super) const FIGURE: Figure = Figure {
    name: "journal-recovery",
    title: "how long opening a pool with a journal takes (not in a paper)",
    source: "none: a measurement of this project",
    keys: None,
    run,
};

const INTERVAL: Level = Level::Interval(Duration::from_millis(64));
const VALUE: [u8; 100] = [7; 100];
/// Kinds that are opened again after they were closed. The first has the goal; some rebuild in memory what they need.
const KINDS: [&str; 5] = ["masstree", "pset", "hash-bytes", "dptree-values", "bplustree"];
/// The goals.
const REPLAY: f64 = (1u64 << 30) as f64;
const REOPEN: Duration = Duration::from_millis(20);

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    /// Bytes of journal to replay.
    journal: u64,
    /// How long the load is.
    load: Duration,
    /// Bytes of the pool that was closed: of the first kind, and of the others.
    pool: [u64; 2],
}

const QUICK: Size = Size { rounds: 3, journal: 128 << 20, load: Duration::from_secs(1), pool: [512 << 20, 64 << 20] };
const WHOLE: Size = Size { rounds: 7, journal: 512 << 20, load: Duration::from_secs(10), pool: [4 << 30, 512 << 20] };

fn files(path: &Path) -> [PathBuf; 3] {
    [path.to_owned(), DiskJournal::path_of(path), DiskJournal::sums_of(path)]
}

/// Copies a database that is open: what a crash would leave.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    for (from, to) in files(from).iter().zip(files(to)) {
        let name = to.display().to_string();
        std::fs::copy(from, &to).map_err(|source| Error::File { action: "copying to", path: name, source })?;
    }
    Ok(())
}

/// Also of a copy.
fn options(level: Level) -> PoolOptions {
    PoolOptions::new().durability(level).max_size(16 << 30).accept_copy(true)
}

/// Fills a map with 8 + 100 bytes until `enough` says so.
fn fill(db: &Db, kind: &str, enough: &mut dyn FnMut(&Db) -> bool) -> Result<u64, Error> {
    let map = db.map_of_kind::<u64, Vec<u8>>("map", kind)?;
    let (mut handle, value, mut count) = (map.handle()?, VALUE.to_vec(), 0);
    loop {
        for _ in 0..256 {
            handle.insert(&key(count), &value)?;
            count += 1;
        }
        if enough(db) {
            return Ok(count);
        }
    }
}

/// Replays a journal of about so many bytes, none of which is in the pool's file. Returns bytes a second, round by round.
fn replay(place: &Place, size: &Size) -> Result<(u64, Vec<f64>), Error> {
    let (path, crashed) = (place.unused_path(), place.unused_path());
    let measured = (|| {
        // One segment that does not get full, so that no checkpoint begins; the last commit may be large.
        let options = options(INTERVAL).journal_segment(size.journal + (64 << 20)).initial_size(256 << 20);
        let db = Db::builder().pool_options(options.clone()).no_background_threads().create(&path)?;
        let bytes = |db: &Db| db.pool().journal_stats().map_or(0, |stats| stats.bytes);
        fill(&db, "pset", &mut |db| bytes(db) >= size.journal)?;
        db.sync()?;
        let stats = db.pool().journal_stats().unwrap_or_default();
        assert_eq!(stats.checkpoints, 0, "a part of the journal was carried to the pool's file: {stats:?}");
        let mut rates = Vec::new();
        for _ in 0..size.rounds {
            copy(&path, &crashed)?;
            let start = Instant::now();
            let pool = options.open(&crashed)?;
            rates.push(stats.bytes as f64 / start.elapsed().as_secs_f64());
            pool.close()?;
            remove(&crashed);
        }
        Ok((stats.bytes, rates))
    })();
    [&path, &crashed].into_iter().for_each(|path| remove(path));
    measured
}

/// Inserts for some time, and a crash. Returns how long it takes to open the database and get a key, round by round, and the number of keys.
fn after_load(place: &Place, kind: &str, size: &Size) -> Result<(u64, Vec<Duration>), Error> {
    let (path, crashed) = (place.unused_path(), place.unused_path());
    let measured = (|| {
        let builder = Db::builder().pool_options(options(INTERVAL));
        let (db, start) = (builder.clone().no_background_threads().create(&path)?, Instant::now());
        let count = fill(&db, kind, &mut |_| start.elapsed() >= size.load)?;
        db.sync()?;
        let times = (0..size.rounds).map(|_| {
            copy(&path, &crashed)?;
            let time = open(&builder, &crashed, kind);
            remove(&crashed);
            time
        });
        Ok((count, times.collect::<Result<_, Error>>()?))
    })();
    [&path, &crashed].into_iter().for_each(|path| remove(path));
    measured
}

/// How long it takes to open a database and get a key.
fn open(builder: &durix::DbBuilder, path: &Path, kind: &str) -> Result<Duration, Error> {
    let start = Instant::now();
    let db = builder.open(path)?;
    let map = db.map_of_kind::<u64, Vec<u8>>("map", kind)?;
    assert_eq!(map.get(&key(0))?, Some(VALUE.to_vec()), "the first key");
    let took = start.elapsed();
    drop(map);
    db.close()?;
    Ok(took)
}

/// Fills a pool, closes it, and opens it again. Returns how long that takes, round by round, and its keys.
fn reopen(place: &Place, kind: &str, bytes: u64, rounds: usize) -> Result<(u64, Vec<Duration>), Error> {
    let path = place.unused_path();
    let measured = (|| {
        let db = Db::builder().pool_options(options(Level::Process)).create(&path)?;
        let count = fill(&db, kind, &mut |db| db.pool().mapping().len() >= bytes)?;
        db.close()?;
        drop(db);
        let builder = Db::builder().pool_options(options(Level::Immediate));
        // The first one makes the journal and the checksums.
        open(&builder, &path, kind)?;
        let times: Result<_, Error> = (0..rounds).map(|_| open(&builder, &path, kind)).collect();
        Ok((count, times?))
    })();
    remove(&path);
    measured
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let size = if context.quick { QUICK } else { WHOLE };
    context.expect(2 + KINDS.len(), 1);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        check_room(place, 2 * size.pool[0] + 4 * size.journal, || "a pool and its copy".into())?;
        context.now("replaying a journal");
        let (bytes, rates) = replay(place, &size)?;
        let rate = Series::new(rates).median();
        measured.claims.push(Claim {
            what: format!("bytes of journal replayed a second, of {}", Bytes(bytes)),
            paper: "goal: at least 1 GiB".into(),
            ours: Bytes(rate as u64).to_string(),
            holds: Some(rate >= REPLAY),
        });
        context.tick();
        context.now("opening after a load");
        let (count, times) = after_load(place, "masstree", &size)?;
        measured.notes.push(format!(
            "masstree, opened after a crash after {:?} of inserts at intervals of 64 ms ({count} keys): {:.1} ms",
            size.load,
            median(&times)
        ));
        context.tick();
        let method = format!("{} rounds, files in the page cache", size.rounds);
        let x = KINDS.map(String::from).to_vec();
        let mut panel = Panel::new("a pool that was closed: opening, and the first get", place, "journal", method);
        panel = panel.axes("kind", x, "milliseconds", Form::Bars);
        for (at, kind) in KINDS.into_iter().enumerate() {
            context.now(format!("reopening a {kind}"));
            let bytes = size.pool[at.min(1)];
            let (count, times) = reopen(place, kind, bytes, size.rounds)?;
            let median = median(&times);
            panel.set(&format!("with {}", Bytes(bytes)), at, Point::exact(median));
            measured.claims.push(Claim {
                what: format!("reopening a pool of {} with a {kind} of {count} keys", Bytes(bytes)),
                paper: if at == 0 { format!("goal: at most {REOPEN:?}") } else { "–".into() },
                ours: format!("{median:.1} ms"),
                holds: (at == 0).then_some(median <= REOPEN.as_secs_f64() * 1e3),
            });
            context.tick();
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

/// In milliseconds.
fn median(times: &[Duration]) -> f64 {
    Series::new(times.iter().map(|time| time.as_secs_f64() * 1e3).collect()).median()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Size =
        Size { rounds: 2, journal: 1 << 20, load: Duration::from_millis(30), pool: [32 << 20, 32 << 20] };

    #[test]
    fn all_that_was_journaled_is_replayed() {
        let (bytes, rates) = replay(&Place::from_env(), &SMALL).unwrap();
        assert!(bytes >= 1 << 20 && rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0));
    }

    #[test]
    fn a_database_is_opened_after_a_load_and_after_it_was_closed() {
        for kind in KINDS {
            let (count, times) = after_load(&Place::from_env(), kind, &SMALL).unwrap();
            assert!(count > 0 && times.len() == 2, "{kind}");
            let (count, times) = reopen(&Place::from_env(), kind, SMALL.pool[1], 2).unwrap();
            assert!(count > 0 && times.len() == 2, "{kind}");
        }
    }
}
