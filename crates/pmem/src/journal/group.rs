//! Group commit: many threads share a flush.
//!
//! An update draws the number of the commit that will hold it, leaves its operation, and then waits for that commit. Whoever comes while
//! nobody leads becomes the leader: it captures and flushes, for everybody who has drawn this number or an earlier one. Those who come
//! meanwhile are the next group. A new leader first waits for as many as there were when the last flush ended, up to
//! [`GATHERING`]: those whom it released are likely to be back soon with their next update, and one flush serves all. A thread that is
//! alone never waits.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;
use crate::error::Result;

/// How long a leader waits for others, at most.
const GATHERING: Duration = Duration::from_micros(60);

/// Those who wait for commits of one journal.
#[derive(Debug, Default)]
pub(crate) struct Group {
    state: Mutex<State>,
    /// A flush has ended.
    ended: Condvar,
    /// Somebody has come while a leader waits.
    came: Condvar,
}

#[derive(Debug, Default)]
struct State {
    leading: bool,
    /// How many others wait.
    waiting: usize,
    /// How many were there when the last flush ended, its leader among them.
    around: usize,
    /// Whether the leader waits for others.
    gathering: bool,
}

/// What a thread has to do.
pub(crate) enum Turn<'a> {
    /// Its commit is durable.
    Durable,
    /// It leads.
    Lead(Leader<'a>),
}

/// Whoever leads, until dropped.
pub(crate) struct Leader<'a> {
    group: &'a Group,
}

impl Group {
    /// Waits until commit `number` is durable, or nobody leads.
    ///
    /// # Errors
    /// What `alive` says.
    pub(crate) fn turn<'a>(
        &'a self,
        number: u64,
        durable: &dyn Fn() -> u64,
        alive: &dyn Fn() -> Result<()>,
    ) -> Result<Turn<'a>> {
        let mut state = lock(&self.state);
        loop {
            if durable() >= number {
                return Ok(Turn::Durable);
            }
            alive()?;
            if !state.leading {
                state.leading = true;
                drop(state);
                self.gather();
                return Ok(Turn::Lead(Leader { group: self }));
            }
            state.waiting += 1;
            if state.gathering {
                self.came.notify_one();
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The leader's wait.
    fn gather(&self) {
        let mut state = lock(&self.state);
        let wanted = state.around.saturating_sub(1);
        let end = Instant::now() + GATHERING;
        state.gathering = true;
        while state.waiting < wanted {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            state = self.came.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.gathering = false;
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.group.state);
        state.leading = false;
        state.around = 1 + state.waiting;
        // Everybody wakes up; who is not released leads or waits again.
        state.waiting = 0;
        self.group.ended.notify_all();
    }
}
