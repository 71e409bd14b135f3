//! Added latency at the fence, for the figures of the papers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Medium, Rmw, Survives};
use crate::line::Lines;
use crate::wide::Wide;

/// A medium whose fence takes longer by a given time, busily, as the papers emulate slower memory.
#[derive(Clone, Copy, Debug)]
pub struct Delayed<M> {
    inner: M,
    delay: Delay,
}

#[derive(Clone, Copy, Debug)]
enum Delay {
    Fixed(Duration),
    /// Nanoseconds, which may change at any time.
    Shared(&'static AtomicU64),
}

impl Delay {
    #[inline(always)]
    fn get(self) -> Duration {
        match self {
            Delay::Fixed(delay) => delay,
            Delay::Shared(nanos) => Duration::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

impl<M: Medium> Delayed<M> {
    /// Adds `delay` to each fence of `inner`. The papers use 0 to 1000 ns; zero adds nothing, not even the clock.
    pub fn new(inner: M, delay: Duration) -> Self {
        Delayed { inner, delay: Delay::Fixed(delay) }
    }

    /// Adds as many nanoseconds as `nanos` holds when the fence is executed: so that one large structure can be measured with
    /// several delays in turn.
    pub fn adjustable(inner: M, nanos: &'static AtomicU64) -> Self {
        Delayed { inner, delay: Delay::Shared(nanos) }
    }
}

// SAFETY: every access is handed on unchanged; it only waits.
unsafe impl<M: Medium> Medium for Delayed<M> {
    fn describe(self) -> String {
        format!("{} + {} ns a fence", self.inner.describe(), self.delay.get().as_nanos())
    }

    fn survives(self) -> Survives {
        self.inner.survives()
    }

    fn for_session(self, slot: u32) -> Self {
        Delayed { inner: self.inner.for_session(slot), ..self }
    }

    unsafe fn attach(self, base: *const u8, len: usize) {
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.attach(base, len) }
    }

    unsafe fn detach(self, base: *const u8) {
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.detach(base) }
    }

    #[inline(always)]
    #[track_caller]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.inner.load(word, order)
    }

    #[inline(always)]
    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.store(word, value, order);
    }

    #[inline(always)]
    #[track_caller]
    fn load_words<const N: usize>(self, from: &[AtomicU64; N]) -> [u64; N] {
        self.inner.load_words(from)
    }

    #[inline(always)]
    #[track_caller]
    fn store_words<const N: usize>(self, to: &[AtomicU64; N], values: &[u64; N]) {
        self.inner.store_words(to, values);
    }

    #[inline(always)]
    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.inner.store_nt(word, value);
    }

    #[inline(always)]
    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.inner.store_nt_line(line, values);
    }

    #[inline(always)]
    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.inner.compare_exchange(word, current, new)
    }

    #[inline(always)]
    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.inner.rmw(word, op, operand)
    }

    #[inline(always)]
    fn checked(self, words: &[AtomicU64], verify: impl FnOnce() -> bool) -> bool {
        self.inner.checked(words, verify)
    }

    #[inline(always)]
    fn wide(self) -> Option<Wide> {
        self.inner.wide()
    }

    #[inline(always)]
    #[track_caller]
    fn order(self) {
        self.inner.order();
    }

    #[inline(always)]
    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        self.inner.write_back(lines);
    }

    #[inline(always)]
    #[track_caller]
    fn fence(self) {
        self.inner.fence();
        let delay = self.delay.get();
        if !delay.is_zero() {
            let start = Instant::now();
            while start.elapsed() < delay {
                std::hint::spin_loop();
            }
        }
    }

    #[inline(always)]
    #[track_caller]
    fn shared_load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.inner.shared_load(word, order)
    }

    #[inline(always)]
    #[track_caller]
    fn shared_store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.shared_store(word, value, order);
    }

    #[inline(always)]
    #[track_caller]
    fn shared_compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.inner.shared_compare_exchange(word, current, new)
    }

    #[inline(always)]
    #[track_caller]
    fn shared_rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.inner.shared_rmw(word, op, operand)
    }

    #[track_caller]
    fn synced(self) {
        self.inner.synced();
    }

    #[track_caller]
    fn spin(self, turn: u32) {
        self.inner.spin(turn);
    }
}
