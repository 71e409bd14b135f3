//! Changes that are made together, or not at all.
//!
//! Changes of one range that are many enough are a part, as in `load`: one flip makes them durable. The others go through the log:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | as DP-E1: all records of a batch < any of its entries enters a front, and the batch returns | flush+fence | some of its records | none of them counts |
//!
//! All ranges of a batch are locked, in the order of their keys, from the look at them until all entries are in their fronts. Nobody else
//! holds the locks of two ranges that others can reach.

use std::sync::Arc;

use durix_pmem::{LockGuard, Medium, Op};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::{Error, Result};
use crate::front::Entry;
use crate::load::{First, sort};
use crate::range::{Inner, Range, Snapshot};
use crate::record::{Place, Record};

/// Most changes of a batch.
pub const MAX_BATCH: usize = 16_384;

/// A range that is locked, and what is changed there.
struct Held<'a, M: Medium> {
    range: &'a Arc<Range>,
    inner: LockGuard<'a, Inner, M>,
    changes: Vec<Change>,
}

/// What is to become of a key.
#[derive(Clone, Copy)]
struct Change {
    key: u64,
    hash: u64,
    new: Option<u64>,
    /// What it is mapped to, where that was looked up.
    old: Option<Option<u64>>,
}

impl Change {
    #[inline(always)]
    fn look_up<M: Medium>(&mut self, tree: &DpTree<M>, op: &Op<'_, M>, inner: &Inner, snapshot: &Snapshot) {
        let found = tree.find_locked(op, inner, snapshot, (self.key, self.hash), snapshot.leaf(self.key));
        self.old = Some(found.value());
    }
}

/// Says what keys are to be mapped to, by what they are: `None` for a key leaves it, `None` for all leaves all.
pub(crate) type DecideAll<'a> = &'a mut dyn FnMut(&[Entry]) -> Option<Vec<Option<Option<u64>>>>;

impl<M: Medium> DpTree<M> {
    /// Makes changes together: a key and what it is mapped to, `None` where it is removed. They are sorted; of one key the last one counts.
    ///
    /// All are durable when it returns, and a crash leaves all of them or none. So does an error. Lookups see them at one moment; a scan takes
    /// each of its steps from one range, so it may see those of some ranges only.
    ///
    /// Costs a write-back for two changes and one fence, where they fit into a log page of the session or begin one, two fences where they fill
    /// more than one page. Many changes of one range cost a line for each leaf that changes, and two fences. Writers of all ranges of the changes wait meanwhile.
    ///
    /// # Errors
    /// [`Error::BatchTooLarge`] for more than [`MAX_BATCH`] changes. [`Error::Pool`] where the pool is full, also if all changes are removals,
    /// or after a panic in an update. The tree then is as it was.
    pub fn change_many(&self, op: &Op<'_, M>, changes: &mut Vec<(u64, Option<u64>)>) -> Result<()> {
        if changes.len() > MAX_BATCH {
            return Err(Error::BatchTooLarge { keys: changes.len(), limit: MAX_BATCH });
        }
        let _guard = self.poison.guard(op)?;
        sort(changes);
        if changes.is_empty() {
            return Ok(());
        }
        if let First::ForLog(_) = self.write_first(op, changes, changes.len())? {
            match self.log_batch(op, changes) {
                Err(error) if error.is_full() => {
                    self.merge_what_fits(op)?;
                    self.log_batch(op, changes)?;
                }
                made => made?,
            }
        }
        self.limbo.poll_late(op);
        Ok(())
    }

    /// As [`change_many`](Self::change_many), for ascending keys whose new values `decide` gives while nobody else can change them. Returns whether it did decide. It may be asked twice.
    pub(crate) fn change_many_with(&self, op: &Op<'_, M>, keys: &[u64], decide: DecideAll<'_>) -> Result<bool> {
        let _guard = self.poison.guard(op)?;
        let made = match self.log_decided(op, keys, decide) {
            Err(error) if error.is_full() => {
                self.merge_what_fits(op)?;
                self.log_decided(op, keys, decide)
            }
            made => made,
        };
        self.limbo.poll_late(op);
        made
    }

    fn log_decided(&self, op: &Op<'_, M>, keys: &[u64], decide: DecideAll<'_>) -> Result<bool> {
        let any: Vec<Entry> = keys.iter().map(|key| (*key, Some(0))).collect();
        let mut held = self.lock_ranges(op, &any)?;
        let mut olds = Vec::with_capacity(keys.len());
        for held in &mut held {
            self.look_up_olds(op, held);
            olds.extend(held.changes.iter().map(|change| (change.key, change.old.flatten())));
        }
        let Some(news) = decide(&olds) else { return Ok(false) };
        let mut news = news.into_iter();
        for Held { changes, .. } in &mut held {
            changes.retain_mut(|change| match news.next().flatten() {
                Some(wanted) => {
                    change.new = wanted;
                    true
                }
                None => false,
            });
        }
        self.log_held(op, held).map(|()| true)
    }

    /// Makes sorted changes together, by the log.
    fn log_batch(&self, op: &Op<'_, M>, changes: &[Entry]) -> Result<()> {
        let held = self.lock_ranges(op, changes)?;
        self.log_held(op, held)
    }

    /// Makes changes of locked ranges together.
    fn log_held(&self, op: &Op<'_, M>, mut held: Vec<Held<'_, M>>) -> Result<()> {
        let m = op.medium();
        let number: usize = held.iter().map(|held| held.changes.len()).sum();
        if number == 0 {
            return Ok(());
        }
        let next = self.reserve(op, number as u64)?;
        // Before the first record, for all ranges: so that the batch's pages are free together.
        let clock = self.log.clock(m);
        for Held { range, inner, changes } in held.iter_mut().filter(|held| !held.changes.is_empty()) {
            range.note_record(m, inner, clock);
            let bloom = &range.snapshot.get(op).bloom;
            changes.iter().for_each(|change| bloom.add(m, change.hash));
        }
        let mut records = Vec::with_capacity(number);
        for Held { inner, changes, .. } in &held {
            let versions = changes.iter().zip(inner.version..);
            let record = |(&Change { key, new: value, .. }, version): (&_, _)| Record {
                key,
                value,
                version,
                place: Place::default(),
            };
            records.extend(versions.map(record));
        }
        self.log.append_batch(op, records.into_iter(), next);
        if self.root.tally().is_some() {
            // While they are being written back.
            held.iter_mut().for_each(|held| self.look_up_olds(op, held));
        }
        op.fence(); // PERSIST DP-A1, DP-E1, DP-P2: flush+fence
        for Held { inner, changes, .. } in &mut held {
            inner.version += changes.len() as u64;
            for Change { key, hash, new, old } in changes {
                self.tally(op, *key, old.flatten(), *new);
                inner.active.put(*key, *hash, *new);
            }
        }
        // After all entries: who finds one of them in a second front finds all of them.
        for Held { range, inner, .. } in &mut held {
            let snapshot = range.snapshot.get(op);
            if inner.active.len() >= snapshot.bound && snapshot.frozen.is_none() {
                self.freeze(op, range, inner);
            }
        }
        Ok(())
    }

    /// Locks the ranges of sorted changes, with room in their fronts, and finds out which of the changes change something.
    fn lock_ranges<'a>(&self, op: &'a Op<'_, M>, changes: &[Entry]) -> Result<Vec<Held<'a, M>>> {
        let (mut held, mut from, mut turn) = (Vec::new(), 0, 0);
        while from < changes.len() {
            let range = self.directory.get(op).find(changes[from].0);
            let mut inner = range.lock(op);
            let snapshot = range.snapshot.get(op);
            if !snapshot.covers(changes[from].0) {
                continue;
            }
            if inner.active.len() >= snapshot.bound {
                if snapshot.frozen.is_some() {
                    drop(inner);
                    // A merge is nothing to wait for with locks.
                    held.clear();
                    from = 0;
                    if !self.help(op, range)? {
                        // Someone else merges the range.
                        op.medium().spin(turn);
                        turn += 1;
                    }
                    continue;
                }
                self.freeze(op, range, &mut inner);
            }
            let number = changes[from..].partition_point(|(key, _)| *key <= snapshot.last);
            let part = &changes[from..from + number];
            from += number;
            let snapshot = range.snapshot.get(op);
            let changes = part.iter().map(|(key, new)| Change { key: *key, hash: hash(*key), new: *new, old: None });
            let changes_something = |change: &mut Change| {
                if change.new.is_none() {
                    change.look_up(self, op, &inner, snapshot);
                }
                change.new.is_some() || change.old.flatten().is_some()
            };
            let mut changes: Vec<_> = changes.collect();
            changes.retain_mut(changes_something);
            held.push(Held { range, inner, changes });
        }
        Ok(held)
    }

    /// Looks up what the keys of a locked range are mapped to, where that is not known.
    fn look_up_olds(&self, op: &Op<'_, M>, Held { range, inner, changes }: &mut Held<'_, M>) {
        let snapshot = range.snapshot.get(op);
        let unknown = changes.iter_mut().filter(|change| change.old.is_none());
        unknown.for_each(|change| change.look_up(self, op, inner, snapshot));
    }

    /// Makes room in the log for the records of a batch.
    fn reserve(&self, op: &Op<'_, M>, records: u64) -> Result<Vec<crate::log::NextPage>> {
        self.look_for_free_pages(op);
        self.log.reserve(op, &self.root, records)
    }
}
