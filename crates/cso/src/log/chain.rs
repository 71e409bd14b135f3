//! CSO-VB over a chain of buffers: a log that grows by adding a segment, and uses trimmed segments again (3.1).
//!
//! Segments are of one size and hold interleaved lines, as [`LinesLog`](super::LinesLog) does. Each use of a segment has
//! a sequence number, its successor's is one higher, and positions count lines through all uses: the head's quotient
//! by the lines of a segment is the sequence number to start from. A segment's header has one word of state, sequence and
//! polarity; the polarity flips with each use, so that what the last use left is invalid in the next. A segment is left only
//! when it is full: every free segment's lines are all valid under the polarity in its header, and so all invalid under the
//! next one.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as CS-V1: payload words of a line < its meta word | same line, release store | a line with the last use's bit | the record is not whole: the log ends there |
//! | as CS-A1: lines of a record, and the state of segments it enters < return | flush+fence | state without lines: an entered segment without records; lines without state: a free segment with lines of both bits | takes the entry back; makes the lines of each free segment alike (CS-R1) |
//! | as CS-T3: records that a trim passes < head | flush+fence, before the head is stored | the old head | as CS-A1, from the old head |
//! | CS-C1 head < state of a segment that it frees | flush+fence, the append's own | the old head, its segments whole | the old head |
//! | as CS-R1: lines beyond the tail made invalid, entries beyond it taken back < first append | flush+fence | some of it done | ends at the same line, does the rest |
//! | as CS-R2: all lines, states and the head written back < first append | flush+fence | what was found, or less if only the process had died | finds it again |
//!
//! State and lines are not ordered, in CS-R1 either: taking an entry back sets the sequence to zero and flips the polarity, and
//! the lines of a segment that is not in the chain are always made alike to the polarity found.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use durix_pmem::{LINE, Medium, Off, Op, Word};

use super::error::{Error, Result};
use super::layout::{Header, Line, SegmentState};
use super::lines::{Interleaved, PER_LINE, lines_for};
use super::record::{Place, Record};
use super::ring::{Cells, Cursor, HEADER, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

/// The kind in the header.
const KIND: u32 = 9;

/// What is decided when a [`ChainLog`] is created in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainOptions {
    /// Segments that the region is cut into, at least 2.
    pub segments: u64,
}

impl Default for ChainOptions {
    /// Four segments.
    fn default() -> Self {
        ChainOptions { segments: 4 }
    }
}

/// A log of segments, which can be added while it is in use.
#[derive(Debug)]
pub struct ChainLog {
    segments: Vec<Segment>,
    /// Index of the segment whose header has the head.
    root: usize,
    /// Lines of a segment.
    lines: u64,
    /// Bytes of a segment with its header.
    segment_len: u64,
    /// The segments in the chain, by index, and the sequence number of the first.
    chain: VecDeque<usize>,
    first: u64,
    free: Vec<usize>,
    head: u64,
    durable_head: u64,
    tail: u64,
    /// The place of the next line, and how many there are to the end of its segment; at the start of a segment the place
    /// is not known yet.
    next: Cursor,
    left: u64,
    /// Everything from here to the tail may not be fenced yet.
    unfenced: u64,
    /// The session that has issued all write-backs that are not fenced.
    slot: u32,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    off: u64,
    state: SegmentState,
}

impl Segment {
    fn header<'a, M: Medium>(&self, op: &Op<'a, M>) -> &'a Header {
        op.at(Off::new(self.off))
    }

    /// The place of a line under the segment's polarity.
    #[inline(always)]
    fn line(&self, index: u64) -> Cursor {
        Cursor { off: self.off + HEADER + index * LINE as u64, valid: self.state.polarity() }
    }
}

impl ChainLog {
    /// Writes an empty log into `regions`, one segment each. Durable on return.
    ///
    /// # Errors
    /// [`Error::BadOption`] for less than two regions; [`Error::BadRegion`] where they differ in length, or overlap.
    pub fn format_in<M: Medium>(op: &Op<'_, M>, regions: &[Region]) -> Result<Self> {
        let [root, others @ ..] = regions else {
            return Err(Error::BadOption { option: "segments", value: 0, must: "at least 2" });
        };
        if others.is_empty() {
            return Err(Error::BadOption { option: "segments", value: 1, must: "at least 2" });
        }
        check_regions(regions)?;
        let count = regions.len() as u64;
        op.slice("a log's region", Off::<Word>::new(root.off), root.len / 8)?;
        let header = op.at(Off::<Header>::new(root.off));
        op.store(&header.magic, 0, Ordering::Relaxed);
        // Without the root there is no log; the others' formatting starts with a fence (CS-F1), before it destroys anything.
        op.write_back(&header.magic);
        for (ordinal, region) in others.iter().enumerate() {
            format_segment(op, *region, ordinal as u64 + 1, count)?;
        }
        format_segment(op, *root, 0, count)?;
        Self::recover_from(op, regions)
    }

    /// Opens the log whose segments are in `regions`, in any order. Reads all of them and writes them back, one fence.
    ///
    /// # Errors
    /// [`Error::NotALog`], [`Error::Mismatch`], [`Error::Corrupt`], [`Error::BadRegion`].
    pub fn recover_from<M: Medium>(op: &Op<'_, M>, regions: &[Region]) -> Result<Self> {
        let mut root = None;
        let mut segments = Vec::new();
        for region in regions {
            let shape = Ring::read_shape(op, *region, KIND)?;
            if shape.params[0] == 0 && root.replace(segments.len()).is_some() {
                return Err(Error::Corrupt { off: region.off, what: "number in its chain", found: 0 });
            }
            if shape.unit != LINE as u64 || shape.units != region.data_lines() {
                return Err(Error::Corrupt { off: region.off, what: "number of lines", found: shape.units });
            }
            let header = op.at(Off::<Header>::new(region.off));
            segments.push(Segment { off: region.off, state: op.load(&header.state, Ordering::Relaxed) });
        }
        check_regions(regions)?;
        let first = regions.first().copied().unwrap_or(Region { off: 0, len: 0 });
        let root = root.ok_or(Error::NotALog { off: first.off, found: 0 })?;
        let word = op.load(&segments[root].header(op).head, Ordering::Relaxed);
        let found = durix_pmem::Bits::to_bits(word);
        let corrupt = |what| Error::Corrupt { off: segments[root].off, what, found };
        let lines = first.data_lines();
        // A new log has the head zero, but sequence numbers start at 1.
        let head = word.position().map(|head| if head == 0 { lines } else { head }).ok_or_else(|| corrupt("head"))?;
        let mut log = ChainLog {
            segments: segments.clone(),
            root,
            lines,
            segment_len: first.len,
            chain: VecDeque::with_capacity(segments.len()),
            first: head / lines,
            free: Vec::new(),
            head,
            durable_head: head,
            tail: head,
            next: Cursor { off: 0, valid: 0 },
            left: lines,
            unfenced: head,
            slot: op.slot(),
        };
        // A head before the first line of segment 1 lies in none.
        if !log.link() || (log.chain.is_empty() && head % lines != 0) {
            return Err(corrupt("head, or the sequence of segments behind it"));
        }
        while let Some(lines) = log.whole(op, log.tail, log.entered() - log.tail) {
            log.tail += lines;
        }
        log.unlink(op);
        for region in regions {
            let all = op.slice("a log's segment", Off::<Line>::new(region.off), region.len / LINE as u64)?;
            // PERSIST CS-R1, CS-R2: flush+fence
            op.write_back_slice(all);
        }
        op.fence();
        log.unfenced = log.tail;
        log.left = lines - log.tail % lines;
        log.next = log.place(log.tail);
        Ok(log)
    }

    /// Puts the segments from the head's on into the chain; says whether no sequence number occurs twice.
    fn link(&mut self) -> bool {
        let mut by_sequence = std::collections::BTreeMap::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let sequence = segment.state.sequence();
            if sequence >= self.first.max(1) && by_sequence.insert(sequence, index).is_some() {
                return false;
            }
        }
        while let Some(index) = by_sequence.get(&(self.first + self.chain.len() as u64)) {
            self.chain.push_back(*index);
        }
        true
    }

    /// Takes back the entry of segments that have no line before the tail, makes the lines behind the tail invalid, and
    /// those of each segment outside the chain alike.
    fn unlink<M: Medium>(&mut self, op: &Op<'_, M>) {
        let keep = self.tail.div_ceil(self.lines).saturating_sub(self.first) as usize;
        self.chain.truncate(keep);
        if let Some(index) = self.chain.back() {
            let end = self.entered();
            for position in self.tail..end {
                let at = self.segments[*index].line(position % self.lines);
                Interleaved.scrub(op, at);
            }
        }
        // Lines before the head are valid, as whatever is left behind is; after damage to the file they are made so.
        let before_head = if self.chain.is_empty() { 0 } else { self.head - self.first * self.lines };
        for position in self.head - before_head..self.head {
            if !Interleaved.looks_valid(op, self.place(position)) {
                Interleaved::flip(op, self.place(position));
            }
        }
        for index in (0..self.segments.len()).filter(|i| !self.chain.contains(i)) {
            let segment = &mut self.segments[index];
            if segment.state.sequence() >= self.first {
                segment.state = SegmentState::new(0, segment.state.polarity() ^ 1);
                op.store(&segment.header(op).state, segment.state, Ordering::Relaxed);
            }
            for line in 0..self.lines {
                let at = segment.line(line);
                if !Interleaved.looks_valid(op, at) {
                    Interleaved::flip(op, at);
                }
            }
            self.free.push(index);
        }
    }

    /// Adds a segment in `region`, which has the length of the others. Durable on return; whoever keeps the list of
    /// regions adds this one afterwards.
    ///
    /// # Errors
    /// [`Error::BadRegion`].
    pub fn grow<M: Medium>(&mut self, op: &Op<'_, M>, region: Region) -> Result<()> {
        let len = self.segment_len;
        if region.len != len || self.segments.iter().any(|s| overlap(Region { off: s.off, len }, region)) {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: len });
        }
        let ordinal = self.segments.len() as u64;
        format_segment(op, region, ordinal, ordinal + 1)?;
        self.free.push(self.segments.len());
        self.segments.push(Segment { off: region.off, state: SegmentState::new(0, 0) });
        Ok(())
    }

    /// Bytes of a segment.
    pub fn segment_len(&self) -> u64 {
        self.segment_len
    }

    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The first position behind the segments in the chain.
    fn entered(&self) -> u64 {
        (self.first + self.chain.len() as u64) * self.lines
    }

    /// The place of the line at `position`, which must be in the chain.
    pub(super) fn place(&self, position: u64) -> Cursor {
        let within = (position / self.lines - self.first) as usize;
        let segment = self.chain.get(within).map_or(0, |index| *index);
        self.segments[segment].line(position % self.lines)
    }

    /// Moves a cursor that is at `position`, with `left` lines to the end of its segment, line by line.
    #[inline(always)]
    fn stepper(&self, mut position: u64, mut left: u64) -> impl FnMut(&mut Cursor) + use<'_> {
        move |at| {
            position += 1;
            left -= 1;
            if left == 0 {
                left = self.lines;
                *at = self.place(position);
            } else {
                at.off += LINE as u64;
            }
        }
    }

    fn whole<M: Medium>(&self, op: &Op<'_, M>, position: u64, limit: u64) -> Option<u64> {
        if limit == 0 {
            return None;
        }
        let left = self.lines - position % self.lines;
        Interleaved::lines_of(op, self.place(position), self.stepper(position, left), limit)
    }

    /// The first position that no record may reach while the head is at `head`: every segment is in the chain then.
    fn limit(&self, head: u64) -> u64 {
        (head / self.lines + self.segments.len() as u64) * self.lines
    }

    /// Makes sure of `lines` lines behind the tail, and has the segments entered that they lie in.
    #[inline(always)]
    fn claim<M: Medium>(&mut self, op: &Op<'_, M>, lines: u64) -> Result<()> {
        if op.slot() != self.slot {
            self.adopt(op);
        }
        if self.tail + lines > self.entered() {
            self.enter(op, lines)?;
        }
        Ok(())
    }

    /// Enters as many free segments as `lines` lines behind the tail need.
    #[cold]
    fn enter<M: Medium>(&mut self, op: &Op<'_, M>, lines: u64) -> Result<()> {
        let end = self.tail + lines;
        if end > self.limit(self.head) {
            let bytes = |lines: u64| lines * LINE as u64;
            let (free, capacity) = (bytes(self.limit(self.head) - self.tail), self.capacity());
            return Err(Error::Full { needed: bytes(lines), free, capacity });
        }
        if end > self.limit(self.durable_head) {
            // PERSIST CS-C1: flush+fence
            self.commit(op);
        }
        while self.entered() < end {
            let Some(index) = self.free.pop() else { break };
            let sequence = self.first + self.chain.len() as u64;
            let segment = &mut self.segments[index];
            segment.state = SegmentState::new(sequence, segment.state.polarity() ^ 1);
            let header = segment.header(op);
            op.store(&header.state, segment.state, Ordering::Relaxed);
            // PERSIST CS-A1: flush+fence, with the record's lines
            op.write_back(&header.state);
            self.chain.push_back(index);
        }
        Ok(())
    }

    /// A fence covers the write-backs of its own session only: when another session takes over, it issues again what
    /// is not known to be fenced.
    #[cold]
    fn adopt<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.head != self.durable_head {
            op.write_back(&self.segments[self.root].header(op).head);
        }
        for position in self.unfenced..self.tail {
            let at = self.place(position);
            op.write_back(op.at(Off::<Line>::new(at.off)));
        }
        if self.unfenced < self.tail {
            for index in &self.chain {
                op.write_back(&self.segments[*index].header(op).state);
            }
        }
        self.slot = op.slot();
    }

    /// Takes the segments before the durable head out of the chain.
    #[cold]
    fn release(&mut self) {
        while (self.first + 1) * self.lines <= self.durable_head
            && let Some(index) = self.chain.pop_front()
        {
            self.first += 1;
            self.free.push(index);
        }
    }
}

fn overlap(a: Region, b: Region) -> bool {
    a.off < b.off.saturating_add(b.len) && b.off < a.off.saturating_add(a.len)
}

fn check_regions(regions: &[Region]) -> Result<()> {
    let len = regions.first().map_or(0, |r| r.len);
    for (index, region) in regions.iter().enumerate() {
        let clashes = regions[..index].iter().any(|other| overlap(*other, *region));
        if region.len != len || clashes || !region.len.is_multiple_of(LINE as u64) {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: len });
        }
    }
    Ok(())
}

/// Formats a segment that is in no chain: sequence and polarity zero, all lines zero.
fn format_segment<M: Medium>(op: &Op<'_, M>, region: Region, ordinal: u64, count: u64) -> Result<()> {
    let params = [ordinal, region.len, count];
    let shape = Shape { kind: KIND, unit: LINE as u64, units: region.data_lines(), params };
    Ring::format(op, region, shape, 0).map(|_| ())
}

/// The `segments` segments that a region is cut into, or as many as it has.
fn cut(region: Region, segment_len: u64, segments: u64) -> Vec<Region> {
    (0..segments.min(region.len / segment_len))
        .map(|i| Region { off: region.off + i * segment_len, len: segment_len })
        .collect()
}

impl Log for ChainLog {
    type Options = ChainOptions;

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, options: &ChainOptions) -> Result<Self> {
        if options.segments < 2 {
            return Err(Error::BadOption { option: "segments", value: options.segments, must: "at least 2" });
        }
        let segment_len = region.len / options.segments / LINE as u64 * LINE as u64;
        let least = (HEADER + LINE as u64).saturating_mul(options.segments);
        if !region.off.is_multiple_of(LINE as u64) || segment_len < HEADER + LINE as u64 {
            return Err(Error::BadRegion { off: region.off, len: region.len, min: least });
        }
        op.slice("a log's region", Off::<Word>::new(region.off), region.len / 8)?;
        Self::format_in(op, &cut(region, segment_len, options.segments))
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, KIND)?;
        let segment_len = shape.params[1];
        if segment_len < HEADER + LINE as u64 || segment_len > region.len {
            return Err(Error::Corrupt { off: region.off, what: "segment length", found: segment_len });
        }
        Self::recover_from(op, &cut(region, segment_len, shape.params[2]))
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        let lines = lines_for(payload.len());
        if payload.len() > self.max_payload() {
            return Err(Error::TooLong { len: payload.len(), max: self.max_payload() });
        }
        self.claim(op, lines)?;
        let position = self.tail;
        let at = if self.left == self.lines { self.place(position) } else { self.next };
        (_, self.next) = Interleaved::write(op, at, self.stepper(position, self.left), tag, payload);
        self.tail += lines;
        self.left = if lines < self.left { self.left - lines } else { self.lines - self.tail % self.lines };
        Ok(Position(position))
    }

    #[inline(always)]
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        if op.slot() != self.slot {
            self.adopt(op);
        }
        // PERSIST CS-A1, CS-C1: flush+fence
        op.fence();
        self.unfenced = self.tail;
        if self.head != self.durable_head {
            self.durable_head = self.head;
            self.release();
        }
    }

    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()> {
        if to != self.tail() && self.record_at(op, to).is_none() {
            return Err(Error::NotARecord { position: to.0, head: self.head, tail: self.tail });
        }
        if to.0 > self.unfenced {
            // PERSIST CS-T3: flush+fence
            self.commit(op);
        }
        if op.slot() != self.slot {
            self.adopt(op);
        }
        Ring::store_head(op, self.segments[self.root].header(op), to.0, floor);
        self.head = to.0;
        Ok(())
    }

    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>> {
        if position < self.head() || position >= self.tail() {
            return None;
        }
        let lines = self.whole(op, position.0, self.tail - position.0)?;
        let meta = Interleaved::meta(op, self.place(position.0));
        Some(Record {
            op,
            position,
            next: Position(position.0 + lines),
            tag: meta.tag(),
            len: meta.len() as usize,
            place: Place::Chained { log: self, position: position.0 },
            skip: 0,
        })
    }

    fn floor<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        op.load(&self.segments[self.root].header(op).floor, Ordering::Relaxed)
    }

    fn head(&self) -> Position {
        Position(self.head)
    }

    fn tail(&self) -> Position {
        Position(self.tail)
    }

    fn capacity(&self) -> u64 {
        self.segments.len() as u64 * self.lines * LINE as u64
    }

    fn max_payload(&self) -> usize {
        // The tail may be on the last line of a segment whose other lines cannot be used yet.
        let lines = (self.segments.len() as u64 - 1) * self.lines + 1;
        (lines as usize * PER_LINE).min(u32::MAX as usize)
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        let finding = |position, what: &str| Finding { position: Position(position), what: what.into() };
        let mut at = self.head;
        while at < self.tail {
            match self.whole(op, at, self.tail - at) {
                Some(lines) => at += lines,
                None => return vec![finding(at, "not whole, although it was appended")],
            }
        }
        let beyond = (self.tail..self.entered().max(self.tail)).filter(|p| Interleaved.looks_valid(op, self.place(*p)));
        let mut findings: Vec<_> = beyond.map(|p| finding(p, "valid, although it lies beyond the tail")).collect();
        for segment in self.free.iter().map(|index| self.segments[*index]) {
            if !(0..self.lines).all(|line| Interleaved.looks_valid(op, segment.line(line))) {
                findings.push(finding(self.tail, "a free segment has lines of both polarities"));
            }
        }
        findings
    }
}
