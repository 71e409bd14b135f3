//! A shard: a part of the keys, with its index, its slots and its versions.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use durix_pmem::{Lock, LockGuard, Medium, Op};

use super::entry::Entry;
use super::layout::{Class, Info, Meta, head_at};
use super::reuse::Reuse;
use super::table::{Cell, Index, Tables, Tag};

/// A part of the keys, by hash.
#[derive(Debug)]
pub(super) struct Shard {
    /// What readers see.
    pub(super) index: Index,
    /// Number of keys.
    live: AtomicU64,
    /// Number of unsettled entries.
    unsettled: AtomicU64,
    /// What the one writer at a time owns.
    inner: CachePadded<Lock<Inner>>,
}

/// What the holder of a shard's lock owns.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Inner {
    /// The last version given to an entry. Versions of one key ascend; those of different shards have nothing to do with
    /// each other, except that all start above everything that recovery found.
    version: u64,
    pub(super) reuse: Reuse,
    pub(super) tables: Tables,
}

/// Turns of waiting for a lock that is not needed: about a second.
pub(super) const PATIENCE: u32 = 1 << 14;

/// A key's place in a shard's index and its entry, as the holder of the lock finds them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) off: u64,
    pub(super) meta: Meta,
    pub(super) info: Info,
    /// Whether a crash can still take the entry back. It may be a tombstone then.
    pub(super) is_unsettled: bool,
}

impl Found {
    #[inline(always)]
    fn new(at: usize, cell: Cell, entry: &Entry<'_>) -> Found {
        Found { at, off: cell.off(), meta: entry.meta, info: entry.info, is_unsettled: cell.is_unsettled() }
    }
}

impl Inner {
    /// The version for the next entry.
    #[inline]
    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Queues an entry that was superseded.
    #[inline(always)]
    fn push_stale(&mut self, old: Found) {
        let class = class_of(old.info);
        self.reuse.push_stale(class, old.off, transaction_of(old.info, old.meta.version()));
    }

    /// The last version given out.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Gives no version up to `version` any more.
    pub(super) fn raise_version(&mut self, version: u64) {
        self.version = self.version.max(version);
    }
}

impl Shard {
    pub(super) fn new() -> Self {
        let (index, tables) = Index::new();
        let inner = Inner { version: 0, reuse: Reuse::new(), tables };
        Shard {
            index,
            live: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            inner: CachePadded::new(Lock::new(inner)),
        }
    }

    #[inline]
    pub(super) fn lock<M: Medium>(&self, m: M) -> LockGuard<'_, Inner, M> {
        self.inner.lock(m)
    }

    /// The lock, unless somebody holds it.
    pub(super) fn try_lock<M: Medium>(&self, m: M) -> Option<LockGuard<'_, Inner, M>> {
        self.inner.try_lock(m)
    }

    /// The lock, unless somebody holds it for so many turns: then it may be the calling thread itself.
    pub(super) fn lock_soon<M: Medium>(&self, m: M, turns: u32) -> Option<LockGuard<'_, Inner, M>> {
        (0..turns).find_map(|turn| {
            let inner = self.inner.try_lock(m);
            if inner.is_none() {
                m.spin(turn);
            }
            inner
        })
    }

    /// What the holder of the lock owns, where nobody else has the shard.
    pub(super) fn get_mut(&mut self) -> &mut Inner {
        self.inner.get_mut()
    }

    /// Number of unsettled entries.
    pub(super) fn unsettled<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.unsettled, Ordering::Acquire)
    }

    pub(super) fn set_unsettled<M: Medium>(&self, m: M, number: usize) {
        m.shared_store(&self.unsettled, number as u64, Ordering::Release);
    }

    /// Number of keys.
    pub(super) fn len<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.live, Ordering::Relaxed)
    }

    pub(super) fn set_len<M: Medium>(&self, m: M, len: u64) {
        m.shared_store(&self.live, len, Ordering::Relaxed);
    }

    /// Asks the processor for what an update of a key with `tag` needs: the lock and what it guards, and the entry that is
    /// likely to be the key's. A hint; without the lock.
    #[inline(always)]
    pub(super) fn prefetch<M: Medium>(&self, op: &Op<'_, M>, tag: Tag) {
        self.inner.prefetch();
        if let Some(off) = self.index.hint(tag) {
            op.prefetch_write(head_at(off));
        }
    }

    /// Finds a key whose entry is settled, short and the first with its tag, as most are; under the shard's lock.
    #[inline(always)]
    pub(super) fn find_short<M: Medium>(&self, op: &Op<'_, M>, tag: Tag, key: &[u8]) -> Option<Found> {
        let cells = self.index.cells(op.medium());
        let (at, cell) = cells.next(op.medium(), &mut cells.probe(tag))?;
        if cell.is_unsettled() {
            return None;
        }
        let entry = Entry::short_at(op, cell.off())?;
        entry.key_is(op, key).then(|| Found::new(at, cell, &entry))
    }

    /// Finds a key, under the shard's lock: nothing that is reachable changes meanwhile.
    #[inline(never)]
    pub(super) fn find<M: Medium>(&self, op: &Op<'_, M>, tag: Tag, key: &[u8]) -> Option<Found> {
        let (at, (cell, entry)) = self.index.find(op.medium(), tag, |cell| {
            Entry::at(op, cell.off()).filter(|entry| entry.key_is(op, key)).map(|entry| (cell, entry))
        })?;
        Some(Found::new(at, cell, &entry))
    }

    /// Makes the durable entry at `off` the one of its key, which had `old` so far.
    #[inline(always)]
    pub(super) fn publish<M: Medium>(&self, m: M, inner: &mut Inner, new: New, old: Option<Found>) {
        match old {
            Some(old) if !new.info.is_tombstone() => {
                self.index.cells(m).store(m, old.at, Cell::new(new.tag, new.off));
                inner.push_stale(old);
            }
            _ => self.publish_otherwise(m, inner, new, old),
        }
    }

    /// The same, where the set of keys changes.
    #[inline(never)]
    fn publish_otherwise<M: Medium>(&self, m: M, inner: &mut Inner, new: New, old: Option<Found>) {
        let live = self.len(m);
        match old {
            None if new.info.is_tombstone() => {}
            None => {
                self.index.reserve(m, &mut inner.tables, 1);
                self.index.add(m, &mut inner.tables, Cell::new(new.tag, new.off));
                self.set_len(m, live + 1);
            }
            Some(old) => {
                self.index.remove(m, &mut inner.tables, old.at);
                self.set_len(m, live - 1);
                inner.push_stale(old);
            }
        }
        if new.info.is_tombstone() {
            inner.reuse.push_tombstone(new.class, new.off, transaction_of(new.info, new.version));
        }
    }

    /// Makes the unsettled entry at `off` the one of its key, which had `old` so far. An unsettled tombstone stays in the index.
    pub(super) fn publish_unsettled<M: Medium>(&self, m: M, inner: &mut Inner, new: New, old: Option<Found>) {
        let cell = Cell::unsettled(new.tag, new.off);
        match old {
            Some(old) => self.index.cells(m).store(m, old.at, cell),
            None => {
                self.index.reserve(m, &mut inner.tables, 1);
                self.index.add(m, &mut inner.tables, cell);
            }
        }
        let was_there = old.is_some_and(|old| !old.info.is_tombstone());
        let live = self.len(m) + u64::from(!new.info.is_tombstone());
        self.set_len(m, live - u64::from(was_there));
        self.set_unsettled(m, inner.reuse.unsettled.len());
    }
}

/// An entry that has just become durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct New {
    pub(super) tag: Tag,
    pub(super) off: u64,
    pub(super) version: u64,
    pub(super) info: Info,
    /// The class of its slot.
    pub(super) class: Class,
}

/// The class of slots that an entry lies in.
#[inline(always)]
pub(super) fn class_of(info: Info) -> Class {
    Class::of_lines(info.lines())
}

/// The version of the transaction that an entry belongs to, 0 without one.
#[inline(always)]
pub(super) fn transaction_of(info: Info, version: u64) -> u64 {
    if info.transaction() > 0 { version } else { 0 }
}
