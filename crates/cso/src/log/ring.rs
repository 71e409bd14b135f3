//! The circular buffer under every log: header, head, polarity, space, and the frame of recovery.
//!
//! A ring is a header of two lines and a number of *units* (slots or lines). A [position](super::Position) is a unit's
//! number, counted without end: its index is the position modulo the number of units, its lap the quotient, and the
//! validity bit that means VALID is 1 in even laps and 0 in odd ones. So zeroed memory is invalid in lap 0, what
//! one lap leaves is invalid in the next, and the head is one word that gives index and polarity.
//!
//! # Persist order
//!
//! Format:
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-F1 magic cleared < CS-F2 data zeroed | flush+fence | the old log whole, or no log | opens the old log, or `NotALog` |
//! | CS-F2 data and head < CS-F3 header with magic | flush+fence | no log | `NotALog` |
//! | CS-F3 words of the header < magic | same line | no log | `NotALog` |
//! | CS-F3 header < return | flush+fence | no log, or the new one, empty | either |
//!
//! Work (kinds add their own edges within a record):
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-A1 lines of a record < return of `append`, or of the fence after `stage` | flush+fence | any part of the unfenced records | ends the log at the first record that is not whole |
//! | CS-T1 floor < head | same line | the old floor only with the old head | either |
//! | CS-T3 records that a trim passes < head | flush+fence, before the head is stored | the old head, and the staged records whole or not | as CS-A1, from the old head |
//! | CS-T2 head < first store into the units it frees | flush+fence, the append's own | the old head, whose units are still whole | the old head |
//!
//! CS-T2 is why space is reusable only up to the *durable* head: were units overwritten while the old head may still be
//! in memory, recovery from the old head would stop at the first overwritten unit and lose every newer record.
//! The fence is that of any later append; only if space is short does an append fence first.
//! CS-T3 matters only for a trim that passes staged records that are not fenced: were the head durable before them, their
//! units could still have the polarity of two laps ago, and look valid as units of the lap to come, once all units between
//! are whole. Units smaller than a line need no fence: one of those between lies on the same line and was stored later, so
//! it is whole only if the passed one has reached memory.
//!
//! Recovery:
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-R0 head < units beyond the tail made invalid (CSO-Random only) | flush+fence | the old head, if only the process had died | starts at the old head, whose units are untouched |
//! | CS-R1 units beyond the tail made invalid < first append | flush+fence | some of them still valid | ends at the same unit, and does the rest |
//! | CS-R2 all lines and the head written back < first append | flush+fence | what was found, or less if only the process had died | finds it again |
//!
//! Without CS-R1 a later append would make a stale record behind it reachable again. CS-R2 is for a process that died
//! without a power failure: what it had stored and not yet fenced is seen by recovery, but is still only in the cache. So
//! is CS-R0.

use std::sync::atomic::Ordering;

use durix_pmem::{LINE, Medium, Off, Op, Word};

use super::error::{Error, Result};
use super::layout::{Head, Header, Line, MAGIC, MARK};
use super::position::{Finding, Position};

/// A range of a pool: where a log lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset of the first byte, a multiple of 64.
    pub off: u64,
    /// Bytes.
    pub len: u64,
}

/// Bytes of a ring's header.
pub(super) const HEADER: u64 = size_of::<Header>() as u64;

impl Region {
    /// Whole lines behind a ring's header; the rest of the region is not used.
    pub(super) fn data_lines(self) -> u64 {
        self.len.saturating_sub(HEADER) / LINE as u64
    }

    /// How many units of `unit` bytes fit into those lines.
    pub(super) fn units(self, unit: u64) -> u64 {
        self.data_lines() * LINE as u64 / unit
    }
}

/// Bytes of a unit of half a line.
const HALF: u64 = LINE as u64 / 2;

/// Bytes of a stripe: the distance at which the halves of a line are written one after the other.
///
/// Units of half a line do not lie one behind the other. A ring of them is cut into stripes of 64 lines (the last one
/// may be shorter), and within a stripe come first the front halves of all lines, then the back halves. A line that
/// is written again while its last write-back is still on its way to memory makes the fence wait for both: measured,
/// 145 ns for an append instead of 100. From about eight lines on the distance is enough.
const STRIPE: u64 = 64 * LINE as u64;

/// What the header says of a ring, besides the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Which kind of log.
    pub(super) kind: u32,
    /// Bytes of a unit.
    pub(super) unit: u64,
    /// Number of units.
    pub(super) units: u64,
    /// What the kind needs.
    pub(super) params: [u64; 3],
}

impl Shape {
    fn words(&self) -> [u64; 7] {
        let kind = u64::from(MARK) << 32 | u64::from(self.kind);
        [MAGIC, kind, self.unit, self.units, self.params[0], self.params[1], self.params[2]]
    }

    pub(super) fn check(&self) -> u64 {
        let bytes: Vec<u8> = self.words().iter().flat_map(|w| w.to_le_bytes()).collect();
        u64::from(crc32c::crc32c(&bytes))
    }
}

/// The place of a unit, and the validity bit that means VALID there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// Offset of the unit.
    pub(super) off: u64,
    /// 0 or 1.
    pub(super) valid: u64,
}

/// How a kind of log recognises its records.
pub(super) trait Cells {
    /// Whether [`scrub`](Cells::scrub) changes units that have not been reused since a trim freed them. Validity bits do
    /// not: what the last lap left is invalid for the lap to come as it is.
    const SCRUBS_WHAT_A_TRIM_FREED: bool = false;

    /// Units of the record at `position`, if it is whole and takes at most `limit` units.
    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64>;

    /// Whether the unit at `at` could be taken for a part of a record.
    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool;

    /// Makes the unit at `at` invalid for the lap to come, if it is not; no write-back.
    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor);
}

/// The volatile state of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    header: Off<Header>,
    /// Offset of the first unit, and of the first byte behind the last.
    data: u64,
    end: u64,
    unit: u64,
    units: u64,
    /// Bytes from a unit to the next, and the mask of an offset within a stripe; all ones where there are none.
    stride: u64,
    stripe_mask: u64,
    /// The head as stored; the head as known to be durable.
    head: u64,
    durable_head: u64,
    /// `durable_head + units`: no record may reach beyond it.
    limit: u64,
    tail: u64,
    /// Where the next unit lies.
    next: Cursor,
    /// Position of the first unit of the lap that the head lies in, and the validity bit that means VALID in it.
    lap: u64,
    lap_valid: u64,
    /// Everything from here to the tail may not be fenced yet.
    unfenced: u64,
    /// The session that has issued all write-backs that are not fenced.
    slot: u32,
}

impl Ring {
    /// Writes an empty ring into `region`, zeroes but for the last word of each line. Durable on return: three fences.
    pub(super) fn format<M: Medium>(op: &Op<'_, M>, region: Region, shape: Shape, last: u64) -> Result<Ring> {
        // Half lines come in twos: see `STRIPE`.
        let units = if shape.unit == HALF { shape.units & !1 } else { shape.units };
        let shape = Shape { units, ..shape };
        let least = HEADER + shape.unit;
        if !region.off.is_multiple_of(LINE as u64) || region.len < least || shape.units == 0 {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: least });
        }
        let lines = op.slice("a log's region", Off::<Line>::new(region.off), region.len / LINE as u64)?;
        let header = op.at(Off::<Header>::new(region.off));
        op.store(&header.magic, 0, Ordering::Relaxed);
        op.write_back(&header.magic);
        // PERSIST CS-F1<CS-F2: flush+fence
        op.fence();
        for (number, line) in lines.iter().enumerate() {
            for (index, word) in line.words.iter().enumerate() {
                let value = if index == 7 && number as u64 * LINE as u64 >= HEADER { last } else { 0 };
                op.store(word, value, Ordering::Relaxed);
            }
        }
        op.store(&header.head, Head::new(0), Ordering::Relaxed);
        op.write_back_slice(lines);
        // PERSIST CS-F2<CS-F3: flush+fence
        op.fence();
        let [magic, kind, unit, units, params @ ..] = shape.words();
        op.store(&header.kind, kind, Ordering::Relaxed);
        op.store(&header.unit, unit, Ordering::Relaxed);
        op.store(&header.units, units, Ordering::Relaxed);
        header.params.iter().zip(params).for_each(|(word, param)| op.store(word, param, Ordering::Relaxed));
        op.store(&header.check, shape.check(), Ordering::Relaxed);
        // PERSIST CS-F3: same line
        op.store(&header.magic, magic, Ordering::Release);
        op.write_back(&header.magic);
        op.fence();
        Ok(Ring::new(op, region, shape, 0, 0))
    }

    fn new<M: Medium>(op: &Op<'_, M>, region: Region, shape: Shape, head: u64, tail: u64) -> Ring {
        let data = region.off + HEADER;
        let mut ring = Ring {
            header: Off::new(region.off),
            data,
            end: data + shape.unit * shape.units,
            unit: shape.unit,
            units: shape.units,
            stride: if shape.unit == HALF { LINE as u64 } else { shape.unit },
            stripe_mask: if shape.unit == HALF { STRIPE - 1 } else { u64::MAX },
            head,
            durable_head: head,
            limit: head + shape.units,
            tail,
            next: Cursor { off: data, valid: 1 },
            lap: head - head % shape.units,
            lap_valid: 1 - head / shape.units % 2,
            unfenced: tail,
            slot: op.slot(),
        };
        ring.next = ring.cursor(tail);
        ring
    }

    /// Reads and validates the header of the log in `region`, which must be of kind `kind`.
    pub(super) fn read_shape<M: Medium>(op: &Op<'_, M>, region: Region, kind: u32) -> Result<Shape> {
        let Region { off, len } = region;
        if !off.is_multiple_of(LINE as u64) || len < HEADER {
            return Err(Error::BadRegion { off, len, min: HEADER });
        }
        op.slice("a log's region", Off::<Line>::new(off), len / LINE as u64)?;
        let header = op.at(Off::<Header>::new(off));
        let get = |word: &Word| op.load(word, Ordering::Relaxed);
        let magic = get(&header.magic);
        if magic != MAGIC {
            return Err(Error::NotALog { off, found: magic });
        }
        let found = get(&header.kind);
        let version = found >> 32;
        if version != u64::from(MARK) {
            return Err(Error::Mismatch { off, what: "version", found: version, expected: MARK.into() });
        }
        let params = [get(&header.params[0]), get(&header.params[1]), get(&header.params[2])];
        let shape = Shape { kind: found as u32, unit: get(&header.unit), units: get(&header.units), params };
        let check = get(&header.check);
        if check != shape.check() {
            return Err(Error::Corrupt { off, what: "header checksum", found: check });
        }
        if shape.kind != kind {
            return Err(Error::Mismatch { off, what: "kind", found: shape.kind.into(), expected: kind.into() });
        }
        let single_half = shape.unit == HALF && !shape.units.is_multiple_of(2);
        if shape.unit == 0 || shape.units == 0 || single_half || shape.units > region.units(shape.unit) {
            return Err(Error::Corrupt { off, what: "number of units", found: shape.units });
        }
        Ok(shape)
    }

    /// Finds the records of the ring in `region`, makes everything beyond them invalid, and everything durable: reads
    /// and writes back the whole ring, one fence (CSO-Random: two).
    pub(super) fn recover<M: Medium, C: Cells>(
        op: &Op<'_, M>,
        region: Region,
        shape: Shape,
        cells: &C,
    ) -> Result<Ring> {
        let header = op.at(Off::<Header>::new(region.off));
        let word = op.load(&header.head, Ordering::Relaxed);
        let corrupt = || Error::Corrupt { off: region.off, what: "head", found: durix_pmem::Bits::to_bits(word) };
        let head = word.position().ok_or_else(corrupt)?;
        let mut ring = Ring::new(op, region, shape, head, head);
        while let Some(units) = cells.whole(op, &ring, ring.tail, ring.limit - ring.tail).filter(|u| *u > 0) {
            ring.advance(units);
        }
        if C::SCRUBS_WHAT_A_TRIM_FREED {
            op.write_back(&header.head);
            // PERSIST CS-R0<CS-R1: flush+fence
            op.fence();
        }
        let mut beyond = ring.next;
        for _ in ring.tail..ring.limit {
            cells.scrub(op, beyond);
            ring.step(&mut beyond);
        }
        let lines = op.slice("a log's region", Off::<Line>::new(region.off), region.len / LINE as u64)?;
        // PERSIST CS-R1, CS-R2: flush+fence
        op.write_back_slice(lines);
        op.fence();
        ring.unfenced = ring.tail;
        Ok(ring)
    }

    /// The place of `position`. No division for what lies between the head and the tail: that is the lap of the head, or the
    /// one behind it.
    #[inline]
    pub(super) fn cursor(&self, position: u64) -> Cursor {
        let index = position.wrapping_sub(self.lap);
        let beyond = index.wrapping_sub(self.units);
        if index < self.units {
            self.cursor_at(index, self.lap_valid)
        } else if beyond < self.units {
            self.cursor_at(beyond, self.lap_valid ^ 1)
        } else {
            self.cursor_at(position % self.units, 1 - position / self.units % 2)
        }
    }

    #[inline(always)]
    fn cursor_at(&self, index: u64, valid: u64) -> Cursor {
        let off = if self.unit == HALF { self.half(index) } else { index * self.unit };
        Cursor { off: self.data + off, valid }
    }

    /// Where the unit `index` of a ring of half lines lies, from the first.
    #[inline]
    fn half(&self, index: u64) -> u64 {
        let stripe = index * HALF / STRIPE * STRIPE;
        let lines = (self.end - self.data - stripe).min(STRIPE) / LINE as u64;
        let within = index - stripe / HALF;
        let (line, back) = if within < lines { (within, 0) } else { (within - lines, HALF) };
        stripe + line * LINE as u64 + back
    }

    /// Moves a cursor to the next unit.
    #[inline(always)]
    pub(super) fn step(&self, cursor: &mut Cursor) {
        cursor.off += self.stride;
        if self.is_turn(cursor.off) {
            *cursor = self.turned(*cursor);
        }
    }

    /// Whether `off`, one stride behind a unit, is beyond the end of the ring or of a stripe's halves. With a mask of ones
    /// only the end of the ring counts.
    #[inline(always)]
    fn is_turn(&self, off: u64) -> bool {
        off >= self.end || (off - self.data) & self.stripe_mask < self.stride
    }

    /// Where a cursor for which [`is_turn`](Ring::is_turn) holds goes on: with the back halves of the stripe, with the next
    /// stripe, or at the start of the ring.
    #[cold]
    fn turned(&self, Cursor { mut off, valid }: Cursor) -> Cursor {
        if self.unit == HALF {
            if off & HALF == 0 {
                let last = off - LINE as u64 - self.data;
                return Cursor { off: self.data + last / STRIPE * STRIPE + HALF, valid };
            }
            off -= HALF;
        }
        if off == self.end { Cursor { off: self.data, valid: valid ^ 1 } } else { Cursor { off, valid } }
    }

    /// Makes sure that `units` units from the tail on may be overwritten, and gives the place of the first. Nothing
    /// changes where there is no room, except that a pending trim may have become durable.
    #[inline(always)]
    pub(super) fn claim<M: Medium>(&mut self, op: &Op<'_, M>, units: u64) -> Result<Cursor> {
        if self.is_foreign(op) {
            self.adopt(op);
        }
        if !self.has_room(units) {
            self.make_room(op, units)?;
        }
        Ok(self.next)
    }

    /// Whether another session has issued what is not known to be fenced.
    #[inline(always)]
    pub(super) fn is_foreign<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        op.slot() != self.slot
    }

    /// Whether `units` units from the tail on may be overwritten now.
    #[inline(always)]
    pub(super) fn has_room(&self, units: u64) -> bool {
        units <= self.limit - self.tail
    }

    /// The same once the last trim is durable.
    pub(super) fn would_have_room(&self, units: u64) -> bool {
        units <= self.head + self.units - self.tail
    }

    /// A fence covers the write-backs of its own session only: when another session takes over, it issues again what
    /// is not known to be fenced.
    #[cold]
    fn adopt<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.head != self.durable_head {
            op.write_back(&op.at(self.header).head);
        }
        let mut at = self.cursor(self.unfenced);
        for _ in self.unfenced..self.tail {
            for line in 0..self.unit.div_ceil(LINE as u64) {
                op.write_back(op.at(Off::<Line>::new(at.off + line * LINE as u64)));
            }
            self.step(&mut at);
        }
        self.slot = op.slot();
    }

    #[cold]
    fn make_room<M: Medium>(&mut self, op: &Op<'_, M>, units: u64) -> Result<()> {
        if !self.would_have_room(units) {
            return Err(self.full(units));
        }
        // PERSIST CS-T2: flush+fence
        self.commit(op);
        Ok(())
    }

    /// The error for a record of `units` units that do not fit.
    #[cold]
    pub(super) fn full(&self, units: u64) -> Error {
        let free = (self.head + self.units - self.tail) * self.unit;
        Error::Full { needed: units * self.unit, free, capacity: self.units * self.unit }
    }

    /// Whether the last trim is not known to be durable.
    pub(super) fn has_pending_trim(&self) -> bool {
        self.head != self.durable_head
    }

    /// Moves the tail over units that were written and whose write-back was issued.
    #[inline(always)]
    pub(super) fn advance(&mut self, units: u64) {
        self.tail += units;
        if units == 1 {
            // Not by way of a copy: the validity bit is then not stored again.
            self.next.off += self.stride;
            if self.is_turn(self.next.off) {
                self.next = self.turned(self.next);
            }
        } else {
            self.next = self.after(self.next, units);
        }
    }

    /// The cursor `units` units further on, at most one lap; not for half lines, whose records take one.
    #[inline(always)]
    pub(super) fn after(&self, cursor: Cursor, units: u64) -> Cursor {
        debug_assert!(self.unit != HALF);
        let off = cursor.off + units * self.unit;
        if off < self.end {
            Cursor { off, ..cursor }
        } else {
            Cursor { off: off - (self.end - self.data), valid: cursor.valid ^ 1 }
        }
    }

    /// Waits until everything staged, and the last trim, is durable. One fence.
    #[inline(always)]
    #[track_caller]
    pub(super) fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.is_foreign(op) {
            self.adopt(op);
        }
        // PERSIST CS-A1, CS-T2: flush+fence
        op.fence();
        self.unfenced = self.tail;
        // Behind a branch, because every store delays the next append's fence.
        if self.durable_head != self.head {
            self.durable_head = self.head;
            self.limit = self.head + self.units;
        }
    }

    /// Whether a trim to `to` would pass records that are not known to be fenced: then a commit must come first (CS-T3).
    #[inline(always)]
    pub(super) fn passes_unfenced(&self, to: u64) -> bool {
        to > self.unfenced && self.unit >= LINE as u64
    }

    /// As [`trim`](Ring::trim), of a ring each of whose units is a record; committed first where it must be.
    pub(super) fn trim_units<M: Medium>(&mut self, op: &Op<'_, M>, to: u64, floor: Option<u64>) -> Result<()> {
        if !(self.head..=self.tail).contains(&to) {
            return Err(self.not_a_record(to));
        }
        if self.passes_unfenced(to) {
            // PERSIST CS-T3: flush+fence
            self.commit(op);
        }
        self.trim(op, to, floor);
        Ok(())
    }

    /// Moves the head to `to`, which must be the start of a record or the tail; and raises the floor. Durable with
    /// the session's next fence.
    pub(super) fn trim<M: Medium>(&mut self, op: &Op<'_, M>, to: u64, floor: Option<u64>) {
        debug_assert!(!self.passes_unfenced(to));
        if self.is_foreign(op) {
            self.adopt(op);
        }
        Self::store_head(op, op.at(self.header), to, floor);
        self.head = to;
        // Once or twice at most: a trim goes no further than the tail, a lap behind the head.
        while to.wrapping_sub(self.lap) >= self.units {
            self.lap += self.units;
            self.lap_valid ^= 1;
        }
    }

    /// Walks the records from the head on: each must be whole, and they must end at the tail; and no unit beyond it
    /// and before `until` may look valid.
    pub(super) fn check<M: Medium, C: Cells>(&self, op: &Op<'_, M>, cells: &C, until: u64) -> Vec<Finding> {
        let finding = |position, what: &str| Finding { position: Position(position), what: what.into() };
        let mut findings = Vec::new();
        let mut at = self.head;
        while at < self.tail {
            match cells.whole(op, self, at, self.tail - at).filter(|u| *u > 0) {
                Some(units) => at += units,
                None => {
                    findings.push(finding(at, "not whole, although it was appended"));
                    return findings;
                }
            }
        }
        for position in self.tail..until {
            if cells.looks_valid(op, self.cursor(position)) {
                findings.push(finding(position, "valid, although it lies beyond the tail"));
            }
        }
        findings
    }

    /// Stores a head, and a floor that is found whenever the head is; issues the write-back.
    pub(super) fn store_head<M: Medium>(op: &Op<'_, M>, header: &Header, to: u64, floor: Option<u64>) {
        let order = match floor {
            None => Ordering::Relaxed,
            Some(floor) => {
                op.store(&header.floor, floor, Ordering::Relaxed);
                // PERSIST CS-T1: same line
                Ordering::Release
            }
        };
        op.store(&header.head, Head::new(to), order);
        op.write_back(&header.head);
    }

    /// The error for a position that is no record's.
    pub(super) fn not_a_record(&self, position: u64) -> Error {
        Error::NotARecord { position, head: self.head, tail: self.tail }
    }

    /// What the floor word holds.
    pub(super) fn floor<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        op.load(&op.at(self.header).floor, Ordering::Relaxed)
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Where the unit at the tail will lie.
    #[inline(always)]
    pub(super) fn next(&self) -> Cursor {
        self.next
    }

    /// No record may reach beyond this: one lap behind the durable head.
    pub(super) fn durable_limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn unit(&self) -> u64 {
        self.unit
    }

    /// Offsets of the first unit and of the end.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.data, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Hardware, Mapping};
    use std::collections::BTreeSet;

    fn with_ring(unit: u64, units: u64, check: impl FnOnce(Ring)) {
        let mapping = Mapping::heap(64 << 10, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let region = Region { off: 192, len: HEADER + unit * units };
        check(Ring::format(&op, region, Shape { kind: 1, unit, units, params: [0; 3] }, 0).unwrap());
    }

    #[test]
    fn stepping_and_looking_up_agree_and_visit_every_unit_once_a_lap() {
        for (unit, units) in [(32, 2), (32, 4), (32, 126), (32, 128), (32, 130), (32, 640), (64, 1), (64, 65), (128, 7)]
        {
            with_ring(unit, units, |ring| {
                let mut cursor = ring.cursor(0);
                for lap in 0..3 {
                    let mut seen = BTreeSet::new();
                    for index in 0..units {
                        let found = ring.cursor(lap * units + index);
                        assert_eq!((cursor.off, cursor.valid), (found.off, found.valid), "{unit} {units} {index}");
                        assert_eq!(cursor.valid, 1 - lap % 2);
                        assert!(
                            cursor.off >= ring.data
                                && cursor.off + unit <= ring.end
                                && (cursor.off - ring.data).is_multiple_of(unit)
                        );
                        assert!(seen.insert(cursor.off));
                        ring.step(&mut cursor);
                    }
                }
            });
        }
    }

    #[test]
    fn the_halves_of_a_line_are_a_stripe_apart() {
        with_ring(32, 256, |ring| {
            for index in (0..64).chain(128..192) {
                assert_eq!(ring.cursor(index).off + 32, ring.cursor(index + 64).off);
            }
        });
    }

    #[test]
    fn half_lines_come_in_twos() {
        with_ring(32, 5, |ring| assert_eq!(ring.units(), 4));
    }
}
