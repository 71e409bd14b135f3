//! A medium on which a process can die: at its next fence, with everything that it has stored in the caches and nothing
//! of it written back.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use durix_pmem::{Lines, Medium, Rmw, Survives};

#[derive(Clone, Copy, Debug)]
pub struct Killable<M> {
    inner: M,
    state: &'static AtomicU8,
}

impl<M: Medium> Killable<M> {
    pub fn new(inner: M) -> Self {
        Killable { inner, state: Box::leak(Box::default()) }
    }

    /// Runs `f` without any write-back, up to its first fence.
    pub fn dying(self, f: impl FnOnce()) {
        self.state.store(DYING, Ordering::Relaxed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(f))
            && !panic.is::<Died>()
        {
            resume_unwind(panic);
        }
        self.state.store(ALIVE, Ordering::Relaxed);
    }

    fn is(self, state: u8) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }
}

const ALIVE: u8 = 0;
const DYING: u8 = 1;
/// Drops run, and store nothing any more.
const DEAD: u8 = 2;

struct Died;

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
        if !self.is(DEAD) {
            self.inner.store(word, value, order);
        }
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
        if self.is(ALIVE) {
            self.inner.write_back(lines);
        }
    }
    #[track_caller]
    fn fence(self) {
        match self.state.load(Ordering::Relaxed) {
            ALIVE => self.inner.fence(),
            DYING => {
                self.state.store(DEAD, Ordering::Relaxed);
                resume_unwind(Box::new(Died));
            }
            _ => {}
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
