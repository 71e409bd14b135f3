//! What of the set lies in persistent memory.
//!
//! # Line map
//! An *extent* belongs to the set's root and holds slots of one size class, behind one line of header:
//!
//! | line | content |
//! |---|---|
//! | 0 | [`ExtentHead`]: magic, lines of a slot, number of slots, checksum of these and of its offset; written once, before the extent is activated |
//! | 1 + i × n … | slot i: n lines |
//!
//! A *slot* holds one entry, or none:
//!
//! | line | word 0 | word 1 | words 2 to 7 |
//! |---|---|---|---|
//! | 0 ([`Head`]) | [`Meta`]: both validity bits, a code, and the version | [`Info`]: lengths, tombstone, transaction, checksum | payload, 48 bytes |
//! | 1 … ([`Tail`]) | tag: the version of the entry the line belongs to, 0 while it is written | payload | payload, 56 bytes in all |
//!
//! Validity bits and version share one word because they must change together; `Info` and the first payload share the
//! line with them because the protocol orders stores within a line only. Every further line has a mark of its own
//! (its tag) for the same reason. The payload is the key, filled up with zeroes to a whole word, then the value. An entry of
//! several lines has its checksum in the first word of the payload, before the key; one of a line in [`Info`].
//!
//! The checksum covers where the slot lies, the version, [`Info`], key and value, with what they are filled up with. Not the
//! validity bits, which have a code beside them: a slot says in two ways whether it holds an entry, is being written, was
//! erased, or was never written. One that was never written has a pattern of its offset in word 1.
//!
//! The root's user words: word [`WATERMARK`] is the version up to which all transactions have committed, word [`EXTENTS`] a number of
//! extents that there are at least, word [`RECOVERED`] says when the set was recovered.

use durix_pmem::{Bits, Checksum, Off, Version, Word, layout, persistent};

/// Version of this layout.
pub const LAYOUT_VERSION: Version = Version::of(1, LAYOUT);
const LAYOUT: u32 = layout!(
    [Head, Tail, ExtentHead],
    EXTENT_MAGIC,
    V0,
    V1,
    CODE,
    WRITING,
    ERASED,
    FRESH,
    LONG,
    SUM,
    LONG_KEY,
    LONG_VALUE,
    CLASSES,
    EXTENTS,
    RECOVERED,
    REVISION,
);
/// Counts changes of what the words mean.
const REVISION: u64 = 1;

/// Longest key, in bytes.
pub const MAX_KEY: usize = 16 << 10;

/// Longest value, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// Most entries that one transaction writes.
pub const MAX_TRANSACTION: usize = u16::MAX as usize;

/// Largest version; at 100 million updates a second it lasts for 22 years.
pub(super) const MAX_VERSION: u64 = (1 << 56) - 1;

/// Largest version that an opening accepts: a file that holds a larger one is corrupt. It leaves versions for more than a year of updates.
/// None may come after [`MAX_VERSION`]: it would change the code beside it.
pub(super) const MAX_FOUND: u64 = MAX_VERSION - (1 << 52);

/// Which of the root's user words is the watermark of committed transactions.
pub(super) const WATERMARK: usize = 0;

/// Which of them is the number of extents. It is raised when an extent has become active, durably (PS-X2), so it may be too small after a crash
/// in the operation that adds an extent. If it is too large, the pool's table of space is damaged.
pub(super) const EXTENTS: usize = 1;
/// Which of them is the pool's [number of crashes](durix_pmem::Pool::crashes) when the set was recovered to the end, and one; 0 for never.
/// After a crash that number is another one.
pub(super) const RECOVERED: usize = 2;

/// First word of every extent of a set.
pub(super) const EXTENT_MAGIC: u64 = u64::from_le_bytes(*b"CSOset01");

/// Payload words in line 0 and in each further line.
pub(super) const HEAD_WORDS: usize = 6;
/// See [`HEAD_WORDS`].
pub(super) const TAIL_WORDS: usize = 7;

persistent! {
    /// Line 0 of a slot.
    pub(super) struct Head: align(64) {
        /// Validity bits and version.
        pub(super) meta: Word<Meta>,
        /// Lengths and kind of the entry.
        pub(super) info: Word<Info>,
        /// The first 48 bytes of key and value.
        pub(super) payload: [Word; HEAD_WORDS],
    }

    /// Any further line of a slot.
    pub(super) struct Tail: align(64) {
        /// Version of the entry that this line belongs to; 0 while it is written.
        pub(super) tag: Word,
        /// The next 56 bytes of key and value.
        pub(super) payload: [Word; TAIL_WORDS],
    }

    /// Line 0 of an extent.
    pub(super) struct ExtentHead: align(64) {
        /// [`EXTENT_MAGIC`].
        pub(super) magic: Word,
        /// Lines of a slot.
        pub(super) lines: Word,
        /// Number of slots.
        pub(super) slots: Word,
        /// CRC-32C of the three words before and of the extent's offset: the head of another extent shows.
        pub(super) sum: Word,
        /// Zero.
        pub(super) unused: [Word; 4],
    }
}

const V0: u64 = 1 << 63;
const V1: u64 = 1 << 62;
/// The bits of the code beside the validity bits.
const CODE: u64 = 0x3f << 56;
const WRITING: u64 = 0b01_0101 << 56;
const ERASED: u64 = 0b10_1010 << 56;
const FRESH: u64 = 0b11_1111 << 56;

/// What a slot is, as its first word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// An entry, if all its lines belong together.
    Entry,
    /// What an update was writing when it was interrupted.
    Writing,
    /// An entry that was erased.
    Erased,
    /// Nothing: it was never written.
    Fresh,
}

/// Word 0 of an entry: validity bits `v0` (bit 63) and `v1` (bit 62), a code (bits 56 to 61), and the version (bits 0 to 55).
///
/// | slot | bits | code | version |
/// |---|---|---|---|
/// | holds an entry | equal | 0 | not 0 |
/// | is being written | differ | 21 | of the entry before |
/// | was erased | differ | 42 | of the entry before |
/// | was never written | differ | 63 | 0 |
///
/// No slot has zero, or anything else. [`Meta::invalidated`] and [`Meta::erased`] flip `v0`; [`Meta::validated`] sets the
/// version and makes `v1` follow `v0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta(u64);

impl Meta {
    /// That of a slot that was never written.
    pub(super) const FRESH: Meta = Meta(V0 | FRESH);

    /// Whether an entry is here.
    #[inline(always)]
    pub(super) fn is_valid(self) -> bool {
        (self.0 ^ (self.0 << 1)) & V0 == 0 && self.version() != 0
    }

    /// What the slot is; `None` if nothing that is ever written says so.
    pub(super) fn holds(self) -> Option<Holds> {
        let agree = (self.0 ^ (self.0 << 1)) & V0 == 0;
        match (agree, self.0 & CODE, self.version()) {
            (true, 0, 1..) => Some(Holds::Entry),
            (false, WRITING, _) => Some(Holds::Writing),
            (false, ERASED, _) => Some(Holds::Erased),
            (false, FRESH, 0) => Some(Holds::Fresh),
            _ => None,
        }
    }

    /// The version, whether valid or not.
    #[inline(always)]
    pub(super) fn version(self) -> u64 {
        self.0 & MAX_VERSION
    }

    /// The word that makes the entry invalid while it is rewritten. Keeps the version.
    #[inline(always)]
    pub(super) fn invalidated(self) -> Meta {
        let v1_follows_in_v0 = (self.0 << 1) & V0;
        Meta((self.0 & (V1 | MAX_VERSION)) | (v1_follows_in_v0 ^ V0) | WRITING)
    }

    /// The word that makes the entry invalid for good. Keeps the version.
    pub(super) fn erased(self) -> Meta {
        Meta((self.invalidated().0 & !CODE) | ERASED)
    }

    /// The word that makes the entry valid again, with a new version.
    ///
    /// `self` must be invalidated.
    #[inline(always)]
    pub(super) fn validated(self, version: u64) -> Meta {
        let v0 = self.0 & V0;
        Meta(v0 | v0 >> 1 | version)
    }
}

impl Bits for Meta {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Meta(bits)
    }
}

/// Word 1 of an entry.
///
/// | bits | of one line | bits | of several lines |
/// |---|---|---|---|
/// | 0 | 0 | 0 | 1 |
/// | 1–6 | bytes of the key | 1 | tombstone |
/// | 7 | 0 | 2–17 | entries of its transaction, 0 without one |
/// | 8–13 | bytes of the value | 18–33 | bytes of the key |
/// | 14 | 0 | 34–57 | bytes of the value |
/// | 15 | tombstone | 58–63 | 0 |
/// | 16–31 | entries of its transaction, 0 without one | | |
/// | 32–63 | checksum | | |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Info(u64);

const LONG: u64 = 1;
const SHORT_KEY: u32 = 1;
const SHORT_VALUE: u32 = 8;
const SHORT_TOMBSTONE: u64 = 1 << 15;
const SHORT_TRANSACTION: u32 = 16;
/// Bits of an entry of one line that are always 0.
const SHORT_ZERO: u64 = 1 << 7 | 1 << 14;
const SUM: u32 = 32;
const LONG_TOMBSTONE: u64 = 1 << 1;
const LONG_TRANSACTION: u32 = 2;
const LONG_KEY: u32 = 18;
const LONG_VALUE: u32 = 34;

impl Info {
    /// An entry that maps a key to a value, without its checksum.
    ///
    /// The lengths must be at most [`MAX_KEY`] and [`MAX_VALUE`].
    #[inline(always)]
    pub(super) fn of(key_len: usize, value_len: usize) -> Info {
        let (key, value) = (key_len as u64, value_len as u64);
        if key_len.div_ceil(8) + value_len.div_ceil(8) <= HEAD_WORDS {
            Info(key << SHORT_KEY | value << SHORT_VALUE)
        } else {
            Info(LONG | key << LONG_KEY | value << LONG_VALUE)
        }
    }

    /// An entry that says that the key is not there, without its checksum.
    #[inline(always)]
    pub(super) fn tombstone(key_len: usize) -> Info {
        let info = Info::of(key_len, 0);
        Info(info.0 | if info.is_long() { LONG_TOMBSTONE } else { SHORT_TOMBSTONE })
    }

    /// The same, as one of `count` entries of a transaction.
    #[inline(always)]
    pub(super) fn in_transaction(self, count: u16) -> Info {
        let shift = if self.is_long() { LONG_TRANSACTION } else { SHORT_TRANSACTION };
        Info(self.0 | u64::from(count) << shift)
    }

    /// The same with its checksum, if it is one of a line.
    #[inline(always)]
    pub(super) fn with_sum(self, sum: Checksum) -> Info {
        if self.is_long() { self } else { Info(self.0 | u64::from(sum.low()) << SUM) }
    }

    /// Whether the entry takes several lines, and has its checksum before its key.
    #[inline(always)]
    pub(super) fn is_long(self) -> bool {
        self.0 & LONG != 0
    }

    /// What the checksum covers of it.
    #[inline(always)]
    pub(super) fn without_sum(self) -> u64 {
        if self.is_long() { self.0 } else { self.0 & ((1 << SUM) - 1) }
    }

    /// The checksum of an entry of one line.
    pub(super) fn sum(self) -> u32 {
        (self.0 >> SUM) as u32
    }

    /// Bytes of the key.
    #[inline(always)]
    pub(super) fn key_len(self) -> usize {
        (if self.is_long() { self.0 >> LONG_KEY & 0xffff } else { self.0 >> SHORT_KEY & 0x3f }) as usize
    }

    /// Bytes of the value.
    #[inline(always)]
    pub(super) fn value_len(self) -> usize {
        (if self.is_long() { self.0 >> LONG_VALUE & 0xff_ffff } else { self.0 >> SHORT_VALUE & 0x3f }) as usize
    }

    /// Number of entries of the transaction, 0 without one.
    #[inline(always)]
    pub(super) fn transaction(self) -> u16 {
        (if self.is_long() { self.0 >> LONG_TRANSACTION } else { self.0 >> SHORT_TRANSACTION }) as u16
    }

    /// Whether this removes the key.
    #[inline(always)]
    pub(super) fn is_tombstone(self) -> bool {
        self.0 & if self.is_long() { LONG_TOMBSTONE } else { SHORT_TOMBSTONE } != 0
    }

    /// Whether the word can have been written by this code.
    #[inline(always)]
    pub(super) fn is_sound(self) -> bool {
        let fits_head = self.words() <= HEAD_WORDS;
        let form = match self.is_long() {
            true => self.0 >> 58 == 0 && !fits_head,
            false => self.0 & SHORT_ZERO == 0 && fits_head,
        };
        form && self.key_len() <= MAX_KEY
            && self.value_len() <= MAX_VALUE
            && !(self.is_tombstone() && self.value_len() > 0)
    }

    /// Whether it is sound and of one line by its first look, and no tombstone. Most entries are; others take a second look.
    #[inline(always)]
    pub(super) fn is_short(self) -> bool {
        const OTHER: u64 = LONG | SHORT_ZERO | SHORT_TOMBSTONE;
        // Both lengths rounded up to words, neither of which carries into what is beside it.
        let up = self.0.wrapping_add(7 << SHORT_KEY | 7 << SHORT_VALUE) & (0x78 << SHORT_KEY | 0x78 << SHORT_VALUE);
        let bytes = (up + (up >> (SHORT_VALUE - SHORT_KEY))) & (0x7f << (3 + SHORT_KEY));
        self.0 & OTHER == 0 && bytes <= (HEAD_WORDS as u64 * 8) << SHORT_KEY
    }

    /// Lines that the entry takes.
    #[inline(always)]
    pub(super) fn lines(self) -> usize {
        if !self.is_long() {
            return 1;
        }
        1 + (self.first_word() + self.words()).saturating_sub(HEAD_WORDS).div_ceil(TAIL_WORDS)
    }

    fn words(self) -> usize {
        self.key_words() + self.value_len().div_ceil(8)
    }

    /// Which word of the payload is the first of the key.
    #[inline(always)]
    pub(super) fn first_word(self) -> usize {
        usize::from(self.is_long())
    }

    /// Payload words of the key.
    #[inline(always)]
    pub(super) fn key_words(self) -> usize {
        self.key_len().div_ceil(8)
    }
}

impl Bits for Info {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Info(bits)
    }
}

/// Word 1 of a slot at `off` that was never written.
#[inline(always)]
pub(super) fn fresh_info(off: u64) -> Info {
    Info(Checksum::at(off).pair(V0 | FRESH, 0).finish())
}

/// A size class: slots of 1, 2, 3, 4, 6, 8, 12, 16, 24, … lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class(u8);

/// Number of size classes: enough for [`MAX_KEY`] and [`MAX_VALUE`].
pub(super) const CLASSES: usize = 29;

impl Class {
    /// Slots of one line.
    pub(super) const FIRST: Class = Class(0);

    /// The smallest class with slots of at least `lines` lines.
    #[inline(always)]
    pub(super) fn of_lines(lines: usize) -> Class {
        if lines <= 1 {
            return Class(0);
        }
        let log = lines.next_power_of_two().trailing_zeros() as u8;
        if log >= 2 && lines <= 3 << (log - 2) { Class(2 * log - 2) } else { Class(2 * log - 1) }
    }

    /// The class whose slots have exactly `lines` lines.
    pub(super) fn exact(lines: u64) -> Option<Class> {
        let lines = usize::try_from(lines).ok().filter(|l| *l <= MAX_LINES)?;
        Some(Class::of_lines(lines)).filter(|c| c.lines() == lines)
    }

    /// The class with number `index`, below [`CLASSES`].
    pub(super) fn from_index(index: usize) -> Class {
        Class(index as u8)
    }

    /// Number of the class, below [`CLASSES`].
    #[inline(always)]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Lines of a slot.
    #[inline(always)]
    pub(super) fn lines(self) -> usize {
        match self.0 {
            0 => 1,
            c if c % 2 == 1 => 1 << (c / 2 + 1),
            c => 3 << (c / 2 - 1),
        }
    }

    /// Bytes of a slot.
    #[inline(always)]
    pub(super) fn bytes(self) -> u64 {
        self.lines() as u64 * durix_pmem::LINE as u64
    }
}

/// Lines of the largest slot.
pub(super) const MAX_LINES: usize = 3 << (CLASSES / 2 - 1);

const _: () = {
    assert!(size_of::<Head>() == 64 && size_of::<Tail>() == 64 && size_of::<ExtentHead>() == 64);
    // Validity bits, lengths and the first payload share a line: the protocol rests on it.
    assert!(std::mem::offset_of!(Head, meta) / 64 == std::mem::offset_of!(Head, payload) / 64);
    assert!(std::mem::offset_of!(Tail, tag) == 0);
    assert!(MAX_KEY <= 0xffff && MAX_VALUE <= 0xff_ffff);
    assert!((1 + (MAX_KEY + MAX_VALUE) / 8 - HEAD_WORDS).div_ceil(TAIL_WORDS) < MAX_LINES);
};

/// Where slot `index` of an extent at `extent` lies.
#[inline(always)]
pub(super) fn slot_off(extent: u64, class: Class, index: u64) -> u64 {
    extent + size_of::<ExtentHead>() as u64 + index * class.bytes()
}

/// Line 0 of the slot at `off`.
#[inline(always)]
pub(super) fn head_at(off: u64) -> Off<Head> {
    Off::new(off)
}

/// The further lines of the slot at `off`.
#[inline(always)]
pub(super) fn tails_at(off: u64) -> Off<Tail> {
    Off::new(off + size_of::<Head>() as u64)
}

/// The checksum of an extent's header.
pub(super) fn extent_sum(off: u64, lines: u64, slots: u64) -> u64 {
    u64::from(crc32c::crc32c(&[EXTENT_MAGIC, lines, slots, off].map(u64::to_le_bytes).concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layout_is_frozen() {
        assert_eq!((offset_of!(Head, meta), offset_of!(Head, info), offset_of!(Head, payload)), (0, 8, 16));
        assert_eq!((offset_of!(Tail, tag), offset_of!(Tail, payload)), (0, 8));
        assert_eq!((offset_of!(ExtentHead, magic), offset_of!(ExtentHead, lines)), (0, 8));
        assert_eq!((offset_of!(ExtentHead, slots), offset_of!(ExtentHead, sum)), (16, 24));
        assert_eq!(offset_of!(ExtentHead, unused), 32);
        assert_eq!(EXTENT_MAGIC, 0x3130_7465_734f_5343);
        assert_eq!(extent_sum(4096, 3, 1000), 0xd484_edc2);
        assert_eq!((WATERMARK, EXTENTS, RECOVERED), (0, 1, 2));
        assert_eq!((MAX_KEY, MAX_VALUE, MAX_TRANSACTION), (16384, 1_048_576, 65535));
        let info = Info::of(0x1234, 0xabcde).in_transaction(0x5678);
        assert_eq!(info.to_bits(), 0xabcde << 34 | 0x1234 << 18 | 0x5678 << 2 | 1);
        let info = Info::of(8, 9).in_transaction(0x5678).with_sum(Checksum::at(64));
        assert_eq!(info.to_bits(), u64::from(Checksum::at(64).low()) << 32 | 0x5678_0910);
        assert_eq!((Info::tombstone(7).to_bits(), Info::tombstone(49).to_bits()), (0x800e, 49 << 18 | 3));
        assert_eq!(Meta::FRESH.to_bits(), 0xbf00_0000_0000_0000);
        let first = Meta::FRESH.invalidated();
        assert_eq!(first.to_bits(), 0x9500_0000_0000_0000);
        assert_eq!(first.validated(5).to_bits(), 0xc000_0000_0000_0005);
        assert_eq!(first.validated(5).erased().to_bits(), 0x6a00_0000_0000_0005);
        assert_eq!(slot_off(4096, Class::of_lines(3), 2), 4096 + 64 + 2 * 192);
    }

    #[test]
    fn validity_follows_the_two_bits_whatever_was_there() {
        for bits in [0, V0, V1, V0 | V1] {
            for version in [0, 1, 77, MAX_VERSION] {
                let meta = Meta::from_bits(bits | version);
                let equal = bits == 0 || bits == V0 | V1;
                assert_eq!(meta.is_valid(), equal && version != 0);
                assert_eq!(meta.holds(), meta.is_valid().then_some(Holds::Entry));
                assert_eq!((meta.erased().holds(), meta.erased().version()), (Some(Holds::Erased), version));
                let invalid = meta.invalidated();
                assert!(!invalid.is_valid() && invalid.holds() == Some(Holds::Writing));
                assert!(!meta.erased().invalidated().is_valid());
                assert_eq!(invalid.version(), version);
                let valid = invalid.validated(99);
                assert!(valid.is_valid());
                assert_eq!(valid.version(), 99);
                if meta.is_valid() {
                    assert_ne!(valid.to_bits() & V0, meta.to_bits() & V0, "the polarity flips on reuse");
                }
            }
        }
    }

    #[test]
    fn no_flip_of_a_bit_of_the_first_word_goes_unnoticed() {
        assert_eq!((Meta::from_bits(0).holds(), Meta::FRESH.holds()), (None, Some(Holds::Fresh)));
        for meta in [Meta::FRESH, Meta::FRESH.invalidated(), Meta::from_bits(7), Meta::from_bits(V0 | V1 | 7).erased()]
        {
            for bit in 56..64 {
                assert_eq!(Meta::from_bits(meta.to_bits() ^ 1 << bit).holds(), None, "{meta:?} {bit}");
            }
        }
    }

    #[test]
    fn classes_are_the_smallest_that_fit() {
        let sizes: Vec<_> = (0..CLASSES).map(|c| Class::from_index(c).lines()).collect();
        assert_eq!(sizes[..9], [1, 2, 3, 4, 6, 8, 12, 16, 24]);
        assert!(sizes.is_sorted());
        assert_eq!(*sizes.last().unwrap(), MAX_LINES);
        for lines in 1..=MAX_LINES {
            let class = Class::of_lines(lines);
            assert!(class.lines() >= lines);
            assert!(class.index() == 0 || Class::from_index(class.index() - 1).lines() < lines);
            assert_eq!(Class::exact(lines as u64).is_some(), sizes.contains(&lines));
        }
        assert!(Class::exact(0).is_none() && Class::exact(u64::MAX).is_none());
        assert!(Info::of(MAX_KEY, MAX_VALUE).lines() <= MAX_LINES);
    }

    #[test]
    fn short_entries_are_those_of_one_line_with_short_lengths_and_no_tombstone() {
        for key in (0..80).chain([MAX_KEY, 0xffff]) {
            for value in (0..80).chain([64 << 6, MAX_VALUE, 0xff_ffff]) {
                let words = key.div_ceil(8) + value.div_ceil(8);
                let short = words <= HEAD_WORDS;
                let info = Info::of(key, value);
                assert_eq!((info.key_len(), info.value_len(), info.is_tombstone()), (key, value, false));
                assert_eq!((info.is_short(), info.is_long()), (short, !short), "{key} {value}");
                assert_eq!(info.is_sound(), key <= MAX_KEY && value <= MAX_VALUE, "{key} {value}");
                let with = info.in_transaction(u16::MAX).with_sum(Checksum::at(64));
                assert_eq!((with.is_short(), with.transaction()), (short, u16::MAX));
                assert_eq!(
                    (with.key_len(), with.value_len(), with.without_sum()),
                    (key, value, info.in_transaction(u16::MAX).0)
                );
            }
            assert!(!Info::tombstone(key).is_short() && Info::tombstone(key).is_tombstone());
            assert_eq!(Info::tombstone(key).is_sound(), key <= MAX_KEY);
        }
        assert!(!Info::from_bits(u64::MAX).is_short());
        // What is said to be short, and does not fit.
        for (key, value) in (0..64).flat_map(|key| (0..64).map(move |value| (key, value))) {
            let info = Info(key << SHORT_KEY | value << SHORT_VALUE);
            let fits = key.div_ceil(8) + value.div_ceil(8) <= HEAD_WORDS as u64;
            assert_eq!((info.is_short(), info.is_sound()), (fits, fits), "{key} {value}");
        }
    }

    #[test]
    fn entries_take_the_lines_their_words_need() {
        let lines = [(0, 0, 1), (8, 40, 1), (8, 41, 2), (16, 32, 1), (1, 40, 1), (9, 33, 2), (8, 88, 2), (8, 89, 3)];
        for (key, value, lines) in lines {
            assert_eq!(Info::of(key, value).lines(), lines, "{key} {value}");
        }
        assert_eq!(Info::tombstone(48).lines(), 1);
        assert_eq!(Info::tombstone(49).lines(), 2);
        let long = Info::of(49, 0).to_bits();
        assert!(Info::from_bits(long).is_sound() && !Info::from_bits(long | 1 << 58).is_sound());
        assert!(!Info::of(MAX_KEY + 1, 0).is_sound() && !Info::of(0, MAX_VALUE + 1).is_sound());
        for tombstone in [Info::of(8, 1).0 | SHORT_TOMBSTONE, Info::of(8, 100).0 | LONG_TOMBSTONE, 1 << 7, 1 << 14] {
            assert!(!Info::from_bits(tombstone).is_sound());
        }
        // A long form of what fits a line.
        assert!(!Info::from_bits(LONG | 8 << LONG_KEY).is_sound());
    }
}
