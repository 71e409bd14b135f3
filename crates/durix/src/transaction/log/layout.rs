//! What lies in a lane of the log of intents.
//!
//! | line | words | what | written |
//! |---|---|---|---|
//! | 0 | 0 | [`MAGIC`] | when the lane is made |
//! | 0 | 1 | `retired`: number of the lane's last record that needs nothing any more | when a transaction ends; as a rule not written back |
//! | 0 | 2-7 | zero, not read | |
//! | 1 | 0-3 | [`RecordHeader`] | when a transaction commits |
//! | 1... | 4... | payload of the record | with its header |
//!
//! `retired` has a line of its own: it is stored after the record's changes, the record before them.
//!
//! The payload holds one entry for each change, in whole words, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0-1 | owner of the index |
//! | 2-3 | 1 put, 2 removal |
//! | 4-7 | bytes of the key |
//! | 8-15 | bytes of the value; 0 for a removal |
//! | 16... | the key, filled up with zeroes to whole words |
//! | ... | the value, filled up with zeroes to whole words |

use durix_pmem::{LINE, Version, Word, layout, persistent};

/// First word of a lane.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"DURIXtxn");

persistent! {
    /// Line 0 of a lane.
    pub(crate) struct LaneHeader: align(64) {
        /// Word 0.
        pub(crate) magic: Word,
        /// Word 1.
        pub(crate) retired: Word,
        /// Words 2 to 7.
        pub(crate) reserved: [Word; 6],
    }

    /// The first words of line 1 of a lane; the payload follows.
    pub(crate) struct RecordHeader: align(32) {
        /// Word 0: one more than that of the lane's record before.
        pub(crate) number: Word,
        /// Word 1: bytes of the payload, a multiple of 8.
        pub(crate) bytes: Word,
        /// Word 2: the checkpoint epoch that has to end well; 0 for none.
        pub(crate) epoch: Word,
        /// Word 3: XXH3 over words 0 to 2 and the payload.
        pub(crate) hash: Word,
    }
}

/// Version of the log.
pub(crate) const VERSION: Version =
    Version::of(1, layout!([LaneHeader, RecordHeader], MAGIC, RECORD_AT, PAYLOAD_AT, REVISION));
/// Counts changes of what the words mean.
const REVISION: u64 = 2;

/// Where the record begins in a lane, in bytes.
pub(crate) const RECORD_AT: u64 = LINE as u64;
/// Where the payload begins in a lane, in bytes.
pub(crate) const PAYLOAD_AT: u64 = RECORD_AT + size_of::<RecordHeader>() as u64;

const _: () = assert!(size_of::<LaneHeader>() == LINE && size_of::<RecordHeader>() == 32 && PAYLOAD_AT == 96);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Here to prevent accidental changes of the layout.
    #[test]
    fn the_layout_is_frozen() {
        assert_eq!(MAGIC, 0x6e78_7458_4952_5544);
        assert_eq!((size_of::<LaneHeader>(), align_of::<LaneHeader>()), (64, 64));
        assert_eq!((offset_of!(LaneHeader, magic), offset_of!(LaneHeader, retired)), (0, 8));
        assert_eq!(offset_of!(LaneHeader, reserved), 16);
        assert_eq!((size_of::<RecordHeader>(), align_of::<RecordHeader>()), (32, 32));
        let offsets = [
            offset_of!(RecordHeader, number),
            offset_of!(RecordHeader, bytes),
            offset_of!(RecordHeader, epoch),
            offset_of!(RecordHeader, hash),
        ];
        assert_eq!(offsets, [0, 8, 16, 24]);
        assert_eq!((RECORD_AT, PAYLOAD_AT), (64, 96));
    }
}
