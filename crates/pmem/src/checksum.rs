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
        // Each factor has both words in it: there is no word that makes a factor zero whatever is beside it, and so hides it.
        let (first, second) = ((a ^ FIRST).wrapping_add(b), (b ^ SECOND).wrapping_add(a.rotate_left(32)));
        Checksum(self.0.rotate_left(29) ^ fold(first, second))
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
        assert_eq!(sum.finish(), 15_155_934_378_426_221_975);
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

    /// With one word in each factor, a constant or its complement hid what was beside it.
    #[test]
    fn no_word_hides_what_is_beside_it() {
        let special = [0, 1, u64::MAX, FIRST, SECOND, START];
        let special = special.into_iter().chain((0..64).map(|bit| 1 << bit));
        let words: Vec<u64> = special
            .flat_map(|word| [word, !word, word ^ FIRST, !word ^ FIRST, word ^ SECOND, !word ^ SECOND])
            .collect();
        let others = [0, 1, 0x1234_5678_9abc_def0, FIRST, SECOND, u64::MAX];
        for (word, other) in words.iter().flat_map(|word| others.map(|other| (*word, other))) {
            let sums = [|a, b| Checksum::at(64).pair(a, b).finish(), |a, b| Checksum::at(64).pair(b, a).finish()];
            for sum in sums {
                let of_changed = (0..64).map(|bit| other ^ 1 << bit).chain([!other, other.rotate_left(8) ^ 1]);
                let all: std::collections::BTreeSet<u64> = of_changed.clone().map(|other| sum(word, other)).collect();
                assert_eq!(
                    all.len(),
                    of_changed.collect::<std::collections::BTreeSet<_>>().len(),
                    "{word:#x} {other:#x}"
                );
                assert!(!all.contains(&sum(word, other)), "{word:#x} {other:#x}");
            }
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
