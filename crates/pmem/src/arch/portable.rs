//! Architectures without a write-back instruction that we know: ordinary files only.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::write_back::WriteBackKind;

pub(crate) fn best_write_back() -> Option<WriteBackKind> {
    None
}

/// # Safety
/// Must not be called: [`best_write_back`] returns nothing.
pub(crate) unsafe fn best(_line: *const u8) {
    unreachable!()
}

/// # Safety
/// Must not be called: [`best_write_back`] returns nothing.
pub(crate) unsafe fn clflushopt(_line: *const u8) {
    unreachable!()
}

/// # Safety
/// Must not be called: [`best_write_back`] returns nothing.
pub(crate) unsafe fn clflush(_line: *const u8) {
    unreachable!()
}

pub(crate) fn persist_fence() {
    fence(Ordering::SeqCst);
}

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

pub(crate) fn store_nt(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

pub(crate) fn store_words_nt(to: &[AtomicU64], values: &[u64]) {
    to.iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

pub(crate) fn store_nt_line(line: &[AtomicU64; 8], values: &[u64; 8]) {
    for (word, value) in line.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
}

pub fn prefetch_write(_line: *const u8) {}

pub fn prefetch_read(_line: *const u8) {}
