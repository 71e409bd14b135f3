//! Processor time of a tree's operations on one thread: `dptree_costs [KEYS]`, a million unless given. In the folder `DURIX_DIR`, `/dev/shm` unless set.
//!
//! The floor is a store, a write-back and a fence on one line after the other of the same pool.

use std::error::Error;
use std::hint::black_box;

use durix_dptree::{Direction, DpTree};
use durix_pmem::{Extent, Hardware, Off, Pool, PoolOptions, Word};

/// The `i`th of keys that look random.
fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Nanoseconds that the process has had a processor.
fn processor_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    stat.split_ascii_whitespace().next()?.parse().ok()
}

/// The floor, and what is measured beside it: parts of both take turns, so that both meet the same machine.
struct Bench<'a> {
    pool: &'a Pool<Hardware>,
    part: Extent,
}

/// Parts that a measurement is cut into: few, since the system counts processor time in steps of some milliseconds.
const TURNS: u64 = 10;

impl Bench<'_> {
    /// Persists lines of a part of the pool, one after the other: a store, a write-back and a fence each.
    fn floor(&self) {
        let mut session = self.pool.session().expect("the pool has sessions");
        let op = session.enter().expect("the pool is open");
        for line in 0..self.part.len / 64 {
            let word = op.at(Off::<Word>::new(self.part.off + line * 64));
            op.store(word, line, std::sync::atomic::Ordering::Relaxed);
            op.persist(word);
        }
    }

    /// Prints the processor time of each of `number` calls of `f`, and how many floors that is.
    fn time(&self, what: &str, number: u64, mut f: impl FnMut(u64)) {
        let (mut own, mut floors) = (0, 0);
        let clock = || processor_time().expect("/proc/self/schedstat");
        let lines = self.part.len / 64 * TURNS;
        for turn in 0..TURNS {
            let start = clock();
            self.floor();
            let middle = clock();
            (turn * number / TURNS..(turn + 1) * number / TURNS).for_each(&mut f);
            (floors, own) = (floors + middle - start, own + clock() - middle);
        }
        let (own, floor) = (own as f64 / number as f64, floors as f64 / lines as f64);
        println!("{what}: {own:.1} ns, {:.2} floors of {floor:.1} ns", own / floor);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |arg| arg.parse())?;
    let dir = std::env::var("DURIX_DIR").unwrap_or_else(|_| "/dev/shm".into());
    let dir = tempfile::tempdir_in(dir)?;
    let options = PoolOptions::new().assume_pmem(true).initial_size((keys * 48).max(64 << 20) + (96 << 20));
    let pool: Pool<Hardware> = options.create(dir.path().join("costs.pool"))?;
    let tree = DpTree::open(&pool, "tree")?;
    let mut session = pool.session()?;
    // In a pool of its own: nobody else uses what is only reserved there.
    let floors: Pool<Hardware> =
        PoolOptions::new().assume_pmem(true).initial_size(64 << 20).create(dir.path().join("floors.pool"))?;
    let other = DpTree::open(&floors, "owner")?;
    let part = {
        let mut session = floors.session()?;
        let op = session.enter()?;
        let part = floors.space().reserve_extent(&op, other.root().owner(), 16 << 20)?;
        Extent { off: part.off(), len: part.len() }
    };
    let bench = Bench { pool: &floors, part };
    bench.floor();
    let mut failed = None;
    bench.time("insert, merges included", keys, |i| {
        let op = session.enter().expect("the pool is open");
        failed = failed.take().or(tree.insert(&op, key(i), i).err());
        drop(op);
        if i % 64 == 0 {
            failed = failed.take().or(tree.tick(&mut session).err());
        }
    });
    failed.map_or(Ok(()), Err)?;
    let mut reader = pool.session()?;
    let op = reader.enter()?;
    bench.time("get", keys, |i| _ = black_box(tree.get(&op, key(i * 7 % keys))));
    let mut batch = Vec::with_capacity(64);
    bench.time("get_many of 64", keys, |i| {
        batch.push(key(i * 7 % keys));
        if batch.len() == 64 {
            _ = black_box(tree.get_many(&op, &batch, |_, value| _ = black_box(value)));
            batch.clear();
        }
    });
    bench.time("get, absent", keys, |i| _ = black_box(tree.get(&op, key(i * 7 % keys) ^ 1)));
    bench.time("scan of 100", keys / 50, |i| {
        let mut left = 100;
        let scanned = tree.scan(&op, key(i).., Direction::Forward, |k, v| {
            black_box((k, v));
            left -= 1;
            left > 0
        });
        black_box(scanned).expect("the pool is open");
    });
    println!("{:?}", tree.stats(&op));
    drop(op);
    bench.time("update, merges included", keys, |i| {
        let op = session.enter().expect("the pool is open");
        _ = black_box(tree.update(&op, key(i * 7 % keys), i));
        drop(op);
        if i % 64 == 0 {
            _ = black_box(tree.tick(&mut session));
        }
    });
    Ok(())
}
