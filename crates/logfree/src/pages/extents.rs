//! Pages and segments that no session has, and how more of them come from the pool.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Root, Word};

use super::Pages;
use crate::error::Result;
use crate::layout::Segment;

/// Pages that are looked at for free nodes before the pool is asked for more.
pub(super) const LOOKED_AT: usize = 128;
/// An extent is this part of what there is already, so that the number of extents stays small.
pub(super) const GROWTH: u64 = 8;
/// Largest extent that is asked for.
pub(super) const MAX_EXTENT: u64 = 1 << 20;

/// Pages in a row whose bitmaps were not looked at since the structure was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) page: u64,
    pub(super) pages: u64,
}

/// What no session has.
#[derive(Debug, Default)]
pub(super) struct Unassigned {
    /// Pages with a good part of their nodes free. One may be here twice, or active: its nodes are taken one by one.
    pub(super) pages: Vec<u64>,
    /// Pages with fewer free nodes, for when the pool is full.
    pub(super) poor: Vec<u64>,
    pub(super) runs: Vec<Run>,
    pub(super) segments: Vec<Off<Segment>>,
    /// Bytes of all extents.
    pub(super) bytes: u64,
}

impl<M: Medium> Pages<M> {
    /// Number of free nodes of a page.
    fn free_nodes(&self, op: &Op<'_, M>, page: u64) -> u64 {
        let words = self.bitmap(op, page).iter().enumerate();
        words
            .map(|(index, word)| u64::from((self.shape.mask(index as u64) & !op.load(word, Relaxed)).count_ones()))
            .sum()
    }

    /// Notes a page with so many free nodes. An eighth of them is worth the fence that makes it active.
    fn note(&self, unassigned: &mut Unassigned, page: u64, free: u64) {
        match free {
            0 => {}
            free if free * 8 >= self.shape.nodes() => unassigned.pages.push(page),
            _ => unassigned.poor.push(page),
        }
    }

    /// A page that probably has free nodes; asks the pool for more where none is known.
    pub(super) fn take_page(&self, op: &Op<'_, M>) -> Result<u64> {
        let mut unassigned = self.unassigned.lock(op.medium());
        let mut looked_at = 0..LOOKED_AT;
        while unassigned.pages.is_empty()
            && looked_at.next().is_some()
            && let Some(page) = next_page(&mut unassigned.runs, self.shape.bytes)
        {
            self.note(&mut unassigned, page, self.free_nodes(op, page));
        }
        if let Some(page) = unassigned.pages.pop() {
            return Ok(page);
        }
        match self.add_extent(op, unassigned.bytes) {
            Ok((run, bytes)) => {
                unassigned.bytes += bytes;
                unassigned.runs.push(run);
                Ok(next_page(&mut unassigned.runs, self.shape.bytes).expect("an extent has pages"))
            }
            Err(error) => self.take_any_page(op, &mut unassigned).ok_or(error),
        }
    }

    /// A page that has a free node, where the pool is full.
    #[cold]
    fn take_any_page(&self, op: &Op<'_, M>, unassigned: &mut Unassigned) -> Option<u64> {
        while let Some(page) = next_page(&mut unassigned.runs, self.shape.bytes) {
            self.note(unassigned, page, self.free_nodes(op, page));
        }
        let Unassigned { pages, poor, .. } = unassigned;
        std::iter::from_fn(|| pages.pop().or_else(|| poor.pop())).find(|page| self.free_nodes(op, *page) > 0)
    }

    /// Adds an extent of pages without nodes.
    #[cold]
    fn add_extent(&self, op: &Op<'_, M>, had: u64) -> Result<(Run, u64)> {
        let space = self.root.pool().space();
        let (owner, wanted) = (self.root.owner(), (had / GROWTH).min(MAX_EXTENT));
        // In a pool that is nearly full a chunk will do.
        let reserved = space.reserve_extent(op, owner, wanted).or_else(|_| space.reserve_extent(op, owner, 1))?;
        let (first, len) = (reserved.off(), reserved.len());
        let run = Run { page: first, pages: len / self.shape.bytes };
        for page in 0..run.pages {
            let bitmap = self.bitmap(op, first + page * self.shape.bytes);
            for word in bitmap {
                op.store(word, 0, Relaxed);
            }
            op.write_back_slice(bitmap);
        }
        // PERSIST LF-N1: flush+fence.
        op.fence();
        space.activate(op, reserved)?;
        // PERSIST LF-N2: flush+fence.
        op.fence();
        Ok((run, len))
    }

    /// Makes pages known that have left a table.
    pub(super) fn offer(&self, op: &Op<'_, M>, pages: &[u64]) {
        let pages: Vec<_> = pages.iter().map(|page| (*page, self.free_nodes(op, *page))).collect();
        let unassigned = &mut *self.unassigned.lock(op.medium());
        pages.into_iter().for_each(|(page, free)| self.note(unassigned, page, free));
        let all = unassigned.bytes / self.shape.bytes;
        for noted in [&mut unassigned.pages, &mut unassigned.poor] {
            once_each(noted, all);
        }
    }

    /// How many pages are noted.
    #[cfg(test)]
    pub(crate) fn noted(&self, op: &Op<'_, M>) -> usize {
        let unassigned = self.unassigned.lock(op.medium());
        unassigned.pages.len() + unassigned.poor.len()
    }

    /// A segment with all cells zero.
    ///
    /// | edge | kept by | a crash before it leaves | recovery |
    /// |---|---|---|---|
    /// | LF-G1 segment and intent < the root leads to it | flush+fence | the segments before | the pool's |
    /// | LF-G2 the root leads to it < a page is recorded in it | flush+fence, in `complete` | a segment without pages | nothing |
    #[cold]
    pub(super) fn take_segment(&self, op: &Op<'_, M>) -> Result<Off<Segment>> {
        let mut unassigned = self.unassigned.lock(op.medium());
        match unassigned.segments.pop() {
            Some(segment) => Ok(segment),
            None => new_segment(op, &self.root, self.segments(op)),
        }
    }
}

/// A new segment, before the one that `head` leads to (LF-G1, LF-G2). Three fences.
pub(super) fn new_segment<M: Medium>(
    op: &Op<'_, M>,
    root: &Root<M>,
    head: &Word<Off<Segment>>,
) -> Result<Off<Segment>> {
    let space = root.pool().space();
    let reserved = space.reserve_block(op, root.owner(), size_of::<Segment>() as u64)?;
    let off = Off::<Segment>::new(reserved.off());
    let segment = op.at(off);
    op.store(&segment.next, op.load(head, Relaxed), Relaxed);
    for cell in &segment.cells {
        op.store(cell, 0, Relaxed);
    }
    let prepared = space.prepare(op, reserved, head)?;
    op.write_back(segment);
    // PERSIST LF-G1: flush+fence.
    op.fence();
    // PERSIST LF-G2: flush+fence, in `complete`.
    prepared.complete(op);
    Ok(off)
}

/// Sets the cells of segments to zero. It need not be durable: a page that is found in one again is looked through
/// again.
pub(super) fn empty_segments<M: Medium>(op: &Op<'_, M>, segments: &[Off<Segment>]) {
    let cells = segments.iter().flat_map(|off| &op.at(*off).cells);
    for cell in cells.filter(|cell| op.load(*cell, Relaxed) != 0) {
        op.store(cell, 0, Release);
    }
}

/// Forgets what was noted twice, where that is half of it: there are `all` pages.
pub(super) fn once_each(pages: &mut Vec<u64>, all: u64) {
    if pages.len() as u64 > 2 * all.max(64) {
        pages.sort_unstable();
        pages.dedup();
    }
}

/// The next page of some runs.
pub(super) fn next_page(runs: &mut Vec<Run>, page_bytes: u64) -> Option<u64> {
    let run = runs.last_mut()?;
    let page = run.page;
    run.page += page_bytes;
    run.pages -= 1;
    if run.pages == 0 {
        runs.pop();
    }
    Some(page)
}
