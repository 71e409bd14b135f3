//! A log record: four words that exist together or not at all.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Checksum, Medium, Off, Op, Word};

use crate::layout::SANE_VERSION;

/// Version of records that count nowhere: those that were taken out, and those that fill a page up.
const NO_VERSION: u64 = 0;
/// What a record that was taken out has in the place of its version. Its checksum stays as it was, so it is a number that damage is not likely to
/// leave there.
const TAKEN_OUT: u64 = 0x2a5_c3d2_96b4_781e;
/// Bits of a version in a record.
const VERSION_BITS: u32 = 58;
const VERSION: u64 = ((1 << VERSION_BITS) - 1) << 4;

const _: () = assert!(SANE_VERSION < TAKEN_OUT && TAKEN_OUT < (1 << VERSION_BITS) - 1, "damaged versions can be told");

/// A record whose checksum is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged {
    /// Where it lies.
    pub(crate) off: u64,
    /// Its checksum.
    pub(crate) found: u64,
}

/// An update of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: u64,
    /// What the key is mapped to, `None` if it was removed.
    pub(crate) value: Option<u64>,
    /// Of its range's updates, counted from 1.
    pub(crate) version: u64,
    /// Where it stands in a batch.
    pub(crate) place: Place,
}

/// Where a record stands among those that count together or not at all (DP-E1). A record alone has neither bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The record before it is of the same batch.
    pub(crate) joins: bool,
    /// The record after it is of the same batch.
    pub(crate) goes_on: bool,
}

impl Record {
    /// The four words of the record at an offset, with `polarity` as their validity bits.
    ///
    /// | word | bits 1–63 |
    /// |---|---|
    /// | 0 | low 63 bits of the key |
    /// | 1 | low 63 bits of the value |
    /// | 2 | bit 1: high bit of the key; 2: of the value; 3: removed; 4–61: version; 62: joins; 63: goes on |
    /// | 3 | checksum of the words before, and of where the record lies |
    #[inline(always)]
    fn to_words(self, off: u64, polarity: u64) -> [u64; 4] {
        let Record { key, value, version, place } = self;
        debug_assert!(polarity < 2 && version >> VERSION_BITS == 0 && version != TAKEN_OUT);
        let (removed, value) = (u64::from(value.is_none()), value.unwrap_or(0));
        let place = u64::from(place.goes_on) << 63 | u64::from(place.joins) << 62;
        let third = place | version << 4 | removed << 3 | value >> 63 << 2 | key >> 63 << 1;
        let words = [key << 1 | polarity, value << 1 | polarity, third | polarity];
        [words[0], words[1], words[2], sum(off, words) | polarity]
    }

    /// The record that four words at an offset hold, if all of them have `polarity`. Words that were filled with it hold one of version 0.
    #[inline(always)]
    fn from_words(off: u64, words: [u64; 4], polarity: u64) -> Result<Option<Record>, Damaged> {
        let [key, value, third, found] = words;
        if ((key ^ polarity) | (value ^ polarity) | (third ^ polarity) | (found ^ polarity)) & 1 != 0 {
            return Ok(None);
        }
        let version = (third & VERSION) >> 4;
        // By words that are in registers: an array that was just stored would be loaded in halves, which waits for the stores.
        let is_filled = (key ^ polarity) | (value ^ polarity) | (third ^ polarity) | (found ^ polarity) == 0;
        let is_plain = is_filled || version == TAKEN_OUT;
        if !is_plain && found & !1 != sum(off, [key, value, third]) {
            return Err(Damaged { off, found });
        }
        let value = value >> 1 | (third >> 2 & 1) << 63;
        let value = (third >> 3 & 1 == 0).then_some(value);
        let place = Place { joins: third >> 62 & 1 != 0, goes_on: third >> 63 != 0 };
        let version = if version == TAKEN_OUT { NO_VERSION } else { version };
        Ok(Some(Record { key: key >> 1 | (third >> 1 & 1) << 63, value, version, place }))
    }

    /// A record that fills a page up.
    pub(crate) const NOTHING: Record =
        Record { key: 0, value: None, version: NO_VERSION, place: Place { joins: false, goes_on: false } };

    /// Whether it counts nowhere: it was taken out, or fills a page up.
    pub(crate) fn is_nothing(&self) -> bool {
        self.version == NO_VERSION
    }

    /// Takes a record out, by one store: it exists, so that a batch keeps its number of records, and counts no more.
    pub(crate) fn take_out<M: Medium>(op: &Op<'_, M>, record: &[Word; 4]) {
        op.store(&record[2], op.load(&record[2], Relaxed) & !VERSION | TAKEN_OUT << 4, Release);
    }

    /// Stores it, unordered: it exists with the last of its words.
    #[inline(always)]
    pub(crate) fn store<M: Medium>(self, op: &Op<'_, M>, to: &[Word; 4], polarity: u64) {
        op.store_words(to, &self.to_words(op.off_of(to).get(), polarity));
    }

    /// # Errors
    /// If it is none that was ever stored.
    #[inline(always)]
    pub(crate) fn load<M: Medium>(op: &Op<'_, M>, from: &[Word; 4], polarity: u64) -> Result<Option<Record>, Damaged> {
        // The word that is stored last says of most records that they are not there; so recovery asks less, and its exploration, too.
        let last = op.load(&from[3], Relaxed);
        if last & 1 != polarity {
            return Ok(None);
        }
        let [first, second, third] = [0, 1, 2].map(|word| op.load(&from[word], Relaxed));
        Record::from_words(op.off_of(from).get(), [first, second, third, last], polarity)
    }
}

/// Where a record lies that was read, and found to be sound: its offset, with its polarity in bit 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept(u64);

const _: () = assert!(align_of::<[Word; 4]>() > 1, "bit 0 of an offset is free");

impl Kept {
    pub(crate) fn new(off: Off<[Word; 4]>, polarity: u64) -> Self {
        Kept(off.get() | polarity)
    }

    /// The record, which nobody has changed since.
    pub(crate) fn load<M: Medium>(self, op: &Op<'_, M>) -> Record {
        let record = Record::load(op, op.at(Off::<[Word; 4]>::new(self.0 & !1)), self.0 & 1);
        record.ok().flatten().expect("a sound record, until its range is merged")
    }
}

/// The checksum of the first three words, without the bit that is its own validity bit.
#[inline(always)]
fn sum(off: u64, [first, second, third]: [u64; 3]) -> u64 {
    Checksum::at(off).pair(first, second).pair(third, 0).finish() & !1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_no_part_of_one_does() {
        let numbers = [0, 1, 77, 1 << 62, 1 << 63, u64::MAX];
        for key in numbers {
            for value in numbers {
                let most = (1 << VERSION_BITS) - 1;
                for (version, removed, polarity) in [(1, false, 0), (most, true, 1), (5, false, 1)] {
                    let place = Place { joins: key > 1, goes_on: value > 1 };
                    let record = Record { key, value: (!removed).then_some(value), version, place };
                    let words = record.to_words(64, polarity);
                    assert_eq!(Record::from_words(64, words, polarity), Ok(Some(record)));
                    assert_eq!(Record::from_words(64, words, 1 - polarity), Ok(None));
                    assert!(Record::from_words(128, words, polarity).is_err(), "elsewhere");
                    for torn in 0..4 {
                        let mut words = words;
                        words[torn] ^= 1;
                        assert_eq!(Record::from_words(64, words, polarity), Ok(None));
                    }
                    for (word, bit) in (0..4).flat_map(|word| (1..64).map(move |bit| (word, bit))) {
                        let mut words = words;
                        words[word] ^= 1 << bit;
                        assert!(Record::from_words(64, words, polarity).is_err(), "bit {bit} of word {word}");
                    }
                }
            }
        }
        for polarity in [0, 1] {
            let filled = Record::from_words(64, [polarity; 4], polarity);
            assert_eq!(filled.unwrap().map(|record| record.version), Some(NO_VERSION));
            let words = Record::NOTHING.to_words(64, polarity);
            assert_eq!(Record::from_words(64, words, polarity), Ok(Some(Record::NOTHING)));
        }
    }

    #[test]
    fn what_was_taken_out_keeps_its_place_and_counts_no_more() {
        let place = Place { joins: true, goes_on: true };
        let mut words = Record { key: 7, value: Some(8), version: 9, place }.to_words(64, 1);
        words[2] = words[2] & !VERSION | TAKEN_OUT << 4;
        let record = Record::from_words(64, words, 1).unwrap().unwrap();
        assert!(record.is_nothing() && record.place == place);
        // A word that was zeroed is no such thing.
        words[2] = 1;
        assert!(Record::from_words(64, words, 1).is_err());
    }
}
