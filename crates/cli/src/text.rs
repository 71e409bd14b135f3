//! Keys and values as text: escapes, and the types of the index where it has some.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use durix::encode::Datum;
use durix::{TypeNames, TypeTag, Types};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Appends bytes as one line without tabs: UTF-8 as it is, apart from the backslash and what would not show; everything
/// else as `\xNN`.
pub fn escape_into(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                    let mut utf8 = [0; 4];
                    c.encode_utf8(&mut utf8).bytes().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
                }
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
}

pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    escape_into(bytes, &mut out);
    out
}

/// The bytes of what [`escape_into`] wrote.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| *b == b'\\') {
        bytes.extend_from_slice(&rest[..at]);
        let (byte, len) = match rest.get(at + 1) {
            Some(b'\\') => (b'\\', 2),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b't') => (b'\t', 2),
            Some(b'x') => {
                let digits = rest.get(at + 2..at + 4).and_then(|d| std::str::from_utf8(d).ok());
                let byte = digits.filter(|d| !d.starts_with('+')).and_then(|d| u8::from_str_radix(d, 16).ok());
                (byte.ok_or("\\x is followed by two hexadecimal digits")?, 4)
            }
            Some(other) => return Err(format!("\\{} is no escape; a backslash is \\\\", other.escape_ascii())),
            None => return Err("a backslash at the end; a backslash is \\\\".into()),
        };
        bytes.push(byte);
        rest = &rest[at + len..];
    }
    bytes.extend_from_slice(rest);
    Ok(bytes)
}

/// How the keys and values of an index are read and shown.
#[derive(Clone, Debug)]
pub struct Codec {
    types: Types,
    names: TypeNames,
    escaped: bool,
}

impl Codec {
    pub fn new(types: Types, names: TypeNames, escaped: bool) -> Self {
        Codec { types, names, escaped }
    }

    /// What the types of keys and values are called.
    pub fn type_names(&self) -> String {
        self.names.both(self.types)
    }

    /// The bytes of a key that hexadecimal digits give.
    pub fn key_of_hex(&self, digits: &[u8]) -> Result<Vec<u8>, Failure> {
        from_hex(self.types.key, digits, "key")
    }

    /// The bytes of a value that hexadecimal digits give.
    pub fn value_of_hex(&self, digits: &[u8]) -> Result<Vec<u8>, Failure> {
        from_hex(self.types.value, digits, "value")
    }

    /// The bytes of a key in JSON.
    pub fn key_of_json(&self, value: &Value) -> Result<Vec<u8>, Failure> {
        from_json(self.types.key, value, "key")
    }

    /// The bytes of a value in JSON.
    pub fn value_of_json(&self, value: &Value) -> Result<Vec<u8>, Failure> {
        from_json(self.types.value, value, "value")
    }

    pub fn json_of_key(&self, bytes: &[u8]) -> Value {
        to_json(self.types.key, bytes)
    }

    pub fn json_of_value(&self, bytes: &[u8]) -> Value {
        to_json(self.types.value, bytes)
    }

    /// A key as a field of CSV, before it gets its quotes: raw bytes where it is no text.
    pub fn field_of_key(&self, bytes: &[u8]) -> Vec<u8> {
        field(self.types.key, bytes)
    }

    /// A value as a field of CSV: as [`field_of_key`](Self::field_of_key).
    pub fn field_of_value(&self, bytes: &[u8]) -> Vec<u8> {
        field(self.types.value, bytes)
    }

    pub fn key(&self, text: &OsStr) -> Result<Vec<u8>, Failure> {
        self.read(self.types.key, text.as_bytes(), self.escaped, "key")
    }

    pub fn value(&self, text: &OsStr) -> Result<Vec<u8>, Failure> {
        self.read(self.types.value, text.as_bytes(), self.escaped, "value")
    }

    /// What keys begin with.
    pub fn prefix(&self, text: &OsStr) -> Result<Vec<u8>, Failure> {
        let (key, string) = (self.types.key, <String as durix::Key>::tag());
        if key != TypeTag::BYTES && key != string {
            let what = format!("keys of type {key} have no prefix; use --from and --to");
            return Err(Failure::BadText { what });
        }
        self.key(text)
    }

    /// As [`key`](Self::key), of a line of a file.
    pub fn key_of_line(&self, text: &[u8], escaped: bool) -> Result<Vec<u8>, Failure> {
        self.read(self.types.key, text, escaped, "key")
    }

    /// As [`value`](Self::value), of a line of a file.
    pub fn value_of_line(&self, text: &[u8], escaped: bool) -> Result<Vec<u8>, Failure> {
        self.read(self.types.value, text, escaped, "value")
    }

    fn read(&self, tag: TypeTag, text: &[u8], escaped: bool, role: &str) -> Result<Vec<u8>, Failure> {
        let bytes = if escaped {
            let bad = |what| Failure::BadText { what: format!("{role} {:?}: {what}", String::from_utf8_lossy(text)) };
            unescape(text).map_err(bad)?
        } else {
            text.to_vec()
        };
        if tag == TypeTag::BYTES {
            return Ok(bytes);
        }
        let bad =
            |_| Failure::BadText { what: format!("{role} {} is no UTF-8, which {tag} needs", bytes.escape_ascii()) };
        match tag.from_text(std::str::from_utf8(&bytes).map_err(bad)?) {
            Some(read) => read.map_err(|unfit| Failure::BadText { what: format!("{role} {unfit}") }),
            None => Err(Failure::BadText {
                what: format!(
                    "the {role}s of this index are of type {}, which cannot be given as text; load them with --format json or hex",
                    self.names.name(tag)
                ),
            }),
        }
    }

    pub fn show_key(&self, bytes: &[u8]) -> String {
        show(self.types.key, bytes)
    }

    pub fn show_value(&self, bytes: &[u8]) -> String {
        show(self.types.value, bytes)
    }
}

fn show(tag: TypeTag, bytes: &[u8]) -> String {
    escape(&field(tag, bytes))
}

/// The text of a type; the bytes where it has none.
fn field(tag: TypeTag, bytes: &[u8]) -> Vec<u8> {
    match tag.to_text(bytes) {
        Some(text) => text.into_bytes(),
        // Bytes that are not of their type, but could be the text of something that is: what no type is read from.
        None if tag.from_text("").is_some() && std::str::from_utf8(bytes).is_ok() => {
            to_json(tag, bytes).to_string().into()
        }
        None => bytes.to_vec(),
    }
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut digits, byte| {
        digits.push_str(&format!("{byte:02x}"));
        digits
    })
}

/// The bytes of what [`hex`] wrote.
fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| Some((nibble(pair[0])? * 16 + nibble(pair[1])?) as u8);
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() { None } else { pairs.map(byte).collect() }
}

fn from_hex(tag: TypeTag, digits: &[u8], role: &str) -> Result<Vec<u8>, Failure> {
    let bad = |what: String| Failure::BadText { what: format!("{role} {}: {what}", digits.escape_ascii()) };
    let bytes = unhex(digits).ok_or_else(|| bad("bytes have two hexadecimal digits each".into()))?;
    fitting(tag, bytes).map_err(bad)
}

/// Bytes that are of a type, as far as its tag tells.
fn fitting(tag: TypeTag, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let (is_known, fits) = (tag.from_datum(&Datum::Bytes(Vec::new())).is_err(), tag.to_datum(&bytes).is_some());
    if is_known && !fits { Err(format!("these bytes are no {tag}")) } else { Ok(bytes) }
}

/// A key or value in JSON: see `docs/cli.md`.
fn to_json(tag: TypeTag, bytes: &[u8]) -> Value {
    match tag.to_datum(bytes) {
        // An object that is not within an array stands for the stored bytes, which are more than those of an option's content.
        Some(Datum::Bytes(content)) if std::str::from_utf8(&content).is_err() => json!({ "hex": hex(bytes) }),
        Some(datum) => datum_to_json(datum),
        None => json!({ "hex": hex(bytes) }),
    }
}

fn datum_to_json(datum: Datum) -> Value {
    match datum {
        Datum::Absent => Value::Null,
        Datum::Bool(bool) => json!(bool),
        Datum::Unsigned(n) => u64::try_from(n).map_or_else(|_| json!(n.to_string()), |n| json!(n)),
        Datum::Signed(n) => i64::try_from(n).map_or_else(|_| json!(n.to_string()), |n| json!(n)),
        // What JSON has no number for.
        Datum::Float(n) if !n.is_finite() => json!(n.to_string()),
        Datum::Float(n) => json!(n),
        Datum::Text(text) => json!(text),
        Datum::Bytes(bytes) => {
            String::from_utf8(bytes).map_or_else(|error| json!({ "hex": hex(error.as_bytes()) }), |text| json!(text))
        }
        Datum::List(parts) => parts.into_iter().map(datum_to_json).collect(),
    }
}

fn from_json(tag: TypeTag, value: &Value, role: &str) -> Result<Vec<u8>, Failure> {
    let bad = |what: String| Failure::BadText { what: format!("{role} {value}: {what}") };
    if let Some(digits) = value.get("hex").and_then(Value::as_str) {
        return from_hex(tag, digits.as_bytes(), role);
    }
    let datum = json_to_datum(value).map_err(bad)?;
    let datum = match datum {
        // Arrays of bytes are shown as text where they are some.
        Datum::Text(text) if tag.to_datum(text.as_bytes()) == Some(Datum::Bytes(text.clone().into_bytes())) => {
            Datum::Bytes(text.into_bytes())
        }
        datum => datum,
    };
    tag.from_datum(&datum).map_err(|unfit| bad(unfit.to_string()))
}

fn json_to_datum(value: &Value) -> Result<Datum, String> {
    Ok(match value {
        Value::Null => Datum::Absent,
        Value::Bool(bool) => Datum::Bool(*bool),
        Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(n), _, _) => Datum::Unsigned(n.into()),
            (_, Some(n), _) => Datum::Signed(n.into()),
            (_, _, Some(n)) => Datum::Float(n),
            _ => return Err("a number that is too large; write it in quotes".into()),
        },
        Value::String(text) => Datum::Text(text.clone()),
        Value::Array(parts) => Datum::List(parts.iter().map(json_to_datum).collect::<Result<_, _>>()?),
        Value::Object(_) => {
            let digits = value.get("hex").and_then(Value::as_str);
            Datum::Bytes(digits.and_then(|digits| unhex(digits.as_bytes())).ok_or("an object is {\"hex\": \"…\"}")?)
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::csv;

    /// Names of types, and data of them with what the formats write in special ways.
    fn part() -> impl Strategy<Value = (&'static str, Datum)> {
        let pieces = [",", "\"", "a", "\\", "\0", "\u{1}", "\t", "\n", "{", "x"];
        let text = || prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..5).prop_map(|all| all.concat());
        let bytes = prop::collection::vec(prop::sample::select(vec![0, 1, 0xff, b'a', b',', b'"']), 0..6);
        prop_oneof![
            8 => text().prop_map(|text| ("string", Datum::Text(text))),
            2 => prop::sample::select(vec![',', '"', '\\', 'a', ' '])
                .prop_map(|c| ("char", Datum::Text(c.to_string()))),
            2 => any::<u8>().prop_map(|n| ("u8", Datum::Unsigned(n.into()))),
            1 => any::<i128>().prop_map(|n| ("i128", Datum::Signed(n))),
            1 => any::<bool>().prop_map(|bool| ("bool", Datum::Bool(bool))),
            2 => any::<u64>().prop_map(|bits| ("f64", Datum::Float(f64::from_bits(bits)))),
            1 => any::<u64>().prop_map(|bits| ("f64", Datum::Float(f64::from_bits(bits | 0x7ff << 52)))),
            2 => any::<f32>().prop_map(|n| ("f32", Datum::Float(n.into()))),
            1 => any::<u32>().prop_map(|n| ("ipv4", Datum::Text(std::net::Ipv4Addr::from(n).to_string()))),
            1 => Just(("()", Datum::List(Vec::new()))),
            2 => bytes.clone().prop_map(|bytes| ("bytes", Datum::Bytes(bytes))),
            2 => bytes.clone().prop_map(|bytes| ("Option<bytes>", Datum::Bytes(bytes))),
            1 => bytes.prop_map(|bytes| ("path", Datum::Bytes(bytes))),
            2 => prop::option::of(text())
                .prop_map(|text| ("Option<string>", text.map_or(Datum::Absent, Datum::Text))),
            1 => (any::<i64>(), 0_u32..1_000_000_000)
                .prop_map(|(s, n)| ("time", Datum::List(vec![Datum::Signed(s.into()), Datum::Unsigned(n.into())]))),
        ]
    }

    fn codec(key: TypeTag) -> Codec {
        Codec::new(Types { key, value: key }, TypeNames::default(), false)
    }

    /// That what is shown of bytes in each format is read as the same bytes, or refused. Returns the formats that refuse.
    fn comes_back_or_is_refused(tag: TypeTag, bytes: &[u8]) -> Vec<&'static str> {
        let codec = codec(tag);
        let tsv = codec.show_key(bytes);
        let mut record = Vec::new();
        csv::write_field(&codec.field_of_key(bytes), &mut record);
        let field = csv::fields(&record).unwrap().remove(0);
        let json = codec.json_of_key(bytes).to_string();
        let hexadecimal = hex(bytes);
        let read = [
            ("tsv", codec.key_of_line(tsv.as_bytes(), true)),
            ("csv", codec.key_of_line(&field, false)),
            ("json", codec.key_of_json(&serde_json::from_str(&json).unwrap())),
            ("hex", codec.key_of_hex(hexadecimal.as_bytes())),
        ];
        let mut refused = Vec::new();
        for (format, read) in read {
            match read {
                Ok(read) => assert_eq!(read, bytes, "{tag} in {format}: tsv {tsv}, json {json}"),
                Err(_) => refused.push(format),
            }
        }
        refused
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn what_a_scan_shows_of_a_type_is_read_as_the_same(parts in prop::collection::vec(part(), 1..4)) {
            let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
            let name = if let [name] = names.as_slice() { (*name).to_owned() } else { format!("({})", names.join(", ")) };
            let tag: TypeTag = name.parse().unwrap();
            let data: Vec<_> = parts.into_iter().map(|(_, datum)| datum).collect();
            let datum = if let [datum] = data.as_slice() { datum.clone() } else { Datum::List(data) };
            let refused = comes_back_or_is_refused(tag, &tag.from_datum(&datum).unwrap());
            // Text is for types all of whose parts are text.
            let is_text = ["bytes", "Option", "path", "time"].iter().all(|no_text| !name.contains(no_text));
            let expected: &[&str] = if is_text || name == "bytes" { &[] } else { &["tsv", "csv"] };
            prop_assert_eq!(&refused[..], expected, "{}", name);
        }

        #[test]
        fn bytes_that_are_not_of_their_type_are_not_read_as_others(
            names in prop::collection::vec(part().prop_map(|(name, _)| name), 1..4),
            bytes in prop::collection::vec(prop::sample::select(vec![0, 1, b'1', b'2', b',', b'"', b'a', 0xff]), 0..10),
        ) {
            let name = if let [name] = names.as_slice() { (*name).to_owned() } else { format!("({})", names.join(", ")) };
            comes_back_or_is_refused(name.parse().unwrap(), &bytes);
        }
    }

    /// Of a reader that does not read floats exactly, the last digit became a 4; a NaN lost its sign and what else it holds.
    #[test]
    fn floats_come_back_from_json() {
        let tag = <f64 as durix::Key>::tag();
        for float in [
            0.945_270_695_553_922_3,
            -0.0,
            5e-324,
            f64::MAX,
            f64::INFINITY,
            f64::NAN,
            -f64::NAN,
            f64::from_bits(0x7ff0 << 48 | 1),
        ] {
            let mut bytes = Vec::new();
            durix::Encode::encode(&float, &mut bytes).unwrap();
            assert_eq!(comes_back_or_is_refused(tag, &bytes), [""; 0], "{float}");
        }
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"\\x41", "grün\u{2028}\t\n".as_bytes(), b"a\xffb\\", b"\\"] {
            let text = escape(bytes);
            assert!(!text.contains(['\n', '\t', '\r']), "{text}");
            assert_eq!(unescape(text.as_bytes()).unwrap(), bytes, "{text}");
        }
        assert_eq!(escape("grün".as_bytes()), "grün");
    }

    #[test]
    fn what_is_no_escape_is_an_error() {
        for text in [&b"\\"[..], b"\\q", b"\\x", b"\\x4", b"\\xzz", b"\\x+1"] {
            assert!(unescape(text).is_err(), "{}", text.escape_ascii());
        }
    }
}
