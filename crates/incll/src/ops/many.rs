//! Looking up and inserting many keys: the descents of a group go down level by level together, so that one waits for memory while
//! the others go on.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Node, version};
use crate::node::context::Context;
use crate::node::descend::{MAX_DEPTH, Place};
use crate::node::part::Part;
use crate::ops::get::Found;
use crate::tree::Masstree;
use crate::value::Value;

/// Descents under way at a time: more than current processors wait for lines, so that one level of all of them takes as
/// long as memory needs for that many nodes.
const WIDTH: usize = 16;

/// One descent.
struct Lane<'a, 'k> {
    /// Number of the key.
    index: usize,
    rest: &'k [u8],
    part: Part,
    /// The node that was asked for, and the one above, which must not change before it was entered.
    next: Off<Node>,
    above: Option<(&'a Node, u64)>,
    /// Nodes of the layer that were passed.
    depth: usize,
}

/// What a step has brought.
enum Step<'a, M: Medium> {
    Further,
    Done(Option<Value<'a, M>>),
    /// Something has changed on the way: the plain lookup takes over.
    Lost,
}

impl<'k> Lane<'_, 'k> {
    fn new(index: usize, rest: &'k [u8], root: Off<Node>) -> Self {
        Lane { index, rest, part: Part::of(rest), next: root, above: None, depth: 0 }
    }
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    #[inline(always)]
    fn step(&self, lane: &mut Lane<'a, '_>) -> Result<Step<'a, M>> {
        let (node, version) = self.enter(lane.next)?;
        let above_holds = lane.above.is_none_or(|(above, seen)| self.is_still(above, seen));
        if !above_holds || version & version::DELETED != 0 {
            return Ok(Step::Lost);
        }
        if self.op.load(&node.stamp, Relaxed).is_interior() {
            let (_, child) = self.route(lane.next, lane.part.slice);
            self.op.prefetch(child);
            if child.is_null() || !self.is_still(node, version) {
                return Ok(Step::Lost);
            }
            (lane.next, lane.above) = (child, Some((node, version)));
            lane.depth += 1;
            // In a damaged tree a chain of nodes may lead in a circle: the plain lookup says so.
            return Ok(if lane.depth < MAX_DEPTH { Step::Further } else { Step::Lost });
        }
        let place = Place { node, version, above: None, low: None };
        Ok(match self.look(place, lane.part, lane.rest)? {
            Found::Value(value) => Step::Done(Some(value)),
            Found::Nothing => Step::Done(None),
            Found::Again => Step::Lost,
            Found::Layer(root) => {
                self.op.prefetch(root);
                *lane = Lane::new(lane.index, &lane.rest[8..], root);
                Step::Further
            }
        })
    }

    /// Looks up at most [`WIDTH`] keys; `lanes` is empty before and after.
    fn get_group<'k, K: AsRef<[u8]>>(
        &self,
        keys: &'k [K],
        found: &mut [Option<Value<'a, M>>],
        lanes: &mut Vec<Lane<'a, 'k>>,
    ) -> Result<()> {
        for (index, key) in keys.iter().enumerate() {
            self.tree.check_key(key.as_ref())?;
            lanes.push(Lane::new(index, key.as_ref(), self.tree.root));
        }
        while !lanes.is_empty() {
            let mut at = 0;
            while let Some(lane) = lanes.get_mut(at) {
                match self.step(lane)? {
                    Step::Further => {
                        at += 1;
                        continue;
                    }
                    Step::Done(value) => found[lane.index] = value,
                    Step::Lost => found[lane.index] = self.get(keys[lane.index].as_ref())?,
                }
                lanes.swap_remove(at);
            }
        }
        Ok(())
    }
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// Has the nodes on the ways of at most [`WIDTH`] keys fetched, as far as their first slices lead. It only looks, and
    /// concludes nothing: whatever it meets in the middle of a change, it asks for a line that nobody needs.
    fn approach<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut lanes = [(self.tree.root, 0); WIDTH];
        let mut count = 0;
        for (lane, key) in lanes.iter_mut().zip(keys) {
            lane.1 = Part::of(key).slice;
            count += 1;
        }
        for _ in 0..MAX_DEPTH {
            let mut at = 0;
            while at < count {
                let (off, slice) = lanes[at];
                if !self.op.load(&self.op.at(off).stamp, Relaxed).is_interior() {
                    count -= 1;
                    lanes.swap(at, count);
                    continue;
                }
                lanes[at].0 = self.route(off, slice).1;
                self.op.prefetch(lanes[at].0);
                at += 1;
            }
            if count == 0 {
                return;
            }
        }
    }
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// Maps many keys to values, one after the other, as [`insert`](Self::insert) does. Returns how many keys are new. On a tree
    /// that does not fit into the caches faster than one by one.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); the entries before the one that fails are inserted.
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, op: &Op<'_, M>, entries: &[(K, V)]) -> Result<usize> {
        let mut new = 0;
        for group in entries.chunks(WIDTH) {
            self.cx(op, &[])?.approach(group.iter().map(|(key, _)| key.as_ref()));
            for (key, value) in group {
                new += usize::from(self.insert(op, key.as_ref(), value.as_ref())?);
            }
        }
        Ok(new)
    }

    /// The values of many keys, in their order. On a tree that does not fit into the caches several times as fast as
    /// looking up one by one.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_many<'a, K: AsRef<[u8]>>(&'a self, op: &'a Op<'_, M>, keys: &[K]) -> Result<Vec<Option<Value<'a, M>>>> {
        let cx = self.cx(op, &[])?;
        let mut found = vec![None; keys.len()];
        let mut lanes = Vec::with_capacity(WIDTH);
        for (keys, found) in keys.chunks(WIDTH).zip(found.chunks_mut(WIDTH)) {
            cx.get_group(keys, found, &mut lanes)?;
        }
        Ok(found)
    }
}
