//! How long an operation is held up, as far as it is our code's doing.
//!
//! # What counts as held up
//! The *time* of an operation is from before the database admits it until its operation has ended. On a machine with two
//! processors and three threads most of the longest times are waits for a processor, which the system's scheduler hands out, not
//! we. So the *pause* of an operation is its time without the time in which its thread could run and did not. There are two such times:
//!
//! - The thread waits for a processor of the system. Linux tells that time for each thread (the second number of
//!   `/proc/thread-self/schedstat`); it is read after each operation that took long. (What operations in between have waited, each less
//!   than that bound, is taken off too; but never more than what the operation's processor time leaves, so a pause is at least its work.)
//! - The processor itself does not run: a virtual machine's host has taken it, for others or to find memory. The thread then counts as
//!   running, but gets no processor time. It is told from sleeping by the number of times that the thread has given its
//!   processor up by itself: a thread that has not, since the operation before, slept in no system call, page fault or lock, so all of its time
//!   that is not processor time is time without a processor. If it has slept even once, nothing is taken off for this.
//!
//! The rest is what our own code does or waits for: the operation's work, its page faults, its system calls, waiting for a lock or at the gate.
//!
//! The *work* of an operation is the processor time that it took: its own instructions and those of the system for it, page faults and
//! turns of waiting included. It says the same on a busy machine.
//!
//! A thread that waits for a lock gives its processor away after some turns. While it has none, the lock's holder may be at work
//! for it. So the *strict pause* takes no time off that was spent waiting for a lock or at the gate: it is too long where the holder
//! itself has no processor.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix_pmem::medium::Survives;
use durix_pmem::{Hardware, Lines, Medium, Rmw};

/// Operations that took longer have their share without a processor looked up.
pub(super) const LONG: Duration = Duration::from_micros(20);

thread_local! {
    /// Time that this thread has spent waiting for locks and at the gate.
    pub(super) static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Where it has waited for long last.
    pub(super) static WHERE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
    /// How long other threads had no processor, when that began.
    static OTHERS: RefCell<Vec<(u64, Duration)>> = const { RefCell::new(Vec::new()) };
}

/// Turns after which a wait is long.
const LONG_WAIT: u32 = 64;

/// How long the other threads of the process have waited for a processor, by thread.
fn others() -> Vec<(u64, Duration)> {
    // SAFETY: it only returns a number.
    let own = unsafe { libc::gettid() } as u64;
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let number = |name: &str| name.parse().ok().filter(|number| *number != own);
    let waited = |path: &Path| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
    };
    tasks.flatten().filter_map(|task| Some((number(task.file_name().to_str()?)?, waited(&task.path())?))).collect()
}

/// The longest time that any other thread had no processor since the last long wait began.
pub(super) fn without_processor() -> Duration {
    let now = others();
    OTHERS.with_borrow(|before| {
        let since = |(thread, waited): &(u64, Duration)| {
            Some(waited.saturating_sub(before.iter().find(|(other, _)| other == thread)?.1))
        };
        now.iter().filter_map(since).max().unwrap_or_default()
    })
}

/// The hardware, with a clock for those who wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched(pub(super) Hardware);

// SAFETY: every call is handed on unchanged.
unsafe impl Medium for Watched {
    fn describe(self) -> String {
        self.0.describe()
    }
    fn survives(self) -> Survives {
        self.0.survives()
    }
    #[inline(always)]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.0.load(word, order)
    }
    #[inline(always)]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.0.store(word, value, order);
    }
    #[inline(always)]
    fn store_words<const N: usize>(self, to: &[AtomicU64; N], values: &[u64; N]) {
        self.0.store_words(to, values);
    }
    #[inline(always)]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.0.store_nt(word, value);
    }
    #[inline(always)]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.0.store_nt_line(line, values);
    }
    #[inline(always)]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(word, current, new)
    }
    #[inline(always)]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.0.rmw(word, op, operand)
    }
    #[inline(always)]
    fn wide(self) -> Option<durix_pmem::Wide> {
        self.0.wide()
    }
    #[inline(always)]
    fn order(self) {
        self.0.order();
    }
    #[inline(always)]
    fn write_back(self, lines: Lines<'_>) {
        self.0.write_back(lines);
    }
    #[inline(always)]
    fn fence(self) {
        self.0.fence();
    }
    #[track_caller]
    fn spin(self, turn: u32) {
        if turn == LONG_WAIT {
            WHERE.set(Some(Location::caller()));
            OTHERS.set(others());
        }
        let start = Instant::now();
        self.0.spin(turn);
        WAITED.set(WAITED.get() + start.elapsed());
    }
}

/// Reads how long this thread has waited for a processor.
pub(super) struct Waits {
    file: File,
    last: Duration,
}

impl Waits {
    pub(super) fn of_this_thread() -> Option<Waits> {
        let mut waits = Waits { file: File::open("/proc/thread-self/schedstat").ok()?, last: Duration::ZERO };
        waits.last = waits.read()?;
        Some(waits)
    }

    fn read(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let len = self.file.read_at(&mut text, 0).ok()?;
        let second = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?;
        Some(Duration::from_nanos(second.parse().ok()?))
    }

    /// Since the last call.
    pub(super) fn since(&mut self) -> Duration {
        let now = self.read().unwrap_or(self.last);
        now.saturating_sub(std::mem::replace(&mut self.last, now))
    }
}

/// What the system counts of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Page faults that needed no disk.
    pub(super) faults: u64,
    /// How often it has given its processor up by itself, to sleep.
    pub(super) sleeps: u64,
}

/// Of this thread so far.
pub(super) fn usage() -> Usage {
    // SAFETY: all zeroes are a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to such a struct of ours.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    if done != 0 {
        return Usage::default();
    }
    Usage { faults: usage.ru_minflt as u64, sleeps: usage.ru_nvcsw as u64 }
}

/// Page faults of this thread so far that needed no disk.
pub(super) fn page_faults() -> u64 {
    usage().faults
}

/// How much of the time of an operation its thread had no processor: `queued` for one of the system, the rest because the processor itself did
/// not run. `work` is its processor time.
pub(super) fn without(wall: Duration, work: Duration, queued: Duration, has_slept: bool) -> Duration {
    let idle = wall.saturating_sub(work);
    if has_slept { queued.min(idle) } else { idle }
}

/// The processor time of this thread so far.
pub(super) fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to such a struct of ours.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    if done == 0 { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) } else { Duration::ZERO }
}
