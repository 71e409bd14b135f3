//! What a call from any thread costs beside one of a handle, and beside one on the bare index in an operation of one's own.
//!
//! ```text
//! cargo run --release --example sessions [-- --calls N]
//! ```
//!
//! A [`durix::Map`] borrows a cached session for every call, a [`durix::Handle`] has its own, and the vocabulary of bytes takes the
//! caller's operation. All three do the same to the same index, in turns, in memory; medians of the turns.

use std::error::Error;
use std::time::Instant;

use durix::kind::kinds;
use durix::{Db, Hardware, Map, PoolOptions};
use durix_pmem::backing::HeapBacking;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Keys in each index; few, so that the calls themselves weigh most.
const KEYS: u64 = 500;
const TURNS: usize = 9;

fn main() -> Result<()> {
    let calls = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => 100_000,
        [flag, calls] if flag == "--calls" => calls.parse()?,
        other => return Err(format!("unknown arguments {other:?}; usage: sessions [--calls N]").into()),
    };
    println!("nanoseconds a call, median of {TURNS} turns of {calls} calls\n");
    println!("{:<12}{:<10}{:>10}{:>10}{:>10}", "kind", "call", "map", "handle", "index");
    for entry in kinds::<Hardware>().into_iter().filter(|entry| entry.name != "list") {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE)?;
        let db = Db::over(pool);
        let map: Map<u64, u64> = db.map_of_kind("tried", entry.name)?;
        (0..KEYS).try_for_each(|key| map.insert(&key, &key).map(drop))?;
        for (name, write) in [("get", false), ("insert", true)] {
            let [of_map, of_handle, of_index] = medians(&db, &map, calls, write)?;
            println!("{:<12}{name:<10}{of_map:>10.1}{of_handle:>10.1}{of_index:>10.1}", entry.name);
        }
    }
    Ok(())
}

/// The three ways in turns.
fn medians(db: &Db, map: &Map<u64, u64>, calls: u64, write: bool) -> Result<[f64; 3]> {
    let mut handle = map.handle()?;
    let (mut session, index, mut value) = (db.pool().session()?, map.index(), Vec::new());
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        times[0].push(time(
            calls,
            |key| {
                if write { map.insert(&key, &key).map(drop) } else { map.get(&key).map(drop) }
            },
        )?);
        times[1].push(time(calls, |key| {
            if write { handle.insert(&key, &key).map(drop) } else { handle.get(&key).map(drop) }
        })?);
        times[2].push(time(calls, |key| {
            let (op, bytes) = (session.enter()?, key.to_be_bytes());
            if write {
                index.insert(&op, &bytes, &bytes).map(drop)
            } else {
                index.get(&op, &bytes, &mut value).map(drop)
            }
        })?);
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[TURNS / 2]
    }))
}

/// Nanoseconds a call.
fn time(calls: u64, mut call: impl FnMut(u64) -> durix::Result<()>) -> Result<f64> {
    let start = Instant::now();
    for number in 0..calls {
        call(number.wrapping_mul(7919) % KEYS)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / calls as f64)
}
