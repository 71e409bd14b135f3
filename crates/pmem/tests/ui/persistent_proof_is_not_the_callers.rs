//! The proof does not rest on names that a caller can give another meaning.
use durix_pmem::{Word, persistent};

macro_rules! assert {
    ($($anything:tt)*) => {};
}

const fn size_of<T>() -> usize {
    64
}

persistent! {
    struct Padded: align(64) {
        word: Word,
    }
}

fn main() {
    assert!(size_of::<Padded>() == 64);
}
