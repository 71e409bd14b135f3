//! The lines that an epoch has dirtied, by session.

use std::cell::UnsafeCell;

use crossbeam_utils::CachePadded;

use crate::line::{LINE, Lines};
use crate::mapping::MAX_SESSIONS;
use crate::medium::Medium;
use crate::session::Op;
use crate::word::Persistent;

/// Lines of one entry at most.
const MAX_RUN: usize = 0xffff;

/// A session's list for rounds of even number, and one for those of odd number.
type Lists = [UnsafeCell<Vec<u64>>; 2];

/// Two lists a session slot. Without any synchronisation of their own: a list is touched by the one operation that is open
/// in its session, and by whoever takes it while no operation can touch it.
#[derive(Debug)]
pub(super) struct DirtyLists {
    lists: Box<[CachePadded<Lists>]>,
}

// SAFETY: `push` is reached only through the session's single open `Op`, which does not move between threads, and
// `take` only while no operation pushes to that list (its caller's contract). The gate and grace periods order the two;
// slots go from one session to the next by a locked instruction.
unsafe impl Sync for DirtyLists {}

impl DirtyLists {
    pub(super) fn new() -> Self {
        DirtyLists { lists: (0..MAX_SESSIONS).map(|_| CachePadded::default()).collect() }
    }

    /// Notes the lines of an object for a round, as number of the first from `base` and count. The operation must be of the
    /// one mapping that all calls are for, and the round one that it has seen in progress.
    #[inline]
    pub(super) fn push<M: Medium, T: Persistent + ?Sized>(&self, op: &Op<'_, M>, base: usize, round: u64, object: &T) {
        let lines = Lines::of_words(object.words());
        let mut first = lines.first().addr().wrapping_sub(base) / LINE;
        let mut left = lines.count();
        // SAFETY: this slot's list, see `Sync` above; nothing called here comes back.
        let list = unsafe { &mut *self.lists[op.slot() as usize][(round & 1) as usize].get() };
        while left > 0 {
            let count = left.min(MAX_RUN);
            list.push((first << 16 | count) as u64);
            (first, left) = (first + count, left - count);
        }
    }

    /// Empties the lists of all rounds that are even, or odd, as `round` is, calling `f` with the number of the first line
    /// and the count of each run. Lists keep their memory.
    ///
    /// # Safety
    /// No call of `push` for such a round may be under way or begin meanwhile, and all that were made happen before.
    pub(super) unsafe fn take(&self, round: u64, mut f: impl FnMut(usize, usize)) {
        for lists in &self.lists {
            // SAFETY: by the caller's contract nobody else touches this list.
            let list = unsafe { &mut *lists[(round & 1) as usize].get() };
            for run in list.drain(..) {
                f((run >> 16) as usize, (run & 0xffff) as usize);
            }
        }
    }
}
