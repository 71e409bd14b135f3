//! Walks inside a transaction: what is committed, with the transaction's own changes laid over it.
//!
//! The range is locked, so the committed part stands still; the changes are those of the moment when the walk began.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use durix_pmem::{Hardware, Medium};

use crate::encode::{Decode, Unfit};
use crate::ends::{Ends, next_into};
use crate::shared::Shared;
use crate::{Cursor, Direction};
use crate::{Error, Result};

type Pair = (Vec<u8>, Vec<u8>);

/// What a transaction has written to a map: the new value of each key, or `None` for its removal.
pub(super) type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A walk over pairs of bytes inside a transaction.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<Vec<u8>, Vec<u8>>("bytes")?;
/// db.transaction(|tx| {
///     let index = tx.index(map.index())?;
///     index.insert(b"k", b"v")?;
///     for pair in index.iter()? {
///         let (key, value) = pair?;
///         assert_eq!((&key[..], &value[..]), (&b"k"[..], &b"v"[..]));
///     }
///     Ok(())
/// })?;
/// # Ok::<(), durix::Error>(())
/// ```
pub struct TxPairs<'a, M: Medium = Hardware> {
    shared: &'a Shared<M>,
    live: Box<dyn Cursor<M> + 'a>,
    /// The next committed pair, once it was read.
    next: Option<Pair>,
    at_end: bool,
    overlay: Writes,
    /// `None` where the index keeps no order.
    direction: Option<Direction>,
}

impl<M: Medium> fmt::Debug for TxPairs<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxPairs").field("direction", &self.direction).finish_non_exhaustive()
    }
}

impl<'a, M: Medium> TxPairs<'a, M> {
    pub(super) fn ordered(
        shared: &'a Shared<M>,
        live: Box<dyn Cursor<M> + 'a>,
        overlay: Writes,
        direction: Direction,
    ) -> Self {
        TxPairs { shared, live, next: None, at_end: false, overlay, direction: Some(direction) }
    }

    pub(super) fn unordered(shared: &'a Shared<M>, live: Box<dyn Cursor<M> + 'a>, overlay: Writes) -> Self {
        TxPairs { shared, live, next: None, at_end: false, overlay, direction: None }
    }

    /// Reads the next committed pair, unless it was read.
    fn fill(&mut self) -> Result<()> {
        if self.next.is_none() && !self.at_end {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let live = &mut self.live;
            let there = self.shared.sessions.with(&self.shared.pool, |cached| {
                let found = live.next_into(&cached.session.enter()?, &mut key, &mut value)?;
                self.shared.transactions.visible.read_all(&cached.session);
                self.shared.pool.settle(&mut cached.session)?;
                Ok(found)
            })?;
            self.at_end = !there;
            self.next = there.then_some((key, value));
        }
        Ok(())
    }

    /// Whether the next change comes before, or takes the place of, the next committed pair.
    fn overlay_is_next(&self) -> bool {
        let Some((committed, _)) = &self.next else { return true };
        match self.direction {
            Some(Direction::Forward) => self.overlay.first_key_value().is_some_and(|(own, _)| own <= committed),
            Some(Direction::Backward) => self.overlay.last_key_value().is_some_and(|(own, _)| own >= committed),
            None => false,
        }
    }

    fn step(&mut self) -> Result<Option<Pair>> {
        loop {
            self.fill()?;
            if !self.overlay_is_next() {
                let pair = self.next.take();
                // Without an order, changed keys come at the end.
                if self.direction.is_none() && pair.as_ref().is_some_and(|(key, _)| self.overlay.contains_key(key)) {
                    continue;
                }
                return Ok(pair);
            }
            let change = match self.direction {
                Some(Direction::Backward) => self.overlay.pop_last(),
                _ => self.overlay.pop_first(),
            };
            let Some((key, value)) = change else { return Ok(self.next.take()) };
            self.next.take_if(|(committed, _)| *committed == key);
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
        }
    }
}

impl<M: Medium> Iterator for TxPairs<'_, M> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Result<Pair>> {
        self.step().transpose()
    }
}

/// A walk over typed pairs inside a transaction.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<String, u64>("ages")?;
/// db.transaction(|tx| {
///     let map = tx.map(&map)?;
///     map.insert("ada", &36)?;
///     let pairs: Vec<(String, u64)> = map.iter()?.collect::<durix::Result<_>>()?;
///     assert_eq!(pairs.len(), 1);
///     Ok(())
/// })?;
/// # Ok::<(), durix::Error>(())
/// ```
pub struct TxIter<'a, K, V, M: Medium = Hardware> {
    pairs: TxPairs<'a, M>,
    name: String,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, M: Medium> fmt::Debug for TxIter<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pairs.fmt(f)
    }
}

impl<'a, K, V, M: Medium> TxIter<'a, K, V, M> {
    pub(super) fn new(pairs: TxPairs<'a, M>, name: String) -> Self {
        TxIter { pairs, name, types: PhantomData }
    }
}

fn typed<K: Decode, V: Decode>(name: &str, (key, value): (&[u8], &[u8])) -> Result<(K, V)> {
    let undecodable = |unfit: Unfit| Error::Undecodable { index: name.to_owned(), what: unfit.to_string() };
    Ok((K::decode(key).map_err(undecodable)?, V::decode(value).map_err(undecodable)?))
}

impl<K: Decode, V: Decode, M: Medium> Iterator for TxIter<'_, K, V, M> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.pairs.next()?;
        Some(pair.and_then(|(key, value)| typed(&self.name, (&key, &value))))
    }
}

/// A walk over typed pairs in the order of keys inside a transaction, from either end or from both.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// # let map = db.ordered_map::<String, u64>("ages")?;
/// db.transaction(|tx| {
///     let map = tx.map(&map)?;
///     map.insert("ada", &36)?;
///     let mut all = map.range::<str, _>(..)?;
///     assert_eq!(all.next_back().transpose()?, Some(("ada".to_owned(), 36)));
///     Ok(())
/// })?;
/// # Ok::<(), durix::Error>(())
/// ```
pub struct TxRange<'a, K, V, M: Medium = Hardware> {
    ends: Ends<TxPairs<'a, M>>,
    name: String,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, M: Medium> fmt::Debug for TxRange<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxRange").field("index", &self.name).finish_non_exhaustive()
    }
}

impl<'a, K: Decode, V: Decode, M: Medium> TxRange<'a, K, V, M> {
    pub(super) fn new(front: TxPairs<'a, M>, back: TxPairs<'a, M>, name: String) -> Self {
        TxRange { ends: Ends::of(Some(front), Some(back)), name, types: PhantomData }
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(K, V)>> {
        let pair = self.ends.step(direction, || unreachable!("both are open"), next_into).transpose()?;
        Some(pair.and_then(|pair| typed(&self.name, pair)))
    }
}

impl<K: Decode, V: Decode, M: Medium> Iterator for TxRange<'_, K, V, M> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl<K: Decode, V: Decode, M: Medium> DoubleEndedIterator for TxRange<'_, K, V, M> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}
