//! No file comes over the live part of a pool.
use durix_pmem::Pool;
use durix_pmem::backing::{Access, Backing, FileBacking, Window};

fn overlay(pool: &Pool, file: &FileBacking) {
    let window = Window::new(pool.mapping().reserve(), 0..4096, Access::Peek);
    file.map(&window).unwrap();
}

fn replay(pool: &Pool, file: &FileBacking) {
    file.map(pool.mapping().reserve(), 0..4096, Access::Peek).unwrap();
}

fn main() {}
