//! One tree and one kind of operation, and nothing else: for profilers and for counting instructions.
//!
//! ```text
//! cargo run --release -p durix-bench --example one_tree -- durable|volatile|volatile15 4k|2m <operation> [keys] [operations]
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/one_tree volatile 4k get 100000 100000
//! ```
//!
//! Operations: `insert` (nothing but filling), `load` (the same in batches of 64), `get`, `many` (batches of 64), `update`, `scan` (of 10), `reverse` (of 10), `all`.
//! Keys and values are 8 bytes; memory is anonymous, in pages of 4 KiB or 2 MiB.

use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::time::Instant;

use durix_incll::{BareOptions, Durable, Masstree, Policy, Transient, Transient15};
use durix_pmem::{Hardware, Mapping, Reserve, Session};

/// Operations between two looks at the clock.
const BATCH: u64 = 64;

fn key(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ z >> 32
}

/// Which of `keys` keys the operation number `i` is about.
fn existing(i: u64, keys: u64) -> u64 {
    key(((u128::from(key(i ^ (0x5555 << 40))) * u128::from(keys)) >> 64) as u64)
}

struct Run<P: Policy> {
    tree: Masstree<Hardware, P>,
    session: Session<Hardware>,
    keys: u64,
    operations: u64,
}

impl<P: Policy> Run<P> {
    /// Calls `f` with the numbers of each batch; a boundary may come between two batches.
    fn batches(
        &mut self,
        count: u64,
        mut f: impl FnMut(&Masstree<Hardware, P>, &durix_pmem::Op<'_>, std::ops::Range<u64>),
    ) {
        for first in (0..count).step_by(BATCH as usize) {
            let op = self.session.enter().expect("a session");
            f(&self.tree, &op, first..(first + BATCH).min(count));
            drop(op);
            self.tree.tick(&mut self.session).expect("a boundary");
        }
    }

    #[inline(never)]
    fn measured_insert(&mut self) -> u64 {
        self.batches(self.keys, |tree, op, numbers| {
            for i in numbers {
                tree.insert(op, &key(i).to_be_bytes(), &i.to_le_bytes()).expect("room");
            }
        });
        self.keys
    }

    #[inline(never)]
    fn measured_load(&mut self) -> u64 {
        self.batches(self.keys, |tree, op, numbers| {
            let batch: Vec<_> = numbers.map(|i| (key(i).to_be_bytes(), i.to_le_bytes())).collect();
            tree.insert_many(op, &batch).expect("room");
        });
        self.keys
    }

    #[inline(never)]
    fn measured_get(&mut self) -> u64 {
        let keys = self.keys;
        self.batches(self.operations, |tree, op, numbers| {
            for i in numbers {
                let value = tree.get(op, &existing(i, keys).to_be_bytes()).expect("a sound tree");
                black_box(value.expect("a key that is there").as_u64());
            }
        });
        self.operations
    }

    #[inline(never)]
    fn measured_many(&mut self) -> u64 {
        let keys = self.keys;
        self.batches(self.operations, |tree, op, numbers| {
            let batch: Vec<[u8; 8]> = numbers.map(|i| existing(i, keys).to_be_bytes()).collect();
            let found = tree.get_many(op, &batch).expect("a sound tree");
            assert!(found.iter().all(|value| value.is_some_and(|v| black_box(v.as_u64()) < keys)));
        });
        self.operations
    }

    #[inline(never)]
    fn measured_update(&mut self) -> u64 {
        let keys = self.keys;
        self.batches(self.operations, |tree, op, numbers| {
            for i in numbers {
                tree.insert(op, &existing(i, keys).to_be_bytes(), &(i % keys).to_le_bytes()).expect("room");
            }
        });
        self.operations
    }

    #[inline(never)]
    fn measured_scan(&mut self, reverse: bool) -> u64 {
        let keys = self.keys;
        self.batches(self.operations, |tree, op, numbers| {
            for i in numbers {
                let start = existing(i, keys).to_be_bytes();
                let mut left = 10;
                let visit = |key: &[u8], value: durix_incll::Value<'_, Hardware>| {
                    black_box((key[0], value.as_u64()));
                    left -= 1;
                    if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                };
                let done = if reverse {
                    tree.range_rev(op, Bound::Unbounded, Bound::Included(&start), visit)
                } else {
                    tree.range(op, Bound::Included(&start), Bound::Unbounded, visit)
                };
                done.expect("a sound tree");
            }
        });
        self.operations
    }

    fn run(&mut self, what: &str) {
        match what {
            "load" => self.timed("load", Self::measured_load),
            _ => self.timed("insert", Self::measured_insert),
        }
        for (name, f) in [
            ("get", Self::measured_get as fn(&mut Self) -> u64),
            ("many", Self::measured_many),
            ("scan", |run| run.measured_scan(false)),
            ("reverse", |run| run.measured_scan(true)),
            ("update", Self::measured_update),
        ] {
            if [name, "all"].contains(&what) {
                self.timed(name, f);
            }
        }
        let stats = self.tree.epochs().stats();
        println!("{} boundaries, {} lines, longest {} us", stats.boundaries, stats.lines, stats.longest_pause / 1000);
        if P::DURABLE {
            let shape = self.tree.shape(&self.session.enter().expect("a session")).expect("a sound tree");
            println!("{:.1} bytes a key in extents; {shape:?}", shape.extents as f64 / self.keys as f64);
        }
    }

    fn timed(&mut self, name: &str, f: fn(&mut Self) -> u64) {
        let start = Instant::now();
        let count = f(self);
        let ns = start.elapsed().as_nanos() as f64 / count as f64;
        println!("{name:8} {ns:7.1} ns, {:.3} M/s", 1000.0 / ns);
    }
}

fn mapping(keys: u64, huge: bool) -> Mapping<Hardware> {
    let len = (keys * 64).max(64 << 20).next_power_of_two();
    let reserve = Reserve::pages(len, len).expect("addresses");
    if huge {
        assert!(reserve.advise_huge_pages(), "the kernel refuses huge pages");
    }
    let medium = Hardware::write_back_instruction().unwrap_or(Hardware::PAGE_CACHE);
    Mapping::new(reserve, len, medium, false).expect("a mapping")
}

fn volatile<P: Policy>(huge: bool, keys: u64, operations: u64, what: &str) {
    let mapping = mapping(keys, huge);
    let mut session = mapping.session().expect("a session");
    let tree = Masstree::<_, P>::volatile(&mut session, &mapping, BareOptions::default()).expect("a tree");
    Run { tree, session, keys, operations }.run(what);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize| args.get(at).map_or("", String::as_str);
    let number = |at: usize, default| args.get(at).map_or(default, |a| a.parse::<u64>().expect("a number"));
    let (keys, operations) = (number(3, 1_000_000), number(4, 1_000_000));
    let huge = text(1) == "2m";
    match text(0) {
        "volatile" => volatile::<Transient>(huge, keys, operations, text(2)),
        "volatile15" => volatile::<Transient15>(huge, keys, operations, text(2)),
        "durable" => {
            let mapping = mapping(keys, huge);
            let mut session = mapping.session().expect("a session");
            let tree = Masstree::<_, Durable>::open_bare(&mut session, &mapping, BareOptions::default());
            Run { tree: tree.expect("a tree"), session, keys, operations }.run(text(2));
        }
        other => panic!("{other}: durable, volatile or volatile15"),
    }
}
