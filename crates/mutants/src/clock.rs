//! Time on one core: what the thread has computed, whatever else the machine does meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread so far.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
