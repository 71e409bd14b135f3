//! A field that is taken out would be counted all the same, and padding fill its place.
use durix_pmem::{Word, persistent};

persistent! {
    struct Padded: align(16) {
        a: Word,
        #[cfg(any())]
        b: Word,
    }
}

fn main() {}
