//! Vectors.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::tag::TypeTag;
use super::{Decode, Encode, Key, Part, Unfit, Value};

/// An element of a vector that is a key or a value: every [`Part`] but `u8`, since a `Vec<u8>` is a string of bytes.
pub trait Element: Part {}

macro_rules! elements {
    ($($type:ty),*) => {$( impl Element for $type {} )*};
}

elements!(u16, u32, u64, u128, i8, i16, i32, i64, i128, bool, char, f32, f64, String, OsString, PathBuf);
elements!(Ipv4Addr, Ipv6Addr, IpAddr, Duration, SystemTime);
impl<T: Part> Element for Option<T> {}

impl<T: Element> Encode for [T] {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.iter().for_each(|element| element.encode_part(out));
        Ok(())
    }
}

impl<T: Element> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_slice().encode(out)
    }
}

impl<T: Element> Decode for Vec<T> {
    fn decode(mut bytes: &[u8]) -> Result<Self, Unfit> {
        let mut decoded = Vec::new();
        while !bytes.is_empty() {
            decoded.push(T::decode_part(&mut bytes)?);
        }
        Ok(decoded)
    }
}

impl<T: Element> Key for Vec<T> {
    fn tag() -> TypeTag {
        TypeTag::list_of(T::CODE)
    }
}

impl<T: Element> Value for Vec<T> {
    fn tag() -> TypeTag {
        <Self as Key>::tag()
    }
}
