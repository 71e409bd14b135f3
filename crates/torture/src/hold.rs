//! Threads that are held up at random places: a signal whose handler sleeps.
//!
//! The system does this to any thread at any time, and for as long as it likes; but on a machine with nothing else to do
//! hardly ever within the few instructions between two loads, where it matters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::Random;

/// Threads that can be held up.
#[derive(Debug, Default)]
pub struct Holdable {
    threads: Mutex<Vec<libc::pthread_t>>,
}

/// For how many microseconds the next thread is held up.
static MICROSECONDS: AtomicU64 = AtomicU64::new(0);

extern "C" fn sleep(_signal: libc::c_int) {
    // What it interrupts may be about to look at it.
    // SAFETY: the location of the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: (MICROSECONDS.load(Ordering::Relaxed).min(900_000) * 1000) as libc::c_long,
    };
    // SAFETY: `nanosleep` may be called in a handler; it reads `time`, which is below a second, and writes nothing.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Has the signal answered by a sleep, once and for all.
fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: all fields of a `sigaction` may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = sleep as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is whole; the handler calls only what may be called in one.
        let done = unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) };
        assert_eq!(done, 0, "a handler for SIGUSR2");
    });
}

/// A thread that can be held up while this lives.
#[derive(Debug)]
pub struct Registered<'a> {
    of: &'a Holdable,
    thread: libc::pthread_t,
}

impl Holdable {
    /// None.
    pub fn new() -> Self {
        install();
        Holdable::default()
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<libc::pthread_t>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the calling thread can be held up, until what is returned is dropped.
    #[must_use]
    pub fn register(&self) -> Registered<'_> {
        // SAFETY: has no conditions.
        let thread = unsafe { libc::pthread_self() };
        self.threads().push(thread);
        Registered { of: self, thread }
    }

    /// Holds one of the threads up for some time, mostly for a moment, now and then for long. Does not wait for it.
    pub fn hold_one(&self, random: &mut Random) {
        let threads = self.threads();
        let Some(thread) = threads.get(random.below(threads.len() as u64) as usize) else { return };
        let longest = [20, 50, 50, 100, 200, 200, 1_000, 5_000][random.below(8) as usize];
        MICROSECONDS.store(random.below(longest), Ordering::Relaxed);
        // SAFETY: the thread has registered itself and not gone: to go it has to take the lock that is held here.
        unsafe { libc::pthread_kill(*thread, libc::SIGUSR2) };
    }

    /// Holds threads up, one after the other, until `is_over`.
    pub fn hold_until(&self, random: &mut Random, is_over: impl Fn() -> bool) {
        while !is_over() {
            self.hold_one(random);
            std::thread::sleep(Duration::from_micros(random.below(700)));
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.of.threads().retain(|thread| *thread != self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    #[test]
    fn a_thread_is_held_up_wherever_it_is() {
        let (holdable, over) = (Holdable::new(), AtomicBool::new(false));
        let longest = std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let _registered = holdable.register();
                let (start, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
                while start.elapsed() < Duration::from_millis(300) {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                over.store(true, Ordering::Relaxed);
                longest
            });
            holdable.hold_until(&mut Random::new(1), || over.load(Ordering::Relaxed));
            busy.join().unwrap()
        });
        assert!(longest > Duration::from_millis(2), "never for longer than {longest:?}");
        assert!(holdable.threads().is_empty());
    }
}
