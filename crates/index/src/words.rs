//! Maps of words: keys and values of exactly 8 bytes, as big-endian words, so that the order of words is the order of bytes.

use std::ops::Bound;

use crate::error::{Error, Result};
use crate::index::{KeyRange, Lengths, Limits};

/// Bytes of a key and of a value.
pub const WORD: usize = size_of::<u64>();

/// What a map of words takes.
pub const WORDS: Limits = Limits { key: Lengths::Exactly(WORD), value: Lengths::Exactly(WORD), batch: usize::MAX };

/// The word of a key.
///
/// # Errors
/// [`Error::WrongLength`].
pub fn key_word(bytes: &[u8]) -> Result<u64> {
    word("key", bytes)
}

/// The word of a value.
///
/// # Errors
/// [`Error::WrongLength`].
pub fn value_word(bytes: &[u8]) -> Result<u64> {
    word("value", bytes)
}

fn word(role: &'static str, bytes: &[u8]) -> Result<u64> {
    let word = bytes.try_into().map_err(|_| Error::WrongLength { role, len: bytes.len(), expected: WORD })?;
    Ok(u64::from_be_bytes(word))
}

/// The keys of 8 bytes that lie in a range of bytes, as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRange {
    /// The smallest.
    pub first: u64,
    /// The largest.
    pub last: u64,
}

impl WordRange {
    /// `None` where no key of 8 bytes lies in the range.
    pub fn of(range: &KeyRange) -> Option<WordRange> {
        let first = match &range.lower {
            Bound::Unbounded => 0,
            // A key that goes on after the bound's bytes comes after the bound.
            Bound::Included(bytes) | Bound::Excluded(bytes) if bytes.len() < WORD => padded(bytes),
            Bound::Included(bytes) if bytes.len() == WORD => padded(bytes),
            Bound::Included(bytes) | Bound::Excluded(bytes) => padded(bytes).checked_add(1)?,
        };
        let last = match &range.upper {
            Bound::Unbounded => u64::MAX,
            Bound::Included(bytes) | Bound::Excluded(bytes) if bytes.len() < WORD => padded(bytes).checked_sub(1)?,
            Bound::Excluded(bytes) if bytes.len() == WORD => padded(bytes).checked_sub(1)?,
            Bound::Included(bytes) | Bound::Excluded(bytes) => padded(bytes),
        };
        (first <= last).then_some(WordRange { first, last })
    }

    /// Takes away the entries above the range; returns where to go on, if it goes on within the range.
    pub fn cut_above<V>(self, next: Option<u64>, entries: &mut Vec<(u64, V)>) -> Option<u64> {
        entries.retain(|(key, _)| *key <= self.last);
        next.filter(|next| *next <= self.last)
    }

    /// Takes away the entries below the range; returns where to go on, if it goes on within the range.
    pub fn cut_below<V>(self, next: Option<u64>, entries: &mut Vec<(u64, V)>) -> Option<u64> {
        entries.retain(|(key, _)| *key >= self.first);
        next.filter(|next| *next >= self.first)
    }
}

/// The first 8 bytes as a word; missing bytes are zero.
fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bytes_are_ranges_of_words() {
        let keys: Vec<[u8; 8]> =
            [0, 1, 255, 256, 1 << 56, (1 << 56) + 1, u64::MAX - 1, u64::MAX].map(u64::to_be_bytes).into();
        let mut bounds: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        for key in &keys {
            bounds.extend([
                key[..7].to_vec(),
                key[..1].to_vec(),
                [&key[..], &[0]].concat(),
                [&key[..], &[255]].concat(),
            ]);
        }
        bounds.push(Vec::new());
        type Kind = fn(&[u8]) -> Bound<&[u8]>;
        let kinds: [Kind; 3] = [|bytes| Bound::Included(bytes), |bytes| Bound::Excluded(bytes), |_| Bound::Unbounded];
        for (lower, upper) in bounds.iter().flat_map(|lower| bounds.iter().map(move |upper| (lower, upper))) {
            for (a, b) in (0..9).map(|i| (kinds[i / 3], kinds[i % 3])) {
                let range = KeyRange::new(a(lower), b(upper));
                let words = WordRange::of(&range);
                for key in &keys {
                    let word = u64::from_be_bytes(*key);
                    let within = words.is_some_and(|words| (words.first..=words.last).contains(&word));
                    assert_eq!(within, range.contains(key), "{key:?} in {range:?}");
                }
            }
        }
    }
}
