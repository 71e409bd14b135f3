//! Checksums of a few words that lie together: entries, records, members, with the place where they lie.
//!
//! Folded products of 64 bits, two words at a time. The products do not depend on each other, so a line takes about as long as one
//! multiplication after another twice. A CRC needs an instruction that not every processor has, so a call that cannot be inlined, for each.
//! A change goes unnoticed in one of 2^32 cases (32 bits), or of 2^64: there is no class of changes that it always finds.

/// A checksum under way. The result is a part of file formats: it must never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum(u64);

const START: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST: u64 = 0xd6e8_feb8_6659_fd93;
const SECOND: u64 = 0xa076_1d64_78bd_642f;

#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

impl Checksum {
    /// Of what lies at an offset, no word of it yet.
    #[inline(always)]
    pub const fn at(off: u64) -> Self {
        Checksum(off.wrapping_mul(START))
    }

    /// With two more words.
    #[inline(always)]
    #[must_use]
    pub const fn pair(self, a: u64, b: u64) -> Self {
        Checksum(self.0.rotate_left(29) ^ fold(a ^ FIRST, b ^ SECOND))
    }

    /// With words, and a zero after them if their number is odd.
    #[inline(always)]
    #[must_use]
    pub fn words(mut self, mut words: impl Iterator<Item = u64>) -> Self {
        while let Some(word) = words.next() {
            self = self.pair(word, words.next().unwrap_or(0));
        }
        self
    }

    /// The same of the words that bytes are stored in: the first byte is the lowest one, the last word is filled up with zeroes.
    #[inline(always)]
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        if let Ok(word) = bytes.try_into() {
            return self.pair(u64::from_le_bytes(word), 0);
        }
        let (whole, rest) = bytes.as_chunks::<16>();
        for pair in whole {
            let pair = u128::from_le_bytes(*pair);
            self = self.pair(pair as u64, (pair >> 64) as u64);
        }
        if !rest.is_empty() {
            let mut pair = [0; 16];
            pair[..rest.len()].copy_from_slice(rest);
            let pair = u128::from_le_bytes(pair);
            self = self.pair(pair as u64, (pair >> 64) as u64);
        }
        self
    }

    /// The result.
    #[inline(always)]
    pub const fn finish(self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(SECOND);
        mixed ^ mixed >> 32
    }

    /// Thirty-two bits of it.
    #[inline(always)]
    pub const fn low(self) -> u32 {
        self.finish() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_frozen() {
        let sum = Checksum::at(4096).pair(1, 2).bytes(b"key").bytes(b"12345678");
        assert_eq!(sum.finish(), 3_825_623_445_581_258_963);
        assert_eq!(Checksum::at(64).low(), 3_594_525_671);
    }

    #[test]
    fn words_and_bytes_are_the_same() {
        let bytes: Vec<u8> = (1..=100).collect();
        for len in 0..100 {
            let words = bytes[..len].chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            });
            assert_eq!(Checksum::at(8).words(words).finish(), Checksum::at(8).bytes(&bytes[..len]).finish(), "{len}");
        }
    }

    #[test]
    fn every_bit_counts_and_so_do_place_and_order() {
        let mut seen = std::collections::BTreeSet::new();
        let mut add =
            |off: u64, words: [u64; 5]| assert!(seen.insert(Checksum::at(off).words(words.into_iter()).low()));
        add(64, [0; 5]);
        for word in 0..5 {
            for bit in 0..64 {
                let mut words = [0; 5];
                words[word] = 1 << bit;
                add(64, words);
            }
        }
        (2..200).for_each(|line| add(line * 64, [0; 5]));
        add(64, [1, 2, 3, 4, 5]);
        add(64, [2, 1, 3, 4, 5]);
        add(64, [3, 4, 1, 2, 5]);
    }
}
