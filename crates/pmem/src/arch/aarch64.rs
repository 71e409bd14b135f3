//! aarch64: `dc cvap` and `dsb`.

use core::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::medium::WriteBackKind;

/// `dc cvap` where the processor has it (`dpb`); `dc cvac` reaches the point of coherency only and never stands in.
pub(crate) fn best_write_back() -> Option<WriteBackKind> {
    has_dpb().then_some(WriteBackKind::DcCvap)
}

#[cfg(target_os = "linux")]
fn has_dpb() -> bool {
    std::arch::is_aarch64_feature_detected!("dpb")
}

#[cfg(not(target_os = "linux"))]
fn has_dpb() -> bool {
    false
}

/// `dc cvap`: cleans one line to the point of persistence.
///
/// # Safety
/// `line` must be mapped, and the processor must have `dpb`.
#[inline(always)]
pub(crate) unsafe fn best(line: *const u8) {
    // SAFETY: by contract; written as `sys` so that no target feature is needed. It changes no architectural state.
    unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags)) }
}

/// x86-64 only.
///
/// # Safety
/// Must not be called: [`best_write_back`] never returns its kind.
#[inline(always)]
pub(crate) unsafe fn clflushopt(_line: *const u8) {
    unreachable!("clflushopt on aarch64")
}

/// x86-64 only.
///
/// # Safety
/// Must not be called: [`best_write_back`] never returns its kind.
#[inline(always)]
pub(crate) unsafe fn clflush(_line: *const u8) {
    unreachable!("clflush on aarch64")
}

/// Waits for the cleans of this thread.
#[inline(always)]
pub(crate) fn persist_fence() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}

/// Stores words.
#[inline(always)]
pub(crate) fn store_words<const N: usize>(to: &[AtomicU64; N], values: &[u64; N]) {
    for (word, value) in to.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// Stores a word, then cleans its line: there is no non-temporal store with the guarantee we need.
#[inline(always)]
pub(crate) fn store_nt(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
    // SAFETY: the line holds a live word; media call this only where `best_write_back` gave `DcCvap`.
    unsafe { best(word.as_ptr().cast()) }
}

/// Asks for a line for writing. A hint: it never faults, whatever the address.
#[inline(always)]
pub(crate) fn prefetch_write(line: *const u8) {
    // SAFETY: a prefetch touches no register, flag or architectural memory, and does nothing where it cannot.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// Asks for a line for reading. A hint: it never faults, whatever the address.
#[inline(always)]
pub(crate) fn prefetch_read(line: *const u8) {
    // SAFETY: a prefetch touches no register, flag or architectural memory, and does nothing where it cannot.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// As [`store_nt`] for a line.
#[inline(always)]
pub(crate) fn store_nt_line(line: &[AtomicU64; 8], values: &[u64; 8]) {
    for (word, value) in line.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
    // SAFETY: both lines that the words may overlap hold live words.
    unsafe {
        best(line[0].as_ptr().cast());
        best(line[7].as_ptr().cast());
    }
}
