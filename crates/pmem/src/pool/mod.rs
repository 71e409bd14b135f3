//! Pools: a header, lanes, named roots and space in one mapped file.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`], [`geometry`] | what lies where in the file |
//! | `journaled`, `dropping` | commits of a pool with a journal; dropping pages from memory that the file has |
//! | `header` | whether a file is a sound pool, and whether it was closed |
//! | `open` | creating, opening ([`Unrecovered`]) and recovering |
//! | `file` | the mapped file, and closing it |
//! | `growth` | making it longer, ahead of need and when space has run out |
//! | `pages` | the checksums of a journaled pool's pages, judged |
//! | [`recovery`] | the recovery of logs, before anybody gets a structure |
//! | `roots` | named indices, failure-atomic |
//! | `structure` | [`Structure`]s opened by name, [`Root`] |
//! | [`tally`] | what an index held when its pool was closed |
//! | `with_journal` | what a pool with a journal offers beside that |

mod asking;
mod before_drop;
mod dropping;
mod file;
mod gather;
pub mod geometry;
mod grower;
mod growth;
mod guarantee;
mod header;
mod indices;
mod journaled;
pub mod layout;
mod moments;
mod open;
mod options;
mod pages;
mod poison;
pub mod recovery;
mod roots;
mod salvage;
mod scrubbing;
mod shown;
mod stats;
mod structure;
pub mod tally;
#[cfg(test)]
mod tests;
mod whole;
mod with_journal;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use before_drop::BeforeDrop;
pub use geometry::Geometry;
pub use guarantee::{Durability, Guarantee, Reach};
pub use header::State;
pub use indices::IndexInfo;
pub use moments::Moments;
pub use open::Unrecovered;
pub use options::{DEFAULT_INITIAL_SIZE, DEFAULT_MAX_SIZE, DEFAULT_SCRUB, PoolOptions};
pub use pages::{DamagedPage, PageOwner, PageReport};
pub use poison::{Poison, PoisonGuard};
pub use recovery::{Recovery, RecoveryError};
pub use shown::Shown;
pub use stats::Stats;
pub use structure::{Root, Structure};
pub use whole::Whole;

pub use crate::ids::{BootId, PoolId};
pub use crate::journal::Progress;
pub use crate::kind::Kind;

use crate::epoch::{Epochs, Needs};
use crate::error::{Error, Result};
use crate::lock::{Lock, LockGuard};
use crate::mapping::Mapping;
use crate::medium::{Hardware, Medium};
use crate::offset::Off;
use crate::service::{Lane, Services, Tick};
use crate::session::{Op, Session};
use crate::space::Space;
use dropping::Dropper;
use file::{CLOSE_PATIENCE, PoolFile};
use growth::Growth;
use header::HeaderRef;
use journaled::{Checkpointer, Committer};
use scrubbing::Scrubber;
use structure::Registry;

/// How long dropping the last handle waits for them, without anyone to tell.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// An open pool. Clones share it; when the last clone and the last structure are gone, it is closed.
pub struct Pool<M: Medium = Hardware> {
    inner: Arc<Inner<M>>,
    /// Whether this handle belongs to the recovery of a log: it opens structures while others may not yet.
    recovers: bool,
}

/// A handle to a pool that does not keep it open.
pub struct WeakPool<M: Medium = Hardware> {
    inner: Weak<Inner<M>>,
}

impl<M: Medium> WeakPool<M> {
    /// The pool, if it is still there.
    pub fn upgrade(&self) -> Option<Pool<M>> {
        self.inner.upgrade().map(|inner| Pool { inner, recovers: false })
    }
}

impl<M: Medium> Clone for WeakPool<M> {
    fn clone(&self) -> Self {
        WeakPool { inner: Weak::clone(&self.inner) }
    }
}

impl<M: Medium> fmt::Debug for WeakPool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakPool")
    }
}

struct Inner<M: Medium> {
    file: Arc<PoolFile<M>>,
    id: PoolId,
    space: Arc<Space<M>>,
    /// Kept for the services.
    _growth: Arc<Growth<M>>,
    registry: Lock<Registry<M>>,
    /// The logs that ask for recovery; no structure is handed out before there are none.
    asking: Lock<Vec<asking::Asking>>,
    /// Who is asked before an index is dropped.
    before_drops: before_drop::Asked<M>,
    services: Services<M>,
    /// The checkpoint epochs, once a structure that takes part was opened.
    epochs: Arc<Lock<Option<Arc<Epochs<M>>>>>,
    /// What commits, where there is a journal.
    committer: Option<Arc<Committer<M>>>,
    /// What checkpoints the journal, where there is one.
    _checkpointer: Option<Arc<Checkpointer<M>>>,
    /// What drops written pages, where there is a journal.
    dropper: Option<Arc<Dropper<M>>>,
    /// What reads pages and compares them with their checksums, where there is a journal.
    _scrubber: Option<Arc<Scrubber<M>>>,
    /// 1 once it was closed.
    closed: AtomicU64,
    /// The first structure that met a panic.
    poisoned: Lock<Option<String>>,
    /// What closed indices held.
    tallies: tally::Tallies,
    /// What the table of space was when the pool was opened.
    table: salvage::Table,
    /// What was wrong with header and root entries, of a pool that was opened for repair.
    mended: Vec<String>,
}

impl<M: Medium> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Pool { inner: Arc::clone(&self.inner), recovers: self.recovers }
    }
}

impl<M: Medium> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("file", &self.inner.file).field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl<M: Medium> Pool<M> {
    fn new(
        file: Arc<PoolFile<M>>,
        id: PoolId,
        space: Space<M>,
        asking: Vec<asking::Asking>,
        table: salvage::Table,
        mended: Vec<String>,
    ) -> Self {
        let (services, space) = (Services::new(file.mapping.medium()), Arc::new(space));
        let growth = Growth::new(Arc::clone(&file), Arc::clone(&space));
        let _ = file.growth.set(services.register(&growth));
        let epochs = Arc::new(Lock::new(None));
        let committer = file.journal.get().map(|journal| {
            let (file, journal, epochs) = (Arc::clone(&file), Arc::clone(journal), Arc::clone(&epochs));
            Arc::new(Committer { file, journal, epochs, settled: AtomicU64::new(0) })
        });
        let checkpointer = committer.as_ref().map(|committer| {
            services.register(committer);
            let checkpointer = Arc::new(Checkpointer(Arc::clone(committer)));
            let _ = file.checkpointer.set(services.register(&checkpointer));
            checkpointer
        });
        let dropper = committer.as_ref().map(|committer| Arc::new(Dropper::new(Arc::clone(committer))));
        if let Some(dropper) = &dropper {
            let _ = file.dropper.set(services.register(dropper));
        }
        let scrubs = committer.as_ref().filter(|committer| !committer.journal.scrub_every.is_zero());
        let scrubber = scrubs.map(|committer| {
            let (space, every) = (Arc::clone(&space), committer.journal.scrub_every);
            let scrubber = Arc::new(Scrubber::new(Arc::clone(committer), space, every));
            services.register(&scrubber);
            scrubber
        });
        let inner = Inner {
            committer,
            _checkpointer: checkpointer,
            dropper,
            _scrubber: scrubber,
            services,
            file,
            id,
            space,
            _growth: growth,
            registry: Lock::new(Registry::default()),
            asking: Lock::new(asking),
            before_drops: Lock::default(),
            epochs,
            closed: AtomicU64::new(0),
            poisoned: Lock::new(None),
            tallies: tally::Tallies::default(),
            table,
            mended,
        };
        Pool { inner: Arc::new(inner), recovers: false }
    }

    /// Opens a session: a thread's ticket to the pool. Two of the mapping's sessions are the pool's own.
    ///
    /// # Errors
    /// [`Error::TooManySessions`], [`Error::Forked`].
    pub fn session(&self) -> Result<Session<M>> {
        self.inner.file.mapping.session()
    }

    /// What the pool is mapped to.
    pub fn mapping(&self) -> &Mapping<M> {
        &self.inner.file.mapping
    }

    /// The allocator.
    pub fn space(&self) -> &Space<M> {
        &self.inner.space
    }

    /// The checkpoint epochs, opened with the first call: see [`Epochs`]. From then on closing the pool crosses a last
    /// boundary.
    ///
    /// # Errors
    /// As [`Epochs::open`]; [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`].
    pub fn epochs(&self) -> Result<Arc<Epochs<M>>> {
        let mut session = self.session()?;
        let op = session.enter()?;
        let mut epochs = self.inner.epochs.lock(self.mapping().medium());
        if let Some(epochs) = &*epochs {
            return Ok(Arc::clone(epochs));
        }
        let geometry = *self.geometry();
        let seats = Box::new(move |op: &Op<'_, M>, f: &mut dyn FnMut(Needs)| roots::needs(op, &geometry, f));
        let opened = Arc::new(Epochs::open_with(&op, self.mapping(), Off::new(geometry::EPOCHS_OFF), 1, seats)?);
        *epochs = Some(Arc::clone(&opened));
        drop(epochs);
        self.services().register(&opened);
        Ok(opened)
    }

    /// What runs outside of operations: see [`service`](crate::service).
    pub fn services(&self) -> &Services<M> {
        &self.inner.services
    }

    /// Runs a step of the most urgent service that is due. Call it as often as you like, from any thread; it may wait for a
    /// disk.
    ///
    /// # Errors
    /// [`Error::Service`]: a step has failed, and whoever has nobody to tell [reports](Services::report) it;
    /// [`Error::ForeignSession`], [`Error::Forked`], [`Error::Shut`].
    pub fn tick(&self, session: &mut Session<M>) -> Result<Tick> {
        self.tick_in(session, &Lane::ALL)
    }

    /// As [`tick`](Self::tick), for the services of some lanes.
    ///
    /// # Errors
    /// As [`tick`](Self::tick).
    pub fn tick_in(&self, session: &mut Session<M>, lanes: &[Lane]) -> Result<Tick> {
        if !session.mapping().is_same(self.mapping()) {
            return Err(Error::ForeignSession);
        }
        if self.mapping().is_forked() {
            return Err(Error::Forked);
        }
        self.services().tick(session, lanes)
    }

    /// A handle that does not keep the pool open.
    pub fn downgrade(&self) -> WeakPool<M> {
        WeakPool { inner: Arc::downgrade(&self.inner) }
    }

    /// Where its parts lie.
    pub fn geometry(&self) -> &Geometry {
        &self.inner.file.geometry
    }

    /// Its identity.
    pub fn id(&self) -> PoolId {
        self.inner.id
    }

    /// What messages call it: the path of its file.
    pub fn name(&self) -> &str {
        &self.inner.file.name
    }

    /// What was wrong with its header and its root entries, and what was taken instead, if it was opened
    /// [for repair](PoolOptions::for_repair).
    pub fn mended(&self) -> &[String] {
        &self.inner.mended
    }

    /// Whether changes stay in this process.
    pub fn is_read_only(&self) -> bool {
        self.inner.file.refuse_read_only().is_err()
    }

    /// Whether the pool was closed when it was opened, and no update has panicked since. What looks interrupted is damaged then, in a structure
    /// that was recovered since the last crash: [`crashes`](Self::crashes) tells.
    pub fn is_as_closed(&self) -> bool {
        self.inner.file.was_closed && self.inner.poisoned.lock(self.mapping().medium()).is_none()
    }

    /// How often it was opened that had not been closed, modulo 2^16; this time is counted where it is open for writing. A structure that
    /// notes the number when it has recovered, and finds another one the next time, may hold what an interrupted update has left, also
    /// in a pool that [`is_as_closed`](Self::is_as_closed): the last programs need not have opened it.
    pub fn crashes(&self, op: &Op<'_, M>) -> u16 {
        HeaderRef::new(op, &self.inner.file.name).crashes()
    }

    /// Refuses where changes would stay in this process. What is built over structures asks before it changes one: they
    /// themselves work in a pool that was opened for reading, as recovery has to.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    #[inline]
    pub fn ensure_writable(&self) -> Result<()> {
        // The recovery of a log works in a pool that was opened for reading as that of a structure does.
        if self.recovers { Ok(()) } else { self.inner.file.refuse_read_only() }
    }

    /// What its contents survive: the pool's part of what is promised. A structure may promise less than that an operation is durable
    /// when it returns: [`Guarantee::with`] adds its contract.
    pub fn guarantee(&self) -> Guarantee {
        let file = &self.inner.file;
        if let Some(level) = self.level() {
            let guarantee = Guarantee::at(level);
            return if file.backing.is_in_memory() { guarantee.in_memory() } else { guarantee };
        }
        Guarantee::of(file.mapping.medium().survives(), file.backing.kind(), self.is_read_only())
    }

    /// Closes the pool: waits for operations in flight, says "closed" in its header, and lets another opener have it.
    /// Sessions and clones that are left get [`Error::Shut`]. Closing twice does nothing.
    ///
    /// # Errors
    /// [`Error::InUse`] while a structure is open, [`Error::Busy`] if operations do not end: the pool then stays open.
    /// [`Error::Poisoned`]: it is shut, and the next opening recovers it. [`Error::Forked`], [`Error::Io`].
    pub fn close(&self) -> Result<()> {
        let m = self.mapping().medium();
        if m.shared_load(&self.inner.closed, Ordering::Acquire) == 1 {
            return Ok(());
        }
        if self.mapping().is_forked() {
            // Before any lock: a thread that this process does not have may hold it.
            return Err(Error::Forked);
        }
        // A step keeps its structure alive.
        let _paused = self.inner.services.pause(CLOSE_PATIENCE);
        // A look before operations are waited for, so that nobody waits for nothing. The one that counts comes behind the gate.
        let alive = self.registry().alive();
        if let Some(owner) = alive {
            return Err(in_use(&self.indices().unwrap_or_default(), owner));
        }
        self.inner.shut(CLOSE_PATIENCE)
    }

    fn registry(&self) -> LockGuard<'_, Registry<M>, M> {
        self.inner.registry.lock(self.mapping().medium())
    }
}

/// The error of an index that somebody has.
fn in_use(indices: &[IndexInfo], owner: crate::Owner) -> Error {
    let info = indices.iter().find(|info| info.owner == owner);
    Error::InUse { name: info.map_or_else(|| format!("#{}", owner.0), |info| info.name.clone()) }
}

impl<M: Medium> Inner<M> {
    /// Refuses while somebody creates, opens or drops an index, or has one open.
    fn ensure_unused(&self, op: &Op<'_, M>) -> Result<()> {
        let alive = self.registry.lock(op.medium()).alive();
        let indices = || indices::list(op, &self.file.geometry).unwrap_or_default();
        alive.map_or(Ok(()), |owner| Err(in_use(&indices(), owner)))
    }

    fn shut(&self, patience: Duration) -> Result<()> {
        let m = self.file.mapping.medium();
        let paused = self.services.pause(patience);
        if !paused.is_complete() {
            return Err(Error::Busy { operations: 1, waited: patience });
        }
        let may_be_clean = |session: &mut Session<M>| {
            // Whoever opens an index enters an operation to get hold of its name: nobody does any more.
            self.ensure_unused(&session.enter_exclusive())?;
            Ok(self.poisoned.lock(m).is_none())
        };
        self.file.shut(patience, may_be_clean, |session, writer| {
            // As for indices: epochs may have been opened until the gate was closed.
            let epochs = self.epochs.lock(m).clone();
            // PERSIST EP-Z1: nothing can happen any more in the epoch that this begins.
            epochs.map_or(Ok(()), |epochs| epochs.cross(session, true))?;
            {
                let op = session.enter_exclusive();
                let crashes = HeaderRef::new(&op, &self.file.name).crashes();
                let marked = self.tallies.write(&op, &self.file.geometry, crashes);
                if self.table.write_mark(&op, &self.space, crashes) || marked {
                    op.fence(); // PERSIST PL-T1<PL-Z2: flush+fence
                }
            }
            match (&self.committer, writer) {
                (Some(committer), Some(writer)) => committer.finish(writer, session),
                _ => Ok(()),
            }
        })?;
        m.shared_store(&self.closed, 1, Ordering::Release);
        let poisoned = self.poisoned.lock(m).clone();
        poisoned.map_or(Ok(()), |name| Err(Error::Poisoned { name }))
    }
}

impl<M: Medium> Drop for Inner<M> {
    fn drop(&mut self) {
        if *self.closed.get_mut() == 0 && !self.file.mapping.is_forked() {
            // What cannot be closed stays marked as open, and the next opening recovers it; that is all it costs.
            if self.shut(DROP_PATIENCE).is_err() {
                self.file.mapping.shut();
            }
        }
    }
}
