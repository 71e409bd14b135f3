//! Walking everything and reporting what contradicts itself. For a tree that nobody writes to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Finding;
use durix_pmem::pool::tally::{Marked, Totals};
use durix_pmem::{Medium, Off, Op};

use crate::Policy;
use crate::error::Result;
use crate::layout::{KEYS, Kinds, Node, SLOTS, kind};
use crate::node::context::Context;
use crate::node::part::Part;
use crate::tree::Masstree;
use crate::value::Record;

/// Findings after which a check ends.
const MAX_FINDINGS: usize = 100;
/// Levels after which a check takes a chain of nodes for a circle.
const MAX_LEVELS: usize = 48;

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
    findings: Vec<Finding>,
    /// Blocks reached, with their sizes.
    reached: BTreeMap<u64, u64>,
}

/// A node to visit: where, its bounds, how deep in its layer.
type Visit = (Off<Node>, Option<u64>, Option<u64>, usize);

impl<'a, M: Medium, P: Policy> Walk<'a, M, P> {
    fn find(&mut self, off: u64, what: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { offset: off, what });
        }
    }

    /// Notes a block; `false` if it was reached before.
    fn reach(&mut self, off: u64, size: u64) -> bool {
        self.shape.bytes += size;
        let new = self.reached.insert(off, size).is_none();
        if !new {
            self.find(off, "two links lead to this block".into());
        }
        new
    }

    fn layer(&mut self, root: Off<Node>, layers: &mut Vec<Off<Node>>) -> Result<()> {
        self.shape.layers += 1;
        let mut todo: Vec<Visit> = vec![(root, None, None, 0)];
        let mut last: Option<(Off<Node>, Option<u64>)> = None;
        while let Some((off, low, high, level)) = todo.pop() {
            if self.findings.len() >= MAX_FINDINGS || level > MAX_LEVELS {
                self.find(off.get(), format!("{level} levels"));
                return Ok(());
            }
            if self.cx.op.slice("a node", off, 1).is_err() || off.is_null() || !off.get().is_multiple_of(64) {
                self.find(off.get(), "a link that leads to no node".into());
                continue;
            }
            if !self.reach(off.get(), size_of::<Node>() as u64) {
                continue;
            }
            if !self.cx.is_stamped(off) {
                self.find(off.get(), "the stamp of a node makes no sense".into());
            }
            let (node, version) = self.cx.enter(off)?;
            if version & crate::layout::version::DELETED != 0 {
                self.find(off.get(), "a deleted node is part of the tree".into());
            }
            if self.cx.op.load(&node.stamp, Relaxed).is_interior() {
                self.interior(off, (low, high), level, &mut todo);
            } else {
                if let Some((left, bound)) = last {
                    let next = self.cx.op.load(&self.cx.border(left).next, Relaxed);
                    if next != off || bound != low {
                        self.find(
                            left.get(),
                            format!("its right sibling is {next:?}, from {bound:?} on, not {off:?}, from {low:?}"),
                        );
                    }
                }
                let bound = self.border(off, low, high, layers)?;
                last = Some((off, bound));
            }
        }
        if let Some((left, Some(_))) = last {
            self.find(left.get(), "the last node has a right sibling".into());
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
            self.cx.slotted_finding(off).into_iter().for_each(|what| self.find(off.get(), what));
        } else {
            self.spare_keys(off);
        }
        let (keys, children) = self.cx.content(off);
        let bounds: Vec<_> = std::iter::once(low).chain(keys.iter().map(|k| Some(*k))).chain([high]).collect();
        if bounds.windows(2).any(|pair| pair[1].is_some_and(|to| pair[0].is_some_and(|from| from >= to))) {
            self.find(off.get(), "keys out of order".into());
        }
        // Children from left to right: the stack gives them back in reverse.
        todo.extend((0..children.len()).rev().map(|i| (children[i], bounds[i], bounds[i + 1], level + 1)));
    }

    fn spare_keys(&mut self, off: Off<Node>) {
        let interior = self.cx.interior(off);
        let count = self.cx.op.load(&interior.count, Relaxed);
        if count > KEYS as u64 {
            self.find(off.get(), format!("{count} keys in an interior node"));
        }
        let mut spare = interior.keys.iter().skip(count.min(KEYS as u64) as usize);
        if spare.any(|key| self.cx.op.load(key, Relaxed) != u64::MAX) {
            self.find(off.get(), "a key that does not count is not the largest number".into());
        }
    }

    /// Returns where the right sibling starts, if there is one.
    fn border(
        &mut self,
        off: Off<Node>,
        low: Option<u64>,
        high: Option<u64>,
        layers: &mut Vec<Off<Node>>,
    ) -> Result<Option<u64>> {
        self.shape.borders += 1;
        let (op, border) = (self.cx.op, self.cx.border(off));
        let permutation = op.load(&border.permutation, Relaxed);
        let kinds: Kinds = op.load(&border.kinds, Relaxed);
        let mask = permutation.mask();
        if mask.count_ones() as usize != permutation.len() || mask >> SLOTS != 0 || permutation.len() > P::CAPACITY {
            self.find(off.get(), format!("permutation {permutation:?}"));
        }
        let mut before: Option<Part> = None;
        for rank in 0..permutation.len() {
            let entry = self.cx.entry_in(border, kinds, permutation.slot(rank));
            if before.is_some_and(|part| part >= entry.part()) {
                self.find(off.get(), format!("keys out of order at rank {rank}"));
            }
            if low.is_some_and(|low| entry.slice < low) || high.is_some_and(|high| entry.slice >= high) {
                self.find(off.get(), format!("slice {:#x} is outside {low:x?}..{high:x?}", entry.slice));
            }
            before = Some(entry.part());
            match entry.kind {
                kind::LAYER => layers.push(Off::new(entry.word)),
                0..=kind::LAST_SHORT if entry.inline => self.shape.keys += 1,
                0..=kind::SUFFIX => self.record(off, entry.kind, entry.word),
                other => self.find(off.get(), format!("kind {other} at rank {rank}")),
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
                    self.find(off, format!("a suffix of {} bytes for kind {kind}", record.head.suffix()));
                }
                if !record.is_sealed() {
                    self.find(off, "the checksum of a record is wrong".into());
                }
                self.reach(off, self.cx.tree.slabs.block_size(record.head.bytes()));
            }
            Err(error) => self.find(node.get(), error.to_string()),
        }
    }

    /// Every block that is taken was reached, and the other way round.
    fn blocks(&mut self) -> Result<()> {
        let mut reached = std::mem::take(&mut self.reached);
        for (extent, head) in self.cx.tree.extents(self.cx.op)? {
            self.shape.extents += extent.len;
            for (off, size) in self.cx.tree.slabs.taken(self.cx.op, self.cx.durably(), extent, head) {
                match reached.remove(&off) {
                    None => self.find(off, format!("a block of {size} bytes is taken, and nothing leads to it")),
                    Some(found) if found != size => {
                        self.find(off, format!("a block of {size} bytes, used as one of {found}"))
                    }
                    Some(_) => {}
                }
            }
        }
        for (off, size) in reached {
            self.find(off, format!("a block of {size} bytes is in use and not taken"));
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
        let mut findings = self.walk(op)?.1;
        let Some(root) = self.root().filter(|_| findings.is_empty()) else { return Ok(findings) };
        match root.marked(op) {
            Marked::Nothing => {}
            Marked::Damaged { offset } => findings.push(Finding::of_mark(offset)),
            Marked::Held(held) => {
                let mut found = Totals::default();
                self.range(op, Bound::Unbounded, Bound::Unbounded, |key, value| {
                    found.add(value.number(key));
                    ControlFlow::Continue(())
                })?;
                findings.extend(Finding::of_totals(op.off_of(&root.words(op)[0]).get(), held, found));
            }
        }
        Ok(findings)
    }

    /// What the tree consists of. Walks all of it; nobody may write meanwhile.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn shape(&self, op: &Op<'_, M>) -> Result<Shape> {
        Ok(self.walk(op)?.0)
    }

    fn walk(&self, op: &Op<'_, M>) -> Result<(Shape, Vec<Finding>)> {
        let cx = self.cx(op, &[])?;
        let mut walk = Walk { cx, shape: Shape::default(), findings: Vec::new(), reached: BTreeMap::new() };
        let mut layers = vec![self.root];
        while let Some(root) = layers.pop() {
            walk.layer(root, &mut layers)?;
            if walk.findings.len() >= MAX_FINDINGS {
                return Ok((walk.shape, walk.findings));
            }
        }
        if P::DURABLE {
            walk.blocks()?;
        }
        Ok((walk.shape, walk.findings))
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
