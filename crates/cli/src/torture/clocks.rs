//! What the other threads had ended when an operation began: for buffered kinds, whose threads must be cut at one moment.
//!
//! A child writes it for each of its operations into a sparse file that the page cache keeps: threads × operations × threads
//! numbers of 32 bits. An operation that is found needs every operation that had ended before it began.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapMut;

use crate::failure::Failure;

/// Operations of a thread that have room; a child stops there and waits for its end.
pub const MOST: u64 = 1 << 18;

#[derive(Debug)]
pub struct Clocks {
    map: MmapMut,
    threads: u64,
}

impl Clocks {
    /// Opens the file in `dir`, or makes it.
    pub fn open(dir: &Path, threads: u64) -> Result<Self, Failure> {
        let path = dir.join("clocks");
        let io = |source| Failure::Io { what: format!("opening {}", path.display()), source };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        file.set_len(threads * MOST * threads * size_of::<AtomicU32>() as u64).map_err(io)?;
        // SAFETY: the file is ours, in a folder of ours; nobody truncates it, and all access is through the atomics below.
        let map = unsafe { MmapMut::map_mut(&file) }.map_err(io)?;
        Ok(Clocks { map, threads })
    }

    fn word(&self, thread: u64, number: u64, other: u64) -> &AtomicU32 {
        assert!(thread < self.threads && other < self.threads && number < MOST);
        let at = (thread * MOST + number) * self.threads + other;
        // SAFETY: within the mapping, which is aligned to a page and lives as long as `self`; accessed as atomics only.
        unsafe { &*self.map.as_ptr().cast::<AtomicU32>().add(at as usize) }
    }

    /// Before an operation begins: how many `other` has ended.
    pub fn note(&self, thread: u64, number: u64, other: u64, ended: u64) {
        self.word(thread, number, other).store(ended as u32, Ordering::SeqCst);
    }

    /// How many operations `other` had ended when this one began.
    pub fn ended(&self, thread: u64, number: u64, other: u64) -> u64 {
        self.word(thread, number, other).load(Ordering::SeqCst).into()
    }
}
