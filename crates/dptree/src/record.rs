//! A log record: three words that exist together or not at all.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op, Word};

use crate::recover::SANE_VERSION;

/// Version of records that count nowhere: those that were taken out, and those that fill a page up.
const NO_VERSION: u64 = 0;
/// Bits of a version in a record.
const VERSION_BITS: u32 = 58;
const VERSION: u64 = ((1 << VERSION_BITS) - 1) << 4;

const _: () = assert!(SANE_VERSION < (1 << VERSION_BITS) - 1, "damaged versions can be told");

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
    /// The three words, with `polarity` as their validity bits.
    ///
    /// | word | bits 1–63 |
    /// |---|---|
    /// | 0 | low 63 bits of the key |
    /// | 1 | low 63 bits of the value |
    /// | 2 | bit 1: high bit of the key; 2: of the value; 3: removed; 4–61: version; 62: joins; 63: goes on |
    fn to_words(self, polarity: u64) -> [u64; 3] {
        let Record { key, value, version, place } = self;
        debug_assert!(polarity < 2 && version >> VERSION_BITS == 0);
        let (removed, value) = (u64::from(value.is_none()), value.unwrap_or(0));
        let place = u64::from(place.goes_on) << 63 | u64::from(place.joins) << 62;
        let third = place | version << 4 | removed << 3 | value >> 63 << 2 | key >> 63 << 1;
        [key << 1 | polarity, value << 1 | polarity, third | polarity]
    }

    /// The record that three words hold, if all of them have `polarity`.
    fn from_words(words: [u64; 3], polarity: u64) -> Option<Record> {
        if words.iter().any(|word| word & 1 != polarity) {
            return None;
        }
        let [key, value, third] = words;
        let value = value >> 1 | (third >> 2 & 1) << 63;
        let value = (third >> 3 & 1 == 0).then_some(value);
        let place = Place { joins: third >> 62 & 1 != 0, goes_on: third >> 63 != 0 };
        Some(Record { key: key >> 1 | (third >> 1 & 1) << 63, value, version: (third & VERSION) >> 4, place })
    }

    /// A record that fills a page up.
    pub(crate) const NOTHING: Record =
        Record { key: 0, value: None, version: NO_VERSION, place: Place { joins: false, goes_on: false } };

    /// Whether it counts nowhere: it was taken out, or fills a page up.
    pub(crate) fn is_nothing(&self) -> bool {
        self.version == NO_VERSION
    }

    /// Takes a record out, by one store: it exists, so that a batch keeps its number of records, and counts no more.
    pub(crate) fn take_out<M: Medium>(op: &Op<'_, M>, record: &[Word; 3]) {
        op.store(&record[2], op.load(&record[2], Relaxed) & !VERSION, Release);
    }

    /// Stores it, unordered: it exists with the last of its words.
    #[inline(always)]
    pub(crate) fn store<M: Medium>(self, op: &Op<'_, M>, to: &[Word; 3], polarity: u64) {
        op.store_words(to, &self.to_words(polarity));
    }

    pub(crate) fn load<M: Medium>(op: &Op<'_, M>, from: &[Word; 3], polarity: u64) -> Option<Record> {
        Record::from_words([&from[0], &from[1], &from[2]].map(|word| op.load(word, Relaxed)), polarity)
    }
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
                    let words = record.to_words(polarity);
                    assert_eq!(Record::from_words(words, polarity), Some(record));
                    assert_eq!(Record::from_words(words, 1 - polarity), None);
                    for torn in 0..3 {
                        let mut words = words;
                        words[torn] ^= 1;
                        assert_eq!(Record::from_words(words, polarity), None);
                    }
                }
            }
        }
    }
}
