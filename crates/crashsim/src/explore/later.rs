//! The execution after a recovery, and a second crash in it: in the recovery itself, or in the operations that follow.
//!
//! What has been observed after the first recovery must be there after the second: from then on only the states that
//! agree with it are allowed, and what the operations make of them.

use super::point::{At, Found, Point};
use super::run::Run;
use crate::report::Cause;
use crate::subject::Subject;

impl<S: Subject> Run<'_, S> {
    /// Crashes the execution after a recovery, by `crash`, with what is then allowed. `stages` are the models that agree with
    /// what was shown, after the recovery and after each operation.
    pub(super) fn crash_later(
        &mut self,
        point: &Point,
        at: At,
        stages: &[Vec<S::Model>],
        crash: impl FnOnce(&mut Self, &Point) -> Result<(), Box<Found>>,
    ) -> Result<(), Box<Found>> {
        let Some(models) = at.shown.then(|| self.judge.allowed_later(at, stages)).filter(|models| !models.is_empty())
        else {
            return crash(self, point);
        };
        let newest = models.len() - 1;
        let before = self.judge.replace(models);
        let outcome = crash(self, &Point { oldest: 0, newest, ..*point });
        (self.judge.models, self.judge.states) = before;
        outcome.map_err(|found| self.told_later(found, at))
    }

    /// Says of a failure in which operation after the recovery the second crash was.
    fn told_later(&self, mut found: Box<Found>, at: At) -> Box<Found> {
        let depth = self.crashes.inner.len();
        if let Some(told) = found.crashes.get_mut(depth - 1) {
            *told += &match self.judge.after.get(at.done) {
                Some(op) if at.in_flight => format!(", in the operation {op:?} after the recovery"),
                _ => format!(", after the recovery and {} operations", at.done),
            };
        }
        if let Cause::State { observed, allowed } = found.cause {
            let allowed = allowed.into_iter().map(|(_, state)| state).collect();
            found.cause = Cause::Recovered { observed, allowed };
        }
        found
    }
}
