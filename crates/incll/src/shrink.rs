//! Taking empty border nodes and empty layers out of the tree.
//!
//! An empty border node is merged with a sibling under the same parent; a root with one child takes the child's content; a
//! layer without keys is removed from the layer above. Locks are taken from left to right, then upwards; towards another
//! layer from below. It is done at once after the removal that has emptied the node, by the same operation, and given up
//! where the nodes concerned have changed meanwhile: an empty node does no harm. A node that is the only child of a parent
//! other than the root stays, too, until a sibling of its parent comes to hold keys in its range.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Persistent};

use crate::Policy;
use crate::cx::{Cx, Locked, Wait};
use crate::descend::Part;
use crate::error::Result;
use crate::layout::{Border, Kinds, Node, kind, version};

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    /// Takes out what the removal of `key` has left empty.
    #[cold]
    pub(crate) fn shrink(&self, key: &[u8]) -> Result<()> {
        let mut layers = self.layers_of(key)?;
        while let Some((root, at)) = layers.pop() {
            let slice = Part::of(&key[at..]).slice;
            self.shrink_layer(root, slice)?;
            let Some((upper, upper_at)) = layers.last() else { return Ok(()) };
            if !self.remove_layer(*upper, root, Part::of(&key[*upper_at..]))? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The roots of the layers that a key leads through, with how many of its bytes are behind.
    fn layers_of(&self, key: &[u8]) -> Result<Vec<(Off<Node>, usize)>> {
        let mut layers = vec![(self.tree.root, 0)];
        while let Some((root, at)) = layers.last().copied() {
            let part = Part::of(&key[at..]);
            let Some(place) = self.descend(root, part.slice)? else { break };
            let (op, border) = (self.op, place.node.view::<Border>());
            let (permutation, kinds) = (op.load(&border.permutation, Relaxed), op.load(&border.kinds, Relaxed));
            let Ok(rank) = self.search(border, permutation, kinds, part) else { break };
            let slot = permutation.slot(rank);
            let next = op.load(&border.slots[slot][1], Relaxed);
            if kinds.get(slot) != kind::LAYER || !self.is_still(place.node, place.version) {
                break;
            }
            layers.push((Off::new(next), at + 8));
        }
        Ok(layers)
    }

    fn shrink_layer(&self, root: Off<Node>, slice: u64) -> Result<()> {
        let Some(place) = self.descend(root, slice)? else { return Ok(()) };
        let node = self.op.off_of(place.node);
        let empty = self.op.load(&self.border(node).permutation, Relaxed).is_empty();
        if node != root && empty && self.merge(root, slice, node)? {
            while self.lower_root(root)? {}
        }
        Ok(())
    }

    /// Merges an empty border node with a sibling. Returns whether it did.
    fn merge(&self, root: Off<Node>, slice: u64, node: Off<Node>) -> Result<bool> {
        let Some((left, right)) = self.neighbours(root, slice, node)? else { return Ok(false) };
        let (Some(mut a), Some(mut b)) = (self.lock_any(left)?, self.lock_any(right)?) else { return Ok(false) };
        if !self.holds(if left == node { &a } else { &b }, slice) {
            return Ok(false);
        }
        let mut parent = self.lock_parent(root, slice, node)?;
        let (keys, children) = self.content(parent.off);
        let op = self.op;
        let is_empty = |locked: &Locked<'a, M, P>| op.load(&locked.border().permutation, Relaxed).is_empty();
        let index = children.windows(2).position(|pair| pair == [left, right]);
        let (Some(index), true) = (index, is_empty(&a) || is_empty(&b)) else { return Ok(false) };
        if P::INTERIOR_IN_LINE {
            self.log_whole(&[&a])?;
        } else {
            self.log_whole(&[&a, &parent])?;
        }
        self.free_node(right)?;
        a.mark_dirty();
        b.mark_deleted();
        parent.mark_dirty();
        if is_empty(&a) {
            self.refill(a.border(), &self.entries(b.border()));
        }
        op.store(&a.border().next, op.load(&b.border().next, Relaxed), Relaxed);
        op.store(&a.border().high, op.load(&b.border().high, Relaxed), Relaxed);
        self.remove_child(&parent, index, (keys, children));
        Ok(true)
    }

    /// Takes a key and the child to its right out of a node with this content, which is logged (or under InCLLp) and dirty.
    fn remove_child(&self, parent: &Locked<'a, M, P>, index: usize, content: (Vec<u64>, Vec<Off<Node>>)) {
        if P::INTERIOR_IN_LINE {
            return self.leave_slot(parent, index);
        }
        let (mut keys, mut children) = content;
        keys.remove(index);
        children.remove(index + 1);
        self.fill_interior(parent.off, &keys, &children);
    }

    /// A border node and a sibling under the same parent, from left to right.
    fn neighbours(&self, root: Off<Node>, slice: u64, node: Off<Node>) -> Result<Option<(Off<Node>, Off<Node>)>> {
        let parent = self.lock_parent_of(root, slice, node)?;
        let Some(parent) = parent else { return Ok(None) };
        let (_, children) = self.content(parent.off);
        let index = children.iter().position(|child| *child == node);
        Ok(index.and_then(|index| match index {
            0 => children.get(1).map(|right| (node, *right)),
            _ => Some((children[index - 1], node)),
        }))
    }

    /// The parent of a node that is not locked, if it still is in the tree.
    fn lock_parent_of(&self, root: Off<Node>, slice: u64, node: Off<Node>) -> Result<Option<Locked<'a, M, P>>> {
        let held = self.lock_any(node)?;
        let Some(held) = held.filter(|held| self.holds(held, slice)) else { return Ok(None) };
        let parent = self.lock_parent(root, slice, node)?;
        drop(held);
        Ok(Some(parent))
    }

    /// Whether a border node, which held a slice some time ago, still does: its low bound never changes.
    fn holds(&self, locked: &Locked<'a, M, P>, slice: u64) -> bool {
        let border = locked.border();
        self.op.load(&border.next, Relaxed).is_null() || slice < self.op.load(&border.high, Relaxed)
    }

    /// Gives an interior root with one child the child's content. Returns whether it did.
    fn lower_root(&self, root: Off<Node>) -> Result<bool> {
        let (node, found) = self.enter(root)?;
        let (op, interior) = (self.op, self.interior(root));
        let single = op.load(&node.stamp, Relaxed).is_interior() && self.count(interior) == 0;
        let child = self.child(node, 0);
        if !single || !self.is_still(node, found) || found & version::DELETED != 0 {
            return Ok(false);
        }
        let Some(mut child) = self.lock_any(child)? else { return Ok(false) };
        let Some(mut locked) = self.lock(root, found) else { return Ok(false) };
        self.log_whole(&[&locked])?;
        self.free_node(child.off)?;
        locked.mark_dirty();
        child.mark_deleted();
        let interior_child = child.stamp().is_interior();
        if interior_child {
            let (keys, children) = self.content(child.off);
            self.fill_interior(locked.off, &keys, &children);
        } else {
            let border = locked.border();
            op.store(&border.kinds, Kinds::default(), Relaxed);
            op.store(&border.inline, 0, Relaxed);
            op.store(&border.next, Off::NULL, Relaxed);
            self.refill(border, &self.entries(child.border()));
        }
        let stamp = locked.stamp();
        let new = stamp.of_kind(interior_child);
        op.store(&locked.node.stamp, new, Relaxed);
        Ok(true)
    }

    /// Removes an empty layer from the one above. Returns whether that has left a node empty there.
    fn remove_layer(&self, upper: Off<Node>, layer: Off<Node>, part: Part) -> Result<bool> {
        let Some(mut below) = self.lock_any(layer)? else { return Ok(false) };
        let is_interior = below.stamp().is_interior();
        if is_interior || !self.op.load(&below.border().permutation, Relaxed).is_empty() {
            return Ok(false);
        }
        let mut wait = Wait::new();
        loop {
            let Some(place) = self.descend(upper, part.slice)? else { return Ok(false) };
            let node = self.op.off_of(place.node);
            let Some(mut above) = self.lock(node, place.version) else {
                self.wait_for_lock(node)?;
                wait.again(node)?;
                continue;
            };
            let (op, border) = (self.op, above.border());
            let (permutation, kinds) = (op.load(&border.permutation, Relaxed), op.load(&border.kinds, Relaxed));
            let Ok(rank) = self.search(border, permutation, kinds, part) else { return Ok(false) };
            let slot = permutation.slot(rank);
            if kinds.get(slot) != kind::LAYER || op.load(&border.slots[slot][1], Relaxed) != layer.get() {
                return Ok(false);
            }
            above.log_unless_in_line()?;
            self.free_node(layer)?;
            above.touch(1);
            above.mark_dirty();
            below.mark_deleted();
            above.set_permutation(permutation.remove(rank));
            return Ok(permutation.len() == 1);
        }
    }
}
