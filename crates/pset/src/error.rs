//! What can go wrong in a set, said in one line with what to do about it.

use super::layout::{MAX_KEY, MAX_TRANSACTION, MAX_VALUE};

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a [`PersistentSet`](super::PersistentSet), with the offending values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full or shut, or a panic has cut an operation short.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// The key is longer than [`MAX_KEY`].
    #[error("a key of {len} bytes is longer than {MAX_KEY}; store a hash of it, and the key in the value")]
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
    },

    /// The value is longer than [`MAX_VALUE`].
    #[error("a value of {len} bytes is longer than {MAX_VALUE}; split it over several keys in one transaction")]
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
    },

    /// The transaction writes more than [`MAX_TRANSACTION`] keys.
    #[error("a transaction of {keys} keys is larger than {MAX_TRANSACTION}; split it")]
    TransactionTooLarge {
        /// How many keys it writes.
        keys: usize,
    },

    /// What lies in the pool was not written by this code.
    #[error("the set is corrupt: {what} at {offset:#x} holds {found:#x}; run a check, or restore a copy")]
    Corrupt {
        /// What makes no sense.
        what: &'static str,
        /// Its offset in the pool.
        offset: u64,
        /// What was found there.
        found: u64,
    },
}
