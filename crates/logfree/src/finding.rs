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
}

impl Finding {
    /// The offset in bytes that it is about.
    pub fn offset(&self) -> u64 {
        match self {
            Finding::Leaked { off }
            | Finding::NotAllocated { off }
            | Finding::Misplaced { off, .. }
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
            Finding::Damaged { off } => write!(f, "the checksum of the node at {off:#x} is wrong"),
        }
    }
}
