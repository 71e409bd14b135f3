//! Volatile nodes of the ordered indices: numbered, in memory that never moves, used again after a grace period.
//!
//! A node is a few words: key, entry, state, and a link for each level. Nearly all have up to [`LOW`] levels and are one
//! line; the others have room for [`LEVELS`].

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use durix_pmem::{Grace, Lock, LockGuard, Medium, Op, PerSession};

use super::segment_of;

/// Most levels of a node.
pub(super) const LEVELS: usize = 16;
/// Levels of a node of one line.
pub(super) const LOW: usize = 5;

/// Words before the links.
const LINKS: usize = 3;
/// Nodes of the first segment, a power of two. Each further segment is as large as all before it together.
const FIRST: u64 = 64;
const SEGMENTS: usize = 32;
/// Nodes that are retired together, while other sessions are open.
const GENERATION: usize = 256;
/// Nodes that a session cuts off at a time.
const CUT: u64 = 16;

/// The name of a node: number of its segment, number in the segment, plus one; bit 0 is set for a high one. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ref(u64);

impl Ref {
    pub(super) const NONE: Ref = Ref(0);

    #[inline(always)]
    pub(super) fn from_bits(bits: u64) -> Ref {
        Ref(bits)
    }

    #[inline(always)]
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    fn new(number: u64, high: bool) -> Ref {
        let segment = u64::from(u64::BITS - (number / FIRST).leading_zeros());
        let first = if segment == 0 { 0 } else { FIRST << (segment - 1) };
        Ref(segment << 48 | (number - first + 1) << 1 | u64::from(high))
    }

    #[inline(always)]
    fn is_high(self) -> bool {
        self.0 & 1 == 1
    }

    #[inline(always)]
    fn segment(self) -> usize {
        (self.0 >> 48) as usize
    }

    #[inline(always)]
    fn index(self) -> usize {
        ((self.0 & 0xffff_ffff_ffff) >> 1) as usize - 1
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Low([AtomicU64; LINKS + LOW]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct High([AtomicU64; LINKS + LEVELS]);

const _: () = assert!(size_of::<Low>() == 64 && size_of::<High>() == 192);

/// A node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'t>(&'t [AtomicU64]);

impl<'t> Node<'t> {
    /// The key; never changes while anybody can see the node.
    #[inline(always)]
    pub(super) fn key(self) -> &'t AtomicU64 {
        &self.0[0]
    }

    /// Where the member is, and which word of it holds the value.
    #[inline(always)]
    pub(super) fn entry(self) -> &'t AtomicU64 {
        &self.0[1]
    }

    /// Lock, deletion mark, number of levels.
    #[inline(always)]
    pub(super) fn state(self) -> &'t AtomicU64 {
        &self.0[2]
    }

    /// The link of a level.
    #[inline(always)]
    pub(super) fn next(self, level: usize) -> &'t AtomicU64 {
        &self.0[LINKS + level]
    }

    #[inline(always)]
    pub(super) fn is(self, other: Node<'_>) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

/// What a session has of its own.
#[derive(Debug)]
pub(super) struct Local {
    free: [Vec<Ref>; 2],
    retired: Vec<Ref>,
    waiting: VecDeque<(Grace, Vec<Ref>)>,
    random: u64,
}

impl Local {
    fn new(slot: u32) -> Lock<Self> {
        let random = 0x9E37_79B9_7F4A_7C15 ^ u64::from(slot + 1) << 20;
        Lock::new(Local { free: Default::default(), retired: Vec::new(), waiting: VecDeque::new(), random })
    }

    /// A number of levels up to `most`: each further one with probability 1/4.
    #[inline(always)]
    pub(super) fn levels(&mut self, most: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (1 + (self.random >> 11).trailing_zeros() as usize / 2).min(most)
    }
}

/// All nodes of an index.
#[derive(Debug)]
pub(super) struct Nodes {
    low: [OnceLock<Box<[Low]>>; SEGMENTS],
    high: [OnceLock<Box<[High]>>; SEGMENTS],
    /// How many there are of each kind.
    cut: Lock<[u64; 2]>,
    sessions: PerSession<Lock<Local>>,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Nodes {
            low: std::array::from_fn(|_| OnceLock::new()),
            high: std::array::from_fn(|_| OnceLock::new()),
            cut: Lock::new([0; 2]),
            sessions: PerSession::new(Local::new),
        }
    }

    /// Bytes of all nodes that were ever given out.
    pub(super) fn bytes<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        let [low, high] = *self.cut.lock(op.medium());
        low * size_of::<Low>() as u64 + high * size_of::<High>() as u64
    }

    /// A node by name, which must not be [`Ref::NONE`].
    #[inline(always)]
    pub(super) fn at(&self, node: Ref) -> Node<'_> {
        let (segment, index) = (node.segment(), node.index());
        let words: Option<&[AtomicU64]> = if node.is_high() {
            self.high[segment].get().map(|nodes| &nodes[index].0[..])
        } else {
            self.low[segment].get().map(|nodes| &nodes[index].0[..])
        };
        Node(words.expect("a name is given out when its segment is there"))
    }

    /// What the calling session has of its own.
    #[inline(always)]
    pub(super) fn local<'a, M: Medium>(&'a self, op: &Op<'_, M>) -> LockGuard<'a, Local, M> {
        self.sessions.of(op.slot()).lock(op.medium())
    }

    /// A node with room for so many levels. Its words are arbitrary.
    #[inline(always)]
    pub(super) fn take<M: Medium>(&self, op: &Op<'_, M>, local: &mut Local, levels: usize) -> Ref {
        let high = levels > LOW;
        match local.free[usize::from(high)].pop() {
            Some(node) => node,
            None => self.cut(op, local, high),
        }
    }

    #[cold]
    fn cut<M: Medium>(&self, op: &Op<'_, M>, local: &mut Local, high: bool) -> Ref {
        let mut cut = self.cut.lock(op.medium());
        let first = &mut cut[usize::from(high)];
        let numbers = *first..*first + CUT;
        *first += CUT;
        for node in numbers.rev().map(|number| Ref::new(number, high)) {
            let len = FIRST << node.segment().saturating_sub(1);
            if high {
                self.high[node.segment()].get_or_init(|| segment_of(len));
            } else {
                self.low[node.segment()].get_or_init(|| segment_of(len));
            }
            local.free[usize::from(high)].push(node);
        }
        local.free[usize::from(high)].pop().expect("was filled just now")
    }

    /// Gives a node back that nobody has seen.
    pub(super) fn give_back(&self, local: &mut Local, node: Ref) {
        local.free[usize::from(node.is_high())].push(node);
    }

    /// Gives a node back that nothing leads to any more: it is used again when nobody can be at it.
    #[inline(always)]
    pub(super) fn retire<M: Medium>(&self, op: &Op<'_, M>, local: &mut Local, node: Ref) {
        local.retired.push(node);
        if op.is_generation(local.retired.len(), 1, GENERATION) {
            self.next_generation(op, local);
        }
    }

    #[cold]
    fn next_generation<M: Medium>(&self, op: &Op<'_, M>, local: &mut Local) {
        local.waiting.push_back((op.grace(), std::mem::take(&mut local.retired)));
        while local.waiting.front_mut().is_some_and(|(grace, _)| grace.is_over(op.mapping())) {
            let (_, nodes) = local.waiting.pop_front().expect("was there just now");
            nodes.into_iter().for_each(|node| self.give_back(local, node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_where_a_node_is() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..10_000 {
            for high in [false, true] {
                let node = Ref::new(number, high);
                assert!(node != Ref::NONE && node.is_high() == high && Ref::from_bits(node.to_bits()) == node);
                let len = FIRST << node.segment().saturating_sub(1);
                assert!((node.index() as u64) < len && seen.insert((node.segment(), node.index(), high)), "{number}");
            }
        }
    }
}
