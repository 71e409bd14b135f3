//! A database: a pool, opened with typed maps in mind.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use durix_pmem::pool::{Guarantee, IndexInfo};
use durix_pmem::{Epochs, Hardware, Medium, Pool, PoolOptions};

use crate::checkpoints::Checkpoints;
use crate::copy::{CopyReport, copy_pool};
use crate::encode::{Key, Value};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::kind;
use crate::map::Map;
use crate::ordered::OrderedMap;
use crate::sessions::Sessions;
use crate::types::Types;

/// How a database is created and opened; most of it goes to [`PoolOptions`].
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until something is opened with them"]
pub struct DbBuilder {
    pool: PoolOptions,
    checkpoint_every: Option<Duration>,
}

impl DbBuilder {
    /// Size of a new file in bytes; all of it is allocated. It grows when it is full. Default: 16 MiB.
    pub fn initial_size(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.initial_size(bytes), ..self }
    }

    /// Size in bytes that the file can grow to while it is open. Default: 1 TiB.
    pub fn max_size(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.max_size(bytes), ..self }
    }

    /// How many indices a new file can hold. Default: 256.
    pub fn max_indices(self, indices: u32) -> Self {
        DbBuilder { pool: self.pool.max_indices(indices), ..self }
    }

    /// See [`PoolOptions::assume_pmem`].
    pub fn assume_pmem(self, assume: bool) -> Self {
        DbBuilder { pool: self.pool.assume_pmem(assume), ..self }
    }

    /// See [`PoolOptions::accept_unclean`].
    pub fn accept_unclean(self, accept: bool) -> Self {
        DbBuilder { pool: self.pool.accept_unclean(accept), ..self }
    }

    /// Opens without ever writing to the file. Other readers may have it open, a writer may not.
    pub fn read_only(self, read_only: bool) -> Self {
        DbBuilder { pool: self.pool.read_only(read_only), ..self }
    }

    /// All options at once.
    pub fn pool_options(self, pool: PoolOptions) -> Self {
        DbBuilder { pool, ..self }
    }

    /// Has a thread of the database take a checkpoint in every such interval, so that what buffered indices hold becomes
    /// durable without anybody calling [`sync`](Db::sync) or [`tick`](Db::tick): a crash then loses what was done in about
    /// the last interval. Unless this is set no thread is started. It is ignored where the database is opened for reading.
    pub fn checkpoint_every(self, interval: Duration) -> Self {
        DbBuilder { checkpoint_every: Some(interval), ..self }
    }

    /// Creates a database in a file that is not there or is empty.
    ///
    /// # Errors
    /// As [`PoolOptions::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Db> {
        self.over(self.pool.create(path)?)
    }

    /// Opens a database that is there, recovering it.
    ///
    /// # Errors
    /// As [`PoolOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Db> {
        self.over(self.pool.open(path)?)
    }

    /// Opens a database, or creates it where there is none.
    ///
    /// # Errors
    /// As [`PoolOptions::open_or_create`].
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Db> {
        self.over(self.pool.open_or_create(path)?)
    }
}

impl DbBuilder {
    /// A database over a pool on any medium, with the options that are the database's own.
    ///
    /// # Errors
    /// [`Error::Pool`]: the thread for checkpoints could not be started.
    pub fn over<M: Medium>(&self, pool: Pool<M>) -> Result<Db<M>> {
        let db = Db::over(pool);
        if let (Some(interval), false) = (self.checkpoint_every, db.pool().is_read_only()) {
            *db.checkpoints() = Some(Checkpoints::start(db.pool(), interval)?);
        }
        Ok(db)
    }
}

/// What a database and its maps share.
pub(crate) struct Shared<M: Medium> {
    /// Goes first: its thread has a session of the pool.
    checkpoints: Mutex<Option<Checkpoints>>,
    pub(crate) pool: Pool<M>,
    pub(crate) sessions: Sessions<M>,
    /// Once somebody has asked for a checkpoint.
    epochs: OnceLock<Arc<Epochs<M>>>,
    /// Held while an index is opened, so that its types are settled by one opener at a time.
    opening: Mutex<()>,
}

/// A database: named maps in one file. Clones share it.
///
/// ```
/// use durix::Db;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.durix");
/// let db = Db::open_or_create(&path)?;
/// let users = db.map::<String, u16>("users")?;
/// users.insert("ada", &1815)?;
/// // Returned: durable, as far as the database's medium goes.
/// assert_eq!(users.get("ada")?, Some(1815));
/// println!("{}", users.guarantee());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What may wait
/// Every call on a map enters a short operation. It waits while a checkpoint, a check, or closing, finds a moment without
/// operations: for the longest operation that is under way elsewhere, and the checkpoint's own work in that moment (10 to 30
/// ns a line that was changed since the last one). Strict indices take no checkpoints, so with them alone nothing waits but
/// for [`close`](Self::close) and [`Map::check`]. Only [`Map::sync`], [`Map::wait`], [`Db::sync`] and [`Db::tick`] take
/// checkpoints; they give up after 10 s in which other operations did not end.
pub struct Db<M: Medium = Hardware> {
    shared: Arc<Shared<M>>,
}

impl<M: Medium> Clone for Db<M> {
    fn clone(&self) -> Self {
        Db { shared: Arc::clone(&self.shared) }
    }
}

impl<M: Medium> fmt::Debug for Db<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("pool", &self.shared.pool).finish_non_exhaustive()
    }
}

impl Db {
    /// Options, to begin with the defaults.
    pub fn builder() -> DbBuilder {
        DbBuilder::default()
    }

    /// Opens a database that is there, recovering it.
    ///
    /// # Errors
    /// As [`PoolOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder().open(path)
    }

    /// Opens a database, or creates it where there is none.
    ///
    /// # Errors
    /// As [`PoolOptions::open_or_create`].
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder().open_or_create(path)
    }
}

impl<M: Medium> Db<M> {
    /// A database over a pool on any medium.
    pub fn over(pool: Pool<M>) -> Self {
        let (sessions, checkpoints) = (Sessions::new(), Mutex::new(None));
        Db {
            shared: Arc::new(Shared { checkpoints, pool, sessions, epochs: OnceLock::new(), opening: Mutex::new(()) }),
        }
    }

    fn epochs(&self) -> Result<&Epochs<M>> {
        if let Some(epochs) = self.shared.epochs.get() {
            return Ok(epochs);
        }
        let epochs = self.shared.pool.epochs()?;
        Ok(self.shared.epochs.get_or_init(|| epochs))
    }

    fn checkpoints(&self) -> MutexGuard<'_, Option<Checkpoints>> {
        self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool.
    pub fn pool(&self) -> &Pool<M> {
        &self.shared.pool
    }

    /// What its contents survive; a map's own contract is part of [`Map::guarantee`].
    pub fn guarantee(&self) -> Guarantee {
        self.shared.pool.guarantee()
    }

    /// Takes a checkpoint: makes everything durable that was done before, by any thread, to any buffered index of the database,
    /// on one consistent cut. Strict indices need none. Waits for the operations in flight, at most 10 s, and for the
    /// checkpoint's own work.
    ///
    /// # Errors
    /// [`Error::Pool`]: operations in flight do not end, or the pool is shut; also where the database's own thread for
    /// checkpoints has failed to take one since this was called last.
    pub fn sync(&self) -> Result<()> {
        let epochs = self.epochs()?;
        self.shared.sessions.with(&self.shared.pool, |cached| Ok(epochs.sync(&mut cached.session)?))?;
        self.checkpoints().as_ref().and_then(Checkpoints::failure).map_or(Ok(()), Err)
    }

    /// Takes a checkpoint if the last one was longer ago than the interval: 64 ms, or what
    /// [`checkpoint_every`](DbBuilder::checkpoint_every) or [`Epochs::set_interval`](durix_pmem::Epochs::set_interval) says.
    /// Returns whether it did. For programs that take checkpoints in a thread of their own, between other things.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn tick(&self) -> Result<bool> {
        let epochs = self.epochs()?;
        self.shared.sessions.with(&self.shared.pool, |cached| Ok(epochs.tick(&mut cached.session)?))
    }

    /// Opens the map named `name`, creating it if it is not there: as a [`kind::DEFAULT`], or as what it is.
    ///
    /// The types of key and value are stored with the index. One that is empty, and not open, takes the types it is opened
    /// with. The index is recovered, which takes time in its size for some kinds. Its creation and its types are durable
    /// on return. Opening it again gives another handle to the same map.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Pool`], [`Error::ForeignKind`], [`Error::Corrupt`].
    pub fn map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V, M>> {
        self.map_of(name, None)
    }

    /// As [`map`](Self::map), of a certain kind.
    ///
    /// # Errors
    /// As [`map`](Self::map), and [`Error::UnknownKind`], [`Error::WrongKind`], [`Error::UnfitType`].
    pub fn map_of_kind<K: Key, V: Value>(&self, name: &str, kind: &str) -> Result<Map<K, V, M>> {
        self.map_of(name, Some(kind))
    }

    /// Opens the map named `name` as one that keeps its keys in order, creating it if it is not there: as a
    /// [`kind::DEFAULT_ORDERED`], or as what it is. That default is buffered: see [`sync`](Self::sync).
    ///
    /// # Errors
    /// As [`map`](Self::map), and [`Error::NotOrdered`].
    pub fn ordered_map<K: Key, V: Value>(&self, name: &str) -> Result<OrderedMap<K, V, M>> {
        let there = self.shared.pool.indices()?.iter().any(|info| info.name == name);
        OrderedMap::new(self.map_of(name, (!there).then_some(kind::DEFAULT_ORDERED))?)
    }

    /// As [`ordered_map`](Self::ordered_map), of a certain kind.
    ///
    /// # Errors
    /// As [`map_of_kind`](Self::map_of_kind), and [`Error::NotOrdered`].
    pub fn ordered_map_of_kind<K: Key, V: Value>(&self, name: &str, kind: &str) -> Result<OrderedMap<K, V, M>> {
        let entry = kind::named::<M>(kind)?;
        if !entry.ordered {
            return Err(Error::NotOrdered { index: name.into(), kind: entry.name });
        }
        OrderedMap::new(self.map_of(name, Some(kind))?)
    }

    fn map_of<K: Key, V: Value>(&self, name: &str, kind: Option<&str>) -> Result<Map<K, V, M>> {
        if let Some(kind) = kind {
            // Before anything is created.
            let entry = kind::named::<M>(kind)?;
            entry.limits.take(entry.name, Types { key: K::tag(), value: V::tag() })?;
        }
        let _opening = self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.open_index(name, kind)?;
        self.typed(index)
    }

    /// Opens the index named `name` for the vocabulary of bytes ([`Index`]), creating it if it is not there: as `kind`, or
    /// as what it is, or as a [`kind::DEFAULT`].
    ///
    /// # Errors
    /// As [`map_of_kind`](Self::map_of_kind), apart from types.
    pub fn open_index(&self, name: &str, kind: Option<&str>) -> Result<Arc<dyn Index<M>>> {
        let pool = &self.shared.pool;
        if let Some(kind) = kind {
            return kind::named::<M>(kind)?.open_or_create(pool, name);
        }
        match kind::open_as_is(pool, name) {
            Err(Error::Pool(durix_pmem::Error::NoSuchIndex { .. })) => {
                kind::named::<M>(kind::DEFAULT)?.open_or_create(pool, name)
            }
            opened => opened,
        }
    }

    /// A map over an index of this pool that was opened otherwise: for structures of one's own. An empty index takes the
    /// types only if `index` is the only reference to it.
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::Pool`].
    pub fn map_over<K: Key, V: Value>(&self, index: Arc<dyn Index<M>>) -> Result<Map<K, V, M>> {
        let _opening = self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
        self.typed(index)
    }

    fn typed<K: Key, V: Value>(&self, index: Arc<dyn Index<M>>) -> Result<Map<K, V, M>> {
        let types = Types { key: K::tag(), value: V::tag() };
        index.limits().take(kind::name_of(&*index), types)?;
        let claim = |session: &mut _| types.claim(&index, session, (&K::type_name, &V::type_name));
        self.shared.sessions.with(&self.shared.pool, |cached| claim(&mut cached.session))?;
        Ok(Map::new(Arc::clone(&self.shared), index))
    }

    /// The indices there are.
    ///
    /// # Errors
    /// As [`Pool::indices`].
    pub fn indices(&self) -> Result<Vec<IndexInfo>> {
        Ok(self.shared.pool.indices()?)
    }

    /// Gives an index another name; failure-atomic, durable on return. It may be open.
    ///
    /// # Errors
    /// As [`Pool::rename`].
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        Ok(self.shared.pool.rename(old, new)?)
    }

    /// Removes an index that is not open, and gives its space back; failure-atomic, durable on return.
    ///
    /// # Errors
    /// As [`Pool::drop_index`].
    pub fn drop_index(&self, name: &str) -> Result<()> {
        Ok(self.shared.pool.drop_index(name)?)
    }

    /// Copies all indices into a new database at `path`, while others go on writing.
    ///
    /// The copy of each index is a walk over it ([`Index::cursor`]): what is there from the beginning to the end of the walk
    /// is in the copy, with a value that it had meanwhile; what is inserted, changed or removed meanwhile may be in it or
    /// not, also of one batch some and some not. Indices are copied one after the other. So it is a copy of one moment if
    /// nobody writes. The file at `path` appears when the copy is whole and, as far as the medium goes, durable; a crash
    /// before leaves `path` with `.partial` added, which the next copy overwrites.
    ///
    /// # Errors
    /// [`Error::Pool`] with `AlreadyExists` where there is a file at `path`; [`Error::ForeignKind`] where an index
    /// cannot be opened; [`Error::Corrupt`]; [`Error::Pool`].
    pub fn copy_to(&self, path: impl AsRef<Path>) -> Result<CopyReport> {
        copy_pool(&self.shared.pool, path.as_ref(), &PoolOptions::new())
    }

    /// As [`copy_to`](Self::copy_to), with options for the new pool.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_to_with(&self, path: impl AsRef<Path>, options: &PoolOptions) -> Result<CopyReport> {
        copy_pool(&self.shared.pool, path.as_ref(), options)
    }

    /// Closes the database: takes a last checkpoint, waits up to 10 s for operations in flight, and marks the file as closed.
    /// Dropping the last handle does the same, waiting 1 s, and keeps quiet about errors.
    ///
    /// # Errors
    /// [`Error::Pool`] with `InUse` while a map is open, `Busy` if operations do not end: the database then stays open.
    pub fn close(&self) -> Result<()> {
        let mut checkpoints = self.checkpoints();
        let thread = checkpoints.take().map(|thread| thread.every);
        self.shared.sessions.clear();
        let closed = self.shared.pool.close();
        if let (Err(_), Some(every)) = (&closed, thread) {
            *checkpoints = Checkpoints::start(&self.shared.pool, every).ok();
        }
        Ok(closed?)
    }
}
