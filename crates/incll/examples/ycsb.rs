//! What durability costs: YCSB A, B and C on the durable tree and on the volatile one (the paper's MT+), in turns, in one
//! run, with the write-backs at the boundaries included.
//!
//! `cargo run --release -p durix-incll --example ycsb -- [keys] [operations a round] [rounds]`
//!
//! Keys and values are 8 bytes. Both trees lie in anonymous memory with the processor's write-back instruction; the tick of
//! 64 ms is looked at every 256 operations. Ratios are medians of the ratios within a round.

use std::time::{Duration, Instant};

use durix_incll::{BareOptions, Durable, Masstree, Policy, Transient};
use durix_pmem::{Hardware, Mapping, Reserve, Session};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A rank is drawn with probability proportional to 1 / rank^0.99 (Gray et al., SIGMOD'94, as in YCSB).
struct Zipf {
    n: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    fn new(n: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-Self::THETA)).sum::<f64>();
        let (zeta_n, two) = (zeta(n), zeta(2));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - Self::THETA)) / (1.0 - two / zeta_n);
        Zipf { n, zeta: zeta_n, alpha: 1.0 / (1.0 - Self::THETA), eta }
    }

    fn draw(&self, random: &mut Random) -> u64 {
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

/// Neighbouring ranks are far apart as keys.
fn scramble(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

struct Contestant<P: Policy> {
    tree: Masstree<Hardware, P>,
    session: Session<Hardware>,
}

impl<P: Policy> Contestant<P> {
    fn load(&mut self, keys: u64) {
        for first in (0..keys).step_by(256) {
            let op = self.session.enter().expect("a session");
            for n in first..(first + 256).min(keys) {
                self.tree.insert(&op, &scramble(n).to_be_bytes(), &n.to_le_bytes()).expect("room");
            }
            drop(op);
            self.tree.tick(&mut self.session).expect("a boundary");
        }
        self.tree.sync(&mut self.session).expect("a boundary");
    }

    /// Nanoseconds an operation: `puts` of 100 are updates, the others lookups.
    fn round(&mut self, ops: u64, puts: u64, seed: u64, draw: &dyn Fn(&mut Random) -> u64) -> f64 {
        let mut random = Random(seed | 1);
        let mut keys = Vec::with_capacity(256);
        let (mut time, mut sum) = (Duration::ZERO, 0u64);
        for _ in 0..ops / 256 {
            keys.clear();
            keys.extend((0..256).map(|_| (scramble(draw(&mut random)), random.next() >> 20)));
            let start = Instant::now();
            for (key, dice) in &keys {
                let op = self.session.enter().expect("a session");
                if dice % 100 < puts {
                    self.tree.insert(&op, &key.to_be_bytes(), &dice.to_le_bytes()).expect("room");
                } else {
                    sum += self.tree.get(&op, &key.to_be_bytes()).expect("a lookup").map_or(0, |v| v.as_u64());
                }
            }
            self.tree.tick(&mut self.session).expect("a boundary");
            time += start.elapsed();
        }
        std::hint::black_box(sum);
        time.as_nanos() as f64 / (ops / 256 * 256) as f64
    }
}

fn mapping(keys: u64, medium: Hardware) -> Mapping<Hardware> {
    let len = (keys * 128).max(256 << 20).next_power_of_two();
    let reserve = Reserve::pages(len, len).expect("addresses");
    Mapping::new(reserve, len, medium, false).expect("a mapping")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let keys = args.next().unwrap_or(1_000_000);
    let ops = args.next().unwrap_or(1_000_000);
    let rounds = args.next().unwrap_or(7);
    let medium = Hardware::write_back_instruction().unwrap_or(Hardware::PAGE_CACHE);
    let (a, b) = (mapping(keys, medium), mapping(keys, medium));
    let mut session = a.session().expect("a session");
    let tree = Masstree::<_, Durable>::open_bare(&mut session, &a, BareOptions::default()).expect("a tree");
    let mut durable = Contestant { tree, session };
    let mut session = b.session().expect("a session");
    let tree = Masstree::<_, Transient>::volatile(&mut session, &b, BareOptions::default()).expect("a tree");
    let mut volatile = Contestant { tree, session };
    for (name, time) in [
        ("durable", {
            let t = Instant::now();
            durable.load(keys);
            t.elapsed()
        }),
        ("volatile", {
            let t = Instant::now();
            volatile.load(keys);
            t.elapsed()
        }),
    ] {
        println!("load {name}: {:.0} ns an insert", time.as_nanos() as f64 / keys as f64);
    }
    let shape = durable.tree.shape(&durable.session.enter().expect("a session")).expect("a sound tree");
    println!("{keys} keys, {ops} operations a round, {rounds} rounds; {:?}", medium.kind());
    println!(
        "bytes a key: {:.1} in blocks, {:.1} in extents",
        shape.bytes as f64 / keys as f64,
        shape.extents as f64 / keys as f64
    );
    println!("workload          durable  volatile   ratio   boundaries  lines/boundary  last pause us  longest us");
    let zipf = Zipf::new(keys);
    for (name, puts) in [("A", 50), ("B", 5), ("C", 0)] {
        for (distribution, zipfian) in [("uniform", false), ("zipfian", true)] {
            let draw = |random: &mut Random| if zipfian { zipf.draw(random) } else { random.next() % keys };
            let (mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![]);
            let before = durable.tree.epochs().stats();
            for round in 0..rounds {
                let seed = scramble(round);
                let (d, v) = (durable.round(ops, puts, seed, &draw), volatile.round(ops, puts, seed, &draw));
                ratios.push(d / v);
                ours.push(d);
                theirs.push(v);
            }
            let stats = durable.tree.epochs().stats();
            let boundaries = stats.boundaries - before.boundaries;
            let lines = (stats.lines - before.lines) as f64 / boundaries.max(1) as f64;
            println!(
                "{name} {distribution:<10} {:>9.0} ns {:>6.0} ns {:>7.3} {boundaries:>11} {lines:>15.0} {:>14.0} {:>11.0}",
                median(ours),
                median(theirs),
                median(ratios),
                stats.last_pause as f64 / 1000.0,
                stats.longest_pause as f64 / 1000.0,
            );
        }
    }
}
