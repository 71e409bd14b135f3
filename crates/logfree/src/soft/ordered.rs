//! The sorted list and the skip list.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};

use durix_pmem::pool::Poison;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Session, Structure};

use super::SoftOptions;
use super::layout::LAYOUT_VERSION;
use super::links::{Entry, Links, hold_live, is_deleted, read, wait_for_unlink};
use super::nodes::LEVELS;
use super::recover::recover;
use super::store::Store;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::range;

/// A durable concurrent sorted list of 8-byte keys and values, with its links in volatile memory. Operations are linear in its
/// length: it is for small numbers of keys. Otherwise as [`SoftSkipList`].
pub type SoftList<M = Hardware> = SoftOrdered<M, 1>;

/// A durable concurrent ordered map of 8-byte keys and values, with its links in volatile memory: one fence an update, none a
/// read. Opening it reads all of it.
///
/// ```
/// use durix_logfree::SoftSkipList;
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("years.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let years = SoftSkipList::open(&pool, "years")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// assert!(years.insert(&op, 1990, 1)? && years.insert(&op, 1985, 2)?);
/// assert_eq!(years.put(&op, 1990, 3)?, Some(1));
/// let mut found = Vec::new();
/// years.range_rev(&op, 1980.., |year, value| found.push((year, value)))?;
/// assert_eq!(found, [(1990, 3), (1985, 2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns. Errors are [`Error::Pool`]: the
/// pool is full, or a panic has met the map ([`durix_pmem::Error::Poisoned`]).
pub type SoftSkipList<M = Hardware> = SoftOrdered<M, LEVELS>;

/// An ordered map with members in persistent memory and up to `N` levels of links in volatile memory; see [`SoftSkipList`] and
/// [`SoftList`].
pub struct SoftOrdered<M: Medium, const N: usize> {
    store: Store<M>,
    links: Links<N>,
    poison: Poison<M>,
}

impl<M: Medium, const N: usize> fmt::Debug for SoftOrdered<M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if N == 1 { "SoftList" } else { "SoftSkipList" };
        f.debug_struct(name).field("root", self.store.root()).finish_non_exhaustive()
    }
}

impl<M: Medium, const N: usize> Structure<M> for SoftOrdered<M, N> {
    const KIND: Kind = Kind { tag: if N == 1 { *b"LF-SOFTL" } else { *b"LF-SOFTS" }, version: LAYOUT_VERSION };
    type Options = SoftOptions;
    type Error = Error;

    fn create(_session: &mut Session<M>, _root: &Root<M>, _options: &SoftOptions) -> Result<()> {
        // An empty map has no extents.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &SoftOptions) -> Result<Self> {
        let poison = Poison::new(root.clone());
        let links = Links::new(&session.enter()?);
        let map = SoftOrdered { store: Store::new(root), links, poison };
        map.recover(session, options)?;
        Ok(map)
    }
}

impl<M: Medium, const N: usize> SoftOrdered<M, N> {
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

    /// Reads all members, sorts them, and links them.
    fn recover(&self, session: &mut Session<M>, options: &SoftOptions) -> Result<()> {
        let all = Mutex::new(Vec::new());
        recover(&self.store, session, options.recovery_threads, |_, members| {
            let entries = members.iter().map(|member| (member.key, Entry::new(member.place, member.value)));
            all.lock().unwrap_or_else(|e| e.into_inner()).extend(entries);
            Ok(())
        })?;
        let mut all = all.into_inner().unwrap_or_else(|e| e.into_inner());
        all.sort_unstable_by_key(|(key, _)| *key);
        if let Some([_, second]) = all.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|p| [p[0], p[1]]) {
            let (found, entry) = second;
            return Err(Error::Corrupt { what: "a second member with one key", offset: entry.place().get(), found });
        }
        self.links.build(&session.enter()?, all);
        Ok(())
    }

    /// Inserts a key with its value, if it is not there; returns whether it was not. One fence; none if it is there.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        self.store.expect_own(op)?;
        let (m, mut turn, mut drawn) = (op.medium(), 0, None);
        loop {
            let path = self.links.path(m, key);
            if let Some((node, _)) = path.found {
                if !is_deleted(m, node) {
                    return Ok(false);
                }
                // Whoever has deleted it takes it out, if he has not panicked.
                self.poison.check(op)?;
                wait_for_unlink(m, node, &mut turn);
                continue;
            }
            let _guard = self.poison.guard(op)?;
            let place = self.store.next(op)?;
            let mut local = self.links.nodes.local(op);
            let levels = *drawn.get_or_insert_with(|| local.levels(N));
            let Some(around) = path.lock(m, levels) else { continue };
            let name = self.links.nodes.take(op, &mut local, levels);
            let node = self.links.nodes.at(name);
            self.store.begin_insert(op, place, key, value);
            // What is volatile costs nothing while the line is on its way; nothing locked may be among it.
            self.store.take(op);
            around.prepare(node, key, Entry::new(place, 0));
            // PERSIST LF-M4: flush+fence.
            op.fence();
            around.link(node, name);
            return Ok(true);
        }
    }

    /// Removes a key; returns its value. One fence; none if it is not there.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        Ok(self.remove_if(op, key, |_| true)?.map(|(value, _)| value))
    }

    /// Removes a key if its value is `wanted`; returns the value found, and whether it was removed.
    fn remove_if(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<(u64, bool)>> {
        self.store.expect_own(op)?;
        let m = op.medium();
        let path = self.links.path(m, key);
        let Some((node, name)) = path.found else { return Ok(None) };
        match read(op, node) {
            None => return Ok(None),
            Some(value) if !wanted(value) => return Ok(Some((value, false))),
            Some(_) => {}
        }
        let _guard = self.poison.guard(op)?;
        let Some(mut held) = hold_live(m, node) else { return Ok(None) };
        let entry = held.entry();
        let value = entry.load(op);
        if !wanted(value) {
            return Ok(Some((value, false)));
        }
        let mut path = Some(path);
        loop {
            // The node stays where it is while it is held; what is before it may have changed.
            let path = path.take().unwrap_or_else(|| self.links.path(m, key));
            let Some(around) = path.lock(m, held.levels()) else { continue };
            self.store.begin_remove(op, entry.place());
            // PERSIST LF-M7: flush+fence.
            op.fence();
            around.unlink(&mut held);
            break;
        }
        drop(held);
        self.store.give_back(op, entry.place());
        self.links.nodes.retire(op, &mut self.links.nodes.local(op), name);
        Ok(Some((value, true)))
    }

    /// Replaces the value of a key by what `new` makes of it; returns the value found, and whether it was replaced.
    fn change(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Option<(u64, bool)>> {
        self.store.expect_own(op)?;
        let m = op.medium();
        let Some((node, _)) = self.links.path(m, key).found else { return Ok(None) };
        match read(op, node) {
            None => return Ok(None),
            Some(old) if new(old).is_none() => return Ok(Some((old, false))),
            Some(_) => {}
        }
        let _guard = self.poison.guard(op)?;
        let Some(held) = hold_live(m, node) else { return Ok(None) };
        let old = held.entry().load(op);
        let Some(value) = new(old) else { return Ok(Some((old, false))) };
        let next = held.entry().other_value();
        self.store.begin_update(op, next.place(), next.value(), value);
        // PERSIST LF-M6: flush+fence.
        op.fence();
        held.replace(next);
        Ok(Some((old, true)))
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
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        Ok(self.links.get(op, key))
    }

    /// Whether a key is there; as [`get`](Self::get).
    ///
    /// # Errors
    /// None at present.
    pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        self.store.expect_own(op)?;
        Ok(self.links.get(op, key).is_some())
    }

    /// Appends some entries from key `from` on, ascending; returns where to go on, if that was not all. Each entry was there
    /// at some moment of the call.
    ///
    /// # Errors
    /// None at present.
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        let all = self.links.up(op, (from, u64::MAX), into);
        Ok(into.last().and_then(|(key, _)| key.checked_add(1)).filter(|_| !all))
    }

    /// Appends some entries from key `to` down, descending; as [`walk`](Self::walk).
    ///
    /// # Errors
    /// None at present.
    pub fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        let all = self.links.down(op, (0, to), into);
        Ok(into.last().and_then(|(key, _)| key.checked_sub(1)).filter(|_| !all))
    }

    /// Bytes of the nodes in volatile memory.
    pub fn volatile_bytes(&self, op: &Op<'_, M>) -> u64 {
        self.links.nodes.bytes(op)
    }

    /// Calls `f` for each entry of a range, ascending. Each entry was there at some moment of the call; it is no snapshot.
    /// `f` may change the map.
    ///
    /// # Errors
    /// None at present.
    pub fn range(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, f: impl FnMut(u64, u64)) -> Result<()> {
        self.store.expect_own(op)?;
        range::upwards(&range, |ends, batch| Ok(self.links.up(op, ends, batch)), f)
    }

    /// As [`range`](Self::range), descending.
    ///
    /// # Errors
    /// None at present.
    pub fn range_rev(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, f: impl FnMut(u64, u64)) -> Result<()> {
        self.store.expect_own(op)?;
        range::downwards(&range, |ends, batch| Ok(self.links.down(op, ends, batch)), f)
    }

    /// Calls `f` for each entry, ascending; as [`range`](Self::range).
    ///
    /// # Errors
    /// None at present.
    pub fn for_each(&self, op: &Op<'_, M>, f: impl FnMut(u64, u64)) -> Result<()> {
        self.range(op, .., f)
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// None at present.
    pub fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.store.expect_own(op)?;
        let mut batch = Vec::new();
        self.links.up(op, (0, u64::MAX), &mut batch);
        Ok(batch.first().copied())
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// None at present.
    pub fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.store.expect_own(op)?;
        let mut batch = Vec::new();
        self.links.down(op, (0, u64::MAX), &mut batch);
        Ok(batch.first().copied())
    }

    /// Number of keys. Linear.
    ///
    /// # Errors
    /// None at present.
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        let mut len = 0;
        self.for_each(op, |_, _| len += 1)?;
        Ok(len)
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// None at present.
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.first(op)?.is_none())
    }

    /// Compares the members with the index and with what is known to be free. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool was corrupted since.
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        self.store.expect_own(op)?;
        Ok(self.store.check(op, self.links.places(op)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::PoolOptions;
    use durix_pmem::backing::HeapBacking;

    /// The insert waited for ever for the node to be taken out.
    #[test]
    fn an_insert_does_not_wait_for_a_remover_that_has_panicked() {
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let list = SoftOrdered::<Hardware, 1>::open(&pool, "list").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert!(list.insert(&op, 1, 10).unwrap());
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = list.poison.guard(&op).unwrap();
            let (node, _) = list.links.path(op.medium(), 1).found.unwrap();
            hold_live(op.medium(), node).unwrap().leave_deleted();
            panic!("in a remove");
        }));
        assert!(panics.is_err());
        assert!(matches!(list.insert(&op, 1, 11), Err(Error::Pool(durix_pmem::Error::Poisoned { .. }))));
    }
}
