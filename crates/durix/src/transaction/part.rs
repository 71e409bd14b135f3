//! What a transaction has to do with one map: its locks, its writes, and how they are made.

use std::collections::BTreeMap;
use std::sync::Arc;

use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op};

use super::guard::Guarded;
use super::locks::{Age, Wanted};
use super::put::{put, settle};
use crate::{Batch, Index, KeyRange, Result};

/// What a transaction has written to a map: the new value of each key, or `None` for its removal.
pub(super) type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a transaction has to do with one map.
pub(crate) struct Part<M: Medium> {
    pub(super) guard: Arc<Guarded<M>>,
    pub(super) writes: Writes,
    /// Locked keys, and whether for writing.
    pub(super) keys: BTreeMap<Vec<u8>, bool>,
    pub(super) ranges: Vec<KeyRange>,
}

impl<M: Medium> Part<M> {
    pub(super) fn new(guard: Arc<Guarded<M>>) -> Self {
        Part { guard, writes: Writes::new(), keys: BTreeMap::new(), ranges: Vec::new() }
    }

    pub(super) fn holds(&self, wanted: Wanted<'_>) -> bool {
        match wanted {
            Wanted::Read(key) => self.keys.contains_key(key) || self.ranges.iter().any(|range| range.contains(key)),
            Wanted::Write(key) => self.keys.get(key) == Some(&true),
            Wanted::Range(range) => self.ranges.contains(range),
        }
    }

    pub(super) fn note(&mut self, wanted: Wanted<'_>) {
        match wanted {
            Wanted::Read(key) => _ = self.keys.entry(key.to_vec()).or_insert(false),
            Wanted::Write(key) => _ = self.keys.insert(key.to_vec(), true),
            Wanted::Range(range) => self.ranges.push(range.clone()),
        }
    }

    pub(super) fn unlock(&self, age: Age) {
        self.guard.unlock(age, self.keys.keys().map(Vec::as_slice), !self.ranges.is_empty());
    }

    pub(super) fn is_written(&self) -> bool {
        !self.writes.is_empty()
    }

    pub(super) fn is_buffered(&self) -> bool {
        self.guard.durability() == Durability::Buffered
    }

    /// Whether the map makes all changes at once towards crashes.
    pub(super) fn is_atomic(&self) -> bool {
        self.writes.len() == 1 || (self.guard.batch_is_atomic() && self.writes.len() <= self.guard.limits().batch)
    }

    /// Makes its changes. Durable on return where the map is strict.
    pub(super) fn change(&self, op: &Op<'_, M>) -> Result<()> {
        let index = self.guard.raw();
        self.guard.note(op, self.writes.keys().map(Vec::as_slice));
        if self.writes.len() > 1 && self.is_atomic() {
            let mut batch = Batch::new();
            for (key, value) in &self.writes {
                match value {
                    Some(value) => batch.insert(key, value),
                    None => batch.remove(key),
                };
            }
            index.apply(op, &batch)?;
        } else {
            self.writes.iter().try_for_each(|(key, value)| put(index, op, key, value.as_deref()))?;
        }
        settle(index, op);
        Ok(())
    }

    /// Stores the values that its changes replace, if a snapshot is open.
    pub(super) fn save(&self, op: &Op<'_, M>) -> Result<()> {
        self.guard.save_all(op, self.writes.keys().map(Vec::as_slice))
    }
}
