//! Handles to ordered maps, and their walks, which allocate nothing for each pair or step.

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};

use durix_index::implement::{Order, STEP};
use durix_pmem::{Hardware, Medium};

use crate::encode::{GivenAs, Key, PrefixOf, Value};
use crate::map::{Handle, Map, decoded};
use crate::ordered::{encoded_range, prefixed_range};
use crate::sessions::Cached;
use crate::{Direction, Error, KeyRange, Result};

/// A [`Handle`] to an ordered map, with walks that use its session and its memory.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = durix::Db::open_or_create(dir.path().join("squares"))?;
/// let squares = db.ordered_map::<u64, u64>("squares")?;
/// let mut handle = squares.handle()?;
/// for number in 0..100 {
///     handle.insert(&number, &(number * number))?;
/// }
/// let sum = handle.range(10..)?.take(3).map(|pair| Ok(pair?.1)).sum::<durix::Result<u64>>()?;
/// assert_eq!(sum, 100 + 121 + 144);
/// assert_eq!(handle.range_back(..50)?.next().transpose()?, Some((49, 49 * 49)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OrderedHandle<K, V, M: Medium = Hardware> {
    handle: Handle<K, V, M>,
}

impl<K, V, M: Medium> Deref for OrderedHandle<K, V, M> {
    type Target = Handle<K, V, M>;

    fn deref(&self) -> &Handle<K, V, M> {
        &self.handle
    }
}

impl<K, V, M: Medium> DerefMut for OrderedHandle<K, V, M> {
    fn deref_mut(&mut self) -> &mut Handle<K, V, M> {
        &mut self.handle
    }
}

impl<K: Key, V: Value, M: Medium> OrderedHandle<K, V, M> {
    /// A handle to a map that is known to be ordered.
    pub(crate) fn new(handle: Handle<K, V, M>) -> Self {
        OrderedHandle { handle }
    }

    /// The pairs with keys in `bounds`, from the smallest key on.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.range(1900..1910)?.next().transpose()?, Some((1906, "Grace".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`].
    pub fn range<Q, R>(&mut self, bounds: R) -> Result<HandleRange<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        R: RangeBounds<Q>,
    {
        Ok(self.walk(encoded_range::<K, Q>(&bounds)?, Direction::Forward))
    }

    /// The pairs with keys in `bounds`, from the largest key on.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.range_back(..1910)?.next().transpose()?, Some((1906, "Grace".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`].
    pub fn range_back<Q, R>(&mut self, bounds: R) -> Result<HandleRange<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        R: RangeBounds<Q>,
    {
        Ok(self.walk(encoded_range::<K, Q>(&bounds)?, Direction::Backward))
    }

    /// The pairs whose keys begin with `prefix`, as [`OrderedMap::prefix`](crate::OrderedMap::prefix), from the smallest key on.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let orders = db.ordered_map::<(u32, String), u64>("orders")?;
    /// orders.insert(&(7, "tea"), &2)?;
    /// assert_eq!(orders.handle()?.prefix(&(7,)).count(), 1);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&mut self, prefix: &P) -> HandleRange<'_, K, V, M> {
        self.walk(prefixed_range(prefix), Direction::Forward)
    }

    /// All pairs, from the smallest key on.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.iter().count(), 3);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn iter(&mut self) -> HandleRange<'_, K, V, M> {
        self.walk(KeyRange::all(), Direction::Forward)
    }

    fn walk(&mut self, keys: KeyRange, direction: Direction) -> HandleRange<'_, K, V, M> {
        let (map, cached) = self.handle.parts();
        cached.pairs.clear();
        cached.shrink();
        let (more, order) = (!keys.is_empty(), Order::new(Some(direction)));
        HandleRange { map, cached, keys, direction, order, at: 0, take: FEW, more, failed: None }
    }
}

/// Pairs of a first step, where nobody says how many are asked for.
const FEW: usize = 8;

/// A walk over pairs of an ordered map in one direction, by a handle.
///
/// It reads some pairs at a time, more each time, and holds copies only: between two calls it holds nothing up. What others write meanwhile
/// is seen as by [`Iter`](crate::Iter). A walk that is known to be short is faster by [`take`](Self::take). After an error of the index it
/// is at its end; after a pair that does not decode it goes on with the next.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<u32, String>("years")?;
/// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
/// let mut handle = map.handle()?;
/// for pair in handle.iter() {
///     let (year, name) = pair?;
///     println!("{year}: {name}");
/// }
/// # Ok::<(), durix::Error>(())
/// ```
pub struct HandleRange<'h, K, V, M: Medium = Hardware> {
    map: &'h Map<K, V, M>,
    cached: &'h mut Cached<M>,
    keys: KeyRange,
    direction: Direction,
    order: Order,
    /// The next pair of the last step.
    at: usize,
    /// How many pairs the next step takes.
    take: usize,
    more: bool,
    failed: Option<Error>,
}

impl<K, V, M: Medium> fmt::Debug for HandleRange<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("HandleRange");
        all.field("map", self.map).field("keys", &self.keys).field("direction", &self.direction).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, M: Medium> HandleRange<'_, K, V, M> {
    /// The first `pairs` pairs, as [`Iterator::take`]; the index then reads no more than these, which makes short walks faster.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.iter().take(2).count(), 2);
    /// # Ok::<(), durix::Error>(())
    /// ```
    #[inline]
    pub fn take(self, pairs: usize) -> std::iter::Take<Self> {
        Iterator::take(HandleRange { take: pairs.clamp(1, STEP), ..self }, pairs)
    }

    /// Reads the next pairs. Returns whether there are any.
    #[inline(never)]
    fn fill(&mut self) -> Result<bool> {
        if self.more {
            let read = self.read();
            (self.at, self.take) = (0, (self.take * 2).clamp(FEW, STEP));
            if read.is_err() {
                (self.more, self.failed) = (false, None);
                self.cached.pairs.clear();
            }
            read?;
        }
        if self.at < self.cached.pairs.len() { Ok(true) } else { self.failed.take().map_or(Ok(false), Err) }
    }

    fn read(&mut self) -> Result<()> {
        let HandleRange { map, cached, keys, direction, order, take, more, failed, .. } = self;
        let last = cached.pairs.last().map(|(key, _)| key.to_vec());
        cached.pairs.clear();
        map.with_own(cached, |index, cached| {
            let Cached { session, pairs, .. } = cached;
            let (lower, upper) = (keys.lower.as_ref().map(Vec::as_slice), keys.upper.as_ref().map(Vec::as_slice));
            let bounds = match (&last, *direction) {
                (None, _) => (lower, upper),
                (Some(last), Direction::Forward) => (Bound::Excluded(&last[..]), upper),
                (Some(last), Direction::Backward) => (lower, Bound::Excluded(&last[..])),
            };
            let ordered = index.raw().as_ordered().expect("the map is ordered");
            *more = ordered.read_range(&session.enter()?, bounds, *direction, *take, pairs).unwrap_or_else(|error| {
                *failed = Some(error);
                false
            });
            index.note_reads(session);
            // On a damaged index links may lead back, and a walk in circles.
            let first = pairs.get(0).map(|(first, _)| first);
            first.map_or(Ok(()), |first| order.pass(last.as_deref().unwrap_or_default(), first))
        })
    }
}

impl<K: Key, V: Value, M: Medium> Iterator for HandleRange<'_, K, V, M> {
    type Item = Result<(K, V)>;

    #[inline]
    fn next(&mut self) -> Option<Result<(K, V)>> {
        if self.at == self.cached.pairs.len() {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        let (key, value) = self.cached.pairs.get(self.at)?;
        self.at += 1;
        let index = &**self.map.index();
        let pair = decoded(index, key).and_then(|key| Ok((key, decoded(index, value)?)));
        Some(pair)
    }
}
