//! A guard gives `&T` to whoever has a reference to it.
use std::cell::Cell;

use durix_pmem::{Hardware, LockGuard};

fn share<T: Sync>(_: &T) {}

fn give_away(guard: &LockGuard<'_, Cell<u64>, Hardware>) {
    share(guard);
}

fn main() {}
