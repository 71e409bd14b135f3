//! Numbers of crash states, which outgrow every machine word: a node of 16 KiB has 2^813.

use std::fmt;

/// A natural number of any size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Little-endian, without leading zeros.
    limbs: Vec<u32>,
}

impl Count {
    /// One.
    pub fn one() -> Self {
        Count::from(1)
    }

    /// The product with `factor`.
    #[must_use]
    pub fn times(&self, factor: u128) -> Self {
        let mut product = Count { limbs: vec![0; self.limbs.len() + 4] };
        for (shift, digit) in (0..4).map(|i| (i, (factor >> (32 * i)) as u32)) {
            let mut carry = 0u64;
            for (at, limb) in self.limbs.iter().enumerate() {
                let sum = u64::from(*limb) * u64::from(digit) + u64::from(product.limbs[at + shift]) + carry;
                product.limbs[at + shift] = sum as u32;
                carry = sum >> 32;
            }
            for limb in &mut product.limbs[self.limbs.len() + shift..] {
                let sum = u64::from(*limb) + carry;
                *limb = sum as u32;
                carry = sum >> 32;
            }
        }
        product.trimmed()
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Count) {
        self.limbs.resize(self.limbs.len().max(other.limbs.len()) + 1, 0);
        let mut carry = 0u64;
        for (at, limb) in self.limbs.iter_mut().enumerate() {
            let sum = u64::from(*limb) + u64::from(other.limbs.get(at).copied().unwrap_or(0)) + carry;
            *limb = sum as u32;
            carry = sum >> 32;
        }
        *self = std::mem::take(self).trimmed();
    }

    /// The number, if it is less than 2^128.
    pub fn small(&self) -> Option<u128> {
        (self.limbs.len() <= 4).then(|| self.limbs.iter().rev().fold(0, |n, limb| n << 32 | u128::from(*limb)))
    }

    pub(crate) fn equals(&self, number: u128) -> bool {
        self.small() == Some(number)
    }

    pub(crate) fn at_most(&self, number: u128) -> bool {
        self.small().is_some_and(|n| n <= number)
    }

    fn trimmed(mut self) -> Self {
        while self.limbs.last() == Some(&0) {
            self.limbs.pop();
        }
        self
    }

    /// Binary logarithm, rounded down; 0 for 0.
    pub fn log2(&self) -> u64 {
        match self.limbs.last() {
            Some(top) => self.limbs.len() as u64 * 32 - 1 - u64::from(top.leading_zeros()),
            None => 0,
        }
    }
}

impl From<u128> for Count {
    fn from(number: u128) -> Self {
        Count { limbs: (0..4).map(|i| (number >> (32 * i)) as u32).collect() }.trimmed()
    }
}

/// Exactly up to 10^12, beyond that as a power of two.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.small().filter(|n| *n <= 1_000_000_000_000) {
            Some(number) => write!(f, "{number}"),
            None => write!(f, "2^{}", self.log2()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_sums_agree_with_machine_arithmetic() {
        for (a, b) in
            [(0u128, 7u128), (1, 1), (u64::MAX.into(), u64::MAX.into()), (1 << 100, 3), (12_345_678_901, 987_654_321)]
        {
            assert_eq!(Count::from(a).times(b).small(), a.checked_mul(b), "{a} * {b}");
            let mut sum = Count::from(a);
            sum.add(&Count::from(b));
            assert_eq!(sum.small(), Some(a + b));
        }
    }

    #[test]
    fn large_numbers_are_printed_as_powers_of_two() {
        let mut count = Count::one();
        for _ in 0..256 {
            count = count.times(9);
        }
        assert_eq!(count.to_string(), "2^811");
        assert_eq!(count.small(), None);
        assert_eq!(Count::from(1_000_000_000_000).to_string(), "1000000000000");
    }
}
