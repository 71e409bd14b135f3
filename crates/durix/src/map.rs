//! [`Map`]: a typed map, for any thread.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use durix_pmem::pool::Guarantee;
use durix_pmem::{Hardware, Medium};

use crate::coding::{decoded, encode_into, encoded, undecodable};
use crate::encode::{GivenAs, Key, Value};
use crate::map_batch::MapBatch;
use crate::map_calls::calls;
use crate::map_iter::Iter;
use crate::map_later::later_calls;
use crate::sessions::Cached;
use crate::shared::Shared;
use crate::transaction::guard::{Ending, Guarded};
use crate::{Error, Finding, Index, IndexStats, Result, Ticket, Unsettled};

/// A map from `K` to `V` in a [`Db`](crate::Db). Clones share it; it keeps the database open.
///
/// Any thread may call it, through a session that the database keeps; [`handle`](Self::handle) gives one of its own, which
/// is faster. Keys and values are given as they are or in a borrowed form ([`GivenAs`]): a `Map<String, _>` is asked for a `&str`.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// map.insert("ada", &36)?;
/// assert_eq!(map.get("ada")?, Some(36));
/// for pair in &map {
///     let (name, age) = pair?;
///     println!("{name}: {age}");
/// }
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Map<K, V, M: Medium = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) guard: Arc<Guarded<M>>,
    /// The same, for those who want to call it by themselves.
    pub(crate) index: Arc<dyn Index<M>>,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V, M: Medium> Clone for Map<K, V, M> {
    fn clone(&self) -> Self {
        let (guard, index) = (Arc::clone(&self.guard), Arc::clone(&self.index));
        Map { shared: Arc::clone(&self.shared), guard, index, types: PhantomData }
    }
}

impl<K, V, M: Medium> fmt::Debug for Map<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("root", self.index.root()).finish_non_exhaustive()
    }
}

/// Runs an update, after telling what a service has failed at, and waiting where one is outrun.
#[inline]
pub(crate) fn admitted<M: Medium, R>(
    index: &Guarded<M>,
    cached: &mut Cached<M>,
    call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>,
) -> Result<R> {
    index.pool().services().admit(&mut cached.session)?;
    call(index, cached)
}

/// Runs a call, and then waits as long as the level of a journaled pool asks for: for the commit of what the call has written or
/// seen. No operation is open then.
#[inline]
pub(crate) fn settled<M: Medium, R>(
    index: &Guarded<M>,
    cached: &mut Cached<M>,
    call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>,
) -> Result<R> {
    let result = call(index, cached)?;
    index.pool().settle(&mut cached.session)?;
    Ok(result)
}

impl<K: Key, V: Value, M: Medium> Map<K, V, M> {
    pub(crate) fn new(shared: Arc<Shared<M>>, guard: Arc<Guarded<M>>) -> Self {
        let index: Arc<dyn Index<M>> = guard.clone();
        Map { shared, guard, index, types: PhantomData }
    }

    /// Its guard, if it is a map of this database.
    pub(crate) fn guard_in(&self, shared: &Arc<Shared<M>>) -> Option<&Arc<Guarded<M>>> {
        Arc::ptr_eq(&self.shared, shared).then_some(&self.guard)
    }

    pub(crate) fn with<R>(&self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.shared.sessions.with(&self.shared.pool, |cached| settled(&self.guard, cached, call))
    }

    /// The same with the session of a handle.
    pub(crate) fn with_own<R>(
        &self,
        cached: &mut Cached<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>,
    ) -> Result<R> {
        settled(&self.guard, cached, call)
    }

    /// As [`with`](Self::with) for a call that settles itself.
    #[inline(always)]
    fn with_unsettled<R>(&self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.shared.sessions.with(&self.shared.pool, |cached| call(&self.guard, cached))
    }

    fn with_update<R>(&self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.with(|index, cached| admitted(index, cached, call))
    }

    /// Runs a call that ends with a ticket, which waits for what its level asks for.
    fn with_ticket<R>(
        &self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        unsettled.belong_to(&self.shared)?;
        self.with_unsettled(|index, cached| call(index, cached, unsettled))
    }

    /// The same for an update.
    fn with_later<R>(
        &self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        self.with_ticket(unsettled, |index, cached, ending| {
            admitted(index, cached, |index, cached| call(index, cached, ending))
        })
    }

    calls!(self, &self);

    later_calls!(self, &self);

    /// Changes a key from one value to another; `None` stands for absent.
    pub(crate) fn change_bytes(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.with_update(|index, cached| {
            index.change(&mut cached.session, key, |index, op| index.compare_and_set(op, key, expected, new))
        })
    }

    /// Changes what `key` is mapped to by a function of what it was mapped to, in one step for all other threads; `None` stands for
    /// absent. Returns the value that it is mapped to now. Durable as [`insert`](Self::insert).
    ///
    /// The function is called again where another thread has changed the key in between. No lock is held while it runs: it may call this map.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("counts"))?;
    /// let counts = db.map::<String, u64>("counts")?;
    /// counts.update_with("visits", |old| Some(old.unwrap_or(0) + 1))?;
    /// assert_eq!(counts.update_with("visits", |old| Some(old.unwrap_or(0) + 1))?, Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Undecodable`]; otherwise as [`insert`](Self::insert).
    pub fn update_with<Q>(&self, key: &Q, mut change: impl FnMut(Option<V>) -> Option<V>) -> Result<Option<V>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let key = encoded::<K, Q>(key)?;
        loop {
            let old = self.with(|index, cached| {
                let old = index.get_vec(&cached.session.enter()?, &key)?;
                index.note_read(&cached.session, &key);
                Ok(old)
            })?;
            let new = change(old.as_ref().map(|bytes| decoded(&*self.index, bytes)).transpose()?);
            let bytes = new.as_ref().map(encoded::<V, V>).transpose()?;
            if old == bytes || self.change_bytes(&key, old.as_deref(), bytes.as_deref())? {
                return Ok(new);
            }
        }
    }

    /// All pairs: see [`Iter`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let oldest = map.iter().map(|pair| Ok(pair?.1)).try_fold(0, |most, age: durix::Result<u64>| age.map(|age| most.max(age)))?;
    /// assert_eq!(oldest, 36);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn iter(&self) -> Iter<'_, K, V, M> {
        Iter::new(self, self.index.cursor())
    }

    /// The name of the index, as of now.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// assert_eq!(map.name(), "ages");
    /// db.rename("ages", "years")?;
    /// assert_eq!(map.name(), "years");
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn name(&self) -> String {
        self.index.root().name()
    }

    /// What survives what: the weaker of the index's contract and of what its medium survives.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// assert_eq!(map.guarantee().durability, durix::Durability::Strict);
    /// println!("{}", map.guarantee());
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn guarantee(&self) -> Guarantee {
        self.index.guarantee()
    }

    /// The index, for operations on several indices in one scope, with bytes for keys and values. An update of a key that a
    /// transaction has locked is [`Error::Locked`].
    ///
    /// Its calls do not wait for the journal. After your operation has ended, call [`Pool::settle`](durix_pmem::Pool::settle) with its
    /// session: what you have updated is durable then. An operation that stays open keeps every commit waiting, and so every update.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// use durix::Encode;
    ///
    /// map.insert("ada", &36)?;
    /// let (mut key, index) = (Vec::new(), map.index());
    /// "ada".encode(&mut key)?;
    /// let mut session = db.pool().session()?;
    /// assert_eq!(index.get_vec(&session.enter()?, &key)?, Some(36_u64.to_be_bytes().to_vec()));
    /// db.pool().settle(&mut session)?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn index(&self) -> &Arc<dyn Index<M>> {
        &self.index
    }

    /// Walks everything, and reports every inconsistency, also keys and values that are not of their types. Other calls
    /// may have to wait until it ends, in all of the database; linear in the index.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// assert!(map.check()?.is_empty());
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Index::check`].
    pub fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = self.with(|index, cached| index.check(&mut cached.session))?;
        for pair in self.iter() {
            match pair {
                Err(Error::Undecodable { what, .. }) => findings.push(Finding { offset: 0, what }),
                other => drop(other?),
            }
        }
        Ok(findings)
    }

    /// Numbers about the index.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let stats = map.stats()?;
    /// assert_eq!(stats.keys, 1);
    /// println!("{} bytes", stats.persistent_bytes);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is shut.
    pub fn stats(&self) -> Result<IndexStats> {
        self.with(|index, cached| index.stats(&mut cached.session))
    }
}

impl<'a, K: Key, V: Value, M: Medium> IntoIterator for &'a Map<K, V, M> {
    type Item = Result<(K, V)>;
    type IntoIter = Iter<'a, K, V, M>;

    fn into_iter(self) -> Iter<'a, K, V, M> {
        self.iter()
    }
}
