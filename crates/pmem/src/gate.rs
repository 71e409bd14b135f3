//! The gate: how operations enter at the cost of a store and a load, and how a quiescence keeps them out.
//!
//! It is Dekker's protocol with an asymmetric fence. An operation stores its `active` word and then loads the gate; a
//! quiescence closes the gate and then loads every `active` word. The fences in between make sure that at least one of
//! the two sees the other. They are a compiler fence on the frequent side and a `membarrier` on the rare one, or full
//! fences on both where the kernel does not offer it.
//!
//! An `active` word counts: it is odd while an operation is inside, and rises with each entering and leaving, so that a
//! grace period (see `grace`) can tell a long operation from a new one.
//!
//! The functions are written over [`Atomic`], so that loom explores the very code that runs.

use std::sync::atomic::Ordering;

/// This process is a fork of the one that opened the mapping: the page of the gate was wiped.
pub(crate) const FORKED: u64 = 0;
/// Operations may enter.
pub(crate) const OPEN: u64 = 1;
/// A quiescence is under way: wait.
pub(crate) const CLOSED: u64 = 2;
/// Nothing may enter any more.
pub(crate) const SHUT: u64 = 3;

/// A word that threads share: a volatile word through its medium, or loom's.
pub(crate) trait Atomic {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
}

/// Announces an operation, the `ticket`-th in its slot (an odd number), and reads the gate. Unless the answer is
/// [`OPEN`], the operation must [`leave`] again.
#[inline(always)]
pub(crate) fn try_enter(active: &impl Atomic, ticket: u64, gate: &impl Atomic, light: impl Fn()) -> u64 {
    // Release: who sees this number also sees what the slot's earlier operations have done.
    active.store(ticket, Ordering::Release);
    // Either our store comes before the other side's barrier, and it waits for us; or our load comes after it, and we
    // see the gate closed. Mirror: `close`.
    light();
    gate.load(Ordering::Acquire)
}

/// Ends an operation, or the attempt at one; `next` is even.
#[inline(always)]
pub(crate) fn leave(active: &impl Atomic, next: u64) {
    active.store(next, Ordering::Release);
}

/// Marks a slot as used: `bits` of its group are, and `bit` is not. `full` is a full fence.
pub(crate) fn take_slot(group: &impl Atomic, bits: u64, bit: u32, full: impl Fn()) -> Result<(), u64> {
    group.compare_exchange(bits, bits | 1 << bit)?;
    // Either who looks for slots in use sees the bit; or it looked before, and this session sees what it had done until
    // then: a closed gate, what was unlinked. Mirror: `close`, `Grace::begin`.
    full();
    Ok(())
}

/// Tells that a slot's session begins no operation until it has [awoken](awake). It has none open; `what` is not 0.
pub(crate) fn rest(resting: &impl Atomic, what: u64) {
    // Release: who sees it also sees what the slot's operations have done.
    resting.store(what, Ordering::Release);
}

/// Ends a rest. `full` is a full fence.
pub(crate) fn awake(resting: &impl Atomic, full: impl Fn()) {
    resting.store(0, Ordering::Release);
    // Either who looks for sessions that are awake sees this one; or it looked before, and the session sees what it had done until then: a
    // closed gate, what was unlinked. Mirror: `close`, `Grace::begin`.
    full();
}

/// Whether a slot's session rests. `true` also means that all it did is visible.
pub(crate) fn is_resting(resting: &impl Atomic) -> bool {
    resting.load(Ordering::Acquire) != 0
}

/// Closes an open gate; afterwards an operation is inside only if [`is_inside`] says so, of a slot in use. `full` is a full
/// fence, `others` tells whether sessions of other slots are awake: without any the heavy fence is not needed.
pub(crate) fn close(
    gate: &impl Atomic,
    full: impl Fn(),
    others: impl Fn() -> bool,
    heavy: impl Fn(),
) -> Result<(), u64> {
    gate.compare_exchange(OPEN, CLOSED)?;
    // Whoever takes a slot, or awakes, later sees the gate closed. Mirror: `take_slot`, `awake`.
    full();
    if others() {
        // Either an operation's store comes before this barrier, and `is_inside` sees it; or its load of the gate comes
        // after, and it sees the gate closed. Mirror: `try_enter`.
        heavy();
    }
    Ok(())
}

/// Whether an operation is inside, after the gate was closed. `false` also means that all it did is visible.
pub(crate) fn is_inside(active: &impl Atomic) -> bool {
    active.load(Ordering::Acquire) & 1 == 1
}

/// Opens the gate again, unless it was shut meanwhile.
pub(crate) fn reopen(gate: &impl Atomic) {
    let _ = gate.compare_exchange(CLOSED, OPEN);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};

    impl Atomic for AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }
        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }
        fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
            self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
        }
    }

    struct World {
        gate: AtomicU64,
        active: [AtomicU64; 2],
        /// What operations write and the quiescence reads: loom reports any access that races.
        data: loom::cell::UnsafeCell<[u64; 2]>,
    }

    /// Two sessions and a quiescence: while the gate is closed and nobody is inside, nobody touches the data.
    fn explore(light: fn(), heavy: fn()) {
        loom::model(move || {
            let world = Arc::new(World {
                gate: AtomicU64::new(OPEN),
                active: [AtomicU64::new(0), AtomicU64::new(0)],
                data: loom::cell::UnsafeCell::new([0; 2]),
            });
            let threads: Vec<_> = (0..2)
                .map(|me| {
                    let world = Arc::clone(&world);
                    loom::thread::spawn(move || {
                        if try_enter(&world.active[me], 1, &world.gate, light) == OPEN {
                            // Sessions may be inside together: each reads here, only the quiescence writes.
                            // SAFETY: loom checks the access.
                            world.data.with(|data| unsafe { std::hint::black_box((*data)[me]) });
                        }
                        leave(&world.active[me], 2);
                    })
                })
                .collect();
            close(&world.gate, || (), || true, heavy).unwrap();
            if !world.active.iter().any(is_inside) {
                // SAFETY: loom checks the access.
                world.data.with_mut(|data| unsafe { *data = [1, 1] });
            }
            reopen(&world.gate);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    fn full() {
        fence(Ordering::SeqCst);
    }

    /// A session that opens, and a quiescence that needs no heavy fence where it sees no other session.
    fn explore_opening(full: fn()) {
        loom::model(move || {
            let world = Arc::new(World {
                gate: AtomicU64::new(OPEN),
                active: [AtomicU64::new(0), AtomicU64::new(0)],
                data: loom::cell::UnsafeCell::new([0; 2]),
            });
            let taken = Arc::new(AtomicU64::new(0b10));
            let other = {
                let (world, taken) = (Arc::clone(&world), Arc::clone(&taken));
                loom::thread::spawn(move || {
                    take_slot(&*taken, 0b10, 0, full).unwrap();
                    if try_enter(&world.active[0], 1, &world.gate, || ()) == OPEN {
                        // SAFETY: loom checks the access.
                        world.data.with(|data| unsafe { std::hint::black_box((*data)[0]) });
                    }
                    leave(&world.active[0], 2);
                })
            };
            let others = std::cell::Cell::new(false);
            let look = || {
                others.set(taken.load(Ordering::Acquire) != 0b10);
                others.get()
            };
            close(&world.gate, full, look, || ()).unwrap();
            // With others it depends on the heavy fence: the model above.
            if !others.get() {
                // SAFETY: loom checks the access.
                world.data.with_mut(|data| unsafe { *data = [1, 1] });
            }
            reopen(&world.gate);
            other.join().unwrap();
        });
    }

    /// A session that rests and awakes, and a quiescence that needs no heavy fence where it sees it resting.
    fn explore_resting(full: fn(), resting_at_first: bool) {
        loom::model(move || {
            let world = Arc::new(World {
                gate: AtomicU64::new(OPEN),
                active: [AtomicU64::new(0), AtomicU64::new(0)],
                data: loom::cell::UnsafeCell::new([0; 2]),
            });
            let resting = Arc::new(AtomicU64::new(u64::from(resting_at_first)));
            let other = {
                let (world, resting) = (Arc::clone(&world), Arc::clone(&resting));
                loom::thread::spawn(move || {
                    let operation = |number| {
                        if try_enter(&world.active[0], number, &world.gate, || ()) == OPEN {
                            // SAFETY: loom checks the access.
                            world.data.with(|data| unsafe { std::hint::black_box((*data)[0]) });
                        }
                        leave(&world.active[0], number + 1);
                    };
                    if resting_at_first {
                        awake(&*resting, full);
                        operation(1);
                    } else {
                        operation(1);
                        rest(&*resting, 1);
                    }
                })
            };
            let others = std::cell::Cell::new(false);
            let look = || {
                others.set(!is_resting(&*resting));
                others.get()
            };
            close(&world.gate, full, look, || ()).unwrap();
            // With others it depends on the heavy fence: the model above.
            if !others.get() && !is_inside(&world.active[0]) {
                // SAFETY: loom checks the access.
                world.data.with_mut(|data| unsafe { *data = [1, 1] });
            }
            reopen(&world.gate);
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_a_session_that_rests_needs_no_heavy_fence() {
        explore_resting(full, true);
        explore_resting(full, false);
    }

    #[test]
    #[should_panic]
    fn loom_without_full_fences_a_session_that_awakes_slips_in() {
        explore_resting(|| (), true);
    }

    #[test]
    fn loom_a_session_that_opens_sees_the_closed_gate_or_is_seen() {
        explore_opening(full);
    }

    #[test]
    #[should_panic]
    fn loom_without_full_fences_a_session_that_opens_slips_in() {
        explore_opening(|| ());
    }

    #[test]
    fn loom_a_closed_gate_keeps_operations_out() {
        explore(full, full);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_fences_an_operation_slips_in() {
        explore(|| (), || ());
    }
}
