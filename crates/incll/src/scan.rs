//! Ascending scans.
//!
//! A scan takes the entries of one border node at a time, as of one moment, and goes on with the node at the right bound; a
//! layer is a frame on a stack. So keys come in order, each at most once; a key that is there all the time is found.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op};

use crate::Policy;
use crate::cx::{Cx, Wait};
use crate::descend::Part;
use crate::error::Result;
use crate::layout::{Kinds, Node, SLOTS, kind};
use crate::tree::Masstree;
use crate::update::Entry;
use crate::value::{Record, Value};

/// The entries of a border node at one moment.
pub(crate) struct Snapshot {
    entries: [Entry; SLOTS],
    len: usize,
    /// Where the node's slices start and end.
    pub(crate) low: Option<u64>,
    pub(crate) high: Option<u64>,
}

impl Snapshot {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }
}

/// What a scan calls with each key and value.
pub(crate) type Visit<'v, 'a, M> = &'v mut dyn FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>;

/// A layer that is being scanned.
struct Frame {
    root: Off<Node>,
    from: Part,
    /// Where in the key of the bound this layer begins, while the scan is still at that key.
    tail: Option<usize>,
}

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    /// The border node of a slice, as of one moment; `None` if the layer is no longer part of the tree.
    pub(crate) fn snapshot(&self, root: Off<Node>, slice: u64) -> Result<Option<Snapshot>> {
        let mut wait = Wait::new();
        let none = Entry { slice: 0, kind: 0, inline: false, word: 0 };
        loop {
            let Some(place) = self.descend(root, slice)? else { return Ok(None) };
            let (op, border) = (self.op, self.border(place.off));
            let permutation = op.load(&border.permutation, Relaxed);
            let kinds: Kinds = op.load(&border.kinds, Relaxed);
            let mut entries = [none; SLOTS];
            for (rank, entry) in entries.iter_mut().enumerate().take(permutation.len()) {
                *entry = self.entry_in(border, kinds, permutation.slot(rank));
            }
            let next = op.load(&border.next, Relaxed);
            let high = op.load(&border.high, Relaxed);
            if self.is_still(place.node, place.version) {
                if !next.is_null() {
                    op.prefetch(next);
                }
                let high = (!next.is_null()).then_some(high);
                return Ok(Some(Snapshot { entries, len: permutation.len(), low: place.low, high }));
            }
            wait.turn(op.medium(), root)?;
        }
    }

    /// What an entry that is no layer leads to: appends its bytes to the key, and returns its value.
    pub(crate) fn resolve(&self, entry: Entry, key: &mut Vec<u8>) -> Result<Value<'a, M>> {
        let bytes = entry.slice.to_be_bytes();
        key.extend_from_slice(&bytes[..entry.kind.min(8) as usize]);
        if entry.kind <= kind::LAST_SHORT && entry.inline {
            return Ok(Value::inline(self.op, entry.word));
        }
        let record = Record::read(self.op, entry.word)?;
        if entry.kind == kind::SUFFIX {
            record.suffix_into(key);
        }
        Ok(record.value())
    }

    fn scan(&self, from: &[u8], inclusive: bool, visit: Visit<'_, 'a, M>) -> Result<()> {
        let mut key = Vec::new();
        let mut frames = vec![Frame { root: self.tree.root, from: Part::of(from), tail: Some(0) }];
        while let Some(frame) = frames.last_mut() {
            let Some(snapshot) = self.snapshot(frame.root, frame.from.slice)? else {
                leave(&mut frames, &mut key);
                continue;
            };
            let (mut below, lower) = (None, frame.from);
            for entry in snapshot.entries().iter().filter(|entry| entry.part() >= lower) {
                let at_bound = frame.tail.filter(|at| Part::of(&from[*at..]) == entry.part());
                frame.tail = at_bound;
                frame.from = after(entry.part());
                if entry.kind == kind::LAYER {
                    below = Some((*entry, at_bound));
                    break;
                }
                let start = key.len();
                let value = self.resolve(*entry, &mut key)?;
                let skip = at_bound.is_some_and(|at| match key[start..].cmp(&from[at..]) {
                    std::cmp::Ordering::Less => true,
                    std::cmp::Ordering::Equal => !inclusive,
                    std::cmp::Ordering::Greater => false,
                });
                frame.tail = None;
                let flow = if skip { ControlFlow::Continue(()) } else { visit(&key, value) };
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
                    let first = tail.map_or(Part { slice: 0, rank: 0 }, |at| Part::of(&from[at..]));
                    frames.push(Frame { root: Off::new(entry.word), from: first, tail });
                }
                (None, Some(high)) if high <= lower.slice => {
                    return Err(self.corrupt("the bound of a node", frame.root, high));
                }
                (None, Some(high)) => {
                    frame.from = frame.from.max(Part { slice: high, rank: 0 });
                }
                (None, None) => leave(&mut frames, &mut key),
            }
            if frames.len() > crate::MAX_KEY / 8 + 1 {
                return Err(self.corrupt("a chain of layers", self.tree.root, frames.len() as u64));
            }
        }
        Ok(())
    }
}

fn leave(frames: &mut Vec<Frame>, key: &mut Vec<u8>) {
    frames.pop();
    key.truncate(key.len().saturating_sub(8));
}

/// The smallest part behind another.
fn after(part: Part) -> Part {
    Part { slice: part.slice, rank: part.rank + 1 }
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
    /// most once, with a value that it had at some moment of the scan. Holds the operation open: in long scans, break and
    /// go on with a new operation from the last key, so that boundaries are not held up.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        mut visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (start, inclusive) = match from {
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
            Bound::Unbounded => (&[][..], true),
        };
        self.cx(op, start)?.scan(start, inclusive, &mut |key, value| match to {
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
