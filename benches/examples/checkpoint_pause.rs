//! How long boundaries keep operations out, on a tree that another thread writes to: all write-backs inside the boundary, ahead
//! of it, and in rounds while the epoch runs.
//!
//! `cargo run --release -p durix-bench --example checkpoint_pause -- [KEYS] [BOUNDARIES A MODE]`; the modes take turns.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix_bench::workload::key;
use durix_incll::{BareOptions, Masstree};
use durix_pmem::{Hardware, Mapping, Session};

const INTERVAL: Duration = Duration::from_millis(64);
const MODES: [&str; 3] = ["inside", "ahead", "rounds"];
/// Boundaries of a mode before the next takes its turn.
const TURN: usize = 10;

/// What a mode has shown.
#[derive(Default)]
struct Shown {
    /// Nanoseconds a boundary.
    pauses: Vec<u64>,
    /// Lines inside, and ahead.
    lines: [u64; 2],
    puts: u64,
    /// The longest operations of the turns, in nanoseconds.
    longest: Vec<u64>,
}

/// Puts random keys until told to stop, counting, and noting the longest operation.
fn put(
    tree: &Masstree,
    session: &mut Session,
    keys: u64,
    thread: u64,
    [puts, longest]: [&AtomicU64; 2],
    stop: &AtomicBool,
) {
    let mut state = thread + 1;
    while !stop.load(Ordering::Relaxed) {
        state = key(state);
        let start = Instant::now();
        let key = key(state % keys).to_be_bytes();
        tree.insert(&session.enter().expect("a session"), &key, &state.to_le_bytes()).expect("room");
        longest.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        puts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits for the end of the epoch and crosses the boundary.
fn boundary(tree: &Masstree, session: &mut Session, mode: usize) {
    let step = if mode == 2 { INTERVAL / 16 } else { INTERVAL };
    for _ in 0..INTERVAL.as_nanos() / step.as_nanos() {
        std::thread::sleep(step);
        if mode > 0 {
            tree.epochs().write_ahead(session).expect("an open mapping");
        }
    }
    tree.epochs().sync(session).expect("operations that end");
}

fn main() {
    let number = |n: usize, default| std::env::args().nth(n).map_or(default, |a| a.parse().expect("a number"));
    let (keys, boundaries) = (number(1, 1_000_000u64), number(2, 100u64) as usize);
    let medium = Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap((keys as usize * 80).next_multiple_of(1 << 21) + (64 << 20), medium);
    let mut session = mapping.session().expect("a slot");
    let tree = Masstree::open_bare(&mut session, &mapping, BareOptions::default()).expect("an empty mapping");
    for n in 0..keys {
        tree.insert(&session.enter().expect("a session"), &key(n).to_be_bytes(), &[0; 8]).expect("room");
    }
    tree.sync(&mut session).expect("nobody works");
    let (stop, puts, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut shown = MODES.map(|_| Shown::default());
    std::thread::scope(|s| {
        let mut writer = mapping.session().expect("a slot");
        let (tree, puts, longest, stop) = (&tree, &puts, &longest, &stop);
        s.spawn(move || put(tree, &mut writer, keys, 0, [puts, longest], stop));
        for turn in 0..boundaries / TURN * MODES.len() {
            let mode = turn % MODES.len();
            boundary(tree, &mut session, mode);
            let (before, puts_before) = (tree.epochs().stats(), puts.load(Ordering::Relaxed));
            longest.store(0, Ordering::Relaxed);
            let shown = &mut shown[mode];
            for _ in 0..TURN {
                boundary(tree, &mut session, mode);
                shown.pauses.push(tree.epochs().stats().last_pause);
            }
            let after = tree.epochs().stats();
            shown.lines[0] += after.lines - before.lines;
            shown.lines[1] += after.ahead - before.ahead;
            shown.puts += puts.load(Ordering::Relaxed) - puts_before;
            shown.longest.push(longest.load(Ordering::Relaxed));
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{keys} keys, {medium:?}; microseconds of a boundary with operations kept out");
    println!(
        "mode      p50     p99    p99.9  longest   lines inside / ahead, a boundary   puts a boundary  longest put (median)"
    );
    for (mode, shown) in MODES.iter().zip(&mut shown) {
        shown.pauses.sort_unstable();
        shown.longest.sort_unstable();
        let n = shown.pauses.len();
        let at = |q: f64| shown.pauses[((n as f64 * q) as usize).min(n - 1)] as f64 / 1e3;
        let [inside, ahead] = shown.lines.map(|lines| lines / n as u64);
        println!(
            "{mode:7} {:6.1} {:7.1} {:8.1} {:8.1}   {inside:8} / {ahead:8} {:22} {:14.1}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            shown.puts / n as u64,
            shown.longest[shown.longest.len() / 2] as f64 / 1e3,
        );
    }
}
