//! What may be absent.

use super::tag::{self, TypeTag};
use super::{Decode, Encode, Key, KeyPart, Part, Unfit, Value};

/// An option as a part, whose part `encode` writes.
pub(super) fn encode_option<T>(option: Option<&T>, encode: impl FnOnce(&T, &mut Vec<u8>), out: &mut Vec<u8>) {
    out.push(u8::from(option.is_some()));
    if let Some(part) = option {
        encode(part, out);
    }
}

/// The same, where `encode` can fail.
pub(super) fn try_encode_option<T>(
    option: Option<&T>,
    encode: impl FnOnce(&T, &mut Vec<u8>) -> Result<(), Unfit>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    out.push(u8::from(option.is_some()));
    option.map_or(Ok(()), |part| encode(part, out))
}

impl<T: Part> Part for Option<T> {
    const CODE: u8 =
        if T::CODE == tag::NO_CODE || T::CODE & tag::OPTION != 0 { tag::NO_CODE } else { T::CODE | tag::OPTION };

    fn part_name() -> String {
        format!("Option<{}>", T::part_name())
    }

    fn encode_part(&self, out: &mut Vec<u8>) {
        encode_option(self.as_ref(), T::encode_part, out);
    }

    fn try_encode_part(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        try_encode_option(self.as_ref(), T::try_encode_part, out)
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        bool::decode_part(bytes)?.then(|| T::decode_part(bytes)).transpose()
    }
}

impl<T: Part> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.try_encode_part(out)
    }
}

impl<T: Part> Decode for Option<T> {
    fn decode(mut bytes: &[u8]) -> Result<Self, Unfit> {
        let decoded = Self::decode_part(&mut bytes)?;
        super::part::end(bytes, "an option")?;
        Ok(decoded)
    }
}

impl<T: KeyPart> Key for Option<T> {
    fn tag() -> TypeTag {
        <Self as Value>::tag()
    }

    fn type_name() -> String {
        Self::part_name()
    }
}

impl<T: Part> Value for Option<T> {
    fn tag() -> TypeTag {
        TypeTag::of(&[Self::CODE], Self::part_name)
    }

    fn type_name() -> String {
        Self::part_name()
    }
}
