//! Reading an index as of a snapshot's moment: the map first, then the store of versions.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use durix_pmem::{Hardware, Medium};
use xxhash_rust::xxh3::xxh3_128;

use super::Snapshot;
use crate::coding::{decoded, encoded, encoded_range, prefixed_range};
use crate::encode::{Decode, GivenAs, Key, PrefixOf, Value};
use crate::ends::{Ends, next_into};
use crate::kind;
use crate::transaction::guard::Guarded;
use crate::versions::Stored;
use crate::{Cursor, Direction, Index, KeyRange};
use crate::{Error, Result};

type Pair = (Vec<u8>, Vec<u8>);

/// An index as of a [`Snapshot`]'s moment, over bytes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
/// map.insert(&b"k"[..], &b"old"[..])?;
/// let snapshot = db.snapshot()?;
/// map.insert(&b"k"[..], &b"new"[..])?;
/// let then = snapshot.index(map.index())?;
/// assert_eq!(then.get(b"k")?, Some(b"old".to_vec()));
/// # Ok::<(), durix::Error>(())
/// ```
pub struct SnapshotIndex<'s, M: Medium = Hardware> {
    snapshot: &'s Snapshot<M>,
    guard: Arc<Guarded<M>>,
}

/// A key, and its value as of the snapshot; `None` if it was not there.
type Changed = (Vec<u8>, Option<Vec<u8>>);

impl<M: Medium> fmt::Debug for SnapshotIndex<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotIndex").field("root", self.guard.root()).finish_non_exhaustive()
    }
}

impl<'s, M: Medium> SnapshotIndex<'s, M> {
    pub(super) fn new(snapshot: &'s Snapshot<M>, guard: Arc<Guarded<M>>) -> Self {
        SnapshotIndex { snapshot, guard }
    }

    fn owner(&self) -> u16 {
        self.guard.root().owner().0
    }

    /// What the snapshot sees of a key that the map has given as `live`.
    fn seen(&self, key: &[u8], live: Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let versions = &self.snapshot.shared.transactions.versions;
        Ok(match versions.get(self.snapshot.number, self.owner(), key)? {
            Stored::Unchanged => live,
            Stored::Was(value) => value,
        })
    }

    /// The value that `key` had.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// map.insert(&b"k"[..], &b"old"[..])?;
    /// let snapshot = db.snapshot()?;
    /// map.insert(&b"k"[..], &b"new"[..])?;
    /// let then = snapshot.index(map.index())?;
    /// assert_eq!(then.get(b"k")?, Some(b"old".to_vec()));
    /// assert_eq!(then.get(b"x")?, None);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`]; otherwise as [`Index::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let shared = &self.snapshot.shared;
        let read = |cached: &mut crate::sessions::Cached<M>| self.guard.raw().get_vec(&cached.session.enter()?, key);
        let live = shared.sessions.with(&shared.pool, read)?;
        self.seen(key, live)
    }

    /// All pairs there were, in the order of keys where the index keeps one.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// map.insert(&b"k"[..], &b"old"[..])?;
    /// let snapshot = db.snapshot()?;
    /// map.insert(&b"k"[..], &b"new"[..])?;
    /// let then = snapshot.index(map.index())?;
    /// assert_eq!(then.iter().next().transpose()?, Some((b"k".to_vec(), b"old".to_vec())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn iter(&self) -> SnapshotPairs<'_, M> {
        match self.guard.as_ordered() {
            Some(_) => self.walk(&KeyRange::all(), Direction::Forward),
            None => SnapshotPairs::new(self, self.guard.raw().cursor(), KeyRange::all(), None),
        }
    }

    /// The pairs there were with keys in a range.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
    /// map.insert(&b"k"[..], &b"old"[..])?;
    /// let snapshot = db.snapshot()?;
    /// map.insert(&b"k"[..], &b"new"[..])?;
    /// let then = snapshot.index(map.index())?;
    /// let range = durix::KeyRange::prefix(b"k");
    /// assert_eq!(then.range(&range, durix::Direction::Backward)?.count(), 1);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`].
    pub fn range(&self, range: &KeyRange, direction: Direction) -> Result<SnapshotPairs<'_, M>> {
        self.expect_ordered()?;
        Ok(self.walk(range, direction))
    }

    fn expect_ordered(&self) -> Result<()> {
        let not = || Error::NotOrdered { index: self.guard.root().name(), kind: kind::name_of(self.guard.raw()) };
        self.guard.as_ordered().map(drop).ok_or_else(not)
    }

    fn walk(&self, range: &KeyRange, direction: Direction) -> SnapshotPairs<'_, M> {
        let ordered = self.guard.as_ordered().expect("looked at by the caller");
        SnapshotPairs::new(self, ordered.range(range, direction), range.clone(), Some(direction))
    }
}

/// A walk over pairs of bytes as of a snapshot's moment.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
/// map.insert(&b"k"[..], &b"old"[..])?;
/// let snapshot = db.snapshot()?;
/// map.insert(&b"k"[..], &b"new"[..])?;
/// let then = snapshot.index(map.index())?;
/// for pair in then.iter() {
///     let (key, value) = pair?;
///     println!("{} {}", key.escape_ascii(), value.escape_ascii());
/// }
/// # Ok::<(), durix::Error>(())
/// ```
pub struct SnapshotPairs<'a, M: Medium = Hardware> {
    index: &'a SnapshotIndex<'a, M>,
    live: Box<dyn Cursor<M> + 'a>,
    /// The next pair of the map, once it was read.
    next: Option<Pair>,
    at_end: bool,
    /// What of the store is left.
    left: KeyRange,
    /// `None` where the index keeps no order.
    direction: Option<Direction>,
    /// Hashes of the keys that were met, where the index keeps no order.
    met: HashSet<u128>,
}

impl<M: Medium> fmt::Debug for SnapshotPairs<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotPairs").field("left", &self.left).finish_non_exhaustive()
    }
}

impl<'a, M: Medium> SnapshotPairs<'a, M> {
    fn new(
        index: &'a SnapshotIndex<'a, M>,
        live: Box<dyn Cursor<M> + 'a>,
        left: KeyRange,
        direction: Option<Direction>,
    ) -> Self {
        SnapshotPairs { index, live, next: None, at_end: false, left, direction, met: HashSet::new() }
    }

    /// Reads the next pair of the map, unless it was read.
    fn fill(&mut self) -> Result<()> {
        if self.next.is_none() && !self.at_end {
            let shared = &self.index.snapshot.shared;
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let live = &mut self.live;
            let there = shared
                .sessions
                .with(&shared.pool, |cached| live.next_into(&cached.session.enter()?, &mut key, &mut value))?;
            self.at_end = !there;
            self.next = there.then_some((key, value));
        }
        Ok(())
    }

    /// The part of the store up to the next key of the map, that key included.
    fn up_to_next(&self, direction: Direction) -> KeyRange {
        let mut range = self.left.clone();
        if let Some((key, _)) = &self.next {
            match direction {
                Direction::Forward => range.upper = Bound::Included(key.clone()),
                Direction::Backward => range.lower = Bound::Included(key.clone()),
            }
        }
        range
    }

    fn pass(&mut self, key: Vec<u8>, direction: Direction) {
        match direction {
            Direction::Forward => self.left.lower = Bound::Excluded(key),
            Direction::Backward => self.left.upper = Bound::Excluded(key),
        }
    }

    fn first_changed(&self, range: &KeyRange, direction: Direction) -> Result<Option<Changed>> {
        let snapshot = self.index.snapshot;
        snapshot.shared.transactions.versions.first(snapshot.number, self.index.owner(), range, direction)
    }

    fn step_in_order(&mut self, direction: Direction) -> Result<Option<Pair>> {
        loop {
            self.fill()?;
            let Some((key, was)) = self.first_changed(&self.up_to_next(direction), direction)? else {
                let pair = self.next.take();
                if let Some((key, _)) = &pair {
                    self.pass(key.clone(), direction);
                }
                return Ok(pair);
            };
            self.next.take_if(|(live, _)| *live == key);
            self.pass(key.clone(), direction);
            if let Some(value) = was {
                return Ok(Some((key, value)));
            }
        }
    }

    fn step_unordered(&mut self) -> Result<Option<Pair>> {
        loop {
            self.fill()?;
            let (key, value) = match self.next.take() {
                Some((key, live)) => {
                    let seen = self.index.seen(&key, Some(live))?;
                    (key, seen)
                }
                // What was removed before the walk came to it.
                None => match self.first_changed(&self.left, Direction::Forward)? {
                    Some((key, was)) => {
                        self.pass(key.clone(), Direction::Forward);
                        (key, was)
                    }
                    None => return Ok(None),
                },
            };
            if self.met.insert(xxh3_128(&key))
                && let Some(value) = value
            {
                return Ok(Some((key, value)));
            }
        }
    }
}

impl<M: Medium> Iterator for SnapshotPairs<'_, M> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Result<Pair>> {
        match self.direction {
            Some(direction) => self.step_in_order(direction),
            None => self.step_unordered(),
        }
        .transpose()
    }
}

/// A [`Map`](crate::Map) as of a [`Snapshot`]'s moment.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<String, u64>("ages")?;
/// map.insert("ada", &36)?;
/// let snapshot = db.snapshot()?;
/// map.insert("ada", &37)?;
/// let then = snapshot.map(&map)?;
/// assert_eq!(then.get("ada")?, Some(36));
/// assert_eq!(then.iter().count(), 1);
/// # Ok::<(), durix::Error>(())
/// ```
pub struct SnapshotMap<'s, K, V, M: Medium = Hardware> {
    index: SnapshotIndex<'s, M>,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V, M: Medium> fmt::Debug for SnapshotMap<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.index.fmt(f)
    }
}

impl<'s, K: Key, V: Value, M: Medium> SnapshotMap<'s, K, V, M> {
    pub(super) fn new(index: SnapshotIndex<'s, M>) -> Self {
        SnapshotMap { index, types: PhantomData }
    }

    /// The value that `key` had.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// assert_eq!(then.get("ada")?, Some(36));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SnapshotIndex::get`], and [`Error::Undecodable`].
    pub fn get<Q>(&self, key: &Q) -> Result<Option<V>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let found = self.index.get(&encoded::<K, Q>(key)?)?;
        found.map(|bytes| decoded(&*self.index.guard, &bytes)).transpose()
    }

    /// All pairs there were.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// let pairs: Vec<(String, u64)> = then.iter().collect::<durix::Result<_>>()?;
    /// assert_eq!(pairs, [("ada".to_owned(), 36)]);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn iter(&self) -> SnapshotIter<'_, K, V, M> {
        SnapshotIter { pairs: self.index.iter(), types: PhantomData }
    }

    /// The pairs there were with keys in `bounds`, in their order; `.rev()` begins at the largest.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// assert_eq!(then.range("a".."b")?.rev().count(), 1);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`], [`Error::Unfit`].
    pub fn range<Q, R>(&self, bounds: R) -> Result<SnapshotRange<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        R: RangeBounds<Q>,
    {
        self.walk(encoded_range::<K, Q>(&bounds)?)
    }

    /// The pairs there were whose keys begin with `prefix`: see [`OrderedMap::prefix`](crate::OrderedMap::prefix).
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let snapshot = db.snapshot()?;
    /// map.insert("ada", &37)?;
    /// let then = snapshot.map(&map)?;
    /// assert_eq!(then.prefix("ad")?.count(), 1);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`].
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&self, prefix: &P) -> Result<SnapshotRange<'_, K, V, M>> {
        self.walk(prefixed_range(prefix))
    }

    fn walk(&self, keys: KeyRange) -> Result<SnapshotRange<'_, K, V, M>> {
        self.index.expect_ordered()?;
        Ok(SnapshotRange { index: &self.index, keys, ends: Ends::new(), types: PhantomData })
    }
}

/// A walk over typed pairs in the order of keys, as of a snapshot's moment, from either end or from both.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<String, u64>("ages")?;
/// map.insert("ada", &36)?;
/// let snapshot = db.snapshot()?;
/// map.insert("ada", &37)?;
/// let then = snapshot.map(&map)?;
/// let mut all = then.range::<str, _>(..)?;
/// assert_eq!(all.next_back().transpose()?, Some(("ada".to_owned(), 36)));
/// # Ok::<(), durix::Error>(())
/// ```
pub struct SnapshotRange<'a, K, V, M: Medium = Hardware> {
    index: &'a SnapshotIndex<'a, M>,
    keys: KeyRange,
    ends: Ends<SnapshotPairs<'a, M>>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, M: Medium> fmt::Debug for SnapshotRange<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotRange").field("index", self.index).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl<K: Decode, V: Decode, M: Medium> SnapshotRange<'_, K, V, M> {
    fn step(&mut self, direction: Direction) -> Result<Option<(K, V)>> {
        let SnapshotRange { index, keys, ends, .. } = self;
        let open = || index.range(keys, direction);
        let Some((key, value)) = ends.step(direction, open, next_into)? else { return Ok(None) };
        Ok(Some((decoded(&*index.guard, key)?, decoded(&*index.guard, value)?)))
    }
}

impl<K: Decode, V: Decode, M: Medium> Iterator for SnapshotRange<'_, K, V, M> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward).transpose()
    }
}

impl<K: Decode, V: Decode, M: Medium> DoubleEndedIterator for SnapshotRange<'_, K, V, M> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward).transpose()
    }
}

/// A walk over typed pairs as of a snapshot's moment.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<String, u64>("ages")?;
/// map.insert("ada", &36)?;
/// let snapshot = db.snapshot()?;
/// map.insert("ada", &37)?;
/// let then = snapshot.map(&map)?;
/// for pair in then.iter() {
///     let (name, age) = pair?;
///     println!("{name}: {age}");
/// }
/// # Ok::<(), durix::Error>(())
/// ```
pub struct SnapshotIter<'a, K, V, M: Medium = Hardware> {
    pairs: SnapshotPairs<'a, M>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, M: Medium> fmt::Debug for SnapshotIter<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pairs.fmt(f)
    }
}

impl<K: Decode, V: Decode, M: Medium> Iterator for SnapshotIter<'_, K, V, M> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.pairs.next()?;
        let guard = &*self.pairs.index.guard;
        Some(pair.and_then(|(key, value)| Ok((decoded(guard, &key)?, decoded(guard, &value)?))))
    }
}
