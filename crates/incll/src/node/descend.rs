//! From the root of a layer to the border node of a slice, optimistically.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Bits, LineAt, Medium, Off, Persistent};

use crate::Policy;
use crate::error::{Error, Result};
use crate::layout::{Before, Border, Interior, KEYS, Kinds, Node, Permutation, kind, version};
use crate::node::context::Context;
use crate::node::lock::Locked;
use crate::node::part::Part;
use crate::node::read::Wait;

/// More levels than a tree of 2^48 nodes has.
pub(crate) const MAX_DEPTH: usize = 48;

/// What a descent is for, and so what is fetched beside its way.
pub(crate) mod purpose {
    /// One key.
    pub(crate) const POINT: u8 = 0;
    /// An ascending scan: the sibling to the right of each child, too.
    pub(crate) const ASCEND: u8 = 1;
    /// A descending scan: the sibling to the left, and where the node's slices start.
    pub(crate) const REVERSE: u8 = 2;
}

/// Where a descent has ended.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Node,
    pub(crate) version: u64,
    /// The node above; none for the root of a layer. A hint: it may have changed since.
    pub(crate) above: Option<&'a Node>,
    /// On the way of a [reverse](purpose::REVERSE) scan the largest separator passed on the right of, if any: where the node's
    /// slices start.
    pub(crate) low: Option<u64>,
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// The border node of `slice` in the layer of `root`; `None` if the layer is no longer part of the tree.
    #[inline(always)]
    pub(crate) fn descend(&self, root: Off<Node>, slice: u64) -> Result<Option<Place<'a>>> {
        self.descend_for::<{ purpose::POINT }>(root, slice)
    }

    /// The same, for a [purpose].
    #[inline(always)]
    pub(crate) fn descend_for<const FOR: u8>(&self, root: Off<Node>, slice: u64) -> Result<Option<Place<'a>>> {
        let mut wait = Wait::new();
        loop {
            let (node, version) = self.enter(root)?;
            if version & version::DELETED != 0 {
                return Ok(None);
            }
            let place = Place { node, version, above: None, low: None };
            if let Some(place) = self.descend_from::<FOR>(place, slice)? {
                return Ok(Some(place));
            }
            wait.again(self, root)?;
        }
    }

    /// As [`descend`](Self::descend), with one attempt: `None` also if something has changed on the way.
    #[inline(always)]
    pub(crate) fn try_descend(&self, root: Off<Node>, slice: u64) -> Result<Option<Place<'a>>> {
        let (node, version) = self.enter(root)?;
        if version & version::DELETED != 0 {
            return Ok(None);
        }
        let place = Place { node, version, above: None, low: None };
        self.descend_from::<{ purpose::POINT }>(place, slice)
    }

    /// `None` if something has changed on the way. While no node can be [old](Self::is_old), none is asked.
    #[inline(always)]
    fn descend_from<const FOR: u8>(&self, at: Place<'a>, slice: u64) -> Result<Option<Place<'a>>> {
        if P::DURABLE && !self.tree.trusted.is_never() {
            self.descend_asking::<FOR, true>(at, slice)
        } else {
            self.descend_asking::<FOR, false>(at, slice)
        }
    }

    #[inline(always)]
    fn descend_asking<const FOR: u8, const OLD: bool>(
        &self,
        mut at: Place<'a>,
        slice: u64,
    ) -> Result<Option<Place<'a>>> {
        let (lines, trusted) = (self.op.lines(), self.tree.trusted);
        for _ in 0..MAX_DEPTH {
            if !self.op.load(&at.node.stamp, Relaxed).is_interior() {
                // The kind is that of this version, or the version no longer holds, and whoever uses it finds out.
                return Ok(Some(at));
            }
            let Some(child) = self.step_down::<FOR, OLD>(at, slice, lines, trusted)? else { return Ok(None) };
            at = child;
        }
        Err(self.corrupt("a chain of nodes, deeper than any tree,", self.op.off_of(at.node), MAX_DEPTH as u64))
    }

    /// The child of an interior node for a slice. The way of every lookup: each instruction more is one less for the processor to
    /// look ahead to the next lookup while it waits for the border node.
    #[inline(always)]
    fn step_down<const FOR: u8, const OLD: bool>(
        &self,
        at: Place<'a>,
        slice: u64,
        lines: LineAt<'a>,
        trusted: Before,
    ) -> Result<Option<Place<'a>>> {
        let (index, off) = self.route_in(at.node, slice);
        lines.prefetch::<Node>(off.get());
        if FOR != purpose::POINT {
            let beside = if FOR == purpose::ASCEND { (index + 1).min(KEYS) } else { index.saturating_sub(1) };
            self.op.prefetch(self.child(at.node, beside));
        }
        let low = match FOR {
            purpose::REVERSE if index > 0 => Some(self.separator(at.node, index - 1)),
            _ => at.low,
        };
        if off.is_null() {
            // Either it was read in the middle of a change, or the file is damaged.
            return if self.is_still(at.node, at.version) { Err(self.no_child(at.node)) } else { Ok(None) };
        }
        let node: &'a Node = lines.at(off.get());
        let is_old = OLD && self.is_old(node, trusted);
        let mut version = if is_old { version::DIRTY } else { self.op.load(&node.version, Acquire) };
        if version & (version::DIRTY | version::DELETED) != 0 {
            let Some(entered) = self.enter_below((at.node, at.version), off)? else { return Ok(None) };
            version = entered;
        }
        // The child's version was taken before the parent is asked whether it has changed: so the child held the slice when
        // its version was taken.
        if !self.is_still(at.node, at.version) {
            return Ok(None);
        }
        Ok(Some(Place { node, version: version & !version::HELD, above: Some(at.node), low }))
    }

    #[cold]
    fn no_child(self, node: &Node) -> Error {
        self.corrupt("a child", self.op.off_of(node), 0)
    }

    /// Enters a child where there is something to be done first; `None` where the parent may not lead to it, or if it is deleted.
    #[cold]
    #[inline(never)]
    fn enter_below(self, (above, seen): (&'a Node, u64), off: Off<Node>) -> Result<Option<u64>> {
        // Nothing is recovered or waited for where the parent may not lead.
        if !self.is_still(above, seen) {
            return Ok(None);
        }
        let (_, version) = self.enter(off)?;
        if version & version::DELETED == 0 {
            return Ok(Some(version));
        }
        // A parent says that it is changing before a child says that it is deleted, and is unlocked first: so whoever has read
        // the child's mark sees that the parent has changed, and a parent that has not leads astray.
        if self.is_still(above, seen) {
            return Err(self.corrupt("a link to a deleted node,", off, version));
        }
        Ok(None)
    }

    /// Which child of an interior node holds a slice, and the child.
    #[inline(always)]
    pub(crate) fn route(&self, off: Off<Node>, slice: u64) -> (usize, Off<Node>) {
        self.route_in(self.op.at(off), slice)
    }

    #[inline(always)]
    fn route_in(&self, node: &'a Node, slice: u64) -> (usize, Off<Node>) {
        if P::INTERIOR_IN_LINE {
            return self.slotted_route(node, slice);
        }
        let interior: &Interior = node.view();
        let index = self.child_index(interior, slice);
        (index, self.op.load(&interior.children[index], Relaxed))
    }

    /// A child of an interior node.
    #[inline(always)]
    pub(crate) fn child(&self, node: &'a Node, index: usize) -> Off<Node> {
        if P::INTERIOR_IN_LINE {
            return self.slotted_child(node, index);
        }
        self.op.load(&node.view::<Interior>().children[index], Relaxed)
    }

    /// A key of an interior node.
    #[inline(always)]
    fn separator(&self, node: &'a Node, index: usize) -> u64 {
        if P::INTERIOR_IN_LINE {
            return self.slotted_key(node, index);
        }
        self.op.load(&node.view::<Interior>().keys[index], Relaxed)
    }

    /// Number of keys of an interior node.
    #[inline(always)]
    pub(crate) fn count(&self, interior: &Interior) -> usize {
        if P::INTERIOR_IN_LINE {
            // The word of a permutation.
            return Permutation::from_bits(self.op.load(&interior.count, Relaxed)).len();
        }
        (self.op.load(&interior.count, Relaxed) as usize).min(KEYS)
    }

    /// Which child of an interior node holds a slice. Where the processor can and nobody has to see the loads, all keys are
    /// compared at once.
    #[inline(always)]
    pub(crate) fn child_index(&self, interior: &Interior, slice: u64) -> usize {
        let Some(wide) = self.wide else { return self.child_index_in_steps(interior, slice) };
        let passed = wide.count_at_most(&interior.keys, slice);
        // Keys that do not count are the largest number.
        if slice == u64::MAX { passed.min(self.count(interior)) } else { passed }
    }

    /// As [`child_index`](Self::child_index), key by key. In two steps without branches: each fourth key, then the three
    /// behind. A search by halves that branches is foreseen wrongly at every second step. Out of the way of the other.
    #[cold]
    #[inline(never)]
    fn child_index_in_steps(self, interior: &Interior, slice: u64) -> usize {
        let passed = |key: usize| usize::from(self.op.load(&interior.keys[key], Relaxed) <= slice);
        let group = 4 * (passed(3) + passed(7) + passed(11));
        // Keys that do not count are the largest number, which may be the slice.
        (group + passed(group) + passed(group + 1) + passed(group + 2)).min(self.count(interior))
    }

    /// The rank of a part of a key in a border node, or where it belongs.
    #[inline(always)]
    pub(crate) fn search(
        &self,
        border: &Border,
        permutation: Permutation,
        kinds: Kinds,
        part: Part,
    ) -> Result<usize, usize> {
        let len = permutation.len();
        let mut rank = self.slices_below(border, permutation, part.slice);
        while rank < len {
            let slot = permutation.slot(rank);
            if self.op.load(&border.slots[slot][0], Relaxed) != part.slice {
                break;
            }
            // One slice has up to ten kinds of keys.
            match kinds.get(slot).min(kind::SUFFIX).cmp(&part.rank) {
                std::cmp::Ordering::Less => rank += 1,
                std::cmp::Ordering::Equal => return Ok(rank),
                std::cmp::Ordering::Greater => break,
            }
        }
        Err(rank)
    }

    /// How many slices of a border node are smaller than one: as [`child_index`](Self::child_index).
    #[inline(always)]
    fn slices_below(&self, border: &Border, permutation: Permutation, slice: u64) -> usize {
        let len = permutation.len();
        if let Some(wide) = self.wide {
            return wide.count_below(&border.slots, slice, permutation.to_bits(), len);
        }
        let below = |rank: usize| {
            let less = self.op.load(&border.slots[permutation.slot(rank)][0], Relaxed) < slice;
            usize::from(less & (rank < len))
        };
        let group = 4 * (below(3) + below(7) + below(11));
        group + below(group) + below(group + 1) + below(group + 2)
    }

    /// The slot of a part of a key, if it is there. What is found is of one moment only if the node has not changed meanwhile.
    #[inline(always)]
    pub(crate) fn slot_of(&self, border: &Border, permutation: Permutation, kinds: Kinds, part: Part) -> Option<usize> {
        let Some(wide) = self.wide else {
            return self.slot_of_in_steps(border, permutation, kinds, part);
        };
        let mut equal = wide.equal(&border.slots, part.slice, permutation.to_bits(), permutation.len());
        while equal != 0 {
            let slot = permutation.slot(equal.trailing_zeros() as usize);
            if kinds.get(slot).min(kind::SUFFIX) == part.rank {
                return Some(slot);
            }
            equal &= equal - 1;
        }
        None
    }

    /// As [`slot_of`](Self::slot_of), key by key.
    #[cold]
    #[inline(never)]
    fn slot_of_in_steps(self, border: &Border, permutation: Permutation, kinds: Kinds, part: Part) -> Option<usize> {
        self.search(border, permutation, kinds, part).ok().map(|rank| permutation.slot(rank))
    }

    /// Locks the parent of a locked node, in the layer of `root`, which is not the node itself. `slice` is one that the
    /// node holds.
    pub(crate) fn lock_parent(&self, root: Off<Node>, slice: u64, child: Off<Node>) -> Result<Locked<'a, M, P>> {
        let mut wait = Wait::new();
        loop {
            if let Some(locked) = self.try_lock_parent(root, slice, child)? {
                return Ok(locked);
            }
            wait.again(self, child)?;
        }
    }

    /// Locks the node above a locked one where a descent has seen it, if it is there still.
    pub(crate) fn lock_above_at(
        &self,
        above: Option<&'a Node>,
        slice: u64,
        child: Off<Node>,
    ) -> Result<Option<Locked<'a, M, P>>> {
        let Some(above) = above else { return Ok(None) };
        let above = self.op.off_of(above);
        let (node, version) = self.enter(above)?;
        if version & version::DELETED != 0 || !self.op.load(&node.stamp, Relaxed).is_interior() {
            return Ok(None);
        }
        let (_, next) = self.route(above, slice);
        // Locked at this version, it leads to the child; nothing else does.
        Ok(if next == child { self.lock(above, version) } else { None })
    }

    fn try_lock_parent(&self, root: Off<Node>, slice: u64, child: Off<Node>) -> Result<Option<Locked<'a, M, P>>> {
        let mut off = root;
        for _ in 0..MAX_DEPTH {
            let (node, version) = self.enter(off)?;
            if version & version::DELETED != 0 || !self.op.load(&node.stamp, Relaxed).is_interior() {
                break;
            }
            let (_, next) = self.route(off, slice);
            if next == child {
                // Locked at this version, it is its parent still.
                let locked = self.lock(off, version);
                if locked.is_none() {
                    self.wait_for_lock(off)?;
                }
                return Ok(locked);
            }
            if next.is_null() || !self.is_still(node, version) {
                break;
            }
            off = next;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Masstree;
    use crate::{BareOptions, Transient};
    use durix_pmem::{Hardware, Mapping};

    /// Keys of all lengths up to a slice, many with one slice, some at the ends of all numbers.
    fn keys() -> Vec<Vec<u8>> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 20
        };
        let mut keys: Vec<Vec<u8>> = (0..6000)
            .map(|_| {
                let number = if next() % 2 == 0 { (next() % 300) << 48 } else { next() << 20 };
                number.to_be_bytes()[..(next() % 9) as usize].to_vec()
            })
            .collect();
        keys.extend((0..9).map(|len| vec![0xff; len]));
        keys
    }

    #[test]
    fn searches_of_many_words_at_a_time_find_what_those_of_one_word_find() {
        let mapping = Mapping::heap(8 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = Masstree::<_, Transient>::volatile(&mut session, &mapping, BareOptions::default()).unwrap();
        let op = session.enter().unwrap();
        let keys = keys();
        for (number, key) in keys.iter().enumerate().filter(|(number, _)| number % 3 > 0) {
            tree.insert(&op, key, &number.to_le_bytes()).unwrap();
        }
        for key in keys.iter().step_by(7) {
            tree.remove(&op, key).unwrap();
        }
        let wide = tree.cx(&op, &[]).unwrap();
        let narrow = Context { wide: None, ..wide };
        let mut interiors = 0;
        for part in keys.iter().map(|key| Part::of(key)) {
            let place = wide.descend(tree.root, part.slice).unwrap().unwrap();
            assert!(std::ptr::eq(place.node, narrow.descend(tree.root, part.slice).unwrap().unwrap().node));
            let border: &Border = place.node.view();
            let (permutation, kinds) = (op.load(&border.permutation, Relaxed), op.load(&border.kinds, Relaxed));
            let found = narrow.search(border, permutation, kinds, part);
            assert_eq!(wide.search(border, permutation, kinds, part), found);
            assert_eq!(wide.slot_of(border, permutation, kinds, part), found.ok().map(|rank| permutation.slot(rank)));
            if let Some(above) = place.above {
                let interior: &Interior = above.view();
                assert_eq!(wide.child_index(interior, part.slice), narrow.child_index(interior, part.slice));
                interiors += 1;
            }
        }
        assert!(interiors > 5000, "a tree of several levels");
    }
}
