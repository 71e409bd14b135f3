//! Pools: a header, lanes, named roots and space in one mapped file.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`], [`geometry`] | what lies where in the file |
//! | `header` | whether a file is a sound pool, and whether it was closed |
//! | `open` | creating, opening ([`Unrecovered`]) and recovering |
//! | `file` | growing and closing |
//! | `roots` | named indices, failure-atomic |
//! | `structure` | [`Structure`]s opened by name, [`Root`] |

mod file;
pub mod geometry;
mod guarantee;
mod header;
pub mod layout;
mod open;
mod options;
mod poison;
mod roots;
mod stats;
mod structure;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use geometry::Geometry;
pub use guarantee::{Durability, Guarantee, Reach};
pub use header::{BootId, PoolId, State};
pub use open::Unrecovered;
pub use options::{DEFAULT_INITIAL_SIZE, DEFAULT_MAX_SIZE, PoolOptions};
pub use poison::{Poison, PoisonGuard};
pub use roots::Kind;
pub use stats::Stats;
pub use structure::{IndexInfo, Root, Structure};

use crate::backing::Access;
use crate::epoch::{Epochs, Needs};
use crate::error::{Error, Result};
use crate::lock::{Lock, LockGuard};
use crate::mapping::Mapping;
use crate::medium::{Hardware, Medium};
use crate::offset::Off;
use crate::session::{Op, Session};
use crate::space::Space;
use file::PoolFile;
use structure::Registry;

/// How long closing waits for operations in flight.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How long dropping the last handle waits for them, without anyone to tell.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// An open pool. Clones share it; when the last clone and the last structure are gone, it is closed.
pub struct Pool<M: Medium = Hardware> {
    inner: Arc<Inner<M>>,
}

struct Inner<M: Medium> {
    file: Arc<PoolFile<M>>,
    id: PoolId,
    space: Space<M>,
    registry: Lock<Registry<M>>,
    /// The checkpoint epochs, once a structure that takes part was opened.
    epochs: Lock<Option<Arc<Epochs<M>>>>,
    /// 1 once it was closed.
    closed: AtomicU64,
    /// The first structure that met a panic.
    poisoned: Lock<Option<String>>,
}

impl<M: Medium> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Pool { inner: Arc::clone(&self.inner) }
    }
}

impl<M: Medium> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("file", &self.inner.file).field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl<M: Medium> Pool<M> {
    fn new(file: Arc<PoolFile<M>>, id: PoolId, space: Space<M>) -> Self {
        let inner = Inner {
            file,
            id,
            space,
            registry: Lock::new(Registry::default()),
            epochs: Lock::new(None),
            closed: AtomicU64::new(0),
            poisoned: Lock::new(None),
        };
        Pool { inner: Arc::new(inner) }
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
        Ok(opened)
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

    /// Whether changes stay in this process.
    pub fn is_read_only(&self) -> bool {
        self.inner.file.access != Access::Shared
    }

    /// Refuses where changes would stay in this process. What is built over structures asks before it changes one: they
    /// themselves work in a pool that was opened for reading, as recovery has to.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    #[inline]
    pub fn ensure_writable(&self) -> Result<()> {
        self.inner.file.refuse_read_only()
    }

    /// What its contents survive. A structure's own contract is added by [`Guarantee::with`].
    pub fn guarantee(&self) -> Guarantee {
        let file = &self.inner.file;
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
        let alive = self.registry().alive();
        if let Some(owner) = alive {
            return Err(Error::InUse { name: self.name_of(owner) });
        }
        self.inner.shut(CLOSE_PATIENCE)
    }

    fn name_of(&self, owner: crate::Owner) -> String {
        let indices = self.indices().unwrap_or_default();
        indices.into_iter().find(|i| i.owner == owner).map_or_else(|| format!("#{}", owner.0), |i| i.name)
    }

    fn registry(&self) -> LockGuard<'_, Registry<M>, M> {
        self.inner.registry.lock(self.mapping().medium())
    }
}

impl<M: Medium> Inner<M> {
    fn shut(&self, patience: Duration) -> Result<()> {
        let m = self.file.mapping.medium();
        let poisoned = self.poisoned.lock(m).clone();
        let epochs = self.epochs.lock(m).clone();
        self.file.shut(patience, poisoned.is_none(), |session| match &epochs {
            // PERSIST Z1: nothing can happen any more in the epoch that this begins.
            Some(epochs) => epochs.cross(session, true),
            None => Ok(()),
        })?;
        m.shared_store(&self.closed, 1, Ordering::Release);
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
