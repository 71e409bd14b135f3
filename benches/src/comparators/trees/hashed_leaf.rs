//! Leaves as in DPTree's paper, for the figure that compares ways to search them: 256 slots, 70% of them taken, each key as near behind
//! the slot of its hash as it found room, and a byte of hash for each slot. One set of leaves serves all ways; ours also has its table
//! of slots, the very code of the tree.

use std::sync::atomic::Ordering::Relaxed;

use durix_dptree::prints;
use durix_pmem::{Mapping, Medium, Off, Op, Word};

use super::fptree::equal;

const SLOTS: usize = 256;
/// Keys of a leaf.
pub const KEYS: u64 = SLOTS as u64 * 7 / 10;
/// Bytes of the fingerprints.
const PRINTS: u64 = SLOTS as u64;

/// How a leaf is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// From the key's slot on, key by key, up to an empty slot.
    Probing,
    /// All fingerprints, eight at a time; then the keys whose fingerprints fit.
    Fingerprints,
    /// From the key's slot on, fingerprint by fingerprint, up to that of an empty slot.
    Both,
    /// By our table in DRAM.
    Table,
}

/// Leaves of entries of one size.
pub struct Leaves {
    entry: u64,
    bytes: u64,
    tables: Vec<prints::Table>,
}

#[inline(always)]
fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Not 0, which is an empty slot's.
#[inline(always)]
fn print_of(hash: u64) -> u8 {
    ((hash >> 48) as u8).max(1)
}

#[inline(always)]
fn word<M: Medium>(op: &Op<'_, M>, at: u64) -> u64 {
    op.load(op.at::<Word>(Off::new(at)), Relaxed)
}

impl Leaves {
    /// Bytes for so many keys in entries of `entry` bytes.
    pub fn bytes(keys: u64, entry: u64) -> u64 {
        (64 + keys.div_ceil(KEYS) * (PRINTS + SLOTS as u64 * entry)).next_multiple_of(4096)
    }

    /// Leaves of entries of `entry` bytes, a multiple of 8, in a mapping of zeroes: [`KEYS`] keys a leaf, in the order of `pairs`. No
    /// key is 0.
    ///
    /// # Errors
    /// Where the mapping gives no session.
    pub fn new<M: Medium>(
        mapping: &Mapping<M>,
        entry: u64,
        pairs: impl Iterator<Item = (u64, u64)>,
    ) -> durix_pmem::Result<Self> {
        let mut session = mapping.session()?;
        let op = session.enter()?;
        let mut leaves = Leaves { entry, bytes: PRINTS + SLOTS as u64 * entry, tables: Vec::new() };
        for (number, (key, value)) in (0..).zip(pairs) {
            let at = number / KEYS;
            if number % KEYS == 0 {
                leaves.tables.push(prints::Table::EMPTY);
            }
            leaves.insert(&op, at, key, value);
        }
        Ok(leaves)
    }

    #[inline(always)]
    fn leaf(&self, leaf: u64) -> u64 {
        64 + leaf * self.bytes
    }

    #[inline(always)]
    fn slot(&self, leaf: u64, slot: usize) -> u64 {
        leaf + PRINTS + slot as u64 * self.entry
    }

    #[inline(always)]
    fn print<M: Medium>(op: &Op<'_, M>, leaf: u64, slot: usize) -> u8 {
        (word(op, leaf + (slot & !7) as u64) >> (slot % 8 * 8)) as u8
    }

    fn insert<M: Medium>(&mut self, op: &Op<'_, M>, leaf: u64, key: u64, value: u64) {
        let (at, hash) = (self.leaf(leaf), hash(key));
        let home = hash as usize % SLOTS;
        let slot = (home..home + SLOTS).map(|slot| slot % SLOTS).find(|slot| Self::print(op, at, *slot) == 0);
        let slot = slot.expect("a leaf has more slots than keys");
        let prints = at + (slot & !7) as u64;
        let others = word(op, prints);
        let print = u64::from(print_of(hash)) << (slot % 8 * 8);
        op.store(op.at::<Word>(Off::new(prints)), others | print, Relaxed);
        op.store(op.at::<Word>(Off::new(self.slot(at, slot))), key, Relaxed);
        op.store(op.at::<Word>(Off::new(self.slot(at, slot) + 8)), value, Relaxed);
        self.tables[leaf as usize].add(hash, slot);
    }

    /// The value of a slot, if it is that of the key.
    #[inline(always)]
    fn value<M: Medium>(&self, op: &Op<'_, M>, leaf: u64, slot: usize, key: u64) -> Option<u64> {
        let at = self.slot(leaf, slot);
        (word(op, at) == key).then(|| word(op, at + 8))
    }

    /// The value of a key in a leaf.
    #[inline(always)]
    pub fn get<M: Medium>(&self, op: &Op<'_, M>, search: Search, leaf: u64, key: u64) -> Option<u64> {
        let (at, hash) = (self.leaf(leaf), hash(key));
        let home = hash as usize % SLOTS;
        match search {
            Search::Probing => {
                for slot in (home..home + SLOTS).map(|slot| slot % SLOTS) {
                    let found = word(op, self.slot(at, slot));
                    if found == key {
                        return Some(word(op, self.slot(at, slot) + 8));
                    }
                    if found == 0 {
                        break;
                    }
                }
                None
            }
            Search::Fingerprints => {
                let print = print_of(hash);
                for first in (0..SLOTS).step_by(8) {
                    let mut candidates = equal(word(op, at + first as u64), print);
                    while candidates != 0 {
                        let slot = first + candidates.trailing_zeros() as usize;
                        if let Some(value) = self.value(op, at, slot, key) {
                            return Some(value);
                        }
                        candidates &= candidates - 1;
                    }
                }
                None
            }
            Search::Both => {
                let print = print_of(hash);
                for slot in (home..home + SLOTS).map(|slot| slot % SLOTS) {
                    let found = Self::print(op, at, slot);
                    if found == print
                        && let Some(value) = self.value(op, at, slot, key)
                    {
                        return Some(value);
                    }
                    if found == 0 {
                        break;
                    }
                }
                None
            }
            Search::Table => self.tables[leaf as usize].find(hash, |slot| self.value(op, at, slot, key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::Hardware;

    #[test]
    fn every_search_finds_every_key_and_no_other() {
        for entry in [16, 64] {
            let keys = KEYS * 20;
            let key = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mapping = Mapping::heap(Leaves::bytes(keys, entry) as usize, Hardware::PAGE_CACHE);
            let leaves = Leaves::new(&mapping, entry, (0..keys).map(|number| (key(number), number))).unwrap();
            let mut session = mapping.session().unwrap();
            let op = session.enter().unwrap();
            for search in [Search::Probing, Search::Fingerprints, Search::Both, Search::Table] {
                for number in 0..keys {
                    let leaf = number / KEYS;
                    assert_eq!(leaves.get(&op, search, leaf, key(number)), Some(number), "{search:?}");
                    assert_eq!(leaves.get(&op, search, leaf, key(number + keys)), None, "{search:?}");
                }
            }
        }
    }
}
