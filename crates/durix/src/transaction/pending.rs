//! Transactions that are committed and wait for a checkpoint, or for room, before all their changes are made.
//!
//! The buffered part of a mixed transaction was changed in epoch e. Its strict part is changed after the boundary of e (TX-S):
//! before, a crash would undo the one and not the other. Until then the transaction keeps the locks of its strict maps.
//! A thread that waits for the boundary makes the changes; so does a thread that meets one of the locks, and every sync.
//!
//! Lock order: a [`Work`]'s lock is taken without an operation, and an operation is entered under it. Nobody waits for a
//! `Work`'s lock in an operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use durix_pmem::service::{Due, Service, Urgency};
use durix_pmem::{Epochs, Lock, Medium, Rmw, Session, Ticket};

use super::locks::{Age, Conflict};
use super::log::LaneGuard;
use super::log::retired::Retirements;
use super::part::Kept;
use super::shared::Transactions;
use crate::{Error, Result};

/// A transaction whose strict part is still to be changed.
pub(crate) struct Work<M: Medium> {
    age: Age,
    /// The boundary that comes first.
    ticket: Option<(Arc<Epochs<M>>, Ticket)>,
    /// `None` once it is finished.
    left: Lock<Option<Left<M>>>,
}

struct Left<M: Medium> {
    parts: Vec<Kept<M>>,
    lane: LaneGuard<M>,
}

impl<M: Medium> Work<M> {
    pub(super) fn new(
        age: Age,
        ticket: Option<(Arc<Epochs<M>>, Ticket)>,
        parts: Vec<Kept<M>>,
        lane: LaneGuard<M>,
    ) -> Arc<Self> {
        Arc::new(Work { age, ticket, left: Lock::new(Some(Left { parts, lane })) })
    }

    /// Whether its boundary has come.
    fn is_ready(&self) -> bool {
        self.ticket.as_ref().is_none_or(|(epochs, ticket)| epochs.is_durable(*ticket))
    }

    pub(super) fn is_finished(&self, m: M) -> bool {
        self.left.lock(m).is_none()
    }

    fn wait(&self, session: &mut Session<M>) -> Result<()> {
        match &self.ticket {
            Some((epochs, ticket)) => Ok(epochs.wait(session, *ticket)?),
            None => Ok(()),
        }
    }

    /// Changes what is left, in one operation, unless another thread has.
    fn run(&self, session: &mut Session<M>, retirements: &Retirements) -> Result<()> {
        let mut left = self.left.lock(session.mapping().medium());
        let Some(work) = left.as_mut() else { return Ok(()) };
        let op = session.enter()?;
        // PERSIST TX-S: the boundary has come
        work.parts.iter().try_for_each(|part| {
            part.part().save(&op)?;
            part.part().change(&op)
        })?;
        let keys = work.parts.iter().flat_map(|kept| kept.part().changed_keys());
        work.lane.retire(&op, retirements, keys);
        work.parts.iter().for_each(|part| part.part().unlock(self.age));
        *left = None;
        Ok(())
    }
}

/// The pending transactions of a database.
pub(crate) struct Pending<M: Medium> {
    works: Lock<Vec<Arc<Work<M>>>>,
    /// How many they are.
    count: AtomicU64,
}

impl<M: Medium> Pending<M> {
    pub(super) fn new() -> Self {
        Pending { works: Lock::new(Vec::new()), count: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, m: M, work: Arc<Work<M>>) -> Arc<Work<M>> {
        self.works.lock(m).push(Arc::clone(&work));
        m.shared_rmw(&self.count, Rmw::Add, 1);
        work
    }

    fn is_empty(&self, m: M) -> bool {
        m.shared_load(&self.count, Ordering::Acquire) == 0
    }

    fn works(&self, m: M) -> Vec<Arc<Work<M>>> {
        if self.is_empty(m) { Vec::new() } else { self.works.lock(m).clone() }
    }

    /// Whether a lock of that age is held by a pending transaction.
    pub(super) fn holds(&self, m: M, age: Age) -> bool {
        self.works(m).iter().any(|work| work.age == age)
    }

    /// Waits for the boundary, and changes what is left.
    ///
    /// # Errors
    /// [`Error::Unsettled`] where a map refuses a change: it stays pending.
    pub(super) fn finish(
        &self,
        work: &Arc<Work<M>>,
        session: &mut Session<M>,
        retirements: &Retirements,
    ) -> Result<()> {
        work.wait(session)?;
        let m = session.mapping().medium();
        work.run(session, retirements).map_err(|error| Error::Unsettled { source: Box::new(error) })?;
        // Whoever finds it finished takes it out: the thread that has finished it may get no processor for a while.
        let mut works = self.works.lock(m);
        if let Some(at) = works.iter().position(|pending| Arc::ptr_eq(pending, work)) {
            works.remove(at);
            m.shared_rmw(&self.count, Rmw::Add, 1u64.wrapping_neg());
        }
        Ok(())
    }

    /// Finishes the pending transactions that stand in the way of a lock. Returns whether one was.
    pub(super) fn finish_for(
        &self,
        conflict: &Conflict,
        session: &mut Session<M>,
        retirements: &Retirements,
    ) -> Result<bool> {
        let m = session.mapping().medium();
        let mut any = false;
        for work in self.works(m).iter().filter(|work| conflict.contains(&work.age)) {
            work.wait(session)?;
            // What a full pool refuses is told to whoever waits for that transaction.
            any |= self.finish(work, session, retirements).is_ok();
        }
        Ok(any)
    }
}

/// How long the service waits for a boundary before it looks again.
const LOOKS_EVERY: Duration = Duration::from_millis(4);

/// Finishes the transactions that no thread waits for, after the checkpoints that others take.
impl<M: Medium> Service<M> for Transactions<M> {
    fn name(&self) -> String {
        "the transactions that wait for a checkpoint".into()
    }

    fn due(&self) -> Due {
        let works = self.pending.works(self.medium());
        match works.iter().any(|work| work.is_ready()) {
            true => Due::Now(Urgency::Due),
            false if works.is_empty() => Due::No,
            false => Due::In(LOOKS_EVERY),
        }
    }

    fn step(&self, session: &mut Session<M>) -> durix_pmem::Result<()> {
        self.finish_ready(session).map_err(|error| match error {
            Error::Pool(error) => error,
            other => durix_pmem::Error::Io {
                action: "finishing a transaction".into(),
                source: std::io::Error::other(other.to_string()),
            },
        })
    }
}

impl<M: Medium> Transactions<M> {
    /// Has what is pending finished by the threads of the database, if it has some.
    pub(super) fn serve(self: &Arc<Self>) {
        self.service.get_or_init(|| self.pool.services().register(self)).wake();
    }

    /// Waits for the boundary of a pending transaction, and changes what is left.
    ///
    /// # Errors
    /// As [`Pending::finish`].
    pub(super) fn finish(&self, work: &Arc<Work<M>>, session: &mut Session<M>) -> Result<()> {
        self.pending.finish(work, session, &self.retirements)
    }

    /// Finishes the pending transactions whose boundary has come.
    ///
    /// # Errors
    /// As [`Pending::finish`].
    pub(crate) fn finish_ready(&self, session: &mut Session<M>) -> Result<()> {
        let works = self.pending.works(self.medium());
        works.iter().filter(|work| work.is_ready()).try_for_each(|work| self.finish(work, session))
    }

    /// Finishes all pending transactions, crossing a boundary if one waits for it.
    ///
    /// # Errors
    /// As [`Pending::finish`].
    pub(crate) fn finish_all(&self, session: &mut Session<M>) -> Result<()> {
        self.pending.works(self.medium()).iter().try_for_each(|work| self.finish(work, session))
    }

    /// Forgets the pending transactions: recovery finishes them, when the pool is opened again.
    pub(crate) fn abandon(&self) {
        self.pending.works.lock(self.medium()).clear();
    }

    /// Whether no transaction is pending.
    pub(crate) fn nothing_pending(&self) -> bool {
        self.pending.is_empty(self.medium())
    }
}

#[cfg(test)]
mod tests {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};

    use crate::{Db, Error};

    /// A thread that has finished a transaction, and gets no processor before it takes it out, keeps no other thread waiting.
    #[test]
    fn a_finished_transaction_that_was_not_taken_out_stands_in_no_snapshots_way() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let strict = db.map_of_kind::<u64, u64>("strict", "pset").unwrap();
        let buffered = db.ordered_map_of_kind::<u64, u64>("buffered", "masstree").unwrap();
        let _later = db
            .transaction(|tx| {
                tx.map(&strict)?.insert(&1, &1)?;
                tx.map(&buffered)?.insert(&1, &1)?;
                Ok(tx.later())
            })
            .unwrap();
        let transactions = &db.shared.transactions;
        let works = transactions.pending.works(transactions.medium());
        let [work] = &works[..] else { panic!("{} are pending", works.len()) };
        let mut session = db.pool().session().unwrap();
        work.wait(&mut session).unwrap();
        work.run(&mut session, &transactions.retirements).unwrap();
        assert!(!transactions.nothing_pending());
        drop(db.snapshot().unwrap());
        assert!(transactions.nothing_pending());
        // The thread goes on.
        transactions.finish(work, &mut session).unwrap();
        assert!(transactions.nothing_pending());
        assert_eq!(strict.get(&1).unwrap(), Some(1));
    }

    /// A database is dropped with a transaction that no thread could finish; the pool stays, and another database takes it over.
    #[test]
    fn what_a_database_has_left_is_finished_before_the_next_one_goes_on() {
        let pool = || PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let over = |pool| Db::builder().no_background_threads().over(pool).unwrap();
        let strict = |db: &Db| db.map_of_kind::<u64, u64>("strict", "pset").unwrap();
        let buffered = |db: &Db| db.ordered_map_of_kind::<u64, u64>("buffered", "masstree").unwrap();
        let pool = pool();
        {
            let db = over(pool.clone());
            let (strict, buffered) = (strict(&db), buffered(&db));
            let done = db.transaction(|tx| {
                tx.map(&strict)?.insert(&1, &1)?;
                tx.map(&buffered)?.insert(&1, &1)?;
                Ok(tx.later())
            });
            drop(done.unwrap());
            // As where the pool is full, or no checkpoint can be taken.
            db.shared.transactions.abandon();
            assert_eq!((strict.get(&1).unwrap(), buffered.get(&1).unwrap()), (None, Some(1)));
        }
        let refused = crate::kind::open_as_is(&pool, "strict").err();
        let pending = |error: &Error| matches!(error, Error::Pool(durix_pmem::Error::PendingRecords { .. }));
        assert!(refused.as_ref().is_some_and(pending), "{refused:?}");
        let db = over(pool.clone());
        assert_eq!((strict(&db).get(&1).unwrap(), buffered(&db).get(&1).unwrap()), (Some(1), Some(1)));
        // Nothing is left that a crash could make again.
        strict(&db).insert(&1, &2).unwrap();
        db.transaction(|tx| {
            tx.map(&strict(&db))?.insert(&5, &5)?;
            tx.map(&strict(&db))?.insert(&6, &6).map(drop)
        })
        .unwrap();
        db.sync().unwrap();
        let image = HeapBacking::image_of(pool.mapping());
        let again = PoolOptions::new().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
        let db = over(again.recover().unwrap());
        assert_eq!((strict(&db).get(&1).unwrap(), buffered(&db).get(&1).unwrap()), (Some(2), Some(1)));
        assert_eq!(strict(&db).get(&6).unwrap(), Some(6));
    }
}
