//! What can go wrong, said in one line with what to do about it.

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a [`DpTree`](crate::DpTree), with the offending values. A call that fails has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something: it is full or shut, or a panic has cut an operation short.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// The options are out of their bounds.
    #[error("a tree cannot have {slots} slots a leaf, {leaves} leaves a range and {page_lines} lines a log page")]
    BadShape {
        /// Slots of a leaf.
        slots: usize,
        /// Leaves of a range.
        leaves: usize,
        /// Lines of a log page.
        page_lines: u64,
    },

    /// There are more changes than can be made together.
    #[error("{keys} changes are more than {limit}, which are made together; split them")]
    BatchTooLarge {
        /// Changes.
        keys: usize,
        /// As many can be made together.
        limit: usize,
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
}

impl Error {
    /// Whether the pool is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Error::Pool(durix_pmem::Error::Full { .. }))
    }
}
