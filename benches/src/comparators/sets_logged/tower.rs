//! The lock-based skip list of Herlihy et al. (*A Simple Optimistic Skiplist Algorithm*, SIROCCO 2007), made durable by redo
//! logging: a comparator of section 6.1.
//!
//! Searches and failed updates take no lock. An update locks the predecessors on all levels of its node, then looks whether
//! what it has found is still so. By the paper's protocol each level is logged, applied and truncated by itself; over the CSO
//! log all levels are one record.
//!
//! To its advantage, nodes of up to four levels are one line, and flags that mean nothing after a crash are not written back.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::nodes::{Nodes, SPARE, lock, unlock};
use super::redo::{LOG_BYTES, Log};
use super::{MAX_THREADS, Set};
use crate::workload::Random;

/// Levels of the highest node.
const LEVELS: usize = 28;
/// Levels that fit a node of one line.
const LOW: usize = 4;

persistent! {
    /// A node; a low one is its first line.
    pub struct Tower: align(64) {
        key: Word,
        value: Word,
        /// Bit 0: deleted. Bit 1: linked on all levels (volatile in meaning). The number of levels above.
        state: Word,
        /// Volatile in meaning.
        lock: Word,
        next: [Word; LEVELS],
    }
}

const DELETED: u64 = 1;
const LINKED: u64 = 2;

const LOGS: u64 = 64;
const HEAD: u64 = LOGS + MAX_THREADS * LOG_BYTES;
const LINE: u64 = 64;
const HIGH: u64 = 256;

/// The skip list; with `CSO`, over the log that costs one fence.
#[derive(Debug)]
pub struct LockedSkipList<const CSO: bool> {
    keys: u64,
    levels: usize,
}

/// What a thread has of its own.
#[derive(Debug)]
pub struct Local<const CSO: bool> {
    log: Log<CSO>,
    pub(super) low: Nodes,
    pub(super) high: Nodes,
    random: Random,
}

impl<const CSO: bool> Local<CSO> {
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

/// The nodes before a key on each level, and those at or behind it.
struct Path<'s> {
    before: [&'s Tower; LEVELS],
    after: [u64; LEVELS],
    /// The highest level on which the key was found.
    found: Option<usize>,
}

impl<const CSO: bool> LockedSkipList<CSO> {
    /// A skip list for so many keys.
    pub fn new(keys: u64) -> Self {
        LockedSkipList { keys, levels: (keys.max(2).ilog2() as usize + 1).clamp(4, LEVELS - 1) }
    }

    fn bytes_a_thread(&self) -> (u64, u64) {
        // One node in eight is high.
        ((2 * self.keys + SPARE) * LINE, (self.keys / 2 + SPARE / 4) * HIGH)
    }

    #[inline(always)]
    fn find<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> Path<'s> {
        let head = op.at(Off::<Tower>::new(HEAD));
        let mut path = Path { before: [head; LEVELS], after: [0; LEVELS], found: None };
        let mut before = head;
        for level in (0..self.levels).rev() {
            let mut after = op.load(&before.next[level], Acquire);
            while after != 0 {
                let node = op.at(Off::<Tower>::new(after));
                let here = op.load(&node.key, Relaxed);
                if here >= key {
                    if here == key && path.found.is_none() {
                        path.found = Some(level);
                    }
                    break;
                }
                before = node;
                after = op.load(&node.next[level], Acquire);
            }
            path.before[level] = before;
            path.after[level] = after;
        }
        path
    }
}

impl Path<'_> {
    /// The levels below `levels` whose predecessor is another than on the level below.
    #[inline(always)]
    fn unlock<M: Medium>(&self, op: &Op<'_, M>, levels: usize) {
        for level in 0..levels {
            if level == 0 || !std::ptr::eq(self.before[level], self.before[level - 1]) {
                unlock(op, &self.before[level].lock);
            }
        }
    }

    /// Locks the predecessors on these levels; `false`, and nothing locked, where one of them does not lead to the node found
    /// any more.
    #[inline(always)]
    fn lock<M: Medium>(&self, op: &Op<'_, M>, levels: usize) -> bool {
        for level in 0..levels {
            if level == 0 || !std::ptr::eq(self.before[level], self.before[level - 1]) {
                lock(op, &self.before[level].lock);
            }
            let (before, after) = (self.before[level], self.after[level]);
            let deleted = op.load(&before.state, Relaxed) & DELETED != 0;
            if deleted || op.load(&before.next[level], Relaxed) != after {
                self.unlock(op, level + 1);
                return false;
            }
        }
        true
    }
}

/// Logs one record for all levels, or one for each from the first of `order` on.
#[inline(always)]
fn log_levels<M: Medium, const CSO: bool>(log: &mut Log<CSO>, op: &Op<'_, M>, writes: &[(&Word, u64)]) {
    if CSO {
        return log.update(op, writes);
    }
    for write in writes {
        log.update(op, std::slice::from_ref(write));
    }
}

impl<M: Medium, const CSO: bool> Set<M> for LockedSkipList<CSO> {
    type Local = Local<CSO>;

    fn name(&self) -> &'static str {
        if CSO { "lock-based skip list, CSO redo log" } else { "lock-based skip list, redo log" }
    }

    fn bytes(&self, threads: u64) -> u64 {
        let (low, high) = self.bytes_a_thread();
        HEAD + HIGH + threads * (low + high)
    }

    fn create(&self, mapping: &Mapping<M>) {
        let mut session = mapping.session().expect("sessions enough");
        let op = session.enter().expect("the mapping is open");
        op.store(&op.at(Off::<Tower>::new(HEAD)).state, LINKED | (LEVELS as u64) << 2, Relaxed);
    }

    fn local(&self, thread: u64) -> Local<CSO> {
        let (low, high) = self.bytes_a_thread();
        let first = HEAD + HIGH + thread * (low + high);
        let (low, high) = (first..first + low, first + low..first + low + high);
        let random = Random(0x9e37_79b9_7f4a_7c15 + thread);
        let log = Log::new(LOGS + thread * LOG_BYTES);
        Local { log, low: Nodes::new(low, LINE), high: Nodes::new(high, HIGH), random }
    }

    #[inline(always)]
    fn contains(&self, _local: &mut Local<CSO>, op: &Op<'_, M>, key: u64) -> bool {
        let path = self.find(op, key);
        path.found.is_some_and(|level| {
            let state = op.load(&op.at(Off::<Tower>::new(path.after[level])).state, Acquire);
            state & DELETED == 0 && state & LINKED != 0
        })
    }

    #[inline(always)]
    fn insert(&self, local: &mut Local<CSO>, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let mut turn = 0;
        loop {
            let path = self.find(op, key);
            if let Some(level) = path.found {
                let state = op.load(&op.at(Off::<Tower>::new(path.after[level])).state, Acquire);
                if state & DELETED == 0 && state & LINKED != 0 {
                    return false;
                }
                op.medium().spin(turn);
                turn = turn.saturating_add(1);
                continue;
            }
            let levels = local.levels(self.levels);
            local.nodes(levels).ensure(1);
            if !path.lock(op, levels) {
                continue;
            }
            let off = local.nodes(levels).take();
            let node = op.at(Off::<Tower>::new(off));
            op.store(&node.key, key, Relaxed);
            op.store(&node.value, value, Relaxed);
            op.store(&node.state, (levels as u64) << 2, Relaxed);
            op.store(&node.lock, 0, Relaxed);
            (0..levels).for_each(|level| op.store(&node.next[level], path.after[level], Relaxed));
            op.write_back_slice(&node.next[..levels]);
            let mut writes = [(&node.key, off); LEVELS];
            (0..levels).for_each(|level| writes[level].0 = &path.before[level].next[level]);
            log_levels(&mut local.log, op, &writes[..levels]);
            op.store(&node.state, (levels as u64) << 2 | LINKED, Release);
            path.unlock(op, levels);
            return true;
        }
    }

    #[inline(always)]
    fn remove(&self, local: &mut Local<CSO>, op: &Op<'_, M>, key: u64) -> bool {
        let Some((off, node, levels)) = self.claim(local, op, key) else { return false };
        loop {
            let path = self.find(op, key);
            if !path.lock(op, levels) {
                continue;
            }
            let mut writes = [(&node.key, 0); LEVELS];
            for (number, level) in (0..levels).rev().enumerate() {
                writes[number] = (&path.before[level].next[level], op.load(&node.next[level], Relaxed));
            }
            // Over the CSO log the mark is part of the one record.
            writes[levels] = (&node.state, (levels as u64) << 2 | LINKED | DELETED);
            log_levels(&mut local.log, op, &writes[..levels + usize::from(CSO)]);
            unlock(op, &node.lock);
            path.unlock(op, levels);
            local.nodes(levels).retire(op, off);
            return true;
        }
    }
}

impl<const CSO: bool> LockedSkipList<CSO> {
    /// Finds the node of a key, locks it and marks it as deleted, durably; `None` if the key is not there.
    #[inline(always)]
    fn claim<'s, M: Medium>(
        &self,
        local: &mut Local<CSO>,
        op: &Op<'s, M>,
        key: u64,
    ) -> Option<(u64, &'s Tower, usize)> {
        let path = self.find(op, key);
        let level = path.found?;
        let off = path.after[level];
        let node = op.at(Off::<Tower>::new(off));
        let state = op.load(&node.state, Acquire);
        let levels = (state >> 2) as usize;
        if state & DELETED != 0 || state & LINKED == 0 || levels != level + 1 {
            return None;
        }
        lock(op, &node.lock);
        if op.load(&node.state, Relaxed) & DELETED != 0 {
            unlock(op, &node.lock);
            return None;
        }
        let deleted = (levels as u64) << 2 | LINKED | DELETED;
        if CSO {
            op.store(&node.state, deleted, Release);
        } else {
            local.log.update(op, &[(&node.state, deleted)]);
        }
        Some((off, node, levels))
    }
}
