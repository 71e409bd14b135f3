//! A spin lock whose every step goes through the medium, so that a scheduler can see it.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch;
use crate::line::LINE;
use crate::medium::Medium;

/// A volatile lock around a `T`. It spins, then yields to the scheduler of the operating system.
///
/// A locked instruction drains pending write-backs, so take it before writing back or after the fence; unlocking is a
/// plain store.
#[repr(C)]
pub struct Lock<T> {
    state: AtomicU64,
    value: UnsafeCell<T>,
}

const FREE: u64 = 0;
const HELD: u64 = 1;

// SAFETY: the value is reached only by the holder of the lock, one thread at a time. A caller cannot make two hold it: the state is
// private, and a `Medium` is bound by its contract.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

impl<T> Lock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Lock { state: AtomicU64::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    #[track_caller]
    pub fn lock<M: Medium>(&self, m: M) -> LockGuard<'_, T, M> {
        let mut turn = 0;
        loop {
            if m.shared_compare_exchange(&self.state, FREE, HELD).is_ok() {
                return LockGuard { lock: self, m, _exclusive: PhantomData };
            }
            while m.shared_load(&self.state, Ordering::Relaxed) == HELD {
                m.spin(turn);
                turn = turn.saturating_add(1);
            }
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    #[track_caller]
    pub fn try_lock<M: Medium>(&self, m: M) -> Option<LockGuard<'_, T, M>> {
        // A guard may be made only where the lock was got: dropping it unlocks.
        m.shared_compare_exchange(&self.state, FREE, HELD).is_ok().then(|| LockGuard {
            lock: self,
            m,
            _exclusive: PhantomData,
        })
    }

    /// Asks the processor for the lock and the first bytes of its value, two lines in all, to take it soon. A hint that
    /// hides the wait for them; it is no access, for any medium.
    #[inline(always)]
    pub fn prefetch(&self) {
        let first = std::ptr::from_ref(self).cast::<u8>();
        arch::prefetch_write(first);
        arch::prefetch_write(first.wrapping_add(LINE));
    }

    /// The value, where no other thread can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// The right to the value of a [`Lock`], until dropped.
pub struct LockGuard<'a, T, M: Medium> {
    lock: &'a Lock<T>,
    m: M,
    /// It is as an exclusive reference: shared between threads only where `T` is.
    _exclusive: PhantomData<&'a mut T>,
}

impl<T, M: Medium> Deref for LockGuard<'_, T, M> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while it holds the lock (`Medium`'s contract: the exchange was atomic), so nobody writes; and
        // other threads have a reference to the guard only where `T` is `Sync`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, M: Medium> DerefMut for LockGuard<'_, T, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while it holds the lock, and is borrowed mutably, so nobody else has the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, M: Medium> Drop for LockGuard<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        self.m.shared_store(&self.lock.state, FREE, Ordering::Release);
    }
}

impl<T: fmt::Debug, M: Medium> fmt::Debug for LockGuard<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Hardware;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *lock.lock(Hardware::PAGE_CACHE) += 1));
            }
        });
        assert_eq!(lock.into_inner(), 40_000);
    }

    #[test]
    fn try_lock_fails_while_held() {
        let lock = Lock::new(());
        let held = lock.lock(Hardware::PAGE_CACHE);
        assert!(lock.try_lock(Hardware::PAGE_CACHE).is_none());
        assert!(lock.try_lock(Hardware::PAGE_CACHE).is_none(), "an attempt that fails leaves the lock held");
        drop(held);
        assert!(lock.try_lock(Hardware::PAGE_CACHE).is_some());
    }
}
