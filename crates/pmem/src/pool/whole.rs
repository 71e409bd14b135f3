//! Operations that a journaled pool commits whole, and the end of a pool that has half of one.

use super::Pool;
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::session::Op;

/// What is said by a pool that has half of a transaction in memory.
const HALF_DONE: &str = "a transaction over it was left half done, by a panic or because the pool is full; what was \
    acknowledged is kept, and nothing of that transaction";

impl<M: Medium> Pool<M> {
    /// Whether a crash leaves all that an operation has written back, or nothing of it: in a pool with a journal, whose commits hold
    /// whole operations. Memory goes with the process there, and what is found is one commit.
    #[inline]
    pub fn commits_operations_whole(&self) -> bool {
        self.inner.committer.is_some()
    }

    /// Begins changes in an operation that belong together, in a pool that [commits operations
    /// whole](Self::commits_operations_whole): no commit holds a part of them. End it with [`Whole::done`] when all changes are made, or are
    /// undone; whatever else ends it ends the pool.
    ///
    /// # Errors
    /// [`Error::ForeignSession`] if the operation is one of another pool.
    #[inline]
    pub fn whole<'o>(&'o self, op: &'o Op<'_, M>) -> Result<Whole<'o, M>> {
        op.expect_base(self.mapping().base_addr())?;
        Ok(Whole { pool: self, is_done: false })
    }

    /// Commits nothing any more: memory holds half of something. The next opening finds the last commit.
    #[cold]
    fn end_half_done(&self) {
        let m = self.mapping().medium();
        // Before the gate is shut: a closing that waits for this operation must not commit either.
        self.inner.poisoned.lock(m).get_or_insert_with(|| self.inner.file.name.clone());
        self.mapping().break_off(|| Error::Shut { reason: HALF_DONE });
    }
}

/// Changes in an operation that no commit separates. Dropped without [`done`](Self::done), by a panic or an error that nobody could
/// undo, it shuts the pool before the operation ends: no later commit comes, and the next opening finds nothing of the changes.
#[derive(Debug)]
#[must_use = "dropping it ends the pool"]
pub struct Whole<'o, M: Medium> {
    pool: &'o Pool<M>,
    is_done: bool,
}

impl<M: Medium> Whole<'_, M> {
    /// All changes are made, or all are undone.
    #[inline]
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl<M: Medium> Drop for Whole<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_done {
            self.pool.end_half_done();
        }
    }
}
