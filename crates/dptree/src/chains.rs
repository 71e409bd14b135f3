//! The records of log pages as recovery and repair read them: those of a batch together, if all of them are there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op};

use crate::layout::{ExtentHead, LINE_RECORDS, RecordLine, Shape, record_line};
use crate::record::{Damaged, Record};

/// Log pages, each with its polarity.
pub(crate) struct Chains<'a, 's, M: Medium> {
    pub(crate) op: &'a Op<'s, M>,
    pub(crate) shape: Shape,
    pub(crate) polarities: BTreeMap<u64, u64>,
    /// The last record that was met with a wrong checksum; it counts as none.
    pub(crate) damaged: Cell<Option<Damaged>>,
}

/// A record, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) page: u64,
    pub(crate) line: Off<RecordLine>,
    pub(crate) record: Record,
}

impl<M: Medium> Chains<'_, '_, M> {
    /// Calls `visit` with each record of a page that is alone, and with all records of each batch that begins there and is whole.
    ///
    /// # Errors
    /// What `visit` returns.
    pub(crate) fn each<E>(&self, page: u64, mut visit: impl FnMut(&[Found]) -> Result<(), E>) -> Result<(), E> {
        for at in 0..self.shape.page_records() {
            match self.record(page, at) {
                // The others of a batch come with its first one.
                Some(found) if found.record.place.joins => {}
                Some(found) if found.record.place.goes_on => {
                    if let Some(all) = self.batch(page, at) {
                        visit(&all)?;
                    }
                }
                Some(found) => visit(&[found])?,
                None => {}
            }
        }
        Ok(())
    }

    fn record(&self, page: u64, at: u64) -> Option<Found> {
        let (line, polarity) = (record_line(page, at / LINE_RECORDS), *self.polarities.get(&page)?);
        let words = &self.op.at(line).records[(at % LINE_RECORDS) as usize];
        match Record::load(self.op, words, polarity) {
            Ok(record) => record.map(|record| Found { page, line, record }),
            Err(damaged) => {
                self.damaged.set(Some(damaged));
                None
            }
        }
    }

    /// The records of the batch that begins at a place, if all of them are there.
    fn batch(&self, mut page: u64, mut at: u64) -> Option<Vec<Found>> {
        let (mut all, mut pages) = (Vec::new(), 1);
        loop {
            let found = self.record(page, at).filter(|found| all.is_empty() || found.record.place.joins)?;
            all.push(found);
            if !found.record.place.goes_on {
                return Some(all);
            }
            at += 1;
            if at == self.shape.page_records() {
                (page, at, pages) = (self.after(page)?, 0, pages + 1);
                // A chain that leads back is damaged.
                if pages > self.polarities.len() {
                    return None;
                }
            }
        }
    }

    /// The page in which the batch goes on that ends a page: both lead to each other (DP-P4).
    fn after(&self, page: u64) -> Option<u64> {
        let head = |page| self.op.at(Off::<ExtentHead>::new(page));
        let next = self.op.load(&head(page).next, Relaxed);
        let is_page = self.polarities.contains_key(&next);
        (is_page && self.op.load(&head(next).before, Relaxed) == page).then_some(next)
    }
}
