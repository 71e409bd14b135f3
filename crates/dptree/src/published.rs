//! Immutable objects in DRAM that readers reach without a lock, and their reclamation.
//!
//! [`Published`] holds the current object. Whoever replaces it hands the old one to the [`Limbo`], which drops it after a grace
//! period: once every operation that was open at the replacement has ended. An operation may hold references to old objects
//! for as long as it lasts, so references never leave a public call of the tree, and [`Limbo::poll`] runs at the end of one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use durix_pmem::{Grace, Lock, Medium, Op};

/// The place of an object as its users reach it: in an operation, or loom's. The functions below are written over it, so that loom explores
/// the very code that runs.
pub(crate) trait Place {
    type Object: PartialEq;
    /// Acquires what came before the object was put there; releases what came before this call.
    fn swap(&self, new: Self::Object) -> Self::Object;
    /// Relaxed.
    fn load(&self) -> Self::Object;
    /// No later store is seen before those that came before this call.
    fn order(&self);
    /// No later load is older than those before.
    fn acquire(&self);
}

#[inline(always)]
pub(crate) fn replace<P: Place>(place: &P, new: P::Object) -> P::Object {
    let old = place.swap(new);
    // Mirror: `is_still`. No later store is seen before the replacement.
    place.order();
    old
}

#[inline(always)]
pub(crate) fn is_still<P: Place>(place: &P, seen: P::Object) -> bool {
    // Mirror: `replace`. If one of our loads saw a store that followed a replacement, then this load sees the replacement.
    place.acquire();
    place.load() == seen
}

struct At<'a, 'o, 's, T, M: Medium> {
    place: &'a Published<T>,
    op: &'o Op<'s, M>,
}

impl<T, M: Medium> Place for At<'_, '_, '_, T, M> {
    type Object = *mut T;

    fn swap(&self, new: *mut T) -> *mut T {
        let m = self.op.medium();
        m.shared_store(&self.place.changes, m.shared_load(&self.place.changes, Relaxed).wrapping_add(1), Release);
        self.place.current.swap(new, std::sync::atomic::Ordering::AcqRel)
    }

    #[inline(always)]
    fn load(&self) -> *mut T {
        self.op.medium().shared_load(&self.place.changes, Relaxed);
        self.place.current.load(Relaxed)
    }

    fn order(&self) {
        self.op.order();
    }

    #[inline(always)]
    fn acquire(&self) {
        std::sync::atomic::fence(Acquire);
    }
}

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

    /// Where the current object lies: a hint.
    pub(crate) fn addr(&self) -> u64 {
        self.current.load(Relaxed).addr() as u64
    }

    /// Whether `object`, got in the same operation, is still the current one. Loads that came before this call have seen nothing that
    /// was stored after a replacement.
    #[inline(always)]
    pub(crate) fn is_current<M: Medium>(&self, op: &Op<'_, M>, object: &T) -> bool {
        is_still(&At { place: self, op }, std::ptr::from_ref(object).cast_mut())
    }

    /// Replaces the object; by one thread at a time.
    pub(crate) fn replace<M: Medium>(&self, op: &Op<'_, M>, object: T) -> Box<T> {
        let old = replace(&At { place: self, op }, Box::into_raw(Box::new(object)));
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

/// Writers poll at so many generations.
const LATE: usize = 4;

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

    /// As [`poll`](Self::poll), if others have not polled for long: writers leave it to merges.
    #[inline(always)]
    pub(crate) fn poll_late<M: Medium>(&self, op: &Op<'_, M>) {
        if self.count.load(Relaxed) >= (LATE * GENERATION) as u64 {
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

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{Place, is_still, replace};
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
    use loom::sync::atomic::{AtomicU64, fence};

    /// A place of numbers, and a word that is stored to beside it.
    struct World {
        current: AtomicU64,
        word: AtomicU64,
        orders: bool,
    }

    impl Place for World {
        type Object = u64;

        fn swap(&self, new: u64) -> u64 {
            self.current.swap(new, AcqRel)
        }
        fn load(&self) -> u64 {
            self.current.load(Relaxed)
        }
        fn order(&self) {
            if self.orders {
                fence(Release);
            }
        }
        fn acquire(&self) {
            fence(Acquire);
        }
    }

    fn explore(orders: bool, writer: fn(&World), reader: fn(&World)) {
        loom::model(move || {
            let world = World { current: AtomicU64::new(1), word: AtomicU64::new(10), orders };
            let world = Arc::new(world);
            let other = {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || writer(&world))
            };
            reader(&world);
            other.join().unwrap();
        });
    }

    /// A merge replaces the snapshot, and the next one uses a slot again that the first one has freed.
    fn slots_that_were_used_again(orders: bool) {
        let merges = |world: &World| {
            assert_eq!(replace(world, 2), 1);
            world.word.store(20, Relaxed);
        };
        let reads = |world: &World| {
            let seen = world.current.load(Acquire);
            let value = world.word.load(Relaxed);
            if seen == 1 && is_still(world, seen) {
                assert_eq!(value, 10);
            }
        };
        explore(orders, merges, reads);
    }

    #[test]
    fn loom_a_current_snapshot_has_its_own_slots() {
        slots_that_were_used_again(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_order_a_reader_takes_a_slot_for_its_own() {
        slots_that_were_used_again(false);
    }
}
