//! Merging: a range is planned and written, made durable by one fence, flipped, made durable by another.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-B1 slots, descriptors, new blocks < the flip | flush+fence | the old side | the log holds what was merged |
//! | DP-B2 the flip < freed slots, leaves, pages are used again; the next merge of the range | flush+fence | either side | both are whole |
//!
//! A range is *claimed* under its lock. The claim ends after DP-B2, together with the publication of what was
//! merged: so the next merge of the range, which writes to the side that counted before, begins after the flip is durable.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{LockGuard, Medium, Off, Op, Session};

use crate::DpTree;
use crate::arena;
use crate::bloom::{Bloom, hash};
use crate::error::{Error, Result};
use crate::front::{Entry, Front};
use crate::layout::{RangeHead, State};
use crate::plan::Plan;
use crate::range::{Directory, Inner, NO_RECORD, Part, Range, Snapshot, keys_in};
use crate::steps::{self, Merging, Publication, Records, StateWord};

/// Ranges that a step merges.
const STEPS: usize = 8;

/// A new range of a split, and its smallest key.
type Added = (u64, Arc<Range>);

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
    /// Merges up to eight ranges that wait for it, one after the other, and looks for free log pages. Where
    /// somebody drives the services, it also makes memory and log pages ready ahead of the writers. Returns whether there is more to do.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full: what was not merged stays in the fronts and the log, and is tried again.
    pub fn tick(&self, session: &mut Session<M>) -> Result<bool> {
        if self.is_driven() {
            // Not in the operation: a checkpoint would wait for it.
            arena::make_ready();
        }
        let op = session.enter()?;
        self.tick_in(&op)
    }

    /// As [`tick`](Self::tick), in an operation. It lasts for a millisecond at most, as a rule.
    ///
    /// # Errors
    /// As [`tick`](Self::tick).
    pub fn tick_in(&self, op: &Op<'_, M>) -> Result<bool> {
        let _guard = self.poison.guard(op)?;
        if self.queue.is_empty(op.medium()) {
            return Ok(false);
        }
        let stocked = self.stock_log(op);
        let merged = self.merge_some(op);
        if self.log.should_look(op.medium()) {
            let sealed = self.free_pages(op);
            self.freeze_oldest(op, sealed);
        }
        self.limbo.poll(op);
        merged.and(stocked)?;
        Ok(!self.queue.is_empty(op.medium()))
    }

    /// Merges some of the ranges that wait for it.
    pub(crate) fn merge_some(&self, op: &Op<'_, M>) -> Result<()> {
        (0..STEPS).try_for_each(|_| self.merge_next(op))
    }

    /// Merges the next range that waits for it.
    fn merge_next(&self, op: &Op<'_, M>) -> Result<()> {
        while let Some(range) = self.queue.pop(op.medium()) {
            if claim(op, &range) {
                return self.merge(op, &range);
            }
        }
        Ok(())
    }

    /// Makes log pages ahead of the writers, where services are driven: a writer then never has to.
    fn stock_log(&self, op: &Op<'_, M>) -> Result<()> {
        if self.is_driven() { self.log.stock(op, &self.root) } else { Ok(()) }
    }

    /// Whether somebody ticks as soon as there is something to do.
    pub(crate) fn is_driven(&self) -> bool {
        self.root.pool().services().is_driven()
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

    /// Merges a range whose fronts are both full, unless someone does already. Returns whether it did, or there was no need.
    #[cold]
    pub(crate) fn help(&self, op: &Op<'_, M>, range: &Arc<Range>) -> Result<bool> {
        if claim(op, range) {
            self.merge(op, range)?;
            return Ok(true);
        }
        Ok(range.snapshot.get(op).frozen.is_none())
    }

    /// Merges a claimed range. If there is no space for it, it waits again.
    ///
    /// One range at a time, so that whoever waits for a range waits for its merge, and no other one.
    fn merge(&self, op: &Op<'_, M>, range: &Arc<Range>) -> Result<()> {
        steps::merge(&mut Merge { tree: self, op, range, changes: Changes::Front })
    }

    /// Shows readers what was merged; the caller holds the range's lock. Returns the units that nothing leads to any more.
    fn publish_locked(&self, op: &Op<'_, M>, inner: &mut Inner, plan: Plan) -> Vec<u64> {
        let Plan { range, side, leaves, next, more, freed, .. } = plan;
        let old = range.snapshot.get(op);
        let bound = self.options.bound(keys_in(&leaves));
        let last = more.first().map_or(old.last, |new| new.low.wrapping_sub(1));
        let new = Snapshot { last, side, leaves: leaves.into(), next, bound, frozen: None, ..old.clone() };
        inner.frozen_oldest = NO_RECORD;
        inner.claim.end();
        inner.trusted = true;
        let mut added: Vec<Added> = more.into_iter().rev().map(|new| self.split_off(op, inner, new)).collect();
        added.reverse();
        if inner.active.is_empty() {
            // All that it held has gone to the new ranges, and they remember its records.
            inner.active_oldest = NO_RECORD;
        }
        steps::publish(Shown { tree: self, op, range: &range, inner, added: &added, new });
        freed
    }

    /// Makes a range of the upper part of another, with the upper part of its front.
    fn split_off(&self, op: &Op<'_, M>, inner: &mut Inner, new: NewRange) -> Added {
        let m = op.medium();
        let NewRange { block, low, last, leaves, next } = new;
        let bound = self.options.bound(keys_in(&leaves));
        let (upper, lower): (Vec<_>, Vec<_>) = inner.active.iter().partition(|(key, _)| *key >= low);
        let active = Front::of(upper.into_iter(), bound);
        inner.active = Front::of(lower.into_iter(), bound);
        let bloom = Bloom::new(bound.max(active.len()));
        active.iter().for_each(|(key, _)| bloom.add(m, hash(key)));
        let snapshot = Snapshot { low, last, bloom, frozen: None, side: 0, leaves: leaves.into(), next, bound };
        let range = Arc::new(Range::new(block, snapshot, inner.version));
        {
            let mut own = range.lock(op);
            own.active_oldest = if active.is_empty() { NO_RECORD } else { inner.active_oldest };
            own.active = active;
            range.tell_oldest(m, &own);
        }
        (low, range)
    }

    /// Looks for log pages whose records are all merged. Returns how many sealed pages are left. Looks at every range.
    pub(crate) fn free_pages(&self, op: &Op<'_, M>) -> usize {
        self.log.free_before(op.medium(), steps::oldest_needed(&InLog { tree: self, op }))
    }

    /// Where the log is longer than all fronts can fill, freezes the fronts with the oldest records, so that pages get free.
    pub(crate) fn freeze_oldest(&self, op: &Op<'_, M>, sealed: usize) {
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
            let mut inner = range.lock(op);
            let is_free = range.snapshot.get(op).frozen.is_none();
            if is_free && !inner.active.is_empty() && inner.active_oldest <= clock {
                self.freeze(op, range, &mut inner);
            }
        }
    }
}

/// Gets the right to merge a range, if there is something to merge.
fn claim<M: Medium>(op: &Op<'_, M>, range: &Range) -> bool {
    let mut inner = range.lock(op);
    let waits = range.snapshot.get(op).frozen.is_some();
    inner.claim.take(waits)
}

/// The state word in a range's block. Whoever stores it writes it back.
pub(crate) struct InBlock<'o, 's, M: Medium>(pub(crate) &'o Op<'s, M>, pub(crate) Off<RangeHead>);

impl<M: Medium> StateWord for InBlock<'_, '_, M> {
    fn load(&self) -> State {
        self.0.load(&self.0.at(self.1).state, Relaxed)
    }

    fn store(&self, state: State) {
        self.0.store(&self.0.at(self.1).state, state, Release);
    }
}

/// What goes into the leaves of a range.
pub(crate) enum Changes<'a, M: Medium> {
    /// The second front, of a range that the caller has claimed.
    Front,
    /// A part of a load, of a range whose lock the caller holds until it is published.
    Part(&'a [Entry], Option<LockGuard<'a, Inner, M>>),
}

/// A range, and what is merged into it.
pub(crate) struct Merge<'a, 'o, 's, M: Medium> {
    pub(crate) tree: &'a DpTree<M>,
    pub(crate) op: &'o Op<'s, M>,
    pub(crate) range: &'a Arc<Range>,
    pub(crate) changes: Changes<'a, M>,
}

impl<M: Medium> Merge<'_, '_, '_, M> {
    fn plan_for(&self, sparing: bool) -> Result<Plan> {
        let Merge { tree, op, range, changes } = self;
        match changes {
            Changes::Front => tree.plan(op, range, sparing),
            Changes::Part(part, inner) => {
                let floor = InBlock(op, range.block).load().floor();
                let trusted = inner.as_ref().is_some_and(|inner| inner.trusted);
                tree.plan_of(op, range, (part, floor), trusted, sparing)
            }
        }
    }
}

impl<M: Medium> Merging for Merge<'_, '_, '_, M> {
    type Plan = Plan;
    type Freed = Vec<u64>;
    type Error = Error;

    fn order(&self) {
        self.op.order();
    }

    fn plan(&mut self) -> Result<Plan> {
        match self.plan_for(false) {
            Err(error) if error.is_full() => self.plan_for(true),
            plan => plan,
        }
    }

    fn wait_for_plan(&self) {
        self.op.fence(); // PERSIST DP-B1: flush+fence
    }

    fn flip(&self, plan: &Plan) {
        steps::flip(&InBlock(self.op, plan.range.block), plan.side, plan.floor);
        self.op.write_back(self.op.at(plan.range.block)); // PERSIST DP-B2: flush+fence, in `wait_for_flip`
    }

    fn wait_for_flip(&self) {
        self.op.fence(); // PERSIST DP-B2: flush+fence
    }

    fn publish(&mut self, plan: Plan) -> Vec<u64> {
        let Merge { tree, op, range, changes } = self;
        match changes {
            Changes::Front => tree.publish_locked(op, &mut range.lock(op), plan),
            Changes::Part(part, inner) => {
                tree.tally_part(op, plan.replaced, part);
                tree.publish_locked(op, &mut inner.take().expect("a plan is published once"), plan)
            }
        }
    }

    fn give_back(&self, freed: Vec<u64>) {
        self.tree.units.give_back(self.op.medium(), &freed);
    }

    fn give_up(&mut self) {
        if let Changes::Front = self.changes {
            self.range.lock(self.op).claim.end();
            self.tree.queue.push(self.op.medium(), Arc::clone(self.range));
        }
    }
}

/// What was merged into a locked range.
struct Shown<'a, 'o, 's, M: Medium> {
    tree: &'a DpTree<M>,
    op: &'o Op<'s, M>,
    range: &'a Range,
    inner: &'a mut Inner,
    added: &'a [Added],
    new: Snapshot,
}

impl<'a, M: Medium> Publication for Shown<'a, '_, '_, M> {
    type Held = Vec<LockGuard<'a, Inner, M>>;

    fn hold(&self) -> Vec<LockGuard<'a, Inner, M>> {
        self.added.iter().map(|(_, range)| range.lock(self.op)).collect()
    }

    fn show_directory(&self) {
        let Shown { tree, op, added, .. } = self;
        if !added.is_empty() {
            let _structure = tree.structure.lock(op.medium());
            let directory = tree.directory.get(op).with(op, added);
            tree.retire(op, tree.directory.replace(op, directory));
        }
    }

    fn tell_oldest(&self) {
        self.range.tell_oldest(self.op.medium(), self.inner);
    }

    fn show_snapshot(self) {
        self.tree.show(self.op, self.range, self.inner, self.new);
    }
}

/// The records of a tree.
struct InLog<'a, 'o, 's, M: Medium> {
    tree: &'a DpTree<M>,
    op: &'o Op<'s, M>,
}

impl<'o, M: Medium> Records for InLog<'_, 'o, '_, M> {
    type Directory = &'o Directory;

    fn clock(&self) -> u64 {
        self.tree.log.clock(self.op.medium())
    }

    fn directory(&self) -> &'o Directory {
        self.tree.directory.get(self.op)
    }

    fn oldest(&self, directory: &Directory) -> u64 {
        let clocks = directory.ranges().map(|range| range.oldest(self.op.medium()));
        clocks.min().unwrap_or(NO_RECORD)
    }

    fn is_current(&self, directory: &Directory) -> bool {
        self.tree.directory.is_current(self.op, directory)
    }
}
