//! Maps of words as programs use them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Session, Structure, Version};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::map::{OrderedWordMap, WordMap};
use crate::pages::PageStats;
use crate::range::{downwards, upwards};

/// A durable concurrent map of 8-byte keys and values: [`List`](crate::List), [`HashTable`](crate::HashTable),
/// [`SkipList`](crate::SkipList), [`Bst`](crate::Bst), [`SoftHash`](crate::SoftHash), [`SoftList`](crate::SoftList) and
/// [`SoftSkipList`](crate::SoftSkipList) are such maps.
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns. (With a link cache in
/// [`LinkCacheMode::Buffered`](crate::LinkCacheMode::Buffered) it is after the next [`sync`](Self::sync).)
///
/// | operation | fences of maps with durable links | fences of maps with links in volatile memory |
/// |---|---|---|
/// | insert | 2, and 1 more for a page newly active | 1 |
/// | update, exchange | 2, and 1 more for a page newly active | 1 |
/// | remove | 1, and 1 more for a page newly active | 1 |
/// | an update that changes nothing | 0 | 0 |
/// | a read | 0, or 1 where the key was changed so recently that the read has to make it durable | 0 |
///
/// # Errors
/// All operations return [`Error::Pool`] where the operation is one of another pool. Updates return it where the pool is full, and, with
/// links in volatile memory, after a panic in an update ([`durix_pmem::Error::Poisoned`]). [`Error::Corrupt`]: what was read makes no sense.
/// After an error the map is as it was.
pub struct Words<S, M: Medium = Hardware> {
    pub(crate) map: S,
    medium: PhantomData<fn() -> M>,
}

impl<S: WordMap<M>, M: Medium> fmt::Debug for Words<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(S::NAME).field("root", self.root()).finish_non_exhaustive()
    }
}

impl<S: WordMap<M> + Structure<M, Error = Error>, M: Medium> Structure<M> for Words<S, M> {
    const KIND: Kind = S::KIND;
    const OLDER: &'static [Version] = S::OLDER;
    const TALLIES: bool = S::TALLIES;
    type Options = S::Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &S::Options) -> Result<()> {
        S::create(session, root, options)
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &S::Options) -> Result<Self> {
        Ok(Words { map: S::open(session, root, options)?, medium: PhantomData })
    }

    fn opened(self: &Arc<Self>) {
        self.map.opened(Arc::clone(self) as _);
    }
}

impl<S: WordMap<M> + Structure<M, Error = Error>, M: Medium> Words<S, M> {
    /// Opens the map named `name`, creating it if it is not there. Recovers it: the map's own page says how long that takes.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`],
    /// [`Error::BadOption`].
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(pool, name, &S::Options::default())
    }

    /// As [`open`](Self::open), with options. A map that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pool: &Pool<M>, name: &str, options: &S::Options) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }
}

impl<S: WordMap<M>, M: Medium> Words<S, M> {
    /// Its place in its pool.
    pub fn root(&self) -> &Root<M> {
        self.map.root()
    }

    /// When an update is durable: before it returns, or, with a link cache in
    /// [`LinkCacheMode::Buffered`](crate::LinkCacheMode::Buffered), after the next [`sync`](Self::sync).
    pub fn durability(&self) -> Durability {
        self.map.durability()
    }

    /// Makes everything durable that was done before, by any thread, and has returned. At most one fence; none without a link cache, and
    /// none if it is.
    ///
    /// # Errors
    /// [`Error::Pool`] where the operation is one of another pool, and the map can have a link cache.
    pub fn sync(&self, op: &Op<'_, M>) -> Result<()> {
        self.map.sync(op)
    }

    // ---- reads ----

    /// The value of a key.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.map.get(op, key)
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        self.map.contains(op, key)
    }

    // ---- updates ----

    /// Inserts a key with its value, if it is not there; returns whether it was not.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        self.map.insert_with(op, key, || Some(value))
    }

    /// Replaces the value of a key that is there; returns the old one.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        Ok(self.map.update_with(op, key, |_| Some(value))?.map(|(old, _)| old))
    }

    /// Sets the value of a key, whether it is there or not; returns the old one.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn put(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        // Each of the two takes effect at a moment of its own, and only if the key is, or is not, there.
        loop {
            if let Some(old) = self.update(op, key, value)? {
                return Ok(Some(old));
            }
            if self.insert(op, key, value)? {
                return Ok(None);
            }
        }
    }

    /// Replaces the value of a key if it is `expected`; returns whether it was.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool> {
        let outcome = self.map.update_with(op, key, |old| (old == expected).then_some(value))?;
        Ok(outcome.is_some_and(|(_, replaced)| replaced))
    }

    /// Removes a key; returns its value.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.map.remove(op, key)
    }

    /// Removes a key if its value is `expected`; returns whether it did.
    ///
    /// # Errors
    /// See [`Words`].
    #[inline]
    pub fn compare_and_remove(&self, op: &Op<'_, M>, key: u64, expected: u64) -> Result<bool> {
        let outcome = self.map.remove_with(op, key, |value| value == expected)?;
        Ok(outcome.is_some_and(|(_, removed)| removed))
    }

    // ---- walks ----

    /// Appends some entries from a place on, 0 for the first; returns where to go on, if those were not all. A place of an ordered map is a
    /// key, and its entries ascend. Each entry was there at some moment of the call; in a walk over all places no key comes twice, and none
    /// that is there all the time is left out, also where a hash table grows meanwhile. `into` is empty at first.
    ///
    /// # Errors
    /// See [`Words`]. What was appended before an error is sound.
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        self.map.walk(op, from, into)
    }

    /// Calls `f` for each entry, in the order of keys if the map is ordered. Each entry was there at some moment of the call; it is no
    /// snapshot. `f` may change the map; it must not iterate over a [`SoftHash`](crate::SoftHash).
    ///
    /// # Errors
    /// See [`Words`].
    pub fn for_each(&self, op: &Op<'_, M>, f: impl FnMut(u64, u64)) -> Result<()> {
        self.map.for_each(op, f)
    }

    /// Number of keys. Linear.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        let mut len = 0;
        self.map.for_each(op, |_, _| len += 1)?;
        Ok(len)
    }

    /// Whether there is no key. Linear in the number of buckets, where there are any.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        let (mut entries, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from.filter(|_| entries.is_empty()) {
            from = self.map.walk(op, place, &mut entries)?;
        }
        Ok(entries.is_empty())
    }

    // ---- looking at it ----

    /// How the memory of the nodes is used; all zero where the links are in volatile memory.
    pub fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.map.page_stats(op)
    }

    /// The line that the calling session's next insert uses, as an offset in the pool, if it needs no new page. `None` where the links are
    /// in volatile memory.
    pub fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        self.map.next_address(op)
    }

    /// Bytes of the links in volatile memory; `None` where they are durable.
    pub fn volatile_bytes(&self, op: &Op<'_, M>) -> Option<u64> {
        self.map.volatile_bytes(op)
    }

    /// Compares what is allocated with what is reachable, and keys with their places. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        self.map.check(op)
    }
}

/// What only ordered maps can do.
impl<S: OrderedWordMap<M>, M: Medium> Words<S, M> {
    /// Appends some entries from key `to` down, descending; as [`walk`](Self::walk). The links of a list lead one way, so each call walks up to
    /// `to` from the first key on.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        self.map.walk_back(op, to, into)
    }

    /// Calls `f` for each entry of a range, ascending. Each entry was there at some moment of the call; it is no snapshot. `f` may change
    /// the map.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn range(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, f: impl FnMut(u64, u64)) -> Result<()> {
        upwards(&range, |ends, batch| self.map.walk_within(op, ends, batch), f)
    }

    /// As [`range`](Self::range), descending.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn range_rev(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, f: impl FnMut(u64, u64)) -> Result<()> {
        downwards(&range, |ends, batch| self.map.walk_back_within(op, ends, batch), f)
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.map.first(op)
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// See [`Words`].
    pub fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.map.last(op)
    }
}
