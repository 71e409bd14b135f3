//! Findings, statistics, dump, salvage.

use std::collections::BTreeSet;
use std::fmt;

use durix_index::Finding;
use durix_pmem::pool::tally::{Marked, Totals};
use durix_pmem::{Medium, Op};

use crate::BPlusTree;
use crate::error::{Error, Result};
use crate::layout::{NODE, at};
use crate::node::{Committed, Node, Record, Slot, Words, child, key_of, value_of};

/// Numbers about a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys.
    pub keys: u64,
    /// Levels of nodes.
    pub levels: u64,
    /// Leaves.
    pub leaves: u64,
    /// Interior nodes.
    pub interiors: u64,
    /// Records: entries and separators that do not fit into a slot.
    pub records: u64,
    /// Bytes of nodes and records.
    pub block_bytes: u64,
    /// Bytes of chunks that belong to the tree, the log included.
    pub persistent_bytes: u64,
}

/// What a check can find wrong. Tests have a row for each.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("two links lead to this block")]
    TwoLinks,
    #[error("the order of its slots is no permutation: {order:#x}")]
    Order { order: u64 },
    #[error("its separators are not in order at {number}")]
    Separators { number: usize },
    #[error("child {number}: {error}")]
    Child { number: usize, error: Error },
    #[error("its link leads to {link:#x}; the next leaf is {next:#x}")]
    Link { link: u64, next: u64 },
    #[error("it is the last leaf, and its link leads to {link:#x}")]
    LastLink { link: u64 },
    #[error("entry {place}: {error}")]
    Entry { place: usize, error: Error },
    #[error("entry {place} does not lie between the separators above")]
    Outside { place: usize },
    #[error("entry {place} is not above the one before it")]
    NotAbove { place: usize },
    #[error("the checksum of a record is wrong")]
    Checksum,
    #[error("{0}")]
    Unreadable(Error),
    #[error("nothing leads to this block")]
    NotReached,
    #[error("this block is in use and not allocated")]
    NotAllocated,
    #[error("{0}")]
    Mark(String),
    #[error("{0}")]
    OtherEntries(String),
}

/// Faults, each with the offset of what it is about.
pub(crate) type Faults = Vec<(u64, Fault)>;

/// One look at everything, while nobody writes.
struct Survey<'a, 's, M: Medium> {
    words: Committed<'a, 's, M>,
    stats: Stats,
    faults: Faults,
    /// Offsets of all blocks that something leads to.
    reached: BTreeSet<u64>,
    last_key: Option<Vec<u8>>,
    /// The leaf before, in the order of keys, and its link.
    last_leaf: Option<(u64, u64)>,
    /// The entries of all leaves.
    totals: Totals,
}

impl<M: Medium> Survey<'_, '_, M> {
    fn find(&mut self, offset: u64, fault: Fault) {
        self.faults.push((offset, fault));
    }

    fn reach(&mut self, off: u64) -> bool {
        let is_new = self.reached.insert(off);
        if !is_new {
            self.find(off, Fault::TwoLinks);
        }
        is_new
    }

    /// Looks at a node and all below it, whose keys lie between two separators.
    fn node(&mut self, node: Node, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<()> {
        if !self.reach(node.off) {
            return Ok(());
        }
        if !node.order.is_sound() {
            self.find(node.off, Fault::Order { order: node.order.0 });
        }
        if node.level == 0 {
            return self.leaf(node, low, high);
        }
        self.stats.interiors += 1;
        let mut keys = Vec::new();
        for place in 0..node.len() {
            let key = self.slot(node.slot(&self.words, place))?;
            keys.push(key);
        }
        for number in 0..=node.len() {
            let low = if number == 0 { low } else { Some(&keys[number - 1][..]) };
            let high = keys.get(number).map(|key| &key[..]).or(high);
            if low.is_some() && high.is_some() && low >= high {
                self.find(node.off, Fault::Separators { number });
            }
            match node.child(&self.words, number) {
                Ok(child) => self.node(child, low, high)?,
                Err(error) => self.find(node.off, Fault::Child { number, error }),
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: Node, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<()> {
        self.stats.leaves += 1;
        if let Some((before, link)) = self.last_leaf
            && link != leaf.off
        {
            self.find(before, Fault::Link { link, next: leaf.off });
        }
        self.last_leaf = Some((leaf.off, self.words.word(leaf.off + at::LINK)));
        for place in 0..leaf.len() {
            let slot = leaf.slot(&self.words, place);
            let key = match self.slot(slot) {
                Ok(key) => key,
                Err(error) => {
                    self.find(leaf.off, Fault::Entry { place, error });
                    continue;
                }
            };
            if low.is_some_and(|low| &key[..] < low) || high.is_some_and(|high| &key[..] >= high) {
                self.find(leaf.off, Fault::Outside { place });
            }
            if self.last_key.as_ref().is_some_and(|last| *last >= key) {
                self.find(leaf.off, Fault::NotAbove { place });
            }
            self.totals.add(slot.number(&self.words));
            (self.last_key, self.stats.keys) = (Some(key), self.stats.keys + 1);
        }
        Ok(())
    }

    /// The key of a slot; its record is looked at.
    fn slot(&mut self, slot: Slot) -> Result<Vec<u8>> {
        if let Some(off) = slot.record() {
            let record = Record::read(&self.words, off)?;
            self.stats.records += 1;
            if !record.is_sealed(&self.words)? {
                self.find(off, Fault::Checksum);
            }
            for block in record.blocks(&self.words)? {
                self.reach(block);
            }
        }
        let mut key = Vec::new();
        key_of(&self.words, slot, &mut key)?;
        Ok(key)
    }
}

impl<M: Medium> BPlusTree<M> {
    /// Everything that is wrong: the order of keys, separators and slots, links between leaves, and blocks that nothing, or more than
    /// one thing, leads to. While nobody writes. `O(keys)`.
    pub fn check(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.faults(op).into_iter().map(|(offset, fault)| Finding { offset, what: fault.to_string() }).collect()
    }

    /// As [`check`](Self::check).
    pub(crate) fn faults(&self, op: &Op<'_, M>) -> Faults {
        self.survey(op).0
    }

    /// Numbers about the tree. `O(keys)`.
    pub fn stats(&self, op: &Op<'_, M>) -> Stats {
        self.survey(op).1
    }

    fn survey(&self, op: &Op<'_, M>) -> (Faults, Stats) {
        let _latch = self.latch.lock(op.medium());
        let mut survey = Survey {
            words: Committed { op, block_words: self.block_words() },
            stats: Stats::default(),
            faults: Faults::new(),
            reached: BTreeSet::new(),
            last_key: None,
            last_leaf: None,
            totals: Totals::default(),
        };
        let root = survey.words.word(self.root_off);
        if root != 0 {
            let walked = Node::root(&survey.words, root).and_then(|node| {
                survey.stats.levels = node.level + 1;
                survey.node(node, None, None)
            });
            walked.unwrap_or_else(|error| survey.find(root, Fault::Unreadable(error)));
        }
        if let Some((last, link)) = survey.last_leaf
            && link != 0
        {
            survey.find(last, Fault::LastLink { link });
        }
        match self.root.marked(op) {
            Marked::Nothing => {}
            Marked::Damaged { offset } => survey.find(offset, Fault::Mark(Finding::of_mark(offset).what)),
            Marked::Held(held) => {
                if let Some(Finding { offset, what }) = Finding::of_totals(self.root_off, held, survey.totals) {
                    survey.find(offset, Fault::OtherEntries(what));
                }
            }
        }
        let (owner, space) = (self.root.owner(), self.root.pool().space());
        let allocated = space.blocks(op, owner);
        survey.stats.block_bytes = allocated.iter().map(|(_, len)| len).sum();
        let found = space.stats(op).by_owner.into_iter().find(|(of, _)| *of == owner);
        survey.stats.persistent_bytes = found.map_or(0, |(_, bytes)| bytes);
        let allocated: BTreeSet<u64> = allocated.into_iter().map(|(off, _)| off).collect();
        for off in allocated.difference(&survey.reached) {
            survey.faults.push((*off, Fault::NotReached));
        }
        for off in survey.reached.difference(&allocated) {
            survey.faults.push((*off, Fault::NotAllocated));
        }
        (survey.faults, survey.stats)
    }

    /// Calls `found` with every entry of every leaf that can be read: those that the root leads to, wherever they lie, then those of
    /// blocks of the tree. Of a key that comes twice the first one counts. While nobody writes.
    pub fn salvage(&self, op: &Op<'_, M>, found: &mut dyn FnMut(&[u8], &[u8])) -> Vec<Finding> {
        let words = Committed { op, block_words: self.block_words() };
        let root = words.word(self.root_off);
        let mut salvage = Salvage { words, found, findings: Vec::new(), seen: BTreeSet::new(), astray: Vec::new() };
        if root != 0 {
            salvage.below(root);
        }
        for (off, len) in self.root.pool().space().blocks(op, self.root.owner()) {
            if len == NODE
                && let Ok(leaf) = Node::of_level(&salvage.words, off, 0)
                && salvage.seen.insert(off)
            {
                salvage.leaf(leaf, None, None);
            }
        }
        for (key, value) in std::mem::take(&mut salvage.astray) {
            (salvage.found)(&key, &value);
        }
        salvage.findings
    }

    /// Writes all nodes, from the root on.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let _latch = self.latch.lock(op.medium());
        let words = Committed { op, block_words: self.block_words() };
        let root = words.word(self.root_off);
        writeln!(out, "root {root:#x}")?;
        let mut left = op.mapping().len() / NODE + 1;
        match Node::root(&words, root) {
            _ if root == 0 => Ok(()),
            Ok(node) => dump_node(&words, node, &mut left, out),
            Err(error) => writeln!(out, "{error}"),
        }
    }
}

/// A node to look at, and the separators that its keys lie between, as far as they are known.
type Visit = (u64, Option<Vec<u8>>, Option<Vec<u8>>);

/// What can be read of a tree that may be damaged.
struct Salvage<'a, 's, 'f, M: Medium> {
    words: Committed<'a, 's, M>,
    found: &'f mut dyn FnMut(&[u8], &[u8]),
    findings: Vec<Finding>,
    /// Nodes that were looked at.
    seen: BTreeSet<u64>,
    /// Entries that do not lie between the separators above: of a leaf that a damaged link leads to, or that was copied.
    astray: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<M: Medium> Salvage<'_, '_, '_, M> {
    fn find(&mut self, offset: u64, what: impl Into<String>) {
        self.findings.push(Finding { offset, what: what.into() });
    }

    /// Gives the entries of all leaves that a node leads to. The pool's table of space is not asked: it may be damaged, too.
    fn below(&mut self, off: u64) {
        let mut todo: Vec<Visit> = vec![(off, None, None)];
        while let Some((off, low, high)) = todo.pop() {
            if !self.seen.insert(off) {
                continue;
            }
            let node = Node::root(&self.words, off).and_then(|node| Node::of_level(&self.words, off, node.level));
            match node {
                Ok(node) if node.level > 0 => self.interior(node, low, high, &mut todo),
                Ok(leaf) => self.leaf(leaf, low.as_deref(), high.as_deref()),
                Err(error) => self.find(off, error.to_string()),
            }
        }
    }

    fn interior(&mut self, node: Node, low: Option<Vec<u8>>, high: Option<Vec<u8>>, todo: &mut Vec<Visit>) {
        let separator = |place: usize| {
            let mut key = Vec::new();
            key_of(&self.words, node.slot(&self.words, place), &mut key).ok().map(|()| key)
        };
        let keys: Vec<_> = (0..node.len()).map(separator).collect();
        // Those that are not in order say nothing.
        let are_sound = keys.iter().all(Option::is_some) && keys.is_sorted_by(|a, b| a < b);
        let bound = |place: usize| keys.get(place).cloned().flatten().filter(|_| are_sound);
        for number in 0..=node.len() {
            let low = if number == 0 { low.clone() } else { bound(number - 1) };
            let high = if number == node.len() { high.clone() } else { bound(number) };
            match node.child(&self.words, number) {
                Ok(child) => todo.push((child.off, low, high)),
                Err(error) => self.find(node.off, format!("child {number}: {error}")),
            }
        }
    }

    fn leaf(&mut self, leaf: Node, low: Option<&[u8]>, high: Option<&[u8]>) {
        for place in 0..leaf.len() {
            let (slot, mut key, mut value) = (leaf.slot(&self.words, place), Vec::new(), Vec::new());
            let words = &self.words;
            let record = slot.record().map_or(Ok(true), |off| Record::read(words, off)?.is_sealed(words));
            if !matches!(record, Ok(true)) {
                self.find(leaf.off, format!("entry {place}: its record is damaged"));
                continue;
            }
            let read = key_of(words, slot, &mut key).and_then(|()| value_of(words, slot, &mut value));
            if let Err(error) = read {
                self.find(leaf.off, format!("entry {place}: {error}"));
            } else if low.is_some_and(|low| &key[..] < low) || high.is_some_and(|high| &key[..] >= high) {
                self.find(leaf.off, format!("entry {place} does not lie between the separators above"));
                self.astray.push((key, value));
            } else {
                (self.found)(&key, &value);
            }
        }
    }
}

fn dump_node(words: &impl Words, node: Node, left: &mut u64, out: &mut dyn fmt::Write) -> fmt::Result {
    let Some(less) = left.checked_sub(1) else { return Ok(()) };
    *left = less;
    let indent = " ".repeat(usize::try_from(node.level).unwrap_or(0));
    let (off, level, link) = (node.off, node.level, words.word(node.off + at::LINK));
    writeln!(out, "{indent}node {off:#x} level {level} slots {} link {link:#x}", node.len())?;
    for place in 0..node.len() {
        let (slot, mut key) = (node.slot(words, place), Vec::new());
        match key_of(words, slot, &mut key) {
            Ok(()) if level > 0 => {
                writeln!(out, "{indent} {} -> {:#x}", key.escape_ascii(), child(words, slot).unwrap_or(0))?;
            }
            Ok(()) => match slot.record() {
                Some(record) => writeln!(out, "{indent} {} = record {record:#x}", key.escape_ascii())?,
                None => writeln!(out, "{indent} {} = {:#x}", key.escape_ascii(), slot.value)?,
            },
            Err(error) => writeln!(out, "{indent} {error}")?,
        }
    }
    for number in (0..=node.len()).take_while(|_| level > 0) {
        match node.child(words, number) {
            Ok(child) => dump_node(words, child, left, out)?,
            Err(error) => writeln!(out, "{indent} child {number}: {error}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
