//! What the transactions of a database share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use durix_pmem::pool::{BeforeDrop, IndexInfo, Moments};
use durix_pmem::service::Registered;
use durix_pmem::{Epochs, Lock, Medium, Pool, Rmw, Session};

use super::drops::Drops;
use super::guard::Guarded;
use super::locks::{Age, Conflict, Idle};
use super::log::retired::Retirements;
use super::log::room::Rooms;
use super::log::{self, IntentLog};
use super::pending::Pending;
use super::recover;
use super::turns::Turns;
use crate::Index;
use crate::kind;
use crate::versions::Versions;
use crate::visible::Visible;
use crate::{Error, Result};

/// How long a lock is waited for, unless set.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// When the table of a map goes, unless set. With the next transaction it comes back, which takes a moment without operations, some 10 µs. That many
/// plain updates save more.
const IDLE: Idle = Idle { updates: 1024, time: Duration::from_millis(100) };

/// The transactions of a database.
pub(crate) struct Transactions<M: Medium> {
    pub(crate) pool: Pool<M>,
    /// Numbers given to those who lock.
    ages: AtomicU64,
    lock_timeout: AtomicU64,
    idle_updates: AtomicU64,
    idle_nanos: AtomicU64,
    /// The open indices, by owner.
    guards: Mutex<HashMap<u16, Weak<Guarded<M>>>>,
    /// 1 once what a crash has interrupted was finished.
    recovered: AtomicU64,
    recovering: Lock<()>,
    log: Lock<Option<Arc<IntentLog<M>>>>,
    pub(super) retirements: Retirements,
    /// Of commits without records.
    pub(super) rooms: Rooms,
    /// Once a buffered map was in a commit.
    epochs: OnceLock<Arc<Epochs<M>>>,
    pub(super) pending: Pending<M>,
    /// Once a transaction was pending: what finishes the transactions that no thread waits for.
    pub(super) service: OnceLock<Registered<M>>,
    pub(crate) versions: Versions,
    /// The snapshots that wait for pending transactions.
    pub(crate) turns: Turns,
    pub(crate) drops: Drops,
    /// What reads wait for.
    pub(crate) visible: Visible,
}

impl<M: Medium> Transactions<M> {
    pub(crate) fn new(pool: Pool<M>) -> Arc<Self> {
        let transactions = Arc::new(Transactions {
            visible: Visible::new(&pool),
            pool,
            ages: AtomicU64::new(1),
            lock_timeout: AtomicU64::new(LOCK_TIMEOUT.as_nanos() as u64),
            idle_updates: AtomicU64::new(IDLE.updates.into()),
            idle_nanos: AtomicU64::new(IDLE.time.as_nanos() as u64),
            guards: Mutex::default(),
            recovered: AtomicU64::new(0),
            recovering: Lock::new(()),
            log: Lock::new(None),
            retirements: Retirements::new(),
            rooms: Rooms::new(),
            epochs: OnceLock::new(),
            pending: Pending::new(),
            service: OnceLock::new(),
            versions: Versions::new(),
            turns: Turns::new(),
            drops: Drops::default(),
        });
        transactions.pool.ask_before_drops(&transactions);
        transactions
    }

    pub(crate) fn medium(&self) -> M {
        self.pool.mapping().medium()
    }

    pub(crate) fn set_lock_timeout(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.lock_timeout.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn lock_timeout(&self) -> Duration {
        Duration::from_nanos(self.lock_timeout.load(Ordering::Relaxed))
    }

    /// The age of a new transaction.
    pub(super) fn age(&self) -> Age {
        Age::transaction(self.medium().shared_rmw(&self.ages, Rmw::Add, 1))
    }

    /// When the table of a map is idle.
    #[inline]
    pub(super) fn idle(&self) -> Idle {
        let [updates, nanos] = [&self.idle_updates, &self.idle_nanos].map(|word| word.load(Ordering::Relaxed));
        Idle { updates: updates as u32, time: Duration::from_nanos(nanos) }
    }

    pub(crate) fn set_idle(&self, updates: u32, time: Duration) {
        self.idle_updates.store(updates.max(1).into(), Ordering::Relaxed);
        self.idle_nanos.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    // ---- open indices ----

    fn guards(&self) -> MutexGuard<'_, HashMap<u16, Weak<Guarded<M>>>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guard of an index: the one there is, or a new one over `index`.
    pub(crate) fn guard(self: &Arc<Self>, index: Arc<dyn Index<M>>) -> Arc<Guarded<M>> {
        let owner = index.root().owner();
        let mut guards = self.guards();
        if let Some(guard) = guards.get(&owner.0).and_then(Weak::upgrade) {
            return guard;
        }
        let guard = Arc::new(Guarded::new(Arc::clone(self), index));
        guards.insert(owner.0, Arc::downgrade(&guard));
        guard
    }

    /// The guard of an index that is open in this database.
    ///
    /// # Errors
    /// [`Error::ForeignMap`].
    pub(crate) fn guard_of(&self, index: &dyn Index<M>) -> Result<Arc<Guarded<M>>> {
        let root = index.root();
        let foreign = || Error::ForeignMap { index: root.name() };
        if root.pool().id() != self.pool.id() || !same_mapping(root.pool(), &self.pool) {
            return Err(foreign());
        }
        self.guards().get(&root.owner().0).and_then(Weak::upgrade).ok_or_else(foreign)
    }

    /// The guards of all indices that are open.
    pub(crate) fn open_guards(&self) -> Vec<Arc<Guarded<M>>> {
        let mut guards = self.guards();
        guards.retain(|_, guard| guard.strong_count() > 0);
        guards.values().filter_map(Weak::upgrade).collect()
    }

    // ---- the log ----

    /// The log, made where there is none.
    pub(super) fn log(&self) -> Result<Arc<IntentLog<M>>> {
        let mut log = self.log.lock(self.medium());
        if let Some(log) = &*log {
            return Ok(Arc::clone(log));
        }
        let opened = IntentLog::open_or_create(&self.pool)?;
        opened.ask(&self.pool.session()?.enter()?, Moments::AFTER)?;
        Ok(Arc::clone(log.insert(opened)))
    }

    /// The checkpoint epochs; no operation is open.
    pub(crate) fn epochs(&self) -> Result<&Arc<Epochs<M>>> {
        if let Some(epochs) = self.epochs.get() {
            return Ok(epochs);
        }
        let epochs = self.pool.epochs()?;
        Ok(self.epochs.get_or_init(|| epochs))
    }

    /// Closes the log, so that the pool can be closed. The next commit that needs it opens it again. A log that somebody uses, or
    /// that holds a record that counts, stays as it is.
    pub(crate) fn close_log(&self) {
        let m = self.medium();
        if self.rooms.any(m)
            && let Ok(mut session) = self.pool.session()
            && let Ok(op) = session.enter()
        {
            self.rooms.give_back(&op, self.pool.space());
        }
        // Held until the end: a commit gets the log before, and then has it, or after.
        let mut place = self.log.lock(m);
        let Some(log) = &*place else { return };
        let is_used = Arc::strong_count(log) > 1;
        // The last user gives the log back after it has done with the retirements.
        fence(Ordering::Acquire);
        if is_used || !log.is_idle(m) {
            return;
        }
        if let Ok(mut session) = self.pool.session()
            && let Ok(op) = session.enter()
        {
            self.retirements.settle_all(&op);
            self.retirements.clear(m);
            // If it goes on asking, the next opening recovers nothing; that is all it costs.
            let _ = log.ask(&op, Moments::NONE);
            log.give_room_back(&op);
        }
        *place = None;
    }

    /// The same for the last time. What the log still holds is left to the next opener of indices: the pool hands out none before
    /// it is recovered.
    pub(crate) fn leave_log(&self) {
        self.close_log();
        let Some(log) = self.log.lock(self.medium()).take() else { return };
        if let Ok(mut session) = self.pool.session()
            && let Ok(op) = session.enter()
        {
            self.retirements.settle_all(&op);
            log.leave_pending(&op);
        }
    }

    /// Makes durable that no record changes anything again, but those of pending transactions. At most one fence a lane.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is shut.
    pub(crate) fn settle_retirements(&self) -> Result<()> {
        if self.retirements.any(self.medium()) {
            self.retirements.settle_all(&self.pool.session()?.enter()?);
        }
        Ok(())
    }

    /// Finishes what a crash has interrupted, once.
    ///
    /// # Errors
    /// As [`recover::recover`].
    pub(crate) fn recover(&self) -> Result<()> {
        let m = self.medium();
        if m.shared_load(&self.recovered, Ordering::Acquire) == 0 {
            let _recovering = self.recovering.lock(m);
            if m.shared_load(&self.recovered, Ordering::Acquire) == 0 {
                recover::recover(&self.pool)?;
                m.shared_store(&self.recovered, 1, Ordering::Release);
            }
        }
        Ok(())
    }

    // ---- waiting ----

    /// A turn of waiting for a lock. Pending transactions that hold it are finished first.
    pub(super) fn turn(&self, session: &mut Session<M>, conflict: &Conflict, wait: &mut Waiting) -> Result<Turn> {
        if self.pending.finish_for(conflict, session, &self.retirements)? {
            return Ok(Turn::Again);
        }
        Ok(wait.turn(self.medium(), self.lock_timeout()))
    }
}

/// A record must not change an index that gets the place of one that is dropped, and no snapshot may list that.
impl<M: Medium> BeforeDrop<M> for Transactions<M> {
    fn before_drop(&self, session: &mut Session<M>, index: &IndexInfo) -> durix_pmem::Result<()> {
        // Whoever makes the log holds the place of it, and may wait for its name.
        if index.kind.tag == log::KIND.tag {
            return Ok(());
        }
        if !kind::is_internal(index.kind) {
            self.drops.begin();
            if self.versions.is_open() {
                let (name, needed_by) = (index.name.clone(), "a snapshot is open");
                return Err(durix_pmem::Error::StillNeeded { name, needed_by });
            }
        }
        let log = self.log.lock(self.medium()).clone();
        let Some(log) = log else { return Ok(()) };
        let op = session.enter()?;
        // Commits on this index have come to their end. What they have retired will not be done again; what a panic has kept
        // from its end is left to recovery.
        self.retirements.settle_all(&op); // PERSIST TX-R: flush+fence, inside
        match log.names(&op, index.owner) {
            true => Err(durix_pmem::Error::Poisoned { name: index.name.clone() }),
            false => Ok(()),
        }
    }

    fn after_drop(&self, index: &IndexInfo) {
        if !kind::is_internal(index.kind) {
            self.drops.end();
        }
    }
}

fn same_mapping<M: Medium>(a: &Pool<M>, b: &Pool<M>) -> bool {
    a.mapping().reserve().base() == b.mapping().reserve().base()
}

/// What comes of a turn of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Try again.
    Again,
    /// It has taken too long.
    TimedOut,
}

/// Waiting for a lock.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    turns: u32,
    since: Option<Instant>,
}

/// Turns after which the thread sleeps: a lock can be held for as long as a closure runs.
const SLEEPS: u32 = 2_000;

impl Waiting {
    fn turn<M: Medium>(&mut self, m: M, timeout: Duration) -> Turn {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.turns > 64 && since.elapsed() > timeout {
            return Turn::TimedOut;
        }
        m.spin(self.turns);
        if self.turns > SLEEPS {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.turns = self.turns.saturating_add(1);
        Turn::Again
    }
}

#[cfg(test)]
mod tests {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};

    use super::*;
    use crate::Db;

    /// A commit of another thread has got the log, and is going to write its record.
    #[test]
    fn a_log_that_a_commit_uses_is_not_closed() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let map = db.map_of_kind::<u64, u64>("map", "hash").unwrap();
        let both = |value: u64| {
            let tx = |tx: &crate::Transaction| (1..3).try_for_each(|key| tx.map(&map)?.insert(&key, &value).map(drop));
            db.transaction(tx).unwrap();
        };
        both(1);
        let transactions = &db.shared.transactions;
        let log = transactions.log().unwrap();
        assert!(transactions.retirements.any(transactions.medium()));
        transactions.close_log();
        let mut session = db.pool().session().unwrap();
        assert_eq!(log.asks(&session.enter().unwrap()).unwrap(), Moments::AFTER, "a crash is recovered from");
        assert!(transactions.retirements.any(transactions.medium()), "nobody has forgotten what is retired");
        drop(log);
        transactions.close_log();
        let log = IntentLog::existing(db.pool()).unwrap();
        assert_eq!(log.asks(&session.enter().unwrap()).unwrap(), Moments::NONE);
        drop(log);
        both(2);
        let log = transactions.log().unwrap();
        assert_eq!(log.asks(&session.enter().unwrap()).unwrap(), Moments::AFTER);
    }

    /// A panic has kept a commit from its end: its record is left to recovery, and the index must be there.
    #[test]
    fn an_index_that_recovery_will_change_is_not_dropped() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let owner = |name| {
            drop(db.map_of_kind::<u64, u64>(name, "hash").unwrap());
            db.indices().unwrap().into_iter().find(|info| info.name == name).unwrap().owner
        };
        let (left, other) = (owner("left"), owner("other"));
        let transactions = &db.shared.transactions;
        let log = transactions.log().unwrap();
        let mut session = db.pool().session().unwrap();
        {
            let op = session.enter().unwrap();
            let mut draft = Vec::new();
            log::record::begin(&mut draft);
            log::record::push(&mut draft, left, &[1; 8], Some(&[2; 8]));
            let mut lane = log.take(&op, log::record::payload(&draft), &log::room::Need::default()).unwrap();
            lane.write(&op, &transactions.retirements, 0, &mut draft).unwrap();
        }
        let text = db.drop_index("left").unwrap_err().to_string();
        assert!(text.starts_with("index \"left\" met a panic"), "{text}");
        assert_eq!(db.indices().unwrap().len(), 2);
        db.drop_index("other").unwrap();
        assert_eq!(owner("next"), other);
    }

    /// A commit gives way to a snapshot that waits, and to none that comes later.
    #[test]
    fn commits_give_way_to_snapshots_that_wait() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let strict = db.map_of_kind::<u64, u64>("strict", "pset").unwrap();
        let buffered = db.ordered_map_of_kind::<u64, u64>("buffered", "masstree").unwrap();
        let transactions = &db.shared.transactions;
        let waits = transactions.turns.take(transactions.medium());
        let is_done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mixed = |tx: &crate::Transaction| {
                    tx.map(&strict)?.insert(&1, &1)?;
                    tx.map(&buffered)?.insert(&1, &1)?;
                    drop(tx.later());
                    Ok(())
                };
                db.transaction(mixed).unwrap();
                is_done.store(1, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(100));
            assert!(transactions.nothing_pending() && is_done.load(Ordering::Acquire) == 0, "it has not given way");
            let later = transactions.turns.take(transactions.medium());
            drop(waits);
            while is_done.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            drop(later);
        });
        assert!(!transactions.nothing_pending());
        drop(db.snapshot().unwrap());
        assert_eq!(strict.get(&1).unwrap(), Some(1));
    }
}
