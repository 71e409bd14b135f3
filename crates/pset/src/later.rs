//! Updates that return before they are durable: see `docs/design/acknowledge-later.md`.
//!
//! An update of an operation of [`enter_later`](durix_pmem::Session::enter_later) stores its entry, and neither writes it back nor
//! fences. The entry is *unsettled* until somebody has done so. Meanwhile its cell in the index has a mark, and the shard has a record
//! of it ([`Put`]). An unsettled tombstone keeps its cell, so that nobody takes the key for absent before the removal is durable.
//!
//! # Persist order
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | PS-L1 an unsettled entry, whole < a read or an update that is not later goes on with it | write-back + fence under the shard's lock | the old entry or the new one, whole | the highest valid version of the key |
//! | PS-L2 an unsettled entry, whole < its ticket has been waited for | PL-L1 of the ticket | the same | the same |
//! | PS-L3 an unsettled entry < what it replaces is queued for reuse | the record leaves after PS-L1 or PS-L2 only | the old entry is there | the old entry, or the new one |
//! | PS-L4 an unsettled entry < a tombstone goes that hides what its slot held | `Put::taken` counts as long as the record is there | the tombstone | the key is absent |
//! | PS-L5 the unsettled entries that an entry replaces, the oldest first < its own record leaves | a ticket has their lines, too; where it has not, PS-L1 | any of them | the highest valid version |
//!
//! # Races
//! *A reader meets an unsettled entry, others settle it.* Under the shard's lock the reader either finds the record: then it settles, and what it
//! has read is durable. Or it finds none: then somebody has settled the entry, or a newer one of its key; what the reader has read was the
//! key's at a moment within the read, and is durable, or superseded by what is.
//!
//! *A ticket is waited for, others have settled its entries.* Offset and version name an entry. Either the record is there; or it is not, and
//! what the entry replaced was queued by whoever took the record away.

use durix_pmem::{Medium, Off, Op, Settles};

use super::entry;
use super::error::Result;
use super::layout::Tail;
use super::set::PersistentSet;
use super::shard::{Found, Inner, New, PATIENCE, Shard, class_of, transaction_of};
use super::table::{Cell, Tag};
use super::unsettled::{Put, Replaced};
use super::update::{Change, Key, check_value, info_of, is_full};

/// Most unsettled entries of a shard: the update that would add one more settles them first. They are searched one by one, and what they
/// replace takes space.
pub(super) const MOST: usize = 64;

impl From<Found> for Replaced {
    fn from(found: Found) -> Replaced {
        let transaction = transaction_of(found.info, found.meta.version());
        Replaced { off: found.off, class: class_of(found.info), transaction }
    }
}

impl<M: Medium> PersistentSet<M> {
    /// Whether the updates of an operation are put off.
    #[inline(always)]
    pub(super) fn begins_to_put_off(&self, op: &Op<'_, M>) -> bool {
        op.settles_later() && self.me.get().is_some_and(|me| op.begin_put_off(me))
    }

    // ---- updates that are settled later ----

    /// As [`change_key`](Self::change_key), settled later.
    #[inline(never)]
    pub(super) fn change_key_later<'v>(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        key: Key<'_>,
        decide: impl FnOnce(Option<Found>) -> Option<Change<'v>>,
    ) -> Result<Option<bool>> {
        let found = match shard.find_short(op, key.tag(), key.bytes) {
            None => shard.find(op, key.tag(), key.bytes),
            found => found,
        };
        let there = found.filter(|found| !found.info.is_tombstone());
        match decide(there) {
            Some(change) if change.is_some() || there.is_some() => {
                check_value(change.unwrap_or_default())?;
                self.replace_later(op, shard, inner, key, change, found)?;
                Ok(Some(there.is_some()))
            }
            _ => {
                // The answer rests on what was found.
                depend_on(op, inner, found, key.hash);
                Ok(None)
            }
        }
    }

    fn replace_later(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        key: Key<'_>,
        change: Change<'_>,
        old: Option<Found>,
    ) -> Result<()> {
        let (m, info) = (op.medium(), info_of(key.bytes, change));
        let (class, settled) = (class_of(info), inner.reuse.settled);
        if inner.reuse.unsettled.len() >= MOST {
            self.settle_shard(op, shard, inner);
        }
        let (taken, is_plain) = match info.is_short().then(|| inner.reuse.take_plain_later()).flatten() {
            Some(taken) => (Ok(taken), true),
            None => (self.take(op, shard, inner, class), false),
        };
        // Where that has settled something, cells have moved.
        let old = if inner.reuse.settled == settled { old } else { shard.find(op, key.tag(), key.bytes) };
        let taken = match (taken, change, old) {
            (Ok(taken), ..) => taken,
            // The pool is full: everything in the shard is settled.
            (Err(error), None, Some(old)) if is_full(&error) => return self.remove_in_place(op, shard, inner, old),
            (Err(error), ..) => return Err(error),
        };
        let extra = if is_plain { None } else { self.extra(op, inner, class, taken) };
        if extra.as_ref().is_some_and(|extra| extra.is_some()) {
            // There is more to write back, which cannot wait: it goes with the entry.
            let old = self.find_settled(op, shard, inner, key.tag(), key.bytes);
            return self.write_at_once(op, shard, inner, key, change, (old, taken, extra));
        }
        let _guard = self.poison.guard(op)?;
        let version = inner.next_version();
        entry::write_later(op, taken.off, version, info, key.bytes, change.unwrap_or_default());
        // PERSIST PS-L5: the lines of what it replaces are settled with its own.
        depend_on(op, inner, old, key.hash);
        let (tag, lines, is_tombstone) = (key.tag(), info.lines() as u64, info.is_tombstone());
        let (replaced, ticket) = (old.map(Replaced::from), op.ticket());
        let (off, lines_of_put, freed) = (taken.off, lines as u32, taken.freed());
        let put = Put { off, version, tag, lines: lines_of_put, class, is_tombstone, replaced, taken: freed, ticket };
        inner.reuse.unsettled.push(put);
        inner.reuse.hand_over();
        op.put_off(taken.off, lines, [key.hash, version]);
        shard.publish_unsettled(m, inner, New { tag, off: taken.off, version, info, class }, old);
        self.prefetch(op, inner, class);
        Ok(())
    }

    // ---- settling ----

    /// Finds a key, and settles it first where that is needed; under the shard's lock.
    #[inline(always)]
    pub(super) fn find_settled(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        tag: Tag,
        key: &[u8],
    ) -> Option<Found> {
        let found = shard.find(op, tag, key)?;
        if found.is_unsettled {
            return settle_and_find(op, shard, inner, found, tag, key);
        }
        Some(found)
    }

    /// After a read that has met an unsettled entry: has what it returns settled, now or with the operation's ticket.
    ///
    /// # Errors
    /// [`Error::Pool`](super::Error::Pool) after a panic in an update.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_what_was_read(&self, op: &Op<'_, M>, hash: u64, off: u64, version: u64) -> Result<()> {
        let shard = self.shard(hash);
        let inner = &mut *shard.lock(op.medium());
        self.poison.check(op)?;
        if inner.reuse.unsettled.get(off).is_none_or(|put| put.version != version) {
            return Ok(());
        }
        match self.begins_to_put_off(op) {
            true => depend_on_entry(op, inner, Some(off), hash),
            false => settle_entry(op, shard, inner, off),
        }
        Ok(())
    }

    /// Settles all entries of a shard.
    #[inline]
    pub(super) fn settle_shard(&self, op: &Op<'_, M>, shard: &Shard, inner: &mut Inner) {
        if !inner.reuse.unsettled.is_empty() {
            settle_entries(op, shard, inner);
        }
    }

    /// Settles all entries of the set.
    pub(super) fn settle_all(&self, op: &Op<'_, M>) {
        for shard in self.shards.iter().filter(|shard| shard.unsettled(op.medium()) > 0) {
            self.settle_shard(op, shard, &mut shard.lock(op.medium()));
        }
    }

    /// An entry of a ticket is durable, if it is still the one of that version. Waits for its record for so many turns. Returns whether it
    /// could be had; if not, whoever meets the entry settles it once more.
    pub(super) fn settled_entry(&self, op: &Op<'_, M>, [hash, version]: [u64; 2], off: u64, turns: u32) -> bool {
        let shard = self.shard(hash);
        let Some(mut guard) = shard.lock_soon(op.medium(), turns) else { return false };
        let inner = &mut *guard;
        let Some(put) = inner.reuse.unsettled.get(off).copied().filter(|put| put.version == version) else {
            return true;
        };
        // PERSIST PS-L5: what it replaces came first in the ticket, but its record could not be had.
        if let Some(replaced) = put.replaced.filter(|r| inner.reuse.unsettled.get(r.off).is_some()) {
            settle_entry(op, shard, inner, replaced.off);
        }
        // PERSIST PS-L2: by the ticket's fence.
        leave(op.medium(), shard, inner, off);
        true
    }
}

// SAFETY: it waits for locks that are held for some instructions, writes entries back, and stores to volatile words.
unsafe impl<M: Medium> Settles<M> for PersistentSet<M> {
    fn settled(&self, op: &Op<'_, M>, changes: &[durix_pmem::PutOff]) -> durix_pmem::Result<()> {
        self.poison.check(op)?;
        let mut turns = PATIENCE;
        for change in changes {
            // Once is enough: it may be the calling thread that holds all locks.
            if !self.settled_entry(op, change.words, change.off(), turns) {
                turns = 1;
            }
        }
        Ok(())
    }
}

/// Has the operation's ticket settle what was found, too.
fn depend_on<M: Medium>(op: &Op<'_, M>, inner: &Inner, found: Option<Found>, hash: u64) {
    depend_on_entry(op, inner, found.filter(|found| found.is_unsettled).map(|found| found.off), hash);
}

/// Has the operation's ticket settle an entry, and before it those that it replaces.
fn depend_on_entry<M: Medium>(op: &Op<'_, M>, inner: &Inner, mut off: Option<u64>, hash: u64) {
    let (mut chain, ticket) = (Vec::new(), op.ticket());
    // The ticket that has an entry has those that it replaces.
    while let Some((at, put)) = off.and_then(|at| Some((at, inner.reuse.unsettled.get(at)?)))
        && put.ticket != ticket
    {
        chain.push((at, u64::from(put.lines), put.version));
        off = put.replaced.map(|replaced| replaced.off);
    }
    chain.into_iter().rev().for_each(|(off, lines, version)| op.put_off(off, lines, [hash, version]));
}

#[cold]
#[inline(never)]
fn settle_and_find<M: Medium>(
    op: &Op<'_, M>,
    shard: &Shard,
    inner: &mut Inner,
    found: Found,
    tag: Tag,
    key: &[u8],
) -> Option<Found> {
    settle_entry(op, shard, inner, found.off);
    shard.find(op, tag, key)
}

/// Issues the write-back of an entry of so many lines.
fn write_back<M: Medium>(op: &Op<'_, M>, off: u64, lines: u64) {
    // An entry lies within its slot, and slots lie in the pool.
    if let Ok(lines) = op.slice("an unsettled entry", Off::<Tail>::new(off), lines) {
        // PERSIST PS-L1: write-back, with the caller's fence.
        op.write_back_slice(lines);
    }
}

/// Settles an entry, and before it those that it replaces.
#[cold]
fn settle_entry<M: Medium>(op: &Op<'_, M>, shard: &Shard, inner: &mut Inner, off: u64) {
    let (mut chain, mut next) = (Vec::new(), Some(off));
    while let Some((off, put)) = next.and_then(|off| Some((off, inner.reuse.unsettled.get(off)?))) {
        write_back(op, off, put.lines.into());
        chain.push(off);
        next = put.replaced.map(|replaced| replaced.off);
    }
    // PERSIST PS-L1: flush+fence.
    op.fence();
    // PERSIST PS-L5: the oldest first.
    chain.into_iter().rev().for_each(|off| leave(op.medium(), shard, inner, off));
}

/// Settles all entries of a shard.
#[cold]
#[inline(never)]
fn settle_entries<M: Medium>(op: &Op<'_, M>, shard: &Shard, inner: &mut Inner) {
    let mut all: Vec<_> = inner.reuse.unsettled.iter().map(|put| (put.version, put.off, put.lines)).collect();
    // In the order in which they were written, so that one that is replaced leaves first.
    all.sort_unstable();
    all.iter().for_each(|(_, off, lines)| write_back(op, *off, (*lines).into()));
    // PERSIST PS-L1: flush+fence.
    op.fence();
    all.into_iter().for_each(|(_, off, _)| leave(op.medium(), shard, inner, off));
}

/// After its fence, and after those that it replaces have left: the entry is one as any other.
fn leave<M: Medium>(m: M, shard: &Shard, inner: &mut Inner, off: u64) {
    let Some(put) = inner.reuse.unsettled.remove(off) else { return };
    inner.reuse.settled += 1;
    // PERSIST PS-L3: it is durable.
    if let Some(replaced) = put.replaced {
        inner.reuse.push_stale(replaced.class, replaced.off, replaced.transaction);
    }
    // A newer entry that has taken its place in the index queues it when it leaves itself.
    if let Some(at) = shard.index.find_off(m, put.tag, off) {
        if put.is_tombstone {
            shard.index.remove(m, &mut inner.tables, at);
            inner.reuse.push_tombstone(put.class, off, 0);
        } else {
            shard.index.cells(m).store(m, at, Cell::new(put.tag, off));
        }
    }
    shard.set_unsettled(m, inner.reuse.unsettled.len());
}

impl<M: Medium> Drop for PersistentSet<M> {
    /// Tickets keep the set open. What is left is of one that found no session.
    fn drop(&mut self) {
        if self.shards.iter_mut().all(|shard| shard.get_mut().reuse.unsettled.is_empty()) {
            return;
        }
        let pool = self.root.pool().clone();
        let settled = pool.session().and_then(|mut session| session.enter().map(|op| self.settle_all(&op)));
        if settled.is_err_and(|error| !matches!(error, durix_pmem::Error::Forked)) {
            // The pool must not say that it was closed.
            self.poison.poison();
        }
    }
}
