//! What the allocator does after a crash, and what it can tell about itself.
//!
//! Formatting needs nothing: zeroed tables and lanes are an empty heap. Recovery settles the intents in the lanes, then
//! walks the descriptors once, `O(chunks)`; bitmaps of slabs are read when their class is first used.
//!
//! After the mere death of a process its last stores are visible, but perhaps not durable: they sit in the caches of a
//! machine that runs on. What recovery reads and others will build on is therefore written back first (SP-S5).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use super::lane::{self, Intent};
use super::layout::{Heap, Owner, Use};
use super::slabs::Slab;
use super::{Grow, Space, SpaceStats, State};
use crate::error::Result;
use crate::mapping::Mapping;
use crate::medium::Medium;
use crate::session::Op;

/// Something in the tables that the allocator never writes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A descriptor that says nothing known; its chunk is not used.
    UnknownDescriptor {
        /// The chunk's offset in bytes.
        off: u64,
    },
    /// An extent that reaches beyond the end of the pool, or over a table or another extent.
    Overlap {
        /// Its offset in bytes.
        off: u64,
        /// Its length in bytes, as the descriptor says.
        len: u64,
    },
    /// A slab of blocks that are larger than a slab can hold.
    BadSlab {
        /// Its offset in bytes.
        off: u64,
        /// Lines of a block, as the descriptor says.
        lines: u32,
    },
    /// A lane with an intent that names words outside the heap; it was ignored.
    BadIntent {
        /// The lane.
        lane: u32,
    },
    /// The table is not what it was when the pool was closed.
    NotAsClosed {
        /// The offset of the first table in bytes.
        off: u64,
    },
    /// An owner that is no index.
    UnknownOwner {
        /// Offset of what it owns, in bytes.
        off: u64,
        /// The owner.
        owner: Owner,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::UnknownDescriptor { off } => write!(f, "the chunk at {off:#x} has an unknown descriptor"),
            Finding::Overlap { off, len } => write!(f, "the extent at {off:#x} of {len} bytes overlaps something else"),
            Finding::BadSlab { off, lines } => write!(f, "the slab at {off:#x} claims blocks of {lines} lines"),
            Finding::BadIntent { lane } => write!(f, "lane {lane} holds an intent that names words outside the heap"),
            Finding::NotAsClosed { off } => {
                write!(
                    f,
                    "the table at {off:#x} is not what it was when the pool was closed: indices may lack a part of their space"
                )
            }
            Finding::UnknownOwner { off, owner } => {
                write!(f, "the space at {off:#x} belongs to root {}, which is no index", owner.0)
            }
        }
    }
}

/// The uses of a heap, by first chunk, ascending: free chunks one by one, extents and slabs whole. Every chunk is
/// visited at most once, and a descriptor that cannot be right is [`Use::Unknown`], so nobody acts on it. An extent ends before the next
/// chunk that is the first of something: the words of its other chunks are zero, so it claims too many, and must not hide what lies there.
pub(super) struct Walk<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    heap: Heap,
    next: u64,
    end: u64,
}

impl<'a, 's, M: Medium> Walk<'a, 's, M> {
    pub(super) fn new(op: &'a Op<'s, M>, heap: Heap, chunks: u64) -> Self {
        Self::from(op, heap, 0, chunks)
    }

    /// From a chunk on that no extent reaches into.
    pub(super) fn from(op: &'a Op<'s, M>, heap: Heap, first: u64, chunks: u64) -> Self {
        Walk { op, heap, next: first, end: chunks }
    }
}

impl<M: Medium> Iterator for Walk<'_, '_, M> {
    type Item = (u64, Use);

    fn next(&mut self) -> Option<(u64, Use)> {
        while self.next < self.end && self.heap.is_table(self.next) {
            self.next += 1;
        }
        if self.next >= self.end {
            return None;
        }
        let chunk = self.next;
        let what = match self.heap.sound_use(self.op, chunk, self.end) {
            Use::Extent { owner, chunks, role } => {
                Use::Extent { owner, chunks: self.heap.unhidden(self.op, chunk, chunks, self.end), role }
            }
            other => other,
        };
        self.next += if let Use::Extent { chunks, .. } = what { u64::from(chunks) } else { 1 };
        Some((chunk, what))
    }
}

impl Heap {
    /// Whether an extent lies within the heap and its zone.
    pub(super) fn extent_fits(self, chunk: u64, chunks: u32, end: u64) -> bool {
        let zone_end = (chunk / self.zone_chunks() + 1) * self.zone_chunks();
        chunk + u64::from(chunks) <= end.min(zone_end)
    }

    /// What the descriptor of a chunk says, if it can be right in a heap of `end` chunks.
    pub(super) fn sound_use<M: Medium>(self, op: &Op<'_, M>, chunk: u64, end: u64) -> Use {
        let what = self.raw_use(op, chunk);
        if self.fault(chunk, what, end).is_some() { Use::Unknown } else { what }
    }

    /// How many of the `chunks` chunks that an extent claims come before the first of something else.
    fn unhidden<M: Medium>(self, op: &Op<'_, M>, chunk: u64, chunks: u32, end: u64) -> u32 {
        let is_first = |behind: &u32| {
            let what = self.sound_use(op, chunk + u64::from(*behind), end);
            matches!(what, Use::Extent { .. } | Use::Slab { .. })
        };
        (1..chunks).find(is_first).unwrap_or(chunks)
    }

    pub(super) fn raw_use<M: Medium>(self, op: &Op<'_, M>, chunk: u64) -> Use {
        op.load(op.at(self.descriptor(chunk)), Ordering::Acquire).decode()
    }

    /// What is wrong with a use, if anything.
    fn fault(self, chunk: u64, what: Use, end: u64) -> Option<Finding> {
        let off = self.chunk_off(chunk);
        match what {
            Use::Unknown => Some(Finding::UnknownDescriptor { off }),
            Use::Extent { chunks, .. } if !self.extent_fits(chunk, chunks, end) => {
                Some(Finding::Overlap { off, len: u64::from(chunks) * self.chunk })
            }
            Use::Slab { lines, .. } if lines > self.max_block_lines() => Some(Finding::BadSlab { off, lines }),
            _ => None,
        }
    }
}

impl<M: Medium> Space<M> {
    /// Opens the heap of a pool whose first `len` bytes are backed: settles intents, then reads the descriptors. Crashing
    /// in it is harmless: it only makes words agree with links that do not change. One write-back for each eight chunks,
    /// and one or two fences.
    ///
    /// # Errors
    /// [`Error::ForeignSession`](crate::Error::ForeignSession); corrupt tables become findings of [`Space::check`], and their chunks are not used.
    pub fn recover(op: &Op<'_, M>, mapping: Mapping<M>, heap: Heap, grow: Box<dyn Grow>) -> Result<Space<M>> {
        op.expect_base(mapping.base_addr())?;
        let space = Space::new(mapping, heap, grow);
        space.settle_intents(op);
        {
            let mut state = space.state.lock(op.medium());
            state.chunks = heap.chunks(space.mapping.len());
            space.settle_tables(op, state.chunks);
            space.read_descriptors(op, &mut state);
        }
        Ok(space)
    }

    fn settle_intents(&self, op: &Op<'_, M>) {
        let lanes: Vec<_> = (0..self.heap.lanes).map(|lane| self.heap.lane(lane)).collect();
        let intents: Vec<_> = lanes.iter().filter_map(|lane| Intent::read(op, *lane)).collect();
        let plausible = intents.iter().filter(|i| i.is_plausible(self.heap, self.mapping.len()));
        for intent in plausible {
            intent.settle(op);
            intent.write_back(op);
        }
        if !intents.is_empty() {
            // PERSIST SP-L3: flush+fence.
            op.fence();
        }
        let used: Vec<_> =
            lanes.into_iter().filter(|lane| op.load(&op.at(*lane).seal, Ordering::Relaxed) != 0).collect();
        for lane in &used {
            lane::clear(op, *lane);
        }
        // PERSIST SP-L4: flush+fence, the one of `settle_tables`.
    }

    /// Makes the descriptors durable as they are visible now.
    fn settle_tables(&self, op: &Op<'_, M>, chunks: u64) {
        let zones = chunks.div_ceil(self.heap.zone_chunks());
        for zone in 0..zones {
            let first = zone * self.heap.zone_chunks();
            let count = (chunks - first).min(self.heap.zone_chunks());
            if let Ok(table) = op.slice("descriptors", self.heap.descriptor(first), count) {
                op.write_back_slice(table);
            }
        }
        // PERSIST SP-S5: flush+fence.
        op.fence();
    }

    fn read_descriptors(&self, op: &Op<'_, M>, state: &mut State) {
        let end = state.chunks;
        for (chunk, what) in Walk::new(op, self.heap, end) {
            match what {
                Use::Free => state.free.put(chunk, 1),
                Use::Slab { owner, lines } => state.slabs.add(chunk, Slab { owner, lines, taken: None }),
                Use::Extent { .. } | Use::Unknown => {}
            }
        }
    }

    /// Everything in the tables that is not as the allocator writes it. `live` tells which owners exist. `O(chunks)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn check(&self, op: &Op<'_, M>, live: impl Fn(Owner) -> bool) -> Vec<Finding> {
        self.assert_own(op);
        let end = self.backed_chunks(op);
        let mut findings = Vec::new();
        for (chunk, what) in Walk::new(op, self.heap, end) {
            if what == Use::Unknown {
                findings.extend(self.heap.fault(chunk, self.heap.raw_use(op, chunk), end));
            }
            if let (Use::Extent { chunks, .. }, Use::Extent { chunks: claimed, .. }) =
                (what, self.heap.raw_use(op, chunk))
                && chunks < claimed
            {
                let len = u64::from(claimed) * self.heap.chunk;
                findings.push(Finding::Overlap { off: self.heap.chunk_off(chunk), len });
            }
            if let Use::Extent { owner, .. } | Use::Slab { owner, .. } = what
                && !live(owner)
            {
                findings.push(Finding::UnknownOwner { off: self.heap.chunk_off(chunk), owner });
            }
        }
        let backed = self.mapping.len();
        let bad =
            |lane: &u32| Intent::read(op, self.heap.lane(*lane)).is_some_and(|i| !i.is_plausible(self.heap, backed));
        findings.extend((0..self.heap.lanes).filter(bad).map(|lane| Finding::BadIntent { lane }));
        findings
    }
}

/// What the space of a heap with that many chunks is used for, from the descriptors alone: works on a pool that another
/// process has open.
pub(crate) fn stats<M: Medium>(op: &Op<'_, M>, heap: Heap, chunks: u64) -> SpaceStats {
    let tables = chunks.div_ceil(heap.zone_chunks()) * heap.chunk;
    let mut stats = SpaceStats { chunk: heap.chunk, total: chunks * heap.chunk, tables, ..SpaceStats::default() };
    let mut by_owner = BTreeMap::new();
    for (_, what) in Walk::new(op, heap, chunks) {
        match what {
            Use::Free => stats.free += heap.chunk,
            Use::Extent { owner, chunks, .. } => *by_owner.entry(owner).or_default() += u64::from(chunks) * heap.chunk,
            Use::Slab { owner, .. } => *by_owner.entry(owner).or_default() += heap.chunk,
            Use::Unknown => {}
        }
    }
    stats.by_owner = by_owner.into_iter().collect();
    stats
}
