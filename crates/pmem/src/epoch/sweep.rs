//! Sweeping: undoing, a little behind each boundary, what failed epochs have left, so that they can be forgotten.
//!
//! A structure undoes a failed epoch where it comes across it; what it never comes across again would keep the epoch
//! remembered for ever. So each structure that takes part has a [`Seat`] and passes through all that it owns, in steps of
//! bounded work that [`Epochs::tick`](super::Epochs::tick) and [`sync`](super::Epochs::sync) drive. How far a pass has come is durable, so that
//! passes end however short the runs between crashes are.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | EP-J1 `opened` < first change of the structure in that epoch | write-back, fence | the old `opened`, nothing changed since | the structure has no part in the epoch that failed |
//! | EP-W1 what a step has undone < `cursor` or `swept` behind it | a boundary between | the old cursor | goes over the same once more |
//! | EP-W2 `cursor` zero < `target` | same line, release | the pass before, which had ended | begins the pass again |
//! | EP-F1 `swept` of every structure that needs an epoch is true < the epoch leaves the failed set | EP-W1 | the failed set as it was | forgets it later |
//!
//! `cursor`, `swept` and a word that leaves the failed set say what already holds of durable memory. So it does not matter
//! when they become durable themselves: they are noted, and written back with the next boundary.
//!
//! # What a structure needs
//! All marks of failed epochs that a structure can hold are of runs in which it was open. So it needs the failed epochs
//! from `swept` on, up to the first one that is not before `opened`: that one ended the last run in which it was open. A
//! structure that stays closed holds up what it needs, and not what fails while it is closed.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::Epochs;
use super::layout::Seat;
use crate::lock::Lock;
use crate::medium::Medium;
use crate::session::Op;

/// A structure that undoes failed epochs in steps.
pub trait Sweep<M: Medium>: Send + Sync {
    /// Takes a step. Returns whether anything may be left to do; once it has said no, it is not called again.
    fn sweep(&self, op: &Op<'_, M>) -> bool;
}

/// Where a structure's pass is.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was looked at in this run.
    Start,
    /// Everything before the cursor was undone, the last of it in epoch `at`; at the end where there is no cursor.
    At { cursor: Option<u64>, at: u64 },
    /// Nothing is left.
    Done,
}

/// The volatile part of a structure's passes, which does the book-keeping for its [`Sweep`].
#[derive(Debug)]
pub struct Sweeping {
    state: Lock<State>,
}

impl Default for Sweeping {
    fn default() -> Self {
        Sweeping { state: Lock::new(State::Start) }
    }
}

impl Sweeping {
    /// Takes a step of the structure with that seat, unless another thread is at it, or one was taken in this epoch. `undo`
    /// gets a cursor, zero at the start; it undoes what lies behind it, noting what it changes, and returns where to go
    /// on, or `None` at the end. Returns whether anything may be left to do.
    pub fn step<M: Medium>(
        &self,
        epochs: &Epochs<M>,
        op: &Op<'_, M>,
        seat: &Seat,
        undo: impl FnOnce(u64) -> Option<u64>,
    ) -> bool {
        let Some(mut state) = self.state.try_lock(op.medium()) else { return true };
        let now = epochs.current(op);
        let from = match *state {
            State::Done => return false,
            State::At { at, .. } if at == now => return true,
            State::Start => begin(epochs, op, seat),
            // A boundary lies between: EP-W1.
            State::At { cursor: Some(cursor), .. } => {
                op.store(&seat.cursor, cursor, Relaxed);
                epochs.dirty(op, seat);
                Some(cursor)
            }
            State::At { cursor: None, .. } => {
                op.store(&seat.swept, op.load(&seat.target, Relaxed), Relaxed);
                epochs.dirty(op, seat);
                epochs.forget(op);
                begin(epochs, op, seat)
            }
        };
        *state = match from {
            Some(cursor) => State::At { cursor: undo(cursor), at: now },
            None => State::Done,
        };
        from.is_some()
    }
}

/// Goes on with the pass that an earlier run has begun, or begins one, if there is anything to undo.
fn begin<M: Medium>(epochs: &Epochs<M>, op: &Op<'_, M>, seat: &Seat) -> Option<u64> {
    let (swept, target) = (op.load(&seat.swept, Relaxed), op.load(&seat.target, Relaxed));
    let trusted = epochs.trusted();
    if swept >= trusted {
        return None;
    }
    if target > swept && target <= trusted {
        return Some(op.load(&seat.cursor, Relaxed));
    }
    op.store(&seat.cursor, 0, Relaxed);
    // PERSIST EP-W2: same line
    op.store(&seat.target, trusted, Release);
    epochs.dirty(op, seat);
    Some(0)
}

/// The failed epochs that a structure may hold marks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    opened: u64,
    swept: u64,
}

impl Needs {
    /// What a seat says; `None` if nobody has ever taken it.
    pub(crate) fn of<M: Medium>(op: &Op<'_, M>, seat: &Seat) -> Option<Needs> {
        let [opened, swept] = [&seat.opened, &seat.swept].map(|word| op.load(word, Relaxed));
        (opened != 0).then_some(Needs { opened, swept })
    }

    /// The last epoch that it needs, given all failed ones.
    fn end(self, failed: &[(u64, u64)]) -> u64 {
        let behind = failed.iter().filter(|(first, count)| first + count > self.opened);
        behind.map(|(first, _)| (*first).max(self.opened)).min().unwrap_or(u64::MAX)
    }

    /// Whether it needs an epoch of the range.
    pub(super) fn touches(self, (first, count): (u64, u64), failed: &[(u64, u64)]) -> bool {
        first <= self.end(failed) && first + count > self.swept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_needs_what_failed_since_it_was_swept_up_to_the_end_of_its_last_run() {
        let failed = [(3, 2), (10, 1), (20, 5), (30, 1)];
        let needed = |opened, swept| failed.map(|range| Needs { opened, swept }.touches(range, &failed));
        assert_eq!(needed(2, 1), [true, false, false, false]);
        assert_eq!(needed(4, 1), [true, false, false, false]);
        assert_eq!(needed(5, 1), [true, true, false, false]);
        assert_eq!(needed(5, 4), [true, true, false, false]);
        assert_eq!(needed(5, 5), [false, true, false, false]);
        assert_eq!(needed(11, 11), [false, false, true, false]);
        assert_eq!(needed(23, 11), [false, false, true, false]);
        assert_eq!(needed(31, 0), [true; 4], "it is open, and not swept");
        assert_eq!(needed(31, 31), [false; 4]);
        assert_eq!(needed(25, 25), [false, false, false, true]);
    }
}
