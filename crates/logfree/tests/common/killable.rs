//! A medium on which a process can die at a fence, with everything it has stored in the caches.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{Lines, Medium, Rmw, Survives};

/// Every fence works.
const ALIVE: u64 = 0;
/// No write-back and no fence works; below this, so many fences are left, the last of which kills.
const DEAD: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub struct Killable<M> {
    inner: M,
    left: &'static AtomicU64,
}

struct Death;

impl<M: Medium> Killable<M> {
    pub fn new(inner: M) -> Self {
        Killable { inner, left: Box::leak(Box::default()) }
    }

    /// Runs `f` until its `fence`-th fence (from 1), which does not happen, nor do the write-backs before it.
    ///
    /// # Panics
    /// If `f` ends before.
    pub fn dying(self, fence: u64, f: impl FnOnce()) {
        self.left.store(fence, Ordering::Relaxed);
        let death = catch_unwind(AssertUnwindSafe(f));
        self.left.store(ALIVE, Ordering::Relaxed);
        let Err(death) = death else { panic!("the operation has fewer than {fence} fences") };
        if !death.is::<Death>() {
            resume_unwind(death);
        }
    }
}

impl<M: Medium> Medium for Killable<M> {
    fn describe(self) -> String {
        self.inner.describe()
    }

    fn survives(self) -> Survives {
        self.inner.survives()
    }

    fn for_session(self, slot: u32) -> Self {
        Killable { inner: self.inner.for_session(slot), ..self }
    }

    fn attach(self, base: *const u8, len: usize) {
        self.inner.attach(base, len);
    }

    fn detach(self, base: *const u8) {
        self.inner.detach(base);
    }

    #[track_caller]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.inner.load(word, order)
    }

    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.store(word, value, order);
    }

    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.inner.store_nt(word, value);
    }

    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.inner.store_nt_line(line, values);
    }

    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.inner.compare_exchange(word, current, new)
    }

    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.inner.rmw(word, op, operand)
    }

    #[track_caller]
    fn order(self) {
        self.inner.order();
    }

    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        let left = self.left.load(Ordering::Relaxed);
        if left == ALIVE || (1 < left && left < DEAD) {
            self.inner.write_back(lines);
        }
    }

    #[track_caller]
    fn fence(self) {
        match self.left.load(Ordering::Relaxed) {
            ALIVE => self.inner.fence(),
            DEAD => {}
            1 => {
                self.left.store(DEAD, Ordering::Relaxed);
                // No panic hook, no message: this death is part of the test.
                resume_unwind(Box::new(Death));
            }
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                self.inner.fence();
            }
        }
    }

    #[track_caller]
    fn shared_load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.inner.shared_load(word, order)
    }

    #[track_caller]
    fn shared_store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.shared_store(word, value, order);
    }

    #[track_caller]
    fn shared_compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.inner.shared_compare_exchange(word, current, new)
    }

    #[track_caller]
    fn shared_rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.inner.shared_rmw(word, op, operand)
    }

    fn spin(self, turn: u32) {
        self.inner.spin(turn);
    }
}
