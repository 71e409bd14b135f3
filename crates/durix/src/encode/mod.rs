//! Keys and values as bytes: which types can be stored, and how. Encoded keys have the order of the type, so ranges work on them.
//!
//! Keys are encoded so that comparing the bytes compares the keys:
//!
//! | type | bytes |
//! |---|---|
//! | `u8` … `u128` | big-endian |
//! | `i8` … `i128` | big-endian, with the sign bit flipped |
//! | `usize`, `isize` | as `u64`, `i64` |
//! | `bool`, `char` | as `u8` (0, 1), as `u32` |
//! | `String`, `Vec<u8>`, `[u8; N]` | as they are |
//! | `Box<str>`, `Arc<str>`; `Box<[u8]>`, `Arc<[u8]>` | as `String`; as `Vec<u8>` |
//! | a tuple of two to six, also of tuples | its parts in a row; strings and bytes but for the last one with each 0 as 0, 255, and ended by 0, 1 |
//! | `f32`, `f64` | big-endian; the sign bit flipped, of negative ones all bits: the order of `total_cmp` |
//! | `Ipv4Addr`, `Ipv6Addr` | their octets; `IpAddr`: 4 or 6 before them |
//! | `Duration` | seconds as `u64`, nanoseconds as `u32` |
//! | `SystemTime` | seconds since 1970 as `i64`, rounded down, nanoseconds as `u32` |
//! | `OsString`, `PathBuf` | as they are: paths are in the order of their bytes, not of their components |
//! | `Option` | 0, or 1 and what is in it as in a tuple |
//! | `Vec` of anything here but `u8` | its elements in a row, each as in a tuple: the order of vectors |
//! | a `Vec` within another type | 1 before each element, 0 after the last |
//! | `Uuid` (feature `uuid`) | its 16 bytes |
//! | `()` | nothing |
//!
//! Values can be any of these, in the same bytes, or whatever serde can write, in postcard's format, once it has a name
//! ([`named!`](crate::named)). `Vec`, `Option` and tuples of such types are values, too; four bytes with its length (big-endian) come before each
//! value in there, but for the last part of a tuple. `BTreeMap` and `HashMap` of all these are values: their pairs in the order of keys, as a vector of
//! tuples.
//!
//! A [`TypeTag`] of the key's and of the value's type is kept with the index; see [`Db::map`](crate::Db::map).

mod datum;
mod given;
mod list;
mod option;
mod part;
mod same_as;
mod serde_value;
mod std_types;
mod stored_as;
mod tag;
mod text;
mod tuple;
#[cfg(feature = "uuid")]
mod uuid;

pub use datum::Datum;
pub use given::{GivenAs, PartGivenAs};
pub use list::Element;
pub use part::{KeyPart, Part};
pub use serde_value::Named;
pub use tag::TypeTag;
pub use tuple::PrefixOf;

/// Why a key or a value cannot be written, or bytes cannot be read as one.
///
/// ```
/// use durix::Decode;
/// use durix::encode::Unfit;
///
/// let unfit: Unfit = u64::decode(b"short").unwrap_err();
/// println!("{unfit}");
/// ```
#[doc(inline)]
pub use durix_index::Unfit;

/// What can be written as bytes. A type and what it borrows as (`String` and `str`) are written alike.
///
/// ```
/// use durix::Encode;
///
/// let mut bytes = Vec::new();
/// 258_u16.encode(&mut bytes)?;
/// "ab".encode(&mut bytes)?;
/// assert_eq!(bytes, [1, 2, b'a', b'b']);
/// # Ok::<(), durix::encode::Unfit>(())
/// ```
pub trait Encode {
    /// Appends the bytes to `out`.
    ///
    /// # Errors
    /// [`Unfit`], only from types whose serialization can fail.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit>;
}

/// What can be read from bytes.
///
/// ```
/// use durix::Decode;
///
/// assert_eq!(u16::decode(&[1, 2])?, 258);
/// assert!(u16::decode(&[1]).is_err());
/// # Ok::<(), durix::encode::Unfit>(())
/// ```
pub trait Decode: Sized {
    /// Reads all of `bytes`.
    ///
    /// # Errors
    /// [`Unfit`] where they are not what [`Encode::encode`] wrote.
    fn decode(bytes: &[u8]) -> Result<Self, Unfit>;
}

/// A type of keys: encoded so that the order of bytes is the order of keys.
///
/// ```
/// use durix::Key;
///
/// assert_eq!(<(u32, String) as Key>::type_name(), "(u32, string)");
/// // The order of bytes is the order of keys.
/// let bytes = |key: i32| {
///     let mut bytes = Vec::new();
///     durix::Encode::encode(&key, &mut bytes).map(|()| bytes)
/// };
/// assert!(bytes(-1)? < bytes(1)?);
/// # Ok::<(), durix::encode::Unfit>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    note = "`durix::stored_as!` makes a type of yours a key by storing it as another one",
    note = "types that serde writes (`durix::named!`), and what holds them, are values only: their bytes keep no order"
)]
pub trait Key: Encode + Decode + GivenAs<Self> {
    /// What is stored of the type.
    fn tag() -> TypeTag;
    /// What messages call it.
    fn type_name() -> String {
        Self::tag().to_string()
    }
}

/// A type of values.
///
/// ```
/// use durix::Value;
///
/// assert_eq!(<Vec<String> as Value>::type_name(), "Vec<string>");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a value",
    note = "`durix::named!(Type, \"Type 1\")` makes a type that serde can write a value, and `Vec`, `Option`, tuples and maps of it",
    note = "a map within another type, or a type of another crate, needs a type around it: `struct Mine(Theirs);`"
)]
pub trait Value: Encode + Decode + GivenAs<Self> {
    /// What is stored of the type.
    fn tag() -> TypeTag;
    /// What messages call it.
    fn type_name() -> String {
        Self::tag().to_string()
    }
}

#[cfg(test)]
mod tests;
