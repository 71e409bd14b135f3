//! The durable allocator: blocks in slabs, with bitmaps under InCLL (section 5 of the paper, differently).
//!
//! A slab is one chunk of blocks of one size: a head line, bitmap lines, blocks. Larger blocks get an extent of their own,
//! a slab of one block. Nodes have slabs of their own, so that a sweep finds them without knowing what leads to them, and
//! interior ones again, so that they lie on few pages. Free blocks are kept in volatile lists, which sessions take in batches; a bitmap is read when
//! its slab is first needed in this run.
//!
//! # Persist order of a bitmap line
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | IN-A1 `then` < stamp | same line, release | the old stamp | nothing to do |
//! | IN-A2 stamp < `now` | same line, release | the new stamp, `now` as `then` says | restores what is there |
//! | IN-A3 (recovery) `now` restored < stamp | same line, release | the failed stamp | restores again |
//!
//! A slab is read before anything in it changes: else a block that was freed in this run could be found a second time.
//!
//! A block that is freed in one epoch is given out again in the next at the earliest: sessions keep what they free aside
//! until then. Its content is what undoing the epoch needs, and readers of the epoch may still look at it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Epochs, Extent, LINE, Lock, Medium, Off, Op, Rmw};

use crate::alloc::arena::{Arena, Head};
use crate::error::{Error, Result};
use crate::layout::{Bitmap, GROUP, Node, SlabHead, Stamp, slab_kind};

/// Blocks that a session takes at a time.
const BATCH: usize = 64;
/// Blocks that a session keeps of a class.
const KEEP: usize = 1024;
/// Locks of bitmap lines.
const LINE_LOCKS: usize = 64;

const LINE_BYTES: u64 = LINE as u64;
const NODE_BYTES: u64 = size_of::<Node>() as u64;

/// Where the blocks of a class lie in its slabs.
#[derive(Clone, Copy, Debug)]
struct Class {
    kind: u64,
    block: u64,
    blocks: u64,
    /// First block, from the start of the slab.
    data: u64,
}

/// What all sessions share of a class.
#[derive(Debug, Default)]
struct Shared {
    spare: Vec<u64>,
    /// Slabs whose bitmaps were not read yet.
    unread: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Large {
    /// Free extents by their length.
    free: BTreeMap<u64, Vec<u64>>,
    unread: Vec<Extent>,
}

impl Large {
    /// Gives free extents back for good, where that is possible: nothing of the last boundary leads to them.
    fn give_back<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>) {
        for (len, extents) in &mut self.free {
            extents.retain(|off| arena.give_back(op, Extent { off: *off, len: *len }).is_some());
        }
    }
}

/// The allocator's volatile state.
pub(crate) struct Slabs {
    chunk: u64,
    classes: Box<[Class]>,
    shared: Box<[Lock<Shared>]>,
    /// How many slabs were not read yet.
    unread: AtomicU64,
    /// Slabs that were there when the tree was opened, with their classes, ascending.
    found: Lock<Vec<(u64, usize)>>,
    large: Lock<Large>,
    lines: Box<[Lock<()>]>,
}

/// A session's part: blocks that are ready, and blocks that it has freed in the epoch.
#[derive(Debug)]
pub(crate) struct Cache {
    ready: Box<[Vec<u64>]>,
    freed: Vec<(u64, usize)>,
    freed_large: Vec<Extent>,
}

/// What an allocation needs of the tree.
#[derive(Clone, Copy)]
pub(crate) struct Durably<'a, M: Medium> {
    pub(crate) epochs: &'a Epochs<M>,
    pub(crate) epoch: u64,
    pub(crate) round: u64,
    /// Whether anything is to be found after a crash.
    pub(crate) durable: bool,
}

/// Block sizes in bytes: multiples of 16, so that less than a third is wasted, up to a quarter of the chunk.
fn sizes(chunk: u64) -> Vec<u64> {
    let mut sizes = vec![16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512];
    while let Some(last) = sizes.last().filter(|l| **l * 5 / 4 <= chunk / 4) {
        let step = 1 << (63 - last.leading_zeros() - 2);
        sizes.push(last + step);
    }
    sizes
}

impl Class {
    fn new(kind: u64, block: u64, chunk: u64) -> Self {
        let mut blocks = (chunk - LINE_BYTES) / block;
        let data = |blocks: u64| LINE_BYTES * (1 + blocks.div_ceil(GROUP));
        while data(blocks) + blocks * block > chunk {
            blocks -= 1;
        }
        Class { kind, block, blocks, data: data(blocks) }
    }

    fn head(self) -> Head {
        Head { kind: self.kind, block: self.block, blocks: self.blocks }
    }
}

fn holds_nodes(kind: u64) -> bool {
    matches!(kind, slab_kind::NODES | slab_kind::INTERIORS)
}

fn bitmap_of(slab: u64, index: u64) -> Off<Bitmap> {
    Off::new(slab + LINE_BYTES * (1 + index / GROUP))
}

impl Slabs {
    pub(crate) fn new(chunk: u64) -> Self {
        let records = sizes(chunk).into_iter().map(|block| Class::new(slab_kind::RECORDS, block, chunk));
        let nodes = [slab_kind::NODES, slab_kind::INTERIORS].map(|kind| Class::new(kind, NODE_BYTES, chunk));
        let classes: Box<[Class]> = records.chain(nodes).collect();
        Slabs {
            chunk,
            shared: classes.iter().map(|_| Lock::new(Shared::default())).collect(),
            classes,
            unread: AtomicU64::new(0),
            found: Lock::new(Vec::new()),
            large: Lock::new(Large::default()),
            lines: (0..LINE_LOCKS).map(|_| Lock::new(())).collect(),
        }
    }

    pub(crate) fn cache(&self) -> Cache {
        Cache { ready: self.classes.iter().map(|_| Vec::new()).collect(), freed: Vec::new(), freed_large: Vec::new() }
    }

    /// Adds an extent that was found on opening.
    pub(crate) fn adopt<M: Medium>(&self, m: M, extent: Extent, head: Head) -> Result<()> {
        let corrupt = |what, found| Error::Corrupt { what, offset: extent.off, found };
        match head.kind {
            slab_kind::RECORDS | slab_kind::NODES | slab_kind::INTERIORS => {
                let same = |c: &Class| (c.kind, c.block, c.blocks) == (head.kind, head.block, head.blocks);
                let class = self.classes.iter().position(same);
                let class = class.filter(|_| extent.len == self.chunk).ok_or(corrupt("the block size", head.block))?;
                self.found.lock(m).push((extent.off, class));
                self.shared[class].lock(m).unread.insert(extent.off);
                m.shared_rmw(&self.unread, Rmw::Add, 1);
            }
            slab_kind::LARGE if head.block.saturating_add(2 * LINE_BYTES) <= extent.len => {
                self.large.lock(m).unread.push(extent);
            }
            _ => return Err(corrupt("the kind", head.kind)),
        }
        Ok(())
    }

    /// The class of nodes that are made as border nodes, or as interior ones, behind those of records. What is above the border
    /// lies together: a lookup goes through many nodes of few pages, and then to one node of many.
    fn node_class(&self, interior: bool) -> usize {
        self.classes.len() - 2 + usize::from(interior)
    }

    /// The class of a node that is there: not what it is now, since a root of a layer begins as a border node. In a volatile slab,
    /// which has no head, blocks of both classes are alike.
    fn class_of_node<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, off: u64) -> usize {
        let head = op.at(Off::<SlabHead>::new(self.slab_of(off)));
        self.node_class(with.durable && op.load(&head.kind, Relaxed) == slab_kind::INTERIORS)
    }

    /// The class of records of `bytes`; `None` for large ones.
    fn class_of(&self, bytes: u64) -> Option<usize> {
        let records = self.node_class(false);
        let class = self.classes[..records].partition_point(|class| class.block < bytes);
        (class < records).then_some(class)
    }

    /// The slab that a block lies in: also a large block starts in the first chunk of its extent.
    fn slab_of(&self, off: u64) -> u64 {
        off & !(self.chunk - 1)
    }

    /// The new epoch has begun: what was freed before may be given out.
    pub(crate) fn turn<M: Medium>(&self, op: &Op<'_, M>, arena: &Arena<M>, cache: &mut Cache) {
        for (off, class) in cache.freed.drain(..) {
            cache.ready[class].push(off);
        }
        for extent in cache.freed_large.drain(..) {
            if let Some(extent) = arena.give_back(op, extent) {
                self.large.lock(op.medium()).free.entry(extent.len).or_default().push(extent.off);
            }
        }
        for (class, ready) in cache.ready.iter_mut().enumerate().filter(|(_, ready)| ready.len() > KEEP) {
            self.shared[class].lock(op.medium()).spare.extend(ready.drain(KEEP / 2..));
        }
    }

    /// Hands the blocks that a session keeps ready to all of them.
    pub(crate) fn share<M: Medium>(&self, op: &Op<'_, M>, cache: &mut Cache) {
        for (class, ready) in cache.ready.iter_mut().enumerate().filter(|(_, ready)| !ready.is_empty()) {
            self.shared[class].lock(op.medium()).spare.append(ready);
        }
    }

    /// Gives the space of large blocks that nobody has back for good, where that is possible.
    pub(crate) fn give_back_large<M: Medium>(&self, op: &Op<'_, M>, arena: &Arena<M>, with: Durably<'_, M>) {
        let mut large = self.large.lock(op.medium());
        self.read_large(op, with, &mut large);
        large.give_back(op, arena);
    }

    // ---- allocating ----

    /// Takes a block for a record of `bytes`, aligned to 16.
    pub(crate) fn take<M: Medium>(
        &self,
        op: &Op<'_, M>,
        arena: &Arena<M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        bytes: u64,
    ) -> Result<u64> {
        match self.class_of(bytes) {
            Some(class) => self.take_of(op, arena, with, cache, class),
            None => self.take_large(op, arena, with, bytes),
        }
    }

    /// Takes a block for a node, aligned to a line, among those of its kind.
    pub(crate) fn take_node<M: Medium>(
        &self,
        op: &Op<'_, M>,
        arena: &Arena<M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        interior: bool,
    ) -> Result<u64> {
        self.take_of(op, arena, with, cache, self.node_class(interior))
    }

    fn take_of<M: Medium>(
        &self,
        op: &Op<'_, M>,
        arena: &Arena<M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        class: usize,
    ) -> Result<u64> {
        if cache.ready[class].is_empty() {
            self.refill(op, arena, with, class, &mut cache.ready[class])?;
        }
        let off = cache.ready[class].pop().expect("a refill brings a block");
        if with.durable {
            self.mark(op, with, class, off, true)?;
        }
        Ok(off)
    }

    #[cold]
    fn refill<M: Medium>(
        &self,
        op: &Op<'_, M>,
        arena: &Arena<M>,
        with: Durably<'_, M>,
        class: usize,
        ready: &mut Vec<u64>,
    ) -> Result<()> {
        let lock = &self.shared[class];
        let mut shared = lock.lock(op.medium());
        while shared.spare.is_empty() {
            match shared.unread.first().copied() {
                Some(slab) => self.read_slab(op, with, class, slab, &mut shared),
                None => {
                    // Not across what may be a system call: whoever finds a block meanwhile does not wait.
                    drop(shared);
                    let slab = self.add_slab(op, arena, with, class)?;
                    let Class { block, blocks, data, .. } = self.classes[class];
                    shared = lock.lock(op.medium());
                    shared.spare.extend((0..blocks).rev().map(|i| slab + data + i * block));
                }
            }
        }
        let keep = shared.spare.len().saturating_sub(BATCH);
        ready.extend(shared.spare.drain(keep..));
        Ok(())
    }

    fn add_slab<M: Medium>(&self, op: &Op<'_, M>, arena: &Arena<M>, with: Durably<'_, M>, class: usize) -> Result<u64> {
        if !with.durable {
            return Ok(arena.add_volatile(op, self.chunk)?.off);
        }
        let class = self.classes[class];
        let lines = class.data / LINE_BYTES - 1;
        Ok(arena.add(op, self.chunk, lines, class.head(), |_| Ok(()))?.off)
    }

    /// Collects the free blocks of a slab, in which nothing was changed in this run.
    fn read_slab<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, class: usize, slab: u64, shared: &mut Shared) {
        let free = &mut shared.spare;
        let Class { block, blocks, data, .. } = self.classes[class];
        for index in (0..blocks).rev() {
            let bitmap = op.at(bitmap_of(slab, index));
            if index % GROUP == GROUP - 1 || index == blocks - 1 {
                self.recover_line(op, with, bitmap);
            }
            let word = op.load(&bitmap.now[(index % GROUP / 64) as usize], Relaxed);
            if word >> (index % 64) & 1 == 0 {
                free.push(slab + data + index * block);
            }
        }
        shared.unread.remove(&slab);
        op.medium().shared_rmw(&self.unread, Rmw::Add, u64::MAX);
    }

    /// Reads the slab of a block if that was not done yet.
    fn read_slab_of<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, class: usize, off: u64) {
        if op.medium().shared_load(&self.unread, Acquire) == 0 {
            return;
        }
        let mut shared = self.shared[class].lock(op.medium());
        let slab = self.slab_of(off);
        if shared.unread.contains(&slab) {
            self.read_slab(op, with, class, slab, &mut shared);
        }
    }

    fn line_lock(&self, off: u64) -> &Lock<()> {
        &self.lines[(off / LINE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 48 & (LINE_LOCKS - 1)]
    }

    fn recover_line<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, bitmap: &Bitmap) {
        // Acquire: who sees that another thread has recovered the line sees it recovered. Mirror: `touch`.
        let stamp = op.load(&bitmap.stamp, Acquire).epoch();
        if stamp < with.epochs.trusted() && with.epochs.is_failed(stamp) {
            let _lock = self.line_lock(op.off_of(bitmap).get()).lock(op.medium());
            touch(op, with, bitmap);
        }
    }

    /// Sets or clears the bit of a block.
    fn mark<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, class: usize, off: u64, taken: bool) -> Result<()> {
        let slab = self.slab_of(off);
        let Class { block, blocks, data, .. } = self.classes[class];
        let within = (off - slab).wrapping_sub(data);
        let index = within / block;
        if !within.is_multiple_of(block) || index >= blocks {
            return Err(Error::Corrupt { what: "an offset of a block", offset: off, found: block });
        }
        self.mark_bit(op, with, op.at(bitmap_of(slab, index)), index % GROUP, taken);
        Ok(())
    }

    fn mark_bit<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, bitmap: &Bitmap, bit: u64, taken: bool) {
        let _lock = self.line_lock(op.off_of(bitmap).get()).lock(op.medium());
        touch(op, with, bitmap);
        let word = &bitmap.now[(bit / 64) as usize];
        let (old, mask) = (op.load(word, Relaxed), 1 << (bit % 64));
        // PERSIST IN-A2: same line
        op.store(word, if taken { old | mask } else { old & !mask }, Release);
    }

    // ---- large blocks ----

    #[cold]
    fn take_large<M: Medium>(&self, op: &Op<'_, M>, arena: &Arena<M>, with: Durably<'_, M>, bytes: u64) -> Result<u64> {
        let len = (bytes + 2 * LINE_BYTES).next_multiple_of(self.chunk);
        let free = {
            let mut large = self.large.lock(op.medium());
            self.read_large(op, with, &mut large);
            let fitting = large.free.get_mut(&len).and_then(Vec::pop);
            if fitting.is_none() {
                // What crashes have left: of other lengths, so the next value needs new space, and may need theirs.
                large.give_back(op, arena);
            }
            fitting
        };
        let off = match free {
            Some(off) => off,
            None if !with.durable => arena.add_volatile(op, len)?.off,
            None => {
                let head = Head { kind: slab_kind::LARGE, block: len - 2 * LINE_BYTES, blocks: 1 };
                arena.add(op, len, 1, head, |_| Ok(()))?.off
            }
        };
        if with.durable {
            self.mark_bit(op, with, op.at(bitmap_of(off, 0)), 0, true);
        }
        Ok(off + 2 * LINE_BYTES)
    }

    fn read_large<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, large: &mut Large) {
        while let Some(extent) = large.unread.pop() {
            let bitmap = op.at(bitmap_of(extent.off, 0));
            self.recover_line(op, with, bitmap);
            if op.load(&bitmap.now[0], Relaxed) & 1 == 0 {
                large.free.entry(extent.len).or_default().push(extent.off);
            }
        }
    }

    // ---- freeing ----

    /// Frees the block of a record of `bytes`; it can be taken again in the next epoch.
    pub(crate) fn free<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        off: u64,
        bytes: u64,
    ) -> Result<()> {
        match self.class_of(bytes) {
            Some(class) => self.free_of(op, with, cache, off, class)?,
            None => {
                let slab = self.slab_of(off);
                let len = (bytes + 2 * LINE_BYTES).next_multiple_of(self.chunk);
                if off != slab + 2 * LINE_BYTES {
                    return Err(Error::Corrupt { what: "an offset of a large block", offset: off, found: bytes });
                }
                if with.durable {
                    self.expect_blocks(op, slab, (slab_kind::LARGE, len - 2 * LINE_BYTES), off)?;
                    self.read_large(op, with, &mut self.large.lock(op.medium()));
                    self.mark_bit(op, with, op.at(bitmap_of(slab, 0)), 0, false);
                }
                cache.freed_large.push(Extent { off: slab, len });
            }
        }
        Ok(())
    }

    /// Frees the block of a node; as [`free`](Self::free).
    pub(crate) fn free_node<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        off: u64,
    ) -> Result<()> {
        self.free_of(op, with, cache, off, self.class_of_node(op, with, off))
    }

    fn free_of<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        off: u64,
        class: usize,
    ) -> Result<()> {
        if with.durable {
            let Class { kind, block, .. } = self.classes[class];
            self.expect_blocks(op, self.slab_of(off), (kind, block), off)?;
            self.read_slab_of(op, with, class, off);
            self.mark(op, with, class, off, false)?;
        }
        cache.freed.push((off, class));
        Ok(())
    }

    /// Refuses a block that lies in a slab of others: a damaged record claims another length than it has, and would take neighbours along.
    fn expect_blocks<M: Medium>(&self, op: &Op<'_, M>, slab: u64, expected: (u64, u64), off: u64) -> Result<()> {
        let head = op.at(Off::<SlabHead>::new(slab));
        if (op.load(&head.kind, Relaxed), op.load(&head.block, Relaxed)) == expected {
            return Ok(());
        }
        Err(Error::Corrupt { what: "the length of what is freed", offset: off, found: expected.1 })
    }

    /// Frees a block that was taken by this very operation and that nobody has seen: that of a record of so many bytes, or
    /// of a node.
    pub(crate) fn untake<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        cache: &mut Cache,
        off: u64,
        bytes: Option<u64>,
    ) -> Result<()> {
        let before = cache.freed.len();
        match bytes {
            Some(bytes) => self.free(op, with, cache, off, bytes)?,
            None => self.free_node(op, with, cache, off)?,
        }
        if let Some((off, class)) = cache.freed.drain(before..).next() {
            cache.ready[class].push(off);
        }
        Ok(())
    }

    // ---- sweeping ----

    /// Undoes what failed epochs have left in the bitmaps of the slabs from `cursor` on, and has `recover` do so with the
    /// nodes in them, for about `budget` lines. Returns where to go on.
    ///
    /// A node that was taken at the start of the epoch is a node all through the operation: its block was filled by
    /// operations that have ended, and is not given out again before the next epoch. What was taken since then has nothing
    /// of a failed epoch, and may just be filled by another thread.
    pub(crate) fn sweep<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        mut cursor: u64,
        budget: u64,
        mut recover: impl FnMut(Off<Node>),
    ) -> Option<u64> {
        self.read_large(op, with, &mut self.large.lock(op.medium()));
        let mut left = budget;
        loop {
            // One at a time, so that nobody waits for the lock; what was found does not change.
            let (slab, class) = {
                let found = self.found.lock(op.medium());
                *found.get(found.partition_point(|(slab, _)| *slab < cursor.max(1)))?
            };
            if left == 0 {
                return Some(slab);
            }
            left = left.saturating_sub(self.sweep_slab(op, with, (slab, class), &mut recover));
            cursor = slab + 1;
        }
    }

    /// Returns how many lines were looked at.
    fn sweep_slab<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        (slab, class): (u64, usize),
        recover: &mut impl FnMut(Off<Node>),
    ) -> u64 {
        let Class { kind, block, blocks, data } = self.classes[class];
        let mut lines = 0;
        for first in (0..blocks).step_by(GROUP as usize) {
            let taken = self.taken_before(op, with, op.at(bitmap_of(slab, first)));
            lines += 1;
            if holds_nodes(kind) {
                let is_taken = |index: &u64| taken[(index % GROUP / 64) as usize] >> (index % 64) & 1 == 1;
                for index in (first..blocks.min(first + GROUP)).filter(is_taken) {
                    recover(Off::new(slab + data + index * block));
                    lines += 1;
                }
            }
        }
        lines
    }

    /// What was taken at the start of the epoch; undoes a failed one.
    fn taken_before<M: Medium>(&self, op: &Op<'_, M>, with: Durably<'_, M>, bitmap: &Bitmap) -> [u64; 3] {
        let _lock = self.line_lock(op.off_of(bitmap).get()).lock(op.medium());
        let stamp = op.load(&bitmap.stamp, Relaxed).epoch();
        if stamp < with.epochs.trusted() && with.epochs.is_failed(stamp) {
            touch(op, with, bitmap);
        }
        let words = if stamp == with.epoch { &bitmap.then } else { &bitmap.now };
        [0, 1, 2].map(|i| op.load(&words[i], Relaxed))
    }

    /// Lines that a sweep looks at, about.
    pub(crate) fn lines_to_sweep<M: Medium>(&self, m: M) -> u64 {
        let lines = |class: &Class| if holds_nodes(class.kind) { class.blocks } else { class.blocks / GROUP + 1 };
        self.found.lock(m).iter().map(|(_, class)| lines(&self.classes[*class])).sum()
    }

    // ---- looking ----

    /// Every block that is taken, as offset and size, ascending within a slab. For checks, while nobody writes.
    pub(crate) fn taken<M: Medium>(
        &self,
        op: &Op<'_, M>,
        with: Durably<'_, M>,
        extent: Extent,
        head: Head,
    ) -> Vec<(u64, u64)> {
        let class = match head.kind {
            slab_kind::RECORDS | slab_kind::NODES | slab_kind::INTERIORS => {
                self.classes.iter().copied().find(|c| (c.kind, c.block) == (head.kind, head.block))
            }
            slab_kind::LARGE => Some(Class { kind: head.kind, block: head.block, blocks: 1, data: 2 * LINE_BYTES }),
            _ => None,
        };
        let Some(Class { block, blocks, data, .. }) = class else { return Vec::new() };
        let mut found = Vec::new();
        for index in 0..blocks {
            let bitmap = op.at(bitmap_of(extent.off, index));
            if index % GROUP == 0 {
                self.recover_line(op, with, bitmap);
            }
            if op.load(&bitmap.now[(index % GROUP / 64) as usize], Relaxed) >> (index % 64) & 1 == 1 {
                found.push((extent.off + data + index * block, block));
            }
        }
        found
    }

    /// The size of the block that a record of `bytes` takes.
    pub(crate) fn block_size(&self, bytes: u64) -> u64 {
        match self.class_of(bytes) {
            Some(class) => self.classes[class].block,
            None => (bytes + 2 * LINE_BYTES).next_multiple_of(self.chunk) - 2 * LINE_BYTES,
        }
    }

    /// Formats a slab of nodes whose first one is taken, with zero in its first line, and returns that. Durable on return.
    pub(crate) fn first_node<M: Medium>(&self, op: &Op<'_, M>, arena: &Arena<M>) -> Result<u64> {
        let class = self.classes[self.node_class(false)];
        // Behind the bitmaps, the first line of the node: in a node that says so nothing else is looked at.
        let lines = class.data / LINE_BYTES;
        let extent = arena.add(op, self.chunk, lines, class.head(), |extent| {
            op.store(&op.at(bitmap_of(extent.off, 0)).now[0], 1, Relaxed);
            Ok(())
        })?;
        Ok(extent.off + class.data)
    }
}

/// Makes a bitmap line ready to be changed in the current epoch, undoing a failed one first. Its lock is held.
fn touch<M: Medium>(op: &Op<'_, M>, with: Durably<'_, M>, bitmap: &Bitmap) {
    let stamp = op.load(&bitmap.stamp, Relaxed);
    let new = Stamp::new(with.epoch, false, false, 0).in_round(with.round, 0);
    if stamp == new {
        return;
    }
    if stamp.epoch() != with.epoch {
        let failed = stamp.epoch() < with.epochs.trusted() && with.epochs.is_failed(stamp.epoch());
        let (from, to) = if failed { (&bitmap.then, &bitmap.now) } else { (&bitmap.now, &bitmap.then) };
        for (from, to) in from.iter().zip(to) {
            op.store(to, op.load(from, Relaxed), Relaxed);
        }
    }
    // PERSIST IN-A1, IN-A3: same line
    op.store(&bitmap.stamp, new, Release);
    with.epochs.dirty(op, bitmap);
}
