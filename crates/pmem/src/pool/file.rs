//! A pool's file while it is mapped, and the few words of its header that closing changes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::gather::gather;
use super::geometry::Geometry;
use super::grower::Grower;
use super::header::HeaderRef;
use super::pages::Audit;
use crate::backing::{Access, Backing, BackingKind, Window};
use crate::error::{Error, Result};
use crate::journal::layout::{Draft, Images, Place};
use crate::journal::{Journal, MAX_JOURNALED, NotesTicket, PART, Writer};
use crate::lock::Lock;
use crate::mapping::Mapping;
use crate::medium::{Medium, Survives};
use crate::service::Registered;
use crate::session::{Op, Session};

/// How long closing, and a commit, wait for operations in flight.
pub(super) const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// The parts of a pool below its space and its roots.
pub(super) struct PoolFile<M: Medium> {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) name: String,
    pub(super) access: Access,
    /// Whether it was closed when it was opened.
    pub(super) was_closed: bool,
    pub(super) mapping: Mapping<M>,
    pub(super) geometry: Geometry,
    /// Bytes that it may grow to.
    pub(super) max: u64,
    /// Held by whoever makes the pool grow.
    pub(super) grower: Lock<Grower<M>>,
    /// Whether a sync of the file has failed since its length was known to be durable, or an earlier process may have met one: the next sync
    /// that succeeds says nothing of what the failed one should have written.
    pub(super) doubtful: AtomicBool,
    /// The service that makes it grow ahead of need.
    pub(super) growth: OnceLock<Registered<M>>,
    /// Where the medium of a journaled pool notes lines.
    pub(super) notes: Option<Arc<NotesTicket>>,
    /// The journal, if it has one.
    pub(super) journal: OnceLock<Arc<Journal>>,
    /// What was wrong with the header and the root entries, of a pool that is opened for repair.
    pub(super) mended: Option<Vec<String>>,
    /// What judges the pages of a pool that is only read.
    pub(super) audit: OnceLock<Audit>,
    /// The service that checkpoints the journal.
    pub(super) checkpointer: OnceLock<Registered<M>>,
    /// The service that drops written pages.
    pub(super) dropper: OnceLock<Registered<M>>,
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
        if access == Access::Journaled && reserve.len() as u64 > MAX_JOURNALED {
            let rule = "at most 16 TiB for a pool with a journal";
            return Err(Error::BadOption { option: "max_size", value: max, rule });
        }
        backing.map(&Window::new(&reserve, 0..len, access))?;
        let max = max.min(reserve.len() as u64).min(backing.limit());
        let fork_aware = backing.kind() != BackingKind::Anonymous;
        let keep = Box::new(Arc::clone(&backing));
        let mapping = Mapping::new_keeping(reserve, len, medium, fork_aware, Some(keep))?;
        let (grower, closer) = (Lock::new(Grower::new(mapping.session()?)), Lock::new(mapping.session()?));
        let name = backing.describe();
        let (growth, journal, checkpointer) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (audit, dropper) = (OnceLock::new(), OnceLock::new());
        let (notes, doubtful) = (None, AtomicBool::new(false));
        Ok(PoolFile {
            backing,
            name,
            access,
            was_closed: false,
            mapping,
            geometry,
            max,
            grower,
            doubtful,
            growth,
            notes,
            journal,
            mended: None,
            audit,
            checkpointer,
            dropper,
            closer,
        })
    }

    /// Runs `f` in an operation, while nobody else has the mapping.
    pub(super) fn alone<R>(&mut self, f: impl FnOnce(&Self, &Op<'_, M>) -> R) -> R {
        let mut grower = self.grower.lock(self.mapping.medium());
        f(self, &grower.session.enter_past_gate())
    }

    /// Makes what was stored reach the disk, where the medium's own fence does not go that far.
    /// A journaled pool writes what was noted through to its file: so it is created, opened and closed, while nothing but its header
    /// changes and its journal says nothing.
    pub(super) fn settle(&self, op: &Op<'_, M>) -> Result<()> {
        match (self.mapping.medium().survives(), self.access) {
            (_, Access::Journaled) => self.write_through(op),
            (Survives::ProcessDeath, Access::Shared) => self.sync(),
            _ => Ok(()),
        }
    }

    /// The same for the new size of a pool that has grown, while others are at work: a journal carries it with the next commit, before
    /// or together with all that is stored behind the old size.
    pub(super) fn settle_size(&self, op: &Op<'_, M>) -> Result<()> {
        if self.access == Access::Journaled { Ok(()) } else { self.settle(op) }
    }

    fn write_through(&self, op: &Op<'_, M>) -> Result<()> {
        let mut images = Images::default();
        let mut draft = Draft::default();
        self.notes.as_ref().inspect(|notes| _ = gather(op, notes.notes(), &mut draft, |_| {}));
        images.add(draft.seal(Place::default()));
        images.write(PART, |at, bytes| self.backing.write(at, bytes))?;
        self.noting_failure(self.backing.sync())
    }

    /// After a sync: remembers it if it has failed.
    pub(super) fn noting_failure(&self, synced: Result<()>) -> Result<()> {
        synced.inspect_err(|_| self.doubtful.store(true, Ordering::Release))
    }

    /// Makes everything reach the disk, past any page cache.
    pub(super) fn sync(&self) -> Result<()> {
        self.noting_failure(self.backing.sync())?;
        self.mapping.medium().synced();
        Ok(())
    }

    pub(super) fn refuse_read_only(&self) -> Result<()> {
        match self.access {
            Access::Shared | Access::Journaled => Ok(()),
            _ => Err(Error::ReadOnly { name: self.name.clone() }),
        }
    }

    /// Makes the backing and the mapping longer, without the header.
    pub(super) fn extend(&self, len: u64, new_len: u64) -> Result<()> {
        self.backing.map(&Window::new(self.mapping.reserve(), len..new_len, self.access))
    }

    /// Closes the mapping for good: waits for operations, runs `last` and says `clean` in the header if it may, and gives
    /// the lock of the file back. `may_be_clean` is asked when the last operation has ended: one of them may have panicked, or have
    /// opened an index. Where it fails, the mapping stays open.
    pub(super) fn shut(
        &self,
        patience: Duration,
        may_be_clean: impl FnOnce(&mut Session<M>) -> Result<bool>,
        last: impl FnOnce(&mut Session<M>, Option<&mut Writer>) -> Result<()>,
    ) -> Result<()> {
        if self.mapping.is_forked() {
            return Err(Error::Forked);
        }
        let mut session = self.closer.lock(self.mapping.medium());
        // Before the gate is closed: whoever commits closes it while holding the writer.
        let mut writer = self.journal.get().map(|journal| journal.writer());
        self.mapping.quiesce(&mut session, patience, |session| {
            let marked = if may_be_clean(session)? && self.refuse_read_only().is_ok() {
                last(session, writer.as_deref_mut()).and_then(|()| self.mark_clean(session))
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
        self.settle(&op)?; // PERSIST PL-Z1<PL-Z2: sync; where there is none, every session has fenced its own
        HeaderRef::new(&op, &self.name).write_clean();
        self.settle(&op)
    }
}
