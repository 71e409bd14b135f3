//! How many processors there are, asked once.

use std::sync::OnceLock;

/// Number of processors that the process may use, as it was at the first call; 1 where the system does not say. Recoveries
/// share their work among so many threads.
///
/// The system's answer takes a dozen system calls, which is longer than the recovery of a small pool.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
