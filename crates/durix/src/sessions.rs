//! Cached sessions: a call on a map from any thread borrows one.
//!
//! Sessions lie in *stripes*, and belong to the database, not to threads. A thread begins its search at a stripe of its
//! own, so that as a rule nobody is in its way, and gives the session back at the end of the call. So a thread that ends
//! takes no session with it, and there are never more sessions than calls at a time, or stripes.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use durix_pmem::{Medium, Pool, Session};

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

/// Taking one out and putting it back are one locked instruction each.
type Stripe<M> = CachePadded<AtomicCell<Option<Box<Cached<M>>>>>;

/// The cached sessions of a database.
pub(crate) struct Sessions<M: Medium> {
    stripes: Box<[Stripe<M>]>,
}

impl<M: Medium> fmt::Debug for Sessions<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("stripes", &self.stripes.len()).finish_non_exhaustive()
    }
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

    /// Runs `call` with a session. It must not call user code while it holds an operation. A panic in the call takes the session
    /// away, so that no half-done state stays.
    #[inline]
    pub(crate) fn with<R>(&self, pool: &Pool<M>, call: impl FnOnce(&mut Cached<M>) -> Result<R>) -> Result<R> {
        let mut cached = self.take(pool)?;
        let result = call(&mut cached);
        self.give_back(cached);
        result
    }

    /// Takes a session out.
    ///
    /// # Errors
    /// As [`Cached::new`]. It waits for a while where there are too many sessions.
    #[inline]
    pub(crate) fn take(&self, pool: &Pool<M>) -> Result<Box<Cached<M>>> {
        match self.stripe(thread_number()).take() {
            Some(cached) => Ok(cached),
            None => self.take_another(pool),
        }
    }

    #[cold]
    fn take_another(&self, pool: &Pool<M>) -> Result<Box<Cached<M>>> {
        let (first, mut turn) = (thread_number(), 0);
        loop {
            if let Some(cached) = self.from(first).find_map(|stripe| stripe.take()) {
                return Ok(cached);
            }
            match Cached::new(pool) {
                Ok(cached) => return Ok(Box::new(cached)),
                // Calls are short, so one ends soon.
                Err(Error::Pool(durix_pmem::Error::TooManySessions { .. })) if turn < MOST_TURNS => {
                    pool.mapping().medium().spin(turn);
                    turn += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps a session for the next call.
    #[inline]
    pub(crate) fn give_back(&self, mut cached: Box<Cached<M>>) {
        cached.shrink();
        // As a rule the thread's own stripe is empty; what was in the way goes to the next one.
        if let Some(other) = self.stripe(thread_number()).swap(Some(cached)) {
            self.keep_another(other);
        }
    }

    #[cold]
    fn keep_another(&self, mut cached: Box<Cached<M>>) {
        // More sessions than stripes: the last one goes.
        for stripe in self.from(thread_number()).skip(1) {
            match stripe.swap(Some(cached)) {
                Some(other) => cached = other,
                None => return,
            }
        }
    }

    fn stripe(&self, number: usize) -> &Stripe<M> {
        &self.stripes[number & (self.stripes.len() - 1)]
    }

    fn from(&self, first: usize) -> impl Iterator<Item = &Stripe<M>> {
        (0..self.stripes.len()).map(move |at| self.stripe(first.wrapping_add(at)))
    }

    /// Gives all sessions back that no call uses at the moment.
    pub(crate) fn clear(&self) {
        for stripe in &self.stripes {
            stripe.take();
        }
    }
}

/// How often a call looks for a session before it gives up: seconds, as most turns yield the processor.
const MOST_TURNS: u32 = 1_000_000;
