//! Lazy recovery of nodes (section 4.3, Listing 4), on every way into one.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | R1 permutation and saved permutation agree < stamp of this epoch | same line, release | the old stamp, the permutation restored or not | restores it again |
//!
//! Without R1 a node that was merely read after a restart would be undone to something older if this epoch fails, too: the
//! listing in the paper stamps the node without saving its permutation.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::cx::Cx;
use crate::layout::{Node, Stamp};

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    /// Recovers a node whose stamp is older than what can be trusted: undoes a failed epoch, and forgets locks from before
    /// the crash.
    #[cold]
    pub(crate) fn recover(&self, off: Off<Node>, node: &'a Node) {
        let (op, epochs) = (self.op, &self.tree.epochs);
        let lock = (off.get() / 64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 48;
        let _lock = self.tree.recovering[lock % self.tree.recovering.len()].lock(op.medium());
        let stamp = op.load(&node.stamp, Relaxed);
        if stamp.epoch() >= self.tree.trusted {
            return;
        }
        if !stamp.is_interior() {
            let border = self.border(off);
            if epochs.is_failed(stamp.epoch()) {
                op.store(&border.permutation, op.load(&border.saved, Relaxed), Relaxed);
            } else {
                op.store(&border.saved, op.load(&border.permutation, Relaxed), Relaxed);
            }
        }
        op.store(&node.version, 0, Relaxed);
        // PERSIST R1: same line
        op.store(&node.stamp, Stamp::new(self.epoch, stamp.is_interior(), false, 1), Release);
        epochs.dirty(op, &node.version);
    }
}
