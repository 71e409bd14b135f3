//! `bench`: the workloads of YCSB on one index, and the new-order transaction of TPC-C.
//!
//! Timing runs on the medium of the machine; write-backs and fences are counted exactly in a short run of their own, on a
//! counting medium, so that counting does not slow the timed one.

mod keys;
mod neworder;
mod svg;
mod workload;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix::{Db, Direction, Durability, Hardware, Index, KeyRange, Medium, Pool, PoolOptions};
use durix_pmem::backing::{Backing, BackingKind, FileBacking};
use durix_pmem::epoch::EpochStats;
use durix_pmem::{Counting, Counts};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::args::{BenchArgs, Distribution, Workload};
use crate::failure::{Code, Failure};
use crate::output::{self, table};
use crate::torture::default_dir;
use workload::{Request, Requests, key};

/// Operations of the counting run.
const COUNTED: u64 = 20_000;
/// Keys that are put in for it, at most.
const COUNTED_KEYS: u64 = 100_000;

/// Kinds of requests, for the report.
const NAMES: [&str; 5] = ["read", "update", "insert", "scan", "read-modify-write"];

/// Latencies in nanoseconds, by kind of request.
type Latencies = Vec<Histogram<u64>>;

pub fn run(args: &BenchArgs) -> Result<Code, Failure> {
    if let Some(path) = &args.keys_from {
        return keys::run(args, path);
    }
    let kind = durix::kind::named::<Hardware>(&args.kind)?;
    if args.workload == Workload::TpccNeworder {
        return neworder::run(args, &kind);
    }
    if args.workload == Workload::E && !kind.ordered {
        return Err(Failure::usage(format!("workload E scans ranges, and {} keeps no order of keys", args.kind)));
    }
    if !kind.limits.value.allow(args.value_bytes as usize) {
        return Err(Failure::usage(format!("{} does not take values of {} bytes", args.kind, args.value_bytes)));
    }
    if keys_of(args, &kind) > kind.meant_for {
        let what = format!("{} is meant for {} keys at most; set --keys to that or less", args.kind, kind.meant_for);
        return Err(Failure::usage(what));
    }
    let folder = args.dir.clone().unwrap_or_else(default_dir);
    let dir = tempfile::Builder::new().prefix("durix-bench-").tempdir_in(&folder);
    let dir = dir.map_err(Failure::io(format!("making a folder in {}", folder.display())))?;
    let keys = keys_of(args, &kind);
    let counts = counted(args, keys, &dir.path().join("counted"))?;
    let pool = create(args, &dir.path().join("pool"))?;
    let index = kind.open_or_create(&pool, "bench")?;
    let buffered = kind.durability != Durability::Strict;
    // Its threads take checkpoints, where the kind or a journal needs them, until it is dropped.
    let checkpoints = Db::builder().checkpoint_every(Duration::from_millis(args.checkpoint_ms));
    let _db = (buffered || pool.level().is_some()).then(|| checkpoints.over(pool.clone())).transpose()?;
    let filled = fill(&pool, &*index, keys, args)?;
    let (took, latencies) = measure(&pool, &index, keys, args)?;
    let epochs = buffered.then(|| Ok::<_, Failure>(pool.epochs()?.stats())).transpose()?;
    let result = BenchResult { args, keys, pool: &pool, filled, took, latencies, counts, epochs };
    if args.json {
        output::json(&result.as_json())?
    } else {
        output::line(&result.as_text())?
    };
    Ok(Code::Done)
}

/// How many keys there are to be.
fn keys_of(args: &BenchArgs, kind: &Entry) -> u64 {
    args.keys.unwrap_or(kind.meant_for.min(1_000_000))
}

fn options(args: &BenchArgs) -> PoolOptions {
    PoolOptions::new().assume_pmem(!args.page_cache).durability(args.durability)
}

fn create(args: &BenchArgs, path: &Path) -> Result<Pool, Failure> {
    Ok(options(args).create(path)?)
}

fn distribution(args: &BenchArgs) -> Distribution {
    let usual = if args.workload == Workload::D { Distribution::Latest } else { Distribution::Zipfian };
    args.distribution.unwrap_or(usual)
}

fn requests(args: &BenchArgs, keys: u64, thread: u64, threads: u64) -> Requests {
    Requests::new(args.workload, distribution(args), keys, thread, threads, args.seed)
}

/// Puts the first keys in, by all threads; returns how long that took.
fn fill<M: Medium>(pool: &Pool<M>, index: &dyn Index<M>, keys: u64, args: &BenchArgs) -> Result<Duration, Failure> {
    let value = vec![b'v'; args.value_bytes as usize];
    let start = Instant::now();
    on_threads(args.threads, |thread| {
        let mut session = pool.session()?;
        for number in (thread..keys).step_by(args.threads as usize) {
            index.insert(&session.enter()?, &key(number), &value)?;
        }
        index.sync(&mut session)?;
        Ok(pool.commit(&mut session)?)
    })?;
    Ok(start.elapsed())
}

fn on_threads<R: Send>(threads: u64, work: impl Fn(u64) -> Result<R, Failure> + Sync) -> Result<Vec<R>, Failure> {
    std::thread::scope(|scope| {
        let work = &work;
        let spawned: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        spawned
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs the workload; returns how long it took, and all latencies.
fn measure(pool: &Pool, index: &Arc<dyn Index>, keys: u64, args: &BenchArgs) -> Result<(Duration, Latencies), Failure> {
    let go = AtomicBool::new(false);
    let start = std::sync::Mutex::new(None);
    let barrier = std::sync::Barrier::new(args.threads as usize);
    let of_threads = on_threads(args.threads, |thread| {
        let mut worker = Worker::new(pool, &**index, args)?;
        let mut requests = requests(args, keys, thread, args.threads);
        let mut latencies = new_latencies();
        if barrier.wait().is_leader() {
            *start.lock().unwrap_or_else(|e| e.into_inner()) = Some(Instant::now());
            go.store(true, Ordering::Release);
        }
        while !go.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let own = args.ops / args.threads + u64::from(thread < args.ops % args.threads);
        let mut before = Instant::now();
        for _ in 0..own {
            let at = worker.run(requests.next())?;
            let now = Instant::now();
            latencies[at].saturating_record((now - before).as_nanos() as u64);
            before = now;
        }
        Ok((latencies, Instant::now()))
    })?;
    let start = start.into_inner().unwrap_or_else(|e| e.into_inner());
    let mut all = new_latencies();
    let mut last = start;
    for (latencies, end) in of_threads {
        for (sum, part) in all.iter_mut().zip(&latencies) {
            sum.add(part).map_err(|e| Failure::usage(e.to_string()))?;
        }
        last = last.max(Some(end));
    }
    let took = start.zip(last).map_or(Duration::ZERO, |(start, last)| last - start);
    Ok((took, all))
}

fn new_latencies() -> Latencies {
    (0..NAMES.len()).map(|_| Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that fit")).collect()
}

/// A thread at work.
struct Worker<'a, M: Medium> {
    pool: &'a Pool<M>,
    index: &'a dyn Index<M>,
    session: durix::Session<M>,
    found: Vec<u8>,
    value: Vec<u8>,
}

impl<'a, M: Medium> Worker<'a, M> {
    fn new(pool: &'a Pool<M>, index: &'a dyn Index<M>, args: &BenchArgs) -> Result<Self, Failure> {
        let value = vec![b'w'; args.value_bytes as usize];
        Ok(Worker { pool, index, session: pool.session()?, found: Vec::new(), value })
    }

    /// Does what is requested, and waits as long as the pool's level asks for; returns the number of its kind.
    fn run(&mut self, request: Request) -> Result<usize, Failure> {
        let writes = !matches!(request, Request::Read(_) | Request::Scan(..));
        let at = self.run_in_operation(request)?;
        if writes {
            self.pool.settle(&mut self.session)?;
        }
        Ok(at)
    }

    fn run_in_operation(&mut self, request: Request) -> Result<usize, Failure> {
        let op = self.session.enter()?;
        if !matches!(request, Request::Read(_) | Request::Scan(..)) {
            op.note_commit();
        }
        Ok(match request {
            Request::Read(number) => {
                self.index.get(&op, &key(number), &mut self.found)?;
                0
            }
            Request::Update(number) => {
                self.index.insert(&op, &key(number), &self.value)?;
                1
            }
            Request::Insert(number) => {
                self.index.insert(&op, &key(number), &self.value)?;
                2
            }
            Request::Scan(number, count) => {
                let ordered = self.index.as_ordered().ok_or_else(|| Failure::usage("the index keeps no order"))?;
                let from = KeyRange::new(std::ops::Bound::Included(&key(number)), std::ops::Bound::Unbounded);
                let mut cursor = ordered.range(&from, Direction::Forward);
                for _ in 0..count {
                    let Some((_, value)) = cursor.next(&op)? else { break };
                    self.found.clear();
                    self.found.extend_from_slice(value);
                }
                3
            }
            Request::ReadModifyWrite(number) => {
                self.index.get(&op, &key(number), &mut self.found)?;
                if let Some(first) = self.found.first_mut() {
                    *first = first.wrapping_add(1);
                }
                self.index.insert(&op, &key(number), &self.found)?;
                4
            }
        })
    }
}

/// The medium that a pool on this backing has.
fn medium_of(args: &BenchArgs, backing: &FileBacking) -> Result<Hardware, Failure> {
    let pmem = backing.kind() == BackingKind::Dax || !args.page_cache;
    Ok(if pmem { Hardware::for_pmem().ok_or(durix_pmem::Error::NoWriteBack)? } else { Hardware::PAGE_CACHE })
}

/// A pool on a medium that counts.
fn create_counting(args: &BenchArgs, path: &Path) -> Result<(Pool<Counting<Hardware>>, Counting<Hardware>), Failure> {
    let backing = FileBacking::create(path)?;
    let counting = Counting::new(medium_of(args, &backing)?);
    Ok((options(args).create_on(backing, counting)?, counting))
}

/// Exact counts of one thread's requests on a smaller index.
fn counted(args: &BenchArgs, keys: u64, path: &Path) -> Result<Counts, Failure> {
    let (pool, counting) = create_counting(args, path)?;
    let index = durix::kind::named(&args.kind)?.open_or_create(&pool, "bench")?;
    let keys = keys.min(COUNTED_KEYS);
    fill(&pool, &*index, keys, args)?;
    let mut worker = Worker::new(&pool, &*index, args)?;
    let mut requests = requests(args, keys, 0, 1);
    let before = counting.counts();
    for _ in 0..COUNTED {
        worker.run(requests.next())?;
    }
    index.sync(&mut worker.session)?;
    let counts = counting.counts() - before;
    drop(worker);
    drop((index, pool));
    let _ = std::fs::remove_file(path);
    Ok(counts)
}

struct BenchResult<'a> {
    args: &'a BenchArgs,
    keys: u64,
    pool: &'a Pool,
    filled: Duration,
    took: Duration,
    latencies: Latencies,
    counts: Counts,
    /// Where the kind is buffered.
    epochs: Option<EpochStats>,
}

const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

impl BenchResult<'_> {
    fn a_second(&self) -> f64 {
        self.args.ops as f64 / self.took.as_secs_f64()
    }

    fn an_op(count: u64) -> f64 {
        count as f64 / COUNTED as f64
    }

    fn titles(&self) -> (String, String) {
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map_or_else(String::new, |v| v.get_name().into());
        use clap::ValueEnum;
        (name(self.args.workload.to_possible_value()), name(distribution(self.args).to_possible_value()))
    }

    fn as_text(&self) -> String {
        let BenchArgs { kind, ops, threads, value_bytes, .. } = self.args;
        let (keys, (workload, distribution)) = (self.keys, self.titles());
        let mut text = format!(
            "{kind}, workload {}, {distribution}: {keys} keys, {value_bytes} bytes a value, {ops} operations, {}\n\
             medium      {}\n\
             filled      {:.0} inserts/s\n\
             throughput  {:.0} operations/s\n\
             an operation: {:.3} write-backs, {:.3} fences, {:.3} stores ({COUNTED} operations counted, one thread)\n",
            workload.to_uppercase(),
            output::counted(*threads, "thread"),
            self.pool.mapping().medium().describe(),
            keys as f64 / self.filled.as_secs_f64(),
            self.a_second(),
            Self::an_op(self.counts.write_backs),
            Self::an_op(self.counts.fences),
            Self::an_op(self.counts.stores),
        );
        if let Some(epochs) = self.epochs {
            text.push_str(&format!(
                "checkpoints {}, one in {} ms; the longest kept operations out for {:.2} ms, with {:.0} lines on average\n",
                epochs.boundaries,
                self.args.checkpoint_ms,
                epochs.longest_pause as f64 / 1e6,
                epochs.lines as f64 / epochs.boundaries.max(1) as f64,
            ));
        }
        text.push('\n');
        let row = |(name, histogram): (&&str, &Histogram<u64>)| {
            let percentiles = PERCENTILES.iter().map(|p| histogram.value_at_percentile(*p).to_string());
            let mut row = vec![(*name).to_owned(), histogram.len().to_string(), format!("{:.0}", histogram.mean())];
            row.extend(percentiles);
            row.push(histogram.max().to_string());
            row
        };
        let rows = NAMES.iter().zip(&self.latencies).filter(|(_, histogram)| !histogram.is_empty()).map(row).collect();
        let header = ["ns", "count", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
        text.push_str(&table(&header, rows, &[1, 2, 3, 4, 5, 6, 7, 8]));
        text
    }

    fn as_json(&self) -> serde_json::Value {
        let BenchArgs { kind, ops, threads, value_bytes, seed, .. } = self.args;
        let (keys, (workload, distribution)) = (self.keys, self.titles());
        let latency = |histogram: &Histogram<u64>| {
            let mut value = json!({ "count": histogram.len(), "mean": histogram.mean(), "max": histogram.max() });
            for p in PERCENTILES {
                value[format!("p{p}")] = json!(histogram.value_at_percentile(p));
            }
            value
        };
        let latencies: serde_json::Map<_, _> = NAMES
            .iter()
            .zip(&self.latencies)
            .filter(|(_, histogram)| !histogram.is_empty())
            .map(|(name, histogram)| ((*name).to_owned(), latency(histogram)))
            .collect();
        let checkpoints = self.epochs.map(|epochs| {
            let pause = epochs.longest_pause;
            json!({ "count": epochs.boundaries, "every_ms": self.args.checkpoint_ms, "lines": epochs.lines, "longest_pause_ns": pause })
        });
        json!({
            "kind": kind, "workload": workload, "distribution": distribution, "keys": keys, "ops": ops,
            "threads": threads, "value_bytes": value_bytes, "seed": seed,
            "medium": self.pool.mapping().medium().describe(),
            "fill_inserts_per_second": keys as f64 / self.filled.as_secs_f64(),
            "ops_per_second": self.a_second(),
            "write_backs_per_op": Self::an_op(self.counts.write_backs),
            "fences_per_op": Self::an_op(self.counts.fences),
            "stores_per_op": Self::an_op(self.counts.stores),
            "checkpoints": checkpoints,
            "latency_ns": latencies,
        })
    }
}
