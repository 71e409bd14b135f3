//! Counters of the processor (`perf_event_open`): instructions, cycles, misses of this thread in user mode. Virtual machines often have none.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Cycles of the processor.
    Cycles,
    /// Instructions that retired.
    Instructions,
    /// Misses of the last-level cache.
    CacheMisses,
    /// Branches that were predicted wrong.
    BranchMisses,
    /// Page faults: counted by the kernel, so they can be had everywhere.
    PageFaults,
}

impl Event {
    /// Type and number, as the kernel wants them.
    fn config(self) -> (u32, u64) {
        match self {
            Event::Cycles => (0, 0),
            Event::Instructions => (0, 1),
            Event::CacheMisses => (0, 3),
            Event::BranchMisses => (0, 5),
            Event::PageFaults => (1, 2),
        }
    }
}

/// `perf_event_attr`, its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// In `flags`: not in the kernel, not in the hypervisor.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;
/// The descriptor is closed by `exec`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// A counter of the thread that made it. It runs from then on.
#[derive(Debug)]
pub struct Counter(File);

impl Counter {
    /// Starts counting.
    ///
    /// # Errors
    /// Where the processor, or the kernel's settings, do not allow it.
    pub fn start(event: Event) -> io::Result<Counter> {
        let (kind, config) = event.config();
        let attributes = Attributes { kind, config, size: 64, flags: USER_ONLY, ..Attributes::default() };
        let (this_thread, any_processor, no_group) = (0, -1, -1);
        // SAFETY: the attributes are those of the first version of the call, of the size that they name; the kernel only reads them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                any_processor,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that the call has just made, which nobody else has.
        Ok(Counter(unsafe { File::from_raw_fd(fd as i32) }))
    }

    /// How many since the start.
    ///
    /// # Errors
    /// Of the system.
    pub fn read(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_counts_or_says_why_it_cannot() {
        for event in [Event::Cycles, Event::Instructions, Event::PageFaults] {
            match Counter::start(event) {
                Ok(mut counter) => {
                    let before = counter.read().unwrap();
                    // Memory that nobody has touched (the allocator's may have been), and some instructions.
                    let mut fresh = memmap2::MmapMut::map_anon(4 << 20).unwrap();
                    fresh.fill(std::hint::black_box(1));
                    let after = counter.read().unwrap();
                    assert!(after > before, "{event:?}: {before} to {after}, {} bytes", fresh.len());
                }
                Err(error) => assert!(error.raw_os_error().is_some_and(|code| code != libc::EINVAL), "{error}"),
            }
        }
    }
}
