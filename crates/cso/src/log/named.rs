//! Logs that live in a pool under a name.
//!
//! A [`NamedLog`] is any kind of log in one extent of fixed size; a [`NamedChain`] is a chain with one extent for each
//! segment, which takes another one from the pool when it is full. Neither stores where its extents are: they are found by
//! owner.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-M1 a formatted log or segment < its extent's activation | flush+fence, the formatting's last | an extent that is nobody's | the pool gives it back |
//! | CS-M2 activation of a segment's extent < return of the append that needed it | flush+fence, the append's own | a chain without that segment, or with it and nothing in it | drops, with the segment, only what was not acknowledged |

use std::fmt;
use std::sync::Arc;

use durix_pmem::{Extent, Kind, Lock, LockGuard, Medium, Op, Owner, Pool, Root, Session, Structure};

use super::error::{Error, Result};
use super::layout::VERSION;
use super::ring::Region;
use super::{ChainLog, LinesLog, Log, Position};

impl From<Extent> for Region {
    fn from(extent: Extent) -> Self {
        Region { off: extent.off, len: extent.len }
    }
}

/// How a [`NamedLog`] is created; an existing one is opened as it is.
#[derive(Debug)]
pub struct NamedOptions<L: Log> {
    /// Bytes, rounded up to whole chunks of the pool.
    pub bytes: u64,
    /// Options of the log.
    pub log: L::Options,
}

impl<L: Log> Clone for NamedOptions<L> {
    fn clone(&self) -> Self {
        NamedOptions { bytes: self.bytes, log: self.log.clone() }
    }
}

impl<L: Log> Default for NamedOptions<L> {
    /// One mebibyte.
    fn default() -> Self {
        NamedOptions { bytes: 1 << 20, log: L::Options::default() }
    }
}

/// A log of fixed size in a pool, for any thread: it is locked for each call.
///
/// ```
/// use durix_cso::log::{LinesLog, Log, NamedLog, NamedOptions};
/// use durix_pmem::backing::HeapBacking;
/// use durix_pmem::{Hardware, PoolOptions};
///
/// let pool = PoolOptions::new().create_on(HeapBacking::new(8 << 20), Hardware::PAGE_CACHE)?;
/// let audit = NamedLog::<_, LinesLog>::open(&pool, "audit", &NamedOptions::default())?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// audit.append(&op, 1, b"opened")?;
/// assert_eq!(audit.lock(&op).iter(&op).count(), 1);
/// # Ok::<(), durix_cso::log::Error>(())
/// ```
pub struct NamedLog<M: Medium, L: Log = LinesLog> {
    root: Root<M>,
    log: Lock<L>,
}

impl<M: Medium, L: Log + 'static> NamedLog<M, L> {
    /// Opens the log named `name`, creating it if it is not there.
    ///
    /// # Errors
    /// [`Error::Pmem`]: what the pool says, also where `name` is something else; what [`Log::format`] and
    /// [`Log::recover`] say, also where the log is of another kind.
    pub fn open(pool: &Pool<M>, name: &str, options: &NamedOptions<L>) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    /// The log, until the guard is dropped. The lock is a locked instruction: take it before anything is written back.
    #[inline]
    pub fn lock(&self, op: &Op<'_, M>) -> LockGuard<'_, L, M> {
        self.log.lock(op.medium())
    }

    /// As [`Log::append`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn append(&self, op: &Op<'_, M>, tag: u8, payload: &[u8]) -> Result<Position> {
        self.lock(op).append(op, tag, payload)
    }

    /// Its place in the pool.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }
}

impl<M: Medium, L: Log> fmt::Debug for NamedLog<M, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedLog").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<M: Medium, L: Log + 'static> Structure<M> for NamedLog<M, L> {
    const KIND: Kind = Kind { tag: *b"CSO-LOG\0", version: VERSION };
    type Options = NamedOptions<L>;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Self::Options) -> Result<()> {
        let op = session.enter()?;
        let space = root.pool().space();
        let extent = space.reserve_extent(&op, root.owner(), options.bytes)?;
        L::format(&op, Region { off: extent.off(), len: extent.len() }, &options.log)?;
        // PERSIST CS-M1: the formatting ended with a fence
        space.activate(&op, extent)?;
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, _: &Self::Options) -> Result<Self> {
        let op = session.enter()?;
        let extents = root.pool().space().extents(&op, root.owner());
        let [extent] = extents[..] else { return Err(wrong_extents(root.owner(), extents.len())) };
        let log = Lock::new(L::recover(&op, extent.into())?);
        drop(op);
        Ok(NamedLog { root, log })
    }
}

fn wrong_extents(owner: Owner, found: usize) -> Error {
    Error::Extents { owner: owner.0, found }
}

/// How a [`NamedChain`] is created, and how far it may grow.
#[derive(Clone, Debug)]
pub struct ChainGrowth {
    /// Bytes of a segment, rounded up to whole chunks of the pool.
    pub segment_bytes: u64,
    /// So many segments at most; at least 2.
    pub max_segments: usize,
}

impl Default for ChainGrowth {
    /// Segments of one mebibyte, as many as the pool has room for.
    fn default() -> Self {
        ChainGrowth { segment_bytes: 1 << 20, max_segments: usize::MAX }
    }
}

/// A log in a pool that grows by segments, for any thread: it is locked for each call.
pub struct NamedChain<M: Medium> {
    root: Root<M>,
    log: Lock<ChainLog>,
    growth: ChainGrowth,
}

impl<M: Medium> NamedChain<M> {
    /// Opens the log named `name`, creating it if it is not there.
    ///
    /// # Errors
    /// [`Error::Pmem`]: what the pool says, also where `name` is something else; what [`Log::recover`] says.
    pub fn open(pool: &Pool<M>, name: &str, growth: &ChainGrowth) -> Result<Arc<Self>> {
        pool.open_structure(name, growth)
    }

    /// The log, until the guard is dropped. Appends through the guard do not grow it.
    #[inline]
    pub fn lock(&self, op: &Op<'_, M>) -> LockGuard<'_, ChainLog, M> {
        self.log.lock(op.medium())
    }

    /// As [`Log::append`], and takes another segment from the pool where there is no room: a few fences more.
    ///
    /// # Errors
    /// As there; [`Error::Full`] where the largest number of segments is in use, [`Error::Pmem`] where the pool is full.
    #[inline]
    pub fn append(&self, op: &Op<'_, M>, tag: u8, payload: &[u8]) -> Result<Position> {
        let mut log = self.lock(op);
        loop {
            match log.append(op, tag, payload) {
                Err(Error::Full { .. }) if log.segments() < self.growth.max_segments => self.grow(op, &mut log)?,
                other => return other,
            }
        }
    }

    #[cold]
    fn grow(&self, op: &Op<'_, M>, log: &mut ChainLog) -> Result<()> {
        let space = self.root.pool().space();
        let extent = space.reserve_extent(op, self.root.owner(), log.segment_len())?;
        log.grow(op, Region { off: extent.off(), len: extent.len() })?;
        // PERSIST CS-M1: the formatting ended with a fence. CS-M2: the append's fence follows.
        space.activate(op, extent)?;
        Ok(())
    }

    /// Its place in the pool.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }
}

impl<M: Medium> fmt::Debug for NamedChain<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedChain").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for NamedChain<M> {
    const KIND: Kind = Kind { tag: *b"CSO-CHN\0", version: VERSION };
    type Options = ChainGrowth;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, growth: &ChainGrowth) -> Result<()> {
        let op = session.enter()?;
        let space = root.pool().space();
        let first = space.reserve_extent(&op, root.owner(), growth.segment_bytes)?;
        let second = space.reserve_extent(&op, root.owner(), growth.segment_bytes)?;
        let regions = [&first, &second].map(|e| Region { off: e.off(), len: e.len() });
        ChainLog::format_in(&op, &regions)?;
        // PERSIST CS-M1: the formatting ended with a fence
        space.activate(&op, first)?;
        space.activate(&op, second)?;
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, growth: &ChainGrowth) -> Result<Self> {
        let op = session.enter()?;
        let extents = root.pool().space().extents(&op, root.owner());
        if extents.len() < 2 {
            return Err(wrong_extents(root.owner(), extents.len()));
        }
        let regions: Vec<Region> = extents.into_iter().map(Region::from).collect();
        let log = Lock::new(ChainLog::recover_from(&op, &regions)?);
        drop(op);
        Ok(NamedChain { root, log, growth: growth.clone() })
    }
}
