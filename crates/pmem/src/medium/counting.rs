//! Exact numbers of stores, write-backs and fences: the noise-free figures of this field.

use std::sync::atomic::{AtomicU64, Ordering};

use super::forward::forward;
use super::{Medium, Rmw};
use crate::line::Lines;

/// What a [`Counting`] medium has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stores to words, non-temporal ones included.
    pub stores: u64,
    /// Bytes of those stores.
    pub bytes: u64,
    /// Lines written back.
    pub write_backs: u64,
    /// Persist fences.
    pub fences: u64,
    /// Locked instructions and `SeqCst` stores.
    pub locked: u64,
    /// Locked instructions that found write-backs pending, and so waited for them like a fence.
    pub implicit_drains: u64,
}

impl std::ops::Sub for Counts {
    type Output = Counts;
    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            stores: self.stores - earlier.stores,
            bytes: self.bytes - earlier.bytes,
            write_backs: self.write_backs - earlier.write_backs,
            fences: self.fences - earlier.fences,
            locked: self.locked - earlier.locked,
            implicit_drains: self.implicit_drains - earlier.implicit_drains,
        }
    }
}

impl std::ops::Add for Counts {
    type Output = Counts;
    fn add(self, other: Counts) -> Counts {
        Counts {
            stores: self.stores + other.stores,
            bytes: self.bytes + other.bytes,
            write_backs: self.write_backs + other.write_backs,
            fences: self.fences + other.fences,
            locked: self.locked + other.locked,
            implicit_drains: self.implicit_drains + other.implicit_drains,
        }
    }
}

const SLOTS: usize = 64;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    stores: AtomicU64,
    write_backs: AtomicU64,
    fences: AtomicU64,
    locked: AtomicU64,
    implicit_drains: AtomicU64,
    pending: AtomicU64,
}

/// A medium that counts, per session, what goes through to the medium inside.
///
/// Sessions whose slots agree modulo 64 share a cell; totals are exact, `implicit_drains` then is an upper bound.
/// The counters of each [`Counting::new`] live until the process ends: it is an instrument for tests and benches.
#[derive(Clone, Copy, Debug)]
pub struct Counting<M> {
    inner: M,
    cells: &'static [Cell; SLOTS],
    slot: usize,
}

impl<M: Medium> Counting<M> {
    /// Counts what goes to `inner`, from zero.
    pub fn new(inner: M) -> Self {
        let cells = Box::leak(Box::new(std::array::from_fn(|_| Cell::default())));
        Counting { inner, cells, slot: 0 }
    }

    /// The counts of all sessions so far.
    pub fn counts(self) -> Counts {
        let sum =
            |field: fn(&Cell) -> &AtomicU64| self.cells.iter().map(|c| field(c).load(Ordering::Relaxed)).sum::<u64>();
        let stores = sum(|c| &c.stores);
        Counts {
            stores,
            bytes: stores * 8,
            write_backs: sum(|c| &c.write_backs),
            fences: sum(|c| &c.fences),
            locked: sum(|c| &c.locked),
            implicit_drains: sum(|c| &c.implicit_drains),
        }
    }

    fn cell(self) -> &'static Cell {
        &self.cells[self.slot]
    }

    fn locked(self) {
        let cell = self.cell();
        bump(&cell.locked, 1);
        if cell.pending.swap(0, Ordering::Relaxed) > 0 {
            bump(&cell.implicit_drains, 1);
        }
    }
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

// SAFETY: every access is handed on unchanged; it only counts them.
unsafe impl<M: Medium> Medium for Counting<M> {
    forward! { survives, attach, detach, load, checked, order, shared_load, synced, spin }

    fn describe(self) -> String {
        format!("counting over {}", self.inner.describe())
    }

    fn for_session(self, slot: u32) -> Self {
        Counting { inner: self.inner.for_session(slot), slot: slot as usize % SLOTS, ..self }
    }

    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        bump(&self.cell().stores, 1);
        if order == Ordering::SeqCst {
            self.locked();
        }
        self.inner.store(word, value, order);
    }

    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        bump(&self.cell().stores, 1);
        self.inner.store_nt(word, value);
    }

    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        bump(&self.cell().stores, 8);
        self.inner.store_nt_line(line, values);
    }

    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.locked();
        let result = self.inner.compare_exchange(word, current, new);
        bump(&self.cell().stores, u64::from(result.is_ok()));
        result
    }

    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.locked();
        bump(&self.cell().stores, 1);
        self.inner.rmw(word, op, operand)
    }

    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        let cell = self.cell();
        bump(&cell.write_backs, lines.count() as u64);
        bump(&cell.pending, lines.count() as u64);
        self.inner.write_back(lines);
    }

    #[track_caller]
    fn fence(self) {
        let cell = self.cell();
        bump(&cell.fences, 1);
        cell.pending.store(0, Ordering::Relaxed);
        self.inner.fence();
    }

    #[track_caller]
    fn shared_store(self, word: &AtomicU64, value: u64, order: Ordering) {
        if order == Ordering::SeqCst {
            self.locked();
        }
        self.inner.shared_store(word, value, order);
    }

    #[track_caller]
    fn shared_compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.locked();
        self.inner.shared_compare_exchange(word, current, new)
    }

    #[track_caller]
    fn shared_rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.locked();
        self.inner.shared_rmw(word, op, operand)
    }
}
