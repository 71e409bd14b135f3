//! What a transaction changes, in volatile memory until its commit, and the commit itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use durix_pmem::{Allocation, Change, Medium, Off, Op, Reserved, Word};

use super::buffer::Buffer;
use super::error::{Error, Result};
use super::lines::{Changed, LINE};
use super::record::{self, Draft, Entry};
use super::{Engine, Lane};

/// How the contents of a new block become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// With the commit's only fence: the words that were set go into the record, as a run from the block's first word on.
    Logged,
    /// By a fence of their own before the record, which then does not hold them. For large blocks.
    Ahead,
}

/// A block that nothing leads to before the commit.
struct NewBlock<'e, M: Medium> {
    reserved: Reserved<'e, M>,
    /// `None`: zeroes that were written back, and writes to it are records of their own.
    contents: Option<Contents>,
    /// Words from the first on that have contents.
    words: u64,
}

/// The changes of one transaction, for structures that keep order among their own transactions by locks of their own: see
/// [`Engine::commit_in`]. Words have their old values until the commit; blocks are filled in place, since nobody can reach them.
/// Dropping it leaves nothing.
pub struct Changes<'e, M: Medium> {
    engine: &'e Engine<M>,
    /// `Some` until it is dropped.
    buffer: Option<Box<Buffer>>,
    /// Most transactions have none.
    blocks: Option<Box<Blocks<'e, M>>>,
}

/// Blocks by offset.
struct Blocks<'e, M: Medium> {
    fresh: BTreeMap<u64, NewBlock<'e, M>>,
    freed: Freed,
}

/// Blocks that are freed, by offset.
type Freed = BTreeMap<u64, Allocation>;

impl<M: Medium> Default for Blocks<'_, M> {
    fn default() -> Self {
        Blocks { fresh: BTreeMap::new(), freed: BTreeMap::new() }
    }
}

impl<M: Medium> fmt::Debug for Changes<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("writes", &self.writes().writes()).finish_non_exhaustive()
    }
}

impl<M: Medium> Drop for Changes<'_, M> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            buffer.give_back();
        }
    }
}

impl<'e, M: Medium> Changes<'e, M> {
    pub(super) fn new(engine: &'e Engine<M>) -> Self {
        Changes { engine, buffer: Some(Buffer::new()), blocks: None }
    }

    #[inline]
    pub(super) fn writes(&self) -> &Buffer {
        self.buffer.as_deref().expect("there until it is dropped")
    }

    #[inline]
    pub(super) fn writes_mut(&mut self) -> &mut Buffer {
        self.buffer.as_deref_mut().expect("there until it is dropped")
    }

    fn blocks_mut(&mut self) -> &mut Blocks<'e, M> {
        self.blocks.get_or_insert_default()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.writes().writes().is_empty()
            && self.blocks.as_ref().is_none_or(|b| b.fresh.is_empty() && b.freed.is_empty())
    }

    /// The word at an offset, as these changes leave it. Total: an offset that is no word's gives any value.
    #[inline]
    pub fn get(&self, op: &Op<'_, M>, off: u64) -> u64 {
        self.writes().get(off).unwrap_or_else(|| op.load(op.at(Off::<Word>::new(off)), Ordering::Acquire))
    }

    /// Sets a word.
    ///
    /// # Errors
    /// [`Error::NoCell`]: it is neither in the pool's heap nor a root cell.
    #[inline]
    pub fn set(&mut self, op: &Op<'_, M>, off: u64, value: u64) -> Result<()> {
        self.engine.ensure_word(off)?;
        if self.blocks.is_some() && self.fill(off) {
            op.store(op.at(Off::<Word>::new(off)), value, Ordering::Relaxed);
        } else {
            // Its line comes until the commit.
            op.prefetch_write(Off::<Word>::new(off));
            self.writes_mut().set(off, value);
        }
        Ok(())
    }

    /// Whether a word lies in a block of these changes that is filled in place; it then has contents up to that word.
    fn fill(&mut self, off: u64) -> bool {
        let Some(blocks) = &mut self.blocks else { return false };
        let Some((start, fresh)) = blocks.fresh.range_mut(..=off).next_back() else { return false };
        if fresh.contents.is_none() || off - start >= fresh.reserved.len() {
            return false;
        }
        fresh.words = fresh.words.max((off - start) / 8 + 1);
        true
    }

    /// Allocates a block of at least `bytes` bytes, and returns its offset. What it holds is arbitrary: the caller
    /// [sets](Self::set) all words that will be read, up to the last one set.
    ///
    /// # Errors
    /// [`Error::Pool`]: the pool is full, or the block is larger than one can be.
    pub fn alloc(&mut self, op: &Op<'_, M>, bytes: u64, contents: Contents) -> Result<u64> {
        self.reserve(op, bytes, Some(contents))
    }

    /// Allocates a block of zeroes.
    pub(super) fn alloc_zeroed(&mut self, op: &Op<'_, M>, bytes: u64) -> Result<u64> {
        let off = self.reserve(op, bytes, None)?;
        // PERSIST RE-E1: flush+fence, with the commit
        self.blocks_mut().fresh[&off].reserved.zero(op)?;
        Ok(off)
    }

    fn reserve(&mut self, op: &Op<'_, M>, bytes: u64, contents: Option<Contents>) -> Result<u64> {
        let root = &self.engine.root;
        let reserved = root.pool().space().reserve_block(op, root.owner(), bytes)?;
        let off = reserved.off();
        self.blocks_mut().fresh.insert(off, NewBlock { reserved, contents, words: 0 });
        Ok(off)
    }

    /// Frees the block that begins at an offset, with the commit. Its space is available again after a later trim.
    ///
    /// # Errors
    /// [`Error::NoCell`]: no block of the structure begins there, or these changes have freed it.
    pub fn free(&mut self, op: &Op<'_, M>, off: u64) -> Result<()> {
        let missing = Error::NoCell { offset: off };
        let root = &self.engine.root;
        let Blocks { fresh, freed } = &mut **self.blocks.get_or_insert_default();
        if freed.contains_key(&off) {
            return Err(missing);
        }
        match fresh.get(&off) {
            // Nobody has seen it, and no record names it.
            Some(NewBlock { contents: Some(_), .. }) => _ = fresh.remove(&off),
            Some(zeroed) => _ = freed.insert(off, zeroed.reserved.allocation()),
            None => {
                let found = root.pool().space().allocated(op, off);
                let found = found.ok().filter(|found| found.owner() == root.owner());
                freed.insert(off, found.ok_or(missing)?);
            }
        }
        Ok(())
    }

    /// Whether a word lies in a block that these changes free.
    #[inline]
    pub(super) fn is_freed(&self, off: u64) -> bool {
        self.blocks.as_ref().is_some_and(|blocks| {
            let before = blocks.freed.range(..=off).next_back();
            before.is_some_and(|(start, freed)| off - start < freed.len())
        })
    }

    /// Makes durable what the record will not hold.
    #[cold]
    fn write_ahead(op: &Op<'_, M>, blocks: &Blocks<'e, M>) -> Result<()> {
        let mut is_any = false;
        for (off, fresh) in blocks.fresh.iter().filter(|(_, fresh)| fresh.contents == Some(Contents::Ahead)) {
            op.write_back_slice::<Word>(op.slice("a new block", Off::new(*off), fresh.words)?);
            is_any = true;
        }
        if is_any {
            // PERSIST RE-E7: flush+fence
            op.fence();
        }
        Ok(())
    }

    /// Puts what happens to blocks into a record.
    #[cold]
    fn enter<'d>(op: &Op<'_, M>, record: &'d mut Draft, blocks: &Blocks<'e, M>) -> Result<&'d Draft> {
        for (off, fresh) in &blocks.fresh {
            let allocation = fresh.reserved.allocation();
            match fresh.contents {
                None => record.push(op, Entry::Zeroed(allocation)),
                Some(contents) => {
                    record.push(op, Entry::Change(Change::Allocate(allocation)));
                    if contents == Contents::Logged {
                        let run = op.slice("a new block", Off::new(*off), fresh.words)?;
                        record.push(op, Entry::Run(*off, run));
                    }
                }
            }
        }
        blocks.freed.values().for_each(|freed| record.push_last(Change::Free(*freed)));
        Ok(record)
    }
}

impl<M: Medium> Engine<M> {
    /// Begins changes of a structure that the engine is [a part of](Engine::part), inside an operation.
    pub fn changes(&self) -> Changes<'_, M> {
        Changes::new(self)
    }

    /// Makes changes happen, durably when this returns, all or none: one fence, one more for blocks with [`Contents::Ahead`], and
    /// none where there is no change. `publish` is called when they are durable and nobody has seen them; it calls its argument,
    /// which stores the words in place, and takes care of readers before and after.
    ///
    /// Whoever calls this has the words that are changed for itself, by a lock that is held from before the first
    /// [`get`](Changes::get) until this returns; it waits for it inside operations only.
    ///
    /// # Errors
    /// [`Error::Pool`]: the log cannot grow, and nothing has happened; [`make_room`](Self::make_room), and try again.
    pub fn commit_in(
        &self,
        op: &Op<'_, M>,
        mut changes: Changes<'_, M>,
        publish: impl FnOnce(&mut dyn FnMut()),
    ) -> Result<()> {
        self.commit_changes(op, &mut changes, publish)
    }

    /// As [`commit_in`](Self::commit_in).
    #[inline]
    pub(super) fn commit_changes(
        &self,
        op: &Op<'_, M>,
        changes: &mut Changes<'_, M>,
        publish: impl FnOnce(&mut dyn FnMut()),
    ) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let m = op.medium();
        let segments = {
            let _guard = self.poison.guard(op)?;
            if let Some(blocks) = &changes.blocks {
                Changes::write_ahead(op, blocks)?;
            }
            self.ask(op);
            let mut lane = self.slots.of(op.slot()).lane.lock(m);
            let (number, segments) = log(self, op, &mut lane, changes)?;
            // From here on it has happened, so all of it is done, also where the space turns out to be corrupt.
            let allocated = changes.blocks.take().map(|blocks| self.allocate(op, &mut lane, *blocks));
            lane.changed(self).add(changes.writes().writes().iter().map(|write| write[0]));
            publish(&mut || {
                for [off, value] in changes.writes().writes() {
                    // PERSIST RE-E2: the fence of the commit. That there is such a word was found when it was set.
                    op.store(op.at(Off::<Word>::new(*off)), *value, Ordering::Release);
                }
            });
            if let Some((freed, done)) = allocated {
                done.and(self.free(op, &mut lane, number, freed))?;
            }
            segments
        };
        if segments >= self.trim_at {
            // The transaction has happened, so the trim's error is not its own. After a panic the next commit is told; of all else the service tells.
            self.trim_in(op).map_or_else(|_| self.ask_for_trim(m), drop);
        } else if segments * 2 >= self.trim_at && m.shared_load(&self.is_long, Ordering::Relaxed) == 0 {
            self.ask_for_trim(m);
        }
        Ok(())
    }

    fn ask_for_trim(&self, m: M) {
        m.shared_store(&self.is_long, 1, Ordering::Release);
        self.service.get().inspect(|service| service.wake());
    }
}

impl<M: Medium> Engine<M> {
    /// Allocates what a record has allocated, and notes what a trim has to write back of it. Returns what the record frees.
    #[cold]
    fn allocate<'e>(&self, op: &Op<'_, M>, lane: &mut Lane<M>, blocks: Blocks<'e, M>) -> (Freed, Result<()>) {
        let (space, mut done) = (self.root.pool().space(), Ok(()));
        for (off, fresh) in blocks.fresh {
            // Other contents were durable with the record, or before it.
            if fresh.contents == Some(Contents::Logged) {
                let ends = off.next_multiple_of(LINE)..off + 8 * fresh.words;
                lane.changed(self).add(std::iter::once(off).chain(ends.step_by(LINE as usize)));
            }
            let change = Change::Allocate(fresh.reserved.keep());
            lane.space.push(change);
            done = done.and(space.apply(op, change).map(drop));
        }
        (blocks.freed, done.map_err(Error::from))
    }

    /// Frees what a record has freed: its space is available after a later trim.
    #[cold]
    fn free(&self, op: &Op<'_, M>, lane: &mut Lane<M>, number: u64, freed: Freed) -> Result<()> {
        let (space, mut done) = (self.root.pool().space(), Ok(()));
        for freed in freed.into_values() {
            let change = Change::Free(freed);
            lane.space.push(change);
            done = done.and(space.apply(op, change).map(drop));
            lane.frees.push((number, freed));
        }
        Ok(done?)
    }
}

impl<M: Medium> Lane<M> {
    /// The lines that a trim has to write back.
    #[inline]
    fn changed(&mut self, engine: &Engine<M>) -> &mut Changed {
        self.changed.get_or_insert_with(|| Changed::of_pool(engine.mapping().reserve().len() as u64))
    }
}

/// Writes the record of a transaction and makes it durable: one fence. Returns the commit's number, and how many segments the
/// log has.
fn log<M: Medium>(
    engine: &Engine<M>,
    op: &Op<'_, M>,
    lane: &mut Lane<M>,
    changes: &Changes<'_, M>,
) -> Result<(u64, usize)> {
    let Lane { chain, draft, ends, .. } = lane;
    let chain = match chain {
        Some(chain) => chain,
        none => none.insert(engine.logs.chain(op)?),
    };
    let writes = changes.writes().writes();
    let (before, after) = match &changes.blocks {
        Some(blocks) => Changes::enter(op, draft.begin(), blocks)?.parts(),
        None => Default::default(),
    };
    let parts = [before, writes, after];
    let mut done = (0, 0);
    // What can fail comes first: then nothing has happened.
    // PERSIST RE-E1, RE-E2: flush+fence
    chain.put(op, record::words(parts), |segment, room| {
        let number = engine.number(op);
        record::write(op, (segment, room), number, parts);
        done = (segment, number);
    })?;
    let (segment, number) = done;
    match ends.last_mut() {
        Some((last, end)) if *last == segment => *end = number,
        _ => ends.push((segment, number)),
    }
    Ok((number, ends.len()))
}
