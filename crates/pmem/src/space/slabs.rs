//! Slabs in volatile memory: which blocks are taken (allocated or reserved), by chunk.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::Owner;

/// A slab: one chunk of equal blocks.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) owner: Owner,
    pub(super) lines: u32,
    /// A bit for each block that is allocated or reserved; `None` until the bitmap has been read.
    pub(super) taken: Option<Box<[u64]>>,
}

/// All slabs, and for each class of each owner those that may have room.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    by_chunk: BTreeMap<u64, Slab>,
    with_room: BTreeMap<(Owner, u32), BTreeSet<u64>>,
}

impl Slabs {
    pub(super) fn add(&mut self, chunk: u64, slab: Slab) {
        self.with_room.entry((slab.owner, slab.lines)).or_default().insert(chunk);
        self.by_chunk.insert(chunk, slab);
    }

    pub(super) fn remove(&mut self, chunk: u64) {
        if let Some(slab) = self.by_chunk.remove(&chunk) {
            self.no_room(chunk, slab.owner, slab.lines);
        }
    }

    pub(super) fn get_mut(&mut self, chunk: u64) -> Option<&mut Slab> {
        self.by_chunk.get_mut(&chunk)
    }

    /// A slab of the class that may have room.
    pub(super) fn with_room(&self, owner: Owner, lines: u32) -> Option<u64> {
        self.with_room.get(&(owner, lines))?.first().copied()
    }

    /// Marks a slab as full.
    pub(super) fn no_room(&mut self, chunk: u64, owner: Owner, lines: u32) {
        if let Some(set) = self.with_room.get_mut(&(owner, lines)) {
            set.remove(&chunk);
            if set.is_empty() {
                self.with_room.remove(&(owner, lines));
            }
        }
    }

    /// Whether a class has another slab that may have room.
    pub(super) fn has_room_beside(&self, chunk: u64, owner: Owner, lines: u32) -> bool {
        self.with_room.get(&(owner, lines)).is_some_and(|chunks| chunks.iter().any(|other| *other != chunk))
    }

    /// Gives a block back; returns whether the slab is empty now.
    pub(super) fn give_back(&mut self, chunk: u64, index: u32) -> bool {
        let Some(slab) = self.by_chunk.get_mut(&chunk) else { return false };
        let Some(taken) = slab.taken.as_mut() else { return false };
        taken[index as usize / 64] &= !(1 << (index % 64));
        let empty = taken.iter().all(|word| *word == 0);
        self.with_room.entry((slab.owner, slab.lines)).or_default().insert(chunk);
        empty
    }
}

impl Slab {
    /// Takes the first block that is not taken, of `blocks`.
    pub(super) fn take(&mut self, blocks: u32) -> Option<u32> {
        let taken = self.taken.as_mut()?;
        let (word, bits) = taken.iter_mut().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let index = word as u32 * 64 + bits.trailing_ones();
        if index >= blocks {
            return None;
        }
        *bits |= 1 << (index % 64);
        Some(index)
    }
}
