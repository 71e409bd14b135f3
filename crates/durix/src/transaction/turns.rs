//! Snapshots that wait for a moment in which no transaction is pending, and the commits that give way to them.
//!
//! A transaction over strict and buffered maps is pending from its commit until its strict part is changed, after a checkpoint. Where
//! several threads commit such transactions without a pause, there is always one that is pending. So a snapshot that has found
//! one takes a number, and a commit that would become pending waits before it begins, until all snapshots that have taken their numbers
//! before are open.
//!
//! Neither starves. A commit waits for no snapshot that comes later. And each thread gets past a waiting snapshot once at most, with the
//! commit that looked before the snapshot had its number; its next commit waits. A commit holds locks while it waits, and a snapshot waits
//! for no lock, so no cycle comes of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix_pmem::{Lock, Medium};

/// How long a map's first transaction, or a snapshot, waits for the operations in flight; and a commit for snapshots.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Turns after which the thread sleeps: a snapshot can wait for a disk.
const SLEEPS: u32 = 2_000;

/// Who waits.
pub(crate) struct Turns {
    /// How many snapshots wait.
    count: AtomicU64,
    waiting: Lock<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The last number that was taken.
    last: u64,
    numbers: Vec<u64>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns { count: AtomicU64::new(0), waiting: Lock::new(Waiting::default()) }
    }

    /// Takes a number, until dropped.
    pub(crate) fn take<M: Medium>(&self, m: M) -> Number<'_, M> {
        let mut waiting = self.waiting.lock(m);
        waiting.last += 1;
        let number = waiting.last;
        waiting.numbers.push(number);
        m.shared_store(&self.count, waiting.numbers.len() as u64, Ordering::Release);
        drop(waiting);
        Number { turns: self, m, number }
    }

    /// Waits until all are open that wait now. Outside of operations.
    #[inline]
    pub(super) fn give_way<M: Medium>(&self, m: M) {
        if m.shared_load(&self.count, Ordering::Acquire) != 0 {
            self.wait(m);
        }
    }

    #[cold]
    fn wait<M: Medium>(&self, m: M) {
        let (last, since) = (self.waiting.lock(m).last, Instant::now());
        let mut turn = 0u32;
        while self.waiting.lock(m).numbers.iter().any(|number| *number <= last) && since.elapsed() < PATIENCE {
            m.spin(turn);
            if turn > SLEEPS {
                std::thread::sleep(Duration::from_micros(50));
            }
            turn = turn.saturating_add(1);
        }
    }
}

/// A snapshot that waits.
pub(crate) struct Number<'t, M: Medium> {
    turns: &'t Turns,
    m: M,
    number: u64,
}

impl<M: Medium> Drop for Number<'_, M> {
    fn drop(&mut self) {
        let mut waiting = self.turns.waiting.lock(self.m);
        waiting.numbers.retain(|number| *number != self.number);
        self.m.shared_store(&self.turns.count, waiting.numbers.len() as u64, Ordering::Release);
    }
}
