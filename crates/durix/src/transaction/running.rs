//! The transactions whose closures run on this thread.

use std::cell::RefCell;

use super::locks::Age;
use crate::{Error, Result};

thread_local! {
    /// The transactions whose closures run on this thread: which database, and which age.
    static RUNNING: RefCell<Vec<(usize, Age)>> = const { RefCell::new(Vec::new()) };
}

/// Stands for the transactions of one database: the address of what they share.
pub(super) fn id<T>(shared: &T) -> usize {
    std::ptr::from_ref(shared).addr()
}

/// Whether a lock is held by a transaction whose closure runs on this very thread: who waits for it waits for itself.
pub(super) fn is_own(id: usize, holders: &[Age]) -> bool {
    RUNNING.with_borrow(|running| running.iter().any(|(of, age)| *of == id && holders.contains(age)))
}

/// A closure that runs on this thread.
pub(super) struct Running;

impl Running {
    pub(super) fn begin(id: usize, age: Age) -> Result<Running> {
        RUNNING.with_borrow_mut(|running| {
            if running.iter().any(|(of, _)| *of == id) {
                return Err(Error::Nested);
            }
            running.push((id, age));
            Ok(Running)
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closures end in the reverse of the order in which they begin.
        RUNNING.with_borrow_mut(|running| running.pop());
    }
}
