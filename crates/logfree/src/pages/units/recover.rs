//! Recovery of leaks of records, and the check.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Extent, Medium, OffsetSet, Op, Root, Session};

use super::super::extents::{Run, empty_segments};
use super::super::recover::{Found, is_page, read_segments, store_exact};
use super::{Unit, Units, holds_records};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{MAX_PAGE, MIN_PAGE, NODE, PageShape};
use crate::options::Options;

/// Active pages that are looked through within one operation.
const TOGETHER: usize = 8;

/// Asks whether the map leads to the record that a unit belongs to, and the record to the unit.
pub(crate) type InUse<'a, M> = &'a dyn Fn(&Op<'_, M>, Unit) -> Result<bool>;

impl<M: Medium> Units<M> {
    /// Opens the pages of records of `root`, whose map is open and says in a root word how large pages are. Nothing is allocated before
    /// [`Units::recover`] has run.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn open(op: &Op<'_, M>, root: Root<M>, page_word: usize, options: &Options) -> Result<(Self, Found)> {
        let word = &root.words(op)[page_word];
        let page = op.load(word, Relaxed);
        let is_sound = page.is_power_of_two() && (MIN_PAGE..=MAX_PAGE).contains(&page);
        if !is_sound || page > root.pool().space().chunk() {
            let offset = op.off_of(word).get();
            return Err(Error::Corrupt { what: "the size of a page", offset, found: page });
        }
        let units = Units::new(root, page, options);
        let extents = units.extents(op);
        {
            let mut unassigned = units.unassigned.lock(op.medium());
            for extent in &extents {
                unassigned.bytes += extent.len;
                unassigned.runs.push(Run { page: extent.off, pages: extent.len / units.page });
            }
        }
        let found = read_segments(op, units.segments(op), |page| is_page(&extents, units.page, page))?;
        Ok((units, found))
    }

    /// The extents that hold pages of records, ascending.
    fn extents(&self, op: &Op<'_, M>) -> Vec<Extent> {
        let mut extents = self.root.pool().space().extents(op, self.root.owner());
        extents.retain(|extent| holds_records(op, extent));
        extents
    }

    /// Frees the units of active pages that are not in use, and empties the tables. A question to the map for each.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn recover(&self, session: &mut Session<M>, found: &Found, in_use: InUse<'_, M>) -> Result<()> {
        for pages in found.active.chunks(TOGETHER) {
            let op = session.enter()?;
            for page in pages {
                self.recover_page(&op, *page, in_use)?;
            }
        }
        let op = session.enter()?;
        if !found.active.is_empty() {
            // PERSIST LF-I9: flush+fence.
            op.fence();
        }
        empty_segments(&op, &found.segments);
        self.unassigned.lock(op.medium()).segments.extend(&found.segments);
        Ok(())
    }

    fn recover_page(&self, op: &Op<'_, M>, page: u64, in_use: InUse<'_, M>) -> Result<()> {
        let lines = self.lines_of(op, page)?;
        let (shape, head) = (self.shape(lines.max(1)), self.head(op, page)?);
        let mut exact = vec![0; shape.words() as usize];
        // Bit 0 says that the page is one of records.
        exact[0] = 1;
        // A page whose length is not durable has no record.
        for unit in self.allocated(op, page).into_iter().filter(|_| lines != 0) {
            let (word, bit) = shape.bit_of(unit.off);
            // PERSIST LF-I8: the map's fence.
            exact[word as usize] |= u64::from(in_use(op, unit)?) << bit;
        }
        store_exact(op, &self.root, head, exact);
        Ok(())
    }

    /// The units of a page that are allocated, by the bitmap.
    fn allocated(&self, op: &Op<'_, M>, page: u64) -> Vec<Unit> {
        let lines = self.lines_of(op, page).unwrap_or_default();
        let (shape, head) =
            (PageShape { bytes: self.page, unit: lines.max(1) }, self.head(op, page).unwrap_or_default());
        let mut units = Vec::new();
        for (index, word) in (0u64..).zip(head).take(shape.words() as usize) {
            let mut allocated = op.load(word, Relaxed) & shape.mask(index);
            while allocated != 0 {
                let line = index * 64 + u64::from(allocated.trailing_zeros());
                units.push(Unit { off: page + line * NODE, lines });
                allocated &= allocated - 1;
            }
        }
        units
    }

    /// All units that are allocated, by the bitmaps of the pages.
    pub(crate) fn all_allocated(&self, op: &Op<'_, M>) -> Vec<Unit> {
        let pages = self
            .extents(op)
            .into_iter()
            .flat_map(|extent| (extent.off..extent.off + extent.len).step_by(self.page as usize));
        pages.flat_map(|page| self.allocated(op, page)).collect()
    }

    /// Compares what is allocated with what records are made of, while no other operation is open.
    pub(crate) fn check(&self, op: &Op<'_, M>, in_use: &OffsetSet) -> Vec<Finding> {
        let (held, mut allocated, mut findings) = (self.held(op), OffsetSet::default(), Vec::new());
        for unit in self.all_allocated(op) {
            allocated.insert(unit.off);
            if !in_use.contains(&unit.off) && !held.contains(&unit.off) {
                findings.push(Finding::Leaked { off: unit.off });
            }
        }
        let missing: BTreeSet<_> = in_use.difference(&allocated).chain(held.intersection(in_use)).collect();
        findings.extend(missing.into_iter().map(|off| Finding::NotAllocated { off: *off }));
        findings
    }

    /// Units that sessions hold: allocated, and in no record. While no operation is open, but the caller's.
    fn held(&self, op: &Op<'_, M>) -> OffsetSet {
        let mut held = OffsetSet::default();
        for slot in self.slots.iter() {
            let slot = slot.lock(op.medium());
            held.extend(slot.free.0.iter().flatten());
            held.extend(slot.limbo.iter().map(|unit| unit.off));
            held.extend(slot.waiting.iter().flat_map(|(units, _)| units).map(|unit| unit.off));
        }
        held
    }
}
