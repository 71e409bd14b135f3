//! A pool with a journal: commits, waiting for them, and checkpoints. See [`journal`](crate::journal).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::file::{CLOSE_PATIENCE, PoolFile};
use super::gather::gather;
use crate::epoch::Epochs;
use crate::error::{Error, Result};
use crate::journal::{Journal, Level, Turn, Writer};
use crate::lock::Lock;
use crate::medium::Medium;
use crate::service::{Due, Lane, Service, Urgency};
use crate::session::Session;

/// How often what was done below the facade is committed, which does not wait, on a pool of [`Level::Immediate`].
const UNASKED: Duration = Duration::from_millis(64);

/// Lines that a commit copies at most, where it can be made before its time: it keeps operations out meanwhile, for about a millisecond.
const MOST_LINES: u64 = 48 << 10;
/// Lines of an object that the epochs have noted, about.
const LINES_AN_OBJECT: u64 = 4;
/// How often the service looks whether there are so many, while operations go on.
const LOOK: Duration = Duration::from_millis(4);

/// Commits of a journaled pool; also the service that commits at intervals.
pub(super) struct Committer<M: Medium> {
    pub(super) file: Arc<PoolFile<M>>,
    pub(super) journal: Arc<Journal>,
    /// Those of the pool.
    pub(super) epochs: Arc<Lock<Option<Arc<Epochs<M>>>>>,
    /// How many operations had begun and ended at the last commit.
    pub(super) settled: AtomicU64,
}

impl<M: Medium> Committer<M> {
    /// Waits until commit `number` is durable, taking part in the work.
    pub(super) fn settle(&self, session: &mut Session<M>, number: u64) -> Result<()> {
        let journal = &*self.journal;
        if journal.durable() >= number {
            return Ok(());
        }
        let alive = || journal.failure().map_or(Ok(()), Err);
        match journal.group.turn(number, &|| journal.durable(), &alive)? {
            Turn::Durable => Ok(()),
            Turn::Lead(_leader) => self.commit(session),
        }
    }

    /// Captures what was done and makes it durable.
    fn commit(&self, session: &mut Session<M>) -> Result<()> {
        let mut writer = self.journal.writer();
        let mapping = &self.file.mapping;
        let number = mapping.quiesce(session, CLOSE_PATIENCE, |session| self.capture(&mut writer, session))??;
        self.append(&mut writer, number)
    }

    fn append(&self, writer: &mut Writer, number: u64) -> Result<()> {
        let appended = self.journal.append(writer, number);
        self.break_off(appended)?;
        if self.journal.is_full() {
            self.file.checkpointer.get().inspect(|service| service.wake());
        }
        self.note_written();
        Ok(())
    }

    /// After a failure of the journal nothing enters the pool any more.
    pub(super) fn break_off<R>(&self, result: Result<R>) -> Result<R> {
        if let (Err(Error::JournalFailed { .. }), Some(Error::JournalFailed { name, reason })) =
            (&result, self.journal.failure())
        {
            let error = move || Error::JournalFailed { name: name.clone(), reason: reason.clone() };
            self.file.mapping.break_off(error);
        }
        result
    }

    /// Copies all noted lines into the draft, while no operation is open. Each commit is a boundary of the epochs. Returns the number of
    /// the commit.
    fn capture(&self, writer: &mut Writer, session: &mut Session<M>) -> Result<u64> {
        let mapping = &self.file.mapping;
        if mapping.is_broken() {
            // By one of the operations that this has waited for: it has left half of something. See `Pool::whole`.
            return Err(mapping.shut_error());
        }
        if let Some(epochs) = self.epochs() {
            epochs.cross_if_dirty(session)?;
        }
        let op = session.enter_exclusive();
        let (number, mut written) = (mapping.gathering(), self.journal.written());
        // While operations are kept out, as dropping is.
        let left_out = gather(&op, self.journal.notes.notes(), &mut writer.draft, |page| written.enter(page, number));
        drop(written);
        self.journal.note_left_out(left_out);
        drop(op);
        let begun_and_ended = mapping.operations();
        writer.draft.operations = begun_and_ended / 2;
        self.settled.store(begun_and_ended, Ordering::Relaxed);
        self.journal.note_capture(number);
        Ok(mapping.next_commit())
    }

    /// The last commit, when the pool is closed; no operation is open. Everything is in the pool's file on return.
    pub(super) fn finish(&self, writer: &mut Writer, session: &mut Session<M>) -> Result<()> {
        let number = self.capture(writer, session)?;
        let finished = self.journal.append(writer, number).and_then(|()| self.journal.finish(writer));
        self.break_off(finished)
    }

    fn epochs(&self) -> Option<Arc<Epochs<M>>> {
        self.epochs.lock(self.file.mapping.medium()).clone()
    }

    /// Whether the commit that is gathered should not wait for its time.
    fn is_large(&self) -> bool {
        let of_epochs = self.epochs().map_or(0, |epochs| epochs.noted() as u64 * LINES_AN_OBJECT);
        let left = MOST_LINES.saturating_sub(of_epochs);
        left == 0 || self.journal.notes.notes().has(left)
    }

    fn interval(&self) -> Duration {
        match self.journal.level {
            Level::Interval(time) => time,
            _ => UNASKED,
        }
    }
}

impl<M: Medium> Service<M> for Committer<M> {
    fn name(&self) -> String {
        format!("the journal of {}", self.file.name)
    }

    fn lane(&self) -> Lane {
        Lane::Commit
    }

    fn due(&self) -> Due {
        if self.journal.failure().is_some() {
            return Due::No;
        }
        let is_idle = self.settled.load(Ordering::Relaxed) == self.file.mapping.operations();
        let (interval, age) = (self.interval(), self.journal.age());
        match interval.checked_sub(age).filter(|left| !left.is_zero()) {
            Some(left) if is_idle => Due::In(left.min(UNASKED)),
            Some(left) if !self.is_large() => Due::In(left.min(LOOK)),
            None if is_idle && self.journal.notes.notes().is_empty() => Due::In(interval),
            _ => Due::Now(Urgency::Due),
        }
    }

    fn step(&self, session: &mut Session<M>) -> Result<()> {
        if self.journal.age() < self.interval() && !self.is_large() {
            return Ok(());
        }
        // Lines that the epochs note now are not noted while operations are kept out.
        self.epochs().map_or(Ok(true), |epochs| epochs.write_ahead(session))?;
        let number = self.file.mapping.gathering();
        self.settle(session, number)
    }
}

/// The service that carries what is durable from the journal to the pool's file. It takes as long as the disk does; commits go on meanwhile.
pub(super) struct Checkpointer<M: Medium>(pub(super) Arc<Committer<M>>);

impl<M: Medium> Service<M> for Checkpointer<M> {
    fn name(&self) -> String {
        format!("the checkpoints of {}", self.0.file.name)
    }

    fn lane(&self) -> Lane {
        Lane::Disk
    }

    fn due(&self) -> Due {
        let journal = &self.0.journal;
        if journal.is_full() && journal.failure().is_none() { Due::Now(Urgency::Pressing) } else { Due::No }
    }

    fn step(&self, _: &mut Session<M>) -> Result<()> {
        let checkpointed = self.0.journal.checkpoint();
        self.0.break_off(checkpointed).map(|_| ())
    }
}

impl<M: Medium> Committer<M> {
    pub(super) fn settle_level(&self, session: &mut Session<M>) -> Result<()> {
        self.settle_at(session, self.journal.level)
    }

    pub(super) fn settle_at(&self, session: &mut Session<M>, level: Level) -> Result<()> {
        let number = session.noted_commit();
        match level {
            Level::Process => Ok(()),
            // A writer that outruns the flushes waits, so that what a crash can take back stays bounded.
            Level::Interval(time) if self.journal.exposed(number) <= time.saturating_mul(2) => Ok(()),
            _ => self.settle(session, number),
        }
    }
}
