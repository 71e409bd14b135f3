//! Typed keys and values as text, for code that knows their tag only: the command line.

use std::borrow::Cow;

use super::tag::{self, TypeTag};
use super::{Decode, Encode, Part, Unfit};

impl TypeTag {
    /// Bytes of this type as text: numbers in decimals, the parts of a tuple with a comma between them. A part before the last one that has a
    /// comma, or begins with a quote, is in quotes, and quotes within it are doubled. `None` where only the bytes can be shown: of named
    /// types and types with raw bytes, and of bytes that are no such type.
    ///
    /// ```
    /// use durix::{Encode, Key};
    ///
    /// let mut bytes = Vec::new();
    /// 7_u32.encode(&mut bytes)?;
    /// assert_eq!(<u32 as Key>::tag().to_text(&bytes).as_deref(), Some("7"));
    ///
    /// bytes.clear();
    /// ("a,b".to_owned(), "c,d".to_owned()).encode(&mut bytes)?;
    /// assert_eq!(<(String, String) as Key>::tag().to_text(&bytes).as_deref(), Some("\"a,b\",c,d"));
    /// # Ok::<(), durix::encode::Unfit>(())
    /// ```
    pub fn to_text(self, mut bytes: &[u8]) -> Option<String> {
        let codes = self.parts().filter(|codes| readable(codes))?;
        let (last, parts) = codes.split_last()?;
        let mut texts = Vec::new();
        for code in parts {
            texts.push(quoted(part_to_text(*code, &mut bytes)?));
        }
        texts.push(whole_to_text(*last, bytes)?);
        Some(texts.join(","))
    }

    /// The bytes of what [`to_text`](Self::to_text) writes; the last part of a tuple is taken as it is, with its commas and quotes. `None`
    /// for named types and types with raw bytes.
    ///
    /// ```
    /// use durix::Key;
    ///
    /// let tag = <(u8, bool) as Key>::tag();
    /// assert_eq!(tag.from_text("7,true").unwrap()?, [7, 1]);
    /// assert!(tag.from_text("7").unwrap().is_err());
    /// # Ok::<(), durix::encode::Unfit>(())
    /// ```
    ///
    /// # Errors
    /// [`Unfit`] where the text is no such type.
    pub fn from_text(self, text: &str) -> Option<Result<Vec<u8>, Unfit>> {
        let codes = self.parts().filter(|codes| readable(codes))?;
        let encoded = || {
            let mut out = Vec::new();
            let texts =
                split(text, codes.len()).map_err(|why| Unfit(format!("{text:?} is not of type {self}: {why}")))?;
            for (at, (code, part)) in codes.iter().zip(&texts).enumerate() {
                let last = at + 1 == codes.len();
                let hint =
                    if codes.len() > 1 { "; its parts are written with commas between them, as in 7,text" } else { "" };
                from_text(*code, part, last, &mut out)
                    .map_err(|why| Unfit(format!("{text:?} is not of type {self}: {why}{hint}")))?;
            }
            Ok(out)
        };
        Some(encoded())
    }
}

/// A part before the last one, so that its end can be found.
fn quoted(text: String) -> String {
    if !text.contains(',') && !text.starts_with('"') { text } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// The parts of a tuple, without the quotes around them.
fn split(text: &str, count: usize) -> Result<Vec<Cow<'_, str>>, String> {
    let mut parts = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let (part, after) = if parts.len() + 1 == count { (text.into(), None) } else { first(text)? };
        parts.push(part);
        rest = after;
    }
    if parts.len() < count {
        return Err(format!("{} parts of {count}, with commas between them", parts.len()));
    }
    Ok(parts)
}

/// The first part, and what comes after its comma.
fn first(text: &str) -> Result<(Cow<'_, str>, Option<&str>), String> {
    let Some(mut rest) = text.strip_prefix('"') else {
        return Ok(text.split_once(',').map_or((text.into(), None), |(part, rest)| (part.into(), Some(rest))));
    };
    let mut part = String::new();
    loop {
        let (before, after) =
            rest.split_once('"').ok_or("a part whose quotes do not end; a quote within them is doubled")?;
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(_) => part.push('"'),
            None if after.is_empty() => return Ok((part.into(), None)),
            None => {
                let rest = after
                    .strip_prefix(',')
                    .ok_or("no comma after the quotes of a part; a quote within them is doubled")?;
                return Ok((part.into(), Some(rest)));
            }
        }
        rest = &after[1..];
    }
}

/// Whether all parts can be read as text. Bytes cannot; alone they are not text of a type at all.
fn readable(codes: &[u8]) -> bool {
    let unreadable = |code: u8| {
        matches!(code, tag::BYTES | tag::DURATION | tag::TIME | tag::OS_STRING | tag::PATH) || code & tag::OPTION != 0
    };
    !codes.iter().any(|code| unreadable(*code))
}

/// Calls a macro with the type of each integer code.
macro_rules! by_code {
    ($code:expr, $run:ident, $otherwise:expr) => {
        match $code {
            8 => $run!(u8),
            9 => $run!(u16),
            10 => $run!(u32),
            11 => $run!(u64),
            12 => $run!(u128),
            16 => $run!(i8),
            17 => $run!(i16),
            18 => $run!(i32),
            19 => $run!(i64),
            20 => $run!(i128),
            24 => $run!(F32Text),
            25 => $run!(F64Text),
            tag::IPV4 => $run!(std::net::Ipv4Addr),
            tag::IPV6 => $run!(std::net::Ipv6Addr),
            tag::IP => $run!(std::net::IpAddr),
            tag::UUID => $run!(UuidText),
            tag::BOOL => $run!(bool),
            tag::CHAR => $run!(char),
            tag::STRING => $run!(String),
            _ => $otherwise,
        }
    };
}

fn part_to_text(code: u8, bytes: &mut &[u8]) -> Option<String> {
    macro_rules! show {
        ($type:ty) => {
            <$type>::decode_part(bytes).ok()?.to_string()
        };
    }
    Some(by_code!(code, show, String::new()))
}

fn whole_to_text(code: u8, bytes: &[u8]) -> Option<String> {
    macro_rules! show {
        ($type:ty) => {
            <$type>::decode(bytes).ok()?.to_string()
        };
    }
    Some(by_code!(code, show, return bytes.is_empty().then(String::new)))
}

fn from_text(code: u8, text: &str, last: bool, out: &mut Vec<u8>) -> Result<(), String> {
    macro_rules! read {
        ($type:ty) => {{
            let read: $type = text.parse().map_err(|error| format!("{error}"))?;
            if last { read.encode(out).map_err(|error| error.to_string()) } else { Ok(read.encode_part(out)) }
        }};
    }
    by_code!(code, read, if text.is_empty() { Ok(()) } else { Err("nothing is expected".into()) })
}

/// A float as Rust writes it. A NaN that is not [`f64::NAN`] has its bits in its text, as `NaN(0xfff8000000000000)`: as a key it lies at
/// another place.
macro_rules! float_texts {
    ($($name:ident, $type:ty, $bits:ty, $code:expr;)*) => {$(
        pub(super) struct $name(pub(super) $type);

        super::part::whole_is_part!($name);
        super::given::as_itself! { {} $name; }

        impl $name {
            /// Whether a NaN has other bits than the usual one.
            pub(super) fn is_other_nan(&self) -> bool {
                self.0.is_nan() && self.0.to_bits() != <$type>::NAN.to_bits()
            }
        }

        impl Part for $name {
            const CODE: u8 = $code;

            fn encode_part(&self, out: &mut Vec<u8>) {
                self.0.encode_part(out);
            }

            fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
                Part::decode_part(bytes).map($name)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                if self.is_other_nan() { write!(f, "NaN({:#x})", self.0.to_bits()) } else { std::fmt::Display::fmt(&self.0, f) }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let Some(digits) = text.strip_prefix("NaN(0x") else {
                    return text.parse().map($name).map_err(|error: std::num::ParseFloatError| error.to_string());
                };
                let digits = digits.strip_suffix(')').filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                let float = digits.and_then(|digits| <$bits>::from_str_radix(digits, 16).ok()).map(<$type>::from_bits);
                float.filter(|float| float.is_nan()).map($name).ok_or_else(|| "these are not the bits of a NaN".into())
            }
        }
    )*};
}

float_texts! {
    F32Text, f32, u32, tag::F32;
    F64Text, f64, u64, tag::F32 + 1;
}

/// A UUID as it is usually written, whether or not this build has the feature `uuid`.
pub(super) struct UuidText([u8; 16]);

super::part::whole_is_part!(UuidText);
super::given::as_itself! { {} UuidText; }

impl Part for UuidText {
    const CODE: u8 = tag::UUID;

    fn encode_part(&self, out: &mut Vec<u8>) {
        self.0.encode_part(out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        Part::decode_part(bytes).map(UuidText)
    }
}

impl std::fmt::Display for UuidText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for UuidText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.replace('-', "");
        let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_hexadecimal.then(|| u128::from_str_radix(&digits, 16).ok()).flatten();
        number.map(|number| UuidText(number.to_be_bytes())).ok_or("a UUID has 32 hexadecimal digits")
    }
}
