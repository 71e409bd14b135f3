//! One transaction: reading, writing, allocating, freeing, committing.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering;

use durix_pmem::{Bits, Medium, Off, Session, Word};

use super::Engine;
use super::changes::Changes;
use super::error::{Error, Result};
use super::locks::Got;

/// A word that transactions read and write, as a `T`.
pub struct Cell<T: Bits>(Off<Word>, PhantomData<fn(T) -> T>);

impl<T: Bits> Clone for Cell<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Bits> Copy for Cell<T> {}

impl<T: Bits> PartialEq for Cell<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Bits> fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cell({:#x})", self.0.get())
    }
}

/// A link from one cell to another; null as long as it was not set.
impl<T: Bits> Bits for Cell<T> {
    fn to_bits(self) -> u64 {
        self.0.get()
    }
    fn from_bits(bits: u64) -> Self {
        Cell::at(Off::new(bits))
    }
}

impl<T: Bits> Cell<T> {
    /// No cell: reading or writing it is an error.
    pub const NULL: Cell<T> = Cell(Off::NULL, PhantomData);

    /// The cell at an offset, which is checked when it is used.
    pub const fn at(off: Off<Word>) -> Self {
        Cell(off, PhantomData)
    }

    /// Where it lies.
    pub fn off(self) -> Off<Word> {
        self.0
    }

    /// Whether it is no cell.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The cell `words` words behind this one, in the same block, as another type.
    #[must_use]
    pub fn field<U: Bits>(self, words: u64) -> Cell<U> {
        Cell::at(Off::new(self.0.get().wrapping_add(words * 8)))
    }
}

/// A transaction that runs; see [`Engine::transaction`].
pub struct Tx<'e, M: Medium> {
    engine: &'e Engine<M>,
    session: &'e mut Session<M>,
    m: M,
    age: u64,
    changes: Changes<'e, M>,
    /// Offsets that are in the heap.
    words: Range<u64>,
    lost: bool,
    timed_out: bool,
}

impl<M: Medium> fmt::Debug for Tx<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl<'e, M: Medium> Tx<'e, M> {
    pub(super) fn begin(engine: &'e Engine<M>, session: &'e mut Session<M>, age: u64) -> Self {
        Tx {
            engine,
            session,
            m: engine.medium(),
            age,
            changes: Changes::new(engine),
            words: engine.heap..engine.mapping().len() & !7,
            lost: false,
            timed_out: false,
        }
    }

    /// Whether it has met an older transaction and must run again.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    /// Whether it has waited too long for a younger transaction.
    pub(super) fn has_timed_out(&self) -> bool {
        self.timed_out
    }

    /// Reads a cell: what this transaction has written, or else the committed value.
    ///
    /// A cell of a block that this transaction has freed is [`Error::NoCell`]. One of a block that an earlier transaction has freed cannot be
    /// told from others, since cells are not tagged: what it holds may be of another block by now.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::NoCell`], [`Error::Pool`].
    #[inline]
    pub fn get<T: Bits>(&mut self, cell: Cell<T>) -> Result<T> {
        let off = cell.off().get();
        self.ensure_kept(off)?;
        // What was written is locked.
        if self.lock(off)? == Got::Held {
            self.changes.writes_mut().tidy();
            if let Some(value) = self.changes.writes().get(off) {
                return Ok(T::from_bits(value));
            }
        }
        let op = self.session.enter()?;
        Ok(T::from_bits(op.load(self.engine.word(&op, off)?, Ordering::Acquire)))
    }

    /// Writes a cell. Nobody else sees it before the commit. The pool is not touched before that. Freed cells as for [`get`](Self::get): writing to
    /// a block that an earlier transaction has freed can damage another one.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::NoCell`].
    #[inline]
    pub fn set<T: Bits>(&mut self, cell: Cell<T>, value: T) -> Result<()> {
        let off = cell.off().get();
        self.ensure_kept(off)?;
        // The word's line comes while the closure goes on. Otherwise the commit waits for it.
        self.session.prefetch_write(cell.off());
        let got = self.lock(off)?;
        // The pool may have grown; it never shrinks.
        if off < self.words.start || off >= self.words.end || !off.is_multiple_of(8) {
            self.engine.ensure_word(off)?;
        }
        // No block of a transaction is filled in place: see `Changes::fill`. And what was written before is locked.
        match got {
            Got::Held => self.changes.writes_mut().set(off, value.to_bits()),
            _ => self.changes.writes_mut().add(off, value.to_bits()),
        }
        Ok(())
    }

    /// Allocates a block of `words` cells, which are zero, and returns the first: see [`Cell::field`]. A transaction that does not commit
    /// leaves no trace of it. In a full pool it trims first, and tries again.
    ///
    /// # Errors
    /// [`Error::Pool`]: the pool is full all the same, or the block is larger than one can be.
    pub fn alloc<T: Bits>(&mut self, words: u64) -> Result<Cell<T>> {
        self.engine.root.pool().ensure_writable()?;
        let (op, bytes) = (self.session.enter()?, words.max(1).saturating_mul(8));
        let off = match self.changes.alloc_zeroed(&op, bytes) {
            Err(Error::Pool(error)) if error.is_no_room() => {
                self.engine.make_room(&op)?;
                self.changes.alloc_zeroed(&op, bytes)?
            }
            done => done?,
        };
        Ok(Cell::at(Off::new(off)))
    }

    /// Frees the block that begins with a cell, at commit. Its space is available again after a later trim.
    ///
    /// # Errors
    /// [`Error::NoCell`]: no block begins there, or this transaction has freed it. [`Error::Conflict`], [`Error::Pool`].
    pub fn free<T: Bits>(&mut self, cell: Cell<T>) -> Result<()> {
        let off = cell.off().get();
        self.lock(off)?;
        self.changes.free(&self.session.enter()?, off)
    }

    #[inline]
    fn ensure_kept(&self, off: u64) -> Result<()> {
        if self.changes.is_freed(off) { Err(Error::NoCell { offset: off }) } else { Ok(()) }
    }

    #[inline]
    fn lock(&mut self, off: u64) -> Result<Got> {
        // Whoever goes on after a conflict gets no further.
        let got = if self.lost { Got::Lost } else { self.engine.locks.lock(self.m, off, self.age) };
        match got {
            Got::Held => {}
            Got::Taken(stripe) => self.changes.writes_mut().stripes.push(stripe),
            Got::Lost | Got::TimedOut => {
                self.lost = true;
                self.timed_out |= got == Got::TimedOut;
                return Err(Error::Conflict);
            }
        }
        Ok(got)
    }

    /// Makes it all happen. One fence, and none where nothing was written.
    pub(super) fn commit(mut self) -> Result<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.engine.root.pool().ensure_writable()?;
        let op = self.session.enter()?;
        match self.engine.commit_changes(&op, &mut self.changes, |store| store()) {
            // Nothing has happened, and the changes are as they were. Nobody else may ask for a trim: the log can have a single segment.
            Err(Error::Pool(error)) if error.is_no_room() => {
                self.engine.make_room(&op)?;
                self.engine.commit_changes(&op, &mut self.changes, |store| store())
            }
            done => done,
        }
    }

    fn unlock(&mut self) {
        let stripes = &mut self.changes.writes_mut().stripes;
        stripes.iter().for_each(|stripe| self.engine.locks.unlock(self.m, *stripe));
        stripes.clear();
    }
}

impl<M: Medium> Drop for Tx<'_, M> {
    fn drop(&mut self) {
        self.unlock();
    }
}
