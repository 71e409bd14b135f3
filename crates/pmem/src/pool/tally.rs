//! Tallies: what an index held when its pool was closed, so that an entry that has vanished since is missed.
//!
//! A structure that [tallies](super::Structure::TALLIES) tells its [`Tally`] of every change: it adds up a number for each entry, and
//! counts them. The sums are volatile, one for each session. Closing the pool writes them into the index's [`Mark`]. A check compares what
//! it walks over with that, and in a pool that is open for writing with what has changed since, too.
//!
//! A mark counts if the pool has never been left open since: it notes how often that has happened
//! ([`Pool::crashes`](super::Pool::crashes)), and so a crash makes every mark void. An index whose mark was void when it was opened
//! has none after that either, until [`Tally::begin`] is told what it holds.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | PL-T1 the mark < PL-Z2 state clean | flush+fence, once for all marks | any words of the mark, state dirty | nothing: the number in it is not that of the next opening |
//!
//! No two words are assumed to become durable together: only a mark with the number of the pool counts, and closing wrote that as a whole.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use super::geometry::Geometry;
use super::layout::Mark;
use crate::checksum::Checksum;
use crate::lock::Lock;
use crate::medium::Medium;
use crate::offset::Off;
use crate::per_session::PerSession;
use crate::session::Op;
use crate::space::Owner;

/// Set in [`Mark::state`] of a mark that was written.
const WRITTEN: u64 = 1 << 16;

/// How many entries an index has, and the sum of what [`entry`] gives for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries.
    pub count: u64,
    /// The sum of the numbers of the entries, wrapping.
    pub sum: u64,
}

impl Totals {
    /// With one entry more.
    #[inline]
    pub fn add(&mut self, entry: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(entry);
    }

    /// With one entry less.
    #[inline]
    pub fn take(&mut self, entry: u64) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(entry);
    }
}

/// The number of an entry of two words.
#[inline(always)]
pub const fn entry(key: u64, value: u64) -> u64 {
    Checksum::at(0).pair(key, value).finish()
}

/// What one session has changed. Only that session stores here.
#[derive(Debug, Default)]
struct Lane {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Lane {
    #[inline(always)]
    fn change(&self, count: u64, sum: u64) {
        self.count.store(self.count.load(Relaxed).wrapping_add(count), Relaxed);
        self.sum.store(self.sum.load(Relaxed).wrapping_add(sum), Relaxed);
    }
}

/// What is told of an open index. Every change is told once, by the session that made it, whatever the order: sums commute.
#[derive(Debug)]
pub struct Tally {
    /// What it held when it was opened, if that is known.
    base: Mutex<Option<Totals>>,
    /// Where its mark lies, if that was damaged when the index was opened.
    damaged: Option<u64>,
    lanes: PerSession<Lane>,
}

impl Tally {
    pub(super) fn new(base: Option<Totals>) -> Self {
        Tally { base: Mutex::new(base), damaged: None, lanes: PerSession::default() }
    }

    fn of_mark(says: Marked) -> Self {
        match says {
            Marked::Held(totals) => Tally::new(Some(totals)),
            Marked::Nothing => Tally::new(None),
            Marked::Damaged { offset } => Tally { damaged: Some(offset), ..Tally::new(None) },
        }
    }

    /// What the index should hold now. Exact while nobody changes it.
    pub(super) fn says(&self) -> Marked {
        match self.damaged {
            Some(offset) => Marked::Damaged { offset },
            None => self.totals().map_or(Marked::Nothing, Marked::Held),
        }
    }

    /// An entry was inserted, by the session in a slot. Some ten instructions, none of them locked.
    #[inline(always)]
    pub fn inserted(&self, slot: u32, entry: u64) {
        self.lanes.of(slot).change(1, entry);
    }

    /// An entry was removed.
    #[inline(always)]
    pub fn removed(&self, slot: u32, entry: u64) {
        self.lanes.of(slot).change(u64::MAX, entry.wrapping_neg());
    }

    /// An entry was replaced by another.
    #[inline(always)]
    pub fn replaced(&self, slot: u32, old: u64, new: u64) {
        self.lanes.of(slot).change(0, new.wrapping_sub(old));
    }

    /// Entries were inserted, removed and replaced together: by how much their number and their sum have grown, wrapping.
    #[inline]
    pub fn changed_by(&self, slot: u32, by: Totals) {
        self.lanes.of(slot).change(by.count, by.sum);
    }

    /// One entry became another; `None` is none.
    #[inline(always)]
    pub fn changed(&self, slot: u32, old: Option<u64>, new: Option<u64>) {
        let count = u64::from(new.is_some()).wrapping_sub(u64::from(old.is_some()));
        self.lanes.of(slot).change(count, new.unwrap_or(0).wrapping_sub(old.unwrap_or(0)));
    }

    /// Says what the index holds now. Nobody may change it meanwhile.
    pub fn begin(&self, holds: Totals) {
        let changed = self.all_changes();
        let base = Totals { count: holds.count.wrapping_sub(changed.count), sum: holds.sum.wrapping_sub(changed.sum) };
        *self.base.lock().unwrap_or_else(PoisonError::into_inner) = Some(base);
    }

    /// What the index holds, if that is known. Exact while nobody changes it.
    pub fn totals(&self) -> Option<Totals> {
        let base = (*self.base.lock().unwrap_or_else(PoisonError::into_inner))?;
        let changed = self.all_changes();
        Some(Totals { count: base.count.wrapping_add(changed.count), sum: base.sum.wrapping_add(changed.sum) })
    }

    fn all_changes(&self) -> Totals {
        let mut all = Totals::default();
        for lane in self.lanes.iter() {
            all.count = all.count.wrapping_add(lane.count.load(Relaxed));
            all.sum = all.sum.wrapping_add(lane.sum.load(Relaxed));
        }
        all
    }
}

/// The tallies of all indices that were opened since the pool was. They stay when an index is closed, and go on when it is opened again.
#[derive(Debug, Default)]
pub(super) struct Tallies(Lock<BTreeMap<u16, Arc<Tally>>>);

impl Tallies {
    /// The tally of an index that is being created: the one that its entry had before is not its own.
    pub(super) fn created<M: Medium>(&self, m: M, owner: Owner) -> Arc<Tally> {
        let tally = Arc::new(Tally::new(Some(Totals::default())));
        self.0.lock(m).insert(owner.0, Arc::clone(&tally));
        tally
    }

    /// The tally of an index that is being opened, by one thread at a time.
    pub(super) fn opened<M: Medium>(
        &self,
        op: &Op<'_, M>,
        geometry: &Geometry,
        owner: Owner,
        crashes: u16,
    ) -> Arc<Tally> {
        let m = op.medium();
        let known = self.0.lock(m).get(&owner.0).cloned();
        known.unwrap_or_else(|| {
            let tally = Arc::new(Tally::of_mark(read(op, geometry.mark_off(owner), crashes)));
            self.0.lock(m).insert(owner.0, Arc::clone(&tally));
            tally
        })
    }

    /// Writes the marks of all of them: when no operation is under way, so that all changes were told. Returns whether there is anything that has
    /// to be fenced. A damaged mark stays as it is.
    pub(super) fn write<M: Medium>(&self, op: &Op<'_, M>, geometry: &Geometry, crashes: u16) -> bool {
        let all: Vec<(u16, Arc<Tally>)> =
            self.0.lock(op.medium()).iter().map(|(owner, tally)| (*owner, Arc::clone(tally))).collect();
        let mut written = false;
        for (owner, tally) in all.iter().filter(|(_, tally)| tally.damaged.is_none()) {
            written |= write(op, geometry.mark_off(Owner(*owner)), crashes, tally.totals());
        }
        written
    }
}

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// Nothing that counts: the pool has been left open since, or what it held was not known when it was closed.
    Nothing,
    /// The index should hold this.
    Held(Totals),
    /// The mark is damaged.
    Damaged {
        /// Its offset in bytes.
        offset: u64,
    },
}

fn seal(off: u64, totals: Totals, state: u64) -> u64 {
    Checksum::at(off).pair(totals.count, totals.sum).pair(state, 0).finish()
}

/// What the mark at an offset says in a pool that was left open so often.
pub(super) fn read<M: Medium>(op: &Op<'_, M>, offset: u64, crashes: u16) -> Marked {
    let mark: &Mark = op.at(Off::new(offset));
    let [count, sum, state, found] =
        [&mark.count, &mark.sum, &mark.state, &mark.seal].map(|word| op.load(word, Relaxed));
    let totals = Totals { count, sum };
    match state == WRITTEN | u64::from(crashes) {
        true if found == seal(offset, totals, state) => Marked::Held(totals),
        true => Marked::Damaged { offset },
        false => Marked::Nothing,
    }
}

/// Writes the mark at an offset; the fence is the caller's. `None` makes it void. What is as it should be is not written: returns whether it
/// was.
pub(super) fn write<M: Medium>(op: &Op<'_, M>, offset: u64, crashes: u16, totals: Option<Totals>) -> bool {
    let mark: &Mark = op.at(Off::new(offset));
    let is_so = match totals {
        Some(totals) => read(op, offset, crashes) == Marked::Held(totals),
        // Not one of another number of crashes either: that number comes again after 65,536 of them.
        None => op.load(&mark.state, Relaxed) == 0,
    };
    if is_so {
        return false;
    }
    let (totals, state) = totals.map_or((Totals::default(), 0), |totals| (totals, WRITTEN | u64::from(crashes)));
    op.store(&mark.count, totals.count, Relaxed);
    op.store(&mark.sum, totals.sum, Relaxed);
    op.store(&mark.state, state, Relaxed);
    op.store(&mark.seal, seal(offset, totals, state), Relaxed);
    op.write_back(mark); // PERSIST PL-T1<PL-Z2: flush, with the fence in `shut`
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_sessions_are_added_and_what_was_unknown_can_be_told() {
        let tally = Tally::new(Some(Totals { count: 3, sum: 100 }));
        tally.inserted(0, 7);
        tally.inserted(300, 11);
        tally.removed(1, 100);
        tally.replaced(2, 11, 12);
        assert_eq!(tally.totals(), Some(Totals { count: 4, sum: 19 }));
        let unknown = Tally::new(None);
        unknown.inserted(0, 7);
        assert_eq!(unknown.totals(), None);
        unknown.begin(Totals { count: 10, sum: 50 });
        unknown.removed(5, 50);
        assert_eq!(unknown.totals(), Some(Totals { count: 9, sum: 0 }));
    }

    #[test]
    fn numbers_of_entries_differ_by_key_and_by_value() {
        assert_ne!(entry(1, 2), entry(2, 1));
        assert_ne!(entry(0, 0), 0);
    }
}
