//! A medium on which write-backs and fences can be left out for a while, as if a process had died before them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use durix_pmem::{Lines, Medium, Rmw, Survives};

/// The medium.
#[derive(Clone, Copy, Debug)]
pub struct Killable<M> {
    inner: M,
    dying: &'static AtomicBool,
}

impl<M: Medium> Killable<M> {
    /// Over `inner`.
    pub fn new(inner: M) -> Self {
        Killable { inner, dying: Box::leak(Box::default()) }
    }

    /// Runs `f` without any write-back or fence.
    pub fn dying<R>(self, f: impl FnOnce() -> R) -> R {
        self.dying.store(true, Ordering::Relaxed);
        let result = f();
        self.dying.store(false, Ordering::Relaxed);
        result
    }

    fn lives(self) -> bool {
        !self.dying.load(Ordering::Relaxed)
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

    fn checked(self, words: &[AtomicU64], verify: impl FnOnce() -> bool) -> bool {
        self.inner.checked(words, verify)
    }

    #[track_caller]
    fn order(self) {
        self.inner.order();
    }

    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        if self.lives() {
            self.inner.write_back(lines);
        }
    }

    #[track_caller]
    fn fence(self) {
        if self.lives() {
            self.inner.fence();
        }
    }

    #[track_caller]
    fn shared_compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.inner.shared_compare_exchange(word, current, new)
    }

    #[track_caller]
    fn shared_store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.shared_store(word, value, order);
    }

    #[track_caller]
    fn shared_rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.inner.shared_rmw(word, op, operand)
    }

    fn spin(self, turn: u32) {
        self.inner.spin(turn);
    }
}
