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
        matches!(self, Error::Pool(error) if error.is_no_room())
    }
}

/// What can make no sense in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// The head of an extent.
    ExtentHead,
    /// The head of an extent of units.
    UnitsHead,
    /// The head of a log page.
    PageHead,
    /// The polarity of a log page.
    Polarity,
    /// The root word of a tree.
    RootWord,
    /// The parameters of a tree.
    Parameters,
    /// The place of a range.
    RangePlace,
    /// The first line of a range.
    RangeMagic,
    /// The smallest key of a range.
    RangeLow,
    /// The state of a range.
    RangeState,
    /// The first descriptor of a range without leaves.
    NoLeaves,
    /// The number of leaves of a range.
    LeafNumber,
    /// The slots of a leaf.
    LeafSlots,
    /// The place of a leaf.
    LeafPlace,
    /// The smallest key of a leaf.
    LeafLow,
    /// The version of a log record.
    Version,
    /// The checksum of a log record.
    RecordSum,
    /// The order of keys in a leaf.
    LeafOrder,
    /// Keys of a walk out of order.
    TreeOrder,
}

impl Wrong {
    /// What an error says of it.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Wrong::ExtentHead => "the head of an extent",
            Wrong::UnitsHead => "the head of an extent of units",
            Wrong::PageHead => "the head of a log page",
            Wrong::Polarity => "the polarity of a log page",
            Wrong::RootWord => "the root word of a tree",
            Wrong::Parameters => "the parameters of a tree",
            Wrong::RangePlace => "the place of a range",
            Wrong::RangeMagic => "the first line of a range",
            Wrong::RangeLow => "the smallest key of a range",
            Wrong::RangeState => "the state of a range",
            Wrong::NoLeaves => "the first descriptor of a range without leaves",
            Wrong::LeafNumber => "the number of leaves of a range",
            Wrong::LeafSlots => "the slots of a leaf",
            Wrong::LeafPlace => "the place of a leaf",
            Wrong::LeafLow => "the smallest key of a leaf",
            Wrong::Version => "the version of a log record",
            Wrong::RecordSum => "the checksum of a log record",
            Wrong::LeafOrder => "the order of keys in a leaf",
            Wrong::TreeOrder => "a leaf out of order, in the tree whose root",
        }
    }
}

impl Error {
    /// `part`, which holds `found`, makes no sense.
    pub(crate) fn corrupt(part: Wrong, offset: u64, found: u64) -> Error {
        Error::Corrupt { what: part.text(), offset, found }
    }
}
