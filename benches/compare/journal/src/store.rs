//! What takes part.

use std::path::Path;
use std::time::{Duration, Instant};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// When updates are to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Each, when its call returns.
    OnReturn,
    /// Every [`EVERY`].
    Every,
}

/// The interval.
pub const EVERY: Duration = Duration::from_millis(64);

/// Bytes of a value; a key has 8.
pub const VALUE: usize = 100;

/// Key number `i`: spread over all 64 bits, different for each `i`.
pub fn key(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ z >> 32
}

/// The value of a key in its `turn`: bytes that nothing can compress.
pub fn value(key: u64, turn: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    let mut random = key ^ turn.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
    for bytes in value.chunks_mut(8) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        bytes.copy_from_slice(&random.to_le_bytes()[..bytes.len()]);
    }
    value
}

/// A store with 64-bit keys, in a folder of its own. Failures of a store panic: then nothing can be compared.
pub trait Store: Send + Sync {
    /// What a thread works with.
    fn worker(&self) -> Box<dyn Worker + '_>;

    /// Updates keys for [`EVERY`], or as many as there are, and makes them durable. Of a store that does so by itself, all.
    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>);
}

pub trait Worker {
    /// Inserts a key; durable on return.
    fn insert(&mut self, key: u64);

    /// Sets keys to their value of a turn, together; durable on return.
    fn transaction(&mut self, keys: &[u64], turn: u64);

    /// What a key maps to.
    fn get(&mut self, key: u64) -> Option<Vec<u8>>;
}

/// One that takes part: its name, how it is set up, how it is made.
pub struct Contestant {
    pub name: &'static str,
    pub setup: &'static str,
    pub make: fn(&Path, When) -> Result<Box<dyn Store>, Error>,
}

/// Hands keys to `update` until [`EVERY`] has passed; looks at the clock now and then.
pub fn for_a_while(keys: &mut dyn Iterator<Item = (u64, u64)>, mut update: impl FnMut(u64, [u8; VALUE])) {
    let start = Instant::now();
    for (count, (key, turn)) in keys.enumerate() {
        update(key, value(key, turn));
        if count % 64 == 63 && start.elapsed() >= EVERY {
            return;
        }
    }
}
