//! Panics inside a structure's operation.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Pool, Root};
use crate::error::{Error, Result};
use crate::medium::Medium;

/// Makes a structure unusable after a panic that may have left a write half done, until it is opened again. The pool is
/// then not marked as closed, so that the next opening recovers it.
///
/// ```
/// # use durix_pmem::{Medium, Op, Result, pool::Poison};
/// fn insert<M: Medium>(poison: &Poison<M>, op: &Op<M>) -> Result<()> {
///     let _guard = poison.guard(op)?;
///     // … writes; a panic in here poisons …
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Poison<M: Medium> {
    root: Root<M>,
    poisoned: AtomicU64,
    /// Of the pool.
    base: usize,
    /// Whether no boundary may follow.
    stops_epochs: bool,
}

/// Poisons when it is dropped by a panic that began while it was held.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once guards nothing"]
pub struct PoisonGuard<'p, M: Medium> {
    poison: &'p Poison<M>,
    panicking: bool,
}

impl<M: Medium> Poison<M> {
    /// For the structure of `root`.
    pub fn new(root: Root<M>) -> Self {
        let base = root.pool().mapping().base_addr();
        Poison { root, poisoned: AtomicU64::new(0), base, stops_epochs: false }
    }

    /// For the structure of `root`, which takes part in the epochs: what a panic has left half done is undone by the next opening
    /// of the pool only if no boundary makes it durable before.
    pub fn stopping_epochs(root: Root<M>) -> Self {
        Poison { stops_epochs: true, ..Poison::new(root) }
    }

    /// Fails if a panic has met the structure, or if the operation is one of another pool.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::ForeignSession`].
    #[inline]
    pub fn check(&self, op: &crate::Op<'_, M>) -> Result<()> {
        op.expect_base(self.base)?;
        if op.medium().shared_load(&self.poisoned, Ordering::Acquire) == 0 {
            return Ok(());
        }
        Err(Error::Poisoned { name: self.root.name() })
    }

    /// Makes sure that an operation is one of the structure's pool, also after a panic.
    ///
    /// # Errors
    /// [`Error::ForeignSession`].
    #[inline(always)]
    pub fn expect_own(&self, op: &crate::Op<'_, M>) -> Result<()> {
        op.expect_base(self.base)
    }

    /// Guards the writes of an operation. A load now, and a look at the thread's panics at either end.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    #[inline]
    pub fn guard(&self, op: &crate::Op<'_, M>) -> Result<PoisonGuard<'_, M>> {
        self.check(op)?;
        Ok(PoisonGuard { poison: self, panicking: std::thread::panicking() })
    }

    /// Makes it unusable, as a panic does.
    #[cold]
    pub fn poison(&self) {
        let pool: &Pool<M> = self.root.pool();
        let m = pool.mapping().medium();
        m.shared_store(&self.poisoned, 1, Ordering::Release);
        pool.inner.poisoned.lock(m).get_or_insert_with(|| self.root.name());
        if self.stops_epochs
            && let Some(epochs) = &*pool.inner.epochs.lock(m)
        {
            epochs.stop(self.root.name());
        }
    }
}

impl<M: Medium> Drop for PoisonGuard<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.panicking && std::thread::panicking() {
            self.poison.poison();
        }
    }
}
