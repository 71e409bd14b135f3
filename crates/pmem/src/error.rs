//! What can go wrong, said in one line with what to do about it.

use std::io;
use std::time::Duration;

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a pool, with the offending values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{action}: {source}")]
    Io {
        /// What was tried, with the path.
        action: String,
        /// What it answered.
        #[source]
        source: io::Error,
    },

    /// This process was forked from the one that opened the pool.
    #[error(
        "the pool was opened before this process was forked; open it again in the child, after the parent has closed it"
    )]
    Forked,

    /// The pool was closed, or a panic inside it left it unusable.
    #[error("the pool is shut: {reason}; open it again")]
    Shut {
        /// Why.
        reason: &'static str,
    },

    /// All session slots are taken.
    #[error("all {limit} sessions of the pool are in use; drop one, or share sessions between threads")]
    TooManySessions {
        /// How many there can be.
        limit: u32,
    },

    /// Operations did not end in time.
    #[error(
        "{operations} operation(s) of other sessions did not end within {waited:?}; an operation must not be kept open while waiting"
    )]
    Busy {
        /// How many were still running.
        operations: usize,
        /// How long was waited.
        waited: Duration,
    },

    /// An object named by the file does not lie within it.
    #[error(
        "the pool is corrupt: {what} at {offset:#x} reaches beyond its {len} bytes; run a check, or restore a copy"
    )]
    OutOfBounds {
        /// What was looked for.
        what: &'static str,
        /// Where it should start.
        offset: u64,
        /// Size of the pool in bytes.
        len: u64,
    },

    /// The pool cannot become longer.
    #[error(
        "the pool is full: it would have to reach {needed} bytes; remove data, drop an index, or create it with a larger maximal size"
    )]
    Full {
        /// The length it would need, in bytes.
        needed: u64,
    },

    /// More was asked for than can lie in one piece.
    #[error(
        "{bytes} bytes in one piece were asked for, and {limit} is the most there can be; use a larger chunk size, or several pieces"
    )]
    TooLarge {
        /// What was asked for, in bytes.
        bytes: u64,
        /// The most there can be, in bytes.
        limit: u64,
    },

    /// There is no such extent.
    #[error("no extent like that starts at {off:#x}")]
    NotAnExtent {
        /// Where it should start.
        off: u64,
    },

    /// Nothing is allocated there.
    #[error("nothing is allocated at {off:#x}: it was freed before, or never allocated")]
    NotAllocated {
        /// Where it should be.
        off: u64,
    },

    /// A link names free space.
    #[error("the link at {link:#x} names {off:#x} already, although it is free; run a check")]
    Dangling {
        /// Where the link lies.
        link: u64,
        /// What it names.
        off: u64,
    },
}
