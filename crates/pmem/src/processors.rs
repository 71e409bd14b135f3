//! How many processors there are, asked once; work that several threads share.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{Medium, Session};

/// Number of processors that the process may use, as it was at the first call; 1 where the system does not say. Recoveries
/// share their work among so many threads.
///
/// The system's answer takes a dozen system calls, which is longer than the recovery of a small pool.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Has up to `threads` threads do some work, each with a session of its own; the caller's thread is one of them, and does all of it where
/// no other session is to be had. `work` takes its parts from what the threads share, a counter for example, until none is left.
///
/// The caller holds no operation: an operation of another thread could wait for its end.
///
/// # Errors
/// The first error of `work`. The other threads end their work before this returns.
pub fn on_threads<M: Medium, E: Send>(
    session: &mut Session<M>,
    threads: usize,
    work: &(dyn Fn(&mut Session<M>) -> Result<(), E> + Sync),
) -> Result<(), E> {
    if threads < 2 {
        return work(session);
    }
    let error = Mutex::new(None);
    let fail = |e: E| _ = error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
    let mapping = session.mapping().clone();
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let help = || {
                let Ok(mut session) = mapping.session() else { return };
                work(&mut session).unwrap_or_else(fail);
            };
            if std::thread::Builder::new().spawn_scoped(scope, help).is_err() {
                break;
            }
        }
        work(session).unwrap_or_else(fail);
    });
    error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
