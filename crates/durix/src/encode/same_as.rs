//! Types of the standard library that are stored as others: a map that holds one can be opened as the other.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::{Decode, Encode, GivenAs, Key, Part, TypeTag, Unfit, Value};

/// A type, as what it is stored, how it becomes that, and back.
macro_rules! same_as {
    ($($type:ty as $stored:ty, $encode:expr, $part:expr, $from:expr;)*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
                let encode: fn(&$type, &mut Vec<u8>) -> Result<(), Unfit> = $encode;
                encode(self, out)
            }
        }

        impl Decode for $type {
            #[inline]
            fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
                let from: fn($stored) -> Result<$type, Unfit> = $from;
                from(<$stored as Decode>::decode(bytes)?)
            }
        }

        impl Part for $type {
            const CODE: u8 = <$stored as Part>::CODE;

            #[inline]
            fn encode_part(&self, out: &mut Vec<u8>) {
                let encode: fn(&$type, &mut Vec<u8>) = $part;
                encode(self, out);
            }

            #[inline]
            fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
                let from: fn($stored) -> Result<$type, Unfit> = $from;
                from(<$stored as Part>::decode_part(bytes)?)
            }
        }

        impl Key for $type {
            fn tag() -> TypeTag {
                <$stored as Key>::tag()
            }
        }

        impl Value for $type {
            fn tag() -> TypeTag {
                <$stored as Value>::tag()
            }
        }
    )*};
}

same_as! {
    usize as u64, |n, out| (*n as u64).encode(out), |n, out| (*n as u64).encode_part(out),
        |n| n.try_into().map_err(|_| Unfit(format!("{n} is no usize of this machine")));
    isize as i64, |n, out| (*n as i64).encode(out), |n, out| (*n as i64).encode_part(out),
        |n| n.try_into().map_err(|_| Unfit(format!("{n} is no isize of this machine")));
    Box<str> as String, |text, out| (**text).encode(out), |text, out| super::part::encode_bytes(text.as_bytes(), out),
        |text| Ok(text.into());
    Arc<str> as String, |text, out| (**text).encode(out), |text, out| super::part::encode_bytes(text.as_bytes(), out),
        |text| Ok(text.into());
    Box<[u8]> as Vec<u8>, |bytes, out| (**bytes).encode(out), |bytes, out| super::part::encode_bytes(bytes, out),
        |bytes| Ok(bytes.into());
    Arc<[u8]> as Vec<u8>, |bytes, out| (**bytes).encode(out), |bytes, out| super::part::encode_bytes(bytes, out),
        |bytes| Ok(bytes.into());
}

/// Maps as vectors of their pairs, in the order of the keys' bytes, so that equal maps have equal bytes.
macro_rules! maps {
    ($({$($generics:tt)*} $type:ty;)*) => {$(
        impl<$($generics)*> Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
                let mut pairs: Vec<(Vec<u8>, &V)> = Vec::with_capacity(self.len());
                for (key, value) in self {
                    let mut bytes = Vec::new();
                    key.try_encode_part(&mut bytes)?;
                    pairs.push((bytes, value));
                }
                pairs.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                for (key, value) in pairs {
                    let before = out.len();
                    out.extend_from_slice(&key);
                    value.try_encode_part(out)?;
                    if out.len() == before {
                        return Err(super::list::without_bytes::<(K, V)>());
                    }
                }
                Ok(())
            }
        }

        impl<$($generics)*> Decode for $type {
            fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
                <Vec<(K, V)> as Decode>::decode(bytes).map(|pairs| pairs.into_iter().collect())
            }
        }

        impl<$($generics)*> GivenAs<$type> for $type {
            fn encode_given(given: &$type, out: &mut Vec<u8>) -> Result<(), Unfit> {
                given.encode(out)
            }
        }

        impl<$($generics)*> Value for $type {
            fn tag() -> TypeTag {
                <Vec<(K, V)> as Value>::tag()
            }

            fn type_name() -> String {
                <Vec<(K, V)> as Value>::type_name()
            }
        }
    )*};
}

maps! {
    {K: Part + Ord, V: Part} BTreeMap<K, V>;
    {K: Part + Eq + Hash, V: Part, S: BuildHasher + Default} HashMap<K, V, S>;
}
