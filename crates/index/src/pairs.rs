//! Pairs of keys and values in a row: what a walk has read.

/// A place between two pairs of [`Pairs`]: the next pair of a walk over them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    number: usize,
    /// Where the bytes of that pair start.
    start: usize,
}

/// Pairs of keys and values, one after the other in one buffer, which is kept when it is cleared.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    bytes: Vec<u8>,
    /// How many of the first pairs are a word each, key and value: where those end need not be kept.
    words: usize,
    /// Where the key and the value of each other pair end.
    ends: Vec<(usize, usize)>,
}

/// Bytes of a pair of words.
const WORDS: usize = 16;

impl Pairs {
    /// None.
    pub const fn new() -> Self {
        Pairs { bytes: Vec::new(), words: 0, ends: Vec::new() }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.words + self.ends.len()
    }

    /// Whether there is no pair.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.ends.is_empty()
    }

    /// Bytes of all keys and values.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory that are kept.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<(usize, usize)>()
    }

    /// Forgets all pairs, keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.words = 0;
        self.ends.clear();
    }

    /// Makes room for this number of pairs, each of this length.
    pub fn reserve(&mut self, pairs: usize, bytes: usize) {
        self.ends.reserve(pairs);
        self.bytes.reserve(pairs.saturating_mul(bytes));
    }

    /// Appends a pair.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.push_with(key, |bytes| append(bytes, value));
    }

    /// Appends a pair whose value `value` appends.
    #[inline]
    pub fn push_with(&mut self, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.bytes, key);
        let key_ends = self.bytes.len();
        value(&mut self.bytes);
        self.ends.push((key_ends, self.bytes.len()));
    }

    /// Appends a pair of a word each: as [`push`](Self::push), with one look at how much room there is.
    #[inline(always)]
    pub fn push_words(&mut self, key: [u8; 8], value: [u8; 8]) {
        let key_ends = self.bytes.len() + 8;
        let mut both = [0; WORDS];
        both[..8].copy_from_slice(&key);
        both[8..].copy_from_slice(&value);
        self.bytes.extend_from_slice(&both);
        if self.ends.is_empty() {
            self.words += 1;
        } else {
            self.ends.push((key_ends, key_ends + 8));
        }
    }

    /// The pair at a place, which moves to the next one; `None` after the last pair. A place is one of these pairs, since they were cleared last:
    /// with another the pair is none of them.
    #[inline(always)]
    pub fn step(&self, place: &mut Place) -> Option<(&[u8], &[u8])> {
        let (key_ends, ends) = match place.number.checked_sub(self.words) {
            None => (place.start + 8, place.start + WORDS),
            Some(number) => *self.ends.get(number)?,
        };
        let pair = self.bytes.get(place.start..ends)?.split_at_checked(key_ends.wrapping_sub(place.start))?;
        *place = Place { number: place.number + 1, start: ends };
        Some(pair)
    }

    /// A pair, by its number.
    #[inline]
    pub fn get(&self, number: usize) -> Option<(&[u8], &[u8])> {
        let Some(other) = number.checked_sub(self.words) else {
            return self.bytes[number * WORDS..][..WORDS].split_at_checked(8);
        };
        let (key_ends, ends) = *self.ends.get(other)?;
        let start = other.checked_sub(1).map_or(self.words * WORDS, |before| self.ends[before].1);
        Some((&self.bytes[start..key_ends], &self.bytes[key_ends..ends]))
    }

    /// The last pair.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.get(self.len().checked_sub(1)?)
    }
}

/// Appends bytes; a word, the most frequent length by far, without a call.
#[inline]
fn append(to: &mut Vec<u8>, bytes: &[u8]) {
    match <&[u8; 8]>::try_from(bytes) {
        Ok(word) => to.extend_from_slice(word),
        Err(_) => to.extend_from_slice(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_any_length_come_back() {
        let mut pairs = Pairs::new();
        for _ in 0..2 {
            pairs.clear();
            assert!(pairs.is_empty() && pairs.last().is_none() && pairs.get(0).is_none());
            let bytes: Vec<u8> = (0..40).collect();
            for len in 0..20 {
                pairs.push(&bytes[..len], &bytes[len..len * 2]);
            }
            let mut place = Place::default();
            for len in 0..20 {
                assert_eq!(pairs.step(&mut place), pairs.get(len));
                assert_eq!(pairs.get(len), Some((&bytes[..len], &bytes[len..len * 2])));
            }
            assert_eq!((pairs.len(), pairs.bytes(), pairs.last()), (20, 380, pairs.get(19)));
            assert!(pairs.get(20).is_none() && pairs.step(&mut place).is_none());
        }
    }

    #[test]
    fn pairs_of_words_are_as_others() {
        let (mut words, mut pairs) = (Pairs::new(), Pairs::new());
        // Another pair comes first, in the middle, last, or not at all.
        for other in [0, 1, 25, 50, 51] {
            let mut place = Place::default();
            words.clear();
            pairs.clear();
            for number in 0..50_u64 {
                if number == other {
                    words.push(b"a", b"");
                    pairs.push(b"a", b"");
                }
                words.push_words(number.to_be_bytes(), (number * 3).to_le_bytes());
                pairs.push(&number.to_be_bytes(), &(number * 3).to_le_bytes());
                assert_eq!((words.len(), words.last()), (pairs.len(), pairs.last()));
                assert!(!words.is_empty());
            }
            if other == 50 {
                words.push(b"a", b"");
                pairs.push(b"a", b"");
            }
            assert_eq!((words.len(), words.bytes()), (pairs.len(), pairs.bytes()));
            for number in 0..52 {
                assert_eq!(words.get(number), pairs.get(number), "{number} of {other}");
                assert_eq!(words.step(&mut place), pairs.get(number), "{number} of {other}");
            }
        }
    }
}
