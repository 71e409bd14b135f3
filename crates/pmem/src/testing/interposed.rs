//! Another thread at a chosen place of this one: a test that tries all places meets each race of the two.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use crate::line::Lines;
use crate::medium::{Medium, Rmw, forward};

/// The accesses that [`Interposed::interrupt`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Fences.
    Fence,
    /// Loads of volatile words that threads share.
    SharedLoad,
}

/// Where the two threads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The first one has not come to the place.
    First,
    /// The first one waits there for the other.
    Other,
    /// The other one has ended, or does not run.
    Over,
}

#[derive(Debug)]
struct State {
    turn: Mutex<Turn>,
    changed: Condvar,
}

impl State {
    fn set(&self, turn: Turn) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        self.changed.notify_all();
    }

    /// Waits until it is somebody else's turn.
    fn wait_while(&self, turn: Turn) -> Turn {
        let now = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        *self.changed.wait_while(now, |now| *now == turn).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a turn also where the test panics.
struct Ends<'s>(&'s State);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set(Turn::Over);
    }
}

thread_local! {
    /// What the calling thread counts, and how many are left.
    static LEFT: Cell<Option<(Before, u64)>> = const { Cell::new(None) };
}

/// A medium on which one thread can be interrupted by another before its n-th access of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Interposed<M> {
    inner: M,
    state: &'static State,
}

impl<M: Medium> Interposed<M> {
    /// Over `inner`. The state lives until the process ends.
    pub fn new(inner: M) -> Self {
        let state = State { turn: Mutex::new(Turn::Over), changed: Condvar::new() };
        Interposed { inner, state: Box::leak(Box::new(state)) }
    }

    /// Runs `first`. Before its `number`-th access (from 1), `other` runs to its end in another thread. Returns whether `first` came
    /// that far: if not, `other` has not run. What `first` holds locked there, `other` must not wait for.
    pub fn interrupt<R>(
        self,
        before: Before,
        number: u64,
        first: impl FnOnce() -> R,
        other: impl FnOnce() + Send,
    ) -> (R, bool) {
        let state = self.state;
        state.set(Turn::First);
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ends = Ends(state);
                if state.wait_while(Turn::First) == Turn::Other {
                    other();
                }
            });
            let _ends = Ends(state);
            LEFT.set(Some((before, number)));
            let result = first();
            (result, LEFT.take().is_none())
        })
    }

    fn meet(self, what: Before) {
        let Some((before, left)) = LEFT.get().filter(|(before, _)| *before == what) else { return };
        LEFT.set((left > 1).then_some((before, left - 1)));
        if left == 1 {
            self.state.set(Turn::Other);
            self.state.wait_while(Turn::Other);
        }
    }
}

// SAFETY: every access is handed on unchanged; it only waits.
unsafe impl<M: Medium> Medium for Interposed<M> {
    forward! {
        survives, attach, detach, load, store, store_nt, store_nt_line, compare_exchange, rmw, checked,
        order, write_back, shared_store, shared_compare_exchange, shared_rmw, synced, spin
    }

    fn describe(self) -> String {
        self.inner.describe()
    }

    fn for_session(self, slot: u32) -> Self {
        Interposed { inner: self.inner.for_session(slot), ..self }
    }

    #[track_caller]
    fn shared_load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.meet(Before::SharedLoad);
        self.inner.shared_load(word, order)
    }

    #[track_caller]
    fn fence(self) {
        self.meet(Before::Fence);
        self.inner.fence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hardware, Mapping, Off, Word};

    #[test]
    fn the_other_thread_runs_at_its_place() {
        let medium = Interposed::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(4096, medium);
        let (mut first, mut other) = (mapping.session().unwrap(), mapping.session().unwrap());
        for (place, expected) in [(1, [7, 7]), (2, [0, 7]), (3, [0, 0])] {
            let two_fences = || {
                let op = first.enter().unwrap();
                let word = op.at(Off::<Word>::new(64));
                op.store(word, 0, Ordering::Relaxed);
                [(); 2].map(|()| {
                    op.fence();
                    op.load(word, Ordering::Relaxed)
                })
            };
            let store = || {
                let op = other.enter().unwrap();
                op.store(op.at(Off::<Word>::new(64)), 7, Ordering::Relaxed);
            };
            let (seen, came) = medium.interrupt(Before::Fence, place, two_fences, store);
            assert_eq!((seen, came), (expected, place < 3), "{place}");
        }
    }
}
