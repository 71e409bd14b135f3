//! Typed keys and values as data, for code that knows their tag only: the command's JSON.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::tag::{self, TypeTag};
use super::text::{F32Text, F64Text, UuidText};
use super::{Decode, Encode, Part, Unfit};

/// A key or a value, as far as its [`TypeTag`] tells what it is.
///
/// ```
/// use durix::{Encode, Key, encode::Datum};
///
/// let mut bytes = Vec::new();
/// (7u32, Some("x".to_owned())).encode(&mut bytes)?;
/// let tag = <(u32, Option<String>) as Key>::tag();
/// let datum = tag.to_datum(&bytes).unwrap();
/// assert_eq!(datum, Datum::List(vec![Datum::Unsigned(7), Datum::Text("x".into())]));
/// assert_eq!(tag.from_datum(&datum)?, bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// An option that holds nothing.
    Absent,
    /// A `bool`.
    Bool(bool),
    /// An unsigned integer.
    Unsigned(u128),
    /// A signed integer.
    Signed(i128),
    /// A float.
    Float(f64),
    /// A string, a `char`, an address, a UUID; an `OsString` or a path that is UTF-8; a NaN whose bits are not the usual ones, with its bits.
    Text(String),
    /// Bytes; an `OsString` or a path that is no UTF-8.
    Bytes(Vec<u8>),
    /// A tuple or a vector. A time or a duration: seconds and nanoseconds. `()`: an empty one.
    List(Vec<Datum>),
}

impl TypeTag {
    /// Bytes of this type as data. `None` for named types, whose bytes only their program can read, and for bytes that are no such
    /// type.
    ///
    /// ```
    /// use durix::{Key, encode::Datum};
    ///
    /// assert_eq!(<u8 as Key>::tag().to_datum(&[7]), Some(Datum::Unsigned(7)));
    /// assert_eq!(<u8 as Key>::tag().to_datum(&[7, 7]), None);
    /// ```
    pub fn to_datum(self, bytes: &[u8]) -> Option<Datum> {
        if self.is_hash() {
            return None;
        }
        self.read(bytes).ok()
    }

    fn read(self, mut bytes: &[u8]) -> Result<Datum, Unfit> {
        if let Some(code) = self.element() {
            let mut elements = Vec::new();
            while !bytes.is_empty() {
                elements.push(read_part(code, &mut bytes)?);
            }
            return Ok(Datum::List(elements));
        }
        let Some(codes) = self.parts() else {
            return match self.len() {
                Some(Some(len)) if len != bytes.len() => Err(Unfit(format!("{} bytes are no {self}", bytes.len()))),
                _ => Ok(Datum::Bytes(bytes.to_vec())),
            };
        };
        let [parts @ .., last] = codes.as_slice() else { return Err(unfit(&Datum::Absent, "a type")) };
        let mut all = parts.iter().map(|code| read_part(*code, &mut bytes)).collect::<Result<Vec<_>, _>>()?;
        all.push(read_whole(*last, bytes)?);
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Datum::List(all) })
    }

    /// The bytes of a datum as this type has them. Numbers may be given as text, and bytes as text that is UTF-8. For named types
    /// only [`Datum::Bytes`] will do, which are taken as they are.
    ///
    /// ```
    /// use durix::{Key, encode::Datum};
    ///
    /// assert_eq!(<u8 as Key>::tag().from_datum(&Datum::Text("7".into()))?, [7]);
    /// assert!(<u8 as Key>::tag().from_datum(&Datum::Unsigned(256)).is_err());
    /// # Ok::<(), durix::encode::Unfit>(())
    /// ```
    ///
    /// # Errors
    /// [`Unfit`] where the datum is no such type.
    pub fn from_datum(self, datum: &Datum) -> Result<Vec<u8>, Unfit> {
        let mut out = Vec::new();
        if let (Some(code), Datum::List(elements)) = (self.element(), datum) {
            elements.iter().try_for_each(|element| write_part(code, element, &mut out))?;
            return Ok(out);
        }
        let Some(codes) = self.parts() else {
            let Datum::Bytes(bytes) = datum else { return Err(unfit(datum, &self.to_string())) };
            if !self.is_hash() {
                self.read(bytes)?;
            }
            return Ok(bytes.clone());
        };
        let parts = match (datum, codes.len()) {
            (datum, 1) => std::slice::from_ref(datum),
            (Datum::List(parts), len) if parts.len() == len => parts,
            _ => return Err(unfit(datum, &self.to_string())),
        };
        for (at, (code, part)) in codes.iter().zip(parts).enumerate() {
            if at + 1 == codes.len() { write_whole(*code, part, &mut out)? } else { write_part(*code, part, &mut out)? }
        }
        Ok(out)
    }
}

fn unfit(datum: &Datum, type_name: &str) -> Unfit {
    Unfit(format!("{} is not of type {type_name}", shown(datum)))
}

/// A datum for a message.
fn shown(datum: &Datum) -> String {
    match datum {
        Datum::Absent => "nothing".into(),
        Datum::Bool(bool) => bool.to_string(),
        Datum::Unsigned(n) => n.to_string(),
        Datum::Signed(n) => n.to_string(),
        Datum::Float(n) => n.to_string(),
        Datum::Text(text) => format!("{text:?}"),
        Datum::Bytes(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Datum::List(parts) => format!("[{}]", parts.iter().map(shown).collect::<Vec<_>>().join(", ")),
    }
}

fn name(code: u8) -> String {
    tag::name_of(code).unwrap_or_default().into_owned()
}

fn text_or_bytes(bytes: Vec<u8>) -> Datum {
    String::from_utf8(bytes).map_or_else(|error| Datum::Bytes(error.into_bytes()), Datum::Text)
}

fn read_whole(code: u8, mut bytes: &[u8]) -> Result<Datum, Unfit> {
    match code {
        tag::BYTES => Ok(Datum::Bytes(bytes.to_vec())),
        tag::STRING => String::decode(bytes).map(Datum::Text),
        tag::OS_STRING | tag::PATH => Ok(text_or_bytes(bytes.to_vec())),
        _ => {
            let read = read_part(code, &mut bytes)?;
            super::part::end(bytes, &name(code))?;
            Ok(read)
        }
    }
}

fn read_part(code: u8, bytes: &mut &[u8]) -> Result<Datum, Unfit> {
    if code & tag::OPTION != 0 {
        return if bool::decode_part(bytes)? { read_part(code ^ tag::OPTION, bytes) } else { Ok(Datum::Absent) };
    }
    let text = |what: &dyn std::fmt::Display| Datum::Text(what.to_string());
    Ok(match code {
        tag::BYTES => Datum::Bytes(Vec::decode_part(bytes)?),
        tag::STRING => Datum::Text(String::decode_part(bytes)?),
        tag::OS_STRING | tag::PATH => text_or_bytes(Vec::decode_part(bytes)?),
        tag::UNIT => Datum::List(Vec::new()),
        tag::BOOL => Datum::Bool(bool::decode_part(bytes)?),
        tag::CHAR => text(&char::decode_part(bytes)?),
        tag::IPV4 => text(&Ipv4Addr::decode_part(bytes)?),
        tag::IPV6 => text(&Ipv6Addr::decode_part(bytes)?),
        tag::IP => text(&IpAddr::decode_part(bytes)?),
        tag::UUID => text(&UuidText::decode_part(bytes)?),
        8 => Datum::Unsigned(u8::decode_part(bytes)?.into()),
        9 => Datum::Unsigned(u16::decode_part(bytes)?.into()),
        10 => Datum::Unsigned(u32::decode_part(bytes)?.into()),
        11 => Datum::Unsigned(u64::decode_part(bytes)?.into()),
        12 => Datum::Unsigned(u128::decode_part(bytes)?),
        16 => Datum::Signed(i8::decode_part(bytes)?.into()),
        17 => Datum::Signed(i16::decode_part(bytes)?.into()),
        18 => Datum::Signed(i32::decode_part(bytes)?.into()),
        19 => Datum::Signed(i64::decode_part(bytes)?.into()),
        20 => Datum::Signed(i128::decode_part(bytes)?),
        24 => match F32Text::decode_part(bytes)? {
            nan if nan.is_other_nan() => text(&nan),
            float => Datum::Float(float.0.into()),
        },
        25 => match F64Text::decode_part(bytes)? {
            nan if nan.is_other_nan() => text(&nan),
            float => Datum::Float(float.0),
        },
        tag::DURATION => pair(Datum::Unsigned(u64::decode_part(bytes)?.into()), bytes)?,
        tag::TIME => pair(Datum::Signed(i64::decode_part(bytes)?.into()), bytes)?,
        _ => return Err(Unfit(format!("{code} is no code of a type"))),
    })
}

/// Seconds and nanoseconds.
fn pair(seconds: Datum, bytes: &mut &[u8]) -> Result<Datum, Unfit> {
    Ok(Datum::List(vec![seconds, Datum::Unsigned(u32::decode_part(bytes)?.into())]))
}

fn write_whole(code: u8, datum: &Datum, out: &mut Vec<u8>) -> Result<(), Unfit> {
    match (code, datum) {
        (tag::BYTES | tag::OS_STRING | tag::PATH, Datum::Bytes(bytes)) => bytes.encode(out),
        (tag::BYTES | tag::STRING | tag::OS_STRING | tag::PATH, Datum::Text(text)) => text.encode(out),
        _ => write_part(code, datum, out),
    }
}

fn write_part(code: u8, datum: &Datum, out: &mut Vec<u8>) -> Result<(), Unfit> {
    if code & tag::OPTION != 0 {
        out.push(u8::from(*datum != Datum::Absent));
        return if *datum == Datum::Absent { Ok(()) } else { write_part(code ^ tag::OPTION, datum, out) };
    }
    let bad = || unfit(datum, &name(code));
    macro_rules! number {
        ($type:ty) => {
            match datum {
                Datum::Unsigned(n) => <$type>::try_from(*n).map_err(|_| bad())?,
                Datum::Signed(n) => <$type>::try_from(*n).map_err(|_| bad())?,
                Datum::Text(text) => text.parse::<$type>().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
            .encode_part(out)
        };
    }
    macro_rules! float {
        ($type:ty, $text:ty) => {
            match datum {
                Datum::Float(n) if n.is_nan() && tag::F32 == <$text>::CODE => <$type>::NAN,
                Datum::Float(n) => *n as $type,
                Datum::Unsigned(n) => *n as $type,
                Datum::Signed(n) => *n as $type,
                Datum::Text(text) => text.parse::<$text>().map_err(|_| bad())?.0,
                _ => return Err(bad()),
            }
            .encode_part(out)
        };
    }
    macro_rules! parsed {
        ($type:ty) => {
            match datum {
                Datum::Text(text) => text.parse::<$type>().map_err(|_| bad())?.encode_part(out),
                _ => return Err(bad()),
            }
        };
    }
    match (code, datum) {
        (tag::BYTES | tag::OS_STRING | tag::PATH, Datum::Bytes(bytes)) => bytes.encode_part(out),
        (tag::BYTES | tag::STRING | tag::OS_STRING | tag::PATH, Datum::Text(text)) => text.encode_part(out),
        (tag::UNIT, Datum::List(parts)) if parts.is_empty() => {}
        (tag::BOOL, Datum::Bool(bool)) => bool.encode_part(out),
        (tag::CHAR, _) => parsed!(char),
        (tag::IPV4, _) => parsed!(Ipv4Addr),
        (tag::IPV6, _) => parsed!(Ipv6Addr),
        (tag::IP, _) => parsed!(IpAddr),
        (tag::UUID, _) => parsed!(UuidText),
        (8, _) => number!(u8),
        (9, _) => number!(u16),
        (10, _) => number!(u32),
        (11, _) => number!(u64),
        (12, _) => number!(u128),
        (16, _) => number!(i8),
        (17, _) => number!(i16),
        (18, _) => number!(i32),
        (19, _) => number!(i64),
        (20, _) => number!(i128),
        (24, _) => float!(f32, F32Text),
        (25, _) => float!(f64, F64Text),
        (tag::DURATION | tag::TIME, Datum::List(parts)) => {
            let [seconds, Datum::Unsigned(nanoseconds @ 0..1_000_000_000)] = parts.as_slice() else {
                return Err(bad());
            };
            write_part(if code == tag::TIME { 19 } else { 11 }, seconds, out)?;
            (*nanoseconds as u32).encode_part(out);
        }
        _ => return Err(bad()),
    }
    Ok(())
}
