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

/// One list a session slot. Without any synchronisation of their own: a list is touched by the one operation that is open
/// in its session, and by a boundary, while no operation is open.
#[derive(Debug)]
pub(super) struct DirtyLists {
    lists: Box<[CachePadded<UnsafeCell<Vec<u64>>>]>,
}

// SAFETY: `push` is reached only through the session's single open `Op`, which does not move between threads, and
// `take` only while no operation is open (its caller's contract). The gate orders the two; slots go from one session to
// the next by a locked instruction.
unsafe impl Sync for DirtyLists {}

impl DirtyLists {
    pub(super) fn new() -> Self {
        DirtyLists { lists: (0..MAX_SESSIONS).map(|_| CachePadded::default()).collect() }
    }

    /// Notes the lines of an object, as number of the first from `base` and count. The operation must be of the one
    /// mapping that all calls are for.
    #[inline]
    pub(super) fn push<M: Medium, T: Persistent + ?Sized>(&self, op: &Op<'_, M>, base: usize, object: &T) {
        let lines = Lines::of_words(object.words());
        let mut first = lines.first().addr().wrapping_sub(base) / LINE;
        let mut left = lines.count();
        // SAFETY: this slot's list, see `Sync` above; nothing called here comes back.
        let list = unsafe { &mut *self.lists[op.slot() as usize].get() };
        while left > 0 {
            let count = left.min(MAX_RUN);
            list.push((first << 16 | count) as u64);
            (first, left) = (first + count, left - count);
        }
    }

    /// Empties all lists, calling `f` with the number of the first line and the count of each run. Lists keep their memory.
    ///
    /// # Safety
    /// No operation may be open in any session, apart from the caller's, which must not be in a call of `push`.
    pub(super) unsafe fn take(&self, mut f: impl FnMut(usize, usize)) {
        for list in &self.lists {
            // SAFETY: by the caller's contract nobody else touches a list.
            let list = unsafe { &mut *list.get() };
            for run in list.drain(..) {
                f((run >> 16) as usize, (run & 0xffff) as usize);
            }
        }
    }
}
