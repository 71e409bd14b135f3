//! Threads on processors of their own.

use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this thread may run on.
///
/// # Errors
/// What the kernel says.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect())
}

/// Has this thread run on one processor only, and those that it starts from now on.
///
/// # Errors
/// What the kernel says: the processor is not among the [`allowed`] ones of the process.
pub fn pin(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Whether two processors are threads of one core, which share what executes instructions; `None` where the kernel does not say.
pub fn share_a_core(one: usize, other: usize) -> Option<bool> {
    let core = |processor: usize| {
        let topology = Path::new("/sys/devices/system/cpu").join(format!("cpu{processor}/topology"));
        let read = |name: &str| std::fs::read_to_string(topology.join(name)).ok();
        Some((read("physical_package_id")?, read("core_id")?))
    };
    Some(core(one)? == core(other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_one_processor() {
        let all = allowed().unwrap();
        let last = *all.last().expect("this runs somewhere");
        let pinned = std::thread::spawn(move || {
            pin(last).unwrap();
            allowed().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
        assert_eq!(allowed().unwrap(), all, "others are not changed");
        assert_ne!(share_a_core(last, last), Some(false));
    }
}
