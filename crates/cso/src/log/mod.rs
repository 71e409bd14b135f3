//! Logs whose append costs one round trip to memory: one write-back for each line touched, and one fence.
//!
//! The idea (OOPSLA'17, section 3): stores to one cache line reach memory in the order in which they were made. If
//! the *last* store to a line can be told from what was there before, then a line in memory that shows it is whole, and a
//! record all of whose lines show it is whole: no commit record, no second round trip, no checksum.
//!
//! | log | how the last store is told | payload |
//! |---|---|---|
//! | [`VbLog`] | a validity bit in a meta word of each line, whose meaning flips on each lap | up to 24, 56 or 119 bytes, contiguous, by [`Geometry`] |
//! | [`LinesLog`] | the same | any length, 56 bytes a line |
//! | [`WordsLog`] | a bit that the payload leaves unused | a fixed number of words, no metadata |
//! | [`FvbLog`] | the last bit that differs from the old content | contiguous, up to the slot |
//! | [`FvbEntryLog`] | the same, in a small entry that points to the payload | contiguous, any length |
//! | [`RandomLog`] | the last word is no longer a pattern that memory was initialised to | contiguous, any length |
//! | [`ChainLog`] | as `LinesLog`, over segments that can be added | any length |
//!
//! All offer one interface, [`Log`]. A log is a plain handle with volatile state (the tail is kept in volatile memory only,
//! and found again by recovery); it belongs to one thread at a time. [`SharedLog`] is a number of them under a global order,
//! for many threads; [`NamedLog`] and [`NamedChain`] are logs in a pool, by name.
//!
//! ```
//! use durix_cso::log::{LinesLog, Log, Region};
//! use durix_pmem::{Hardware, Mapping};
//!
//! let mapping = Mapping::heap(1 << 16, Hardware::PAGE_CACHE);
//! let mut session = mapping.session()?;
//! let op = session.enter()?;
//! let region = Region { off: 4096, len: 8192 };
//! let mut log = LinesLog::format(&op, region, &())?;
//! log.append(&op, 1, b"durable when this returns")?;
//! for word in [1u64, 2, 3] {
//!     log.stage(&op, 2, &word.to_le_bytes())?;
//! }
//! log.commit(&op); // one fence for the three
//! let log = LinesLog::recover(&op, region)?;
//! assert_eq!(log.iter(&op).count(), 4);
//! # Ok::<(), durix_cso::log::Error>(())
//! ```

/// The bounds of a log over one ring, in its field `ring`, are the ring's.
macro_rules! bounds_of_ring {
    () => {
        fn floor<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
            self.ring.floor(op)
        }

        fn head(&self) -> Position {
            Position(self.ring.head())
        }

        fn tail(&self) -> Position {
            Position(self.ring.tail())
        }
    };
}

mod chain;
mod error;
#[cfg(test)]
mod findings;
mod flex;
mod fvb;
mod fvb_entry;
mod layout;
mod lines;
mod named;
mod position;
mod random;
mod record;
mod ring;
mod shared;
mod source;
mod vb;
mod words;

use std::fmt;

use durix_pmem::{Medium, Op};

pub use chain::{ChainLog, ChainOptions};
pub use error::{Error, Result};
pub use fvb::{FvbLog, FvbOptions, MAX_LINES};
pub use fvb_entry::{FvbEntryLog, FvbEntryOptions};
pub use lines::LinesLog;
pub use named::{ChainGrowth, NamedChain, NamedLog, NamedOptions};
pub use position::{Finding, Position};
pub use random::{RandomLog, RandomOptions};
pub use record::{Iter, Record};
pub use ring::Region;
pub use shared::{SharedLog, SharedOptions};
pub use source::Source;
pub use vb::{Geometry, HalfLine, OneLine, TwoLines, VbLog};
pub use words::WordsLog;

/// A log in persistent memory: append at the tail, read, trim from the head.
///
/// All calls of one log use operations of one mapping, the one it was made in. A call that returns an error has left the
/// log as it was.
pub trait Log: Sized + fmt::Debug + Send {
    /// What is decided at creation.
    type Options: Clone + Default + fmt::Debug;

    /// Writes an empty log into `region`, whatever was there. Durable on return. Writes and reads the whole region.
    ///
    /// # Errors
    /// [`Error::BadRegion`], [`Error::BadOption`].
    fn format<M: Medium>(op: &Op<'_, M>, region: Region, options: &Self::Options) -> Result<Self>;

    /// Opens the log in `region` after a crash or a clean stop. The records are exactly those whose append returned, and
    /// possibly some that were under way: of those a first few, without a hole. Reads the whole region and writes it
    /// back, one or two fences. May be cut by a crash and run again.
    ///
    /// # Errors
    /// [`Error::NotALog`], [`Error::Mismatch`], [`Error::Corrupt`], [`Error::BadRegion`].
    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self>;

    /// Writes a record and issues its write-backs, without a fence: durable, with all records staged before, after the
    /// next [`commit`](Log::commit) or any fence of the same operation. After a crash before that, a first few of the
    /// staged records may be there.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::WrongLength`], [`Error::NoTags`], [`Error::BitInUse`], [`Error::Full`].
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position>;

    /// Waits until everything staged, and the last trim, is durable. One fence.
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>);

    /// Removes all records before `to`: the start of a record, or [`tail`](Log::tail). Durable with the next fence; the
    /// space can be used again after the log's own next fence. No fence of its own, unless it passes records that were staged
    /// and not [committed](Log::commit). With a `floor`, stores that number beside the head: whenever the new head is
    /// found, so is the number.
    ///
    /// # Errors
    /// [`Error::NotARecord`].
    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()>;

    /// The number that the last [`trim_with`](Log::trim_with) stored; zero before.
    fn floor<M: Medium>(&self, op: &Op<'_, M>) -> u64;

    /// The record at `position`; nothing at the tail and outside the log. `position` must be that of a record: within one,
    /// some logs cannot tell.
    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>>;

    /// Position of the oldest record; equal to the tail in an empty log.
    fn head(&self) -> Position;

    /// Position behind the newest record: where the next record will start, or before it.
    fn tail(&self) -> Position;

    /// Bytes of the log's units, used or not.
    fn capacity(&self) -> u64;

    /// Bytes of the largest payload that an empty log takes.
    fn max_payload(&self) -> usize;

    /// Walks all records, and reports what contradicts itself.
    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding>;

    /// As [`stage_from`](Log::stage_from), with bytes.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    fn stage<M: Medium>(&mut self, op: &Op<'_, M>, tag: u8, payload: &[u8]) -> Result<Position> {
        self.stage_from(op, tag, payload)
    }

    /// Appends a record: durable on return. One write-back for each line touched, one fence.
    ///
    /// # Errors
    /// As [`stage_from`](Log::stage_from).
    #[inline(always)]
    fn append<M: Medium>(&mut self, op: &Op<'_, M>, tag: u8, payload: &[u8]) -> Result<Position> {
        let position = self.stage_from(op, tag, payload)?;
        self.commit(op);
        Ok(position)
    }

    /// As [`append`](Log::append), with a payload of words.
    ///
    /// # Errors
    /// As [`stage_from`](Log::stage_from).
    #[inline(always)]
    fn append_words<M: Medium>(&mut self, op: &Op<'_, M>, tag: u8, payload: &[u64]) -> Result<Position> {
        let position = self.stage_from(op, tag, payload)?;
        self.commit(op);
        Ok(position)
    }

    /// As [`trim_with`](Log::trim_with), without a number.
    ///
    /// # Errors
    /// [`Error::NotARecord`].
    fn trim<M: Medium>(&mut self, op: &Op<'_, M>, to: Position) -> Result<()> {
        self.trim_with(op, to, None)
    }

    /// The records, oldest first.
    fn iter<'a, M: Medium>(&'a self, op: &'a Op<'a, M>) -> Iter<'a, Self, M> {
        Iter { log: self, op, at: self.head() }
    }

    /// Whether the log holds no record.
    fn is_empty(&self) -> bool {
        self.head() == self.tail()
    }
}
