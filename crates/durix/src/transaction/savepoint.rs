//! Savepoints: moments of a transaction that it can go back to.

use std::fmt;

use durix_pmem::{Hardware, Medium};

use super::touched::Changes;
use super::tx::Transaction;

/// A moment of a [`Transaction`]: its changes can be made what they were then. See [`Transaction::savepoint`].
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.map::<String, u64>("ages")?;
/// db.transaction(|tx| {
///     let map = tx.map(&map)?;
///     map.insert("ada", &36)?;
///     let before = tx.savepoint();
///     map.insert("ada", &37)?;
///     before.rollback();
///     assert_eq!(map.get("ada")?, Some(36));
///     Ok(())
/// })?;
/// # Ok::<(), durix::Error>(())
/// ```
#[must_use = "a savepoint does nothing by itself"]
pub struct Savepoint<'t, M: Medium = Hardware> {
    tx: &'t Transaction<M>,
    /// For each map that the transaction had touched.
    parts: Vec<Changes>,
}

impl<M: Medium> fmt::Debug for Savepoint<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint").field("tx", self.tx).finish_non_exhaustive()
    }
}

impl<M: Medium> Transaction<M> {
    /// Marks this moment, so that what the transaction changes later can be taken back without giving up the rest. Linear in the changes so
    /// far, and no more: nothing is written.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("orders.durix"))?;
    /// let orders = db.map::<u64, String>("orders")?;
    /// db.transaction(|tx| {
    ///     let orders = tx.map(&orders)?;
    ///     orders.insert(&1, "bolts")?;
    ///     let before = tx.savepoint();
    ///     orders.insert(&1, "nuts")?;
    ///     orders.insert(&2, "washers")?;
    ///     before.rollback();
    ///     assert_eq!((orders.get(&1)?.as_deref(), orders.get(&2)?), (Some("bolts"), None));
    ///     Ok(())
    /// })?;
    /// assert_eq!(orders.get(&1)?.as_deref(), Some("bolts"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn savepoint(&self) -> Savepoint<'_, M> {
        let mut state = self.state.borrow_mut();
        Savepoint { tx: self, parts: state.buffers().parts.iter().map(|part| part.changes_now()).collect() }
    }
}

impl<M: Medium> Savepoint<'_, M> {
    /// Makes the changes of the transaction what they were when the savepoint was taken. It may be called again. All locks stay: the
    /// transaction has seen what it has seen. A transaction that has lost a conflict has lost it all the same.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.map::<String, u64>("ages")?;
    /// db.transaction(|tx| {
    ///     let map = tx.map(&map)?;
    ///     map.insert("ada", &36)?;
    ///     let before = tx.savepoint();
    ///     map.insert("ada", &37)?;
    ///     before.rollback();
    ///     assert_eq!(map.get("ada")?, Some(36));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn rollback(&self) {
        let mut state = self.tx.state.borrow_mut();
        // Maps that were touched later had no changes.
        let then = self.parts.iter().map(Some).chain(std::iter::repeat(None));
        state.buffers().parts.iter_mut().zip(then).for_each(|(part, then)| part.set_changes(then));
    }
}
