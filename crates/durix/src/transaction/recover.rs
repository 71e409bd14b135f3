//! Recovery: finishes the transactions that a crash has interrupted, before anybody gets an index.
//!
//! A record without an epoch, or of an epoch that has ended well, is finished: all its changes are made again, whatever of
//! them there is. A record of a failed epoch is dropped: the buffered maps undo their part, and the strict part was not
//! begun (TX-S). Records of several lanes change different keys, because each of them holds its locks until its retirement is
//! durable (TX-R); so their order does not matter. A crash in recovery is as a crash before it: a record is retired after its
//! changes are durable (TX-D).

use std::collections::BTreeMap;
use std::sync::Arc;

use durix_pmem::pool::{Recovery, RecoveryError};
use durix_pmem::{Epochs, Kind, Medium, Pool, Root, Session};

use durix_rewind::engine::EngineRecovery;

use super::log::{Found, IntentLog, KIND};
use super::put::{put, settle};
use crate::Index;
use crate::Result;
use crate::kind;

/// Finishes the transactions that a crash has interrupted: those over maps, and those of
/// [engines](durix_rewind::engine) that lie in the pool beside the maps. [`Db`](crate::Db) does it when it is opened; it is for tools that open
/// the indices of a pool by themselves, and has to come before that: the pool refuses until then. In a pool opened for
/// reading, it changes only what this process sees. Does nothing where nothing was interrupted.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let pool = db.pool();
/// durix::recover(pool)?;                                // before the indices of a pool are opened without a `Db`
/// let index = durix::kind::named("pset")?.open_or_create(pool, "raw")?;
/// assert!(index.is_empty(&pool.session()?.enter()?)?);
/// # Ok::<(), durix::Error>(())
/// ```
///
/// # Errors
/// As [`Pool::recover_logs`]: what opening an index says; where the pool is full.
pub fn recover<M: Medium>(pool: &Pool<M>) -> Result<()> {
    // Words of engines come before any structure is opened, intents after: see `Recovery`.
    Ok(pool.recover_logs(&[&EngineRecovery, &Intents])?)
}

/// The recovery of the log of intents.
struct Intents;

impl<M: Medium> Recovery<M> for Intents {
    fn kind(&self) -> Kind {
        KIND
    }

    fn after(&self, session: &mut Session<M>, root: &Root<M>) -> Result<(), RecoveryError> {
        Ok(finish_all(session, root.pool())?)
    }
}

pub(super) fn finish_all<M: Medium>(session: &mut Session<M>, pool: &Pool<M>) -> Result<()> {
    let log = IntentLog::existing(pool)?;
    let found = log.unfinished(&session.enter()?)?;
    let mut indices = Indices { pool, open: BTreeMap::new() };
    for record in &found {
        if has_happened(pool, session, record)? {
            indices.finish(session, record)?;
        }
        log.retire(&session.enter()?, record);
    }
    Ok(())
}

/// Whether the epoch of a record has ended well. It may not have ended where the process goes on with the pool of a database that was dropped: then
/// it ends here.
fn has_happened<M: Medium>(pool: &Pool<M>, session: &mut Session<M>, record: &Found) -> Result<bool> {
    if record.epoch == 0 {
        return Ok(true);
    }
    let epochs: Arc<Epochs<M>> = pool.epochs()?;
    let current = epochs.current(&session.enter()?);
    // A crash ends its epoch: so the current one was begun by this process.
    if record.epoch == current && !pool.is_read_only() {
        epochs.sync(session)?;
        return Ok(true);
    }
    Ok(record.epoch < current && !epochs.is_failed(record.epoch))
}

/// The indices that records change, opened when they are needed.
struct Indices<'p, M: Medium> {
    pool: &'p Pool<M>,
    open: BTreeMap<u16, Option<Arc<dyn Index<M>>>>,
}

impl<M: Medium> Indices<'_, M> {
    fn finish(&mut self, session: &mut Session<M>, record: &Found) -> Result<()> {
        for intent in &record.intents {
            // An index that is not there any more was dropped after the transaction.
            let Some(index) = self.index(intent.owner.0)? else { continue };
            let op = session.enter()?;
            put(&*index, &op, &intent.key, intent.value.as_deref())?;
            settle(&*index, &op);
        }
        Ok(())
    }

    fn index(&mut self, owner: u16) -> Result<Option<Arc<dyn Index<M>>>> {
        if let Some(index) = self.open.get(&owner) {
            return Ok(index.clone());
        }
        let info = self.pool.readable_indices()?.0.into_iter().find(|info| info.owner.0 == owner);
        let index = info.map(|info| kind::open_as_is(self.pool, &info.name)).transpose()?;
        self.open.insert(owner, index.clone());
        Ok(index)
    }
}
