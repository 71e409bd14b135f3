//! Byte strings that need no allocation while they are short.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

/// Longest one that lies in place.
const SHORT: usize = 30;

/// The commonest length: such strings are copied and compared without a call.
const WORD: usize = size_of::<u64>();

/// A byte string: in place up to 30 bytes, in memory of its own beyond.
#[derive(Clone)]
pub(crate) struct Small(Form);

#[derive(Clone)]
enum Form {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl From<&[u8]> for Small {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        if bytes.len() > SHORT {
            return Small(Form::Long(bytes.into()));
        }
        let mut short = [0; SHORT];
        match <&[u8; WORD]>::try_from(bytes) {
            Ok(word) => short[..WORD].copy_from_slice(word),
            Err(_) => short[..bytes.len()].copy_from_slice(bytes),
        }
        Small(Form::Short(bytes.len() as u8, short))
    }
}

impl Small {
    /// These bytes, if they need no memory.
    #[inline]
    pub(crate) fn short(bytes: &[u8]) -> Option<Small> {
        (bytes.len() <= SHORT).then(|| bytes.into())
    }

    /// Whether it is these bytes.
    #[inline]
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        match (&self.0, <&[u8; WORD]>::try_from(bytes)) {
            (Form::Short(len, own), Ok(word)) => usize::from(*len) == WORD && own.first_chunk() == Some(word),
            _ => **self == *bytes,
        }
    }
}

impl From<Small> for Vec<u8> {
    fn from(small: Small) -> Self {
        match small.0 {
            Form::Short(len, bytes) => bytes[..usize::from(len)].to_vec(),
            Form::Long(bytes) => bytes.into(),
        }
    }
}

impl Deref for Small {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Short(len, bytes) => &bytes[..usize::from(*len)],
            Form::Long(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for Small {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self
    }
}

// As byte strings: `Borrow` asks for that.

impl PartialEq for Small {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Small {}

impl PartialOrd for Small {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Small {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let (Form::Short(len, own), Form::Short(other_len, other_bytes)) = (&self.0, &other.0) else {
            return (**self).cmp(&**other);
        };
        // What follows a string is zero: so where it is the beginning of the other one, the bytes are not larger, and the lengths decide.
        let first = |bytes: &[u8; SHORT]| u64::from_be_bytes(*bytes.first_chunk().expect("a word"));
        let firsts = first(own).cmp(&first(other_bytes));
        firsts.then_with(|| own.cmp(other_bytes)).then_with(|| len.cmp(other_len))
    }
}

impl fmt::Debug for Small {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.escape_ascii().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_come_back_in_their_order() {
        assert_eq!(size_of::<Small>(), 32);
        let all: Vec<Vec<u8>> = (0..70).flat_map(|len| [vec![0; len], vec![1; len], vec![2; len]]).collect();
        for a in &all {
            assert_eq!(*Small::from(&a[..]), a[..]);
            for b in &all {
                assert_eq!(Small::from(&a[..]).cmp(&Small::from(&b[..])), a.cmp(b));
                assert_eq!(Small::from(&a[..]).is(b), a == b);
            }
        }
    }
}
