//! Findings, statistics, dump.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::{Direction, Finding};
use durix_pmem::pool::tally::{self, Marked, Totals};
use durix_pmem::{Medium, Off, Op};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::Error;
use crate::layout::RangeHead;
use crate::leaf::{Leaf, bits, load_pair};
use crate::order::SlotOrder;
use crate::range::{Directory, Part, Range, Snapshot};
use crate::recover::{names_itself, own_extents};

/// Numbers about a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys.
    pub keys: u64,
    /// Ranges.
    pub ranges: u64,
    /// Leaves.
    pub leaves: u64,
    /// Keys in leaves: those of fronts come when they are merged.
    pub keys_in_leaves: u64,
    /// Slots of all leaves.
    pub slots: u64,
    /// Entries of fronts that take updates.
    pub active: u64,
    /// Entries of fronts that wait to be merged.
    pub frozen: u64,
    /// Units that are free.
    pub free_units: u64,
    /// Bytes of the extents of units.
    pub unit_bytes: u64,
    /// Log pages.
    pub log_pages: u64,
    /// Log pages that are free.
    pub free_log_pages: u64,
    /// Bytes of log pages.
    pub log_bytes: u64,
    /// Replaced objects in DRAM that wait for operations to end.
    pub retired: u64,
    /// Bytes of DRAM that grow with the tree, about: fronts with their filters, fingerprints and order of leaves, directory.
    pub volatile_bytes: u64,
}

/// What a check can find wrong. Tests have a row for each.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("range {block:#x} begins at {low:#x}, and the one before it ends before {expected:x?}")]
    RangeBegin { block: u64, low: u64, expected: Option<u64> },
    #[error("the last range does not end with the largest key")]
    LastRange,
    #[error("{user} and {other} use the same unit {unit:#x}")]
    SameUnit { unit: u64, user: String, other: String },
    #[error("key {key:#x} lies in slot {slot}, and is not found there")]
    NotFound { key: u64, slot: u8 },
    #[error("key {key:#x} lies in leaf {leaf:#x}, which holds {low:#x} to {last:#x}")]
    OutsideLeaf { key: u64, leaf: u64, low: u64, last: u64 },
    #[error("key {key:#x} lies in leaf {leaf:#x} beside one that is not smaller")]
    Order { key: u64, leaf: u64 },
    #[error("key {key:#x} lies in a front of range {block:#x}")]
    OutsideFront { key: u64, block: u64 },
    #[error("range {block:#x} has side {side}, {count} leaves, next {next:?}")]
    Block { block: u64, side: usize, count: u64, next: Off<RangeHead> },
    #[error("range {block:#x} has no leaves, and its first descriptor does not say so")]
    NoLeaves { block: u64 },
    #[error("range {block:#x} describes leaf {index} otherwise than its snapshot")]
    Descriptor { block: u64, index: usize },
    #[error("{used} of {count} units are used or free")]
    Units { used: usize, count: u64 },
    #[error("{owned} bytes in extents, {units} of units, {pages} of log pages")]
    Bytes { owned: u64, units: u64, pages: u64 },
    #[error("{found} log pages are known, {different} of them different, instead of {count}")]
    LogPages { found: usize, different: usize, count: u64 },
    #[error("{0}")]
    Unreadable(Error),
    #[error("{0}")]
    Mark(String),
    #[error("{0}")]
    OtherEntries(String),
}

/// Pairs that are compared with the closing mark at a time.
const WALK: usize = 256;

impl<M: Medium> DpTree<M> {
    /// Looks for inconsistencies: in the pool, between the pool and DRAM, and in the space. Nobody may write meanwhile. Complete while nobody
    /// merges: a range that is being merged is passed over, and units are then not counted.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn check(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.faults(op).into_iter().map(|(offset, fault)| Finding { offset, what: fault.to_string() }).collect()
    }

    /// As [`check`](Self::check): each fault with the offset of what it is about.
    pub(crate) fn faults(&self, op: &Op<'_, M>) -> Vec<(u64, Fault)> {
        let mut check = Check { tree: self, op, faults: Vec::new(), used: BTreeMap::new() };
        let (mut expected, mut side_by_side) = (Some(0), true);
        for range in self.own_directory(op).ranges() {
            side_by_side &= expected == Some(range.snapshot.get(op).low);
            expected = check.range(range, expected);
        }
        if expected.is_some() {
            check.find(0, Fault::LastRange);
        }
        check.space();
        check.log();
        // A walk does not end where ranges do not lie side by side: no file can say so, only a fault of this code.
        if side_by_side && expected.is_none() {
            check.tally();
        }
        check.faults
    }

    /// The ranges, for calls that say nothing of an operation of another pool: its grace periods do not wait for that one.
    pub(crate) fn own_directory<'a>(&'a self, op: &'a Op<'_, M>) -> &'a Directory {
        self.poison.expect_own(op).expect("an operation of another pool than the tree's");
        self.directory.get(op)
    }

    /// Numbers about the tree. Costs what [`len`](Self::len) costs.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn stats(&self, op: &Op<'_, M>) -> Stats {
        let m = op.medium();
        let (free, unit_bytes) = self.units.totals(m);
        let (log_pages, free_log_pages, log_bytes) = self.log.totals(m);
        let mut stats = Stats {
            keys: self.len(op),
            free_units: free.len() as u64,
            unit_bytes,
            log_pages,
            free_log_pages,
            log_bytes,
            retired: self.limbo.len(m) as u64,
            ..Stats::default()
        };
        for range in self.own_directory(op).ranges() {
            let inner = range.lock(op);
            let snapshot = range.snapshot.get(op);
            stats.ranges += 1;
            stats.leaves += snapshot.leaves.len() as u64;
            stats.keys_in_leaves += snapshot.leaf_keys() as u64;
            stats.active += inner.active.len() as u64;
            stats.frozen += snapshot.frozen.as_ref().map_or(0, |frozen| frozen.front.len()) as u64;
            let frozen = snapshot.frozen.as_ref().map_or(0, |frozen| frozen.front.bytes());
            stats.volatile_bytes += (inner.active.bytes() + frozen) as u64;
        }
        stats.slots = stats.leaves * self.shape.slots as u64;
        // A leaf with its table, and the order of its keys; a range with its lists; the filters, and the sorted second fronts.
        let leaf = (size_of::<Leaf>() + 64 + size_of::<SlotOrder>()) as u64;
        stats.volatile_bytes += stats.leaves * leaf + stats.ranges * 1024 + (stats.active + stats.frozen * 13) * 2;
        stats
    }

    /// Writes what lies in the pool, and the fronts, for people who look for a fault.
    ///
    /// # Errors
    /// What `out` returns.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let shape = self.shape;
        writeln!(
            out,
            "tree: {} slots a leaf, {} leaves a range, unit {} bytes",
            shape.slots,
            shape.leaves,
            shape.unit()
        )?;
        for range in self.own_directory(op).ranges() {
            let inner = range.lock(op);
            let snapshot = range.snapshot.get(op);
            let state = op.load(&op.at(range.block).state, Relaxed);
            let (floor, side) = (state.floor(), state.side());
            writeln!(out, "range {:#x}: from {:#x}, floor {floor}, side {side}", range.block.get(), snapshot.low)?;
            for Part { low, leaf, .. } in snapshot.leaves.iter() {
                writeln!(out, "  leaf {:#x}: from {low:#x}, {} keys", leaf.off, leaf.count())?;
                // For DP-V2: what is shown is durable.
                leaf.table(op);
                for slot in bits(&leaf.taken) {
                    let (key, value) = load_pair(op, leaf.off, slot);
                    writeln!(out, "    {slot}: {key:#x} = {value:#x}")?;
                }
            }
            let frozen = snapshot.frozen.iter().flat_map(|frozen| frozen.front.iter());
            let fronts =
                frozen.map(|entry| ("frozen", entry)).chain(inner.active.iter().map(|entry| ("active", entry)));
            for (what, (key, value)) in fronts {
                writeln!(out, "  {what}: {key:#x} = {value:x?}")?;
            }
        }
        Ok(())
    }
}

struct Check<'a, 's, M: Medium> {
    tree: &'a DpTree<M>,
    op: &'a Op<'s, M>,
    faults: Vec<(u64, Fault)>,
    /// Who uses a unit.
    used: BTreeMap<u64, String>,
}

impl<M: Medium> Check<'_, '_, M> {
    /// Compares the entries with those that the tree had when its pool was closed.
    fn tally(&mut self) {
        let (tree, op) = (self.tree, self.op);
        let held = match tree.root().marked(op) {
            Marked::Nothing => return,
            Marked::Damaged { offset } => return self.find(offset, Fault::Mark(Finding::of_mark(offset).what)),
            Marked::Held(held) => held,
        };
        let (mut found, mut pairs, mut from) = (Totals::default(), Vec::new(), Some(0));
        while let Some(key) = from {
            pairs.clear();
            match tree.walk(op, key, Direction::Forward, WALK, &mut pairs) {
                Ok(next) => from = next,
                Err(error) => return self.find(0, Fault::Unreadable(error)),
            }
            pairs.iter().for_each(|(key, value)| found.add(tally::entry(*key, *value)));
        }
        let offset = op.off_of(&tree.root().words(op)[0]).get();
        if let Some(Finding { offset, what }) = Finding::of_totals(offset, held, found) {
            self.find(offset, Fault::OtherEntries(what));
        }
    }

    fn find(&mut self, offset: u64, fault: Fault) {
        self.faults.push((offset, fault));
    }

    fn uses(&mut self, unit: u64, user: String) {
        if let Some(other) = self.used.insert(unit, user.clone()) {
            self.find(unit, Fault::SameUnit { unit, user, other });
        }
    }

    /// Returns where the next range should begin.
    fn range(&mut self, range: &Range, expected: Option<u64>) -> Option<u64> {
        let inner = range.lock(self.op);
        let snapshot = range.snapshot.get(self.op);
        let block = range.block.get();
        if expected != Some(snapshot.low) {
            self.find(block, Fault::RangeBegin { block, low: snapshot.low, expected });
        }
        self.uses(block, format!("range {block:#x}"));
        if inner.claim.is_taken() {
            return snapshot.last.checked_add(1);
        }
        self.block(range, snapshot);
        let mut below = None;
        for (number, part) in snapshot.leaves.iter().enumerate() {
            let Part { low, leaf, .. } = part;
            self.uses(leaf.off, format!("a leaf of range {block:#x}"));
            let low = if number == 0 { snapshot.low } else { *low };
            let last = snapshot.leaves.get(number + 1).map_or(snapshot.last, |next| next.low.wrapping_sub(1));
            for slot in leaf.order(self.op).slots(leaf.count()) {
                let (key, _) = load_pair(self.op, leaf.off, usize::from(*slot));
                if part.find(self.op, key, hash(key)).is_none_or(|(found, _)| found != usize::from(*slot)) {
                    self.find(leaf.off, Fault::NotFound { key, slot: *slot });
                }
                if !(low..=last).contains(&key) {
                    self.find(leaf.off, Fault::OutsideLeaf { key, leaf: leaf.off, low, last });
                }
                if below.is_some_and(|below| key <= below) {
                    self.find(leaf.off, Fault::Order { key, leaf: leaf.off });
                }
                below = Some(key);
            }
        }
        let frozen = snapshot.frozen.iter().flat_map(|frozen| frozen.front.iter());
        for (key, _) in inner.active.iter().chain(frozen).filter(|(key, _)| !snapshot.covers(*key)) {
            self.find(block, Fault::OutsideFront { key, block });
        }
        snapshot.last.checked_add(1)
    }

    /// Compares a block with the snapshot.
    fn block(&mut self, range: &Range, snapshot: &Snapshot) {
        let (op, block) = (self.op, range.block.get());
        let state = op.load(&op.at(range.block).state, Relaxed);
        let shape = self.tree.shape;
        let first = op.at(shape.descriptor(range.block, state.side(), 0));
        let (count, next) = (op.load(&first.count, Relaxed), op.load(&first.next, Relaxed));
        if (state.side(), count, next) != (snapshot.side, snapshot.leaves.len() as u64, snapshot.next) {
            self.find(block, Fault::Block { block, side: state.side(), count, next });
        }
        if count == 0 && !names_itself(op, shape, range.block, state.side()) {
            self.find(block, Fault::NoLeaves { block });
        }
        for (index, Part { low, leaf, .. }) in snapshot.leaves.iter().enumerate() {
            let descriptor = op.at(shape.descriptor(range.block, state.side(), index));
            let same = op.load(&descriptor.leaf, Relaxed) == leaf.off
                && op.load(&descriptor.low, Relaxed) == *low
                && descriptor.taken.iter().zip(leaf.taken).all(|(word, taken)| op.load(word, Relaxed) == taken);
            if !same {
                self.find(block, Fault::Descriptor { block, index });
            }
        }
    }

    fn space(&mut self) {
        let m = self.op.medium();
        let (free, units) = self.tree.units.totals(m);
        for unit in &free {
            self.uses(*unit, "free space".into());
        }
        let count = self.tree.units.count(m);
        let is_merging = |range: &std::sync::Arc<Range>| range.lock(self.op).claim.is_taken();
        let merging = self.tree.directory.get(self.op).ranges().any(is_merging);
        if self.used.len() as u64 != count && !merging {
            self.find(0, Fault::Units { used: self.used.len(), count });
        }
        let (_, _, pages) = self.tree.log.totals(m);
        let extents = own_extents(self.op, &self.tree.root, &self.tree.options);
        let owned: u64 = extents.iter().map(|extent| extent.len).sum();
        if owned != units + pages {
            self.find(0, Fault::Bytes { owned, units, pages });
        }
    }

    fn log(&mut self) {
        let (mut pages, count) = self.tree.log.all_pages(self.op.medium());
        pages.sort_unstable();
        let found = pages.len();
        pages.dedup();
        if [found as u64, pages.len() as u64] != [count; 2] {
            self.find(0, Fault::LogPages { found, different: pages.len(), count });
        }
    }
}

#[cfg(test)]
mod tests;
