//! What can go wrong, said in one line with what to do about it.

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a transaction or its log, with the offending values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full or shut, or a panic has cut an operation short. A transaction that meets a full
    /// pool can still be rolled back.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// The word does not lie in the pool.
    #[error("there is no word at {offset:#x} in a pool of {len} bytes; pass the offset of a word, a multiple of 8")]
    NoWord {
        /// What was asked for.
        offset: u64,
        /// Bytes of the pool.
        len: u64,
    },

    /// The session belongs to another pool.
    #[error("the session belongs to another pool than the transaction log; open a session of the log's pool")]
    ForeignSession,

    /// The options differ from those that the log was created with.
    #[error("the log was created as {found}, and is opened as {asked}; open it with the options it was created with")]
    OtherConfig {
        /// What the pool says.
        found: String,
        /// What was asked for.
        asked: String,
    },

    /// An option is out of range.
    #[error("{what} is {value}; choose a number from {least} to {most}")]
    Option {
        /// Which.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },

    /// What is to be freed is no block of the log.
    #[error("no block of this log begins at {offset:#x}; free blocks that `Tx::alloc` of the same log gave")]
    NotABlock {
        /// What was to be freed.
        offset: u64,
    },

    /// The allocation is larger than a block can be.
    #[error("a block of {words} words is larger than {limit}; split it")]
    BlockTooLarge {
        /// What was asked for.
        words: u64,
        /// The most.
        limit: u64,
    },

    /// The user's closure has asked for a rollback.
    #[error("the transaction was rolled back as its closure asked")]
    RolledBack,

    /// What lies in the pool was not written by this code.
    #[error("the log is corrupt: {what} at {offset:#x} holds {found:#x}; run a check, or restore a copy")]
    Corrupt {
        /// What makes no sense.
        what: &'static str,
        /// Its offset in the pool.
        offset: u64,
        /// What was found there.
        found: u64,
    },
}
