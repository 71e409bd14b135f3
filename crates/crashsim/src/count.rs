//! Numbers of crash states, which outgrow every machine word: a node of 16 KiB has 2^813.

use std::fmt;

/// A natural number of any size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Little-endian, without leading zeros; empty for numbers below 2^128, which most are.
    limbs: Vec<u32>,
    /// The number if it is below 2^128, otherwise 0.
    small: u128,
}

impl Count {
    /// One.
    pub fn one() -> Self {
        Count::from(1)
    }

    /// The product with `factor`.
    #[must_use]
    pub fn times(&self, factor: u128) -> Self {
        if let Some(product) = self.small().and_then(|number| number.checked_mul(factor)) {
            return Count::from(product);
        }
        let limbs = self.limbs();
        let mut product = vec![0; limbs.len() + 4];
        for (shift, digit) in (0..4).map(|i| (i, (factor >> (32 * i)) as u32)) {
            let mut carry = 0u64;
            for (at, limb) in limbs.iter().enumerate() {
                let sum = u64::from(*limb) * u64::from(digit) + u64::from(product[at + shift]) + carry;
                product[at + shift] = sum as u32;
                carry = sum >> 32;
            }
            for limb in &mut product[limbs.len() + shift..] {
                let sum = u64::from(*limb) + carry;
                *limb = sum as u32;
                carry = sum >> 32;
            }
        }
        Count::of(product)
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Count) {
        if let (Some(one), Some(two)) = (self.small(), other.small())
            && let Some(sum) = one.checked_add(two)
        {
            self.small = sum;
            return;
        }
        let (mut sum, theirs) = (self.limbs(), other.limbs());
        sum.resize(sum.len().max(theirs.len()) + 1, 0);
        let mut carry = 0u64;
        for (at, limb) in sum.iter_mut().enumerate() {
            let both = u64::from(*limb) + u64::from(theirs.get(at).copied().unwrap_or(0)) + carry;
            *limb = both as u32;
            carry = both >> 32;
        }
        *self = Count::of(sum);
    }

    /// The number, if it is less than 2^128.
    pub fn small(&self) -> Option<u128> {
        self.limbs.is_empty().then_some(self.small)
    }

    pub(crate) fn equals(&self, number: u128) -> bool {
        self.small() == Some(number)
    }

    pub(crate) fn at_most(&self, number: u128) -> bool {
        self.small().is_some_and(|n| n <= number)
    }

    /// All of its limbs, little-endian.
    fn limbs(&self) -> Vec<u32> {
        match self.small() {
            Some(number) => (0..4).map(|i| (number >> (32 * i)) as u32).collect(),
            None => self.limbs.clone(),
        }
    }

    fn of(mut limbs: Vec<u32>) -> Self {
        while limbs.last() == Some(&0) {
            limbs.pop();
        }
        match limbs.len() {
            0..=4 => limbs.iter().rev().fold(0, |n, limb| n << 32 | u128::from(*limb)).into(),
            _ => Count { limbs, small: 0 },
        }
    }

    /// Binary logarithm, rounded down; 0 for 0.
    pub fn log2(&self) -> u64 {
        match self.limbs.last() {
            Some(top) => self.limbs.len() as u64 * 32 - 1 - u64::from(top.leading_zeros()),
            None => u64::from(self.small.checked_ilog2().unwrap_or(0)),
        }
    }
}

impl From<u128> for Count {
    fn from(number: u128) -> Self {
        Count { limbs: Vec::new(), small: number }
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
        let mut twice = count.clone();
        twice.add(&count);
        assert_eq!(twice, count.times(2));
        assert_eq!(twice.log2(), 812);
        let mut carried = Count::from(u128::MAX);
        carried.add(&Count::one());
        assert_eq!((carried.log2(), carried.small()), (128, None));
        assert_eq!(carried, Count::from(1 << 127).times(2));
        assert_eq!(count.to_string(), "2^811");
        assert_eq!(count.small(), None);
        assert_eq!(Count::from(1_000_000_000_000).to_string(), "1000000000000");
    }
}
