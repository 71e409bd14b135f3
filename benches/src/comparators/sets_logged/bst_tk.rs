//! The binary search tree BST-TK of David, Guerraoui and Trigonakis (*Asynchronized Concurrency*, ASPLOS 2015), made durable by
//! redo logging: a comparator of section 6.1.
//!
//! Keys are in the leaves. Each inner node has a versioned lock for each of its two links; a search remembers the versions on
//! its way, and an update locks exactly those versions, so that it need not look again. An insert puts a new inner node where
//! the leaf was; a remove puts the leaf's sibling where their parent was: one link each, so one logged word.
//!
//! The two locks of a node are two words here, where the original has two halves of one: unlocking stays a plain store, and a
//! remove takes one locked instruction more.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::nodes::{Nodes, SPARE};
use super::redo::{LOG_BYTES, Log};
use super::{MAX_THREADS, Set};

persistent! {
    /// A leaf, or an inner node.
    pub struct Node: align(64) {
        key: Word,
        value: Word,
        /// Left, for keys below `key`, and right; a leaf has none.
        links: [Word; 2],
        /// Versions: odd while locked. Volatile in meaning.
        locks: [Word; 2],
        unused: [Word; 2],
    }
}

const LOGS: u64 = 64;
/// The root (never replaced), the inner node below it, and the three leaves that make every search end.
const FIXED: u64 = LOGS + MAX_THREADS * LOG_BYTES;
const NODES: u64 = FIXED + 5 * 64;
const NODE: u64 = 64;

/// The tree; with `CSO`, over the log that costs one fence. The keys 0 and `u64::MAX` are its own.
#[derive(Debug)]
pub struct BstTk<const CSO: bool> {
    keys: u64,
}

/// What a thread has of its own.
#[derive(Debug)]
pub struct Local<const CSO: bool> {
    log: Log<CSO>,
    pub(super) nodes: Nodes,
}

/// An inner node on the way, the side taken, and the version of that side's lock before.
#[derive(Clone, Copy)]
struct Step<'s> {
    node: &'s Node,
    off: u64,
    side: usize,
    version: u64,
}

impl Step<'_> {
    /// Locks the side taken, if its version is still the one seen.
    #[inline(always)]
    fn lock<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        self.version & 1 == 0
            && op.compare_exchange(&self.node.locks[self.side], self.version, self.version + 1).is_ok()
    }

    #[inline(always)]
    fn unlock<M: Medium>(&self, op: &Op<'_, M>) {
        op.store(&self.node.locks[self.side], self.version + 2, Release);
    }

    /// Takes the lock back without a change.
    #[inline(always)]
    fn revert<M: Medium>(&self, op: &Op<'_, M>) {
        op.store(&self.node.locks[self.side], self.version, Release);
    }
}

impl<const CSO: bool> BstTk<CSO> {
    /// A tree for so many keys.
    pub fn new(keys: u64) -> Self {
        BstTk { keys }
    }

    fn bytes_a_thread(&self) -> u64 {
        (4 * self.keys + 2 * SPARE) * NODE
    }

    /// The leaf where the search for a key ends, its parent, and the parent's parent, whose other side's version comes with
    /// it.
    #[inline(always)]
    fn find<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> (Step<'s>, Step<'s>, u64) {
        let step = |off: u64| {
            let node = op.at(Off::<Node>::new(off));
            // As in our tree: both sides are asked for before it is known which it is to be.
            node.links.iter().for_each(|link| op.prefetch(Off::<Node>::new(op.load(link, Relaxed))));
            let side = usize::from(key >= op.load(&node.key, Relaxed));
            // The version before the link: whoever locks that version knows the link.
            let version = op.load(&node.locks[side], Acquire);
            (Step { node, off, side, version }, op.load(&node.links[side], Acquire))
        };
        let (mut above, mut at) = step(FIXED);
        loop {
            let (parent, next) = step(at);
            let child = op.at(Off::<Node>::new(next));
            if op.load(&child.links[0], Relaxed) == 0 {
                return (above, parent, next);
            }
            (above, at) = (parent, next);
        }
    }

    fn leaf<M: Medium>(op: &Op<'_, M>, off: u64, key: u64, value: u64) {
        let leaf = op.at(Off::<Node>::new(off));
        op.store(&leaf.key, key, Relaxed);
        op.store(&leaf.value, value, Relaxed);
        op.store(&leaf.links[0], 0, Relaxed);
        op.write_back(leaf);
    }

    fn inner<M: Medium>(op: &Op<'_, M>, off: u64, key: u64, links: [u64; 2]) {
        let node = op.at(Off::<Node>::new(off));
        op.store(&node.key, key, Relaxed);
        op.store(&node.links[0], links[0], Relaxed);
        op.store(&node.links[1], links[1], Relaxed);
        op.store(&node.locks[0], 0, Relaxed);
        op.store(&node.locks[1], 0, Relaxed);
        op.write_back(node);
    }
}

impl<M: Medium, const CSO: bool> Set<M> for BstTk<CSO> {
    type Local = Local<CSO>;

    fn name(&self) -> &'static str {
        if CSO { "bst-tk, CSO redo log" } else { "bst-tk, redo log" }
    }

    fn bytes(&self, threads: u64) -> u64 {
        NODES + threads * self.bytes_a_thread()
    }

    fn create(&self, mapping: &Mapping<M>) {
        let mut session = mapping.session().expect("sessions enough");
        let op = session.enter().expect("the mapping is open");
        let [below, least, most, end] = [1, 2, 3, 4].map(|i| FIXED + i * NODE);
        Self::leaf(&op, least, 0, 0);
        Self::leaf(&op, most, u64::MAX, 0);
        Self::leaf(&op, end, u64::MAX, 0);
        Self::inner(&op, below, u64::MAX, [least, most]);
        Self::inner(&op, FIXED, u64::MAX, [below, end]);
        op.fence();
    }

    fn local(&self, thread: u64) -> Local<CSO> {
        let first = NODES + thread * self.bytes_a_thread();
        let nodes = Nodes::new(first..first + self.bytes_a_thread(), NODE);
        Local { log: Log::new(LOGS + thread * LOG_BYTES), nodes }
    }

    #[inline(always)]
    fn contains(&self, _local: &mut Local<CSO>, op: &Op<'_, M>, key: u64) -> bool {
        let (_, _, leaf) = self.find(op, key);
        op.load(&op.at(Off::<Node>::new(leaf)).key, Relaxed) == key
    }

    #[inline(always)]
    fn insert(&self, local: &mut Local<CSO>, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        loop {
            let (_, parent, leaf) = self.find(op, key);
            let here = op.load(&op.at(Off::<Node>::new(leaf)).key, Relaxed);
            if here == key {
                return false;
            }
            local.nodes.ensure(2);
            if !parent.lock(op) {
                continue;
            }
            let (new_leaf, new_inner) = (local.nodes.take(), local.nodes.take());
            Self::leaf(op, new_leaf, key, value);
            let links = if key < here { [new_leaf, leaf] } else { [leaf, new_leaf] };
            Self::inner(op, new_inner, key.max(here), links);
            local.log.update(op, &[(&parent.node.links[parent.side], new_inner)]);
            parent.unlock(op);
            return true;
        }
    }

    #[inline(always)]
    fn remove(&self, local: &mut Local<CSO>, op: &Op<'_, M>, key: u64) -> bool {
        loop {
            let (above, parent, leaf) = self.find(op, key);
            if op.load(&op.at(Off::<Node>::new(leaf)).key, Relaxed) != key {
                return false;
            }
            if !above.lock(op) {
                continue;
            }
            if !parent.lock(op) {
                above.revert(op);
                continue;
            }
            let other = 1 - parent.side;
            let version = op.load(&parent.node.locks[other], Acquire);
            if version & 1 == 1 || op.compare_exchange(&parent.node.locks[other], version, version + 1).is_err() {
                parent.revert(op);
                above.revert(op);
                continue;
            }
            // Both locks of the parent stay locked: it leaves the tree.
            let sibling = op.load(&parent.node.links[other], Relaxed);
            local.log.update(op, &[(&above.node.links[above.side], sibling)]);
            above.unlock(op);
            local.nodes.retire(op, leaf);
            local.nodes.retire(op, parent.off);
            return true;
        }
    }
}
