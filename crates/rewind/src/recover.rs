//! Recovery (section 4.5): analysis, redo (without force), undo. Then the log is replaced by an empty one.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-R1 | the log as recovery has read it, gaps included; its first store, and the first unit that is used again | flush+fence | the log, or a part of it if a process had died | begins anew |
//! | RW-R2 | the CLR of an update; the store that undoes it | the log's fence | the update not undone | begins anew |
//! | RW-R3 | all redone and undone words; END of what was undone | flush+fence | CLRs | begins anew: redoes and undoes again |
//! | RW-R4 | all END records; the checkpoint's number | the log's fence | END of some | begins anew |
//! | RW-R5 | the checkpoint's number; the first block is freed | flush+fence | all has ended | redoes nothing: a freed block may be in other hands |
//! | RW-R7 | the watermark, where there are several lanes; the first lane is empty | RW-R5 | all has ended | redoes nothing of the other lanes |
//! | RW-R6 | all blocks are freed; the log is empty | the frees' fences | some blocks not freed | frees the rest |
//!
//! Algorithm 2 of the paper is wrong as printed (a transaction without a CLR would never be undone). Here an update is undone
//! if no CLR of its transaction names it or an older one. All CLRs of an unfinished rollback are redone under force as well,
//! not only the last: with groups, several may be durable whose stores are not.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Release};

use durix_pmem::{Kind as PoolKind, Medium, Op, Recovery, RecoveryError, Root, Session, Structure};

use crate::adll::corrupt;
use crate::error::Result;
use crate::layout::Kind;
use crate::record::Entry;
use crate::store::{Chain, Found, store_word};
use crate::tm::{TransactionManager, stored};

/// Recovers the pending records of transaction logs, before any structure of their pool is opened: for
/// [`Pool::recover_logs`](durix_pmem::Pool::recover_logs).
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRecovery;

impl<M: Medium> Recovery<M> for LogRecovery {
    fn kind(&self) -> PoolKind {
        <TransactionManager<M> as Structure<M>>::KIND
    }

    fn before(&self, session: &mut Session<M>, log: &Root<M>) -> Result<(), RecoveryError> {
        let op = session.enter()?;
        let (options, anchor) = stored(&op, log)?;
        TransactionManager::recovered(&op, log.clone(), anchor, options)?;
        Ok(())
    }
}

/// What the log says of a transaction.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Number of its END, and whether it was rolled back.
    end: Option<(u64, bool)>,
    /// Whether its rollback has begun.
    rolling_back: bool,
    /// The oldest update that a CLR names.
    undone_to: Option<u64>,
    /// Updates without a CLR.
    left: u64,
}

impl Known {
    /// Whether an update is to be undone.
    fn undoes(&self, id: u64) -> bool {
        self.end.is_none() && self.undone_to.is_none_or(|undone| id < undone)
    }
}

/// No log has come to such numbers of records and transactions; the numbers that follow fit into a record's head.
const TOO_LARGE: u64 = 1 << 55;

/// The transaction table of section 4.1.
type Table = BTreeMap<u64, Known>;

impl<M: Medium> TransactionManager<M> {
    /// Brings the pool to a state in which every transaction has ended, and empties the log. Returns how many records it found.
    pub(crate) fn recover(&self, op: &Op<'_, M>) -> Result<u64> {
        let records = self.store.all(op)?;
        let (mut table, checkpointed) = self.analyse(op, &records)?;
        // Also where no record is left: what a dead process has removed may come back, and lead to what is used by then.
        self.store.write_back_all(op)?;
        // PERSIST RW-R1: flush+fence.
        op.fence();
        self.store.release_unused(op)?;
        if self.store.is_empty(op)? {
            return Ok(0);
        }
        self.redo(op, &records, &table, checkpointed);
        self.undo(op, &records, &mut table)?;
        self.free_blocks(op, &records, &table)?;
        self.store.clear(op)?;
        Ok(records.len() as u64)
    }

    /// Phase one: the transaction table.
    fn analyse(&self, op: &Op<'_, M>, records: &[Found]) -> Result<(Table, u64)> {
        let checkpointed = op.load(&op.at(self.anchor).checkpointed, Acquire);
        if checkpointed >= TOO_LARGE {
            return Err(corrupt("the number of the last checkpoint", self.anchor, checkpointed));
        }
        self.store.number_from(op.medium(), checkpointed);
        let mut table = Table::new();
        for (at, entry) in records {
            if entry.id >= TOO_LARGE || entry.tx >= TOO_LARGE {
                return Err(corrupt("the number of a record or its transaction", *at, entry.id.max(entry.tx)));
            }
            let known = table.entry(entry.tx).or_default();
            match entry.kind {
                Kind::End => known.end = Some((entry.id, entry.new != 0)),
                Kind::Rollback => known.rolling_back = true,
                Kind::Clr => known.undone_to = Some(known.undone_to.map_or(entry.undone, |u| u.min(entry.undone))),
                Kind::Update | Kind::Delete | Kind::Alloc => {}
            }
            self.store.number_from(op.medium(), entry.id);
            self.number_txs_from(op.medium(), entry.tx);
        }
        for (_, entry) in records.iter().filter(|(_, entry)| entry.kind == Kind::Update) {
            let known = table.get_mut(&entry.tx).expect("every record's transaction is known");
            known.left += u64::from(known.undoes(entry.id));
        }
        Ok((table, checkpointed))
    }

    /// Phase two. Without force: all words of transactions that have not ended before the last checkpoint. With force: what
    /// rollbacks had undone.
    fn redo(&self, op: &Op<'_, M>, records: &[Found], table: &Table, checkpointed: u64) {
        for (_, entry) in records.iter().filter(|(_, entry)| entry.names_a_word()) {
            let end = table[&entry.tx].end;
            let redone = if self.options.forces() {
                end.is_none() && entry.kind == Kind::Clr
            } else {
                end.is_none_or(|(id, _)| id > checkpointed)
            };
            if redone {
                store_word(op, entry.addr, entry.new, true);
            }
        }
    }

    /// Phase three: one scan backwards for all transactions.
    fn undo(&self, op: &Op<'_, M>, records: &[Found], table: &mut Table) -> Result<()> {
        let mut chains: BTreeMap<u64, Chain> = BTreeMap::new();
        for (tx, known) in table.iter().filter(|(_, known)| known.end.is_none()) {
            // CLRs, END, and ROLLBACK if it is not there yet.
            let mut chain = self.store.adopt(op, *tx, known.left + 1 + u64::from(!known.rolling_back))?;
            if !known.rolling_back {
                self.mark_rollback(op, &mut chain);
            }
            chains.insert(*tx, chain);
        }
        let mut undone = Vec::new();
        for (_, entry) in records.iter().rev().filter(|(_, entry)| entry.kind == Kind::Update) {
            if table[&entry.tx].undoes(entry.id)
                && let Some(chain) = chains.get_mut(&entry.tx)
            {
                self.compensate(op, chain, entry);
                undone.push((entry.addr, entry.old));
            }
        }
        // PERSIST RW-R2: flush+fence, by the log.
        chains.values_mut().for_each(|chain| self.store.flush(op, chain));
        undone.into_iter().for_each(|(addr, old)| store_word(op, addr, old, true));
        // PERSIST RW-R3: flush+fence.
        op.fence();
        for (tx, mut chain) in chains {
            self.end(op, &mut chain, true);
            table.entry(tx).or_default().end = Some((u64::MAX, true));
        }
        Ok(())
    }

    fn mark_rollback(&self, op: &Op<'_, M>, chain: &mut Chain) {
        let id = self.store.number(op.medium());
        let mark = Entry::new(id, Kind::Rollback, chain.tx);
        self.store.append(op, chain, &mark);
    }

    /// Frees what committed transactions had deleted, and what the others had allocated.
    fn free_blocks(&self, op: &Op<'_, M>, records: &[Found], table: &Table) -> Result<()> {
        let mut blocks = records.iter().filter(|(_, entry)| entry.names_a_block() && !entry.block.is_null()).peekable();
        // PERSIST RW-R7: with several lanes, also for the lanes that are cleared later than the first.
        if blocks.peek().is_none() && self.store.lanes() == 1 {
            return Ok(());
        }
        self.set_checkpointed(op, self.store.number(op.medium()));
        for found in blocks {
            let rolled_back = table[&found.1.tx].end.is_none_or(|(_, rolled_back)| rolled_back);
            self.free_block(op, found, rolled_back);
        }
        Ok(())
    }

    /// Says that all transactions that ended before `number` are in place, and need not be redone. Durable when it returns.
    pub(crate) fn set_checkpointed(&self, op: &Op<'_, M>, number: u64) {
        let word = &op.at(self.anchor).checkpointed;
        op.store(word, number, Release);
        op.write_back(word);
        // PERSIST RW-R5, RW-K3: flush+fence.
        op.fence();
    }
}
