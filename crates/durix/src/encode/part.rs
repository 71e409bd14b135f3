//! Types that can be a key, a value, or a part of a tuple.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::tag::{self, TypeTag};
use super::{Decode, Element, Encode, Key, PartGivenAs, Unfit, Value};

/// A part of a tuple, an element of a vector, what an option holds.
///
/// ```
/// use durix::encode::Part;
///
/// let mut bytes = Vec::new();
/// "a".to_owned().encode_part(&mut bytes);               // tells where it ends
/// 7_u8.encode_part(&mut bytes);
/// let mut rest = &bytes[..];
/// assert_eq!(String::decode_part(&mut rest)?, "a");
/// assert_eq!(u8::decode_part(&mut rest)?, 7);
/// # Ok::<(), durix::encode::Unfit>(())
/// ```
pub trait Part: PartGivenAs<Self> + Sized {
    /// Its code in a [`TypeTag`]; zero where it has none.
    #[doc(hidden)]
    const CODE: u8;

    /// What messages call it.
    fn part_name() -> String {
        tag::name_of(Self::CODE).unwrap_or_default().into_owned()
    }

    /// Appends bytes that tell where they end. Of a type that serde writes, or that holds one: nothing of what serde refuses.
    fn encode_part(&self, out: &mut Vec<u8>);

    /// The same, and tells what serde refuses.
    ///
    /// # Errors
    /// [`Unfit`], only from types whose serialization can fail.
    #[inline]
    fn try_encode_part(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.encode_part(out);
        Ok(())
    }

    /// Takes the bytes of one part off the front of `bytes`.
    ///
    /// # Errors
    /// [`Unfit`].
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit>;
}

/// A part of a key: its bytes are in the order of the type. Every [`Part`] but types that serde writes, and what holds one.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct User(String);
/// durix::named!(User);
///
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.map::<Vec<String>, Vec<User>>("teams")?;
/// # Ok::<(), durix::Error>(())
/// ```
///
/// The same with `User` in the key does not compile:
///
/// ```compile_fail,E0277
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct User(String);
/// durix::named!(User);
///
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.map::<Vec<User>, Vec<User>>("teams")?;
/// # Ok::<(), durix::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key",
    note = "`durix::stored_as!` makes a type of yours a part of keys by storing it as another one",
    note = "types that serde writes (`durix::named!`), and what holds them, are values only: their bytes keep no order"
)]
pub trait KeyPart: Part {}

macro_rules! key_parts {
    ($($type:ty),*) => {$( impl KeyPart for $type {} )*};
}

key_parts!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, usize, isize, bool, char, f32, f64);
key_parts!(String, OsString, PathBuf, Box<str>, Arc<str>, Vec<u8>, Box<[u8]>, Arc<[u8]>);
key_parts!(Ipv4Addr, Ipv6Addr, IpAddr, Duration, SystemTime);
impl<const N: usize> KeyPart for [u8; N] {}
impl<T: KeyPart> KeyPart for Option<T> {}
impl<T: KeyPart + Element> KeyPart for Vec<T> {}

#[cold]
pub(super) fn too_short(type_name: &str, len: usize) -> Unfit {
    Unfit(format!("{len} bytes are too few for {type_name}"))
}

/// That nothing is left over.
#[inline]
pub(super) fn end(rest: &[u8], type_name: &str) -> Result<(), Unfit> {
    if rest.is_empty() { Ok(()) } else { Err(left_over(rest.len(), type_name)) }
}

#[cold]
fn left_over(len: usize, type_name: &str) -> Unfit {
    Unfit(format!("{len} bytes are left over after {type_name}"))
}

/// A type whose bytes as a part are its bytes as a whole.
macro_rules! whole_is_part {
    ($($type:ty),*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
                self.encode_part(out);
                Ok(())
            }
        }

        impl Decode for $type {
            #[inline]
            fn decode(mut bytes: &[u8]) -> Result<Self, Unfit> {
                let decoded = Self::decode_part(&mut bytes)?;
                crate::encode::part::end(bytes, stringify!($type))?;
                Ok(decoded)
            }
        }
    )*};
}

macro_rules! key_and_value {
    ($($type:ty),*) => {$(
        impl Key for $type {
            fn tag() -> TypeTag {
                TypeTag::of_parts(&[<$type as Part>::CODE])
            }
        }

        impl Value for $type {
            fn tag() -> TypeTag {
                TypeTag::of_parts(&[<$type as Part>::CODE])
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty, $unsigned:ty, $flip:expr, $code:expr;)*) => {$(
        impl Part for $type {
            const CODE: u8 = $code;

            #[inline]
            fn encode_part(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&(self.cast_unsigned_() ^ $flip).to_be_bytes());
            }

            #[inline]
            fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
                let (first, rest) =
                    bytes.split_first_chunk().ok_or_else(|| too_short(stringify!($type), bytes.len()))?;
                *bytes = rest;
                Ok((<$unsigned>::from_be_bytes(*first) ^ $flip) as $type)
            }
        }

        impl CastUnsigned for $type {
            type Unsigned = $unsigned;
            #[inline]
            fn cast_unsigned_(self) -> $unsigned {
                self as $unsigned
            }
        }
    )*};
}

/// `cast_unsigned`, which unsigned types do not have.
trait CastUnsigned {
    type Unsigned;
    fn cast_unsigned_(self) -> Self::Unsigned;
}

integers! {
    u8, u8, 0, tag::U8;
    u16, u16, 0, tag::U8 + 1;
    u32, u32, 0, tag::U8 + 2;
    u64, u64, 0, tag::U8 + 3;
    u128, u128, 0, tag::U8 + 4;
    i8, u8, 1 << 7, tag::I8;
    i16, u16, 1 << 15, tag::I8 + 1;
    i32, u32, 1 << 31, tag::I8 + 2;
    i64, u64, 1 << 63, tag::I8 + 3;
    i128, u128, 1 << 127, tag::I8 + 4;
}

impl Part for bool {
    const CODE: u8 = tag::BOOL;

    fn encode_part(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        match u8::decode_part(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Unfit(format!("{other} is no bool"))),
        }
    }
}

impl Part for char {
    const CODE: u8 = tag::CHAR;

    fn encode_part(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode_part(out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let code = u32::decode_part(bytes)?;
        char::from_u32(code).ok_or_else(|| Unfit(format!("{code:#x} is no char")))
    }
}

whole_is_part!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, bool, char);
key_and_value!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, bool, char, String, Vec<u8>);

pub(super) use {key_and_value, whole_is_part};

// ---- bytes ----

/// Behind a zero byte: it was one of the bytes; the bytes have ended. The end comes first in order, so that a string
/// comes before what it is a prefix of, whatever follows in the tuple.
const ESCAPED: u8 = 0xff;
const END: u8 = 0x01;

/// Bytes as a part.
pub(super) fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(ESCAPED);
        }
    }
    out.extend_from_slice(&[0, END]);
}

impl Part for Vec<u8> {
    const CODE: u8 = tag::BYTES;

    fn encode_part(&self, out: &mut Vec<u8>) {
        encode_bytes(self, out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let mut decoded = Vec::new();
        let mut rest = *bytes;
        loop {
            let zero = rest.iter().position(|b| *b == 0).ok_or_else(|| Unfit("bytes without an end".into()))?;
            decoded.extend_from_slice(&rest[..zero]);
            match rest.get(zero + 1) {
                Some(&ESCAPED) => decoded.push(0),
                Some(&END) => {
                    *bytes = &rest[zero + 2..];
                    return Ok(decoded);
                }
                _ => return Err(Unfit("a zero byte that is not escaped".into())),
            }
            rest = &rest[zero + 2..];
        }
    }
}

impl Part for String {
    const CODE: u8 = tag::STRING;

    fn encode_part(&self, out: &mut Vec<u8>) {
        // UTF-8 orders strings as their characters do.
        encode_bytes(self.as_bytes(), out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        utf8(Vec::decode_part(bytes)?)
    }
}

fn utf8(bytes: Vec<u8>) -> Result<String, Unfit> {
    String::from_utf8(bytes).map_err(|error| Unfit(format!("no UTF-8: {}", error.utf8_error())))
}

impl Encode for [u8] {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        out.extend_from_slice(self);
        Ok(())
    }
}

impl Encode for str {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_bytes().encode(out)
    }
}

impl Encode for Vec<u8> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_slice().encode(out)
    }
}

impl Encode for String {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_str().encode(out)
    }
}

impl Decode for Vec<u8> {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        Ok(bytes.to_vec())
    }
}

impl Decode for String {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        utf8(bytes.to_vec())
    }
}

impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_slice().encode(out)
    }
}

impl<const N: usize> Decode for [u8; N] {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        match bytes.try_into() {
            Ok(array) => Ok(array),
            Err(_) => Err(other_length::<N>(bytes.len())),
        }
    }
}

#[cold]
#[inline(never)]
fn other_length<const N: usize>(len: usize) -> Unfit {
    Unfit(format!("{len} bytes are no [u8; {N}]"))
}

impl<const N: usize> Part for [u8; N] {
    const CODE: u8 = tag::NO_CODE;

    fn part_name() -> String {
        format!("[u8; {N}]")
    }

    fn encode_part(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let (first, rest) = bytes.split_first_chunk().ok_or_else(|| too_short("[u8; N]", bytes.len()))?;
        *bytes = rest;
        Ok(*first)
    }
}

impl<const N: usize> Key for [u8; N] {
    fn tag() -> TypeTag {
        TypeTag::named(&<Self as Key>::type_name())
    }

    fn type_name() -> String {
        format!("[u8; {N}]")
    }
}

impl<const N: usize> Value for [u8; N] {
    fn tag() -> TypeTag {
        <Self as Key>::tag()
    }

    fn type_name() -> String {
        <Self as Key>::type_name()
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Vec<u8>) -> Result<(), Unfit> {
        Ok(())
    }
}

impl Decode for () {
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        end(bytes, "()")
    }
}

impl Value for () {
    fn tag() -> TypeTag {
        TypeTag::of_parts(&[tag::UNIT])
    }
}
