//! [`Db`]: a pool that is opened for its typed maps.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use durix_pmem::pool::{Guarantee, IndexInfo};
use durix_pmem::{Epochs, Hardware, Medium, Owner, Pool, Tick};

use crate::background::Background;
use crate::builder::DbBuilder;
use crate::encode::{Key, Value};
use crate::kind;
use crate::map::Map;
use crate::ordered::OrderedMap;
use crate::sessions::{Cached, Sessions};
use crate::shared::Shared;
use crate::transaction::guard::Guarded;
use crate::transaction::shared::Transactions;
use crate::types::Types;
use crate::{Error, Index, Result};

/// Steps of services that a call of [`Db::tick`] runs at most.
const MOST_STEPS: usize = 16;
/// How long [`Db::close`] waits for calls in flight, before it waits for their operations.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

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
/// // Returned: on an ordinary file it survives power failure.
/// assert_eq!(users.get("ada")?, Some(1815));
/// println!("{}", users.guarantee());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What may wait
/// Every call on a map enters a short operation. It waits while a checkpoint, a check, or closing, finds a moment without
/// operations: for the longest operation that is under way elsewhere, and the checkpoint's own work in that moment (10 to 30
/// ns a line that was changed since the last one). Strict indices take no checkpoints, so with them alone nothing waits but
/// for [`close`](Self::close) and [`Map::check`]. With a journal ([`DbBuilder::durability`]) each commit finds such a moment, too, and an
/// update waits for a flush of the disk. Checkpoints are taken by a thread of the database, and by [`Map::sync`],
/// [`Map::wait`], [`Db::sync`] and [`Db::tick`], which give up after 10 s in which other operations did not end.
///
/// What a thread of the database fails at is returned by the next update, which then was not begun, or by the next sync.
pub struct Db<M: Medium = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
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
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::builder().durability(durix::Level::Process).open_or_create(&path)?;
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> DbBuilder {
        DbBuilder::default()
    }

    /// Opens a database that is there, recovering it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// assert!(Db::open(&path).is_err());                // there is none
    /// # Db::builder().durability(durix::Level::Process).create(&path)?.close()?;
    /// let db = Db::open(dir.path().join("app.durix"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`DbBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder().open(path)
    }

    /// Opens a database, or creates it where there is none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::open_or_create(&path)?;
    /// db.map::<String, u64>("ages")?.insert("ada", &36)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`DbBuilder::open_or_create`].
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder().open_or_create(path)
    }
}

impl<M: Medium> Db<M> {
    /// A database over a pool on any medium: one `Db` a pool, as locks and snapshots belong to it. What a crash has interrupted
    /// of transactions is finished when the first index is opened. It is without threads, as with
    /// [`no_background_threads`](DbBuilder::no_background_threads); [`DbBuilder::over`] gives one with them.
    ///
    /// ```
    /// use durix::{Db, Hardware, PoolOptions};
    /// use durix_pmem::backing::HeapBacking;
    ///
    /// // In memory, for a test.
    /// let db = Db::over(PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE)?);
    /// db.map::<String, u64>("ages")?.insert("ada", &36)?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn over(pool: Pool<M>) -> Self {
        let (epochs, opening, background) = (OnceLock::new(), Mutex::new(()), Mutex::new(None));
        let transactions = Transactions::new(pool.clone());
        let (sessions, shown) = (Sessions::new(), OnceLock::new());
        Db { shared: Arc::new(Shared { background, pool, sessions, epochs, opening, transactions, shown }) }
    }

    pub(crate) fn epochs(&self) -> Result<&Epochs<M>> {
        if let Some(epochs) = self.shared.epochs.get() {
            return Ok(epochs);
        }
        let epochs = self.shared.pool.epochs()?;
        Ok(self.shared.epochs.get_or_init(|| epochs))
    }

    pub(crate) fn background(&self) -> MutexGuard<'_, Option<Background<M>>> {
        self.shared.background.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// println!("{} bytes", db.pool().stats()?.size);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn pool(&self) -> &Pool<M> {
        &self.shared.pool
    }

    /// What holds for every map that is open now: the weakest of their guarantees. A map that is opened later may promise less;
    /// [`Map::guarantee`] says what a map promises.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// use durix::Durability;
    ///
    /// let _ages = db.map::<String, u64>("ages")?;               // durable on return
    /// assert_eq!(db.guarantee().durability, Durability::Strict);
    /// let _words = db.ordered_map::<String, u64>("words")?;     // in memory: with the next sync
    /// assert_eq!(db.guarantee().durability, Durability::Buffered);
    /// println!("{}", db.guarantee());
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn guarantee(&self) -> Guarantee {
        let open = self.shared.transactions.open_guards();
        open.iter().fold(self.shared.pool.guarantee(), |weakest, map| weakest.min(map.guarantee()))
    }

    /// Takes a checkpoint: makes everything durable that was done before, by any thread, to any buffered index of the database,
    /// on one consistent cut. Strict indices need none. Waits for the operations in flight, at most 10 s, and for the
    /// checkpoint's own work.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let words = db.ordered_map::<String, u64>("words")?; // buffered
    /// words.insert("tree", &1)?;
    /// db.sync()?;                                          // now no crash takes it back
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`]: operations in flight do not end, or the pool is shut; also what the database's own threads have failed
    /// at, if no update has told it since.
    pub fn sync(&self) -> Result<()> {
        let epochs = self.epochs()?;
        self.shared.sessions.with(&self.shared.pool, |cached| {
            epochs.sync(&mut cached.session)?;
            self.shared.transactions.finish_ready(&mut cached.session)?;
            Ok(self.shared.pool.commit(&mut cached.session)?)
        })?;
        Ok(self.shared.pool.services().failure()?)
    }

    /// Takes a checkpoint if the last one was longer ago than the interval: 64 ms, or what
    /// [`checkpoint_every`](DbBuilder::checkpoint_every) or [`Epochs::set_interval`](durix_pmem::Epochs::set_interval) says; then
    /// does what else is due outside of calls, some steps of it. Returns whether it took a checkpoint. For programs that have
    /// [no background threads](DbBuilder::no_background_threads) and take checkpoints between other things.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let words = db.ordered_map::<String, u64>("words")?; // buffered
    /// words.insert("tree", &1)?;
    /// while !db.tick()? {
    ///     // Other things.
    ///     std::thread::sleep(std::time::Duration::from_millis(5));
    /// }
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn tick(&self) -> Result<bool> {
        let (epochs, pool) = (self.epochs()?, &self.shared.pool);
        self.shared.sessions.with(pool, |cached| {
            let crossed = epochs.tick(&mut cached.session)?;
            self.shared.transactions.finish_ready(&mut cached.session)?;
            for _ in 0..MOST_STEPS {
                if pool.tick(&mut cached.session)? != Tick::Worked {
                    break;
                }
            }
            Ok(crossed)
        })
    }

    /// Opens the map named `name`, creating it if it is not there: as a [`kind::DEFAULT`], or as what it is.
    ///
    /// The types of key and value are stored with the index. One that is empty, and not open, takes the types it is opened
    /// with. The index is recovered, which takes time in its size for some kinds. Its creation and its types are durable
    /// on return. Opening it again gives another handle to the same map.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let ages = db.map::<String, u64>("ages")?;
    /// ages.insert("ada", &36)?;
    /// assert_eq!(db.map::<String, u64>("ages")?.get("ada")?, Some(36));   // the same map
    /// assert!(db.map::<String, String>("ages").is_err());                 // other types
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Pool`], [`Error::ForeignKind`], [`Error::Corrupt`].
    pub fn map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V, M>> {
        self.map_of(name, None)
    }

    /// As [`map`](Self::map), of a certain kind.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let squares = db.map_of_kind::<u64, u64>("squares", "hash")?;
    /// squares.insert(&2, &4)?;
    /// assert!(db.map_of_kind::<u64, u64>("squares", "pset").is_err());    // it is a hash
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`map`](Self::map), and [`Error::UnknownKind`], [`Error::WrongKind`], [`Error::UnfitType`].
    pub fn map_of_kind<K: Key, V: Value>(&self, name: &str, kind: &str) -> Result<Map<K, V, M>> {
        self.map_of(name, Some(kind))
    }

    /// Opens the map named `name`, whose keys are in order, and creates it if it does not exist: as a
    /// [`kind::DEFAULT_ORDERED`], or as what it is. That default is buffered: see [`sync`](Self::sync).
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let years = db.ordered_map::<u32, String>("years")?;
    /// years.insert(&1815, "Ada")?;
    /// years.insert(&1906, "Grace")?;
    /// assert_eq!(years.first()?, Some((1815, "Ada".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`map`](Self::map), and [`Error::NotOrdered`].
    pub fn ordered_map<K: Key, V: Value>(&self, name: &str) -> Result<OrderedMap<K, V, M>> {
        let there = self.indices()?.iter().any(|info| info.name == name);
        OrderedMap::new(self.map_of(name, (!there).then_some(kind::DEFAULT_ORDERED))?)
    }

    /// As [`ordered_map`](Self::ordered_map), of a certain kind.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let years = db.ordered_map_of_kind::<u32, String>("years", "bplustree")?;
    /// years.insert(&1815, "Ada")?;                      // durable on return
    /// assert!(db.ordered_map_of_kind::<u32, String>("other", "pset").is_err());
    /// # Ok::<(), durix::Error>(())
    /// ```
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
            Types { key: K::tag(), value: V::tag() }.fit(entry.limits, entry.name)?;
        }
        let _opening = self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
        self.typed(self.open_guarded(name, kind)?)
    }

    /// Opens the index named `name` for the vocabulary of bytes ([`Index`]), creating it if it is not there: as `kind`, or
    /// as what it is, or as a [`kind::DEFAULT`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let index = db.open_index("raw", Some("masstree"))?;
    /// let mut session = db.pool().session()?;
    /// index.insert(&session.enter()?, b"key", b"value")?;
    /// assert_eq!(index.get_vec(&session.enter()?, b"key")?, Some(b"value".to_vec()));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`map_of_kind`](Self::map_of_kind), apart from types.
    pub fn open_index(&self, name: &str, kind: Option<&str>) -> Result<Arc<dyn Index<M>>> {
        Ok(self.open_guarded(name, kind)?)
    }

    fn open_guarded(&self, name: &str, kind: Option<&str>) -> Result<Arc<Guarded<M>>> {
        let (pool, transactions) = (&self.shared.pool, &self.shared.transactions);
        transactions.recover()?;
        let opened = match kind {
            Some(kind) => kind::named::<M>(kind)?.open_or_create(pool, name),
            None => match kind::open_as_is(pool, name) {
                Err(Error::Pool(durix_pmem::Error::NoSuchIndex { .. })) => {
                    kind::named::<M>(kind::DEFAULT)?.open_or_create(pool, name)
                }
                opened => opened,
            },
        };
        let opened = opened?;
        transactions.settle_retirements()?;
        let guard = transactions.guard(opened);
        self.commit()?;
        Ok(guard)
    }

    /// On a journaled pool: makes durable what was done below the maps.
    fn commit(&self) -> Result<()> {
        self.shared.sessions.with(&self.shared.pool, |cached| Ok(self.shared.pool.commit(&mut cached.session)?))
    }

    /// When the lock table of a map that no transaction uses is dropped: after this number of plain updates and this time. For tests.
    #[doc(hidden)]
    pub fn set_idle_tables(&self, updates: u32, time: Duration) {
        self.shared.transactions.set_idle(updates, time);
    }

    /// Opens the index that belongs to an owner, whatever its name is by now.
    pub(crate) fn open_owner(&self, owner: Owner) -> Result<Arc<dyn Index<M>>> {
        let missing = || durix_pmem::Error::NoSuchIndex { name: format!("#{}", owner.0) };
        let info = self.indices()?.into_iter().find(|info| info.owner == owner).ok_or_else(missing)?;
        Ok(self.shared.transactions.guard(kind::open_as_is(&self.shared.pool, &info.name)?))
    }

    /// A map over an index of this pool that was opened otherwise: for structures of one's own. An empty index takes the
    /// types only if `index` is the only reference to it.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let index = db.open_index("ages", None)?;
    /// let ages = db.map_over::<String, u64>(index)?;
    /// ages.insert("ada", &36)?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::Pool`], with `ForeignSession` where the index is one of another pool.
    pub fn map_over<K: Key, V: Value>(&self, index: Arc<dyn Index<M>>) -> Result<Map<K, V, M>> {
        if !index.root().pool().mapping().is_same(self.shared.pool.mapping()) {
            return Err(durix_pmem::Error::ForeignSession.into());
        }
        let _opening = self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.transactions.recover()?;
        self.typed(self.shared.transactions.guard(index))
    }

    fn typed<K: Key, V: Value>(&self, guard: Arc<Guarded<M>>) -> Result<Map<K, V, M>> {
        let types = Types { key: K::tag(), value: V::tag() };
        types.fit(guard.limits(), kind::name_of(guard.raw()))?;
        let names: (&dyn Fn() -> String, &dyn Fn() -> String) = (&K::type_name, &V::type_name);
        let claim = |session: &mut _| types.claim(guard.raw(), &|| guard.is_sole(), session, names);
        self.shared.sessions.with(&self.shared.pool, |cached| claim(&mut cached.session))?;
        self.commit()?;
        Ok(Map::new(Arc::clone(&self.shared), guard))
    }

    /// The indices there are.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// db.map::<String, u64>("ages")?;
    /// let names: Vec<String> = db.indices()?.into_iter().map(|info| info.name).collect();
    /// assert_eq!(names, ["ages"]);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::indices`].
    pub fn indices(&self) -> Result<Vec<IndexInfo>> {
        let mut indices = self.shared.pool.indices()?;
        indices.retain(|info| !kind::is_internal(info.kind));
        Ok(indices)
    }

    /// Gives an index another name; failure-atomic, durable on return. It may be open.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// db.map::<String, u64>("ages")?.insert("ada", &36)?;
    /// db.rename("ages", "years")?;
    /// assert_eq!(db.map::<String, u64>("years")?.get("ada")?, Some(36));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::rename`].
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        self.shared.pool.rename(old, new)?;
        self.commit()
    }

    /// Removes an index that is not open, and gives its space back; failure-atomic, durable on return.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// db.map::<String, u64>("ages")?.insert("ada", &36)?;
    /// db.drop_index("ages")?;
    /// assert!(db.indices()?.is_empty());
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::drop_index`], and [`Error::SnapshotOpen`].
    pub fn drop_index(&self, name: &str) -> Result<()> {
        self.shared.transactions.recover()?;
        if self.shared.transactions.versions.is_open() {
            return Err(Error::SnapshotOpen { index: name.into() });
        }
        // The pool asks the transactions when nobody can have the index any more; and once more about snapshots.
        self.shared.pool.drop_index(name).map_err(|error| match error {
            durix_pmem::Error::StillNeeded { name, .. } => Error::SnapshotOpen { index: name },
            error => error.into(),
        })?;
        self.commit()
    }

    /// Closes the database: waits up to 10 s for calls in flight, takes a last checkpoint, waits as long for operations, and marks the file as
    /// closed.
    /// Dropping the last handle does the same, waiting 1 s, and keeps quiet about errors.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let ages = db.map::<String, u64>("ages")?;
    /// ages.insert("ada", &36)?;
    /// assert!(db.close().is_err());                     // a map is open
    /// drop(ages);
    /// db.close()?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`] with `InUse` while a map is open, `Busy` if calls or operations do not end, that one included from which this is
    /// called: the database then stays open.
    pub fn close(&self) -> Result<()> {
        if self.shared.pool.mapping().is_forked() {
            // Before any lock: a thread that this process does not have may hold it.
            return Err(durix_pmem::Error::Forked.into());
        }
        let mut background = self.background();
        let had_threads = background.take().is_some();
        let closed = self.close_pool();
        if had_threads && closed.is_err() {
            *background = Some(Background::start(&self.shared.pool));
        }
        closed
    }

    fn close_pool(&self) -> Result<()> {
        let Shared { pool, sessions, transactions, .. } = &*self.shared;
        if !transactions.nothing_pending() {
            sessions.with(pool, |cached: &mut Cached<M>| transactions.finish_all(&mut cached.session))?;
        }
        sessions.clear(transactions.medium(), CLOSE_PATIENCE)?;
        transactions.close_log();
        Ok(pool.close()?)
    }
}
