//! The hash table.

use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

use durix_pmem::pool::Poison;
use durix_pmem::{Hardware, Kind, Medium, Op, Root, Session, Structure};

use super::SoftOptions;
use super::layout::LAYOUT_VERSION;
use super::recover::recover;
use super::store::{Freed, Live, Made, Store};
use super::table::{Entry, Locked, Table, hash};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::map::{Found, WordMap};
use crate::words::Words;

/// A durable concurrent hash map of 8-byte keys and values, with its index in volatile memory: one fence an update, none a
/// read. Opening it reads all of it.
///
/// ```
/// use durix_logfree::SoftHash;
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("years.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let years = SoftHash::open(&pool, "years")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// assert!(years.insert(&op, 1, 1990)?);
/// assert_eq!(years.put(&op, 1, 1991)?, Some(1990));
/// assert_eq!(years.get(&op, 1)?, Some(1991));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type SoftHash<M = Hardware> = Words<SoftHashCore<M>, M>;

/// What a [`SoftHash`] is made of.
pub struct SoftHashCore<M: Medium> {
    pub(super) store: Store<M>,
    pub(super) table: Table,
    pub(super) poison: Poison<M>,
    /// The map that it is a part of, for tickets.
    pub(super) me: OnceLock<Weak<SoftHash<M>>>,
    /// Whether an update was ever settled later.
    pub(super) has_put_off: AtomicU64,
}

impl<M: Medium> Structure<M> for SoftHashCore<M> {
    const KIND: Kind = Kind { tag: *b"LF-SOFTH", version: LAYOUT_VERSION };
    type Options = SoftOptions;
    type Error = Error;

    fn create(_session: &mut Session<M>, _root: &Root<M>, _options: &SoftOptions) -> Result<()> {
        // An empty map has no extents.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &SoftOptions) -> Result<Self> {
        let (poison, table) = (Poison::new(root.clone()), Table::new(options.buckets));
        let (me, has_put_off) = (OnceLock::new(), AtomicU64::new(0));
        let map = SoftHashCore { store: Store::new(root), table, poison, me, has_put_off };
        recover(&map.store, session, options.recovery_threads, |op, members| {
            members.iter().try_for_each(|member| map.adopt(op, member))
        })?;
        Ok(map)
    }
}

impl<M: Medium> SoftHashCore<M> {
    /// Makes a member in `place`, which is the session's next free line, and publishes it.
    #[inline(always)]
    fn insert_at(&self, op: &Op<'_, M>, at: Locked<'_, M>, hash: u64, made: &Made) -> bool {
        self.store.begin_insert(op, made);
        // What is volatile costs nothing while the line is on its way; nothing locked may be among it.
        self.store.take(op);
        let cell = at.free_cell();
        // PERSIST LF-M4: flush+fence.
        op.fence();
        at.publish(cell, Entry::new(hash, made.place, 0))
    }

    /// Enters a member that recovery has found.
    fn adopt(&self, op: &Op<'_, M>, &Live { place, key, value }: &Live) -> Result<()> {
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |_| ());
            if look.found.is_some() {
                let offset = place.get();
                return Err(Error::Corrupt { what: "a second member with one key", offset, found: key });
            }
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                let spilled = locked.publish(locked.free_cell(), Entry::new(hash, place, value));
                drop(locked);
                if spilled {
                    self.table.grow(op);
                }
                return Ok(());
            }
        }
    }
}

impl<M: Medium> WordMap<M> for SoftHashCore<M> {
    const NAME: &'static str = "SoftHash";
    const ORDERED: bool = false;

    fn root(&self) -> &Root<M> {
        self.store.root()
    }

    fn opened(&self, me: Arc<dyn Any + Send + Sync>) {
        if let Ok(me) = me.downcast() {
            self.me.get_or_init(|| Arc::downgrade(&me));
        }
    }

    #[inline]
    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        match self.table.look(op, hash(key), key, |found| found.value(op)).found {
            Some((found, _)) if found.entry.is_unsettled() => Ok(self.get_unsettled(op, key)),
            found => Ok(found.map(|(_, value)| value)),
        }
    }

    #[inline]
    fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        self.store.expect_own(op)?;
        match self.table.look(op, hash(key), key, |_| ()).found {
            Some((found, ())) if found.entry.is_unsettled() => Ok(self.get_unsettled(op, key).is_some()),
            found => Ok(found.is_some()),
        }
    }

    #[inline]
    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        self.store.expect_own(op)?;
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        if self.begins_to_put_off(op) {
            return self.insert_later(op, key, value);
        }
        loop {
            let look = self.table.look(op, hash, key, |_| ());
            if let Some((found, ())) = look.found {
                if found.entry.is_unsettled() {
                    self.settle(op, hash, found.entry.place());
                    continue;
                }
                return Ok(false);
            }
            let _guard = self.poison.guard(op)?;
            let place = self.store.next(op)?;
            let Some(value) = value() else { return Ok(false) };
            let made = Made::new(place, key, value, 0);
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                let spilled = self.insert_at(op, locked, hash, &made);
                if spilled {
                    self.table.grow(op);
                }
                return Ok(true);
            }
        }
    }

    #[inline(always)]
    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
        self.store.expect_own(op)?;
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        if self.begins_to_put_off(op) {
            return self.change_later(op, key, new);
        }
        loop {
            let look = self.table.look(op, hash, key, |found| found.value(op));
            let Some((found, old)) = look.found else { return Ok(None) };
            if found.entry.is_unsettled() {
                self.settle(op, hash, found.entry.place());
                continue;
            }
            let Some(value) = new(old) else { return Ok(Some((old, false))) };
            let _guard = self.poison.guard(op)?;
            let next = found.entry.other_value();
            let made = Made::new(next.place(), key, value, next.value());
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                self.store.begin_update(op, &made);
                // PERSIST LF-M6: flush+fence.
                op.fence();
                locked.replace(found, next);
                return Ok(Some((old, true)));
            }
        }
    }

    #[inline(always)]
    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
        self.store.expect_own(op)?;
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        if self.begins_to_put_off(op) {
            return self.remove_later(op, key, wanted);
        }
        loop {
            let look = self.table.look(op, hash, key, |found| found.value(op));
            let Some((found, value)) = look.found else { return Ok(None) };
            if found.entry.is_unsettled() {
                self.settle(op, hash, found.entry.place());
                continue;
            }
            if !wanted(value) {
                return Ok(Some((value, false)));
            }
            let _guard = self.poison.guard(op)?;
            let place = found.entry.place();
            let freed = Freed::new(place);
            if let Some(mut locked) = self.table.lock(m, &look, &mut turn) {
                self.store.begin_remove(op, &freed);
                // PERSIST LF-M7: flush+fence.
                op.fence();
                locked.remove(found);
                drop(locked);
                self.store.give_back(op, place);
                return Ok(Some((value, true)));
            }
        }
    }

    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        Ok(self.table.walk(op, |place| self.store.give_back(op, place), from, into))
    }

    /// The table does not grow meanwhile.
    fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, u64)) -> Result<()> {
        self.store.expect_own(op)?;
        let free = |place| self.store.give_back(op, place);
        self.table.for_each(op, free, |entries| entries.iter().for_each(|(key, value)| f(*key, *value)));
        Ok(())
    }

    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        self.store.expect_own(op)?;
        self.settle_all(op);
        Ok(self.store.check(op, self.table.places(op)))
    }

    fn volatile_bytes(&self, op: &Op<'_, M>) -> Option<u64> {
        Some(self.table.bytes(op.medium()))
    }
}

#[cfg(test)]
mod tests;
