//! The extents of a set, and the slots in them that no shard has yet.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Bits, Error as PoolError, Extent, LINE, Lock, Medium, Off, Op, Rmw, Root};

use super::entry::Entry;
use super::error::{Error, Part, Result};
use super::layout::{CLASSES, Class, EXTENT_MAGIC, EXTENTS, ExtentHead, Meta, extent_sum, fresh_info, slot_off};
use super::shard::class_of;
use super::table::MAX_OFF;

/// Bytes of slots that a shard takes at a time.
const BATCH: u64 = 1 << 10;
/// A class grows by this part of what it has, so that the number of extents stays small.
const GROWTH: u64 = 8;
/// Largest extent that is asked for, unless one slot needs more. The insert that needs it zeroes it, writes it back, and takes the
/// faults of its pages, with the lock of its shard: with 4 MiB, 1024 faults and 6 to 9 ms.
const MAX_EXTENT: u64 = 256 << 10;
/// The same where it holds [`ENOUGH`] slots: most entries are short, and its lines take a fifth of the time of the largest's.
const SHORT_EXTENT: u64 = 64 << 10;
/// Slots of an extent from which on what is left over behind the last one is little.
const ENOUGH: u64 = 32;

/// Slots in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) off: u64,
    pub(super) count: u64,
}

#[derive(Debug, Default)]
struct Slots {
    /// Slots without a valid entry that belong to no shard.
    free: Vec<Run>,
    /// Bytes of the class's extents.
    bytes: u64,
}

/// The slots that no shard has yet, by class.
#[derive(Debug)]
pub(super) struct Arena {
    classes: Box<[Lock<Slots>]>,
}

impl Arena {
    pub(super) fn new() -> Self {
        Arena { classes: (0..CLASSES).map(|_| Lock::new(Slots::default())).collect() }
    }

    /// Adds what recovery found in an extent.
    pub(super) fn adopt<M: Medium>(&self, m: M, class: Class, extent_bytes: u64, free: &[Run]) {
        let mut slots = self.classes[class.index()].lock(m);
        slots.bytes += extent_bytes;
        slots.free.extend_from_slice(free);
    }

    /// Takes up to [`BATCH`] bytes of free slots, at least one slot; adds an extent where none is left.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    pub(super) fn take<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>, class: Class) -> Result<Run> {
        let lock = &self.classes[class.index()];
        let mut slots = lock.lock(op.medium());
        while slots.free.is_empty() {
            let had = slots.bytes;
            // Not across what may be a system call: whoever finds a slot meanwhile does not wait.
            drop(slots);
            let (run, bytes) = add_extent(op, root, class, had)?;
            slots = lock.lock(op.medium());
            slots.free.push(run);
            slots.bytes += bytes;
        }
        let last = slots.free.last_mut().expect("an extent has slots");
        let count = (BATCH / class.bytes()).clamp(1, last.count);
        let taken = Run { off: last.off, count };
        last.off += count * class.bytes();
        last.count -= count;
        if last.count == 0 {
            slots.free.pop();
        }
        Ok(taken)
    }

    /// Number of free slots, and bytes of all extents.
    pub(super) fn totals<M: Medium>(&self, m: M) -> (u64, u64) {
        self.classes.iter().fold((0, 0), |(free, bytes), class| {
            let slots = class.lock(m);
            (free + slots.free.iter().map(|r| r.count).sum::<u64>(), bytes + slots.bytes)
        })
    }

    /// The free slots of all classes.
    pub(super) fn free_slots<M: Medium>(&self, m: M) -> Vec<u64> {
        let mut all = Vec::new();
        for (index, class) in self.classes.iter().enumerate() {
            let bytes = Class::from_index(index).bytes();
            let slots = class.lock(m);
            all.extend(slots.free.iter().flat_map(|r| (0..r.count).map(move |i| r.off + i * bytes)));
        }
        all
    }
}

/// Adds an extent for `class`, which has `had` bytes so far, and returns its slots and bytes.
///
/// | edge | kept by | a crash between leaves | recovery |
/// |---|---|---|---|
/// | PS-X1 slots fresh and header written < the extent is active | flush+fence | a free chunk | the pool's |
/// | PS-X2 the extent is active < a slot is used, < the number of extents is raised | flush+fence | an extent of empty slots | they are free |
/// | PS-X3 the number of extents is raised < the entry in it is acknowledged | flush+fence | a number that is too small | it is raised |
///
/// PS-X2 needs a fence of its own because another session than this one may be the first to use a slot. PS-X3 needs none: only a repair after
/// the table of space was lost misses an extent by it.
#[cold]
fn add_extent<M: Medium>(op: &Op<'_, M>, root: &Root<M>, class: Class, had: u64) -> Result<(Run, u64)> {
    let least = class.bytes() + LINE as u64;
    let (space, owner) = (root.pool().space(), root.owner());
    let wanted = wanted(class, had).max(least);
    // In a pool that is nearly full one slot will do.
    let reserved = space.reserve_extent(op, owner, wanted).or_else(|_| space.reserve_extent(op, owner, least))?;
    let (off, len) = (reserved.off(), reserved.len());
    if off + len > MAX_OFF {
        return Err(Error::Pool(PoolError::OutOfBounds { what: "an extent", offset: off, len: MAX_OFF }));
    }
    let (lines, slots) = (class.lines() as u64, slots_in(len, class));
    let first = slot_off(off, class, 0);
    // A zeroed line is none that was ever written.
    reserved.fill(op, |line| match line.checked_sub(first) {
        Some(after) if after.is_multiple_of(class.bytes()) && after / class.bytes() < slots => {
            [Meta::FRESH.to_bits(), fresh_info(line).to_bits(), 0, 0, 0, 0, 0, 0]
        }
        _ => [0; 8],
    })?;
    let head = op.at(Off::<ExtentHead>::new(off));
    op.store(&head.magic, EXTENT_MAGIC, Relaxed);
    op.store(&head.lines, lines, Relaxed);
    op.store(&head.slots, slots, Relaxed);
    op.store(&head.sum, extent_sum(off, lines, slots), Relaxed);
    op.write_back(head);
    // PERSIST PS-X1: flush+fence.
    op.fence();
    space.activate(op, reserved)?;
    // PERSIST PS-X2: flush+fence.
    op.fence();
    // After the fence, so that no crash leaves a number that is too large.
    let number = &root.words(op)[EXTENTS];
    op.rmw(number, Rmw::Add, 1);
    // PERSIST PS-X3: write-back, with the fence of the entry that needs the extent.
    op.write_back(number);
    Ok((Run { off: first, count: slots }, len))
}

/// Bytes to ask for, for a class that has `had` bytes so far.
fn wanted(class: Class, had: u64) -> u64 {
    let enough = ENOUGH * class.bytes();
    let most = if enough <= SHORT_EXTENT { SHORT_EXTENT } else { enough.min(MAX_EXTENT) + LINE as u64 };
    (had / GROWTH + LINE as u64).min(most)
}

/// The extents of a set whose pool may have a damaged table of space: see [`Root::salvaged_extents`].
pub(super) fn salvaged_extents<M: Medium>(op: &Op<'_, M>, root: &Root<M>, lost: bool) -> Vec<Extent> {
    let chunk = root.pool().space().chunk();
    root.salvaged_extents(op, lost, &mut |off, most| {
        let head = op.at(Off::<ExtentHead>::new(off));
        let bytes = Class::exact(op.load(&head.lines, Relaxed))?.bytes().checked_mul(op.load(&head.slots, Relaxed))?;
        let len = bytes.checked_add(LINE as u64)?.checked_next_multiple_of(chunk).filter(|len| *len <= most)?;
        read_extent(op, off, len).is_ok().then_some(len)
    })
}

fn slots_in(len: u64, class: Class) -> u64 {
    len.saturating_sub(LINE as u64) / class.bytes()
}

/// The class and number of slots of the extent of `len` bytes at `off`.
///
/// # Errors
/// [`Error::Corrupt`] where its header makes no sense.
pub(super) fn read_extent<M: Medium>(op: &Op<'_, M>, off: u64, len: u64) -> Result<(Class, u64)> {
    let head = &op.slice("extent of a set", Off::<ExtentHead>::new(off), len / LINE as u64)?[0];
    let [magic, lines, slots, sum] = [&head.magic, &head.lines, &head.slots, &head.sum].map(|w| op.load(w, Relaxed));
    let corrupt = |part, found| Error::corrupt(part, off, found);
    if magic != EXTENT_MAGIC {
        return Err(corrupt(Part::ExtentMagic, magic));
    }
    if sum != extent_sum(off, lines, slots) {
        return Err(corrupt(Part::ExtentSum, sum));
    }
    let class = Class::exact(lines).ok_or(corrupt(Part::ExtentClass, lines))?;
    if slots == 0 || slots != slots_in(len, class) {
        return Err(corrupt(Part::ExtentSlots, slots));
    }
    Ok((class, slots))
}

/// What the slots of an extent say whose header is damaged: the size class in which most of them are entries of that class with
/// their checksums, and their number.
/// `None` if there are no entries.
pub(super) fn guess_extent<M: Medium>(op: &Op<'_, M>, off: u64, len: u64) -> Option<(Class, u64)> {
    let entries = |class: Class| {
        let slots = slots_in(len, class);
        let is_entry = |index: &u64| {
            let entry = Entry::at(op, slot_off(off, class, *index));
            entry.is_some_and(|e| class_of(e.info) == class && e.is_whole(op) && e.is_sealed(op))
        };
        (slots, (0..slots).filter(is_entry).count())
    };
    let classes = (0..CLASSES).map(Class::from_index).map(|class| (class, entries(class)));
    let (class, (slots, _)) = classes.filter(|(_, (_, found))| *found > 0).max_by_key(|(_, (_, found))| *found)?;
    Some((class, slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;

    /// Whole chunks of an extent for entries of so many lines, in a set that has grown.
    fn chunks(lines: usize) -> u64 {
        let class = Class::of_lines(lines);
        wanted(class, 1 << 30).max(class.bytes() + LINE as u64).div_ceil(CHUNK)
    }

    #[test]
    fn extents_of_short_entries_are_one_chunk() {
        assert_eq!([1, 2, 3, 4, 8, 16, 24, 32].map(chunks), [1; 8]);
    }

    #[test]
    fn extents_leave_little_over() {
        for lines in [1, 3, 24, 32, 48, 64, 96, 128, 256, 512] {
            let (len, class) = (chunks(lines) * CHUNK, Class::of_lines(lines));
            let used = slots_in(len, class) * class.bytes();
            assert!(len - used <= len / 8 && len <= MAX_EXTENT + CHUNK, "{lines} lines: {used} of {len} bytes");
        }
    }

    #[test]
    fn a_small_set_asks_for_little() {
        assert_eq!(wanted(Class::FIRST, 0), LINE as u64);
        assert_eq!(wanted(Class::of_lines(512), 1 << 20), (1 << 17) + LINE as u64);
    }
}
