//! The transaction manager: creating, opening, beginning.

//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-Q1 | the root asks for recovery; the log's first record | flush+fence | a log without records | called for nothing |
//! | RW-Q2 | the log is empty; the root asks no more | the fence of the removals | an empty log, the root asks | called for nothing |
//! | RW-Q3 | the root asks no more; the next RW-Q1 | flush+fence | as RW-Q2 | as RW-Q2 |
//! | RW-A4 | the intent to free a block; the block is free, the record names none | the lane's fence | the block as it was | frees it |

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::pool::Poison;
use durix_pmem::{
    Bits, Error as PoolError, Hardware, Kind as PoolKind, LINE, Lock, Medium, Moments, Off, Op, Pool, Rmw, Root,
    Session, Structure, Word,
};

use crate::arena::Arena;
use crate::config::Options;
use crate::error::{Error, Result};
use crate::layout::{Anchor, Kind, LAYOUT_VERSION, USER_CELLS};
use crate::record::Entry;
use crate::store::{Chain, Found, Store};
use crate::tx::Tx;

/// Lines of the anchor.
const ANCHOR_LINES: u64 = (size_of::<Anchor>() / LINE) as u64;

/// A log of transactions over the words of a pool.
///
/// ```
/// use durix_pmem::backing::HeapBacking;
/// use durix_pmem::{Hardware, PoolOptions};
/// use durix_rewind::{Error, Options, TransactionManager};
///
/// let pool = PoolOptions::new().create_on(HeapBacking::new(8 << 20), Hardware::PAGE_CACHE)?;
/// let tm = TransactionManager::open(&pool, "transactions", &Options::default())?;
/// let mut session = pool.session()?;
/// let (from, to) = (tm.cell(0), tm.cell(1));
/// tm.transaction(&mut session, |tx| {
///     let moved = tx.get(from)?;
///     tx.set(from, 0)?;
///     tx.set(to, moved + 1)
/// })?;
/// assert_eq!(tm.transaction(&mut session, |tx| tx.get(to))?, 1);
/// # Ok::<(), Error>(())
/// ```
///
/// A transaction is all or nothing with respect to crashes, and durable when [`commit`](Tx::commit) returns. Which words two
/// transactions may change at the same time is for the caller to arrange, with locks held until the commit. Words that a
/// transaction changes must be reached through this log only.
///
/// Opening the log takes back what uncommitted transactions have written. While it may hold records the pool hands out no
/// structure after a crash, until [`Pool::recover_logs`] was given [`LogRecovery`](crate::LogRecovery). A log that was dropped
/// holds none.
pub struct TransactionManager<M: Medium = Hardware> {
    pub(crate) root: Root<M>,
    pub(crate) options: Options,
    pub(crate) anchor: Off<Anchor>,
    pub(crate) store: Store<M>,
    next_tx: AtomicU64,
    /// By lane: held while END is appended and what it promises is stored. A checkpoint holds all while it takes its number.
    pub(crate) order: Box<[Lock<()>]>,
    /// Blocks that transactions have freed which are not free yet.
    deleting: Lock<BTreeSet<u64>>,
    /// 1 once the root asks for recovery.
    asks: AtomicU64,
    /// Held by the one checkpoint under way.
    pub(crate) checkpointing: Lock<()>,
    pub(crate) poison: Poison<M>,
    /// Records that opening has found.
    found: u64,
}

impl<M: Medium> fmt::Debug for TransactionManager<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionManager").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for TransactionManager<M> {
    const KIND: PoolKind = PoolKind { tag: *b"REWIND\0\0", version: LAYOUT_VERSION };
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        let options = options.validated()?;
        let op = session.enter()?;
        let lines = ANCHOR_LINES * options.lanes;
        let anchor = Off::<Anchor>::new(Arena::new(root.clone()).take(&op, lines)?);
        let zeroed = op.slice("anchor", anchor.cast::<Word>(), lines * 8)?;
        zeroed.iter().for_each(|word| op.store(word, 0, Relaxed));
        op.write_back_slice(zeroed);
        let words = root.words(&op);
        op.store(&words[0], options.to_bits(), Relaxed);
        op.store(&words[1], anchor.get(), Relaxed);
        op.write_back(words);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        let (found, anchor) = stored(&op, &root)?;
        if found.to_bits() != options.to_bits() {
            return Err(Error::OtherConfig { found: found.to_string(), asked: options.to_string() });
        }
        let tm = TransactionManager::recovered(&op, root, anchor, *options)?;
        if tm.root.asks(&op)? != Moments::NONE {
            // PERSIST RW-Q2: the fence of the log that is empty now. RW-Q3: flush+fence, inside.
            tm.root.ask(&op, Moments::NONE);
        }
        Ok(tm)
    }
}

/// The options that a log was created with, and the place of its anchor.
///
/// # Errors
/// [`Error::Corrupt`].
pub(crate) fn stored<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Result<(Options, Off<Anchor>)> {
    let words = root.words(op);
    let bits = op.load(&words[0], Acquire);
    let found = Options::from_bits(bits);
    let anchor = Off::<Anchor>::new(op.load(&words[1], Acquire));
    let not_ours = |what, found| Error::Corrupt { what, offset: op.off_of(&words[0]).get(), found };
    if found.validated().is_err() {
        return Err(not_ours("the log's options", bits));
    }
    if anchor.is_null() || op.slice("anchor", anchor, found.lanes).is_err() {
        return Err(not_ours("the place of the log's anchor", anchor.get()));
    }
    Ok((found, anchor))
}

impl<M: Medium> TransactionManager<M> {
    /// The log of an anchor, recovered.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn recovered(op: &Op<'_, M>, root: Root<M>, anchor: Off<Anchor>, options: Options) -> Result<Self> {
        let store = Store::recover(op, root.clone(), anchor, options)?;
        let mut tm = TransactionManager {
            options,
            anchor,
            store,
            next_tx: AtomicU64::new(1),
            order: (0..options.lanes).map(|_| Lock::new(())).collect(),
            deleting: Lock::new(BTreeSet::new()),
            asks: AtomicU64::new(0),
            checkpointing: Lock::new(()),
            poison: Poison::new(root.clone()),
            root,
            found: 0,
        };
        tm.found = tm.recover(op)?;
        Ok(tm)
    }

    /// Opens the log named `name`, creating it if it is not there. Recovers it: what has not committed is undone, durably.
    /// Linear in the number of records.
    ///
    /// # Errors
    /// [`Error::Option`], [`Error::OtherConfig`], [`Error::Corrupt`]; [`Error::Pool`]: what the pool says.
    pub fn open(pool: &Pool<M>, name: &str, options: &Options) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    /// How the log works.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Its place in the pool.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }

    /// One of the [`USER_CELLS`] words that the log keeps for its user, zero in the beginning: where structures begin.
    ///
    /// # Panics
    /// If there is no such cell.
    pub fn cell(&self, number: usize) -> Off<Word> {
        assert!(number < USER_CELLS, "cell {number} of {USER_CELLS}");
        self.anchor.byte_add((std::mem::offset_of!(Anchor, cells) + number * 8) as u64).cast()
    }

    /// Begins a transaction. It costs nothing before it writes.
    ///
    /// # Errors
    /// [`Error::ForeignSession`]; [`Error::Pool`] after a panic in a transaction, or where the pool is shut.
    pub fn begin<'t>(&'t self, session: &'t mut Session<M>) -> Result<Tx<'t, M>> {
        let op = session.enter()?;
        if op.base_addr() != self.root.pool().mapping().reserve().base().addr().get() {
            return Err(Error::ForeignSession);
        }
        self.poison.check(&op)?;
        drop(op);
        Ok(Tx::new(self, session))
    }

    /// Runs `f` in a transaction: commits where it returns `Ok`, rolls back where it returns an error or panics.
    ///
    /// # Errors
    /// What `f` returns; what [`begin`](Self::begin) and [`Tx::commit`] say.
    pub fn transaction<R, E: From<Error>>(
        &self,
        session: &mut Session<M>,
        f: impl FnOnce(&mut Tx<'_, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut tx = self.begin(session)?;
        match f(&mut tx) {
            Ok(result) => tx.commit().map(|()| result).map_err(E::from),
            Err(error) => {
                tx.rollback()?;
                Err(error)
            }
        }
    }

    /// Number of records in the log. Linear in it.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Corrupt`].
    pub fn records(&self, session: &mut Session<M>) -> Result<u64> {
        Ok(self.store.all(&session.enter()?)?.len() as u64)
    }

    /// How many records were found when the log was opened: 0 where it was closed before, or recovered by
    /// [`LogRecovery`](crate::LogRecovery).
    pub fn found_records(&self) -> u64 {
        self.found
    }

    /// What is inconsistent, a line each.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn check(&self, session: &mut Session<M>) -> Result<Vec<String>> {
        Ok(self.store.check(&session.enter()?))
    }

    /// Units of the log's memory: lines of a unit, how many are in use, how many there are.
    pub fn usage(&self) -> Vec<(u64, u64, u64)> {
        self.store.arena.usage(self.root.pool().mapping().medium())
    }

    /// The number of a session's next transaction. It says which lane holds the records.
    pub(crate) fn next_tx(&self, op: &Op<'_, M>) -> u64 {
        let lanes = self.store.lanes() as u64;
        op.medium().shared_rmw(&self.next_tx, Rmw::Add, 1) * lanes + u64::from(op.slot()) % lanes
    }

    pub(crate) fn number_txs_from(&self, m: M, tx: u64) {
        m.shared_rmw(&self.next_tx, Rmw::Max, tx / self.store.lanes() as u64 + 1);
    }

    // ---- what ends a transaction ----

    /// Appends END, durably.
    pub(crate) fn end(&self, op: &Op<'_, M>, chain: &mut Chain, rolled_back: bool) {
        let id = self.store.number(op.medium());
        let end = Entry { new: u64::from(rolled_back), ..Entry::new(id, Kind::End, chain.tx) };
        self.store.append_last(op, chain, &end);
    }

    // ---- blocks ----

    /// Whether a block of this log begins there: nothing of another index, and none of the log's own extents.
    ///
    /// # Errors
    /// [`Error::NotABlock`]; [`Error::Pool`] where nothing is allocated.
    pub(crate) fn expect_block(&self, op: &Op<'_, M>, block: Off<Word>) -> Result<()> {
        let space = self.root.pool().space();
        let found = space.allocated(op, block.get())?;
        if found.owner() == self.root.owner() && found.len() <= space.max_block() {
            Ok(())
        } else {
            Err(Error::NotABlock { offset: block.get() })
        }
    }

    /// Takes note that a transaction frees a block. Until it is free nobody else may: a block that is freed twice may be
    /// somebody else's by the second time.
    ///
    /// # Errors
    /// As [`expect_block`](Self::expect_block); [`Error::Pool`] where another transaction does.
    pub(crate) fn delete(&self, op: &Op<'_, M>, block: Off<Word>) -> Result<()> {
        let mut deleting = self.deleting.lock(op.medium());
        // Whoever frees a block takes its note away when it is not allocated any more, and nobody can have got it again. Either that comes first;
        // then the block is not found here. Or it comes later; then the note is.
        self.expect_block(op, block)?;
        if deleting.insert(block.get()) { Ok(()) } else { Err(PoolError::NotAllocated { off: block.get() }.into()) }
    }

    /// Takes note that blocks are not freed after all.
    pub(crate) fn keep(&self, m: M, blocks: &[u64]) {
        if !blocks.is_empty() {
            let mut deleting = self.deleting.lock(m);
            blocks.iter().for_each(|block| _ = deleting.remove(block));
        }
    }

    /// Frees what a transaction that has ended leaves behind: what it has deleted, or what it had allocated. Any number of
    /// times. Durable when it returns.
    pub(crate) fn free_block(&self, op: &Op<'_, M>, (at, entry): &Found, rolled_back: bool) {
        let goes = entry.kind == if rolled_back { Kind::Alloc } else { Kind::Delete };
        if !goes || entry.block.is_null() {
            return;
        }
        let link = &op.at(*at).block;
        let space = self.root.pool().space();
        let is_free = || self.keep(op.medium(), &[entry.block.get()]);
        let ours = self.expect_block(op, entry.block);
        match ours.and_then(|()| Ok(space.prepare_free(op, entry.block.get(), link, Off::NULL)?)) {
            Ok(prepared) => {
                // PERSIST RW-A4: flush+fence.
                op.fence();
                prepared.complete_with(op, is_free);
            }
            // It is free already, or the file is damaged.
            Err(_) => {
                op.store(link, Off::NULL, Release);
                op.persist(link);
                is_free();
            }
        }
    }

    // ---- the recovery hook ----

    /// Has the pool ask for this log's recovery, before the first record. Whoever opens the pool after a crash without
    /// [`LogRecovery`](crate::LogRecovery) gets no structure of it.
    pub(crate) fn ask(&self, op: &Op<'_, M>) {
        let m = op.medium();
        if m.shared_load(&self.asks, Acquire) == 0 {
            // PERSIST RW-Q1: flush+fence, inside. Two may do so; both before their records.
            self.root.ask(op, Moments::BEFORE);
            m.shared_store(&self.asks, 1, Release);
        }
    }

    /// Clears the log, so that the pool opens without this crate. A transaction that was forgotten stays as that of a dead
    /// process would: then the log stays as it is, and opening it undoes the transaction.
    fn close(&self) -> Result<()> {
        if self.root.pool().mapping().medium().shared_load(&self.asks, Acquire) == 0 {
            return Ok(());
        }
        let mut session = self.root.pool().session()?;
        if !self.all_have_ended(&mut session)? {
            return Ok(());
        }
        self.checkpoint(&mut session)?;
        let op = session.enter()?;
        if self.store.is_empty(&op)? {
            // PERSIST RW-Q2: the removals' fence. RW-Q3: flush+fence, inside.
            self.root.ask(&op, Moments::NONE);
        }
        Ok(())
    }

    fn all_have_ended(&self, session: &mut Session<M>) -> Result<bool> {
        let op = session.enter()?;
        self.poison.check(&op)?;
        let records = self.store.all(&op)?;
        let ended: BTreeSet<u64> =
            records.iter().filter(|(_, entry)| entry.kind == Kind::End).map(|(_, entry)| entry.tx).collect();
        Ok(records.iter().all(|(_, entry)| ended.contains(&entry.tx)))
    }
}

impl<M: Medium> Drop for TransactionManager<M> {
    /// Clears the log. Where that cannot be, the records stay, and recovery deals with them.
    fn drop(&mut self) {
        let _ = self.close();
    }
}
