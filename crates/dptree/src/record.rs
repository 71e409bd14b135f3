//! A log record: four words that exist together or not at all.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Checksum, Medium, Op, Word};

use crate::layout::MAX_VERSION;

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
}

impl Record {
    /// The four words of the record at an offset, with `polarity` as their validity bits.
    ///
    /// | word | bits 1–63 |
    /// |---|---|
    /// | 0 | low 63 bits of the key |
    /// | 1 | low 63 bits of the value |
    /// | 2 | bit 1: high bit of the key; 2: of the value; 3: removed; 4–63: version |
    /// | 3 | checksum of the words before, and of where the record lies |
    #[inline(always)]
    fn to_words(self, off: u64, polarity: u64) -> [u64; 4] {
        let Record { key, value, version } = self;
        debug_assert!(polarity < 2 && version <= MAX_VERSION);
        let (removed, value) = (u64::from(value.is_none()), value.unwrap_or(0));
        let third = version << 4 | removed << 3 | value >> 63 << 2 | key >> 63 << 1;
        let words = [key << 1 | polarity, value << 1 | polarity, third | polarity];
        [words[0], words[1], words[2], sum(off, words) | polarity]
    }

    /// The record that four words at an offset hold, if all of them have `polarity`. Words that were filled with it hold one of version 0.
    fn from_words(off: u64, words: [u64; 4], polarity: u64) -> Result<Option<Record>, Damaged> {
        if words.iter().any(|word| word & 1 != polarity) {
            return Ok(None);
        }
        let [key, value, third, found] = words;
        if words != [polarity; 4] && found & !1 != sum(off, [key, value, third]) {
            return Err(Damaged { off, found });
        }
        let value = value >> 1 | (third >> 2 & 1) << 63;
        let value = (third >> 3 & 1 == 0).then_some(value);
        Ok(Some(Record { key: key >> 1 | (third >> 1 & 1) << 63, value, version: third >> 4 }))
    }

    /// Stores it, unordered: it exists with the last of its words.
    #[inline(always)]
    pub(crate) fn store<M: Medium>(self, op: &Op<'_, M>, to: &[Word; 4], polarity: u64) {
        op.store_words(to, &self.to_words(op.off_of(to).get(), polarity));
    }

    /// # Errors
    /// If it is none that was ever stored.
    pub(crate) fn load<M: Medium>(op: &Op<'_, M>, from: &[Word; 4], polarity: u64) -> Result<Option<Record>, Damaged> {
        Record::from_words(op.off_of(from).get(), from.each_ref().map(|word| op.load(word, Relaxed)), polarity)
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
                for (version, removed, polarity) in [(1, false, 0), (MAX_VERSION, true, 1), (5, false, 1)] {
                    let record = Record { key, value: (!removed).then_some(value), version };
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
            assert_eq!(filled.unwrap().map(|record| record.version), Some(0));
        }
    }
}
