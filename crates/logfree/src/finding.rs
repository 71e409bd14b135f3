//! What a check finds.

use std::fmt;

/// Something that should not be, found by a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A node is allocated, but nothing leads to it.
    Leaked {
        /// Its offset in bytes.
        off: u64,
    },
    /// A node is reachable, but not allocated.
    NotAllocated {
        /// Its offset in bytes.
        off: u64,
    },
    /// A node is reachable twice, or lies where a key of another bucket belongs.
    Misplaced {
        /// Its offset in bytes.
        off: u64,
        /// Its key.
        key: u64,
    },
    /// The checksum of a node is wrong: its key or its value has changed.
    Damaged {
        /// Its offset in bytes.
        off: u64,
    },
    /// The entries are not those that were put there: some are missing, or other ones.
    OtherEntries {
        /// The offset in bytes of the index's root words.
        off: u64,
        /// How many entries there were.
        held: u64,
        /// How many there are.
        found: u64,
    },
    /// The mark that closing the pool has left for the index is damaged.
    DamagedMark {
        /// Its offset in bytes.
        off: u64,
    },
}

impl Finding {
    /// The offset in bytes that it is about.
    pub fn offset(&self) -> u64 {
        match self {
            Finding::Leaked { off }
            | Finding::NotAllocated { off }
            | Finding::Misplaced { off, .. }
            | Finding::OtherEntries { off, .. }
            | Finding::DamagedMark { off }
            | Finding::Damaged { off } => *off,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Leaked { off } => write!(f, "the node at {off:#x} is allocated, but nothing leads to it"),
            Finding::NotAllocated { off } => write!(f, "the node at {off:#x} is reachable, but not allocated"),
            Finding::Misplaced { off, key } => {
                write!(f, "the node at {off:#x} with key {key:#x} is reachable where it does not belong, or twice")
            }
            Finding::OtherEntries { held, found, .. } if held == found => {
                write!(f, "its entries ({held}) are not those that were put there")
            }
            Finding::OtherEntries { held, found, .. } => {
                write!(f, "entries found: {found}; there were {held}")
            }
            Finding::DamagedMark { off } => write!(f, "the closing mark of the index, at {off:#x}, is damaged"),
            Finding::Damaged { off } => write!(f, "the checksum of the node at {off:#x} is wrong"),
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
