//! Typed maps inside a transaction.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use durix_pmem::{Hardware, Medium};

use super::bytes::TxIndex;
use super::iter::{TxIter, TxRange};
use super::tx::Transaction;
use crate::Result;
use crate::coding::{decoded, encode_into, encoded, encoded_range, prefixed_range};
use crate::encode::{Decode, GivenAs, Key, PrefixOf, Value};
use crate::map::Map;
use crate::{Direction, Index, KeyRange};

/// A [`Map`](crate::Map) inside a [`Transaction`](crate::Transaction): reads see the transaction's own changes, and nobody
/// else's before their commit.
///
/// Every call may fail with [`Error::Conflict`](crate::Error::Conflict): give it back to
/// [`Db::transaction`](crate::Db::transaction) with `?`, which runs the closure again; and with
/// [`Error::Locked`](crate::Error::Locked) after the lock timeout.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<String, u64>("ages")?;
/// db.transaction(|tx| {
///     let map = tx.map(&map)?;
///     map.insert("ada", &36)?;
///     assert_eq!(map.get("ada")?, Some(36));                // seen inside, not outside yet
///     Ok(())
/// })?;
/// # Ok::<(), durix::Error>(())
/// ```
pub struct TxMap<'t, K, V, M: Medium = Hardware> {
    index: TxIndex<'t, M>,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V, M: Medium> fmt::Debug for TxMap<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.index.fmt(f)
    }
}

impl<M: Medium> Transaction<M> {
    /// A map inside this transaction. The map's first transaction waits for the operations in flight.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ForeignMap`](crate::Error::ForeignMap) where the map is of another database; [`Error::Pool`](crate::Error::Pool) where
    /// operations in flight do not end within 10 s, or the pool is shut.
    pub fn map<K: Key, V: Value>(&self, map: &Map<K, V, M>) -> Result<TxMap<'_, K, V, M>> {
        Ok(TxMap::new(match map.guard_in(&self.shared) {
            Some(guard) => self.index_of(guard)?,
            None => self.index(map.index())?,
        }))
    }
}

impl<'t, K: Key, V: Value, M: Medium> TxMap<'t, K, V, M> {
    pub(super) fn new(index: TxIndex<'t, M>) -> Self {
        TxMap { index, types: PhantomData }
    }

    fn value<T: Decode>(&self, bytes: &[u8]) -> Result<T> {
        decoded(self.index.guard(), bytes)
    }

    /// Runs a call with the bytes of a key. Encoding may be the user's own code: the buffer is not borrowed while it runs.
    fn with_key<Q, R>(&self, key: &Q, call: impl FnOnce(&[u8]) -> Result<R>) -> Result<R>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let take = || std::mem::take(&mut self.index.tx().state.borrow_mut().buffers().key);
        let mut bytes = take();
        encode_into::<K, Q>(key, &mut bytes)?;
        let result = call(&bytes);
        self.index.tx().state.borrow_mut().buffers().key = bytes;
        result
    }

    /// The same for a key and a value.
    fn with_pair<Q, W, R>(&self, key: &Q, value: &W, call: impl FnOnce(&[u8], &[u8]) -> Result<R>) -> Result<R>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        V: GivenAs<W>,
        W: ?Sized,
    {
        let take = || std::mem::take(&mut self.index.tx().state.borrow_mut().buffers().value);
        let mut bytes = take();
        encode_into::<V, W>(value, &mut bytes)?;
        let result = self.with_key(key, |key| call(key, &bytes));
        self.index.tx().state.borrow_mut().buffers().value = bytes;
        result
    }

    /// The value of `key`.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert_eq!(map.get("ada")?, None);
    ///     map.insert("ada", &36)?;
    ///     assert_eq!(map.get("ada")?, Some(36));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::get`], and [`Error::Undecodable`](crate::Error::Undecodable).
    pub fn get<Q>(&self, key: &Q) -> Result<Option<V>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let value = self.with_key(key, |key| self.index.get_small(key))?;
        value.map(|bytes| self.value(&bytes)).transpose()
    }

    /// As [`get`](Self::get), and locks the key for writing: see [`TxIndex::get_for_update`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     let age = map.get_for_update("ada")?.unwrap_or(0);   // no other transaction changes it from here on
    ///     map.insert("ada", &(age + 1))?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_for_update<Q>(&self, key: &Q) -> Result<Option<V>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        self.with_key(key, |key| self.index.lock_to_change(key))?;
        self.get(key)
    }

    /// Whether `key` is there.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     assert!(map.contains("ada")? && !map.contains("alan")?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::get`].
    pub fn contains<Q>(&self, key: &Q) -> Result<bool>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        Ok(self.with_key(key, |key| self.index.get_small(key))?.is_some())
    }

    /// Maps `key` to `value`. Returns whether the key is new.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert!(map.insert("ada", &36)?);                     // the key is new
    ///     assert!(!map.insert("ada", &37)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::insert`].
    pub fn insert<Q, W>(&self, key: &Q, value: &W) -> Result<bool>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        V: GivenAs<W>,
        W: ?Sized,
    {
        self.with_pair(key, value, |key, value| self.index.insert(key, value))
    }

    /// Maps `key` to `value` if it is not there. Returns whether it did.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert!(map.insert_if_absent("ada", &36)?);
    ///     assert!(!map.insert_if_absent("ada", &37)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::insert`].
    pub fn insert_if_absent<Q, W>(&self, key: &Q, value: &W) -> Result<bool>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        V: GivenAs<W>,
        W: ?Sized,
    {
        self.with_pair(key, value, |key, value| self.index.insert_if_absent(key, value))
    }

    /// Maps `key` to `value` if it is there. Returns whether it did.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert!(!map.update("ada", &36)?);                    // not there
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::insert`].
    pub fn update<Q, W>(&self, key: &Q, value: &W) -> Result<bool>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        V: GivenAs<W>,
        W: ?Sized,
    {
        self.with_pair(key, value, |key, value| self.index.update(key, value))
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     assert!(map.remove("ada")? && !map.remove("ada")?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::remove`].
    pub fn remove<Q>(&self, key: &Q) -> Result<bool>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        self.with_key(key, |key| self.index.remove(key))
    }

    /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether it was as expected (in its bytes); if
    /// not, nothing is changed.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert!(map.compare_and_set("ada", None, Some(&36))?);
    ///     assert!(!map.compare_and_set("ada", Some(&1), None)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::insert`].
    pub fn compare_and_set<Q, W>(&self, key: &Q, expected: Option<&W>, new: Option<&W>) -> Result<bool>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        V: GivenAs<W>,
        W: ?Sized,
    {
        let expected = expected.map(|value| encoded::<V, W>(value)).transpose()?;
        let new = new.map(|value| encoded::<V, W>(value)).transpose()?;
        self.with_key(key, |key| self.index.compare_and_set(key, expected.as_deref(), new.as_deref()))
    }

    /// Changes what `key` is mapped to by a function of what it was mapped to; `None` stands for absent. Returns the value that it is
    /// mapped to now. The function is called once in each run of the transaction.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert_eq!(map.update_with("ada", |age| Some(age.unwrap_or(0) + 1))?, Some(1));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn update_with<Q>(&self, key: &Q, change: impl FnOnce(Option<V>) -> Option<V>) -> Result<Option<V>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let new = change(self.get_for_update(key)?);
        match &new {
            Some(value) => _ = self.insert(key, value)?,
            None => _ = self.remove(key)?,
        }
        Ok(new)
    }

    /// All pairs, as the transaction sees them now: see [`TxIndex::iter`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     for pair in map.iter()? {
    ///         let (name, age) = pair?;
    ///         assert_eq!((name.as_str(), age), ("ada", 36));
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::iter`].
    pub fn iter(&self) -> Result<TxIter<'_, K, V, M>> {
        Ok(TxIter::new(self.index.iter()?, self.name()))
    }

    /// The pairs with keys in `bounds`, in their order; `.rev()` begins at the largest. See [`TxIndex::range`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     assert_eq!(map.range("a".."b")?.rev().count(), 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::range`].
    pub fn range<Q, R>(&self, bounds: R) -> Result<TxRange<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        R: RangeBounds<Q>,
    {
        self.walk(&encoded_range::<K, Q>(&bounds)?)
    }

    /// The pairs whose keys begin with `prefix`: see [`OrderedMap::prefix`](crate::OrderedMap::prefix).
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     assert_eq!(map.prefix("ad")?.count(), 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::range`].
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&self, prefix: &P) -> Result<TxRange<'_, K, V, M>> {
        self.walk(&prefixed_range(prefix))
    }

    /// Both ends show the transaction as it is now.
    fn walk(&self, keys: &KeyRange) -> Result<TxRange<'_, K, V, M>> {
        let open = |direction| self.index.range(keys, direction);
        Ok(TxRange::new(open(Direction::Forward)?, open(Direction::Backward)?, self.name()))
    }

    /// Number of keys, as the transaction sees it. A walk over all of them, which locks the whole map.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     assert_eq!(map.count()?, 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::iter`].
    pub fn count(&self) -> Result<u64> {
        self.index.iter()?.try_fold(0, |count, pair| pair.map(|_| count + 1))
    }

    /// Whether there is no key; as [`count`](Self::count), up to the first key.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     assert!(map.is_empty()?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::iter`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.index.iter()?.next().transpose()?.is_none())
    }

    fn name(&self) -> String {
        self.index.guard().root().name()
    }
}
