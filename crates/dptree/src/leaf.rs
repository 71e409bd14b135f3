//! A leaf as DRAM knows it: immutable, made by merges and by recovery, replaced when a merge changes it.
//!
//! The table of slots is built when a leaf is first used after a restart, the order of its keys when a scan first meets it. Its slots
//! are persistent memory that later merges may reuse: a reader that has got something from them asks whether its snapshot is still the
//! current one.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Once, OnceLock};

use durix_pmem::{LINE, Medium, Off, Op, prefetch_write};

use crate::arena::{Shared, Slice};
use crate::bloom::hash;
use crate::front::prefetch;
use crate::layout::{LINE_SLOTS, MAX_SLOTS, SlotLine, Slots, slot_line};
use crate::order::SlotOrder;
use crate::prints::Table;

/// Which slots of a leaf are taken.
pub(crate) type Taken = [u64; MAX_SLOTS / 64];

/// A leaf. A lookup touches its first line and one of the table's, and waits for none of the two before it asks for the other.
#[repr(C, align(64))]
pub(crate) struct Leaf {
    /// Where its slots lie.
    pub(crate) off: u64,
    count: u32,
    /// Done once the table is built.
    known: Once,
    order: OnceLock<Slice<SlotOrder>>,
    pub(crate) taken: Taken,
    /// Nothing yet in a leaf that is not known.
    table: UnsafeCell<MaybeUninit<Table>>,
}

// SAFETY: the table is written by one thread, inside of `known`, and read once that is done.
unsafe impl Sync for Leaf {}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf").field("off", &self.off).field("count", &self.count).finish_non_exhaustive()
    }
}

/// The numbers of the bits that are set, ascending.
pub(crate) fn bits(taken: &Taken) -> impl Iterator<Item = usize> + '_ {
    taken.iter().enumerate().flat_map(|(word, bits)| {
        let mut left = *bits;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(word * 64 + bit)
        })
    })
}

pub(crate) fn count(taken: &Taken) -> usize {
    taken.iter().map(|word| word.count_ones() as usize).sum()
}

/// Whether a slot is taken of those from `slots` on.
pub(crate) fn any_from(taken: &Taken, slots: usize) -> bool {
    taken.iter().enumerate().any(|(word, bits)| match slots.saturating_sub(word * 64) {
        0 => *bits != 0,
        within @ 1..64 => bits >> within != 0,
        _ => false,
    })
}

pub(crate) fn clear(taken: &mut Taken, slot: usize) {
    taken[slot / 64] &= !(1 << (slot % 64));
}

#[inline(always)]
pub(crate) fn set(taken: &mut Taken, slot: usize) {
    taken[slot / 64] |= 1 << (slot % 64);
}

#[inline(always)]
pub(crate) fn load_pair<M: Medium>(op: &Op<'_, M>, leaf: u64, slot: usize) -> (u64, u64) {
    let [key, value] = words(op, leaf, slot);
    (op.load(key, Relaxed), op.load(value, Relaxed))
}

/// The slots of a leaf, for loads: those of a smaller leaf are the first of them.
#[inline(always)]
pub(crate) fn slots_of<'s, M: Medium>(op: &Op<'s, M>, leaf: u64) -> &'s Slots {
    op.at(Off::new(leaf))
}

/// The slot's words.
#[inline(always)]
fn words<'s, M: Medium>(op: &Op<'s, M>, leaf: u64, slot: usize) -> &'s [durix_pmem::Word; 2] {
    let line: Off<SlotLine> = slot_line(leaf, slot);
    &op.at(line).slots[slot % LINE_SLOTS]
}

#[inline(always)]
pub(crate) fn load_key<M: Medium>(op: &Op<'_, M>, leaf: u64, slot: usize) -> u64 {
    op.load(&words(op, leaf, slot)[0], Relaxed)
}

/// Stores a pair; the caller writes its line back.
#[inline(always)]
pub(crate) fn store_pair<M: Medium>(op: &Op<'_, M>, leaf: u64, slot: usize, (key, value): (u64, u64)) {
    op.store_words(words(op, leaf, slot), &[key, value]);
}

/// Replaces the value of a slot that is taken, and starts writing it back. The caller has told readers before.
#[inline(always)]
pub(crate) fn store_value<M: Medium>(op: &Op<'_, M>, leaf: u64, slot: usize, value: u64) {
    let word = &words(op, leaf, slot)[1];
    op.store(word, value, Release);
    op.write_back(word); // PERSIST DP-V1: the caller's fence
}

impl Leaf {
    /// A leaf whose keys are not known yet. Only its first lines are written: a recovery makes thousands.
    pub(crate) fn unknown(off: u64, taken: Taken) -> Shared<Self> {
        let count = count(&taken) as u32;
        let fill = |leaf: NonNull<Leaf>| {
            let leaf = leaf.as_ptr();
            // SAFETY: the place is ours. All fields are written but the table, which is nothing yet.
            unsafe {
                (&raw mut (*leaf).off).write(off);
                (&raw mut (*leaf).count).write(count);
                (&raw mut (*leaf).known).write(Once::new());
                (&raw mut (*leaf).order).write(OnceLock::new());
                (&raw mut (*leaf).taken).write(taken);
            }
        };
        // SAFETY: `fill` makes a leaf.
        unsafe { Shared::filled(fill) }
    }

    /// A leaf whose keys are known: `fill` makes its table, which is a copy of `from`, and says which slots are taken. It is made where it
    /// lies: the lines are asked for first.
    #[inline(always)]
    pub(crate) fn known(off: u64, from: &Table, fill: impl FnOnce(&mut Table) -> Taken) -> Shared<Self> {
        let make = |leaf: NonNull<Leaf>| {
            let first = leaf.as_ptr().cast::<u8>();
            (0..size_of::<Leaf>()).step_by(LINE).for_each(|at| prefetch_write(first.wrapping_add(at)));
            let leaf = leaf.as_ptr();
            // SAFETY: the place is ours, and all fields are written. Where `fill` panics, the place is lost.
            unsafe {
                let table = UnsafeCell::raw_get(&raw const (*leaf).table);
                table.write(MaybeUninit::new(from.clone()));
                let taken = fill((*table).assume_init_mut());
                (&raw mut (*leaf).off).write(off);
                (&raw mut (*leaf).count).write(count(&taken) as u32);
                (&raw mut (*leaf).known).write(Once::new());
                (*leaf).known.call_once(|| {});
                (&raw mut (*leaf).order).write(OnceLock::new());
                (&raw mut (*leaf).taken).write(taken);
            }
        };
        // SAFETY: `make` makes a leaf.
        unsafe { Shared::filled(make) }
    }

    /// Number of keys.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Where its keys lie; reads all slots the first time after a restart, and writes them back.
    #[inline(always)]
    pub(crate) fn table<M: Medium>(&self, op: &Op<'_, M>) -> &Table {
        if !self.known.is_completed() {
            self.learn(op);
        }
        // SAFETY: it is known by now.
        unsafe { self.known_table() }
    }

    #[cold]
    fn learn<M: Medium>(&self, op: &Op<'_, M>) {
        let mut table = Table::EMPTY;
        let mut lines = 0u64;
        for slot in bits(&self.taken) {
            table.add(hash(load_key(op, self.off, slot)), slot);
            lines |= 1 << (slot / LINE_SLOTS);
        }
        if op.finds_what_is_durable() {
            lines = 0;
        }
        while lines != 0 {
            let slot = lines.trailing_zeros() as usize * LINE_SLOTS;
            op.write_back(op.at(slot_line(self.off, slot))); // PERSIST DP-V2: the fence below
            lines &= lines - 1;
        }
        op.fence(); // PERSIST DP-V2: flush+fence
        self.known.call_once(|| {
            // SAFETY: `call_once` runs one closure alone, and nobody reads the table before it is done.
            unsafe { _ = (*self.table.get()).write(table) }
        });
    }

    /// Whether its keys are known.
    pub(crate) fn is_known(&self) -> bool {
        self.known.is_completed()
    }

    /// Where its keys lie.
    ///
    /// # Safety
    /// It [is known](Self::is_known).
    #[inline(always)]
    pub(crate) unsafe fn known_table(&self) -> &Table {
        // SAFETY: by contract the table was built, and nobody writes to it any more.
        unsafe { (*self.table.get()).assume_init_ref() }
    }

    /// Asks the processor for all of it. A hint.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let first = std::ptr::from_ref(self).cast::<u8>();
        (0..size_of::<Leaf>()).step_by(LINE).for_each(|at| prefetch(first.wrapping_add(at)));
    }

    /// Asks the processor for the line of the table that a lookup touches. A hint, and no access.
    #[inline(always)]
    pub(crate) fn prefetch_table(&self, hash: u64) {
        prefetch(Table::line_of(self.table.get().cast(), hash));
    }

    /// The taken slots in the order of their keys.
    #[inline(always)]
    pub(crate) fn order<M: Medium>(&self, op: &Op<'_, M>) -> &SlotOrder {
        &self.order.get_or_init(|| self.sort(op))[0]
    }

    #[cold]
    fn sort<M: Medium>(&self, op: &Op<'_, M>) -> Slice<SlotOrder> {
        // For DP-V2: nobody reads values of a leaf that is not known.
        self.table(op);
        let keys: Vec<(u64, u8)> = bits(&self.taken).map(|slot| (load_key(op, self.off, slot), slot as u8)).collect();
        Slice::of(SlotOrder::of(&keys), 1)
    }

    /// Asks the processor for the lines of the order, if there is one. A hint.
    #[inline(always)]
    fn prefetch_order(&self) {
        if let Some(order) = self.order.get() {
            order[0].prefetch(self.count());
        }
    }

    /// Asks the processor for the order, and for all lines with a key. A hint.
    #[inline(always)]
    pub(crate) fn prefetch_all<M: Medium>(&self, op: &Op<'_, M>) {
        self.prefetch_order();
        let words = self.taken.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let slots = slots_of(op, self.off);
        slots[..words * 64].chunks_exact(LINE_SLOTS).for_each(|line| prefetch(line.as_ptr()));
    }

    /// Its greatest key; reads all of them.
    pub(crate) fn greatest<M: Medium>(&self, op: &Op<'_, M>) -> Option<u64> {
        bits(&self.taken).map(|slot| load_key(op, self.off, slot)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_counted_and_listed() {
        let mut taken = Taken::default();
        for slot in [0, 63, 64, 200, 255] {
            set(&mut taken, slot);
        }
        assert_eq!(bits(&taken).collect::<Vec<_>>(), [0, 63, 64, 200, 255]);
        assert_eq!(count(&taken), 5);
        for slots in 0..=256 {
            let beyond = bits(&taken).any(|slot| slot >= slots);
            assert_eq!(any_from(&taken, slots), beyond, "{slots} slots");
            let below = |slot| {
                let mut one = Taken::default();
                set(&mut one, slot);
                one
            };
            assert!((0..slots).all(|slot| !any_from(&below(slot), slots)), "{slots} slots");
        }
    }
}
