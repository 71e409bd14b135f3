//! The board: a small shared file on which a child writes how far each of its threads is. The page cache keeps it when the
//! child is killed.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | 1 once the index is recovered and the threads work |
//! | 1 | 1 once one of them has failed |
//! | 8 + 8 × thread | operations begun |
//! | … + 1 | operations ended |
//! | … + 2 | operations covered by the last completed sync |
//! | … + 3 | operations refused by a full pool |
//!
//! Behind these words each thread has bits of its operations: whether they ended without any change. The file is sparse.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;

use crate::failure::Failure;

const THREADS: u64 = 64;
const WORDS: usize = 8 + 8 * THREADS as usize;
/// Operations of a thread that have bits.
const MOST: u64 = 1 << 22;
/// Words of the bits of a thread.
const BITS: usize = MOST as usize / 64;

/// How far a thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub begun: u64,
    pub ended: u64,
    pub synced: u64,
}

#[derive(Debug)]
pub struct Board {
    map: MmapMut,
}

impl Board {
    /// Opens the board in `dir`, or makes it.
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join("board");
        let io = |source| Failure::Io { what: format!("opening {}", path.display()), source };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        file.set_len(((WORDS + THREADS as usize * BITS) * size_of::<u64>()) as u64).map_err(io)?;
        // SAFETY: the file is ours, in a folder of ours; nobody truncates it, and all access is through the atomics below.
        let map = unsafe { MmapMut::map_mut(&file) }.map_err(io)?;
        Ok(Board { map })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < WORDS + THREADS as usize * BITS);
        // SAFETY: within the mapping, which is aligned to a page and lives as long as `self`; accessed as atomics only.
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(at) }
    }

    /// Before a child is started.
    pub fn clear(&self) {
        for thread in 0..THREADS {
            let begun = self.progress(thread).begun.min(MOST);
            (0..begun).step_by(64).for_each(|number| self.bits(thread, number).store(0, Ordering::SeqCst));
        }
        (0..WORDS).for_each(|at| self.word(at).store(0, Ordering::SeqCst));
    }

    /// Notes that a full pool has refused an operation, which changed nothing; before its end.
    pub fn refuse(&self, thread: u64, number: u64) {
        self.word(8 + 8 * thread as usize + 3).fetch_add(1, Ordering::SeqCst);
        self.leave_out(thread, number);
    }

    /// Notes that an operation was not done; before its end.
    pub fn leave_out(&self, thread: u64, number: u64) {
        assert!(thread < THREADS && number < MOST, "no room to note operation {number} of thread {thread}");
        self.bits(thread, number).fetch_or(1 << (number % 64), Ordering::SeqCst);
    }

    /// Whether an operation has ended without any change.
    pub fn is_left_out(&self, thread: u64, number: u64) -> bool {
        number < MOST && self.bits(thread, number).load(Ordering::SeqCst) >> (number % 64) & 1 == 1
    }

    /// How many operations of a thread a full pool has refused.
    pub fn refused(&self, thread: u64) -> u64 {
        self.word(8 + 8 * thread as usize + 3).load(Ordering::SeqCst)
    }

    fn bits(&self, thread: u64, number: u64) -> &AtomicU64 {
        self.word(WORDS + thread as usize * BITS + (number / 64) as usize)
    }

    pub fn say_ready(&self) {
        self.word(0).store(1, Ordering::SeqCst);
    }

    pub fn is_ready(&self) -> bool {
        self.word(0).load(Ordering::SeqCst) == 1
    }

    pub fn say_failed(&self) {
        self.word(1).store(1, Ordering::SeqCst);
    }

    pub fn has_failed(&self) -> bool {
        self.word(1).load(Ordering::SeqCst) == 1
    }

    pub fn begin(&self, thread: u64, number: u64) {
        self.word(8 + 8 * thread as usize).store(number + 1, Ordering::SeqCst);
    }

    pub fn end(&self, thread: u64, number: u64) {
        self.word(8 + 8 * thread as usize + 1).store(number + 1, Ordering::SeqCst);
    }

    pub fn synced(&self, thread: u64, count: u64) {
        self.word(8 + 8 * thread as usize + 2).store(count, Ordering::SeqCst);
    }

    pub fn progress(&self, thread: u64) -> Progress {
        let word = |field| self.word(8 + 8 * thread as usize + field).load(Ordering::SeqCst);
        // In this order, a thread that still runs is never seen to have ended more than it has begun.
        let (synced, ended) = (word(2), word(1));
        Progress { begun: word(0), ended, synced }
    }
}
