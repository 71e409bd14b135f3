//! Time on one core: what the process has computed, whatever else the machine does meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process so far.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
