//! Descending scans. There is no link to the left: behind a node comes the one that holds the slice before its low bound,
//! found by another descent.

use std::ops::{Bound, ControlFlow};

use durix_pmem::{Medium, Off, Op};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Node, kind};
use crate::node::cx::Cx;
use crate::node::descend::purpose;
use crate::node::part::Part;
use crate::ops::scan::{FIRST_BELOW, Snapshot, after, cut, leads_in_circles};
use crate::tree::Masstree;
use crate::value::Value;

/// The largest part of all.
const LAST: Part = Part { slice: u64::MAX, rank: kind::SUFFIX };

/// A layer that is being scanned, downwards from `to`; nothing is left where that is none.
struct Frame {
    root: Off<Node>,
    to: Option<Part>,
    tail: Option<usize>,
}

/// The largest part before another.
fn before(part: Part) -> Option<Part> {
    match part.rank {
        0 => Some(Part { slice: part.slice.checked_sub(1)?, rank: kind::SUFFIX }),
        rank => Some(Part { slice: part.slice, rank: rank - 1 }),
    }
}

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    /// Descends from `to`, or from the last key.
    fn scan_down<V>(&self, to: Option<&[u8]>, inclusive: bool, mut visit: V) -> Result<()>
    where
        V: FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    {
        let mut key = Vec::new();
        let bound = to.unwrap_or_default();
        let tail = to.map(|_| 0);
        let mut frames = vec![Frame { root: self.tree.root, to: Some(to.map_or(LAST, Part::of)), tail }];
        let mut snapshot = Snapshot::new();
        while let Some(frame) = frames.last_mut() {
            let least = if key.is_empty() { Part { slice: 0, rank: 0 } } else { FIRST_BELOW };
            let upper = match frame.to {
                Some(part) if self.snapshot::<{ purpose::REVERSE }>(frame.root, part.slice, &mut snapshot)? => {
                    Some(part)
                }
                _ => None,
            };
            let Some(upper) = upper else {
                frames.pop();
                key.truncate(key.len().saturating_sub(8));
                continue;
            };
            let mut below = None;
            for rank in (0..snapshot.before(after(upper))).rev() {
                let entry = snapshot.entry(rank);
                let within = frame.to.is_some_and(|to| least <= entry.part() && entry.part() <= to);
                if !within || !entry.is_canonical() {
                    return Err(self.out_of_order(frame.root, entry));
                }
                let at_bound = frame.tail.filter(|at| Part::of(&bound[*at..]) == entry.part());
                frame.tail = None;
                frame.to = before(entry.part());
                if entry.kind == kind::LAYER {
                    below = Some((entry, at_bound));
                    break;
                }
                let start = key.len();
                let value = self.resolve(entry, &mut key)?;
                let skip = at_bound.is_some_and(|at| match key[start..].cmp(&bound[at..]) {
                    std::cmp::Ordering::Greater => true,
                    std::cmp::Ordering::Equal => !inclusive,
                    std::cmp::Ordering::Less => false,
                });
                let flow = if skip { ControlFlow::Continue(()) } else { visit(&key, value) };
                key.truncate(start);
                if flow.is_break() {
                    return Ok(());
                }
            }
            match below {
                Some((entry, at_bound)) => {
                    key.extend_from_slice(&entry.slice.to_be_bytes());
                    let tail = at_bound.map(|at| at + 8);
                    let last = tail.map_or(LAST, |at| Part::of(&bound[at..]));
                    frames.push(Frame { root: Off::new(entry.word), to: Some(last), tail });
                }
                None if snapshot.low.is_some_and(|low| low > upper.slice) => {
                    return Err(self.corrupt("the bound of a node", frame.root, upper.slice));
                }
                None => {
                    let lower = snapshot.low.and_then(|low| low.checked_sub(1));
                    frame.to = lower.map(|slice| Part { slice, rank: kind::SUFFIX }).min(frame.to);
                }
            }
            let (depth, root) = (frames.len() - 1, frames.last().map_or(Off::NULL, |frame| frame.root));
            if leads_in_circles(depth, root, |depth| frames[depth].root) {
                return Err(self.corrupt("a chain of layers", root, depth as u64));
            }
        }
        Ok(())
    }
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// As [`range`](Self::range), descending: from `to` down to `from`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range_rev<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        mut visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (end, inclusive) = match to {
            Bound::Included(key) => (Some(cut(key).0), true),
            Bound::Excluded(key) => (Some(cut(key).0), cut(key).1),
            Bound::Unbounded => (None, true),
        };
        self.cx(op, end.unwrap_or_default())?.scan_down(end, inclusive, |key, value| match from {
            Bound::Included(start) if key < start => ControlFlow::Break(()),
            Bound::Excluded(start) if key <= start => ControlFlow::Break(()),
            _ => visit(key, value),
        })
    }

    /// The largest key, with its value.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn last<'a>(&'a self, op: &'a Op<'_, M>) -> Result<Option<(Vec<u8>, Value<'a, M>)>> {
        let mut last = None;
        self.range_rev(op, Bound::Unbounded, Bound::Unbounded, |key, value| {
            last = Some((key.to_vec(), value));
            ControlFlow::Break(())
        })?;
        Ok(last)
    }
}
