//! `Db::copy_to` over simulated files: after a power failure the copy is there under its name and whole, or not there; and when it has
//! returned, it is there.

use std::io;
use std::path::Path;

use durix::compact;
use durix::copy::{self, Disk};
use durix::{Db, Pool, PoolOptions, Result};
use durix_crashsim::Explorer;
use durix_crashsim::fs::{FileSubject, Files, Open, SimulatedFs, SimulatedPoolFile};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;

const LIMIT: u64 = 256 << 10;

struct Simulated(SimulatedFs);

impl Disk for Simulated {
    fn exists(&self, path: &Path) -> bool {
        self.0.exists(path).unwrap()
    }
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let file = SimulatedPoolFile::new(&self.0, path, Open::OrNew, LIMIT)?;
        Ok(options.create_on(file, Hardware::PAGE_CACHE)?)
    }
    #[track_caller]
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.0.open(path, Open::Existing)?.sync_all()
    }
    #[track_caller]
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.hard_link(from, to)
    }
    #[track_caller]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    #[track_caller]
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }
    #[track_caller]
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.0.sync_directory(path)
    }
}

fn options(boot: u8) -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(4).lanes(2).initial_size(1).max_size(LIMIT);
    options.pool_id([7; 16]).boot_id([boot; 16])
}

/// Copies a database of one map with two entries.
struct Copying;

impl FileSubject for Copying {
    type Op = ();
    /// Whether there was no copy before.
    type Ret = bool;
    /// The entries of the copy, if it is there.
    type State = Option<Vec<(u64, u64)>>;
    type Model = bool;
    type Live = (SimulatedFs, Db);

    fn create(&self, fs: &SimulatedFs) -> Self::Live {
        let pool = options(1).create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).unwrap();
        let source = Db::builder().no_background_threads().over(pool).unwrap();
        let map = source.map::<u64, u64>("map").unwrap();
        map.insert(&1, &10).unwrap();
        map.insert(&2, &20).unwrap();
        (fs.clone(), source)
    }
    fn recover(&self, fs: &SimulatedFs) -> std::result::Result<Self::Live, String> {
        Ok(self.create(fs))
    }
    fn apply(&self, (fs, source): &mut Self::Live, (): &()) -> bool {
        copy::copy_on(&Simulated(fs.clone()), source, Path::new("/copy"), &options(1)).is_ok()
    }
    fn observe(&self, (fs, _): &mut Self::Live) -> Self::State {
        if !fs.exists("/copy").unwrap() {
            return None;
        }
        let file = SimulatedPoolFile::new(fs, "/copy", Open::Existing, LIMIT).unwrap();
        // The system has been started again.
        let pool = options(2).open_on(file, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let copy = Db::builder().no_background_threads().over(pool).unwrap();
        let map = copy.map::<u64, u64>("map").unwrap();
        assert!(map.check().unwrap().is_empty());
        let mut found: Vec<_> = map.iter().collect::<Result<_>>().unwrap();
        found.sort_unstable();
        Some(found)
    }
    fn model(&self) -> bool {
        false
    }
    fn step(&self, there: &mut bool, (): &()) -> bool {
        !std::mem::replace(there, true)
    }
    fn expect(&self, there: &bool) -> Self::State {
        there.then(|| vec![(1, 10), (2, 20)])
    }
}

/// The same into the place of a database that is there, as a compaction does; what is copied is told from what was there by an entry more.
struct Replacing;

impl FileSubject for Replacing {
    type Op = ();
    /// Whether it was not replaced before.
    type Ret = bool;
    type State = Vec<(u64, u64)>;
    type Model = bool;
    type Live = (SimulatedFs, Db, bool);

    fn create(&self, fs: &SimulatedFs) -> Self::Live {
        let (fs, source) = Copying.create(fs);
        let old = Simulated(fs.clone()).create(Path::new("/copy"), &options(1)).unwrap();
        let old = Db::builder().no_background_threads().over(old).unwrap();
        old.map::<u64, u64>("map").unwrap().insert(&1, &10).unwrap();
        old.close().unwrap();
        fs.sync_directory("/").unwrap();
        (fs, source, false)
    }
    fn recover(&self, fs: &SimulatedFs) -> std::result::Result<Self::Live, String> {
        let is_there = fs.exists("/copy").unwrap();
        if is_there { Ok((fs.clone(), Copying.create(fs).1, true)) } else { Err("neither file has the name".into()) }
    }
    fn apply(&self, (fs, source, done): &mut Self::Live, (): &()) -> bool {
        let replaced = compact::replace_on(&Simulated(fs.clone()), source, Path::new("/copy"), &options(1), |_| Ok(()));
        replaced.unwrap();
        !std::mem::replace(done, true)
    }
    fn observe(&self, (fs, source, _): &mut Self::Live) -> Self::State {
        Copying.observe(&mut (fs.clone(), source.clone())).unwrap()
    }
    fn model(&self) -> bool {
        false
    }
    fn step(&self, done: &mut bool, (): &()) -> bool {
        !std::mem::replace(done, true)
    }
    fn expect(&self, done: &bool) -> Self::State {
        if *done { vec![(1, 10), (2, 20)] } else { vec![(1, 10)] }
    }
}

fn test_replacing(files: &Files) -> durix_crashsim::Report {
    files.run_then(&Replacing, &[()], &[])
}

#[test]
fn a_file_that_is_replaced_is_the_old_one_or_the_new_one() {
    let report = test_replacing(&files()).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn the_sync_of_the_folder_is_needed_by_a_replacement() {
    let sweep = files().syncs_dropped(test_replacing);
    println!("{sweep}");
    let caught = |file: &str| sweep.syncs.iter().any(|(sync, report)| sync.contains(file) && report.failure.is_some());
    assert!(caught("durix/src/compact.rs"), "{sweep}");
}

fn test(files: &Files) -> durix_crashsim::Report {
    files.run_then(&Copying, &[()], &[()])
}

fn files() -> Files {
    Files::new(Explorer::new().suggest(false).executions_per_point(40).samples(20))
}

#[test]
fn a_copy_is_whole_or_not_there() {
    let report = test(&files()).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

/// The folder's sync is. That of the copy's contents repeats what closing the copy has done, which does nothing where a pool takes its
/// file for persistent memory; the others come before anybody knows of the copy.
#[test]
fn the_sync_of_the_folder_is_needed() {
    let sweep = files().syncs_dropped(test);
    println!("{sweep}");
    let caught = |file: &str| sweep.syncs.iter().any(|(sync, report)| sync.contains(file) && report.failure.is_some());
    assert!(caught("durix/src/copy.rs"), "{sweep}");
}
