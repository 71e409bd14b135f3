//! `cargo bench -p durix-bench -- cso_append`: criterion's figure for each log and entry size, then one table of all of
//! them, taken interleaved. See `docs/measurements/README.md`.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode};
use durix_bench::cso_append::{self, BATCH, LogRounds, medium, region_in};
use durix_bench::logs::{AppendLog, EntrySize, Region, SIZES, Visitor, visit_logs};
use durix_bench::place::Place;
use durix_bench::run::Run;
use durix_bench::with_size;
use durix_pmem::{Hardware, Mapping};

struct Bench<'a> {
    group: criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>,
    size: EntrySize,
    place: &'a Place,
    region: u64,
}

impl<const W: usize> Visitor<Hardware, W> for Bench<'_> {
    fn visit<L: AppendLog<Hardware, W> + 'static>(&mut self) {
        let id = BenchmarkId::new(L::NAME, self.size.name.replace('/', "_").replace(' ', "-"));
        let region = Region { off: 4096, len: self.region };
        self.group.bench_function(id, |bencher| {
            let mapping: Mapping<Hardware> =
                self.place.map(4096 + self.region, medium()).unwrap_or_else(|refused| panic!("{refused}"));
            match LogRounds::<_, L, W>::new(&mapping, region) {
                Ok(mut rounds) => bencher.iter_custom(|iterations| appends(&mut rounds, iterations)),
                Err(error) => eprintln!("{} is left out: {error}", L::NAME),
            }
        });
    }
}

/// The time of so many appends; entries are discarded after each batch, untimed. Batches are whole, the time is in
/// proportion.
fn appends<L: AppendLog<Hardware, W>, const W: usize>(rounds: &mut LogRounds<Hardware, L, W>, count: u64) -> Duration {
    let batches = count.div_ceil(BATCH as u64);
    let mut time = Duration::ZERO;
    for _ in 0..batches {
        let start = Instant::now();
        rounds.append_batch();
        time += start.elapsed();
        rounds.consume();
    }
    time.mul_f64(count as f64 / (batches * BATCH as u64) as f64)
}

fn bench_size<const W: usize>(criterion: &mut Criterion, size: EntrySize, place: &Place, region: u64) {
    let mut group = criterion.benchmark_group("cso_append");
    group.sampling_mode(SamplingMode::Flat);
    visit_logs::<Hardware, W>(&mut Bench { group, size, place, region });
}

fn main() {
    let run = Run::this();
    let place = Place::from_env();
    let region = region_in(&place, run.quick);
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .without_plots()
        .configure_from_args();
    for size in SIZES {
        with_size!(size, bench_size(&mut criterion, size, &place, region));
    }
    criterion.final_summary();
    if run.wants("cso_append")
        && let Err(refused) = cso_append::report(run.quick)
    {
        eprintln!("{refused}");
        std::process::exit(1);
    }
}
