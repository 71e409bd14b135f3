//! The steps of a lookup, a merge and a removal in a full pool, in the order that other threads rely on. Written over traits, so that
//! loom explores the very code that runs.
//!
//! A lookup takes no lock. It reads the filter of the active front, then the second front and the leaf of a key, and last asks whether its
//! snapshot is still current. A merge shows a snapshot without the second front after its flip, and only then gives slots and units
//! back.
//!
//! | race | one outcome | the other outcome |
//! |---|---|---|
//! | a lookup, and an update of its key | The lookup sees the key's bits in the filter. It takes the lock, so it waits for the update's fence. | It does not see them: the update has not returned. The old value is right. |
//! | a lookup, and a front that is frozen | The lookup has the new snapshot: the entry is in its second front. | It has the old one: the key's bits are in that filter, and it takes the lock. |
//! | a lookup, and a slot that is used again | The lookup meets nothing of what was stored there later. | It meets some of it. Then it sees that its snapshot was replaced, because of [`Merging::order`], and looks again. |
//! | two merges of a range, or a merge and a removal in a full pool | One of them holds the [`Claim`], or sees it held, under the lock. | It comes after the end of the claim, and sees the flip. |
//! | a lookup, and a split of its range | The lookup has the range before the split: it finds there that the key belongs to another one, and the directory has that. | It has the new range, which holds all that it was given. |
//! | a lookup, and a merge of the new range of a split | The lookup has the old snapshot of the range that was split: the merge waits until that was replaced, because of [`Publication::hold`]. Then the lookup sees it, as for any slot that is used again. | It has the new range. |
//! | a look for free log pages, and a split | The look sees the clock that the first range had before the split. | It sees that the directory was replaced, and looks again. |

use crate::layout::State;

/// A lookup of one key in one snapshot of its range.
pub(crate) trait Lookup {
    /// Where the key is.
    type Found: Copy;
    /// Whether the active front may hold the key.
    fn may_be_active(&self) -> bool;
    /// Where the key is in the second front and in the leaves.
    fn find(&self) -> Self::Found;
    /// Whether the snapshot is the current one. Loads that came before have seen nothing that was stored after it was replaced.
    fn is_current(&self) -> bool;
    /// Whether what was found is a value that may not be durable yet.
    fn is_on_its_way(&self, found: Self::Found) -> bool;
}

/// What a lookup without the lock has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen<F> {
    /// The answer.
    Found(F),
    /// Only the holder of the lock knows it.
    AskTheHolder,
    /// The range was changed meanwhile: look again.
    Changed,
}

/// Looks a key up without the lock.
#[inline(always)]
pub(crate) fn look_up<L: Lookup>(lookup: &L) -> Seen<L::Found> {
    if lookup.may_be_active() {
        return Seen::AskTheHolder;
    }
    // The key was not in the active front when the snapshot was loaded: a filter keeps its bits.
    let found = lookup.find();
    if !lookup.is_current() {
        return Seen::Changed;
    }
    // The holder of the lock waits until the value is durable.
    if lookup.is_on_its_way(found) { Seen::AskTheHolder } else { Seen::Found(found) }
}

/// Whether someone merges a range. Belongs to the holder of the range's lock; a claim lasts beyond the lock.
#[derive(Debug, Default)]
pub(crate) struct Claim(bool);

impl Claim {
    /// Claims the range, if there is something to merge and nobody has claimed it. Returns whether it did.
    pub(crate) fn take(&mut self, waits: bool) -> bool {
        let takes = waits && !self.0;
        self.0 |= takes;
        takes
    }

    /// Whether someone has claimed the range: then nobody else writes the side that does not count.
    #[inline(always)]
    pub(crate) fn is_taken(&self) -> bool {
        self.0
    }

    /// Ends a claim: what was merged is durable, and is shown together with this; or nothing was merged.
    pub(crate) fn end(&mut self) {
        self.0 = false;
    }
}

/// A range while it is merged by whoever has claimed it, or holds its lock.
pub(crate) trait Merging {
    /// What it will be.
    type Plan;
    /// What nothing leads to any more.
    type Freed;
    type Error;
    /// No later store is seen before what came before this call.
    fn order(&self);
    /// Writes what the range will be into what the current side does not name.
    fn plan(&mut self) -> Result<Self::Plan, Self::Error>;
    /// Waits until all that was written is durable.
    fn wait_for_plan(&self);
    /// Makes the plan count.
    fn flip(&self, plan: &Self::Plan);
    /// Waits until that is durable.
    fn wait_for_flip(&self);
    /// Shows readers what was merged, and ends the claim.
    fn publish(&mut self, plan: Self::Plan) -> Self::Freed;
    /// Has others use again what is free.
    fn give_back(&self, freed: Self::Freed);
    /// Ends the claim of a range that could not be merged.
    fn give_up(&mut self);
}

/// Merges a range.
#[inline]
pub(crate) fn merge<R: Merging>(range: &mut R) -> Result<(), R::Error> {
    // Who sees a slot that is written here also sees that the snapshot was replaced that named it: by an earlier merge, perhaps of another
    // thread, of which this one knows by a lock. Mirror: `look_up`.
    range.order();
    let plan = range.plan();
    // It covers also what a plan that failed has written: a later merge may find it there and not write it again.
    range.wait_for_plan(); // PERSIST DP-B1
    match plan {
        Ok(plan) => {
            range.flip(&plan);
            range.wait_for_flip(); // PERSIST DP-B2
            let freed = range.publish(plan);
            range.give_back(freed);
            Ok(())
        }
        Err(error) => {
            range.give_up();
            Err(error)
        }
    }
}

/// What shows a merge to others. Made by the holder of the range's lock; the new ranges of a split are complete.
pub(crate) trait Publication {
    /// The locks of the new ranges.
    type Held;
    /// Locks the new ranges of a split, if there are any: nobody else knows them yet.
    fn hold(&self) -> Self::Held;
    /// Has them found.
    fn show_directory(&self);
    /// Says which records the range still needs.
    fn tell_oldest(&self);
    /// Replaces the range's snapshot by one without the second front, and without what the new ranges have.
    fn show_snapshot(self);
}

/// Shows a merge to others.
#[inline]
pub(crate) fn publish<P: Publication>(publication: P) {
    // Up to the end. By the old snapshot of the range readers still find the leaves that the new ranges have: so nobody merges these, and
    // replaces no value in place, while that snapshot is the current one.
    let held = publication.hold();
    publication.show_directory();
    // After the directory: `oldest_needed` must not miss the new ranges.
    publication.tell_oldest();
    // After the directory: who finds that the range does not cover a key any more finds the other one there.
    publication.show_snapshot();
    drop(held);
}

/// The log's clock, and the ranges whose records may be in the log.
pub(crate) trait Records {
    type Directory: Copy;
    fn clock(&self) -> u64;
    fn directory(&self) -> Self::Directory;
    /// The smallest clock that a range remembers.
    fn oldest(&self, directory: Self::Directory) -> u64;
    /// Whether the directory is the current one. Loads that came before have seen nothing that was stored after it was replaced.
    fn is_current(&self, directory: Self::Directory) -> bool;
}

/// The clock from which on records may be needed.
#[inline]
pub(crate) fn oldest_needed(records: &impl Records) -> u64 {
    loop {
        // Mirror: `Log::open_page`. First the clock, then the ranges.
        let clock = records.clock();
        let directory = records.directory();
        let oldest = records.oldest(directory);
        // Mirror: `publish`. If a range's number was loaded after records of its front went to a new range, then the directory with the new
        // range is seen here, and all are looked at again.
        if records.is_current(directory) {
            return clock.min(oldest);
        }
    }
}

/// The state word of a range.
pub(crate) trait StateWord {
    fn load(&self) -> State;
    /// With release ordering.
    fn store(&self, state: State);
}

/// Makes another side count, with the floor of a merge.
pub(crate) fn flip(word: &impl StateWord, side: usize, floor: u64) {
    word.store(State::new(side, floor));
}

/// Makes another side count, and leaves the floor. The caller holds the lock, and nobody has claimed the range: so the floor is that of the
/// last merge.
pub(crate) fn flip_only(word: &impl StateWord, side: usize) {
    word.store(State::new(side, word.load().floor()));
}

#[cfg(all(test, loom))]
mod loom_tests;
