//! As what keys and values can be given: as they are, or as what they borrow as.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Element, Encode, Part, Unfit};

/// Types whose values can be given as a `Q`, in look-ups, ranges and inserts: as they are, or in a borrowed form.
///
/// | type | borrowed forms |
/// |---|---|
/// | `String` | `str`, `&str` |
/// | `Vec<T>` | `[T]`, `&[T]` |
/// | `Box<str>`, `Arc<str>`; `Box<[u8]>`, `Arc<[u8]>` | `str`, `&str`; `[u8]`, `&[u8]` |
/// | `OsString`, `PathBuf` | `OsStr`, `&OsStr`; `Path`, `&Path` |
/// | `Option<T>` | an option of a borrowed form: `Some("ada")` for `Option<String>` |
/// | a tuple | a tuple of parts, each as it is or as a reference: `(&str, u64)` for `(String, u64)`, also in nested tuples |
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = durix::Db::open_or_create(dir.path().join("scores"))?;
/// let scores = db.ordered_map::<(String, u64), u32>("scores")?;
/// scores.insert(&("ada", 1815), &7)?;              // no String is made
/// assert_eq!(scores.get(&("ada", 1815))?, Some(7));
/// assert_eq!(scores.range(("a", 0)..("b", 0))?.count(), 1);
/// assert_eq!(scores.prefix(&("ada",)).count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait GivenAs<Q: ?Sized> {
    /// Appends the bytes of the value that is equal to `given`.
    ///
    /// # Errors
    /// As [`Encode::encode`].
    fn encode_given(given: &Q, out: &mut Vec<u8>) -> Result<(), Unfit>;
}

/// Parts of a tuple that can be given as a `Q`.
///
/// ```
/// use durix::encode::{Part, PartGivenAs};
///
/// let (mut owned, mut borrowed) = (Vec::new(), Vec::new());
/// "a".to_owned().encode_part(&mut owned);
/// String::encode_part_given(&"a", &mut borrowed);
/// assert_eq!(owned, borrowed);
/// ```
pub trait PartGivenAs<Q> {
    /// Appends the bytes of the part that is equal to `given`: as [`Part::encode_part`].
    fn encode_part_given(given: &Q, out: &mut Vec<u8>);

    /// The same, and tells what serde refuses: as [`Part::try_encode_part`].
    ///
    /// # Errors
    /// [`Unfit`], only from types whose serialization can fail.
    #[inline]
    fn try_encode_part_given(given: &Q, out: &mut Vec<u8>) -> Result<(), Unfit> {
        Self::encode_part_given(given, out);
        Ok(())
    }
}

/// A type as it is.
macro_rules! as_itself {
    ($({$($generics:tt)*} $type:ty;)*) => {$(
        impl<$($generics)*> $crate::encode::GivenAs<$type> for $type {
            #[inline]
            fn encode_given(given: &$type, out: &mut Vec<u8>) -> Result<(), $crate::encode::Unfit> {
                $crate::encode::Encode::encode(given, out)
            }
        }

        impl<$($generics)*> $crate::encode::PartGivenAs<$type> for $type {
            #[inline]
            fn encode_part_given(given: &$type, out: &mut Vec<u8>) {
                $crate::encode::Part::encode_part(given, out);
            }

            #[inline]
            fn try_encode_part_given(given: &$type, out: &mut Vec<u8>) -> Result<(), $crate::encode::Unfit> {
                $crate::encode::Part::try_encode_part(given, out)
            }
        }
    )*};
}

as_itself! {
    {} bool; {} char;
    {} u8; {} u16; {} u32; {} u64; {} u128;
    {} i8; {} i16; {} i32; {} i64; {} i128;
    {} f32; {} f64;
    {} std::net::Ipv4Addr; {} std::net::Ipv6Addr; {} std::net::IpAddr;
    {} std::time::Duration; {} std::time::SystemTime;
    {} String; {} OsString; {} PathBuf;
    {} Box<str>; {} Arc<str>; {} Box<[u8]>; {} Arc<[u8]>;
    {} Vec<u8>; {T: Element} Vec<T>;
    {const N: usize} [u8; N];
    {} usize; {} isize;
}

impl<T: PartGivenAs<Q>, Q> GivenAs<Option<Q>> for Option<T> {
    #[inline]
    fn encode_given(given: &Option<Q>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        Self::try_encode_part_given(given, out)
    }
}

impl<T: PartGivenAs<Q>, Q> PartGivenAs<Option<Q>> for Option<T> {
    #[inline]
    fn encode_part_given(given: &Option<Q>, out: &mut Vec<u8>) {
        super::option::encode_option(given.as_ref(), T::encode_part_given, out);
    }

    #[inline]
    fn try_encode_part_given(given: &Option<Q>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        super::option::try_encode_option(given.as_ref(), T::try_encode_part_given, out)
    }
}

#[cfg(feature = "uuid")]
as_itself! { {} uuid::Uuid; }

impl GivenAs<()> for () {
    fn encode_given(_: &(), _: &mut Vec<u8>) -> Result<(), Unfit> {
        Ok(())
    }
}

/// The borrowed form by itself, and references to it and to the type; the last names how it is written as a part.
macro_rules! borrowed {
    ($({$($generics:tt)*} $type:ty, $borrowed:ty, $part:expr;)*) => {$(
        impl<$($generics)*> GivenAs<$borrowed> for $type {
            #[inline]
            fn encode_given(given: &$borrowed, out: &mut Vec<u8>) -> Result<(), Unfit> {
                given.encode(out)
            }
        }

        borrowed!(reference {$($generics)*} $type, $borrowed, $part);
        borrowed!(reference {$($generics)*} $type, $type, Part::encode_part);
    )*};
    (reference {$($generics:tt)*} $type:ty, $borrowed:ty, $part:expr) => {
        impl<$($generics)*> GivenAs<&$borrowed> for $type {
            #[inline]
            fn encode_given(given: &&$borrowed, out: &mut Vec<u8>) -> Result<(), Unfit> {
                given.encode(out)
            }
        }

        impl<$($generics)*> PartGivenAs<&$borrowed> for $type {
            #[inline]
            fn encode_part_given(given: &&$borrowed, out: &mut Vec<u8>) {
                let encode: fn(&$borrowed, &mut Vec<u8>) = $part;
                encode(given, out);
            }
        }
    };
}

borrowed! {
    {} String, str, |given, out| super::part::encode_bytes(given.as_bytes(), out);
    {} OsString, OsStr, |given, out| super::part::encode_bytes(given.as_encoded_bytes(), out);
    {} PathBuf, Path, |given, out| super::part::encode_bytes(given.as_os_str().as_encoded_bytes(), out);
    {} Vec<u8>, [u8], super::part::encode_bytes;
    {} Box<str>, str, |given, out| super::part::encode_bytes(given.as_bytes(), out);
    {} Arc<str>, str, |given, out| super::part::encode_bytes(given.as_bytes(), out);
    {} Box<[u8]>, [u8], super::part::encode_bytes;
    {} Arc<[u8]>, [u8], super::part::encode_bytes;
}

impl<T: Element> GivenAs<[T]> for Vec<T> {
    #[inline]
    fn encode_given(given: &[T], out: &mut Vec<u8>) -> Result<(), Unfit> {
        given.encode(out)
    }
}

/// References to a vector of elements, and to a slice of them.
macro_rules! elements {
    ($($type:ty)*) => {$(
        impl<T: Element> GivenAs<&$type> for Vec<T> {
            #[inline]
            fn encode_given(given: &&$type, out: &mut Vec<u8>) -> Result<(), Unfit> {
                given.encode(out)
            }
        }

        impl<T: Element> PartGivenAs<&$type> for Vec<T> {
            #[inline]
            fn encode_part_given(given: &&$type, out: &mut Vec<u8>) {
                super::list::encode_elements(given, out);
            }

            #[inline]
            fn try_encode_part_given(given: &&$type, out: &mut Vec<u8>) -> Result<(), Unfit> {
                super::list::try_encode_elements(given, out)
            }
        }
    )*};
}

elements! { [T] Vec<T> }

pub(super) use as_itself;
