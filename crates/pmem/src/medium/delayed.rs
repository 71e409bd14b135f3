//! Added latency at the fence, for the figures of the papers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::forward::forward;
use super::{Medium, Rmw};
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
    forward! {
        survives, attach, detach, load, store, store_nt, store_nt_line, compare_exchange, rmw, checked,
        order, write_back, shared_load, shared_store, shared_compare_exchange, shared_rmw, synced, spin
    }

    fn describe(self) -> String {
        format!("{} + {} ns a fence", self.inner.describe(), self.delay.get().as_nanos())
    }

    fn for_session(self, slot: u32) -> Self {
        Delayed { inner: self.inner.for_session(slot), ..self }
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
    fn wide(self) -> Option<Wide> {
        self.inner.wide()
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
}
