//! Creation and recovery.
//!
//! Range blocks are walked, then the log is read. What counts is written back and fenced before the tree can be used:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-R1 state words and records that recovery has read < anything that is built on them | flush+fence | the same, or what was before | the same again |
//!
//! After a power failure all that is read is durable. After the death of a process it may only be visible: a flip that recovery has seen
//! would let slots and log pages be used again, and a power failure would then take the flip back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use durix_pmem::pool::Poison;
use durix_pmem::{Extent, Lock, Medium, Off, Op, Root, Session, on_threads, processors};

use crate::bloom::Bloom;
use crate::chains::Found;
use crate::error::{Error, Result, Wrong};
use crate::layout::{
    Descriptor, ExtentHead, NAMED, PAGE_MAGIC, RANGE_MAGIC, ROOT_MAGIC, RangeHead, SANE_VERSION, Shape, UNITS_MAGIC,
    root_words,
};
use crate::leaf::{Leaf, Taken, any_from, count};
use crate::log::Log;
use crate::published::{Limbo, Published};
use crate::queue::Queue;
use crate::range::{Directory, Part, Range, Snapshot, keys_in, last_at_most};
use crate::record::{Kept, Record};
use crate::units::{Survey, Units};
use crate::values::Records;
use crate::{DpTree, Options};

/// The first version.
const FIRST: u64 = 1;

impl<M: Medium> DpTree<M> {
    fn new(root: Root<M>, options: &Options, shape: Shape, units: Units, directory: Directory) -> Self {
        DpTree {
            options: options.clone(),
            shape,
            directory: Published::new(directory),
            structure: Lock::new(()),
            log: Log::new(shape),
            units,
            queue: Queue::new(),
            service: OnceLock::new(),
            room: AtomicU64::new(0),
            limbo: Limbo::new(),
            poison: Poison::new(root.clone()),
            root,
        }
    }

    /// Writes an empty tree: one range without leaves.
    pub(crate) fn format(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        let Shape { slots, leaves, page_lines } = options.shape;
        if !options.shape.is_sound() {
            return Err(Error::BadShape { slots, leaves, page_lines });
        }
        let op = session.enter()?;
        let units = Units::new(options.shape.unit());
        let block = Off::new(units.take(&op, root)?);
        let tree = DpTree::new(root.clone(), options, options.shape, units, Directory::default());
        tree.write_block(&op, block, 0, &[], Off::NULL, FIRST);
        let words = root_words(&op, root);
        let [units, page_lines] = options.shape.to_words();
        op.store(&words.first, block, Relaxed);
        op.store(&words.units, units, Relaxed);
        op.store(&words.page_lines, page_lines, Relaxed);
        op.store(&words.magic, ROOT_MAGIC, Relaxed);
        op.write_back(words); // the pool fences before the index goes live
        Ok(())
    }

    pub(crate) fn recover(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        let shape = read_shape(&op, &root)?;
        let (mut survey, mut pages) = (Survey::default(), Vec::new());
        for extent in own_extents(&op, &root, options) {
            match op.load(&op.at(Off::<ExtentHead>::new(extent.off)).magic, Relaxed) {
                UNITS_MAGIC => survey.add(&op, extent, shape.unit())?,
                PAGE_MAGIC => pages.push(extent),
                found => return Err(Error::corrupt(Wrong::ExtentHead, extent.off, found)),
            }
        }
        let directory = Walk { op: &op, shape, options, survey: &mut survey }.ranges(&root)?;
        let units = Units::from_survey(survey, shape.unit());
        let tree = DpTree::new(root, options, shape, units, directory);
        let polarities = tree.log.recover_heads(&op, &pages)?;
        let replay = Replay::new(&op, &tree.log, tree.directory.get(&op), &polarities);
        drop(op);
        let found = replay.read(session, options.recovery_threads)?;
        let op = session.enter()?;
        let mut in_use = BTreeSet::new();
        for share in found {
            in_use.extend(share.in_use);
            let waiting = tree.directory.get(&op).ranges().zip(share.records);
            waiting
                .filter(|(_, records)| !records.is_empty())
                .for_each(|(range, records)| range.wait_for(&op, records));
        }
        tree.log.adopt(op.medium(), &pages, &in_use);
        op.fence(); // PERSIST DP-R1: flush+fence
        Ok(tree)
    }
}

/// Log pages that pay for a thread.
const PAGES_A_THREAD: usize = 8;
/// Most threads, whatever the machine has.
const MAX_THREADS: usize = 64;

/// Reads the log, and says which records count, and for which range: so each range's lines are touched by all of its records together, when
/// it is first used.
struct Replay<'a> {
    log: &'a Log,
    polarities: &'a BTreeMap<u64, u64>,
    pages: Vec<u64>,
    /// Of each range the smallest key; the version below which records are merged, and its block.
    lows: Lows,
    floors: Vec<(u64, u64)>,
    /// The next page that nobody has taken.
    next: AtomicUsize,
}

/// The smallest keys of the ranges. As many places as there are twice, evenly over the keys, lead to them: a search by halves would take longer
/// than all else that is done with a record.
struct Lows {
    lows: Vec<u64>,
    /// Of each place the range of its first key, and of the key after the last place.
    places: Vec<usize>,
    /// The second range's smallest key; and bits of a key that do not count for its place.
    base: u64,
    shift: u32,
}

impl Lows {
    fn of(lows: Vec<u64>) -> Self {
        let base = lows.get(1).copied().unwrap_or(u64::MAX);
        let span = lows.last().map_or(0, |last| last.saturating_sub(base));
        let most = 2 * lows.len() as u64;
        let shift = (u64::BITS - (span / most).leading_zeros()).min(u64::BITS - 1);
        let first = |place: u64| place.checked_mul(1 << shift).and_then(|within| base.checked_add(within));
        let range = |place| first(place).map_or(lows.len() - 1, |key| last_at_most(&lows, key));
        let places = (0..=(span >> shift) + 1).map(range).collect();
        Lows { lows, places, base, shift }
    }

    /// The number of a key's range.
    #[inline(always)]
    fn range_of(&self, key: u64) -> usize {
        let Some(within) = key.checked_sub(self.base) else { return 0 };
        let place = ((within >> self.shift) as usize).min(self.places.len() - 2);
        let (first, last) = (self.places[place], self.places[place + 1]);
        first + self.lows[first + 1..=last].partition_point(|low| *low <= key)
    }
}

/// What one thread has found.
struct Share {
    /// Of each range.
    records: Vec<Vec<Kept>>,
    in_use: BTreeSet<u64>,
}

impl<'a> Replay<'a> {
    fn new<M: Medium>(op: &Op<'_, M>, log: &'a Log, directory: &Directory, polarities: &'a BTreeMap<u64, u64>) -> Self {
        let lows = Lows::of(directory.ranges().map(|range| range.snapshot.get(op).low).collect());
        // A range numbers its updates from the floor on.
        let floor = |range: &Arc<Range>| (op.load(&op.at(range.block).state, Relaxed).floor(), range.block.get());
        let floors = directory.ranges().map(floor).collect();
        Replay { log, polarities, pages: polarities.keys().copied().collect(), lows, floors, next: AtomicUsize::new(0) }
    }

    /// Reads all pages, by as many threads as pay.
    fn read<M: Medium>(&self, session: &mut Session<M>, threads: usize) -> Result<Vec<Share>> {
        let wanted = match threads {
            0 => processors().min(self.pages.len() / PAGES_A_THREAD),
            threads => threads.min(self.pages.len()),
        };
        let (found, own) = (Mutex::new(Vec::new()), session.slot());
        on_threads(session, wanted.clamp(1, MAX_THREADS), &|session: &mut Session<M>| {
            let op = session.enter()?;
            let share = self.share(&op, wanted)?;
            if op.slot() != own {
                // The caller's thread fences at the end.
                op.fence(); // PERSIST DP-R1: flush+fence
            }
            found.lock().unwrap_or_else(PoisonError::into_inner).push(share);
            Ok::<(), Error>(())
        })?;
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// One thread's part.
    fn share<M: Medium>(&self, op: &Op<'_, M>, threads: usize) -> Result<Share> {
        // Half of all records count, as a rule.
        let expected = self.log.page_records() * self.pages.len() / self.floors.len() / threads.max(1);
        let mut records: Vec<_> = self.floors.iter().map(|_| Vec::with_capacity(expected)).collect();
        let mut in_use = BTreeSet::new();
        while let Some(page) = self.pages.get(self.next.fetch_add(1, Relaxed)) {
            self.log
                .recover_records(op, (*page, self.polarities), &mut in_use, |found| self.take(found, &mut records))?;
        }
        Ok(Share { records, in_use })
    }

    /// Takes a record, if it counts. Returns whether it does.
    #[inline(always)]
    fn take(&self, found: &Found, records: &mut [Vec<Kept>]) -> Result<bool> {
        let Record { key, version, .. } = found.record;
        let range = self.lows.range_of(key);
        let (floor, block) = self.floors[range];
        if version < floor {
            return Ok(false);
        }
        if version > SANE_VERSION {
            return Err(Error::corrupt(Wrong::Version, block, version));
        }
        records[range].push(found.kept);
        Ok(true)
    }
}

/// The extents of the tree; where it has records, the others are theirs.
pub(crate) fn own_extents<M: Medium>(op: &Op<'_, M>, root: &Root<M>, options: &Options) -> Vec<Extent> {
    let mut extents = root.pool().space().extents(op, root.owner());
    extents.retain(|extent| !(options.with_records && Records::<M>::holds_records(op, extent)));
    extents
}

pub(crate) fn read_shape<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Result<Shape> {
    let words = root_words(op, root);
    let offset = op.off_of(words).get();
    let magic = op.load(&words.magic, Relaxed);
    if magic != ROOT_MAGIC {
        return Err(Error::corrupt(Wrong::RootWord, offset, magic));
    }
    let [units, page_lines] = [&words.units, &words.page_lines].map(|word| op.load(word, Relaxed));
    let shape = Shape::from_words([units, page_lines]);
    shape.ok_or(Error::corrupt(Wrong::Parameters, offset, units))
}

/// Whether the first descriptor of a side without leaves says that it is one. Ranges of earlier builds do not say it.
pub(crate) fn names_itself<M: Medium>(op: &Op<'_, M>, shape: Shape, block: Off<RangeHead>, side: usize) -> bool {
    let place = shape.descriptor(block, side, 0);
    op.load(&op.at(block).named, Relaxed) != NAMED || op.load(&op.at(place).leaf, Relaxed) == place.get()
}

/// The walk over the range blocks.
struct Walk<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    shape: Shape,
    options: &'a Options,
    survey: &'a mut Survey,
}

/// What a block says.
struct Block {
    low: u64,
    floor: u64,
    side: usize,
    leaves: Vec<Part>,
    next: Off<RangeHead>,
}

impl<M: Medium> Walk<'_, '_, M> {
    fn ranges(mut self, root: &Root<M>) -> Result<Directory> {
        let mut block = self.op.load(&root_words(self.op, root).first, Relaxed);
        let mut blocks: Vec<(Off<RangeHead>, Block)> = Vec::new();
        loop {
            let above = blocks.last().map(|(_, before)| before.low);
            let read = self.block(block, above)?;
            let next = read.next;
            blocks.push((block, read));
            if next.is_null() {
                return self.directory(blocks);
            }
            block = next;
        }
    }

    /// The ranges of blocks, each of which ends where the next one begins.
    fn directory(&self, blocks: Vec<(Off<RangeHead>, Block)>) -> Result<Directory> {
        let mut ranges = Vec::with_capacity(blocks.len());
        let mut blocks = blocks.into_iter().peekable();
        while let Some((block, Block { low, floor, side, leaves, next })) = blocks.next() {
            let last = blocks.peek().map_or(u64::MAX, |(_, after)| after.low - 1);
            if let Some(Part { low, leaf, .. }) = leaves.last().filter(|part| part.low > last) {
                return Err(Error::corrupt(Wrong::LeafLow, leaf.off, *low));
            }
            let bound = self.options.bound(keys_in(&leaves));
            let bloom = Bloom::new(bound);
            let snapshot = Snapshot { low, last, bloom, frozen: None, side, leaves: leaves.into(), next, bound };
            ranges.push((low, Arc::new(Range::recovered(block, snapshot, floor))));
        }
        Ok(Directory::of(self.op, ranges.into_iter()))
    }

    /// Reads a block, which must begin above the one before it.
    fn block(&mut self, block: Off<RangeHead>, above: Option<u64>) -> Result<Block> {
        let at = block.get();
        self.survey.mark(at, self.shape.unit()).ok_or_else(|| Error::corrupt(Wrong::RangePlace, at, at))?;
        let head = self.op.at(block);
        let magic = self.op.load(&head.magic, Relaxed);
        if magic != RANGE_MAGIC {
            return Err(Error::corrupt(Wrong::RangeMagic, at, magic));
        }
        let low = self.op.load(&head.low, Relaxed);
        if above.is_some_and(|above| low <= above) || (above.is_none() && low != 0) {
            return Err(Error::corrupt(Wrong::RangeLow, at, low));
        }
        let state = self.op.load(&head.state, Acquire);
        if !(FIRST..=SANE_VERSION).contains(&state.floor()) {
            return Err(Error::corrupt(Wrong::RangeState, at, state.floor()));
        }
        if !self.op.finds_what_is_durable() {
            self.op.write_back(head); // PERSIST DP-R1: the fence of `recover`
        }
        let (leaves, next) = self.side(block, state.side(), low)?;
        Ok(Block { low, floor: state.floor(), side: state.side(), leaves, next })
    }

    fn side(&mut self, block: Off<RangeHead>, side: usize, low: u64) -> Result<(Vec<Part>, Off<RangeHead>)> {
        let first: &Descriptor = self.op.at(self.shape.descriptor(block, side, 0));
        let number = self.op.load(&first.count, Relaxed);
        if number == 0 && !names_itself(self.op, self.shape, block, side) {
            let found = self.op.load(&first.leaf, Relaxed);
            return Err(Error::corrupt(Wrong::NoLeaves, self.op.off_of(first).get(), found));
        }
        if number > self.shape.leaves as u64 {
            return Err(Error::corrupt(Wrong::LeafNumber, block.get(), number));
        }
        let mut leaves: Vec<Part> = Vec::with_capacity(number as usize);
        for index in 0..number as usize {
            let part = self.leaf(self.op.at(self.shape.descriptor(block, side, index)))?;
            let above = leaves.last().map(|before| before.low);
            if part.low < low || above.is_some_and(|above| part.low <= above) {
                return Err(Error::corrupt(Wrong::LeafLow, part.leaf.off, part.low));
            }
            leaves.push(part);
        }
        Ok((leaves, self.op.load(&first.next, Relaxed)))
    }

    fn leaf(&mut self, descriptor: &Descriptor) -> Result<Part> {
        let [off, low] = [&descriptor.leaf, &descriptor.low].map(|word| self.op.load(word, Relaxed));
        let taken: Taken = std::array::from_fn(|i| self.op.load(&descriptor.taken[i], Relaxed));
        if any_from(&taken, self.shape.slots) || count(&taken) == 0 {
            return Err(Error::corrupt(Wrong::LeafSlots, off, taken[0]));
        }
        self.survey.mark(off, self.shape.unit()).ok_or_else(|| Error::corrupt(Wrong::LeafPlace, off, off))?;
        Ok(Part::new(low, Leaf::unknown(off, taken)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_lead_to_the_range_of_a_key() {
        let even: Vec<u64> = (0..300).map(|i| i * (u64::MAX / 300)).collect();
        let crowded: Vec<u64> = [0].into_iter().chain((0..200).map(|i| (1 << 40) + i * 3)).chain([u64::MAX]).collect();
        let top: Vec<u64> = [0].into_iter().chain((0..9).rev().map(|i| u64::MAX - i)).collect();
        for lows in [vec![0], vec![0, 1], vec![0, u64::MAX], vec![0, 7, 8, 9], even, crowded, top] {
            let found = Lows::of(lows.clone());
            let near =
                lows.iter().flat_map(|low| [low.wrapping_sub(1), *low, low.wrapping_add(1), low / 2, low | 0xffff]);
            for key in near.chain([0, 1, u64::MAX / 3, u64::MAX]) {
                assert_eq!(found.range_of(key), last_at_most(&lows, key), "{key:#x} in {lows:x?}");
            }
        }
    }
}
