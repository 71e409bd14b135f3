//! What a transaction has to do with one map: its locks, its changes, and how they are made.

use std::cell::OnceCell;
use std::sync::Arc;

use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Owner};

use super::guard::Guarded;
use super::locks::Age;
use super::put::{put, settle};
use super::touched::Touched;
use crate::{Batch, Index, Result};

/// Maps that need no memory of their own.
const FEW: usize = 4;

/// The maps that a transaction has touched: a list that only grows.
pub(super) struct Guards<M: Medium> {
    first: [OnceCell<Arc<Guarded<M>>>; FEW],
    more: OnceCell<Box<Guards<M>>>,
}

impl<M: Medium> Guards<M> {
    pub(super) fn new() -> Self {
        Guards { first: [const { OnceCell::new() }; FEW], more: OnceCell::new() }
    }

    /// The place of a map, which is added if it is not there.
    pub(super) fn place_of(&self, guard: &Arc<Guarded<M>>) -> usize {
        let is_it = |slot: &OnceCell<Arc<_>>| Arc::ptr_eq(slot.get_or_init(|| Arc::clone(guard)), guard);
        match self.first.iter().position(is_it) {
            Some(place) => place,
            None => FEW + self.more.get_or_init(|| Box::new(Guards::new())).place_of(guard),
        }
    }

    /// The map at a place.
    pub(super) fn at(&self, place: usize) -> &Arc<Guarded<M>> {
        match self.first.get(place) {
            Some(slot) => slot.get().expect("a place that was given"),
            None => self.more.get().expect("a place that was given").at(place - FEW),
        }
    }
}

/// A map, and what a transaction has to do with it.
pub(super) struct Part<'p, M: Medium> {
    pub(super) guard: &'p Guarded<M>,
    pub(super) touched: &'p Touched,
}

impl<M: Medium> Clone for Part<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Medium> Copy for Part<'_, M> {}

/// The same, to be kept beyond the transaction.
pub(super) struct Kept<M: Medium> {
    pub(super) guard: Arc<Guarded<M>>,
    pub(super) touched: Touched,
}

impl<M: Medium> Kept<M> {
    pub(super) fn part(&self) -> Part<'_, M> {
        Part { guard: &self.guard, touched: &self.touched }
    }
}

impl<'p, M: Medium> Part<'p, M> {
    pub(super) fn unlock(self, age: Age) {
        if !self.touched.is_empty() {
            self.guard.unlock(age, self.touched.keys(), self.touched.has_ranges());
        }
    }

    pub(super) fn is_written(self) -> bool {
        self.touched.changes() != 0
    }

    pub(super) fn is_buffered(self) -> bool {
        self.guard.durability() == Durability::Buffered
    }

    /// Whether the map makes all changes at once towards crashes.
    pub(super) fn is_atomic(self) -> bool {
        let changes = self.touched.changes();
        changes == 1 || (self.guard.batch_is_atomic() && changes <= self.guard.limits().batch)
    }

    /// Makes its changes. Durable on return where the map is strict.
    pub(super) fn change(self, op: &Op<'_, M>) -> Result<()> {
        let index = self.guard.raw();
        self.guard.note(op, self.touched.changed_keys());
        if self.touched.changes() > 1 && self.is_atomic() {
            let lengths = self.touched.changed().map(|(key, value, _)| key.len() + value.map_or(0, <[u8]>::len));
            let mut batch = Batch::with_capacity(self.touched.changes(), lengths.sum());
            for (key, value, _) in self.touched.changed() {
                match value {
                    Some(value) => batch.insert(key, value),
                    None => batch.remove(key),
                };
            }
            index.apply(op, &batch)?;
        } else {
            self.touched.changed().try_for_each(|(key, value, _)| put(index, op, key, value))?;
        }
        settle(index, op);
        Ok(())
    }

    /// Before its keys change: stores the old values, if a snapshot is open, and has no older record change them again. `own`
    /// as for [`settle_keys`](super::log::retired::Retirements::settle_keys).
    pub(super) fn prepare(self, op: &Op<'_, M>, own: Option<usize>) -> Result<()> {
        self.settle_keys(op, own);
        self.save(op)
    }

    /// Has no older record change its keys again.
    pub(super) fn settle_keys(self, op: &Op<'_, M>, own: Option<usize>) {
        self.guard.settle_keys(op, self.touched.changed_keys(), own);
    }

    /// The keys it changes, with the index that they are of.
    pub(super) fn changed_keys(self) -> impl Iterator<Item = (Owner, &'p [u8])> {
        let owner = self.guard.root().owner();
        self.touched.changed_keys().map(move |key| (owner, key))
    }

    /// Stores the values that its changes replace, if a snapshot is open.
    pub(super) fn save(self, op: &Op<'_, M>) -> Result<()> {
        self.guard.save_all(op, self.touched.changed_keys())
    }
}
