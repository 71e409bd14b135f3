//! x86-64: `clwb`, `clflushopt`, `clflush`, `sfence`, and the non-temporal stores.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_set_epi64x, _mm_stream_si64, _mm_stream_si128};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::medium::WriteBackKind;

/// The best write-back instruction of this processor, by CPUID.
pub(crate) fn best_write_back() -> Option<WriteBackKind> {
    if __cpuid(0).eax >= 7 {
        let features = __cpuid_count(7, 0).ebx;
        if features & (1 << 24) != 0 {
            return Some(WriteBackKind::Clwb);
        }
        if features & (1 << 23) != 0 {
            return Some(WriteBackKind::ClflushOpt);
        }
    }
    (__cpuid(1).edx & (1 << 19) != 0).then_some(WriteBackKind::Clflush)
}

/// `clwb`: writes one line back and keeps it in the cache.
///
/// # Safety
/// `line` must be mapped, and the processor must have `clwb`.
#[inline(always)]
pub(crate) unsafe fn best(line: *const u8) {
    // SAFETY: by contract. The instruction changes no register, flag or architectural memory; without `nomem` the
    // compiler keeps it behind earlier and before later accesses.
    unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

/// Writes one line back and evicts it.
///
/// # Safety
/// `line` must be mapped, and the processor must have `clflushopt`.
#[inline(always)]
pub(crate) unsafe fn clflushopt(line: *const u8) {
    // SAFETY: as for `best`.
    unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

/// Writes one line back and evicts it, waiting.
///
/// # Safety
/// `line` must be mapped.
#[inline(always)]
pub(crate) unsafe fn clflush(line: *const u8) {
    // SAFETY: as for `best`.
    unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

/// Waits for the write-backs and non-temporal stores of this thread.
#[inline(always)]
pub(crate) fn persist_fence() {
    // SAFETY: `sfence` is part of the x86-64 baseline and touches no register or memory.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

/// Asks for a line for writing. A hint: it never faults, whatever the address.
#[inline(always)]
pub(crate) fn prefetch_write(line: *const u8) {
    // SAFETY: a prefetch touches no register, flag or architectural memory, and is a no-operation where the address is
    // not mapped or the processor does not know the instruction.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// Asks for a line for reading. A hint: it never faults, whatever the address.
#[inline(always)]
pub(crate) fn prefetch_read(line: *const u8) {
    // The intrinsic, not assembly: the lines of one object then share their base register.
    // SAFETY: SSE is part of the x86-64 baseline, and a prefetch touches no register, flag or architectural memory.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast()) }
}

/// Stores words in pieces of 16 bytes. On the way to a persist fence every store in the buffer costs: a line in four
/// pieces instead of eight is durable 3% sooner.
#[inline(always)]
pub(crate) fn store_words<const N: usize>(to: &[AtomicU64; N], values: &[u64; N]) {
    let (pairs, last) = values.as_chunks::<2>();
    for (to, from) in to.chunks_exact(2).zip(pairs) {
        // SAFETY: the two words are valid for writes and contiguous; SSE2 is baseline, and needs no alignment here. Being
        // assembly, the store is no data race in the sense of the language; the processor writes each aligned word of a
        // piece at once, as the plain stores would.
        unsafe {
            let value = _mm_set_epi64x(from[1].cast_signed(), from[0].cast_signed());
            asm!("movups [{}], {}", in(reg) to.as_ptr(), in(xmm_reg) value, options(nostack, preserves_flags));
        }
    }
    if let [value] = last {
        to[N - 1].store(*value, Ordering::Relaxed);
    }
}

/// Stores a word around the cache.
#[inline(always)]
pub(crate) fn store_nt(word: &AtomicU64, value: u64) {
    // SAFETY: the reference is valid for writes of 8 aligned bytes, and atomics may be written through `&`. The
    // store is a single instruction; the model treats it as unordered until the next persist fence, which the fence's
    // memory clobber keeps the compiler from moving it across.
    unsafe { _mm_stream_si64(word.as_ptr().cast(), value.cast_signed()) }
}

/// Stores a line around the cache in four 16-byte pieces.
#[inline(always)]
pub(crate) fn store_nt_line(line: &[AtomicU64; 8], values: &[u64; 8]) {
    if !line.as_ptr().addr().is_multiple_of(16) {
        for (word, value) in line.iter().zip(values) {
            store_nt(word, *value);
        }
        return;
    }
    for (pair, value) in line.chunks_exact(2).zip(values.chunks_exact(2)) {
        // SAFETY: the two words are valid for writes, contiguous, and aligned to 16 as checked; SSE2 is baseline.
        unsafe {
            _mm_stream_si128(
                pair.as_ptr().cast_mut().cast(),
                _mm_set_epi64x(value[1].cast_signed(), value[0].cast_signed()),
            );
        }
    }
}
