//! LB+-Tree: unsorted leaves of a few lines, whose bitmap, fingerprints and first entries share a line; inner nodes in DRAM (Liu, Chen,
//! Wang, LB+-Trees: Optimizing Persistent Index Performance on 3DXPoint Memory, VLDB 2020).
//!
//! An insert into a free slot of the first line changes that line only. Where it has none, the new entry goes to another line, and takes
//! entries of the first line with it into the slots that are free there: so the next inserts find room in the first line again.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | entry in the first line < its bit | same line, in order | the slot is free |
//! | entries in another line < their bits, and those that they had in the first line are cleared | write-back, fence; one word | the slots are free, and the entries where they were |
//! | new leaf, and the unused link to it < bitmap and choice of the link | write-backs, one fence; one word | the old leaf is whole |
//!
//! As published: four lines, 14 entries, two links of which a bit chooses one, splits without a log. Here the inner nodes are those
//! of the other trees. What is left out: removal, threads (the lock bit, transactional memory), and the code that reads the list of leaves
//! after a crash.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::Ordered;
use super::fptree::{equal, print_of};
use super::index::Index;
use super::memory::Memory;

const ENTRIES: usize = 14;
const LEAF: u64 = 256;
/// The bits of all entries.
const ALL: u64 = (1 << ENTRIES) - 1;
/// Those of the entries in the first line.
const FIRST: u64 = 0b111;
/// Those of each line.
const LINES: [u64; 4] = [FIRST, 0b1111 << 3, 0b1111 << 7, 0b111 << 11];
/// The bit of the head that chooses the link.
const LINK: u32 = 14;
/// Fingerprints in the head, in its upper bytes; those of the other entries are in a word of their own.
const IN_HEAD: usize = 6;
/// Entries that move to the new leaf of a split.
const HALF: usize = ENTRIES / 2;

persistent! {
    struct Entry: align(16) { key: Word, value: Word }

    /// Line 0: head, fingerprints, three entries. Lines 1 and 2: four each. Line 3: three entries and the links.
    struct Leaf: align(64) {
        head: Word,
        prints: Word,
        entries: [Entry; ENTRIES],
        next: [Word; 2],
    }
}

const _: () = assert!(size_of::<Leaf>() as u64 == LEAF);

/// The tree.
#[derive(Debug)]
pub struct LbTree {
    memory: Memory,
    index: Index,
}

#[inline(always)]
fn leaf<'s, M: Medium>(op: &Op<'s, M>, at: u64) -> &'s Leaf {
    op.at(Off::new(at))
}

/// The two words of bitmap and fingerprints, while they are being changed.
#[derive(Clone, Copy)]
struct Heads {
    head: u64,
    prints: u64,
}

impl Heads {
    #[inline(always)]
    fn set(&mut self, slot: usize, key: u64) {
        let print = u64::from(print_of(key));
        let (word, shift) = match slot.checked_sub(IN_HEAD) {
            None => (&mut self.head, 16 + 8 * slot),
            Some(at) => (&mut self.prints, 8 * at),
        };
        *word = *word & !(0xff << shift) | print << shift;
        self.head |= 1 << slot;
    }
}

impl Leaf {
    #[inline(always)]
    fn heads<M: Medium>(&self, op: &Op<'_, M>) -> Heads {
        Heads { head: op.load(&self.head, Relaxed), prints: op.load(&self.prints, Relaxed) }
    }

    /// Makes the bitmap and fingerprints durable. The bitmap is stored last, as one word.
    #[inline(always)]
    fn persist_heads<M: Medium>(&self, op: &Op<'_, M>, heads: Heads) {
        op.store(&self.prints, heads.prints, Relaxed);
        op.store(&self.head, heads.head, Release);
        op.persist(&self.head);
    }

    #[inline(always)]
    fn store<M: Medium>(&self, op: &Op<'_, M>, slot: usize, (key, value): (u64, u64)) {
        op.store(&self.entries[slot].key, key, Relaxed);
        op.store(&self.entries[slot].value, value, Relaxed);
    }

    #[inline(always)]
    fn pair<M: Medium>(&self, op: &Op<'_, M>, slot: usize) -> (u64, u64) {
        let entry = &self.entries[slot];
        (op.load(&entry.key, Relaxed), op.load(&entry.value, Relaxed))
    }

    /// The slot of a key.
    #[inline(always)]
    fn find<M: Medium>(&self, op: &Op<'_, M>, key: u64) -> Option<usize> {
        let (heads, print) = (self.heads(op), print_of(key));
        let in_head = equal(heads.head, print) >> 2;
        let mut candidates = (in_head | equal(heads.prints, print) << IN_HEAD) & heads.head & ALL;
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            if op.load(&self.entries[slot].key, Relaxed) == key {
                return Some(slot);
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Adds an entry to a leaf with a free slot.
    #[inline(always)]
    fn add<M: Medium>(&self, op: &Op<'_, M>, key: u64, value: u64) {
        let mut heads = self.heads(op);
        let free = !heads.head & ALL;
        let slot = free.trailing_zeros() as usize;
        self.store(op, slot, (key, value));
        heads.set(slot, key);
        if free & FIRST == 0 {
            self.move_entries(op, &mut heads, slot, free);
        }
        self.persist_heads(op, heads);
    }

    /// The new entry at `slot` takes entries of the first line with it, into the slots of its line that are free. All of them are durable
    /// when this returns, and none counts yet.
    #[inline(always)]
    fn move_entries<M: Medium>(&self, op: &Op<'_, M>, heads: &mut Heads, slot: usize, free: u64) {
        let line = LINES.into_iter().find(|line| line >> slot & 1 == 1).expect("each slot has a line");
        let mut room = free & line & !(1 << slot);
        for from in 0..FIRST.count_ones() as usize {
            if room == 0 {
                break;
            }
            let pair = self.pair(op, from);
            let to = room.trailing_zeros() as usize;
            self.store(op, to, pair);
            heads.set(to, pair.0);
            heads.head &= !(1 << from);
            room &= room - 1;
        }
        op.persist(&self.entries[slot]);
    }

    /// The next leaf; 0 for none.
    #[inline(always)]
    fn next<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        op.load(&self.next[(op.load(&self.head, Relaxed) >> LINK & 1) as usize], Relaxed)
    }

    /// The pairs of the leaf from `from` on, in no order; how many.
    #[inline(always)]
    fn pairs<M: Medium>(&self, op: &Op<'_, M>, from: u64, pairs: &mut [(u64, u64); ENTRIES]) -> usize {
        let (mut taken, mut len) = (op.load(&self.head, Relaxed) & ALL, 0);
        while taken != 0 {
            let pair = self.pair(op, taken.trailing_zeros() as usize);
            if pair.0 >= from {
                pairs[len] = pair;
                len += 1;
            }
            taken &= taken - 1;
        }
        len
    }
}

impl LbTree {
    /// Splits a full leaf; returns the leaf for `key`.
    #[cold]
    fn split<M: Medium>(&mut self, op: &Op<'_, M>, at: u64, key: u64) -> u64 {
        let (this, new_at) = (leaf(op, at), self.memory.take(LEAF));
        let new = leaf(op, new_at);
        let mut keys: [u64; ENTRIES] = std::array::from_fn(|slot| op.load(&this.entries[slot].key, Relaxed));
        let separator = *keys.select_nth_unstable(HALF).1;
        let mut old = this.heads(op);
        let mut heads = Heads { head: 0, prints: 0 };
        // The last slots: the first line of the new leaf has room.
        let mut to = ENTRIES;
        for from in 0..ENTRIES {
            let pair = this.pair(op, from);
            if pair.0 >= separator {
                to -= 1;
                new.store(op, to, pair);
                heads.set(to, pair.0);
                old.head &= !(1 << from);
            }
        }
        op.store(&new.next[0], this.next(op), Relaxed);
        op.store(&new.prints, heads.prints, Relaxed);
        op.store(&new.head, heads.head, Relaxed);
        // Its second line has no entry.
        op.write_back(&new.head);
        op.write_back(&new.entries[HALF]);
        op.write_back(&new.next);
        let unused = (old.head >> LINK & 1 ^ 1) as usize;
        op.store(&this.next[unused], new_at, Relaxed);
        op.persist(&this.next);
        old.head ^= 1 << LINK;
        this.persist_heads(op, old);
        self.index.insert(separator, new_at);
        if key < separator { at } else { new_at }
    }
}

impl<M: Medium> Ordered<M> for LbTree {
    const NAME: &'static str = "LB+-Tree";

    fn bytes(keys: u64) -> u64 {
        // A leaf of 7 to 14 entries, 9.7 on average with random keys.
        (keys * LEAF / 9 + (1 << 20)).next_multiple_of(4096)
    }

    fn used(&self) -> u64 {
        self.memory.used()
    }

    fn create(mapping: &Mapping<M>) -> durix_pmem::Result<Self> {
        let mut memory = Memory::new(mapping.len());
        let first = memory.take(LEAF);
        // A leaf of zeroes is an empty one.
        Ok(LbTree { index: Index::new(first, mapping.len() / LEAF), memory })
    }

    #[inline]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let mut at = self.index.leaf_of(key);
        if let Some(slot) = leaf(op, at).find(op, key) {
            replace(op, leaf(op, at), slot, value);
            return false;
        }
        if op.load(&leaf(op, at).head, Relaxed) & ALL == ALL {
            at = self.split(op, at, key);
        }
        leaf(op, at).add(op, key, value);
        true
    }

    #[inline]
    fn update(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let this = leaf(op, self.index.leaf_of(key));
        let found = this.find(op, key);
        found.inspect(|slot| replace(op, this, *slot, value)).is_some()
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
            let next = this.next(op);
            for line in 0..LEAF / 64 {
                op.prefetch(Off::<Word>::new(next + line * 64));
            }
            let len = this.pairs(op, from, &mut pairs);
            pairs[..len].sort_unstable_by_key(|(key, _)| *key);
            if !pairs[..len].iter().all(|(key, value)| visit(*key, *value)) {
                return;
            }
            at = next;
        }
    }
}

/// Gives the key in a slot another value.
#[inline(always)]
fn replace<M: Medium>(op: &Op<'_, M>, this: &Leaf, slot: usize, value: u64) {
    op.store(&this.entries[slot].value, value, Release);
    op.persist(&this.entries[slot]);
}

#[cfg(test)]
impl<M: Medium> super::Reopen<M> for LbTree {
    fn reopen(mapping: &Mapping<M>) -> Self {
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let first = 64;
        let mut index = Index::new(first, 64);
        let (mut pairs, mut at) = ([(0, 0); ENTRIES], leaf(&op, first).next(&op));
        while at != 0 {
            let len = leaf(&op, at).pairs(&op, 0, &mut pairs);
            index.insert(pairs[..len].iter().map(|(key, _)| *key).min().expect("a new leaf has entries"), at);
            at = leaf(&op, at).next(&op);
        }
        LbTree { memory: Memory::new(0), index }
    }
}
