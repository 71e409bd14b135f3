//! `cargo bench` in this folder: one table of all stores and maps, with ours in it; `cargo bench -- durable lmdb` for some of
//! its rows. `DURIX_BENCH_QUICK=1` or `-- --test` only shows that everything works; `DURIX_COMPARE_KEYS` and
//! `DURIX_COMPARE_THREADS` change the defaults.

use durix_bench::run::Run;
use durix_compare::harness::{Plan, measure, render};
use durix_compare::peers;

/// For everyone the allocator with which the authors of masstree measure.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let run = Run::this();
    let plan = Plan::new(run.quick);
    let table = peers::select(run.filters()).and_then(|rows| measure(plan, &rows).map_err(|error| error.to_string()));
    match table {
        Ok(rows) => println!("\n{}", render(&plan, &rows)),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
