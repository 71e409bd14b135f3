//! Threads that work for a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::figure::Error;

/// What threads have done together.
pub(super) struct Done {
    pub(super) pieces: f64,
    /// Until the last thread has ended its last piece.
    pub(super) seconds: f64,
}

/// Has threads work for that long. Each calls `begin`, and then what that returns once for every piece, with a number that no other piece has.
pub(super) fn work<W>(threads: u64, time: Duration, begin: impl Fn() -> Result<W, Error> + Sync) -> Result<Done, Error>
where
    W: FnMut(u64) -> Result<(), Error>,
{
    let (stop, count, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let done: Result<Vec<()>, Error> = std::thread::scope(|scope| {
        let (begin, stop, count) = (&begin, &stop, &count);
        let work = move |me: u64| -> Result<(), Error> {
            let mut piece = begin()?;
            for number in (me..).step_by(threads as usize) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                piece(number)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|me| scope.spawn(move || work(me))).collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    done?;
    Ok(Done { pieces: count.into_inner() as f64, seconds: start.elapsed().as_secs_f64() })
}
