//! A shard: a part of the keys, with its index, its slots and its versions.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use durix_pmem::{Lock, LockGuard, Medium, Op};

use super::entry::Entry;
use super::layout::{Class, Info, head_at};
use super::reuse::Reuse;
use super::table::{Cell, Cells, Index, Probe, Tables, Tag};

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

    /// Queues the entry that `new` has superseded.
    #[inline(always)]
    fn push_stale(&mut self, old: &Found<'_>, new: New) {
        let info = old.entry.info;
        let class = if info == new.info { new.class } else { class_of(info) };
        self.reuse.push_stale(class, old.off, transaction_of(info, old.entry.meta.version()));
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
    #[inline(always)]
    pub(super) fn find<'s, M: Medium>(&self, op: &Op<'s, M>, tag: Tag, key: &[u8]) -> Option<Found<'s>> {
        self.search(op.medium(), tag).finish(op, key)
    }

    /// The first half of [`find`](Self::find), which reads the index alone.
    #[inline(always)]
    pub(super) fn search<M: Medium>(&self, m: M, tag: Tag) -> Search<'_> {
        let cells = self.index.cells(m);
        let mut probe = cells.probe(tag);
        Search { next: cells.next(m, &mut probe), cells, probe }
    }

    /// Makes the durable entry at `off` the one of its key, which had `old` so far.
    #[inline(always)]
    pub(super) fn publish<M: Medium>(&self, m: M, inner: &mut Inner, new: New, old: Option<Found<'_>>) {
        let Some(old) = old.filter(|_| !new.info.is_tombstone()) else {
            return self.publish_otherwise(m, inner, new, old);
        };
        self.index.cells(m).store(m, old.at, Cell::new(new.tag, new.off));
        inner.push_stale(&old, new);
    }

    /// The same, where the set of keys changes.
    #[inline]
    fn publish_otherwise<M: Medium>(&self, m: M, inner: &mut Inner, new: New, old: Option<Found<'_>>) {
        let live = self.len(m);
        match &old {
            None if new.info.is_tombstone() => {}
            None => {
                self.index.add(m, &mut inner.tables, Cell::new(new.tag, new.off));
                self.set_len(m, live + 1);
            }
            Some(old) => {
                self.index.remove(m, &mut inner.tables, old.at);
                self.set_len(m, live - 1);
                inner.push_stale(old, new);
            }
        }
        if new.info.is_tombstone() {
            inner.reuse.push_tombstone(new.class, new.off, transaction_of(new.info, new.version));
        }
    }
}

/// A search that has looked at the index and not yet at any entry. Nothing that it has seen changes before the lock of the
/// shard is given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search<'a> {
    cells: Cells<'a>,
    probe: Probe,
    next: Option<(usize, Cell)>,
}

impl Search<'_> {
    /// Has the entry that the key is likely to have fetched.
    #[inline(always)]
    pub(super) fn prefetch<M: Medium>(&self, op: &Op<'_, M>) {
        if let Some((_, cell)) = self.next {
            op.prefetch_write(head_at(cell.off()));
        }
    }

    /// The entry of `key`.
    #[inline(always)]
    pub(super) fn finish<'s, M: Medium>(mut self, op: &Op<'s, M>, key: &[u8]) -> Option<Found<'s>> {
        while let Some((at, cell)) = self.next {
            if let Some(entry) = Entry::at(op, cell.off())
                && entry.key_is(op, key)
            {
                return Some(Found { at, off: cell.off(), entry });
            }
            self.next = self.cells.next(op.medium(), &mut self.probe);
        }
        None
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
