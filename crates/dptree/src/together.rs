//! Changes that are made together, of trees whose values are offsets of records: all new records first, then one batch of the tree.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | as DP-W1: the new records of all changes, and the bits of their units < the first log record of the batch | flush+fence | units that nothing leads to, in active pages | frees them |
//! | as DP-W2: all log records of the batch < units of records that it has replaced are used again | the batch has returned: DP-E1 | all of it, or nothing | units as above |

use std::cell::RefCell;

use durix_logfree::{Error, Record, RecordStore, Result};
use durix_pmem::{Medium, Op};

use durix_index::{Batch, Limits};

use crate::group::Edit;
use crate::values::of_tree;
use crate::{DpTree, MAX_BATCH};

/// Makes sure that the changes of a batch are neither too many nor too long.
pub(crate) fn check(limits: &Limits, batch: &Batch) -> durix_index::Result<()> {
    if batch.len() > MAX_BATCH {
        return Err(durix_index::Error::BatchTooLarge { keys: batch.len(), limit: MAX_BATCH });
    }
    batch.iter().try_for_each(|(key, change)| limits.check(key, change))
}

/// Says what the new root of a word is, by its root, and notes the records that come and go; `None` leaves it.
pub(crate) type ChangeRoot<'a> = &'a mut dyn FnMut(&mut Edit, u64, Option<u64>) -> Result<Option<Option<u64>>>;

/// What has been written and announced for a batch.
#[derive(Default)]
struct Prepared {
    written: Vec<Record>,
    announced: Vec<Record>,
    error: Option<Error>,
}

impl Prepared {
    fn undo<M: Medium>(&mut self, op: &Op<'_, M>, records: &RecordStore<M>) {
        records.cancel(op, &std::mem::take(&mut self.announced));
        records.give_back(op, &std::mem::take(&mut self.written));
    }

    /// Writes what `change` wants of each word; `None` where one cannot be had.
    fn prepare<M: Medium>(
        &mut self,
        op: &Op<'_, M>,
        records: &RecordStore<M>,
        olds: &[(u64, Option<u64>)],
        change: ChangeRoot<'_>,
    ) -> Result<Vec<Option<Option<u64>>>> {
        let mut news = Vec::with_capacity(olds.len());
        for (word, old) in olds {
            let mut edit = Edit::default();
            let changed = change(&mut edit, *word, *old);
            self.written.append(&mut edit.written);
            news.push(changed?);
            self.announced.extend(records.begin_retire(op, *word, &edit.replaced)?);
        }
        if !self.written.is_empty() {
            op.fence(); // PERSIST DP-W1: flush+fence
        }
        Ok(news)
    }
}

impl<M: Medium> DpTree<M> {
    /// Makes changes of the roots of some words together: `change` says for each word, in ascending order, by its root, what the new root is; `None` leaves
    /// it. All are durable when it returns, and a crash leaves all of them or none; so does an error.
    pub(crate) fn change_roots(
        &self,
        op: &Op<'_, M>,
        records: &RecordStore<M>,
        words: &[u64],
        change: ChangeRoot<'_>,
    ) -> Result<()> {
        let prepared: RefCell<Prepared> = RefCell::default();
        let mut decide = |olds: &[(u64, Option<u64>)]| {
            let mut prepared = prepared.borrow_mut();
            // From an attempt that found the pool full.
            prepared.undo(op, records);
            let news = prepared.prepare(op, records, olds, change);
            news.map_err(|error| prepared.error = Some(error)).ok()
        };
        let made = self.change_many_with(op, words, &mut decide);
        let mut prepared = prepared.into_inner();
        if matches!(made, Ok(true)) {
            records.linked(op, &prepared.written);
            // PERSIST LF-I6: the tree's fence.
            records.retire(op, &prepared.announced);
        } else {
            prepared.undo(op, records);
        }
        match prepared.error {
            Some(error) => Err(error),
            None => made.map(drop).map_err(of_tree),
        }
    }
}
