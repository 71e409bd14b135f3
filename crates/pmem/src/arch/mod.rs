//! The instructions that write cache lines back, per architecture.
//!
//! Nothing outside this folder issues one. Each architecture offers the same few functions; one without any of them
//! gets `portable`, where only ordinary files can be used.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod imp;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod imp;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "portable.rs"]
mod imp;

pub(crate) use imp::*;
pub use imp::{prefetch_read, prefetch_write};

/// What architectures without instructions of that kind have in their place.
#[cfg(not(target_arch = "x86_64"))]
mod narrow {
    use std::sync::atomic::AtomicU64;

    pub(crate) fn has_wide() -> bool {
        false
    }

    /// # Safety
    /// Must not be called: [`has_wide`] says no.
    pub(crate) unsafe fn wide_count_at_most(_words: *const AtomicU64, _value: u64) -> usize {
        unreachable!()
    }

    /// # Safety
    /// Must not be called: [`has_wide`] says no.
    pub(crate) unsafe fn wide_equal(_pairs: *const AtomicU64, _value: u64, _order: u64, _places: u32) -> u32 {
        unreachable!()
    }

    /// # Safety
    /// Must not be called: [`has_wide`] says no.
    pub(crate) unsafe fn wide_count_below(_pairs: *const AtomicU64, _value: u64, _order: u64, _places: u32) -> usize {
        unreachable!()
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use narrow::*;
