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

/// What can make no sense in a set's extents and root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// [`EXTENT_MAGIC`](super::layout::EXTENT_MAGIC).
    ExtentMagic,
    /// The checksum of an extent's header.
    ExtentSum,
    /// Lines of a slot, as the header says.
    ExtentClass,
    /// The number of slots, as the header says.
    ExtentSlots,
    /// More extents are counted than are there.
    Extents,
    /// A version, or a tag, that was never given.
    Version,
    /// The first word of a slot.
    Validity,
    /// The second word of a slot that was never written.
    Fresh,
    /// The second word of an entry.
    Lengths,
    /// A slot is half written, and no update was interrupted.
    Line,
    /// The checksum of an entry that decides about others.
    EntrySum,
    /// The watermark is larger than any version.
    Watermark,
    /// Entries of a committed transaction are missing.
    Transaction,
}

impl Part {
    /// What an error says of it.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Part::ExtentMagic => "the first word of an extent",
            Part::ExtentSum => "the checksum of an extent's header",
            Part::ExtentClass => "the size class of an extent",
            Part::ExtentSlots => "the number of slots of an extent",
            Part::Extents => "the number of extents",
            Part::Version => "the version of an entry",
            Part::Validity => "the validity of a slot",
            Part::Fresh => "a slot that was never written",
            Part::Lengths => "the lengths of an entry",
            Part::Line => "a line of an entry",
            Part::EntrySum => "the checksum of an entry",
            Part::Watermark => "the watermark of transactions",
            Part::Transaction => "the number of entries of a transaction",
        }
    }
}

impl Error {
    /// `part`, which holds `found`, makes no sense.
    pub(super) fn corrupt(part: Part, offset: u64, found: u64) -> Error {
        Error::Corrupt { what: part.text(), offset, found }
    }
}
