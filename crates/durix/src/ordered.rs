//! Typed maps that keep their keys in order.

use std::fmt;
use std::ops::{Deref, RangeBounds};

use durix_pmem::{Hardware, Medium};

use crate::coding::{decoded, encoded_range, prefixed_range};
use crate::encode::{GivenAs, Key, PrefixOf, Value};
use crate::ends::Ends;
use crate::kind;
use crate::map::Map;
use crate::ordered_handle::OrderedHandle;
use crate::{Cursor, Direction, Error, KeyRange, OrderedIndex, Result};

/// A [`Map`] whose kind of index keeps the order of keys.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<u32, String>("years")?;
/// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
/// assert_eq!(map.range(1900..)?.count(), 2);
/// assert_eq!(map.last()?.map(|(year, _)| year), Some(1912));
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Debug)]
pub struct OrderedMap<K, V, M: Medium = Hardware> {
    map: Map<K, V, M>,
}

impl<K, V, M: Medium> Clone for OrderedMap<K, V, M> {
    fn clone(&self) -> Self {
        OrderedMap { map: self.map.clone() }
    }
}

impl<K, V, M: Medium> Deref for OrderedMap<K, V, M> {
    type Target = Map<K, V, M>;

    fn deref(&self) -> &Map<K, V, M> {
        &self.map
    }
}

impl<K: Key, V: Value, M: Medium> OrderedMap<K, V, M> {
    /// The same map, with what its order allows.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map_of_kind::<u64, u64>("squares", "skiplist")?;
    /// let squares = durix::OrderedMap::new(map)?;
    /// squares.insert(&2, &4)?;
    /// assert_eq!(squares.first()?, Some((2, 4)));
    /// assert!(durix::OrderedMap::new(db.map::<u64, u64>("a hash map")?).is_err());
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`].
    pub fn new(map: Map<K, V, M>) -> Result<Self> {
        if map.index().as_ordered().is_none() {
            return Err(Error::NotOrdered { index: map.name(), kind: kind::name_of(&**map.index()) });
        }
        Ok(OrderedMap { map })
    }

    fn ordered(&self) -> &dyn OrderedIndex<M> {
        self.map.index().as_ordered().expect("looked at in `new`")
    }

    /// All pairs, in the order of keys: see [`Range`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let years: Vec<u32> = map.iter().rev().map(|pair| Ok(pair?.0)).collect::<durix::Result<_>>()?;
    /// assert_eq!(years, [1912, 1906, 1815]);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn iter(&self) -> Range<'_, K, V, M> {
        self.walk(KeyRange::all())
    }

    /// The pairs with keys in `bounds`, in their order; `.rev()` begins at the largest. A range that ends before it begins
    /// holds nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("years"))?;
    /// let years = db.ordered_map::<u16, String>("years")?;
    /// years.insert(&1815, "Ada")?;
    /// years.insert(&1906, "Grace")?;
    /// years.insert(&1912, "Alan")?;
    /// let newest = years.range(1900..)?.rev().next().transpose()?;
    /// assert_eq!(newest, Some((1912, "Alan".to_owned())));
    ///
    /// let words = db.ordered_map::<String, u8>("words")?;
    /// words.try_extend([("apple", 1), ("banana", 2), ("cherry", 3)].map(|(word, n)| (word.to_owned(), n)))?;
    /// assert_eq!(words.range("b".."c")?.count(), 1);
    /// assert_eq!(words.range::<str, _>(..)?.count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`].
    pub fn range<Q, R>(&self, bounds: R) -> Result<Range<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        R: RangeBounds<Q>,
    {
        Ok(self.walk(encoded_range::<K, Q>(&bounds)?))
    }

    /// The pairs whose keys begin with `prefix`: the first part or parts of a tuple (`&(7,)`), the beginning of a string.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let orders = db.ordered_map::<(u32, String), u64>("orders")?;
    /// orders.insert(&(7, "tea"), &2)?;
    /// orders.insert(&(8, "tea"), &1)?;
    /// assert_eq!(orders.prefix(&(7,)).count(), 1);
    ///
    /// let words = db.ordered_map::<String, u64>("words")?;
    /// words.insert("tree", &1)?;
    /// assert_eq!(words.prefix("tr").count(), 1);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&self, prefix: &P) -> Range<'_, K, V, M> {
        self.walk(prefixed_range(prefix))
    }

    fn walk(&self, keys: KeyRange) -> Range<'_, K, V, M> {
        Range { map: self, keys, ends: Ends::new(), expected: None }
    }

    /// A handle with a session of its own, and so with faster walks: see [`Map::handle`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.range(1900..)?.count(), 2);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Map::handle`].
    pub fn handle(&self) -> Result<OrderedHandle<K, V, M>> {
        Ok(OrderedHandle::new(self.map.handle()?))
    }

    /// The pair with the smallest key.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// assert_eq!(map.first()?, Some((1815, "Ada".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.iter().expecting(1).next().transpose()
    }

    /// The pair with the largest key.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// assert_eq!(map.last()?, Some((1912, "Alan".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.iter().expecting(1).next_back().transpose()
    }

    /// Removes the pair with the smallest key, and returns it. Of several threads that call it, each gets another one. Durable as
    /// [`Map::insert`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// assert_eq!(map.pop_first()?, Some((1815, "Ada".to_owned())));
    /// assert_eq!(map.count()?, 2);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Map::insert`].
    pub fn pop_first(&self) -> Result<Option<(K, V)>> {
        self.pop(Direction::Forward)
    }

    /// Removes the pair with the largest key: as [`pop_first`](Self::pop_first).
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// assert_eq!(map.pop_last()?, Some((1912, "Alan".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Map::insert`].
    pub fn pop_last(&self) -> Result<Option<(K, V)>> {
        self.pop(Direction::Backward)
    }

    fn pop(&self, direction: Direction) -> Result<Option<(K, V)>> {
        loop {
            let mut walk = self.iter().expecting(1);
            let Some((key, value)) = walk.step_bytes(direction)? else { return Ok(None) };
            let index = &**self.map.index();
            let pair = (decoded(index, key)?, decoded(index, value)?);
            let (key, value) = (key.to_vec(), value.to_vec());
            // Somebody else may have removed or changed it.
            if self.map.change_bytes(&key, Some(&value), None)? {
                return Ok(Some(pair));
            }
        }
    }
}

impl<'a, K: Key, V: Value, M: Medium> IntoIterator for &'a OrderedMap<K, V, M> {
    type Item = Result<(K, V)>;
    type IntoIter = Range<'a, K, V, M>;

    fn into_iter(self) -> Range<'a, K, V, M> {
        self.iter()
    }
}

/// A walk over pairs of an [`OrderedMap`] in the order of keys, from either end or from both.
///
/// What others write during the walk is seen as by [`Iter`](crate::Iter). No key is returned twice, and no key that both
/// ends have passed.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<u32, String>("years")?;
/// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
/// let mut all = map.iter();
/// assert_eq!(all.next_back().transpose()?.map(|(year, _)| year), Some(1912));
/// assert_eq!(all.count(), 2);
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Range<'a, K, V, M: Medium = Hardware> {
    map: &'a OrderedMap<K, V, M>,
    keys: KeyRange,
    ends: Ends<Box<dyn Cursor<M> + 'a>>,
    /// How many pairs are asked for, if that is known.
    expected: Option<usize>,
}

impl<K, V, M: Medium> fmt::Debug for Range<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("map", &self.map.map).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, M: Medium> Range<'_, K, V, M> {
    /// The first `pairs` pairs, as [`Iterator::take`]; the index then reads no more than these, which makes short walks faster.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let two: Vec<_> = map.range(..)?.take(2).collect::<durix::Result<_>>()?;
    /// assert_eq!(two[1], (1906, "Grace".to_owned()));
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn take(self, pairs: usize) -> std::iter::Take<Self> {
        Iterator::take(self.expecting(pairs), pairs)
    }

    /// The same walk, whose steps read no more than this number of pairs, from whichever end. It is for short walks back: `.rev().take(n)` cannot
    /// know the number.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let newest: Vec<_> = map.iter().expecting(2).rev().take(2).collect::<durix::Result<_>>()?;
    /// assert_eq!(newest[1], (1906, "Grace".to_owned()));
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn expecting(self, pairs: usize) -> Self {
        Range { expected: Some(pairs), ..self }
    }

    fn step_bytes(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        let Range { map, keys, ends, expected } = self;
        let open = || {
            let mut cursor = map.ordered().range(keys, direction);
            expected.inspect(|pairs| cursor.expect(*pairs));
            Ok(cursor)
        };
        ends.step(direction, open, |cursor, key, value| {
            map.map.with(|index, cached| {
                let found = cursor.next_into(&cached.session.enter()?, key, value)?;
                index.note_reads(&cached.session);
                Ok(found)
            })
        })
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Result<Option<(K, V)>> {
        let index = &**self.map.index();
        // Most pairs were read by an earlier step.
        if let Some((cursor, last)) = self.ends.only(direction)
            && let Some((key, value)) = cursor.ready()?
        {
            last.clear();
            last.extend_from_slice(key);
            return Ok(Some((decoded(index, key)?, decoded(index, value)?)));
        }
        let Some((key, value)) = self.step_bytes(direction)? else { return Ok(None) };
        Ok(Some((decoded(index, key)?, decoded(index, value)?)))
    }
}

impl<K: Key, V: Value, M: Medium> Iterator for Range<'_, K, V, M> {
    type Item = Result<(K, V)>;

    #[inline]
    fn next(&mut self) -> Option<Result<(K, V)>> {
        self.step(Direction::Forward).transpose()
    }
}

impl<K: Key, V: Value, M: Medium> DoubleEndedIterator for Range<'_, K, V, M> {
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        self.step(Direction::Backward).transpose()
    }
}
