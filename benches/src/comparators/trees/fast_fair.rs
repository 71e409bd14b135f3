//! FAST&FAIR: a B+-tree whose nodes are sorted in persistent memory, and need neither log nor copies (Hwang et al., Endurable Transient
//! Inconsistency in Byte-Addressable Persistent B+-Tree, FAST 2018).
//!
//! A node is a header and entries in order. An insert moves the entries behind its place on by one, from the last, word by word: a
//! line is written back and fenced before the next line is touched (FAST). An entry counts if its value differs from that of the
//! entry before it, so each state in between is a node without the new entry, or with it. A split (FAIR) copies the upper half to a
//! new node, links it as the sibling, and cuts the old node short; the parent is told last. Until then, keys are found by the sibling.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | terminator < the entries below it, where it is on another line | write-back, fence | the old end is still there |
//! | a line of moved entries < the line before it | write-back, fence | an entry is there twice in a row, and counts once |
//! | value of the left neighbour < key < value, on one line | order within a line | the new entry does not count |
//! | new node < the link to it | write-back of its lines, one fence | it is not linked |
//! | link to the sibling < the old node is cut | write-back, fence | entries are in both nodes, with the same values |
//! | old node is cut < the insert that follows returns | write-back, its fence | both nodes have the same entries |
//! | entry of the parent | write-back, fence | found by the sibling |
//!
//! As published: nodes of 512 bytes, 28 entries of 16. Different: the first entry behind the end gets its key before its value; a leaf's left neighbour of its first entry is a mark, not 0, which
//! is the end of a node; a node's lines are asked for together; keys of a node are counted without a branch each; a terminator that is
//! there already is not written back, and neither is the cut of a split given a fence of its own; the sibling is looked at only by keys beyond the last one of a node; a new node's lines that are
//! not in use are not written back.
//!
//! What is left out: removal, threads (so no counter for readers), and recovery, which would find the number of entries of each node (a
//! hint in its header that is never written back on purpose) and take out entries that are there twice before a node is written.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::Ordered;
use super::memory::Memory;

/// Entries of a node; the last one that is in use is followed by one whose value is 0.
const ENTRIES: usize = 28;
const MOST: usize = ENTRIES - 1;
const NODE: u64 = 512;
const PER_LINE: usize = 4;
/// `leftmost` of a leaf: no value is that.
const LEAF: u64 = u64::MAX;
/// Levels of the highest tree.
const LEVELS: usize = 16;

persistent! {
    /// An entry: four of them are a line.
    struct Entry: align(16) {
        key: Word,
        /// A value, or the node of the keys from `key` on.
        value: Word,
    }

    /// Line 0: the header. Lines 1 to 7: the entries.
    struct Node: align(64) {
        /// The node of the keys below the first entry; [`LEAF`] in leaves.
        leftmost: Word,
        /// The next node of this level.
        sibling: Word,
        /// Entries: a hint.
        count: Word,
        rest: [Word; 5],
        entries: [Entry; ENTRIES],
    }

    /// The line that leads to the tree.
    struct Root: align(64) {
        node: Word,
        rest: [Word; 7],
    }
}

const _: () = assert!(size_of::<Node>() as u64 == NODE);

/// The tree.
#[derive(Debug)]
pub struct FastFair {
    memory: Memory,
    /// Where the root is noted.
    anchor: u64,
    root: u64,
    /// Levels above the leaves.
    height: usize,
}

#[inline(always)]
fn node<'s, M: Medium>(op: &Op<'s, M>, at: u64) -> &'s Node {
    op.at(Off::new(at))
}

impl Node {
    #[inline(always)]
    fn count<M: Medium>(&self, op: &Op<'_, M>) -> usize {
        (op.load(&self.count, Relaxed) as usize).min(MOST)
    }

    /// How many of the first `count` keys are at most `key`.
    #[inline(always)]
    fn place<M: Medium>(&self, op: &Op<'_, M>, count: usize, key: u64) -> usize {
        self.entries[..count].iter().map(|entry| usize::from(op.load(&entry.key, Relaxed) <= key)).sum()
    }

    /// The word before the value of entry number `at`.
    #[inline(always)]
    fn before(&self, at: usize) -> &Word {
        if at == 0 { &self.leftmost } else { &self.entries[at - 1].value }
    }

    /// FAST: inserts an entry as number `at` of `count`.
    #[inline]
    fn shift_in<M: Medium>(&self, op: &Op<'_, M>, at: usize, count: usize, key: u64, value: u64) {
        let entries = &self.entries;
        let end = &entries[count + 1];
        if op.load(&end.value, Relaxed) != 0 {
            op.store(&end.value, 0, Release);
            if (count + 1).is_multiple_of(PER_LINE) {
                op.persist(end);
            }
        }
        // Behind the end anything may lie: it gets a key that is in order before it is an entry.
        let last = if at < count { op.load(&entries[count - 1].key, Relaxed) } else { key };
        op.store(&entries[count].key, last, Release);
        for i in (at..count).rev() {
            let (from, to) = (&entries[i], &entries[i + 1]);
            op.store(&to.value, op.load(&from.value, Relaxed), Release);
            op.store(&to.key, op.load(&from.key, Relaxed), Release);
            if (i + 1).is_multiple_of(PER_LINE) {
                op.persist(to);
            }
        }
        let entry = &entries[at];
        op.store(&entry.value, op.load(self.before(at), Relaxed), Release);
        op.store(&entry.key, key, Release);
        op.store(&entry.value, value, Release);
        op.persist(entry);
        op.store(&self.count, count as u64 + 1, Relaxed);
    }
}

impl FastFair {
    /// The node and the place of a key on each level, the leaf first.
    #[inline(always)]
    fn descend<M: Medium>(&self, op: &Op<'_, M>, key: u64, path: &mut [u64; LEVELS]) -> (u64, usize, usize) {
        let mut at = self.root;
        for level in (0..=self.height).rev() {
            op.prefetch(Off::<Node>::new(at));
            let (found, place, count) = Self::beside(op, at, key);
            path[level] = found;
            if level == 0 {
                return (found, place, count);
            }
            at = op.load(node(op, found).before(place), Relaxed);
        }
        unreachable!("the last level returns")
    }

    /// From a node to that of its siblings which is responsible for a key: the node itself, unless a crash came between a split
    /// and its entry in the parent. With the key's place and the number of entries.
    #[inline(always)]
    fn beside<M: Medium>(op: &Op<'_, M>, mut at: u64, key: u64) -> (u64, usize, usize) {
        loop {
            let this = node(op, at);
            let count = this.count(op);
            let place = this.place(op, count, key);
            let next = if place == count { op.load(&this.sibling, Relaxed) } else { 0 };
            if next == 0 || op.load(&node(op, next).entries[0].key, Relaxed) > key {
                return (at, place, count);
            }
            at = next;
        }
    }

    /// The entry of a key, if there is one that counts.
    #[inline(always)]
    fn find<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> Option<&'s Entry> {
        let (leaf, place, _) = self.descend(op, key, &mut [0; LEVELS]);
        entry_of(op, node(op, leaf), place, key)
    }

    /// FAIR: moves the upper half of a full node to a new sibling. Returns that, and the key that leads to it.
    fn split<M: Medium>(&mut self, op: &Op<'_, M>, at: u64) -> (u64, u64) {
        let this = node(op, at);
        let count = this.count(op);
        let half = count / 2;
        let separator = op.load(&this.entries[half].key, Relaxed);
        let leftmost = op.load(&this.leftmost, Relaxed);
        // The middle entry of an inner node becomes what is left of the first.
        let (leftmost, first) = match leftmost {
            LEAF => (LEAF, half),
            _ => (op.load(&this.entries[half].value, Relaxed), half + 1),
        };
        let new_at = self.memory.take(NODE);
        let new = node(op, new_at);
        op.store(&new.leftmost, leftmost, Relaxed);
        op.store(&new.sibling, op.load(&this.sibling, Relaxed), Relaxed);
        op.store(&new.count, (count - first) as u64, Relaxed);
        op.write_back(&new.count);
        for (i, from) in this.entries[first..count].iter().enumerate() {
            let to = &new.entries[i];
            op.store(&to.key, op.load(&from.key, Relaxed), Relaxed);
            op.store(&to.value, op.load(&from.value, Relaxed), Relaxed);
            if (i + 1).is_multiple_of(PER_LINE) || first + i + 1 == count {
                op.write_back(to);
            }
        }
        op.fence();
        op.store(&this.sibling, new_at, Release);
        op.persist(&this.sibling);
        op.store(&this.entries[half].value, 0, Release);
        // The fence of the insert that comes next is enough: until then, both nodes have the same entries.
        op.write_back(&this.entries[half]);
        op.store(&this.count, half as u64, Relaxed);
        (separator, new_at)
    }

    /// A root above the old one and its new sibling.
    #[cold]
    fn grow<M: Medium>(&mut self, op: &Op<'_, M>, separator: u64, new: u64) {
        let at = self.memory.take(NODE);
        let root = node(op, at);
        op.store(&root.leftmost, self.root, Relaxed);
        op.store(&root.count, 1, Relaxed);
        op.write_back(&root.count);
        op.store(&root.entries[0].key, separator, Relaxed);
        op.store(&root.entries[0].value, new, Relaxed);
        op.write_back(&root.entries[0]);
        op.fence();
        self.root = at;
        self.height += 1;
        assert!(self.height < LEVELS, "a tree of more levels than memory holds");
        self.note_root(op);
    }

    fn note_root<M: Medium>(&self, op: &Op<'_, M>) {
        let anchor: &Root = op.at(Off::new(self.anchor));
        op.store(&anchor.node, self.root, Release);
        op.persist(anchor);
    }

    /// Inserts an entry into the nodes of a path, from `level` up.
    #[inline]
    fn insert_at<M: Medium>(&mut self, op: &Op<'_, M>, path: &[u64; LEVELS], key: u64, value: u64, place: usize) {
        let (mut key, mut value, mut place) = (key, value, place);
        for level in 0.. {
            if level > self.height {
                return self.grow(op, key, value);
            }
            let at = path[level];
            let count = node(op, at).count(op);
            if count < MOST {
                return node(op, at).shift_in(op, place, count, key, value);
            }
            let (separator, new) = self.split(op, at);
            let half = node(op, if key < separator { at } else { new });
            let count = half.count(op);
            half.shift_in(op, half.place(op, count, key), count, key, value);
            (key, value) = (separator, new);
            if let Some(parent) = path.get(level + 1).filter(|_| level < self.height) {
                let parent = node(op, *parent);
                place = parent.place(op, parent.count(op), key);
            }
        }
    }
}

/// The entry before `place`, if it is that of the key, and counts. An entry that was moved half-way is there twice; the first one counts.
#[inline(always)]
fn entry_of<'s, M: Medium>(op: &Op<'s, M>, leaf: &'s Node, place: usize, key: u64) -> Option<&'s Entry> {
    let mut at = place.checked_sub(1)?;
    loop {
        let entry = &leaf.entries[at];
        if op.load(&entry.key, Relaxed) != key {
            return None;
        }
        if op.load(&entry.value, Relaxed) != op.load(leaf.before(at), Relaxed) {
            return Some(entry);
        }
        at = at.checked_sub(1)?;
    }
}

impl<M: Medium> Ordered<M> for FastFair {
    const NAME: &'static str = "FAST&FAIR";

    fn bytes(keys: u64) -> u64 {
        // A node of 13 to 27 entries, 18 on average with random keys; inner nodes.
        (keys * NODE / 17 + (1 << 20)).next_multiple_of(4096)
    }

    fn used(&self) -> u64 {
        self.memory.used()
    }

    fn create(mapping: &Mapping<M>) -> durix_pmem::Result<Self> {
        let mut session = mapping.session()?;
        let op = session.enter()?;
        let mut memory = Memory::new(mapping.len());
        let (anchor, root) = (memory.take(64), memory.take(NODE));
        let leaf = node(&op, root);
        op.store(&leaf.leftmost, LEAF, Relaxed);
        op.write_back(&leaf.leftmost);
        let tree = FastFair { memory, anchor, root, height: 0 };
        tree.note_root(&op);
        Ok(tree)
    }

    #[inline]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let mut path = [0; LEVELS];
        let (leaf, place, _) = self.descend(op, key, &mut path);
        if let Some(entry) = entry_of(op, node(op, leaf), place, key) {
            op.store(&entry.value, value, Release);
            op.persist(entry);
            return false;
        }
        self.insert_at(op, &path, key, value, place);
        true
    }

    #[inline]
    fn update(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let Some(entry) = self.find(op, key) else { return false };
        op.store(&entry.value, value, Release);
        op.persist(entry);
        true
    }

    #[inline]
    fn get(&self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        self.find(op, key).map(|entry| op.load(&entry.value, Relaxed))
    }

    #[inline]
    fn scan(&self, op: &Op<'_, M>, from: u64, mut visit: impl FnMut(u64, u64) -> bool) {
        let (mut at, mut place, mut count) = self.descend(op, from, &mut [0; LEVELS]);
        if place > 0 && op.load(&node(op, at).entries[place - 1].key, Relaxed) == from {
            place -= 1;
        }
        loop {
            let leaf = node(op, at);
            let next = op.load(&leaf.sibling, Relaxed);
            op.prefetch(Off::<Node>::new(next));
            let mut before = op.load(leaf.before(place), Relaxed);
            for entry in &leaf.entries[place.min(count)..count] {
                let value = op.load(&entry.value, Relaxed);
                if value != before && !visit(op.load(&entry.key, Relaxed), value) {
                    return;
                }
                before = value;
            }
            if next == 0 {
                return;
            }
            let last = count.checked_sub(1).map(|last| op.load(&leaf.entries[last].key, Relaxed));
            at = next;
            count = node(op, at).count(op);
            // After a crash in a split, the next node begins with what this one has not cut off.
            place = match last {
                Some(last) if op.load(&node(op, at).entries[0].key, Relaxed) <= last => {
                    node(op, at).place(op, count, last)
                }
                _ => 0,
            };
        }
    }
}

#[cfg(test)]
impl<M: Medium> super::Reopen<M> for FastFair {
    fn reopen(mapping: &Mapping<M>) -> Self {
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let anchor = 64;
        let root = op.load(&op.at::<Root>(Off::new(anchor)).node, Relaxed);
        let (mut first, mut height) = (root, 0);
        loop {
            let mut at = first;
            while at != 0 {
                // The hint: where the node ends.
                let this = node(&op, at);
                let end = this.entries.iter().position(|entry| op.load(&entry.value, Relaxed) == 0);
                op.store(&this.count, end.expect("a node ends") as u64, Relaxed);
                at = op.load(&this.sibling, Relaxed);
            }
            first = op.load(&node(&op, first).leftmost, Relaxed);
            if first == LEAF {
                return FastFair { memory: Memory::new(0), anchor, root, height };
            }
            height += 1;
        }
    }
}
