//! The comparator of section 5.4: a hash map of persistent chains, linked in a second round trip.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | node < the link to it | `flush+fence` | the node is not linked: the old value is there |
//! | link < return | `flush+fence` | either value |
//! | link < the replaced node is written again | the same fence | – |
//! | link < a reader returns its value | the stripe's sequence number is odd from the store to behind the fence | – |
//!
//! An update replaces the node, as in the paper. The paper compares two sets for one thread ("we do not consider
//! multithreading"). Ours is for any number, so there are two of these:
//!
//! - [`Chained<true>`] has the contract of ours: any number of threads, reads without locks that return nothing but what is
//!   durable. Its stripes do what the shards of ours do, as many of them: a lock and free nodes for writers, a sequence
//!   number for readers. One look at that number before and one behind is all that a read pays, less than ours.
//! - [`Chained<false>`] is for one thread, as in the paper: no lock, no sequence number.
//!
//! Both store and compare the lengths of key and value, since ours takes any; to their advantage keys are words, there are
//! as many buckets as keys, and the allocator is volatile. As in ours, slots are reused first in, first out, and the next
//! one is prefetched while the fence waits; lock and node are prefetched before the lock is taken.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use crossbeam_utils::CachePadded;
use durix_pmem::{Lock, Mapping, Medium, Off, Op, Word};

use super::{Map, value_bytes};
use crate::logs::Line;

/// The chained map, `SHARED` by threads or for one.
#[derive(Debug)]
pub struct Chained<const SHARED: bool> {
    shape: Shape,
    stripes: Box<[CachePadded<Stripe>]>,
}

/// What lies where.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Offset of the buckets, a power of two of them.
    buckets: u64,
    mask: u64,
    /// Lines of a node.
    lines: u64,
}

/// What guards a part of the buckets.
#[derive(Debug)]
struct Stripe {
    /// Odd while a link is not known to be durable.
    seq: AtomicU64,
    /// Held by the one writer. Free nodes, the one that is free for longest first.
    free: Lock<VecDeque<u64>>,
}

/// Words of a node before its value: next, lengths, key.
const HEAD: usize = 3;
/// As many stripes as ours has shards.
const STRIPES: u64 = 256;
/// Nodes of a stripe beyond the keys that it will hold on average: random keys do not spread evenly.
const SPARE: u64 = 16;

/// The word that says how long key and value are.
fn lengths(value: usize) -> u64 {
    8 | (value as u64) << 16
}

impl<const SHARED: bool> Chained<SHARED> {
    /// Bytes that a map takes, from a line-aligned offset on.
    pub fn bytes(keys: u64, lines: usize) -> u64 {
        Self::bucket_bytes(keys) + Self::stripe_nodes(keys) * Self::stripes(keys) * lines as u64 * 64
    }

    fn bucket_bytes(keys: u64) -> u64 {
        keys.next_power_of_two().max(8) * 8
    }

    fn stripes(keys: u64) -> u64 {
        if SHARED { STRIPES.min(keys.next_power_of_two().max(8)) } else { 1 }
    }

    /// Nodes of each stripe: its share of the keys, and six deviations of it.
    fn stripe_nodes(keys: u64) -> u64 {
        let share = keys.div_ceil(Self::stripes(keys));
        share + SPARE + if SHARED { share.isqrt() * 6 } else { 0 }
    }

    /// An empty map for `keys` keys with nodes of `lines` lines, in zeroed memory from `off` on.
    ///
    /// # Panics
    /// If the mapping does not hold [`bytes`](Chained::bytes) from there on.
    pub fn new<M: Medium>(mapping: &Mapping<M>, off: u64, keys: u64, lines: usize) -> Self {
        assert!(off + Self::bytes(keys, lines) <= mapping.len());
        let nodes = off + Self::bucket_bytes(keys);
        let each = Self::stripe_nodes(keys);
        let stripe = |stripe| {
            let free = (0..each).map(|i| nodes + (stripe * each + i) * lines as u64 * 64).collect();
            CachePadded::new(Stripe { seq: AtomicU64::new(0), free: Lock::new(free) })
        };
        let shape = Shape { buckets: off, mask: keys.next_power_of_two().max(8) - 1, lines: lines as u64 };
        Chained { shape, stripes: (0..Self::stripes(keys)).map(stripe).collect() }
    }

    #[inline(always)]
    fn stripe(&self, bucket: u64) -> &Stripe {
        &self.stripes[bucket as usize & (self.stripes.len() - 1)]
    }
}

impl Shape {
    /// The words of a node: next, lengths, key, value.
    #[inline(always)]
    fn node<'s, M: Medium>(op: &Op<'s, M>, node: u64) -> &'s [Word; 128] {
        op.at(Off::new(node))
    }

    /// The number of the bucket of a key.
    #[inline(always)]
    fn bucket(self, key: u64) -> u64 {
        // The finaliser of a well-known mixer: keys may be anything.
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed ^ mixed >> 33) & self.mask
    }

    /// Asks for the first node of a bucket, before the lock is taken.
    #[inline(always)]
    fn prefetch<M: Medium>(self, op: &Op<'_, M>, bucket: u64) {
        let bucket: &Word = op.at(Off::new(self.buckets + bucket * 8));
        op.prefetch_write(Off::<Line>::new(op.load(bucket, Relaxed)));
    }

    /// The word that leads to the node of `key`, and the node; without one, the bucket, and its first node.
    #[inline(always)]
    fn find<'s, M: Medium>(self, op: &Op<'s, M>, bucket: u64, key: u64) -> (&'s Word, u64, bool) {
        let bucket: &Word = op.at(Off::new(self.buckets + bucket * 8));
        let first = op.load(bucket, Acquire);
        let (mut link, mut at) = (bucket, first);
        while at != 0 {
            let node = Self::node(op, at);
            if op.load(&node[2], Relaxed) == key && op.load(&node[1], Relaxed) & 0xffff == 8 {
                return (link, at, true);
            }
            (link, at) = (&node[0], op.load(&node[0], Acquire));
        }
        (bucket, first, false)
    }

    /// Writes a node and its lines back, each as soon as it is complete. No fence.
    #[inline(always)]
    fn write<M: Medium>(self, op: &Op<'_, M>, at: u64, next: u64, key: u64, value: &[u8]) {
        let node = Self::node(op, at);
        op.store(&node[0], next, Relaxed);
        op.store(&node[1], lengths(value.len()), Relaxed);
        op.store(&node[2], key, Relaxed);
        let (first, rest) = value.split_at(value.len().min((8 - HEAD) * 8));
        op.store_bytes(&node[HEAD..8], first);
        op.write_back(op.at(Off::<Line>::new(at)));
        for (i, bytes) in rest.chunks(64).enumerate() {
            let line = op.at(Off::<Line>::new(at + (i as u64 + 1) * 64));
            op.store_bytes(&line.words, bytes);
            op.write_back(line);
        }
    }

    /// Replaces the node of `key`, or adds one.
    #[inline(always)]
    fn replace<M: Medium, const SHARED: bool>(
        self,
        op: &Op<'_, M>,
        seq: &AtomicU64,
        free: &mut VecDeque<u64>,
        bucket: u64,
        key: u64,
        value: &[u8],
    ) {
        let m = op.medium();
        let (link, old, found) = self.find(op, bucket, key);
        let next = if found { op.load(&Self::node(op, old)[0], Relaxed) } else { old };
        let new = free.pop_front().expect("as many nodes as keys, and some");
        // PERSIST node<link: flush+fence
        self.write(op, new, next, key, value);
        op.fence();
        let before = m.shared_load(seq, Relaxed);
        if SHARED {
            m.shared_store(seq, before + 1, Relaxed);
            fence(Release);
        }
        op.store(link, new, Release);
        // PERSIST link<return: flush+fence
        op.write_back(link);
        if let Some(next) = free.front() {
            op.prefetch_write(Off::<Line>::new(*next));
        }
        op.fence();
        if SHARED {
            m.shared_store(seq, before + 2, Release);
        }
        if found {
            free.push_back(old);
        }
    }

    /// Replaces the content of `value` by that of `key`, if it is there.
    #[inline(always)]
    fn read<M: Medium>(self, op: &Op<'_, M>, bucket: u64, key: u64, value: &mut Vec<u8>) -> bool {
        let (_, at, found) = self.find(op, bucket, key);
        if !found {
            value.clear();
            return false;
        }
        let node = Self::node(op, at);
        // Whatever a writer leaves there meanwhile, it is no longer than a node.
        let len = (op.load(&node[1], Relaxed) >> 16) as usize;
        let len = len.min((self.lines as usize * 8 - HEAD) * 8);
        if value.len() != len {
            value.resize(len, 0);
        }
        op.load_bytes(&node[HEAD..], value);
        true
    }
}

impl<M: Medium, const SHARED: bool> Map<M> for Chained<SHARED> {
    const NAME: &'static str = if SHARED { "TwoRounds" } else { "TwoRounds, one thread" };

    #[inline(always)]
    fn put(&mut self, op: &Op<'_, M>, key: u64, value: &[u8]) {
        assert_eq!(value.len(), value_bytes(self.shape.lines as usize), "nodes of one size");
        let (shape, bucket) = (self.shape, self.shape.bucket(key));
        if SHARED {
            let stripe = self.stripe(bucket);
            stripe.free.prefetch();
            shape.prefetch(op, bucket);
            let free = &mut *stripe.free.lock(op.medium());
            shape.replace::<M, true>(op, &stripe.seq, free, bucket, key, value);
        } else {
            let stripe = &mut *self.stripes[0];
            shape.replace::<M, false>(op, &stripe.seq, stripe.free.get_mut(), bucket, key, value);
        }
    }

    #[inline(always)]
    fn get(&self, op: &Op<'_, M>, key: u64, value: &mut Vec<u8>) -> bool {
        let (shape, bucket) = (self.shape, self.shape.bucket(key));
        if !SHARED {
            return shape.read(op, bucket, key, value);
        }
        let m = op.medium();
        let seq = &self.stripe(bucket).seq;
        let mut turn = 0;
        loop {
            let before = m.shared_load(seq, Acquire);
            if before & 1 == 0 {
                let found = shape.read(op, bucket, key, value);
                // Either nothing was relinked meanwhile, or the number has changed.
                fence(Acquire);
                if m.shared_load(seq, Relaxed) == before {
                    return found;
                }
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
        }
    }
}
