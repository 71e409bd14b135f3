//! An index inside a transaction, over bytes.

use std::fmt;
use std::sync::Arc;

use durix_pmem::{Hardware, Medium};

use super::guard::Guarded;
use super::iter::{TxPairs, Writes};
use super::locks::Wanted;
use super::small::Small;
use super::tx::Transaction;
use crate::kind;
use crate::{Direction, Index, KeyRange};
use crate::{Error, Result};

/// An index inside a [`Transaction`]: what [`Index`] can do, with the transaction's own changes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
/// db.transaction(|tx| {
///     let index = tx.index(map.index())?;
///     index.insert(b"k", b"v")?;
///     assert_eq!(index.get(b"k")?, Some(b"v".to_vec()));
///     Ok(())
/// })?;
/// # Ok::<(), durix::Error>(())
/// ```
pub struct TxIndex<'t, M: Medium = Hardware> {
    tx: &'t Transaction<M>,
    /// Which of the transaction's maps it is.
    place: usize,
}

impl<M: Medium> fmt::Debug for TxIndex<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxIndex").field("root", self.guard().root()).finish_non_exhaustive()
    }
}

impl<M: Medium> Transaction<M> {
    /// An index inside this transaction, for the vocabulary of bytes.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     index.insert(b"k", b"v")?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn index(&self, index: &Arc<dyn Index<M>>) -> Result<TxIndex<'_, M>> {
        self.index_of(&self.shared.transactions.guard_of(&**index)?)
    }

    pub(super) fn index_of(&self, guard: &Arc<Guarded<M>>) -> Result<TxIndex<'_, M>> {
        if !guard.has_locks() {
            self.shared.sessions.with(&self.shared.pool, |cached| guard.arm_locks(&mut cached.session))?;
        }
        Ok(TxIndex { tx: self, place: self.touch(guard) })
    }
}

impl<'t, M: Medium> TxIndex<'t, M> {
    pub(super) fn tx(&self) -> &'t Transaction<M> {
        self.tx
    }

    pub(super) fn guard(&self) -> &'t Guarded<M> {
        self.tx.guards.at(self.place)
    }

    pub(super) fn get_small(&self, key: &[u8]) -> Result<Option<Small>> {
        self.tx.get(self.place, key)
    }

    /// The value of `key`. Locks the key for reading, whether it is there or not.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     assert_eq!(index.get(b"k")?, None);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`]: give it back to [`Db::transaction`](crate::Db::transaction), which runs the closure again.
    /// [`Error::Locked`] after the lock timeout; otherwise as [`Index::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_small(key)?.map(Vec::from))
    }

    /// As [`get`](Self::get), and locks the key for writing: for a value that decides about a change of the same key. Two transactions
    /// that both read first and change then would stand in each other's way.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     let old = index.get_for_update(b"k")?.unwrap_or_default();
    ///     index.insert(b"k", &[old, b"x".to_vec()].concat())?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_for_update(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.lock_to_change(key)?;
        self.get(key)
    }

    pub(super) fn lock_to_change(&self, key: &[u8]) -> Result<()> {
        self.guard().limits().check(key, None)?;
        self.tx.lock(self.place, Wanted::Write(key))
    }

    /// Maps `key` to `value`. Returns whether the key is new. Locks the key.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     assert!(index.insert(b"k", b"v")?);                   // the key is new
    ///     assert!(!index.insert(b"k", b"w")?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::Pool`] where the pool was opened for reading.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(!self.tx.change(self.place, key, Some(value), |_| true)?.was_there)
    }

    /// Maps `key` to `value` if it is not there. Returns whether it did.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     assert!(index.insert_if_absent(b"k", b"v")?);
    ///     assert!(!index.insert_if_absent(b"k", b"w")?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_if_absent(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.tx.change(self.place, key, Some(value), |old| old.is_none())?.is_changed)
    }

    /// Maps `key` to `value` if it is there. Returns whether it did.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     assert!(!index.update(b"k", b"v")?);                  // not there
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.tx.change(self.place, key, Some(value), |old| old.is_some())?.is_changed)
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     index.insert(b"k", b"v")?;
    ///     assert!(index.remove(b"k")?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        Ok(self.tx.change(self.place, key, None, |old| old.is_some())?.is_changed)
    }

    /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether it was as expected; if not, nothing is
    /// changed. Locks the key.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     assert!(index.compare_and_set(b"k", None, Some(b"v"))?);
    ///     assert!(!index.compare_and_set(b"k", Some(b"x"), None)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn compare_and_set(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        Ok(self.tx.change(self.place, key, new, |old| old == expected)?.is_changed)
    }

    /// All pairs, in the order of keys where the index keeps one. Locks the whole index for reading. It shows the transaction
    /// as it is now: what the transaction writes later does not change the walk.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     index.insert(b"k", b"v")?;
    ///     assert_eq!(index.iter()?.next().transpose()?, Some((b"k".to_vec(), b"v".to_vec())));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn iter(&self) -> Result<TxPairs<'_, M>> {
        let all = KeyRange::all();
        self.tx.lock(self.place, Wanted::Range(&all))?;
        let overlay = self.overlay(&all);
        Ok(match self.guard().as_ordered() {
            Some(ordered) => {
                let live = ordered.range(&all, Direction::Forward);
                TxPairs::ordered(&self.tx.shared, live, overlay, Direction::Forward)
            }
            None => TxPairs::unordered(&self.tx.shared, self.guard().raw().cursor(), overlay),
        })
    }

    /// The pairs with keys in a range. Locks the range for reading; otherwise as [`iter`](Self::iter).
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// db.transaction(|tx| {
    ///     let index = tx.index(map.index())?;
    ///     index.insert(b"k", b"v")?;
    ///     let range = durix::KeyRange::prefix(b"k");
    ///     assert_eq!(index.range(&range, durix::Direction::Backward)?.count(), 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::NotOrdered`].
    pub fn range(&self, range: &KeyRange, direction: Direction) -> Result<TxPairs<'_, M>> {
        let ordered = self.guard().as_ordered().ok_or_else(|| self.not_ordered())?;
        self.tx.lock(self.place, Wanted::Range(range))?;
        Ok(TxPairs::ordered(&self.tx.shared, ordered.range(range, direction), self.overlay(range), direction))
    }

    fn not_ordered(&self) -> Error {
        Error::NotOrdered { index: self.guard().root().name(), kind: kind::name_of(self.guard().raw()) }
    }

    fn overlay(&self, range: &KeyRange) -> Writes {
        let mut state = self.tx.state.borrow_mut();
        let changed = state.buffers().parts[self.place].changed().filter(|(key, ..)| range.contains(key));
        changed.map(|(key, value, _)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect()
    }
}
