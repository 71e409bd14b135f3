//! CSO-VB with payloads of any length, interleaved with meta words: 56 bytes and a meta word in each line (3.1.1).
//!
//! Records take whole lines, one behind the other around the ring; a record may cross the end of the ring, and then its
//! polarity flips inside it.
//!
//! # Persist order within a record
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as CS-V1: payload words of a line < its meta word | same line, release store | a line with the last lap's bit | the record is not whole: the log ends there |

use std::sync::atomic::Ordering;

use durix_pmem::{LINE, Medium, Off, Op};

use super::error::{Error, Result};
use super::layout::{LineSlot, Meta};
use super::record::{Place, Record};
use super::ring::{Cells, Cursor, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

/// The kind in the header.
const KIND: u32 = 4;

/// Payload bytes of a line.
pub(super) const PER_LINE: usize = 56;

/// A log with validity bits and records of any length.
#[derive(Debug)]
pub struct LinesLog {
    ring: Ring,
}

/// Lines that a payload of `len` bytes takes; an empty one takes one.
#[inline(always)]
pub(super) fn lines_for(len: usize) -> u64 {
    len.div_ceil(PER_LINE).max(1) as u64
}

/// Lines told by their meta words.
pub(super) struct Interleaved;

impl Interleaved {
    /// The meta word of the line at `at`.
    #[inline(always)]
    pub(super) fn meta<M: Medium>(op: &Op<'_, M>, at: Cursor) -> Meta {
        op.load(&op.at(Off::<LineSlot>::new(at.off)).meta, Ordering::Relaxed)
    }

    /// Writes the record and issues its write-backs; `step` moves to the next line. Gives the number of lines, and the
    /// place behind the last. The room must be there.
    #[inline(always)]
    pub(super) fn write<M: Medium, S: Source>(
        op: &Op<'_, M>,
        mut at: Cursor,
        mut step: impl FnMut(&mut Cursor),
        tag: u8,
        payload: S,
    ) -> (u64, Cursor) {
        let lines = lines_for(payload.len());
        let mut meta = Meta::first(at.valid, tag, payload.len() as u32);
        for number in 1..=lines {
            let line = op.at(Off::<LineSlot>::new(at.off));
            payload.store(op, (number as usize - 1) * 7, &line.payload);
            // PERSIST CS-V1: same line
            op.store(&line.meta, meta, Ordering::Release);
            op.write_back(line);
            step(&mut at);
            meta = Meta::continuation(at.valid, number as u32);
        }
        op.prefetch_write(Off::<LineSlot>::new(at.off));
        (lines, at)
    }

    /// Lines of the record at `at`, if it is whole and takes at most `limit`; `step` moves to the next line.
    #[inline]
    pub(super) fn lines_of<M: Medium>(
        op: &Op<'_, M>,
        mut at: Cursor,
        mut step: impl FnMut(&mut Cursor),
        limit: u64,
    ) -> Option<u64> {
        let first = Self::meta(op, at);
        let lines = lines_for(first.len() as usize);
        if first.valid() != at.valid || first.is_continuation() || lines > limit {
            return None;
        }
        for number in 1..lines {
            step(&mut at);
            if Self::meta(op, at) != Meta::continuation(at.valid, number as u32) {
                return None;
            }
        }
        Some(lines)
    }

    /// Turns the validity bit of the line at `at`; no write-back.
    pub(super) fn flip<M: Medium>(op: &Op<'_, M>, at: Cursor) {
        op.store(&op.at(Off::<LineSlot>::new(at.off)).meta, Self::meta(op, at).flipped(), Ordering::Relaxed);
    }
}

impl Cells for Interleaved {
    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64> {
        Self::lines_of(op, ring.cursor(position), |at| ring.step(at), limit)
    }

    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        Self::meta(op, at).valid() == at.valid
    }

    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        if self.looks_valid(op, at) {
            Self::flip(op, at);
        }
    }
}

impl Log for LinesLog {
    type Options = ();

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, (): &()) -> Result<Self> {
        let unit = LINE as u64;
        let units = region.units(unit);
        Ok(LinesLog { ring: Ring::format(op, region, Shape { kind: KIND, unit, units, params: [0; 3] }, 0)? })
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, KIND)?;
        if shape.unit != LINE as u64 {
            return Err(Error::Corrupt { off: region.off, what: "line size", found: shape.unit });
        }
        Ok(LinesLog { ring: Ring::recover(op, region, shape, &Interleaved)? })
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        let lines = lines_for(payload.len());
        if lines > self.ring.units() || payload.len() > u32::MAX as usize {
            return Err(Error::TooLong { len: payload.len(), max: self.max_payload() });
        }
        let at = self.ring.claim(op, lines)?;
        let ring = &self.ring;
        Interleaved::write(op, at, |at| ring.step(at), tag, payload);
        let position = self.ring.tail();
        self.ring.advance(lines);
        Ok(Position(position))
    }

    #[inline(always)]
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        self.ring.commit(op);
    }

    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()> {
        if to != self.tail() && self.record_at(op, to).is_none() {
            return Err(self.ring.not_a_record(to.0));
        }
        if self.ring.passes_unfenced(to.0) {
            // PERSIST CS-T3: flush+fence
            self.commit(op);
        }
        self.ring.trim(op, to.0, floor);
        Ok(())
    }

    #[inline]
    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>> {
        if position < self.head() || position >= self.tail() {
            return None;
        }
        let at = self.ring.cursor(position.0);
        let limit = self.tail().0 - position.0;
        let lines = Interleaved::lines_of(op, at, |at| self.ring.step(at), limit)?;
        let meta = Interleaved::meta(op, at);
        Some(Record {
            op,
            position,
            next: Position(position.0 + lines),
            tag: meta.tag(),
            len: meta.len() as usize,
            place: Place::Interleaved { off: at.off, bounds: self.ring.bounds() },
            skip: 0,
        })
    }

    bounds_of_ring!();

    fn capacity(&self) -> u64 {
        self.ring.units() * LINE as u64
    }

    fn max_payload(&self) -> usize {
        (self.ring.units() as usize * PER_LINE).min(u32::MAX as usize)
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.ring.check(op, &Interleaved, self.ring.durable_limit())
    }
}
