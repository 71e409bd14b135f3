//! Cached sessions: a call on a map from any thread borrows one.
//!
//! Sessions lie in *stripes*, and belong to the database, not to threads. A thread begins its search at a stripe of its
//! own, so that as a rule no other thread uses it, and gives the session back at the end of the call. So a thread that ends
//! takes no session with it, and there are never more sessions than calls at a time, or stripes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use durix_pmem::{Lock, Medium, Pool, Session};

use crate::{Error, Pairs, Result};

/// A session, and buffers for keys and values.
#[derive(Debug)]
pub(crate) struct Cached<M: Medium> {
    pub(crate) session: Session<M>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// What a walk of a handle has read.
    pub(crate) pairs: Pairs,
}

/// Largest buffer that is kept for the next call.
const KEPT_BYTES: usize = 64 << 10;

impl<M: Medium> Cached<M> {
    pub(crate) fn new(pool: &Pool<M>) -> Result<Self> {
        Ok(Cached { session: pool.session()?, key: Vec::new(), value: Vec::new(), pairs: Pairs::new() })
    }

    #[inline]
    pub(crate) fn shrink(&mut self) {
        for buffer in [&mut self.key, &mut self.value] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.pairs.capacity() > KEPT_BYTES {
            self.pairs = Pairs::new();
        }
    }
}

/// Boxed: it is taken out and put back by each call.
type Slot<M> = Option<Box<Cached<M>>>;

/// The cached sessions of a database.
#[derive(Debug)]
pub(crate) struct Sessions<M: Medium> {
    stripes: Box<[CachePadded<Lock<Slot<M>>>]>,
}

/// The number of the calling thread, by which it chooses a stripe.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

impl<M: Medium> Sessions<M> {
    pub(crate) fn new() -> Self {
        let stripes = (durix_pmem::processors() * 2).next_power_of_two().clamp(8, 64);
        Sessions { stripes: (0..stripes).map(|_| CachePadded::default()).collect() }
    }

    /// Runs `call` with a session. It must not call user code while it holds an operation.
    pub(crate) fn with<R>(&self, pool: &Pool<M>, call: impl FnOnce(&mut Cached<M>) -> Result<R>) -> Result<R> {
        let (first, m) = (thread_number(), pool.mapping().medium());
        let mut turn = 0;
        loop {
            for at in 0..self.stripes.len() {
                if let Some(mut stripe) = self.stripe(first.wrapping_add(at)).try_lock(m) {
                    // Taken out, so that a panic in the call takes this session away and no half-done state stays.
                    let mut cached = match stripe.take().map_or_else(|| Cached::new(pool).map(Box::new), Ok) {
                        // Another stripe may have one.
                        Err(Error::Pool(durix_pmem::Error::TooManySessions { .. })) => continue,
                        cached => cached?,
                    };
                    let result = call(&mut cached);
                    cached.shrink();
                    *stripe = Some(cached);
                    return result;
                }
            }
            // More calls at a time than stripes: a session for this call alone.
            match Cached::new(pool) {
                Ok(mut cached) => return call(&mut cached),
                // More than sessions, too: calls are short, so one ends soon.
                Err(Error::Pool(durix_pmem::Error::TooManySessions { .. })) if turn < MOST_TURNS => {
                    pool.mapping().medium().spin(turn);
                    turn += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn stripe(&self, number: usize) -> &Lock<Slot<M>> {
        &self.stripes[number & (self.stripes.len() - 1)]
    }

    /// Gives all sessions back, after the calls that use them.
    ///
    /// # Errors
    /// [`Busy`](durix_pmem::Error::Busy) where some are still used after that time, perhaps by the caller's own caller.
    pub(crate) fn clear(&self, m: M, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut turn = 0;
        loop {
            let used =
                |stripe: &&CachePadded<Lock<Slot<M>>>| stripe.try_lock(m).map(|mut slot| drop(slot.take())).is_none();
            match self.stripes.iter().filter(used).count() {
                0 => return Ok(()),
                operations if begun.elapsed() > patience => {
                    return Err(durix_pmem::Error::Busy { operations, waited: begun.elapsed() }.into());
                }
                _ => m.spin(turn),
            }
            turn = turn.saturating_add(1);
        }
    }
}

/// How often a call looks for a session before it gives up: seconds, as most turns yield the processor.
const MOST_TURNS: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};

    #[test]
    fn sessions_that_a_call_does_not_give_back_are_not_waited_for_without_end() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(16 << 20), Hardware::PAGE_CACHE).unwrap();
        let (sessions, m) = (Sessions::new(), pool.mapping().medium());
        // As if a database were closed in the encoder of a key.
        let inside = |_: &mut Cached<Hardware>| Ok(sessions.clear(m, Duration::from_millis(20)));
        let refused = sessions.with(&pool, inside).unwrap().unwrap_err();
        assert!(matches!(refused, Error::Pool(durix_pmem::Error::Busy { operations: 1, .. })), "{refused}");
        sessions.clear(m, Duration::ZERO).unwrap();
    }
}
