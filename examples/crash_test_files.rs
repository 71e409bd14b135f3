//! A small store with a write-ahead log, its crash test, two bugs that the test finds, and the mended store.
//!
//! `cargo run --release --example crash_test_files`

use std::io;

use durix_crashsim::fs::{FileSubject, FileSystem, Files, Open, OpenFile, OsFs, SimulatedFs};
use durix_crashsim::{Explorer, Report};

/// Which sync is missing, or in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// A checkpoint renames its file, and empties the log before the directory is synced.
    NoDirectorySync,
    /// A checkpoint empties the log before it has synced its file.
    Reordered,
}

const VALUES: usize = 2;
const RECORD: usize = 24;
type Values = [u64; VALUES];

/// Some numbers. Each change is appended to `log` and synced; now and then a checkpoint writes all of them to `data`.
struct Store<F: FileSystem> {
    fs: F,
    log: F::File,
    values: Values,
    /// Changes since the store was made.
    changes: u64,
    bug: Bug,
}

/// A record of the log: how many changes there are with it, which number became what, and a checksum.
fn record(change: u64, which: usize, value: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&change.to_le_bytes());
    record[8..16].copy_from_slice(&(value << 8 | which as u64).to_le_bytes());
    let sum = checksum(&record[..16]);
    record[16..].copy_from_slice(&sum.to_le_bytes());
    record
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"))
}

impl<F: FileSystem> Store<F> {
    /// Makes the store, or opens it.
    fn open(fs: &F, bug: Bug) -> io::Result<Self> {
        // The checkpoint below syncs the directory.
        let log = fs.open("log", Open::OrNew)?;
        let mut store = Store { fs: fs.clone(), log, values: Values::default(), changes: 0, bug };
        if fs.exists("data")? {
            let data = fs.open("data", Open::Existing)?.read_all()?;
            if data.len() != (VALUES + 2) * 8 || checksum(&data[..data.len() - 8]) != word(&data, VALUES + 1) {
                return Err(io::Error::other("the checkpoint is damaged"));
            }
            store.changes = word(&data, 0);
            store.values = std::array::from_fn(|at| word(&data, at + 1));
        }
        store.replay()?;
        Ok(store)
    }

    /// Runs the records of the log that the checkpoint does not have, up to the first that is not whole.
    fn replay(&mut self) -> io::Result<()> {
        let log = self.log.read_all()?;
        for found in log.chunks_exact(RECORD) {
            let (change, what) = (word(found, 0), word(found, 1));
            if found != record(change, (what & 0xff) as usize, what >> 8) || change > self.changes + 1 {
                break;
            }
            if change == self.changes + 1 {
                self.values[(what & 0xff) as usize] = what >> 8;
                self.changes = change;
            }
        }
        // What follows begins with a clean log.
        self.checkpoint()
    }

    fn set(&mut self, which: usize, value: u64) -> io::Result<()> {
        let end = self.log.len()?;
        self.log.write_all_at(&record(self.changes + 1, which, value), end)?;
        self.log.sync_data()?;
        self.values[which] = value;
        self.changes += 1;
        Ok(())
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        let mut bytes: Vec<u8> = [self.changes].iter().chain(&self.values).flat_map(|n| n.to_le_bytes()).collect();
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        if self.fs.exists("data.new")? {
            // Not emptied: after a crash in a rename it may be a second name of `data`.
            self.fs.remove_file("data.new")?;
        }
        let data = self.fs.open("data.new", Open::New)?;
        data.write_all_at(&bytes, 0)?;
        if self.bug != Bug::Reordered {
            data.sync_all()?;
        }
        self.fs.rename("data.new", "data")?;
        if self.bug != Bug::NoDirectorySync {
            self.fs.sync_directory("/")?;
        }
        self.log.set_len(0)?;
        self.log.sync_all()?;
        if self.bug == Bug::Reordered {
            data.sync_all()?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum StoreOp {
    Set(usize, u64),
    Checkpoint,
}
use StoreOp::{Checkpoint, Set};

/// What the simulator has to know: how to make and open it, its operations, what can be observed, and a model.
struct Tested(Bug);

impl FileSubject for Tested {
    type Op = StoreOp;
    type Ret = bool;
    type State = Values;
    type Model = Values;
    type Live = Store<SimulatedFs>;

    fn create(&self, fs: &SimulatedFs) -> Self::Live {
        Store::open(fs, self.0).expect("nothing fails")
    }
    fn recover(&self, fs: &SimulatedFs) -> Result<Self::Live, String> {
        Store::open(fs, self.0).map_err(|error| error.to_string())
    }
    fn apply(&self, store: &mut Self::Live, op: &StoreOp) -> bool {
        match *op {
            Set(which, value) => store.set(which, value).is_ok(),
            Checkpoint => store.checkpoint().is_ok(),
        }
    }
    fn observe(&self, store: &mut Self::Live) -> Values {
        store.values
    }
    fn model(&self) -> Values {
        Values::default()
    }
    fn step(&self, model: &mut Values, op: &StoreOp) -> bool {
        if let Set(which, value) = *op {
            model[which] = value;
        }
        true
    }
    fn expect(&self, model: &Values) -> Values {
        *model
    }
}

/// All sequences of three operations, a crash anywhere, and another one in each recovery and after it.
fn test(files: &Files, bug: Bug) -> Report {
    files.sequences(&Tested(bug), &[Set(0, 7), Set(1, 8), Checkpoint], 3, &[Set(0, 9)])
}

fn main() -> io::Result<()> {
    println!("the store works, as far as one can see:");
    let directory = tempfile::tempdir()?;
    let fs = OsFs::new(directory.path());
    let mut store = Store::open(&fs, Bug::NoDirectorySync)?;
    store.set(1, 8)?;
    store.checkpoint()?;
    println!("  set 8, found {:?}\n", Store::open(&fs, Bug::NoDirectorySync)?.values);

    let files = Files::new(Explorer::new().crashes(2).crash_later(true));
    for bug in [Bug::NoDirectorySync, Bug::Reordered] {
        println!("{bug:?}:\n");
        let failure = test(&files, bug).failure.expect("the bug is found");
        println!("{failure}\n");
        let replaying = Files::new(Explorer::new().crashes(2).crash_later(true).replay(&failure.replay));
        let again = test(&replaying, bug).failure.expect("the same state fails again");
        assert_eq!(again.cause, failure.cause);
    }

    println!("mended:\n");
    let report = test(&files, Bug::None).assert_ok();
    println!("{report}\n");
    assert!(report.complete);

    let sweep = files.syncs_dropped(|files| test(files, Bug::None)).assert_all_caught(&[]);
    println!("{sweep}");
    Ok(())
}
