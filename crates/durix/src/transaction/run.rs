//! Running closures as transactions, again where they have lost a conflict.

use std::cell::RefCell;
use std::sync::Arc;

use durix_pmem::Medium;

use super::locks::Age;
use super::shared::Transactions;
use super::{Lost, Transaction};
use crate::db::Db;
use crate::{Error, Result};

/// How often a closure is run at most. An attempt that follows a lost conflict begins with the lock that it has lost, and the
/// transaction grows older than its rivals, so a few are enough but for a storm.
const ATTEMPTS: u32 = 1_000;

thread_local! {
    /// The transactions whose closures run on this thread: which database, and which age.
    static RUNNING: RefCell<Vec<(usize, Age)>> = const { RefCell::new(Vec::new()) };
}

fn id<M: Medium>(transactions: &Transactions<M>) -> usize {
    std::ptr::from_ref(transactions).addr()
}

/// Whether a lock is held by a transaction whose closure runs on this very thread: who waits for it waits for itself.
pub(crate) fn is_own<M: Medium>(transactions: &Transactions<M>, holders: &[Age]) -> bool {
    let id = id(transactions);
    RUNNING.with_borrow(|running| running.iter().any(|(of, age)| *of == id && holders.contains(age)))
}

/// A closure that runs on this thread.
struct Running;

impl Running {
    fn begin<M: Medium>(transactions: &Transactions<M>, age: Age) -> Result<Running> {
        let id = id(transactions);
        RUNNING.with_borrow_mut(|running| {
            if running.iter().any(|(of, _)| *of == id) {
                return Err(Error::Nested);
            }
            running.push((id, age));
            Ok(Running)
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closures end in the reverse of the order in which they begin.
        RUNNING.with_borrow_mut(|running| running.pop());
    }
}

impl<M: Medium> Db<M> {
    /// Runs `run` as a transaction: its changes to any number of maps are made together when it returns `Ok`, and none of
    /// them if it returns `Err` or panics.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = durix::Db::open_or_create(dir.path().join("bank.durix"))?;
    /// let accounts = db.map::<String, u64>("accounts")?;
    /// let log = db.map_of_kind::<u64, u64>("transfers", "skiplist")?;
    /// accounts.insert("ada", &100)?;
    /// let left = db.transaction(|tx| {
    ///     let (accounts, log) = (tx.map(&accounts)?, tx.map(&log)?);
    ///     let left = accounts.get("ada")?.unwrap_or(0) - 30;
    ///     accounts.insert("ada", &left)?;
    ///     accounts.insert("grace", &30)?;
    ///     log.insert(&1, &30)?;
    ///     Ok(left)
    /// })?;
    /// assert_eq!((left, accounts.get("grace")?, log.get(&1)?), (70, Some(30), Some(30)));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// **The closure may run more than once.** Of two transactions that want the same key the younger one gives way: its
    /// calls return [`Error::Conflict`], and when the closure has returned (pass errors on with `?`), it is run again, from
    /// the beginning, at most 1000 times. So it must not have effects of its own that may not be repeated.
    ///
    /// Inside, use [`Transaction::map`]. A plain call on a map (`accounts.insert`) is not part of the transaction; on a key
    /// that the transaction has locked it is [`Error::Locked`].
    ///
    /// Durable on return as [`Transaction::commit`].
    ///
    /// # Errors
    /// What `run` returns; an error of your own by [`Error::abort`]. [`Error::Conflict`] after too many attempts.
    /// [`Error::Nested`] inside another transaction of this database on the same thread. Otherwise as
    /// [`Transaction::commit`].
    pub fn transaction<R>(&self, mut run: impl FnMut(&Transaction<M>) -> Result<R>) -> Result<R> {
        let transactions = &self.shared.transactions;
        transactions.recover()?;
        let age = transactions.age();
        let _running = Running::begin(transactions, age)?;
        let mut lost = None;
        for _ in 0..ATTEMPTS {
            let tx = Transaction::new(Arc::clone(&self.shared), age);
            if let Some(lost) = lost.take() {
                tx.begin_with(&lost)?;
            }
            let result = run(&tx);
            lost = tx.state.borrow_mut().lost.take();
            if lost.is_none() {
                let value = result?;
                tx.commit()?;
                return Ok(value);
            }
        }
        Err(Error::Conflict { attempts: ATTEMPTS })
    }

    /// Begins a transaction, to be ended with [`Transaction::commit`]: for those who cannot use a closure. On
    /// [`Error::Conflict`] drop it and begin again.
    ///
    /// # Errors
    /// As the opening of an index.
    pub fn begin(&self) -> Result<Transaction<M>> {
        let transactions = &self.shared.transactions;
        transactions.recover()?;
        Ok(Transaction::new(Arc::clone(&self.shared), transactions.age()))
    }
}

impl<M: Medium> Transaction<M> {
    /// Takes the lock first that the attempt before has lost. Nothing is held, so it may wait for anybody.
    fn begin_with(&self, lost: &Lost<M>) -> Result<()> {
        self.touch(&lost.guard);
        self.wait_for(&lost.guard, lost.wanted.wanted(), true)
    }
}
