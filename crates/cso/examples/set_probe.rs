//! Times the set's operations: `set_probe <keys> <threads> [overlap|plain]`, in a pool on `/dev/shm`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use durix_cso::set::{PersistentSet, SetOptions};
use durix_pmem::PoolOptions;

fn mix(i: u64) -> u64 {
    let mut z = i.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let keys: u64 = args.get(1).map_or(1 << 20, |a| a.parse().unwrap());
    let threads: u64 = args.get(2).map_or(1, |a| a.parse().unwrap());
    let overlap = args.get(3).is_none_or(|a| a != "plain");
    let value_len: usize = args.get(4).map_or(8, |a| a.parse().unwrap());
    let ops = 2_000_000u64;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = PoolOptions::new().assume_pmem(true).open_or_create(dir.path().join("p")).unwrap();
    let options = SetOptions::default().overlap(overlap);
    let set = PersistentSet::open_with(&pool, "set", &options).unwrap();
    let value = vec![7u8; value_len];
    let run = |name: &str, count: u64, f: &(dyn Fn(&durix_pmem::Op<'_>, u64, &mut Vec<u8>) + Sync)| {
        let start = Instant::now();
        let next = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| {
                    let mut session = pool.session().unwrap();
                    let mut out = Vec::new();
                    let me = next.fetch_add(1, Relaxed);
                    for i in 0..count / threads {
                        let op = session.enter().unwrap();
                        f(&op, me * (count / threads) + i, &mut out);
                    }
                });
            }
        });
        let ns = start.elapsed().as_nanos() as f64 / count as f64;
        println!("{name:>14}: {ns:7.1} ns/op  {:6.2} M/s", 1e3 / ns);
    };
    run("insert new", keys, &|op, i, _| assert!(set.insert(op, &mix(i).to_le_bytes(), &value).unwrap()));
    for _ in 0..2 {
        run("update", ops, &|op, i, _| assert!(!set.insert(op, &mix(mix(i) % keys).to_le_bytes(), &value).unwrap()));
        run("get", ops, &|op, i, out| assert!(set.get(op, &mix(mix(i) % keys).to_le_bytes(), out).unwrap()));
        run("miss", ops, &|op, i, out| assert!(!set.get(op, &mix(keys + i).to_le_bytes(), out).unwrap()));
        run("50:50", ops, &|op, i, out| {
            let key = mix(mix(i) % keys).to_le_bytes();
            if i % 2 == 0 { set.get(op, &key, out).unwrap() } else { set.insert(op, &key, &value).unwrap() };
        });
        run("remove/insert", ops, &|op, i, _| {
            let key = mix(mix(i / 2) % keys).to_le_bytes();
            if i % 2 == 0 { set.remove(op, &key).unwrap() } else { set.insert(op, &key, &value).unwrap() };
        });
    }
    {
        let mut session = pool.session().unwrap();
        println!("{:?}", set.stats(&session.enter().unwrap()));
    }
    drop(set);
    for t in [1, 2] {
        let start = Instant::now();
        let set = PersistentSet::open_with(&pool, "set", &options.clone().recovery_threads(t)).unwrap();
        println!("recovery, {t} thread(s): {:?}", start.elapsed());
        drop(set);
    }
}
