//! Commits that do not wait.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use durix_pmem::{Hardware, Medium};

use super::pending::Work;
use crate::shared::Shared;
use crate::{Error, Result, Ticket};

/// Says when a transaction is durable whose commit did not wait: see [`Transaction::later`](super::Transaction::later). Clones stand for the same.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let ages = db.map::<String, u64>("ages")?;              // strict
/// let log = db.ordered_map::<u64, String>("log")?;        // buffered: a commit of both waits for a checkpoint
/// let tx = db.begin()?;
/// tx.map(&ages)?.insert("ada", &36)?;
/// tx.map(&log)?.insert(&1, "ada")?;
/// let later = tx.later();
/// tx.commit()?;                                           // does not wait
/// later.wait()?;
/// assert!(later.is_durable());
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Later<M: Medium = Hardware> {
    shared: Arc<Shared<M>>,
    state: Arc<Mutex<State<M>>>,
}

impl<M: Medium> Clone for Later<M> {
    fn clone(&self) -> Self {
        Later { shared: Arc::clone(&self.shared), state: Arc::clone(&self.state) }
    }
}

impl<M: Medium> fmt::Debug for Later<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").field("is_durable", &self.is_durable()).finish_non_exhaustive()
    }
}

pub(super) enum State<M: Medium> {
    NotCommitted,
    Ticket(Ticket),
    /// The commit of a journaled pool that holds all of it.
    Commit(u64),
    Work(Arc<Work<M>>),
}

impl<M: Medium> Clone for State<M> {
    fn clone(&self) -> Self {
        match self {
            State::NotCommitted => State::NotCommitted,
            State::Ticket(ticket) => State::Ticket(*ticket),
            State::Commit(number) => State::Commit(*number),
            State::Work(work) => State::Work(Arc::clone(work)),
        }
    }
}

impl<M: Medium> Later<M> {
    pub(super) fn new(shared: &Arc<Shared<M>>) -> Self {
        Later { shared: Arc::clone(shared), state: Arc::new(Mutex::new(State::NotCommitted)) }
    }

    pub(super) fn set(&self, state: State<M>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> State<M> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it is durable, and all of it can be seen.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let ages = db.map::<String, u64>("ages")?;              // strict
    /// let log = db.ordered_map::<u64, String>("log")?;        // buffered: a commit of both waits for a checkpoint
    /// let tx = db.begin()?;
    /// tx.map(&ages)?.insert("ada", &36)?;
    /// tx.map(&log)?.insert(&1, "ada")?;
    /// let later = tx.later();
    /// tx.commit()?;                                           // does not wait
    /// db.sync()?;
    /// assert!(later.is_durable());
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn is_durable(&self) -> bool {
        match self.state() {
            State::NotCommitted => false,
            State::Ticket(ticket) => ticket
                .checkpoint()
                .is_none_or(|ticket| self.shared.transactions.epochs().is_ok_and(|epochs| epochs.is_durable(ticket))),
            State::Commit(number) => self.shared.pool.is_settled(number),
            State::Work(work) => work.is_finished(self.shared.transactions.medium()),
        }
    }

    /// Waits for the checkpoint that makes it durable, and takes it unless another thread does. Returns at once where it is durable.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let ages = db.map::<String, u64>("ages")?;              // strict
    /// let log = db.ordered_map::<u64, String>("log")?;        // buffered: a commit of both waits for a checkpoint
    /// let tx = db.begin()?;
    /// tx.map(&ages)?.insert("ada", &36)?;
    /// tx.map(&log)?.insert(&1, "ada")?;
    /// let later = tx.later();
    /// tx.commit()?;                                           // does not wait
    /// later.wait()?;
    /// assert_eq!(ages.get("ada")?, Some(36));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotCommitted`]; [`Error::Unsettled`]; [`Error::Pool`] where the checkpoint cannot be taken.
    pub fn wait(&self) -> Result<()> {
        let state = self.state();
        self.shared.sessions.with(&self.shared.pool, |cached| {
            match &state {
                State::NotCommitted => return Err(Error::NotCommitted),
                State::Ticket(ticket) => {
                    if let Some(ticket) = ticket.checkpoint() {
                        self.shared.transactions.epochs()?.wait(&mut cached.session, ticket)?;
                    }
                }
                State::Commit(number) if self.shared.pool.is_settled(*number) => return Ok(()),
                State::Commit(_) => {}
                State::Work(work) => self.shared.transactions.finish(work, &mut cached.session)?,
            }
            Ok(self.shared.pool.commit(&mut cached.session)?)
        })
    }
}
