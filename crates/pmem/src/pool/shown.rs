//! How many operations a pool without a journal has done, in its header, for whoever looks at the file from outside: a service that stores
//! two words now and then. They are not written back, and recovery does not read them, so they have no persist order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::Pool;
use super::file::PoolFile;
use super::header::HeaderRef;
use crate::backing::{Access, BackingKind};
use crate::error::Result;
use crate::lock::Lock;
use crate::medium::Medium;
use crate::service::{Due, Service, Urgency};
use crate::session::Session;

/// How long it rests between two steps, at least.
const REST: Duration = Duration::from_millis(250);

/// Shows the operations of a pool as long as it lives: see [`Pool::show_operations`].
pub struct Shown<M: Medium> {
    file: Arc<PoolFile<M>>,
    /// When they were shown last.
    last: Lock<Instant>,
    /// How many had begun and ended then.
    shown: AtomicU64,
}

impl<M: Medium> std::fmt::Debug for Shown<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl<M: Medium> Pool<M> {
    /// Has a service of the pool store in its file how many operations it has done, four times a second while there are any, so that
    /// [`Pool::peek`] tells another process. `None` where nobody could look, or the journal tells it.
    ///
    /// # Errors
    /// [`Error::TooManySessions`](crate::Error::TooManySessions), [`Error::Forked`](crate::Error::Forked), [`Error::Shut`](crate::Error::Shut).
    pub fn show_operations(&self) -> Result<Option<Arc<Shown<M>>>> {
        let file = &self.inner.file;
        if file.backing.kind() == BackingKind::Anonymous || file.access != Access::Shared {
            return Ok(None);
        }
        let (last, shown) = (Lock::new(Instant::now()), AtomicU64::new(0));
        let shown = Arc::new(Shown { file: Arc::clone(file), last, shown });
        shown.step(&mut self.session()?)?;
        self.services().register(&shown);
        Ok(Some(shown))
    }
}

impl<M: Medium> Service<M> for Shown<M> {
    fn name(&self) -> String {
        format!("the count of operations of {}", self.file.name)
    }

    fn due(&self) -> Due {
        let m = self.file.mapping.medium();
        let Some(passed) = self.last.try_lock(m).map(|last| last.elapsed()) else { return Due::In(REST) };
        if passed < REST {
            return Due::In(REST - passed);
        }
        let nothing_new = m.shared_load(&self.shown, Ordering::Relaxed) == self.file.mapping.operations();
        if nothing_new { Due::In(REST) } else { Due::Now(Urgency::Leisure) }
    }

    fn step(&self, session: &mut Session<M>) -> Result<()> {
        let (m, mapping) = (self.file.mapping.medium(), &self.file.mapping);
        // The count of this operation is not part of it: a pool at rest stays at rest.
        let operations = mapping.operations();
        let op = session.enter()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        HeaderRef::new(&op, &self.file.name).show_operations(operations / 2, now);
        drop(op);
        mapping.leave_out_of_operations(1);
        m.shared_store(&self.shown, operations, Ordering::Relaxed);
        *self.last.lock(m) = Instant::now();
        Ok(())
    }
}
