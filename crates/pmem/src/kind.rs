//! What structures are called in a pool.

use std::fmt;

use crate::version::Version;

/// What a structure is: a tag, and the version of its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Eight bytes, by custom ASCII filled up with zeroes.
    pub tag: [u8; 8],
    /// Version of the structure's layout.
    pub version: Version,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.tag.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
        write!(f, "{} v{}", self.tag[..end].escape_ascii(), self.version)
    }
}
