//! Loads and stores of an [`Op`]: words, and bytes in words.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Op;
use crate::Rmw;
use crate::medium::Medium;
use crate::word::{Bits, Persistent, Word};

impl<M: Medium> Op<'_, M> {
    /// Loads a persistent word.
    #[inline(always)]
    #[track_caller]
    pub fn load<T: Bits>(&self, word: &Word<T>, order: Ordering) -> T {
        T::from_bits(self.m.load(word.raw(), order))
    }

    /// Stores a persistent word: `Release` keeps earlier stores before it, `Relaxed` promises no order (see
    /// [`medium`](crate::medium)).
    #[inline(always)]
    #[track_caller]
    pub fn store<T: Bits>(&self, word: &Word<T>, value: T, order: Ordering) {
        self.m.store(word.raw(), value.to_bits(), order);
    }

    /// Stores words, unordered, in fewer instructions than one by one where the processor can.
    #[inline(always)]
    #[track_caller]
    pub fn store_words<const N: usize>(&self, to: &[Word; N], values: &[u64; N]) {
        self.m.store_words(to.words().try_into().expect("as many words"), values);
    }

    /// Stores a word around the cache; durable after the next fence, unordered until then.
    #[inline(always)]
    #[track_caller]
    pub fn store_nt<T: Bits>(&self, word: &Word<T>, value: T) {
        self.m.store_nt(word.raw(), value.to_bits());
    }

    /// Stores a line around the cache; as eight calls of [`store_nt`](Op::store_nt).
    #[inline(always)]
    #[track_caller]
    pub fn store_nt_line(&self, line: &[Word; 8], values: &[u64; 8]) {
        let words: &[AtomicU64; 8] = line.words().try_into().expect("eight words");
        self.m.store_nt_line(words, values);
    }

    /// Stores words around the cache, as many as there are values; as that many calls of [`store_nt`](Op::store_nt).
    #[inline(always)]
    #[track_caller]
    pub fn store_words_nt(&self, to: &[Word], values: &[u64]) {
        self.m.store_words_nt(to.words(), values);
    }

    /// Compares and exchanges a persistent word (a locked instruction: drains).
    ///
    /// # Errors
    /// The value found, where it was not `current`.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange<T: Bits>(&self, word: &Word<T>, current: T, new: T) -> Result<T, T> {
        match self.m.compare_exchange(word.raw(), current.to_bits(), new.to_bits()) {
            Ok(old) => Ok(T::from_bits(old)),
            Err(found) => Err(T::from_bits(found)),
        }
    }

    /// Reads, modifies and writes a persistent word (a locked instruction: drains). Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn rmw(&self, word: &Word, op: Rmw, operand: u64) -> u64 {
        self.m.rmw(word.raw(), op, operand)
    }

    /// Orders all earlier stores before all later ones (a release fence); no instruction on x86-64.
    #[inline(always)]
    #[track_caller]
    pub fn order(&self) {
        self.m.order();
    }

    // ---- bytes ----

    /// Copies bytes into words, unordered, the first byte into the lowest of the first word. The rest of the last word
    /// becomes zero; words behind it stay.
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline(always)]
    #[track_caller]
    pub fn store_bytes(&self, to: &[Word], bytes: &[u8]) {
        assert!(bytes.len() <= size_of_val(to), "{} bytes into {} words", bytes.len(), to.len());
        let (pieces, end) = bytes.as_chunks::<16>();
        let (pairs, _) = to.words().as_chunks::<2>();
        for (pair, piece) in pairs.iter().zip(pieces) {
            let value = u128::from_le_bytes(*piece);
            self.m.store_words(pair, &[value as u64, (value >> 64) as u64]);
        }
        let (whole, rest) = end.as_chunks::<8>();
        let to = &to[pieces.len() * 2..];
        if let [chunk] = whole {
            self.m.store(to[0].raw(), u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.m.store(to[whole.len()].raw(), u64::from_le_bytes(last), Ordering::Relaxed);
        }
    }

    /// As [`store_bytes`](Op::store_bytes), around the cache: durable after the next fence, unordered until then.
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline]
    #[track_caller]
    pub fn store_bytes_nt(&self, to: &[Word], bytes: &[u8]) {
        assert!(bytes.len() <= size_of_val(to), "{} bytes into {} words", bytes.len(), to.len());
        for (to, bytes) in to.chunks(8).zip(bytes.chunks(64)) {
            let mut line = [0; 64];
            line[..bytes.len()].copy_from_slice(bytes);
            let words: [u64; 8] =
                std::array::from_fn(|at| u64::from_le_bytes(*line[8 * at..].first_chunk().expect("a line")));
            self.store_words_nt(to, &words[..bytes.len().div_ceil(8)]);
        }
    }

    /// Appends the first `len` bytes of words to a buffer, word by word: safe also while others write them (the caller then
    /// validates).
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline]
    #[track_caller]
    pub fn append_bytes(&self, from: &[Word], len: usize, to: &mut Vec<u8>) {
        let from = &from.words()[..len.div_ceil(8)];
        // Whole words are written; what is too much of the last one is not counted.
        to.reserve(size_of_val(from));
        let (room, _) = to.spare_capacity_mut().as_chunks_mut::<8>();
        let (pairs, last) = from.as_chunks::<2>();
        let (rooms, rest) = room[..from.len()].as_chunks_mut::<2>();
        for (pair, room) in pairs.iter().zip(rooms) {
            let values = self.m.load_words(pair).map(u64::to_le);
            // SAFETY: both are sixteen bytes, and any will do.
            *room = unsafe { std::mem::transmute::<[u64; 2], [[MaybeUninit<u8>; 8]; 2]>(values) };
        }
        if let ([word], [room]) = (last, rest) {
            *room = self.m.load(word, Ordering::Relaxed).to_le_bytes().map(MaybeUninit::new);
        }
        // SAFETY: all words were written, and `len` is at most their bytes.
        unsafe { to.set_len(to.len() + len) };
    }

    /// Copies bytes out of words, word by word: safe also while others write them (the caller then validates).
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline]
    #[track_caller]
    pub fn load_bytes(&self, from: &[Word], bytes: &mut [u8]) {
        assert!(bytes.len() <= size_of_val(from), "{} bytes out of {} words", bytes.len(), from.len());
        let (pieces, end) = bytes.as_chunks_mut::<16>();
        let (pairs, _) = from.words().as_chunks::<2>();
        for (pair, piece) in pairs.iter().zip(pieces.iter_mut()) {
            let [low, high] = self.m.load_words(pair);
            *piece = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
        }
        let from = &from[pieces.len() * 2..];
        let (whole, rest) = end.as_chunks_mut::<8>();
        if let [chunk] = whole {
            *chunk = self.m.load(from[0].raw(), Ordering::Relaxed).to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.m.load(from[whole.len()].raw(), Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// Verifies an object that a checksum covers: `verify` loads it through this operation, and says whether it is sound.
    /// The answer is that of `verify`; the crash simulator takes the object as one thing, sound or not, instead of
    /// splitting on each of its words.
    #[inline(always)]
    pub fn load_checked<T: Persistent + ?Sized>(&self, object: &T, verify: impl FnOnce() -> bool) -> bool {
        self.m.checked(object.words(), verify)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counting, Hardware, Mapping, Off};

    #[test]
    fn bytes_come_back_for_every_length() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let words = op.slice("words", Off::<Word>::new(64), 8).unwrap();
        for len in 0..=64usize {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            op.store_bytes(words, &bytes);
            let mut back = vec![0; len];
            op.load_bytes(words, &mut back);
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn bytes_are_appended_for_every_length_on_every_medium() {
        fn appended<M: Medium>(m: M) {
            let mapping = Mapping::heap(4096, m);
            let mut session = mapping.session().unwrap();
            let op = session.enter().unwrap();
            let words = op.slice("words", Off::<Word>::new(64), 8).unwrap();
            let bytes: Vec<u8> = (1..=64).collect();
            op.store_bytes(words, &bytes);
            for first in 0..3 {
                for len in 0..=64 - first * 8 {
                    for mut to in [Vec::new(), vec![0xee; 3], Vec::with_capacity(100)] {
                        let before = to.len();
                        op.append_bytes(&words[first..], len, &mut to);
                        assert_eq!(to.len(), before + len);
                        assert!(to[..before].iter().all(|byte| *byte == 0xee));
                        assert_eq!(to[before..], bytes[first * 8..][..len]);
                    }
                }
            }
        }
        appended(Hardware::PAGE_CACHE);
        appended(Counting::new(Hardware::PAGE_CACHE));
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn bytes_that_there_are_not_are_not_appended() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let words = op.slice("words", Off::<Word>::new(64), 8).unwrap();
        op.append_bytes(&words[..7], 57, &mut Vec::new());
    }
}
