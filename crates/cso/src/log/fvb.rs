//! CSO-FVB with slots of a fixed size (3.1.3): contiguous payloads that lose no bit, of any length up to the slot's.
//!
//! A slot is `lines` lines. Its first words are metadata: one word up to four lines, two up to ten, and one more for every
//! six lines after that. The payload follows, contiguous. The first line is told by the validity bit in the first metadata
//! word, as in CSO-VB; every further line by its flexible validity bit, whose place and value are in the metadata. Lines
//! that a short payload does not reach are not touched, because nothing is expected of them.
//!
//! # Persist order within a record
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as CS-V1: payload and metadata words of line 0 < the first metadata word | same line, release store | the last lap's validity bit | the record is not whole: the log ends there |
//! | as CS-X1: words of a further line < its last word that differs | same line, release store | the old bit at the pair's place | the same |

use std::sync::atomic::Ordering;

use durix_pmem::{LINE, Medium, Off, Op};

use super::error::{Error, Result};
use super::flex::{line_holds, write_line};
use super::layout::{FlexMeta, Line, Pair};
use super::record::{Place, Record};
use super::ring::{Cells, Cursor, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

/// The kind in the header.
const KIND: u32 = 5;

/// Pairs in every metadata word but the first.
pub(super) const PAIRS: usize = 6;

/// Largest number of lines of a slot: then the metadata fills the first line.
pub const MAX_LINES: u64 = 46;

/// What is decided when an [`FvbLog`] is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FvbOptions {
    /// Lines of a slot, 1 to [`MAX_LINES`].
    pub lines: u64,
}

impl Default for FvbOptions {
    /// Slots of eight lines: payloads of up to 496 bytes.
    fn default() -> Self {
        FvbOptions { lines: 8 }
    }
}

/// A log with flexible validity bits.
#[derive(Debug)]
pub struct FvbLog {
    ring: Ring,
    slots: Slots,
}

#[derive(Clone, Copy, Debug)]
struct Slots {
    /// Metadata words.
    meta: usize,
    /// Bytes of the largest payload.
    max: usize,
}

impl Slots {
    fn new(lines: u64) -> Self {
        let pairs = lines as usize - 1;
        let meta = 1 + pairs.saturating_sub(FlexMeta::PAIRS).div_ceil(PAIRS);
        Slots { meta, max: lines as usize * LINE - meta * 8 }
    }

    /// Lines that a payload of `len` bytes reaches.
    #[inline(always)]
    fn lines_for(&self, len: usize) -> usize {
        (self.meta * 8 + len).div_ceil(LINE)
    }

    /// Which metadata word holds the pair of line `line`, and where in it.
    #[inline(always)]
    fn place_of(line: usize) -> (usize, usize) {
        match (line - 1).checked_sub(FlexMeta::PAIRS) {
            None => (0, FlexMeta::SHIFT + (line - 1) * Pair::BITS),
            Some(rest) => (1 + rest / PAIRS, rest % PAIRS * Pair::BITS),
        }
    }

    #[inline(always)]
    fn line<'a, M: Medium>(op: &Op<'a, M>, at: Cursor, index: usize) -> &'a Line {
        op.at(Off::new(at.off + (index * LINE) as u64))
    }

    #[inline(always)]
    fn meta_word<M: Medium>(op: &Op<'_, M>, at: Cursor) -> FlexMeta {
        op.load(op.at(Off::new(at.off)), Ordering::Relaxed)
    }

    #[inline(always)]
    fn write<M: Medium, S: Source>(&self, op: &Op<'_, M>, at: Cursor, tag: u8, payload: S) {
        let first = Self::line(op, at, 0);
        let start = self.meta.min(8);
        match &first.words {
            [_, rest @ ..] if start == 1 => payload.store(op, 0, rest),
            [_, _, rest @ ..] if start == 2 => payload.store(op, 0, rest),
            words => payload.store_some(op, 0, &words[start..]),
        }
        let mut meta = FlexMeta::new(at.valid, tag, payload.len());
        let mut pairs = PairWords { bits: 0, shift: FlexMeta::SHIFT, word: 0 };
        for index in 1..self.lines_for(payload.len()) {
            let pair = write_line(op, Self::line(op, at, index), payload, index * 8 - start);
            if let Some((word, bits)) = pairs.push(pair) {
                store_pairs(op, first, &mut meta, word, bits);
            }
        }
        if pairs.shift > 0 {
            store_pairs(op, first, &mut meta, pairs.word, pairs.bits);
        }
        // PERSIST CS-V1: same line
        op.store(op.at(Off::new(at.off)), meta, Ordering::Release);
        op.write_back(first);
    }
}

/// A metadata word under construction.
struct PairWords {
    bits: u64,
    shift: usize,
    word: usize,
}

impl PairWords {
    /// Adds a pair; gives the word's number and content once it is full.
    #[inline(always)]
    fn push(&mut self, pair: Pair) -> Option<(usize, u64)> {
        self.bits |= pair.to_bits(self.shift);
        self.shift += Pair::BITS;
        if self.shift + Pair::BITS <= u64::BITS as usize {
            return None;
        }
        let full = (self.word, self.bits);
        *self = PairWords { bits: 0, shift: 0, word: self.word + 1 };
        Some(full)
    }
}

/// Puts pairs into the first metadata word, which is stored later, or stores another one.
#[inline(always)]
fn store_pairs<M: Medium>(op: &Op<'_, M>, first: &Line, meta: &mut FlexMeta, word: usize, bits: u64) {
    if word == 0 {
        *meta = meta.with_pairs(bits);
    } else {
        op.store(&first.words[word & 7], bits, Ordering::Relaxed);
    }
}

impl Cells for Slots {
    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64> {
        let at = ring.cursor(position);
        let meta = Self::meta_word(op, at);
        if limit == 0 || meta.valid() != at.valid || meta.len() > self.max {
            return None;
        }
        let first = Self::line(op, at, 0);
        for index in 1..self.lines_for(meta.len()) {
            let (word, shift) = Self::place_of(index);
            let pair = Pair::from_bits(op.load(&first.words[word & 7], Ordering::Relaxed), shift);
            if !line_holds(op, Self::line(op, at, index), pair) {
                return None;
            }
        }
        Some(1)
    }

    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        Self::meta_word(op, at).valid() == at.valid
    }

    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        let meta = Self::meta_word(op, at);
        if meta.valid() == at.valid {
            op.store(op.at(Off::new(at.off)), meta.flipped(), Ordering::Relaxed);
        }
    }
}

impl Log for FvbLog {
    type Options = FvbOptions;

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, options: &FvbOptions) -> Result<Self> {
        let lines = options.lines;
        if !(1..=MAX_LINES).contains(&lines) {
            return Err(Error::BadOption { option: "lines", value: lines, must: "1 to 46" });
        }
        let unit = lines * LINE as u64;
        let units = region.units(unit);
        let ring = Ring::format(op, region, Shape { kind: KIND, unit, units, params: [0; 3] }, 0)?;
        Ok(FvbLog { ring, slots: Slots::new(lines) })
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, KIND)?;
        let lines = shape.unit / LINE as u64;
        if !(1..=MAX_LINES).contains(&lines) || shape.unit != lines * LINE as u64 {
            return Err(Error::Corrupt { off: region.off, what: "slot size", found: shape.unit });
        }
        let slots = Slots::new(lines);
        Ok(FvbLog { ring: Ring::recover(op, region, shape, &slots)?, slots })
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        if payload.len() > self.slots.max {
            return Err(Error::TooLong { len: payload.len(), max: self.slots.max });
        }
        let at = self.ring.claim(op, 1)?;
        self.slots.write(op, at, tag, payload);
        let position = self.ring.tail();
        self.ring.advance(1);
        // The old content of the next slot is read before it is written: fetched while the fence waits.
        let next = self.ring.next();
        for line in 0..self.slots.lines_for(payload.len()) {
            op.prefetch_write(Off::<Line>::new(next.off + (line * LINE) as u64));
        }
        Ok(Position(position))
    }

    #[inline(always)]
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        self.ring.commit(op);
    }

    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()> {
        self.ring.trim_units(op, to.0, floor)
    }

    #[inline]
    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>> {
        if position < self.head() || position >= self.tail() {
            return None;
        }
        let at = self.ring.cursor(position.0);
        let meta = Slots::meta_word(op, at);
        Some(Record {
            op,
            position,
            next: Position(position.0 + 1),
            tag: meta.tag(),
            len: meta.len().min(self.slots.max),
            place: Place::Contiguous { off: at.off + self.slots.meta as u64 * 8 },
            skip: 0,
        })
    }

    bounds_of_ring!();

    fn capacity(&self) -> u64 {
        self.ring.units() * self.ring.unit()
    }

    fn max_payload(&self) -> usize {
        self.slots.max
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.ring.check(op, &self.slots, self.ring.durable_limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_words_hold_a_pair_for_every_further_line_and_stay_on_the_first() {
        for lines in 1..=MAX_LINES {
            let slots = Slots::new(lines);
            assert!(slots.meta <= 8);
            let mut taken = std::collections::BTreeSet::new();
            for line in 1..lines as usize {
                let (word, shift) = Slots::place_of(line);
                assert!(word < slots.meta && shift + Pair::BITS <= 64);
                assert!(word > 0 || shift >= FlexMeta::SHIFT);
                assert!((shift..shift + Pair::BITS).all(|bit| taken.insert((word, bit))), "line {line}");
            }
            assert_eq!(slots.lines_for(slots.max) as u64, lines);
        }
        assert_eq!([1, 4, 5, 10, 11].map(|l| Slots::new(l).meta), [1, 1, 2, 2, 3]);
        assert_eq!(Slots::new(8).max, 496);
    }
}
