//! Scans, ascending and descending.
//!
//! A scan takes the entries of one border node at a time, as of one moment, and goes on with the next node; a layer is a frame on
//! a stack. So keys come in order, each at most once; a key that is there all the time is found.
//!
//! An ascending scan goes on with the node at the right bound, which is the right sibling. There is no link to the left: a
//! descending scan goes on with the node that holds the slice before the low bound, found by another descent.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use durix_pmem::{Medium, Off};

use crate::error::Result;
use crate::layout::{Node, kind};
use crate::node::context::Context;
use crate::node::descend::purpose;
use crate::node::part::Part;
use crate::ops::snapshot::Snapshot;
use crate::value::Value;
use crate::{MAX_KEY, Policy};

/// The smallest part of all.
const FIRST: Part = Part { slice: 0, rank: 0 };
/// The smallest part in a layer below the first: its keys go on behind the slice that leads to it.
const FIRST_BELOW: Part = Part { slice: 0, rank: 1 };
/// The largest part of all.
const LAST: Part = Part { slice: u64::MAX, rank: kind::SUFFIX };

/// Bytes of a key for which a scan does not allocate again.
const SHORT_KEY: usize = 64;

/// A layer that is being scanned.
struct Frame {
    root: Off<Node>,
    /// The first part that the scan has not passed. `None`: the scan has passed all of the layer.
    from: Option<Part>,
    /// Where in the key of the bound this layer begins, while the scan is still at that key.
    tail: Option<usize>,
    /// The node that `from` lies in, if it is known: found as right sibling of one that the scan has finished.
    next: Off<Node>,
}

impl Frame {
    /// The layer at `root`, from the start, or from the rest of `bound` at `tail`.
    fn new<const DOWN: bool>(root: Off<Node>, bound: &[u8], tail: Option<usize>, is_below: bool) -> Frame {
        let start = match DOWN {
            true => LAST,
            false if is_below => FIRST_BELOW,
            false => FIRST,
        };
        let from = tail.map_or(start, |at| Part::of(&bound[at..]));
        Frame { root, from: Some(from), tail, next: Off::NULL }
    }

    /// Whether a part is one that the scan has not passed. Without this a scan of a damaged tree could go in a circle.
    #[inline(always)]
    fn awaits<const DOWN: bool>(&self, part: Part, is_first_layer: bool) -> bool {
        let least = if is_first_layer { FIRST } else { FIRST_BELOW };
        self.from.is_some_and(|from| if DOWN { least <= part && part <= from } else { from <= part })
    }
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// Visits keys from `bound`, or from the end where the scan starts: upwards, or `DOWN`. `expected`: how many entries the
    /// caller is going to visit.
    pub(crate) fn scan<const DOWN: bool, V>(
        &self,
        bound: Option<&[u8]>,
        inclusive: bool,
        expected: usize,
        mut visit: V,
    ) -> Result<()>
    where
        V: FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    {
        // The slices of the layers above, and of a long key all of it.
        let mut key = Vec::new();
        let (tail, bound) = (bound.map(|_| 0), bound.unwrap_or_default());
        let (mut frame, mut above) = (Frame::new::<DOWN>(self.tree.root, bound, tail, false), Vec::new());
        let mut snapshot = Snapshot::new();
        let mut left = expected;
        loop {
            let Some(from) = self.next_node::<DOWN>(&mut frame, &mut snapshot)? else {
                if !leave(&mut frame, &mut above, &mut key) {
                    return Ok(());
                }
                continue;
            };
            let ranks = if DOWN { 0..snapshot.before(after(from)) } else { snapshot.before(from)..snapshot.len() };
            if !DOWN && self.ask_for_records(&snapshot, ranks.start, left) {
                self.ask_for_records_of(snapshot.next, left.saturating_sub(ranks.len()));
            }
            left = left.saturating_sub(ranks.len());
            let mut below = None;
            for step in 0..ranks.len() {
                let entry = snapshot.entry(if DOWN { ranks.end - 1 - step } else { ranks.start + step });
                if !frame.awaits::<DOWN>(entry.part(), key.is_empty()) || !entry.is_canonical() {
                    return Err(self.out_of_order(frame.root, entry));
                }
                let at_bound = frame.tail.take().filter(|at| Part::of(&bound[*at..]) == entry.part());
                frame.from = if DOWN { before(entry.part()) } else { Some(after(entry.part())) };
                if entry.kind == kind::LAYER {
                    below = Some((entry, at_bound.map(|at| at + 8)));
                    break;
                }
                let (start, slice) = (key.len(), entry.slice.to_be_bytes());
                // A short key of the first layer is nowhere but in its slice.
                let (whole, value) = if start == 0 && entry.kind <= kind::LAST_SHORT {
                    (&slice[..entry.kind as usize], self.short_value(entry)?)
                } else {
                    key.reserve(SHORT_KEY);
                    let value = self.resolve(entry, &mut key)?;
                    (&key[..], value)
                };
                let skip = at_bound.is_some_and(|at| match whole[start..].cmp(&bound[at..]) {
                    Ordering::Less => !DOWN,
                    Ordering::Equal => !inclusive,
                    Ordering::Greater => DOWN,
                });
                let flow = if skip { ControlFlow::Continue(()) } else { visit(whole, value) };
                key.truncate(start);
                if flow.is_break() {
                    return Ok(());
                }
            }
            if let Some((entry, tail)) = below {
                key.extend_from_slice(&entry.slice.to_be_bytes());
                let layer = Frame::new::<DOWN>(Off::new(entry.word), bound, tail, true);
                above.push(std::mem::replace(&mut frame, layer));
            } else {
                self.pass_node::<DOWN>(&mut frame, from, &snapshot)?;
            }
            if leads_in_circles(above.len(), frame.root, |depth| above[depth].root) {
                return Err(self.corrupt("a chain of layers", frame.root, above.len() as u64));
            }
        }
    }

    /// The node that the scan comes to next in a layer, and from where on it counts; `None` if the layer has no more.
    #[inline(always)]
    fn next_node<const DOWN: bool>(&self, frame: &mut Frame, snapshot: &mut Snapshot) -> Result<Option<Part>> {
        let Some(from) = frame.from else { return Ok(None) };
        let next = std::mem::replace(&mut frame.next, Off::NULL);
        let found = if DOWN {
            self.snapshot::<{ purpose::REVERSE }>(frame.root, from.slice, snapshot)?
        } else {
            !next.is_null() && self.sibling(next, from.slice, snapshot)?
                || self.snapshot::<{ purpose::ASCEND }>(frame.root, from.slice, snapshot)?
        };
        Ok(found.then_some(from))
    }

    /// Goes on behind a node of which the parts from `from` on were visited.
    #[inline(always)]
    fn pass_node<const DOWN: bool>(&self, frame: &mut Frame, from: Part, snapshot: &Snapshot) -> Result<()> {
        if DOWN {
            if snapshot.low.is_some_and(|low| low > from.slice) {
                return Err(self.corrupt("the bound of a node", frame.root, from.slice));
            }
            let slice = snapshot.low.and_then(|low| low.checked_sub(1));
            frame.from = frame.from.min(slice.map(|slice| Part { slice, rank: kind::SUFFIX }));
        } else {
            if let Some(high) = snapshot.high.filter(|high| *high <= from.slice) {
                return Err(self.corrupt("the bound of a node", frame.root, high));
            }
            frame.from = snapshot.high.and_then(|slice| frame.from.max(Some(Part { slice, rank: 0 })));
            frame.next = snapshot.next;
        }
        Ok(())
    }
}

/// Whether the layer at `depth`, entered last, is one that it lies within (looked for as Brent does: it takes a few rounds
/// of the circle, and one comparison a layer), or keys cannot be that long.
#[inline(always)]
fn leads_in_circles(depth: usize, root: Off<Node>, root_at: impl Fn(usize) -> Off<Node>) -> bool {
    depth > MAX_KEY / 8 || (depth > 1 && root_at(1 << (depth - 1).ilog2()) == root)
}

/// Goes on in the layer above. Returns whether there is one.
fn leave(frame: &mut Frame, above: &mut Vec<Frame>, key: &mut Vec<u8>) -> bool {
    key.truncate(key.len().saturating_sub(8));
    above.pop().is_some_and(|upper| {
        *frame = upper;
        true
    })
}

/// The smallest part behind another.
fn after(part: Part) -> Part {
    Part { slice: part.slice, rank: part.rank + 1 }
}

/// The largest part before another.
fn before(part: Part) -> Option<Part> {
    match part.rank {
        0 => Some(Part { slice: part.slice.checked_sub(1)?, rank: kind::SUFFIX }),
        rank => Some(Part { slice: part.slice, rank: rank - 1 }),
    }
}
