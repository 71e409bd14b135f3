//! Boundaries that are shared by those who wait for them.
//!
//! Whoever waits while nobody leads becomes the *leader*: it looks once more whether its ticket has come, runs a boundary, and by it serves
//! everybody who has drawn a ticket of that epoch. Those who come meanwhile wait for it, and look again. See `docs/decisions/group-commit.md`.
//!
//! Why a boundary that another thread runs is enough: a ticket is the number of the epoch in which it was drawn, and a boundary that ends this
//! epoch writes back what all operations have noted in it (EP-B1), whoever runs it. It is seen to have ended by the number of the epoch in
//! progress, which is stored after EP-B2.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::layout::MAX_EPOCH;
use super::{Epochs, PATIENCE, Ticket};
use crate::error::{Error, Result};
use crate::lock::LockGuard;
use crate::medium::{GIVES_WAY, Medium};
use crate::session::Session;

/// How long a leader waits for others at most.
const GATHERING: Duration = Duration::from_micros(50);

impl<M: Medium> Epochs<M> {
    /// Returns once what a ticket stands for is durable: at once, or after a boundary. One thread runs it for all that wait.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn wait(&self, session: &mut Session<M>, ticket: Ticket) -> Result<()> {
        if self.is_durable(ticket) {
            return Ok(());
        }
        self.own(session)?;
        self.share(session, ticket)
    }

    /// Makes everything durable that any session had done before the call: by a boundary of its own, or by that of another thread which
    /// ends after the call. A boundary waits for the operations in flight, keeps new ones out for as long as the write-backs take (10 to 30
    /// ns a line), then two fences.
    ///
    /// # Errors
    /// [`Error::Busy`] if operations do not end within 10 s, [`Error::Forked`], [`Error::Shut`],
    /// [`Error::ForeignSession`], [`Error::EpochsExhausted`]; [`Error::Poisoned`] after a panic in a structure that takes part: the
    /// epoch then goes on.
    pub fn sync(&self, session: &mut Session<M>) -> Result<()> {
        self.own(session)?;
        // Whatever ended before the call was done in this epoch or in an earlier one.
        let now = self.mapping.medium().shared_load(&self.current, Ordering::Acquire) & MAX_EPOCH;
        self.share(session, Ticket(now))
    }

    fn share(&self, session: &mut Session<M>, ticket: Ticket) -> Result<()> {
        // It is never 0: the first epoch is 1.
        let leading = session.rest(ticket.0, |_| self.lead(ticket))?;
        let Some(leading) = leading else { return Ok(()) };
        self.gather(ticket);
        self.mapping.quiesce(session, PATIENCE, |session| {
            // A tick may have crossed the boundary meanwhile.
            if self.is_durable(ticket) { Ok(()) } else { self.cross(session, false) }
        })??;
        drop(leading);
        self.sweep(session)
    }

    /// Waits until this thread is the one to lead, or needs no boundary any more.
    fn lead(&self, ticket: Ticket) -> Result<Option<LockGuard<'_, (), M>>> {
        let m = self.mapping.medium();
        // From the first turn on it gives its processor away: to those that the leader waits for.
        let mut turn = GIVES_WAY;
        loop {
            // Either the leader before us has ended this epoch: its store comes before its unlocking, and we see it with the lock. Or it has
            // not, and nobody else leads from here on.
            let leading = self.leading.try_lock(m);
            if self.is_durable(ticket) {
                return Ok(None);
            }
            if leading.is_some() {
                return Ok(leading);
            }
            if self.mapping.is_forked() {
                // The leader has stayed in the other process.
                return Err(Error::Forked);
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
        }
    }

    /// Waits until as many others wait for the same boundary as for the last one, but not for long. It is right whoever comes, so it asks no
    /// medium: in a simulation, where nobody comes meanwhile, it passes.
    fn gather(&self, ticket: Ticket) {
        let wanted = self.together.load(Ordering::Relaxed);
        let mut come = self.mapping.resting_for(ticket.0) as u64;
        if come < wanted {
            let start = Instant::now();
            while come < wanted && start.elapsed() < GATHERING {
                std::thread::yield_now();
                come = self.mapping.resting_for(ticket.0) as u64;
            }
        }
        self.together.store(come, Ordering::Relaxed);
    }
}
