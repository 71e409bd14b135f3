//! A B+-tree of 100 000 records with a durable commit for each operation, as in figure 9 of the REWIND paper (VLDB'15), whose peers were
//! other stores: ours on the one-fence engine in persistent memory, beside redb and LMDB in files, in memory and on a disk.
//!
//! All run in one thread, in turn, for a fixed time each round: a new record is inserted, an old one removed, each in a transaction of
//! its own. Standard output has a line for each contestant: directory, its file system, store, and the operations a second of each round,
//! with tabs in between. Lines that begin with `#` are for people.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use durix::{Db, Handle, PoolOptions};
use durix_pmem::Hardware;
use durix_pmem::backing::FileBacking;
use tempfile::TempDir;

use crate::peers::{Lmdb, redb_commit};
use crate::store::{Error, key};
use crate::syncs;

/// Records that are there all the time.
const RECORDS: u64 = 100_000;
/// Words of a record besides its key, as in the paper.
const ROW: usize = 24;

/// A durable ordered map, one commit for each call. Failures of a store panic: then nothing can be compared.
trait Records {
    fn fill(&mut self, keys: &mut dyn Iterator<Item = u64>);
    fn insert(&mut self, key: u64);
    /// Whether it was there.
    fn remove(&mut self, key: u64) -> bool;
}

fn row(key: u64) -> [u8; ROW] {
    let mut row = [0; ROW];
    row.chunks_mut(8).zip(0..).for_each(|(word, i)| word.copy_from_slice(&(key ^ i).to_le_bytes()));
    row
}

struct Ours(Handle<u64, Vec<u8>>);

impl Records for Ours {
    fn fill(&mut self, keys: &mut dyn Iterator<Item = u64>) {
        keys.for_each(|key| self.insert(key));
    }
    fn insert(&mut self, key: u64) {
        self.0.insert(&key, &row(key).to_vec()).expect("Durix inserts");
    }
    fn remove(&mut self, key: u64) -> bool {
        self.0.remove(&key).expect("Durix removes")
    }
}

impl Records for redb::Database {
    fn fill(&mut self, keys: &mut dyn Iterator<Item = u64>) {
        redb_commit(self, |table| keys.for_each(|key| drop(table.insert(key, &row(key)[..]).expect("redb inserts"))));
    }
    fn insert(&mut self, key: u64) {
        self.fill(&mut std::iter::once(key));
    }
    fn remove(&mut self, key: u64) -> bool {
        let mut was_there = false;
        redb_commit(self, |table| was_there = table.remove(key).expect("redb removes").is_some());
        was_there
    }
}

impl Records for Lmdb {
    fn fill(&mut self, keys: &mut dyn Iterator<Item = u64>) {
        self.commit(|txn| keys.for_each(|key| self.db.put(txn, &key, &row(key)).expect("LMDB puts")));
    }
    fn insert(&mut self, key: u64) {
        self.fill(&mut std::iter::once(key));
    }
    fn remove(&mut self, key: u64) -> bool {
        let mut was_there = false;
        self.commit(|txn| was_there = self.db.delete(txn, &key).expect("LMDB deletes"));
        was_there
    }
}

/// One that takes part, with the keys that it holds.
struct Contestant {
    store: &'static str,
    place: PathBuf,
    records: Box<dyn Records>,
    /// Whether a commit is a sync.
    syncs: bool,
    keys: VecDeque<u64>,
    next: u64,
    rates: Vec<f64>,
    _folder: TempDir,
}

impl Contestant {
    fn new(
        store: &'static str,
        place: &Path,
        make: impl FnOnce(&Path) -> Result<Box<dyn Records>, Error>,
    ) -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("durix-peers-").tempdir_in(place)?;
        let mut records = make(folder.path())?;
        let keys: VecDeque<u64> = (0..RECORDS).map(key).collect();
        records.fill(&mut keys.iter().copied());
        let syncs = store != OURS;
        let place = place.into();
        Ok(Contestant { store, place, records, syncs, keys, next: RECORDS, rates: Vec::new(), _folder: folder })
    }

    /// Inserts and removes for a while.
    fn round(&mut self, time: Duration) -> Result<(), Error> {
        let (before, start, mut count) = (syncs::count(), Instant::now(), 0);
        while start.elapsed() < time {
            let (new, old) = (key(self.next), self.keys.pop_front().expect("there are records"));
            self.next += 1;
            self.records.insert(new);
            self.keys.push_back(new);
            if !self.records.remove(old) {
                return Err(format!("{} has lost key {old}", self.store).into());
            }
            count += 2;
        }
        self.rates.push(count as f64 / start.elapsed().as_secs_f64());
        let syncs = syncs::count() - before;
        if self.syncs && syncs < count {
            return Err(format!("{}: {count} commits, and only {syncs} syncs were seen", self.store).into());
        }
        Ok(())
    }
}

const OURS: &str = "bplustree";

fn ours(folder: &Path) -> Result<Box<dyn Records>, Error> {
    let options = PoolOptions::new().initial_size(96 << 20).max_size(4 << 30).assume_pmem(true);
    let medium = Hardware::write_back_instruction().unwrap_or(Hardware::PAGE_CACHE);
    let pool = options.create_on(FileBacking::create(&folder.join("pool"))?, medium)?;
    // Its services run in its commits: the peers have no thread beside them either.
    let db = Db::builder().no_background_threads().over(pool)?;
    Ok(Box::new(Ours(db.map_of_kind("records", OURS)?.handle()?)))
}

fn redb(folder: &Path) -> Result<Box<dyn Records>, Error> {
    Ok(Box::new(redb::Database::create(folder.join("db"))?))
}

fn lmdb(folder: &Path) -> Result<Box<dyn Records>, Error> {
    Ok(Box::new(Lmdb::open(folder)?))
}

/// Whether a directory lies in memory, where a sync has nothing to do.
fn in_memory(dir: &Path) -> Result<bool, Error> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: all of it are numbers, for which zero is a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and the kernel fills what it is given.
    match unsafe { libc::statfs(path.as_ptr(), &mut stat) } {
        0 => Ok(stat.f_type as i64 == libc::TMPFS_MAGIC as i64),
        _ => {
            Err(format!("asking for the file system of {}: {}", dir.display(), std::io::Error::last_os_error()).into())
        }
    }
}

pub fn run(quick: bool) -> Result<(), Error> {
    let (rounds, time) = if quick { (5, Duration::from_millis(60)) } else { (15, Duration::from_millis(400)) };
    let memory = std::env::var_os("DURIX_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let disk = std::env::temp_dir();
    syncs::set_fixed(None);
    let mut all = vec![
        Contestant::new(OURS, &memory, ours)?,
        Contestant::new("redb", &memory, redb)?,
        Contestant::new("LMDB", &memory, lmdb)?,
        Contestant::new("redb", &disk, redb)?,
        Contestant::new("LMDB", &disk, lmdb)?,
    ];
    for round in 0..rounds + 1 {
        for turn in 0..all.len() {
            let which = (turn + round) % all.len();
            all[which].round(time)?;
        }
        match round {
            0 => eprintln!("warmed up"),
            _ => eprintln!("round {round} of {rounds}"),
        }
    }
    println!(
        "# {RECORDS} records of 8 + {ROW} bytes, a commit for each insertion and each removal, operations a second of each round"
    );
    for Contestant { store, place, rates, .. } in &all {
        let system = if in_memory(place)? { "memory" } else { "disk" };
        let rates = rates[1..].iter().map(|rate| format!("{rate:.1}")).collect::<Vec<_>>().join("\t");
        println!("{}\t{system}\t{store}\t{rates}", place.display());
    }
    Ok(())
}
