//! `cargo bench -p durix-bench -- pset`: the persistent set beside its comparator; criterion's figures, then one table taken
//! interleaved. See `docs/measurements/README.md`.

use std::time::Duration;

use criterion::{Criterion, SamplingMode};
use durix_bench::place::Place;
use durix_bench::pset::{self, SetRounds, time_mixed};
use durix_bench::run::Run;
use durix_bench::sets::chained::Chained;
use durix_bench::workload::medium;

fn main() {
    let run = Run::this();
    let place = Place::from_env();
    let keys = if run.quick { 1 << 10 } else { 16 << 10 };
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .without_plots()
        .configure_from_args();
    let mut group = criterion.benchmark_group("pset");
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function("STPS/16K-mixed", |bencher| {
        let made = SetRounds::ours(&place, medium(), keys, 1);
        let mut rounds = made.unwrap_or_else(|refused| panic!("{refused}"));
        bencher.iter_custom(|count| time_mixed(&mut rounds, count));
    });
    group.bench_function("TwoRounds/16K-mixed", |bencher| {
        let made = SetRounds::<_, Chained<true>>::chained(&place, medium(), keys, 1);
        let mut rounds = made.unwrap_or_else(|refused| panic!("{refused}"));
        bencher.iter_custom(|count| time_mixed(&mut rounds, count));
    });
    group.finish();
    criterion.final_summary();
    if run.wants("pset")
        && let Err(refused) = pset::report(run.quick)
    {
        eprintln!("{refused}");
        std::process::exit(1);
    }
}
