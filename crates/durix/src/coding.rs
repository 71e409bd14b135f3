//! Between keys and values of the user's types, and the bytes that an index holds.

use std::ops::{Bound, RangeBounds};

use durix_pmem::Medium;

use crate::encode::{Decode, GivenAs, PrefixOf, Unfit};
use crate::{Error, Index, KeyRange, Result};

/// The bytes of the `T` that is given.
pub(crate) fn encoded<T: GivenAs<Q>, Q: ?Sized>(given: &Q) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    T::encode_given(given, &mut bytes)?;
    Ok(bytes)
}

#[inline]
pub(crate) fn encode_into<T: GivenAs<Q>, Q: ?Sized>(given: &Q, bytes: &mut Vec<u8>) -> Result<()> {
    bytes.clear();
    T::encode_given(given, bytes)?;
    Ok(())
}

/// Reads what is stored in an index.
#[inline]
pub(crate) fn decoded<T: Decode, M: Medium>(index: &dyn Index<M>, bytes: &[u8]) -> Result<T> {
    match T::decode(bytes) {
        Ok(decoded) => Ok(decoded),
        Err(unfit) => Err(undecodable(index, &unfit)),
    }
}

#[cold]
#[inline(never)]
pub(crate) fn undecodable<M: Medium>(index: &dyn Index<M>, unfit: &Unfit) -> Error {
    Error::Undecodable { index: index.root().name(), what: unfit.to_string() }
}

/// The keys with a prefix as a range of bytes.
pub(crate) fn prefixed_range<K, P: PrefixOf<K> + ?Sized>(prefix: &P) -> KeyRange {
    let mut bytes = Vec::new();
    prefix.encode_prefix(&mut bytes);
    KeyRange::prefix(&bytes)
}

/// A range of keys as a range of bytes.
pub(crate) fn encoded_range<K: GivenAs<Q>, Q: ?Sized>(bounds: &impl RangeBounds<Q>) -> Result<KeyRange> {
    Ok(KeyRange {
        lower: encoded_bound::<K, Q>(bounds.start_bound())?,
        upper: encoded_bound::<K, Q>(bounds.end_bound())?,
    })
}

fn encoded_bound<K: GivenAs<Q>, Q: ?Sized>(bound: Bound<&Q>) -> Result<Bound<Vec<u8>>> {
    Ok(match bound {
        Bound::Included(key) => Bound::Included(encoded::<K, Q>(key)?),
        Bound::Excluded(key) => Bound::Excluded(encoded::<K, Q>(key)?),
        Bound::Unbounded => Bound::Unbounded,
    })
}
