//! A Bloom filter of one word a key: a look costs one load.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use durix_pmem::Medium;

/// Bits a key, at the number of keys that a filter is made for. With four bits set in one word, 2 of 100 keys that are not
/// there are taken for there.
const BITS: usize = 16;

/// Which keys may be in a front. Bits are set under the range's lock, before the update returns, and never cleared: who
/// does not see them began before the update was acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Bloom {
    words: Arc<[AtomicU64]>,
}

/// Mixes a key: all bits of the result depend on all of the key's.
#[inline(always)]
pub(crate) fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    let folded = product as u64 ^ (product >> 64) as u64;
    folded.wrapping_mul(0xa076_1d64_78bd_642f)
}

/// The bits of a hash in its word.
#[inline(always)]
fn bits_of(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63) | 1 << (hash >> 18 & 63)
}

/// A word of a filter as its users reach it: through a medium, or loom's. The functions below are written over it, so that loom explores
/// the very code that runs.
pub(crate) trait FilterWord {
    fn load(&self, order: Ordering) -> u64;
    /// With release ordering.
    fn store(&self, bits: u64);
}

struct Shared<'a, M>(&'a AtomicU64, M);

impl<M: Medium> FilterWord for Shared<'_, M> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.1.shared_load(self.0, order)
    }
    #[inline(always)]
    fn store(&self, bits: u64) {
        self.1.shared_store(self.0, bits, Release);
    }
}

#[inline(always)]
pub(crate) fn add(word: &impl FilterWord, bits: u64) {
    let old = word.load(Relaxed);
    if old & bits != bits {
        word.store(old | bits);
    }
}

#[inline(always)]
pub(crate) fn may_have(word: &impl FilterWord, bits: u64) -> bool {
    word.load(Acquire) & bits == bits
}

/// Makes the bits of a word that has all of them those that count. One store: between two, a reader would miss a key.
pub(crate) fn narrow(word: &impl FilterWord, bits: u64) {
    word.store(bits);
}

impl Bloom {
    /// A filter for `keys` keys.
    pub(crate) fn new(keys: usize) -> Self {
        let words = (keys * BITS).div_ceil(64).next_power_of_two();
        Bloom { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Makes each look lead to the front, as long as nobody knows its keys. Nobody else has the filter yet.
    pub(crate) fn fill(&self) {
        self.words.iter().for_each(|word| word.store(u64::MAX, Relaxed));
    }

    /// Says of a filled filter which keys the front holds; by one thread, and no key was added since. Each word goes from all bits to those that
    /// count in one store: who does not see a bit has seen that its keys are not there.
    pub(crate) fn narrow<M: Medium>(&self, m: M, hashes: impl Iterator<Item = u64>) {
        let mut words = vec![0; self.words.len()];
        let mask = self.words.len() as u64 - 1;
        hashes.for_each(|hash| words[Self::word_of(hash, mask) as usize] |= bits_of(hash));
        self.words.iter().zip(words).for_each(|(word, bits)| narrow(&Shared(word, m), bits));
    }

    /// The word of a hash, and its bits. High bits choose the word, 24 low ones the bits.
    #[inline(always)]
    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        (&self.words[Self::word_of(hash, self.words.len() as u64 - 1) as usize], bits_of(hash))
    }

    /// The number of a hash's word; `mask` is the number of words less one.
    #[inline(always)]
    pub(crate) fn word_of(hash: u64, mask: u64) -> u64 {
        hash >> 32 & mask
    }

    /// Where the words lie, and their number.
    pub(crate) fn hints(&self) -> [u64; 2] {
        [self.words.as_ptr().addr() as u64, self.words.len() as u64]
    }

    /// Adds a key; by one thread at a time.
    #[inline(always)]
    pub(crate) fn add<M: Medium>(&self, m: M, hash: u64) {
        let (word, bits) = self.place(hash);
        add(&Shared(word, m), bits);
    }

    /// Whether a key may have been added.
    #[inline(always)]
    pub(crate) fn may_have<M: Medium>(&self, m: M, hash: u64) -> bool {
        let (word, bits) = self.place(hash);
        may_have(&Shared(word, m), bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::Hardware;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let m = Hardware::PAGE_CACHE;
        for keys in [1, 100, 1000] {
            let bloom = Bloom::new(keys);
            (0..keys as u64).for_each(|key| bloom.add(m, hash(key)));
            assert!((0..keys as u64).all(|key| bloom.may_have(m, hash(key))));
            let wrong = (1 << 20..(1 << 20) + 10_000).filter(|key| bloom.may_have(m, hash(*key))).count();
            assert!(wrong < 500, "{wrong} of 10000 at {keys} keys");
            let narrowed = Bloom::new(keys);
            narrowed.fill();
            assert!((0..10_000).all(|key| narrowed.may_have(m, hash(key))));
            narrowed.narrow(m, (0..keys as u64).map(hash));
            assert!((0..10_000).all(|key| narrowed.may_have(m, hash(key)) == bloom.may_have(m, hash(key))));
        }
    }
}
