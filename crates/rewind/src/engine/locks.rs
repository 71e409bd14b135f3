//! Locks of words, by stripes, with wait-die.
//!
//! A stripe holds the age of its transaction, or zero. An older transaction (a lower age) waits for a younger one; a younger
//! one that meets an older one gives up. So whoever waits is older than the one it waits for, and no cycle can arise.
//!
//! The first age of a transaction is a count of its own session, which nobody else writes: it says nothing of other sessions. A transaction that
//! has lost its first conflict gets another age from one count of all sessions, and keeps it. Such an age is older than each first age, and
//! than all that are given later. So the transaction is the oldest at last.
//!
//! Stripes are volatile. They are never waited for inside an operation scope.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix_pmem::Medium;

/// Stripes: a power of two.
const STRIPES: usize = 1 << 12;
/// How long an older transaction waits for a stripe: longer only if a transaction waits for itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// Turns before the clock is looked at.
const EARLY: u32 = 1 << 12;

pub(super) struct Locks {
    stripes: Box<[AtomicU64; STRIPES]>,
    /// [`PATIENCE`] in nanoseconds.
    pub(super) patience: AtomicU64,
}

/// What an attempt to lock has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// The stripe, just now.
    Taken(u32),
    /// It was held by the same transaction already.
    Held,
    /// An older transaction has it.
    Lost,
    /// A younger one keeps it for too long.
    TimedOut,
}

impl Locks {
    pub(super) fn new() -> Self {
        let patience = AtomicU64::new(PATIENCE.as_nanos() as u64);
        Locks { stripes: Box::new([const { AtomicU64::new(0) }; STRIPES]), patience }
    }

    #[inline]
    pub(super) fn stripe(off: u64) -> u32 {
        ((off >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - STRIPES.trailing_zeros())) as u32
    }

    #[inline]
    fn at(&self, number: u32) -> &AtomicU64 {
        &self.stripes[number as usize % STRIPES]
    }

    /// Locks the stripe of a word for the transaction of an age.
    #[inline]
    pub(super) fn lock<M: Medium>(&self, m: M, off: u64, age: u64) -> Got {
        let number = Self::stripe(off);
        let stripe = self.at(number);
        if m.shared_load(stripe, Ordering::Relaxed) == age {
            return Got::Held;
        }
        match m.shared_compare_exchange(stripe, 0, age) {
            Ok(_) => Got::Taken(number),
            Err(holder) => self.wait(m, number, age, holder),
        }
    }

    #[cold]
    fn wait<M: Medium>(&self, m: M, number: u32, age: u64, mut holder: u64) -> Got {
        let (stripe, patience) = (self.at(number), Duration::from_nanos(self.patience.load(Ordering::Relaxed)));
        let (mut turn, mut since) = (0, None);
        loop {
            // If the holder lets go first, we find zero and take the stripe; if another one takes it first, we find its age,
            // and wait for it or give up.
            if holder != 0 && holder < age {
                return Got::Lost;
            }
            if turn > EARLY && since.get_or_insert_with(Instant::now).elapsed() > patience {
                return Got::TimedOut;
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
            match m.shared_compare_exchange(stripe, 0, age) {
                Ok(_) => return Got::Taken(number),
                Err(found) => holder = found,
            }
        }
    }

    /// Lets go of a stripe.
    #[inline]
    pub(super) fn unlock<M: Medium>(&self, m: M, number: u32) {
        m.shared_store(self.at(number), 0, Ordering::Release);
    }
}
