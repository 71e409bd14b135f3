//! Running closures as transactions, again where they have lost a conflict.

use std::sync::Arc;

use durix_pmem::Medium;

use super::running::{self, Running};
use super::tx::{Lost, Transaction};
use crate::db::Db;
use crate::{Error, Result};

/// How often a closure is run at most. An attempt that follows a lost conflict begins with the lock that it has lost, and the
/// transaction grows older than its rivals, so a few are enough but for a storm.
const ATTEMPTS: u32 = 1_000;

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
        let _running = Running::begin(running::id(&**transactions), age)?;
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
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let tx = db.begin()?;
    /// tx.map(&map)?.insert("ada", &36)?;
    /// tx.commit()?;
    /// assert_eq!(map.get("ada")?, Some(36));
    /// # Ok::<(), durix::Error>(())
    /// ```
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
        let place = self.touch(&lost.guard);
        self.wait_for(place, lost.wanted.wanted(), true)
    }
}
