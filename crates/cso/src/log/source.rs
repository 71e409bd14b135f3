//! What can be appended: bytes, words, or a word in front of either.

use std::sync::atomic::Ordering;

use durix_pmem::{Medium, Op, Word};

/// A payload, read in whole words; the last one is filled up with zeroes.
pub trait Source: Copy {
    /// Bytes.
    fn len(self) -> usize;

    /// Whether there is nothing.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Word `index`, which must lie within the length rounded up.
    fn word(self, index: usize) -> u64;

    /// Words `from..from + N`, if the payload has so many whole ones: the fast path of full lines.
    fn whole<const N: usize>(self, from: usize) -> Option<[u64; N]>;

    /// Stores the words from `from` on into `to`, as many as there are and fit, unordered.
    #[inline(always)]
    #[track_caller]
    fn store<const N: usize, M: Medium>(self, op: &Op<'_, M>, from: usize, to: &[Word; N]) {
        if let Some(values) = self.whole::<N>(from) {
            op.store_words(to, &values);
        } else {
            self.store_some(op, from, to);
        }
    }

    /// As [`store`](Source::store), for any number of words.
    #[inline(always)]
    #[track_caller]
    fn store_some<M: Medium>(self, op: &Op<'_, M>, from: usize, to: &[Word]) {
        let left = self.len().div_ceil(8).saturating_sub(from);
        for (index, word) in to.iter().take(left).enumerate() {
            op.store(word, self.word(from + index), Ordering::Relaxed);
        }
    }
}

impl Source for &[u8] {
    #[inline(always)]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn word(self, index: usize) -> u64 {
        let bytes = &self[index * 8..];
        match bytes.first_chunk::<8>() {
            Some(whole) => u64::from_le_bytes(*whole),
            None => {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
        }
    }

    #[inline(always)]
    fn whole<const N: usize>(self, from: usize) -> Option<[u64; N]> {
        let (words, _) = self.get(from * 8..)?.as_chunks::<8>();
        words.first_chunk::<N>().map(|words| words.map(u64::from_le_bytes))
    }
}

impl Source for &[u64] {
    #[inline(always)]
    fn len(self) -> usize {
        size_of_val(self)
    }

    #[inline(always)]
    fn word(self, index: usize) -> u64 {
        self[index]
    }

    #[inline(always)]
    fn whole<const N: usize>(self, from: usize) -> Option<[u64; N]> {
        self.get(from..)?.first_chunk::<N>().copied()
    }
}

/// A word, and a payload behind it.
impl<S: Source> Source for (u64, S) {
    #[inline(always)]
    fn len(self) -> usize {
        8 + self.1.len()
    }

    #[inline(always)]
    fn word(self, index: usize) -> u64 {
        if index == 0 { self.0 } else { self.1.word(index - 1) }
    }

    #[inline(always)]
    fn whole<const N: usize>(self, from: usize) -> Option<[u64; N]> {
        if from > 0 {
            return self.1.whole::<N>(from - 1);
        }
        (self.len() / 8 >= N).then(|| std::array::from_fn(|i| self.word(i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Hardware, Mapping, Off};

    #[test]
    fn sources_agree_with_their_bytes_at_every_length_and_start() {
        let bytes: Vec<u8> = (1..=64).collect();
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let to: &[Word; 4] = op.at(Off::new(64));
        for len in 0..=64 {
            let payload = &bytes[..len];
            let mut padded = payload.to_vec();
            padded.resize(len.next_multiple_of(8), 0);
            let words: Vec<u64> = padded.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
            let prefixed: Vec<u64> = [99].into_iter().chain(words.iter().copied()).collect();
            let check = |source: &dyn Fn(usize) -> u64, store: &dyn Fn(usize, bool), expected: &[u64]| {
                for (index, word) in expected.iter().enumerate() {
                    assert_eq!(source(index), *word);
                }
                for (from, some) in (0..=expected.len()).flat_map(|from| [(from, false), (from, true)]) {
                    to.iter().for_each(|w| op.store(w, u64::MAX, Ordering::Relaxed));
                    store(from, some);
                    for (i, word) in to.iter().enumerate() {
                        let expected = expected.get(from + i).copied().unwrap_or(u64::MAX);
                        assert_eq!(op.load(word, Ordering::Relaxed), expected, "len {len} from {from} word {i}");
                    }
                }
            };
            check(
                &|i| payload.word(i),
                &|from, some| if some { payload.store_some(&op, from, to) } else { payload.store(&op, from, to) },
                &words,
            );
            check(
                &|i| words[..].word(i),
                &|from, some| if some { words[..].store_some(&op, from, to) } else { words[..].store(&op, from, to) },
                &words,
            );
            check(
                &|i| (99, payload).word(i),
                &|from, some| {
                    if some { (99, payload).store_some(&op, from, to) } else { (99, payload).store(&op, from, to) }
                },
                &prefixed,
            );
            assert_eq!(((99, payload).len(), payload.is_empty()), (8 + len, len == 0));
        }
    }
}
