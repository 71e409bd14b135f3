//! The lock-free skip list of Herlihy and Shavit (*The Art of Multiprocessor Programming*, chapter 14) over a [`Scheme`]. Only the lowest
//! level is made durable: the levels above are an index that recovery would build anew.
//!
//! A node of more than one level has two owners, its inserter and its remover. The inserter may still link the node on a higher level
//! after the remover has marked it. Whichever owner leaves last makes sure that nothing leads to the node, and retires it.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Op, Word, persistent};

use super::super::sets_logged::Set;
use super::super::sets_logged::nodes::{Nodes, SPARE};
use super::scheme::{FIRST, Line, MARK, Scheme, levels, word};
use crate::workload::Random;

/// Levels of the highest node.
const LEVELS: usize = 28;
/// Levels that fit a node of one line.
const LOW: usize = 4;

persistent! {
    /// A node of more than four levels.
    pub struct High: align(64) {
        line: Line,
        above: [Word; LEVELS - LOW],
    }
}

const LINE: u64 = 64;
const HIGH: u64 = 256;
const _: () = assert!(size_of::<High>() == HIGH as usize && size_of::<Line>() == LINE as usize);

/// The link of a node on a level: its first word, then those behind `own`.
#[inline(always)]
fn link(node: u64, level: usize) -> u64 {
    if level == 0 { node } else { node + 32 + level as u64 * 8 }
}

/// The skip list.
#[derive(Debug)]
pub struct Tower<S> {
    keys: u64,
    levels: usize,
    _scheme: PhantomData<fn() -> S>,
}

/// What a thread has of its own.
#[derive(Debug)]
pub struct Local<S> {
    scheme: S,
    pub(super) low: Nodes,
    pub(super) high: Nodes,
    random: Random,
}

impl<S> Local<S> {
    /// A number of levels: each further one with probability 1/2.
    #[inline(always)]
    fn levels(&mut self, most: usize) -> usize {
        (1 + (self.random.next() >> 11).trailing_zeros() as usize).min(most)
    }

    #[inline(always)]
    fn nodes(&mut self, levels: usize) -> &mut Nodes {
        if levels <= LOW { &mut self.low } else { &mut self.high }
    }
}

/// The nodes before a key on each level, and those that follow them.
struct Path {
    before: [u64; LEVELS],
    after: [u64; LEVELS],
    /// The link to the node before on the lowest level, if the search came by it.
    into: Option<u64>,
    found: bool,
}

impl<S: Scheme> Tower<S> {
    /// A skip list for so many keys.
    pub fn new(keys: u64) -> Self {
        let levels = (keys.max(2).ilog2() as usize + 1).clamp(LOW, LEVELS - 1);
        Tower { keys, levels, _scheme: PhantomData }
    }

    fn head() -> u64 {
        (FIRST + S::SHARED).next_multiple_of(HIGH)
    }

    fn bytes_a_thread(&self) -> (u64, u64) {
        // One node in sixteen is high.
        ((2 * self.keys + SPARE) * LINE, (self.keys / 2 + SPARE / 4) * HIGH)
    }

    /// Looks for a key, and unlinks marked nodes on the way.
    #[inline(always)]
    fn find<M: Medium>(&self, scheme: &mut S, op: &Op<'_, M>, key: u64) -> Path {
        let lines = op.lines();
        let mut path = Path { before: [Self::head(); LEVELS], after: [0; LEVELS], into: None, found: false };
        'again: loop {
            let mut before = Self::head();
            path.into = None;
            for level in (0..self.levels).rev() {
                let mut at = op.load(word(op, link(before, level)), Acquire) & !MARK;
                while at != 0 {
                    let next = op.load(word(op, link(at, level)), Acquire);
                    let node: &Line = lines.at(at);
                    if next & MARK != 0 {
                        let by = link(before, level);
                        let done = if level == 0 {
                            scheme.is_removed(op, at, node);
                            scheme.unlink(op, by, at, next & !MARK)
                        } else {
                            op.compare_exchange(word(op, by), at, next & !MARK).is_ok()
                        };
                        if !done {
                            continue 'again;
                        }
                        at = next & !MARK;
                        continue;
                    }
                    if op.load(&node.key, Relaxed) >= key {
                        break;
                    }
                    if level == 0 {
                        path.into = Some(before);
                    }
                    (before, at) = (at, next);
                }
                path.before[level] = before;
                path.after[level] = at;
            }
            let at = path.after[0];
            path.found = at != 0 && op.load(&lines.at::<Line>(at).key, Relaxed) == key;
            return path;
        }
    }

    /// Links a node that is linked on the lowest level on those above, unless it is removed meanwhile; then leaves it.
    #[inline(always)]
    fn raise<M: Medium>(
        &self,
        local: &mut Local<S>,
        op: &Op<'_, M>,
        mut path: Path,
        (key, off, levels): (u64, u64, usize),
    ) {
        'up: for level in 1..levels {
            loop {
                let (own, after) = (word(op, link(off, level)), path.after[level]);
                let next = op.load(own, Acquire);
                if next & MARK != 0 || next != after && op.compare_exchange(own, next, after).is_err() {
                    break 'up;
                }
                if op.compare_exchange(word(op, link(path.before[level], level)), after, off).is_ok() {
                    break;
                }
                path = self.find(&mut local.scheme, op, key);
                if path.after[0] != off {
                    break 'up;
                }
            }
        }
        self.leave(local, op, (key, off, levels));
    }

    /// Leaves a node of several levels; the last one to do so retires it.
    #[inline(always)]
    fn leave<M: Medium>(&self, local: &mut Local<S>, op: &Op<'_, M>, (key, off, levels): (u64, u64, usize)) {
        if local.scheme.is_last(op, op.lines().at(off)) {
            self.find(&mut local.scheme, op, key);
            local.nodes(levels).retire(op, off);
        }
    }

    /// Unlinks a node by the path to it; returns whether nothing leads to it any more.
    #[inline(always)]
    fn unlink<M: Medium>(scheme: &mut S, op: &Op<'_, M>, path: &Path, levels: usize) -> bool {
        let off = path.after[0];
        (0..levels).rev().all(|level| {
            let by = link(path.before[level], level);
            let next = op.load(word(op, link(off, level)), Relaxed) & !MARK;
            path.after[level] == off
                && if level == 0 {
                    scheme.unlink(op, by, off, next)
                } else {
                    op.compare_exchange(word(op, by), off, next).is_ok()
                }
        })
    }
}

impl<M: Medium, S: Scheme> Set<M> for Tower<S> {
    type Local = Local<S>;

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn bytes(&self, threads: u64) -> u64 {
        let (low, high) = self.bytes_a_thread();
        Self::head() + HIGH + threads * (low + high)
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, thread: u64) -> Local<S> {
        let (low, high) = self.bytes_a_thread();
        let first = Self::head() + HIGH + thread * (low + high);
        let (low, high) = (first..first + low, first + low..first + low + high);
        let random = Random(0x9e37_79b9_7f4a_7c15 + thread);
        Local { scheme: S::default(), low: Nodes::new(low, LINE), high: Nodes::new(high, HIGH), random }
    }

    #[inline(always)]
    fn contains(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64) -> bool {
        let (lines, scheme) = (op.lines(), &mut local.scheme);
        let mut before = Self::head();
        for level in (0..self.levels).rev() {
            let mut at = op.load(word(op, link(before, level)), Acquire) & !MARK;
            while at != 0 {
                let node: &Line = lines.at(at);
                let here = op.load(&node.key, Relaxed);
                if here > key {
                    break;
                }
                let next = op.load(word(op, link(at, level)), Acquire) & !MARK;
                if here == key && op.load(&node.next, Acquire) & MARK == 0 {
                    scheme.is_there(op, (level == 0).then_some(before), at, node);
                    scheme.end(op);
                    return true;
                }
                if here == key {
                    // Behind a node that is removed there may be a new one with the same key.
                    scheme.is_removed(op, at, node);
                    at = next;
                    continue;
                }
                (before, at) = (at, next);
            }
        }
        scheme.depends(op, before);
        scheme.end(op);
        false
    }

    #[inline(always)]
    fn insert(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        loop {
            let path = self.find(&mut local.scheme, op, key);
            if path.found {
                let node = op.lines().at(path.after[0]);
                local.scheme.is_there(op, Some(path.before[0]), path.after[0], node);
                local.scheme.end(op);
                return false;
            }
            let levels = local.levels(self.levels);
            let off = local.nodes(levels).take();
            let node: &Line = op.lines().at(off);
            local.scheme.begin(op, node, levels);
            op.store(&node.key, key, Release);
            op.store(&node.value, value, Release);
            (0..levels).for_each(|level| op.store(word(op, link(off, level)), path.after[level], Release));
            local.scheme.written(op, node);
            if let Some(into) = path.into {
                local.scheme.depends(op, into);
            }
            if !local.scheme.link(op, path.before[0], path.after[0], off) {
                local.nodes(levels).put_back(off);
                continue;
            }
            local.scheme.linked(op, node);
            if levels > 1 {
                self.raise(local, op, path, (key, off, levels));
            }
            local.scheme.end(op);
            return true;
        }
    }

    #[inline(always)]
    fn remove(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64) -> bool {
        loop {
            let path = self.find(&mut local.scheme, op, key);
            if !path.found {
                local.scheme.depends(op, path.before[0]);
                local.scheme.end(op);
                return false;
            }
            let off = path.after[0];
            let node: &Line = op.lines().at(off);
            let levels = levels(op, node);
            for level in (1..levels).rev() {
                let own = word(op, link(off, level));
                let mut next = op.load(own, Acquire);
                while next & MARK == 0
                    && let Err(other) = op.compare_exchange(own, next, next | MARK)
                {
                    next = other;
                }
            }
            let next = op.load(&node.next, Acquire);
            if next & MARK != 0 || !local.scheme.mark(op, off, node, next) {
                continue;
            }
            let unlinked = Self::unlink(&mut local.scheme, op, &path, levels);
            if levels == 1 || local.scheme.is_last(op, node) {
                if !unlinked {
                    self.find(&mut local.scheme, op, key);
                }
                local.nodes(levels).retire(op, off);
            }
            local.scheme.end(op);
            return true;
        }
    }
}
