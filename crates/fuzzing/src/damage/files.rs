//! The same with journaled pools in files: the pool, its journal or its checksums are damaged.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use durix::kind::{self, Entry};
use durix::{Hardware, Level, Pool, PoolOptions};
use durix_pmem::journal::DiskJournal;

use super::uses::Use;
use super::{Damage, LONGEST_CALL, NAME, Plan, Watch, Words, decode, fill, options, repaired, starved};

/// Bytes of a segment of the journal.
const SEGMENT: u64 = 1 << 18;

/// A journaled pool of one kind, as bytes of its files: the pool, its journal, its checksums.
pub struct Files {
    entry: Entry,
    parts: [Vec<u8>; 3],
}

fn paths(directory: &Path) -> [PathBuf; 3] {
    let pool = directory.join("pool");
    [pool.clone(), DiskJournal::path_of(&pool), DiskJournal::sums_of(&pool)]
}

fn journaled() -> PoolOptions {
    options().durability(Level::Interval(Duration::from_millis(64))).journal_segment(SEGMENT).accept_copy(true)
}

impl Files {
    /// Fills an index of a kind in a pool in that directory, and closes it or keeps the files as they are while it is open.
    ///
    /// # Panics
    /// If that does not work.
    pub fn new(entry: Entry, directory: &Path, closed: bool) -> Self {
        std::fs::create_dir_all(directory).expect("a directory");
        let paths = paths(directory);
        paths.iter().for_each(|path| _ = std::fs::remove_file(path));
        let pool = journaled().create(&paths[0]).expect("a pool");
        fill(&entry, &pool);
        pool.commit(&mut pool.session().expect("a session")).expect("a commit");
        if closed {
            pool.close().expect("nothing is open");
        }
        let parts = paths.map(|path| std::fs::read(path).expect("there"));
        Files { entry, parts }
    }

    /// Damages one of the files (0 to 2) in a directory, opens and uses the pool, and repairs it.
    ///
    /// # Panics
    /// Where something is wrong with what calls do about it.
    pub fn damage_and_use(&self, directory: &Path, part: usize, damages: &[Damage]) {
        let (plan, slow) = (Plan::of(damages), Cell::new(None));
        let longest = 2 * LONGEST_CALL; // It waits for the disk.
        let watch = Watch { what: self.entry.name, damages, longest, starved: starved(), slow: &slow };
        self.lay_out(directory, part, damages);
        let path = &paths(directory)[0];
        let read = journaled().for_repair();
        if let Ok(source) = watch.call("open to read", || read.open(path)) {
            let pages = watch.call("check pages", || source.check_pages());
            let _ = pages.map(|pages| pages.damaged.iter().map(ToString::to_string).collect::<Vec<_>>());
            repaired(&source, &watch);
        }
        for _ in 0..2 {
            let Ok(pool) = watch.call("open", || journaled().accept_unclean(true).open(path)) else { break };
            if watch.call("recover transactions", || durix::recover(&pool)).is_err() {
                pool.accept_pending_records();
            }
            let opened = watch.call("open the index", || kind::open_as_is(&pool, NAME));
            if let (Ok(index), Ok(session)) = (opened, pool.session()) {
                Use { entry: &self.entry, pool: &pool, index, session, watch }.everything(plan);
            }
            let _ = watch.call("scrub", || pool.scrub());
            let _ = watch.call("close", || Pool::close(&pool));
        }
        if let Some(told) = slow.take() {
            panic!("{}: {told} after {damages:?} in file {part}", self.entry.name);
        }
    }

    fn lay_out(&self, directory: &Path, part: usize, damages: &[Damage]) {
        for (number, (path, bytes)) in paths(directory).iter().zip(&self.parts).enumerate() {
            let mut bytes = bytes.clone();
            if number == part {
                let len = bytes.len();
                bytes.resize(len.next_multiple_of(4096), 0);
                let words = Words::of(&bytes, 0);
                damages.iter().for_each(|damage| damage.apply(&mut bytes, &words));
                bytes.truncate(len);
            }
            std::fs::write(path, bytes).expect("written");
        }
    }
}

/// Damages the files of a journaled pool by an input: the first byte chooses the kind, the second the file and whether the pool was closed;
/// ten follow for each damage. The files are made in that directory.
///
/// # Panics
/// As [`Files::damage_and_use`].
pub fn damage_files(directory: &Path, input: &[u8]) {
    static MADE: OnceLock<Vec<[OnceLock<Files>; 2]>> = OnceLock::new();
    /// The files have one name.
    static TURN: Mutex<()> = Mutex::new(());
    let [first, second, rest @ ..] = input else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kinds = kind::kinds::<Hardware>();
    let made = MADE.get_or_init(|| kinds.iter().map(|_| Default::default()).collect());
    let (at, closed) = (usize::from(*first) % kinds.len(), second & 1 == 1);
    let made = made[at][usize::from(closed)].get_or_init(|| Files::new(kinds[at], directory, closed));
    let damages: Vec<Damage> = rest.chunks_exact(10).take(4).map(decode).collect();
    made.damage_and_use(directory, usize::from(second >> 1) % 3, &damages);
}
