//! The ticket of updates that return before they are durable.

use std::fmt;
use std::sync::Arc;

use durix_pmem::{Hardware, Medium, Op, Session};

use crate::shared::Shared;
use crate::transaction::guard::Ending;
use crate::{Error, Index, Result};

/// A ticket for updates that have returned and need not be durable yet, made by [`Map::insert_later`](crate::Map::insert_later) and the
/// other calls of that kind. It collects those of any number of calls, on any number of maps of one database.
///
/// Acknowledge nothing before [`wait`](Self::wait) has returned. Until then a crash can take back any of the updates, each by itself; no
/// other call sees an update that it can take back. The ticket keeps its database open. Dropping it makes the updates durable on persistent
/// memory, too, but does not wait for a journal, or for a checkpoint.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = durix::Db::open_or_create(dir.path().join("app"))?;
/// let stock = db.map::<String, u64>("stock")?;
/// let mut unsettled = durix::Unsettled::new();
/// // All requests of one buffer …
/// let mut answers = Vec::new();
/// for (name, count) in [("apple", 3), ("pear", 5), ("plum", 8)] {
///     answers.push(stock.insert_later(name, &count, &mut unsettled)?);
/// }
/// answers.push(stock.remove_later("pear", &mut unsettled)?);
/// // … are durable after one fence, or one flush of the journal, and are answered then.
/// unsettled.wait()?;
/// assert_eq!(answers, [true, true, true, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Unsettled<M: Medium = Hardware> {
    fences: durix_pmem::Unsettled<M>,
    /// The checkpoint to wait for, where a map is buffered.
    checkpoint: Option<durix_pmem::Ticket>,
    shared: Option<Arc<Shared<M>>>,
}

impl<M: Medium> fmt::Debug for Unsettled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsettled").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl<M: Medium> Default for Unsettled<M> {
    fn default() -> Self {
        Unsettled::new()
    }
}

impl<M: Medium> Unsettled<M> {
    /// A ticket for nothing yet.
    ///
    /// ```
    /// assert!(durix::Unsettled::<durix::Hardware>::new().is_empty());
    /// ```
    pub const fn new() -> Self {
        Unsettled { fences: durix_pmem::Unsettled::new(), checkpoint: None, shared: None }
    }

    /// Whether there is nothing to wait for.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("app"))?;
    /// let stock = db.map::<String, u64>("stock")?;
    /// let mut unsettled = durix::Unsettled::new();
    /// stock.insert_later("apple", &3, &mut unsettled)?;
    /// assert!(!unsettled.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.fences.is_empty() && self.checkpoint.is_none()
    }

    /// Waits until all that it stands for is durable: by one fence on persistent memory, for one commit where the pool has a journal, and
    /// for a checkpoint where a map is buffered. After that it is empty, and can be used again.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("app"))?;
    /// let stock = db.map::<String, u64>("stock")?;
    /// let mut unsettled = durix::Unsettled::new();
    /// stock.insert_later("apple", &3, &mut unsettled)?;
    /// unsettled.wait()?;
    /// assert!(unsettled.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`]: a panic has met one of the maps, the journal has failed, the pool is shut. Nothing may be acknowledged then.
    pub fn wait(&mut self) -> Result<()> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        shared.sessions.with(&shared.pool, |cached| {
            shared.pool.wait(&mut cached.session, &mut self.fences)?;
            let Some(ticket) = self.checkpoint else { return Ok(()) };
            let epochs = shared.transactions.epochs()?;
            // A commit of the journal is a boundary.
            if !epochs.is_durable(ticket) {
                epochs.wait(&mut cached.session, ticket)?;
                shared.pool.commit(&mut cached.session)?;
            }
            shared.transactions.finish_ready(&mut cached.session)
        })?;
        *self = Unsettled { fences: std::mem::take(&mut self.fences), checkpoint: None, shared: None };
        Ok(())
    }

    /// Adds what another ticket stands for.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("app"))?;
    /// let stock = db.map::<String, u64>("stock")?;
    /// let (mut one, mut other) = (durix::Unsettled::new(), durix::Unsettled::new());
    /// stock.insert_later("apple", &3, &mut one)?;
    /// stock.insert_later("pear", &5, &mut other)?;
    /// one.join(other)?;
    /// one.wait()?; // for both
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`] with `ForeignTicket` if it is one of another database: it is dropped then.
    pub fn join(&mut self, mut other: Unsettled<M>) -> Result<()> {
        if let Some(shared) = other.shared.take() {
            self.belong_to(&shared)?;
        }
        self.fences.join(std::mem::take(&mut other.fences))?;
        self.checkpoint = self.checkpoint.max(other.checkpoint);
        Ok(())
    }

    /// Makes it one of a database.
    ///
    /// # Errors
    /// [`Error::Pool`] with `ForeignTicket` if it is one of another.
    pub(crate) fn belong_to(&mut self, shared: &Arc<Shared<M>>) -> Result<()> {
        match &self.shared {
            Some(own) if Arc::ptr_eq(own, shared) => Ok(()),
            Some(_) if !self.is_empty() => Err(Error::Pool(durix_pmem::Error::ForeignTicket)),
            _ => {
                self.shared = Some(Arc::clone(shared));
                Ok(())
            }
        }
    }
}

impl<M: Medium> Unsettled<M> {
    /// Ends the operation of a read. What a buffered map has given needs no checkpoint, as ever.
    pub(crate) fn leave_read(&mut self, op: Op<'_, M>) {
        self.fences = op.finish_reading();
    }
}

/// An operation ends with this ticket.
impl<M: Medium> Ending<M> for Unsettled<M> {
    fn enter<'s>(&mut self, session: &'s mut Session<M>) -> durix_pmem::Result<Op<'s, M>> {
        session.enter_later(&mut self.fences)
    }

    fn leave(&mut self, index: &dyn Index<M>, op: Op<'_, M>) {
        self.checkpoint = self.checkpoint.max(index.ticket(&op).checkpoint());
        // The commit of an update is noted by the guard.
        self.fences = op.finish_reading();
    }
}
