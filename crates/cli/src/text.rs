//! Keys and values as text: escapes, and the types of the index where it has some.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use durix::{TypeTag, Types};

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
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    types: Types,
    escaped: bool,
}

impl Codec {
    pub fn new(types: Types, escaped: bool) -> Self {
        Codec { types, escaped }
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
                what: format!("the {role}s of this index are of type {tag}, which this command cannot write"),
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
    match tag.to_text(bytes) {
        Some(text) => escape(text.as_bytes()),
        None => escape(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
