//! The volatile ordered index over the members: a skip list after Herlihy, Lev, Luchangco and Shavit (*A Simple Optimistic
//! Skiplist Algorithm*, SIROCCO 2007), with one level a sorted list after Heller et al.
//!
//! Searches take no lock and wait for nobody. An insert locks the predecessors on the levels of its node, a remove the node
//! before; both look whether what they have found is still so. All locks are taken before the member is written back.
//!
//! | operation | linearizes at |
//! |---|---|
//! | insert | the link to the node on the lowest level, set when the member is durable |
//! | remove | the deletion mark of the node, set when the removal is durable |
//! | update | the store to the node's entry, when the value is durable |
//!
//! # The races
//! *A reader follows an entry, a writer removes it and the member's line is used again.* The writer marks the node before it
//! gives the line back. Either the reader's look at the mark comes before that, and then the line held the old member when it
//! was read; or it sees the mark, and the key is not there.
//!
//! *A reader follows an entry, the value is replaced twice.* The second update writes the word that is being read. Either
//! the reader's second look at the entry finds the other word, and it reads again; or the second update has published, and is
//! durable.
//!
//! *A node is used again while a reader is at it.* It is not: readers are in an operation, nodes wait for a grace period.
//!
//! *A remove meets a node whose insert has not linked all levels.* The insert holds the node's lock until it has.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op};

use super::layout::Member;
use super::nodes::{LEVELS, Node, Nodes, Ref};
use super::store::Place;
use crate::range::BATCH;

/// A level on which neighbours are about [`BATCH`] nodes apart.
const APART: usize = 3;

const LOCKED: u64 = 1;
const DELETED: u64 = 2;
const LEVEL_SHIFT: u32 = 2;

/// A member: the offset of its line, and which word holds the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

impl Entry {
    #[inline(always)]
    pub(super) fn new(place: Place, value: usize) -> Entry {
        Entry(place.get() | (value as u64 & 1))
    }

    #[inline(always)]
    pub(super) fn place(self) -> Place {
        Off::new(self.0 & !1)
    }

    #[inline(always)]
    pub(super) fn value(self) -> usize {
        (self.0 & 1) as usize
    }

    /// The same member, with its value in the other word.
    #[inline(always)]
    pub(super) fn other_value(self) -> Entry {
        Entry(self.0 ^ 1)
    }

    /// The value of the member.
    #[inline(always)]
    pub(super) fn load<M: Medium>(self, op: &Op<'_, M>) -> u64 {
        let member: &Member = op.at(self.place());
        op.load(&member.values[self.value()], Acquire)
    }
}

/// The index, of up to `N` levels.
#[derive(Debug)]
pub(super) struct Links<const N: usize> {
    pub(super) nodes: Nodes,
    head: Ref,
}

/// The nodes before a key on each level, and the first that is not.
pub(super) struct Path<'t, const N: usize> {
    before: [Node<'t>; N],
    after: [Ref; N],
    /// The node of the key, and its name.
    pub(super) found: Option<(Node<'t>, Ref)>,
}

/// A node that its holder may change; nobody else takes it out meanwhile.
pub(super) struct Held<'t, M: Medium> {
    node: Node<'t>,
    state: u64,
    m: M,
}

impl<const N: usize> Links<N> {
    /// An empty index.
    pub(super) fn new<M: Medium>(op: &Op<'_, M>) -> Self {
        const { assert!(N >= 1 && N <= LEVELS) };
        let nodes = Nodes::new();
        let head = nodes.take(op, &mut nodes.local(op), LEVELS);
        let links = Links { nodes, head };
        (0..N).for_each(|level| op.medium().shared_store(links.at(head).next(level), 0, Relaxed));
        links
    }

    #[inline(always)]
    fn at(&self, node: Ref) -> Node<'_> {
        self.nodes.at(node)
    }

    #[inline(always)]
    fn next<M: Medium>(m: M, node: Node<'_>, level: usize) -> Ref {
        Ref::from_bits(m.shared_load(node.next(level), Acquire))
    }

    /// The way to a key on all levels.
    #[inline(always)]
    pub(super) fn path<M: Medium>(&self, m: M, key: u64) -> Path<'_, N> {
        let head = self.at(self.head);
        let mut path = Path { before: [head; N], after: [Ref::NONE; N], found: None };
        let mut before = head;
        for level in (0..N).rev() {
            let mut after = Self::next(m, before, level);
            while after != Ref::NONE {
                let node = self.at(after);
                let here = m.shared_load(node.key(), Relaxed);
                if here >= key {
                    path.found = (here == key).then_some((node, after)).or(path.found);
                    break;
                }
                before = node;
                after = Self::next(m, node, level);
            }
            path.before[level] = before;
            path.after[level] = after;
        }
        path
    }

    /// The last node before a key on a level and those above, if it is not the head.
    #[inline(always)]
    fn before<M: Medium>(&self, m: M, key: u64, lowest: usize) -> Option<Node<'_>> {
        let mut before = None;
        for level in (lowest..N).rev() {
            let mut after = Self::next(m, before.unwrap_or(self.at(self.head)), level);
            while after != Ref::NONE {
                let node = self.at(after);
                if m.shared_load(node.key(), Relaxed) >= key {
                    break;
                }
                before = Some(node);
                after = Self::next(m, node, level);
            }
        }
        before
    }

    /// The value of a key. Never waits; durable, because a node is linked and changed only when its member is.
    #[inline(always)]
    pub(super) fn get<M: Medium>(&self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        let (m, mut before) = (op.medium(), self.at(self.head));
        for level in (0..N).rev() {
            let mut after = Self::next(m, before, level);
            while after != Ref::NONE {
                let node = self.at(after);
                let here = m.shared_load(node.key(), Relaxed);
                if here == key {
                    return read(op, node);
                }
                if here > key {
                    break;
                }
                before = node;
                after = Self::next(m, node, level);
            }
        }
        None
    }

    /// Appends up to [`BATCH`] entries between two keys, both included, ascending; returns whether those were all.
    pub(super) fn up<M: Medium>(&self, op: &Op<'_, M>, (first, last): (u64, u64), batch: &mut Vec<(u64, u64)>) -> bool {
        let (m, mut left) = (op.medium(), BATCH);
        let mut at = Self::next(m, self.before(m, first, 0).unwrap_or(self.at(self.head)), 0);
        while at != Ref::NONE {
            let node = self.at(at);
            let key = m.shared_load(node.key(), Relaxed);
            if key > last {
                return true;
            }
            if key >= first
                && let Some(value) = read(op, node)
            {
                batch.push((key, value));
                left -= 1;
                if left == 0 {
                    return false;
                }
            }
            at = Self::next(m, node, 0);
        }
        true
    }

    /// The same, descending.
    pub(super) fn down<M: Medium>(
        &self,
        op: &Op<'_, M>,
        (first, last): (u64, u64),
        batch: &mut Vec<(u64, u64)>,
    ) -> bool {
        let m = op.medium();
        // From a node some way before the last key forward; from further away if nothing lies between.
        for level in APART..=LEVELS {
            let start = if level < N { self.before(m, last, level) } else { None };
            let from = start.map_or(first, |node| m.shared_load(node.key(), Relaxed).max(first));
            let mut at = start.map_or_else(|| Self::next(m, self.at(self.head), 0), |node| Self::next(m, node, 0));
            let mut found = VecDeque::with_capacity(BATCH);
            let mut cut = false;
            if let Some(node) = start
                && m.shared_load(node.key(), Relaxed) >= first
                && let Some(value) = read(op, node)
            {
                found.push_back((from, value));
            }
            while at != Ref::NONE {
                let node = self.at(at);
                let key = m.shared_load(node.key(), Relaxed);
                if key > last {
                    break;
                }
                if key >= first
                    && let Some(value) = read(op, node)
                {
                    if found.len() == BATCH {
                        found.pop_front();
                        cut = true;
                    }
                    found.push_back((key, value));
                }
                at = Self::next(m, node, 0);
            }
            let whole = from == first;
            if whole || !found.is_empty() {
                batch.extend(found.into_iter().rev());
                return whole && !cut;
            }
        }
        true
    }

    /// All entries, ascending, while nobody changes them.
    pub(super) fn places<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Place> {
        let m = op.medium();
        let (mut places, mut at) = (Vec::new(), Self::next(m, self.at(self.head), 0));
        while at != Ref::NONE {
            let node = self.at(at);
            places.push(Entry(m.shared_load(node.entry(), Acquire)).place());
            at = Self::next(m, node, 0);
        }
        places
    }

    /// Builds the index from entries in ascending order of their keys, while nobody else is at it.
    pub(super) fn build<M: Medium>(&self, op: &Op<'_, M>, entries: impl IntoIterator<Item = (u64, Entry)>) {
        let (m, mut local) = (op.medium(), self.nodes.local(op));
        let mut last = [self.at(self.head); N];
        for (key, entry) in entries {
            let levels = local.levels(N);
            let name = self.nodes.take(op, &mut local, levels);
            let node = self.at(name);
            m.shared_store(node.key(), key, Relaxed);
            m.shared_store(node.entry(), entry.0, Relaxed);
            m.shared_store(node.state(), (levels as u64) << LEVEL_SHIFT, Relaxed);
            for (level, last) in last.iter_mut().enumerate().take(levels) {
                m.shared_store(node.next(level), 0, Relaxed);
                m.shared_store(last.next(level), name.to_bits(), Release);
                *last = node;
            }
        }
    }
}

/// The value of a node's member; `None` if the node is deleted.
#[inline(always)]
pub(super) fn read<M: Medium>(op: &Op<'_, M>, node: Node<'_>) -> Option<u64> {
    let m = op.medium();
    loop {
        let entry = m.shared_load(node.entry(), Acquire);
        let value = Entry(entry).load(op);
        if m.shared_load(node.state(), Acquire) & DELETED != 0 {
            return None;
        }
        if m.shared_load(node.entry(), Acquire) == entry {
            return Some(value);
        }
    }
}

/// Whether a node is deleted.
#[inline(always)]
pub(super) fn is_deleted<M: Medium>(m: M, node: Node<'_>) -> bool {
    m.shared_load(node.state(), Acquire) & DELETED != 0
}

/// Lets the one go first who holds a deleted node, to take it out; `turn` counts how often.
#[inline(always)]
pub(super) fn wait_for_unlink<M: Medium>(m: M, node: Node<'_>, turn: &mut u32) {
    if m.shared_load(node.state(), Acquire) & LOCKED != 0 {
        m.spin(*turn);
        *turn = turn.saturating_add(1);
    }
}

/// Locks a node; waits for who holds it.
#[inline(always)]
fn hold<M: Medium>(m: M, node: Node<'_>) -> Held<'_, M> {
    let mut turn = 0;
    loop {
        let state = m.shared_load(node.state(), Relaxed);
        if state & LOCKED != 0 {
            m.spin(turn);
            turn = turn.saturating_add(1);
        } else if m.shared_compare_exchange(node.state(), state, state | LOCKED).is_ok() {
            return Held { node, state, m };
        }
    }
}

/// Locks a node, unless it is deleted.
#[inline(always)]
pub(super) fn hold_live<M: Medium>(m: M, node: Node<'_>) -> Option<Held<'_, M>> {
    let held = hold(m, node);
    (held.state & DELETED == 0).then_some(held)
}

impl<M: Medium> Held<'_, M> {
    /// Number of levels.
    #[inline(always)]
    pub(super) fn levels(&self) -> usize {
        (self.state >> LEVEL_SHIFT) as usize
    }

    #[inline(always)]
    pub(super) fn entry(&self) -> Entry {
        Entry(self.m.shared_load(self.node.entry(), Acquire))
    }

    /// Names another word of the member, or another member, whose value is durable.
    #[inline(always)]
    pub(super) fn replace(&self, entry: Entry) {
        self.m.shared_store(self.node.entry(), entry.0, Release);
    }
}

impl<M: Medium> Drop for Held<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.m.shared_store(self.node.state(), self.state, Release);
    }
}

/// The predecessors of a node, locked.
pub(super) struct Around<'p, 't, M: Medium, const N: usize> {
    path: &'p Path<'t, N>,
    levels: usize,
    m: M,
}

impl<'t, const N: usize> Path<'t, N> {
    /// Whether this level's predecessor is another than the one of the level below.
    #[inline(always)]
    fn is_first(&self, level: usize) -> bool {
        level == 0 || !self.before[level].is(self.before[level - 1])
    }

    /// Locks the predecessors on the lowest levels; `None`, and nothing locked, if one of them is deleted or does not lead to
    /// what was found any more.
    #[inline(always)]
    pub(super) fn lock<M: Medium>(&self, m: M, levels: usize) -> Option<Around<'_, 't, M, N>> {
        for level in 0..levels {
            let node = self.before[level];
            if self.is_first(level) {
                std::mem::forget(hold(m, node));
            }
            let around = Around { path: self, levels: level + 1, m };
            if m.shared_load(node.next(level), Acquire) != self.after[level].to_bits() || is_deleted(m, node) {
                return None;
            }
            std::mem::forget(around);
        }
        Some(Around { path: self, levels, m })
    }
}

impl<M: Medium, const N: usize> Drop for Around<'_, '_, M, N> {
    #[inline(always)]
    fn drop(&mut self) {
        for level in 0..self.levels {
            if self.path.is_first(level) {
                let state = self.path.before[level].state();
                self.m.shared_store(state, self.m.shared_load(state, Relaxed) & !LOCKED, Release);
            }
        }
    }
}

impl<'t, M: Medium, const N: usize> Around<'_, 't, M, N> {
    /// Prepares a node that nobody sees yet: locked, with its links.
    #[inline(always)]
    pub(super) fn prepare(&self, node: Node<'_>, key: u64, entry: Entry) {
        let m = self.m;
        m.shared_store(node.key(), key, Relaxed);
        m.shared_store(node.entry(), entry.0, Relaxed);
        m.shared_store(node.state(), (self.levels as u64) << LEVEL_SHIFT | LOCKED, Relaxed);
        for level in 0..self.levels {
            m.shared_store(node.next(level), self.path.after[level].to_bits(), Relaxed);
        }
    }

    /// Links the node, from the lowest level up, and unlocks it. Its member is durable.
    #[inline(always)]
    pub(super) fn link(&self, node: Node<'_>, name: Ref) {
        for level in 0..self.levels {
            self.m.shared_store(self.path.before[level].next(level), name.to_bits(), Release);
        }
        self.m.shared_store(node.state(), (self.levels as u64) << LEVEL_SHIFT, Release);
    }

    /// Marks the node that is held as deleted and takes it out, from the highest level down. Its removal is durable.
    #[inline(always)]
    pub(super) fn unlink(&self, held: &mut Held<'_, M>) {
        held.state |= DELETED;
        self.m.shared_store(held.node.state(), held.state | LOCKED, Release);
        for level in (0..self.levels).rev() {
            let next = self.m.shared_load(held.node.next(level), Relaxed);
            self.m.shared_store(self.path.before[level].next(level), next, Release);
        }
    }
}

#[cfg(test)]
impl<M: Medium> Held<'_, M> {
    /// Leaves the node as who panics between deleting it and taking it out.
    pub(super) fn leave_deleted(mut self) {
        self.state |= DELETED;
    }
}
