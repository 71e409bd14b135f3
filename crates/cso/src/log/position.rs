//! Where records start, and what a check says of one.

use std::fmt;

/// Where a record starts: a number that only grows, by the units (slots or lines) that records take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub(crate) u64);

impl Position {
    /// The number; 64 bits that can be stored.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The position with a number that was stored somewhere.
    pub fn from_raw(number: u64) -> Self {
        Position(number)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An inconsistency found by [`Log::check`](super::Log::check).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The record concerned.
    pub position: Position,
    /// What is wrong.
    pub what: String,
}
