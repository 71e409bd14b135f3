//! The hash table.

use std::fmt;
use std::sync::Arc;

use durix_pmem::pool::Poison;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Session, Structure};

use super::SoftOptions;
use super::layout::LAYOUT_VERSION;
use super::recover::recover;
use super::store::{Live, Place, Store};
use super::table::{Entry, Locked, Table, hash};
use crate::error::{Error, Result};
use crate::finding::Finding;

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
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns. Errors are [`Error::Pool`]: the
/// pool is full, or a panic has met the map ([`durix_pmem::Error::Poisoned`]).
pub struct SoftHash<M: Medium = Hardware> {
    store: Store<M>,
    table: Table,
    poison: Poison<M>,
}

impl<M: Medium> fmt::Debug for SoftHash<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftHash").field("root", self.store.root()).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for SoftHash<M> {
    const KIND: Kind = Kind { tag: *b"LF-SOFTH", version: LAYOUT_VERSION };
    type Options = SoftOptions;
    type Error = Error;

    fn create(_session: &mut Session<M>, _root: &Root<M>, _options: &SoftOptions) -> Result<()> {
        // An empty map has no extents.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &SoftOptions) -> Result<Self> {
        let (poison, table) = (Poison::new(root.clone()), Table::new(options.buckets));
        let map = SoftHash { store: Store::new(root), table, poison };
        recover(&map.store, session, options.recovery_threads, |op, members| {
            members.iter().try_for_each(|member| map.adopt(op, member))
        })?;
        Ok(map)
    }
}

impl<M: Medium> SoftHash<M> {
    /// Opens the map named `name`, creating it if it is not there. Reads all of it.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`].
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(pool, name, &SoftOptions::default())
    }

    /// As [`open`](Self::open), with options. A map that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pool: &Pool<M>, name: &str, options: &SoftOptions) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    /// Its place in its pool.
    pub fn root(&self) -> &Root<M> {
        self.store.root()
    }

    /// Inserts a key with its value, if it is not there; returns whether it was not. One fence; none if it is there.
    ///
    /// # Errors
    /// [`Error::Pool`].
    #[inline]
    pub fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        self.store.expect_own(op)?;
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |_| ());
            if look.found.is_some() {
                return Ok(false);
            }
            let _guard = self.poison.guard(op)?;
            let place = self.store.next(op)?;
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                let spilled = self.insert_at(op, locked, place, (hash, key, value));
                if spilled {
                    self.table.grow(op);
                }
                return Ok(true);
            }
        }
    }

    /// Makes a member in `place`, which is the session's next free line, and publishes it.
    #[inline(always)]
    fn insert_at(&self, op: &Op<'_, M>, at: Locked<'_, M>, place: Place, (hash, key, value): (u64, u64, u64)) -> bool {
        self.store.begin_insert(op, place, key, value);
        // What is volatile costs nothing while the line is on its way; nothing locked may be among it.
        self.store.take(op);
        let cell = at.free_cell();
        // PERSIST LF-M4: flush+fence.
        op.fence();
        at.publish(cell, Entry::new(hash, place, 0))
    }

    /// Removes a key; returns its value. One fence; none if it is not there.
    ///
    /// # Errors
    /// [`Error::Pool`].
    #[inline]
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        Ok(self.remove_if(op, key, |_| true)?.map(|(value, _)| value))
    }

    /// Removes a key if its value is `wanted`; returns the value found, and whether it was removed.
    #[inline(always)]
    fn remove_if(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<(u64, bool)>> {
        self.store.expect_own(op)?;
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |found| found.value(op));
            let Some((found, value)) = look.found else { return Ok(None) };
            if !wanted(value) {
                return Ok(Some((value, false)));
            }
            let _guard = self.poison.guard(op)?;
            if let Some(mut locked) = self.table.lock(m, &look, &mut turn) {
                let place = found.entry.place();
                self.store.begin_remove(op, place);
                // PERSIST LF-M7: flush+fence.
                op.fence();
                locked.remove(found);
                drop(locked);
                self.store.give_back(op, place);
                return Ok(Some((value, true)));
            }
        }
    }

    /// Replaces the value of a key by what `new` makes of it; returns the value found, and whether it was replaced.
    #[inline(always)]
    fn change(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Option<(u64, bool)>> {
        self.store.expect_own(op)?;
        let (m, hash, mut turn) = (op.medium(), hash(key), 0);
        loop {
            let look = self.table.look(op, hash, key, |found| found.value(op));
            let Some((found, old)) = look.found else { return Ok(None) };
            let Some(value) = new(old) else { return Ok(Some((old, false))) };
            let _guard = self.poison.guard(op)?;
            if let Some(locked) = self.table.lock(m, &look, &mut turn) {
                let next = found.entry.other_value();
                self.store.begin_update(op, next.place(), next.value(), value);
                // PERSIST LF-M6: flush+fence.
                op.fence();
                locked.replace(found, next);
                return Ok(Some((old, true)));
            }
        }
    }

    /// Replaces the value of a key that is there; returns the old one. One fence; none if it is not there.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        Ok(self.change(op, key, |_| Some(value))?.map(|(old, _)| old))
    }

    /// Replaces the value of a key if it is `expected`; returns whether it was. One fence; none if it was not.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool> {
        let outcome = self.change(op, key, |old| (old == expected).then_some(value))?;
        Ok(outcome.is_some_and(|(_, replaced)| replaced))
    }

    /// Removes a key if its value is `expected`; returns whether it did. One fence; none if it was not.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn compare_and_remove(&self, op: &Op<'_, M>, key: u64, expected: u64) -> Result<bool> {
        Ok(self.remove_if(op, key, |value| value == expected)?.is_some_and(|(_, removed)| removed))
    }

    /// Sets the value of a key, whether it is there or not; returns the old one. One fence.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn put(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        loop {
            if let Some(old) = self.update(op, key, value)? {
                return Ok(Some(old));
            }
            if self.insert(op, key, value)? {
                return Ok(None);
            }
        }
    }

    /// The value of a key. No fence, and waits for nobody.
    ///
    /// # Errors
    /// None at present.
    #[inline]
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        Ok(self.table.look(op, hash(key), key, |found| found.value(op)).found.map(|(_, value)| value))
    }

    /// Whether a key is there; as [`get`](Self::get).
    ///
    /// # Errors
    /// None at present.
    #[inline]
    pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        self.store.expect_own(op)?;
        Ok(self.table.look(op, hash(key), key, |_| ()).found.is_some())
    }

    /// Appends the entries of a part of the map: the one at `from`, 0 for the first; returns where to go on, if it was not
    /// the last. Each entry was there at some moment of the call; in a walk over all parts none comes twice, and none that
    /// is there all the time is passed over, also where the table grows meanwhile.
    ///
    /// # Errors
    /// None at present.
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        Ok(self.table.walk(op, from, into))
    }

    /// Bytes of the table in volatile memory.
    pub fn volatile_bytes(&self, op: &Op<'_, M>) -> u64 {
        self.table.bytes(op.medium())
    }

    /// Calls `f` for each entry, in no order. Each was there at some moment of the call; it is no snapshot. `f` may change
    /// the map, but must not iterate over it. The table does not grow meanwhile.
    ///
    /// # Errors
    /// None at present.
    pub fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, u64)) -> Result<()> {
        self.store.expect_own(op)?;
        self.table.for_each(op, |entries| entries.iter().for_each(|(key, value)| f(*key, *value)));
        Ok(())
    }

    /// Number of keys. Linear.
    ///
    /// # Errors
    /// None at present.
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        self.store.expect_own(op)?;
        let mut len = 0;
        self.table.for_each(op, |entries| len += entries.len() as u64);
        Ok(len)
    }

    /// Whether there is no key. Linear.
    ///
    /// # Errors
    /// None at present.
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.len(op)? == 0)
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

    /// Compares the members with the index and with what is known to be free. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool was corrupted since.
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        self.store.expect_own(op)?;
        Ok(self.store.check(op, self.table.places(op)))
    }
}

#[cfg(test)]
mod tests;
