//! Commits with a sync for each: journaled databases of Durix beside redb, LMDB, fjall, SQLite and RocksDB.
//!
//! ```text
//! durix-journal-peers [--quick] [NAME…]     all stores, or some: pset, hash-bytes, masstree, redb, lmdb, fjall, sqlite, rocksdb
//! durix-journal-peers --records [--quick]   another comparison, see `records`; `paper rewind-peers` reads what it prints
//! ```
//!
//! Twice: in `DURIX_DIR` (default `/dev/shm`), where each sync of everybody takes the same fixed time, and in the temporary directory,
//! with its real syncs. All stores take turns, in rounds; each round begins with empty stores, and with the floor: overwriting 4 KiB
//! of a file and a sync, by one thread. Then the bytes that updates at intervals write. `docs/measurements/README.md` says how to read it.

mod ours;
mod peers;
mod records;
mod rocksdb;
mod store;
mod syncs;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use store::{Contestant, EVERY, Error, Store, VALUE, When, key, value};
use tempfile::TempDir;

/// What a sync takes where it takes a fixed time: about that of an SSD.
const FIXED: Duration = Duration::from_micros(140);
const THREADS: [u64; 3] = [1, 8, 64];
/// Updates of a transaction.
const UPDATES: usize = 10;
/// Keys that transactions update, by all threads together.
const KEYS: u64 = 4096;
const BLOCK: usize = 4096;

struct Plan {
    rounds: usize,
    time: Duration,
    /// Keys, and updates of random ones, for what is written at intervals.
    interval: (u64, u64),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("journal-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Error> {
    let (options, names): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| arg.starts_with('-'));
    if let Some(unknown) = options.iter().find(|option| !["--quick", "--records"].contains(&option.as_str())) {
        return Err(format!("there is no option {unknown}; there are --quick and --records").into());
    }
    let has = |name: &str| options.iter().any(|option| *option == name);
    let quick = has("--quick");
    if has("--records") {
        if let Some(name) = names.first() {
            return Err(format!("--records takes no names of stores, found {name}").into());
        }
        return records::run(quick);
    }
    let all: Vec<Contestant> = ours::OURS.into_iter().chain(peers::PEERS).chain([rocksdb::ROCKSDB]).collect();
    let is = |contestant: &Contestant, name: &str| contestant.name.eq_ignore_ascii_case(name);
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|c| is(c, name))) {
        let known: Vec<&str> = all.iter().map(|c| c.name).collect();
        return Err(format!("there is no store {unknown}; there are {}", known.join(", ")).into());
    }
    let mut chosen: Vec<Contestant> =
        all.into_iter().filter(|c| names.is_empty() || names.iter().any(|name| is(c, name))).collect();
    if !rocksdb::is_there() {
        println!("without RocksDB: there is no librocksdb.so (apt-get install librocksdb7.8)");
        chosen.retain(|c| !is(c, rocksdb::ROCKSDB.name));
    }
    syncs::sleep_exactly();
    let plan = if quick {
        Plan { rounds: 3, time: Duration::from_millis(40), interval: (20_000, 60_000) }
    } else {
        Plan { rounds: 7, time: Duration::from_millis(250), interval: (200_000, 1_000_000) }
    };
    chosen.iter().for_each(|c| println!("{}: {}", c.name, c.setup));
    println!(
        "SQLite {}; {} processors",
        rusqlite::version(),
        std::thread::available_parallelism().map_or(0, usize::from)
    );
    let memory = std::env::var_os("DURIX_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let disk = std::env::temp_dir();
    let rounds = commits(&plan, &chosen, &memory, Some(FIXED))?;
    show(&plan, &chosen, &rounds, &memory, Some(FIXED));
    goals(&chosen, &rounds);
    let rounds = commits(&plan, &chosen, &disk, None)?;
    show(&plan, &chosen, &rounds, &disk, None);
    amplification(&plan, &chosen, &disk)
}

// ---- commits ----

/// What some threads did.
#[derive(Clone, Copy, Debug)]
struct Run {
    commits: u64,
    seconds: f64,
    syncs: u64,
    written: Written,
}

impl Run {
    fn rate(&self) -> f64 {
        self.commits as f64 / self.seconds
    }
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.commits as f64
    }
}

/// Bytes that this process has written, by the kernel's count.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// In calls.
    calls: u64,
    /// In pages that became dirty, through a mapping, too; only where there is a device.
    pages: u64,
}

impl Written {
    fn now() -> Written {
        let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
        };
        Written { calls: number("wchar:"), pages: number("write_bytes:") }
    }
    fn since(self, before: Written) -> Written {
        Written { calls: self.calls - before.calls, pages: self.pages - before.pages }
    }
}

/// A round: the floor, and for each store and number of threads the inserts and the transactions.
struct Round {
    floor: f64,
    stores: Vec<[[Run; 2]; THREADS.len()]>,
}

fn commits(plan: &Plan, chosen: &[Contestant], place: &Path, fixed: Option<Duration>) -> Result<Vec<Round>, Error> {
    (0..plan.rounds)
        .map(|round| {
            let floor = floor(place, fixed, plan.time)?;
            let mut stores = vec![None; chosen.len()];
            // Each round begins with another store.
            for turn in 0..chosen.len() {
                let which = (turn + round) % chosen.len();
                stores[which] = Some(contest(&chosen[which], place, fixed, plan.time)?);
            }
            eprintln!("round {} of {} in {}", round + 1, plan.rounds, place.display());
            Ok(Round { floor, stores: stores.into_iter().flatten().collect() })
        })
        .collect()
}

fn folder(place: &Path) -> Result<TempDir, Error> {
    Ok(tempfile::Builder::new().prefix("durix-peers-").tempdir_in(place)?)
}

/// Overwrites and syncs a second.
fn floor(place: &Path, fixed: Option<Duration>, time: Duration) -> Result<f64, Error> {
    let folder = folder(place)?;
    let file = File::create_new(folder.path().join("floor"))?;
    file.write_all_at(&vec![1; 256 * BLOCK], 0)?;
    syncs::set_fixed(None);
    file.sync_all()?;
    syncs::set_fixed(fixed);
    let (block, start, mut count) = ([3; BLOCK], Instant::now(), 0);
    while start.elapsed() < time {
        file.write_all_at(&block, count % 256 * BLOCK as u64)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn contest(
    contestant: &Contestant,
    place: &Path,
    fixed: Option<Duration>,
    time: Duration,
) -> Result<[[Run; 2]; THREADS.len()], Error> {
    let folder = folder(place)?;
    syncs::set_fixed(fixed);
    let store = (contestant.make)(folder.path(), When::OnReturn)?;
    let mut worker = store.worker();
    let updated: Vec<u64> = (0..KEYS).map(|i| key(1 << 40 | i)).collect();
    updated.chunks(256).for_each(|keys| worker.transaction(keys, 0));
    // Values change with each transaction: a store may leave out a write that changes nothing.
    let (next, turns) = (AtomicU64::new(0), AtomicU64::new(1));
    let mut runs = Vec::new();
    for threads in THREADS {
        let inserts =
            together(&*store, threads, time, &|worker, _, _| worker.insert(key(next.fetch_add(1, Ordering::Relaxed))));
        // The keys of threads differ, and so do those of a transaction.
        let transactions = together(&*store, threads, time, &|worker, thread, count| {
            let own = KEYS / threads;
            let keys =
                (0..UPDATES as u64).map(|i| (key(count) % own + i * (own / UPDATES as u64)) % own * threads + thread);
            let keys: Vec<u64> = keys.map(|i| updated[i as usize]).collect();
            worker.transaction(&keys, turns.fetch_add(1, Ordering::Relaxed));
        });
        runs.push([inserts, transactions]);
    }
    let inserted = next.into_inner();
    for i in (0..inserted).step_by((inserted as usize / 100).max(1)) {
        if worker.get(key(i)).as_deref() != Some(&value(key(i), 0)) {
            return Err(format!("{} has lost key {i} of {inserted}", contestant.name).into());
        }
    }
    // One thread shares its syncs with nobody. Fewer: they do not come by here.
    if let Some(seen) = runs[0].iter().find(|run| run.syncs < run.commits) {
        let Run { commits, syncs, .. } = seen;
        return Err(format!("{}: {commits} commits, and only {syncs} syncs were seen", contestant.name).into());
    }
    drop(worker);
    drop(store);
    Ok(runs.try_into().expect("one for each number of threads"))
}

/// Lets threads commit for a while; `work` is told the thread and the number of its commit.
fn together(
    store: &dyn Store,
    threads: u64,
    time: Duration,
    work: &(dyn Fn(&mut dyn store::Worker, u64, u64) + Sync),
) -> Run {
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let (syncs, written, start) = (syncs::count(), Written::now(), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, commits) = (&stop, &commits);
            scope.spawn(move || {
                let mut worker = store.worker();
                let mut count = 0;
                // Once at least: a busy machine may start a thread late.
                loop {
                    work(&mut *worker, thread, count);
                    count += 1;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                commits.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    Run {
        commits: commits.into_inner(),
        seconds: start.elapsed().as_secs_f64(),
        syncs: syncs::count() - syncs,
        written: Written::now().since(written),
    }
}

// ---- what was found ----

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The median over the rounds of a figure of a store's run; a round's floor goes with it.
fn over(rounds: &[Round], store: usize, threads: usize, work: usize, of: impl Fn(&Run, &Round) -> f64) -> f64 {
    median(rounds.iter().map(|round| of(&round.stores[store][threads][work], round)))
}

fn show(plan: &Plan, chosen: &[Contestant], rounds: &[Round], place: &Path, fixed: Option<Duration>) {
    let syncs = fixed.map_or("those of the file system".into(), |time| format!("{} µs each", time.as_micros()));
    let floor = median(rounds.iter().map(|round| round.floor));
    println!(
        "\n{}; syncs: {syncs}; medians of {} rounds in turn, {} ms each; values of {VALUE} bytes\nfloor, 4 KiB overwritten and a sync by one \
         thread: {floor:.0} a second",
        place.display(),
        plan.rounds,
        plan.time.as_millis()
    );
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let bytes = if fixed.is_some() { "bytes" } else { "bytes in pages" };
    table.set_header([
        "",
        "threads",
        "inserts a second",
        "in floors",
        "syncs an insert",
        &format!("{bytes} an insert"),
        "transactions a second",
        "in floors",
        "syncs each",
        &format!("{bytes} each"),
    ]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for (store, contestant) in chosen.iter().enumerate() {
        for (at, threads) in THREADS.iter().enumerate() {
            let mut row = vec![contestant.name.to_owned(), threads.to_string()];
            for work in 0..2 {
                let of = |f: &dyn Fn(&Run, &Round) -> f64| over(rounds, store, at, work, f);
                // A mapping that is written to shows only where there is a device.
                let written =
                    of(&|run, _| run.each(if fixed.is_some() { run.written.calls } else { run.written.pages }));
                row.extend([
                    format!("{:.0}", of(&|run, _| run.rate())),
                    format!("{:.2}", of(&|run, round| run.rate() / round.floor)),
                    format!("{:.3}", of(&|run, _| run.each(run.syncs))),
                    if written < 1.0 { "mapped".into() } else { format!("{written:.0}") },
                ]);
            }
            table.add_row(row);
        }
    }
    println!("{table}");
}

/// What this project wants to reach, with syncs of a fixed time.
fn goals(chosen: &[Contestant], rounds: &[Round]) {
    let peer = |name: &str| chosen.iter().position(|c| c.name == name);
    let judge = |text: String, ratio: f64, least: f64| {
        println!("{} {text}: {ratio:.2}, goal at least {least}", if ratio >= least { "holds " } else { "MISSED" });
    };
    println!();
    for ours in chosen.iter().filter_map(|c| ours::OURS.iter().find(|o| o.name == c.name)) {
        let (name, store) = (ours.name, peer(ours.name).expect("it was chosen"));
        let rate = |store: usize, at: usize, work: usize, round: &Round| round.stores[store][at][work].rate();
        let over = |of: &dyn Fn(&Round) -> f64| median(rounds.iter().map(of));
        judge(format!("{name}, inserts of one thread in floors"), over(&|r| rate(store, 0, 0, r) / r.floor), 0.95);
        for (other, at, least) in [("redb", 0, 1.5), ("LMDB", 0, 2.0), ("RocksDB", 1, 2.0)] {
            if let Some(other_store) = peer(other) {
                let ratio = over(&|r| rate(store, at, 0, r) / rate(other_store, at, 0, r));
                judge(format!("{name}, inserts of {} thread(s) over {other}", THREADS[at]), ratio, least);
            }
        }
        for (at, least) in [(1, 7.0), (2, 55.0)] {
            let shared = over(&|r| 1.0 / r.stores[store][at][0].each(r.stores[store][at][0].syncs));
            judge(format!("{name}, inserts a sync, {} threads", THREADS[at]), shared, least);
        }
        judge(
            format!("{name}, inserts of 64 threads over one"),
            over(&|r| rate(store, 2, 0, r) / rate(store, 0, 0, r)),
            12.0,
        );
        judge(format!("{name}, transactions of one thread in floors"), over(&|r| rate(store, 0, 1, r) / r.floor), 0.95);
        let others = (0..chosen.len()).filter(|i| ours::OURS.iter().all(|o| o.name != chosen[*i].name));
        let best = |r: &Round| others.clone().map(|i| rate(i, 1, 1, r)).fold(f64::NAN, f64::max);
        let ratio = over(&|r| rate(store, 1, 1, r) / best(r));
        if !ratio.is_nan() {
            judge(format!("{name}, transactions of 8 threads over the best peer"), ratio, 1.4);
        }
    }
}

// ---- bytes written at intervals ----

/// Random updates, durable every 64 ms: bytes written for each byte of keys and values.
fn amplification(plan: &Plan, chosen: &[Contestant], place: &Path) -> Result<(), Error> {
    let (keys, updates) = plan.interval;
    println!(
        "\n{}: {updates} updates of random ones of {keys} keys, durable every {} ms, until the store is closed; for each byte of keys and \
         values",
        place.display(),
        EVERY.as_millis()
    );
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["", "bytes in pages", "bytes in calls", "syncs", "updates a second"]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for contestant in chosen {
        let folder = folder(place)?;
        syncs::set_fixed(None);
        let store = (contestant.make)(folder.path(), When::Every)?;
        let mut filling = (0..keys).map(|i| (key(i), 0)).peekable();
        while filling.peek().is_some() {
            store.updates(&mut filling);
        }
        let (before, syncs, start) = (Written::now(), syncs::count(), Instant::now());
        let mut random = (0..updates).map(|i| (key(key(i) % keys), i)).peekable();
        while random.peek().is_some() {
            store.updates(&mut random);
        }
        let rate = updates as f64 / start.elapsed().as_secs_f64();
        drop(store);
        let (written, syncs) = (Written::now().since(before), syncs::count() - syncs);
        let user = (updates * (8 + VALUE as u64)) as f64;
        let each = |bytes: u64| format!("{:.2}", bytes as f64 / user);
        let calls = if written.calls == 0 { "mapped".into() } else { each(written.calls) };
        table.add_row([contestant.name.into(), each(written.pages), calls, syncs.to_string(), format!("{rate:.0}")]);
        eprintln!("{}: written at intervals", contestant.name);
    }
    println!("{table}");
    Ok(())
}
