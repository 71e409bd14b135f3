//! The comparator of section 5.4: a hash map of persistent chains, linked in a second round trip.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | node < the link to it | `flush+fence` | the node is not linked: the old value is there |
//! | link < return | `flush+fence` | either value |
//! | link < the replaced node is written again | the same fence | – |
//!
//! An update replaces the node, as in the paper. To its advantage it knows one thread only, takes no lock, compares keys as
//! words, and has as many buckets as keys; as in ours, a lookup touches two lines besides the value's, slots are reused
//! first in, first out, and the next one is prefetched while the fence waits. The allocator is volatile.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word};

use super::{Map, value_bytes};
use crate::logs::Line;

/// The chained map.
#[derive(Debug)]
pub struct Chained {
    /// Offset of the buckets, a power of two of them.
    buckets: u64,
    mask: u64,
    /// Lines of a node.
    lines: u64,
    /// Free nodes, the one that is free for longest first.
    free: VecDeque<u64>,
}

/// Words of a node before its value: next and key.
const HEAD: usize = 2;

impl Chained {
    /// Bytes that a map takes, from a line-aligned offset on.
    pub fn bytes(keys: u64, lines: usize) -> u64 {
        Self::bucket_bytes(keys) + (keys + SPARE) * lines as u64 * 64
    }

    fn bucket_bytes(keys: u64) -> u64 {
        keys.next_power_of_two().max(8) * 8
    }

    /// An empty map for `keys` keys with nodes of `lines` lines, in zeroed memory from `off` on.
    ///
    /// # Panics
    /// If the mapping does not hold [`bytes`](Chained::bytes) from there on.
    pub fn new<M: Medium>(mapping: &Mapping<M>, off: u64, keys: u64, lines: usize) -> Self {
        assert!(off + Self::bytes(keys, lines) <= mapping.len());
        let nodes = off + Self::bucket_bytes(keys);
        let free = (0..keys + SPARE).map(|i| nodes + i * lines as u64 * 64).collect();
        Chained { buckets: off, mask: keys.next_power_of_two().max(8) - 1, lines: lines as u64, free }
    }

    /// The words of a node: next, key, value.
    #[inline(always)]
    fn node<'s, M: Medium>(op: &Op<'s, M>, node: u64) -> &'s [Word; 128] {
        op.at(Off::new(node))
    }

    #[inline(always)]
    fn bucket<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> &'s Word {
        // The finaliser of a well-known mixer: keys may be anything.
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        op.at(Off::new(self.buckets + ((mixed ^ mixed >> 33) & self.mask) * 8))
    }

    /// The word that leads to the node of `key`, and the node; without one, the bucket, and its first node.
    #[inline(always)]
    fn find<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> (&'s Word, u64, bool) {
        let bucket = self.bucket(op, key);
        let first = op.load(bucket, Acquire);
        let (mut link, mut at) = (bucket, first);
        while at != 0 {
            let node = Self::node(op, at);
            if op.load(&node[1], Relaxed) == key {
                return (link, at, true);
            }
            (link, at) = (&node[0], op.load(&node[0], Acquire));
        }
        (bucket, first, false)
    }

    /// Writes a node and its lines back, each as soon as it is complete. No fence.
    #[inline(always)]
    fn write<M: Medium>(&self, op: &Op<'_, M>, at: u64, next: u64, key: u64, value: &[u8]) {
        let node = Self::node(op, at);
        op.store(&node[0], next, Relaxed);
        op.store(&node[1], key, Relaxed);
        let (first, rest) = value.split_at(value.len().min((8 - HEAD) * 8));
        op.store_bytes(&node[HEAD..8], first);
        op.write_back(op.at(Off::<Line>::new(at)));
        for (i, bytes) in rest.chunks(64).enumerate() {
            let line = op.at(Off::<Line>::new(at + (i as u64 + 1) * 64));
            op.store_bytes(&line.words, bytes);
            op.write_back(line);
        }
    }
}

/// Nodes beyond the number of keys: an update needs one more than there are.
const SPARE: u64 = 64;

impl<M: Medium> Map<M> for Chained {
    const NAME: &'static str = "TwoRounds";

    #[inline(always)]
    fn put(&mut self, op: &Op<'_, M>, key: u64, value: &[u8]) {
        assert_eq!(value.len(), value_bytes(self.lines as usize), "nodes of one size");
        let (link, old, found) = self.find(op, key);
        let next = if found { op.load(&Self::node(op, old)[0], Relaxed) } else { old };
        let new = self.free.pop_front().expect("as many nodes as keys, and some");
        // PERSIST node<link: flush+fence
        self.write(op, new, next, key, value);
        op.fence();
        op.store(link, new, Release);
        // PERSIST link<return: flush+fence
        op.write_back(link);
        if let Some(next) = self.free.front() {
            op.prefetch_write(Off::<Line>::new(*next));
        }
        op.fence();
        if found {
            self.free.push_back(old);
        }
    }

    #[inline(always)]
    fn get(&self, op: &Op<'_, M>, key: u64, value: &mut Vec<u8>) -> bool {
        let (_, at, found) = self.find(op, key);
        value.clear();
        if found {
            value.resize(value_bytes(self.lines as usize), 0);
            op.load_bytes(&Self::node(op, at)[HEAD..], value);
        }
        found
    }
}
