//! What the system does to a process that works with files: signals, and a standard output that is not there.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether standard output was closed when the process began (`durix … >&-`). Rust's runtime opens `/dev/null` in its place before `main`,
/// so that nothing would be noticed.
pub fn output_was_closed() -> bool {
    OUTPUT_WAS_CLOSED.load(Ordering::Relaxed)
}

static OUTPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions of this type, which are called once, on one thread, before `main`. The function
// needs nothing of the runtime: it makes one system call and stores to an atomic.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

#[cfg(target_os = "linux")]
extern "C" fn look() {
    // SAFETY: it asks for the flags of a descriptor and changes nothing; one that is closed is an error.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    OUTPUT_WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Makes errors of what would end the process without a word: a limit on the size of files (then a write fails with `EFBIG`, which is
/// [`DiskFull`](durix_pmem::Error::DiskFull)), and a mapped page that cannot be read or written.
pub fn handle_signals() {
    // SAFETY: the disposition of this signal is nobody else's in this program; it is called before another thread is started.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let handler: extern "C" fn(libc::c_int) = lost_page;
    // SAFETY: all-zero is a valid `sigaction`, an empty mask among it; the handler has the type of one without `SA_SIGINFO`. It runs on the
    // stack for signals where the thread has one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

const LOST_PAGE: &str = "durix: a part of the pool's file could not be read or written while it was mapped: another program has cut the \
    file shorter, or its disk has failed or is full; look at the disk and the length of the file, then run `durix check`\n";

/// Ends the process as a failure of [its surroundings](crate::failure::Code::Surroundings).
extern "C" fn lost_page(_: libc::c_int) {
    // SAFETY: both calls may be made in a handler of signals; the text is a constant.
    unsafe {
        libc::write(libc::STDERR_FILENO, LOST_PAGE.as_ptr().cast(), LOST_PAGE.len());
        libc::_exit(crate::failure::Code::Surroundings as libc::c_int);
    }
}
