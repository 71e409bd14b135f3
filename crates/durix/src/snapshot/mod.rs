//! Snapshots: all maps as of one moment, for as long as the snapshot lives.
//!
//! | module | what it holds |
//! |---|---|
//! | `view` | reading an index as of the moment |

mod view;

use std::fmt;
use std::sync::Arc;

use durix_pmem::pool::{Durability, IndexInfo};
use durix_pmem::{Hardware, Medium, Session};

pub use view::{SnapshotIndex, SnapshotIter, SnapshotMap, SnapshotPairs, SnapshotRange};

use crate::Index;
use crate::db::Db;
use crate::encode::{Key, Value};
use crate::kind;
use crate::map::Map;
use crate::shared::Shared;
use crate::transaction::turns::PATIENCE;
use crate::{Error, Result};

/// A consistent view of all maps of a database, as of one moment.
///
/// It shows what was committed at that moment, all of which is durable; what is written later does not show. It may live
/// long, be held by any thread and across `await`: it holds no operation, and no checkpoint waits for it.
/// While it is open, each update of a key that was not changed since keeps the old value in DRAM, up to
/// [`snapshot_limit`](crate::DbBuilder::snapshot_limit); beyond that the snapshot, not the writer, gets an error.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = durix::Db::open_or_create(dir.path().join("app.durix"))?;
/// let users = db.map::<String, u16>("users")?;
/// users.insert("ada", &1815)?;
/// let snapshot = db.snapshot()?;
/// users.insert("ada", &0)?;
/// users.insert("grace", &1906)?;
/// let then = snapshot.map(&users)?;
/// assert_eq!((then.get("ada")?, then.get("grace")?), (Some(1815), None));
/// assert_eq!(then.iter().count(), 1);
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Snapshot<M: Medium = Hardware> {
    shared: Arc<Shared<M>>,
    number: u64,
    indices: Vec<IndexInfo>,
}

impl<M: Medium> fmt::Debug for Snapshot<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<M: Medium> Snapshot<M> {
    /// A map as of the snapshot's moment. A map that was made later is empty in it.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// assert_eq!(then.get("ada")?, Some(36));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ForeignMap`] where the map is of another database.
    pub fn map<K: Key, V: Value>(&self, map: &Map<K, V, M>) -> Result<SnapshotMap<'_, K, V, M>> {
        Ok(SnapshotMap::new(self.index(map.index())?))
    }

    /// An index as of the snapshot's moment, for the vocabulary of bytes.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// map.insert(&b"k"[..], &b"old"[..])?;
    /// let snapshot = db.snapshot()?;
    /// map.insert(&b"k"[..], &b"new"[..])?;
    /// let then = snapshot.index(map.index())?;
    /// assert_eq!(then.get(b"k")?, Some(b"old".to_vec()));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn index(&self, index: &Arc<dyn Index<M>>) -> Result<SnapshotIndex<'_, M>> {
        Ok(SnapshotIndex::new(self, self.shared.transactions.guard_of(&**index)?))
    }

    /// The indices there were at that moment.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// assert_eq!(then.iter().count(), 1);
    /// assert_eq!(snapshot.indices()[0].name, "ages");
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn indices(&self) -> &[IndexInfo] {
        &self.indices
    }
}

impl<M: Medium> Drop for Snapshot<M> {
    fn drop(&mut self) {
        let transactions = &self.shared.transactions;
        let disarm = || transactions.open_guards().iter().for_each(|guard| guard.keep_versions(false));
        transactions.versions.close(self.number, disarm);
    }
}

/// How often the opening of a snapshot begins anew because an index was made in between.
const ATTEMPTS: u32 = 1_000;

impl<M: Medium> Db<M> {
    /// A consistent view of all maps as of now: see [`Snapshot`].
    ///
    /// Waits for the operations in flight, as a checkpoint does, and then, where an index is buffered, for the checkpoint that
    /// makes durable what the snapshot shows. Afterwards neither waits for the other. While it waits for transactions over strict and buffered
    /// maps, new ones of that kind wait for it, so it is opened however many threads commit them.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// assert_eq!(then.get("ada")?, Some(36));
    /// assert_eq!(map.get("ada")?, Some(37));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`] where operations in flight do not end within 10 s, or the pool is shut; [`Error::Unsettled`] where a transaction that
    /// is committed cannot be finished; [`Error::Conflict`] where other threads make or drop an index again and again.
    pub fn snapshot(&self) -> Result<Snapshot<M>> {
        self.shared.transactions.recover()?;
        for _ in 0..ATTEMPTS {
            let Some(drops) = self.shared.transactions.drops.wait() else { break };
            let indices = self.indices()?;
            let opened = self
                .shared
                .sessions
                .with(&self.shared.pool, |cached| self.open_snapshot(&mut cached.session, indices.clone()))?;
            if self.shared.transactions.drops.none_since(drops) && self.indices()? == indices {
                return Ok(opened);
            }
        }
        Err(Error::Conflict { attempts: ATTEMPTS })
    }

    fn open_snapshot(&self, session: &mut Session<M>, indices: Vec<IndexInfo>) -> Result<Snapshot<M>> {
        let transactions = &self.shared.transactions;
        let pool = &self.shared.pool;
        let is_buffered =
            |info: &IndexInfo| kind::of::<M>(info.kind).is_none_or(|kind| kind.durability != Durability::Strict);
        let epochs = indices.iter().any(is_buffered).then(|| pool.epochs()).transpose()?;
        let mut number = None;
        let (snapshot, ticket) = loop {
            transactions.finish_all(session)?;
            let opened = pool.mapping().quiesce(session, PATIENCE, |session| {
                if !transactions.nothing_pending() {
                    return None;
                }
                let number = transactions.versions.open();
                transactions.open_guards().iter().for_each(|guard| guard.keep_versions(true));
                let ticket = epochs.as_ref().map(|epochs| epochs.ticket(&session.enter_exclusive()));
                Some((Snapshot { shared: Arc::clone(&self.shared), number, indices: indices.clone() }, ticket))
            })?;
            match opened {
                Some(opened) => break opened,
                // A transaction was half done: the next ones give way.
                None => _ = number.get_or_insert_with(|| transactions.turns.take(transactions.medium())),
            }
        };
        drop(number);
        if let (Some(epochs), Some(ticket)) = (epochs, ticket) {
            epochs.wait(session, ticket)?;
        }
        // What a snapshot shows, no crash takes back.
        pool.commit(session)?;
        Ok(snapshot)
    }
}
