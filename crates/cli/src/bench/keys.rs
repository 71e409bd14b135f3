//! `bench --keys-from`: the kinds of index on the user's own keys, and which to take.
//!
//! The kinds take turns, so that what else the machine does meets all of them; each figure is the median of the rounds. A kind that
//! needs more than [`PATIENCE`] to take the keys is left out and named.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix::{Db, Direction, Durability, Index, KeyRange, Level, Medium, Pool, Session, TypeNames, TypeTag, Types};
use durix_pmem::journal::DiskJournal;
use serde_json::{Value, json};

use super::svg;
use super::workload::Random;
use crate::args::BenchArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};
use crate::text::Codec;
use crate::torture::default_dir;

/// Rounds in which every kind has its turn.
const ROUNDS: usize = 3;
/// Longest time in which a kind has to take all keys.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time of one measurement after that.
const MEASURED: Duration = Duration::from_secs(1);
/// Keys that are taken from the file unless `--keys` says otherwise.
const MOST_KEYS: u64 = 1_000_000;
/// Entries of a scan.
const SCANNED: usize = 100;
/// When an update is durable that is when it returns.
const ON_RETURN: &str = "on return";
/// Operations between two looks at the clock.
const STEP: usize = 64;
/// Two kinds are as good as each other if their times differ by no more.
const AS_GOOD: f64 = 1.1;

/// What was measured of a kind in one round.
#[derive(Clone, Copy)]
struct Round {
    /// Nanoseconds to insert a key, all keys in the order of the file.
    fill: f64,
    /// Nanoseconds of a lookup, keys by chance.
    get: f64,
    /// Nanoseconds of giving a key another value, keys by chance, with the wait that the level of durability asks for.
    put: f64,
    /// Nanoseconds of an entry in a scan of 100; of ordered kinds.
    scan: Option<f64>,
    /// Milliseconds to open the closed pool and the index.
    open: f64,
    /// The same of the pool as the end of the process would leave it, without closing.
    recovery: f64,
    /// Bytes of the pool for each key.
    persistent: f64,
    /// Bytes of DRAM for each key, as far as the index knows.
    volatile: Option<f64>,
    /// What returned means, where the pool has a journal.
    level: Option<Level>,
}

/// A kind and its rounds; none where it took too long.
struct Measured {
    kind: Entry,
    rounds: Vec<Round>,
    /// Write-backs and fences of giving a key another value. None with a journal, which flushes a file.
    counts: Option<[f64; 2]>,
}

pub fn run(args: &BenchArgs, path: &Path) -> Result<Code, Failure> {
    let keys = read(args, path)?;
    let value = args.value_bytes as usize;
    let fits = |kind: &Entry| {
        kind.limits.value.allow(value)
            && kind.meant_for >= keys.len() as u64
            && keys.iter().all(|key| kind.limits.key.allow(key.len()))
    };
    let measured = |kind| Measured { kind, rounds: Vec::new(), counts: None };
    let mut measured: Vec<Measured> = durix::kind::offered().into_iter().filter(fits).map(measured).collect();
    if measured.is_empty() {
        return Err(Failure::usage(
            "no kind takes these keys with values of so many bytes; `durix kinds` lists the limits",
        ));
    }
    let folder = args.dir.clone().unwrap_or_else(default_dir);
    let dir = tempfile::Builder::new().prefix("durix-bench-").tempdir_in(&folder);
    let dir = dir.map_err(Failure::io(format!("making a folder in {}", folder.display())))?;
    for nth in 0..ROUNDS {
        for (at, kind) in measured.iter_mut().enumerate().filter(|(_, kind)| nth == 0 || !kind.rounds.is_empty()) {
            let pool = dir.path().join(format!("{nth}-{at}"));
            kind.rounds.extend(round(&kind.kind, &keys, args, nth as u64, &pool)?);
            let _ = std::fs::remove_file(&pool);
        }
    }
    for kind in measured.iter_mut().filter(|kind| !kind.rounds.is_empty() && kind.level().is_none()) {
        kind.counts = Some(counted(kind.kind.name, &keys, args, &dir.path().join("counted"))?);
    }
    let svg = draw(args, path, &picture(&measured, keys.len()))?;
    if args.json {
        output::json(&as_json(&measured, keys.len(), svg.as_deref()))?;
    } else {
        output::line(&as_text(&measured, keys.len(), path, svg.as_deref()))?;
    }
    Ok(Code::Done)
}

/// Writes the picture: where `--svg` says, or beside the keys. `None` where it cannot lie beside them, which a line says.
fn draw(args: &BenchArgs, keys: &Path, picture: &str) -> Result<Option<PathBuf>, Failure> {
    if let Some(svg) = &args.svg {
        std::fs::write(svg, picture).map_err(Failure::io(format!("writing {}", svg.display())))?;
        return Ok(Some(svg.clone()));
    }
    let mut svg = keys.as_os_str().to_owned();
    svg.push(".svg");
    let svg = PathBuf::from(svg);
    // A picture of before may be replaced, another file not.
    let is_ours = std::fs::read(&svg).map_or(true, |there| there.starts_with(svg::HEAD.as_bytes()));
    let written = if is_ours {
        std::fs::write(&svg, picture).map_err(|error| error.to_string())
    } else {
        Err("another file is there".into())
    };
    let Err(refused) = written else { return Ok(Some(svg)) };
    eprintln!("durix: no picture was written to {}: {refused}; --svg names another file", svg.display());
    Ok(None)
}

/// The keys of the file, in its order, each once.
fn read(args: &BenchArgs, path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let file = File::open(path).map_err(Failure::io(format!("opening {}", path.display())))?;
    let types = Types { key: args.key_type.unwrap_or(TypeTag::BYTES), value: TypeTag::BYTES };
    let codec = Codec::new(types, TypeNames::default(), false);
    let most = usize::try_from(args.keys.unwrap_or(MOST_KEYS)).unwrap_or(usize::MAX);
    let (mut there, mut keys) = (HashSet::new(), Vec::new());
    for (at, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(Failure::io(format!("reading {}", path.display())))?;
        let input = path.display().to_string();
        let bad = |error: Failure| Failure::BadInput { input, line: at as u64 + 1, what: error.to_string() };
        let key = codec.key_of_line(&line, false).map_err(bad)?;
        if there.insert(key.clone()) {
            keys.push(key);
        }
        if keys.len() >= most {
            break;
        }
    }
    if keys.is_empty() {
        return Err(Failure::usage(format!("{} has no line; each line is a key", path.display())));
    }
    Ok(keys)
}

/// Fills a pool of its own and measures; `None` where that takes too long.
fn round(kind: &Entry, keys: &[Vec<u8>], args: &BenchArgs, nth: u64, path: &Path) -> Result<Option<Round>, Failure> {
    let pool = super::create(args, path)?;
    let index = kind.open_or_create(&pool, "bench")?;
    let db = Db::builder().checkpoint_every(Duration::from_millis(args.checkpoint_ms)).over(pool.clone())?;
    let mut session = pool.session()?;
    let (value, changed) = (vec![b'v'; args.value_bytes as usize], vec![b'w'; args.value_bytes as usize]);
    let start = Instant::now();
    for step in keys.chunks(STEP) {
        for key in step {
            index.insert(&session.enter()?, key, &value)?;
        }
        if start.elapsed() > PATIENCE {
            return Ok(None);
        }
    }
    index.sync(&mut session)?;
    pool.commit(&mut session)?;
    let fill = start.elapsed().as_nanos() as f64 / keys.len() as f64;
    let mut random = Random::new(args.seed ^ nth);
    let mut by_chance = || &keys[random.below(keys.len() as u64) as usize];
    let ops = args.ops as usize;
    let mut found = Vec::new();
    let get = timed(ops, || Ok(index.get(&session.enter()?, by_chance(), &mut found).map(drop)?))?;
    let put = timed(ops, || put(&pool, &*index, &mut session, by_chance(), &changed))?;
    let scan = match index.as_ordered() {
        None => None,
        Some(_) => {
            Some(timed(ops / SCANNED, || scan(&*index, &mut session, by_chance()))? / SCANNED.min(keys.len()) as f64)
        }
    };
    let (stats, level) = (index.stats(&mut session)?, pool.level());
    let space = pool.stats()?.space;
    let owner = index.root().owner();
    let bytes: u64 = space.by_owner.iter().filter(|(other, _)| *other == owner).map(|(_, bytes)| bytes).sum();
    // Its threads end, so that nobody changes the files while they are copied.
    drop((index, session, db));
    let crashed = path.with_extension("crashed");
    copy(path, &crashed)?;
    copy(&DiskJournal::path_of(path), &DiskJournal::path_of(&crashed))?;
    pool.close()?;
    drop(pool);
    let open = time_to_open(kind, args, path)?;
    let recovery = time_to_open(kind, args, &crashed)?;
    let _ = std::fs::remove_file(&crashed);
    let per_key = |bytes: u64| bytes as f64 / keys.len() as f64;
    let (persistent, volatile) = (per_key(bytes), stats.volatile_bytes.map(per_key));
    Ok(Some(Round { fill, get, put, scan, open, recovery, persistent, volatile, level }))
}

/// Copies a file, if it is there.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    match std::fs::copy(from, to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::io(format!("copying {}", from.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Milliseconds to open a pool and its index.
fn time_to_open(kind: &Entry, args: &BenchArgs, path: &Path) -> Result<f64, Failure> {
    let start = Instant::now();
    let pool = super::options(args).accept_copy(true).open(path)?;
    let index: Arc<dyn Index> = kind.open(&pool, "bench")?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    drop(index);
    pool.close()?;
    Ok(time)
}

/// Exact write-backs and fences of giving a key another value, on a smaller index.
fn counted(kind: &str, keys: &[Vec<u8>], args: &BenchArgs, path: &Path) -> Result<[f64; 2], Failure> {
    let (pool, counting) = super::create_counting(args, path)?;
    let index = durix::kind::named(kind)?.open_or_create(&pool, "bench")?;
    let mut session = pool.session()?;
    let keys = &keys[..keys.len().min(super::COUNTED_KEYS as usize)];
    let (value, changed) = (vec![b'v'; args.value_bytes as usize], vec![b'w'; args.value_bytes as usize]);
    for key in keys {
        index.insert(&session.enter()?, key, &value)?;
    }
    let mut random = Random::new(args.seed);
    let before = counting.counts();
    for _ in 0..super::COUNTED {
        put(&pool, &*index, &mut session, &keys[random.below(keys.len() as u64) as usize], &changed)?;
    }
    let counts = counting.counts() - before;
    drop((session, index, pool));
    let _ = std::fs::remove_file(path);
    Ok([counts.write_backs, counts.fences].map(|count| count as f64 / super::COUNTED as f64))
}

/// Nanoseconds of a call, which is made so often, or as often as there is time.
fn timed(times: usize, mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    let mut done = 0;
    while done == 0 || (done < times && start.elapsed() < MEASURED) {
        for _ in 0..STEP {
            call()?;
        }
        done += STEP;
    }
    Ok(start.elapsed().as_nanos() as f64 / done as f64)
}

fn put<M: Medium>(
    pool: &Pool<M>,
    index: &dyn Index<M>,
    session: &mut Session<M>,
    key: &[u8],
    value: &[u8],
) -> Result<(), Failure> {
    let op = session.enter()?;
    op.note_commit();
    index.insert(&op, key, value)?;
    drop(op);
    Ok(pool.settle(session)?)
}

fn scan(index: &dyn Index, session: &mut Session, from: &[u8]) -> Result<(), Failure> {
    let Some(ordered) = index.as_ordered() else { return Ok(()) };
    let from = KeyRange::new(std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
    let op = session.enter()?;
    let mut cursor = ordered.range(&from, Direction::Forward);
    for _ in 0..SCANNED {
        if cursor.next(&op)?.is_none() {
            break;
        }
    }
    Ok(())
}

impl Measured {
    /// The median of the rounds.
    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    /// What a program pays that reads as often as it writes.
    fn cost(&self) -> f64 {
        self.median(|round| (round.get + round.put) / 2.0)
    }

    fn level(&self) -> Option<Level> {
        self.rounds.first().and_then(|round| round.level)
    }

    /// When an update is durable.
    fn durable(&self) -> &'static str {
        match (self.level(), self.kind.durability) {
            (Some(Level::Immediate), _) | (None, Durability::Strict) => ON_RETURN,
            (Some(_), _) => "at commits",
            (None, _) => "at checkpoints",
        }
    }

    fn is_strict(&self) -> bool {
        self.durable() == ON_RETURN
    }
}

/// What somebody may need, and the kind for it, with those that are as good. A journal makes all kinds durable at the same moments.
fn recommended(measured: &[Measured]) -> [(&'static str, Vec<&'static str>); 3] {
    let best = |wanted: &dyn Fn(&Measured) -> bool| {
        let mut fit: Vec<&Measured> = measured.iter().filter(|m| !m.rounds.is_empty() && wanted(m)).collect();
        fit.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        let limit = fit.first().map_or(0.0, |best| best.cost() * AS_GOOD);
        fit.into_iter().filter(|m| m.cost() <= limit).map(|m| m.kind.name).collect()
    };
    if measured.iter().any(|m| m.level().is_some()) {
        return [("a map", best(&|_| true)), ("a map in order", best(&|m| m.kind.ordered)), ("", Vec::new())];
    }
    [
        ("a map, durable on return", best(&|m| m.is_strict())),
        ("a map in order, durable on return", best(&|m| m.kind.ordered && m.is_strict())),
        ("a map in order, durable at checkpoints", best(&|m| m.kind.ordered && !m.is_strict())),
    ]
}

fn as_text(measured: &[Measured], keys: usize, path: &Path, svg: Option<&Path>) -> String {
    let number = |value: f64| format!("{value:.0}");
    let cells = |m: &Measured| {
        let optional = |of: fn(&Round) -> Option<f64>| {
            m.rounds.first().and_then(of).map_or_else(|| "-".into(), |_| number(m.median(|r| of(r).unwrap_or(0.0))))
        };
        let ordered = if m.kind.ordered { "yes" } else { "no" };
        let mut cells = vec![m.kind.name.to_owned(), ordered.into(), m.durable().into()];
        if m.rounds.is_empty() {
            cells.push(format!("gave up after {} s", PATIENCE.as_secs()));
            return cells;
        }
        cells.extend([number(m.median(|r| r.fill)), number(m.median(|r| r.get)), number(m.median(|r| r.put))]);
        cells.push(optional(|r| r.scan));
        cells.extend([m.median(|r| r.open), m.median(|r| r.recovery)].map(|time| format!("{time:.1}")));
        cells.extend([number(m.median(|r| r.persistent)), optional(|r| r.volatile)]);
        cells.extend(m.counts.map_or(["-".into(), "-".into()], |counts| counts.map(|count| format!("{count:.1}"))));
        cells
    };
    let header = [
        "kind",
        "ordered",
        "durable",
        "insert ns",
        "get ns",
        "put ns",
        "scan ns",
        "open ms",
        "after crash",
        "bytes/key",
        "DRAM/key",
        "write-backs",
        "fences",
    ];
    let mut text = format!(
        "{keys} keys of {}; medians of {ROUNDS} rounds in which the kinds took turns, one thread\n\n{}\n\n",
        path.display(),
        table(&header, measured.iter().map(cells).collect(), &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    );
    if let Some(svg) = svg {
        text.push_str(&format!("{} has the times as a picture. ", svg.display()));
    }
    text.push_str(
        "Write-backs and fences of a put are counted. `durix kinds` says what else differs: limits, order.\n\n\
         Recommended, by the mean of get and put (kinds within 10% of the best):",
    );
    for (need, kinds) in recommended(measured).into_iter().filter(|(need, _)| !need.is_empty()) {
        let kinds = if kinds.is_empty() { "no kind takes these keys".to_owned() } else { kinds.join(", ") };
        text.push_str(&format!("\n  {need}: {kinds}"));
    }
    text
}

fn as_json(measured: &[Measured], keys: usize, svg: Option<&Path>) -> Value {
    let kind = |m: &Measured| {
        let mut value = json!({ "kind": m.kind.name, "ordered": m.kind.ordered, "strict": m.is_strict() });
        if !m.rounds.is_empty() {
            let optional = |of: fn(&Round) -> Option<f64>| {
                m.rounds.first().and_then(of).map(|_| m.median(|round| of(round).unwrap_or(0.0)))
            };
            value["insert_ns"] = json!(m.median(|r| r.fill));
            value["get_ns"] = json!(m.median(|r| r.get));
            value["put_ns"] = json!(m.median(|r| r.put));
            value["scan_ns_per_entry"] = json!(optional(|r| r.scan));
            value["open_ms"] = json!(m.median(|r| r.open));
            value["recovery_ms"] = json!(m.median(|r| r.recovery));
            value["put_write_backs"] = json!(m.counts.map(|counts| counts[0]));
            value["put_fences"] = json!(m.counts.map(|counts| counts[1]));
            value["bytes_per_key"] = json!(m.median(|r| r.persistent));
            value["volatile_bytes_per_key"] = json!(optional(|r| r.volatile));
        }
        value
    };
    let [map, ordered, buffered] = recommended(measured).map(|(_, kinds)| kinds);
    json!({
        "keys": keys,
        "rounds": ROUNDS,
        "svg": svg.map(|svg| svg.display().to_string()),
        "kinds": measured.iter().map(kind).collect::<Vec<_>>(),
        "recommended": { "map": map, "ordered": ordered, "ordered_at_checkpoints": buffered },
    })
}

fn picture(measured: &[Measured], keys: usize) -> String {
    let rows = measured.iter().filter(|m| !m.rounds.is_empty());
    let rows: Vec<_> = rows.map(|m| (m.kind.name, [m.median(|r| r.get), m.median(|r| r.put)])).collect();
    svg::bars(&format!("Nanoseconds of an operation, {keys} keys"), ["get", "put"], &rows)
}
