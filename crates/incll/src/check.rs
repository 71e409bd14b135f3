//! Walking everything and reporting what contradicts itself. For a tree that nobody writes to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Finding;
use durix_pmem::pool::tally::{Marked, Totals};
use durix_pmem::{Medium, Off, Op};

use crate::Policy;
use crate::error::{Error, Result};
use crate::layout::{KEYS, Kinds, LayerName, Node, Permutation, kind, version};
use crate::node::context::Context;
use crate::node::part::Part;
use crate::tree::Masstree;
use crate::value::Record;

/// Findings after which a check ends.
const MAX_FINDINGS: usize = 100;
/// Levels after which a check takes a chain of nodes for a circle.
const MAX_LEVELS: usize = 48;

/// What a check can find wrong. Tests have a row for each.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("two links lead to this block")]
    TwoLinks,
    #[error("{level} levels")]
    Levels { level: usize },
    #[error("a link that leads to no node")]
    NoNode,
    #[error("the stamp of a node makes no sense")]
    Stamp,
    #[error("a node that belongs to another place")]
    Place,
    #[error("a node that says that it belongs to another layer")]
    Layer,
    #[error("a deleted node is part of the tree")]
    Deleted,
    #[error("its right sibling is {next:?}, from {bound:?} on, not {off:?}, from {low:?}")]
    Sibling { next: Off<Node>, bound: Option<u64>, off: Off<Node>, low: Option<u64> },
    #[error("the last node has a right sibling")]
    LastSibling,
    #[error("{0}")]
    Slotted(String),
    #[error("keys out of order")]
    Separators,
    #[error("{count} keys in an interior node")]
    Count { count: u64 },
    #[error("a key that does not count is not the largest number")]
    SpareKey,
    #[error("permutation {0:?}")]
    Permutation(Permutation),
    #[error("keys out of order at rank {rank}")]
    Order { rank: usize },
    #[error("slice {slice:#x} is outside {low:x?}..{high:x?}")]
    Outside { slice: u64, low: Option<u64>, high: Option<u64> },
    #[error("kind {kind} at rank {rank}")]
    Kind { kind: u64, rank: usize },
    #[error("a suffix of {suffix} bytes for kind {kind}")]
    Suffix { suffix: usize, kind: u64 },
    #[error("the checksum of a record is wrong")]
    Checksum,
    #[error("{0}")]
    Unreadable(Error),
    #[error("a block of {size} bytes is taken, and nothing leads to it")]
    NotReached { size: u64 },
    #[error("a block of {size} bytes, used as one of {used}")]
    OtherSize { size: u64, used: u64 },
    #[error("a block of {size} bytes is in use and not taken")]
    NotTaken { size: u64 },
    #[error("{0}")]
    Mark(String),
    #[error("{0}")]
    OtherEntries(String),
}

/// Faults, each with the offset of what it is about.
pub(crate) type Faults = Vec<(u64, Fault)>;

/// What a tree consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// Keys.
    pub keys: u64,
    /// Layers, the first included.
    pub layers: u64,
    /// Border nodes.
    pub borders: u64,
    /// Interior nodes.
    pub interiors: u64,
    /// Records out of line.
    pub records: u64,
    /// Bytes of all blocks.
    pub bytes: u64,
    /// Bytes of all extents, log segments and free blocks included.
    pub extents: u64,
}

struct Walk<'a, M: Medium, P: Policy> {
    cx: Context<'a, M, P>,
    shape: Shape,
    faults: Faults,
    /// Blocks reached, with their sizes.
    reached: BTreeMap<u64, u64>,
}

/// A node to visit: where, its bounds, how deep in its layer.
type Visit = (Off<Node>, Option<u64>, Option<u64>, usize);
/// A layer: its root, and the name that its border nodes have. In a walk of one: a node of it.
type Layer = (Off<Node>, LayerName);

impl<'a, M: Medium, P: Policy> Walk<'a, M, P> {
    fn find(&mut self, off: u64, fault: Fault) {
        if self.faults.len() < MAX_FINDINGS {
            self.faults.push((off, fault));
        }
    }

    /// Notes a block; `false` if it was reached before.
    fn reach(&mut self, off: u64, size: u64) -> bool {
        self.shape.bytes += size;
        let new = self.reached.insert(off, size).is_none();
        if !new {
            self.find(off, Fault::TwoLinks);
        }
        new
    }

    fn layer(&mut self, (root, name): Layer, layers: &mut Vec<Layer>) -> Result<()> {
        self.shape.layers += 1;
        let mut todo: Vec<Visit> = vec![(root, None, None, 0)];
        let mut last: Option<(Off<Node>, Option<u64>)> = None;
        while let Some((off, low, high, level)) = todo.pop() {
            if self.faults.len() >= MAX_FINDINGS || level > MAX_LEVELS {
                self.find(off.get(), Fault::Levels { level });
                return Ok(());
            }
            if self.cx.op.slice("a node", off, 1).is_err() || off.is_null() {
                self.find(off.get(), Fault::NoNode);
                continue;
            }
            if !self.reach(off.get(), size_of::<Node>() as u64) {
                continue;
            }
            if !self.cx.is_stamped(off) {
                self.find(off.get(), Fault::Stamp);
            }
            if !self.cx.is_placed(off, name) {
                self.find(off.get(), Fault::Place);
            }
            let (node, word) = self.cx.enter(off)?;
            if word & version::DELETED != 0 {
                self.find(off.get(), Fault::Deleted);
            }
            if self.cx.op.load(&node.stamp, Relaxed).is_interior() {
                self.interior(off, (low, high), level, &mut todo);
            } else {
                if let Some((left, bound)) = last {
                    let next = self.cx.op.load(&self.cx.border(left).next, Relaxed);
                    if next != off || bound != low {
                        self.find(left.get(), Fault::Sibling { next, bound, off, low });
                    }
                }
                if self.cx.layer_name(off).words() != name.words() {
                    self.find(off.get(), Fault::Layer);
                }
                let bound = self.border((off, name), low, high, layers)?;
                last = Some((off, bound));
            }
        }
        if let Some((left, Some(_))) = last {
            self.find(left.get(), Fault::LastSibling);
        }
        Ok(())
    }

    fn interior(
        &mut self,
        off: Off<Node>,
        (low, high): (Option<u64>, Option<u64>),
        level: usize,
        todo: &mut Vec<Visit>,
    ) {
        self.shape.interiors += 1;
        if P::INTERIOR_IN_LINE {
            self.cx.slotted_finding(off).into_iter().for_each(|what| self.find(off.get(), Fault::Slotted(what)));
        } else {
            self.spare_keys(off);
        }
        let (keys, children) = self.cx.content(off);
        let bounds: Vec<_> = std::iter::once(low).chain(keys.iter().map(|k| Some(*k))).chain([high]).collect();
        if bounds.windows(2).any(|pair| pair[1].is_some_and(|to| pair[0].is_some_and(|from| from >= to))) {
            self.find(off.get(), Fault::Separators);
        }
        // Children from left to right: the stack gives them back in reverse.
        todo.extend((0..children.len()).rev().map(|i| (children[i], bounds[i], bounds[i + 1], level + 1)));
    }

    fn spare_keys(&mut self, off: Off<Node>) {
        let interior = self.cx.interior(off);
        let count = self.cx.op.load(&interior.count, Relaxed);
        if count > KEYS as u64 {
            self.find(off.get(), Fault::Count { count });
        }
        let mut spare = interior.keys.iter().skip(count.min(KEYS as u64) as usize);
        if spare.any(|key| self.cx.op.load(key, Relaxed) != u64::MAX) {
            self.find(off.get(), Fault::SpareKey);
        }
    }

    /// Returns where the right sibling starts, if there is one.
    fn border(
        &mut self,
        (off, name): Layer,
        low: Option<u64>,
        high: Option<u64>,
        layers: &mut Vec<Layer>,
    ) -> Result<Option<u64>> {
        self.shape.borders += 1;
        let (op, border) = (self.cx.op, self.cx.border(off));
        let permutation = op.load(&border.permutation, Relaxed);
        let kinds: Kinds = op.load(&border.kinds, Relaxed);
        let mask = permutation.mask();
        if mask.count_ones() as usize != permutation.len() || permutation.len() > P::CAPACITY {
            self.find(off.get(), Fault::Permutation(permutation));
        }
        let mut before: Option<Part> = None;
        for rank in 0..permutation.len() {
            let entry = self.cx.entry_in(border, kinds, permutation.slot(rank));
            if before.is_some_and(|part| part >= entry.part()) {
                self.find(off.get(), Fault::Order { rank });
            }
            if low.is_some_and(|low| entry.slice < low) || high.is_some_and(|high| entry.slice >= high) {
                self.find(off.get(), Fault::Outside { slice: entry.slice, low, high });
            }
            before = Some(entry.part());
            match entry.kind {
                kind::LAYER => layers.push((Off::new(entry.word), name.below(entry.slice))),
                0..=kind::LAST_SHORT if entry.inline => self.shape.keys += 1,
                0..=kind::SUFFIX => self.record(off, entry.kind, entry.word),
                kind => self.find(off.get(), Fault::Kind { kind, rank }),
            }
        }
        let next = op.load(&border.next, Relaxed);
        Ok((!next.is_null()).then(|| op.load(&border.high, Relaxed)))
    }

    fn record(&mut self, node: Off<Node>, kind: u64, off: u64) {
        self.shape.keys += 1;
        self.shape.records += 1;
        match Record::read(self.cx.op, off) {
            Ok(record) => {
                if (kind == kind::SUFFIX) != (record.head.suffix() > 0) {
                    self.find(off, Fault::Suffix { suffix: record.head.suffix(), kind });
                }
                if !record.is_sealed() {
                    self.find(off, Fault::Checksum);
                }
                self.reach(off, self.cx.tree.slabs.block_size(record.head.bytes()));
            }
            Err(error) => self.find(node.get(), Fault::Unreadable(error)),
        }
    }

    /// Every block that is taken was reached, and the other way round.
    fn blocks(&mut self) -> Result<()> {
        let mut reached = std::mem::take(&mut self.reached);
        for (extent, head) in self.cx.tree.extents(self.cx.op)? {
            self.shape.extents += extent.len;
            for (off, size) in self.cx.tree.slabs.taken(self.cx.op, self.cx.durably(), extent, head) {
                match reached.remove(&off) {
                    None => self.find(off, Fault::NotReached { size }),
                    Some(used) if used != size => self.find(off, Fault::OtherSize { size, used }),
                    Some(_) => {}
                }
            }
        }
        for (off, size) in reached {
            self.find(off, Fault::NotTaken { size });
        }
        Ok(())
    }
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// Walks all of it: the order and bounds of keys, links, and for a durable tree that every block is reached exactly
    /// once. At most 100 findings. Nobody may write meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), [`Error::Pool`](crate::Error::Pool), where it cannot go on.
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let finding = |(offset, fault): (u64, Fault)| Finding { offset, what: fault.to_string() };
        Ok(self.faults(op)?.into_iter().map(finding).collect())
    }

    pub(crate) fn faults(&self, op: &Op<'_, M>) -> Result<Faults> {
        let mut faults = self.walk(op)?.1;
        let Some(root) = self.root().filter(|_| faults.is_empty()) else { return Ok(faults) };
        match root.marked(op) {
            Marked::Nothing => {}
            Marked::Damaged { offset } => faults.push((offset, Fault::Mark(Finding::of_mark(offset).what))),
            Marked::Held(held) => {
                let mut found = Totals::default();
                self.range(op, Bound::Unbounded, Bound::Unbounded, |key, value| {
                    found.add(value.number(key));
                    ControlFlow::Continue(())
                })?;
                let other = Finding::of_totals(op.off_of(&root.words(op)[0]).get(), held, found);
                faults.extend(other.map(|Finding { offset, what }| (offset, Fault::OtherEntries(what))));
            }
        }
        Ok(faults)
    }

    /// What the tree consists of. Walks all of it; nobody may write meanwhile.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn shape(&self, op: &Op<'_, M>) -> Result<Shape> {
        Ok(self.walk(op)?.0)
    }

    fn walk(&self, op: &Op<'_, M>) -> Result<(Shape, Faults)> {
        let cx = self.cx(op, &[])?;
        let mut walk = Walk { cx, shape: Shape::default(), faults: Faults::new(), reached: BTreeMap::new() };
        let mut layers = vec![(self.root, LayerName::FIRST)];
        while let Some(layer) = layers.pop() {
            walk.layer(layer, &mut layers)?;
            if walk.faults.len() >= MAX_FINDINGS {
                return Ok((walk.shape, walk.faults));
            }
        }
        if P::DURABLE {
            walk.blocks()?;
        }
        Ok((walk.shape, walk.faults))
    }

    /// Writes every node, a line each, with its keys, for people to read.
    ///
    /// # Errors
    /// As [`check`](Self::check); what writing says becomes [`fmt::Error`] in the inner result.
    pub fn dump(&self, op: &Op<'_, M>, to: &mut dyn fmt::Write) -> Result<fmt::Result> {
        let cx = self.cx(op, &[])?;
        let mut todo = vec![(self.root, 0usize, 0usize)];
        let mut seen = BTreeSet::new();
        while let Some((off, layer, level)) = todo.pop() {
            if !seen.insert(off) {
                continue;
            }
            let (node, _) = cx.enter(off)?;
            let pad = (layer + level) * 2;
            let written = if op.load(&node.stamp, Relaxed).is_interior() {
                let (keys, children) = cx.content(off);
                if level < MAX_LEVELS {
                    todo.extend(children.into_iter().rev().map(|child| (child, layer, level + 1)));
                }
                writeln!(to, "{:pad$}interior {off:?} layer {layer} keys {keys:x?}", "")
            } else {
                let entries = cx.entries(cx.border(off));
                let below = entries.iter().rev().filter(|e| e.kind == kind::LAYER && layer < crate::MAX_KEY / 8);
                todo.extend(below.map(|e| (Off::new(e.word), layer + 1, level)));
                let keys: Vec<_> = entries.iter().map(|e| format!("{:x}/{}", e.slice, e.kind)).collect();
                writeln!(to, "{:pad$}border {off:?} layer {layer} [{}]", "", keys.join(" "))
            };
            if written.is_err() {
                return Ok(written);
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests;
