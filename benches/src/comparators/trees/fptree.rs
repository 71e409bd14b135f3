//! FPTree: unsorted leaves in persistent memory, each with a bitmap and a byte of hash for each entry; inner nodes in DRAM (Oukid et
//! al., FPTree: A Hybrid SCM-DRAM Persistent and Concurrent B-Tree for Storage Class Memory, SIGMOD 2016).
//!
//! There are two of them:
//!
//! - [`FpTree<true>`] persists as the paper does: entry, fingerprint and bitmap of an insert one after the other; an update writes a
//!   new entry and changes both bits at once; a split copies the whole leaf under a micro-log.
//! - [`FpTree<false>`] is the best we can make of it: fingerprint and bitmap are on one line, so they are persisted together; an
//!   update replaces the value's word; a split moves the upper half to the first slots of a new leaf, without a log.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | entry < its fingerprint < its bit | write-back, fence; fingerprint and bit: the same, or one line in order | the slot is free |
//! | new leaf < the link to it | write-back of its lines, one fence | it is not linked |
//! | link < the old leaf's bitmap | write-back, fence | entries are in both leaves: the old leaf drops those from the next leaf's least key on; by the log, as in the paper, with [`FpTree<true>`] |
//!
//! As published: 56 entries a leaf of 1 KiB; here the inner nodes have 128 entries on each level. A scan sorts each leaf. What is left
//! out: removal, threads, recovery by several of them.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::Ordered;
use super::index::Index;
use super::memory::Memory;

const ENTRIES: usize = 56;
const LEAF: u64 = 1024;
const FULL: u64 = (1 << ENTRIES) - 1;
/// Entries that a leaf has left after a split.
const HALF: usize = ENTRIES / 2;

persistent! {
    struct Entry: align(16) { key: Word, value: Word }

    /// Line 0: fingerprints and bitmap. Line 1: the next leaf. Lines 2 to 15: entries.
    struct Leaf: align(64) {
        prints: [Word; 7],
        bitmap: Word,
        next: Word,
        rest: [Word; 7],
        entries: [Entry; ENTRIES],
    }

    /// The leaf that is being split, and the new one; 0 while none is.
    struct MicroLog: align(64) { leaf: Word, new: Word, rest: [Word; 6] }
}

const _: () = assert!(size_of::<Leaf>() as u64 == LEAF);

/// The tree; `PAPER`: persisted as in the paper.
#[derive(Debug)]
pub struct FpTree<const PAPER: bool> {
    memory: Memory,
    log: u64,
    index: Index,
}

#[inline(always)]
fn leaf<'s, M: Medium>(op: &Op<'s, M>, at: u64) -> &'s Leaf {
    op.at(Off::new(at))
}

/// One byte of a key's hash.
#[inline(always)]
pub(super) fn print_of(key: u64) -> u8 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A bit for each of the eight bytes of `word` that is equal to `print`.
#[inline(always)]
pub(super) fn equal(word: u64, print: u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let odd = word ^ (u64::from(print) * 0x0101_0101_0101_0101);
    // The highest bit of each byte that is 0; no carry goes from byte to byte.
    let zero = !(((odd & LOW) + LOW) | odd | LOW);
    (zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

impl Leaf {
    /// The slot of a key.
    #[inline(always)]
    fn find<M: Medium>(&self, op: &Op<'_, M>, key: u64) -> Option<usize> {
        let print = print_of(key);
        let mut candidates = 0;
        for (i, word) in self.prints.iter().enumerate() {
            candidates |= equal(op.load(word, Relaxed), print) << (8 * i);
        }
        candidates &= op.load(&self.bitmap, Relaxed);
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            if op.load(&self.entries[slot].key, Relaxed) == key {
                return Some(slot);
            }
            candidates &= candidates - 1;
        }
        None
    }

    #[inline(always)]
    fn set_print<M: Medium>(&self, op: &Op<'_, M>, slot: usize, key: u64) {
        let (word, shift) = (&self.prints[slot / 8], slot % 8 * 8);
        let others = op.load(word, Relaxed) & !(0xff << shift);
        op.store(word, others | u64::from(print_of(key)) << shift, Release);
    }

    /// Writes an entry to a free slot, then sets its bit, and clears the `replaced` bits.
    #[inline(always)]
    fn fill<const PAPER: bool, M: Medium>(&self, op: &Op<'_, M>, bitmap: u64, key: u64, value: u64, replaced: u64) {
        let slot = bitmap.trailing_ones() as usize;
        let entry = &self.entries[slot];
        op.store(&entry.key, key, Relaxed);
        op.store(&entry.value, value, Relaxed);
        op.persist(entry);
        self.set_print(op, slot, key);
        if PAPER {
            op.persist(&self.prints[slot / 8]);
        }
        op.store(&self.bitmap, (bitmap | 1 << slot) & !replaced, Release);
        op.persist(&self.bitmap);
    }

    /// The pairs of the leaf from `from` on, in no order; how many.
    #[inline(always)]
    fn pairs<M: Medium>(&self, op: &Op<'_, M>, from: u64, pairs: &mut [(u64, u64); ENTRIES]) -> usize {
        let (mut taken, mut len) = (op.load(&self.bitmap, Relaxed) & FULL, 0);
        while taken != 0 {
            let entry = &self.entries[taken.trailing_zeros() as usize];
            let key = op.load(&entry.key, Relaxed);
            if key >= from {
                pairs[len] = (key, op.load(&entry.value, Relaxed));
                len += 1;
            }
            taken &= taken - 1;
        }
        len
    }
}

impl<const PAPER: bool> FpTree<PAPER> {
    /// The leaf for a key that belongs to the leaf at `at`, with a free slot.
    #[inline(always)]
    fn with_room<M: Medium>(&mut self, op: &Op<'_, M>, at: u64, key: u64) -> u64 {
        if op.load(&leaf(op, at).bitmap, Relaxed) == FULL { self.split(op, at, key) } else { at }
    }

    /// Gives the key in a slot another value.
    #[inline(always)]
    fn replace<M: Medium>(&mut self, op: &Op<'_, M>, (at, slot): (u64, usize), key: u64, value: u64) {
        if !PAPER {
            let entry = &leaf(op, at).entries[slot];
            op.store(&entry.value, value, Release);
            op.persist(entry);
            return;
        }
        let room = self.with_room(op, at, key);
        let this = leaf(op, room);
        // A split that copies leaves each entry in its slot.
        this.fill::<PAPER, M>(op, op.load(&this.bitmap, Relaxed), key, value, 1 << slot);
    }

    /// Splits a full leaf; returns the leaf for `key`.
    #[cold]
    fn split<M: Medium>(&mut self, op: &Op<'_, M>, at: u64, key: u64) -> u64 {
        let (this, new_at) = (leaf(op, at), self.memory.take(LEAF));
        let new = leaf(op, new_at);
        let mut keys: [u64; ENTRIES] = std::array::from_fn(|slot| op.load(&this.entries[slot].key, Relaxed));
        let separator = *keys.select_nth_unstable(HALF).1;
        let upper = (0..ENTRIES).filter(|slot| op.load(&this.entries[*slot].key, Relaxed) >= separator);
        if PAPER {
            let moved = upper.fold(0, |bits, slot| bits | 1 << slot);
            self.split_by_log(op, this, at, new_at, moved);
        } else {
            let moved = move_packed(op, this, new, upper);
            op.store(&this.next, new_at, Release);
            op.persist(&this.next);
            op.store(&this.bitmap, FULL & !moved, Release);
            op.persist(&this.bitmap);
        }
        self.index.insert(separator, new_at);
        if key < separator { at } else { new_at }
    }

    /// The paper's split: the whole leaf is copied, and both bitmaps are cut.
    fn split_by_log<M: Medium>(&self, op: &Op<'_, M>, this: &Leaf, at: u64, new_at: u64, moved: u64) {
        let (log, new): (&MicroLog, _) = (op.at(Off::new(self.log)), leaf(op, new_at));
        op.store(&log.leaf, at, Relaxed);
        op.store(&log.new, new_at, Relaxed);
        op.persist(log);
        for (to, from) in new.prints.iter().zip(&this.prints) {
            op.store(to, op.load(from, Relaxed), Relaxed);
        }
        op.store(&new.bitmap, FULL, Relaxed);
        op.store(&new.next, op.load(&this.next, Relaxed), Relaxed);
        for (to, from) in new.entries.iter().zip(&this.entries) {
            op.store(&to.key, op.load(&from.key, Relaxed), Relaxed);
            op.store(&to.value, op.load(&from.value, Relaxed), Relaxed);
        }
        op.persist(new);
        op.store(&new.bitmap, moved, Release);
        op.persist(&new.bitmap);
        op.store(&this.bitmap, FULL & !moved, Release);
        op.persist(&this.bitmap);
        op.store(&this.next, new_at, Release);
        op.persist(&this.next);
        op.store(&log.leaf, 0, Release);
        op.persist(log);
    }
}

/// Copies entries to the first slots of a new leaf, which is durable when this returns. The slots that they came from.
fn move_packed<M: Medium>(op: &Op<'_, M>, from: &Leaf, new: &Leaf, slots: impl Iterator<Item = usize>) -> u64 {
    let (mut moved, mut len, mut prints) = (0, 0, [0u64; 7]);
    for slot in slots {
        let (source, entry) = (&from.entries[slot], &new.entries[len]);
        let key = op.load(&source.key, Relaxed);
        op.store(&entry.key, key, Relaxed);
        op.store(&entry.value, op.load(&source.value, Relaxed), Relaxed);
        prints[len / 8] |= u64::from(print_of(key)) << (len % 8 * 8);
        moved |= 1 << slot;
        len += 1;
        if len.is_multiple_of(4) {
            op.write_back(entry);
        }
    }
    // The last line, where it is not whole.
    if !len.is_multiple_of(4) {
        op.write_back(&new.entries[len - 1]);
    }
    prints.iter().zip(&new.prints).for_each(|(print, word)| op.store(word, *print, Relaxed));
    op.store(&new.bitmap, (1 << len) - 1, Relaxed);
    op.write_back(&new.bitmap);
    op.store(&new.next, op.load(&from.next, Relaxed), Relaxed);
    op.write_back(&new.next);
    op.fence();
    moved
}

impl<M: Medium, const PAPER: bool> Ordered<M> for FpTree<PAPER> {
    const NAME: &'static str = if PAPER { "FPTree" } else { "FPTree, best" };

    fn bytes(keys: u64) -> u64 {
        // A leaf of 28 to 56 entries. With random keys all leaves get full, and are split, at about the same time: then all have about 28.
        (keys * LEAF / 27 + (1 << 20)).next_multiple_of(4096)
    }

    fn used(&self) -> u64 {
        self.memory.used()
    }

    fn create(mapping: &Mapping<M>) -> durix_pmem::Result<Self> {
        let mut memory = Memory::new(mapping.len());
        let (log, first) = (memory.take(64), memory.take(LEAF));
        debug_assert_eq!((log, first), (LOG, FIRST), "what recovery begins with");
        // A leaf of zeroes is an empty one.
        Ok(FpTree { log, index: Index::new(first, mapping.len() / LEAF), memory })
    }

    #[inline]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let at = self.index.leaf_of(key);
        if let Some(slot) = leaf(op, at).find(op, key) {
            self.replace(op, (at, slot), key, value);
            return false;
        }
        let this = leaf(op, self.with_room(op, at, key));
        this.fill::<PAPER, M>(op, op.load(&this.bitmap, Relaxed), key, value, 0);
        true
    }

    #[inline]
    fn update(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let at = self.index.leaf_of(key);
        let found = leaf(op, at).find(op, key);
        found.inspect(|slot| self.replace(op, (at, *slot), key, value)).is_some()
    }

    #[inline]
    fn get(&self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        let this = leaf(op, self.index.leaf_of(key));
        this.find(op, key).map(|slot| op.load(&this.entries[slot].value, Relaxed))
    }

    #[inline]
    fn scan(&self, op: &Op<'_, M>, from: u64, mut visit: impl FnMut(u64, u64) -> bool) {
        let mut at = self.index.leaf_of(from);
        let mut pairs = [(0, 0); ENTRIES];
        while at != 0 {
            let this = leaf(op, at);
            let next = op.load(&this.next, Relaxed);
            op.prefetch(Off::<Leaf>::new(next));
            let len = this.pairs(op, from, &mut pairs);
            pairs[..len].sort_unstable_by_key(|(key, _)| *key);
            if !pairs[..len].iter().all(|(key, value)| visit(*key, *value)) {
                return;
            }
            at = next;
        }
    }
}

/// Where the micro-log and the first leaf lie: the first memory that a tree takes.
const LOG: u64 = 64;
const FIRST: u64 = 128;

impl<const PAPER: bool> FpTree<PAPER> {
    /// The tree as a crash has left it in a mapping of `bytes`: the list of leaves is walked, all keys of a leaf are read for the least
    /// one, and the inner nodes are built.
    pub fn recover<M: Medium>(op: &Op<'_, M>, bytes: u64) -> Self {
        if PAPER {
            finish_split(op);
        }
        let (mut at, mut last, mut leaves) = (FIRST, FIRST, Vec::new());
        while at != 0 {
            let this = leaf(op, at);
            let (mut taken, mut least) = (op.load(&this.bitmap, Relaxed) & FULL, u64::MAX);
            while taken != 0 {
                least = least.min(op.load(&this.entries[taken.trailing_zeros() as usize].key, Relaxed));
                taken &= taken - 1;
            }
            leaves.push((least, at));
            last = last.max(at);
            at = op.load(&this.next, Relaxed);
        }
        if !PAPER {
            drop_moved(op, &leaves);
        }
        FpTree { memory: Memory::after(last + LEAF, bytes), log: LOG, index: Index::of(&leaves) }
    }
}

/// Ends a split that the micro-log knows of. If the old leaf is cut already, the new one is durable, and is linked again. Nothing is written
/// back: until the next split takes the log, recovery finds the same again.
fn finish_split<M: Medium>(op: &Op<'_, M>) {
    let log: &MicroLog = op.at(Off::new(LOG));
    let cut = op.load(&log.leaf, Relaxed);
    if cut != 0 && op.load(&leaf(op, cut).bitmap, Relaxed) != FULL {
        op.store(&leaf(op, cut).next, op.load(&log.new, Relaxed), Release);
    }
}

/// Takes entries out of each leaf that the next one has, too. Nothing is written back: the next change of a leaf's bitmap does that, and until
/// then recovery finds the same again.
fn drop_moved<M: Medium>(op: &Op<'_, M>, leaves: &[(u64, u64)]) {
    for pair in leaves.windows(2) {
        let (this, least) = (leaf(op, pair[0].1), pair[1].0);
        let moved = (0..ENTRIES).filter(|slot| op.load(&this.entries[*slot].key, Relaxed) >= least);
        let moved = moved.fold(0, |bits, slot| bits | 1 << slot);
        op.store(&this.bitmap, op.load(&this.bitmap, Relaxed) & !moved, Release);
    }
}

#[cfg(test)]
impl<M: Medium, const PAPER: bool> super::Reopen<M> for FpTree<PAPER> {
    fn reopen(mapping: &Mapping<M>) -> Self {
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        FpTree::recover(&op, mapping.len())
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn fingerprints_are_compared_byte_by_byte() {
        for print in [0u8, 1, 0x7f, 0x80, 0xff] {
            for other in [print ^ 1, print ^ 0x80, !print] {
                for bits in 0..256u64 {
                    let bytes = std::array::from_fn(|i| if bits >> i & 1 == 1 { print } else { other });
                    assert_eq!(equal(u64::from_le_bytes(bytes), print), bits, "{print} {other}");
                }
            }
        }
    }
}
