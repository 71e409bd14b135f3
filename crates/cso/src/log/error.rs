//! What can go wrong in a log.

/// Result of the logs' fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a log, with the offending values. A call that fails leaves the log as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something.
    #[error(transparent)]
    Pmem(#[from] durix_pmem::Error),

    /// A payload is longer than the log's slots.
    #[error(
        "a payload of {len} bytes does not fit: records of this log hold at most {max}; split it, or use a log with larger slots"
    )]
    TooLong {
        /// Bytes of the payload.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },

    /// A payload must have one exact length.
    #[error("a payload of {len} bytes: records of this log are exactly {exact} bytes")]
    WrongLength {
        /// Bytes of the payload.
        len: usize,
        /// Bytes of every record.
        exact: usize,
    },

    /// The log has no room for a tag.
    #[error("tag {tag}: records of this log have no tag; use 0, or put it into the payload")]
    NoTags {
        /// The tag that was given.
        tag: u8,
    },

    /// A payload uses the bit that the log needs.
    #[error("word {word} of the payload has bit {bit} set, which this log uses as validity bit; it must be zero")]
    BitInUse {
        /// The word of the payload, from 0.
        word: usize,
        /// The bit.
        bit: u32,
    },

    /// No space is left.
    #[error("the log is full: {needed} bytes are needed, {free} are free of {capacity}; trim it")]
    Full {
        /// Bytes the record takes.
        needed: u64,
        /// Bytes that can be used now.
        free: u64,
        /// Bytes of the log.
        capacity: u64,
    },

    /// A region cannot hold a log.
    #[error(
        "a region of {len} bytes at {off:#x} cannot hold this log: it must start at a multiple of 64 and have at least {min} bytes"
    )]
    BadRegion {
        /// Offset in the pool.
        off: u64,
        /// Bytes of the region.
        len: u64,
        /// Bytes that are needed.
        min: u64,
    },

    /// An option is out of range.
    #[error("the option {option} is {value}; it must be {must}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        must: &'static str,
    },

    /// There is no log in a region.
    #[error("no log at {off:#x}: its first word is {found:#x}; format one there, or look elsewhere")]
    NotALog {
        /// Offset in the pool.
        off: u64,
        /// What was found.
        found: u64,
    },

    /// The log in a region is of another kind, version or geometry.
    #[error("the log at {off:#x} has {what} {found}, and this program expects {expected}; open it as what it is")]
    Mismatch {
        /// Offset in the pool.
        off: u64,
        /// What differs.
        what: &'static str,
        /// What was found.
        found: u64,
        /// What was expected.
        expected: u64,
    },

    /// A log's own words contradict each other.
    #[error("the log at {off:#x} is corrupt: its {what} is {found:#x}; restore a copy")]
    Corrupt {
        /// Offset in the pool.
        off: u64,
        /// Which word.
        what: &'static str,
        /// What was found.
        found: u64,
    },

    /// A position is not the start of a record, nor the end of the log.
    #[error("position {position} is not where a record starts: the log reaches from {head} to {tail}")]
    NotARecord {
        /// The position that was given.
        position: u64,
        /// Position of the oldest record.
        head: u64,
        /// Position of the next record.
        tail: u64,
    },

    /// A named log does not have the extents it needs.
    #[error("the log with owner {owner} is corrupt: it has {found} extents; restore a copy")]
    Extents {
        /// Index of its root in the pool.
        owner: u16,
        /// How many there are.
        found: usize,
    },
}
