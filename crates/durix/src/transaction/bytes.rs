//! An index inside a transaction, over bytes.

use std::fmt;
use std::sync::Arc;

use durix_pmem::{Hardware, Medium};

use super::guard::Guarded;
use super::iter::TxPairs;
use super::locks::Wanted;
use super::part::Writes;
use super::tx::Transaction;
use crate::kind;
use crate::{Direction, Index, KeyRange};
use crate::{Error, Result};

/// An index inside a [`Transaction`]: what [`Index`] can do, with the transaction's own changes.
pub struct TxIndex<'t, M: Medium = Hardware> {
    tx: &'t Transaction<M>,
    guard: Arc<Guarded<M>>,
}

impl<M: Medium> fmt::Debug for TxIndex<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxIndex").field("root", self.guard.root()).finish_non_exhaustive()
    }
}

impl<M: Medium> Transaction<M> {
    /// An index inside this transaction, for the vocabulary of bytes.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn index(&self, index: &Arc<dyn Index<M>>) -> Result<TxIndex<'_, M>> {
        let guard = self.shared.transactions.guard_of(&**index)?;
        self.shared.sessions.with(&self.shared.pool, |cached| guard.arm_locks(&mut cached.session))?;
        self.touch(&guard);
        Ok(TxIndex::new(self, guard))
    }
}

impl<'t, M: Medium> TxIndex<'t, M> {
    pub(super) fn new(tx: &'t Transaction<M>, guard: Arc<Guarded<M>>) -> Self {
        TxIndex { tx, guard }
    }

    pub(super) fn guard(&self) -> &Guarded<M> {
        &self.guard
    }

    /// The value of `key`. Locks the key for reading, whether it is there or not.
    ///
    /// # Errors
    /// [`Error::Conflict`]: give it back to [`Db::transaction`](crate::Db::transaction), which runs the closure again.
    /// [`Error::Locked`] after the lock timeout; otherwise as [`Index::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.tx.get(&self.guard, key)
    }

    /// Maps `key` to `value`. Returns whether the key is new. Locks the key.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::Pool`] where the pool was opened for reading.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.tx.change(&self.guard, key, Some(value), |_| true)?.is_none())
    }

    /// Maps `key` to `value` if it is not there. Returns whether it did.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_if_absent(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.tx.change(&self.guard, key, Some(value), |old| old.is_none())?.is_none())
    }

    /// Maps `key` to `value` if it is there. Returns whether it did.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.tx.change(&self.guard, key, Some(value), |old| old.is_some())?.is_some())
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        Ok(self.tx.change(&self.guard, key, None, |old| old.is_some())?.is_some())
    }

    /// All pairs, in the order of keys where the index keeps one. Locks the whole index for reading. It shows the transaction
    /// as it is now: what the transaction writes later does not change the walk.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn iter(&self) -> Result<TxPairs<'_, M>> {
        let all = KeyRange::all();
        self.tx.lock(&self.guard, Wanted::Range(&all))?;
        let overlay = self.overlay(&all);
        Ok(match self.guard.as_ordered() {
            Some(ordered) => {
                let live = ordered.range(&all, Direction::Forward);
                TxPairs::ordered(&self.tx.shared, live, overlay, Direction::Forward)
            }
            None => TxPairs::unordered(&self.tx.shared, self.guard.raw().cursor(), overlay),
        })
    }

    /// The pairs with keys in a range. Locks the range for reading; otherwise as [`iter`](Self::iter).
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::NotOrdered`].
    pub fn range(&self, range: &KeyRange, direction: Direction) -> Result<TxPairs<'_, M>> {
        let ordered = self.guard.as_ordered().ok_or_else(|| self.not_ordered())?;
        self.tx.lock(&self.guard, Wanted::Range(range))?;
        Ok(TxPairs::ordered(&self.tx.shared, ordered.range(range, direction), self.overlay(range), direction))
    }

    fn not_ordered(&self) -> Error {
        Error::NotOrdered { index: self.guard.root().name(), kind: kind::name_of(self.guard.raw()) }
    }

    fn overlay(&self, range: &KeyRange) -> Writes {
        let state = self.tx.state.borrow();
        let writes = &state.parts[&self.guard.root().owner().0].writes;
        writes.iter().filter(|(key, _)| range.contains(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}
