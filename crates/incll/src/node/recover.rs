//! Lazy recovery of nodes (section 4.3, Listing 4), on every way into one.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | IN-R1 permutation and saved permutation agree < stamp of this epoch | same line, release | the old stamp, the permutation restored or not | restores it again |
//!
//! Without IN-R1 a node that was merely read after a restart would be undone to something older if this epoch fails, too: the
//! listing in the paper stamps the node without saving its permutation.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::layout::{Node, Stamp};
use crate::node::context::Context;

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// Recovers a node whose stamp is older than what can be trusted: undoes a failed epoch, and forgets locks from before
    /// the crash.
    #[cold]
    pub(crate) fn recover(&self, off: Off<Node>, node: &'a Node) {
        let op = self.op;
        let lock = (off.get() / 64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 48;
        let lock = || self.tree.recovering[lock % self.tree.recovering.len()].lock(op.medium());
        once(lock, || self.is_old(node, self.tree.trusted), || self.undo(off, node));
    }

    /// Undoes what a failed epoch has left in a node; its recovery lock is held.
    fn undo(&self, off: Off<Node>, node: &'a Node) {
        let (op, epochs) = (self.op, &self.tree.epochs);
        let stamp = op.load(&node.stamp, Relaxed);
        if P::INTERIOR_IN_LINE || !stamp.is_interior() {
            let border = self.border(off);
            if epochs.is_failed(stamp.epoch()) {
                op.store(&border.permutation, op.load(&border.saved, Relaxed), Relaxed);
            } else {
                op.store(&border.saved, op.load(&border.permutation, Relaxed), Relaxed);
            }
        }
        op.store(&node.version, 0, Relaxed);
        let recovered = Stamp::new(self.epoch, stamp.is_interior(), false, 0).in_round(self.round, 1);
        // PERSIST IN-R1: same line
        op.store(&node.stamp, recovered, Release);
        epochs.dirty(op, &node.version);
    }
}

/// Runs `undo` under a lock unless another thread was faster. Whoever has seen, with an acquiring load, that a node is no
/// longer old sees it undone: `undo` says so last, with a releasing store. Mirror: `Context::enter`.
fn once<G>(lock: impl FnOnce() -> G, is_old: impl FnOnce() -> bool, undo: impl FnOnce()) {
    let _lock = lock();
    if is_old() {
        undo();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::once;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Arc, Mutex};

    /// A node: what `enter` looks at, and what it must not see before it was undone.
    struct World {
        stamp: AtomicU64,
        permutation: UnsafeCell<u64>,
        lock: Mutex<()>,
    }

    /// As `Context::enter` does it.
    fn enter(world: &World, seen: Ordering, said: Ordering) -> u64 {
        if world.stamp.load(seen) == 0 {
            once(
                || world.lock.lock().unwrap(),
                || world.stamp.load(Ordering::Relaxed) == 0,
                || {
                    // SAFETY: loom checks the access.
                    world.permutation.with_mut(|p| unsafe { *p += 1 });
                    world.stamp.store(1, said);
                },
            );
        }
        // SAFETY: loom checks the access.
        world.permutation.with(|p| unsafe { *p })
    }

    fn explore(seen: Ordering, said: Ordering) {
        loom::model(move || {
            let world = World { stamp: AtomicU64::new(0), permutation: UnsafeCell::new(0), lock: Mutex::new(()) };
            let world = Arc::new(world);
            let threads = [(); 2].map(|()| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || assert_eq!(enter(&world, seen, said), 1))
            });
            assert_eq!(enter(&world, seen, said), 1);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_a_node_is_recovered_once_and_before_anyone_reads_it() {
        explore(Ordering::Acquire, Ordering::Release);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_order_a_reader_sees_what_was_not_undone() {
        explore(Ordering::Relaxed, Ordering::Relaxed);
    }
}
