//! What lies in the table of type names.
//!
//! | words | what | written |
//! |---|---|---|
//! | 0 | XXH3 over words 1 to 15 | with the record |
//! | 1 | word of the [`TypeTag`](crate::TypeTag) | |
//! | 2 | bytes of the name, at most 96 | |
//! | 3 | zero | |
//! | 4-15 | the name in UTF-8, filled up with zeroes | |
//!
//! A record counts if its hash holds. Its place is free otherwise.

use durix_pmem::{Version, Word, layout, persistent};

persistent! {
    /// A type's name: two lines.
    pub(crate) struct NameRecord: align(64) {
        /// All of it.
        pub(crate) words: [Word; 16],
    }
}

/// Version of the table.
pub(crate) const VERSION: Version = Version::of(1, layout!([NameRecord], NAME_AT, EXTENT, REVISION));
/// Counts changes of what the words mean.
const REVISION: u64 = 1;

/// Bytes of a record.
pub(crate) const RECORD: usize = size_of::<NameRecord>();
/// Where the name begins in a record, in bytes.
pub(crate) const NAME_AT: usize = 32;
/// Most bytes of a name that are kept.
pub(crate) const MAX_NAME: usize = RECORD - NAME_AT;
/// Bytes of an extent that a table begins with.
pub(crate) const EXTENT: u64 = 4096;

const _: () = assert!(RECORD == 128 && align_of::<NameRecord>() == 64 && MAX_NAME == 96);

#[cfg(test)]
mod tests {
    use super::*;

    /// Here to prevent accidental changes of the layout.
    #[test]
    fn the_layout_is_frozen() {
        assert_eq!((RECORD, NAME_AT, MAX_NAME, EXTENT), (128, 32, 96, 4096));
        assert_eq!((size_of::<NameRecord>(), align_of::<NameRecord>()), (128, 64));
    }
}
