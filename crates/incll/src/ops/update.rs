//! Inserting, updating and removing one key (section 4.1).
//!
//! The cases of a durable node, after it was locked; IN-P1 to IN-P4 are the edges of `docs/design/masstree.md`:
//!
//! | change | free slot? | what is done |
//! |---|---|---|
//! | remove | – | IN-P1, IN-P2 |
//! | insert, fewer than 14 keys | yes | slot, IN-P1, IN-P2 |
//! | insert, fewer than 14 keys | no | IN-P3, then any slot that is not live |
//! | insert, 14 keys | – | split: IN-P3 for all nodes concerned |
//! | update of a key whose slot is not in the saved permutation, or of a logged node | – | in place |
//! | update, otherwise | yes | slot, IN-P1, IN-P2 |
//! | update, otherwise | no | IN-P3, then in place |
//!
//! "Free" is free in the permutation and in the saved one (IN-P4): a slot whose key was removed in this epoch is not. The
//! boolean `insAllowed` of the paper would send a node to the external log for any insert after any remove.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::pool::tally::Tally;
use durix_pmem::{Medium, Op, Persistent};

use crate::error::{Error, Result};
use crate::layout::{Border, Kinds, SLOTS, kind};
use crate::node::context::Context;
use crate::node::entry::Entry;
use crate::node::lock::Locked;
use crate::node::new_blocks::NewBlocks;
use crate::node::part::Part;
use crate::node::read::Wait;
use crate::ops::split::Descent;
use crate::tree::Masstree;
use crate::value::{Record, Value, number_of};
use crate::{MAX_VALUE, Policy};

/// What is to become of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'v> {
    /// It stays as it is.
    Keep,
    /// It gets this value.
    Set(&'v [u8]),
    /// It goes.
    Remove,
}

type Decide<'d, 'v, M> = &'d mut dyn FnMut(Option<Value<'_, M>>) -> Change<'v>;

/// How an attempt has ended.
enum Done {
    Yes,
    /// Something has changed on the way.
    Again,
    /// A key was removed, and its node is empty.
    Emptied,
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    #[inline(always)]
    pub(crate) fn change<'v>(&self, key: &[u8], decide: Decide<'_, 'v, M>) -> Result<()> {
        let root = self.tree.root().filter(|_| P::DURABLE);
        match root.and_then(|root| root.tally()) {
            Some(tally) => self.change_told(tally, key, decide),
            None => self.change_untold(key, decide),
        }
    }

    /// Changes a key, and tells the tally of it.
    #[inline(never)]
    fn change_told<'v>(&self, tally: &Tally, key: &[u8], decide: Decide<'_, 'v, M>) -> Result<()> {
        // What the last call of `decide` has been asked for, and has answered.
        let mut told = (None, None);
        self.change_untold(key, &mut |old| {
            let number = old.as_ref().map(|value| value.number(key));
            let change = decide(old);
            told = match &change {
                Change::Keep => (None, None),
                Change::Set(value) => (number, Some(number_of(key, value.len(), first_word(value)))),
                Change::Remove => (number, None),
            };
            change
        })?;
        tally.changed(self.op.slot(), told.0, told.1);
        Ok(())
    }

    /// Compiled in one piece: locking, the choice of a slot and unlocking included.
    #[inline(never)]
    fn change_untold<'v>(&self, key: &[u8], decide: Decide<'_, 'v, M>) -> Result<()> {
        let mut wait = None;
        loop {
            match self.try_change(key, decide)? {
                Done::Yes => return Ok(()),
                Done::Again => wait.get_or_insert_with(Wait::new).again(self, self.tree.root)?,
                Done::Emptied => {
                    // The key is gone, and so the call has not failed: where there is no room for an image the empty node stays,
                    // which does no harm; what is damaged a check finds.
                    let _ = self.shrink(key);
                    return Ok(());
                }
            }
        }
    }

    #[inline(always)]
    fn try_change<'v>(&self, key: &[u8], decide: Decide<'_, 'v, M>) -> Result<Done> {
        let (mut root, mut rest) = (self.tree.root, key);
        let mut wait = None;
        loop {
            let part = Part::of(rest);
            let Some(place) = self.try_descend(root, part.slice)? else { return Ok(Done::Again) };
            let (op, border) = (self.op, place.node.view::<Border>());
            let (permutation, kinds) = (op.load(&border.permutation, Relaxed), op.load(&border.kinds, Relaxed));
            let found = self.search(border, permutation, kinds, part);
            if let Ok(rank) = found {
                let slot = permutation.slot(rank);
                if kinds.get(slot) == kind::LAYER {
                    let next = op.load(&border.slots[slot][1], Relaxed);
                    if self.is_still(place.node, place.version) {
                        (root, rest) = (durix_pmem::Off::new(next), &rest[8..]);
                    }
                    continue;
                }
            }
            // Locked at this version, the node is as it was searched.
            let off = op.off_of(place.node);
            let Some(locked) = self.lock(off, place.version) else {
                self.wait_for_lock(off)?;
                wait.get_or_insert_with(Wait::new).again(self, off)?;
                continue;
            };
            return match found {
                Ok(rank) => self.change_found(locked, rank, rest, decide),
                Err(rank) => match decide(None) {
                    Change::Set(value) => {
                        let way = Descent { root, above: place.above };
                        self.insert(locked, way, rank, rest, value).map(|()| Done::Yes)
                    }
                    Change::Keep | Change::Remove => Ok(Done::Yes),
                },
            };
        }
    }

    /// The part of the key is there, at `rank`.
    #[inline(always)]
    fn change_found<'v>(
        &self,
        locked: Locked<'a, M, P>,
        rank: usize,
        rest: &[u8],
        decide: Decide<'_, 'v, M>,
    ) -> Result<Done> {
        let (op, border) = (self.op, locked.border());
        let slot = op.load(&border.permutation, Relaxed).slot(rank);
        let kind = op.load(&border.kinds, Relaxed).get(slot);
        match kind {
            kind::SUFFIX => {
                let record = Record::read(op, op.load(&border.slots[slot][1], Relaxed))?;
                if !record.suffix_is(&rest[8..]) {
                    if let Change::Set(value) = decide(None) {
                        self.add_layer(locked, rank, slot, record, rest, value)?;
                    }
                    return Ok(Done::Yes);
                }
            }
            0..=kind::LAST_SHORT => {}
            other => return Err(self.corrupt("the kind of a slot", locked.off, other)),
        }
        match decide(Some(self.value_in(border, slot, kind)?)) {
            Change::Keep => Ok(Done::Yes),
            Change::Set(value) => {
                if let Some(entry) = Entry::in_place::<P>(rest, value) {
                    return self.replace_here(locked, rank, slot, entry).map(|()| Done::Yes);
                }
                self.replace_by_record(locked, rank, slot, rest, value).map(|()| Done::Yes)
            }
            Change::Remove => self.remove(locked, rank, slot),
        }
    }

    /// What a slot holds for the rest of a key and a value.
    pub(crate) fn entry(&self, fresh: &mut NewBlocks<'a, M, P>, rest: &[u8], value: &[u8]) -> Result<Entry> {
        if let Some(entry) = Entry::in_place::<P>(rest, value) {
            return Ok(entry);
        }
        let Part { slice, rank } = Part::of(rest);
        let word = fresh.record(rest.get(8..).unwrap_or_default(), value)?;
        Ok(Entry { slice, kind: rank, inline: false, word })
    }

    /// A new key, at `rank`.
    fn insert(&self, locked: Locked<'a, M, P>, way: Descent<'a>, rank: usize, rest: &[u8], value: &[u8]) -> Result<()> {
        let has_room = self.op.load(&locked.border().permutation, Relaxed).len() < P::CAPACITY;
        if has_room && let Some(entry) = Entry::in_place::<P>(rest, value) {
            return self.insert_into_slot(locked, rank, entry);
        }
        let mut fresh = NewBlocks::new(*self);
        let entry = self.entry(&mut fresh, rest, value)?;
        if has_room {
            self.insert_into_slot(locked, rank, entry)?;
        } else {
            self.split(locked, way, rank, entry, &mut fresh)?;
        }
        fresh.keep();
        Ok(())
    }

    /// A new key, at `rank` of a node with room.
    #[inline(always)]
    fn insert_into_slot(&self, mut locked: Locked<'a, M, P>, rank: usize, entry: Entry) -> Result<()> {
        let slot = self.slot_for(&locked, None)?;
        let permutation = self.op.load(&locked.border().permutation, Relaxed);
        self.put(&mut locked, slot, entry);
        locked.set_permutation(permutation.insert(rank, slot));
        Ok(())
    }

    /// A new value that needs a block.
    #[inline(never)]
    fn replace_by_record(
        &self,
        locked: Locked<'a, M, P>,
        rank: usize,
        slot: usize,
        rest: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let mut fresh = NewBlocks::new(*self);
        let entry = self.entry(&mut fresh, rest, value)?;
        self.replace(locked, rank, slot, entry)?;
        fresh.keep();
        Ok(())
    }

    /// Puts something else into the place of a key, and frees what was there.
    pub(crate) fn replace(&self, locked: Locked<'a, M, P>, rank: usize, slot: usize, entry: Entry) -> Result<()> {
        self.replace_here(locked, rank, slot, entry)
    }

    /// The same, compiled into its caller.
    #[inline(always)]
    fn replace_here(&self, mut locked: Locked<'a, M, P>, rank: usize, slot: usize, entry: Entry) -> Result<()> {
        let (op, border) = (self.op, locked.border());
        let is_settled = locked.is_settled(line_of(slot));
        let kinds = op.load(&border.kinds, Relaxed);
        let was_inline = op.load(&border.inline, Relaxed) >> slot & 1 == 1;
        let is_word = entry.inline && was_inline && kinds.get(slot) == entry.kind && entry.kind <= kind::LAST_SHORT;
        if is_settled && is_word {
            // As below, where nothing is left to choose, to free and to note: what a hot node comes to. Release for other threads alone.
            op.store(&border.slots[slot][1], entry.word, Release);
            return Ok(());
        }
        let permutation = op.load(&border.permutation, Relaxed);
        let old = self.entry_in(border, kinds, slot);
        let place = self.slot_for(&locked, Some(slot))?;
        self.free_record(old)?;
        if place == slot && (old.kind, old.inline) == (entry.kind, entry.inline) {
            locked.note(line_of(slot));
            // One word: readers see the old value or the new one. Release for other threads alone.
            op.store(&border.slots[slot][1], entry.word, Release);
            return Ok(());
        }
        self.put(&mut locked, place, entry);
        if place != slot {
            locked.set_permutation(permutation.replace(rank, place));
        }
        Ok(())
    }

    fn remove(&self, mut locked: Locked<'a, M, P>, rank: usize, slot: usize) -> Result<Done> {
        let (op, border) = (self.op, locked.border());
        let permutation = op.load(&border.permutation, Relaxed);
        locked.log_unless_in_line()?;
        self.free_record(self.entry_in(border, op.load(&border.kinds, Relaxed), slot))?;
        locked.touch(1);
        locked.mark_dirty();
        locked.set_permutation(permutation.remove(rank));
        Ok(if permutation.len() == 1 && locked.off != self.tree.root { Done::Emptied } else { Done::Yes })
    }

    /// A slot that may be written: for an update the `current` one, if that is allowed. Logs the node if there is no other
    /// way. Changes nothing that a reader sees.
    #[inline(always)]
    pub(crate) fn slot_for(&self, locked: &Locked<'a, M, P>, current: Option<usize>) -> Result<usize> {
        locked.log_unless_in_line()?;
        if let Some(slot) = current.filter(|slot| locked.is_free_to_change(*slot)) {
            return Ok(slot);
        }
        let free = locked.free_slots();
        if free == 0 {
            return self.slot_by_log(locked, current);
        }
        if !P::DURABLE {
            return Ok(free.trailing_zeros() as usize);
        }
        // A slot on a line that will be written back anyway is cheaper; otherwise one on the line that was just looked at.
        let stamp = locked.stamp();
        let near = current.map_or(0, |slot| 1 << (slot / 4));
        let lines = if stamp.epoch() == self.epoch { stamp.lines() >> 1 } else { near };
        // Four bits for each of the four lines.
        let on_dirty = (lines | lines << 3 | lines << 6 | lines << 9) & 0x1111;
        let choice = free & (on_dirty * 15) as u16;
        Ok(if choice != 0 { choice } else { free }.trailing_zeros() as usize)
    }

    /// The same where no slot is free: the node is logged.
    #[cold]
    #[inline(never)]
    fn slot_by_log(&self, locked: &Locked<'a, M, P>, current: Option<usize>) -> Result<usize> {
        self.log(&[locked])?;
        match current {
            Some(slot) => Ok(slot),
            None if locked.free_slots() == 0 => Err(self.corrupt("the permutation", locked.off, SLOTS as u64)),
            None => Ok(locked.free_slots().trailing_zeros() as usize),
        }
    }

    /// Writes a slot that [`slot_for`](Self::slot_for) has given.
    #[inline(always)]
    pub(crate) fn put(&self, locked: &mut Locked<'a, M, P>, slot: usize, entry: Entry) {
        locked.touch(line_of(slot));
        locked.mark_dirty();
        self.fill(locked.border(), slot, entry);
    }

    /// Writes a slot. Also what stays as it is: whether it does cannot be foreseen, and a wrong guess costs more than the stores.
    #[inline(always)]
    pub(crate) fn fill(&self, border: &crate::layout::Border, slot: usize, entry: Entry) {
        let op = self.op;
        op.store(&border.slots[slot][0], entry.slice, Relaxed);
        op.store(&border.slots[slot][1], entry.word, Relaxed);
        let kinds: Kinds = op.load(&border.kinds, Relaxed);
        op.store(&border.kinds, kinds.with(slot, entry.kind), Relaxed);
        let inline = op.load(&border.inline, Relaxed) & !(1 << slot) | u64::from(entry.inline) << slot;
        op.store(&border.inline, inline, Relaxed);
    }

    /// What a slot holds.
    #[inline(always)]
    pub(crate) fn entry_in(&self, border: &crate::layout::Border, kinds: Kinds, slot: usize) -> Entry {
        let [slice, word] = &border.slots[slot];
        Entry {
            slice: self.op.load(slice, Relaxed),
            kind: kinds.get(slot),
            inline: self.op.load(&border.inline, Relaxed) >> slot & 1 == 1,
            word: self.op.load(word, Relaxed),
        }
    }

    /// Frees the record of a slot, if it has one.
    #[inline(always)]
    fn free_record(&self, entry: Entry) -> Result<()> {
        let has_none = entry.kind == kind::LAYER || entry.inline && entry.kind <= kind::LAST_SHORT;
        if has_none { Ok(()) } else { self.free_record_at(entry.word) }
    }

    #[inline(never)]
    fn free_record_at(&self, word: u64) -> Result<()> {
        let record = Record::read(self.op, word)?;
        self.free(word, record.head.bytes())
    }
}

/// The first eight bytes as a little-endian number; missing ones are zero.
#[inline(always)]
fn first_word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(first) => u64::from_le_bytes(*first),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The bit of the line of a slot.
#[inline(always)]
fn line_of(slot: usize) -> u64 {
    1 << (slot / 4 + 1)
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// Changes `key` as `decide` says, which sees the value it has, if any. The node is locked meanwhile: `decide` must not
    /// use the tree, and it may be called again if the node has changed. If it panics, nothing is changed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn change<'v>(
        &self,
        op: &Op<'_, M>,
        key: &[u8],
        mut decide: impl FnMut(Option<Value<'_, M>>) -> Change<'v>,
    ) -> Result<()> {
        let guard = Cell::new(self.guard(op)?);
        self.change_unguarded(op, key, |old| {
            // Nothing is half done while it decides: a panic of its own makes nothing unusable.
            drop(guard.take());
            let change = decide(old);
            guard.set(self.guard(op).ok().flatten());
            change
        })
    }

    /// The same for a `decide` that does not panic.
    fn change_guarded<'v>(
        &self,
        op: &Op<'_, M>,
        key: &[u8],
        decide: impl FnMut(Option<Value<'_, M>>) -> Change<'v>,
    ) -> Result<()> {
        let _guard = self.guard(op)?;
        self.change_unguarded(op, key, decide)
    }

    #[inline(always)]
    fn change_unguarded<'v>(
        &self,
        op: &Op<'_, M>,
        key: &[u8],
        mut decide: impl FnMut(Option<Value<'_, M>>) -> Change<'v>,
    ) -> Result<()> {
        let mut too_long = None;
        self.cx(op, key)?.change(key, &mut |old| match decide(old) {
            Change::Set(value) if value.len() > MAX_VALUE => {
                too_long = Some(value.len());
                Change::Keep
            }
            change => change,
        })?;
        too_long.map_or(Ok(()), |len| Err(Error::ValueTooLong { len }))
    }

    /// Maps `key` to `value`, whatever it was mapped to. Returns whether the key is new. Logarithmic in the number of keys;
    /// durable at the next boundary.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`]; [`Error::Pool`] where the pool is full, or after a panic in an
    /// update; [`Error::Corrupt`], [`Error::Stuck`]. The tree then is as it was.
    #[inline]
    pub fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut new = false;
        self.change_guarded(op, key, |old| {
            new = old.is_none();
            Change::Set(value)
        })?;
        Ok(new)
    }

    /// Maps `key` to `value` if it is not there. Returns whether it did.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut new = false;
        self.change_guarded(op, key, |old| {
            new = old.is_none();
            if new { Change::Set(value) } else { Change::Keep }
        })?;
        Ok(new)
    }

    /// Maps `key` to `value` if it is there. Returns whether it did.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut there = false;
        self.change_guarded(op, key, |old| {
            there = old.is_some();
            if there { Change::Set(value) } else { Change::Keep }
        })?;
        Ok(there)
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), but for a full pool where no node has to be logged.
    pub fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        let mut there = false;
        self.change_guarded(op, key, |old| {
            there = old.is_some();
            Change::Remove
        })?;
        Ok(there)
    }

    /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether the key was as expected; if
    /// not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn compare_and_set(
        &self,
        op: &Op<'_, M>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let mut as_expected = false;
        self.change_guarded(op, key, |old| {
            as_expected = match (old, expected) {
                (Some(value), Some(expected)) => value.is(expected),
                (None, None) => true,
                _ => false,
            };
            match new {
                _ if !as_expected => Change::Keep,
                Some(value) => Change::Set(value),
                None => Change::Remove,
            }
        })?;
        Ok(as_expected)
    }
}
