//! One log-free set or comparator under the workload of the figures, nothing else: for profilers and for counting instructions.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*Worker*batch*' target/release/examples/one_logfree hash links 1024 1 10
//! ```
//!
//! Shapes: `list`, `hash`, `skiplist`, `bst`. Ways: `links`, `soft`, `redo`, `cso`, `pset`; SOFT, link-free and FliT of the papers:
//! `soft-peer`, `link-free`, `flit`, `flit-hashed`. Then the number of keys, of threads and of rounds. With a percentage of reads behind
//! them, rounds are long. Prints the median of the rounds.

use durix_bench::logfree::make::{Protocol, Shape, What, make};
use durix_bench::logfree::rounds::Mix;
use durix_bench::place::Place;
use durix_bench::workload::medium;

const USAGE: &str = "usage: one_logfree list|hash|skiplist|bst \
    links|soft|redo|cso|pset|soft-peer|link-free|flit|flit-hashed KEYS THREADS ROUNDS [READS]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (shape, way, keys, threads, rounds, mix) = match &args[..] {
        [shape, way, keys, threads, rounds] => (shape, way, keys, threads, rounds, Mix::UPDATES),
        [shape, way, keys, threads, rounds, reads] => {
            let reads = reads.parse().ok().filter(|percent| *percent <= 100);
            (shape, way, keys, threads, rounds, Mix::long(reads.ok_or("READS is a percentage")?))
        }
        _ => return Err(USAGE.into()),
    };
    let shape = match shape.as_str() {
        "list" => Shape::List,
        "hash" => Shape::Hash,
        "skiplist" => Shape::SkipList,
        "bst" => Shape::Bst,
        _ => return Err(format!("no shape called {shape}").into()),
    };
    let way = match way.as_str() {
        "links" => Protocol::Links,
        "soft" => Protocol::Soft,
        "redo" => Protocol::Redo,
        "cso" => Protocol::Cso,
        "pset" => Protocol::Pset,
        "soft-peer" => Protocol::SoftPeer,
        "link-free" => Protocol::LinkFree,
        "flit" => Protocol::Flit,
        "flit-hashed" => Protocol::FlitHashed,
        _ => return Err(format!("no way called {way}").into()),
    };
    let what = What { shape, way, keys: keys.parse()?, threads: threads.parse()?, mix };
    let mut set = make(&Place::from_env(), medium(), what)?.ok_or("there is no such set")?;
    let rounds: usize = rounds.parse()?;
    let mut times: Vec<[f64; 2]> = (0..rounds.max(1)).map(|_| set.round()).collect();
    times.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let [each, update] = times[times.len() / 2];
    println!("{}, {}: {each:.1} ns an operation, {update:.1} ns a successful update", shape.name(), way.name());
    Ok(())
}
