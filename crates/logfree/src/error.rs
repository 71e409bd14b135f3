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

/// An [`Error`] behind a pointer: what updates call on their way to a fence returns this.
///
/// An [`Error`] is many words, and its kind is one byte. A `Result` with it is handed on in pieces that lie across its words. A load that
/// lies across stores waits until these have left the store buffer, and there they stay as long as the fence of the update before
/// lasts: the search would no longer run beside that fence. With a pointer all pieces are words.
#[derive(Debug)]
pub(crate) struct Failure(Box<Error>);

/// What is returned on the way to a fence.
pub(crate) type Quick<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        Failure(Box::new(error))
    }
}

impl From<durix_pmem::Error> for Failure {
    #[cold]
    fn from(error: durix_pmem::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<Failure> for Error {
    #[cold]
    fn from(failure: Failure) -> Self {
        *failure.0
    }
}
