//! The one interface of the lock-free maps of words: what a map has to do, so that it can be used as
//! [`Words`](crate::Words), as [`Blobs`](crate::Blobs) and as an [`Index`](durix_index::Index).
//!
//! A map implements [`WordMap`], and [`OrderedWordMap`] if it keeps the order of keys: seven calls, or eight. Provided calls are there for
//! maps that know a faster way, or have something that others lack. All calls are dispatched statically.

use std::any::Any;
use std::sync::Arc;

use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root};

use crate::error::Result;
use crate::finding::Finding;
use crate::pages::PageStats;

/// A value that was found, and whether the call has changed it.
pub type Found = Option<(u64, bool)>;

/// A lock-free map of 8-byte keys and values.
///
/// An update is durable when it returns, and what a call returns no crash can take back; only a map with a link cache may say otherwise
/// ([`durability`](Self::durability)).
///
/// # Closures
/// A closure says what becomes of a value: `None` and `false` leave the map as it is. A closure may be called several times. Where it gives
/// the offset of a record, that was written back: the map fences before anything that a crash leaves leads to the record (LF-I4). It
/// fences before it returns, too (LF-I6, LF-I8).
///
/// # Errors
/// An error means that the map is as it was. [`Error::Corrupt`](crate::Error::Corrupt) of what makes no sense;
/// [`Error::Pool`](crate::Error::Pool) where an operation is one of another pool, where the pool is full, or after a panic in an update.
pub trait WordMap<M: Medium>: Send + Sync + Sized + 'static {
    /// What it is called in messages.
    const NAME: &'static str;
    /// Whether it is an [`OrderedWordMap`]: then places of a walk are keys.
    const ORDERED: bool;

    /// Its place in its pool.
    fn root(&self) -> &Root<M>;

    /// The value of a key.
    ///
    /// # Errors
    /// See [`WordMap`].
    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>>;

    /// Inserts a key that is not there, with what `value` gives when it is needed. Returns whether it did.
    ///
    /// # Errors
    /// See [`WordMap`].
    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool>;

    /// Replaces a value by what `new` makes of it.
    ///
    /// # Errors
    /// See [`WordMap`].
    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found>;

    /// Removes a key if its value is `wanted`.
    ///
    /// # Errors
    /// See [`WordMap`].
    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found>;

    /// Appends some entries from a place on, 0 for the first, and returns where to go on, if those were not all. A place of an ordered map is
    /// a key, and its entries ascend. Each entry was there at some moment of the call; in a walk over all places no key comes twice, and none
    /// that is there all the time is left out.
    ///
    /// # Errors
    /// See [`WordMap`]. What was appended before an error is sound.
    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>>;

    /// Compares what is allocated with what is reachable, and keys with their places. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// See [`WordMap`].
    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>>;

    // ---- what some maps do in a way of their own ----

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        Ok(self.get(op, key)?.is_some())
    }

    /// Removes a key; returns its value.
    ///
    /// # Errors
    /// As [`remove_with`](Self::remove_with).
    #[inline]
    fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        Ok(self.remove_with(op, key, |_| true)?.map(|(value, _)| value))
    }

    /// Calls `f` for each entry, in the order of keys if the map is ordered. Each entry was there at some moment of the call.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, u64)) -> Result<()> {
        let (mut entries, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from {
            entries.clear();
            from = self.walk(op, place, &mut entries)?;
            entries.iter().for_each(|(key, value)| f(*key, *value));
        }
        Ok(())
    }

    // ---- what some maps have ----

    /// When an update is durable.
    fn durability(&self) -> Durability {
        Durability::Strict
    }

    /// Called once, when the map is open: `me` is what programs use, [`Words`](crate::Words), for maps that put work off and have to be
    /// found again.
    fn opened(&self, _me: Arc<dyn Any + Send + Sync>) {}

    /// Makes everything durable that was done before, by any thread, and has returned.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the operation is one of another pool, and there is something to do.
    fn sync(&self, op: &Op<'_, M>) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// How the memory of its nodes is used; all zero where it has no pages of nodes.
    fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        let _ = op;
        PageStats::default()
    }

    /// The line that the calling session's next insert uses, if the map knows.
    fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        let _ = op;
        None
    }

    /// Bytes of volatile memory that grow with the map; `None` where there are none.
    fn volatile_bytes(&self, op: &Op<'_, M>) -> Option<u64> {
        let _ = op;
        None
    }
}

/// A [`WordMap`] that keeps the order of keys.
pub trait OrderedWordMap<M: Medium>: WordMap<M> {
    /// Appends some entries from key `to` down, descending, and returns where to go on, if those were not all. `into` is empty at first.
    ///
    /// # Errors
    /// As [`walk`](WordMap::walk).
    fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>>;

    // ---- what some maps do in a way of their own ----

    /// Appends some entries between two keys, both included, ascending; returns whether those were all. `into` is empty at first.
    ///
    /// # Errors
    /// As [`walk`](WordMap::walk).
    fn walk_within(&self, op: &Op<'_, M>, (first, last): (u64, u64), into: &mut Vec<(u64, u64)>) -> Result<bool> {
        let next = self.walk(op, first, into)?.filter(|next| *next <= last);
        let within = into.partition_point(|(key, _)| *key <= last);
        into.truncate(within);
        Ok(next.is_none())
    }

    /// As [`walk_within`](Self::walk_within), descending.
    ///
    /// # Errors
    /// As [`walk`](WordMap::walk).
    fn walk_back_within(&self, op: &Op<'_, M>, (first, last): (u64, u64), into: &mut Vec<(u64, u64)>) -> Result<bool> {
        let next = self.walk_back(op, last, into)?.filter(|next| *next >= first);
        let within = into.partition_point(|(key, _)| *key >= first);
        into.truncate(within);
        Ok(next.is_none())
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As [`walk`](WordMap::walk).
    fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        let mut found = Vec::new();
        self.walk(op, 0, &mut found)?;
        Ok(found.first().copied())
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As [`walk`](WordMap::walk).
    fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        let mut found = Vec::new();
        self.walk_back(op, u64::MAX, &mut found)?;
        Ok(found.first().copied())
    }
}
