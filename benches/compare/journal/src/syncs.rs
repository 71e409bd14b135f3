//! The syncs of everybody: this program's own `fsync`, `fdatasync`, `msync` and `syncfs` take the place of those of the C library, for
//! the standard library, for stores in C that are linked to it, and for libraries that it loads. They count, and take a fixed time
//! or call the kernel.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds of a sync; 0: as long as the kernel takes.
static FIXED: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Makes each sync take this time, and do nothing; `None`: as long as the kernel takes.
pub fn set_fixed(time: Option<Duration>) {
    FIXED.store(time.map_or(0, |time| time.as_nanos() as u64), Ordering::SeqCst);
}

/// Syncs so far.
pub fn count() -> u64 {
    COUNT.load(Ordering::SeqCst)
}

/// Lets sleeps of this thread, and of those it starts, end when they are due and not up to 50 µs later.
pub fn sleep_exactly() {
    // SAFETY: sets one number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

fn sync(kernel: impl FnOnce() -> c_long) -> c_int {
    COUNT.fetch_add(1, Ordering::SeqCst);
    let fixed = FIXED.load(Ordering::SeqCst);
    if fixed == 0 {
        return kernel() as c_int;
    }
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the time that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut until) };
    until.tv_nsec += fixed as i64;
    until.tv_sec += until.tv_nsec / 1_000_000_000;
    until.tv_nsec %= 1_000_000_000;
    // SAFETY: reads the time that it is given; interrupted, it goes on to the same end.
    while unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &until, std::ptr::null_mut()) }
        == libc::EINTR
    {}
    0
}

// SAFETY: it has the name and the contract of the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fsync(file: c_int) -> c_int {
    // SAFETY: a system call with a number of a file.
    sync(|| unsafe { libc::syscall(libc::SYS_fsync, file) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: c_int) -> c_int {
    // SAFETY: as above.
    sync(|| unsafe { libc::syscall(libc::SYS_fdatasync, file) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn syncfs(file: c_int) -> c_int {
    // SAFETY: as above.
    sync(|| unsafe { libc::syscall(libc::SYS_syncfs, file) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn msync(address: *mut c_void, len: usize, flags: c_int) -> c_int {
    // SAFETY: the caller's range, handed on; the kernel refuses what is not mapped.
    let kernel = || unsafe { libc::syscall(libc::SYS_msync, address, len, flags) };
    if flags & libc::MS_SYNC == 0 { kernel() as c_int } else { sync(kernel) }
}
