//! Typed maps that keep their keys in order.

use std::borrow::Borrow;
use std::ops::{Bound, Deref, RangeBounds};

use durix_pmem::{Hardware, Medium};

use crate::encode::{Encode, Key, PrefixOf, Value};
use crate::error::{Error, Result};
use crate::index::{Direction, KeyRange, OrderedIndex};
use crate::kind;
use crate::map::{Iter, Map};

/// A [`Map`] whose kind of index keeps the order of keys.
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

    /// The pairs with keys in `bounds`, from either end. A range that ends before it begins holds nothing.
    ///
    /// # Errors
    /// [`Error::Unfit`].
    pub fn range<Q>(&self, bounds: impl RangeBounds<Q>, direction: Direction) -> Result<Iter<'_, K, V, M>>
    where
        K: Borrow<Q>,
        Q: Encode + ?Sized,
    {
        let range = KeyRange { lower: encoded(bounds.start_bound())?, upper: encoded(bounds.end_bound())? };
        Ok(Iter::new(&self.map, self.ordered().range(&range, direction)))
    }

    /// The pairs whose keys begin with `prefix`: the first part or parts of a tuple (`&(7,)`), the beginning of a string.
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&self, prefix: &P, direction: Direction) -> Iter<'_, K, V, M> {
        let mut bytes = Vec::new();
        prefix.encode_prefix(&mut bytes);
        Iter::new(&self.map, self.ordered().prefix(&bytes, direction))
    }

    /// The pair with the smallest key.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.end(Direction::Forward)
    }

    /// The pair with the largest key.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.end(Direction::Backward)
    }

    fn end(&self, direction: Direction) -> Result<Option<(K, V)>> {
        Iter::new(&self.map, self.ordered().range(&KeyRange::all(), direction)).next().transpose()
    }
}

fn encoded<Q: Encode + ?Sized>(bound: Bound<&Q>) -> Result<Bound<Vec<u8>>> {
    let encode = |key: &Q| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        key.encode(&mut bytes)?;
        Ok(bytes)
    };
    Ok(match bound {
        Bound::Included(key) => Bound::Included(encode(key)?),
        Bound::Excluded(key) => Bound::Excluded(encode(key)?),
        Bound::Unbounded => Bound::Unbounded,
    })
}
