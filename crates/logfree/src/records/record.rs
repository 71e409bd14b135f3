//! Records: any number of bytes under a key, in one unit, or in a head and parts.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Checksum, Medium, Off, Op, Word};

use crate::error::{Error, Result};
use crate::layout::{NODE, PART, PART_HEAD, RECORD_BYTES, RECORD_HEAD, RECORD_MARKS, RECORD_SUM};
use crate::pages::units::{Unit, Units};

/// Bytes of a word.
const WORD: u64 = size_of::<Word>() as u64;
/// Bytes of the marks of a record that has them.
pub(super) const MARKS: usize = WORD as usize;
/// Lines of a record that are asked for ahead.
const MOST_AHEAD: u64 = 16;
/// Words of a line.
const LINE: u64 = NODE / WORD;

/// Bytes of the longest value of a map with pages of 4 KiB, the default. It goes by the square of the size of a page, up to
/// 16 KiB: see [`Blobs::max_value`](crate::Blobs::max_value).
pub const MAX_VALUE: usize = Limits { lines: 63 }.bytes() as usize;

/// What fits where, by the lines of the largest unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) lines: u64,
}

impl Limits {
    /// Bytes of the longest record of one unit.
    const fn in_one(self) -> u64 {
        (self.lines * LINE - RECORD_HEAD) * WORD
    }

    /// Bytes of a part.
    const fn in_part(self) -> u64 {
        (self.lines * LINE - PART_HEAD) * WORD
    }

    /// Bytes of the longest record.
    pub(super) const fn bytes(self) -> u64 {
        (self.lines * LINE - RECORD_HEAD) * self.in_part()
    }

    /// Words of the head of a record of so many bytes, and the number of its parts.
    fn shape(self, bytes: u64) -> (u64, u64) {
        if bytes <= self.in_one() {
            return (RECORD_HEAD + bytes.div_ceil(WORD), 0);
        }
        let parts = bytes.div_ceil(self.in_part());
        (RECORD_HEAD + parts, parts)
    }
}

/// A record: where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The head first, then the parts.
    pub(super) units: Vec<Unit>,
    key: u64,
    /// Bytes under the key.
    len: u64,
    /// [`RECORD_MARKS`] or 0.
    marks: u64,
    /// Of what the head says, and of the bytes but the marks.
    sum: u32,
}

impl Record {
    /// The checksum that goes with bytes.
    #[inline(always)]
    fn sum_of(&self, bytes: &[u8]) -> u32 {
        let parts = self.units[1..].iter().map(|part| part.off);
        let bytes = &bytes[if self.marks == 0 { 0 } else { MARKS.min(bytes.len()) }..];
        Checksum::at(self.off()).pair(self.len | self.marks, self.key).words(parts).bytes(bytes).low()
    }

    /// The offset that a value stands for.
    pub fn off(&self) -> u64 {
        self.units[0].off
    }
}

/// The words of a unit. An offset may be any number: that of a part, in a unit that a crash has left half written.
fn words<'s, M: Medium>(op: &Op<'s, M>, off: u64, len: u64) -> Result<&'s [Word]> {
    op.slice("a record", Off::<Word>::new(off), len).map_err(|_| corrupt("the place of a record", off, len))
}

#[cold]
fn corrupt(what: &'static str, offset: u64, found: u64) -> Error {
    Error::Corrupt { what, offset, found }
}

/// The records of a map.
pub(super) struct Records<'a, 's, M: Medium> {
    pub(super) op: &'a Op<'s, M>,
    pub(super) units: &'a Units<M>,
    /// Whether there are records with marks.
    pub(super) have_marks: bool,
}

impl<'s, M: Medium> Records<'_, 's, M> {
    fn limits(&self) -> Limits {
        Limits { lines: self.units.largest() }
    }

    // ---- writing ----

    /// Allocates a record, writes it, and starts writing it back. It is durable with the next fence (LF-I4).
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Pool`] where the pool is full. Nothing is allocated then.
    pub(super) fn write(&self, key: u64, bytes: &[u8]) -> Result<Record> {
        self.write_with(key, bytes, 0)
    }

    /// As [`write`](Self::write); with [`RECORD_MARKS`] the first word may change later, and has no checksum.
    pub(super) fn write_with(&self, key: u64, bytes: &[u8], marks: u64) -> Result<Record> {
        let (limits, len) = (self.limits(), bytes.len() as u64);
        if len > limits.bytes() {
            return Err(Error::TooLong { what: "a value", len, limit: limits.bytes() });
        }
        let (head, parts) = limits.shape(len);
        let mut units = self.units.allocate(self.op, self.units.fitting(head.div_ceil(LINE)), 1)?;
        if parts > 0 {
            match self.units.allocate(self.op, limits.lines, parts as usize) {
                Ok(more) => units.extend(more),
                Err(error) => {
                    self.units.give_back(self.op, &units);
                    return Err(error);
                }
            }
        }
        let mut record = Record { units, key, len, marks, sum: 0 };
        record.sum = record.sum_of(bytes);
        match self.fill(&record, bytes) {
            Ok(()) => Ok(record),
            Err(error) => {
                self.units.give_back(self.op, &record.units);
                Err(error)
            }
        }
    }

    fn fill(&self, record: &Record, bytes: &[u8]) -> Result<()> {
        let (op, limits, parts) = (self.op, self.limits(), &record.units[1..]);
        let (head, _) = limits.shape(record.len);
        let head = words(op, record.off(), head)?;
        op.store(&head[0], record.len | record.marks | u64::from(record.sum) << RECORD_SUM, Relaxed);
        op.store(&head[1], record.key, Relaxed);
        let rest = &head[RECORD_HEAD as usize..];
        if parts.is_empty() {
            op.store_bytes(rest, bytes);
        }
        let pieces = bytes.chunks(limits.in_part() as usize);
        for ((link, part), piece) in rest.iter().zip(parts).zip(pieces) {
            op.store(link, part.off, Relaxed);
            let part = words(op, part.off, PART_HEAD + (piece.len() as u64).div_ceil(WORD))?;
            op.store(&part[0], PART | record.off(), Relaxed);
            op.store_bytes(&part[PART_HEAD as usize..], piece);
            // PERSIST LF-I4: flush, with the fence of the node.
            op.write_back_slice(part);
        }
        // PERSIST LF-I4: flush, with the fence of the node.
        op.write_back_slice(head);
        Ok(())
    }

    // ---- reading ----

    /// The record at an offset that the map holds for a key, its lengths and offsets checked.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn at(&self, key: u64, off: u64) -> Result<Record> {
        let (op, limits) = (self.op, self.limits());
        let fixed = words(op, off, RECORD_HEAD)?;
        let (first, found) = (op.load(&fixed[0], Relaxed), op.load(&fixed[1], Relaxed));
        let (marks, sum) = (first & RECORD_MARKS, (first >> RECORD_SUM) as u32);
        let len = first & RECORD_BYTES & !RECORD_MARKS;
        let strange = if self.have_marks { PART } else { PART | RECORD_MARKS };
        if len > limits.bytes() || !off.is_multiple_of(NODE) || first & strange != 0 {
            return Err(corrupt("the length of a record", off, first));
        }
        if found != key {
            return Err(corrupt("the key of a record", off, found));
        }
        let (head, parts) = limits.shape(len);
        let mut units = vec![Unit { off, lines: self.units.fitting(head.div_ceil(LINE)) }];
        if parts > 0 {
            for link in &words(op, off, head)?[RECORD_HEAD as usize..] {
                let part = op.load(link, Relaxed);
                let owner = op.load(&words(op, part, limits.lines * LINE)?[0], Relaxed);
                if owner != PART | off || !part.is_multiple_of(NODE) {
                    return Err(corrupt("a part of a record", part, owner));
                }
                units.push(Unit { off: part, lines: limits.lines });
            }
        }
        Ok(Record { units, key, len, marks, sum })
    }

    /// Appends the bytes of a record, and compares their checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn read(&self, record: &Record, into: &mut Vec<u8>) -> Result<()> {
        let had = into.len();
        self.copy(record, into)?;
        if record.sum_of(&into[had..]) != record.sum {
            into.truncate(had);
            return Err(corrupt("the checksum of a record", record.off(), u64::from(record.sum)));
        }
        Ok(())
    }

    /// Appends up to so many first bytes, and returns how many there are; compares the checksum if these are all.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn read_front(&self, key: u64, off: u64, most: usize, into: &mut Vec<u8>) -> Result<u64> {
        let record = self.at(key, off)?;
        if record.len <= most as u64 {
            self.read(&record, into)?;
        } else {
            let parts = (most as u64).div_ceil(self.limits().in_part()) as usize;
            let units = record.units.iter().take(1 + parts).cloned().collect();
            self.copy(&Record { units, len: most as u64, ..record.clone() }, into)?;
        }
        Ok(record.len)
    }

    /// As [`read_front`](Self::read_front), whatever the record's key and checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where there is no record.
    pub(super) fn read_unchecked(&self, off: u64, most: usize, into: &mut Vec<u8>) -> Result<()> {
        let key = self.op.load(&words(self.op, off, RECORD_HEAD)?[1], Relaxed);
        let record = self.at(key, off)?;
        let len = record.len.min(most as u64);
        self.copy(&Record { len, ..record }, into)
    }

    /// Asks the processor for the lines of a record in one unit, but the first one.
    #[inline]
    pub(super) fn prefetch_rest(&self, off: u64) {
        let Ok(head) = words(self.op, off, RECORD_HEAD) else { return };
        let len = self.op.load(&head[0], Relaxed) & RECORD_BYTES & !RECORD_MARKS;
        let lines = self.limits().shape(len.min(self.limits().bytes())).0.div_ceil(LINE).min(MOST_AHEAD);
        (1..lines).for_each(|line| self.op.prefetch(Off::<Word>::new(off.wrapping_add(line * NODE))));
    }

    fn copy(&self, record: &Record, into: &mut Vec<u8>) -> Result<()> {
        let (op, in_part, had) = (self.op, self.limits().in_part(), into.len());
        into.resize(had + record.len as usize, 0);
        let bytes = &mut into[had..];
        if let [head] = record.units[..] {
            let from = words(op, head.off, RECORD_HEAD + record.len.div_ceil(WORD))?;
            op.load_bytes(&from[RECORD_HEAD as usize..], bytes);
            return Ok(());
        }
        for (part, piece) in record.units[1..].iter().zip(bytes.chunks_mut(in_part as usize)) {
            let from = words(op, part.off, PART_HEAD + (piece.len() as u64).div_ceil(WORD))?;
            op.load_bytes(&from[PART_HEAD as usize..], piece);
        }
        Ok(())
    }

    /// The word of marks of a record that has them and lies in one unit; otherwise `None`.
    pub(super) fn marks(&self, record: &Record) -> Result<Option<&'s Word>> {
        if record.marks == 0 || record.units.len() > 1 || record.len < WORD {
            return Ok(None);
        }
        Ok(words(self.op, record.off(), RECORD_HEAD + 1)?.last())
    }

    /// Makes sure that all units of a record lie where such units can, before they are taken over.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn expect(&self, record: &Record) -> Result<()> {
        record.units.iter().try_for_each(|unit| self.units.expect(self.op, *unit))
    }

    // ---- recovery ----

    /// The key and the offset of the head of the record that a unit says it belongs to. What it says means nothing if it was not
    /// written to the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] outside the pool.
    pub(super) fn owner(&self, unit: Unit) -> Result<Option<(u64, u64)>> {
        let op = self.op;
        let first = op.load(&words(op, unit.off, RECORD_HEAD)?[0], Relaxed);
        let head = if first & PART == 0 { unit.off } else { first & !PART };
        if !head.is_multiple_of(NODE) {
            return Ok(None);
        }
        let key = words(op, head, RECORD_HEAD).ok().map(|words| op.load(&words[1], Relaxed));
        Ok(key.map(|key| (key, head)))
    }

    /// What a unit says its record's key is, if it is a head.
    ///
    /// # Errors
    /// [`Error::Corrupt`] outside the pool.
    pub(super) fn key_of(&self, unit: Unit) -> Result<u64> {
        Ok(self.op.load(&words(self.op, unit.off, RECORD_HEAD)?[1], Relaxed))
    }

    /// Whether a unit was never written, or holds the record of no bytes of key 0.
    pub(super) fn is_blank(&self, off: u64) -> Result<bool> {
        Ok(words(self.op, off, RECORD_HEAD)?.iter().all(|word| self.op.load(word, Relaxed) == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_where() {
        // Pages of 4 KiB and of 256 bytes.
        let (page, small) = (Limits { lines: 63 }, Limits { lines: 3 });
        assert_eq!([page.in_one(), page.in_part(), page.bytes()], [4016, 4024, 2_020_048]);
        assert_eq!([small.in_one(), small.in_part(), small.bytes()], [176, 184, 4048]);
        assert_eq!([page.shape(0), page.shape(1), page.shape(48), page.shape(49)], [(2, 0), (3, 0), (8, 0), (9, 0)]);
        assert_eq!([page.shape(4016), page.shape(4017), page.shape(2_020_048)], [(504, 0), (3, 1), (504, 502)]);
        assert_eq!(MAX_VALUE, 2_020_048);
    }
}
