//! Whatever serde can write, as a value.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Decode, Encode, GivenAs, TypeTag, Unfit, Value};

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
