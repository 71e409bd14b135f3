//! What belongs to an index where the pool's table of space may be damaged: for repair; and how a damaged table is noticed.
//!
//! The table has no checksums: each of its words changes by itself. Closing the pool writes number and sum of its words into a closing mark, as
//! for [indices](super::tally): PL-T1. So a table that has changed since is found when the pool is opened, also where all that it says makes
//! sense. A mark that does not go with its table stays as it is, and is told of again until `repair` makes a new pool.

use super::Pool;
use super::geometry::{SPACE_MARK_OFF, SPARE_OFF};
use super::header::HeaderRef;
use super::roots::RootRef;
use super::structure::Root;
use super::tally::{self, Marked, Totals};
use crate::medium::Medium;
use crate::session::Op;
use crate::space::{Extent, Finding, LenAt, Owner, Space};

/// The table of space, as it was found when the pool was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// Nobody has noted what it should be.
    Unknown,
    /// It is what it was when the pool was closed.
    AsClosed,
    /// It is not, or what was noted is damaged.
    Changed,
}

impl Table {
    /// Of a pool that was closed.
    pub(super) fn read<M: Medium>(op: &Op<'_, M>, space: &Space<M>, crashes: u16) -> Self {
        match tally::read(op, SPACE_MARK_OFF, crashes) {
            Marked::Nothing => Table::Unknown,
            Marked::Held(totals) if totals == totals_of(op, space) => Table::AsClosed,
            Marked::Held(_) | Marked::Damaged { .. } => Table::Changed,
        }
    }

    /// Notes what the table is now, when the pool is closed. Returns whether there is anything that has to be fenced.
    pub(super) fn write_mark<M: Medium>(self, op: &Op<'_, M>, space: &Space<M>, crashes: u16) -> bool {
        self != Table::Changed && tally::write(op, SPACE_MARK_OFF, crashes, Some(totals_of(op, space)))
    }
}

fn totals_of<M: Medium>(op: &Op<'_, M>, space: &Space<M>) -> Totals {
    let mut totals = Totals::default();
    space.each_word(op, |off, word| totals.add(tally::entry(off, word)));
    totals
}

impl<M: Medium> Pool<M> {
    /// Everything in the tables of space that is not as it should be: what [`Space::check`] finds, and whether the table has changed between
    /// the last time that the pool was closed and its opening. `live` tells which owners exist. `O(chunks)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn check_space(&self, op: &Op<'_, M>, live: impl Fn(Owner) -> bool) -> Vec<Finding> {
        let mut findings = self.space().check(op, live);
        if self.inner.table == Table::Changed {
            findings.push(Finding::NotAsClosed { off: self.geometry().heap_off() });
        }
        findings
    }

    /// Which spares are damaged, of the header and of the root entries of indices, in words. No entry is lost, but a repair could not fall back
    /// on them. `O(indices)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn check_spares(&self, op: &Op<'_, M>) -> Vec<String> {
        let file = &self.inner.file;
        let header = HeaderRef::new(op, &file.name);
        let of_header =
            (!header.has_spare()).then(|| format!("the spare of the header, at {SPARE_OFF:#x}, is damaged"));
        let is_damaged = |root: &RootRef<'_, '_, M>| root.spare().is_none() && matches!(root.read(), Ok(Some(_)));
        let of_roots = RootRef::all(op, &file.geometry).filter(is_damaged).map(|root| {
            let (slot, off) = (root.owner().0, file.geometry.spare_off(root.owner()));
            format!("the spare of root entry {slot}, at {off:#x}, is damaged")
        });
        of_header.into_iter().chain(of_roots).collect()
    }
}

impl<M: Medium> Root<M> {
    /// Whether an owner is an index, or may be one: a root entry that cannot be read counts.
    fn is_live(&self, op: &Op<'_, M>, owner: Owner) -> bool {
        let geometry = self.pool().geometry();
        u32::from(owner.0) < geometry.indices && !matches!(RootRef::new(op, geometry, owner).read(), Ok(None))
    }

    /// The extents of the index, ascending: what the pool's table of space says, and what lies there. `len_at` says how long the extent is
    /// that begins somewhere, and is believed more than the table. With `lost`, chunks that belong to nobody are looked at, too: only for an
    /// index that lacks something, since what an index has left that was dropped may lie there. `O(chunks)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn salvaged_extents(&self, op: &Op<'_, M>, lost: bool, len_at: LenAt<'_>) -> Vec<Extent> {
        self.pool().space().salvaged_extents(op, self.owner(), |owner| self.is_live(op, owner), lost, len_at)
    }

    /// Whether the pool's table of space is damaged, as far as [`Pool::check_space`] can tell. `O(chunks)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn has_doubtful_space(&self, op: &Op<'_, M>) -> bool {
        !self.pool().check_space(op, |owner| self.is_live(op, owner)).is_empty()
    }
}
