//! A shard: a part of the keys, with its index, its slots and its versions.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use durix_pmem::{Lock, LockGuard, Medium, Op};

use super::entry::Entry;
use super::layout::{Class, Info, head_at};
use super::reuse::Reuse;
use super::table::{Cell, Index, Tables, Tag};

/// A part of the keys, by hash.
#[derive(Debug)]
pub(super) struct Shard {
    /// What readers see.
    pub(super) index: Index,
    /// Number of keys.
    live: AtomicU64,
    /// What the one writer at a time owns.
    inner: CachePadded<Lock<Inner>>,
}

/// What the holder of a shard's lock owns.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) tables: Tables,
    pub(super) reuse: Reuse,
    /// The last version given to an entry. Versions of one key ascend; those of different shards have nothing to do with
    /// each other, except that all start above everything that recovery found.
    version: u64,
}

/// A key's place in a shard's index, as the holder of the lock finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'s> {
    pub(super) at: usize,
    pub(super) off: u64,
    pub(super) entry: Entry<'s>,
}

impl Inner {
    /// The version for the next entry.
    #[inline]
    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
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
        let inner = Inner { tables, reuse: Reuse::new(), version: 0 };
        Shard { index, live: AtomicU64::new(0), inner: CachePadded::new(Lock::new(inner)) }
    }

    #[inline]
    pub(super) fn lock<M: Medium>(&self, m: M) -> LockGuard<'_, Inner, M> {
        self.inner.lock(m)
    }

    /// Number of keys.
    pub(super) fn len<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.live, Ordering::Relaxed)
    }

    pub(super) fn set_len<M: Medium>(&self, m: M, len: u64) {
        m.shared_store(&self.live, len, Ordering::Relaxed);
    }

    /// Finds a key, under the shard's lock: nothing that is reachable changes meanwhile.
    #[inline]
    pub(super) fn find<'s, M: Medium>(&self, op: &Op<'s, M>, tag: Tag, key: &[u8]) -> Option<Found<'s>> {
        let cells = self.index.cells(op.medium());
        let mut probe = cells.probe(tag);
        while let Some((at, cell)) = cells.next(op.medium(), &mut probe) {
            if let Some(entry) = Entry::at(op, cell.off())
                && entry.key_is(op, key)
            {
                return Some(Found { at, off: cell.off(), entry });
            }
        }
        None
    }

    /// Has the entry that a key is likely to have fetched.
    #[inline]
    pub(super) fn prefetch<M: Medium>(&self, op: &Op<'_, M>, tag: Tag) {
        let cells = self.index.cells(op.medium());
        if let Some((_, cell)) = cells.next(op.medium(), &mut cells.probe(tag)) {
            op.prefetch_write(head_at(cell.off()));
        }
    }

    /// Makes the durable entry at `off` the one of its key, which had `old` so far.
    #[inline]
    pub(super) fn publish<M: Medium>(&self, m: M, inner: &mut Inner, new: New, old: Option<Found<'_>>) {
        let live = self.len(m);
        match (&old, new.info.is_tombstone()) {
            (Some(old), false) => self.index.cells(m).store(m, old.at, Cell::new(new.tag, new.off)),
            (None, false) => {
                self.index.add(m, &mut inner.tables, Cell::new(new.tag, new.off));
                self.set_len(m, live + 1);
            }
            (Some(old), true) => {
                self.index.remove(m, &mut inner.tables, old.at);
                self.set_len(m, live - 1);
            }
            (None, true) => {}
        }
        if let Some(old) = old {
            let transaction = transaction_of(old.entry.info, old.entry.meta.version());
            inner.reuse.push_stale(class_of(old.entry.info), old.off, transaction);
        }
        if new.info.is_tombstone() {
            inner.reuse.push_tombstone(class_of(new.info), new.off, transaction_of(new.info, new.version));
        }
    }
}

/// An entry that has just become durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct New {
    pub(super) tag: Tag,
    pub(super) off: u64,
    pub(super) version: u64,
    pub(super) info: Info,
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
