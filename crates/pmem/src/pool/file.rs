//! A pool's file while it is mapped: growing it, and the few words of the header that change.

use std::fmt;
use std::sync::Arc;

use super::geometry::Geometry;
use super::header::HeaderRef;
use crate::backing::{Access, Backing, BackingKind};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::mapping::Mapping;
use crate::medium::{Medium, Survives};
use crate::session::{Op, Session};
use crate::space::Grow;

/// A pool grows by half of its size at a time, by at most this many bytes more than it has to.
const MAX_STEP: u64 = 64 << 20;

/// The parts of a pool below its space and its roots.
pub(super) struct PoolFile<M: Medium> {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) name: String,
    pub(super) access: Access,
    pub(super) mapping: Mapping<M>,
    pub(super) geometry: Geometry,
    /// Bytes that it may grow to.
    pub(super) max: u64,
    /// The session of whoever makes the pool grow. Its own, because the thread that needs space is inside an operation of
    /// another session, and because sessions may run out.
    grower: Lock<Session<M>>,
    /// The session of whoever closes the pool. Not the grower's: closing waits for operations, which may be growing.
    closer: Lock<Session<M>>,
}

impl<M: Medium> fmt::Debug for PoolFile<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolFile").field("name", &self.name).field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

impl<M: Medium> PoolFile<M> {
    /// Maps the first `len` bytes of a backing that is locked, with room for `max`.
    pub(super) fn map(
        backing: Arc<dyn Backing>,
        medium: M,
        access: Access,
        len: u64,
        max: u64,
        geometry: Geometry,
    ) -> Result<Self> {
        let reserve = backing.reserve(len, max)?;
        backing.map(&reserve, 0..len, access)?;
        let max = max.min(reserve.len() as u64).min(backing.limit());
        let fork_aware = backing.kind() != BackingKind::Anonymous;
        let keep = Box::new(Arc::clone(&backing));
        let mapping = Mapping::new_keeping(reserve, len, medium, fork_aware, Some(keep))?;
        let (grower, closer) = (Lock::new(mapping.session()?), Lock::new(mapping.session()?));
        let name = backing.describe();
        Ok(PoolFile { backing, name, access, mapping, geometry, max, grower, closer })
    }

    /// Runs `f` in an operation, while nobody else has the mapping.
    pub(super) fn alone<R>(&mut self, f: impl FnOnce(&Self, &Op<'_, M>) -> R) -> R {
        let mut session = self.grower.lock(self.mapping.medium());
        f(self, &session.enter_exclusive())
    }

    /// Makes what was stored reach the disk, where the medium's own fence does not go that far.
    pub(super) fn settle(&self) -> Result<()> {
        match (self.mapping.medium().survives(), self.access) {
            (Survives::ProcessDeath, Access::Shared) => self.sync(),
            _ => Ok(()),
        }
    }

    /// Makes everything reach the disk, past any page cache.
    pub(super) fn sync(&self) -> Result<()> {
        self.backing.sync()?;
        self.mapping.medium().synced();
        Ok(())
    }

    pub(super) fn refuse_read_only(&self) -> Result<()> {
        match self.access {
            Access::Shared => Ok(()),
            _ => Err(Error::ReadOnly { name: self.name.clone() }),
        }
    }

    /// The size to grow to: at least `min_len`, more if there is room.
    fn target(&self, len: u64, min_len: u64) -> Result<(u64, u64)> {
        let chunk = self.geometry.chunk;
        let max = self.max.min(u64::from(u32::MAX) * chunk) / chunk * chunk;
        let least = min_len.checked_next_multiple_of(chunk).filter(|l| *l <= max);
        let least = least.ok_or(Error::Full { needed: min_len })?;
        let step = (len / 2).clamp(chunk, MAX_STEP).next_multiple_of(chunk);
        Ok((least, least.max(len.saturating_add(step)).min(max)))
    }

    fn allocate(&self, least: u64, wanted: u64) -> Result<u64> {
        match self.backing.allocate(wanted) {
            Err(Error::DiskFull { .. }) if least < wanted => self.backing.allocate(least).map(|()| least),
            done => done.map(|()| wanted),
        }
    }

    /// Makes the backing and the mapping longer, without the header.
    pub(super) fn extend(&self, len: u64, new_len: u64) -> Result<()> {
        self.backing.map(self.mapping.reserve(), len..new_len, self.access)
    }

    /// Closes the mapping for good: waits for operations, runs `last` and says `clean` in the header if asked to, and gives
    /// the lock of the file back.
    pub(super) fn shut(
        &self,
        patience: std::time::Duration,
        clean: bool,
        last: impl FnOnce(&mut Session<M>) -> Result<()>,
    ) -> Result<()> {
        if self.mapping.is_forked() {
            return Err(Error::Forked);
        }
        let mut session = self.closer.lock(self.mapping.medium());
        self.mapping.quiesce(&mut session, patience, |session| {
            let marked = if clean && self.access == Access::Shared {
                last(session).and_then(|()| self.mark_clean(session))
            } else {
                Ok(())
            };
            self.mapping.shut();
            marked
        })??;
        self.backing.unlock();
        Ok(())
    }

    fn mark_clean(&self, session: &mut Session<M>) -> Result<()> {
        let op = session.enter_exclusive();
        self.settle()?; // PERSIST Z1<Z2: sync; where there is none, every session has fenced its own
        HeaderRef::new(&op, &self.name).write_clean();
        self.settle()
    }
}

impl<M: Medium> Grow for Arc<PoolFile<M>> {
    fn grow(&self, min_len: u64) -> Result<u64> {
        self.refuse_read_only()?;
        let mut session = self.grower.lock(self.mapping.medium());
        let len = self.mapping.len();
        if min_len <= len {
            return Ok(len);
        }
        let (least, wanted) = self.target(len, min_len)?;
        let new_len = self.allocate(least, wanted)?; // PERSIST G1<G2: the backing syncs
        self.extend(len, new_len)?;
        let op = session.enter_exclusive();
        HeaderRef::new(&op, &self.name).write_size(&self.geometry, new_len);
        self.settle()?; // PERSIST G2<G3: sync
        self.mapping.set_len(new_len);
        Ok(new_len)
    }
}
