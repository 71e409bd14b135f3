//! Asymmetric fences: the frequent side runs a compiler fence, the rare side a system call that makes every thread of
//! the process execute a full fence.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Whether the kernel offers it to this process.
#[cfg(target_os = "linux")]
pub(crate) fn register() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    })
}

/// Not on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| false)
}

/// The frequent side.
#[inline(always)]
pub(crate) fn light(asymmetric: bool) {
    if asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
}

/// The rare side.
pub(crate) fn heavy(asymmetric: bool) {
    fence(Ordering::SeqCst);
    #[cfg(target_os = "linux")]
    if asymmetric {
        use rustix::thread::{MembarrierCommand, membarrier};
        membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier worked when it was registered");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = asymmetric;
}
