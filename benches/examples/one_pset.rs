//! Times the set's operations, interleaved with the floor (store, write-back, fence of one line):
//!
//! `cargo run --release -p durix-bench --example one_pset -- <keys> <threads> <bytes of a value>`
//!
//! The pool is a file in the directory `DURIX_DIR`, `/dev/shm` unless set, taken for persistent memory. Numbers are medians
//! over rounds, in nanoseconds an operation of all threads together.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use durix_bench::workload::key as spread;
use durix_pmem::{Hardware, Mapping, Off, Op, Pool, PoolOptions, Word};
use durix_pset::{PersistentSet, SetOptions};

const ROUNDS: usize = 7;
const OPS: u64 = 200_000;

type Work<'a> = &'a (dyn Fn(&Op<'_>, u64, &mut Vec<u8>) + Sync);

/// Runs `count` operations on `threads` threads; nanoseconds an operation.
fn time(mapping: &Mapping<Hardware>, threads: u64, count: u64, first: u64, work: Work<'_>) -> f64 {
    let start = Instant::now();
    std::thread::scope(|s| {
        for thread in 0..threads {
            s.spawn(move || {
                let mut session = mapping.session().unwrap();
                let mut out = Vec::new();
                for i in 0..count / threads {
                    work(&session.enter().unwrap(), first + thread * (count / threads) + i, &mut out);
                }
            });
        }
    });
    start.elapsed().as_nanos() as f64 / count as f64
}

fn main() {
    let arg = |n: usize, default: u64| std::env::args().nth(n).map_or(default, |a| a.parse().expect("a number"));
    let (keys, threads, value) = (arg(1, 1 << 20), arg(2, 1), vec![7u8; arg(3, 8) as usize]);
    let dir = std::env::var("DURIX_DIR").unwrap_or_else(|_| "/dev/shm".into());
    let dir = tempfile::tempdir_in(dir).unwrap();
    let pool = PoolOptions::new().assume_pmem(true).create(dir.path().join("pool")).unwrap();
    let set = PersistentSet::open(&pool, "set").unwrap();
    let plain = PersistentSet::open_with(&pool, "plain", &SetOptions::default().overlap(false)).unwrap();
    let floor = Mapping::heap(64 << 20, Hardware::write_back_instruction().unwrap());
    for set in [&set, &plain] {
        let new =
            |op: &Op<'_>, i: u64, _: &mut Vec<u8>| assert!(set.insert(op, &spread(i).to_le_bytes(), &value).unwrap());
        println!(
            "{keys} keys, {threads} thread(s), {} bytes: insert new {:.0}",
            value.len(),
            time(pool.mapping(), threads, keys, 0, &new)
        );
    }
    let key = |i: u64| spread(spread(i) % keys).to_le_bytes();
    let work: [(&str, &Mapping<Hardware>, Work<'_>); 8] = [
        ("floor", &floor, &|op, i, _| {
            let word = op.at(Off::<Word>::new((i * 64) % (64 << 20)));
            op.store(word, i, Relaxed);
            op.persist(word);
        }),
        ("update", pool.mapping(), &|op, i, _| assert!(!set.insert(op, &key(i), &value).unwrap())),
        ("update, no overlap", pool.mapping(), &|op, i, _| assert!(!plain.insert(op, &key(i), &value).unwrap())),
        ("get", pool.mapping(), &|op, i, out| assert!(set.get(op, &key(i), out).unwrap())),
        ("miss", pool.mapping(), &|op, i, out| assert!(!set.get(op, &spread(keys + i).to_le_bytes(), out).unwrap())),
        ("get 50, update 50", pool.mapping(), &|op, i, out| {
            if i % 2 == 0 {
                set.get(op, &key(i), out).unwrap()
            } else {
                set.insert(op, &key(i), &value).unwrap()
            };
        }),
        ("remove, insert", pool.mapping(), &|op, i, _| {
            if i % 2 == 0 {
                set.remove(op, &key(i / 2)).unwrap()
            } else {
                set.insert(op, &key(i / 2), &value).unwrap()
            };
        }),
        ("commit of 4", pool.mapping(), &|op, i, _| {
            let mut batch = durix_pset::Batch::new();
            for j in 0..4 {
                batch.insert(&key(4 * i + j), &value);
            }
            plain.commit(op, &batch).unwrap();
        }),
    ];
    let mut times = vec![Vec::new(); work.len()];
    for round in 0..ROUNDS as u64 {
        for ((_, mapping, work), times) in work.iter().zip(&mut times) {
            times.push(time(mapping, threads, OPS, round * OPS, *work));
        }
    }
    for ((name, ..), times) in work.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:>20} {:7.0}  (least {:.0})", times[ROUNDS / 2], times[0]);
    }
    recovery(&pool, set);
}

fn recovery(pool: &Pool, set: std::sync::Arc<PersistentSet>) {
    drop(set);
    for threads in [1, 2, 4] {
        let start = Instant::now();
        let options = SetOptions::default().recovery_threads(threads);
        let set = PersistentSet::open_with(pool, "set", &options).unwrap();
        println!("recovery, {threads} thread(s): {:.1?}", start.elapsed());
        drop(set);
    }
}
