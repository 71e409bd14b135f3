//! The recovery of logs: what has to happen between the recovery of the space and the opening of the first structure.
//!
//! A log says in its root entry that it holds records that count, and at which of two [`Moments`] recovery needs them:
//!
//! - *before* any structure of the pool is opened: undo and redo of words;
//! - *after*: structures can be opened by the log's own [`Recovery`], and by nobody else yet. Logical records, which say
//!   what to do to which index, are replayed then.
//!
//! The word is in the root entry, so every program can tell that records are pending, whether or not it knows the kind
//! of the log. A log that was trimmed asks for nothing, and such a pool opens for every program. While a log asks, the pool
//! hands out no structure until [`Pool::recover_logs`] has run; it needs the [`Recovery`] of each kind that asks.
//! Reading, checking, dumping and copying all open structures, so they are subject to the same rule; where the pool was opened
//! for reading only, what recovery stores stays in the memory of the process.
//!
//! All *before* come first, then all *after*; each in the order of the recoveries given, and for one of them in the order of the
//! root entries. A crash in it leaves the words as they are or cleared one by one, and the next opening does the rest, so a
//! recovery must be repeatable.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | RC-K1 the root asks < the log's first record | flush+fence | no record | not called |
//! | RC-K2 what a recovery has done < the root asks no more | the recovery's own fence, and flush+fence | the root asks | called again |
//! | RC-K3 the root asks no more < the log's next record, and what others build on | flush+fence | the root asks, the records are done with | called again |

use std::error::Error as StdError;

use super::Pool;
use super::asking::Asking;
use super::moments::Moments;
use super::roots::RootRef;
use super::structure::Root;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::medium::Medium;
use crate::session::{Op, Session};

/// What a recovery can fail with.
pub type RecoveryError = Box<dyn StdError + Send + Sync>;

/// Recovers the pending records of the logs of one kind.
///
/// It is called only for roots that ask, and must be repeatable: it may have been run before, to any point. When it returns
/// `Ok`, what it has done is durable, and the records do not count any more. [`Root::pool`] is usable as always.
pub trait Recovery<M: Medium>: Send + Sync {
    /// The kind of the logs.
    fn kind(&self) -> Kind;

    /// Recovers what has to be right before any structure is opened. It must open none, and must reserve no space, but for
    /// [applying](crate::Space::apply) what a record says: other logs may still have records of allocations.
    ///
    /// # Errors
    /// The pool then hands out no structure.
    fn before(&self, session: &mut Session<M>, log: &Root<M>) -> Result<(), RecoveryError> {
        let _ = (session, log);
        Ok(())
    }

    /// Recovers through structures, which it opens from the log's pool.
    ///
    /// # Errors
    /// The pool then hands out no structure.
    fn after(&self, session: &mut Session<M>, log: &Root<M>) -> Result<(), RecoveryError> {
        let _ = (session, log);
        Ok(())
    }
}

impl<M: Medium> Pool<M> {
    /// Recovers the pending records of all logs: see the [module's documentation](self). Without pending records it does
    /// nothing. Until it has succeeded the pool hands out no structure; after an error it can be called again.
    ///
    /// # Errors
    /// [`Error::PendingRecords`]: no `recoveries` has the kind of a log that asks; nothing was recovered.
    /// [`Error::DamagedRoot`]: what a log asks for cannot be read; the same.
    /// [`Error::Recovery`]: one has failed. [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`].
    pub fn recover_logs(&self, recoveries: &[&dyn Recovery<M>]) -> Result<()> {
        let mut asking = self.inner.asking.lock(self.mapping().medium());
        if asking.is_empty() {
            return Ok(());
        }
        let known = |log: &&Asking| log.damaged.is_none() && recoveries.iter().any(|r| r.kind() == log.kind);
        if let Some(unknown) = asking.iter().find(|log| !known(log)) {
            return Err(unknown.refusal());
        }
        let mut session = self.session()?;
        for moment in [Moments::BEFORE, Moments::AFTER] {
            for recovery in recoveries {
                let logs = asking.iter().filter(|log| log.kind == recovery.kind() && log.moments.has(moment));
                for log in logs {
                    self.recover_log(&mut session, *recovery, log, moment)?;
                }
            }
            asking.iter_mut().for_each(|log| log.moments = log.moments.without(moment));
        }
        asking.clear();
        Ok(())
    }

    fn recover_log(
        &self,
        session: &mut Session<M>,
        recovery: &dyn Recovery<M>,
        log: &Asking,
        moment: Moments,
    ) -> Result<()> {
        let root = Root::new(&self.recovering(), log.owner, &log.name);
        let done = match moment {
            Moments::BEFORE => recovery.before(session, &root),
            _ => recovery.after(session, &root),
        };
        done.map_err(|source| Error::Recovery { name: log.name.clone(), kind: log.kind, source })?;
        let op = session.enter()?;
        let root = RootRef::new(&op, self.geometry(), log.owner);
        // PERSIST RC-K2: the recovery's own fence. PERSIST RC-K3: flush+fence
        op.persist(root.ask(root.asks().unwrap_or_default().without(moment)));
        Ok(())
    }

    /// A handle that opens structures while logs still ask.
    fn recovering(&self) -> Pool<M> {
        Pool { inner: self.inner.clone(), recovers: true }
    }

    /// Refuses while a log asks for recovery.
    pub(super) fn ensure_recovered(&self) -> Result<()> {
        if self.recovers {
            return Ok(());
        }
        let asking = self.inner.asking.lock(self.mapping().medium());
        asking.first().map_or(Ok(()), |log| Err(log.refusal()))
    }

    /// Hands structures out although logs ask for recovery: for salvage. Work that a crash interrupted may be found half done.
    /// The logs go on asking, so other openers are refused as before.
    pub fn accept_pending_records(&self) {
        self.inner.asking.lock(self.mapping().medium()).clear();
    }

    /// Whether a log asks for [`recover_logs`](Self::recover_logs).
    pub fn has_pending_records(&self) -> bool {
        !self.recovers && !self.inner.asking.lock(self.mapping().medium()).is_empty()
    }
}

impl<M: Medium> Root<M> {
    /// Says at which moments recovery needs this log's records: before the first record of a kind is written, or when
    /// none is left. Durable on return: one fence. While it asks, no program can open a structure of the pool after a crash
    /// unless it has the log's [`Recovery`].
    pub fn ask(&self, op: &Op<'_, M>, moments: Moments) {
        // PERSIST RC-K1, RC-K3: flush+fence
        op.persist(RootRef::new(op, self.pool().geometry(), self.owner()).ask(moments));
    }

    /// For a log that ends with pending records while the pool stays open: from now on the pool hands out no structure before
    /// [`recover_logs`](Pool::recover_logs) has run, as after a crash. Nothing is written. Does nothing where the root does not ask.
    ///
    /// # Errors
    /// [`Error::DamagedRoot`].
    pub fn leave_pending(&self, op: &Op<'_, M>) -> Result<()> {
        let moments = self.asks(op)?;
        let kind =
            RootRef::new(op, self.pool().geometry(), self.owner()).read().ok().flatten().map(|record| record.kind);
        if let Some(kind) = kind.filter(|_| moments != Moments::NONE) {
            let mut asking = self.pool().inner.asking.lock(op.medium());
            asking.retain(|log| log.owner != self.owner());
            asking.push(Asking { owner: self.owner(), name: self.name(), kind, moments, damaged: None });
        }
        Ok(())
    }

    /// What was said last.
    ///
    /// # Errors
    /// [`Error::DamagedRoot`].
    pub fn asks(&self, op: &Op<'_, M>) -> Result<Moments> {
        let asks = RootRef::new(op, self.pool().geometry(), self.owner()).asks();
        asks.map_err(|found| Error::DamagedRoot { slot: self.owner().0, found })
    }
}
