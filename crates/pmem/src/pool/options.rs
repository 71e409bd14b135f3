//! How a pool is created and opened.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::geometry::{DEFAULT_CHUNK, DEFAULT_INDICES, DEFAULT_LANES, Geometry};
use super::header::open_in;
use super::layout::Header;
use super::open::Journals;
use super::open::Unrecovered;
use super::{Pool, open};
use crate::backing::{Access, Backing, BackingKind, FileBacking};
use crate::error::{Error, Result};
use crate::ids::{BootId, PoolId};
use crate::journal::{BesidePool, DEFAULT_LIMIT, DEFAULT_SEGMENT, JournalPlace, Level, NotesTicket};
use crate::medium::{Hardware, Medium};
use crate::memory;

/// Size in bytes of a new pool whose options do not say.
pub const DEFAULT_INITIAL_SIZE: u64 = 16 << 20;
/// Size in bytes that a pool can grow to, unless its options say otherwise: addresses are reserved for so many.
pub const DEFAULT_MAX_SIZE: u64 = 1 << 40;
/// How long a pass of the [scrub](PoolOptions::scrub_every) takes, unless options say otherwise.
pub const DEFAULT_SCRUB: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes that written pages can always take.
const LEAST_WRITTEN: u64 = 1 << 20;

/// How a pool is created and opened.
///
/// ```
/// use durix_pmem::PoolOptions;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("index.pool");
/// let pool = PoolOptions::new().initial_size(1 << 20).open_or_create(&path)?;
/// println!("{}", pool.guarantee());
/// pool.close()?;
/// # Ok::<(), durix_pmem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until something is opened with them"]
pub struct PoolOptions {
    initial_size: Option<u64>,
    max_size: Option<u64>,
    geometry: Geometry,
    pub(super) assume_pmem: bool,
    pub(super) accept_unclean: bool,
    pub(super) for_repair: bool,
    accept_copy: bool,
    pub(super) read_only: bool,
    pool_id: Option<PoolId>,
    boot_id: Option<BootId>,
    /// Named by the caller.
    level: Option<Level>,
    /// Where none was named.
    usual_level: Level,
    journal_segment: u64,
    journal_limit: u64,
    written_memory: Option<u64>,
    scrub_every: Duration,
    open_timeout: Duration,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            initial_size: None,
            max_size: None,
            geometry: Geometry { chunk: DEFAULT_CHUNK, lanes: DEFAULT_LANES, indices: DEFAULT_INDICES },
            assume_pmem: false,
            accept_unclean: false,
            for_repair: false,
            accept_copy: false,
            read_only: false,
            pool_id: None,
            boot_id: None,
            level: None,
            usual_level: Level::Process,
            journal_segment: DEFAULT_SEGMENT,
            journal_limit: DEFAULT_LIMIT,
            written_memory: None,
            scrub_every: DEFAULT_SCRUB,
            open_timeout: Duration::ZERO,
        }
    }
}

/// The sizes of a pool to be created, in bytes.
pub(super) struct Sizes {
    pub(super) initial: u64,
    pub(super) max: u64,
}

impl PoolOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Size of a new pool in bytes, rounded up to whole chunks and to what its tables need. All of it is allocated.
    /// Default: [`DEFAULT_INITIAL_SIZE`].
    pub fn initial_size(self, bytes: u64) -> Self {
        PoolOptions { initial_size: Some(bytes), ..self }
    }

    /// Size in bytes that the pool can grow to while it is open. Addresses are reserved for it, up to the next power of
    /// two; where the system refuses (`ulimit -v`), for less. Default: [`DEFAULT_MAX_SIZE`].
    pub fn max_size(self, bytes: u64) -> Self {
        PoolOptions { max_size: Some(bytes), ..self }
    }

    /// How many indices a new pool can hold, 1 to [`MAX_INDICES`](super::geometry::MAX_INDICES); 256 bytes each.
    /// Default: 256.
    pub fn max_indices(self, indices: u32) -> Self {
        PoolOptions { geometry: Geometry { indices, ..self.geometry }, ..self }
    }

    /// Unit of space of a new pool in bytes, a power of two from 4 KiB to 2 MiB. Default: 64 KiB.
    pub fn chunk_size(self, bytes: u64) -> Self {
        PoolOptions { geometry: Geometry { chunk: bytes, ..self.geometry }, ..self }
    }

    /// How many allocations of a new pool can be in the middle of linking at a time, 1 to
    /// [`MAX_LANES`](super::geometry::MAX_LANES); 128 bytes each. Default: 64.
    pub fn lanes(self, lanes: u32) -> Self {
        PoolOptions { geometry: Geometry { lanes, ..self.geometry }, ..self }
    }

    /// Treats any mapping as persistent memory: for benches on `/dev/shm`, and for memory that the system does not know
    /// as persistent. The caller vouches for it; [`Pool::guarantee`] says so.
    pub fn assume_pmem(self, assume: bool) -> Self {
        PoolOptions { assume_pmem: assume, ..self }
    }

    /// Opens a pool as it is that was not closed before the system stopped, although its medium does not survive that
    /// ([`Error::NotPowerSafe`]), or whose journal cannot be had, or that is a [copy](Self::accept_copy). Check its contents.
    pub fn accept_unclean(self, accept: bool) -> Self {
        PoolOptions { accept_unclean: accept, ..self }
    }

    /// Opens the pool for reading as far as it can be read, to save what it holds: without being closed, with a damaged header or root entries
    /// (from their spares), or cut off. [`Pool::mended`] tells what was wrong. What is read may be wrong: it is for a repair, which looks at
    /// the checksums of what it saves.
    pub fn for_repair(self) -> Self {
        PoolOptions { read_only: true, accept_unclean: true, for_repair: true, ..self }
    }

    /// Opens a pool that was not closed, and lies in another file than the one that it was open in ([`Error::CopiedOpen`]). That is right
    /// if nobody had it open while its file was copied (a pool that a crash has left), or if all of its files were copied in one moment
    /// (a snapshot of the file system, of a machine). Otherwise parts of the copy are of different moments. Check its contents.
    pub fn accept_copy(self, accept: bool) -> Self {
        PoolOptions { accept_copy: accept, ..self }
    }

    /// Opens without ever writing to the file. What recovery and operations change stays in this process. Other readers
    /// may have the pool open, a writer may not.
    pub fn read_only(self, read_only: bool) -> Self {
        PoolOptions { read_only, ..self }
    }

    /// For how long creating and opening wait for another opener to close the pool, before they return [`Error::Locked`]. Default: they
    /// do not wait.
    pub fn open_timeout(self, timeout: Duration) -> Self {
        PoolOptions { open_timeout: timeout, ..self }
    }

    /// The identity of a new pool, instead of a random one: for tests that have to repeat.
    pub fn pool_id(self, id: [u8; 16]) -> Self {
        PoolOptions { pool_id: Some(PoolId(id)), ..self }
    }

    /// The boot of the operating system, instead of what it says itself: for tests. Zeroes mean that it is not known.
    pub fn boot_id(self, id: [u8; 16]) -> Self {
        PoolOptions { boot_id: Some(BootId(id)), ..self }
    }

    /// What returned means, on an ordinary file: with [`Level::Immediate`] and [`Level::Interval`] the pool has a
    /// [journal](crate::journal), a file beside it, and survives power failure. It may be another one at each opening. On persistent
    /// memory, real or [assumed](Self::assume_pmem), it has no meaning.
    ///
    /// Default of a pool: [`Level::Process`], because whoever works below the facade has to wait for commits by
    /// [`Pool::settle`]. The facade `durix` waits by itself, and its default is [`Level::Immediate`].
    pub fn durability(self, level: Level) -> Self {
        PoolOptions { level: Some(level), ..self }
    }

    /// The level where [`durability`](Self::durability) names none: on a file system that has a device. In memory (tmpfs, ramfs) it
    /// stays [`Level::Process`], because no journal makes anything survive a power failure there. For facades, which wait for
    /// commits by themselves.
    pub fn usual_durability(self, level: Level) -> Self {
        PoolOptions { usual_level: level, ..self }
    }

    /// The level that a pool in this file gets, unless it lies in persistent memory.
    pub fn level_on(&self, backing: &FileBacking) -> Level {
        let usual = if backing.is_in_memory() { Level::Process } else { self.usual_level };
        self.level.unwrap_or(usual)
    }

    /// Bytes of a segment of the journal, of which there are two at first. All of them become larger by themselves where one commit does
    /// not fit. Default: [`DEFAULT_SEGMENT`].
    pub fn journal_segment(self, bytes: u64) -> Self {
        PoolOptions { journal_segment: bytes, ..self }
    }

    /// Bytes of all segments of the journal together. Where commits outrun the checkpoints, which carry the journal's contents to the pool's
    /// file, a commit adds a segment, up to this limit; beyond it, it waits for a checkpoint. The journal's file takes half as
    /// much again, and opening after a crash replays up to as much. Memory takes as much for the copies that checkpoints are made from, and
    /// during a checkpoint once more, where commits write pages whole, to four times more, where they write single lines. At least two
    /// segments; at most
    /// [`MAX_PLACES`](crate::journal::layout::MAX_PLACES). Default: [`DEFAULT_LIMIT`].
    pub fn journal_limit(self, bytes: u64) -> Self {
        PoolOptions { journal_limit: bytes, ..self }
    }

    /// Bytes that pages which were written to may take in memory, with a journal. Such pages are private to the process: the kernel cannot
    /// drop them. A service of the pool drops those that the file has meanwhile; where it is outrun, whoever updates waits
    /// ([`Services::admit`](crate::service::Services::admit)). What one operation, or the operations since the last commit, write to
    /// comes on top of it. Less than 1 MiB counts as 1 MiB. Default: a quarter of the memory of the machine, or of the control group that
    /// the process runs in, if that has less.
    pub fn written_memory(self, bytes: u64) -> Self {
        PoolOptions { written_memory: Some(bytes), ..self }
    }

    /// What [`written_memory`](Self::written_memory) is, or its default on this machine.
    pub fn written_limit(&self) -> u64 {
        self.written_memory.unwrap_or_else(|| memory::usable() / 4).max(LEAST_WRITTEN)
    }

    /// With a journal, a service of the pool reads the whole file once in this time, at most 50 MiB a second, and compares each page with its
    /// checksum: 256 KiB a step, between which it rests. A page that is damaged is told of once, by [`Error::DamagedPage`] from the next update
    /// or sync ([`Services::admit`](crate::service::Services::admit)), at most one in a pass; [`JournalStats::scrub_damaged`](crate::JournalStats::scrub_damaged)
    /// counts them all. It reads through the page cache: what the system holds there is not read from the disk again. Zero: there is no
    /// scrub. Default: [`DEFAULT_SCRUB`], a day.
    pub fn scrub_every(self, time: Duration) -> Self {
        PoolOptions { scrub_every: time, ..self }
    }

    // ---- files ----

    /// Creates a pool in a file that is not there, is empty, or holds what an interrupted creation left.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if it holds a pool; [`Error::NotAPool`] if it holds anything else, which stays untouched;
    /// [`Error::DiskFull`], [`Error::Locked`], [`Error::ReadOnlyFile`], [`Error::BadOption`], [`Error::Io`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        self.refuse_read_only(path)?;
        let backing = FileBacking::create(path)?;
        self.create_in_file(backing, path)
    }

    /// Opens a pool, recovering it first.
    ///
    /// # Errors
    /// [`Error::NotAPool`], [`Error::Unfinished`], [`Error::Format`], [`Error::Features`], [`Error::OtherVersion`],
    /// [`Error::HashFunction`], [`Error::Damaged`], [`Error::Truncated`], [`Error::NotPowerSafe`], [`Error::CopiedOpen`], [`Error::Locked`],
    /// [`Error::ReadOnlyFile`], [`Error::DiskFull`] (the file has holes), [`Error::Io`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_file(path)?.recover()
    }

    /// Opens a pool up to the point where recovery would begin.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<Unrecovered<Hardware>> {
        let path = path.as_ref();
        let backing = if self.read_only { FileBacking::open_read_only(path) } else { FileBacking::open(path) }?;
        let (medium, journals) = self.medium_for(&backing, path)?;
        open::open(self, Arc::new(backing), medium, &journals)
    }

    /// Opens a pool, or creates it where there is none.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        if self.read_only {
            return self.open(path);
        }
        let backing = FileBacking::create(path)?;
        self.lock(&backing, Access::Shared)?;
        if open::holds_nothing(&backing)? {
            return self.create_in_file(backing, path);
        }
        let (medium, journals) = self.medium_for(&backing, path)?;
        open::open(self, Arc::new(backing), medium, &journals)?.recover()
    }

    /// Locks the pool's file, waiting for others as long as [`open_timeout`](Self::open_timeout) says.
    pub(super) fn lock(&self, backing: &dyn Backing, access: Access) -> Result<()> {
        const STEP: Duration = Duration::from_millis(10);
        let begun = Instant::now();
        loop {
            match backing.try_lock(access) {
                Err(Error::Locked { .. }) if begun.elapsed() < self.open_timeout => std::thread::sleep(STEP),
                locked => return locked,
            }
        }
    }

    /// Refuses the copy of a pool that was not closed, by the header that its file begins with.
    pub(super) fn refuse_copy(&self, backing: &dyn Backing, head: &[u8; size_of::<Header>()]) -> Result<()> {
        if self.accept_copy || self.accept_unclean {
            return Ok(());
        }
        match backing.identity().and_then(|file| file.differs(open_in(head))) {
            None => Ok(()),
            Some(differs) => Err(Error::CopiedOpen { name: backing.describe(), differs }),
        }
    }

    fn create_in_file(&self, backing: FileBacking, path: &Path) -> Result<Pool> {
        let made = backing.was_created();
        let pool = self
            .medium_for(&backing, path)
            .and_then(|(medium, journals)| open::create(self, Arc::new(backing), medium, &journals));
        if made && pool.is_err() {
            // What could not become a pool is not left behind; should this fail too, creating again still works.
            let _ = std::fs::remove_file(path);
        }
        pool
    }

    fn medium_for(&self, backing: &FileBacking, path: &Path) -> Result<(Hardware, Journals)> {
        let place: Arc<dyn JournalPlace> = Arc::new(BesidePool::new(path));
        let none = Journals { place: Some(Arc::clone(&place)), ..Journals::default() };
        if self.read_only {
            return Ok((Hardware::PAGE_CACHE, none));
        }
        if self.assume_pmem || backing.kind() == BackingKind::Dax {
            return Ok((Hardware::for_pmem().ok_or(Error::NoWriteBack)?, none));
        }
        match self.level_on(backing) {
            Level::Process => Ok((Hardware::PAGE_CACHE, none)),
            level => self.journals(level, place),
        }
    }

    fn journals(&self, level: Level, place: Arc<dyn JournalPlace>) -> Result<(Hardware, Journals)> {
        let notes = Arc::new(NotesTicket::take()?);
        let medium = Hardware::journaled(&notes);
        let (level, segment, limit) = (Some(level), self.journal_segment, self.journal_limit);
        let (written_limit, scrub_every) = (self.written_limit(), self.scrub_every);
        let (place, notes) = (Some(place), Some(notes));
        Ok((medium, Journals { place, notes, level, segment, limit, written_limit, scrub_every }))
    }

    fn refuse_read_only(&self, path: &Path) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly { name: path.display().to_string() }) } else { Ok(()) }
    }

    // ---- any backing, any medium ----

    /// Creates a pool on any backing and medium: as [`create`](Self::create).
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_on<M: Medium>(&self, backing: impl Backing, medium: M) -> Result<Pool<M>> {
        open::create(self, Arc::new(backing), medium, &Journals::default())
    }

    /// Creates a pool with a journal on any backing that can be [written](Backing::write), at the level of these options
    /// ([`durability`](Self::durability)); [`Level::Process`] and none count as [`Level::Immediate`].
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_journaled_on(&self, backing: impl Backing, place: impl JournalPlace + 'static) -> Result<Pool> {
        let (medium, journals) = self.journals(self.journaled_level(), Arc::new(place))?;
        open::create(self, Arc::new(backing), medium, &journals)
    }

    /// Opens a pool with a journal on any backing, up to the point where recovery would begin; the journal is replayed by then.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_journaled_on(
        &self,
        backing: impl Backing,
        place: impl JournalPlace + 'static,
    ) -> Result<Unrecovered<Hardware>> {
        let (medium, journals) = self.journals(self.journaled_level(), Arc::new(place))?;
        open::open(self, Arc::new(backing), medium, &journals)
    }

    fn journaled_level(&self) -> Level {
        self.level.filter(|level| *level != Level::Process).unwrap_or(Level::Immediate)
    }

    /// Opens a pool on any backing and medium up to the point where recovery would begin: as [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on<M: Medium>(&self, backing: impl Backing, medium: M) -> Result<Unrecovered<M>> {
        open::open(self, Arc::new(backing), medium, &Journals::default())
    }

    // ---- what they mean ----

    pub(super) fn checked_geometry(&self) -> Result<Geometry> {
        self.geometry.validate()?;
        Ok(self.geometry)
    }

    /// The sizes of a new pool on a backing that can hold `limit` bytes.
    pub(super) fn sizes(&self, limit: u64) -> Result<Sizes> {
        let chunk = self.geometry.chunk;
        let most = limit.min(u64::from(u32::MAX) * chunk) / chunk * chunk;
        let wanted = self.initial_size.unwrap_or(DEFAULT_INITIAL_SIZE.min(most));
        let initial = wanted.max(self.geometry.min_size()).checked_next_multiple_of(chunk).unwrap_or(u64::MAX);
        if initial > most && most < limit {
            return Err(Error::BadOption {
                option: "initial_size",
                value: wanted,
                rule: "at most 4294967295 chunks; choose a larger chunk_size",
            });
        }
        if self.max_size.is_some_and(|max| max < initial) {
            return Err(Error::BadOption {
                option: "max_size",
                value: self.max_size.unwrap_or_default(),
                rule: "at least the initial size, which includes the tables",
            });
        }
        Ok(Sizes { initial, max: self.max_size.unwrap_or(DEFAULT_MAX_SIZE).min(most).max(initial) })
    }

    /// The size that a pool of `size` bytes can grow to.
    pub(super) fn max_for(&self, size: u64) -> u64 {
        if self.read_only { size } else { self.max_size.unwrap_or(DEFAULT_MAX_SIZE).max(size) }
    }

    pub(super) fn new_pool_id(&self) -> Result<PoolId> {
        self.pool_id.map_or_else(PoolId::random, Ok)
    }

    pub(super) fn current_boot(&self) -> BootId {
        self.boot_id.unwrap_or_else(BootId::current)
    }
}
