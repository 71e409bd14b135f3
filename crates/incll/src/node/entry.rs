//! What a slot of a border node holds.

use crate::Policy;
use crate::layout::kind;
use crate::node::part::Part;

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slice: u64,
    pub(crate) kind: u64,
    pub(crate) inline: bool,
    pub(crate) word: u64,
}

impl Entry {
    #[inline(always)]
    pub(crate) fn part(self) -> Part {
        Part { slice: self.slice, rank: self.kind.min(kind::SUFFIX) }
    }

    /// Whether it is of a kind that there is, and the bytes of the slice that do not belong to the key are zero, as in all keys
    /// that were inserted.
    #[inline(always)]
    pub(crate) fn is_canonical(self) -> bool {
        if self.kind < kind::LAST_SHORT { self.slice << (8 * self.kind) == 0 } else { self.kind <= kind::LAYER }
    }

    /// What a slot holds for the rest of a key and a value that needs no block.
    #[inline(always)]
    pub(crate) fn in_place<P: Policy>(rest: &[u8], value: &[u8]) -> Option<Entry> {
        let Part { slice, rank } = Part::of(rest);
        let bytes = <[u8; 8]>::try_from(value).ok().filter(|_| P::IN_PLACE && rank <= kind::LAST_SHORT)?;
        Some(Entry { slice, kind: rank, inline: true, word: u64::from_le_bytes(bytes) })
    }
}
