//! The persistent set as an [`Index`], and its entry among the kinds.

use std::fmt;

use durix_index::implement::writable;
use durix_index::{Batch, Cursor, Entry, Error, Finding, Index, IndexStats, Lengths, Limits, Openable, Result};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session};

use crate::{MAX_KEY, MAX_TRANSACTION, MAX_VALUE, PersistentSet, SetOptions};

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let about = "hash map of bytes, durable on return with one fence an update, atomic batches (STPS)";
    vec![Entry::new::<PersistentSet<M>>("pset", about)]
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        use crate::Error as E;
        match error {
            E::Pool(error) => Error::of_structure(error),
            E::KeyTooLong { len } => Error::KeyTooLong { len, limit: MAX_KEY },
            E::ValueTooLong { len } => Error::ValueTooLong { len, limit: MAX_VALUE },
            E::TransactionTooLarge { keys } => Error::BatchTooLarge { keys, limit: MAX_TRANSACTION },
            // The name is added by whoever knows it: see `Entry::open`.
            E::Corrupt { what, offset, found } => Error::corrupt(what, offset, found),
        }
    }
}

impl<M: Medium> Index<M> for PersistentSet<M> {
    fn root(&self) -> &Root<M> {
        PersistentSet::root(self)
    }

    fn durability(&self) -> Durability {
        Durability::Strict
    }

    fn limits(&self) -> Limits {
        <Self as Openable<M>>::LIMITS
    }

    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(PersistentSet::get(self, op, key, value)?)
    }

    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(PersistentSet::contains(self, op, key)?)
    }

    fn len(&self, op: &Op<'_, M>) -> Option<u64> {
        Some(PersistentSet::len(self, op))
    }

    fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(PersistentSet::len(self, op) == 0)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        Box::new(PersistentSet::cursor(self))
    }

    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(PersistentSet::insert(self, op, key, value)?)
    }

    fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(PersistentSet::insert_if_absent(self, op, key, value)?)
    }

    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(PersistentSet::update(self, op, key, value)?)
    }

    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        writable(self)?;
        Ok(PersistentSet::compare_and_set(self, op, key, expected, new)?)
    }

    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(PersistentSet::remove(self, op, key)?)
    }

    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        writable(self)?;
        let mut changes = crate::Batch::new();
        for (key, change) in batch.iter() {
            match change {
                Some(value) => changes.insert(key, value),
                None => changes.remove(key),
            };
        }
        Ok(self.commit(op, &changes)?)
    }

    fn batch_is_atomic(&self) -> bool {
        true
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        Ok(PersistentSet::check(self, &session.enter()?)?)
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let stats = PersistentSet::stats(self, &session.enter()?);
        Ok(IndexStats::new(stats.keys, stats.extent_bytes, Some(stats.table_bytes))
            .with("superseded entries", stats.stale)
            .with("tombstones", stats.tombstones)
            .with("free slots", stats.free)
            .with("shards", stats.shards))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        PersistentSet::dump(self, op, out)
    }
}

impl<M: Medium> Openable<M> for PersistentSet<M> {
    const LIMITS: Limits =
        Limits { key: Lengths::UpTo(MAX_KEY), value: Lengths::UpTo(MAX_VALUE), batch: MAX_TRANSACTION };

    fn salvaging() -> SetOptions {
        SetOptions::default().salvage(true)
    }
}

impl<M: Medium> Cursor<M> for crate::Cursor<'_, M> {
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        Ok(self.next_ref(op)?)
    }

    fn next_into(&mut self, op: &Op<'_, M>, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        Ok(crate::Cursor::next(self, op, key, value)?)
    }
}
