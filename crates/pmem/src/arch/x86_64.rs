//! x86-64: `clwb`, `clflushopt`, `clflush`, `sfence`, and the non-temporal stores.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, __m128i, _mm_set_epi64x, _mm_stream_si64, _mm_stream_si128};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::write_back::WriteBackKind;

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
pub fn prefetch_write(line: *const u8) {
    // SAFETY: a prefetch touches no register, flag or architectural memory, and is a no-operation where the address is
    // not mapped or the processor does not know the instruction.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// Asks for a line for reading. A hint: it never faults, whatever the address.
#[inline(always)]
pub fn prefetch_read(line: *const u8) {
    // The intrinsic, not assembly: the lines of one object then share their base register.
    // SAFETY: SSE is part of the x86-64 baseline, and a prefetch touches no register, flag or architectural memory.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast()) }
}

/// Loads words in pieces of 16 bytes. What is stored in such pieces, too, can be loaded in pieces of 16 bytes again at once; what was
/// stored word by word cannot, before the stores have left the store buffer.
#[inline(always)]
pub(crate) fn load_words<const N: usize>(from: &[AtomicU64; N]) -> [u64; N] {
    let mut values = [0; N];
    let (pairs, last) = values.as_chunks_mut::<2>();
    for (to, from) in pairs.iter_mut().zip(from.chunks_exact(2)) {
        let value: __m128i;
        // SAFETY: the two words are valid for reads and contiguous; SSE2 is baseline, and needs no alignment here. Being
        // assembly, the load is no data race in the sense of the language; the processor reads each aligned word of a piece at
        // once, as the plain loads would.
        unsafe {
            asm!("movups {}, [{}]", out(xmm_reg) value, in(reg) from.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        // SAFETY: both are sixteen bytes of which any will do.
        *to = unsafe { std::mem::transmute::<__m128i, [u64; 2]>(value) };
    }
    if let [value] = last {
        *value = from[N - 1].load(Ordering::Relaxed);
    }
    values
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

/// Stores words around the cache.
#[inline(always)]
pub(crate) fn store_words_nt(to: &[AtomicU64], values: &[u64]) {
    to.iter().zip(values).for_each(|(word, value)| store_nt(word, *value));
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

/// Whether the processor, and the operating system, have what the `wide_` functions use: AVX-512 as of Ice Lake and Zen 4.
pub(crate) fn has_wide() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512vbmi")
        && std::arch::is_x86_feature_detected!("avx512bitalg")
        && std::arch::is_x86_feature_detected!("popcnt")
}

// The functions below use the upper sixteen vector registers alone: those leave no upper halves behind that would slow down what
// follows, so nothing has to be cleared.

/// How many of 15 words are at most `value`. The eighth is compared twice, and counted once, so that nothing behind them is read.
///
/// # Safety
/// [`has_wide`], and 15 words at `words` valid for reads.
#[inline(always)]
pub(crate) unsafe fn wide_count_at_most(words: *const AtomicU64, value: u64) -> usize {
    let count: u64;
    // SAFETY: by contract.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {value}",
            "vpcmpnltuq k1, zmm16, zmmword ptr [{words}]",
            "vpcmpnltuq k2, zmm16, zmmword ptr [{words} + 56]",
            "kunpckbw k1, k2, k1",
            "kmovd {count:e}, k1",
            "and {count:e}, 0xfeff",
            "popcnt {count:e}, {count:e}",
            value = in(reg) value,
            words = in(reg) words,
            count = out(reg) count,
            out("k1") _, out("k2") _, out("zmm16") _,
            options(nostack, readonly),
        );
    }
    count as usize
}

/// Where in a permutation twice the number in each place begins: one bit before its own four, from the fifth bit on.
static PLACES: [u8; 16] = [3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63];
/// Twice a number below 16, in each byte.
static TWICE: [u8; 16] = [0x1e; 16];

/// Compares the first words of 16 pairs with a value: a bit for each place of `order` that says whether the pair that it names meets the
/// comparison, `places` of them, and what other instructions make of those.
macro_rules! wide_by_order {
    ($comparison:literal, $pairs:expr, $value:expr, $order:expr, $places:expr $(, $last:literal)?) => {{
        let found: u64;
        asm!(
            "vpbroadcastq zmm16, {value}",
            concat!($comparison, " k1, zmm16, zmmword ptr [{pairs}]"),
            concat!($comparison, " k2, zmm16, zmmword ptr [{pairs} + 64]"),
            concat!($comparison, " k3, zmm16, zmmword ptr [{pairs} + 128]"),
            concat!($comparison, " k4, zmm16, zmmword ptr [{pairs} + 192]"),
            "vpbroadcastq xmm17, {order}",
            "vmovdqu64 xmm18, xmmword ptr [rip + {starts}]",
            "vpmultishiftqb xmm17, xmm18, xmm17",
            "vpandq xmm17, xmm17, xmmword ptr [rip + {twice}]",
            "kunpckbw k1, k2, k1",
            "kunpckbw k3, k4, k3",
            "kunpckwd k1, k3, k1",
            // The bit of each pair, in the order asked for.
            "kmovd {found:e}, k1",
            "vpbroadcastq xmm16, {found}",
            "vpshufbitqmb k1, xmm16, xmm17",
            "kmovd {found:e}, k1",
            "and {found:e}, {places:e}",
            $($last,)?
            value = in(reg) $value,
            pairs = in(reg) $pairs,
            order = in(reg) $order,
            places = in(reg) $places,
            starts = sym PLACES,
            twice = sym TWICE,
            found = out(reg) found,
            out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("zmm16") _, out("zmm17") _, out("zmm18") _,
            options(nostack, readonly),
        );
        found
    }};
}

/// Which of the pairs that `order` names, in the places of the bits of `places`, have `value` as their first word: a bit a place.
///
/// # Safety
/// [`has_wide`], and 32 words at `pairs` valid for reads.
#[inline(always)]
pub(crate) unsafe fn wide_equal(pairs: *const AtomicU64, value: u64, order: u64, places: u32) -> u32 {
    // SAFETY: by contract; the two tables are 16 bytes each.
    unsafe { wide_by_order!("vpcmpequq", pairs, value, order, places) as u32 }
}

/// How many of the pairs that `order` names, in the places of the bits of `places`, have a first word below `value`.
///
/// # Safety
/// [`has_wide`], and 32 words at `pairs` valid for reads.
#[inline(always)]
pub(crate) unsafe fn wide_count_below(pairs: *const AtomicU64, value: u64, order: u64, places: u32) -> usize {
    // SAFETY: by contract; the two tables are 16 bytes each.
    unsafe { wide_by_order!("vpcmpnleuq", pairs, value, order, places, "popcnt {found:e}, {found:e}") as usize }
}
