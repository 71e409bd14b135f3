//! Where extents come from: the pool, or a bare mapping (tests, simulation, volatile trees).
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | IN-S1 head and bitmaps < the extent is active (pool), is used (bare mapping) | flush+fence | a free chunk | the pool's |
//! | IN-S2 (pool) the extent is active < anything in it is used | flush+fence | an extent without content | it is free |
//! | IN-S3 (bare mapping, recovery) a magic that was found < anything built on it | flush+fence: that of IN-U1, IN-U2 of the external log | the same | finds it again |
//!
//! In a bare mapping, which is zero where no extent is, a head whose check word is right is what makes one. IN-S2 needs its fence because
//! another session than this one may be the first to use what is in it.

use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{Error as PoolError, Extent, LINE, Mapping, Medium, Off, Op, Rmw, Root, Word};

use crate::error::{Error, Result};
use crate::layout::{SLAB_MAGIC, SlabHead, slab_kind};

/// The source of extents.
pub(crate) enum Arena<M: Medium> {
    /// A pool.
    Pool(Root<M>),
    /// Chunks of a mapping, from `first` on, in their order.
    Bare { mapping: Mapping<M>, chunk: u64, first: u64, next: AtomicU64 },
}

/// What the head of an extent says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) kind: u64,
    pub(crate) block: u64,
    pub(crate) blocks: u64,
}

impl Head {
    fn check(self) -> u64 {
        SLAB_MAGIC ^ self.kind.rotate_left(48) ^ self.block.rotate_left(16) ^ self.blocks
    }

    /// Reads the head of the extent at `off`, which must make sense.
    pub(crate) fn read<M: Medium>(op: &Op<'_, M>, off: u64) -> Result<Head> {
        let head = &op.slice("an extent", Off::<SlabHead>::new(off), 1)?[0];
        let [magic, kind, block, blocks, check] =
            [&head.magic, &head.kind, &head.block, &head.blocks, &head.check].map(|w| op.load(w, Ordering::Relaxed));
        let found = Head { kind, block, blocks };
        if magic != SLAB_MAGIC {
            return Err(Error::Corrupt { what: "the first word of an extent", offset: off, found: magic });
        }
        if check != found.check() {
            return Err(Error::Corrupt { what: "the check word of an extent", offset: off, found: check });
        }
        Ok(found)
    }
}

impl<M: Medium> Arena<M> {
    /// The root of the tree's index, in a pool.
    pub(crate) fn root(&self) -> Option<&Root<M>> {
        match self {
            Arena::Pool(root) => Some(root),
            Arena::Bare { .. } => None,
        }
    }

    /// An arena of the chunks of a mapping from `first`, a multiple of the chunk, on.
    pub(crate) fn bare(mapping: &Mapping<M>, chunk: u64, first: u64) -> Self {
        Arena::Bare { mapping: mapping.clone(), chunk, first, next: AtomicU64::new(first) }
    }

    /// Unit of extents in bytes; extents start at a multiple of it.
    pub(crate) fn chunk(&self) -> u64 {
        match self {
            Arena::Pool(root) => root.pool().space().chunk(),
            Arena::Bare { chunk, .. } => *chunk,
        }
    }

    /// Adds an extent of at least `bytes` for volatile use; a crash forgets what is in it, and a pool keeps the space.
    pub(crate) fn add_volatile(&self, op: &Op<'_, M>, bytes: u64) -> Result<Extent> {
        match self {
            Arena::Pool(root) => {
                let space = root.pool().space();
                let extent = space.activate(op, space.reserve_extent(op, root.owner(), bytes)?)?;
                op.fence();
                Ok(extent)
            }
            Arena::Bare { .. } => self.take_bare(op, bytes),
        }
    }

    /// Adds an extent of at least `bytes`, durably, with its head and `zeroed` lines behind it. `fill` may write more.
    pub(crate) fn add(
        &self,
        op: &Op<'_, M>,
        bytes: u64,
        zeroed: u64,
        head: Head,
        fill: impl FnOnce(Extent) -> Result<()>,
    ) -> Result<Extent> {
        match self {
            Arena::Pool(root) => {
                let space = root.pool().space();
                let reserved = space.reserve_extent(op, root.owner(), bytes)?;
                let extent = Extent { off: reserved.off(), len: reserved.len() };
                write_head(op, extent, zeroed, head, fill)?;
                space.activate(op, reserved)?;
                // PERSIST IN-S2: flush+fence
                op.fence();
                Ok(extent)
            }
            Arena::Bare { .. } => {
                let extent = self.take_bare(op, bytes)?;
                write_head(op, extent, zeroed, head, fill)?;
                Ok(extent)
            }
        }
    }

    fn take_bare(&self, op: &Op<'_, M>, bytes: u64) -> Result<Extent> {
        let Arena::Bare { mapping, chunk, next, .. } = self else {
            unreachable!("called for bare arenas only");
        };
        let len = bytes.next_multiple_of(*chunk);
        let off = op.medium().shared_rmw(next, Rmw::Add, len);
        if off.saturating_add(len) > mapping.len() {
            op.medium().shared_rmw(next, Rmw::Add, len.wrapping_neg());
            return Err(PoolError::Full { needed: off.saturating_add(len) }.into());
        }
        Ok(Extent { off, len })
    }

    /// All extents with a head, ascending. In a bare mapping also finds where the next one goes.
    pub(crate) fn extents(&self, op: &Op<'_, M>) -> Vec<Extent> {
        let (chunk, first, next, end) = match self {
            Arena::Pool(root) => return root.pool().space().extents(op, root.owner()),
            Arena::Bare { mapping, chunk, first, next } => (*chunk, *first, next, mapping.len()),
        };
        let mut found = Vec::new();
        let mut off = first;
        while let Some(len) = bare_len(op, off, chunk, end) {
            found.push(Extent { off, len });
            off += len;
        }
        op.medium().shared_store(next, off, Ordering::Release);
        found
    }

    /// Bytes of all extents.
    pub(crate) fn bytes(&self, op: &Op<'_, M>) -> u64 {
        match self {
            Arena::Pool(root) => root.pool().space().extents(op, root.owner()).iter().map(|extent| extent.len).sum(),
            Arena::Bare { first, next, .. } => op.medium().shared_load(next, Ordering::Acquire) - first,
        }
    }

    /// Gives an extent back for good, where that is possible.
    pub(crate) fn give_back(&self, op: &Op<'_, M>, extent: Extent) -> Option<Extent> {
        match self {
            Arena::Pool(root) if root.pool().space().free_extent(op, extent).is_ok() => None,
            _ => Some(extent),
        }
    }
}

/// Bytes of the extent at `off` of a bare mapping, if there is one.
fn bare_len<M: Medium>(op: &Op<'_, M>, off: u64, chunk: u64, end: u64) -> Option<u64> {
    if off.saturating_add(chunk) > end {
        return None;
    }
    let head = Head::read(op, off).ok()?;
    // PERSIST IN-S3: flush, with the fence of IN-U1 or IN-U2. After the mere death of a process the magic may be visible and not durable.
    op.write_back(op.at(Off::<SlabHead>::new(off)));
    let len = match head.kind {
        slab_kind::LARGE => head.block.checked_add(2 * LINE as u64)?.checked_next_multiple_of(chunk)?,
        _ => chunk,
    };
    (off.saturating_add(len) <= end).then_some(len)
}

fn write_head<M: Medium>(
    op: &Op<'_, M>,
    extent: Extent,
    zeroed: u64,
    head: Head,
    fill: impl FnOnce(Extent) -> Result<()>,
) -> Result<()> {
    let words = op.slice("an extent", Off::<Word>::new(extent.off), (1 + zeroed) * 8)?;
    for word in words {
        op.store(word, 0, Ordering::Relaxed);
    }
    let at = op.at(Off::<SlabHead>::new(extent.off));
    op.store(&at.kind, head.kind, Ordering::Relaxed);
    op.store(&at.block, head.block, Ordering::Relaxed);
    op.store(&at.blocks, head.blocks, Ordering::Relaxed);
    op.store(&at.check, head.check(), Ordering::Relaxed);
    fill(extent)?;
    op.store(&at.magic, SLAB_MAGIC, Ordering::Relaxed);
    op.write_back_slice(words);
    // PERSIST IN-S1: flush+fence
    op.fence();
    Ok(())
}
