//! What ranges of keys can be bounded by.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::{Encode, Key, Unfit};

/// Keys whose ranges can be bounded by a `Q`: by a key, or by what it borrows as, so that a range of `String` keys can be written
/// `"a".."b"`.
pub trait BoundedBy<Q: ?Sized>: Key {
    /// Appends the bytes of the bound: those of the key that is equal to it.
    ///
    /// # Errors
    /// As [`Encode::encode`].
    fn encode_bound(bound: &Q, out: &mut Vec<u8>) -> Result<(), Unfit>;
}

impl<K: Key> BoundedBy<K> for K {
    fn encode_bound(bound: &K, out: &mut Vec<u8>) -> Result<(), Unfit> {
        bound.encode(out)
    }
}

/// The borrowed form by itself, which only a pair of [`Bound`](std::ops::Bound)s can hold, and references to it.
macro_rules! borrowed {
    ($({$($generics:tt)*} $key:ty, $borrowed:ty;)*) => {$(
        impl<$($generics)*> BoundedBy<$borrowed> for $key
        where
            $key: Key,
            $borrowed: Encode,
        {
            fn encode_bound(bound: &$borrowed, out: &mut Vec<u8>) -> Result<(), Unfit> {
                bound.encode(out)
            }
        }

        impl<$($generics)*> BoundedBy<&$borrowed> for $key
        where
            $key: Key,
            $borrowed: Encode,
        {
            fn encode_bound(bound: &&$borrowed, out: &mut Vec<u8>) -> Result<(), Unfit> {
                bound.encode(out)
            }
        }
    )*};
}

borrowed! {
    {} String, str;
    {} OsString, OsStr;
    {} PathBuf, Path;
    {T} Vec<T>, [T];
}
