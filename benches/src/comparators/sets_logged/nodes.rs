//! Memory of the comparators' nodes, and their locks.
//!
//! To their advantage the allocator is volatile: it keeps no metadata in persistent memory, and writes nothing back. (After a
//! crash, what nothing leads to would be found by a walk over all nodes.) Nodes that were taken out wait for a grace period in
//! generations, as ours do.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Grace, Medium, Op, Word};

/// Nodes that are retired together, while other sessions are open: as in ours.
const GENERATION: usize = 256;
/// Nodes that are retired together at least. An update retires two at most, so between two uses of a node its thread logs at least
/// as many updates as its log has lines.
const LEAST: usize = 128;

/// Nodes that a thread has beyond what the keys need: as many as another retires while one is kept from running within an
/// operation, for some 20 ms.
pub const SPARE: u64 = 64 << 10;

/// A thread's nodes of one size.
#[derive(Debug)]
pub struct Nodes {
    unused: Range<u64>,
    size: u64,
    free: Vec<u64>,
    retired: Vec<u64>,
    waiting: VecDeque<(Grace, Vec<u64>)>,
}

impl Nodes {
    /// Nodes of `size` bytes in these bytes.
    pub fn new(bytes: Range<u64>, size: u64) -> Self {
        Nodes { unused: bytes, size, free: Vec::new(), retired: Vec::new(), waiting: VecDeque::new() }
    }

    /// Makes sure of so many free nodes. To be called before anything is locked: whoever panics with a lock in its hands leaves the
    /// other threads waiting for ever.
    ///
    /// # Panics
    /// Without them: the figures give each structure room enough.
    #[inline(always)]
    pub fn ensure(&mut self, count: usize) {
        while self.free.len() < count {
            let node = self.cut();
            self.free.push(node);
        }
    }

    /// A free node.
    ///
    /// # Panics
    /// Without one: see [`ensure`](Nodes::ensure).
    #[inline(always)]
    pub fn take(&mut self) -> u64 {
        match self.free.pop() {
            Some(node) => node,
            None => self.cut(),
        }
    }

    /// Gives a node back that nothing has led to.
    #[inline(always)]
    pub fn put_back(&mut self, node: u64) {
        self.free.push(node);
    }

    #[cold]
    fn cut(&mut self) -> u64 {
        let node = self.unused.start;
        assert!(node + self.size <= self.unused.end, "a comparator has no node left");
        self.unused.start += self.size;
        node
    }

    /// Takes a node back that nothing leads to any more. It is used again when a whole generation has come after its own,
    /// and nobody can be at it.
    #[inline(always)]
    pub fn retire<M: Medium>(&mut self, op: &Op<'_, M>, node: u64) {
        self.retired.push(node);
        if self.retired.len() >= LEAST && op.is_generation(self.retired.len(), 1, GENERATION) {
            self.next_generation(op);
        }
    }

    #[cold]
    fn next_generation<M: Medium>(&mut self, op: &Op<'_, M>) {
        while self.waiting.front_mut().is_some_and(|(grace, _)| grace.is_over(op.mapping())) {
            let (_, nodes) = self.waiting.pop_front().expect("was there just now");
            self.free.extend(nodes);
        }
        self.waiting.push_back((op.grace(), std::mem::take(&mut self.retired)));
    }
}

/// Takes a lock: a word that is 0 while it is free.
#[inline(always)]
pub fn lock<M: Medium>(op: &Op<'_, M>, word: &Word) {
    let mut turn = 0;
    while op.compare_exchange(word, 0, 1).is_err() {
        while op.load(word, Relaxed) != 0 {
            op.medium().spin(turn);
            turn = turn.saturating_add(1);
        }
    }
}

/// Gives it back.
#[inline(always)]
pub fn unlock<M: Medium>(op: &Op<'_, M>, word: &Word) {
    op.store(word, 0, Release);
}
