//! Updates: a record in the session's log, then an entry in the range's front, under the range's lock; or a value that is replaced in place
//! (see `in_place`).
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | as DP-A1: record < its entry enters the front, and the update returns | flush+fence | a record, or not | the update in flight has happened or not |

use std::sync::Arc;

use durix_pmem::pool::tally;
use durix_pmem::{LockGuard, Medium, Op};

use crate::DpTree;
use crate::bloom::{Bloom, hash};
use crate::error::Result;
use crate::front::{Front, Frozen};
use crate::leaf::store_value;
use crate::range::{Found, Inner, NO_RECORD, Part, Range, Snapshot};
use crate::record::{Place, Record};

impl<M: Medium> DpTree<M> {
    /// Maps `key` to `value`, whatever it was mapped to. Returns whether the key is new.
    ///
    /// Durable when it returns: one write-back, one fence. Every 256th update of a range or so freezes its front; if the front before has
    /// not been merged by then, the caller merges it, which takes some ten microseconds.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full, or after a panic in an update. The tree then is as it was.
    #[inline]
    pub fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        let _guard = self.poison.guard(op)?;
        let old = self.insert_guarded(op, key, value)?;
        self.limbo.poll_late(op);
        Ok(old.is_none())
    }

    /// As [`insert`](Self::insert), in a guard; returns what the key was mapped to.
    #[inline(always)]
    pub(crate) fn insert_guarded(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        match self.upsert(op, key, value) {
            Err(error) if error.is_full() => {
                self.merge_what_fits(op)?;
                self.upsert(op, key, value)
            }
            old => old,
        }
    }

    /// Maps `key` to `value` if it is not there. Returns whether it did; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    #[inline]
    pub fn insert_if_absent(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        self.compare_and_set(op, key, None, Some(value))
    }

    /// Maps `key` to `value` if it is there. Returns whether it did; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    #[inline]
    pub fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        let old = self.change(op, key, |old| old.is_some().then_some(Some(value)))?;
        Ok(old.is_some())
    }

    /// Removes `key`. Returns whether it was there; if not, nothing is written.
    ///
    /// Succeeds in a full pool, too, where it reads the log and takes as long as that.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) after a panic in an update.
    #[inline]
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        let old = self.change(op, key, |old| old.is_some().then_some(None))?;
        Ok(old.is_some())
    }

    /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether the key was as expected; if not,
    /// nothing is written, and neither if both are the same.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), or [`remove`](Self::remove) where `new` is `None`.
    pub fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: Option<u64>, new: Option<u64>) -> Result<bool> {
        let mut as_expected = false;
        self.change(op, key, |old| {
            as_expected = old == expected;
            (as_expected && new != expected).then_some(new)
        })?;
        Ok(as_expected)
    }

    /// Changes what `key` is mapped to, as `decide` says; `None` leaves it. Returns what it was mapped to, if it was changed.
    #[inline]
    pub(crate) fn change(
        &self,
        op: &Op<'_, M>,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<Option<u64>>> {
        let _guard = self.poison.guard(op)?;
        let changed = self.change_guarded(op, key, &mut decide)?;
        self.limbo.poll_late(op);
        Ok(changed)
    }

    #[inline(always)]
    fn change_guarded(
        &self,
        op: &Op<'_, M>,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<Option<u64>>> {
        match self.change_in_range(op, key, decide) {
            Err(error) if error.is_full() => self.remove_without_space(op, key, decide, error),
            changed => changed,
        }
    }

    /// As [`change`](Self::change), but where the pool is full, what can be merged without space is merged first.
    pub(crate) fn change_with_room(
        &self,
        op: &Op<'_, M>,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<Option<u64>>> {
        let _guard = self.poison.guard(op)?;
        let changed = match self.change_in_range(op, key, &mut decide) {
            Err(error) if error.is_full() => {
                self.merge_what_fits(op)?;
                self.change_in_range(op, key, &mut decide)
            }
            changed => changed,
        };
        self.limbo.poll_late(op);
        changed
    }

    /// As [`change_with_room`](Self::change_with_room), and a removal succeeds where there is none.
    pub(crate) fn change_anyhow(
        &self,
        op: &Op<'_, M>,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<Option<u64>>> {
        let _guard = self.poison.guard(op)?;
        let mut changed = self.change_in_range(op, key, &mut decide);
        if matches!(&changed, Err(error) if error.is_full()) {
            self.merge_what_fits(op)?;
            changed = self.change_guarded(op, key, &mut decide);
        }
        self.limbo.poll_late(op);
        changed
    }

    /// As [`remove`](Self::remove), in a guard.
    pub(crate) fn remove_guarded(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        let old = self.change_guarded(op, key, &mut |old: Option<u64>| old.is_some().then_some(None))?;
        Ok(old.is_some())
    }

    #[inline(always)]
    fn change_in_range(
        &self,
        op: &Op<'_, M>,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<Option<u64>>> {
        let hash = hash(key);
        let (range, mut inner) = self.lock_range(op, (key, hash))?;
        inner.active.prefetch(hash);
        let snapshot = range.snapshot.get(op);
        let found = self.find_locked(op, &inner, snapshot, (key, hash), snapshot.leaf_ahead(op, key, hash));
        let old = found.value();
        let Some(new) = decide(old) else { return Ok(None) };
        if let Some(value) = new
            && replace(op, range, &inner, found, (hash, value))
        {
            self.tally(op, key, old, new);
            return Ok(Some(old));
        }
        self.append(op, range, &mut inner, key, new)?;
        snapshot.bloom.add(op.medium(), hash);
        op.fence(); // PERSIST DP-A1, DP-P2: flush+fence
        self.enter_front(op, range, &mut inner, (key, hash), new);
        self.tally(op, key, old, new);
        Ok(Some(old))
    }

    /// Maps `key` to `value`, and returns what it was mapped to. Looks that up while the record is being written back, unless the last
    /// inserts into the range have met their keys there: then first, so that the value can be replaced in place.
    #[inline(always)]
    fn upsert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        let hash = hash(key);
        let (range, mut inner) = self.lock_range(op, (key, hash))?;
        inner.active.prefetch(hash);
        let mut looked = None;
        if inner.overwrites >= 2 {
            let snapshot = range.snapshot.get(op);
            let found = self.find_locked(op, &inner, snapshot, (key, hash), snapshot.leaf_ahead(op, key, hash));
            if replace(op, range, &inner, found, (hash, value)) {
                inner.overwrites = 3;
                self.tally(op, key, found.value(), Some(value));
                return Ok(found.value());
            }
            looked = Some(found);
        }
        self.append(op, range, &mut inner, key, Some(value))?;
        // While the record is being written back.
        let snapshot = range.snapshot.get(op);
        let found = match looked {
            Some(found) => found,
            None => self.find_locked(op, &inner, snapshot, (key, hash), snapshot.leaf_for_key(key, hash)),
        };
        snapshot.bloom.add(op.medium(), hash);
        let overwrites = matches!(found, Found::InLeaf(..));
        inner.overwrites = if overwrites { 3.min(inner.overwrites + 1) } else { inner.overwrites.saturating_sub(1) };
        op.fence(); // PERSIST DP-A1, DP-P2: flush+fence
        self.enter_front(op, range, &mut inner, (key, hash), Some(value));
        self.tally(op, key, found.value(), Some(value));
        Ok(found.value())
    }

    /// Tells that a key is mapped to something else.
    #[inline(always)]
    pub(crate) fn tally(&self, op: &Op<'_, M>, key: u64, old: Option<u64>, new: Option<u64>) {
        if let Some(tally) = self.root.tally() {
            let entry = |value| tally::entry(key, value);
            tally.changed(op.slot(), old.map(entry), new.map(entry));
        }
    }

    /// Where a key of a locked range is, which belongs to this leaf.
    #[inline(always)]
    pub(crate) fn find_locked<'a>(
        &self,
        op: &Op<'_, M>,
        inner: &Inner,
        snapshot: &Snapshot,
        (key, hash): (u64, u64),
        leaf: Option<&'a Part>,
    ) -> Found<'a> {
        // The filter spares the line of a bucket.
        let may_have = snapshot.bloom.may_have(op.medium(), hash);
        match may_have.then(|| inner.active.get(key, hash)).flatten() {
            Some(entry) => Found::InFront(entry),
            None => snapshot.find_by(op, key, hash, || leaf),
        }
    }

    /// Appends a record to the session's log, and starts writing it back. Changes nothing if it fails.
    #[inline(always)]
    fn append(&self, op: &Op<'_, M>, range: &Range, inner: &mut Inner, key: u64, new: Option<u64>) -> Result<()> {
        let m = op.medium();
        if !self.log.has_room(op) {
            self.open_page(op)?;
        }
        range.note_record(m, inner, self.log.clock(m));
        self.log.append(op, Record { key, value: new, version: inner.version, place: Place::default() });
        Ok(())
    }

    /// Makes a durable record's entry visible.
    #[inline(always)]
    fn enter_front(
        &self,
        op: &Op<'_, M>,
        range: &Arc<Range>,
        inner: &mut Inner,
        (key, hash): (u64, u64),
        new: Option<u64>,
    ) {
        inner.version += 1;
        inner.active.put(key, hash, new);
        if inner.active.len() >= inner.bound && !inner.is_second {
            self.freeze(op, range, inner);
        }
    }

    /// Locks the range of a key, with room in its front.
    #[inline(always)]
    fn lock_range<'a>(
        &self,
        op: &'a Op<'_, M>,
        (key, hash): (u64, u64),
    ) -> Result<(&'a Arc<Range>, LockGuard<'a, Inner, M>)> {
        let mut turn = 0;
        loop {
            let range = self.directory.get(op).find_ahead(key, hash);
            range.prefetch_lock();
            self.log.prefetch(op);
            let mut inner = range.lock(op);
            if inner.covers(key) {
                if inner.active.len() < inner.bound {
                    return Ok((range, inner));
                }
                self.make_room(op, range, &mut inner, range.snapshot.get(op));
                drop(inner);
                self.shorten_log(op)?;
                if !self.help(op, range)? {
                    // Someone else merges the range.
                    op.medium().spin(turn);
                    turn += 1;
                }
            }
        }
    }

    /// Freezes a front that is full, if no other one waits to be merged.
    #[cold]
    pub(crate) fn make_room(&self, op: &Op<'_, M>, range: &Arc<Range>, inner: &mut Inner, snapshot: &Snapshot) {
        if snapshot.frozen.is_none() {
            self.freeze(op, range, inner);
        }
    }

    /// Freezes the active front, begins another, and has the frozen one merged by whoever comes first.
    pub(crate) fn freeze(&self, op: &Op<'_, M>, range: &Arc<Range>, inner: &mut Inner) {
        let old = range.snapshot.get(op);
        debug_assert!(old.frozen.is_none());
        let front = std::mem::replace(&mut inner.active, Front::new(old.bound));
        let frozen = Frozen::new(front, old.bloom.clone(), inner.version);
        let bloom = Bloom::new(old.bound);
        let new = Snapshot { bloom, frozen: Some(Arc::new(frozen)), ..old.clone() };
        inner.frozen_oldest = std::mem::replace(&mut inner.active_oldest, NO_RECORD);
        range.tell_oldest(op.medium(), inner);
        self.show(op, range, inner, new);
        self.queue.push(op.medium(), Arc::clone(range));
        if let Some(service) = self.service.get() {
            service.wake();
        }
    }

    /// Shows readers another snapshot of a locked range.
    pub(crate) fn show(&self, op: &Op<'_, M>, range: &Range, inner: &mut Inner, snapshot: Snapshot) {
        self.retire(op, range.show(op, inner, snapshot));
        self.directory.get(op).note(range, range.snapshot.get(op));
    }

    /// Opens a log page for the session, one of those whose records are all merged if there is any. The caller appends to it before its
    /// fence (DP-P2).
    #[cold]
    fn open_page(&self, op: &Op<'_, M>) -> Result<()> {
        self.look_for_free_pages(op);
        self.log.open_page(op, &self.root)
    }

    /// Where nobody ticks, freezes and merges the fronts with the oldest records once the log is too long: one of them keeps all pages.
    #[cold]
    fn shorten_log(&self, op: &Op<'_, M>) -> Result<()> {
        if self.is_driven() || !self.log.should_look(op.medium()) {
            return Ok(());
        }
        let sealed = self.free_pages(op);
        self.freeze_oldest(op, sealed);
        match self.merge_some(op) {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// Looks for free log pages if there is none. Where somebody ticks, that does it: to look at all ranges takes long.
    pub(crate) fn look_for_free_pages(&self, op: &Op<'_, M>) {
        if !self.log.has_free(op.medium()) && !self.is_driven() && self.log.should_look(op.medium()) {
            self.free_pages(op);
        }
    }
}

/// Replaces the value of a key in place, durably, if it can be done (see `in_place`). The caller holds the range's lock.
#[inline(always)]
fn replace<M: Medium>(
    op: &Op<'_, M>,
    range: &Range,
    inner: &Inner,
    found: Found<'_>,
    (hash, value): (u64, u64),
) -> bool {
    let Found::InLeaf(part, slot, _) = found else { return false };
    if inner.claim.is_taken() {
        return false;
    }
    let m = op.medium();
    range.in_place.begin(m, hash);
    store_value(op, part.off(), slot, value);
    op.fence(); // PERSIST DP-V1: flush+fence
    range.in_place.end(m);
    true
}
