//! Reads: no lock, no write, no fence, and nothing that is not durable. (But for keys with unsettled entries: see `later.rs`.)
//!
//! # Why a hit is right
//! A reader takes, in this order: the shard's sequence number, a cell, the entry's meta word, its bytes, the meta word
//! again, the cell again, the sequence number again; all three must be the same. The table is then the current one, so
//! at the second look the cell was current, and the slot it names held a published, durable entry.
//! - Either that entry is the one that was read: then it was the key's at that moment.
//! - Or the slot was rewritten after the second look at the meta word. It must then have been published, superseded and
//!   rewritten meanwhile: what was read was published, and so durable and the key's, at a moment within the read.
//!
//! Versions in one slot are distinct, so an equal meta word means the same entry.
//!
//! # Why a miss is right
//! With the same even sequence number before and after, no cell has moved; a key that is in the table all along sits in one
//! cell, before the first empty one, and the probe meets it. A key that was removed and inserted again meanwhile was
//! absent in between. A cell with the right tag counts as another key only after the same checks as a hit. While the table grows, a
//! miss counts only after a look in the old table and then in the new one (see `table.rs`).

use durix_pmem::{Medium, Op};

use super::entry::Entry;
use super::error::Result;
use super::layout::Meta;
use super::set::PersistentSet;
use super::table::{Cells, Index};
use super::update::Key;

/// An attempt to find a key.
enum Attempt<R> {
    Hit(R, Meta),
    Miss,
    /// A hit that a crash can still take back: what it has given, the entry's meta word, its offset, and whether it says that the key is
    /// not there.
    Unsettled(R, Meta, u64, bool),
    /// A writer was at work on what was read.
    Disturbed,
}

impl<M: Medium> PersistentSet<M> {
    /// Runs `visit` on the entry of `key`, perhaps several times; what the last run returned counts, with the meta word
    /// of the entry.
    ///
    /// # Errors
    /// [`Error::Pool`](super::Error::Pool) where an update that a panic has cut short stands in the way, or the operation is one
    /// of another pool.
    #[inline]
    pub(super) fn lookup<R>(
        &self,
        op: &Op<'_, M>,
        key: Key<'_>,
        mut visit: impl FnMut(&Entry<'_>) -> R,
    ) -> Result<Option<(R, Meta)>> {
        self.poison.expect_own(op)?;
        match self.first_attempt(op, key, &mut visit) {
            Attempt::Hit(result, meta) => Ok(Some((result, meta))),
            Attempt::Miss => Ok(None),
            _ => self.lookup_further(op, key.bytes, key.hash, visit),
        }
    }

    /// The same where the first attempt has failed. (Takes the key apart, so that it stays in registers where it has not.)
    #[inline(never)]
    fn lookup_further<R>(
        &self,
        op: &Op<'_, M>,
        bytes: &[u8],
        hash: u64,
        mut visit: impl FnMut(&Entry<'_>) -> R,
    ) -> Result<Option<(R, Meta)>> {
        let mut turn = 0;
        loop {
            match self.attempt(op, Key { bytes, hash }, &mut visit) {
                Attempt::Hit(result, meta) => return Ok(Some((result, meta))),
                Attempt::Miss => return Ok(None),
                Attempt::Unsettled(result, meta, off, is_gone) => {
                    self.settle_what_was_read(op, hash, off, meta.version())?;
                    return Ok((!is_gone).then_some((result, meta)));
                }
                Attempt::Disturbed => {
                    self.poison.check(op)?;
                    op.medium().spin(turn);
                    turn = turn.saturating_add(1);
                }
            }
        }
    }

    /// An attempt that gives up where anything is out of the ordinary: another key with the tag of this one, an entry that
    /// is not short or unsettled, a writer. What it finds is right for the same reasons.
    #[inline(always)]
    fn first_attempt<R>(&self, op: &Op<'_, M>, key: Key<'_>, visit: &mut impl FnMut(&Entry<'_>) -> R) -> Attempt<R> {
        let m = op.medium();
        let index = &self.shard(key.hash).index;
        let Some(seq) = index.even_seq(m) else { return Attempt::Disturbed };
        let cells = index.cells(m);
        let Some((at, cell)) = cells.next(m, &mut cells.probe(key.tag())) else {
            // While the table grows, the key may be in the old one.
            let missed = index.old_cells(m).is_none() && index.unmoved(m, seq);
            return if missed { Attempt::Miss } else { Attempt::Disturbed };
        };
        if cell.is_unsettled() {
            return Attempt::Disturbed;
        }
        let Some(entry) = Entry::short_at(op, cell.off()) else { return Attempt::Disturbed };
        if !entry.key_is(op, key.bytes) {
            return Attempt::Disturbed;
        }
        let result = visit(&entry);
        if entry.unchanged(op) && cells.load(m, at) == Some(cell) && index.unmoved(m, seq) {
            Attempt::Hit(result, entry.meta)
        } else {
            Attempt::Disturbed
        }
    }

    #[inline]
    fn attempt<R>(&self, op: &Op<'_, M>, key: Key<'_>, visit: &mut impl FnMut(&Entry<'_>) -> R) -> Attempt<R> {
        let m = op.medium();
        let index = &self.shard(key.hash).index;
        let seq = index.seq(m);
        // The old table first: what is missed there has moved before.
        if let Some(old) = index.old_cells(m) {
            match self.attempt_in(op, index, seq, old, key, visit) {
                Attempt::Miss => {}
                found => return found,
            }
        }
        match self.attempt_in(op, index, seq, index.cells(m), key, visit) {
            Attempt::Miss if !index.unmoved(m, seq) => Attempt::Disturbed,
            found => found,
        }
    }

    /// An attempt in one table. A miss counts only if nothing has moved.
    #[inline]
    fn attempt_in<R>(
        &self,
        op: &Op<'_, M>,
        index: &Index,
        seq: u64,
        cells: Cells<'_>,
        key: Key<'_>,
        visit: &mut impl FnMut(&Entry<'_>) -> R,
    ) -> Attempt<R> {
        let m = op.medium();
        let mut probe = cells.probe(key.tag());
        while let Some((at, cell)) = cells.next(m, &mut probe) {
            if cell.has_moved() {
                continue;
            }
            let Some(entry) = Entry::at(op, cell.off()) else { return Attempt::Disturbed };
            let result = entry.key_is(op, key.bytes).then(|| visit(&entry));
            if !entry.unchanged(op) || cells.load(m, at) != Some(cell) || !index.unmoved(m, seq) {
                return Attempt::Disturbed;
            }
            match result {
                Some(result) if cell.is_unsettled() => {
                    return Attempt::Unsettled(result, entry.meta, cell.off(), entry.info.is_tombstone());
                }
                Some(result) => return Attempt::Hit(result, entry.meta),
                None => {}
            }
        }
        Attempt::Miss
    }
}
