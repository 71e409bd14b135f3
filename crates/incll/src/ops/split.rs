//! Splitting nodes, from a border node up.
//!
//! All nodes that change are locked, from below to above; all blocks are taken; the images of all of them go to the
//! external log under one fence (IN-P3); then everything is changed. A root stays where it is: its content moves into two new
//! children.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Border, Interior, KEYS, Kinds, Node, Permutation, SLOTS, Stamp, place_of};
use crate::node::context::Context;
use crate::node::entry::Entry;
use crate::node::lock::Locked;
use crate::node::new_blocks::NewBlocks;

/// A separator, and the node to its right.
pub(crate) type Separator = (u64, Off<Node>);

/// Which of the keys of a full interior node and a new one goes up: those before it stay.
pub(crate) const MIDDLE: usize = KEYS.div_ceil(2);

/// How a descent has come to a node: the root of its layer, and the node that was above it.
#[derive(Clone, Copy)]
pub(crate) struct Descent<'a> {
    pub(crate) root: Off<Node>,
    pub(crate) above: Option<&'a Node>,
}

/// A key that is new in a full node: where it goes, and which entry is the first of the right node.
#[derive(Clone, Copy)]
struct Cut {
    entry: Entry,
    rank: usize,
    at: usize,
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// Splits a full node and inserts `entry` at `rank`.
    pub(crate) fn split(
        &self,
        mut locked: Locked<'a, M, P>,
        way: Descent<'a>,
        rank: usize,
        entry: Entry,
        fresh: &mut NewBlocks<'a, M, P>,
    ) -> Result<()> {
        let mut entries = self.entries(locked.border());
        // A damaged allocator may have given the node's own block out, for the record of the entry.
        if rank > entries.len() {
            return Err(self.corrupt("the permutation of a full node", locked.off, entries.len() as u64));
        }
        entries.insert(rank, entry);
        let at = self.split_point(&locked, &entries, rank)?;
        if locked.off == way.root {
            return self.split_root(locked, &entries, at, fresh);
        }
        let slice = entries[0].slice;
        let parent = match self.lock_above_at(way.above, slice, locked.off)? {
            Some(parent) => parent,
            None => self.lock_parent(way.root, slice, locked.off)?,
        };
        let mut above = self.lock_above(parent, way.root, slice)?;
        let right = fresh.border(&entries[at..], self.layer_name(locked.off))?;
        let blocks = self.blocks_for(&above, way.root, fresh)?;
        if P::INTERIOR_IN_LINE {
            self.log_for_slotted(&locked, &above, way.root, entries[at].slice)?;
        } else {
            self.log_for_split(&locked, &above)?;
        }
        locked.mark_dirty();
        above.iter_mut().for_each(Locked::mark_dirty);
        self.move_right(&locked, right, entries[at].slice, Cut { entry, rank, at });
        self.insert_above(&above, way.root, (entries[at].slice, right), blocks);
        Ok(())
    }

    /// Logs a border node and its ancestors under one fence. Ancestors that are split, too, are written from end to end.
    fn log_for_split(&self, locked: &Locked<'a, M, P>, above: &[Locked<'a, M, P>]) -> Result<()> {
        if let [parent] = above {
            self.log(&[locked, parent])?;
        } else {
            self.log(&std::iter::once(locked).chain(above).collect::<Vec<_>>())?;
        }
        let is_full = |parent: &&Locked<'a, M, P>| self.count(parent.interior()) == KEYS;
        above.iter().filter(is_full).for_each(|parent| parent.note(Stamp::ALL_LINES));
        Ok(())
    }

    /// The live entries of a border node, in order, with room for one more.
    pub(crate) fn entries(&self, border: &Border) -> Vec<Entry> {
        let permutation = self.op.load(&border.permutation, Relaxed);
        let kinds: Kinds = self.op.load(&border.kinds, Relaxed);
        let mut entries = Vec::with_capacity(SLOTS + 1);
        entries.extend((0..permutation.len()).map(|rank| self.entry_in(border, kinds, permutation.slot(rank))));
        entries
    }

    /// Which entry is the first of the right node: in the middle, but behind everything where keys come in ascending
    /// order; never between entries of one slice.
    fn split_point(&self, locked: &Locked<'a, M, P>, entries: &[Entry], rank: usize) -> Result<usize> {
        let last = entries.len() - 1;
        let ascending = rank == last && self.op.load(&locked.border().next, Relaxed).is_null();
        let ideal = if ascending { last } else { entries.len().div_ceil(2) };
        let parts = |at: usize| entries[at - 1].slice < entries[at].slice;
        let nearest = (1..=last).filter(|at| parts(*at)).min_by_key(|at| at.abs_diff(ideal));
        nearest.ok_or_else(|| self.corrupt("the keys of a node", locked.off, entries[0].slice))
    }

    /// Locks the ancestors from the locked `parent` up to one that has room, or to the root.
    fn lock_above(&self, parent: Locked<'a, M, P>, root: Off<Node>, slice: u64) -> Result<Vec<Locked<'a, M, P>>> {
        let mut above = vec![parent];
        while let Some(last) = above.last()
            && last.off != root
            && self.count(last.interior()) == KEYS
        {
            above.push(self.lock_parent(root, slice, last.off)?);
        }
        Ok(above)
    }

    /// One new node for each ancestor that is full, two for a root.
    fn blocks_for(
        &self,
        above: &[Locked<'a, M, P>],
        root: Off<Node>,
        fresh: &mut NewBlocks<'a, M, P>,
    ) -> Result<Vec<Off<Node>>> {
        let mut blocks = Vec::new();
        for parent in above.iter().filter(|parent| self.count(parent.interior()) == KEYS) {
            for _ in 0..if parent.off == root { 2 } else { 1 } {
                blocks.push(fresh.interior()?);
            }
        }
        Ok(blocks)
    }

    /// Links a new right sibling, which holds the entries behind the cut already. What stays on the left stays in its slots, so
    /// that only the first line of the node changes, and the line of the new key if it belongs there.
    fn move_right(&self, locked: &Locked<'a, M, P>, right: Off<Node>, sep: u64, cut: Cut) {
        let (op, left, new) = (self.op, locked.border(), self.border(right));
        op.store(&new.next, op.load(&left.next, Relaxed), Relaxed);
        op.store(&new.high, op.load(&left.high, Relaxed), Relaxed);
        let permutation: Permutation = op.load(&left.permutation, Relaxed);
        let permutation = if cut.rank < cut.at {
            let kept = permutation.truncate(cut.at - 1);
            let slot = (!kept.mask()).trailing_zeros() as usize;
            locked.note(1 << (slot / 4 + 1));
            self.fill(left, slot, cut.entry);
            kept.insert(cut.rank, slot)
        } else {
            permutation.truncate(cut.at)
        };
        op.store(&left.permutation, permutation, Relaxed);
        op.store(&left.next, right, Relaxed);
        op.store(&left.high, sep, Relaxed);
    }

    /// Writes entries, in their order, over all that a logged node holds.
    pub(crate) fn refill(&self, border: &Border, entries: &[Entry]) {
        for (slot, entry) in entries.iter().enumerate() {
            self.fill(border, slot, *entry);
        }
        self.op.store(&border.permutation, Permutation::first(entries.len().min(SLOTS)), Relaxed);
    }

    /// Turns a border root into an interior node with two children.
    fn split_root(
        &self,
        mut locked: Locked<'a, M, P>,
        entries: &[Entry],
        at: usize,
        fresh: &mut NewBlocks<'a, M, P>,
    ) -> Result<()> {
        let layer = self.layer_name(locked.off);
        let (left, right) = (fresh.border(&entries[..at], layer)?, fresh.border(&entries[at..], layer)?);
        self.log_whole(&[&locked])?;
        let op = self.op;
        let sep = entries[at].slice;
        op.store(&self.border(left).next, right, Relaxed);
        op.store(&self.border(left).high, sep, Relaxed);
        locked.mark_dirty();
        self.become_root(&locked, sep, left, right);
        Ok(())
    }

    /// Makes a logged root the parent of two nodes.
    fn become_root(&self, locked: &Locked<'a, M, P>, sep: u64, left: Off<Node>, right: Off<Node>) {
        let op = self.op;
        self.fill_interior(locked.off, &[sep], &[left, right]);
        let stamp = locked.stamp();
        // The epoch and the lines stay: the node was logged just now, or is new.
        op.store(&locked.node.stamp, stamp.of_kind(true), Relaxed);
    }

    /// Writes keys and children of a node that is logged or new.
    pub(crate) fn fill_interior(&self, off: Off<Node>, keys: &[u64], children: &[Off<Node>]) {
        if P::INTERIOR_IN_LINE {
            return self.fill_slotted(off, keys, children);
        }
        let (op, interior) = (self.op, self.interior(off));
        op.store(&interior.count, keys.len() as u64, Relaxed);
        op.store(&interior.place, place_of(off.get()), Relaxed);
        let keys = keys.iter().copied().chain(std::iter::repeat(u64::MAX));
        interior.keys.iter().zip(keys).for_each(|(word, key)| op.store(word, key, Relaxed));
        interior.children.iter().zip(children).for_each(|(word, child)| op.store(word, *child, Relaxed));
    }

    /// Keys and children of an interior node.
    pub(crate) fn content(&self, off: Off<Node>) -> (Vec<u64>, Vec<Off<Node>>) {
        if P::INTERIOR_IN_LINE {
            return self.slotted_content(off);
        }
        let interior = self.interior(off);
        let count = self.count(interior);
        let keys = interior.keys[..count].iter().map(|word| self.op.load(word, Relaxed)).collect();
        (keys, interior.children[..=count].iter().map(|word| self.op.load(word, Relaxed)).collect())
    }

    /// Inserts a separator and the node to its right into the locked ancestors, which are logged (or under InCLLp) and dirty.
    fn insert_above(&self, above: &[Locked<'a, M, P>], root: Off<Node>, new: Separator, blocks: Vec<Off<Node>>) {
        let (mut new, mut blocks) = (new, blocks.into_iter());
        for parent in above {
            if self.count(parent.interior()) < KEYS {
                self.insert_into(parent, new);
                return;
            }
            let (mut keys, mut children) = self.content(parent.off);
            let index = keys.partition_point(|key| *key <= new.0);
            keys.insert(index, new.0);
            children.insert(index + 1, new.1);
            let middle = MIDDLE;
            let up = keys[middle];
            let mut block = || blocks.next().expect("blocks were taken for all ancestors");
            let right = if parent.off == root {
                let (left, right) = (block(), block());
                self.fill_interior(left, &keys[..middle], &children[..=middle]);
                self.become_root(parent, up, left, right);
                right
            } else {
                if P::INTERIOR_IN_LINE {
                    self.take_separator(parent, new);
                } else {
                    self.fill_interior(parent.off, &keys[..middle], &children[..=middle]);
                }
                block()
            };
            self.fill_interior(right, &keys[middle + 1..], &children[middle + 1..]);
            new = (up, right);
        }
    }

    /// Inserts a separator and the node to its right into a node with room, and notes the lines that change.
    fn insert_into(&self, parent: &Locked<'a, M, P>, (sep, right): Separator) {
        if P::INTERIOR_IN_LINE {
            return self.take_separator(parent, (sep, right));
        }
        let (op, interior) = (self.op, parent.interior());
        let count = self.count(interior);
        // Keys that do not count may hold anything in a damaged node.
        let index = self.child_index(interior, sep).min(count);
        parent.note(
            1 | lines_of(FIRST_KEY + index, FIRST_KEY + count)
                | lines_of(FIRST_CHILD + index + 1, FIRST_CHILD + count + 1),
        );
        for at in (index..count).rev() {
            op.store(&interior.keys[at + 1], op.load(&interior.keys[at], Relaxed), Relaxed);
            op.store(&interior.children[at + 2], op.load(&interior.children[at + 1], Relaxed), Relaxed);
        }
        op.store(&interior.keys[index], sep, Relaxed);
        op.store(&interior.children[index + 1], right, Relaxed);
        op.store(&interior.count, count as u64 + 1, Relaxed);
    }
}

/// Where in an interior node, in words, its keys and its children start.
const FIRST_KEY: usize = std::mem::offset_of!(Interior, keys) / 8;
const FIRST_CHILD: usize = std::mem::offset_of!(Interior, children) / 8;

/// The lines, a bit each, of the words `first..=last` of a node.
fn lines_of(first: usize, last: usize) -> u64 {
    (2 << (last / 8)) - (1 << (first / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_words() {
        assert_eq!([lines_of(0, 0), lines_of(7, 8), lines_of(8, 31), lines_of(39, 39)], [1, 3, 0b1110, 0b1_0000]);
        assert_eq!((FIRST_KEY, FIRST_CHILD), (4, 19));
    }
}
