//! Digests of 128 bits: equal ones are taken for equal contents.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

/// A digest of a sequence of numbers. Not for adversaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Digest(u64, u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z = (z ^ z >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z ^ z >> 32
}

impl Digest {
    /// The sequence with one more number.
    #[inline]
    #[must_use]
    pub(crate) fn with(self, number: u64) -> Digest {
        let one = mix(self.0.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
        let two = mix(self.1.wrapping_mul(0xC2B2_AE3D_27D4_EB4F).wrapping_add(number ^ 0x1656_67B1_9E37_79F9));
        Digest(one, two)
    }

    /// The sequence with another digest behind it.
    #[inline]
    #[must_use]
    pub(crate) fn and(self, other: Digest) -> Digest {
        self.with(other.0).with(other.1)
    }

    /// Adds a member to the digest of a set.
    #[inline]
    pub(crate) fn put(&mut self, member: Digest) {
        self.0 = self.0.wrapping_add(member.0);
        self.1 = self.1.wrapping_add(member.1);
    }

    /// Takes a member out of the digest of a set.
    #[inline]
    pub(crate) fn take(&mut self, member: Digest) {
        self.0 = self.0.wrapping_sub(member.0);
        self.1 = self.1.wrapping_sub(member.1);
    }

    pub(crate) fn low(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0, self.1)
    }
}

/// For tables keyed by digests or addresses: they are mixed well enough, or by one multiplication.
#[derive(Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(21) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

pub(crate) type Mix = BuildHasherDefault<Mixed>;
