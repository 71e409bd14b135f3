//! Handles to ordered maps, and their walks, which allocate nothing for each pair or step.

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};

use durix_index::implement::{Order, Place, STEP, have_crossed};
use durix_pmem::{Hardware, Medium};

use crate::coding::{encode_into, prefixed_range, undecodable};
use crate::encode::{GivenAs, Key, PrefixOf, Value};
use crate::map::{Handle, Map};
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
        self.encoded::<Q>(&bounds, Direction::Forward)
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
        self.encoded::<Q>(&bounds, Direction::Backward)
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
        self.walk(&prefixed_range(prefix), Direction::Forward)
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
        self.walk(&KeyRange::all(), Direction::Forward)
    }

    #[inline]
    fn encoded<Q>(&mut self, bounds: &impl RangeBounds<Q>, direction: Direction) -> Result<HandleRange<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let (map, cached) = self.handle.parts();
        cached.shrink();
        let lower = side(bounds.start_bound(), |key| encode_into::<K, Q>(key, &mut cached.key))?;
        let upper = side(bounds.end_bound(), |key| encode_into::<K, Q>(key, &mut cached.value))?;
        Ok(HandleRange::new(map, cached, (lower, upper), direction))
    }

    fn walk(&mut self, keys: &KeyRange, direction: Direction) -> HandleRange<'_, K, V, M> {
        let (map, cached) = self.handle.parts();
        cached.shrink();
        let lower = keys.lower.as_ref().map(|key| key.clone_into(&mut cached.key));
        let upper = keys.upper.as_ref().map(|key| key.clone_into(&mut cached.value));
        HandleRange::new(map, cached, (lower, upper), direction)
    }
}

/// A bound without its key, which `encode` puts elsewhere.
#[inline(always)]
fn side<Q: ?Sized>(bound: Bound<&Q>, encode: impl FnOnce(&Q) -> Result<()>) -> Result<Bound<()>> {
    Ok(match bound {
        Bound::Included(key) => Bound::Included(encode(key)?),
        Bound::Excluded(key) => Bound::Excluded(encode(key)?),
        Bound::Unbounded => Bound::Unbounded,
    })
}

/// Pairs of a first step, where the caller does not say how many it wants.
const FEW: usize = 8;

/// A walk over pairs of an ordered map in one direction, by a handle.
///
/// It reads some pairs at a time, more each time, and holds copies only: between two calls it holds nothing up. What others write during the walk
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
    /// Its buffer for a key has that of the lower bound, its buffer for a value that of the upper bound, its pairs those of the last step.
    cached: &'h mut Cached<M>,
    /// The bounds of what is left after the last step.
    sides: (Bound<()>, Bound<()>),
    direction: Direction,
    order: Order,
    /// The next pair of the last step, and how many pairs are left of it.
    at: Place,
    unread: usize,
    /// How many pairs the next step takes.
    take: usize,
    more: bool,
    failed: Option<Error>,
}

impl<K, V, M: Medium> fmt::Debug for HandleRange<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("HandleRange");
        all.field("map", self.map).field("left", &bounds(self.sides, &self.cached.key, &self.cached.value));
        all.field("direction", &self.direction).finish_non_exhaustive()
    }
}

/// Bounds with their keys.
#[inline(always)]
fn bounds<'k>(sides: (Bound<()>, Bound<()>), lower: &'k [u8], upper: &'k [u8]) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
    (sides.0.map(|()| lower), sides.1.map(|()| upper))
}

impl<'h, K: Key, V: Value, M: Medium> HandleRange<'h, K, V, M> {
    #[inline]
    fn new(
        map: &'h Map<K, V, M>,
        cached: &'h mut Cached<M>,
        sides: (Bound<()>, Bound<()>),
        direction: Direction,
    ) -> Self {
        cached.pairs.clear();
        let (more, order) = (true, Order::new(Some(direction)));
        HandleRange {
            map,
            cached,
            sides,
            direction,
            order,
            at: Place::default(),
            unread: 0,
            take: FEW,
            more,
            failed: None,
        }
    }

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
            (self.at, self.take) = (Place::default(), (self.take * 2).clamp(FEW, STEP));
            if read.is_err() {
                (self.more, self.failed) = (false, None);
                self.cached.pairs.clear();
            }
            self.unread = self.cached.pairs.len();
            read?;
            if self.unread > 0 {
                return Ok(true);
            }
        }
        self.failed.take().map_or(Ok(false), Err)
    }

    #[inline(always)]
    fn read(&mut self) -> Result<()> {
        let HandleRange { map, cached, sides, direction, order, take, more, failed, .. } = self;
        {
            // Goes on behind the last pair.
            let Cached { key, value, pairs, .. } = &mut **cached;
            if let Some((last, _)) = pairs.last() {
                let (side, bound) = match direction {
                    Direction::Forward => (&mut sides.0, key),
                    Direction::Backward => (&mut sides.1, value),
                };
                *side = Bound::Excluded(());
                last.clone_into(bound);
            }
            pairs.clear();
        }
        map.with_own(cached, |index, cached| {
            let Cached { session, key, value, pairs } = cached;
            let bounds = bounds(*sides, key, value);
            if have_crossed(bounds) {
                *more = false;
                return Ok(());
            }
            let ordered = index.raw().as_ordered().expect("the map is ordered");
            *more = ordered.read_range(&session.enter()?, bounds, *direction, *take, pairs).unwrap_or_else(|error| {
                *failed = Some(error);
                false
            });
            index.note_reads(session);
            // On a damaged index links may lead back, and a walk in circles.
            let Some((first, _)) = pairs.get(0) else { return Ok(()) };
            order.pass(if *direction == Direction::Forward { key } else { value }, first)
        })
    }

    /// The next pair of the last step.
    #[inline(always)]
    fn next_read(&mut self) -> Option<Result<(K, V)>> {
        self.unread -= 1;
        let (key, value) = self.cached.pairs.step(&mut self.at)?;
        let key = match K::decode(key) {
            Ok(key) => key,
            Err(unfit) => return Some(Err(undecodable(&**self.map.index(), &unfit))),
        };
        match V::decode(value) {
            Ok(value) => Some(Ok((key, value))),
            Err(unfit) => Some(Err(undecodable(&**self.map.index(), &unfit))),
        }
    }
}

impl<K: Key, V: Value, M: Medium> Iterator for HandleRange<'_, K, V, M> {
    type Item = Result<(K, V)>;

    #[inline]
    fn next(&mut self) -> Option<Result<(K, V)>> {
        if self.unread == 0 {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.next_read()
    }
}
