//! Pools without a journal over simulated files, each word of a page on its own until a sync: what was closed survives a power failure,
//! what was open says that it does not, and a pool that was created is there.

use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::Explorer;
use durix_crashsim::fs::{FileSubject, Files, Open, SimulatedFs, SimulatedPoolFile};
use durix_pmem::{Error, Hardware, Off, Owner, Pool, PoolOptions, Word};

const LIMIT: u64 = 128 << 10;

#[derive(Clone, Copy, Debug)]
enum Do {
    Open,
    Store(u64),
    Grow,
    Close,
}

/// What is found: a value, or that the power has failed while the pool was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Value(u64),
    NotPowerSafe,
}

struct Unjournaled {
    /// Whether a recovery creates the pool that is not there, and opens it as if the system had not been started again.
    creates: bool,
}

struct Live {
    fs: SimulatedFs,
    pool: Option<Pool>,
    found: Found,
}

fn options(boot: u8) -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(2).lanes(2).initial_size(1).max_size(LIMIT);
    options.pool_id([7; 16]).boot_id([boot; 16])
}

fn file(fs: &SimulatedFs, how: Open) -> Result<SimulatedPoolFile, Error> {
    SimulatedPoolFile::new(fs, "pool", how, LIMIT)
}

fn open(fs: &SimulatedFs, boot: u8) -> Result<Pool, Error> {
    options(boot).open_on(file(fs, Open::Existing)?, Hardware::PAGE_CACHE)?.recover()
}

/// A word in the last page of the smallest pool, which nothing else uses.
fn word(pool: &Pool) -> Off<Word> {
    Off::new(pool.geometry().min_size() - 64)
}

impl FileSubject for Unjournaled {
    type Op = Do;
    type Ret = ();
    type State = Found;
    type Model = (bool, u64);
    type Live = Live;

    fn create(&self, fs: &SimulatedFs) -> Live {
        let pool = options(1).create_on(file(fs, Open::OrNew).unwrap(), Hardware::PAGE_CACHE).unwrap();
        pool.close().unwrap();
        Live { fs: fs.clone(), pool: None, found: Found::Value(0) }
    }

    fn recover(&self, fs: &SimulatedFs) -> Result<Live, String> {
        if self.creates {
            match options(1).create_on(file(fs, Open::OrNew).unwrap(), Hardware::PAGE_CACHE) {
                Ok(pool) => pool.close().map_err(|error| error.to_string())?,
                Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        // The system has been started again.
        let found = match open(fs, if self.creates { 1 } else { 2 }) {
            Err(Error::NotPowerSafe { .. }) => Found::NotPowerSafe,
            Err(error) => return Err(error.to_string()),
            Ok(pool) => {
                let mut session = pool.session().unwrap();
                let op = session.enter().unwrap();
                let value = op.load(op.at(word(&pool)), Relaxed);
                Found::Value(value)
            }
        };
        Ok(Live { fs: fs.clone(), pool: None, found })
    }

    fn apply(&self, live: &mut Live, what: &Do) {
        match (*what, &live.pool) {
            (Do::Open, None) => live.pool = Some(open(&live.fs, 1).unwrap()),
            (Do::Store(value), Some(pool)) => {
                let mut session = pool.session().unwrap();
                let op = session.enter().unwrap();
                op.store(op.at(word(pool)), value, Relaxed);
                op.persist(op.at(word(pool)));
            }
            (Do::Grow, Some(pool)) => {
                let mut session = pool.session().unwrap();
                let op = session.enter().unwrap();
                drop(pool.space().reserve_extent(&op, Owner(0), pool.mapping().len()).unwrap());
            }
            (Do::Close, Some(pool)) => {
                pool.close().unwrap();
                live.pool = None;
            }
            _ => {}
        }
    }

    fn observe(&self, live: &mut Live) -> Found {
        live.found
    }
    fn model(&self) -> (bool, u64) {
        (false, 0)
    }
    fn step(&self, (is_open, value): &mut (bool, u64), what: &Do) {
        match *what {
            Do::Open => *is_open = true,
            Do::Store(stored) if *is_open => *value = stored,
            Do::Close => *is_open = false,
            _ => {}
        }
    }
    fn expect(&self, (is_open, value): &(bool, u64)) -> Found {
        if *is_open { Found::NotPowerSafe } else { Found::Value(*value) }
    }
}

const OPS: [Do; 7] = [Do::Open, Do::Store(1), Do::Close, Do::Open, Do::Store(2), Do::Grow, Do::Close];

fn test(files: &Files) -> durix_crashsim::Report {
    files.run(&Unjournaled { creates: false }, &OPS)
}

fn files() -> Files {
    Files::new(Explorer::new().suggest(false)).sector(8)
}

#[test]
fn what_was_closed_survives_and_what_was_open_says_so() {
    let report = test(&files()).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn an_interrupted_creation_can_be_ended() {
    let explorer = Explorer::new().suggest(false).crash_in_create(true).executions_per_point(300).samples(200);
    let report = Files::new(explorer).sector(8).run(&Unjournaled { creates: true }, &[]).assert_ok();
    println!("{report}");
    assert!(report.complete && report.crash_points > 5);
}

/// By number. Those of creation and of recoveries, the last two of a closing, the allocation of what is allocated, and the first of an opening
/// are repeated by a later one before anybody rests on them, or there is nothing to write.
#[test]
fn the_syncs_of_the_name_of_opening_and_of_closing_are_needed() {
    let sweep = files().numbered_syncs_dropped(test);
    println!("{sweep}");
    let caught: Vec<&str> =
        sweep.syncs.iter().filter(|(_, report)| report.failure.is_some()).map(|(sync, _)| sync.as_str()).collect();
    assert!(caught.iter().any(|sync| sync.ends_with(" of /")), "the folder: {sweep}");
    assert!(caught.len() >= 8, "{sweep}");
}
