//! One set, one kind of operation, nothing else: for profilers and for counting instructions.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*SetRounds*run*' \
//!     target/release/examples/one_set stps reads 16384 100000
//! ```
//!
//! Sets: `stps`, `two-rounds` (for threads), `one-thread`. Operations: `reads`, `updates`, `mixed`. Then the number of keys and
//! of operations.

use durix_bench::interleave::Stopwatch;
use durix_bench::place::Place;
use durix_bench::pset::SetRounds;
use durix_bench::sets::Map;
use durix_bench::sets::chained::Chained;
use durix_bench::workload::medium;
use durix_pmem::Hardware;

fn run<S: Map<Hardware>>(mut rounds: SetRounds<Hardware, S>, operations: usize, mix: (u64, u64)) {
    let start = Stopwatch::start();
    rounds.run(operations, mix);
    println!("{}: {:.1} ns an operation", S::NAME, start.elapsed().as_nanos() as f64 / operations as f64);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [set, kind, keys, operations] = &args[..] else {
        return Err("usage: one_set stps|two-rounds|one-thread reads|updates|mixed KEYS OPERATIONS".into());
    };
    let mix = match kind.as_str() {
        "reads" => (1, 1),
        "updates" => (0, 1),
        "mixed" => (1, 2),
        _ => return Err(format!("no operations called {kind}: reads, updates or mixed").into()),
    };
    let (place, keys, operations) = (Place::from_env(), keys.parse()?, operations.parse()?);
    match set.as_str() {
        "stps" => run(SetRounds::ours(&place, medium(), keys, 1)?, operations, mix),
        "two-rounds" => run(SetRounds::<_, Chained<true>>::chained(&place, medium(), keys, 1)?, operations, mix),
        "one-thread" => run(SetRounds::<_, Chained<false>>::chained(&place, medium(), keys, 1)?, operations, mix),
        _ => return Err(format!("no set called {set}: stps, two-rounds or one-thread").into()),
    }
    Ok(())
}
