//! Vectors.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::tag::{NO_CODE, TypeTag};
use super::{Decode, Encode, Key, KeyPart, Part, Unfit, Value};

/// An element of a vector that is a key or a value: every [`Part`] but `u8`, since a `Vec<u8>` is a string of bytes. Vectors of types that serde
/// writes are values only. An element that has no bytes, as `[u8; 0]`, is an error, since nothing would tell how many there are.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let tags = db.map::<u64, Vec<String>>("tags")?;
/// tags.insert(&1, &vec!["red".to_owned(), "round".to_owned()])?;
/// assert_eq!(tags.get(&1)?.map(|tags| tags.len()), Some(2));
/// # Ok::<(), durix::Error>(())
/// ```
pub trait Element: Part {}

macro_rules! elements {
    ($($type:ty),*) => {$( impl Element for $type {} )*};
}

elements!(u16, u32, u64, u128, i8, i16, i32, i64, i128, bool, char, f32, f64, String, OsString, PathBuf);
elements!(usize, isize, Box<str>, Arc<str>, Box<[u8]>, Arc<[u8]>);
elements!(Ipv4Addr, Ipv6Addr, IpAddr, Duration, SystemTime);
impl<T: Part> Element for Option<T> {}
impl Element for Vec<u8> {}
impl<T: Element> Element for Vec<T> {}
impl<const N: usize> Element for [u8; N] {}

/// In front of each element of a vector that is a part, and at its end: a vector comes before those that it is the beginning of.
const MORE: u8 = 1;
const END: u8 = 0;

/// Elements as a part.
pub(super) fn encode_elements<T: Element>(elements: &[T], out: &mut Vec<u8>) {
    for element in elements {
        out.push(MORE);
        element.encode_part(out);
    }
    out.push(END);
}

/// The same, and tells what serde refuses.
pub(super) fn try_encode_elements<T: Element>(elements: &[T], out: &mut Vec<u8>) -> Result<(), Unfit> {
    for element in elements {
        out.push(MORE);
        element.try_encode_part(out)?;
    }
    out.push(END);
    Ok(())
}

/// The error of elements that nothing tells the number of, as those of `Vec<[u8; 0]>`.
#[cold]
pub(super) fn without_bytes<T: Part>() -> Unfit {
    Unfit(format!("a {} has no bytes, so nothing would tell how many a vector has", T::part_name()))
}

impl<T: Element> Part for Vec<T> {
    const CODE: u8 = NO_CODE;

    fn part_name() -> String {
        format!("Vec<{}>", T::part_name())
    }

    fn encode_part(&self, out: &mut Vec<u8>) {
        encode_elements(self, out);
    }

    fn try_encode_part(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        try_encode_elements(self, out)
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let mut decoded = Vec::new();
        loop {
            match u8::decode_part(bytes)? {
                END => return Ok(decoded),
                MORE => decoded.push(T::decode_part(bytes)?),
                other => return Err(Unfit(format!("{other} is neither an element of a vector nor its end"))),
            }
        }
    }
}

impl<T: Element> Encode for [T] {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.iter().try_for_each(|element| {
            let before = out.len();
            element.try_encode_part(out)?;
            if out.len() == before { Err(without_bytes::<T>()) } else { Ok(()) }
        })
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
            let before = bytes.len();
            decoded.push(T::decode_part(&mut bytes)?);
            if bytes.len() == before {
                return Err(without_bytes::<T>());
            }
        }
        Ok(decoded)
    }
}

impl<T: Element + KeyPart> Key for Vec<T> {
    fn tag() -> TypeTag {
        <Self as Value>::tag()
    }

    fn type_name() -> String {
        Self::part_name()
    }
}

impl<T: Element> Value for Vec<T> {
    fn tag() -> TypeTag {
        if T::CODE == NO_CODE { TypeTag::named(&Self::part_name()) } else { TypeTag::list_of(T::CODE) }
    }

    fn type_name() -> String {
        Self::part_name()
    }
}
