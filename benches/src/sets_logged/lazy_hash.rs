//! The comparator of section 6.1: a hash table with a lazy list (Heller et al.) in each bucket, made durable by redo logging.
//!
//! | protocol | order | fences an update |
//! |---|---|---|
//! | the paper's | log, new node < fence < apply < fence < truncate < fence | 3 |
//! | ours, the best we can build | log in one line (CSO), new node < fence; apply; home lines are written back when the log wraps | 1, and one for each [`RECORDS`] |
//!
//! To its advantage, its allocator is volatile, nodes are used again at once, and failed operations take no lock. It
//! therefore knows one thread at a time; it takes its locks all the same, as the paper's does.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::Set;

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

    /// A record of the log: up to two words and their new values.
    pub struct Record: align(64) {
        writes: [Word; 4],
        /// How many words; the sequence number above.
        seal: Word,
        unused: [Word; 3],
    }

    /// The head of a bucket.
    pub struct Head: align(16) {
        next: Word,
        lock: Word,
    }
}

/// Records of the log that is not truncated at once.
pub const RECORDS: u64 = 64;
/// Where the log lies.
const LOG: u64 = 64;
const HEADS: u64 = LOG + RECORDS * 64;

/// The table; with `CSO`, over a log that costs one fence.
#[derive(Debug)]
pub struct LazyHash<const CSO: bool> {
    mask: u64,
    free: Vec<u64>,
    sequence: u64,
    /// Words that were applied since the log wrapped.
    applied: Vec<Off<Word>>,
}

/// Where a key is or belongs: the word that leads there, its lock, and the node.
struct Place<'s> {
    link: &'s Word,
    lock: &'s Word,
    at: u64,
    found: bool,
}

impl<const CSO: bool> LazyHash<CSO> {
    /// Bytes of a table for `keys` keys.
    pub fn bytes(keys: u64) -> u64 {
        HEADS + keys.next_power_of_two() * 16 + 64 + keys * 3 * 64
    }

    /// An empty table in zeroed memory.
    ///
    /// # Panics
    /// If the mapping is smaller than [`bytes`](Self::bytes).
    pub fn new<M: Medium>(mapping: &Mapping<M>, keys: u64) -> Self {
        assert!(mapping.len() >= Self::bytes(keys));
        let nodes = (HEADS + keys.next_power_of_two() * 16).next_multiple_of(64);
        let free = (0..keys * 3).rev().map(|i| nodes + i * 64).collect();
        LazyHash { mask: keys.next_power_of_two() - 1, free, sequence: 0, applied: Vec::new() }
    }

    #[inline(always)]
    fn find<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> Place<'s> {
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let head = op.at(Off::<Head>::new(HEADS + ((mixed ^ mixed >> 33) & self.mask) * 16));
        let (mut link, mut lock) = (&head.next, &head.lock);
        loop {
            let at = op.load(link, Acquire);
            let node = op.at(Off::<Node>::new(at));
            let here = if at == 0 { u64::MAX } else { op.load(&node.key, Relaxed) };
            if at == 0 || here >= key {
                return Place { link, lock, at, found: at != 0 && here == key };
            }
            (link, lock) = (&node.next, &node.lock);
        }
    }

    /// Makes up to two words durable together: the paper's protocol, or the best.
    #[inline(always)]
    fn update<M: Medium>(&mut self, op: &Op<'_, M>, writes: &[(&Word, u64)]) {
        let slot = if CSO { self.sequence % RECORDS } else { 0 };
        let record = op.at(Off::<Record>::new(LOG + slot * 64));
        self.sequence += 1;
        for (i, (word, value)) in writes.iter().enumerate() {
            op.store(&record.writes[2 * i], op.off_of(*word).get(), Relaxed);
            op.store(&record.writes[2 * i + 1], *value, Relaxed);
        }
        // PERSIST record<seal: same line
        op.store(&record.seal, self.sequence << 2 | writes.len() as u64, Release);
        op.write_back(record);
        // PERSIST record and node<apply: flush+fence
        op.fence();
        for (word, value) in writes {
            op.store(*word, *value, Release);
        }
        if CSO {
            return self.keep(op, writes);
        }
        for (word, _) in writes {
            op.write_back(*word);
        }
        // PERSIST apply<truncate: flush+fence
        op.fence();
        op.store(&record.seal, 0, Release);
        op.write_back(record);
        // PERSIST truncate<next record: flush+fence
        op.fence();
    }

    /// Remembers what was applied; writes it back when the log wraps.
    #[inline(always)]
    fn keep<M: Medium>(&mut self, op: &Op<'_, M>, writes: &[(&Word, u64)]) {
        self.applied.extend(writes.iter().map(|(word, _)| op.off_of(*word)));
        if self.sequence.is_multiple_of(RECORDS) {
            for word in self.applied.drain(..) {
                op.defer(op.at(word));
            }
            op.drain();
        }
    }
}

fn lock<M: Medium>(op: &Op<'_, M>, word: &Word) {
    while op.compare_exchange(word, 0, 1).is_err() {
        std::hint::spin_loop();
    }
}

fn unlock<M: Medium>(op: &Op<'_, M>, word: &Word) {
    op.store(word, 0, Release);
}

impl<M: Medium, const CSO: bool> Set<M> for LazyHash<CSO> {
    const NAME: &'static str = if CSO { "lazy lists, CSO redo log" } else { "lazy lists, redo log" };

    #[inline(always)]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let place = self.find(op, key);
        if place.found {
            return false;
        }
        lock(op, place.lock);
        let off = self.free.pop().expect("as many nodes as keys, and more");
        let node = op.at(Off::<Node>::new(off));
        op.store(&node.next, place.at, Relaxed);
        op.store(&node.key, key, Relaxed);
        op.store(&node.value, value, Relaxed);
        op.store(&node.marked, 0, Relaxed);
        op.store(&node.lock, 0, Relaxed);
        op.write_back(node);
        self.update(op, &[(place.link, off)]);
        unlock(op, place.lock);
        true
    }

    #[inline(always)]
    fn remove(&mut self, op: &Op<'_, M>, key: u64) -> bool {
        let place = self.find(op, key);
        if !place.found {
            return false;
        }
        let node = op.at(Off::<Node>::new(place.at));
        lock(op, place.lock);
        lock(op, &node.lock);
        let next = op.load(&node.next, Relaxed);
        self.update(op, &[(&node.marked, 1), (place.link, next)]);
        unlock(op, &node.lock);
        unlock(op, place.lock);
        self.free.push(place.at);
        true
    }
}
