//! Tuples of parts.

use std::sync::Arc;

use super::given::{GivenAs, PartGivenAs};
use super::part::{KeyPart, Part};
use super::tag::{NO_CODE, TypeTag};
use super::{Decode, Element, Encode, Key, Unfit, Value};

/// What keys of type `K` can begin with: the first part or parts of a tuple, the beginning of a string or of bytes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let orders = db.ordered_map::<(u32, String, u8), u64>("orders")?;
/// orders.insert(&(7, "tea", 1), &2)?;
/// assert_eq!(orders.prefix(&(7,)).count(), 1);
/// assert_eq!(orders.prefix(&(7, "tea")).count(), 1);
/// # Ok::<(), durix::Error>(())
/// ```
pub trait PrefixOf<K> {
    /// Appends the bytes with which the keys begin.
    fn encode_prefix(&self, out: &mut Vec<u8>);
}

/// Strings and bytes begin with others.
macro_rules! beginning {
    ($($begun:ty: $with:ty;)*) => {$(
        impl PrefixOf<$begun> for $with {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.as_ref());
            }
        }
    )*};
}

beginning! {
    String: str; Box<str>: str; Arc<str>: str;
    Vec<u8>: [u8]; Box<[u8]>: [u8]; Arc<[u8]>: [u8];
}

macro_rules! prefix {
    ($($part:ident $given:ident)+, $($rest:ident)+) => {
        impl<$($part: PartGivenAs<$given>, $given,)+ $($rest,)+> PrefixOf<($($part,)+ $($rest,)+)> for ($($given,)+) {
            #[allow(non_snake_case)]
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                let ($($given,)+) = self;
                $($part::encode_part_given($given, out);)+
            }
        }
    };
}

prefix!(A P, B);
prefix!(A P, B C);
prefix!(A P B Q, C);
prefix!(A P, B C D);
prefix!(A P B Q, C D);
prefix!(A P B Q C R, D);
prefix!(A P, B C D E);
prefix!(A P B Q, C D E);
prefix!(A P B Q C R, D E);
prefix!(A P B Q C R D S, E);
prefix!(A P, B C D E F);
prefix!(A P B Q, C D E F);
prefix!(A P B Q C R, D E F);
prefix!(A P B Q C R D S, E F);
prefix!(A P B Q C R D S E T, F);

/// A tuple given as one whose parts are given.
macro_rules! given {
    ($($part:ident $given:ident)+, $last:ident $given_last:ident) => {
        impl<$($part: PartGivenAs<$given>, $given,)+ $last: GivenAs<$given_last>, $given_last>
            GivenAs<($($given,)+ $given_last,)> for ($($part,)+ $last,)
        {
            #[allow(non_snake_case)]
            fn encode_given(given: &($($given,)+ $given_last,), out: &mut Vec<u8>) -> Result<(), Unfit> {
                let ($($given,)+ $given_last,) = given;
                $($part::try_encode_part_given($given, out)?;)+
                $last::encode_given($given_last, out)
            }
        }

        impl<$($part: PartGivenAs<$given>, $given,)+ $last: PartGivenAs<$given_last>, $given_last>
            PartGivenAs<($($given,)+ $given_last,)> for ($($part,)+ $last,)
        {
            #[allow(non_snake_case)]
            fn encode_part_given(given: &($($given,)+ $given_last,), out: &mut Vec<u8>) {
                let ($($given,)+ $given_last,) = given;
                $($part::encode_part_given($given, out);)+
                $last::encode_part_given($given_last, out);
            }

            #[allow(non_snake_case)]
            fn try_encode_part_given(given: &($($given,)+ $given_last,), out: &mut Vec<u8>) -> Result<(), Unfit> {
                let ($($given,)+ $given_last,) = given;
                $($part::try_encode_part_given($given, out)?;)+
                $last::try_encode_part_given($given_last, out)
            }
        }
    };
}

given!(A P, B Q);
given!(A P B Q, C R);
given!(A P B Q C R, D S);
given!(A P B Q C R D S, E T);
given!(A P B Q C R D S E T, F U);

macro_rules! tuple {
    ($($part:ident)+, $last:ident) => {
        impl<$($part: Part,)+ $last: Part + Encode> Encode for ($($part,)+ $last,) {
            #[allow(non_snake_case)]
            fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
                let ($($part,)+ $last,) = self;
                $($part.try_encode_part(out)?;)+
                $last.encode(out)
            }
        }

        impl<$($part: Part,)+ $last: Part + Decode> Decode for ($($part,)+ $last,) {
            #[allow(non_snake_case)]
            fn decode(mut bytes: &[u8]) -> Result<Self, Unfit> {
                $(let $part = $part::decode_part(&mut bytes)?;)+
                Ok(($($part,)+ $last::decode(bytes)?,))
            }
        }

        impl<$($part: Part,)+ $last: Part> Part for ($($part,)+ $last,) {
            const CODE: u8 = NO_CODE;

            fn part_name() -> String {
                format!("({})", [$($part::part_name(),)+ $last::part_name()].join(", "))
            }

            #[allow(non_snake_case)]
            fn encode_part(&self, out: &mut Vec<u8>) {
                let ($($part,)+ $last,) = self;
                $($part.encode_part(out);)+
                $last.encode_part(out);
            }

            #[allow(non_snake_case)]
            fn try_encode_part(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
                let ($($part,)+ $last,) = self;
                $($part.try_encode_part(out)?;)+
                $last.try_encode_part(out)
            }

            fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
                Ok(($($part::decode_part(bytes)?,)+ $last::decode_part(bytes)?,))
            }
        }

        impl<$($part: Part,)+ $last: Part> Element for ($($part,)+ $last,) {}
        impl<$($part: KeyPart,)+ $last: KeyPart> KeyPart for ($($part,)+ $last,) {}

        impl<$($part: KeyPart,)+ $last: KeyPart + Encode + Decode + GivenAs<$last>> Key for ($($part,)+ $last,) {
            fn tag() -> TypeTag {
                <Self as Value>::tag()
            }

            fn type_name() -> String {
                Self::part_name()
            }
        }

        impl<$($part: Part,)+ $last: Part + Encode + Decode + GivenAs<$last>> Value for ($($part,)+ $last,) {
            fn tag() -> TypeTag {
                TypeTag::of(&[$($part::CODE,)+ $last::CODE], Self::part_name)
            }

            fn type_name() -> String {
                Self::part_name()
            }
        }
    };
}

tuple!(A, B);
tuple!(A B, C);
tuple!(A B C, D);
tuple!(A B C D, E);
tuple!(A B C D E, F);
