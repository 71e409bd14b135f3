//! What one step of a scan gives: the three sources of a range merged, a newer one hides an older one.
//!
//! The pairs go from the slots straight to the caller's buffer. Both directions are one piece of code: a key stands for itself with
//! its bits turned over where the walk goes down, so that what comes later is always larger ([`Window::place`]).

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Direction;
use durix_pmem::{Medium, Op};

use crate::front::{Entry, prefetch};
use crate::leaf::{Leaf, load_pair, slots_of};
use crate::range::Snapshot;

/// A key and its value.
pub(crate) type Pair = (u64, u64);

/// What a step has given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// Pairs.
    pub(crate) number: usize,
    /// The last key that it looked at.
    pub(crate) last: u64,
    /// A key that does not come after the one before it: only damaged leaves hold one.
    pub(crate) wrong: Option<u64>,
}

/// Why a step ends before the keys do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The buffer is full.
    Full,
    /// A leaf has a key beyond the edge: what comes then belongs to another range.
    Edge,
}

/// The pairs of a step.
#[derive(Debug)]
struct Output<'a> {
    buffer: &'a mut [Pair],
    number: usize,
    /// The place of the next key is at least this.
    least: u64,
    wrong: Option<u64>,
}

impl Output<'_> {
    /// Appends a pair. Breaks if that was the last one that has room.
    #[inline(always)]
    fn put(&mut self, place: u64, pair: Pair) -> ControlFlow<Stop> {
        if place < self.least {
            self.wrong = self.wrong.or(Some(pair.0));
        }
        self.least = place.saturating_add(1);
        if let Some(to) = self.buffer.get_mut(self.number) {
            *to = pair;
            self.number += 1;
        }
        self.end()
    }

    /// Breaks if the buffer is full.
    #[inline(always)]
    fn end(&self) -> ControlFlow<Stop> {
        if self.room() == 0 { ControlFlow::Break(Stop::Full) } else { ControlFlow::Continue(()) }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        self.buffer.len() - self.number
    }
}

/// A part of a range's keys, from one key on. It goes down where `DOWN`, else up.
pub(crate) struct Window<'a, 's, M: Medium, const DOWN: bool> {
    op: &'a Op<'s, M>,
    snapshot: &'a Snapshot,
    from: u64,
    /// Entries of the active front that are left, in the order of the walk.
    active: &'a [Entry],
    /// Those of the second front, in ascending order.
    frozen: &'a [Entry],
    /// The last key.
    edge: u64,
    /// The place of the next key in a front; that of the last key, where there is none.
    limit: u64,
}

impl<'a, 's, M: Medium, const DOWN: bool> Window<'a, 's, M, DOWN> {
    pub(crate) const DIRECTION: Direction = if DOWN { Direction::Backward } else { Direction::Forward };

    /// The part of a snapshot's keys between `from` and `edge`, both included, with these entries of the active front, which are all in it.
    #[inline(always)]
    pub(crate) fn new(
        op: &'a Op<'s, M>,
        snapshot: &'a Snapshot,
        (from, edge): (u64, u64),
        active: &'a [Entry],
    ) -> Self {
        let frozen = snapshot.frozen.as_ref().map_or(&[][..], |frozen| frozen.entries());
        let frozen = if DOWN {
            &frozen[..frozen.partition_point(|(key, _)| *key <= from)]
        } else {
            &frozen[frozen.partition_point(|(key, _)| *key < from)..]
        };
        let mut window = Window { op, snapshot, from, active, frozen, edge, limit: 0 };
        window.limit = window.next_limit();
        window
    }

    /// Where a key comes in the walk.
    #[inline(always)]
    fn place(key: u64) -> u64 {
        if DOWN { !key } else { key }
    }

    /// Fills a buffer, which has room for a pair at least.
    #[inline(always)]
    pub(crate) fn fill(mut self, buffer: &mut [Pair]) -> Filled {
        let mut output = Output { buffer, number: 0, least: Self::place(self.from), wrong: None };
        let stopped = match self.leaves(&mut output) {
            ControlFlow::Break(Stop::Full) => ControlFlow::Break(Stop::Full),
            _ => self.rest(&mut output),
        };
        let last = if stopped.is_break() { output.buffer[output.number - 1].0 } else { self.edge };
        Filled { number: output.number, last, wrong: output.wrong }
    }

    // ---- fronts ----

    /// The newest of the next entries of both fronts.
    #[inline(always)]
    fn peek(&self) -> Option<Entry> {
        let frozen = if DOWN { self.frozen.last() } else { self.frozen.first() };
        let frozen = frozen.filter(|(key, _)| Self::place(*key) <= Self::place(self.edge));
        match (self.active.first(), frozen) {
            (Some(active), Some(frozen)) if Self::place(frozen.0) < Self::place(active.0) => Some(*frozen),
            (active, frozen) => active.or(frozen).copied(),
        }
    }

    #[inline(always)]
    fn next_limit(&self) -> u64 {
        Self::place(self.peek().map_or(self.edge, |(key, _)| key))
    }

    /// Takes the next entry away, and what it hides.
    #[inline(always)]
    fn advance(&mut self, key: u64) {
        if let [(next, _), rest @ ..] = self.active
            && *next == key
        {
            self.active = rest;
        }
        match (DOWN, self.frozen) {
            (false, [(next, _), rest @ ..]) | (true, [rest @ .., (next, _)]) if *next == key => self.frozen = rest,
            _ => {}
        }
        self.limit = self.next_limit();
    }

    /// Puts the entries that come up to a place. Returns whether one of them is at that place.
    #[inline(always)]
    fn entries_to(&mut self, place: u64, output: &mut Output<'_>) -> ControlFlow<Stop, bool> {
        while let Some((key, value)) = self.peek() {
            let at = Self::place(key);
            if at > place {
                break;
            }
            self.advance(key);
            if let Some(value) = value {
                output.put(at, (key, value))?;
            }
            if at == place {
                return ControlFlow::Continue(true);
            }
        }
        ControlFlow::Continue(false)
    }

    /// Puts the entries that come after all keys in leaves.
    #[inline(always)]
    fn rest(&mut self, output: &mut Output<'_>) -> ControlFlow<Stop> {
        self.entries_to(u64::MAX, output).map_continue(|_| ())
    }

    // ---- leaves ----

    /// Puts what leaves hold, with the entries before.
    #[inline(always)]
    fn leaves(&mut self, output: &mut Output<'_>) -> ControlFlow<Stop> {
        let leaves = &*self.snapshot.leaves;
        let mut number = self.snapshot.leaf_of(self.from);
        let mut is_first = true;
        while let Some(leaf) = leaves.get(number).map(|part| &*part.leaf) {
            let order = leaf.order(self.op);
            let slots = order.slots(leaf.count());
            let rank = |key| order.rank(self.op, leaf.off, leaf.count(), key);
            let slots = match (is_first, DOWN) {
                (true, false) => &slots[rank(self.from)..],
                (true, true) => &slots[..self.from.checked_add(1).map_or(slots.len(), rank)],
                _ => slots,
            };
            is_first = false;
            number = if DOWN { number.wrapping_sub(1) } else { number + 1 };
            let after = leaves.get(number).filter(|_| output.room() > slots.len()).map(|part| &*part.leaf);
            after.inspect(|leaf| prefetch(*leaf));
            let (low, high) = slots.split_at(slots.len() / 2);
            let (near, far) = if DOWN { (high, low) } else { (low, high) };
            self.slots(leaf, near, output)?;
            after.inspect(|leaf| leaf.prefetch_all(self.op));
            self.slots(leaf, far, output)?;
        }
        ControlFlow::Continue(())
    }

    /// Puts the pairs of a leaf's slots, with the entries before.
    #[inline(always)]
    fn slots(&mut self, leaf: &Leaf, mut slots: &[u8], output: &mut Output<'_>) -> ControlFlow<Stop> {
        while !slots.is_empty() {
            let given =
                if DOWN { self.run(leaf, slots.iter().rev(), output) } else { self.run(leaf, slots.iter(), output) };
            output.end()?;
            slots = if DOWN { &slots[..slots.len() - given] } else { &slots[given..] };
            // The next one, if there is one, comes after an entry of a front, beyond the edge, or out of order.
            let (slot, rest) = match (DOWN, slots) {
                (false, [slot, rest @ ..]) | (true, [rest @ .., slot]) => (*slot, rest),
                _ => break,
            };
            slots = rest;
            let (key, value) = load_pair(self.op, leaf.off, usize::from(slot));
            let place = Self::place(key);
            if self.entries_to(place, output)? {
                continue;
            }
            if place > Self::place(self.edge) {
                return ControlFlow::Break(Stop::Edge);
            }
            output.put(place, (key, value))?;
        }
        ControlFlow::Continue(())
    }

    /// Puts the pairs of slots as long as they are in order, come before the next entry of a front, and have room. Returns how many.
    #[inline(always)]
    fn run<'b>(&self, leaf: &Leaf, slots: impl Iterator<Item = &'b u8>, output: &mut Output<'_>) -> usize {
        let words = slots_of(self.op, leaf.off);
        let (mut least, limit, mut number) = (output.least, self.limit, 0);
        for (to, slot) in output.buffer[output.number..].iter_mut().zip(slots) {
            let [key, value] = &words[usize::from(*slot)];
            let (key, value) = (self.op.load(key, Relaxed), self.op.load(value, Relaxed));
            let place = Self::place(key);
            if place < least || place >= limit {
                break;
            }
            *to = (key, value);
            least = place + 1;
            number += 1;
        }
        output.least = least;
        output.number += number;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first key out of order, of those put.
    fn wrong(down: bool, keys: &[u64]) -> Option<u64> {
        let mut buffer = vec![(0, 0); keys.len() + 1];
        let mut output = Output { buffer: &mut buffer, number: 0, least: 0, wrong: None };
        for key in keys {
            assert!(output.put(if down { !key } else { *key }, (*key, 7)).is_continue());
        }
        assert!(output.buffer.iter().zip(keys).all(|(pair, key)| *pair == (*key, 7)));
        output.wrong
    }

    #[test]
    fn keys_out_of_order_are_found_in_both_directions() {
        assert_eq!(wrong(false, &[1, 2, 9]), None);
        assert_eq!(wrong(true, &[9, 2, 1]), None);
        assert_eq!(wrong(false, &[1, 9, 2]), Some(2));
        assert_eq!(wrong(true, &[9, 1, 2]), Some(2));
        assert_eq!(wrong(false, &[1, 1]), Some(1));
        assert_eq!(wrong(true, &[1, 1]), Some(1));
    }

    #[test]
    fn a_full_buffer_ends_the_step_at_its_last_key() {
        let mut buffer = [(0, 0); 2];
        let mut output = Output { buffer: &mut buffer, number: 0, least: 0, wrong: None };
        assert_eq!(output.put(3, (3, 0)), ControlFlow::Continue(()));
        assert_eq!(output.put(5, (5, 0)), ControlFlow::Break(Stop::Full));
    }
}
