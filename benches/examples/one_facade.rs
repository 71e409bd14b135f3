//! One way to a tree and one kind of call, and nothing else: for profilers and for counting instructions.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*Access*get*' \
//!     target/release/examples/one_facade handle get 8 20000 20000
//! ```
//!
//! Ways: `bare`, the tree itself, 64 calls in an operation; `handle`, the facade over the same tree. Calls: `get`, `insert`, `scan` (of
//! 10). Then the bytes of a value, 8 or 100, the number of keys and of calls.

use durix_bench::paper::facade_cost::alone;
use durix_bench::place::Place;

const USAGE: &str = "usage: one_facade bare|handle get|insert|scan 8|100 KEYS CALLS";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [way, call, bytes, keys, calls] = &args[..] else { return Err(USAGE.into()) };
    let (place, what, keys, calls) = (Place::from_env(), (way.as_str(), call.as_str()), keys.parse()?, calls.parse()?);
    let took = match bytes.as_str() {
        "8" => alone::<8>(&place, what, keys, calls)?,
        "100" => alone::<100>(&place, what, keys, calls)?,
        _ => None,
    };
    println!("{way} {call}: {:.1} ns a call", took.ok_or(USAGE)?);
    Ok(())
}
