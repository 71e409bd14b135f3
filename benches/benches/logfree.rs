//! `cargo bench -p durix-bench --bench logfree`: the log-free hash tables beside their comparators, one table taken
//! interleaved. See `docs/design/logfree.md`.

use durix_bench::logfree;
use durix_bench::run::Run;

fn main() {
    let run = Run::this();
    if run.wants("logfree")
        && let Err(refused) = logfree::report::report(run.quick)
    {
        eprintln!("{refused}");
        std::process::exit(1);
    }
}
