//! The one-fence engine: transactions over words, durable when they return, at the price of one fence.
//!
//! A transaction keeps its writes in volatile memory. At commit one record with all of them, the allocations and the frees
//! goes to the session's log, and becomes durable by one fence. Only then the words are stored in place. They are written
//! back later, by [`Engine::trim`], before their records are given up. After a crash the records are redone, before any
//! structure of the pool is opened.
//!
//! The order of commits is one number for all sessions, drawn while the transaction's locks are held. The *watermark* is the
//! number below which every commit is durable in place: records below it are never redone. Without it, trimming one session's
//! log would let an older record of another session's log undo what the trimmed one had written.
//!
//! Isolation: strict two-phase locking. Words are locked by stripes, when they are first read or written, until the
//! transaction has been applied. A transaction that is older waits, a younger one gives up and runs again (wait-die), so no
//! cycle of waiting can arise. The closure runs outside any operation scope, and so does all waiting for locks: a checkpoint
//! that waits for operations never waits for a transaction.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | RE-E1 record, new blocks' contents < return of `transaction` | stored around the cache, or flush, + fence: the only one | a record that its checksum rejects, or a whole one | not done, or done |
//! | RE-E2 record < the words in place | the same fence | words as they were | as RE-E1 |
//! | RE-E3 words in place of all commits below the new watermark < the watermark | flush+fence | the old watermark | redoes all from there: words get their last values |
//! | RE-E4 watermark < a segment is given back, a freed block is available | flush+fence | the segments, records below the watermark or not | passes over those below |
//! | RE-E5 records as found < a word that recovery stores | flush+fence | records, words as they were | the same again |
//! | RE-E8 the watermark as found < a word that recovery stores, a segment is given back | PL-V1 of the pool, which writes root entries back when it is opened | the watermark that was durable before | begins at that one |
//! | RE-E7 contents of a new block that the record does not hold < the record | flush+fence | free space | nothing to do |
//! | RE-E6 words that recovery has stored < the watermark above all records < segments given back | flush+fence, twice | as RE-E3, RE-E4 | the same again |
//!
//! When a segment that is given back becomes durably so does not matter: its records are below the watermark.
//!
//! Torn lines are met by the checksum over the whole record; it covers the number of the segment's use too, so a record of an
//! earlier use does not pass. All other decisions are single words. So the engine survives the `TornWords` model.

mod buffer;
mod changes;
mod error;
mod lines;
mod locks;
mod record;
mod recover;
mod trim;
mod tx;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use durix_pmem::pool::Poison;
use durix_pmem::service::Registered;
use durix_pmem::{
    Allocation, Bits, Chain, Change, Hardware, Kind, Lock, MAX_SESSIONS, Mapping, Medium, Moments, Off, Op, PerSession,
    Rmw, Root, Session, SessionLogs, Structure, Version, Word,
};

pub use changes::{Changes, Contents};
pub use error::{Error, Result};
use lines::{Changed, Lines};
use locks::Locks;
use record::Draft;
pub use record::LAYOUT;
pub use recover::EngineRecovery;
pub use tx::{Cell, Tx};

/// The word of the root entry that holds the watermark.
const WATERMARK: usize = 0;
/// Cells in the root entry.
const ROOT_CELLS: usize = 5;
/// A bit of the age of a transaction that has lost no conflict yet.
const UNCONTESTED: u64 = 1 << 63;
/// Times that a transaction runs again before it gives up.
const RETRIES: u32 = 1 << 16;

/// How an engine is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a log segment.
    pub segment: u64,
    /// Segments of one session's log from which on its commits trim.
    pub trim_at: usize,
}

impl Default for Options {
    /// Segments of 256 KiB, and 4 of them.
    fn default() -> Self {
        Options { segment: 256 << 10, trim_at: 4 }
    }
}

/// Transactions over the words of a pool; see the [module's documentation](self).
///
/// ```
/// use durix_pmem::{Pool, PoolOptions};
/// use durix_rewind::engine::{Engine, EngineRecovery, Error};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// let pool = PoolOptions::new().create(&path)?;
/// let tm = pool.open_structure::<Engine>("tm", &Default::default())?;
/// let mut session = pool.session()?;
/// let (a, b) = (tm.root_cell::<u64>(0)?, tm.root_cell::<u64>(1)?);
/// tm.transaction(&mut session, |tx| tx.set(a, 100))?;
/// // All or nothing, durable on return.
/// tm.transaction(&mut session, |tx| {
///     let amount = tx.get(a)?;
///     tx.set(a, 0)?;
///     tx.set(b, amount)
/// })?;
/// // A transaction that ends with an error leaves nothing.
/// let refused = tm.transaction(&mut session, |tx| {
///     tx.set(a, 7)?;
///     Err::<(), _>(Error::RolledBack)
/// });
/// assert!(refused.is_err());
/// assert_eq!(tm.transaction(&mut session, |tx| Ok::<_, Error>((tx.get(a)?, tx.get(b)?)))?, (0, 100));
/// # drop((session, tm));
/// # pool.close()?;
/// // After a crash, records may be pending: give the pool what recovers them.
/// let pool = PoolOptions::new().open_file(&path)?.recover_with(&[&EngineRecovery])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<M: Medium = Hardware> {
    root: Root<M>,
    m: M,
    /// The first address of the pool.
    base: usize,
    logs: Arc<SessionLogs<M>>,
    poison: Poison<M>,
    locks: Locks,
    /// By slot of the session.
    slots: PerSession<Slot<M>>,
    /// The number of the next commit.
    next: AtomicU64,
    /// The age of the next transaction that loses its first conflict.
    losers: AtomicU64,
    /// 1 once there may be records, and the root asks for recovery.
    asks: AtomicU64,
    /// Held by whoever trims.
    trimming: Lock<Lines>,
    trim_at: usize,
    /// 1 when a log is long enough for the service.
    is_long: AtomicU64,
    service: OnceLock<Registered<M>>,
    /// Of another structure, which opens it before anything else reads its words: then the root asks for nothing.
    is_part: bool,
    /// Offsets of the heap and of the first root cell.
    heap: u64,
    cells: u64,
}

/// What belongs to the session of a slot.
struct Slot<M: Medium> {
    /// Counts transactions; only the session does so.
    age: AtomicU64,
    lane: Lock<Lane<M>>,
}

impl<M: Medium> Default for Slot<M> {
    fn default() -> Self {
        Slot { age: AtomicU64::new(0), lane: Lock::new(Lane::default()) }
    }
}

/// One session's part. It is locked within an operation, and no operation is entered while it is.
struct Lane<M: Medium> {
    chain: Option<Chain<M>>,
    /// Segments with the number of the last commit in each, ascending.
    ends: Vec<(u64, u64)>,
    /// What commits have changed since the last trim; `None` before the first one.
    changed: Option<Changed>,
    /// What commits have allocated and freed since the last trim.
    space: Vec<Change>,
    /// What commits have freed, and their numbers, ascending.
    frees: Vec<(u64, Allocation)>,
    /// The record that is being written.
    draft: Draft,
}

impl<M: Medium> Default for Lane<M> {
    fn default() -> Self {
        let (ends, frees, draft) = (Vec::new(), Vec::new(), Draft::default());
        Lane { chain: None, ends, changed: None, space: Vec::new(), frees, draft }
    }
}

impl<M: Medium> fmt::Debug for Engine<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for Engine<M> {
    const KIND: Kind = Kind { tag: *b"rwengine", version: Version::unreleased(LAYOUT) };
    type Options = Options;
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, _: &Options) -> Result<()> {
        // A line of zeroes: the watermark is below every commit, all cells are zero.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        // Without pending records this finds nothing to redo, and takes over what was left of the log.
        let engine = Self::recovered(&op, root, options, false)?;
        if engine.root.asks(&op)? != Moments::NONE {
            engine.root.ask(&op, Moments::NONE);
        }
        Ok(engine)
    }

    fn opened(self: &Arc<Self>) {
        self.serve();
    }
}

impl<M: Medium> Engine<M> {
    /// An engine as a part of another structure, over the structure's own root, whose words are as [`root_cell`](Self::root_cell) and
    /// the [module](self) say. Redoes what is pending, durably; so the structure opens it before it reads any of its words, and no
    /// recovery of logs is asked for. The structure puts it into an [`Arc`] and calls [`serve`](Self::serve).
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Corrupt`].
    pub fn part(op: &Op<'_, M>, root: Root<M>, options: &Options) -> Result<Self> {
        Self::recovered(op, root, options, true)
    }

    /// Registers its trimming as a service of the pool. Without that, commits trim when a log has become long.
    pub fn serve(self: &Arc<Self>) {
        let _once = self.service.set(self.root.pool().services().register(self));
    }

    fn recovered(op: &Op<'_, M>, root: Root<M>, options: &Options, is_part: bool) -> Result<Self> {
        let logs = SessionLogs::open(op, root.clone(), options.segment)?;
        let next = recover::redo(op, &logs)?;
        let geometry = root.pool().geometry();
        Ok(Engine {
            heap: geometry.heap_off(),
            cells: cells_of(&root),
            poison: Poison::new(root.clone()),
            m: root.pool().mapping().medium(),
            base: root.pool().mapping().base_addr(),
            root,
            logs,
            locks: Locks::new(),
            slots: PerSession::default(),
            next: AtomicU64::new(next),
            losers: AtomicU64::new(1),
            asks: AtomicU64::new(0),
            trimming: Lock::new(Lines::new()),
            trim_at: options.trim_at.max(1),
            is_long: AtomicU64::new(0),
            service: OnceLock::new(),
            is_part,
        })
    }

    /// The index's place in its pool.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }

    /// A cell in the root entry, zero at first: where structures begin. There are five.
    ///
    /// # Errors
    /// [`Error::NoCell`].
    pub fn root_cell<T: Bits>(&self, index: usize) -> Result<Cell<T>> {
        if index >= ROOT_CELLS {
            return Err(Error::NoCell { offset: index as u64 });
        }
        Ok(Cell::at(Off::new(self.cells + 8 * index as u64)))
    }

    /// Runs a transaction: all that the closure writes, allocates and frees happens, durably when this returns, or nothing
    /// does. The closure runs again if another transaction was in its way, so it must be repeatable; it holds no operation
    /// open, and may take long, but keeps what it has read and written locked.
    ///
    /// Do not begin a transaction inside another one, in whichever session: words are locked by stripes, which are hashed, so two that use
    /// different cells can wait for each other, the outer one for the inner one's end. That is [`Error::Busy`] after a while.
    ///
    /// # Errors
    /// What the closure returns: then nothing has happened. [`Error::Busy`]: the locks could not be had.
    /// [`Error::Pool`]: the log cannot grow, even after a trim; nothing has happened. [`Error::ForeignSession`].
    pub fn transaction<R, E: From<Error>>(
        &self,
        session: &mut Session<M>,
        mut f: impl FnMut(&mut Tx<'_, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.ensure_own(session)?;
        let mut age = self.age(session);
        for attempt in 0..RETRIES {
            let mut tx = Tx::begin(self, session, age);
            let done = f(&mut tx);
            if !tx.has_lost() {
                let done = done?;
                tx.commit()?;
                return Ok(done);
            }
            if tx.has_timed_out() {
                break;
            }
            drop(tx);
            if age & UNCONTESTED != 0 {
                age = self.medium().shared_rmw(&self.losers, Rmw::Add, 1);
            }
            self.medium().spin(attempt);
        }
        Err(Error::Busy.into())
    }

    /// The committed value of a cell, outside any transaction.
    ///
    /// # Errors
    /// [`Error::NoCell`], [`Error::ForeignSession`], [`Error::Pool`].
    pub fn peek<T: Bits>(&self, session: &mut Session<M>, cell: Cell<T>) -> Result<T> {
        self.ensure_own(session)?;
        let op = session.enter()?;
        Ok(T::from_bits(op.load(self.word(&op, cell.off().get())?, Ordering::Acquire)))
    }

    /// The word at an offset that may be a cell's.
    #[inline]
    fn word<'s>(&self, op: &Op<'s, M>, off: u64) -> Result<&'s Word> {
        self.ensure_word(off)?;
        Ok(op.at(Off::new(off)))
    }

    /// Fails where an offset cannot be a cell's: it has to be aligned, and in the heap, or a root cell of this engine.
    #[inline]
    fn ensure_word(&self, off: u64) -> Result<()> {
        let is_there = off >= self.heap || off.wrapping_sub(self.cells) < 8 * ROOT_CELLS as u64;
        let is_whole = off.is_multiple_of(8) && off.checked_add(8).is_some_and(|end| end <= self.mapping().len());
        if is_there && is_whole { Ok(()) } else { Err(Error::NoCell { offset: off }) }
    }

    fn mapping(&self) -> &Mapping<M> {
        self.root.pool().mapping()
    }

    #[inline]
    fn medium(&self) -> M {
        self.m
    }

    #[inline]
    fn ensure_own(&self, session: &Session<M>) -> Result<()> {
        if session.mapping().base_addr() == self.base { Ok(()) } else { Err(Error::ForeignSession) }
    }

    /// The age of a session's next transaction: unique, never zero, and younger than those that have lost a conflict. It costs no locked
    /// instruction, so it says nothing of transactions of other sessions.
    #[inline]
    fn age(&self, session: &Session<M>) -> u64 {
        let (m, count) = (self.medium(), &self.slots.of(session.slot()).age);
        let next = m.shared_load(count, Ordering::Relaxed) + 1;
        m.shared_store(count, next, Ordering::Relaxed);
        UNCONTESTED | (next * u64::from(MAX_SESSIONS) + u64::from(session.slot()))
    }

    /// Has the root ask for recovery, before the first record.
    #[inline]
    fn ask(&self, op: &Op<'_, M>) {
        if op.medium().shared_load(&self.asks, Ordering::Acquire) == 0 {
            self.ask_first(op);
        }
    }

    #[cold]
    fn ask_first(&self, op: &Op<'_, M>) {
        if !self.is_part {
            // PERSIST RC-K1: flush+fence, inside. Two may do so; both before their records.
            self.root.ask(op, Moments::BEFORE);
        }
        op.medium().shared_store(&self.asks, 1, Ordering::Release);
    }

    /// Draws the number of a commit.
    #[inline]
    fn number(&self, op: &Op<'_, M>) -> u64 {
        op.medium().shared_rmw(&self.next, Rmw::Add, 1)
    }
}

/// Where the structure's own line lies in a root entry.
const ROOT_LINE: u64 = 192;

/// Offset of the first root cell.
fn cells_of<M: Medium>(root: &Root<M>) -> u64 {
    root.pool().geometry().root_off(root.owner()) + ROOT_LINE + 8 * (WATERMARK as u64 + 1)
}

/// `len` words from an offset on, in the heap.
fn words<'s, M: Medium>(op: &Op<'s, M>, root: &Root<M>, off: u64, len: u64) -> Option<&'s [Word]> {
    let is_heap = off >= root.pool().geometry().heap_off();
    op.slice("a block", Off::<Word>::new(off), len).ok().filter(|_| is_heap)
}

/// The word at an offset that may be a cell's: aligned, and in the heap, or a root cell of this engine.
fn word<'s, M: Medium>(op: &Op<'s, M>, root: &Root<M>, off: u64) -> Option<&'s Word> {
    let (geometry, cells) = (root.pool().geometry(), cells_of(root));
    if off < geometry.heap_off() && !(cells..cells + 8 * ROOT_CELLS as u64).contains(&off) {
        return None;
    }
    op.slice("a cell", Off::<Word>::new(off), 1).ok().map(|words| &words[0])
}

impl<M: Medium> Drop for Engine<M> {
    /// Trims all, so that the pool opens for every program. Where that cannot be, the records stay, and recovery redoes them.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests;
