//! Checkpoints (section 4.6), without force: beside running transactions, what has ended is written back, and its records go.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-K2 | all words of what ended before the checkpoint; the checkpoint's number | flush+fence | the log as it was | redoes them |
//! | RW-K3 | the checkpoint's number; the first block is freed, the first record removed | flush+fence | all records | redoes none of them |
//! | as RW-K1 | all other records of a transaction are removed; END is | flush+fence | END with some records | skips them: END is older than the checkpoint |
//!
//! The paper flushes the cache after it has appended a CHECKPOINT record. User space cannot flush the cache, so the addresses
//! in the records are written back. The checkpoint's mark is a number of the same sequence as the records', taken under the
//! latch under which END is appended; it goes to one word of the anchor when the write-backs are durable. Redoing some records
//! of a transaction whose others are removed already would bring old values back: RW-K3 prevents it. So would redoing the records of
//! one lane of a distributed log when those of another lane, younger and of the same words, are removed already: the number is the
//! watermark of all lanes, and RW-K3 comes before the first removal in any of them.

use std::collections::BTreeMap;

use durix_pmem::{Medium, Op, Session};

use crate::error::Result;
use crate::layout::Kind;
use crate::store::Found;
use crate::tm::TransactionManager;

impl<M: Medium> TransactionManager<M> {
    /// Writes back what transactions have written that ended before, and removes their records. Transactions may run
    /// meanwhile. With force there is nothing to do: each transaction has removed its own. Linear in the number of records.
    ///
    /// Returns how many transactions' records were removed.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool), [`Error::Corrupt`](crate::Error::Corrupt).
    pub fn checkpoint(&self, session: &mut Session<M>) -> Result<usize> {
        if self.options.forces() {
            return Ok(0);
        }
        let op = session.enter()?;
        let _guard = self.poison.guard(&op)?;
        let _alone = self.checkpointing.lock(op.medium());
        let number = {
            let _order: Vec<_> = self.order.iter().map(|order| order.lock(op.medium())).collect();
            self.store.number(op.medium())
        };
        let records = self.store.all(&op)?;
        let ended = ended_before(&records, number);
        if ended.is_empty() {
            return Ok(0);
        }
        self.write_back_words(&op, &records, &ended);
        // PERSIST RW-K3: flush+fence.
        self.set_checkpointed(&op, number);
        for found in &records {
            if let Some(rolled_back) = ended.get(&found.1.tx) {
                self.free_block(&op, found, *rolled_back);
            }
        }
        self.store.forget_all(&op, &ended.keys().copied().collect())?;
        Ok(ended.len())
    }

    fn write_back_words(&self, op: &Op<'_, M>, records: &[Found], ended: &BTreeMap<u64, bool>) {
        let mut words: Vec<_> = records
            .iter()
            .filter(|(_, entry)| entry.names_a_word() && ended.contains_key(&entry.tx))
            .map(|(_, entry)| entry.addr.get() & !63)
            .collect();
        words.sort_unstable();
        words.dedup();
        for line in words {
            op.write_back(op.at(durix_pmem::Off::<durix_pmem::Word>::new(line)));
        }
        // PERSIST RW-K2: flush+fence.
        op.fence();
    }
}

/// The transactions whose END is older than `number`, and whether they were rolled back.
fn ended_before(records: &[Found], number: u64) -> BTreeMap<u64, bool> {
    let ends = records.iter().filter(|(_, entry)| entry.kind == Kind::End && entry.id < number);
    ends.map(|(_, entry)| (entry.tx, entry.new != 0)).collect()
}
