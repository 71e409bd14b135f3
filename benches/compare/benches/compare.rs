//! `cargo bench` in this folder: one table of all stores and maps, with ours in it, and one of some of them with values of 100 bytes;
//! `cargo bench -- durable lmdb` for some of the rows. `DURIX_BENCH_QUICK=1` or `-- --test` only shows that everything works; `DURIX_COMPARE_KEYS` and
//! `DURIX_COMPARE_THREADS` change the defaults.

use durix_bench::run::Run;
use durix_compare::harness::{goals, measure, render};
use durix_compare::peers;
use durix_compare::peers::value::LONG;
use durix_compare::plan::Plan;

/// For everyone the allocator with which the authors of masstree measure.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let run = Run::this();
    let plan = Plan::new(run.quick);
    if let Err(error) = tables(&run, plan) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// A table for each size of values, and the ratios that there are goals for.
fn tables(run: &Run, plan: Plan) -> Result<(), String> {
    let [words, long] = peers::select(run.filters())?;
    for (value, make) in [(8, words), (LONG, long)].into_iter().filter(|(_, make)| !make.is_empty()) {
        let rows = measure(plan, &make).map_err(|error| error.to_string())?;
        println!("\n{}\n{}", render(&plan, value, &rows), goals(value, &rows));
    }
    Ok(())
}
