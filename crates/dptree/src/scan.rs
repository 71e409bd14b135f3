//! Walks over the pairs of a key range, in either direction.
//!
//! A walk goes range by range. Each step takes a batch: it copies entries of the active front under the range's lock, together with the
//! snapshot of that moment, then merges them with the second front and the leaves. Where a value of the range was replaced in place
//! meanwhile, it begins again under the lock. So a batch is the range at one moment.

use std::ops::{Bound, ControlFlow, RangeBounds};

use durix_index::Direction;
use durix_pmem::{Medium, Op};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::{Error, Result};
use crate::front::Entry;
use crate::leaf::{Leaf, load_pair};
use crate::range::Snapshot;
use crate::recover::root_words;

/// What one step of a walk gives: pairs, and the key at which the next step begins.
type Step = Option<u64>;

impl<M: Medium> DpTree<M> {
    /// Copies up to about `want` pairs into `pairs`, beginning with the key `from` and going in `direction`. Returns the key at which
    /// the next call goes on, `None` at the end. Pairs of one call may be none.
    ///
    /// Each call is as of one moment. A walk gives every key that is there from its first to its last call exactly once, with a
    /// value that it had at some moment meanwhile.
    ///
    /// # Errors
    /// [`Error::Pool`] after a panic in an update. [`Error::Corrupt`] where leaves lie out
    /// of order; no pair is appended then.
    pub fn walk(
        &self,
        op: &Op<'_, M>,
        from: u64,
        direction: Direction,
        want: usize,
        pairs: &mut Vec<(u64, u64)>,
    ) -> Result<Option<u64>> {
        self.poison.check(op)?;
        let had = pairs.len();
        // Under the lock the second time, so that writers cannot keep it from ever ending.
        let mut locked = false;
        loop {
            if let Some(next) = self.step(op, from, direction, (want.max(1), locked), pairs) {
                return match out_of_order(&pairs[had..], direction) {
                    None => Ok(next),
                    Some(found) => {
                        pairs.truncate(had);
                        let offset = op.off_of(root_words(op, &self.root)).get();
                        Err(Error::Corrupt { what: "a leaf out of order, in the tree whose root", offset, found })
                    }
                };
            }
            pairs.truncate(had);
            locked = true;
        }
    }

    /// `None` where the range was changed meanwhile.
    fn step(
        &self,
        op: &Op<'_, M>,
        from: u64,
        direction: Direction,
        (want, locked): (usize, bool),
        pairs: &mut Vec<(u64, u64)>,
    ) -> Option<Step> {
        let m = op.medium();
        let range = self.directory.get(op).find(from);
        let (active, edge, snapshot, in_place, _lock) = {
            let inner = range.lock(m);
            let snapshot = range.snapshot.get(op);
            if inner.dead || !snapshot.covers(from) {
                return None;
            }
            let edge = edge(snapshot, from, direction, want);
            let mut active = inner.active.within(from.min(edge), from.max(edge));
            let in_place = range.in_place.now(m);
            let lock = locked.then_some(inner);
            active.sort_unstable_by_key(|(key, _)| *key);
            if direction == Direction::Backward {
                active.reverse();
            }
            (active, edge, snapshot, in_place, lock)
        };
        let walk = Merge { op, direction, snapshot, from, edge };
        let stopped = walk.run(&active, want, pairs);
        let is_changed = !range.snapshot.is_current(op, snapshot) || !range.in_place.is_still(m, in_place);
        if is_changed && !snapshot.leaves.is_empty() {
            return None;
        }
        let last = stopped.unwrap_or(edge);
        Some(match direction {
            Direction::Forward => last.checked_add(1),
            Direction::Backward => last.checked_sub(1),
        })
    }

    /// Calls `visit` with the pairs of a range of keys, until it returns `false`.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn scan(
        &self,
        op: &Op<'_, M>,
        keys: impl RangeBounds<u64>,
        direction: Direction,
        mut visit: impl FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let Some((low, high)) = ends(&keys) else { return Ok(()) };
        let mut next = Some(if direction == Direction::Forward { low } else { high });
        let mut pairs = Vec::new();
        while let Some(from) = next
            && (low..=high).contains(&from)
        {
            pairs.clear();
            next = self.walk(op, from, direction, 128, &mut pairs)?;
            for (key, value) in &pairs {
                if !(low..=high).contains(key) || !visit(*key, *value) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The pair with the smallest key of a range of keys.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn first_in(
        &self,
        op: &Op<'_, M>,
        keys: impl RangeBounds<u64>,
        direction: Direction,
    ) -> Result<Option<(u64, u64)>> {
        let mut found = None;
        self.scan(op, keys, direction, |key, value| {
            found = Some((key, value));
            false
        })?;
        Ok(found)
    }

    /// The pair with the smallest key.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.first_in(op, .., Direction::Forward)
    }

    /// The pair with the largest key.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.first_in(op, .., Direction::Backward)
    }

    /// Number of keys: exact while nobody writes. Adds up the leaves, and looks each entry of the fronts up.
    pub fn len(&self, op: &Op<'_, M>) -> u64 {
        let ranges = self.directory.get(op).ranges();
        ranges
            .map(|range| {
                let inner = range.lock(op.medium());
                let snapshot = range.snapshot.get(op);
                let in_active = |key: u64| inner.active.get(key, hash(key)).is_some();
                let frozen = snapshot.frozen.iter().flat_map(|frozen| frozen.front.iter());
                let entries = inner.active.iter().chain(frozen.filter(|(key, _)| !in_active(*key)));
                let change = |(key, value): Entry| {
                    let was = snapshot.leaf(key).and_then(|leaf| leaf.find(op, key, hash(key))).is_some();
                    i64::from(value.is_some()) - i64::from(was)
                };
                (snapshot.leaf_keys() as i64 + entries.map(change).sum::<i64>()) as u64
            })
            .sum()
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.first(op)?.is_none())
    }
}

/// The first key of a batch that does not come after the one before it: only damaged leaves hold one.
fn out_of_order(pairs: &[(u64, u64)], direction: Direction) -> Option<u64> {
    let is_wrong = |a: u64, b: u64| if direction == Direction::Forward { a >= b } else { a <= b };
    pairs.windows(2).find(|pair| is_wrong(pair[0].0, pair[1].0)).map(|pair| pair[1].0)
}

/// The last key of a step from `from` on: the leaves up to it have `want` keys beside those of the first one, or are all.
fn edge(snapshot: &Snapshot, from: u64, direction: Direction, want: usize) -> u64 {
    let (leaves, first) = (&snapshot.leaves, snapshot.leaf_of(from));
    let mut keys = 0;
    let mut enough = |leaf: &Leaf| {
        keys += leaf.count();
        keys >= want
    };
    match direction {
        Direction::Forward => {
            let last = (first + 1..leaves.len()).find(|number| enough(&leaves[*number].leaf));
            last.and_then(|last| leaves.get(last + 1)).map_or(snapshot.last, |next| next.low - 1)
        }
        Direction::Backward => {
            let last = (0..first).rev().find(|number| enough(&leaves[*number].leaf));
            // The first leaf holds what comes before its smallest key, too.
            last.filter(|last| *last > 0).map_or(snapshot.low, |last| leaves[last].low)
        }
    }
}

/// The smallest and the largest key of a range of keys, if it can hold any.
fn ends(keys: &impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let low = match keys.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let high = match keys.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (low <= high).then_some((low, high))
}

/// Merges the three sources of a range: a newer one hides an older one.
struct Merge<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    direction: Direction,
    snapshot: &'a Snapshot,
    from: u64,
    edge: u64,
}

/// The entries of both fronts that are left, and the pairs so far.
struct Output<'a> {
    rest: &'a [Entry],
    pairs: &'a mut Vec<(u64, u64)>,
    /// How many pairs are enough.
    full: usize,
}

impl Output<'_> {
    /// Appends a pair, if there is a value. Ends the walk at this key if that is enough.
    #[inline(always)]
    fn put(&mut self, key: u64, value: Option<u64>) -> ControlFlow<Option<u64>> {
        self.pairs.extend(value.map(|value| (key, value)));
        if self.pairs.len() >= self.full { ControlFlow::Break(Some(key)) } else { ControlFlow::Continue(()) }
    }
}

impl<M: Medium> Merge<'_, '_, M> {
    /// Whether `a` comes before `b`.
    #[inline(always)]
    fn is_before(&self, a: u64, b: u64) -> bool {
        match self.direction {
            Direction::Forward => a < b,
            Direction::Backward => a > b,
        }
    }

    /// Appends pairs up to the edge. Returns the last key if it stopped before that, because there are `want`.
    fn run(&self, active: &[Entry], want: usize, pairs: &mut Vec<(u64, u64)>) -> Option<u64> {
        let buffered = self.buffered(active);
        let full = pairs.len() + want;
        let mut output = Output { rest: &buffered, pairs, full };
        match self.leaves(&mut output) {
            ControlFlow::Break(stopped) => stopped,
            ControlFlow::Continue(()) => None,
        }
    }

    /// The entries of both fronts up to the edge, in the order of the walk.
    fn buffered(&self, active: &[Entry]) -> Vec<Entry> {
        let frozen = self.snapshot.frozen.as_ref().map_or(&[][..], |frozen| frozen.entries());
        let (low, high) = (self.from.min(self.edge), self.from.max(self.edge));
        let frozen = &frozen[frozen.partition_point(|(key, _)| *key < low)..];
        let frozen = &frozen[..frozen.partition_point(|(key, _)| *key <= high)];
        let mut merged = Vec::with_capacity(active.len() + frozen.len());
        let mut active = active.iter().copied().peekable();
        let mut add = |entry: &Entry| {
            while let Some(newer) = active.next_if(|(key, _)| self.is_before(*key, entry.0)) {
                merged.push(newer);
            }
            merged.push(active.next_if(|(key, _)| *key == entry.0).unwrap_or(*entry));
        };
        match self.direction {
            Direction::Forward => frozen.iter().for_each(&mut add),
            Direction::Backward => frozen.iter().rev().for_each(&mut add),
        }
        merged.extend(active);
        merged
    }

    fn leaves(&self, output: &mut Output<'_>) -> ControlFlow<Option<u64>> {
        let leaves = &self.snapshot.leaves;
        let first = self.snapshot.leaf_of(self.from).min(leaves.len());
        match self.direction {
            Direction::Forward => leaves[first..].iter().try_for_each(|part| self.leaf(&part.leaf, output))?,
            Direction::Backward => {
                let upto = (first + 1).min(leaves.len());
                leaves[..upto].iter().rev().try_for_each(|part| self.leaf(&part.leaf, output))?;
            }
        }
        while let [(key, value), rest @ ..] = output.rest {
            output.rest = rest;
            output.put(*key, *value)?;
        }
        ControlFlow::Continue(())
    }

    /// The pairs of a leaf from the walk's first key on, with the entries that come before them.
    fn leaf(&self, leaf: &Leaf, output: &mut Output<'_>) -> ControlFlow<Option<u64>> {
        let order = leaf.order(self.op);
        match self.direction {
            Direction::Forward => {
                let rank = leaf.rank(self.op, order, self.from);
                order[rank..].iter().try_for_each(|slot| self.slot(leaf, usize::from(*slot), output))
            }
            Direction::Backward => {
                let rank = leaf.rank_after(self.op, order, self.from);
                order[..rank].iter().rev().try_for_each(|slot| self.slot(leaf, usize::from(*slot), output))
            }
        }
    }

    #[inline(always)]
    fn slot(&self, leaf: &Leaf, slot: usize, output: &mut Output<'_>) -> ControlFlow<Option<u64>> {
        let (key, value) = load_pair(self.op, leaf.off, slot);
        while let [(newer, value), rest @ ..] = output.rest
            && self.is_before(*newer, key)
        {
            output.rest = rest;
            output.put(*newer, *value)?;
        }
        if self.is_before(self.edge, key) {
            return ControlFlow::Break(None);
        }
        match output.rest {
            [(newer, value), rest @ ..] if *newer == key => {
                output.rest = rest;
                output.put(key, *value)
            }
            _ => output.put(key, Some(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_out_of_order_are_found_in_both_directions() {
        let (forward, backward) = (Direction::Forward, Direction::Backward);
        let pairs = |keys: &[u64]| keys.iter().map(|key| (*key, 0)).collect::<Vec<_>>();
        assert_eq!(out_of_order(&pairs(&[1, 2, 9]), forward), None);
        assert_eq!(out_of_order(&pairs(&[9, 2, 1]), backward), None);
        assert_eq!(out_of_order(&pairs(&[1, 9, 2]), forward), Some(2));
        assert_eq!(out_of_order(&pairs(&[9, 1, 2]), backward), Some(2));
        assert_eq!(out_of_order(&pairs(&[1, 1]), forward), Some(1));
        assert_eq!(out_of_order(&pairs(&[1, 1]), backward), Some(1));
    }
}
