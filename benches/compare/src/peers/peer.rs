//! What takes part in the comparison.

use crate::plan::Plan;

/// Why a peer cannot take part.
#[derive(Debug, thiserror::Error)]
#[error("{peer}: {reason}; set DURIX_DIR to a directory with enough room")]
pub struct Error {
    /// Which.
    pub peer: &'static str,
    /// What it says.
    pub reason: String,
}

impl Error {
    pub(super) fn of(peer: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Error {
        move |reason| Error { peer, reason: reason.to_string() }
    }
}

/// Something that maps 64-bit keys to 64-bit values; every key is its own value.
pub trait Peer: Send + Sync {
    /// What it is called in the table.
    fn name(&self) -> &str;

    /// What an insert that has returned survives.
    fn durability(&self) -> &'static str;

    /// How it is set up, in one line.
    fn parameters(&self) -> String;

    /// Whether anything survives the process.
    fn is_durable(&self) -> bool {
        true
    }

    /// Whether it can scan.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Bytes of its files.
    fn storage(&self) -> u64 {
        0
    }

    /// What a thread works through.
    fn worker(&self) -> Box<dyn Worker + '_>;
}

/// A thread's access to a peer. Failures of a peer panic: then nothing can be compared.
pub trait Worker {
    /// Inserts new keys; a store makes them durable every [`EVERY`](crate::plan::EVERY), and once at the end.
    fn insert(&mut self, keys: &[u64]);

    /// Inserts new keys, each durable before the next.
    fn insert_each_durably(&mut self, keys: &[u64]);

    /// Gets keys. Returns how many were there with the right value.
    fn get(&mut self, keys: &[u64]) -> usize;

    /// Scans [`SCAN`](crate::plan::SCAN) keys from each of `starts` on. Returns how many there were in all.
    fn scan(&mut self, starts: &[u64]) -> usize;
}

/// Makes an empty peer.
pub type Make = fn(&Plan) -> Result<Box<dyn Peer>, Error>;
