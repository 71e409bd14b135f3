//! Ascending scans.
//!
//! A scan takes the entries of one border node at a time, as of one moment, and goes on with the node at the right bound; a
//! layer is a frame on a stack. So keys come in order, each at most once; a key that is there all the time is found.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op, Persistent, Word};

use crate::error::{Error, Result};
use crate::layout::{Border, Kinds, Node, Permutation, SLOTS, kind, version};
use crate::node::cx::Cx;
use crate::node::descend::{Place, purpose};
use crate::node::entry::Entry;
use crate::node::part::Part;
use crate::node::read::Wait;
use crate::tree::Masstree;
use crate::value::{Record, Value};
use crate::{MAX_KEY, Policy};

/// What a border node holds at one moment.
pub(crate) struct Snapshot {
    /// Key slices and values, by rank.
    pairs: [[u64; 2]; SLOTS],
    permutation: Permutation,
    kinds: Kinds,
    inline: u64,
    /// Right sibling.
    next: Off<Node>,
    /// Where the node's slices start (known to [reverse](purpose::REVERSE) scans) and end.
    pub(crate) low: Option<u64>,
    pub(crate) high: Option<u64>,
}

impl Snapshot {
    pub(crate) fn new() -> Self {
        Snapshot {
            pairs: [[0; 2]; SLOTS],
            permutation: Permutation::EMPTY,
            kinds: Kinds::default(),
            inline: 0,
            next: Off::NULL,
            low: None,
            high: None,
        }
    }

    /// Number of entries.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.permutation.len()
    }

    /// The entry of a rank. Precondition: `rank < len`.
    #[inline(always)]
    pub(crate) fn entry(&self, rank: usize) -> Entry {
        let slot = self.permutation.slot(rank);
        let [slice, word] = self.pairs[rank];
        Entry { slice, kind: self.kinds.get(slot), inline: self.inline >> slot & 1 == 1, word }
    }

    /// How many entries lie before a part.
    #[inline(always)]
    pub(crate) fn before(&self, part: Part) -> usize {
        let mut rank = 0;
        while rank < self.len() && self.entry(rank).part() < part {
            rank += 1;
        }
        rank
    }
}

/// A layer that is being scanned.
struct Frame {
    root: Off<Node>,
    from: Part,
    /// Where in the key of the bound this layer begins, while the scan is still at that key.
    tail: Option<usize>,
    /// The node that `from` lies in, if it is known: found as right sibling of one that the scan has finished.
    next: Off<Node>,
}

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    /// The border node of a slice, as of one moment. Returns whether the layer is still part of the tree.
    #[inline(always)]
    pub(crate) fn snapshot<const FOR: u8>(&self, root: Off<Node>, slice: u64, into: &mut Snapshot) -> Result<bool> {
        let mut wait = Wait::new();
        loop {
            let Some(place) = self.descend_for::<FOR>(root, slice)? else { return Ok(false) };
            if self.copy::<FOR>(place, into) {
                return Ok(true);
            }
            wait.again(self, root)?;
        }
    }

    /// Copies a border node. Returns whether the copy is of one moment.
    #[inline(always)]
    fn copy<const FOR: u8>(&self, place: Place<'a>, into: &mut Snapshot) -> bool {
        let (op, border) = (self.op, place.node.view::<Border>());
        let next = op.load(&border.next, Relaxed);
        if FOR == purpose::ASCEND {
            op.prefetch(next);
        }
        into.permutation = op.load(&border.permutation, Relaxed);
        into.kinds = op.load(&border.kinds, Relaxed);
        into.inline = op.load(&border.inline, Relaxed);
        for (rank, to) in into.pairs.iter_mut().enumerate().take(into.permutation.len()) {
            let [slice, word] = &border.slots[into.permutation.slot(rank)];
            *to = [op.load(slice, Relaxed), op.load(word, Relaxed)];
        }
        let high = op.load(&border.high, Relaxed);
        (into.next, into.low, into.high) = (next, place.low, (!next.is_null()).then_some(high));
        self.is_still(place.node, place.version)
    }

    /// The right sibling of a node that was copied, as of one later moment, where it holds `slice`, at which it started when it was
    /// the sibling. Returns whether it does: it may start earlier now, never later, and what lies before `slice` is where the scan
    /// has been; if it was split since, it may also end before it.
    #[inline(always)]
    fn sibling(&self, next: Off<Node>, slice: u64, into: &mut Snapshot) -> Result<bool> {
        let (node, version) = self.enter(next)?;
        let gone = version & version::DELETED != 0 || self.op.load(&node.stamp, Relaxed).is_interior();
        let place = Place { node, version, above: None, low: None };
        Ok(!gone && self.copy::<{ purpose::ASCEND }>(place, into) && into.high.is_none_or(|high| slice < high))
    }

    /// What an entry that is no layer leads to: appends its bytes to the key, and returns its value.
    #[inline(always)]
    pub(crate) fn resolve(&self, entry: Entry, key: &mut Vec<u8>) -> Result<Value<'a, M>> {
        let bytes = entry.slice.to_be_bytes();
        key.extend_from_slice(&bytes[..entry.kind.min(8) as usize]);
        if entry.kind <= kind::LAST_SHORT {
            return self.short_value(entry);
        }
        let record = Record::read(self.op, entry.word)?;
        if entry.kind == kind::SUFFIX {
            if record.head.suffix() == 0 {
                return Err(self.corrupt("a record without the rest of its key", Off::new(entry.word), 0));
            }
            record.suffix_into(key);
        }
        Ok(record.value())
    }

    /// The value of a key that ends in its slice.
    #[inline(always)]
    fn short_value(&self, entry: Entry) -> Result<Value<'a, M>> {
        Ok(if entry.inline { Value::inline(self.op, entry.word) } else { Record::read(self.op, entry.word)?.value() })
    }

    /// Keys that do not ascend: without this a scan that goes on from the last key it has met could go in a circle.
    #[cold]
    pub(crate) fn out_of_order(&self, layer: Off<Node>, entry: Entry) -> Error {
        self.corrupt("a key out of order, in the layer", layer, entry.slice)
    }

    /// Asks for the records of entries that a scan comes to soon, `count` of them at most from `rank` on: each value out of line is
    /// a miss of its own, and they are not waited for one by one then. Returns whether there is any.
    #[inline(always)]
    fn ask_for_records(&self, snapshot: &Snapshot, rank: usize, count: usize) -> bool {
        let mut asked = false;
        for rank in rank..snapshot.len().min(rank.saturating_add(count)) {
            let entry = snapshot.entry(rank);
            if !entry.inline && entry.kind != kind::LAYER {
                self.op.prefetch(Off::<[Word; RECORD_START]>::new(entry.word));
                asked = true;
            }
        }
        asked
    }

    /// The same for the first `count` entries of the next node, if there is one: its records come while the caller waits for
    /// those of this node. A hint: what is read need not be of one moment.
    #[inline(always)]
    fn ask_for_records_of(&self, next: Off<Node>, count: usize) {
        if count == 0 || next.is_null() {
            return;
        }
        let (op, border) = (self.op, self.border(next));
        let permutation = op.load(&border.permutation, Relaxed);
        let (kinds, inline) = (op.load(&border.kinds, Relaxed), op.load(&border.inline, Relaxed));
        for rank in 0..permutation.len().min(count) {
            let slot = permutation.slot(rank);
            if inline >> slot & 1 == 0 && kinds.get(slot) != kind::LAYER {
                op.prefetch(Off::<[Word; RECORD_START]>::new(op.load(&border.slots[slot][1], Relaxed)));
            }
        }
    }

    /// `expected`: how many entries the caller is going to visit.
    fn scan<V>(&self, from: &[u8], inclusive: bool, expected: usize, mut visit: V) -> Result<()>
    where
        V: FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    {
        // The slices of the layers above, and of a long key all of it.
        let mut key = Vec::new();
        let first = Frame { root: self.tree.root, from: Part::of(from), tail: Some(0), next: Off::NULL };
        let (mut frame, mut above) = (first, Vec::new());
        let mut snapshot = Snapshot::new();
        let mut left = expected;
        loop {
            let next = std::mem::replace(&mut frame.next, Off::NULL);
            let there = !next.is_null() && self.sibling(next, frame.from.slice, &mut snapshot)?
                || self.snapshot::<{ purpose::ASCEND }>(frame.root, frame.from.slice, &mut snapshot)?;
            if !there {
                if !leave(&mut frame, &mut above, &mut key) {
                    return Ok(());
                }
                continue;
            }
            let (mut below, lower) = (None, frame.from);
            let first = snapshot.before(lower);
            let asked = self.ask_for_records(&snapshot, first, left);
            left = left.saturating_sub(snapshot.len() - first);
            if asked {
                self.ask_for_records_of(snapshot.next, left);
            }
            for rank in first..snapshot.len() {
                let entry = snapshot.entry(rank);
                if entry.part() < frame.from || !entry.is_canonical() {
                    return Err(self.out_of_order(frame.root, entry));
                }
                let at_bound = frame.tail.filter(|at| Part::of(&from[*at..]) == entry.part());
                frame.tail = at_bound;
                frame.from = after(entry.part());
                if entry.kind == kind::LAYER {
                    below = Some((entry, at_bound));
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
                let skip = at_bound.is_some_and(|at| match whole[start..].cmp(&from[at..]) {
                    std::cmp::Ordering::Less => true,
                    std::cmp::Ordering::Equal => !inclusive,
                    std::cmp::Ordering::Greater => false,
                });
                frame.tail = None;
                let flow = if skip { ControlFlow::Continue(()) } else { visit(whole, value) };
                key.truncate(start);
                if flow.is_break() {
                    return Ok(());
                }
            }
            match (below, snapshot.high) {
                (Some((entry, at_bound)), _) => {
                    frame.tail = None;
                    key.extend_from_slice(&entry.slice.to_be_bytes());
                    let tail = at_bound.map(|at| at + 8);
                    let first = tail.map_or(FIRST_BELOW, |at| Part::of(&from[at..]));
                    let layer = Frame { root: Off::new(entry.word), from: first, tail, next: Off::NULL };
                    above.push(std::mem::replace(&mut frame, layer));
                }
                (None, Some(high)) if high <= lower.slice => {
                    return Err(self.corrupt("the bound of a node", frame.root, high));
                }
                (None, Some(high)) => {
                    frame.from = frame.from.max(Part { slice: high, rank: 0 });
                    frame.next = snapshot.next;
                }
                (None, None) => {
                    if !leave(&mut frame, &mut above, &mut key) {
                        return Ok(());
                    }
                }
            }
            if leads_in_circles(above.len(), frame.root, |depth| above[depth].root) {
                return Err(self.corrupt("a chain of layers", frame.root, above.len() as u64));
            }
        }
    }
}

/// The smallest part in a layer below the first: its keys go on behind the slice that leads to it.
pub(crate) const FIRST_BELOW: Part = Part { slice: 0, rank: 1 };

/// Words of a record that are asked for ahead: two lines. What comes after them the processor fetches by itself.
const RECORD_START: usize = 16;

/// Bytes of a key for which a scan does not allocate again.
const SHORT_KEY: usize = 64;

/// Whether the layer at `depth`, entered last, is one that it lies within (looked for as Brent does: it takes a few rounds
/// of the circle, and one comparison a layer), or keys cannot be that long.
#[inline(always)]
pub(crate) fn leads_in_circles(depth: usize, root: Off<Node>, root_at: impl Fn(usize) -> Off<Node>) -> bool {
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
pub(crate) fn after(part: Part) -> Part {
    Part { slice: part.slice, rank: part.rank + 1 }
}

/// As much of a bound as a key can have, and whether that is not all: then no key lies between the two.
pub(crate) fn cut(bound: &[u8]) -> (&[u8], bool) {
    let cut = &bound[..bound.len().min(MAX_KEY)];
    (cut, cut.len() < bound.len())
}

/// The first key behind all that start with `prefix`; none where it consists of `0xff`.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return Some(end);
        }
        end.pop();
    }
    None
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// Calls `visit` with keys and values from `from` to `to`, ascending, until it breaks or the range ends. Each key comes at
    /// most once, with a value that it had at some moment of the scan. Bounds may be longer than keys. Holds the operation open: in
    /// long scans, break and go on with a new operation from the last key, so that boundaries are not held up.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.range_expecting(op, from, to, usize::MAX, visit)
    }

    /// As [`range`](Self::range), where `visit` breaks after `expected` keys: no value is fetched beyond them. A hint.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range_expecting<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        expected: usize,
        mut visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (start, inclusive) = match from {
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
            Bound::Unbounded => (&[][..], true),
        };
        let (start, is_cut) = cut(start);
        self.cx(op, start)?.scan(start, inclusive && !is_cut, expected, |key, value| match to {
            Bound::Included(end) if key > end => ControlFlow::Break(()),
            Bound::Excluded(end) if key >= end => ControlFlow::Break(()),
            _ => visit(key, value),
        })
    }

    /// Calls `visit` with all keys that start with `prefix`, ascending, and their values.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn prefix<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        prefix: &[u8],
        visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let end = behind(prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.range(op, Bound::Included(prefix), to, visit)
    }

    /// Number of keys: counts them, so linear in it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        let mut count = 0;
        self.range(op, Bound::Unbounded, Bound::Unbounded, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.first(op)?.is_none())
    }

    /// The smallest key, with its value.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn first<'a>(&'a self, op: &'a Op<'_, M>) -> Result<Option<(Vec<u8>, Value<'a, M>)>> {
        let mut first = None;
        self.range(op, Bound::Unbounded, Bound::Unbounded, |key, value| {
            first = Some((key.to_vec(), value));
            ControlFlow::Break(())
        })?;
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn behind_a_prefix() {
        assert_eq!(super::behind(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(super::behind(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(super::behind(b"\xff\xff"), None);
        assert_eq!(super::behind(b""), None);
    }
}
