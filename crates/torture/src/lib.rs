//! Contended stress: a few keys, several threads, every operation, in every kind of index.
//!
//! [`contend()`] works on an index with some threads for some time, in short rounds. In each round
//!
//! - every thread makes all kinds of operations on the same keys: look-ups, many at a time too, updates of all sorts, batches,
//!   walks forwards and backwards, over all and over ranges;
//! - now and then a thread inserts some keys of its own between the others, and takes them out again, so that tables
//!   grow, nodes split and pages are used again;
//! - another thread takes checkpoints, and makes what was done durable;
//! - threads are held up at random places, inside operations and locks, by a signal whose handler sleeps ([`hold`]).
//!
//! Any error ends it, but that the pool is full where it is meant to be. Each walk has to be in order, without a key twice. When
//! the round has ended, the index is checked, and the history of each key has to be linearizable ([`history`]): each operation,
//! and each look of a walk at a key, took effect at one moment between its begin and its end.
//!
//! `cargo run -p durix-torture -- <kind> [seconds]` tries one kind for longer; `tests/contended.rs` all of them.

pub mod contend;
pub mod history;
pub mod hold;
mod keys;
mod worker;

pub use contend::{Setting, contend};
use durix_pmem::testing::mix;

/// Numbers that follow from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        Random(mix(seed))
    }

    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % limit.max(1)
    }
}
