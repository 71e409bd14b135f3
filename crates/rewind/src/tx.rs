//! Transactions: reading, writing, allocating, committing, rolling back.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-W1 | a record; the store of which it speaks | the append's fence, or the group's | the word as it was | nothing to undo |
//! | RW-W2 | all stores of a transaction; END (force) | the fence before anything leads to END (RW-B1, RW-G1, RW-D1, RW-T6) | records without END | undone |
//! | RW-W3 | END; the commit returns | the append's fence | records with or without END | undone, or redone (no force) |
//! | RW-W4 | END; the first record is removed, the first block freed | RW-W3 | as above | frees again what is not free |
//! | RW-W5 | stores of a rollback; END | as RW-W2 (force), or redo (no force) | CLRs without END | CLRs are redone, and the rest is undone |
//! | RW-A1 | ALLOC; the block is allocated | the append's fence | ALLOC without a block | nothing to free |
//! | RW-A2 | the block's content; the block | the lane's fence | as above | as above |
//! | RW-K1 | all other records of a transaction are removed; END is | flush+fence | END with some records | ended: what it left behind is freed |
//!
//! Without force, END may be durable before the stores that it promises (a group holds both): recovery redoes them. Nobody takes
//! END for a sign that the stores are visible before they are, because both happen under one latch (`order`).
//!
//! RW-W2 rests on END being appended and made durable by the session that has written the words back, in one go: no other session's
//! fence, which does not cover these words, may make END durable in between (`Store::append_last`).

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Bits, Error as PoolError, Medium, Off, Op, Session, Word};

use crate::error::{Error, Result};
use crate::layout::Kind;
use crate::record::Entry;
use crate::store::{Chain, store_word};
use crate::tm::TransactionManager;

/// A transaction. Dropped without [`commit`](Tx::commit), it is rolled back.
#[derive(Debug)]
pub struct Tx<'t, M: Medium> {
    tm: &'t TransactionManager<M>,
    session: &'t mut Session<M>,
    /// Its records, once there are any.
    chain: Option<Chain>,
    /// Stores that wait until their records are durable, oldest first.
    pending: Vec<(Off<Word>, u64)>,
    /// Whether a block was allocated or deleted.
    blocks: bool,
    /// Blocks that it has deleted.
    deleted: Vec<u64>,
}

impl<'t, M: Medium> Tx<'t, M> {
    pub(crate) fn new(tm: &'t TransactionManager<M>, session: &'t mut Session<M>) -> Self {
        Tx { tm, session, chain: None, pending: Vec::new(), blocks: false, deleted: Vec::new() }
    }

    /// The value of a word, as the transaction has left it.
    ///
    /// # Errors
    /// [`Error::NoWord`]; [`Error::Pool`].
    pub fn get<T: Bits>(&mut self, at: Off<Word<T>>) -> Result<T> {
        let op = self.session.enter()?;
        check_word(&op, at)?;
        Ok(T::from_bits(read(&self.pending, &op, at.cast())))
    }

    /// Writes a word.
    ///
    /// # Errors
    /// [`Error::NoWord`]; [`Error::Pool`] where the pool has no room for another record. The transaction can go on, commit or
    /// roll back all the same.
    pub fn set<T: Bits>(&mut self, at: Off<Word<T>>, value: T) -> Result<()> {
        let (at, new) = (at.cast::<Word>(), value.to_bits());
        let op = self.session.enter()?;
        check_word(&op, at)?;
        let _guard = self.tm.poison.guard(&op)?;
        let chain = begun(&mut self.chain, self.tm, &op)?;
        // The record, and the CLR that may undo it.
        self.tm.store.promise(&op, chain, 2)?;
        let old = read(&self.pending, &op, at);
        let id = self.tm.store.number(op.medium());
        let update = Entry { addr: at, old, new, ..Entry::new(id, Kind::Update, chain.tx) };
        let durable = self.tm.store.append(&op, chain, &update);
        self.pending.push((at, new));
        if durable {
            // PERSIST RW-W1: flush+fence, by the log.
            apply(&op, &mut self.pending, self.tm.options.forces());
        }
        Ok(())
    }

    /// Allocates a block that holds `words`, durably, and frees it again should the transaction not commit.
    ///
    /// # Errors
    /// [`Error::BlockTooLarge`]; [`Error::Pool`] where the pool has no room.
    pub fn alloc(&mut self, words: &[u64]) -> Result<Off<Word>> {
        let op = self.session.enter()?;
        let _guard = self.tm.poison.guard(&op)?;
        let space = self.tm.root.pool().space();
        let limit = space.max_block() / 8;
        if words.len() as u64 > limit {
            return Err(Error::BlockTooLarge { words: words.len() as u64, limit });
        }
        let chain = begun(&mut self.chain, self.tm, &op)?;
        let reserved = space.reserve_block(&op, self.tm.root.owner(), words.len() as u64 * 8)?;
        let block = Off::<Word>::new(reserved.off());
        self.tm.store.promise(&op, chain, 1)?;
        let id = self.tm.store.number(op.medium());
        self.tm.store.append(&op, chain, &Entry::new(id, Kind::Alloc, chain.tx));
        // PERSIST RW-A1: flush+fence, by the log.
        self.tm.store.flush(&op, chain);
        apply(&op, &mut self.pending, self.tm.options.forces());
        self.blocks = true;
        let to = op.slice("block", block, words.len() as u64)?;
        for (word, value) in to.iter().zip(words) {
            op.store(word, *value, Relaxed);
        }
        op.write_back_slice(to);
        let record = op.at(chain.last.expect("ALLOC was appended"));
        let prepared = space.prepare(&op, reserved, &record.block)?;
        // PERSIST RW-A2: flush+fence.
        op.fence();
        prepared.complete(&op);
        Ok(block)
    }

    /// Frees a block that [`alloc`](Tx::alloc) of this log gave, in this transaction or in one before: once it has committed. A
    /// block that this transaction has freed already is freed once.
    ///
    /// # Errors
    /// [`Error::NotABlock`] where something else begins there. [`Error::Pool`] where nothing is allocated there, where another
    /// transaction frees the block, or where the pool has no room for the record.
    pub fn free(&mut self, block: Off<Word>) -> Result<()> {
        let op = self.session.enter()?;
        let _guard = self.tm.poison.guard(&op)?;
        if self.deleted.contains(&block.get()) {
            return Ok(());
        }
        self.tm.expect_block(&op, block)?;
        let chain = begun(&mut self.chain, self.tm, &op)?;
        self.tm.store.promise(&op, chain, 1)?;
        // The promise of a record that is not appended goes with the transaction's others.
        self.tm.delete(&op, block)?;
        self.deleted.push(block.get());
        self.blocks = true;
        let id = self.tm.store.number(op.medium());
        if self.tm.store.append(&op, chain, &Entry { block, ..Entry::new(id, Kind::Delete, chain.tx) }) {
            apply(&op, &mut self.pending, self.tm.options.forces());
        }
        Ok(())
    }

    /// Ends the transaction: all it has written is durable when this returns.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool was shut meanwhile: the transaction is then undone when it is opened again.
    pub fn commit(mut self) -> Result<()> {
        let Some(mut chain) = self.chain.take() else { return Ok(()) };
        let (tm, op) = (self.tm, self.session.enter()?);
        let _guard = tm.poison.guard(&op)?;
        if tm.options.forces() {
            tm.store.flush(&op, &mut chain);
            apply(&op, &mut self.pending, true);
            // PERSIST RW-W2, RW-W3: flush+fence, by the log.
            tm.end(&op, &mut chain, false);
        } else {
            let _order = tm.order[chain.lane].lock(op.medium());
            // PERSIST RW-W3: flush+fence, by the log.
            tm.end(&op, &mut chain, false);
            apply(&op, &mut self.pending, false);
        }
        tm.finish(&op, chain, false, self.blocks)
    }

    /// Undoes all that the transaction has written.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool was shut meanwhile: the transaction is then undone when it is opened again.
    pub fn rollback(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        let Some(chain) = self.chain.take() else { return Ok(()) };
        // What no store has followed yet is undone by the records all the same.
        self.pending.clear();
        let op = self.session.enter()?;
        let _guard = self.tm.poison.guard(&op)?;
        self.tm.roll_back(&op, chain, self.blocks)?;
        self.tm.keep(op.medium(), &self.deleted);
        Ok(())
    }
}

impl<M: Medium> Drop for Tx<'_, M> {
    fn drop(&mut self) {
        // Where this fails the pool is shut, and opening it again undoes the transaction.
        let _ = self.undo();
    }
}

/// The transaction's records; begins them.
fn begun<'c, M: Medium>(
    chain: &'c mut Option<Chain>,
    tm: &TransactionManager<M>,
    op: &Op<'_, M>,
) -> Result<&'c mut Chain> {
    if chain.is_none() {
        tm.ask(op);
        *chain = Some(tm.store.begin(op, tm.next_tx(op))?);
    }
    Ok(chain.as_mut().expect("begun"))
}

fn check_word<M: Medium, T: Bits>(op: &Op<'_, M>, at: Off<Word<T>>) -> Result<()> {
    match op.slice("word", at, 1) {
        Ok(_) if !at.is_null() => Ok(()),
        Ok(_) => Err(Error::NoWord { offset: 0, len: op.mapping().len() }),
        Err(PoolError::OutOfBounds { offset, len, .. }) => Err(Error::NoWord { offset, len }),
        Err(other) => Err(other.into()),
    }
}

/// The value of a word, with the stores that wait.
fn read<M: Medium>(pending: &[(Off<Word>, u64)], op: &Op<'_, M>, at: Off<Word>) -> u64 {
    let waiting = pending.iter().rev().find(|(word, _)| *word == at);
    waiting.map_or_else(|| op.load(op.at(at), Acquire), |(_, value)| *value)
}

/// Makes the stores whose records are durable.
fn apply<M: Medium>(op: &Op<'_, M>, pending: &mut Vec<(Off<Word>, u64)>, durably: bool) {
    for (at, value) in pending.drain(..) {
        store_word(op, at, value, durably);
    }
}

impl<M: Medium> TransactionManager<M> {
    /// Undoes a transaction that runs, and ends it.
    fn roll_back(&self, op: &Op<'_, M>, mut chain: Chain, blocks: bool) -> Result<()> {
        let records = self.store.own(op, &mut chain)?;
        let id = self.store.number(op.medium());
        let mark = Entry::new(id, Kind::Rollback, chain.tx);
        self.store.append(op, &mut chain, &mark);
        let mut undone = Vec::new();
        for (_, update) in records.iter().filter(|(_, entry)| entry.kind == Kind::Update) {
            undone.push((update.addr, update.old));
            if self.compensate(op, &mut chain, update) {
                apply(op, &mut undone, self.options.forces());
            }
        }
        self.store.flush(op, &mut chain);
        apply(op, &mut undone, self.options.forces());
        if self.options.forces() {
            // PERSIST RW-W5: flush+fence, by the log.
            self.end(op, &mut chain, true);
        } else {
            let _order = self.order[chain.lane].lock(op.medium());
            self.end(op, &mut chain, true);
        }
        self.finish(op, chain, true, blocks)
    }

    /// Appends the CLR of an update. Returns whether it is durable.
    pub(crate) fn compensate(&self, op: &Op<'_, M>, chain: &mut Chain, update: &Entry) -> bool {
        let id = self.store.number(op.medium());
        let (addr, old, new, undone) = (update.addr, update.new, update.old, update.id);
        self.store.append(op, chain, &Entry { addr, old, new, undone, ..Entry::new(id, Kind::Clr, chain.tx) })
    }

    /// What follows END: with force, its records go.
    fn finish(&self, op: &Op<'_, M>, mut chain: Chain, rolled_back: bool, blocks: bool) -> Result<()> {
        self.store.unpromise(op.medium(), &mut chain);
        if !self.options.forces() {
            return Ok(());
        }
        if blocks {
            for found in self.store.own(op, &mut chain)? {
                self.free_block(op, &found, rolled_back);
            }
        }
        self.store.forget(op, chain)
    }
}
