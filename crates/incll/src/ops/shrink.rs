//! Taking empty border nodes and empty layers out of the tree.
//!
//! An empty border node is taken out, with the ancestors that lead to nothing else. The lowest of its ancestors that leads to others
//! loses a child: if there is one before it, the border node on the left comes to hold what the empty one held; if it was the first
//! child, the border node on the right, which then starts earlier (a border node never starts later than it did). A root with one
//! child takes the child's content; a layer without keys is removed from the layer above. Locks are taken from left to right, then
//! upwards; towards another layer from below. It is done at once after the removal that has emptied the node, by the same
//! operation, and given up where the nodes concerned have changed meanwhile, or cannot be logged: an empty node does no harm.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Persistent};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Border, Kinds, Node, Stamp, kind, place_of, version};
use crate::node::context::Context;
use crate::node::descend::{Place, purpose};
use crate::node::lock::Locked;
use crate::node::part::Part;
use crate::node::read::Wait;

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
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
        let Some(place) = self.descend_for::<{ purpose::REVERSE }>(root, slice)? else { return Ok(()) };
        let node = self.op.off_of(place.node);
        let empty = self.op.load(&self.border(node).permutation, Relaxed).is_empty();
        if node != root && empty && self.take_out(root, slice, place)? {
            while self.lower_root(root)? {}
        }
        Ok(())
    }

    /// Takes an empty border node out, with the ancestors that lead to nothing else. Returns whether the root may be left with one
    /// child.
    fn take_out(&self, root: Off<Node>, slice: u64, place: Place<'a>) -> Result<bool> {
        let Some(mut left) = self.lock_left_of(root, place)? else { return Ok(false) };
        let Some(mut node) = self.lock_any(self.op.off_of(place.node))? else { return Ok(false) };
        let (op, border) = (self.op, node.border());
        let next = op.load(&border.next, Relaxed);
        let follows = left.as_ref().is_none_or(|left| op.load(&left.border().next, Relaxed) == node.off);
        if !follows || !self.holds(&node, slice) || !op.load(&border.permutation, Relaxed).is_empty() {
            return Ok(false);
        }
        let (mut chain, mut above) = (Vec::new(), self.lock_parent(root, slice, node.off)?);
        while self.count(above.interior()) == 0 {
            if above.off == root {
                return Ok(true);
            }
            let upper = self.lock_parent(root, slice, above.off)?;
            chain.push(std::mem::replace(&mut above, upper));
        }
        let (mut keys, mut children) = self.content(above.off);
        let top = chain.last().map_or(node.off, |top| top.off);
        let Some(index) = children.iter().position(|child| *child == top) else { return Ok(false) };
        if index > 0 && left.is_none() {
            return Err(self.corrupt("a separator", above.off, keys[index - 1]));
        }
        let in_line = P::INTERIOR_IN_LINE && index > 0;
        self.log(&left.iter().chain((!in_line).then_some(&above)).collect::<Vec<_>>())?;
        for gone in std::iter::once(&node).chain(&chain) {
            self.free_node(gone.off)?;
        }
        above.mark_dirty();
        std::iter::once(&mut node).chain(&mut chain).for_each(Locked::mark_deleted);
        if let Some(left) = &mut left {
            left.mark_dirty();
            op.store(&left.border().next, next, Relaxed);
            if index > 0 {
                op.store(&left.border().high, op.load(&border.high, Relaxed), Relaxed);
            }
        }
        if in_line {
            self.leave_slot(&above, index - 1);
        } else {
            above.note(Stamp::ALL_LINES);
            keys.remove(index.saturating_sub(1));
            children.remove(index);
            self.fill_interior(above.off, &keys, &children);
        }
        Ok(true)
    }

    /// Locks the border node to the left of one to which a [reverse](purpose::REVERSE) descent has come: `Some(None)` if that is the
    /// first of its layer, `None` if something has changed.
    fn lock_left_of(&self, root: Off<Node>, place: Place<'a>) -> Result<Option<Option<Locked<'a, M, P>>>> {
        let Some(low) = place.low else { return Ok(Some(None)) };
        match self.descend(root, low.wrapping_sub(1))? {
            Some(left) if !std::ptr::eq(left.node, place.node) => {
                Ok(self.lock_any(self.op.off_of(left.node))?.map(Some))
            }
            _ => Ok(None),
        }
    }

    /// Whether a border node, which held a slice some time ago, still does: it never starts later than it did.
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
            op.store(&border.inline, place_of(locked.off.get()) ^ self.layer_name(child.off).seal(), Relaxed);
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
                wait.again(self, node)?;
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
