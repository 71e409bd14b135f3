//! Merging: ranges are planned and written one after the other, made durable by one fence, flipped, made durable by another.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-B1 slots, descriptors, new blocks < the flip | the writes of all ranges; fence | the old side | the log holds what was merged |
//! | DP-B2 the flip < freed slots, leaves, pages are used again; the next merge of the range | all flips; fence | either side | both are whole |
//!
//! A range is *claimed* by its mark `merging`, under its lock. The claim ends after DP-B2, together with the publication of what was
//! merged: so the next merge of the range, which writes to the side that counted before, begins after the flip is durable.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Session};

use crate::DpTree;
use crate::bloom::{Bloom, hash};
use crate::error::Result;
use crate::front::Front;
use crate::layout::{RangeHead, State};
use crate::plan::Plan;
use crate::range::{Inner, NO_RECORD, Part, Range, Snapshot, keys_in};

/// Ranges that share two fences.
const BATCH: usize = 8;

/// A new range of a split: what its block says.
#[derive(Debug)]
pub(crate) struct NewRange {
    pub(crate) block: Off<RangeHead>,
    pub(crate) low: u64,
    pub(crate) last: u64,
    pub(crate) leaves: Vec<Part>,
    pub(crate) next: Off<RangeHead>,
}

impl<M: Medium> DpTree<M> {
    /// Merges up to eight ranges that wait for it, and looks for free log pages. Returns whether there is more to do.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full: what was not merged stays in the fronts and the log, and is tried again.
    pub fn tick(&self, session: &mut Session<M>) -> Result<bool> {
        let op = session.enter()?;
        self.tick_in(&op)
    }

    /// As [`tick`](Self::tick), in an operation. It lasts for some hundred microseconds.
    ///
    /// # Errors
    /// As [`tick`](Self::tick).
    pub fn tick_in(&self, op: &Op<'_, M>) -> Result<bool> {
        let _guard = self.poison.guard(op)?;
        let claimed = self.claim_some(op);
        if claimed.is_empty() {
            return Ok(false);
        }
        let merged = self.merge(op, claimed);
        if self.log.should_look(op.medium()) {
            let sealed = self.free_pages(op);
            self.freeze_oldest(op, sealed);
        }
        self.limbo.poll(op);
        merged?;
        Ok(!self.queue.is_empty(op.medium()))
    }

    /// Freezes every front and merges all of it. For tests, and before a long time of reading.
    ///
    /// # Errors
    /// As [`tick`](Self::tick).
    pub fn merge_all(&self, session: &mut Session<M>) -> Result<()> {
        loop {
            {
                let op = session.enter()?;
                let _guard = self.poison.guard(&op)?;
                self.freeze_up_to(&op, NO_RECORD);
                if self.queue.is_empty(op.medium()) {
                    return Ok(());
                }
            }
            while self.tick(session)? {}
        }
    }

    fn claim_some(&self, op: &Op<'_, M>) -> Vec<Arc<Range>> {
        let mut claimed = Vec::new();
        while claimed.len() < BATCH {
            let Some(range) = self.queue.pop(op.medium()) else { break };
            if claim(op, &range) {
                claimed.push(range);
            }
        }
        claimed
    }

    /// Merges a range whose fronts are both full, unless someone does already. Returns whether it did, or there was no need.
    #[cold]
    pub(crate) fn help(&self, op: &Op<'_, M>, range: &Arc<Range>) -> Result<bool> {
        if claim(op, range) {
            self.merge(op, vec![Arc::clone(range)])?;
            return Ok(true);
        }
        Ok(range.snapshot.get(op).frozen.is_none())
    }

    /// Merges claimed ranges. Those for which there is no space wait again.
    fn merge(&self, op: &Op<'_, M>, claimed: Vec<Arc<Range>>) -> Result<()> {
        if claimed.is_empty() {
            return Ok(());
        }
        let mut plans = Vec::with_capacity(claimed.len());
        let mut failed = None;
        for range in &claimed {
            let plan = match self.plan(op, range, false) {
                Err(error) if error.is_full() => self.plan(op, range, true),
                plan => plan,
            };
            match plan {
                Ok(plan) => plans.push(plan),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        // It covers also what a plan that failed has written: a later merge may find it there and not write it again.
        op.fence(); // PERSIST DP-B1: flush+fence
        for plan in &plans {
            let head = op.at(plan.range.block);
            op.store(&head.state, State::new(plan.side, plan.floor), Release);
            op.write_back(head);
        }
        op.fence(); // PERSIST DP-B2: flush+fence
        let merged = plans.len();
        plans.into_iter().for_each(|plan| self.publish(op, plan));
        claimed[merged..].iter().for_each(|range| self.give_up(op, range));
        failed.map_or(Ok(()), Err)
    }

    /// Ends the claim of a range that could not be merged.
    fn give_up(&self, op: &Op<'_, M>, range: &Arc<Range>) {
        range.lock(op.medium()).merging = false;
        self.queue.push(op.medium(), Arc::clone(range));
    }

    /// Shows readers what was merged, and ends the claim.
    fn publish(&self, op: &Op<'_, M>, plan: Plan) {
        let Plan { range, side, leaves, next, more, freed, .. } = plan;
        let m = op.medium();
        let mut inner = range.lock(m);
        let old = range.snapshot.get(op);
        let bound = self.options.bound(keys_in(&leaves));
        let last = more.first().map_or(old.last, |new| new.low.wrapping_sub(1));
        let new = Snapshot { last, side, leaves: leaves.into(), next, bound, frozen: None, ..old.clone() };
        inner.frozen_oldest = NO_RECORD;
        inner.merging = false;
        inner.trusted = true;
        let mut added: Vec<_> = more.into_iter().rev().map(|new| self.split_off(op, &mut inner, new)).collect();
        added.reverse();
        {
            let _structure = self.structure.lock(m);
            if !added.is_empty() {
                let directory = self.directory.get(op).with(&added);
                self.retire(op, self.directory.replace(op, directory));
            }
            // After the new ranges are in the directory: who adds up what ranges remember must not miss any.
            range.tell_oldest(m, &inner);
        }
        // After the directory: who finds that the range does not cover a key any more finds the other one there.
        self.retire(op, range.show(op, new));
        drop(inner);
        // After the snapshot: who still reads the leaves by it finds that it is not current any more.
        added.iter().for_each(|(_, range)| range.lock(m).shares_leaves = false);
        self.units.give_back(m, &freed);
    }

    /// Makes a range of the upper part of another, with the upper part of its front.
    fn split_off(&self, op: &Op<'_, M>, inner: &mut Inner, new: NewRange) -> (u64, Arc<Range>) {
        let m = op.medium();
        let NewRange { block, low, last, leaves, next } = new;
        let bound = self.options.bound(keys_in(&leaves));
        let (upper, lower): (Vec<_>, Vec<_>) = inner.active.iter().partition(|(key, _)| *key >= low);
        let active = Front::of(upper.into_iter(), bound);
        inner.active = Front::of(lower.into_iter(), bound);
        let bloom = Bloom::new(bound.max(active.len()));
        active.iter().for_each(|(key, _)| bloom.add(m, hash(key)));
        let snapshot = Snapshot { low, last, bloom, frozen: None, side: 0, leaves: leaves.into(), next, bound };
        let range = Arc::new(Range::new(block, snapshot, inner.version, true));
        {
            let mut own = range.lock(m);
            own.active_oldest = if active.is_empty() { NO_RECORD } else { inner.active_oldest };
            own.active = active;
            own.shares_leaves = true;
            range.tell_oldest(m, &own);
        }
        (low, range)
    }

    /// Looks for log pages whose records are all merged. Returns how many sealed pages are left.
    pub(crate) fn free_pages(&self, op: &Op<'_, M>) -> usize {
        let m = op.medium();
        // Mirror: `Log::open_page`. First the clock, then the ranges.
        let clock = self.log.clock(m);
        let _structure = self.structure.lock(m);
        let oldest = self.directory.get(op).ranges().map(|range| range.oldest(m)).min();
        self.log.free_before(m, clock.min(oldest.unwrap_or(NO_RECORD)))
    }

    /// Where the log is longer than all fronts can fill, freezes the fronts with the oldest records, so that pages get free.
    fn freeze_oldest(&self, op: &Op<'_, M>, sealed: usize) {
        let m = op.medium();
        let is_long = |room: u64| sealed > 4 && sealed as u64 * self.shape.page_records() > 2 * room;
        if !is_long(m.shared_load(&self.room, Relaxed)) {
            return;
        }
        // It has grown since it was last added up, as a rule.
        let room = self.directory.get(op).ranges().map(|range| range.snapshot.get(op).bound as u64).sum();
        m.shared_store(&self.room, room, Relaxed);
        if is_long(room) {
            self.freeze_up_to(op, self.log.median(m));
        }
    }

    /// Freezes all fronts that hold records up to a clock, where no other one waits to be merged.
    pub(crate) fn freeze_up_to(&self, op: &Op<'_, M>, clock: u64) {
        for range in self.directory.get(op).ranges() {
            if range.oldest(op.medium()) > clock {
                continue;
            }
            let mut inner = range.lock(op.medium());
            let is_free = range.snapshot.get(op).frozen.is_none() && !inner.dead;
            if is_free && !inner.active.is_empty() && inner.active_oldest <= clock {
                self.freeze(op, range, &mut inner);
            }
        }
    }
}

/// Gets the right to merge a range, if there is something to merge.
fn claim<M: Medium>(op: &Op<'_, M>, range: &Range) -> bool {
    let mut inner = range.lock(op.medium());
    let waits = range.snapshot.get(op).frozen.is_some() && !inner.dead && !inner.merging;
    inner.merging |= waits;
    waits
}
