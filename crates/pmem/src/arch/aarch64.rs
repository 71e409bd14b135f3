//! aarch64: `dc cvap` and `dsb`.
//!
//! A caller without `unsafe` reaches these functions through [`Hardware`](crate::Hardware) only, and cannot make one of a kind that
//! [`best_write_back`] has not returned: its fields are private. Lines come from live references to words ([`Lines`](crate::Lines)), so
//! they are mapped.

use core::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::line::{LINE, Lines};
use crate::write_back::WriteBackKind;

/// `dc cvap` where the processor has it (`dpb`), and it cleans lines of 64 bytes at least; `dc cvac` reaches the point of coherency only
/// and never stands in.
pub(crate) fn best_write_back() -> Option<WriteBackKind> {
    (has_dpb() && cleaned_bytes() >= LINE).then_some(WriteBackKind::DcCvap)
}

/// How many bytes one `dc` instruction cleans on the smallest level of the data cache. With fewer than [`LINE`] a part of a line would
/// silently stay behind.
#[cfg(target_os = "linux")]
fn cleaned_bytes() -> usize {
    let register: u64;
    // SAFETY: it reads a register into an output; nothing that a caller can do matters to it. Linux lets user space read it, by the
    // instruction or by emulation.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) register, options(nomem, nostack, preserves_flags)) }
    // `DminLine`: the binary logarithm of the number of words of 4 bytes.
    4 << (register >> 16 & 0xf)
}

/// Unknown: nothing is cleaned there anyway.
#[cfg(not(target_os = "linux"))]
fn cleaned_bytes() -> usize {
    0
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
    // SAFETY: by contract; written as `sys` so that no target feature is needed. It changes no architectural state. It is an ordinary
    // load as far as permissions go, so a mapping for reading is enough.
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
    // SAFETY: a barrier: it takes no operand that a caller could get wrong.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}

/// Stores words.
#[inline(always)]
pub(crate) fn load_words<const N: usize>(from: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|at| from[at].load(Ordering::Relaxed))
}

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
    // SAFETY: the line holds a word that is borrowed, so it is mapped. `Hardware` calls this for the kind `DcCvap` only (no other kind
    // gets here on this architecture), which it has from `best_write_back`.
    unsafe { best(word.as_ptr().cast()) }
}

/// Asks for a line for writing. A hint: it never faults, whatever the address.
#[inline(always)]
pub fn prefetch_write(line: *const u8) {
    // SAFETY: a prefetch touches no register, flag or architectural memory, and does nothing where it cannot: any address is right, so a
    // caller may pass one that came from a damaged file.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// Asks for a line for reading. A hint: it never faults, whatever the address.
#[inline(always)]
pub fn prefetch_read(line: *const u8) {
    // SAFETY: a prefetch touches no register, flag or architectural memory, and does nothing where it cannot: any address is right, so a
    // caller may pass one that came from a damaged file.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// As [`store_nt`] for words: cleans each of their lines once.
#[inline(always)]
pub(crate) fn store_words_nt(to: &[AtomicU64], values: &[u64]) {
    to.iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    // SAFETY: `Lines` can only be made from mapped memory. The kind is as in `store_nt`.
    Lines::of_words(to).iter().for_each(|line| unsafe { best(line) });
}

/// As [`store_nt`] for a line.
#[inline(always)]
pub(crate) fn store_nt_line(line: &[AtomicU64; 8], values: &[u64; 8]) {
    for (word, value) in line.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
    // SAFETY: the words are borrowed, so the line or two that they lie in are mapped: the first word is in the one, the last in the
    // other. The kind is as in `store_nt`.
    unsafe {
        best(line[0].as_ptr().cast());
        best(line[7].as_ptr().cast());
    }
}
