//! CSO-FVB as entries that point to payloads (5.3): a small VB entry, and a contiguous payload of any length beside it,
//! both in one round trip.
//!
//! The region holds a ring of entry lines, each with a meta word as in [`LinesLog`](super::LinesLog), and a ring of payload
//! lines, of which every bit is the user's. The entry of a record says where its payload starts and how long it is, and
//! holds the flexible validity bits of the payload's lines, six to a word; a payload of more than 30 lines makes the entry
//! continue on further lines.
//!
//! # Persist order within a record
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as CS-V1: words of an entry line < its meta word | same line, release store | a line with the last lap's bit | the record is not whole: the log ends there |
//! | as CS-X1: words of a payload line < its last word that differs | same line, release store | the old bit at the pair's place | the same |
//!
//! Entry and payload are not ordered: the record is whole when the entry is, and every pair in it holds.

use std::sync::atomic::Ordering;

use durix_pmem::{LINE, Medium, Off, Op};

use super::error::{Error, Result};
use super::flex::{line_holds, write_line};
use super::layout::{Line, LineSlot, Meta, Pair};
use super::lines::{Interleaved, lines_for};
use super::record::{Place, Record, interleaved_word};
use super::ring::{Cells, Cursor, HEADER, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

/// The kind in the header.
const KIND: u32 = 7;

/// Pairs in a word.
const PAIRS: usize = 6;

/// Words of an entry before its pairs: the payload's position, in lines, and its length.
const FIXED: usize = 2;

/// Positions beyond this are corrupt.
const MAX_POSITION: u64 = 1 << 56;

/// What is decided when an [`FvbEntryLog`] is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FvbEntryOptions {
    /// Lines of the ring of entries; 0 takes an eighth of the region. The rest is for payloads.
    pub entry_lines: u64,
}

/// A log of entries that point to contiguous payloads of any length.
#[derive(Debug)]
pub struct FvbEntryLog {
    ring: Ring,
    payloads: Payloads,
}

/// The ring of payload lines. Positions count its lines without end, those skipped at its end included.
#[derive(Clone, Copy, Debug)]
struct Payloads {
    /// Offset of the first line.
    data: u64,
    lines: u64,
    /// Where the payload of the oldest record starts; the same for the durable head.
    head: u64,
    durable_head: u64,
    tail: u64,
    /// The tail's place in the ring.
    index: u64,
    /// Payloads from here on may not be fenced yet.
    unfenced: u64,
}

/// Lines of a payload; an empty one has none.
#[inline(always)]
fn payload_lines(len: usize) -> u64 {
    len.div_ceil(LINE) as u64
}

/// Bytes of the entry for a payload of so many lines.
#[inline(always)]
fn entry_len(lines: u64) -> usize {
    (FIXED + (lines as usize).div_ceil(PAIRS)) * 8
}

/// What an entry says.
struct Entry {
    tag: u8,
    /// Lines of the entry itself.
    units: u64,
    position: u64,
    len: u64,
    place: Place<'static>,
}

impl Entry {
    /// The pair of payload line `line`.
    fn pair<M: Medium>(&self, op: &Op<'_, M>, line: u64) -> Pair {
        let word = self.word(op, FIXED + line as usize / PAIRS);
        Pair::from_bits(word, line as usize % PAIRS * Pair::BITS)
    }

    fn word<M: Medium>(&self, op: &Op<'_, M>, index: usize) -> u64 {
        let Place::Interleaved { off, bounds } = self.place else { return 0 };
        interleaved_word(op, off, bounds, index)
    }
}

impl Payloads {
    fn new(data: u64, lines: u64) -> Self {
        Payloads { data, lines, head: 0, durable_head: 0, tail: 0, index: 0, unfenced: 0 }
    }

    /// The entry at `position`, if it is whole by itself and its numbers can be true.
    fn entry<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<Entry> {
        let units = Interleaved.whole(op, ring, position, limit)?;
        let at = ring.cursor(position);
        let meta = Interleaved::meta(op, at);
        let place = Place::Interleaved { off: at.off, bounds: ring.bounds() };
        let mut entry = Entry { tag: meta.tag(), units, position: 0, len: 0, place };
        entry.position = entry.word(op, 0);
        entry.len = entry.word(op, 1);
        let lines = entry.len.div_ceil(LINE as u64);
        let fits = entry.position < MAX_POSITION
            && lines <= self.lines
            && entry.position % self.lines + lines <= self.lines
            && meta.len() as usize == entry_len(lines);
        fits.then_some(entry)
    }

    fn line<'a, M: Medium>(&self, op: &Op<'a, M>, position: u64) -> &'a Line {
        op.at(Off::new(self.data + position % self.lines * LINE as u64))
    }

    /// Lines to be skipped at the end of the ring, so that `lines` lines are contiguous.
    #[inline(always)]
    fn skip(&self, lines: u64) -> u64 {
        if self.index + lines > self.lines { self.lines - self.index } else { 0 }
    }

    /// Whether `lines` contiguous lines may be overwritten.
    #[inline(always)]
    fn has_room(&self, lines: u64) -> bool {
        self.tail + self.skip(lines) + lines <= self.durable_head + self.lines
    }

    fn settled(&mut self) {
        self.durable_head = self.head;
        self.unfenced = self.tail;
    }

    /// Takes `lines` lines; gives the position and the offset of the first.
    #[inline(always)]
    fn take(&mut self, lines: u64) -> (u64, u64) {
        let skip = self.skip(lines);
        if skip > 0 {
            self.tail += skip;
            self.index = 0;
        }
        let taken = (self.tail, self.data + self.index * LINE as u64);
        self.tail += lines;
        self.index += lines;
        if self.index == self.lines {
            self.index = 0;
        }
        taken
    }
}

impl Cells for Payloads {
    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64> {
        let entry = self.entry(op, ring, position, limit)?;
        let lines = entry.len.div_ceil(LINE as u64);
        let all = (0..lines).all(|l| line_holds(op, self.line(op, entry.position + l), entry.pair(op, l)));
        all.then_some(entry.units)
    }

    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        Interleaved.looks_valid(op, at)
    }

    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        Interleaved.scrub(op, at);
    }
}

/// Writes an entry word by word, closing each line with its meta word.
struct EntryWriter {
    at: Cursor,
    meta: Meta,
    words: usize,
    number: u32,
}

impl EntryWriter {
    #[inline(always)]
    fn push<M: Medium>(&mut self, op: &Op<'_, M>, ring: &Ring, word: u64) {
        if self.words == 7 {
            self.close(op);
            ring.step(&mut self.at);
            self.number += 1;
            self.meta = Meta::continuation(self.at.valid, self.number);
            self.words = 0;
        }
        let line = op.at(Off::<LineSlot>::new(self.at.off));
        op.store(&line.payload[self.words % 7], word, Ordering::Relaxed);
        self.words += 1;
    }

    #[inline(always)]
    fn close<M: Medium>(&self, op: &Op<'_, M>) {
        let line = op.at(Off::<LineSlot>::new(self.at.off));
        // PERSIST CS-V1: same line
        op.store(&line.meta, self.meta, Ordering::Release);
        op.write_back(line);
    }
}

impl FvbEntryLog {
    fn payload_area(region: Region, entry_lines: u64, lines: u64) -> Payloads {
        Payloads::new(region.off + HEADER + entry_lines * LINE as u64, lines)
    }

    /// Whether a record of so many lines can ever fit.
    fn fits(&self, len: usize) -> bool {
        let lines = payload_lines(len);
        lines <= self.payloads.lines && lines_for(entry_len(lines)) <= self.ring.units()
    }

    /// Makes sure of room for a record, with a fence if a trim is not durable yet.
    #[inline(always)]
    fn claim<M: Medium>(&mut self, op: &Op<'_, M>, entry_lines: u64, lines: u64) -> Result<Cursor> {
        if self.ring.is_foreign(op) {
            self.adopt(op);
        }
        if !self.payloads.has_room(lines) || !self.ring.has_room(entry_lines) {
            self.make_room(op, entry_lines, lines)?;
        }
        self.ring.claim(op, entry_lines)
    }

    #[cold]
    fn make_room<M: Medium>(&mut self, op: &Op<'_, M>, entry_lines: u64, lines: u64) -> Result<()> {
        let Payloads { data, lines: all, head, tail, .. } = self.payloads;
        let after_fence = Payloads { durable_head: head, ..self.payloads };
        if !self.ring.would_have_room(entry_lines) {
            return Err(self.ring.full(entry_lines));
        }
        if !self.is_empty() && !after_fence.has_room(lines) {
            let bytes = |lines: u64| lines * LINE as u64;
            let (needed, free) = (bytes(lines + self.payloads.skip(lines)), bytes(head + all - tail));
            return Err(Error::Full { needed, free, capacity: bytes(all) });
        }
        if self.ring.has_pending_trim() {
            // PERSIST CS-T2: flush+fence
            self.commit(op);
        }
        if self.is_empty() {
            // Nothing durable leads into the payload ring any more: all of it is free, from its start.
            self.payloads = Payloads::new(data, all);
        }
        Ok(())
    }

    /// Issues the write-backs of payloads again that another session has issued and not fenced.
    #[cold]
    fn adopt<M: Medium>(&mut self, op: &Op<'_, M>) {
        for position in self.payloads.unfenced..self.payloads.tail {
            op.write_back(self.payloads.line(op, position));
        }
    }

    #[inline(always)]
    fn write<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, at: Cursor, tag: u8, payload: S) {
        let lines = payload_lines(payload.len());
        let (position, off) = self.payloads.take(lines);
        let meta = Meta::first(at.valid, tag, entry_len(lines) as u32);
        let mut entry = EntryWriter { at, meta, words: 0, number: 0 };
        entry.push(op, &self.ring, position);
        entry.push(op, &self.ring, payload.len() as u64);
        let (mut bits, mut shift) = (0, 0);
        for index in 0..lines {
            let line = op.at(Off::<Line>::new(off + index * LINE as u64));
            bits |= write_line(op, line, payload, index as usize * 8).to_bits(shift);
            shift += Pair::BITS;
            if shift == PAIRS * Pair::BITS {
                entry.push(op, &self.ring, bits);
                (bits, shift) = (0, 0);
            }
        }
        if shift > 0 {
            entry.push(op, &self.ring, bits);
        }
        entry.close(op);
        // The old content of the next payload's lines is read before it is written: fetched while the fence waits.
        for index in lines..2 * lines {
            op.prefetch_write(Off::<Line>::new(off + index * LINE as u64));
        }
    }
}

impl Log for FvbEntryLog {
    type Options = FvbEntryOptions;

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, options: &FvbEntryOptions) -> Result<Self> {
        let total = region.data_lines();
        let units = if options.entry_lines == 0 { (total / 8).max(1) } else { options.entry_lines };
        let lines = total.saturating_sub(units);
        if total > 1 && lines == 0 {
            return Err(Error::BadOption { option: "entry_lines", value: units, must: "less than the region's lines" });
        }
        if lines == 0 {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: HEADER + 2 * LINE as u64 });
        }
        let ring = Ring::format(op, region, Shape { kind: KIND, unit: LINE as u64, units, params: [lines, 0, 0] }, 0)?;
        Ok(FvbEntryLog { ring, payloads: Self::payload_area(region, units, lines) })
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, KIND)?;
        let lines = shape.params[0];
        let total = lines.checked_add(shape.units);
        if shape.unit != LINE as u64 || lines == 0 || total.is_none_or(|t| t > region.data_lines()) {
            return Err(Error::Corrupt { off: region.off, what: "number of payload lines", found: lines });
        }
        let mut payloads = Self::payload_area(region, shape.units, lines);
        let ring = Ring::recover(op, region, shape, &payloads)?;
        let mut at = ring.head();
        while let Some(entry) = payloads.entry(op, &ring, at, ring.tail() - at) {
            if at == ring.head() {
                (payloads.head, payloads.tail) = (entry.position, entry.position);
            }
            let tail = entry.position + entry.len.div_ceil(LINE as u64);
            // One after the other, and never more than a lap: whatever a crash leaves of the ring of entries.
            if entry.position < payloads.tail || tail - payloads.head > lines {
                let what = "position of a payload";
                return Err(Error::Corrupt { off: region.off, what, found: entry.position });
            }
            payloads.tail = tail;
            at += entry.units;
        }
        payloads.index = payloads.tail % lines;
        payloads.settled();
        Ok(FvbEntryLog { ring, payloads })
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        if !self.fits(payload.len()) {
            return Err(Error::TooLong { len: payload.len(), max: self.max_payload() });
        }
        let lines = payload_lines(payload.len());
        let units = lines_for(entry_len(lines));
        let at = self.claim(op, units, lines)?;
        self.write(op, at, tag, payload);
        let position = self.ring.tail();
        self.ring.advance(units);
        op.prefetch_write(Off::<Line>::new(self.ring.next().off));
        Ok(Position(position))
    }

    #[inline(always)]
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.ring.is_foreign(op) {
            self.adopt(op);
        }
        self.ring.commit(op);
        self.payloads.settled();
    }

    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()> {
        let head = if to == self.tail() {
            self.payloads.tail
        } else if to < self.head() || to > self.tail() {
            return Err(self.ring.not_a_record(to.0));
        } else {
            let entry = self.payloads.entry(op, &self.ring, to.0, self.ring.tail() - to.0);
            entry.ok_or_else(|| self.ring.not_a_record(to.0))?.position
        };
        if self.ring.is_foreign(op) {
            self.adopt(op);
        }
        if self.ring.passes_unfenced(to.0) {
            // PERSIST CS-T3: flush+fence
            self.commit(op);
        }
        self.ring.trim(op, to.0, floor);
        self.payloads.head = head;
        Ok(())
    }

    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>> {
        if position < self.head() || position >= self.tail() {
            return None;
        }
        let entry = self.payloads.entry(op, &self.ring, position.0, self.ring.tail() - position.0)?;
        let off = self.payloads.data + entry.position % self.payloads.lines * LINE as u64;
        Some(Record {
            op,
            position,
            next: Position(position.0 + entry.units),
            tag: entry.tag,
            len: entry.len as usize,
            place: Place::Contiguous { off },
            skip: 0,
        })
    }

    bounds_of_ring!();

    fn capacity(&self) -> u64 {
        (self.ring.units() + self.payloads.lines) * LINE as u64
    }

    fn max_payload(&self) -> usize {
        // An entry of k lines has room for 7k - 2 words of pairs.
        let by_entries = (self.ring.units() as usize * 7 - FIXED) * PAIRS;
        by_entries.min(self.payloads.lines as usize) * LINE
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.ring.check(op, &self.payloads, self.ring.durable_limit())
    }
}
