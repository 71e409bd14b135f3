//! The workloads of YCSB (Cooper et al., SoCC'10): which operation, on which key.

use durix_pmem::testing::mix;

use crate::args::{Distribution, Workload};

/// The skew of YCSB's zipfian distribution.
const THETA: f64 = 0.99;

/// A fast generator for one thread.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(mix(seed) | 1)
    }

    /// xorshift64*.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `limit`, near enough to uniform for limits far below 2^64.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// In [0, 1).
    #[inline]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks by a zipfian distribution, after Gray et al., "Quickly generating billion-record synthetic databases"
/// (SIGMOD'94), as YCSB has it.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    pub fn new(items: u64) -> Self {
        let zeta = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta_sum(2) / zeta);
        Zipfian { items, zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// A rank, 0 the most frequent.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

fn zeta_sum(items: u64) -> f64 {
    (1..=items).map(|i| (i as f64).powf(-THETA)).sum()
}

/// The sum of 1/i^0.99: the first terms exactly, the rest by the Euler-Maclaurin formula, whose error there is below
/// 1e-12.
fn zeta(items: u64) -> f64 {
    const EXACT: u64 = 1 << 16;
    if items <= EXACT {
        return zeta_sum(items);
    }
    let (a, b) = (EXACT as f64, items as f64);
    let integral = (b.powf(1.0 - THETA) - a.powf(1.0 - THETA)) / (1.0 - THETA);
    let f = |x: f64| x.powf(-THETA);
    let slope = |x: f64| -THETA * x.powf(-THETA - 1.0);
    zeta_sum(EXACT) + integral + (f(b) - f(a)) / 2.0 + (slope(b) - slope(a)) / 12.0
}

/// What an operation is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Read(u64),
    Update(u64),
    Insert(u64),
    /// From this key on, so many.
    Scan(u64, usize),
    ReadModifyWrite(u64),
}

/// The requests of one thread.
#[derive(Clone, Debug)]
pub struct Requests {
    workload: Workload,
    distribution: Distribution,
    random: Random,
    zipfian: Option<Zipfian>,
    /// Keys that are there: those of the beginning, and the thread's own inserts.
    first: u64,
    inserted: u64,
    thread: u64,
    threads: u64,
}

impl Requests {
    pub fn new(
        workload: Workload,
        distribution: Distribution,
        keys: u64,
        thread: u64,
        threads: u64,
        seed: u64,
    ) -> Self {
        Requests {
            workload,
            distribution,
            random: Random::new(seed ^ mix(thread + 1)),
            zipfian: (distribution != Distribution::Uniform).then(|| Zipfian::new(keys)),
            first: keys,
            inserted: 0,
            thread,
            threads,
        }
    }

    #[inline]
    pub fn next(&mut self) -> Request {
        let percent = self.random.below(100);
        match self.workload {
            Workload::A if percent < 50 => Request::Read(self.choose()),
            Workload::B if percent < 95 => Request::Read(self.choose()),
            Workload::A | Workload::B => Request::Update(self.choose()),
            Workload::C => Request::Read(self.choose()),
            Workload::D if percent < 95 => Request::Read(self.choose()),
            Workload::E if percent < 95 => Request::Scan(self.choose(), 1 + self.random.below(100) as usize),
            Workload::D | Workload::E => Request::Insert(self.insert()),
            Workload::F if percent < 50 => Request::Read(self.choose()),
            Workload::F | Workload::TpccNeworder => Request::ReadModifyWrite(self.choose()),
        }
    }

    /// The number of a new key: threads take turns in the numbers behind the first ones.
    fn insert(&mut self) -> u64 {
        self.inserted += 1;
        self.own(self.inserted - 1)
    }

    fn own(&self, nth: u64) -> u64 {
        self.first + nth * self.threads + self.thread
    }

    /// The number of a key that is there.
    fn choose(&mut self) -> u64 {
        let Some(zipfian) = &self.zipfian else {
            let nth = self.random.below(self.first + self.inserted);
            return self.nth(nth);
        };
        let rank = zipfian.rank(&mut self.random);
        match self.distribution {
            // The rank is hashed, so that frequent keys are no neighbours.
            Distribution::Zipfian => mix(rank) % self.first,
            _ => {
                let there = self.first + self.inserted;
                self.nth(there - 1 - rank.min(there - 1))
            }
        }
    }

    /// The number of the nth key that this thread knows to be there.
    fn nth(&self, nth: u64) -> u64 {
        if nth < self.first { nth } else { self.own(nth - self.first) }
    }
}

/// Bytes of a key: eight, scrambled, so that the order of insertion is not the order of keys.
pub fn key(number: u64) -> [u8; 8] {
    mix(number).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_right_beyond_the_exact_part() {
        for items in [1 << 16, 1 << 17, 1_000_000] {
            let (short, exact) = (zeta(items), zeta_sum(items));
            assert!((short - exact).abs() < 1e-9, "{items}: {short} {exact}");
        }
    }

    #[test]
    fn ranks_are_as_frequent_as_the_distribution_says() {
        let (zipfian, mut random) = (Zipfian::new(1000), Random::new(1));
        let draws = 400_000;
        let mut counts = vec![0u64; 1000];
        (0..draws).for_each(|_| counts[zipfian.rank(&mut random) as usize] += 1);
        for rank in [0usize, 1] {
            let expected = draws as f64 / ((rank + 1) as f64).powf(THETA) / zeta(1000);
            let ratio = counts[rank] as f64 / expected;
            assert!((0.95..1.05).contains(&ratio), "rank {rank}: {ratio}");
        }
        // The method is an approximation in between; the tail has to be there, and to fall.
        let tail: u64 = counts[500..].iter().sum();
        let expected = draws as f64 * (zeta(1000) - zeta(500)) / zeta(1000);
        assert!((0.9..1.1).contains(&(tail as f64 / expected)), "{tail} {expected}");
    }

    #[test]
    fn shares_and_keys_are_those_of_the_workload() {
        let share = |workload, distribution, is: fn(&Request) -> bool| {
            let mut requests = Requests::new(workload, distribution, 1000, 0, 2, 1);
            (0..20_000).filter(|_| is(&requests.next())).count() as f64 / 20_000.0
        };
        let read = |r: &Request| matches!(r, Request::Read(_));
        assert!((share(Workload::A, Distribution::Zipfian, read) - 0.5).abs() < 0.02);
        assert!((share(Workload::B, Distribution::Uniform, read) - 0.95).abs() < 0.01);
        assert_eq!(share(Workload::C, Distribution::Uniform, read), 1.0);
        assert!((share(Workload::D, Distribution::Latest, |r| matches!(r, Request::Insert(_))) - 0.05).abs() < 0.01);
        assert!(
            (share(Workload::E, Distribution::Zipfian, |r| matches!(r, Request::Scan(_, 1..=100))) - 0.95).abs() < 0.01
        );
        assert!(
            (share(Workload::F, Distribution::Zipfian, |r| matches!(r, Request::ReadModifyWrite(_))) - 0.5).abs()
                < 0.02
        );
        assert!(
            share(Workload::C, Distribution::Latest, |r| *r == Request::Read(999)) > 0.1,
            "the last key is the hottest"
        );
    }

    #[test]
    fn only_keys_that_are_there_are_read() {
        for distribution in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest] {
            let mut there: std::collections::HashSet<u64> = (0..100).collect();
            let mut requests = Requests::new(Workload::D, distribution, 100, 1, 3, 1);
            for _ in 0..20_000 {
                match requests.next() {
                    Request::Insert(number) => assert!(there.insert(number), "{number} twice"),
                    Request::Read(number) => assert!(there.contains(&number), "{number} is not there"),
                    other => panic!("{other:?} is not of workload D"),
                }
            }
        }
    }
}
