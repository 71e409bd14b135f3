//! [`DbBuilder`]: the options with which a database is created and opened.

use std::path::Path;
use std::time::Duration;

use durix_pmem::{Level, Medium, Pool, PoolOptions};

use crate::Result;
use crate::background::Background;
use crate::db::Db;

/// How a database is created and opened; most of it goes to [`PoolOptions`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.durix");
/// use durix::Db;
///
/// let db = Db::builder().initial_size(32 << 20).durability(durix::Level::Process).open_or_create(&path)?;
/// db.map::<String, u64>("ages")?.insert("ada", &36)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until something is opened with them"]
pub struct DbBuilder {
    pool: PoolOptions,
    checkpoint_every: Option<Duration>,
    lock_timeout: Option<Duration>,
    snapshot_limit: Option<u64>,
    no_background_threads: bool,
}

impl DbBuilder {
    /// Size of a new file in bytes; all of it is allocated. It grows when it is full. Default: 16 MiB.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().initial_size(32 << 20).create(&path)?;
    /// assert_eq!(std::fs::metadata(&path)?.len(), 32 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn initial_size(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.initial_size(bytes), ..self }
    }

    /// Size in bytes that the file can grow to while it is open. Default: 1 TiB.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().max_size(1 << 30).durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_size(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.max_size(bytes), ..self }
    }

    /// How many indices a new file can hold. Default: 256.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().max_indices(1000).durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_indices(self, indices: u32) -> Self {
        DbBuilder { pool: self.pool.max_indices(indices), ..self }
    }

    /// See [`PoolOptions::assume_pmem`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().assume_pmem(false).durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn assume_pmem(self, assume: bool) -> Self {
        DbBuilder { pool: self.pool.assume_pmem(assume), ..self }
    }

    /// See [`PoolOptions::accept_unclean`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// # Db::builder().durability(durix::Level::Process).create(&path)?.close()?;
    /// // To look at what a crash of the system has left of a file without a journal.
    /// let db = Db::builder().read_only(true).accept_unclean(true).open(&path)?;
    /// assert!(db.indices()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accept_unclean(self, accept: bool) -> Self {
        DbBuilder { pool: self.pool.accept_unclean(accept), ..self }
    }

    /// See [`PoolOptions::accept_copy`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let (path, copy) = (dir.path().join("app.durix"), dir.path().join("copy.durix"));
    /// use durix::{Db, Level};
    ///
    /// let db = Db::builder().durability(Level::Process).create(&path)?;
    /// std::fs::copy(&path, &copy)?; // while it is open: a mixture of moments
    /// // To save what can be saved of it.
    /// let found = Db::builder().durability(Level::Process).accept_copy(true).open(&copy)?;
    /// assert!(found.indices()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accept_copy(self, accept: bool) -> Self {
        DbBuilder { pool: self.pool.accept_copy(accept), ..self }
    }

    /// Opens without ever writing to the file. Other readers may have it open, a writer may not.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// # Db::builder().durability(durix::Level::Process).create(&path)?.close()?;
    /// let db = Db::builder().read_only(true).open(&path)?;
    /// assert!(db.indices()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_only(self, read_only: bool) -> Self {
        DbBuilder { pool: self.pool.read_only(read_only), ..self }
    }

    /// For how long opening waits for another process, or another `Db` of this one, to close the file. Default: it does not wait, and
    /// returns an error that names the process.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// use std::time::Duration;
    ///
    /// let first = Db::builder().durability(durix::Level::Process).create(&path)?;
    /// let second = Db::builder().open_timeout(Duration::from_millis(5)).open(&path);
    /// assert!(second.unwrap_err().to_string().contains("open already"));
    /// # drop(first);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_timeout(self, timeout: Duration) -> Self {
        DbBuilder { pool: self.pool.open_timeout(timeout), ..self }
    }

    /// What returned means, on an ordinary file. Default: [`Level::Immediate`]; [`Level::Process`] where the file system keeps the file in
    /// memory (tmpfs).
    ///
    /// - [`Level::Immediate`]: a call that has returned survives power failure. Updates wait for a flush of a journal beside the file,
    ///   which many threads share; a read waits only if what it has seen is not flushed yet. Put many updates into a batch or a
    ///   transaction: it is one flush. Pages that were written to take memory: see [`written_memory`](Self::written_memory).
    /// - [`Level::Interval`]: after any crash, the death of the process too, one consistent state of all maps is found, at most that old
    ///   and the time of a flush. [`Db::sync`] is a barrier.
    /// - [`Level::Process`]: it survives the death of the process, not power failure.
    ///
    /// It may be another one at each opening. Persistent memory needs no level.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// use std::time::Duration;
    ///
    /// use durix::Level;
    ///
    /// let interval = Level::Interval(Duration::from_millis(50));
    /// let db = Db::builder().durability(interval).create(&path)?;
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;                          // at the speed of memory
    /// db.sync()?;                                       // now it survives power failure
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(self, level: Level) -> Self {
        DbBuilder { pool: self.pool.durability(level), ..self }
    }

    /// Bounds the memory of changed pages, in bytes, in a database with a journal ([`durability`](Self::durability)). The system cannot reclaim
    /// these pages by itself; the database drops a page from memory when its file has the page. At the bound, updates wait for that. The pages
    /// of a running commit may exceed the bound: a large batch is one commit. Default: a quarter of the memory of the machine, or of the
    /// control group of the process, if that has less.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::{Db, Level};
    ///
    /// let db = Db::builder().durability(Level::Immediate).written_memory(64 << 20).create(&path)?;
    /// let stats = db.pool().journal_stats().expect("a journal");
    /// assert_eq!(stats.written_limit, 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn written_memory(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.written_memory(bytes), ..self }
    }

    /// How long an open database takes to read its whole file once and compare it with its checksums, in a database with a journal
    /// ([`durability`](Self::durability)). A damaged page makes the next update or sync return an error, once; repeat the call. Zero: no
    /// comparison. Default: a day. It reads 256 KiB at a time, at most 50 MiB a second.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use std::time::Duration;
    ///
    /// use durix::{Db, Level};
    ///
    /// let db = Db::builder().durability(Level::Immediate).scrub_every(Duration::from_secs(7 * 86_400)).create(&path)?;
    /// assert_eq!(db.pool().journal_stats().expect("a journal").scrub_damaged, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scrub_every(self, time: Duration) -> Self {
        DbBuilder { pool: self.pool.scrub_every(time), ..self }
    }

    /// All options at once. Where they name no level of durability, the default of [`durability`](Self::durability) holds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let options = durix::PoolOptions::new().initial_size(32 << 20).durability(durix::Level::Process);
    /// let db = Db::builder().pool_options(options).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool_options(self, pool: PoolOptions) -> Self {
        DbBuilder { pool, ..self }
    }

    /// Time between checkpoints: a crash loses of buffered indices what was done in about the last interval. Default: 64 ms. It is
    /// ignored where the database is opened for reading.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().checkpoint_every(std::time::Duration::from_millis(10)).durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn checkpoint_every(self, interval: Duration) -> Self {
        DbBuilder { checkpoint_every: Some(interval), ..self }
    }

    /// How long a call waits for a key that a transaction has locked, before it is [`Error::Locked`](crate::Error::Locked). Default: 10 s.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().lock_timeout(std::time::Duration::from_secs(1)).durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_timeout(self, timeout: Duration) -> Self {
        DbBuilder { lock_timeout: Some(timeout), ..self }
    }

    /// Bytes of old values that are kept for open [snapshots](Db::snapshot) at most, about; beyond that they fail. Default: 256
    /// MiB.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().snapshot_limit(1 << 30).durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot_limit(self, bytes: u64) -> Self {
        DbBuilder { snapshot_limit: Some(bytes), ..self }
    }

    /// Starts no thread. By default a database has a thread that takes checkpoints and does what else its indices want done
    /// outside of calls, and a second one where that waits for a disk; both end with it. Without them, buffered indices
    /// become durable only when a thread calls [`Db::sync`], [`Map::sync`](crate::Map::sync), [`Map::wait`](crate::Map::wait)
    /// or [`Db::tick`], or the database is closed, and the file grows inside of the insert that finds it full.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().no_background_threads().durability(durix::Level::Process).create(&path)?;
    /// let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// db.tick()?;                                       // between other things: takes a checkpoint when it is due
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn no_background_threads(self) -> Self {
        DbBuilder { no_background_threads: true, ..self }
    }

    /// Creates a database in a file that is not there or is empty.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().durability(durix::Level::Process).create(&path)?;
    /// db.close()?;
    /// assert!(Db::builder().create(&path).is_err());    // there is one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`PoolOptions::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Db> {
        self.over(self.options().create(path)?)
    }

    /// Opens a database that is there, recovering it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// assert!(Db::builder().open(&path).is_err());      // there is none
    /// Db::builder().durability(durix::Level::Process).create(&path)?.close()?;
    /// let db = Db::builder().open(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`PoolOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Db> {
        self.over(self.options().open(path)?)
    }

    /// Opens a database, or creates it where there is none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().durability(durix::Level::Process).open_or_create(&path)?;
    /// db.map::<String, u64>("ages")?.insert("ada", &36)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`PoolOptions::open_or_create`].
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Db> {
        self.over(self.options().open_or_create(path)?)
    }

    pub(crate) fn options(&self) -> PoolOptions {
        self.pool.clone().usual_durability(Level::Immediate)
    }
}

impl DbBuilder {
    /// A database over a pool on any medium, with the options that are the database's own. Finishes the transactions that a
    /// crash has interrupted. A pool's services are driven by one database at a time.
    ///
    /// ```
    /// use durix::{Db, Hardware, PoolOptions};
    /// use durix_pmem::backing::HeapBacking;
    ///
    /// // In memory, for a test.
    /// let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE)?;
    /// let db = Db::builder().no_background_threads().over(pool)?;
    /// db.map::<String, u64>("ages")?.insert("ada", &36)?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::epochs`], where an interval between checkpoints was set; as [`recover`](crate::recover).
    pub fn over<M: Medium>(&self, pool: Pool<M>) -> Result<Db<M>> {
        let db = Db::over(pool);
        let transactions = &db.shared.transactions;
        self.lock_timeout.inspect(|timeout| transactions.set_lock_timeout(*timeout));
        self.snapshot_limit.inspect(|bytes| transactions.versions.set_limit(*bytes));
        transactions.recover()?;
        if db.pool().is_read_only() {
            return Ok(db);
        }
        if let Some(interval) = self.checkpoint_every {
            db.epochs()?.set_interval(interval);
        }
        if let Some(shown) = db.pool().show_operations()? {
            let _ = db.shared.shown.set(shown);
        }
        if !self.no_background_threads {
            *db.background() = Some(Background::start(db.pool()));
        }
        Ok(db)
    }
}
