//! Splitting nodes, from a border node up.
//!
//! All nodes that change are locked, from below to above; all blocks are taken; the images of all of them go to the
//! external log under one fence (P3); then everything is changed. A root stays where it is: its content moves into two new
//! children.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::cx::{Cx, Fresh, Locked};
use crate::error::Result;
use crate::layout::{Border, Interior, KEYS, Kinds, Node, Permutation, SLOTS, Stamp};
use crate::update::Entry;

/// A separator, and the node to its right.
type Above = (u64, Off<Node>);

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    /// Splits a full node and inserts `entry` at `rank`.
    pub(crate) fn split(
        &self,
        mut locked: Locked<'a, M, P>,
        root: Off<Node>,
        rank: usize,
        entry: Entry,
        fresh: &mut Fresh<'a, M, P>,
    ) -> Result<()> {
        let mut entries = self.entries(locked.border());
        entries.insert(rank, entry);
        let at = self.split_point(&locked, &entries, rank)?;
        if locked.off == root {
            return self.split_root(locked, &entries, at, fresh);
        }
        let mut above = self.lock_above(&locked, root, entries[0].slice)?;
        let right = fresh.node(false)?;
        let blocks = self.blocks_for(&above, root, fresh)?;
        let all: Vec<_> = std::iter::once(&locked).chain(&above).collect();
        self.log(&all)?;
        locked.mark_dirty();
        above.iter_mut().for_each(Locked::mark_dirty);
        self.move_right(locked.border(), right, &entries, at);
        self.insert_above(&above, root, (entries[at].slice, right), blocks);
        Ok(())
    }

    /// The live entries of a border node, in order.
    pub(crate) fn entries(&self, border: &Border) -> Vec<Entry> {
        let permutation = self.op.load(&border.permutation, Relaxed);
        let kinds: Kinds = self.op.load(&border.kinds, Relaxed);
        (0..permutation.len()).map(|rank| self.entry_in(border, kinds, permutation.slot(rank))).collect()
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

    /// Locks the ancestors up to one that has room, or to the root.
    fn lock_above(&self, locked: &Locked<'a, M, P>, root: Off<Node>, slice: u64) -> Result<Vec<Locked<'a, M, P>>> {
        let mut above: Vec<Locked<'a, M, P>> = Vec::new();
        loop {
            let child = above.last().map_or(locked.off, |parent| parent.off);
            let parent = self.lock_parent(root, slice, child)?;
            let done = parent.off == root || self.count(parent.interior()) < KEYS;
            above.push(parent);
            if done {
                return Ok(above);
            }
        }
    }

    /// One new node for each ancestor that is full, two for a root.
    fn blocks_for(
        &self,
        above: &[Locked<'a, M, P>],
        root: Off<Node>,
        fresh: &mut Fresh<'a, M, P>,
    ) -> Result<Vec<Off<Node>>> {
        let mut blocks = Vec::new();
        for parent in above.iter().filter(|parent| self.count(parent.interior()) == KEYS) {
            for _ in 0..if parent.off == root { 2 } else { 1 } {
                blocks.push(fresh.node(true)?);
            }
        }
        Ok(blocks)
    }

    /// Moves the entries from `at` on to a new right sibling, and the others into order.
    fn move_right(&self, left: &Border, right: Off<Node>, entries: &[Entry], at: usize) {
        let op = self.op;
        self.fill_fresh(right, &entries[at..]);
        let new = self.border(right);
        op.store(&new.next, op.load(&left.next, Relaxed), Relaxed);
        op.store(&new.high, op.load(&left.high, Relaxed), Relaxed);
        self.refill(left, &entries[..at]);
        op.store(&left.next, right, Relaxed);
        op.store(&left.high, entries[at].slice, Relaxed);
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
        fresh: &mut Fresh<'a, M, P>,
    ) -> Result<()> {
        let (left, right) = (fresh.node(false)?, fresh.node(false)?);
        self.log(&[&locked])?;
        let op = self.op;
        let sep = entries[at].slice;
        self.fill_fresh(left, &entries[..at]);
        self.fill_fresh(right, &entries[at..]);
        op.store(&self.border(left).next, right, Relaxed);
        op.store(&self.border(left).high, sep, Relaxed);
        locked.mark_dirty();
        self.become_root(&locked, sep, left, right);
        Ok(())
    }

    /// Makes a logged root the parent of two nodes.
    fn become_root(&self, locked: &Locked<'a, M, P>, sep: u64, left: Off<Node>, right: Off<Node>) {
        let op = self.op;
        self.fill_interior(locked.interior(), &[sep], &[left, right]);
        let stamp = locked.stamp();
        // The epoch and the lines stay: the node was logged just now, or is new.
        op.store(&locked.node.stamp, Stamp::new(stamp.epoch(), true, stamp.is_logged(), stamp.lines()), Relaxed);
    }

    /// Writes keys and children of a node that is logged or new.
    pub(crate) fn fill_interior(&self, interior: &Interior, keys: &[u64], children: &[Off<Node>]) {
        let op = self.op;
        op.store(&interior.count, keys.len() as u64, Relaxed);
        interior.keys.iter().zip(keys).for_each(|(word, key)| op.store(word, *key, Relaxed));
        interior.children.iter().zip(children).for_each(|(word, child)| op.store(word, *child, Relaxed));
    }

    /// Keys and children of an interior node.
    pub(crate) fn content(&self, interior: &Interior) -> (Vec<u64>, Vec<Off<Node>>) {
        let count = self.count(interior);
        let keys = interior.keys[..count].iter().map(|word| self.op.load(word, Relaxed)).collect();
        (keys, interior.children[..=count].iter().map(|word| self.op.load(word, Relaxed)).collect())
    }

    /// Inserts a separator and the node to its right into the locked ancestors, which are logged and dirty.
    fn insert_above(&self, above: &[Locked<'a, M, P>], root: Off<Node>, new: Above, blocks: Vec<Off<Node>>) {
        let (mut new, mut blocks) = (new, blocks.into_iter());
        for parent in above {
            let (mut keys, mut children) = self.content(parent.interior());
            let index = keys.partition_point(|key| *key <= new.0);
            keys.insert(index, new.0);
            children.insert(index + 1, new.1);
            if keys.len() <= KEYS {
                self.fill_interior(parent.interior(), &keys, &children);
                return;
            }
            let middle = keys.len() / 2;
            let up = keys[middle];
            let mut block = || blocks.next().expect("blocks were taken for all ancestors");
            let right = if parent.off == root {
                let (left, right) = (block(), block());
                self.fill_interior(self.interior(left), &keys[..middle], &children[..=middle]);
                self.become_root(parent, up, left, right);
                right
            } else {
                self.fill_interior(parent.interior(), &keys[..middle], &children[..=middle]);
                block()
            };
            self.fill_interior(self.interior(right), &keys[middle + 1..], &children[middle + 1..]);
            new = (up, right);
        }
    }
}
