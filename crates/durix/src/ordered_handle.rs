//! Handles to ordered maps, and their walks, which allocate nothing for each pair or step.

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};

use durix_index::implement::{Order, Place, STEP, have_crossed};
use durix_pmem::{Hardware, Medium};

use crate::coding::{encode_into, prefixed_range, undecodable};
use crate::encode::{GivenAs, Key, PrefixOf, Value};
use crate::map::Map;
use crate::map_handle::Handle;
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
/// assert_eq!(handle.range(..50)?.rev().next().transpose()?, Some((49, 49 * 49)));
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

    /// The pairs with keys in `bounds`, in their order; `.rev()` begins at the largest.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.range(1900..1910)?.next().transpose()?, Some((1906, "Grace".to_owned())));
    /// assert_eq!(handle.range(..1910)?.rev().next().transpose()?, Some((1906, "Grace".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`].
    #[inline]
    pub fn range<Q, R>(&mut self, bounds: R) -> Result<HandleRange<'_, K, V, M>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        R: RangeBounds<Q>,
    {
        let (map, cached) = self.handle.parts();
        cached.shrink();
        let lower = side(bounds.start_bound(), |key| encode_into::<K, Q>(key, &mut cached.key))?;
        let upper = side(bounds.end_bound(), |key| encode_into::<K, Q>(key, &mut cached.value))?;
        Ok(HandleRange::new(map, cached, (lower, upper)))
    }

    /// The pairs whose keys begin with `prefix`, as [`OrderedMap::prefix`](crate::OrderedMap::prefix).
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
        self.walk(&prefixed_range(prefix))
    }

    /// All pairs, in the order of keys.
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
        self.walk(&KeyRange::all())
    }

    fn walk(&mut self, keys: &KeyRange) -> HandleRange<'_, K, V, M> {
        let (map, cached) = self.handle.parts();
        cached.shrink();
        let lower = keys.lower.as_ref().map(|key| key.clone_into(&mut cached.key));
        let upper = keys.upper.as_ref().map(|key| key.clone_into(&mut cached.value));
        HandleRange::new(map, cached, (lower, upper))
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

/// A walk over pairs of an ordered map in the order of keys, by a handle, from either end or from both.
///
/// It reads some pairs at a time, more each time, and holds copies only: between two calls it holds nothing up. What others write during the walk
/// is seen as by [`Iter`](crate::Iter). A walk that is known to be short is faster by [`take`](Self::take). After an error of the index it
/// is at its end; after a pair that does not decode it goes on with the next. There is one buffer for both ends: a call for the other end than
/// the last call reads anew. No key comes twice.
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
    /// In which the last step read.
    direction: Direction,
    order: Order,
    /// The next pair of the last step.
    at: Place,
    /// How many pairs are left of the last step, for the end that has read them. The other number is zero.
    front: usize,
    back: usize,
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
    fn new(map: &'h Map<K, V, M>, cached: &'h mut Cached<M>, sides: (Bound<()>, Bound<()>)) -> Self {
        cached.pairs.clear();
        let direction = Direction::Forward;
        HandleRange {
            map,
            cached,
            sides,
            direction,
            order: Order::new(Some(direction)),
            at: Place::default(),
            front: 0,
            back: 0,
            take: FEW,
            more: true,
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
        Iterator::take(self.expecting(pairs), pairs)
    }

    /// The same walk, whose first step reads this number of pairs, from whichever end. It is for short walks back: `.rev().take(n)` cannot know
    /// the number.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// # let map = db.ordered_map::<u32, String>("years")?;
    /// # map.try_extend([(1815, "Ada"), (1906, "Grace"), (1912, "Alan")].map(|(year, name)| (year, name.to_owned())))?;
    /// let mut handle = map.handle()?;
    /// let newest = handle.iter().expecting(1).next_back().transpose()?;
    /// assert_eq!(newest, Some((1912, "Alan".to_owned())));
    /// # Ok::<(), durix::Error>(())
    /// ```
    #[inline]
    pub fn expecting(self, pairs: usize) -> Self {
        HandleRange { take: pairs.clamp(1, STEP), ..self }
    }

    /// Goes on from the other end, with what is left between both. What was read and not given is read again.
    fn turn(&mut self, direction: Direction) {
        let unread = self.front + self.back;
        let Cached { key, value, pairs, .. } = &mut *self.cached;
        if let Some((last, _)) = pairs.len().checked_sub(unread + 1).and_then(|given| pairs.get(given)) {
            let (side, bound) = match self.direction {
                Direction::Forward => (&mut self.sides.0, key),
                Direction::Backward => (&mut self.sides.1, value),
            };
            *side = Bound::Excluded(());
            last.clone_into(bound);
        }
        if unread > 0 {
            // An error that a later pair met is met again, if the walk comes to it.
            (self.more, self.failed) = (true, None);
        }
        if !pairs.is_empty() {
            pairs.clear();
            self.take = FEW;
        }
        (self.front, self.back) = (0, 0);
        (self.direction, self.order) = (direction, Order::new(Some(direction)));
    }

    /// Reads the next pairs from one end. Returns whether there are any.
    #[inline(never)]
    fn fill(&mut self, direction: Direction) -> Result<bool> {
        if direction != self.direction {
            self.turn(direction);
        }
        if self.more {
            let read = self.read();
            (self.at, self.take) = (Place::default(), (self.take * 2).clamp(FEW, STEP));
            if read.is_err() {
                (self.more, self.failed) = (false, None);
                self.cached.pairs.clear();
            }
            let unread = self.cached.pairs.len();
            (self.front, self.back) = match direction {
                Direction::Forward => (unread, 0),
                Direction::Backward => (0, unread),
            };
            read?;
            if unread > 0 {
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
        if self.front == 0 {
            match self.fill(Direction::Forward) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.front -= 1;
        self.next_read()
    }
}

impl<K: Key, V: Value, M: Medium> DoubleEndedIterator for HandleRange<'_, K, V, M> {
    #[inline]
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        if self.back == 0 {
            match self.fill(Direction::Backward) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.back -= 1;
        self.next_read()
    }
}
