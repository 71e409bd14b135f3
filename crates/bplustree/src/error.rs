//! What can go wrong, said in one line with what to do about it.

use durix_rewind::engine;

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a [`BPlusTree`](crate::BPlusTree), with the offending values. A call that fails has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full or shut, or a panic has cut an operation short.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// The key or the value is too long, or there are too many in a batch.
    #[error(transparent)]
    Limit(durix_index::Error),

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
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::Pool(error) => Error::Pool(error),
            engine::Error::Corrupt { what, number } => Error::Corrupt { what, offset: 0, found: number },
            engine::Error::NoCell { offset } => Error::Corrupt { what: "a link", offset, found: offset },
            // A part of another structure locks nothing and runs no closure.
            _ => Error::Corrupt { what: "the log", offset: 0, found: 0 },
        }
    }
}

impl From<Error> for durix_index::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Pool(error) => durix_index::Error::of_structure(error),
            Error::Limit(error) => error,
            Error::Corrupt { what, offset, found } => durix_index::Error::corrupt(what, offset, found),
        }
    }
}
