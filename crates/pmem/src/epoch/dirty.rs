//! The lines that an epoch has dirtied, by session.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::mapping::MAX_SESSIONS;

/// Lines of one entry at most: of a run, whose entry holds their number.
const MAX_RUN: usize = 0xffff;
/// Of an entry with a bit for each line.
pub(super) const MAX_MASK: usize = 16;
/// In an entry with bits.
const MASK: u64 = 1 << 63;

/// A session's list for rounds of even number, and one for those of odd number.
type Lists = [List; 2];

#[derive(Debug, Default)]
struct List {
    entries: UnsafeCell<Vec<u64>>,
    /// How many there are, for others.
    count: AtomicUsize,
}

/// Two lists a session slot. Without any synchronisation of their own: a list is touched by the one operation that is open
/// in its session, and by whoever takes it while no operation can touch it.
#[derive(Debug)]
pub(super) struct DirtyLists {
    lists: Box<[CachePadded<Lists>]>,
}

// SAFETY: `push_run` and `push_mask` are reached only through the session's single open `Op` of this mapping (`Epochs` checks its
// base), which does not move between threads, and `take` only while no operation pushes to that list (its caller's contract). The
// gate and grace periods order the two; slots go from one session to the next by a locked instruction. A caller without `unsafe`
// cannot have two operations in a slot (`enter` borrows the session mutably; one that was forgotten cannot be used any more), nor
// one that gets past a closed gate (`Session::enter_exclusive` asks whether the session has the mapping for itself).
unsafe impl Sync for DirtyLists {}

impl DirtyLists {
    pub(super) fn new() -> Self {
        DirtyLists { lists: (0..MAX_SESSIONS).map(|_| CachePadded::default()).collect() }
    }

    /// Notes `count` lines from number `first` on for a round. The slot must be that of the operation that is open in the caller's
    /// hands, and the round one that it has seen in progress.
    #[inline]
    pub(super) fn push_run(&self, slot: u32, round: u64, mut first: usize, count: usize) {
        let mut left = count;
        while left > 0 {
            let count = left.min(MAX_RUN);
            self.push(slot, round, (first << 16 | count) as u64);
            (first, left) = (first + count, left - count);
        }
    }

    /// The same for some of the [`MAX_MASK`] lines from number `first` on, a bit each.
    #[inline(always)]
    pub(super) fn push_mask(&self, slot: u32, round: u64, first: usize, lines: u64) {
        self.push(slot, round, MASK | (first as u64) << 16 | lines);
    }

    #[inline(always)]
    fn push(&self, slot: u32, round: u64, entry: u64) {
        let list = &self.lists[slot as usize][(round & 1) as usize];
        // SAFETY: this slot's list, see `Sync` above; nothing called here comes back.
        let entries = unsafe { &mut *list.entries.get() };
        entries.push(entry);
        list.count.store(entries.len(), Ordering::Relaxed);
    }

    /// How many entries there are, while others push and take.
    pub(super) fn count(&self, slots: usize) -> usize {
        self.lists
            .iter()
            .take(slots)
            .flat_map(|lists| lists.iter())
            .map(|list| list.count.load(Ordering::Relaxed))
            .sum()
    }

    /// Whether all lists are empty.
    ///
    /// # Safety
    /// As [`take`](Self::take), for all rounds.
    pub(super) unsafe fn is_empty(&self, slots: usize) -> bool {
        // SAFETY: by the caller's contract nobody touches a list.
        self.lists.iter().take(slots).all(|lists| lists.iter().all(|list| unsafe { &*list.entries.get() }.is_empty()))
    }

    /// Empties the lists of all rounds that are even, or odd, as `round` is, calling `f` with the number of the first line
    /// and the count of each run. Lists keep their memory. `slots` slots have ever been used, at most.
    ///
    /// # Safety
    /// No call of `push_run` or `push_mask` for such a round may be under way or begin meanwhile, and all that were made happen before.
    pub(super) unsafe fn take(&self, round: u64, slots: usize, mut f: impl FnMut(usize, usize)) {
        for lists in self.lists.iter().take(slots) {
            let list = &lists[(round & 1) as usize];
            // SAFETY: by the caller's contract nobody else touches this list.
            let entries = unsafe { &mut *list.entries.get() };
            list.count.store(0, Ordering::Relaxed);
            for entry in entries.drain(..) {
                let (first, low) = (((entry & !MASK) >> 16) as usize, entry & 0xffff);
                if entry & MASK == 0 {
                    f(first, low as usize);
                    continue;
                }
                let mut lines = low;
                while lines != 0 {
                    f(first + lines.trailing_zeros() as usize, 1);
                    lines &= lines - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lists: &DirtyLists, round: u64) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        // SAFETY: one thread.
        unsafe { lists.take(round, 4, |first, count| found.push((first, count))) };
        found
    }

    #[test]
    fn runs_and_single_lines_come_back_once_in_the_rounds_of_their_kind() {
        let lists = DirtyLists::new();
        let far = (1 << 40) + 5;
        lists.push_run(0, 2, 7, 0x1_0000);
        lists.push_mask(0, 2, far, 0b1_0001);
        lists.push_mask(3, 3, 9, 1 << (MAX_MASK - 1));
        assert_eq!((lists.count(4), lists.count(3)), (4, 3));
        assert_eq!(taken(&lists, 0), [(7, 0xffff), (7 + 0xffff, 1), (far, 1), (far + 4, 1)]);
        assert_eq!(taken(&lists, 1), [(9 + MAX_MASK - 1, 1)]);
        assert!(taken(&lists, 0).is_empty() && taken(&lists, 1).is_empty() && lists.count(4) == 0);
    }
}
