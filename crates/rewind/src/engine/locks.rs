//! Locks of words, by stripes, with wait-die.
//!
//! A stripe holds the age of its transaction, or zero. An older transaction (a lower age) waits for a younger one; a younger
//! one that meets an older one gives up. So whoever waits is older than the one it waits for, and no cycle can arise. A
//! transaction that runs again keeps its age, so it is the oldest at last.
//!
//! Stripes are volatile. They are never waited for inside an operation scope.
//!
//! # Who owns the stripes
//! The stripes belong to the first session that runs a transaction. It takes a stripe by a load and a store, in an operation, in which
//! it also finds that they are its own; a locked instruction would wait for what the last commit has stored in place. The first
//! transaction of another session makes them everybody's, for good, in a moment without operations
//! ([`Mapping::quiesce`](durix_pmem::Mapping::quiesce)):
//!
//! - Either the owner's operation ends before that moment; then whoever locks after the moment sees the stripe taken.
//! - Or it begins after the moment; then it sees that the stripes are everybody's, and takes them by a locked instruction as all do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix_pmem::{Medium, Session};

/// Stripes: a power of two.
const STRIPES: usize = 1 << 12;
/// How long an older transaction waits for a stripe: longer only if a transaction waits for itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// Turns before the clock is looked at.
const EARLY: u32 = 1 << 12;

pub(super) struct Locks {
    stripes: Box<[AtomicU64]>,
    /// [`NOBODY`], the slot of the session that owns the stripes plus one, or [`EVERYBODY`].
    owner: AtomicU64,
}

const NOBODY: u64 = 0;
const EVERYBODY: u64 = u64::MAX;

/// What an attempt to lock has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// The stripe, just now.
    Taken(u32),
    /// It was held by the same transaction already.
    Held,
    /// An older transaction has it, or a younger one keeps it for too long.
    Lost,
}

impl Locks {
    pub(super) fn new() -> Self {
        Locks { stripes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(), owner: AtomicU64::new(NOBODY) }
    }

    fn as_owner<M: Medium>(session: &Session<M>) -> u64 {
        u64::from(session.slot()) + 1
    }

    /// Before a transaction of a session: nobody's stripes become its own, another's become everybody's.
    ///
    /// # Errors
    /// As [`Mapping::quiesce`](durix_pmem::Mapping::quiesce).
    #[inline]
    pub(super) fn claim<M: Medium>(&self, session: &mut Session<M>) -> durix_pmem::Result<()> {
        let owner = session.mapping().medium().shared_load(&self.owner, Ordering::Acquire);
        if owner == EVERYBODY || owner == Self::as_owner(session) { Ok(()) } else { self.claim_now(session) }
    }

    #[cold]
    fn claim_now<M: Medium>(&self, session: &mut Session<M>) -> durix_pmem::Result<()> {
        let (m, mapping) = (session.mapping().medium(), session.mapping().clone());
        // Where entering an operation is a full fence it is no cheaper than a locked instruction.
        let owner = if mapping.enters_without_fence() { Self::as_owner(session) } else { EVERYBODY };
        if m.shared_compare_exchange(&self.owner, NOBODY, owner).is_ok() {
            return Ok(());
        }
        mapping.quiesce(session, PATIENCE, |_| m.shared_store(&self.owner, EVERYBODY, Ordering::Release))
    }

    fn stripe(off: u64) -> u32 {
        ((off >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - STRIPES.trailing_zeros())) as u32
    }

    /// Locks the stripe of a word for the transaction of an age, by a plain store where the stripes belong to the session.
    ///
    /// # Errors
    /// As [`Session::enter`].
    #[inline]
    pub(super) fn lock_for<M: Medium>(
        &self,
        session: &mut Session<M>,
        off: u64,
        age: u64,
    ) -> durix_pmem::Result<Got> {
        let (m, own) = (session.mapping().medium(), Self::as_owner(session));
        if m.shared_load(&self.owner, Ordering::Relaxed) == own {
            let number = Self::stripe(off);
            let stripe = &self.stripes[number as usize];
            let holder = m.shared_load(stripe, Ordering::Relaxed);
            if holder == age {
                return Ok(Got::Held);
            }
            let _op = session.enter()?;
            // In the operation: see the module's documentation.
            if holder == 0 && m.shared_load(&self.owner, Ordering::Acquire) == own {
                m.shared_store(stripe, age, Ordering::Release);
                return Ok(Got::Taken(number));
            }
        }
        Ok(self.lock(m, off, age))
    }

    /// Locks the stripe of a word for the transaction of an age.
    #[inline]
    pub(super) fn lock<M: Medium>(&self, m: M, off: u64, age: u64) -> Got {
        let number = Self::stripe(off);
        let stripe = &self.stripes[number as usize];
        if m.shared_load(stripe, Ordering::Relaxed) == age {
            return Got::Held;
        }
        match m.shared_compare_exchange(stripe, 0, age) {
            Ok(_) => Got::Taken(number),
            Err(holder) => Self::wait(m, stripe, number, age, holder),
        }
    }

    #[cold]
    fn wait<M: Medium>(m: M, stripe: &AtomicU64, number: u32, age: u64, mut holder: u64) -> Got {
        let (mut turn, mut since) = (0, None);
        loop {
            // If the holder lets go first, we find zero and take the stripe; if another one takes it first, we find its age,
            // and wait for it or give up.
            if holder != 0 && holder < age {
                return Got::Lost;
            }
            if turn > EARLY && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Got::Lost;
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
        m.shared_store(&self.stripes[number as usize], 0, Ordering::Release);
    }
}
