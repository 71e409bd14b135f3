//! `Uuid`, with the feature `uuid`.

use uuid::Uuid;

use super::part::{key_and_value, whole_is_part};
use super::tag::{self, TypeTag};
use super::{Decode, Element, Encode, Key, Part, Unfit, Value};

whole_is_part!(Uuid);
key_and_value!(Uuid);

impl Element for Uuid {}
impl super::KeyPart for Uuid {}

impl Part for Uuid {
    const CODE: u8 = tag::UUID;

    fn encode_part(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        <[u8; 16]>::decode_part(bytes).map(Uuid::from_bytes)
    }
}
