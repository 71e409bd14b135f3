//! The death of a process, for tests within one process: what it has stored stays in the caches, what it was about to write
//! back and to wait for does not happen.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::line::Lines;
use crate::medium::{Medium, Rmw, forward};

/// Everything works.
const ALIVE: u64 = 0;
/// Stores work, write-backs and fences do nothing. Below: so many fences are left, the last of which kills.
const SILENT: u64 = u64::MAX - 1;
/// Nothing that is persistent changes any more: destructors run, as they would not in a process that is gone.
const DEAD: u64 = u64::MAX;

/// A medium on which a process can die, without the one that runs the test: [`dying`](Killable::dying) and
/// [`dying_at`](Killable::dying_at) run what it does last. The test then opens its structures again, on the same mapping, as
/// the next process would; sessions of the dead one must not be used for it, since their fences would cover its
/// write-backs. All handles of a medium die together.
#[derive(Clone, Copy, Debug)]
pub struct Killable<M> {
    inner: M,
    left: &'static AtomicU64,
}

/// How a death unwinds.
struct Death;

impl<M: Medium> Killable<M> {
    /// Over `inner`. The state lives until the (real) process ends.
    pub fn new(inner: M) -> Self {
        Killable { inner, left: Box::leak(Box::default()) }
    }

    /// Runs `f` to its end, without any write-back or fence: the process dies right after it.
    pub fn dying<R>(self, f: impl FnOnce() -> R) -> R {
        self.left.store(SILENT, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(f));
        self.left.store(ALIVE, Ordering::Relaxed);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs `f` up to its `fence`-th fence (from 1), which does not happen, nor do the write-backs since the fence before.
    /// Whether it came so far: if not, it has run to its end.
    pub fn dying_at(self, fence: u64, f: impl FnOnce()) -> bool {
        self.left.store(fence, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(f));
        self.left.store(ALIVE, Ordering::Relaxed);
        match result {
            Ok(()) => false,
            Err(death) if death.is::<Death>() => true,
            Err(panic) => resume_unwind(panic),
        }
    }

    fn left(self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn is_dead(self) -> bool {
        self.left() == DEAD
    }
}

// SAFETY: every access is handed on unchanged; it only counts them, and ends the process.
unsafe impl<M: Medium> Medium for Killable<M> {
    forward! {
        survives, attach, detach, load, checked, order, shared_load, shared_store,
        shared_compare_exchange, shared_rmw, spin
    }

    fn describe(self) -> String {
        self.inner.describe()
    }

    fn for_session(self, slot: u32) -> Self {
        Killable { inner: self.inner.for_session(slot), ..self }
    }

    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        if !self.is_dead() {
            self.inner.store(word, value, order);
        }
    }

    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        if !self.is_dead() {
            self.inner.store_nt(word, value);
        }
    }

    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        if !self.is_dead() {
            self.inner.store_nt_line(line, values);
        }
    }

    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        // The dead win every race, so that loops in destructors end.
        if self.is_dead() { Ok(current) } else { self.inner.compare_exchange(word, current, new) }
    }

    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        if self.is_dead() { self.inner.load(word, Ordering::Relaxed) } else { self.inner.rmw(word, op, operand) }
    }

    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        // Those before the last fence are never waited for.
        if !matches!(self.left(), 1 | SILENT | DEAD) {
            self.inner.write_back(lines);
        }
    }

    #[track_caller]
    fn fence(self) {
        match self.left() {
            ALIVE => self.inner.fence(),
            SILENT | DEAD => {}
            1 => {
                self.left.store(DEAD, Ordering::Relaxed);
                // No panic hook and no message: this death is part of the test.
                resume_unwind(Box::new(Death));
            }
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                self.inner.fence();
            }
        }
    }

    #[track_caller]
    fn synced(self) {
        if !self.is_dead() {
            self.inner.synced();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counting, Hardware, Mapping, Off, Word};

    #[test]
    fn a_dying_process_stores_and_settles_nothing() {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let medium = Killable::new(counting);
        let mapping = Mapping::heap(4096, medium);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let [a, b] = [64, 128].map(|off| op.at(Off::<Word>::new(off)));
        let put = |word: &Word, value| {
            op.store(word, value, Ordering::Relaxed);
            op.persist(word);
        };
        let counts = |f: &dyn Fn()| {
            let before = counting.counts();
            f();
            let counts = counting.counts() - before;
            (counts.write_backs, counts.fences)
        };
        assert_eq!(counts(&|| medium.dying(|| put(a, 1))), (0, 0));
        assert_eq!(op.load(a, Ordering::Relaxed), 1);
        let both = || {
            put(a, 2);
            put(b, 2);
        };
        // The first is durable, the second visible, and nothing comes after it.
        assert_eq!(counts(&|| assert!(medium.dying_at(2, both))), (1, 1));
        assert_eq!([a, b].map(|word| op.load(word, Ordering::Relaxed)), [2, 2]);
        assert_eq!(counts(&|| assert!(!medium.dying_at(3, both))), (2, 2));
        assert_eq!(counts(&both), (2, 2));
    }

    #[test]
    fn the_dead_change_nothing_when_they_are_dropped() {
        let medium = Killable::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(4096, medium);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let word = op.at(Off::<Word>::new(64));
        struct Stores<F: Fn()>(F);
        impl<F: Fn()> Drop for Stores<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let died = medium.dying_at(1, || {
            let _late = Stores(|| {
                op.store(word, 7, Ordering::Relaxed);
                assert_eq!(op.compare_exchange(word, 5, 6), Ok(5));
            });
            op.fence();
        });
        assert!(died);
        assert_eq!(op.load(word, Ordering::Relaxed), 0);
        op.store(word, 8, Ordering::Relaxed);
        assert_eq!(op.load(word, Ordering::Relaxed), 8);
    }
}
