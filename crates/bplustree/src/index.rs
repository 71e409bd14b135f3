//! The tree as [`Index`]: a strict ordered map of bytes, whose batches are atomic.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;

use durix_index::implement::{alone, writable};
use durix_index::{
    Batch, Cursor, Direction, Entry, Error, Finding, Index, IndexStats, KeyRange, Lengths, Limits, Openable,
    OrderedIndex, Result,
};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session};

use crate::node::{MAX_KEY, MAX_VALUE};
use crate::{BPlusTree, Options};

/// Most changes of a batch: it is one record of the log.
const MAX_BATCH: usize = 1 << 14;
const LIMITS: Limits = Limits { key: Lengths::UpTo(MAX_KEY), value: Lengths::UpTo(MAX_VALUE), batch: MAX_BATCH };

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let about =
        "ordered map of bytes, durable on return with one fence an update, atomic batches (B+-tree over a redo log)";
    vec![Entry::new::<BPlusTree<M>>("bplustree", about).ordered()]
}

impl<M: Medium> Index<M> for BPlusTree<M> {
    fn root(&self) -> &Root<M> {
        BPlusTree::root(self)
    }

    fn durability(&self) -> Durability {
        Durability::Strict
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        LIMITS.check(key, None)?;
        let found = self.look_up(op, key, Some(value))?;
        if !found {
            value.clear();
        }
        Ok(found)
    }

    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        LIMITS.check(key, None)?;
        Ok(self.look_up(op, key, None)?)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        LIMITS.check(key, Some(value))?;
        writable(self)?;
        Ok(self.write(op, |txn| txn.put(key, value))?)
    }

    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        LIMITS.check(key, Some(value))?;
        writable(self)?;
        let updated = self.write(op, |txn| {
            let is_there = txn.contains(key)?;
            if is_there {
                txn.put(key, value)?;
            }
            Ok(is_there)
        });
        Ok(updated?)
    }

    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        LIMITS.check(key, new)?;
        writable(self)?;
        let exchanged = self.write(op, |txn| {
            let mut value = Vec::new();
            let found = txn.get(key, &mut value)?.then_some(&value[..]);
            if found != expected {
                return Ok(false);
            }
            match new {
                Some(new) => txn.put(key, new)?,
                None => txn.remove(key)?,
            };
            Ok(true)
        });
        Ok(exchanged?)
    }

    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        LIMITS.check(key, None)?;
        writable(self)?;
        Ok(self.write(op, |txn| txn.remove(key))?)
    }

    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        batch.iter().try_for_each(|(key, change)| LIMITS.check(key, change))?;
        if batch.len() > MAX_BATCH {
            return Err(Error::BatchTooLarge { keys: batch.len(), limit: MAX_BATCH });
        }
        writable(self)?;
        let applied = self.write(op, |txn| {
            batch.iter().try_for_each(|(key, change)| {
                match change {
                    Some(value) => txn.put(key, value)?,
                    None => txn.remove(key)?,
                };
                Ok(())
            })
        });
        Ok(applied?)
    }

    fn batch_is_atomic(&self) -> bool {
        true
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        alone(self, session, |op| Ok(BPlusTree::check(self, op)))
    }

    fn salvage(&self, session: &mut Session<M>, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<Finding>> {
        Ok(BPlusTree::salvage(self, &session.enter()?, found))
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let stats = BPlusTree::stats(self, &session.enter()?);
        let all = IndexStats::new(stats.keys, stats.persistent_bytes, None);
        let all = all.with("levels", stats.levels).with("leaves", stats.leaves).with("interiors", stats.interiors);
        Ok(all.with("records", stats.records).with("block bytes", stats.block_bytes))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        BPlusTree::dump(self, op, out)
    }
}

impl<M: Medium> OrderedIndex<M> for BPlusTree<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        let next = match direction {
            Direction::Forward => range.lower.clone(),
            Direction::Backward => range.upper.clone(),
        };
        let next = (!range.is_empty()).then_some(next);
        Box::new(Walk {
            tree: self,
            direction,
            range: range.clone(),
            next,
            pairs: VecDeque::new(),
            pair: Default::default(),
        })
    }
}

impl<M: Medium> Openable<M> for BPlusTree<M> {
    const LIMITS: Limits = LIMITS;

    fn salvaging() -> Options {
        Options::default().salvage()
    }
}

/// A walk over the pairs of a range of keys, a leaf at a time.
struct Walk<'t, M: Medium> {
    tree: &'t BPlusTree<M>,
    direction: Direction,
    range: KeyRange,
    /// Where the next leaf's pairs begin; `None` at the end.
    next: Option<Bound<Vec<u8>>>,
    pairs: VecDeque<(Vec<u8>, Vec<u8>)>,
    pair: (Vec<u8>, Vec<u8>),
}

impl<M: Medium> Cursor<M> for Walk<'_, M> {
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        if self.pairs.is_empty() {
            let Some(from) = &self.next else { return Ok(None) };
            let pairs = self.tree.step(op, from.as_ref().map(Vec::as_slice), self.direction)?;
            self.next = pairs.last().map(|(key, _)| Bound::Excluded(key.clone()));
            self.pairs = pairs.into();
        }
        let Some(pair) = self.pairs.pop_front().filter(|(key, _)| self.range.contains(key)) else {
            (self.next, self.pairs) = (None, VecDeque::new());
            return Ok(None);
        };
        self.pair = pair;
        Ok(Some((&self.pair.0, &self.pair.1)))
    }
}
