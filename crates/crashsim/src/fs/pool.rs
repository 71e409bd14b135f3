//! Pools of `durix-pmem` over simulated files.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use durix_pmem::backing::{Access, Backing, BackingKind, Window};
use durix_pmem::journal::{JournalFile, JournalPlace};
use durix_pmem::{Error, Reserve, Result};

use super::{Open, SimulatedFile, SimulatedFs};

/// The folder that a path lies in.
fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(folder, _)| if folder.is_empty() { "/" } else { folder })
}

fn failed(action: &str, path: &str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action: format!("{action} {path}"), source }
}

/// The error of a call that needs room up to `wanted`.
fn no_room(action: &str, path: &str, wanted: u64) -> impl FnOnce(io::Error) -> Error {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull => Error::DiskFull { name: path.into(), wanted },
        _ => failed(action, path)(source),
    }
}

/// A simulated file as the backing of a pool: does what [`FileBacking`](durix_pmem::backing::FileBacking) does. A journaled pool
/// writes to the file itself. Of any other, what was stored to its mapping reaches the file at a sync: each sector that has
/// changed is written just before it, so that a crash there finds any of them written. Contents that a sector held in between are not
/// found.
#[derive(Debug)]
pub struct SimulatedPoolFile {
    fs: SimulatedFs,
    file: SimulatedFile,
    limit: u64,
    mapped: Mutex<Option<Mapped>>,
}

/// A shared mapping, and what of it the file has.
#[derive(Debug)]
struct Mapped {
    /// Kept for a sync that comes when the pool is gone: whoever wraps the file can call it.
    memory: Reserve,
    written: Vec<u64>,
}

impl SimulatedPoolFile {
    /// Opens a file, or makes it, for a pool of at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    #[track_caller]
    pub fn new(fs: &SimulatedFs, path: impl AsRef<Path>, how: Open, limit: u64) -> Result<Self> {
        let path = path.as_ref();
        let file = fs.open(path, how).map_err(failed("opening", &path.display().to_string()))?;
        Ok(SimulatedPoolFile { fs: fs.clone(), file, limit, mapped: Mutex::default() })
    }

    fn failed(&self, action: &str) -> impl FnOnce(io::Error) -> Error {
        failed(action, self.file.path())
    }

    /// Writes what was stored to the mapping since it was written last.
    fn write_stored(&self) -> Result<()> {
        const WORDS: usize = 64;
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Mapped { memory, written }) = &mut *mapped else { return Ok(()) };
        let base = memory.base().as_ptr().cast::<AtomicU64>();
        for (number, sector) in written.chunks_mut(WORDS).enumerate() {
            let load = |at: usize| {
                // SAFETY: the words lie in a window that was mapped, so in the memory, which is kept; all of it consists of atomics.
                unsafe { &*base.add(number * WORDS + at) }.load(Ordering::Acquire)
            };
            if (0..sector.len()).any(|at| sector[at] != load(at)) {
                (0..sector.len()).for_each(|at| sector[at] = load(at));
                let bytes: Vec<u8> = sector.iter().flat_map(|word| word.to_le_bytes()).collect();
                let offset = (number * WORDS * size_of::<u64>()) as u64;
                self.file.write_all_at(&bytes, offset).map_err(self.failed("writing"))?;
            }
        }
        Ok(())
    }
}

impl Backing for SimulatedPoolFile {
    fn describe(&self) -> String {
        self.file.path().into()
    }

    fn kind(&self) -> BackingKind {
        BackingKind::Anonymous
    }

    fn len(&self) -> Result<u64> {
        self.file.len().map_err(self.failed("asking for the length of"))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn try_lock(&self, access: Access) -> Result<()> {
        let alone = match access {
            Access::Peek => return Ok(()),
            Access::Private => false,
            _ => true,
        };
        self.file.try_lock(alone).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::Locked { name: self.describe(), holder: "this process".into() },
            _ => self.failed("locking")(error),
        })
    }

    fn unlock(&self) {
        self.file.unlock();
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(self.failed("reading"))
    }

    #[track_caller]
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let wanted = offset + bytes.len() as u64;
        self.file.write_all_at(bytes, offset).map_err(no_room("writing", self.file.path(), wanted))
    }

    #[track_caller]
    fn reset(&self) -> Result<()> {
        self.file.set_len(0).map_err(self.failed("emptying"))
    }

    #[track_caller]
    fn allocate(&self, len: u64) -> Result<()> {
        self.allocate_ahead(len)?;
        self.sync()
    }

    #[track_caller]
    fn allocate_ahead(&self, len: u64) -> Result<()> {
        if len > self.limit {
            return Err(Error::DiskFull { name: self.describe(), wanted: len });
        }
        let before = self.len()?;
        if len <= before {
            return Ok(());
        }
        self.file.allocate(before, len - before).map_err(no_room("allocating space for", self.file.path(), len))
    }

    #[track_caller]
    fn cut(&self, len: u64) -> Result<()> {
        if self.len()? > len {
            self.file.set_len(len).map_err(self.failed("shortening"))?;
        }
        Ok(())
    }

    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        Ok(Reserve::heap(wanted.min(self.limit).max(least) as usize))
    }

    fn map(&self, window: &Window<'_>) -> Result<()> {
        let range = window.range();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.file.read_exact_at(&mut bytes, range.start).map_err(self.failed("mapping"))?;
        let base = window.reserve().base();
        // SAFETY: the range lies in the reserve (`Window`), and no operation has been told of it yet.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(range.start as usize).as_ptr(), bytes.len());
        }
        if window.access() == Access::Shared {
            let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
            if mapped.as_ref().is_none_or(|mapped| mapped.memory.base() != base) {
                // SAFETY: by way of it, words are only loaded.
                let memory = unsafe { window.reserve().again() };
                *mapped = memory.map(|memory| Mapped { memory, written: Vec::new() });
            }
            // Of a reserve of pages, which a wrapper may give, stores stay in memory.
            let Some(mapped) = &mut *mapped else { return Ok(()) };
            mapped.written.truncate(range.start as usize / size_of::<u64>());
            let words = bytes.as_chunks::<8>().0;
            mapped.written.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
        }
        Ok(())
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.write_stored()?;
        self.file.sync_all().map_err(self.failed("syncing"))
    }

    #[track_caller]
    fn sync_name(&self) -> Result<()> {
        self.fs.sync_directory(folder(self.file.path())).map_err(self.failed("syncing the folder of"))
    }
}

/// Where the journal of a pool lies in a simulated file system.
#[derive(Clone, Debug)]
pub struct SimulatedJournal {
    fs: SimulatedFs,
    path: String,
}

impl SimulatedJournal {
    /// A journal of that name.
    pub fn new(fs: &SimulatedFs, path: impl Into<String>) -> Self {
        SimulatedJournal { fs: fs.clone(), path: path.into() }
    }

    fn with(&self, how: Open) -> io::Result<Arc<dyn JournalFile>> {
        let file = self.fs.open(&self.path, how)?;
        Ok(Arc::new(SimulatedJournalFile { fs: self.fs.clone(), file }))
    }
}

impl JournalPlace for SimulatedJournal {
    fn describe(&self) -> String {
        self.path.clone()
    }

    fn open(&self, _read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        match self.with(Open::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(failed("opening", &self.path)),
        }
    }

    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        self.with(Open::OrNew).map_err(failed("creating", &self.path))
    }

    /// Beside it, with `-sums` for `-journal` at the end of its name.
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        let pool = self.path.strip_suffix("-journal").unwrap_or(&self.path);
        Some(Arc::new(SimulatedJournal::new(&self.fs, format!("{pool}-sums"))))
    }
}

#[derive(Debug)]
struct SimulatedJournalFile {
    fs: SimulatedFs,
    file: SimulatedFile,
}

impl SimulatedJournalFile {
    fn failed(&self, action: &str) -> impl FnOnce(io::Error) -> Error {
        failed(action, self.file.path())
    }
}

impl JournalFile for SimulatedJournalFile {
    fn describe(&self) -> String {
        self.file.path().into()
    }

    fn len(&self) -> Result<u64> {
        self.file.len().map_err(self.failed("asking for the length of"))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(self.failed("reading"))
    }

    #[track_caller]
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let wanted = offset + bytes.len() as u64;
        self.file.write_all_at(bytes, offset).map_err(no_room("writing", self.file.path(), wanted))
    }

    #[track_caller]
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(self.failed("setting the length of"))
    }

    #[track_caller]
    fn allocate(&self, len: u64) -> Result<()> {
        let before = self.len()?;
        let zeroes = vec![0; len.saturating_sub(before) as usize];
        self.file.write_all_at(&zeroes, before).map_err(no_room("allocating space for", self.file.path(), len))
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(self.failed("syncing"))
    }

    #[track_caller]
    fn sync_name(&self) -> Result<()> {
        self.fs.sync_directory(folder(self.file.path())).map_err(self.failed("syncing the folder of"))
    }
}
