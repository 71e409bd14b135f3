//! The records of log pages as recovery and repair read them: those of a batch together, if all of them are there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op};

use crate::layout::{ExtentHead, LINE_RECORDS, RecordLine, Shape, record_line};
use crate::record::{Damaged, Kept, Record};

/// Log pages, each with its polarity.
pub(crate) struct Chains<'a, 's, M: Medium> {
    pub(crate) op: &'a Op<'s, M>,
    pub(crate) shape: Shape,
    pub(crate) polarities: &'a BTreeMap<u64, u64>,
    /// The last record that was met with a wrong checksum; it counts as none.
    pub(crate) damaged: Cell<Option<Damaged>>,
}

/// A record, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) page: u64,
    pub(crate) line: Off<RecordLine>,
    pub(crate) kept: Kept,
    pub(crate) record: Record,
}

impl<M: Medium> Chains<'_, '_, M> {
    /// Calls `visit` with each record of a page that is alone, and with all records of each batch that begins there and is whole.
    ///
    /// # Errors
    /// What `visit` returns.
    #[inline(always)]
    pub(crate) fn each<E>(&self, page: u64, mut visit: impl FnMut(&[Found]) -> Result<(), E>) -> Result<(), E> {
        let Some(polarity) = self.polarities.get(&page).copied() else { return Ok(()) };
        for at in 0..self.shape.page_records() {
            match self.record((page, polarity), at) {
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

    #[inline(always)]
    fn record(&self, (page, polarity): (u64, u64), at: u64) -> Option<Found> {
        let line = record_line(page, at / LINE_RECORDS);
        let words = &self.op.at(line).records[(at % LINE_RECORDS) as usize];
        match Record::load(self.op, words, polarity) {
            Ok(record) => {
                record.map(|record| Found { page, line, kept: Kept::new(self.op.off_of(words), polarity), record })
            }
            Err(damaged) => {
                self.damaged.set(Some(damaged));
                None
            }
        }
    }

    /// The records of the batch that begins at a place, if all of them are there.
    #[inline(never)]
    fn batch(&self, mut page: u64, mut at: u64) -> Option<Vec<Found>> {
        let mut all = Vec::new();
        // It ends also where damaged pages lead in a circle: each has one before it, and the first record joins none.
        loop {
            let polarity = *self.polarities.get(&page)?;
            let found = self.record((page, polarity), at).filter(|found| all.is_empty() || found.record.place.joins)?;
            all.push(found);
            if !found.record.place.goes_on {
                return Some(all);
            }
            at += 1;
            if at == self.shape.page_records() {
                (page, at) = (self.after(page)?, 0);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::convert::Infallible;

    use durix_pmem::{Hardware, Mapping};

    use super::*;
    use crate::record::Place;

    const SHAPE: Shape = Shape { slots: 4, leaves: 2, page_lines: 1 };
    const PAGES: [u64; 3] = [1024, 2048, 3072];

    /// A page, with its records.
    type Page<'a> = (u64, u64, &'a [(u64, bool, bool)]);

    /// Pages of two records. Each is given by the next page, the page before, and its records: key, whether it joins, whether it goes on. Returns
    /// the groups of keys that are found.
    fn groups(pages: [Page<'_>; 3]) -> Vec<Vec<u64>> {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        for (page, (next, before, records)) in PAGES.into_iter().zip(pages) {
            let head = op.at(Off::<ExtentHead>::new(page));
            op.store(&head.next, next, Relaxed);
            op.store(&head.before, before, Relaxed);
            for (at, (key, joins, goes_on)) in records.iter().copied().enumerate() {
                let record = Record { key, value: Some(1), version: 1, place: Place { joins, goes_on } };
                record.store(&op, &op.at(record_line(page, 0)).records[at], 1);
            }
        }
        let polarities = PAGES.map(|page| (page, 1)).into();
        let chains = Chains { op: &op, shape: SHAPE, polarities: &polarities, damaged: Cell::default() };
        let mut found = Vec::new();
        for page in PAGES {
            let Ok(()) = chains.each(page, |all| {
                found.push(all.iter().map(|one| one.record.key).collect());
                Ok::<_, Infallible>(())
            });
        }
        found
    }

    const BEGINS: (u64, bool, bool) = (1, false, true);
    const GOES_ON: (u64, bool, bool) = (2, true, true);
    const ENDS: (u64, bool, bool) = (3, true, false);
    const ALONE: (u64, bool, bool) = (4, false, false);
    const NO_PAGE: Page<'static> = (0, 0, &[]);

    #[test]
    fn a_batch_is_found_whole_or_not_at_all() {
        let [a, b, c] = PAGES;
        assert_eq!(groups([(0, 0, &[BEGINS, ENDS]), (0, 0, &[ALONE]), NO_PAGE]), [vec![1, 3], vec![4]]);
        assert_eq!(groups([(0, 0, &[BEGINS]), (0, 0, &[ALONE, BEGINS]), NO_PAGE]), [vec![4]], "cut off");
        assert_eq!(groups([(0, 0, &[BEGINS, ALONE]), (0, 0, &[ENDS, ALONE]), NO_PAGE]), [vec![4], vec![4]]);
        let whole = [(c, 0, &[BEGINS, GOES_ON][..]), NO_PAGE, (0, a, &[ENDS, ALONE])];
        assert_eq!(groups(whole), [vec![1, 2, 3], vec![4]], "over two pages");
        let of_another = [(c, 0, &[BEGINS, GOES_ON][..]), NO_PAGE, (0, b, &[ENDS, ALONE])];
        assert_eq!(groups(of_another), [vec![4]], "the next page goes on with the batch of another one");
        let nowhere = [(77, 0, &[BEGINS, GOES_ON][..]), NO_PAGE, (0, a, &[ENDS, ALONE])];
        assert_eq!(groups(nowhere), [vec![4]], "the next page is none");
        let circle = [(b, b, &[GOES_ON, BEGINS][..]), (a, a, &[GOES_ON, GOES_ON]), NO_PAGE];
        assert!(groups(circle).is_empty(), "pages that lead in a circle");
    }
}
