//! Nobody fills a part of a pool from two threads.
use durix_pmem::backing::Window;

fn share<T: Sync>(_: &T) {}

fn give_away(window: &Window<'_>) {
    share(window);
}

fn main() {}
