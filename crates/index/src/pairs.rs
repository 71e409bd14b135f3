//! Pairs of keys and values in a row: what a walk has read.

/// Pairs of keys and values, one after the other in one buffer, which is kept when it is cleared.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    bytes: Vec<u8>,
    /// Where the key and the value of each pair end.
    ends: Vec<(usize, usize)>,
}

impl Pairs {
    /// None.
    pub const fn new() -> Self {
        Pairs { bytes: Vec::new(), ends: Vec::new() }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
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
        self.ends.clear();
    }

    /// Makes room for so many pairs, of so many bytes each.
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

    /// A pair, by its number.
    #[inline]
    pub fn get(&self, number: usize) -> Option<(&[u8], &[u8])> {
        let (key_ends, ends) = *self.ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before].1);
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
            for len in 0..20 {
                assert_eq!(pairs.get(len), Some((&bytes[..len], &bytes[len..len * 2])));
            }
            assert_eq!((pairs.len(), pairs.bytes(), pairs.last()), (20, 380, pairs.get(19)));
            assert!(pairs.get(20).is_none());
        }
    }
}
