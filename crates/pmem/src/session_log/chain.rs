//! A chain: what one session appends to.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::{HEAD, SegmentUse};
use super::{SessionLogs, head};
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::space::Extent;
use crate::word::Word;

/// A segment in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    number: u64,
    extent: Extent,
    used: u64,
}

impl Segment {
    /// The number of its use: higher than that of all that began before and can still be found, and never again that of
    /// another use of the same bytes. Entries put it into their checksums.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Offset of its first word, a multiple of a line.
    pub fn off(&self) -> u64 {
        self.extent.off + HEAD
    }

    /// Words that it has.
    pub fn capacity(&self) -> u64 {
        (self.extent.len - HEAD) / 8
    }

    /// Words that were appended since it was entered. Zero after a crash: only the client can tell, by its checksums.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// All its words.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the pool was corrupted since.
    pub fn words<'s, M: Medium>(&self, op: &Op<'s, M>) -> Result<&'s [Word]> {
        op.slice("a log segment", Off::new(self.off()), self.capacity())
    }
}

/// A chain without the logs that it is of.
#[derive(Debug)]
pub(super) struct State {
    chain: u32,
    /// Ascending by number; the last one is appended to if `open`.
    segments: VecDeque<Segment>,
    open: bool,
    /// Given back; that their use is over may not be durable.
    given_back: Vec<Extent>,
    /// From here on, number of the use and word in it, nothing may be durable.
    unfenced: Option<(u64, u64)>,
    /// The session that has issued all write-backs which are not fenced.
    slot: u32,
}

impl State {
    pub(super) fn new(chain: u32, slot: u32) -> Self {
        State { chain, segments: VecDeque::new(), open: false, given_back: Vec::new(), unfenced: None, slot }
    }

    pub(super) fn chain(&self) -> u32 {
        self.chain
    }

    pub(super) fn found(&mut self, number: u64, extent: Extent) {
        self.segments.push_back(Segment { number, extent, used: 0 });
    }

    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.given_back.is_empty()
    }
}

/// The log of one session; see the [module's documentation](super). Dropping it makes it an orphan, which another session
/// can adopt.
pub struct Chain<M: Medium> {
    logs: Arc<SessionLogs<M>>,
    /// `None` only while it is dropped.
    state: State,
}

impl<M: Medium> fmt::Debug for Chain<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("state", &self.state).finish_non_exhaustive()
    }
}

impl<M: Medium> Chain<M> {
    /// What changes hands has to be written back again: the marker says that no session has done so.
    pub(super) fn new(logs: Arc<SessionLogs<M>>, mut state: State) -> Self {
        state.slot = NOBODY;
        Chain { logs, state }
    }

    /// The number of the chain. Segments of one chain have one order; no two live chains have one number.
    pub fn number(&self) -> u32 {
        self.state.chain
    }

    /// Its segments, in the order of their use.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + '_ {
        self.state.segments.iter().copied()
    }

    /// The segment that is appended to, if one is.
    pub fn current(&self) -> Option<Segment> {
        self.state.segments.back().copied().filter(|_| self.state.open)
    }

    /// Room for `words` words in a row, to be filled with an entry: the number of the segment's use, and the words. It is
    /// the same room until [`append`](Self::append). Where the last segment has too little left, another one is entered: a
    /// spare one, or one more of the pool, longer than others if it has to be: one fence, two for one more.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLarge`] and what growing says: the chain is as it was.
    #[inline]
    pub fn room<'s>(&mut self, op: &Op<'s, M>, words: u64) -> Result<(u64, &'s [Word])> {
        let fits = |segment: &Segment| segment.capacity() - segment.used >= words;
        let segment = match self.current().filter(fits) {
            Some(segment) => segment,
            None => self.enter(op, words)?,
        };
        let off = Off::new(segment.off() + segment.used * 8);
        Ok((segment.number, op.slice("a log segment", off, words)?))
    }

    /// Appends the first `words` words of the [`room`](Self::room): starts writing them back.
    #[inline]
    #[track_caller]
    pub fn append(&mut self, op: &Op<'_, M>, words: u64) -> Result<()> {
        self.adopt(op)?;
        let Some(segment) = self.state.segments.back_mut().filter(|_| self.state.open) else { return Ok(()) };
        let (number, from) = (segment.number, segment.used);
        let words = words.min(segment.capacity() - from);
        let entry: &[Word] = op.slice("a log segment", Off::new(segment.off() + from * 8), words)?;
        segment.used += words;
        self.state.unfenced.get_or_insert((number, from));
        // PERSIST SL-S3: flush+fence, with the commit
        op.write_back_slice(entry);
        Ok(())
    }

    /// An entry of `words` words, which `fill` is given with the number of the segment's use, and stores around the cache
    /// ([`Op::store_words_nt`]): nobody reads it soon. Otherwise as [`room`](Self::room), [`append`](Self::append) and
    /// [`commit`](Self::commit), at one look. One fence where the segment has room.
    ///
    /// # Errors
    /// As [`room`](Self::room): `fill` was not called, and the chain is as it was.
    #[inline]
    #[track_caller]
    pub fn put<'s>(&mut self, op: &Op<'s, M>, words: u64, fill: impl FnOnce(u64, &'s [Word])) -> Result<()> {
        self.adopt(op)?;
        let (number, room) = self.room(op, words)?;
        fill(number, room);
        if let Some(segment) = self.state.segments.back_mut() {
            segment.used += words;
        }
        // PERSIST SL-S3: stored around the cache, + fence
        self.settle(op);
        Ok(())
    }

    /// Makes durable what was appended and given back, and whatever the operation has deferred or written back. One fence.
    #[inline]
    #[track_caller]
    pub fn commit(&mut self, op: &Op<'_, M>) -> Result<()> {
        self.adopt(op)?;
        self.settle(op);
        Ok(())
    }

    /// After the chain was adopted.
    #[inline]
    #[track_caller]
    fn settle(&mut self, op: &Op<'_, M>) {
        // PERSIST SL-S3, SL-S4: flush+fence
        op.drain();
        self.state.unfenced = None;
        self.state.given_back.clear();
    }

    /// Gives a segment back, whatever its place. Durable with the next [`commit`](Self::commit).
    ///
    /// # Errors
    /// [`Error::NotAllocated`]: the chain has no segment of that number.
    pub fn give_back(&mut self, op: &Op<'_, M>, number: u64) -> Result<()> {
        self.adopt(op)?;
        let at = self.state.segments.binary_search_by_key(&number, |segment| segment.number);
        let segment =
            at.ok().and_then(|at| self.state.segments.remove(at)).ok_or(Error::NotAllocated { off: number })?;
        // What is left was entered before: only the last segment is appended to.
        self.state.open &= self.state.segments.back().is_some_and(|last| last.number > number);
        let state = &head(op, segment.extent).state;
        op.store(state, SegmentUse::over(number), Ordering::Release);
        op.write_back(state);
        self.state.given_back.push(segment.extent);
        self.logs.put_spare(op, segment.extent);
        Ok(())
    }

    /// Begins another segment, with room for `words`.
    #[cold]
    fn enter(&mut self, op: &Op<'_, M>, words: u64) -> Result<Segment> {
        self.adopt(op)?;
        let extent = match self.logs.take_spare(op, words) {
            Some(extent) => extent,
            None => self.logs.add(op, words)?,
        };
        let segment = Segment { number: self.logs.number(op), extent, used: 0 };
        let state = &head(op, extent).state;
        op.store(state, SegmentUse::new(segment.number, self.state.chain), Ordering::Relaxed);
        // PERSIST SL-S2: flush+fence
        op.persist(state);
        self.state.segments.push_back(segment);
        self.state.open = true;
        Ok(segment)
    }

    /// Takes write-backs over that another session has issued and not fenced.
    #[inline]
    fn adopt(&mut self, op: &Op<'_, M>) -> Result<()> {
        if op.slot() == self.state.slot { Ok(()) } else { self.adopt_from_another(op) }
    }

    #[cold]
    fn adopt_from_another(&mut self, op: &Op<'_, M>) -> Result<()> {
        for extent in &self.state.given_back {
            op.write_back(&head(op, *extent).state);
        }
        if let Some((first, from)) = self.state.unfenced {
            for segment in self.state.segments.iter().filter(|segment| segment.number >= first) {
                let from = if segment.number == first { from } else { 0 };
                let words = &segment.words(op)?[from.min(segment.used) as usize..segment.used as usize];
                op.write_back_slice(words);
            }
        }
        self.state.slot = op.slot();
        Ok(())
    }
}

/// No session's slot.
const NOBODY: u32 = u32::MAX;

impl<M: Medium> Drop for Chain<M> {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, State::new(0, NOBODY));
        let mut idle = self.logs.idle.lock(self.logs.root.pool().mapping().medium());
        if state.is_empty() {
            idle.free.push(state.chain);
        } else {
            idle.orphans.push(state);
        }
    }
}
