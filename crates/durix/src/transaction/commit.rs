//! Commit: all changes of a transaction, or none.
//!
//! | class | maps | how |
//! |---|---|---|
//! | none | nothing written | nothing to do |
//! | direct | one change of one strict map, or a batch that the map makes atomically; any changes of buffered maps | in one operation |
//! | logged | only strict maps touched | intents, changes, retirement in one operation |
//! | mixed | strict maps written, a buffered map touched | intents and the buffered changes in one operation; the strict changes after the boundary, by [`pending`](super::pending) |
//!
//! # Persist order
//! Besides the edges of the [log](super::log):
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | TX-E record and buffered changes in epoch e < the boundary of e | one operation, which the boundary waits for | e has failed: the buffered maps undo their part | drops the record |
//! | TX-S the boundary of e < the first strict change | [`Epochs::wait`](durix_pmem::Epochs::wait) | the record of a completed epoch, any of the strict changes | makes the strict changes |

use std::sync::Arc;

use durix_pmem::{Epochs, Medium, Op, Session};

use super::guard::Guarded;
use super::later::State;
use super::log::{LaneGuard, record};
use super::part::Part;
use super::pending::Work;
use super::put::{put, settle};
use super::tx::Transaction;
use crate::{Error, Index, Result, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Nothing,
    Direct,
    Logged,
    Mixed,
}

fn classify<M: Medium>(parts: &[Part<M>]) -> Class {
    let written: Vec<_> = parts.iter().filter(|part| part.is_written()).collect();
    if written.is_empty() {
        Class::Nothing
    } else if written.iter().all(|part| part.is_buffered()) {
        Class::Direct
    } else if parts.iter().any(Part::is_buffered) {
        Class::Mixed
    } else if written.len() == 1 && written[0].is_atomic() {
        Class::Direct
    } else {
        Class::Logged
    }
}

/// The values that changes replace, to put them back.
struct Undo<M: Medium>(Vec<Replaced<M>>);

/// A map, a key, and the value it had.
type Replaced<M> = (Arc<Guarded<M>>, Vec<u8>, Option<Vec<u8>>);

impl<M: Medium> Undo<M> {
    fn of<'p>(op: &Op<'_, M>, parts: impl Iterator<Item = &'p Part<M>>) -> Result<Self> {
        let mut old = Vec::new();
        for part in parts {
            for key in part.writes.keys() {
                old.push((Arc::clone(&part.guard), key.clone(), part.guard.raw().get_vec(op, key)?));
            }
        }
        Ok(Undo(old))
    }

    /// Puts the old values back. Removals first: they make room.
    fn run(mut self, op: &Op<'_, M>) -> Result<()> {
        self.0.sort_by_key(|(_, _, old)| old.is_some());
        self.0.iter().try_for_each(|(guard, key, old)| {
            put(guard.raw(), op, key, old.as_deref())?;
            settle(guard.raw(), op);
            Ok(())
        })
    }
}

impl<M: Medium> Transaction<M> {
    /// Makes all changes. Durable on return where all maps are strict; where strict and buffered maps are mixed, after the
    /// checkpoint that this waits for, unless [`later`](Self::later) was called; where all maps are buffered, with the
    /// next checkpoint.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a call on this transaction has lost a conflict: nothing was changed, begin again.
    /// [`Error::Pool`] where the pool is full: nothing was changed. [`Error::TransactionTooLarge`]. [`Error::Unsettled`].
    pub fn commit(self) -> Result<()> {
        if self.state.borrow().lost.is_some() {
            return Err(Error::Conflict { attempts: 1 });
        }
        commit(self)
    }
}

fn commit<M: Medium>(tx: Transaction<M>) -> Result<()> {
    let shared = Arc::clone(&tx.shared);
    shared.sessions.with(&shared.pool, |cached| {
        let parts: Vec<Part<M>> = std::mem::take(&mut tx.state.borrow_mut().parts).into_values().collect();
        // From here on the commit gives the locks back, not the transaction.
        let commit = Commit { tx: &tx, parts, keeps_locks: false };
        commit.run(&mut cached.session)?;
        // What it has read may be newer than what it has written. Its place is fixed, and its locks are given back.
        shared.transactions.visible.read_all(&cached.session);
        Ok(shared.pool.settle(&mut cached.session)?)
    })
}

struct Commit<'t, M: Medium> {
    tx: &'t Transaction<M>,
    parts: Vec<Part<M>>,
    /// Changes are under way that must be finished before anybody else gets the keys.
    keeps_locks: bool,
}

impl<M: Medium> Drop for Commit<'_, M> {
    fn drop(&mut self) {
        if !self.keeps_locks {
            self.parts.iter().for_each(|part| part.unlock(self.tx.age));
        }
    }
}

impl<M: Medium> Commit<'_, M> {
    fn run(mut self, session: &mut Session<M>) -> Result<()> {
        let ticket = match classify(&self.parts) {
            Class::Nothing => Ticket::DURABLE,
            Class::Direct => self.direct(session)?,
            Class::Logged => self.logged(session)?,
            Class::Mixed => return self.mixed(session),
        };
        if let Some(later) = &self.tx.state.borrow().later {
            later.set(State::Ticket(ticket));
        }
        Ok(())
    }

    fn written(&self) -> impl Iterator<Item = &Part<M>> {
        self.parts.iter().filter(|part| part.is_written())
    }

    /// Saves what snapshots need of some parts, and returns how to put the old values back.
    fn prepare<'p>(op: &Op<'_, M>, parts: impl Iterator<Item = &'p Part<M>> + Clone) -> Result<Undo<M>> {
        parts.clone().try_for_each(|part| part.save(op))?;
        Undo::of(op, parts)
    }

    fn direct(&mut self, session: &mut Session<M>) -> Result<Ticket> {
        let written: Vec<_> = self.written().collect();
        let epochs = written.iter().any(|part| part.is_buffered()).then(|| self.tx.shared.transactions.epochs());
        let epochs = epochs.transpose()?;
        let op = session.enter()?;
        match epochs {
            Some(epochs) if self.written().map(|part| part.writes.len()).sum::<usize>() > 1 => {
                let undo = Self::prepare(&op, written.iter().copied())?;
                if let Err(error) = written.iter().try_for_each(|part| part.change(&op)) {
                    Self::undo_buffered(&op, undo, epochs)?;
                    return Err(error);
                }
            }
            // One map, which makes all changes or none.
            _ => written.iter().try_for_each(|part| {
                part.save(&op)?;
                part.change(&op)
            })?,
        }
        let tickets = written.iter().map(|part| part.guard.raw().ticket(&op));
        Ok(tickets.max_by_key(|ticket| ticket.checkpoint().map(durix_pmem::Ticket::epoch)).unwrap_or(Ticket::DURABLE))
    }

    /// Puts the old values of buffered maps back. If a map refuses, no boundary is crossed any more: the epoch fails when the
    /// pool is opened again, and all its changes are undone.
    fn undo_buffered(op: &Op<'_, M>, undo: Undo<M>, epochs: &Epochs<M>) -> Result<()> {
        undo.run(op).inspect_err(|_| epochs.stop(super::log::NAME.into()))
    }

    /// The changes of strict maps as a payload.
    fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for part in self.written().filter(|part| !part.is_buffered()) {
            let owner = part.guard.root().owner();
            part.writes.iter().for_each(|(key, value)| record::push(&mut payload, owner, key, value.as_deref()));
        }
        payload
    }

    /// A lane with room for a payload; no operation is open.
    fn lane(&self, session: &mut Session<M>, payload: &[u8]) -> Result<LaneGuard<M>> {
        let log = self.tx.shared.transactions.log()?;
        log.take(&session.enter()?, payload.len() as u64)
    }

    fn logged(&mut self, session: &mut Session<M>) -> Result<Ticket> {
        let payload = self.payload();
        let mut lane = self.lane(session, &payload)?;
        let op = session.enter()?;
        let undo = match Self::prepare(&op, self.parts.iter().filter(|part| part.is_written())) {
            Ok(undo) => undo,
            Err(error) => {
                lane.cancel(&op);
                return Err(error);
            }
        };
        self.keeps_locks = true;
        lane.write(&op, 0, &payload)?;
        let changed = self.written().try_for_each(|part| part.change(&op));
        let Err(error) = changed else {
            lane.retire(&op);
            self.keeps_locks = false;
            return Ok(Ticket::DURABLE);
        };
        if undo.run(&op).is_ok() {
            lane.retire(&op);
            self.keeps_locks = false;
            return Err(error);
        }
        let work = Work::new(self.tx.age, None, std::mem::take(&mut self.parts), lane);
        self.tx.shared.transactions.pending.add(op.medium(), work);
        Err(Error::Unsettled { source: Box::new(error) })
    }

    fn mixed(mut self, session: &mut Session<M>) -> Result<()> {
        let transactions = Arc::clone(&self.tx.shared.transactions);
        let epochs = transactions.epochs()?;
        let payload = self.payload();
        let mut lane = self.lane(session, &payload)?;
        let work = {
            let op = session.enter()?;
            let buffered = self.parts.iter().filter(|part| part.is_written() && part.is_buffered());
            let undo = match Self::prepare(&op, buffered) {
                Ok(undo) => undo,
                Err(error) => {
                    lane.cancel(&op);
                    return Err(error);
                }
            };
            self.keeps_locks = true;
            lane.write(&op, epochs.current(&op), &payload)?;
            let mut buffered = self.written().filter(|part| part.is_buffered());
            // PERSIST TX-E: in the operation that has written the record
            if let Err(error) = buffered.try_for_each(|part| part.change(&op)) {
                drop(buffered);
                Self::undo_buffered(&op, undo, epochs)?;
                lane.retire(&op);
                self.keeps_locks = false;
                return Err(error);
            }
            drop(buffered);
            let is_left = |part: &mut Part<M>| part.is_written() && !part.is_buffered();
            let left: Vec<_> = self.parts.extract_if(.., is_left).collect();
            let ticket = (Arc::clone(epochs), epochs.ticket(&op));
            // Known before the operation ends: a snapshot must not see one half without the other.
            transactions.pending.add(op.medium(), Work::new(self.tx.age, Some(ticket), left, lane))
        };
        // The locks that are left are of maps that need nothing any more.
        self.parts.drain(..).for_each(|part| part.unlock(self.tx.age));
        if let Some(later) = &self.tx.state.borrow().later {
            later.set(State::Work(work));
            transactions.serve();
            return Ok(());
        }
        transactions.pending.finish(&work, session)
    }
}
