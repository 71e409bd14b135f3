//! A database: a pool, opened with typed maps in mind.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use durix_pmem::pool::{Guarantee, IndexInfo};
use durix_pmem::{Hardware, Medium, Pool, PoolOptions};

use crate::copy::{CopyReport, copy_pool};
use crate::encode::{Key, Value};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::kind;
use crate::map::Map;
use crate::ordered::OrderedMap;
use crate::sessions::Sessions;
use crate::types::Types;

/// How a database is created and opened; all of it goes to [`PoolOptions`].
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until something is opened with them"]
pub struct DbBuilder {
    pool: PoolOptions,
}

impl DbBuilder {
    /// Size of a new file in bytes; all of it is allocated. It grows when it is full. Default: 16 MiB.
    pub fn initial_size(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.initial_size(bytes) }
    }

    /// Size in bytes that the file can grow to while it is open. Default: 1 TiB.
    pub fn max_size(self, bytes: u64) -> Self {
        DbBuilder { pool: self.pool.max_size(bytes) }
    }

    /// How many indices a new file can hold. Default: 256.
    pub fn max_indices(self, indices: u32) -> Self {
        DbBuilder { pool: self.pool.max_indices(indices) }
    }

    /// See [`PoolOptions::assume_pmem`].
    pub fn assume_pmem(self, assume: bool) -> Self {
        DbBuilder { pool: self.pool.assume_pmem(assume) }
    }

    /// See [`PoolOptions::accept_unclean`].
    pub fn accept_unclean(self, accept: bool) -> Self {
        DbBuilder { pool: self.pool.accept_unclean(accept) }
    }

    /// Opens without ever writing to the file. Other readers may have it open, a writer may not.
    pub fn read_only(self, read_only: bool) -> Self {
        DbBuilder { pool: self.pool.read_only(read_only) }
    }

    /// All options at once.
    pub fn pool_options(self, pool: PoolOptions) -> Self {
        DbBuilder { pool }
    }

    /// Creates a database in a file that is not there or is empty.
    ///
    /// # Errors
    /// As [`PoolOptions::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::over(self.pool.create(path)?))
    }

    /// Opens a database that is there, recovering it.
    ///
    /// # Errors
    /// As [`PoolOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::over(self.pool.open(path)?))
    }

    /// Opens a database, or creates it where there is none.
    ///
    /// # Errors
    /// As [`PoolOptions::open_or_create`].
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Db> {
        Ok(Db::over(self.pool.open_or_create(path)?))
    }
}

/// What a database and its maps share.
pub(crate) struct Shared<M: Medium> {
    pub(crate) pool: Pool<M>,
    pub(crate) sessions: Sessions<M>,
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
/// Every call on a map enters a short operation. It waits while a checkpoint, or closing, finds a moment without
/// operations: for the longest operation that is under way elsewhere, and the checkpoint's own work in that moment. Strict
/// indices take no checkpoints, so with them alone nothing waits but for [`close`](Self::close). Only
/// [`Map::sync`] and [`Map::wait`] wait for a checkpoint to come.
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
        Db { shared: Arc::new(Shared { pool, sessions: Sessions::new(), opening: Mutex::new(()) }) }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool<M> {
        &self.shared.pool
    }

    /// What its contents survive; a map's own contract is part of [`Map::guarantee`].
    pub fn guarantee(&self) -> Guarantee {
        self.shared.pool.guarantee()
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
    /// As [`map`](Self::map), and [`Error::UnknownKind`], [`Error::WrongKind`].
    pub fn map_of_kind<K: Key, V: Value>(&self, name: &str, kind: &str) -> Result<Map<K, V, M>> {
        self.map_of(name, Some(kind))
    }

    /// Opens the map named `name` as one that keeps its keys in order, creating it with the ordered kind `kind` if it is
    /// not there.
    ///
    /// # Errors
    /// As [`map_of_kind`](Self::map_of_kind), and [`Error::NotOrdered`].
    pub fn ordered_map<K: Key, V: Value>(&self, name: &str, kind: &str) -> Result<OrderedMap<K, V, M>> {
        let entry = kind::named::<M>(kind)?;
        if !entry.ordered {
            return Err(Error::NotOrdered { index: name.into(), kind: entry.name });
        }
        OrderedMap::new(self.map_of(name, Some(kind))?)
    }

    fn map_of<K: Key, V: Value>(&self, name: &str, kind: Option<&str>) -> Result<Map<K, V, M>> {
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

    /// Closes the database: waits up to 10 s for operations in flight, and marks the file as closed. Dropping the last
    /// handle does the same, waiting 1 s, and keeps quiet about errors.
    ///
    /// # Errors
    /// [`Error::Pool`] with `InUse` while a map is open, `Busy` if operations do not end: the database then stays open.
    pub fn close(&self) -> Result<()> {
        self.shared.sessions.clear();
        Ok(self.shared.pool.close()?)
    }
}
