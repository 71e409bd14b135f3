//! What lies in a pool file besides the lanes and the space: the header and the root entries.
//!
//! Every word of the header but the magic is a [`Stamp`]: 32 bits of value and a CRC-32C of the value and the word's
//! number. So each word can be judged alone, whatever a crash did to its neighbours: nothing here rests on more than
//! 8-byte atomicity.

use crate::epoch::layout::{EpochRecord, Seat};
use crate::layout;
use crate::pool::geometry::{
    EPOCHS_OFF, HEADER_SIZE, LANE_SIZE, MARK_SIZE, ROOT_SIZE, SPACE_MARK_OFF, SPARE_OFF, SPARE_SIZE,
};
use crate::session_log::layout::{MAX_CHAINS, SegmentHead};
use crate::space::layout::{LANE_STRIDE, Lane};
use crate::version::{Version, Versions};
use crate::word::{Bits, Word};
use crate::{LINE, persistent};

/// First word of a pool.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DURIXpm\x1a");
/// First word of a pool whose creation has not ended.
pub const MAGIC_CREATING: u64 = !MAGIC;
/// The hash function of everything that is hashed and stored: 1 is XXH3 with 64 bits.
pub const HASH_ID: u32 = 1;
/// The incompatible features that this build knows, as bits.
pub const KNOWN_INCOMPATIBLE: u32 = 0;
/// The compatible features that this build writes, as bits.
pub const COMPATIBLE: u32 = 0;
/// Longest name of an index, in bytes of UTF-8.
pub const MAX_NAME: usize = 63;

persistent! {
    /// The header, at offset zero of a pool; of the rest of its 4096 bytes, the 32 behind it are the closing [`Mark`] of the table of
    /// space, 1024 are the record of the [checkpoint epochs](crate::epoch), and the others are zero and not read.
    ///
    /// | line | words | what | written |
    /// |---|---|---|---|
    /// | 0 | 0 | magic | at creation, first as [`MAGIC_CREATING`], last of all as [`MAGIC`] |
    /// | 0 | 1 | format version | at creation |
    /// | 0 | 2–5 | pool id | at creation |
    /// | 0 | 6–7 | compatible, incompatible features | at creation |
    /// | 1 | 0–1 | layout id: the digest of a [`Version`] that is not released; hash id | at creation |
    /// | 1 | 2–4 | chunk in bytes, lanes, indices | at creation |
    /// | 1 | 5 | CRC-32C of the twelve values since the magic | at creation |
    /// | 1 | 6–7 | operations that had ended in this opening, and when they were counted, in nanoseconds since 1970; zero: not told | while it is open without a journal, for whoever looks from outside |
    /// | 2 | 0 | size in chunks | when the pool grows |
    /// | 2 | 1 | state, and how often it was opened that had not been closed | when it is opened and closed |
    /// | 2 | 2–3 | salt of the journal | when it is opened with a journal, before the state says so |
    /// | 2 | 4–6 | which file it is: [`FileId`](crate::backing::FileId) | when it is opened, before the state says so |
    /// | 2 | 7 | zero, not read | |
    /// | 3 | 0–3, 4–7 | boot ids A and B | when it is opened, the one that the state does not name |
    ///
    /// The state lies on another line than the boot ids: they are fenced apart.
    pub struct Header: align(64) {
        /// Line 0, word 0.
        pub magic: Word,
        /// Line 0, word 1.
        pub format: Word<Stamp>,
        /// Line 0, words 2 to 5.
        pub pool_id: [Word<Stamp>; 4],
        /// Line 0, word 6.
        pub compatible: Word<Stamp>,
        /// Line 0, word 7.
        pub incompatible: Word<Stamp>,
        /// Line 1, word 0.
        pub layout_id: Word<Stamp>,
        /// Line 1, word 1.
        pub hash_id: Word<Stamp>,
        /// Line 1, word 2.
        pub chunk: Word<Stamp>,
        /// Line 1, word 3.
        pub lanes: Word<Stamp>,
        /// Line 1, word 4.
        pub indices: Word<Stamp>,
        /// Line 1, word 5.
        pub creation: Word<Stamp>,
        /// Line 1, word 6.
        pub operations: Word,
        /// Line 1, word 7.
        pub counted: Word,
        /// Line 2, word 0.
        pub size: Word<Stamp>,
        /// Line 2, word 1.
        pub state: Word<Stamp>,
        /// Line 2, words 2 and 3.
        pub journal: [Word<Stamp>; 2],
        /// Line 2, words 4 to 6. Zero: not known.
        pub file: [Word<Stamp>; 3],
        /// Line 2, word 7.
        pub reserved_2: Word,
        /// Line 3.
        pub boot: [[Word<Stamp>; 4]; 2],
    }

    /// A root entry: the name of an index, and the line that its structure starts from.
    ///
    /// | line | words | what |
    /// |---|---|---|
    /// | 0 | 0 | state, with a CRC-32C over itself, the entry's number, kind, version and name |
    /// | 0 | 1–2 | kind tag, layout version of the structure |
    /// | 0 | 3–6 | its part in the [checkpoint epochs](crate::epoch::layout::Seat), where it takes part |
    /// | 0 | 7 | when recovery needs its records: a [`Stamp`] with the number 7; zero: never |
    /// | 1, 2 | 0–7 | name, buffers A and B; the state says which |
    /// | 3 | 0–7 | the structure's own |
    ///
    /// A line for each: the structure's words are written by others than the entry's, and the buffer that a rename
    /// fills must be durable before the state.
    pub struct RootEntry: align(64) {
        /// Line 0, word 0.
        pub state: Word,
        /// Line 0, word 1.
        pub kind: Word,
        /// Line 0, word 2.
        pub version: Word,
        /// Line 0, words 3 to 6.
        pub seat: Seat,
        /// Line 0, word 7.
        pub asks: Word,
        /// Lines 1 and 2.
        pub names: [[Word; 8]; 2],
        /// Line 3.
        pub user: [Word; 8],
    }
}

persistent! {
    /// What creation has fixed of the header, once more, on another page: its words 0 to 13, with [`MAGIC`] as the first. Two words are zero
    /// and not read. Repair reads it where the header is damaged.
    pub struct SpareHeader: align(64) {
        /// The words of the header, in their order.
        pub words: [Word; 14],
        /// Zero.
        pub reserved: [Word; 2],
    }

    /// What the creation of an index has said in its root entry, once more, on another page. Repair reads it where the entry is damaged. A name
    /// that was given later is not in it.
    ///
    /// | line | words | what |
    /// |---|---|---|
    /// | 0 | 0 | length of the name (bits 0–31), with a CRC-32C over it, the entry's number, kind, version and name |
    /// | 0 | 1–2 | kind tag, layout version of the structure |
    /// | 0 | 3–4 | the last two words of the entry's own line: the types of keys and values |
    /// | 0 | 5 | CRC-32C of the entry's number and these two, and above it a one |
    /// | 0 | 6–7 | zero, not read |
    /// | 1 | 0–7 | name |
    pub struct SpareRoot: align(64) {
        /// Line 0, word 0.
        pub seal: Word,
        /// Line 0, word 1.
        pub kind: Word,
        /// Line 0, word 2.
        pub version: Word,
        /// Line 0, words 3 and 4.
        pub kept: [Word; 2],
        /// Line 0, word 5.
        pub kept_seal: Word,
        /// Line 0, words 6 and 7.
        pub reserved: [Word; 2],
        /// Line 1.
        pub name: [Word; 8],
    }
}

persistent! {
    /// What an index held when its pool was closed: see [`tally`](super::tally). All zero in an index that has never told. The same of the
    /// table of space, whose entries are its words that are not zero.
    ///
    /// | word | what |
    /// |---|---|
    /// | 0 | entries |
    /// | 1 | sum of the numbers of the entries |
    /// | 2 | how often the pool had been left open (bits 0–15), and bit 16; zero: the mark says nothing |
    /// | 3 | checksum of where the mark lies and of words 0 to 2 |
    pub struct Mark: align(32) {
        /// Word 0.
        pub count: Word,
        /// Word 1.
        pub sum: Word,
        /// Word 2.
        pub state: Word,
        /// Word 3.
        pub seal: Word,
    }
}

/// A self-checking word: 32 bits of value, and above them the CRC-32C of the word's number and the value.
///
/// The number is that of the word in the header, so that a word that strayed is not taken for another. No single
/// flipped bit leaves a stamp valid, and no stamp is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of a value for the word with a number. Postcondition: `of(n, v).value(n) == Some(v)`.
    pub fn of(number: u32, value: u32) -> Stamp {
        Stamp(u64::from(Self::check(number, value)) << 32 | u64::from(value))
    }

    /// The value, if the check holds.
    pub fn value(self, number: u32) -> Option<u32> {
        let value = self.0 as u32;
        (Self::check(number, value) == (self.0 >> 32) as u32).then_some(value)
    }

    fn check(number: u32, value: u32) -> u32 {
        crc32c::crc32c(&(u64::from(number) << 32 | u64::from(value)).to_le_bytes())
    }
}

impl Bits for Stamp {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        Stamp(bits)
    }
}

/// What the checksum of a root entry's state covers: 2 says, the entry's number, too; 3, all 64 bits of the version.
const ROOT_SEAL: u64 = 3;

/// What a pool's file depends on, but for its indices: each of those has a version of its own.
const LAYOUT: u32 = layout!(
    [Header, RootEntry, SpareHeader, SpareRoot, Mark, Seat, EpochRecord, Lane, SegmentHead],
    MAGIC,
    LINE,
    HEADER_SIZE,
    LANE_SIZE,
    LANE_STRIDE,
    ROOT_SIZE,
    MARK_SIZE,
    SPACE_MARK_OFF,
    EPOCHS_OFF,
    SPARE_OFF,
    SPARE_SIZE,
    MAX_NAME,
    ROOT_SEAL,
    MAX_CHAINS,
);

/// Versions of the pool's file. Whatever else a version changes: the header's magic, format version and layout id stay where they are, each a
/// [`Stamp`] but the magic, so that every build can tell the versions of all others.
pub const VERSIONS: Versions = Versions::only(Version::of(1, LAYOUT));

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() == 4 * LINE && size_of::<Header>() as u64 <= HEADER_SIZE);
    assert!(size_of::<RootEntry>() as u64 == ROOT_SIZE);
    assert!(size_of::<SpareHeader>() as u64 == SPARE_SIZE && size_of::<SpareRoot>() as u64 == SPARE_SIZE);
    assert!(offset_of!(SpareRoot, kept) / LINE == offset_of!(SpareRoot, kept_seal) / LINE, "kept by one write-back");
    assert!(offset_of!(Header, creation) == 13 * 8, "the spare ends with the creation checksum");
    assert!(size_of::<Mark>() as u64 == MARK_SIZE && LINE.is_multiple_of(size_of::<Mark>()));
    assert!(SPACE_MARK_OFF as usize >= size_of::<Header>() && EPOCHS_OFF >= SPACE_MARK_OFF + MARK_SIZE);
    assert!(EPOCHS_OFF + size_of::<crate::epoch::layout::EpochRecord>() as u64 <= HEADER_SIZE);
    assert!(offset_of!(Header, magic) == 0, "the magic is the first word of the file");
    assert!(offset_of!(Header, state) / LINE != offset_of!(Header, boot) / LINE, "fenced apart");
    assert!(offset_of!(Header, boot).is_multiple_of(LINE), "both boot ids on one line");
    assert!(offset_of!(RootEntry, kind) / LINE == offset_of!(RootEntry, state) / LINE);
    assert!(offset_of!(RootEntry, seat) / LINE == 0 && offset_of!(RootEntry, asks) / LINE == 0, "a seat on one line");
    assert!(offset_of!(RootEntry, names).is_multiple_of(LINE) && offset_of!(RootEntry, user).is_multiple_of(LINE));
    assert!(MAX_NAME < 64, "a name fits into its line, and its length into six bits");
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Here to prevent any accidental change: a change of these numbers is a change of the format.
    #[test]
    fn layout_is_frozen() {
        assert_eq!((size_of::<Header>(), align_of::<Header>()), (256, 64));
        assert_eq!(offset_of!(Header, magic), 0);
        assert_eq!(offset_of!(Header, format), 8);
        assert_eq!(offset_of!(Header, pool_id), 16);
        assert_eq!(offset_of!(Header, compatible), 48);
        assert_eq!(offset_of!(Header, incompatible), 56);
        assert_eq!(offset_of!(Header, layout_id), 64);
        assert_eq!(offset_of!(Header, hash_id), 72);
        assert_eq!(offset_of!(Header, chunk), 80);
        assert_eq!(offset_of!(Header, lanes), 88);
        assert_eq!(offset_of!(Header, indices), 96);
        assert_eq!(offset_of!(Header, creation), 104);
        assert_eq!((offset_of!(Header, operations), offset_of!(Header, counted)), (112, 120));
        assert_eq!(offset_of!(Header, size), 128);
        assert_eq!(offset_of!(Header, state), 136);
        assert_eq!((offset_of!(Header, journal), offset_of!(Header, file)), (144, 160));
        assert_eq!(offset_of!(Header, reserved_2), 184);
        assert_eq!(offset_of!(Header, boot), 192);
        assert_eq!((size_of::<RootEntry>(), align_of::<RootEntry>()), (256, 64));
        assert_eq!(offset_of!(RootEntry, state), 0);
        assert_eq!(offset_of!(RootEntry, kind), 8);
        assert_eq!(offset_of!(RootEntry, version), 16);
        assert_eq!((offset_of!(RootEntry, seat), offset_of!(RootEntry, asks)), (24, 56));
        assert_eq!(offset_of!(RootEntry, names), 64);
        assert_eq!(offset_of!(RootEntry, user), 192);
        assert_eq!((size_of::<Mark>(), offset_of!(Mark, count), offset_of!(Mark, sum)), (32, 0, 8));
        assert_eq!((offset_of!(Mark, state), offset_of!(Mark, seal), SPACE_MARK_OFF), (16, 24, 256));
        assert_eq!((MAGIC, HASH_ID), (0x1a6d_7058_4952_5544, 1));
        assert_eq!(LAYOUT, 0xd81c_6db5, "a change of what this digest covers");
        assert_eq!(Stamp::of(1, 999).to_bits(), 0x3030_50a1_0000_03e7);
    }

    #[test]
    fn stamps_detect_every_flipped_bit_and_every_stray() {
        for number in 0..64 {
            for value in [0, 1, 999, 0x8000_0000, u32::MAX] {
                let stamp = Stamp::of(number, value);
                assert_eq!(stamp.value(number), Some(value));
                assert_eq!(stamp.value(number + 1), None);
                assert_ne!(stamp.to_bits(), 0);
                for bit in 0..64 {
                    assert_eq!(Stamp::from_bits(stamp.to_bits() ^ 1 << bit).value(number), None);
                }
            }
            assert_eq!(Stamp::from_bits(0).value(number), None);
        }
    }

    #[test]
    fn no_few_flipped_bits_lead_from_one_magic_to_the_other_or_to_zero() {
        assert_eq!((MAGIC ^ MAGIC_CREATING).count_ones(), 64);
        assert!(MAGIC.count_ones() > 8 && MAGIC_CREATING.count_ones() > 8);
    }
}
