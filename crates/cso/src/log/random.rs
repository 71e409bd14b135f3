//! CSO-Random (3.1.2): memory is initialised to a pattern, and a line is written when its last word is no longer the
//! pattern.
//!
//! Payloads are contiguous, keep every bit, and may have any length; the first word of a record is its meta word. The last
//! word of each line is stored last. In the rare case that a payload has the pattern there, the record says nothing of
//! itself: it is fenced, and then a *sentinel* record behind it says that it is whole (a second round trip). A record
//! that would cross the end of the ring starts at its beginning, behind a filler.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-N1 words of a line < its last word | same line, release store | the pattern in the last word | the record is not whole: the log ends there |
//! | CS-N2 a record with the pattern in a last word < its sentinel | flush+fence | no sentinel | the record is not whole |
//! | CS-N4 head < re-initialisation of the lines it frees | flush+fence | the old head, its lines whole | the old head |
//! | CS-N3 re-initialisation of a line < first store of the next record into it | flush+fence | a line of the last lap | recovery re-initialises it (CS-R1) |
//!
//! A line becomes reusable only at the end of that pipeline: head durable, line re-initialised, that durable. Were it
//! reused after CS-N4 alone, its last word would differ from the pattern before anything of the new record is in memory; were it
//! re-initialised before CS-N4, recovery from the old head would find the pattern in a live record. None of the pipeline's
//! steps has a fence of its own: trims issue, appends fence. An append that finds too little space runs what is left of
//! the pipeline first.
//!
//! One line behind the tail is always kept initialised, so that recovery ends there and never walks into lines of the last
//! lap. Re-initialisation also clears the meta word: what recovery finds in a meta word behind the last whole record
//! was written in this lap, so that the sentinel it looks for is where the record really ends, and no payload, not
//! even a forged one, is ever read as a meta word.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering;

use durix_pmem::{LINE, Medium, Off, Op};

use super::error::{Error, Result};
use super::layout::{Line, RandomLine, RandomMeta};
use super::record::{Place, Record};
use super::ring::{Cells, Cursor, HEADER, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

/// The kind in the header.
const KIND: u32 = 8;

/// Lines re-initialised at a time by an append that finds no space.
const BATCH: u64 = 256;

/// What is decided when a [`RandomLog`] is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomOptions {
    /// The pattern: not zero. `None` draws one. A payload word that equals it may cost its record a second round trip.
    pub pattern: Option<u64>,
}

/// A log on memory that is initialised to a random pattern.
#[derive(Debug)]
pub struct RandomLog {
    ring: Ring,
    cells: Pattern,
    /// Lines before this are initialised again, and durably so: the tail stays below it.
    ready: u64,
    /// Lines before this are initialised again, the write-back issued.
    clean: u64,
    /// Position of the oldest user's record, or the tail: the head may be a sentinel or a filler.
    first: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pattern(u64);

/// Lines of a record with a payload of `len` bytes: the meta word, then the payload.
#[inline(always)]
fn lines_for(len: usize) -> u64 {
    (8 + len).div_ceil(LINE) as u64
}

impl Pattern {
    fn line<'a, M: Medium>(op: &Op<'a, M>, at: Cursor) -> &'a RandomLine {
        op.at(Off::new(at.off))
    }

    fn meta<M: Medium>(op: &Op<'_, M>, at: Cursor) -> RandomMeta {
        op.load(&Self::line(op, at).meta, Ordering::Relaxed)
    }

    fn is_written<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        op.load(&Self::line(op, at).last, Ordering::Relaxed) != self.0
    }

    /// Whether a sentinel at `at` vouches for the record at `position`.
    fn vouches<M: Medium>(&self, op: &Op<'_, M>, at: Cursor, position: u64) -> bool {
        self.is_written(op, at)
            && Self::meta(op, at).role() == RandomMeta::SENTINEL
            && op.load(&Self::line(op, at).payload[0], Ordering::Relaxed) == position
    }

    /// Initialises the line at `at` if it is not; says whether it had to.
    fn initialise<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        let line = Self::line(op, at);
        let dirty = self.is_written(op, at) || Self::meta(op, at) != RandomMeta::EMPTY;
        if dirty {
            op.store(&line.meta, RandomMeta::EMPTY, Ordering::Relaxed);
            op.store(&line.last, self.0, Ordering::Relaxed);
        }
        dirty
    }

    /// Writes the first line of a record that has no more than two words.
    fn write_short<M: Medium>(&self, op: &Op<'_, M>, at: Cursor, meta: RandomMeta, word: u64) {
        let line = Self::line(op, at);
        op.store(&line.meta, meta, Ordering::Relaxed);
        op.store(&line.payload[0], word, Ordering::Relaxed);
        // No order: a meta word alone says all. It was cleared before, and is only written once the record it vouches for is
        // durable, or while nothing behind a filler counts without it.
        op.store(&line.last, !self.0, Ordering::Relaxed);
        op.write_back(line);
    }

    /// The last word of line `index` of a record.
    #[inline(always)]
    fn last_word<S: Source>(payload: S, index: usize) -> u64 {
        let word = index * 8 + 6;
        if word * 8 < payload.len() { payload.word(word) } else { 0 }
    }

    /// Whether a line of the record would end with the pattern.
    #[inline(always)]
    fn collides<S: Source>(&self, payload: S) -> bool {
        (0..lines_for(payload.len()) as usize).any(|line| Self::last_word(payload, line) == self.0)
    }

    /// Writes a record.
    #[inline(always)]
    fn write<M: Medium, S: Source>(&self, op: &Op<'_, M>, at: Cursor, tag: u8, payload: S) {
        let first = Self::line(op, at);
        op.store(&first.meta, RandomMeta::new(RandomMeta::RECORD, tag, payload.len() as u32), Ordering::Relaxed);
        payload.store(op, 0, &first.payload);
        for index in 0..lines_for(payload.len()) as usize {
            let line = op.at(Off::<Line>::new(at.off + (index * LINE) as u64));
            if index > 0 {
                let [front @ .., _] = &line.words;
                payload.store(op, index * 8 - 1, front);
            }
            // PERSIST CS-N1: same line
            op.store(&line.words[7], Self::last_word(payload, index), Ordering::Release);
            op.write_back(line);
        }
    }

    /// Lines of whatever starts at `at`, without its sentinel: the meta word must be one that recovery may trust.
    fn extent<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, at: Cursor) -> Option<u64> {
        let to_end = (ring.bounds().1 - at.off) / LINE as u64;
        let meta = Self::meta(op, at);
        match meta.role() {
            RandomMeta::RECORD => Some(lines_for(meta.len() as usize)).filter(|lines| *lines <= to_end),
            RandomMeta::FILLER => Some(to_end),
            RandomMeta::SENTINEL => Some(1),
            _ => None,
        }
    }

    /// Whether every line of the record at `at` ends with something else than the pattern. Of a filler only the first
    /// line is written.
    fn shows_itself<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, at: Cursor, lines: u64) -> bool {
        let written = if Self::meta(op, at).role() == RandomMeta::FILLER { 1 } else { lines };
        (0..written).all(|line| self.is_written(op, ring.after(at, line)))
    }
}

impl Cells for Pattern {
    const SCRUBS_WHAT_A_TRIM_FREED: bool = true;

    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64> {
        let at = ring.cursor(position);
        let lines = self.extent(op, ring, at).filter(|lines| *lines <= limit)?;
        if self.shows_itself(op, ring, at, lines) {
            return Some(lines);
        }
        let sentinel = ring.after(at, lines);
        (lines < limit && self.vouches(op, sentinel, position)).then_some(lines)
    }

    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        self.is_written(op, at) || Self::meta(op, at) != RandomMeta::EMPTY
    }

    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        self.initialise(op, at);
    }
}

impl RandomLog {
    /// Re-initialises up to `lines` lines that durable trims have freed, and issues their write-backs: they can be used
    /// after the log's next fence. [`trim`](Log::trim) does it for all; a service thread may do it in smaller portions,
    /// off the path of appends. Gives the number of lines.
    pub fn reinitialise<M: Medium>(&mut self, op: &Op<'_, M>, lines: u64) -> u64 {
        self.take_over(op);
        let from = self.clean;
        self.clean = self.ring.durable_limit().min(from.saturating_add(lines));
        let mut at = self.ring.cursor(from);
        for _ in from..self.clean {
            if self.cells.initialise(op, at) {
                // PERSIST CS-N3: flush+fence, the fence of the next append
                op.write_back(Pattern::line(op, at));
            }
            self.ring.step(&mut at);
        }
        self.clean - from
    }

    /// When another session takes over, it issues again what is not known to be fenced.
    #[inline(always)]
    fn take_over<M: Medium>(&self, op: &Op<'_, M>) {
        if self.ring.is_foreign(op) {
            self.adopt(op);
        }
    }

    #[cold]
    fn adopt<M: Medium>(&self, op: &Op<'_, M>) {
        for position in self.ready..self.clean {
            op.write_back(Pattern::line(op, self.ring.cursor(position)));
        }
    }

    /// Whether `lines` lines, and one more behind the tail, are initialised.
    #[inline(always)]
    fn has_room(&self, lines: u64) -> bool {
        self.ring.tail() + lines < self.ready
    }

    #[cold]
    fn make_room<M: Medium>(&mut self, op: &Op<'_, M>, lines: u64) -> Result<()> {
        // The line kept initialised behind the tail is taken off what is free.
        if !self.ring.would_have_room(lines + 1) {
            return Err(self.ring.full(lines + 1));
        }
        if self.ring.has_pending_trim() {
            // PERSIST CS-N4: flush+fence
            self.commit(op);
        }
        while !self.has_room(lines) {
            self.reinitialise(op, BATCH.max(lines));
            // PERSIST CS-N3: flush+fence
            self.commit(op);
        }
        Ok(())
    }

    /// Lines from the tail to the end of the ring, if a record of `lines` lines does not fit there.
    #[inline(always)]
    fn filler(&self, lines: u64) -> u64 {
        let to_end = (self.ring.bounds().1 - self.ring.next().off) / LINE as u64;
        if lines > to_end { to_end } else { 0 }
    }

    /// The first position from `position` on where a user's record starts, or the tail.
    fn skip<M: Medium>(&self, op: &Op<'_, M>, mut position: u64) -> u64 {
        while position < self.ring.tail() {
            let at = self.ring.cursor(position);
            if Pattern::meta(op, at).role() == RandomMeta::RECORD {
                break;
            }
            position += self.cells.extent(op, &self.ring, at).unwrap_or(1);
        }
        position.min(self.ring.tail())
    }

    /// Largest number of lines of a record: with the filler that may come before it, a sentinel, and the line behind the
    /// tail, it fits an empty log.
    fn max_lines(&self) -> u64 {
        (self.ring.units() - 1) / 2
    }
}

impl Log for RandomLog {
    type Options = RandomOptions;

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, options: &RandomOptions) -> Result<Self> {
        let drawn = || RandomState::new().build_hasher().finish().max(1);
        let pattern = options.pattern.unwrap_or_else(drawn);
        if pattern == 0 {
            return Err(Error::BadOption { option: "pattern", value: 0, must: "any other word" });
        }
        let least = HEADER + 3 * LINE as u64;
        if region.len < least {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: least });
        }
        let units = region.data_lines();
        let shape = Shape { kind: KIND, unit: LINE as u64, units, params: [pattern, 0, 0] };
        let ring = Ring::format(op, region, shape, pattern)?;
        Ok(RandomLog { ring, cells: Pattern(pattern), ready: units, clean: units, first: 0 })
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, KIND)?;
        let pattern = shape.params[0];
        if shape.unit != LINE as u64 || shape.units < 3 || pattern == 0 {
            return Err(Error::Corrupt {
                off: region.off,
                what: "line size, number of lines or pattern",
                found: pattern,
            });
        }
        let cells = Pattern(pattern);
        let ring = Ring::recover(op, region, shape, &cells)?;
        let ready = ring.durable_limit();
        let mut log = RandomLog { ring, cells, ready, clean: ready, first: 0 };
        log.first = log.skip(op, log.ring.head());
        Ok(log)
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        let lines = lines_for(payload.len());
        if lines > self.max_lines() || payload.len() > u32::MAX as usize {
            return Err(Error::TooLong { len: payload.len(), max: self.max_payload() });
        }
        let (filler, collides) = (self.filler(lines), self.cells.collides(payload));
        self.take_over(op);
        if !self.has_room(filler + lines + u64::from(collides)) {
            self.make_room(op, filler + lines + u64::from(collides))?;
        }
        if filler > 0 {
            let at = self.ring.claim(op, filler)?;
            self.cells.write_short(op, at, RandomMeta::new(RandomMeta::FILLER, 0, 0), 0);
            self.ring.advance(filler);
        }
        let at = self.ring.claim(op, lines)?;
        self.cells.write(op, at, tag, payload);
        let position = self.ring.tail();
        self.ring.advance(lines);
        if self.first + filler == position {
            self.first = position;
        }
        if collides {
            self.vouch(op, position)?;
        }
        op.prefetch_write(Off::<Line>::new(self.ring.next().off));
        Ok(Position(position))
    }

    #[inline(always)]
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        self.take_over(op);
        self.ring.commit(op);
        self.ready = self.clean;
    }

    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()> {
        let mut at = self.first;
        while at < to.0 && at < self.ring.tail() {
            at += self.cells.extent(op, &self.ring, self.ring.cursor(at)).unwrap_or(1);
        }
        if at != to.0 {
            return Err(self.ring.not_a_record(to.0));
        }
        self.take_over(op);
        if self.ring.passes_unfenced(to.0) {
            // PERSIST CS-T3: flush+fence
            self.commit(op);
        }
        self.ring.trim(op, to.0, floor);
        self.first = self.skip(op, to.0);
        self.reinitialise(op, u64::MAX);
        Ok(())
    }

    #[inline]
    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>> {
        if position < self.head() || position >= self.tail() {
            return None;
        }
        let at = self.ring.cursor(position.0);
        let lines = self.cells.whole(op, &self.ring, position.0, self.tail().0 - position.0)?;
        let meta = Pattern::meta(op, at);
        Some(Record {
            op,
            position,
            next: Position(self.skip(op, position.0 + lines)),
            tag: meta.tag(),
            len: meta.len() as usize,
            place: Place::Contiguous { off: at.off + 8 },
            skip: 0,
        })
    }

    fn floor<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        self.ring.floor(op)
    }

    fn head(&self) -> Position {
        Position(self.first)
    }

    fn tail(&self) -> Position {
        Position(self.ring.tail())
    }

    fn capacity(&self) -> u64 {
        self.ring.units() * LINE as u64
    }

    fn max_payload(&self) -> usize {
        (self.max_lines() as usize * LINE - 8).min(u32::MAX as usize)
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.ring.check(op, &self.cells, self.ready)
    }
}

impl RandomLog {
    /// Fences the record at `position`, then writes the sentinel that vouches for it.
    #[cold]
    fn vouch<M: Medium>(&mut self, op: &Op<'_, M>, position: u64) -> Result<()> {
        // PERSIST CS-N2: flush+fence
        self.commit(op);
        let at = self.ring.claim(op, 1)?;
        self.cells.write_short(op, at, RandomMeta::new(RandomMeta::SENTINEL, 0, 8), position);
        self.ring.advance(1);
        Ok(())
    }
}
