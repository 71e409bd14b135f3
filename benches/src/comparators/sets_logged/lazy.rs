//! The lazy list of Heller et al. (*A Lazy Concurrent List-Based Set Algorithm*, OPODIS 2005), and a hash table with one in
//! each bucket, made durable by redo logging: comparators of section 6.1.
//!
//! Searches and failed updates take no lock. An insert locks the predecessor, a remove the node, too; both then look whether
//! what they have found is still so.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::nodes::{Nodes, SPARE, lock, unlock};
use super::redo::{LOG_BYTES, Log};
use super::{MAX_THREADS, Set};

persistent! {
    /// A node of a list.
    pub struct Node: align(64) {
        next: Word,
        key: Word,
        value: Word,
        marked: Word,
        /// Volatile in meaning: it only lies here.
        lock: Word,
        unused: [Word; 3],
    }

    /// The head of a bucket.
    pub struct Head: align(16) {
        next: Word,
        lock: Word,
    }
}

/// Where the logs lie; the first line stays free, since offset 0 is no node.
const LOGS: u64 = 64;
const HEADS: u64 = LOGS + MAX_THREADS * LOG_BYTES;
const NODE: u64 = 64;

/// A list, or a table of lists; with `CSO`, over the log that costs one fence.
#[derive(Debug)]
pub struct Lazy<const CSO: bool> {
    name: &'static str,
    /// Number of buckets less one; 0 is a list.
    mask: u64,
    keys: u64,
}

/// What a thread has of its own.
#[derive(Debug)]
pub struct Local<const CSO: bool> {
    log: Log<CSO>,
    pub(super) nodes: Nodes,
}

/// Where a key is or belongs: the word that leads there, its lock, the mark of its node (the head has none), and the node.
struct Place<'s> {
    link: &'s Word,
    lock: &'s Word,
    marked: Option<&'s Word>,
    at: u64,
    found: bool,
}

impl<const CSO: bool> Lazy<CSO> {
    /// A list in zeroed memory.
    pub fn list(keys: u64) -> Self {
        Lazy { name: if CSO { "lazy list, CSO redo log" } else { "lazy list, redo log" }, mask: 0, keys }
    }

    /// A table of as many buckets as keys.
    pub fn table(keys: u64) -> Self {
        let name = if CSO { "lazy lists, CSO redo log" } else { "lazy lists, redo log" };
        Lazy { name, mask: keys.next_power_of_two() - 1, keys }
    }

    fn nodes(&self) -> u64 {
        (HEADS + (self.mask + 1) * 16).next_multiple_of(64)
    }

    fn bytes_a_thread(&self) -> u64 {
        (2 * self.keys + SPARE) * NODE
    }

    #[inline(always)]
    fn find<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> Place<'s> {
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let head = op.at(Off::<Head>::new(HEADS + ((mixed ^ mixed >> 33) & self.mask) * 16));
        let (mut link, mut lock, mut marked) = (&head.next, &head.lock, None);
        loop {
            let at = op.load(link, Acquire);
            let node = op.at(Off::<Node>::new(at));
            if at == 0 {
                return Place { link, lock, marked, at, found: false };
            }
            let here = op.load(&node.key, Relaxed);
            if here >= key {
                return Place { link, lock, marked, at, found: here == key };
            }
            (link, lock, marked) = (&node.next, &node.lock, Some(&node.marked));
        }
    }
}

impl Place<'_> {
    /// Locks the predecessor; `false`, and nothing locked, where it does not lead to the node any more.
    #[inline(always)]
    fn lock<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        lock(op, self.lock);
        let valid = self.marked.is_none_or(|marked| op.load(marked, Relaxed) == 0);
        if valid && op.load(self.link, Relaxed) == self.at {
            return true;
        }
        unlock(op, self.lock);
        false
    }
}

impl<M: Medium, const CSO: bool> Set<M> for Lazy<CSO> {
    type Local = Local<CSO>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn bytes(&self, threads: u64) -> u64 {
        self.nodes() + threads * self.bytes_a_thread()
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, thread: u64) -> Local<CSO> {
        let first = self.nodes() + thread * self.bytes_a_thread();
        let nodes = Nodes::new(first..first + self.bytes_a_thread(), NODE);
        Local { log: Log::new(LOGS + thread * LOG_BYTES), nodes }
    }

    #[inline(always)]
    fn contains(&self, _local: &mut Local<CSO>, op: &Op<'_, M>, key: u64) -> bool {
        let place = self.find(op, key);
        place.found && op.load(&op.at(Off::<Node>::new(place.at)).marked, Acquire) == 0
    }

    #[inline(always)]
    fn insert(&self, local: &mut Local<CSO>, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        loop {
            let place = self.find(op, key);
            if place.found {
                if op.load(&op.at(Off::<Node>::new(place.at)).marked, Acquire) == 0 {
                    return false;
                }
                continue;
            }
            local.nodes.ensure(1);
            if !place.lock(op) {
                continue;
            }
            let off = local.nodes.take();
            let node = op.at(Off::<Node>::new(off));
            op.store(&node.next, place.at, Relaxed);
            op.store(&node.key, key, Relaxed);
            op.store(&node.value, value, Relaxed);
            op.store(&node.marked, 0, Relaxed);
            op.store(&node.lock, 0, Relaxed);
            op.write_back(node);
            local.log.update(op, &[(place.link, off)]);
            unlock(op, place.lock);
            return true;
        }
    }

    #[inline(always)]
    fn remove(&self, local: &mut Local<CSO>, op: &Op<'_, M>, key: u64) -> bool {
        loop {
            let place = self.find(op, key);
            let node = op.at(Off::<Node>::new(place.at));
            if !place.found || op.load(&node.marked, Acquire) != 0 {
                return false;
            }
            if !place.lock(op) {
                continue;
            }
            lock(op, &node.lock);
            let next = op.load(&node.next, Relaxed);
            local.log.update(op, &[(&node.marked, 1), (place.link, next)]);
            unlock(op, &node.lock);
            unlock(op, place.lock);
            local.nodes.retire(op, place.at);
            return true;
        }
    }
}
