//! What writing back the lines of an epoch takes, by one thread and by two: whether a boundary should share its work.
//!
//! ```text
//! cargo run --release -p durix-bench --example write_back -- [lines] [rounds]
//! ```
//!
//! Lines are scattered over anonymous memory of a thousand bytes a line, in pages of 4 KiB; before each round all are stored to.

use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use durix_pmem::{Hardware, Mapping, Off, Reserve, Session, Word};

fn shuffled(lines: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..lines).map(|i| i * 1024).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..all.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        all.swap(i, (random % (i as u64 + 1)) as usize);
    }
    all
}

/// Stores to lines, then writes them back and fences, as all threads do at once; nanoseconds of the second part. The line `ahead`
/// places further on in the list is asked for before.
fn round(session: &mut Session<Hardware>, lines: &[u64], ahead: usize, all: &Barrier) -> f64 {
    let op = session.enter().expect("a session");
    for off in lines {
        let word: &Word = op.at(Off::new(*off));
        op.store(word, op.load(word, Relaxed) + 1, Relaxed);
    }
    all.wait();
    let start = Instant::now();
    for (place, off) in lines.iter().enumerate() {
        if ahead > 0
            && let Some(next) = lines.get(place + ahead)
        {
            op.prefetch(Off::<Word>::new(*next));
        }
        op.write_back(op.at(Off::<Word>::new(*off)));
    }
    op.fence();
    all.wait();
    start.elapsed().as_nanos() as f64
}

fn by((threads, ahead): (usize, usize), mapping: &Mapping<Hardware>, lines: &[u64]) -> f64 {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> = lines
            .chunks(lines.len().div_ceil(threads))
            .map(|part| scope.spawn(|| round(&mut mapping.session().expect("a session"), part, ahead, &barrier)))
            .collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).fold(0.0, f64::max)
    })
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (lines, rounds) = (args.next().unwrap_or(150_000), args.next().unwrap_or(41));
    let len = (lines * 1024).next_power_of_two();
    let reserve = Reserve::pages(len, len).expect("addresses");
    let medium = Hardware::write_back_instruction().unwrap_or(Hardware::PAGE_CACHE);
    let mapping = Mapping::new(reserve, len, medium, false).expect("a mapping");
    let offsets = shuffled(lines);
    let ways = [(1, 0), (2, 0), (1, 8), (1, 32)];
    let mut times = ways.map(|_| Vec::new());
    for _ in 0..rounds {
        ways.iter().zip(&mut times).for_each(|(way, times)| times.push(by(*way, &mapping, &offsets)));
    }
    println!("{lines} lines, {medium:?}, medians of {rounds} rounds");
    for ((threads, ahead), mut times) in ways.into_iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let time = times[times.len() / 2];
        let a_line = time / lines as f64;
        println!("{threads} thread(s), asking {ahead} ahead: {:6.2} ms, {a_line:.1} ns a line", time / 1e6);
    }
}
