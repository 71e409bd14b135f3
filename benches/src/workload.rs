//! What the figures work on: the medium, and how keys are drawn.

use durix_pmem::Hardware;
use durix_pmem::testing::mix;

/// The medium of the benches: the write-back instruction of this processor, whatever the platform says about its caches, since
/// this is what the papers measured; the page cache where there is none.
pub fn medium() -> Hardware {
    Hardware::write_back_instruction().unwrap_or(Hardware::PAGE_CACHE)
}

/// A pseudo-random sequence (xorshift64): cheap, and the same for everyone. It must not begin with 0.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below `limit`.
    #[inline(always)]
    pub fn below(&mut self, limit: u64) -> u64 {
        scaled(self.next(), limit)
    }
}

/// A number of all 64 bits, scaled to one below `limit`.
#[inline(always)]
pub fn scaled(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

/// A rank is drawn with probability proportional to 1 / rank^0.99 (Gray et al., SIGMOD'94, as in YCSB).
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    /// Ranks below `n`. `O(n)`.
    pub fn new(n: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-Self::THETA)).sum::<f64>();
        let (zeta_n, two) = (zeta(n), zeta(2));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - Self::THETA)) / (1.0 - two / zeta_n);
        Zipf { n, zeta: zeta_n, alpha: 1.0 / (1.0 - Self::THETA), eta }
    }

    /// The next rank.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(Self::THETA) {
            return 1;
        }
        ((self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64).min(self.n - 1)
    }
}

/// Key number `i`: different for each `i`, neighbours far apart.
pub fn key(i: u64) -> u64 {
    mix(i)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_differ_and_zipfian_ranks_are_skewed_and_in_range() {
        assert_eq!((0..100_000).map(key).collect::<HashSet<_>>().len(), 100_000);
        let (zipf, mut random) = (Zipf::new(1000), Random(7));
        let draws: Vec<u64> = (0..20_000).map(|_| zipf.draw(&mut random)).collect();
        assert!(draws.iter().all(|rank| *rank < 1000));
        let first = draws.iter().filter(|rank| **rank == 0).count() as f64 / 20_000.0;
        assert!((0.11..0.15).contains(&first), "1 / zeta(1000, 0.99) is 0.130, drawn {first}");
    }
}
