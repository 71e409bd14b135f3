//! What is stored of a type: one word.

use std::borrow::Cow;
use std::fmt;

pub(super) const BYTES: u8 = 1;
pub(super) const STRING: u8 = 2;
pub(super) const BOOL: u8 = 3;
pub(super) const CHAR: u8 = 4;
pub(super) const UNIT: u8 = 5;
/// `u8`; the next four codes are the wider unsigned integers.
pub(super) const U8: u8 = 8;
/// `i8`; the next four codes are the wider signed integers.
pub(super) const I8: u8 = 16;

/// `f32`, then `f64`.
pub(super) const F32: u8 = 24;
pub(super) const IPV4: u8 = 26;
pub(super) const IPV6: u8 = 27;
pub(super) const IP: u8 = 28;
pub(super) const DURATION: u8 = 29;
pub(super) const TIME: u8 = 30;
pub(super) const OS_STRING: u8 = 31;
pub(super) const PATH: u8 = 32;
pub(super) const UUID: u8 = 33;
/// Of types that have no code: their tag is the hash of their name.
pub(super) const NO_CODE: u8 = 0;
/// Set in the code of an option.
pub(super) const OPTION: u8 = 0x80;

/// Lowest byte of a word that lists parts.
const PARTS: u64 = 1;
/// Lowest byte of a word with the hash of a name.
const NAMED: u64 = 2;
/// Lowest byte of a word with the code of a vector's elements.
const LIST: u64 = 3;

/// The longest array of bytes that is told from other named types.
const LONGEST_ARRAY: usize = 256;

/// What is stored of a type: 64 bits.
///
/// | lowest byte | the seven above |
/// |---|---|
/// | 0 | zero: bytes |
/// | 1 | codes of the parts of a tuple, or one code, the first in the lowest byte, zero after the last |
/// | 2 | FNV-1a of the type's name, its low 56 bits |
/// | 3 | the code of a vector's elements |
///
/// ```
/// use durix::{Key, TypeTag};
///
/// assert_eq!(<(u64, String) as Key>::tag().to_string(), "(u64, string)");
/// assert_eq!("u64".parse::<TypeTag>()?, <u64 as Key>::tag());
/// # Ok::<(), durix::encode::Unfit>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TypeTag(u64);

impl TypeTag {
    /// Raw bytes: what an index without types holds.
    ///
    /// ```
    /// use durix::{Key, TypeTag};
    ///
    /// assert_eq!(<Vec<u8> as Key>::tag(), TypeTag::BYTES);
    /// ```
    pub const BYTES: TypeTag = TypeTag(0);

    /// The tag with this word.
    ///
    /// ```
    /// use durix::{Key, TypeTag};
    ///
    /// let tag = <u64 as Key>::tag();
    /// assert_eq!(TypeTag::from_word(tag.word()), tag);
    /// ```
    pub const fn from_word(word: u64) -> Self {
        TypeTag(word)
    }

    /// Its word.
    ///
    /// ```
    /// assert_eq!(durix::TypeTag::BYTES.word(), 0);
    /// ```
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The tag of a type that has this name: a hash of it.
    ///
    /// ```
    /// use durix::TypeTag;
    ///
    /// assert_eq!(TypeTag::named("User 1"), TypeTag::named("User 1"));
    /// assert_ne!(TypeTag::named("User 1"), TypeTag::named("User 2"));
    /// ```
    pub fn named(name: &str) -> Self {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        TypeTag(hash << 8 | NAMED)
    }

    /// The tag of a type with these parts, by their codes if each has one, otherwise by the type's name.
    pub(super) fn of(codes: &[u8], name: impl FnOnce() -> String) -> Self {
        if codes.len() <= 7 && !codes.contains(&NO_CODE) { Self::of_parts(codes) } else { Self::named(&name()) }
    }

    /// The tag of a tuple of at most seven parts, or of a single one.
    pub(super) fn of_parts(codes: &[u8]) -> Self {
        debug_assert!(codes.len() <= 7);
        if codes == [BYTES] {
            return TypeTag::BYTES;
        }
        let word = codes.iter().rev().fold(0, |word, code| word << 8 | u64::from(*code));
        TypeTag(word << 8 | PARTS)
    }

    /// The tag of a vector.
    pub(super) fn list_of(code: u8) -> Self {
        debug_assert_ne!(code, NO_CODE);
        TypeTag(u64::from(code) << 8 | LIST)
    }

    /// Whether it is the hash of a name that nothing here can tell.
    pub(crate) fn is_hash(self) -> bool {
        self.0 & 0xff == NAMED && self.array().is_none()
    }

    /// The N of `[u8; N]`, for the short ones.
    fn array(self) -> Option<usize> {
        let is_named = self.0 & 0xff == NAMED;
        is_named.then(|| (0..=LONGEST_ARRAY).find(|n| Self::named(&format!("[u8; {n}]")) == self)).flatten()
    }

    /// The code of a vector's elements.
    pub(super) fn element(self) -> Option<u8> {
        let code = u8::try_from(self.0 >> 8).ok()?;
        (self.0 & 0xff == LIST && is_element(code)).then_some(code)
    }

    /// How many bytes something of the type has: `None` if the tag does not say (bytes, named types), `Some(None)` if that
    /// varies.
    pub(crate) fn len(self) -> Option<Option<usize>> {
        if self == TypeTag::BYTES {
            return None;
        }
        if let Some(len) = self.array() {
            return Some(Some(len));
        }
        if self.element().is_some() {
            return Some(None);
        }
        let of = |code: u8| match code {
            BOOL => Some(1),
            CHAR | F32 | IPV4 => Some(4),
            UNIT => Some(0),
            25 => Some(8),
            DURATION | TIME => Some(12),
            IPV6 | UUID => Some(16),
            8..=12 => Some(1 << (code - U8)),
            16..=20 => Some(1 << (code - I8)),
            _ => None,
        };
        Some(self.parts()?.into_iter().map(of).sum())
    }

    /// The codes of the parts; `None` for a named type, and for a word that says nothing.
    pub(super) fn parts(self) -> Option<Vec<u8>> {
        if self == TypeTag::BYTES {
            return Some(vec![BYTES]);
        }
        let codes: Vec<u8> = self.0.to_le_bytes()[1..].iter().copied().take_while(|c| *c != 0).collect();
        (self.0 & 0xff == PARTS && !codes.is_empty() && codes.iter().all(|c| name_of(*c).is_some())).then_some(codes)
    }
}

/// Whether there are vectors of it: not of what has no bytes, since nothing would tell how many there are.
fn is_element(code: u8) -> bool {
    code != UNIT && name_of(code).is_some()
}

pub(super) fn name_of(code: u8) -> Option<Cow<'static, str>> {
    if code & OPTION != 0 {
        return plain_name_of(code ^ OPTION).map(|name| format!("Option<{name}>").into());
    }
    plain_name_of(code).map(Cow::from)
}

fn plain_name_of(code: u8) -> Option<&'static str> {
    Some(match code {
        BYTES => "bytes",
        STRING => "string",
        BOOL => "bool",
        CHAR => "char",
        UNIT => "()",
        8..=12 => ["u8", "u16", "u32", "u64", "u128"][usize::from(code - U8)],
        16..=20 => ["i8", "i16", "i32", "i64", "i128"][usize::from(code - I8)],
        24 | 25 => ["f32", "f64"][usize::from(code - F32)],
        IPV4 => "ipv4",
        IPV6 => "ipv6",
        IP => "ip",
        DURATION => "duration",
        TIME => "time",
        OS_STRING => "os string",
        PATH => "path",
        UUID => "uuid",
        _ => return None,
    })
}

impl fmt::Display for TypeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.element().and_then(name_of) {
            return write!(f, "Vec<{name}>");
        }
        if let Some(len) = self.array() {
            return write!(f, "[u8; {len}]");
        }
        match self.parts() {
            Some(codes) => {
                let names: Vec<_> = codes.into_iter().filter_map(name_of).collect();
                if names.len() == 1 { f.write_str(&names[0]) } else { write!(f, "({})", names.join(", ")) }
            }
            None => write!(f, "type#{:016x}", self.0),
        }
    }
}

impl std::str::FromStr for TypeTag {
    type Err = super::Unfit;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || super::Unfit(format!("{text:?} names no type"));
        if let Some(word) = text.strip_prefix("type#") {
            return u64::from_str_radix(word, 16).map(TypeTag).map_err(|_| unknown());
        }
        if let Some(len) = text.strip_prefix("[u8; ").and_then(|rest| rest.strip_suffix(']')) {
            let len: usize = len.parse().map_err(|_| unknown())?;
            return Ok(TypeTag::named(&format!("[u8; {len}]")));
        }
        let code = |name: &str| (1..=u8::MAX).find(|code| name_of(*code).is_some_and(|found| found == name));
        if let Some(element) = text.strip_prefix("Vec<").and_then(|rest| rest.strip_suffix('>')) {
            return code(element).filter(|code| is_element(*code)).map(TypeTag::list_of).ok_or_else(unknown);
        }
        let list = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')).filter(|t| !t.is_empty()).unwrap_or(text);
        let codes: Option<Vec<u8>> = list.split(", ").map(code).collect();
        match codes {
            Some(codes) if codes.len() <= 7 => Ok(TypeTag::of_parts(&codes)),
            _ => Err(unknown()),
        }
    }
}
