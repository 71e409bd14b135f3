//! Whatever serde can write, as a value.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Decode, Encode, GivenAs, TypeTag, Unfit, Value};

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
/// // Vectors, options and maps of such types are values by a type of their own.
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Team(HashMap<String, User>);
/// durix::named!(Team, "Team 1");
///
/// # let dir = tempfile::tempdir()?;
/// let db = Db::open_or_create(dir.path().join("app.durix"))?;
/// let teams = db.map::<u64, Team>("teams")?;
/// let ada = User { name: "Ada".into(), born: Some(1815) };
/// teams.insert(&1, &Team([("ada".to_owned(), ada)].into()))?;
/// assert_eq!(teams.get(&1)?.map(|team| team.0["ada"].born), Some(Some(1815)));
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
/// [`named!`](crate::named) writes the implementation. `Vec<User>`, `Option<User>` and `HashMap<_, User>` are no values by themselves: the vectors
/// and options that are (`Vec<String>`) are written so that they can be parts of keys, and postcard's bytes keep no order. Put them into a
/// type with a name: `struct Users(Vec<User>);`.
///
/// The name stands for the layout: change it when you change the fields, so that values of the old layout are refused and
/// not misread. (Rust's own name of a type would change with its module.) Values are in postcard's format, which does not
/// describe itself.
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

impl<T: Named + Serialize + DeserializeOwned> Value for T {
    fn tag() -> TypeTag {
        TypeTag::named(T::NAME)
    }

    fn type_name() -> String {
        T::NAME.into()
    }
}
