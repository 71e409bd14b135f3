//! The workload of ATC'18, section 6.1: half inserts, half removes of keys drawn uniformly from twice as many as are there, by
//! one thread or more, on the durable sets and on those that are made durable by logs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`rounds`] | a set at work, as a contestant |
//! | [`make`] | which sets there are, and how each is made |
//! | [`report`] | the table of `cargo bench --bench logfree` |
//!
//! Drawing a key (xorshift) and entering the operation are part of what is timed, for everyone alike: 2 ns and 5 ns.

pub mod make;
pub mod report;
pub mod rounds;

use crate::place::Refused;

/// Why a set cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory.
    #[error(transparent)]
    Place(#[from] Refused),
    /// The pool.
    #[error("{0}; set DURIX_DIR to a directory with enough room")]
    Pool(#[from] durix_pmem::Error),
    /// The set.
    #[error("{0}; set DURIX_DIR to a directory with enough room")]
    Set(#[from] durix_logfree::Error),
    /// The persistent set.
    #[error("{0}; set DURIX_DIR to a directory with enough room")]
    Pset(#[from] durix_pset::Error),
}

/// Key number `i`: spread over all 64 bits, different for each `i`, neither 0 nor the largest for any that is used.
pub fn key(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
