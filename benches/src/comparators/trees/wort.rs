//! WORT: a radix tree in persistent memory, four bits of the key a level, paths without branches left out (Lee et al., WORT: Write Optimal
//! Radix Tree for Persistent Memory Storage Systems, FAST 2017).
//!
//! An insert persists a pair of key and value, then the word that leads to it. Where two keys part, that word leads to a new node with
//! both of them.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | pair, new node < the link to it | write-back of all lines, one fence | it is not linked |
//! | link < return | write-back, fence | either |
//!
//! As published: 16 children a node, pairs out of line. Different: the header holds the key's whole beginning instead of the part that
//! was left out above, so a node that gets a parent keeps its header; pairs lie four to a line; a pair and its new node share a fence.
//! What is left out: removal, threads, recovery (there is nothing to do but to find the memory in use).

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::Ordered;
use super::memory::Memory;

const NODE: u64 = 192;
const PAIR: u64 = 16;
/// Set in a link to a pair; links to nodes are multiples of 64.
const IS_PAIR: u64 = 1;
/// Bits of a level.
const BITS: u32 = 4;

persistent! {
    struct Pair: align(16) { key: Word, value: Word }

    /// Three lines, the last of them almost empty.
    struct Node: align(64) {
        /// The key's bits above the node's level, and the level: 0 to 15.
        header: Word,
        children: [Word; 16],
        rest: [Word; 7],
    }

    /// The line that leads to the tree.
    struct Root: align(64) { link: Word, rest: [Word; 7] }
}

const _: () = assert!(size_of::<Node>() as u64 == NODE);

/// The tree.
#[derive(Debug)]
pub struct Wort {
    memory: Memory,
    root: u64,
    /// Where the next pair goes; a multiple of 64 once a line is used up.
    pair: u64,
}

/// The bits of a key above a level, without the level.
#[inline(always)]
fn beginning(key: u64, level: u32) -> u64 {
    if level == 0 { 0 } else { key & (u64::MAX << (64 - BITS * level)) }
}

/// Which child of a node of a level a key belongs to.
#[inline(always)]
fn branch(key: u64, level: u32) -> usize {
    (key >> (60 - BITS * level) & 15) as usize
}

#[inline(always)]
fn level_of(header: u64) -> u32 {
    (header & 15) as u32
}

#[inline(always)]
fn pair<'s, M: Medium>(op: &Op<'s, M>, link: u64) -> &'s Pair {
    op.at(Off::new(link & !IS_PAIR))
}

/// Where the search for a key ends.
enum End<'s> {
    /// At the pair of the key.
    Found(&'s Pair),
    /// At a word that leads nowhere.
    Nowhere(&'s Word),
    /// At a word that leads to other keys, one of which begins with `key`'s bits up to where they part.
    Other { word: &'s Word, link: u64, other: u64 },
}

impl Wort {
    #[inline(always)]
    fn search<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> End<'s> {
        let mut word: &Word = &op.at::<Root>(Off::new(self.root)).link;
        loop {
            let link = op.load(word, Relaxed);
            if link == 0 {
                return End::Nowhere(word);
            }
            if link & IS_PAIR != 0 {
                let found = pair(op, link);
                let other = op.load(&found.key, Relaxed);
                return if other == key { End::Found(found) } else { End::Other { word, link, other } };
            }
            let node: &Node = op.at(Off::new(link));
            let header = op.load(&node.header, Relaxed);
            let level = level_of(header);
            // The level's bits lie where the beginning has none.
            let other = header & !15;
            if beginning(key, level) != other {
                return End::Other { word, link, other };
            }
            word = &node.children[branch(key, level)];
        }
    }

    /// A new pair that is on its way to memory; the link to it.
    #[inline(always)]
    fn new_pair<M: Medium>(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> u64 {
        if self.pair.is_multiple_of(64) {
            self.pair = self.memory.take(64);
        }
        let new = pair(op, self.pair);
        op.store(&new.key, key, Relaxed);
        op.store(&new.value, value, Relaxed);
        op.write_back(new);
        self.pair += PAIR;
        (self.pair - PAIR) | IS_PAIR
    }

    /// A new node, on its way to memory, above what `link` leads to and a new pair.
    #[inline]
    fn new_node<M: Medium>(&mut self, op: &Op<'_, M>, (other, link): (u64, u64), (key, new): (u64, u64)) -> u64 {
        let level = (key ^ other).leading_zeros() / BITS;
        let at = self.memory.take(NODE);
        let node: &Node = op.at(Off::new(at));
        op.store(&node.header, beginning(key, level) | u64::from(level), Relaxed);
        let mut lines = 1u8;
        for (key, link) in [(other, link), (key, new)] {
            let child = branch(key, level);
            op.store(&node.children[child], link, Relaxed);
            lines |= 1 << ((child + 1) / 8);
        }
        // The lines that were written: the header's, and those of the children. Others are zero, as they were.
        for line in (0..3).filter(|line| lines >> line & 1 == 1) {
            op.write_back(op.at::<Word>(Off::new(at + 64 * line)));
        }
        at
    }

    /// Visits what a link leads to, from `from` on where it is given, until `visit` says `false`.
    fn walk<M: Medium>(op: &Op<'_, M>, link: u64, from: Option<u64>, visit: &mut impl FnMut(u64, u64) -> bool) -> bool {
        if link == 0 {
            return true;
        }
        if link & IS_PAIR != 0 {
            let found = pair(op, link);
            let key = op.load(&found.key, Relaxed);
            return from.is_some_and(|from| key < from) || visit(key, op.load(&found.value, Relaxed));
        }
        let node: &Node = op.at(Off::new(link));
        let header = op.load(&node.header, Relaxed);
        let level = level_of(header);
        let bound = match from {
            Some(from) if beginning(from, level) > header & !15 => return true,
            Some(from) if beginning(from, level) == header & !15 => Some(from),
            _ => None,
        };
        let first = bound.map_or(0, |from| branch(from, level));
        for child in &node.children[first..] {
            op.prefetch(Off::<Pair>::new(op.load(child, Relaxed)));
        }
        (first..16).all(|child| {
            let bound = bound.filter(|_| child == first);
            Self::walk(op, op.load(&node.children[child], Relaxed), bound, visit)
        })
    }
}

impl<M: Medium> Ordered<M> for Wort {
    const NAME: &'static str = "WORT";

    fn bytes(keys: u64) -> u64 {
        // At most 0.39 nodes a key with random keys.
        (keys * 96 + (1 << 20)).next_multiple_of(4096)
    }

    fn used(&self) -> u64 {
        self.memory.used()
    }

    fn create(mapping: &Mapping<M>) -> durix_pmem::Result<Self> {
        let mut memory = Memory::new(mapping.len());
        let root = memory.take(64);
        Ok(Wort { memory, root, pair: 0 })
    }

    #[inline]
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let (word, link) = match self.search(op, key) {
            End::Found(pair) => {
                op.store(&pair.value, value, Release);
                op.persist(pair);
                return false;
            }
            End::Nowhere(word) => (word, self.new_pair(op, key, value)),
            End::Other { word, link, other } => {
                let new = self.new_pair(op, key, value);
                (word, self.new_node(op, (other, link), (key, new)))
            }
        };
        op.fence();
        op.store(word, link, Release);
        op.persist(word);
        true
    }

    #[inline]
    fn update(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let End::Found(pair) = self.search(op, key) else { return false };
        op.store(&pair.value, value, Release);
        op.persist(pair);
        true
    }

    #[inline]
    fn get(&self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        match self.search(op, key) {
            End::Found(pair) => Some(op.load(&pair.value, Relaxed)),
            _ => None,
        }
    }

    #[inline]
    fn scan(&self, op: &Op<'_, M>, from: u64, mut visit: impl FnMut(u64, u64) -> bool) {
        let link = op.load(&op.at::<Root>(Off::new(self.root)).link, Relaxed);
        Self::walk(op, link, Some(from), &mut visit);
    }
}

#[cfg(test)]
impl<M: Medium> super::Reopen<M> for Wort {
    fn reopen(_: &Mapping<M>) -> Self {
        Wort { memory: Memory::new(0), root: 64, pair: 0 }
    }
}
