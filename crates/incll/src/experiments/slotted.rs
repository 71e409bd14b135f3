//! Interior nodes under InCLL (section 6.1 of the paper): an experiment of the benches, for trees with
//! [`Policy::INTERIOR_IN_LINE`].
//!
//! Such a node is a border node whose slots hold a key and the child to its right ([`Slotted`]). A new separator takes a slot that
//! is free in the permutation and in the saved one; a separator that goes leaves the permutation; a node that splits keeps a
//! prefix of its permutation, and what it has lost lies in the new node to its right. So all of it is undone by restoring the
//! permutation, by the edges of border nodes:
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | IN-P1 saved permutation < stamp e | same line, release | the old stamp, the old permutation | nothing to undo |
//! | IN-P2 stamp e < permutation | same line, release | stamp e, the permutation as saved | restores what is there |
//! | as IN-P3: image in the external log < any other change | flush+fence | the node as it was, or what InCLLp covers | as IN-P1, IN-P2 |
//! | IN-P4 slots that are in the saved permutation are not written | the choice of slot | | |
//!
//! | change | goes to the external log |
//! |---|---|
//! | a separator comes into a node with room | if no slot is free in both permutations: after merges in the same epoch, or in a node that was full at its start |
//! | a separator goes | if the leftmost child goes with it |
//! | a node below the root splits | if the new separator belongs to the left half and no slot is free: always, unless the node has grown in this epoch |
//! | a root splits, or takes the content of its only child | always: its leftmost child changes |
//!
//! A border node that splits changes its `next` and `high`, which nothing on its line undoes. So the fence stays, and what is saved
//! is an image under it.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Persistent};

use crate::Policy;
use crate::error::Result;
use crate::layout::{KEYS, Node, Permutation, SLOTS, Slotted, place_of};
use crate::node::context::Context;
use crate::node::lock::Locked;
use crate::ops::split::{MIDDLE, Separator};

/// What a separator from below does to a node.
struct Step {
    /// Where it belongs.
    rank: usize,
    /// What the node keeps.
    kept: Permutation,
    /// Whether the separator goes into this node: not so if it belongs to the right half.
    takes: bool,
    /// The key between the halves of a node that splits.
    up: Option<u64>,
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    fn slotted(&self, off: Off<Node>) -> &'a Slotted {
        self.op.at(off.cast())
    }

    fn ranks(&self, node: &Slotted) -> Permutation {
        self.op.load(&node.permutation, Relaxed)
    }

    /// How many keys are not above a slice: in two steps without branches, as in a border node.
    #[inline(always)]
    fn ranks_up_to(&self, node: &Slotted, permutation: Permutation, slice: u64) -> usize {
        let len = permutation.len();
        let passed = |rank: usize| {
            let key = self.op.load(&node.slots[permutation.slot(rank)][0], Relaxed);
            usize::from((key <= slice) & (rank < len))
        };
        let group = 4 * (passed(3) + passed(7) + passed(11));
        group + passed(group) + passed(group + 1) + passed(group + 2)
    }

    /// Which child holds a slice, and the child.
    #[inline(always)]
    pub(crate) fn slotted_route(&self, node: &Node, slice: u64) -> (usize, Off<Node>) {
        let slotted: &Slotted = node.view();
        let permutation = self.ranks(slotted);
        let index = self.ranks_up_to(slotted, permutation, slice);
        (index, self.child_at(node, permutation, index))
    }

    /// Child `index` of a node. By its place among the words, so that it is selected without a branch.
    #[inline(always)]
    fn child_at(&self, node: &Node, permutation: Permutation, index: usize) -> Off<Node> {
        let slot = permutation.slot(index.saturating_sub(1));
        let word = if index == 0 { FIRST } else { CHILD + 2 * slot };
        Off::new(self.op.load(&node.rest[word], Relaxed))
    }

    #[inline(always)]
    pub(crate) fn slotted_child(&self, node: &Node, index: usize) -> Off<Node> {
        self.child_at(node, self.ranks(node.view()), index)
    }

    /// The key of a rank.
    #[inline(always)]
    pub(crate) fn slotted_key(&self, node: &Node, rank: usize) -> u64 {
        let slotted: &Slotted = node.view();
        self.op.load(&slotted.slots[self.ranks(slotted).slot(rank)][0], Relaxed)
    }

    /// Keys and children, in their order.
    pub(crate) fn slotted_content(&self, off: Off<Node>) -> (Vec<u64>, Vec<Off<Node>>) {
        let node = self.op.at(off);
        let permutation = self.ranks(node.view());
        let len = permutation.len();
        let keys = (0..len).map(|rank| self.slotted_key(node, rank)).collect();
        (keys, (0..=len).map(|index| self.child_at(node, permutation, index)).collect())
    }

    /// Writes keys and children of a node that is logged or new.
    pub(crate) fn fill_slotted(&self, off: Off<Node>, keys: &[u64], children: &[Off<Node>]) {
        let (op, node) = (self.op, self.slotted(off));
        op.store(&node.first, children[0], Relaxed);
        op.store(&node.place, place_of(off.get()), Relaxed);
        for (slot, (key, child)) in keys.iter().zip(&children[1..]).enumerate() {
            self.fill_slot(node, slot, (*key, *child));
        }
        op.store(&node.permutation, Permutation::first(keys.len()), Relaxed);
    }

    fn fill_slot(&self, node: &Slotted, slot: usize, (key, child): Separator) {
        self.op.store(&node.slots[slot][0], key, Relaxed);
        self.op.store(&node.slots[slot][1], child.get(), Relaxed);
    }

    /// What a separator does to a locked node.
    fn step_of(&self, parent: &Locked<'a, M, P>, sep: u64) -> Step {
        let node = self.slotted(parent.off);
        let permutation = self.ranks(node);
        let rank = self.ranks_up_to(node, permutation, sep);
        if permutation.len() < KEYS {
            return Step { rank, kept: permutation, takes: true, up: None };
        }
        let takes = rank < MIDDLE;
        let up = match rank.cmp(&MIDDLE) {
            std::cmp::Ordering::Equal => sep,
            std::cmp::Ordering::Less => self.slotted_key(parent.node, MIDDLE - 1),
            std::cmp::Ordering::Greater => self.slotted_key(parent.node, MIDDLE),
        };
        Step { rank, kept: permutation.truncate(MIDDLE - usize::from(takes)), takes, up: Some(up) }
    }

    /// Logs a border node that splits, and those of its ancestors that InCLLp does not cover.
    pub(crate) fn log_for_slotted(
        &self,
        locked: &Locked<'a, M, P>,
        above: &[Locked<'a, M, P>],
        root: Off<Node>,
        mut sep: u64,
    ) -> Result<()> {
        let (mut nodes, mut split_root) = (vec![locked], None);
        for parent in above {
            let step = self.step_of(parent, sep);
            if step.takes && step.kept.mask() == (1 << SLOTS) - 1 {
                return Err(self.corrupt("the permutation", parent.off, SLOTS as u64));
            }
            if step.up.is_some() && parent.off == root {
                split_root = Some(parent);
            }
            if split_root.is_some() || step.takes && parent.free_slots_beside(step.kept) == 0 {
                nodes.push(parent);
            }
            sep = step.up.unwrap_or(sep);
        }
        self.log(&nodes)?;
        if let Some(root) = split_root {
            // One key is left of it, in the first slot.
            root.note(0b11);
        }
        Ok(())
    }

    /// Leaves in a dirty node what it keeps when a separator comes, and puts the separator there if it belongs there. What a
    /// node that splits does not keep was copied before.
    pub(crate) fn take_separator(&self, parent: &Locked<'a, M, P>, new: Separator) {
        let Step { rank, kept, takes, .. } = self.step_of(parent, new.0);
        if !takes {
            parent.touch(1);
            parent.set_permutation(kept);
            return;
        }
        // Where none was free, the node was logged, and any that does not count will do.
        let slot = parent.free_slots_beside(kept).trailing_zeros() as usize;
        parent.touch(1 | 1 << (slot / 4 + 1));
        self.fill_slot(self.slotted(parent.off), slot, new);
        parent.set_permutation(kept.insert(rank, slot));
    }

    /// Takes the key of a rank, and the child to its right, out of a dirty node.
    pub(crate) fn leave_slot(&self, parent: &Locked<'a, M, P>, rank: usize) {
        parent.touch(1);
        parent.set_permutation(self.ranks(self.slotted(parent.off)).remove(rank));
    }

    /// What contradicts itself in a node.
    pub(crate) fn slotted_finding(&self, off: Off<Node>) -> Option<String> {
        let permutation = self.ranks(self.slotted(off));
        let sound = permutation.mask().count_ones() as usize == permutation.len();
        (!sound).then(|| format!("permutation {permutation:?} of an interior node"))
    }
}

/// Where among the [words](Node::rest) behind the stamp the leftmost child is, and the child of slot 0.
const FIRST: usize = std::mem::offset_of!(Slotted, first) / 8 - std::mem::offset_of!(Node, rest) / 8;
const CHILD: usize = std::mem::offset_of!(Slotted, slots) / 8 - std::mem::offset_of!(Node, rest) / 8 + 1;
