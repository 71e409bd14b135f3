//! Growth: the file becomes longer before space runs out, or when it has.
//!
//! Where the services of a pool are driven ([`crate::service`]), one of them keeps free space ahead of need: below a watermark,
//! it allocates blocks of the file in *pieces*, and *publishes* them: syncs, maps, and stores the new size in the header. No
//! writer waits meanwhile. It also has the system find the memory of the piece ([`Backing::touch`](crate::backing::Backing::touch)), so that no
//! writer waits for that at the first store to a page. A piece is as large as can be allocated and touched in about half a millisecond,
//! so a writer that outruns the service, and has to grow the pool itself, waits for one piece that is under way, and for one of its own.
//! Where nobody drives the services, a writer that finds no space grows the pool by half of its size, as rarely as possible.
//!
//! The lock of whoever grows is held across system calls; the lock of the allocator never is, so those who find space do not
//! wait.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as PL-G1: file longer < PL-G2 size in the header | [`Backing::allocate`] syncs | a file longer than its header says | ignores the tail, and cuts it off before it grows |
//! | as PL-G2: size in the header < PL-G3 the first store behind the old size | write-back, fence; a sync where the medium's fence does not reach the disk | the old size | ignores the tail |
//!
//! A piece that is allocated and not published is such a tail, also after the pool is closed. Nobody knows whether its length is durable: a sync that
//! has failed marks it as written, and the next one, which succeeds, says nothing of it. So what an earlier process has left, and what was allocated
//! when a sync failed, is cut off and allocated once more before it is published. Otherwise a power failure could make the file shorter than its
//! header or its journal says.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::file::PoolFile;
use super::grower::{Grower, MAX_STEP, PIECE_TIME};
use super::header::HeaderRef;
use crate::backing::Window;
use crate::error::{Error, Result};
use crate::lock::LockGuard;
use crate::medium::Medium;
use crate::service::{Due, Lane, Service, Urgency};
use crate::session::Session;
use crate::space::{Grow, Level, Space};

/// Where publishing takes longer, pieces are published together.
const SLOW: Duration = Duration::from_millis(1);
/// Bytes that are touched between two looks at the clock.
const TOUCH: u64 = 256 << 10;
/// How soon the service looks again where somebody holds the allocator.
const SOON: Duration = Duration::from_millis(1);

impl<M: Medium> PoolFile<M> {
    fn grower(&self) -> LockGuard<'_, Grower<M>, M> {
        self.grower.lock(self.mapping.medium())
    }

    /// Bytes that it can have at most, in whole chunks.
    fn most(&self) -> u64 {
        let chunk = self.geometry.chunk;
        self.max.min(u64::from(u32::MAX) * chunk) / chunk * chunk
    }

    /// Allocates from what is allocated to `wanted`, at least to `least` where there is no room for more.
    fn allocate(&self, grower: &mut Grower<M>, least: u64, wanted: u64) -> Result<()> {
        let from = grower.allocated.max(self.mapping.len());
        if from >= wanted {
            return Ok(());
        }
        grower.allocated = match self.backing.allocate_ahead(wanted) {
            Err(Error::DiskFull { .. }) if from < least && least < wanted => {
                self.backing.allocate_ahead(least).map(|()| least)?
            }
            done => done.map(|()| wanted)?,
        };
        Ok(())
    }

    /// Touches what was just published, as long as there is time for it: at most [`PIECE_TIME`].
    fn touch(&self, range: Range<u64>) {
        let start = Instant::now();
        for at in range.clone().step_by(TOUCH as usize) {
            let part = at..range.end.min(at + TOUCH);
            self.backing.touch(&Window::new(self.mapping.reserve(), part, self.access));
            if start.elapsed() > PIECE_TIME {
                return;
            }
        }
    }

    /// Allocates once more what is not published, if a sync may have failed since: it was marked as written then, and is not.
    fn allocate_anew(&self, grower: &mut Grower<M>) -> Result<()> {
        if self.doubtful.load(Ordering::Acquire) {
            let (wanted, sure) = (grower.allocated, self.mapping.len().max(grower.synced));
            grower.allocated = sure;
            self.backing.cut(sure)?;
            self.doubtful.store(false, Ordering::Release);
            self.backing.allocate_ahead(wanted)?;
            grower.allocated = wanted;
        }
        Ok(())
    }

    /// Makes all that is allocated part of the pool. Returns its new length.
    fn publish(&self, grower: &mut Grower<M>) -> Result<u64> {
        let (start, len, new_len) = (Instant::now(), self.mapping.len(), grower.allocated);
        if new_len <= len {
            return Ok(len);
        }
        self.journal.get().map_or(Ok(()), |journal| journal.grow_sums(new_len))?;
        self.allocate_anew(grower)?;
        {
            let _alone = self.journal.get().map(|journal| journal.pool_file());
            self.noting_failure(self.backing.allocate(new_len))?; // PERSIST PL-G1<PL-G2: the backing syncs
        }
        grower.synced = new_len;
        self.extend(len, new_len)?;
        let op = grower.session.enter_past_gate();
        HeaderRef::new(&op, &self.name).write_size(&self.geometry, new_len);
        self.settle_size(&op)?; // PERSIST PL-G2<PL-G3: sync; where there is none, flush+fence, inside `write_size`
        drop(op);
        self.mapping.set_len(new_len);
        grower.slow = start.elapsed() > SLOW;
        Ok(new_len)
    }

    /// Allocates a piece on the way to `goal` bytes, and publishes what there is if that costs little, `goal` is reached, or
    /// it is `urgent`. Returns the length.
    fn grow_ahead(&self, goal: u64, urgent: bool) -> Result<u64> {
        let grower = &mut *self.grower();
        let goal = goal.min(self.most());
        let from = grower.allocated.max(self.mapping.len());
        let end = goal.min(from.saturating_add(grower.piece).next_multiple_of(self.geometry.chunk));
        let begun = Instant::now();
        self.allocate(grower, from, end)?;
        let (mut took, len) = (begun.elapsed(), self.mapping.len());
        if urgent || !grower.slow || grower.allocated >= goal {
            let new_len = self.publish(grower)?;
            let begun = Instant::now();
            self.touch(len..new_len);
            took += begun.elapsed();
        }
        if end > from {
            grower.learn(end - from, took, self.geometry.chunk);
        }
        Ok(self.mapping.len())
    }

    /// How far a writer that finds no space grows the pool: at least as far as it has to, further if there is room.
    fn target(&self, len: u64, min_len: u64, piece: u64) -> Result<(u64, u64)> {
        let (chunk, max) = (self.geometry.chunk, self.most());
        let least = min_len.checked_next_multiple_of(chunk).filter(|l| *l <= max);
        let least = least.ok_or(Error::Full { needed: min_len })?;
        let driven = self.growth.get().is_some_and(|growth| growth.is_driven());
        let step = if driven { piece.max(chunk) } else { (len / 2).clamp(chunk, MAX_STEP) };
        Ok((least, least.max(len.saturating_add(step.next_multiple_of(chunk))).min(max)))
    }
}

impl<M: Medium> Grow for Arc<PoolFile<M>> {
    fn grow(&self, min_len: u64) -> Result<u64> {
        self.refuse_read_only()?;
        let grower = &mut *self.grower();
        let len = self.mapping.len();
        if min_len <= len {
            return Ok(len);
        }
        let (least, wanted) = self.target(len, min_len, grower.piece)?;
        let (from, begun) = (grower.allocated.max(len), Instant::now());
        match self.allocate(grower, least, wanted) {
            Ok(()) if wanted > from => grower.learn(wanted - from, begun.elapsed(), self.geometry.chunk),
            // What was allocated ahead, and is not published yet, is enough.
            Err(Error::DiskFull { .. }) if from >= least => {}
            done => done?,
        }
        self.publish(grower)
    }

    fn is_low(&self) {
        self.growth.get().inspect(|growth| growth.wake());
    }
}

/// The service that grows a pool ahead of need.
pub(super) struct Growth<M: Medium> {
    file: Arc<PoolFile<M>>,
    space: Arc<Space<M>>,
    /// The length at which there was no room for more.
    refused: AtomicU64,
    /// 1 from the first piece below the watermark to the last.
    growing: AtomicU64,
}

impl<M: Medium> Growth<M> {
    pub(super) fn new(file: Arc<PoolFile<M>>, space: Arc<Space<M>>) -> Arc<Self> {
        Arc::new(Growth { file, space, refused: AtomicU64::new(0), growing: AtomicU64::new(0) })
    }

    fn is_refused(&self) -> bool {
        let (m, len) = (self.file.mapping.medium(), self.file.mapping.len());
        len >= self.file.most() || m.shared_load(&self.refused, Ordering::Relaxed) == len
    }
}

impl<M: Medium> Service<M> for Growth<M> {
    fn name(&self) -> String {
        format!("the growth of {}", self.file.name)
    }

    fn lane(&self) -> Lane {
        Lane::Disk
    }

    fn due(&self) -> Due {
        if self.file.refuse_read_only().is_err() || self.is_refused() {
            return Due::No;
        }
        let m = self.file.mapping.medium();
        match self.space.level() {
            None => Due::In(SOON),
            Some(level) if level.is_critical() => Due::Now(Urgency::Pressing),
            Some(level) if level.is_low() => Due::Now(Urgency::Due),
            Some(_) if m.shared_load(&self.growing, Ordering::Relaxed) == 1 => Due::Now(Urgency::Leisure),
            Some(_) => Due::No,
        }
    }

    fn step(&self, session: &mut Session<M>) -> Result<()> {
        // A pool that was closed does not grow any more.
        drop(session.enter()?);
        let Some(level) = self.space.level() else { return Ok(()) };
        let (m, len) = (self.file.mapping.medium(), self.file.mapping.len());
        let goal = len + level.wanted();
        m.shared_store(&self.growing, 1, Ordering::Relaxed);
        match self.file.grow_ahead(goal, level.is_critical()) {
            Ok(len) => {
                self.space.take_over(m, len);
                m.shared_store(&self.growing, u64::from(len < goal), Ordering::Relaxed);
            }
            // Whoever needs more will be told.
            Err(Error::Full { .. } | Error::DiskFull { .. }) => m.shared_store(&self.refused, len, Ordering::Relaxed),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Level {
    /// Free bytes that growth aims at: half of the pool, at most [`MAX_STEP`].
    fn goal(self) -> u64 {
        (self.total / 2).clamp(self.chunk, MAX_STEP).next_multiple_of(self.chunk)
    }

    /// Whether growth has to go on.
    pub(crate) fn is_low(self) -> bool {
        self.free < (self.goal() / 2).max(self.chunk)
    }

    /// Whether writers will soon find nothing.
    fn is_critical(self) -> bool {
        self.free < self.goal() / 4
    }

    /// Bytes to be added.
    fn wanted(self) -> u64 {
        self.goal().saturating_sub(self.free).next_multiple_of(self.chunk)
    }
}
