//! Immutable objects in DRAM that readers reach without a lock, and their reclamation.
//!
//! [`Published`] holds the current object. Whoever replaces it hands the old one to the [`Limbo`], which drops it after a grace
//! period: once every operation that was open at the replacement has ended. An operation may hold references to old objects
//! for as long as it lasts, so references never leave a public call of the tree, and [`Limbo::poll`] runs at the end of one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use durix_pmem::{Grace, LINE, Lock, Medium, Op};

use crate::front::prefetch;

/// The current object of its place.
pub(crate) struct Published<T> {
    /// Counts replacements. Goes through the medium next to each access of the pointer, so that a scheduler sees where threads meet;
    /// nothing else depends on it.
    changes: AtomicU64,
    current: AtomicPtr<T>,
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

impl<T> Published<T> {
    pub(crate) fn new(object: T) -> Self {
        Published { changes: AtomicU64::new(0), current: AtomicPtr::new(Box::into_raw(Box::new(object))) }
    }

    /// The current object.
    #[inline(always)]
    pub(crate) fn get<'a, M: Medium>(&self, op: &'a Op<'_, M>) -> &'a T {
        op.medium().shared_load(&self.changes, Acquire);
        // SAFETY: the pointer came from a box. It is replaced before it goes to the limbo, and dropped after a grace period that
        // waits for all operations but the one that polls, which holds no reference by then (see the module).
        unsafe { &*self.current.load(Acquire) }
    }

    /// Asks the processor for the first lines of the current object.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let first = self.current.load(Relaxed).cast::<u8>();
        prefetch(first);
        prefetch(first.wrapping_add(LINE));
    }

    /// Whether `object`, got in the same operation, is still the current one. Loads that came before this call have seen nothing that
    /// was stored after a replacement.
    #[inline(always)]
    pub(crate) fn is_current<M: Medium>(&self, op: &Op<'_, M>, object: &T) -> bool {
        // Mirror: `replace`. If one of our loads saw a store that followed a replacement, then this load sees the replacement.
        std::sync::atomic::fence(Acquire);
        op.medium().shared_load(&self.changes, Relaxed);
        std::ptr::eq(self.current.load(Relaxed), object)
    }

    /// Replaces the object; by one thread at a time.
    pub(crate) fn replace<M: Medium>(&self, op: &Op<'_, M>, object: T) -> Box<T> {
        let m = op.medium();
        m.shared_store(&self.changes, m.shared_load(&self.changes, Relaxed).wrapping_add(1), Release);
        let old = self.current.swap(Box::into_raw(Box::new(object)), std::sync::atomic::Ordering::AcqRel);
        // Mirror: `is_current`. No later store is seen before the replacement.
        op.order();
        // SAFETY: it came from a box, and was taken out of its place by this swap alone.
        unsafe { Box::from_raw(old) }
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nobody else has the place any more.
        drop(unsafe { Box::from_raw(*self.current.get_mut()) });
    }
}

/// Replaced objects until they can be dropped.
pub(crate) struct Limbo<T> {
    state: Lock<State<T>>,
    /// Objects in it: a hint, so that a poll of an empty limbo costs one load.
    count: AtomicU64,
}

struct State<T> {
    young: Vec<T>,
    waiting: VecDeque<(Grace, Vec<T>)>,
}

/// Objects that share a grace period.
const GENERATION: usize = 32;

impl<T> Limbo<T> {
    pub(crate) fn new() -> Self {
        Limbo { state: Lock::new(State { young: Vec::new(), waiting: VecDeque::new() }), count: AtomicU64::new(0) }
    }

    /// Takes a replaced object.
    pub(crate) fn put<M: Medium>(&self, m: M, object: T) {
        let mut state = self.state.lock(m);
        state.young.push(object);
        self.count.store(state.young.len() as u64, Relaxed);
    }

    /// Drops what can be dropped. The caller's operation holds no reference to any object.
    #[inline(always)]
    pub(crate) fn poll<M: Medium>(&self, op: &Op<'_, M>) {
        if self.count.load(Relaxed) >= GENERATION as u64 {
            self.drop_old(op);
        }
    }

    #[cold]
    fn drop_old<M: Medium>(&self, op: &Op<'_, M>) {
        let Some(mut state) = self.state.try_lock(op.medium()) else { return };
        let mut over = Vec::new();
        while let Some((grace, _)) = state.waiting.front_mut()
            && grace.is_over(op.mapping())
        {
            over.extend(state.waiting.pop_front());
        }
        if state.young.len() >= GENERATION {
            let young = std::mem::take(&mut state.young);
            state.waiting.push_back((op.grace(), young));
        }
        self.count.store(state.young.len() as u64, Relaxed);
        drop(state);
        drop(over);
    }

    /// Number of objects that wait.
    pub(crate) fn len<M: Medium>(&self, m: M) -> usize {
        let state = self.state.lock(m);
        state.young.len() + state.waiting.iter().map(|(_, objects)| objects.len()).sum::<usize>()
    }
}

impl<T> fmt::Debug for Limbo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Limbo")
    }
}
