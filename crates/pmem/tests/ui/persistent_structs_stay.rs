//! A struct that is taken out would lend its proof to another of its name.
use durix_pmem::{Word, persistent};

struct Node(Box<u64>);

persistent! {
    #[cfg(any())]
    struct Node: align(8) { a: Word }
}

fn main() {}
