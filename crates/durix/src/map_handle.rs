//! [`Handle`]: a [`Map`] with a session of its own.

use durix_pmem::{Hardware, Medium};

use crate::coding::{decoded, encode_into, encoded, undecodable};
use crate::encode::{GivenAs, Key, Value};
use crate::map::{Map, admitted, settled};
use crate::map_batch::MapBatch;
use crate::map_calls::calls;
use crate::map_later::later_calls;
use crate::sessions::Cached;
use crate::transaction::guard::{Ending, Guarded};
#[allow(unused_imports)] // The documentation of the calls names them.
use crate::{Error, Index};
use crate::{Result, Ticket, Unsettled};

/// A map with a session of its own: the fast path of one thread. It may move between threads.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// let mut handle = map.handle()?;                  // one for each thread
/// handle.insert("ada", &36)?;
/// assert_eq!(handle.get("ada")?, Some(36));
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Debug)]
pub struct Handle<K, V, M: Medium = Hardware> {
    map: Map<K, V, M>,
    cached: Cached<M>,
}

impl<K: Key, V: Value, M: Medium> Map<K, V, M> {
    /// A handle with a session of its own: as the map, without the search for a session. There can be about 500 at a
    /// time in a database; each gives its session back when it is dropped.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let mut handle = map.handle()?;
    /// for n in 0..100 {
    ///     handle.insert(&n.to_string(), &n)?;
    /// }
    /// assert_eq!(map.count()?, 100);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`]: all sessions are taken, or the pool is shut.
    pub fn handle(&self) -> Result<Handle<K, V, M>> {
        Ok(Handle { cached: Cached::new(&self.shared.pool)?, map: self.clone() })
    }
}

impl<K: Key, V: Value, M: Medium> Handle<K, V, M> {
    fn with<R>(&mut self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        settled(&self.map.guard, &mut self.cached, call)
    }

    fn with_ticket<R>(
        &mut self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        unsettled.belong_to(&self.map.shared)?;
        call(&self.map.guard, &mut self.cached, unsettled)
    }

    fn with_later<R>(
        &mut self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        self.with_ticket(unsettled, |index, cached, ending| {
            admitted(index, cached, |index, cached| call(index, cached, ending))
        })
    }

    #[inline(always)]
    fn with_unsettled<R>(&mut self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        call(&self.map.guard, &mut self.cached)
    }

    fn with_update<R>(&mut self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.with(|index, cached| admitted(index, cached, call))
    }

    calls!(self, &mut self);

    later_calls!(self, &mut self);

    /// The bytes of `key`'s value, if it is there: a copy that the handle holds until its next call. Keeping it blocks no
    /// other call.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.get_bytes("ada")?, Some(&36_u64.to_be_bytes()[..]));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Index::get`].
    pub fn get_bytes<Q>(&mut self, key: &Q) -> Result<Option<&[u8]>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let Handle { map, cached } = self;
        encode_into::<K, Q>(key, &mut cached.key)?;
        let found = map.guard.get(&cached.session.enter()?, &cached.key, &mut cached.value)?;
        map.guard.note_read(&cached.session, &cached.key);
        map.guard.pool().settle(&mut cached.session)?;
        Ok(found.then_some(&cached.value[..]))
    }

    /// The map.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let handle = map.handle()?;
    /// assert_eq!(handle.map().name(), "ages");
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn map(&self) -> &Map<K, V, M> {
        &self.map
    }

    pub(crate) fn parts(&mut self) -> (&Map<K, V, M>, &mut Cached<M>) {
        (&self.map, &mut self.cached)
    }

    /// The session: to enter operations for the vocabulary of bytes.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let mut handle = map.handle()?;
    /// let op = handle.session().enter()?;
    /// assert!(map.index().is_empty(&op)?);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn session(&mut self) -> &mut durix_pmem::Session<M> {
        &mut self.cached.session
    }
}
