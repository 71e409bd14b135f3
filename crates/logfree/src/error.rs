//! What can go wrong, said in one line with what to do about it.

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a structure of this crate, with the offending values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full or shut.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// An option that the structure cannot be created with.
    #[error("{option} of {value} is not possible: {rule}")]
    BadOption {
        /// Which one.
        option: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        rule: &'static str,
    },

    /// A key or a value is longer than it can be. Nothing was changed.
    #[error("{what} of {len} bytes is longer than {limit}")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Its length in bytes.
        len: u64,
        /// The longest in bytes.
        limit: u64,
    },

    /// What lies in the pool was not written by this code.
    #[error("the structure is corrupt: {what} at {offset:#x} holds {found:#x}; run a check, or restore a copy")]
    Corrupt {
        /// What makes no sense.
        what: &'static str,
        /// Its offset in the pool.
        offset: u64,
        /// What was found there.
        found: u64,
    },
}
