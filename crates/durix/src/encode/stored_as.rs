//! Types that are stored as another one.

/// Makes a type of yours a key and a value that is stored as another type: an enum as a number, a new type as what it holds.
///
/// It takes the type, the type that is stored, a name with a version, and the two conversions; the second one gives `None` for what is no
/// such value. The order of keys is the order of what is stored. The type can be a part of tuples, vectors and options, too. (For
/// values that need no order, [`Named`](crate::Named) with serde is enough.)
///
/// ```
/// use durix::Db;
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Level { Info = 1, Warning = 2 }
///
/// durix::stored_as!(Level as u8, "Level 1", |level| *level as u8, |code| match code {
///     1 => Some(Level::Info),
///     2 => Some(Level::Warning),
///     _ => None,
/// });
///
/// # let dir = tempfile::tempdir()?;
/// let db = Db::open_or_create(dir.path().join("app.durix"))?;
/// let log = db.ordered_map::<(Level, u64), String>("log")?;
/// log.insert(&(Level::Info, 7), "started")?;
/// assert_eq!(log.prefix(&(Level::Info,)).count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! stored_as {
    ($type:ty as $stored:ty, $name:expr, $to:expr, $from:expr $(,)?) => {
        const _: () = {
            use $crate::encode::{Part, Unfit};

            fn to(value: &$type) -> $stored {
                let to: fn(&$type) -> $stored = $to;
                to(value)
            }

            fn from(stored: $stored) -> ::core::result::Result<$type, Unfit> {
                let from: fn($stored) -> ::core::option::Option<$type> = $from;
                from(stored).ok_or_else(|| Unfit(::std::format!("what is stored is no {}", $name)))
            }

            impl $crate::Encode for $type {
                fn encode(&self, out: &mut ::std::vec::Vec<u8>) -> ::core::result::Result<(), Unfit> {
                    $crate::Encode::encode(&to(self), out)
                }
            }

            impl $crate::Decode for $type {
                fn decode(bytes: &[u8]) -> ::core::result::Result<Self, Unfit> {
                    from(<$stored as $crate::Decode>::decode(bytes)?)
                }
            }

            impl $crate::encode::GivenAs<$type> for $type {
                fn encode_given(given: &$type, out: &mut ::std::vec::Vec<u8>) -> ::core::result::Result<(), Unfit> {
                    $crate::Encode::encode(given, out)
                }
            }

            impl $crate::encode::PartGivenAs<$type> for $type {
                fn encode_part_given(given: &$type, out: &mut ::std::vec::Vec<u8>) {
                    given.encode_part(out);
                }
            }

            impl Part for $type {
                const CODE: u8 = 0;

                fn part_name() -> ::std::string::String {
                    $name.into()
                }

                fn encode_part(&self, out: &mut ::std::vec::Vec<u8>) {
                    to(self).encode_part(out);
                }

                fn decode_part(bytes: &mut &[u8]) -> ::core::result::Result<Self, Unfit> {
                    from(<$stored as Part>::decode_part(bytes)?)
                }
            }

            impl $crate::encode::Element for $type {}
            impl $crate::encode::KeyPart for $type where $stored: $crate::encode::KeyPart {}

            impl $crate::Key for $type
            where
                $stored: $crate::encode::KeyPart,
            {
                fn tag() -> $crate::TypeTag {
                    $crate::TypeTag::named($name)
                }

                fn type_name() -> ::std::string::String {
                    $name.into()
                }
            }

            impl $crate::Value for $type {
                fn tag() -> $crate::TypeTag {
                    $crate::TypeTag::named($name)
                }

                fn type_name() -> ::std::string::String {
                    $name.into()
                }
            }
        };
    };
}
