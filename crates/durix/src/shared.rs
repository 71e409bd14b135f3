//! What the handles of a database share.

use std::sync::{Arc, Mutex, OnceLock};

use durix_pmem::pool::Shown;
use durix_pmem::{Epochs, Medium, Pool};

use crate::background::Background;
use crate::sessions::{Cached, Sessions};
use crate::transaction::shared::Transactions;

/// What a database and its maps share.
pub(crate) struct Shared<M: Medium> {
    /// Goes first: its threads use the pool.
    pub(crate) background: Mutex<Option<Background<M>>>,
    pub(crate) pool: Pool<M>,
    pub(crate) sessions: Sessions<M>,
    /// Once a checkpoint was asked for.
    pub(crate) epochs: OnceLock<Arc<Epochs<M>>>,
    /// Held while an index is opened, so that its types are settled by one opener at a time.
    pub(crate) opening: Mutex<()>,
    pub(crate) transactions: Arc<Transactions<M>>,
    /// What stores the number of operations in the file, where no journal tells it.
    pub(crate) shown: OnceLock<Arc<Shown<M>>>,
}

impl<M: Medium> Drop for Shared<M> {
    fn drop(&mut self) {
        // What waits for a checkpoint keeps its indices open, and so the pool. What cannot be finished is left to recovery.
        let finish = |cached: &mut Cached<M>| self.transactions.finish_all(&mut cached.session);
        if !self.transactions.nothing_pending() && self.sessions.with(&self.pool, finish).is_err() {
            self.transactions.abandon();
        }
        self.transactions.leave_log();
    }
}
