//! The lock of a node, and what is saved and noted before a change of it.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Border, Interior, Node, Permutation, SLOTS, Stamp, version};
use crate::node::context::Context;
use crate::node::local::Local;
use crate::node::read::Wait;

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// Locks a node if it still has that version.
    #[inline(always)]
    pub(crate) fn lock(&self, off: Off<Node>, version: u64) -> Option<Locked<'a, M, P>> {
        let node = self.op.at(off);
        let locked = self.op.compare_exchange(&node.version, version, version | version::held_by(self.op.slot()));
        // Made only where the lock was got: dropping it unlocks.
        locked.is_ok().then(|| Locked { cx: *self, off, node, version, dirty: false, deleted: false })
    }

    /// Waits for the lock of a node, whatever its version; `None` if it is no longer part of the tree.
    pub(crate) fn lock_any(&self, off: Off<Node>) -> Result<Option<Locked<'a, M, P>>> {
        let mut wait = Wait::new();
        loop {
            let (_, version) = self.enter(off)?;
            if version & version::DELETED != 0 {
                return Ok(None);
            }
            if let Some(locked) = self.lock(off, version) {
                return Ok(Some(locked));
            }
            self.wait_for_lock(off)?;
            wait.again(self, off)?;
        }
    }

    /// Writes the images of nodes that are not logged yet to the external log, so that they may be changed at will. Whoever
    /// changes them [notes](Locked::note) the lines.
    pub(crate) fn log(&self, nodes: &[&Locked<'a, M, P>]) -> Result<()> {
        if !P::DURABLE {
            return Ok(());
        }
        let is_logged = |node: &Node| {
            let stamp = self.op.load(&node.stamp, Relaxed);
            stamp.epoch() == self.epoch && stamp.is_logged()
        };
        let missing = || nodes.iter().filter(|locked| !is_logged(locked.node));
        if missing().next().is_some() {
            self.with_space(|| {
                let mut local = self.local()?;
                let Local { undo, logged, .. } = &mut **local.as_mut().expect("made by `local`");
                for locked in missing() {
                    undo.stage(self.op, &self.tree.arena, &self.tree.segments, self.epoch, locked.node)?;
                    *logged += 1;
                }
                undo.commit(self.op);
                Ok(())
            })?;
        }
        for locked in nodes {
            let stamp = locked.stamp();
            let is_new = stamp.epoch() != self.epoch || stamp.round() != self.round;
            let lines = if is_new { 0 } else { stamp.lines() };
            let now = Stamp::new(self.epoch, stamp.is_interior(), true, 0).in_round(self.round, lines | 1);
            if now != stamp {
                self.op.store(&locked.node.stamp, now, Relaxed);
                self.note_lines(locked.node, now.lines() & !lines);
            }
        }
        Ok(())
    }

    /// The same, for nodes that are about to be written from end to end.
    pub(crate) fn log_whole(&self, nodes: &[&Locked<'a, M, P>]) -> Result<()> {
        self.log(nodes)?;
        nodes.iter().for_each(|locked| locked.note(Stamp::ALL_LINES));
        Ok(())
    }

    /// Puts lines of a node, a bit each, on the dirty list.
    #[inline(always)]
    pub(crate) fn note_lines(&self, node: &Node, lines: u64) {
        self.tree.epochs.dirty_lines(self.op, node, lines);
    }
}

/// The right to change a node, until dropped.
pub(crate) struct Locked<'a, M: Medium, P: Policy> {
    pub(crate) cx: Context<'a, M, P>,
    pub(crate) off: Off<Node>,
    pub(crate) node: &'a Node,
    version: u64,
    dirty: bool,
    deleted: bool,
}

impl<'a, M: Medium, P: Policy> Locked<'a, M, P> {
    #[inline(always)]
    pub(crate) fn border(&self) -> &'a Border {
        self.cx.border(self.off)
    }

    pub(crate) fn interior(&self) -> &'a Interior {
        self.cx.interior(self.off)
    }

    #[inline(always)]
    pub(crate) fn stamp(&self) -> Stamp {
        self.cx.op.load(&self.node.stamp, Relaxed)
    }

    /// Keeps readers out until the node is unlocked.
    #[inline(always)]
    pub(crate) fn mark_dirty(&mut self) {
        if !self.dirty {
            self.dirty = true;
            let held = version::held_by(self.cx.op.slot());
            self.cx.op.store(&self.node.version, self.version | held | version::DIRTY, Relaxed);
            fence(Release);
        }
    }

    /// Says that the node is no longer part of the tree.
    pub(crate) fn mark_deleted(&mut self) {
        self.mark_dirty();
        self.deleted = true;
    }

    /// Prepares a change of the permutation and of slots on `lines` that InCLLp covers, or the log where
    /// [`log_unless_in_line`](Self::log_unless_in_line) has put the node there.
    #[inline(always)]
    pub(crate) fn touch(&self, lines: u64) {
        if !P::DURABLE {
            return;
        }
        let (op, border, stamp) = (self.cx.op, self.border(), self.stamp());
        if stamp.epoch() != self.cx.epoch {
            op.store(&border.saved, op.load(&border.permutation, Relaxed), Relaxed);
            let interior = P::INTERIOR_IN_LINE && stamp.is_interior();
            let first = Stamp::new(self.cx.epoch, interior, false, 0).in_round(self.cx.round, lines | 1);
            // PERSIST IN-P1: same line
            op.store(&border.stamp, first, Release);
            self.cx.note_lines(self.node, lines | 1);
        } else {
            self.note(lines);
        }
    }

    /// Notes that `lines` are being changed, of a node that has this epoch's stamp.
    #[inline(always)]
    pub(crate) fn note(&self, lines: u64) {
        let stamp = self.stamp();
        if P::DURABLE && stamp.round() != self.cx.round {
            // What was noted before may have been written back already.
            self.cx.op.store(&self.node.stamp, stamp.in_round(self.cx.round, lines | 1), Relaxed);
            self.cx.note_lines(self.node, lines | 1);
        } else if P::DURABLE && stamp.lines() & lines != lines {
            self.cx.op.store(&self.node.stamp, stamp.with_lines(lines), Relaxed);
            self.cx.note_lines(self.node, lines & !stamp.lines());
        }
    }

    /// Notes the line of the lock, of a node that was locked and not changed: it may be written back at any time, so also while it
    /// says locked, and what a clean closing leaves nobody resets.
    #[inline(always)]
    fn note_lock(&self) {
        let stamp = self.stamp();
        if P::DURABLE && (stamp.epoch() != self.cx.epoch || stamp.round() != self.cx.round) {
            self.note_lock_alone();
        }
    }

    #[cold]
    #[inline(never)]
    fn note_lock_alone(&self) {
        if self.stamp().is_interior() {
            self.cx.note_lines(self.node, 1);
        } else {
            self.touch(0);
        }
    }

    /// Logs the node if its policy leaves nothing to InCLL.
    #[inline(always)]
    pub(crate) fn log_unless_in_line(&self) -> Result<()> {
        if P::DURABLE && !P::IN_LINE { self.cx.log(&[self]) } else { Ok(()) }
    }

    /// Slots that may be overwritten although they are not live, as bits.
    #[inline(always)]
    pub(crate) fn free_slots(&self) -> u16 {
        let (op, border) = (self.cx.op, self.border());
        let mut taken = op.load(&border.permutation, Relaxed).mask();
        if P::DURABLE {
            let stamp = self.stamp();
            if stamp.epoch() == self.cx.epoch && !stamp.is_logged() {
                // IN-P4: what undoing needs is not touched.
                taken |= op.load(&border.saved, Relaxed).mask();
            }
        }
        !taken & ((1 << SLOTS) - 1)
    }

    /// The same once the node will have kept no more than these. Without a stamp of this epoch, the slots that are live now are
    /// what undoing will need.
    pub(crate) fn free_slots_beside(&self, kept: Permutation) -> u16 {
        let (op, border, stamp) = (self.cx.op, self.border(), self.stamp());
        let needed = match stamp.epoch() == self.cx.epoch {
            _ if !P::DURABLE => 0,
            true if stamp.is_logged() => 0,
            true => op.load(&border.saved, Relaxed).mask(), // IN-P4
            false => op.load(&border.permutation, Relaxed).mask(),
        };
        !(kept.mask() | needed) & ((1 << SLOTS) - 1)
    }

    /// Whether a live slot may be overwritten in place.
    #[inline(always)]
    pub(crate) fn is_free_to_change(&self, slot: usize) -> bool {
        if !P::DURABLE {
            return true;
        }
        let stamp = self.stamp();
        stamp.epoch() == self.cx.epoch
            && (stamp.is_logged() || !self.cx.op.load(&self.border().saved, Relaxed).contains(slot))
    }

    /// Whether these lines may be changed with nothing else to do: see [`Stamp::is_settled`].
    #[inline(always)]
    pub(crate) fn is_settled(&self, lines: u64) -> bool {
        !P::DURABLE || self.stamp().is_settled(self.cx.epoch, self.cx.round, lines)
    }

    /// Stores the permutation, which is what makes a change of it visible and durable.
    #[inline(always)]
    pub(crate) fn set_permutation(&self, permutation: Permutation) {
        // PERSIST IN-P2: same line
        self.cx.op.store(&self.border().permutation, permutation, Release);
    }
}

impl<M: Medium, P: Policy> Drop for Locked<'_, M, P> {
    #[inline(always)]
    fn drop(&mut self) {
        self.note_lock();
        let deleted = if self.deleted { version::DELETED } else { 0 };
        let step = if self.dirty { version::STEP } else { 0 };
        // Release for other threads alone: recovery does not read versions.
        self.cx.op.store(&self.node.version, (self.version | deleted).wrapping_add(step), Release);
    }
}
