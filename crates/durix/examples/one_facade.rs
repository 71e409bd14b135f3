//! One way to a tree and one kind of call, and nothing else: for profilers and for counting instructions.
//!
//! ```text
//! cargo run --release -p durix --example one_facade -- bare|handle|map|both get|insert|scan 8|100 [keys] [calls] [expected]
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/one_facade handle get 8 100000 20000
//! ```
//!
//! `bare` is the tree itself, 64 calls in an operation; `handle` and `map` are the facade over the very same tree. `both` runs bare and
//! handle in turn and prints what part of the bare speed the handle has, as the median of 21 rounds. `expected` is how many pairs a bare
//! scan says it visits: 0 asks for no value ahead. Processor time of the thread. Files lie in `/dev/shm`.

use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use durix::{Db, Hardware, OrderedHandle, OrderedMap, Value};
use durix_incll::Masstree;
use durix_pmem::{PoolOptions, Session, backing::FileBacking};

const BATCH: usize = 64;
const SCAN: usize = 10;

fn key(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ z >> 32
}

fn value_of<const N: usize>(key: u64) -> [u8; N] {
    let mut value = [0x5a; N];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

struct Ways<const N: usize> {
    tree: Arc<Masstree>,
    session: Session,
    map: OrderedMap<u64, [u8; N]>,
    handle: OrderedHandle<u64, [u8; N]>,
    /// How many pairs the bare scan says it visits.
    expected: usize,
}

impl<const N: usize> Ways<N>
where
    [u8; N]: Value,
{
    #[inline(never)]
    fn measured_bare_get(&mut self, keys: &[u64]) {
        let mut bytes = Vec::new();
        for batch in keys.chunks(BATCH) {
            let op = self.session.enter().expect("an open pool");
            for key in batch {
                let value = self.tree.get(&op, &key.to_be_bytes()).expect("a sound tree").expect("it is there");
                value.read_into(&mut bytes);
                assert!(bytes[..8] == key.to_le_bytes());
            }
        }
    }

    #[inline(never)]
    fn measured_bare_insert(&mut self, keys: &[u64]) {
        for batch in keys.chunks(BATCH) {
            let op = self.session.enter().expect("an open pool");
            for key in batch {
                assert!(self.tree.insert(&op, &key.to_be_bytes(), &value_of::<N>(*key)).expect("room"));
            }
        }
    }

    #[inline(never)]
    fn measured_bare_scan(&mut self, starts: &[u64]) {
        let mut bytes = Vec::new();
        for batch in starts.chunks(BATCH) {
            let op = self.session.enter().expect("an open pool");
            for start in batch {
                let mut left = SCAN;
                let visit = |key: &[u8], value: durix_incll::Value<'_, _>| {
                    value.read_into(&mut bytes);
                    let key = u64::from_be_bytes(key.try_into().expect("eight bytes"));
                    assert!(bytes[..8] == key.to_le_bytes());
                    left -= 1;
                    if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                };
                let (from, to) = (start.to_be_bytes(), Bound::Unbounded);
                self.tree.range_expecting(&op, Bound::Included(&from), to, self.expected, visit).expect("a sound tree");
            }
        }
    }

    #[inline(never)]
    fn measured_handle_get(&mut self, keys: &[u64]) {
        for key in keys {
            let value = self.handle.get(key).expect("a sound tree").expect("it is there");
            assert!(value[..8] == key.to_le_bytes());
            black_box(value);
        }
    }

    #[inline(never)]
    fn measured_handle_insert(&mut self, keys: &[u64]) {
        for key in keys {
            assert!(self.handle.insert(key, &value_of(*key)).expect("room"));
        }
    }

    #[inline(never)]
    fn measured_handle_scan(&mut self, starts: &[u64]) {
        for start in starts {
            for pair in self.handle.range(*start..).expect("a range").take(SCAN) {
                let (key, value) = pair.expect("a sound tree");
                assert!(value[..8] == key.to_le_bytes());
            }
        }
    }

    #[inline(never)]
    fn measured_map_get(&mut self, keys: &[u64]) {
        for key in keys {
            let value = self.map.get(key).expect("a sound tree").expect("it is there");
            assert!(value[..8] == key.to_le_bytes());
            black_box(value);
        }
    }

    #[inline(never)]
    fn measured_map_scan(&mut self, starts: &[u64]) {
        for start in starts {
            for pair in self.map.range(*start..).expect("a range").take(SCAN) {
                let (key, value) = pair.expect("a sound tree");
                assert!(value[..8] == key.to_le_bytes());
            }
        }
    }

    fn run(&mut self, way: &str, call: &str, keys: &[u64]) -> f64 {
        let start = processor_nanoseconds();
        match (way, call) {
            ("bare", "get") => self.measured_bare_get(keys),
            ("bare", "insert") => self.measured_bare_insert(keys),
            ("bare", "scan") => self.measured_bare_scan(keys),
            ("handle", "get") => self.measured_handle_get(keys),
            ("handle", "insert") => self.measured_handle_insert(keys),
            ("handle", "scan") => self.measured_handle_scan(keys),
            ("map", "get") => self.measured_map_get(keys),
            ("map", "scan") => self.measured_map_scan(keys),
            _ => panic!("{way} {call}: see the head of the file"),
        }
        (processor_nanoseconds() - start) / keys.len() as f64
    }
}

/// Processor time of this thread, as the kernel counts it.
fn processor_nanoseconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number")
}

fn run<const N: usize>(way: &str, call: &str, keys: u64, calls: u64, expected: usize)
where
    [u8; N]: Value,
{
    let path = format!("/dev/shm/durix-one-facade-{}", std::process::id());
    let options = PoolOptions::new().initial_size((keys + 50 * calls) * (N as u64 + 72) * 3 / 2 + (64 << 20));
    let backing = FileBacking::create(std::path::Path::new(&path)).expect("a file");
    let medium = Hardware::write_back_instruction().unwrap_or(Hardware::PAGE_CACHE);
    let pool = options.assume_pmem(true).create_on(backing, medium);
    let _ = std::fs::remove_file(&path);
    let db = Db::builder().no_background_threads().over(pool.expect("a pool")).expect("a database");
    let map = db.ordered_map::<u64, [u8; N]>("cost").expect("a map");
    let tree = Masstree::open(db.pool(), "cost").expect("the same tree");
    let (session, handle) = (db.pool().session().expect("a session"), map.handle().expect("a handle"));
    let mut ways = Ways { tree, session, map, handle, expected };
    for first in (0..keys).step_by(1 << 14) {
        let piece: Vec<u64> = (first..(first + (1 << 14)).min(keys)).map(key).collect();
        ways.fill(&piece);
        db.sync().expect("a checkpoint");
    }
    let (mut fresh, mut random) = (keys, 0);
    let mut round = |way: &str| {
        let numbers: Vec<u64> = (0..calls).map(|at| at + random).collect();
        random += calls;
        let picked: Vec<u64> = if call == "insert" {
            fresh += calls;
            (fresh - calls..fresh).map(key).collect()
        } else {
            numbers.into_iter().map(|i| key(((u128::from(key(i)) * u128::from(keys)) >> 64) as u64)).collect()
        };
        let took = ways.run(way, call, &picked);
        db.sync().expect("a checkpoint");
        took
    };
    if way != "both" {
        println!("{way} {call}, {N} bytes: {:.1} ns", round(way));
        return;
    }
    let mut ratios = Vec::new();
    let mut times = Vec::new();
    for turn in 0..23 {
        let (bare, handle) = (round("bare"), round("handle"));
        if turn > 1 {
            ratios.push(bare / handle);
            times.push(bare);
        }
    }
    ratios.sort_by(f64::total_cmp);
    times.sort_by(f64::total_cmp);
    println!("{call}, {N} bytes: {:.3} of the bare {:.0} ns", ratios[ratios.len() / 2], times[times.len() / 2]);
}

impl<const N: usize> Ways<N>
where
    [u8; N]: Value,
{
    fn fill(&mut self, keys: &[u64]) {
        let op = self.session.enter().expect("an open pool");
        for key in keys {
            self.tree.insert(&op, &key.to_be_bytes(), &value_of::<N>(*key)).expect("room");
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize| args.get(at).map_or("", String::as_str);
    let number = |at: usize, default| args.get(at).map_or(default, |a| a.parse::<u64>().expect("a number"));
    let (keys, calls) = (number(3, 2_000_000), number(4, 20_000));
    match text(2) {
        "100" => run::<100>(text(0), text(1), keys, calls, number(5, SCAN as u64) as usize),
        _ => run::<8>(text(0), text(1), keys, calls, number(5, SCAN as u64) as usize),
    }
}
