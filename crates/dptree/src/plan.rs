//! What a merge writes: nothing that the current side names is changed (DP-B1 comes after all of it).
//!
//! A range's leaves are cut into *segments*: a leaf with the entries that belong to it, or several neighbours. A segment is kept as it
//! is, changed in place (new slots, lines with most free slots first), halved (one half stays in its slots, the other is written into a
//! fresh leaf), written anew into fresh leaves, or dropped.

use std::ops;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::pool::tally::{self, Totals};
use durix_pmem::{Medium, Off, Op};

use crate::DpTree;
use crate::arena::Shared;
use crate::bloom::hash;
use crate::error::{Error, Result, Wrong};
use crate::front::Entry;
use crate::layout::{Descriptor, LINE_SLOTS, NAMED, RANGE_MAGIC, RangeHead, State, slot_line};
use crate::leaf::{Leaf, Taken, bits, clear, load_pair, set, store_pair};
use crate::merge::NewRange;
use crate::prints::Table;
use crate::range::{Part, Range, Snapshot};

/// Leaves that are written anew are filled to this part, in percent.
const FILL: usize = 70;
/// Leaves that would hold more than this part, and leave no room for half as many entries again, are halved, in percent.
const CROWDED: usize = 80;
/// Leaves that hold less than this part are merged with a neighbour, in percent.
const LEAST: usize = 34;

/// A merge of one range, written and not yet flipped.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) range: Arc<Range>,
    /// The side that is to count.
    pub(crate) side: usize,
    pub(crate) floor: u64,
    pub(crate) leaves: Vec<Part>,
    pub(crate) next: Off<RangeHead>,
    /// The ranges that are split off, in the order of their keys.
    pub(crate) more: Vec<NewRange>,
    /// Units that nothing leads to once the flip is durable.
    pub(crate) freed: Vec<u64>,
    /// What the keys of its entries were mapped to in leaves.
    pub(crate) replaced: Totals,
}

/// Neighbouring leaves, and what is to be done with them.
#[derive(Debug)]
struct Segment {
    leaves: ops::Range<usize>,
    entries: ops::Range<usize>,
    /// Keys it will have.
    keys: usize,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Keep,
    InPlace,
    Halve,
    Anew,
}

/// The segments of a range.
#[derive(Debug)]
struct Segments<'e> {
    all: Vec<Segment>,
    /// The second front, in the order of keys.
    entries: &'e [Entry],
    /// The slot of each entry's key in its leaf, [`NO_SLOT`] if the key is not there.
    slots: Vec<u16>,
    /// Of these slots.
    replaced: Totals,
}

const NO_SLOT: u16 = u16::MAX;

/// A pair of a merged segment.
#[derive(Clone, Copy, Debug)]
struct Pair {
    key: u64,
    value: u64,
    /// Where it lies, if it is not new.
    slot: Option<u8>,
}

/// Units taken for a plan: given back if it fails.
struct Taking<'a, 'o, 's, M: Medium> {
    tree: &'a DpTree<M>,
    op: &'o Op<'s, M>,
    units: Vec<u64>,
}

impl<M: Medium> Taking<'_, '_, '_, M> {
    fn take(&mut self) -> Result<u64> {
        let unit = self.tree.units.take(self.op, &self.tree.root)?;
        self.units.push(unit);
        Ok(unit)
    }
}

impl<M: Medium> Drop for Taking<'_, '_, '_, M> {
    fn drop(&mut self) {
        self.tree.units.give_back(self.op.medium(), &self.units);
    }
}

impl<M: Medium> DpTree<M> {
    /// Writes what a claimed range will be, beside what it is. Where it is `sparing`, small leaves stay apart: to write them together takes
    /// space before it gives some back.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full; nothing that counts was changed.
    pub(crate) fn plan(&self, op: &Op<'_, M>, range: &Arc<Range>, sparing: bool) -> Result<Plan> {
        let trusted = range.lock(op).trusted;
        let frozen = range.snapshot.get(op).frozen.as_ref().expect("a claimed range has a second front");
        self.plan_of(op, range, (frozen.entries(), frozen.floor), trusted, sparing)
    }

    /// As [`plan`](Self::plan), for sorted entries and a floor. Nobody else plans for the range.
    pub(crate) fn plan_of(
        &self,
        op: &Op<'_, M>,
        range: &Arc<Range>,
        (entries, floor): (&[Entry], u64),
        trusted: bool,
        sparing: bool,
    ) -> Result<Plan> {
        let old = range.snapshot.get(op);
        let mut taking = Taking { tree: self, op, units: Vec::new() };
        let mut freed = Vec::new();
        let segments = self.segments(op, old, entries, sparing);
        let leaves = self.write_leaves(op, old, &segments, &mut taking, &mut freed)?;
        let mut groups = grouped(leaves, self.shape.leaves).into_iter();
        let leaves = groups.next().unwrap_or_default();
        let more = self.write_blocks(op, old, groups.collect(), floor, &mut taking)?;
        let (side, next) = (1 - old.side, more.first().map_or(old.next, |new| new.block));
        self.write_side(op, (range.block, side), &leaves, next, trusted);
        taking.units.clear();
        let replaced = segments.replaced;
        Ok(Plan { range: Arc::clone(range), side, floor, leaves, next, more, freed, replaced })
    }

    /// Keys of a leaf that is written anew, at most.
    pub(crate) fn filled(&self) -> usize {
        (self.shape.slots * FILL / 100).max(1)
    }

    // ---- leaves ----

    fn write_leaves(
        &self,
        op: &Op<'_, M>,
        old: &Snapshot,
        segments: &Segments<'_>,
        taking: &mut Taking<'_, '_, '_, M>,
        freed: &mut Vec<u64>,
    ) -> Result<Vec<Part>> {
        let mut new = Vec::with_capacity(old.leaves.len() + 2);
        for segment in &segments.all {
            let leaves = &old.leaves[segment.leaves.clone()];
            match segment.how {
                How::Keep => new.extend_from_slice(leaves),
                How::InPlace => {
                    let Part { low, leaf, .. } = &leaves[0];
                    let leaf = self.change_in_place(op, leaf, segments.entries_of(segment));
                    new.push(Part::new(*low, leaf));
                }
                How::Halve => {
                    let pairs = self.merged_pairs(op, leaves, segments.entries_of(segment));
                    self.halve(op, &leaves[0], pairs, taking, (&mut new, freed))?;
                }
                How::Anew => {
                    let low = leaves.first().map_or(old.low, |part| part.low);
                    let pairs = self.merged_pairs(op, leaves, segments.entries_of(segment));
                    self.write_anew(op, low, pairs, taking, &mut new)?;
                    freed.extend(leaves.iter().map(|part| part.leaf.off));
                }
            }
        }
        // A first leaf that was dropped in a full pool has left one that begins above the range.
        new.first_mut().into_iter().for_each(|first| first.low = old.low);
        match new.windows(2).find(|pair| pair[0].low >= pair[1].low).map(|pair| &pair[1]) {
            Some(Part { low, leaf, .. }) => Err(Error::corrupt(Wrong::LeafOrder, leaf.off, *low)),
            None => Ok(new),
        }
    }

    /// What to do with which leaves.
    fn segments<'e>(&self, op: &Op<'_, M>, old: &Snapshot, entries: &'e [Entry], sparing: bool) -> Segments<'e> {
        let all = Vec::with_capacity(old.leaves.len().max(1));
        let (slots, replaced) = (Vec::with_capacity(entries.len()), Totals::default());
        let mut segments = Segments { all, entries, slots, replaced };
        let mut from = 0;
        for number in 0..old.leaves.len().max(1) {
            let end = match old.leaves.get(number + 1) {
                Some(next) => from + entries[from..].partition_point(|(key, _)| *key < next.low),
                None => entries.len(),
            };
            // While this one is looked into.
            if let Some(next) = old.leaves.get(number + 1) {
                next.prefetch_page(op);
                next.leaf.prefetch();
            }
            let leaf = old.leaves.get(number);
            let leaves = number..(number + 1).min(old.leaves.len());
            let segment = self.segment(op, leaf, leaves, from..end, &mut segments);
            from = end;
            match segments.all.last_mut() {
                Some(before) if !sparing && self.belong_together(before, &segment) => join(before, segment),
                _ => segments.all.push(segment),
            }
        }
        segments
    }

    /// Looks the keys of a leaf's entries up.
    fn segment(
        &self,
        op: &Op<'_, M>,
        leaf: Option<&Part>,
        leaves: ops::Range<usize>,
        entries: ops::Range<usize>,
        segments: &mut Segments<'_>,
    ) -> Segment {
        let had = leaf.map_or(0, |part| part.leaf.count());
        if entries.is_empty() {
            return Segment { leaves, entries, keys: had, how: How::Keep };
        }
        let (mut keys, mut needed) = (had, 0);
        for (key, value) in &segments.entries[entries.clone()] {
            let found = leaf.and_then(|leaf| leaf.find(op, *key, hash(*key)));
            needed += usize::from(value.is_some());
            keys = keys + usize::from(value.is_some()) - usize::from(found.is_some());
            segments.slots.push(found.map_or(NO_SLOT, |(slot, _)| slot as u16));
            if let Some((_, old)) = found {
                segments.replaced.add(tally::entry(*key, old));
            }
        }
        let how = self.how(leaf.is_some(), had, keys, needed);
        if let Some(Part { leaf, .. }) = leaf {
            self.ask_for_slots(op, leaf, how, needed);
        }
        Segment { leaves, entries, keys, how }
    }

    /// Asks the processor for the slots of a leaf that are used when it is written: that comes after all leaves were looked into.
    fn ask_for_slots(&self, op: &Op<'_, M>, leaf: &Leaf, how: How, needed: usize) {
        let slots = self.shape.slots;
        match how {
            How::Keep => {}
            How::InPlace => {
                let lines = FreeSlots::new(&leaf.taken, slots).take(needed);
                lines.for_each(|slot| op.prefetch_write(slot_line(leaf.off, slot)));
            }
            How::Halve | How::Anew => {
                (0..slots).step_by(LINE_SLOTS).for_each(|slot| op.prefetch(slot_line(leaf.off, slot)));
            }
        }
    }

    /// What to do with a leaf that had `had` keys, is to have `keys`, and needs `needed` slots.
    fn how(&self, is_leaf: bool, had: usize, keys: usize, needed: usize) -> How {
        let slots = self.shape.slots;
        let free = slots - had;
        match keys {
            0 => How::Anew,
            _ if !is_leaf => How::Anew,
            _ if needed <= free && (keys * 100 <= slots * CROWDED || free >= needed + needed / 2) => How::InPlace,
            _ if keys * 100 > slots * FILL => How::Halve,
            _ => How::Anew,
        }
    }

    /// Whether two neighbours are written into common leaves: one of them is small, and one of them is written anyway.
    fn belong_together(&self, a: &Segment, b: &Segment) -> bool {
        let is_small = |s: &Segment| s.keys * 100 < self.shape.slots * LEAST;
        (is_small(a) || is_small(b)) && (a.how != How::Keep || b.how != How::Keep)
    }

    /// The pairs of leaves and entries together, in no order.
    fn merged_pairs<'e>(
        &self,
        op: &Op<'_, M>,
        leaves: &[Part],
        entries: impl Iterator<Item = (&'e Entry, u16)> + Clone,
    ) -> Vec<Pair> {
        let had: usize = leaves.iter().map(|part| part.leaf.count()).sum();
        let mut pairs = Vec::with_capacity(entries.size_hint().0 + had);
        let mut replaced = entries.clone().peekable();
        for (number, Part { leaf, .. }) in leaves.iter().enumerate() {
            let mut kept = leaf.taken;
            let next = leaves.get(number + 1).map(|next| next.low);
            while let Some((_, slot)) = replaced.next_if(|((key, _), _)| next.is_none_or(|next| *key < next)) {
                if slot != NO_SLOT {
                    clear(&mut kept, usize::from(slot));
                }
            }
            pairs.extend(bits(&kept).map(|slot| {
                let (key, value) = load_pair(op, leaf.off, slot);
                Pair { key, value, slot: Some(slot as u8) }
            }));
        }
        let new = |((key, value), _): (&Entry, u16)| Some(Pair { key: *key, value: (*value)?, slot: None });
        pairs.extend(entries.filter_map(new));
        pairs
    }

    /// Leaves one half of a leaf in its slots, and writes the other one into fresh leaves.
    fn halve(
        &self,
        op: &Op<'_, M>,
        Part { low, leaf, .. }: &Part,
        mut pairs: Vec<Pair>,
        taking: &mut Taking<'_, '_, '_, M>,
        (new, freed): (&mut Vec<Part>, &mut Vec<u64>),
    ) -> Result<()> {
        let free = self.shape.slots - leaf.count();
        let needs = |part: &[Pair]| part.iter().filter(|pair| pair.slot.is_none()).count();
        // Where all that is new comes after all that was there, as with ascending keys, the leaf is filled up.
        let greatest = pairs.iter().filter(|pair| pair.slot.is_some()).map(|pair| pair.key).max();
        let least = pairs.iter().filter(|pair| pair.slot.is_none()).map(|pair| pair.key).min();
        let stay = pairs.len() - needs(&pairs);
        let ascends = greatest < least && stay > 0;
        let cut = if ascends { (stay + free).min(pairs.len() - 1) } else { pairs.len() / 2 };
        pairs.select_nth_unstable_by_key(cut, |pair| pair.key);
        let upper = pairs.split_off(cut);
        let middle = upper[0].key;
        if needs(&pairs) <= free {
            let leaf = self.keep_in_place(op, leaf, &pairs);
            new.push(Part::new(*low, leaf));
            return self.write_anew(op, middle, upper, taking, new);
        }
        if needs(&upper) <= free {
            self.write_anew(op, *low, pairs, taking, new)?;
            new.push(Part::new(middle, self.keep_in_place(op, leaf, &upper)));
            return Ok(());
        }
        freed.push(leaf.off);
        pairs.extend(upper);
        self.write_anew(op, *low, pairs, taking, new)
    }

    /// Writes pairs into fresh leaves, evenly.
    fn write_anew(
        &self,
        op: &Op<'_, M>,
        low: u64,
        mut pairs: Vec<Pair>,
        taking: &mut Taking<'_, '_, '_, M>,
        new: &mut Vec<Part>,
    ) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let parts = pairs.len().div_ceil(self.filled());
        if parts > 1 {
            pairs.sort_unstable_by_key(|pair| pair.key);
        }
        for (number, part) in even(pairs.len(), parts).enumerate() {
            let pairs = &pairs[part];
            let low = if number == 0 { low } else { pairs[0].key };
            let off = taking.take()?;
            new.push(Part::new(low, self.write_leaf(op, off, pairs)));
        }
        Ok(())
    }

    fn write_leaf(&self, op: &Op<'_, M>, off: u64, pairs: &[Pair]) -> Shared<Leaf> {
        let leaf = Leaf::known(off, &Table::EMPTY, |table| {
            let mut taken = Taken::default();
            for (slot, pair) in pairs.iter().enumerate() {
                store_pair(op, off, slot, (pair.key, pair.value));
                table.add(hash(pair.key), slot);
                set(&mut taken, slot);
            }
            taken
        });
        for line in 0..pairs.len().div_ceil(LINE_SLOTS) {
            op.write_back(op.at(slot_line(off, line * LINE_SLOTS))); // PERSIST DP-B1: the merge's fence
        }
        leaf
    }

    /// Leaves those of these pairs in a leaf that are there, and puts the others into free slots, of which there are enough.
    fn keep_in_place(&self, op: &Op<'_, M>, leaf: &Leaf, pairs: &[Pair]) -> Shared<Leaf> {
        let mut free = FreeSlots::new(&leaf.taken, self.shape.slots);
        let new = Leaf::known(leaf.off, &Table::EMPTY, |table| {
            let mut taken = Taken::default();
            for Pair { key, value, slot } in pairs {
                let slot = slot.map_or_else(|| free.store(op, leaf.off, (*key, *value)), usize::from);
                set(&mut taken, slot);
                table.add(hash(*key), slot);
            }
            taken
        });
        self.write_lines(op, leaf.off, free.dirty);
        new
    }

    /// Gives a leaf these entries, for which it has enough free slots.
    fn change_in_place<'e>(
        &self,
        op: &Op<'_, M>,
        leaf: &Leaf,
        entries: impl Iterator<Item = (&'e Entry, u16)>,
    ) -> Shared<Leaf> {
        let mut free = FreeSlots::new(&leaf.taken, self.shape.slots);
        let new = Leaf::known(leaf.off, leaf.table(op), |table| {
            let mut taken = leaf.taken;
            for ((key, value), slot) in entries {
                let was = (slot != NO_SLOT).then_some(usize::from(slot));
                was.inspect(|slot| clear(&mut taken, *slot));
                let now = value.map(|value| free.store(op, leaf.off, (*key, value)));
                now.inspect(|slot| set(&mut taken, *slot));
                match (was, now) {
                    (Some(from), Some(to)) => table.move_to(hash(*key), from, to),
                    (Some(slot), None) => table.remove(hash(*key), slot),
                    (None, Some(slot)) => table.add(hash(*key), slot),
                    (None, None) => {}
                }
            }
            taken
        });
        self.write_lines(op, leaf.off, free.dirty);
        new
    }

    /// Starts writing lines of a leaf back: those whose bits are set.
    fn write_lines(&self, op: &Op<'_, M>, leaf: u64, mut lines: u64) {
        while lines != 0 {
            let line = lines.trailing_zeros() as usize;
            op.write_back(op.at(slot_line(leaf, line * LINE_SLOTS))); // PERSIST DP-B1: the merge's fence
            lines &= lines - 1;
        }
    }

    // ---- blocks ----

    /// Writes blocks for the groups of leaves that are split off, in the order of their keys.
    fn write_blocks(
        &self,
        op: &Op<'_, M>,
        old: &Snapshot,
        groups: Vec<Vec<Part>>,
        floor: u64,
        taking: &mut Taking<'_, '_, '_, M>,
    ) -> Result<Vec<NewRange>> {
        let mut more = Vec::with_capacity(groups.len());
        let (mut next, mut last) = (old.next, old.last);
        for leaves in groups.into_iter().rev() {
            let (block, low) = (Off::new(taking.take()?), leaves[0].low);
            self.write_block(op, block, low, &leaves, next, floor);
            more.push(NewRange { block, low, last, leaves, next });
            (next, last) = (block, low.wrapping_sub(1));
        }
        more.reverse();
        Ok(more)
    }

    /// Writes a block whose side 0 counts.
    pub(crate) fn write_block(
        &self,
        op: &Op<'_, M>,
        block: Off<RangeHead>,
        low: u64,
        leaves: &[Part],
        next: Off<RangeHead>,
        floor: u64,
    ) {
        let head = op.at(block);
        op.store(&head.state, State::new(0, floor), Relaxed);
        op.store(&head.low, low, Relaxed);
        op.store(&head.magic, RANGE_MAGIC, Relaxed);
        op.store(&head.named, NAMED, Relaxed);
        op.write_back(head); // PERSIST DP-B1: the merge's fence
        self.write_side(op, (block, 0), leaves, next, false);
    }

    /// Writes the descriptors of one side; those that are there already, durably if `trusted`, are left.
    pub(crate) fn write_side(
        &self,
        op: &Op<'_, M>,
        (block, side): (Off<RangeHead>, usize),
        leaves: &[Part],
        next: Off<RangeHead>,
        trusted: bool,
    ) {
        for index in 0..leaves.len().max(1) {
            let place = self.shape.descriptor(block, side, index);
            let descriptor: &Descriptor = op.at(place);
            // Never zero: one without a leaf names itself.
            let none = (place.get(), 0, Taken::default());
            let (off, low, taken) = leaves.get(index).map_or(none, |part| (part.leaf.off, part.low, part.leaf.taken));
            let (count, next) = if index == 0 { (leaves.len() as u64, next.get()) } else { (0, 0) };
            let Descriptor { leaf, low: low_word, taken: t, count: count_word, next: next_word } = descriptor;
            let same = trusted
                && [(leaf, off), (low_word, low), (count_word, count)].iter().all(|(w, v)| op.load(*w, Relaxed) == *v)
                && t.iter().zip(taken).all(|(word, value)| op.load(word, Relaxed) == value)
                && op.load(next_word, Relaxed).get() == next;
            if same {
                continue;
            }
            for (word, value) in [(leaf, off), (low_word, low), (count_word, count)] {
                op.store(word, value, Relaxed);
            }
            op.store_words(t, &taken);
            op.store(next_word, Off::new(next), Relaxed);
            op.write_back(descriptor); // PERSIST DP-B1: the merge's fence
        }
    }
}

fn join(before: &mut Segment, segment: Segment) {
    before.leaves.end = segment.leaves.end;
    before.entries.end = segment.entries.end;
    before.keys += segment.keys;
    before.how = How::Anew;
}

impl Segments<'_> {
    /// The entries of a segment with their slots.
    fn entries_of(&self, segment: &Segment) -> impl Iterator<Item = (&Entry, u16)> + Clone {
        self.entries[segment.entries.clone()].iter().zip(self.slots[segment.entries.clone()].iter().copied())
    }
}

/// The free slots of a leaf, those of lines with most of them first: so that few lines are written.
struct FreeSlots {
    taken: Taken,
    /// For each number of free slots a line can have, from one on: the lines that have it and were not come to yet.
    lines: [u64; LINE_SLOTS],
    /// The line that is being filled, and its slots that are still free.
    line: usize,
    slots: u64,
    /// The lines that were stored to.
    dirty: u64,
}

impl FreeSlots {
    fn new(taken: &Taken, slots: usize) -> Self {
        let mut lines = [0; LINE_SLOTS];
        let within = u64::MAX >> (64 - slots / LINE_SLOTS);
        for (word, taken) in taken.iter().enumerate() {
            let found = lines_by_free(!taken);
            lines.iter_mut().zip(found).for_each(|(lines, found)| *lines |= found << (word * 16) & within);
        }
        FreeSlots { taken: *taken, lines, line: 0, slots: 0, dirty: 0 }
    }

    /// Stores a pair into the next free slot, which there is; returns the slot.
    #[inline(always)]
    fn store<M: Medium>(&mut self, op: &Op<'_, M>, leaf: u64, pair: (u64, u64)) -> usize {
        let slot = self.next().expect("the pairs were found to fit");
        store_pair(op, leaf, slot, pair);
        self.dirty |= 1 << (slot / LINE_SLOTS);
        slot
    }
}

impl Iterator for FreeSlots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.slots == 0 {
            let lines = self.lines.iter_mut().rev().find(|lines| **lines != 0)?;
            self.line = lines.trailing_zeros() as usize;
            *lines &= *lines - 1;
            self.slots = free_of(&self.taken, self.line);
        }
        let slot = self.slots.trailing_zeros() as usize;
        self.slots &= self.slots - 1;
        Some(self.line * LINE_SLOTS + slot)
    }
}

/// Of sixteen lines, whose free slots are the bits that are set, those with one, two, three and four of them.
#[inline(always)]
fn lines_by_free(free: u64) -> [u64; LINE_SLOTS] {
    const EACH: u64 = 0x1111_1111_1111_1111;
    // The sums of the bits of each line, in the place of these bits.
    let pairs = free - (free >> 1 & (5 * EACH));
    let sums = (pairs & (3 * EACH)) + (pairs >> 2 & (3 * EACH));
    let [ones, twos, fours] = [sums & EACH, sums >> 1 & EACH, sums >> 2 & EACH];
    [ones & !twos, twos & !ones, ones & twos, fours].map(|lines| {
        // Every fourth bit, side by side.
        let lines = (lines | lines >> 3) & 0x0303_0303_0303_0303;
        let lines = (lines | lines >> 6) & 0x000f_000f_000f_000f;
        let lines = (lines | lines >> 12) & 0x0000_00ff_0000_00ff;
        (lines | lines >> 24) & 0xffff
    })
}

/// A bit for each free slot of a line.
fn free_of(taken: &Taken, line: usize) -> u64 {
    !(taken[line / 16] >> (line % 16 * LINE_SLOTS)) & 0xf
}

/// The numbers below `len` in so many parts, as even as can be.
fn even(len: usize, parts: usize) -> impl Iterator<Item = ops::Range<usize>> {
    (0..parts).map(move |part| len * part / parts..len * (part + 1) / parts)
}

/// Leaves in groups of at most `most`.
fn grouped(leaves: Vec<Part>, most: usize) -> Vec<Vec<Part>> {
    let parts = leaves.len().div_ceil(most);
    even(leaves.len(), parts).map(|part| leaves[part].to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_complete() {
        for len in 1..40 {
            for parts in 1..=len {
                let parts: Vec<_> = even(len, parts).collect();
                assert_eq!(parts.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
                let sizes = || parts.iter().map(ExactSizeIterator::len);
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn lines_are_counted_by_their_free_slots() {
        let mut state = 7_u64;
        for _ in 0..1000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let taken: Taken = std::array::from_fn(|word| state.rotate_left(word as u32 * 13) & state.rotate_right(29));
            for slots in [4, 16, 64, 68, 252, 256] {
                let lines = FreeSlots::new(&taken, slots).lines;
                for line in 0..64 {
                    let free = if line < slots / LINE_SLOTS { free_of(&taken, line).count_ones() as usize } else { 0 };
                    let found: Vec<usize> = (1..=LINE_SLOTS).filter(|n| lines[n - 1] >> line & 1 == 1).collect();
                    assert_eq!(found, if free > 0 { vec![free] } else { vec![] }, "line {line} of {slots} slots");
                }
            }
        }
    }

    #[test]
    fn emptiest_lines_are_filled_first() {
        let mut taken = Taken::default();
        for slot in [0, 1, 2, 4, 9, 10] {
            set(&mut taken, slot);
        }
        assert_eq!(FreeSlots::new(&taken, 16).collect::<Vec<_>>(), [12, 13, 14, 15, 5, 6, 7, 8, 11, 3]);
    }
}
