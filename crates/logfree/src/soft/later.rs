//! Updates of the hash table that return before they are durable: see `docs/design/acknowledge-later.md`.
//!
//! An update of an operation of [`enter_later`](durix_pmem::Session::enter_later) stores into its member's line, and neither writes it back
//! nor fences. The entry in the table has a mark until somebody has done so. A removed key keeps its entry, with another mark, so
//! that nobody takes it for absent before the removal is durable, and so that its line is not used again.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-L1 an unsettled state < a read, or an update that is not later, goes on with it | write-back + fence of whoever meets the mark | the state before | nothing |
//! | LF-L2 an unsettled state < its ticket has been waited for | PL-L1 of the ticket | the state before | nothing |
//! | LF-L3 an unsettled state < the next stores to its line | same line; the bucket is locked in between, by a read-modify-write | one of the states, in their order | nothing |
//! | LF-L4 an unsettled removal < its line is free | LF-L1 or LF-L2, and then the bucket's lock at the version seen before | the key still there | nothing |
//!
//! # The race
//! *Somebody settles a line, another thread changes it once more.* A mark may go only if nothing was stored to the line since it was
//! written back. So whoever settles looks at the bucket's version, writes back, fences, and locks that very version. Either the
//! bucket has not changed: every store to the line came before the write-back. Or it has: the mark stays, and the line is settled
//! once more.
//!
//! *The bucket is split meanwhile.* The entry may be in the new bucket, whose versions begin above all that the old one has had: the
//! version that was noted is none of them.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Op, PutOff, Settles};

use super::store::{Made, Place};
use super::table::{Entry, Found, hash};
use super::{SoftHash, SoftHashCore};
use crate::error::Result;

/// Turns of waiting for a bucket that others keep changing.
const PATIENCE: u32 = 1 << 14;

impl<M: Medium> SoftHashCore<M> {
    /// Whether the updates of an operation are put off.
    #[inline(always)]
    pub(super) fn begins_to_put_off(&self, op: &Op<'_, M>) -> bool {
        op.settles_later() && self.may_put_off(op)
    }

    #[cold]
    fn may_put_off(&self, op: &Op<'_, M>) -> bool {
        let m = op.medium();
        if m.shared_load(&self.has_put_off, Relaxed) == 0 {
            m.shared_store(&self.has_put_off, 1, Relaxed);
        }
        self.me.get().is_some_and(|me| op.begin_put_off(me))
    }

    /// Leaves a line to the operation's ticket.
    fn put_off(op: &Op<'_, M>, hash: u64, place: Place) {
        op.put_off(place.get(), 1, [hash, 0]);
    }

    /// The same if what was found is unsettled: the answer rests on it.
    fn depend_on(op: &Op<'_, M>, hash: u64, found: &Found<'_>) {
        if found.entry.is_unsettled() {
            Self::put_off(op, hash, found.entry.place());
        }
    }

    // ---- updates that are settled later ----

    /// As an insert of one that is settled at once.
    #[inline(never)]
    pub(super) fn insert_later(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |_| ());
            if let Some((found, ())) = look.found.filter(|(found, ())| !found.entry.is_removed()) {
                Self::depend_on(op, hash, &found);
                return Ok(false);
            }
            let _guard = self.poison.guard(op)?;
            let free = if look.found.is_none() { Some(self.store.next(op)?) } else { None };
            let Some(value) = value() else { return Ok(false) };
            let Some(locked) = self.table.lock(m, &look, &mut turn) else { continue };
            let (place, spilled) = match (look.found, free) {
                (Some((found, ())), _) => {
                    // Its line again: the removal comes before in it (LF-L3).
                    let next = found.entry.other_value();
                    self.store.change_later(op, &Made::new(next.place(), key, value, next.value()));
                    locked.replace(found, next.unsettled());
                    (next.place(), false)
                }
                (None, None) => unreachable!("a line was looked for"),
                (None, Some(free)) => {
                    self.store.make(op, &Made::new(free, key, value, 0));
                    self.store.take(op);
                    (free, locked.publish(locked.free_cell(), Entry::new(hash, free, 0).unsettled()))
                }
            };
            drop(locked);
            Self::put_off(op, hash, place);
            if spilled {
                self.table.grow(op);
            }
            return Ok(true);
        }
    }

    /// As a removal that is settled at once.
    #[inline(never)]
    pub(super) fn remove_later(
        &self,
        op: &Op<'_, M>,
        key: u64,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, bool)>> {
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |found| found.value(op));
            let Some((found, value)) = look.found else { return Ok(None) };
            if found.entry.is_removed() || !wanted(value) {
                Self::depend_on(op, hash, &found);
                return Ok((!found.entry.is_removed()).then_some((value, false)));
            }
            let _guard = self.poison.guard(op)?;
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                self.store.remove_later(op, found.entry.place());
                locked.replace(found, found.entry.removed());
                drop(locked);
                Self::put_off(op, hash, found.entry.place());
                return Ok(Some((value, true)));
            }
        }
    }

    /// As a change that is settled at once.
    #[inline(never)]
    pub(super) fn change_later(
        &self,
        op: &Op<'_, M>,
        key: u64,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<Option<(u64, bool)>> {
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |found| found.value(op));
            let Some((found, old)) = look.found else { return Ok(None) };
            let is_removed = found.entry.is_removed();
            let Some(value) = new(old).filter(|_| !is_removed) else {
                Self::depend_on(op, hash, &found);
                return Ok((!is_removed).then_some((old, false)));
            };
            let _guard = self.poison.guard(op)?;
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                let next = found.entry.other_value();
                self.store.change_later(op, &Made::new(next.place(), key, value, next.value()));
                locked.replace(found, next.unsettled());
                drop(locked);
                Self::put_off(op, hash, next.place());
                return Ok(Some((old, true)));
            }
        }
    }

    // ---- settling ----

    /// The value of a key whose entry was unsettled just now.
    #[cold]
    #[inline(never)]
    pub(super) fn get_unsettled(&self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        let hash = hash(key);
        loop {
            let (found, value) = self.table.look(op, hash, key, |found| found.value(op)).found?;
            if !found.entry.is_unsettled() {
                return Some(value);
            }
            if self.begins_to_put_off(op) {
                // It goes with the operation's ticket.
                Self::depend_on(op, hash, &found);
                return (!found.entry.is_removed()).then_some(value);
            }
            self.settle(op, hash, found.entry.place());
        }
    }

    /// Settles the line of a key, if it is unsettled.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(&self, op: &Op<'_, M>, hash: u64, place: Place) {
        let m = op.medium();
        for turn in 0..PATIENCE {
            let seen = self.table.version(m, hash);
            if !self.table.unsettled_at(m, seen.0, place) && self.table.version(m, hash) == seen {
                return;
            }
            // PERSIST LF-L1: flush+fence.
            op.write_back(op.at(place));
            op.fence();
            // PERSIST LF-L4: at the version seen before.
            if let Some(mut locked) = self.table.lock_version(m, seen) {
                let freed = locked.clear(place);
                drop(locked);
                freed.into_iter().for_each(|place| self.store.give_back(op, place));
                return;
            }
            m.spin(turn);
        }
    }

    /// Settles everything.
    pub(super) fn settle_all(&self, op: &Op<'_, M>) {
        if op.medium().shared_load(&self.has_put_off, Relaxed) != 0 {
            self.table.for_each(op, |place| self.store.give_back(op, place), |_| ());
        }
    }
}

// SAFETY: it waits for buckets that are locked for some instructions, writes lines back, and stores to volatile words.
unsafe impl<M: Medium> Settles<M> for SoftHash<M> {
    fn before_write_back(&self, op: &Op<'_, M>, changes: &mut [PutOff]) {
        // Those of one bucket come together, so that it is locked once.
        if changes.len() > 1 {
            changes.sort_unstable_by_key(|change| self.map.table.number(op.medium(), change.words[0]));
        }
        for change in changes {
            change.words[1] = self.map.table.version(op.medium(), change.words[0]).1;
        }
    }

    fn settled(&self, op: &Op<'_, M>, changes: &[PutOff]) -> durix_pmem::Result<()> {
        self.map.poison.check(op)?;
        let m = op.medium();
        let bucket = |change: &PutOff| (self.map.table.number(m, change.words[0]), change.words[1]);
        let mut rest = changes;
        while let Some(first) = rest.first() {
            let seen = bucket(first);
            let (now, later) = rest.split_at(rest.iter().take_while(|change| bucket(change) == seen).count().max(1));
            rest = later;
            // PERSIST LF-L2, LF-L4: by the ticket's fence, at the version seen before.
            match self.map.table.lock_version(m, seen) {
                Some(mut locked) => {
                    let mut freed = Vec::new();
                    now.iter().for_each(|change| freed.extend(locked.clear(Place::new(change.off()))));
                    drop(locked);
                    freed.into_iter().for_each(|place| self.map.store.give_back(op, place));
                }
                None => now.iter().for_each(|change| self.map.settle(op, change.words[0], Place::new(change.off()))),
            }
        }
        Ok(())
    }
}

impl<M: Medium> Drop for SoftHashCore<M> {
    /// Tickets keep the map open. What is left is of one that found no session.
    fn drop(&mut self) {
        if *self.has_put_off.get_mut() == 0 {
            return;
        }
        let pool = self.store.root().pool().clone();
        let settled = pool.session().and_then(|mut session| session.enter().map(|op| self.settle_all(&op)));
        if settled.is_err_and(|error| !matches!(error, durix_pmem::Error::Forked)) {
            // The pool must not say that it was closed.
            self.poison.poison();
        }
    }
}
