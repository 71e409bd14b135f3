//! Whatever serde can write, as a value.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::part::too_short;
use super::tag::NO_CODE;
use super::{Decode, Element, Encode, GivenAs, Part, PartGivenAs, TypeTag, Unfit, Value};

/// Makes types that serde can write values: `durix::named!(User)`, or `durix::named!(User, "User 2")` with a version in the name.
///
/// It implements [`Named`], whose page says what the name is for. Without a name, the name is the type's own, as it is written here:
/// give one with another version when you change the fields.
///
/// ```
/// use std::collections::HashMap;
///
/// use durix::Db;
///
/// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// struct User {
///     name: String,
///     born: Option<u16>,
/// }
/// durix::named!(User);
///
/// # let dir = tempfile::tempdir()?;
/// let db = Db::open_or_create(dir.path().join("app.durix"))?;
/// let teams = db.map::<u64, HashMap<String, User>>("teams")?;
/// let ada = User { name: "Ada".into(), born: Some(1815) };
/// teams.insert(&1, &[("ada".to_owned(), ada)].into())?;
/// assert_eq!(teams.get(&1)?.map(|team| team["ada"].born), Some(Some(1815)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! named {
    ($type:ty) => {
        $crate::named!($type, ::core::stringify!($type));
    };
    ($type:ty, $name:expr $(,)?) => {
        impl $crate::Named for $type {
            const NAME: &'static str = $name;
        }
    };
}

/// Gives a type the name under which its values are stored, which makes any type that serde knows a value.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct User {
///     name: String,
///     born: u16,
/// }
/// impl durix::Named for User {
///     const NAME: &'static str = "User 1";
/// }
/// ```
///
/// [`named!`](crate::named) writes the implementation. `Vec<User>`, `Option<User>`, `(u32, User)` and `HashMap<String, User>` are values, too.
/// None of them is a key: postcard's bytes keep no order.
///
/// The name stands for the layout: change it when you change the fields, so that values of the old layout are refused and
/// not misread. (Rust's own name of a type would change with its module.) Values are in postcard's format, which does not
/// describe itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a value: it has no name",
    note = "`durix::named!(Type, \"Type 1\")` gives a type that serde can write a name",
    note = "a type of another crate needs a type around it: `struct Mine(Theirs);`"
)]
pub trait Named {
    /// The name, with a version.
    const NAME: &'static str;
}

impl<T: Named + Serialize> Encode for T {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let unfit = |error: postcard::Error| Unfit(format!("a {} cannot be written: {error}", T::NAME));
        *out = postcard::to_extend(self, std::mem::take(out)).map_err(unfit)?;
        Ok(())
    }
}

impl<T: Named + Serialize> GivenAs<T> for T {
    fn encode_given(given: &T, out: &mut Vec<u8>) -> Result<(), Unfit> {
        given.encode(out)
    }
}

impl<T: Named + DeserializeOwned> Decode for T {
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        let unfit = |error: postcard::Error| Unfit(format!("{} bytes are no {}: {error}", bytes.len(), T::NAME));
        let (decoded, rest) = postcard::take_from_bytes(bytes).map_err(unfit)?;
        super::part::end(rest, T::NAME)?;
        Ok(decoded)
    }
}

/// Within other types: its length in four bytes, and what it is by itself.
impl<T: Named + Serialize + DeserializeOwned> Part for T {
    const CODE: u8 = NO_CODE;

    fn part_name() -> String {
        T::NAME.into()
    }

    fn encode_part(&self, out: &mut Vec<u8>) {
        let start = out.len();
        if self.try_encode_part(out).is_err() {
            out.truncate(start);
        }
    }

    fn try_encode_part(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.encode(out)?;
        let len = out.len() - start - 4;
        let len =
            u32::try_from(len).map_err(|_| Unfit(format!("a {} of {len} bytes is too long to be a part", T::NAME)))?;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let len = u32::decode_part(bytes)? as usize;
        let (own, rest) = bytes.split_at_checked(len).ok_or_else(|| too_short(T::NAME, bytes.len()))?;
        *bytes = rest;
        T::decode(own)
    }
}

impl<T: Named + Serialize + DeserializeOwned> Element for T {}

impl<T: Named + Serialize + DeserializeOwned> PartGivenAs<T> for T {
    fn encode_part_given(given: &T, out: &mut Vec<u8>) {
        given.encode_part(out);
    }

    fn try_encode_part_given(given: &T, out: &mut Vec<u8>) -> Result<(), Unfit> {
        given.try_encode_part(out)
    }
}

impl<T: Named + Serialize + DeserializeOwned> Value for T {
    fn tag() -> TypeTag {
        TypeTag::named(T::NAME)
    }

    fn type_name() -> String {
        T::NAME.into()
    }
}
