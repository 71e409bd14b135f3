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

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, OnceLock};

use durix_pmem::pool::Poison;
use durix_pmem::{Extent, Lock, Medium, Off, Op, Root, Session};

use crate::arena::Shared;
use crate::bloom::{Bloom, hash};
use crate::error::{Error, Result, Wrong};
use crate::layout::{
    Descriptor, ExtentHead, NAMED, PAGE_MAGIC, RANGE_MAGIC, ROOT_MAGIC, RangeHead, SANE_VERSION, Shape, UNITS_MAGIC,
    root_words,
};
use crate::leaf::{Leaf, Taken, bits, count};
use crate::log::Log;
use crate::published::{Limbo, Published};
use crate::queue::Queue;
use crate::range::{Directory, Part, Range, Snapshot, keys_in, last_at_most};
use crate::record::Record;
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
        let mut replay = Replay::new(&op, tree.directory.get(&op));
        tree.log.recover(&op, &pages, |record| replay.take(record))?;
        replay.finish(&op);
        op.fence(); // PERSIST DP-R1: flush+fence
        Ok(tree)
    }
}

/// The records that count, by their ranges: so each range's lines are touched by all of its records together.
struct Replay<'a> {
    /// The smallest key of each range.
    lows: Vec<u64>,
    ranges: Vec<Replayed<'a>>,
}

struct Replayed<'a> {
    range: &'a Range,
    /// Versions below are merged.
    floor: u64,
    records: Vec<Record>,
}

impl<'a> Replay<'a> {
    fn new<M: Medium>(op: &'a Op<'_, M>, directory: &'a Directory) -> Self {
        let lows = directory.ranges().map(|range| range.snapshot.get(op).low).collect();
        // A range numbers its updates from the floor on.
        let floor = |range: &Range| op.load(&op.at(range.block).state, Relaxed).floor();
        let replayed = |range: &'a Arc<Range>| Replayed { range, floor: floor(range), records: Vec::new() };
        Replay { lows, ranges: directory.ranges().map(replayed).collect() }
    }

    /// Takes a record, if it counts. Returns whether it does.
    #[inline(always)]
    fn take(&mut self, record: Record) -> Result<bool> {
        let Replayed { range, floor, records } = &mut self.ranges[last_at_most(&self.lows, record.key)];
        if record.version < *floor {
            return Ok(false);
        }
        if record.version > SANE_VERSION {
            return Err(Error::corrupt(Wrong::Version, range.block.get(), record.version));
        }
        records.push(record);
        Ok(true)
    }

    /// Puts the records into the fronts of their ranges.
    fn finish<M: Medium>(self, op: &Op<'_, M>) {
        for Replayed { range, mut records, .. } in self.ranges {
            // Of one key the highest version wins: it comes last.
            records.sort_unstable_by_key(|record| record.version);
            let Some(newest) = records.last() else { continue };
            let (m, snapshot) = (op.medium(), range.snapshot.get(op));
            let mut inner = range.lock(m);
            inner.version = newest.version + 1;
            inner.active_oldest = 0;
            for Record { key, value, .. } in records {
                let hash = hash(key);
                snapshot.bloom.add(m, hash);
                inner.active.put(key, hash, value);
            }
            range.tell_oldest(m, &inner);
        }
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
            if let Some(Part { low, leaf }) = leaves.last().filter(|part| part.low > last) {
                return Err(Error::corrupt(Wrong::LeafLow, leaf.off, *low));
            }
            let bound = self.options.bound(keys_in(&leaves));
            let bloom = Bloom::new(bound);
            let snapshot = Snapshot { low, last, bloom, frozen: None, side, leaves: leaves.into(), next, bound };
            ranges.push((low, Arc::new(Range::new(block, snapshot, floor, false))));
        }
        Ok(Directory::of(ranges.into_iter()))
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
        self.op.write_back(head); // PERSIST DP-R1: the fence of `recover`
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
        let beyond = bits(&taken).find(|slot| *slot >= self.shape.slots);
        if beyond.is_some() || count(&taken) == 0 {
            return Err(Error::corrupt(Wrong::LeafSlots, off, taken[0]));
        }
        self.survey.mark(off, self.shape.unit()).ok_or_else(|| Error::corrupt(Wrong::LeafPlace, off, off))?;
        Ok(Part { low, leaf: Shared::new(Leaf::unknown(off, taken)) })
    }
}
