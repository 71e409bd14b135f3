//! What can go wrong, said in one line with what to do about it.

use crate::{MAX_KEY, MAX_VALUE};

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a [`Masstree`](crate::Masstree), with the offending values. A call that fails has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full or shut, or a panic has cut an operation short.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// The external log refused something.
    #[error("the external log: {0}")]
    Log(#[from] durix_cso::log::Error),

    /// The key is longer than [`MAX_KEY`].
    #[error("a key of {len} bytes is longer than {MAX_KEY}; store a hash of it, and the key in the value")]
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
    },

    /// The value is longer than [`MAX_VALUE`].
    #[error("a value of {len} bytes is longer than {MAX_VALUE}; split it over several keys")]
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
    },

    /// What lies in the pool was not written by this code.
    #[error("the tree is corrupt: {what} at {offset:#x} holds {found:#x}; run a check, or restore a copy")]
    Corrupt {
        /// What makes no sense.
        what: &'static str,
        /// Its offset in the pool.
        offset: u64,
        /// What was found there.
        found: u64,
    },

    /// A node stays locked, or changes without end.
    #[error(
        "the node at {offset:#x} could not be had within {seconds} s: an operation is stuck in it, or its lock word is damaged; open the pool again"
    )]
    Stuck {
        /// The node.
        offset: u64,
        /// How long was waited.
        seconds: u64,
    },
}
