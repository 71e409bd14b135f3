//! A thread that takes checkpoints, for databases that ask for one.
//!
//! Buffered indices become durable at checkpoints, which somebody has to take: whoever calls `sync`, `wait` or `tick`, or this
//! thread. It holds a session, and sleeps between checkpoints. It ends with the database, or when the database is closed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use durix_pmem::{Epochs, Medium, Pool, Session};

use crate::error::{Error, Result};

/// The thread, while it runs.
pub(crate) struct Checkpoints {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// For starting it again.
    pub(crate) every: Duration,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    /// Why the last checkpoint failed, until it is told.
    failed: Option<durix_pmem::Error>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Checkpoints {
    /// Starts the thread.
    ///
    /// # Errors
    /// As [`Pool::epochs`] and [`Pool::session`]; [`durix_pmem::Error::Io`] where the system has no more threads.
    pub(crate) fn start<M: Medium>(pool: &Pool<M>, every: Duration) -> Result<Self> {
        let (epochs, session) = (pool.epochs()?, pool.session()?);
        epochs.set_interval(every);
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("durix-checkpoints".into());
        let thread = builder.spawn(move || run(&epochs, session, every, &of_thread)).map_err(|source| {
            Error::Pool(durix_pmem::Error::Io { action: "starting the thread for checkpoints".into(), source })
        })?;
        Ok(Checkpoints { shared, thread: Some(thread), every })
    }

    /// Why the last checkpoint could not be taken, once.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.shared.state().failed.take().map(Error::Pool)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<M: Medium>(epochs: &Epochs<M>, mut session: Session<M>, every: Duration, shared: &Shared) {
    loop {
        {
            let state = shared.state();
            let waited = shared.wake.wait_timeout_while(state, every, |state| !state.stop);
            if waited.unwrap_or_else(PoisonError::into_inner).0.stop {
                return;
            }
        }
        // One that fails is followed by the next: operations that took too long may end by then.
        if let Err(error) = epochs.tick(&mut session) {
            shared.state().failed = Some(error);
        }
    }
}
