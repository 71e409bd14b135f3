//! What every log of the comparison is.

use durix_pmem::{Medium, Op, Word, persistent};

persistent! {
    /// One cache line.
    pub struct Line: align(64) {
        /// Its words.
        pub words: [Word; 8],
    }
}

/// The bytes of a mapping that belong to one log: line-aligned, not at offset zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset of the first byte, a multiple of 64 and not zero.
    pub off: u64,
    /// Bytes, a multiple of 64.
    pub len: u64,
}

/// What a log claims about a crash during an append, for the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The entry is found exactly if all of its words are new, whichever are missing: holds with torn lines too.
    Words,
    /// As `Words`, but with 2^-32 or 2^-64 of the mixtures passing for valid.
    WordsLikely,
    /// The entry is found exactly if all of its lines are new, where each line holds a prefix of its stores.
    Lines,
    /// The entry is found exactly if the second round trip came through.
    SecondTrip,
}

/// Why a log does not take an entry, or cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// All of the log is in use.
    #[error("the log is full; read and discard its entries")]
    Full,
    /// The processor lacks an instruction.
    #[error("this processor has no {0}")]
    Missing(&'static str),
    /// The region is too small.
    #[error("a region of {len} bytes is too small for two entries of {stride} bytes")]
    TooSmall {
        /// Bytes of the region.
        len: u64,
        /// Bytes of an entry.
        stride: u64,
    },
    /// The log under test refused something of its own accord.
    #[error("the log failed: {0}")]
    Failed(String),
}

/// A durable log of entries of `W` words of payload, in a circular buffer.
pub trait AppendLog<M: Medium, const W: usize>: Sized {
    /// As the paper calls it.
    const NAME: &'static str;
    /// What it claims about crashes.
    const CLAIM: Claim;

    /// Makes an empty log in `region`, whose bytes are all zero. Durable on return.
    ///
    /// # Errors
    /// [`Error::TooSmall`], [`Error::Missing`].
    fn format(op: &Op<'_, M>, region: Region) -> Result<Self, Error>;

    /// Opens the log after a crash and returns the entries that it holds, oldest first. Whatever a torn append left
    /// behind cannot become valid any more when this returns.
    ///
    /// # Errors
    /// As [`format`](AppendLog::format).
    fn recover(op: &Op<'_, M>, region: Region) -> Result<(Self, Vec<[u64; W]>), Error>;

    /// Appends an entry; durable on return.
    ///
    /// # Errors
    /// [`Error::Full`]; the log is unharmed.
    fn append(&mut self, op: &Op<'_, M>, payload: &[u64; W]) -> Result<(), Error>;

    /// Reads all entries, oldest first, and discards them; durable on return.
    fn consume(&mut self, op: &Op<'_, M>, sink: impl FnMut(&[u64; W]));
}
