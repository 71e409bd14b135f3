//! What can go wrong, said in one line with what to do about it.

/// Result of the engine's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a transaction of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full, shut, or opened for reading. Nothing of the transaction has happened.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// There is no such cell.
    #[error(
        "there is no cell at {offset:#x}; pass one that `root_cell` or `Tx::alloc` of this pool's engine has given"
    )]
    NoCell {
        /// What was asked for: an offset, or the number of a root cell.
        offset: u64,
    },

    /// The session belongs to another pool.
    #[error("the session belongs to another pool than the engine; open a session of the engine's pool")]
    ForeignSession,

    /// Another transaction is in the way. The closure returns this error, and is run again.
    #[error(
        "another transaction has locked what this one needs; return this error from the closure, which then runs again"
    )]
    Conflict,

    /// Another transaction was in the way all the time.
    #[error(
        "other transactions kept what this one needs locked; end them, and do not begin a transaction inside another"
    )]
    Busy,

    /// For closures that give up.
    #[error("the transaction was rolled back as its closure asked")]
    RolledBack,

    /// The log holds what was never written.
    #[error("the log is corrupt: {what} in the record of commit {number}; restore a copy")]
    Corrupt {
        /// What makes no sense.
        what: &'static str,
        /// Of which commit.
        number: u64,
    },
}
