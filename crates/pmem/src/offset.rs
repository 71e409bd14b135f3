//! Offsets: what is stored instead of pointers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::marker::PhantomData;

use crate::word::Bits;

/// The offset of a `T` from the start of the pool, in bytes. Zero is null (the pool's header lies there).
///
/// Any bit pattern may be resolved: [`Op::at`](crate::Op::at) masks it into the mapping, so that a corrupt file can
/// lead to a wrong object, never to a stray access.
pub struct Off<T>(u64, PhantomData<fn() -> T>);

impl<T> Off<T> {
    /// The null offset.
    pub const NULL: Self = Off(0, PhantomData);

    /// The offset `bytes` from the start of the pool.
    #[inline(always)]
    pub const fn new(bytes: u64) -> Self {
        Off(bytes, PhantomData)
    }

    /// Bytes from the start of the pool.
    #[inline(always)]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is [`Off::NULL`].
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The same place, seen as another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> Off<U> {
        Off::new(self.0)
    }

    /// The offset `bytes` further on (wrapping; resolving masks it).
    #[inline(always)]
    #[must_use]
    pub const fn byte_add(self, bytes: u64) -> Self {
        Off::new(self.0.wrapping_add(bytes))
    }
}

impl<T> Clone for Off<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Off<T> {}
impl<T> PartialEq for Off<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Off<T> {}
impl<T> PartialOrd for Off<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Off<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
impl<T> std::hash::Hash for Off<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<T> fmt::Debug for Off<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl<T> Bits for Off<T> {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Off::new(bits)
    }
}

/// A set of offsets in volatile memory.
pub type OffsetSet = HashSet<u64, BuildHasherDefault<OffsetHasher>>;

/// A map from offsets in volatile memory.
pub type OffsetMap<V> = HashMap<u64, V, BuildHasherDefault<OffsetHasher>>;

/// Hashes offsets and other small numbers, in a few instructions. Not for keys that somebody may choose to collide, and not for
/// anything stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct OffsetHasher(u64);

impl Hasher for OffsetHasher {
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // Tables take the low bits, and those of offsets are zero.
        self.0 = product ^ product >> 35;
    }

    #[inline(always)]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_lines_differ_in_the_bits_that_tables_take() {
        let hash = |word: u64| {
            let mut hasher = OffsetHasher::default();
            hasher.write_u64(word);
            hasher.finish()
        };
        for shift in [0, 3, 6, 12, 20] {
            let low: HashSet<u64> = (0..1024).map(|n| hash(n << shift) & 0x3ff).collect();
            let high: HashSet<u64> = (0..1024).map(|n| hash(n << shift) >> 57).collect();
            assert!(low.len() > 500 && high.len() > 100, "{shift}: {} and {}", low.len(), high.len());
        }
    }
}
