//! Locks and pointers rest on what a medium answers.
use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::medium::Survives;
use durix_pmem::{Lines, Medium, Rmw};

#[derive(Clone, Copy)]
struct Liar;

impl Medium for Liar {
    fn describe(self) -> String {
        String::new()
    }
    fn survives(self) -> Survives {
        Survives::ProcessDeath
    }
    fn load(self, _: &AtomicU64, _: Ordering) -> u64 {
        42
    }
    fn store(self, _: &AtomicU64, _: u64, _: Ordering) {}
    fn store_nt(self, _: &AtomicU64, _: u64) {}
    fn store_nt_line(self, _: &[AtomicU64; 8], _: &[u64; 8]) {}
    fn compare_exchange(self, _: &AtomicU64, current: u64, _: u64) -> Result<u64, u64> {
        Ok(current)
    }
    fn rmw(self, _: &AtomicU64, _: Rmw, _: u64) -> u64 {
        0
    }
    fn order(self) {}
    fn write_back(self, _: Lines<'_>) {}
    fn fence(self) {}
}

fn main() {}
