//! Many changes at once, without the log: sorted changes are merged into the leaves of one range after the other.
//!
//! A *part* is what one range takes at a time. It is written as a merge writes it (DP-B1, DP-B2), under the range's lock, while no front
//! holds any of its keys. So the flip makes all of a part durable, or nothing of it. The floor stays: records of other keys still count.
//! No record of the part's keys does, or a front would hold it.

use std::sync::Arc;

use durix_pmem::pool::tally::{self, Totals};
use durix_pmem::{LockGuard, Medium, Op, Session};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::Result;
use crate::front::Entry;
use crate::merge::{Changes, Merge};
use crate::range::{Inner, Part, Range, Snapshot};
use crate::steps;

/// Parts with fewer changes than one for so many slots of a leaf go through the log: a part costs a line for each leaf that it changes.
const LEAST: usize = 4;

/// What became of the first of some changes, all of one range.
pub(crate) enum First {
    /// So many are made, durably.
    Written(usize),
    /// So many are for the log: they are too few, or there is no space.
    ForLog(usize),
}

impl<M: Medium> DpTree<M> {
    /// Maps each key to its value, as [`insert`](Self::insert) does: meant for sorted input, which costs hardly more write-backs than it
    /// fills lines, and no log. Pairs are taken in steps of some thousand, each in an operation of its own; what is in no order is sorted
    /// within a step. Of one key the last value counts.
    ///
    /// All is durable when it returns. A crash leaves the pairs of some first steps, and of the step in progress those of some
    /// ranges. Writers of a range wait while a part of up to some thousand pairs is written there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert): the pairs of some first steps are there, and perhaps some of the next one.
    pub fn load(&self, session: &mut Session<M>, pairs: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        let mut pairs = pairs.into_iter().fuse();
        let step = self.filled() * self.shape.leaves + self.shape.slots;
        let mut waiting: Vec<Entry> = Vec::with_capacity(step);
        loop {
            waiting.extend(pairs.by_ref().map(|(key, value)| (key, Some(value))).take(step - waiting.len()));
            sort(&mut waiting);
            if waiting.is_empty() {
                return Ok(());
            }
            let op = session.enter()?;
            let _guard = self.poison.guard(&op)?;
            let made = self.make_part(&op, &waiting)?;
            waiting.drain(..made);
            self.limbo.poll(&op);
        }
    }

    /// Makes the first of some sorted changes, at least one; returns how many.
    fn make_part(&self, op: &Op<'_, M>, changes: &[Entry]) -> Result<usize> {
        match self.write_first(op, changes, 0)? {
            First::Written(number) => Ok(number),
            First::ForLog(number) => self.one_by_one(op, &changes[..number]),
        }
    }

    /// Makes the first of some sorted changes, as a part, if that has at least so many.
    pub(crate) fn write_first(&self, op: &Op<'_, M>, changes: &[Entry], least: usize) -> Result<First> {
        let m = op.medium();
        let least = least.max(self.shape.slots.div_ceil(LEAST).min(self.shape.leaves + 1));
        let mut turn = 0;
        loop {
            let range = self.directory.get(op).find(changes[0].0);
            let mut inner = range.lock(op);
            let snapshot = range.snapshot.get(op);
            if !snapshot.covers(changes[0].0) {
                continue;
            }
            let part = &changes[..self.part(op, snapshot, changes)];
            if part.len() < least {
                return Ok(First::ForLog(part.len()));
            }
            if snapshot.frozen.is_none() && !holds_any(op, &inner, snapshot, part) {
                return match self.write_part(op, range, inner, part) {
                    Err(error) if error.is_full() => Ok(First::ForLog(part.len())),
                    written => written.map(|()| First::Written(part.len())),
                };
            }
            self.make_room(op, range, &mut inner, snapshot);
            drop(inner);
            match self.help(op, range) {
                Ok(true) => {}
                Ok(false) => {
                    // Someone else merges the range.
                    m.spin(turn);
                    turn += 1;
                }
                Err(error) if error.is_full() => return Ok(First::ForLog(part.len())),
                Err(error) => return Err(error),
            }
        }
    }

    /// How many of sorted changes, the first of which belongs to a range, are its part: those of its keys, and no more than fill a range.
    fn part(&self, op: &Op<'_, M>, snapshot: &Snapshot, changes: &[Entry]) -> usize {
        let within = changes.partition_point(|(key, _)| *key <= snapshot.last);
        let (most, leaves) = (self.shape.leaves, snapshot.leaves.len());
        let room = match snapshot.leaves.last() {
            // Keys that come after all others fill the last leaf up. The others make this range full, or a new one.
            Some(Part { leaf, .. }) if leaf.greatest(op) < Some(changes[0].0) => {
                let new = if leaves < most { most - leaves } else { most };
                self.shape.slots - leaf.count() + new * self.filled()
            }
            _ => most * self.filled(),
        };
        within.min(room)
    }

    fn one_by_one(&self, op: &Op<'_, M>, part: &[Entry]) -> Result<usize> {
        for (key, new) in part {
            match new {
                Some(value) => self.insert_guarded(op, *key, *value).map(drop)?,
                None => self.remove_guarded(op, *key).map(drop)?,
            }
        }
        Ok(part.len())
    }

    /// Writes a part into the leaves of a locked range, durably.
    fn write_part(
        &self,
        op: &Op<'_, M>,
        range: &Arc<Range>,
        inner: LockGuard<'_, Inner, M>,
        part: &[Entry],
    ) -> Result<()> {
        steps::merge(&mut Merge { tree: self, op, range, changes: Changes::Part(part, Some(inner)) })
    }
}

impl<M: Medium> DpTree<M> {
    /// Tells of a part that is about to be published: its plan has met what its keys were mapped to.
    pub(crate) fn tally_part(&self, op: &Op<'_, M>, replaced: Totals, part: &[Entry]) {
        let Some(tally) = self.root.tally() else { return };
        let mut by = Totals::default();
        part.iter().filter_map(|(key, new)| Some(tally::entry(*key, (*new)?))).for_each(|entry| by.add(entry));
        by.count = by.count.wrapping_sub(replaced.count);
        by.sum = by.sum.wrapping_sub(replaced.sum);
        tally.changed_by(op.slot(), by);
    }
}

/// Puts changes in the order of their keys, and leaves the last one of each key.
pub(crate) fn sort(changes: &mut Vec<Entry>) {
    if changes.is_sorted_by(|a, b| a.0 < b.0) {
        return;
    }
    changes.sort_by_key(|(key, _)| *key);
    changes.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            *kept = *later;
        }
        same
    });
}

/// Whether the active front holds one of these keys.
fn holds_any<M: Medium>(op: &Op<'_, M>, inner: &Inner, snapshot: &Snapshot, part: &[Entry]) -> bool {
    let holds = |key: u64| {
        let hash = hash(key);
        snapshot.bloom.may_have(op.medium(), hash) && inner.active.get(key, hash).is_some()
    };
    !inner.active.is_empty() && part.iter().any(|(key, _)| holds(*key))
}
