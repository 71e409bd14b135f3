//! Indexes a directory tree durably, is killed in the middle of it, and finds everything again.
//!
//! ```text
//! cargo run --release --example quickstart [-- --tree DIR] [--pool FILE]
//! ```
//!
//! The program runs itself as a child. The child walks the tree and puts each path with its size and time into a durable
//! Masstree in an ordinary file, 256 entries a batch. The database has a journal, as by default: a batch is one flush, and when
//! the call has returned, its entries survive power failure. (On a file system in memory there is no journal; a sync does it.) After
//! each batch the child tells its parent, through a pipe, which entries are acknowledged. Somewhere in the middle the parent kills
//! it with SIGKILL. Then the parent opens the database again, looks every acknowledged entry up, finishes the walk, and
//! compares the whole index, in order, with the tree.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use durix::{Db, OrderedMap};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use rand::Rng;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is stored for a path: its size in bytes, and its time of modification in seconds.
type Entry = (u64, i64);
/// Paths, in the order of their bytes.
type Files = OrderedMap<Vec<u8>, Entry>;

/// Entries of a batch: they share a flush.
const BATCH: usize = 256;

struct Args {
    tree: PathBuf,
    pool: Option<PathBuf>,
    child: bool,
}

fn main() -> ExitCode {
    let done = parse(std::env::args_os().skip(1)).and_then(|args| {
        if args.child {
            child(&args.tree, args.pool.as_deref().ok_or("--child needs --pool")?)
        } else {
            supervise(&args)
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = std::ffi::OsString>) -> Result<Args> {
    let mut parsed = Args { tree: "/usr".into(), pool: None, child: false };
    while let Some(arg) = args.next() {
        let mut value = || args.next().map(PathBuf::from).ok_or(format!("{} needs a value", arg.display()));
        match arg.to_str() {
            Some("--tree") => parsed.tree = value()?,
            Some("--pool") => parsed.pool = Some(value()?),
            Some("--child") => parsed.child = true,
            _ => {
                let usage = "usage: quickstart [--tree DIR] [--pool FILE]   (default: --tree /usr, a pool in a temporary folder)";
                return Err(format!("unknown argument {}\n{usage}", arg.display()).into());
            }
        }
    }
    if !parsed.tree.is_dir() {
        return Err(format!("{} is not a directory; name one with --tree", parsed.tree.display()).into());
    }
    Ok(parsed)
}

/// Files and directories below `tree`, in the walk's order.
fn walk(tree: &Path) -> impl Iterator<Item = (PathBuf, Entry)> {
    walkdir::WalkDir::new(tree).sort_by_file_name().into_iter().flatten().filter_map(|found| {
        let meta = found.metadata().ok()?;
        let path = found.into_path();
        let modified = meta.modified().ok()?;
        let time = match modified.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs().cast_signed(),
            Err(before) => -before.duration().as_secs().cast_signed(),
        };
        Some((path, (meta.len(), time)))
    })
}

/// The child: indexes the tree, and acknowledges on standard output what a checkpoint has made durable.
fn child(tree: &Path, pool: &Path) -> Result<()> {
    let db = Db::open_or_create(pool)?;
    let files: Files = db.ordered_map("files")?;
    let mut walk = walk(tree);
    loop {
        let next = walk.by_ref().take(BATCH).map(|(path, entry)| (path.into_os_string().into_vec(), entry));
        let mut batch: Vec<(Vec<u8>, Entry)> = next.collect();
        if batch.is_empty() {
            return Ok(());
        }
        files.try_extend(batch.iter().map(|(path, entry)| (path, entry)))?;
        if db.pool().level().is_none() {
            files.sync()?;
        }
        acknowledge(&mut batch)?;
    }
}

/// Tells the parent of entries that are durable, as path length, path, size, time: from here on they must be found again.
fn acknowledge(pending: &mut Vec<(Vec<u8>, Entry)>) -> Result<()> {
    let mut to = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    for (key, (size, time)) in pending.drain(..) {
        to.write_all(&(key.len() as u32).to_le_bytes())?;
        to.write_all(&key)?;
        to.write_all(&size.to_le_bytes())?;
        to.write_all(&time.to_le_bytes())?;
    }
    Ok(to.flush()?)
}

fn read_acknowledgement(from: &mut impl Read) -> Option<(Vec<u8>, Entry)> {
    let mut len = [0; 4];
    from.read_exact(&mut len).ok()?;
    let mut key = vec![0; u32::from_le_bytes(len) as usize];
    from.read_exact(&mut key).ok()?;
    let (mut size, mut time) = ([0; 8], [0; 8]);
    from.read_exact(&mut size).ok()?;
    from.read_exact(&mut time).ok()?;
    Some((key, (u64::from_le_bytes(size), i64::from_le_bytes(time))))
}

fn bar(len: u64, message: &'static str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:<28} [{bar:40}] {human_pos}/{human_len} ({per_sec}, {eta})")?;
    Ok(ProgressBar::new(len).with_style(style.progress_chars("=> ")).with_message(message))
}

fn supervise(args: &Args) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("durix-quickstart-{}", std::process::id()));
    let pool_file = match &args.pool {
        Some(file) if file.exists() => {
            return Err(format!("{} exists already; name a new file with --pool", file.display()).into());
        }
        Some(file) => file.clone(),
        None => {
            std::fs::create_dir_all(&folder)?;
            folder.join("files.durix")
        }
    };
    let done = run(&args.tree, &pool_file);
    if args.pool.is_none() {
        std::fs::remove_dir_all(&folder)?;
    }
    done
}

fn run(tree: &Path, pool_file: &Path) -> Result<()> {
    let total = walk(tree).count() as u64;
    println!("{} files and folders below {}", HumanCount(total), tree.display());
    let kill_at = rand::rng().random_range(total * 3 / 10..=total * 7 / 10);
    let (acknowledged, loading) = load_until_killed(tree, pool_file, total, kill_at)?;

    let start = Instant::now();
    let db = Db::open(pool_file)?;
    let files: Files = db.ordered_map("files")?;
    let reopening = start.elapsed();
    println!("reopened in {reopening:.1?}: {} entries; {}", HumanCount(files.count()?), files.guarantee());
    let verifying = verify(&files, &acknowledged)?;
    let (finishing, added) = finish(tree, &files)?;
    compare(tree, &files)?;

    let findings = files.check()?;
    if !findings.is_empty() {
        return Err(format!("the check found {} faults, the first: {}", findings.len(), findings[0]).into());
    }
    let (entries, bytes) = (files.count()?, std::fs::metadata(pool_file)?.len());
    drop(files);
    db.close()?;

    let per_second = |count: usize, time: Duration| HumanCount((count as f64 / time.as_secs_f64()) as u64).to_string();
    println!();
    println!(
        "acknowledged before SIGKILL   {:>10}   {}/s",
        HumanCount(acknowledged.len() as u64),
        per_second(acknowledged.len(), loading)
    );
    println!(
        "found again, all of them      {:>10}   {}/s",
        HumanCount(acknowledged.len() as u64),
        per_second(acknowledged.len(), verifying)
    );
    println!("added afterwards              {:>10}   in {finishing:.1?}", HumanCount(added));
    println!("in the index now              {:>10}   in a file of {}", HumanCount(entries), HumanBytes(bytes));
    Ok(())
}

/// Runs the child until it has acknowledged `kill_at` entries, kills it, and returns all that it had acknowledged.
fn load_until_killed(
    tree: &Path,
    pool_file: &Path,
    total: u64,
    kill_at: u64,
) -> Result<(HashMap<Vec<u8>, Entry>, Duration)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg("--tree").arg(tree).arg("--pool").arg(pool_file).stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn()?;
    let mut from = BufReader::with_capacity(1 << 16, child.stdout.take().ok_or("the child has no output")?);
    let progress = bar(total, "indexing, to be killed")?;
    let mut acknowledged = HashMap::new();
    while let Some((key, entry)) = read_acknowledgement(&mut from) {
        acknowledged.insert(key, entry);
        progress.inc(1);
        if acknowledged.len() as u64 == kill_at {
            // SIGKILL. What the child had acknowledged into the pipe by then is still read and counts.
            child.kill()?;
        }
    }
    let loading = start.elapsed();
    let status = child.wait()?;
    progress.abandon();
    match status.signal() {
        Some(signal) => {
            println!("killed by signal {signal} after {} acknowledgements", HumanCount(acknowledged.len() as u64))
        }
        None if status.success() => println!("the child finished before the kill reached it"),
        None => return Err(format!("the child failed: {status}").into()),
    }
    Ok((acknowledged, loading))
}

/// Looks every acknowledged entry up.
fn verify(files: &Files, acknowledged: &HashMap<Vec<u8>, Entry>) -> Result<Duration> {
    let mut handle = files.handle()?;
    let progress = bar(acknowledged.len() as u64, "verifying acknowledged")?;
    let start = Instant::now();
    for (key, entry) in acknowledged {
        let found = handle.get(key)?;
        if found != Some(*entry) {
            let path = String::from_utf8_lossy(key);
            return Err(format!("LOST: {path} was acknowledged as {entry:?}, found {found:?}").into());
        }
        progress.inc(1);
    }
    let took = start.elapsed();
    progress.abandon();
    Ok(took)
}

/// Puts in what is missing. Returns how long that took, and how many entries were missing.
fn finish(tree: &Path, files: &Files) -> Result<(Duration, u64)> {
    let (start, before) = (Instant::now(), files.count()?);
    files.try_extend(walk(tree).map(|(path, entry)| (path.into_os_string().into_vec(), entry)))?;
    files.sync()?;
    Ok((start.elapsed(), files.count()? - before))
}

/// Compares the index with the tree, path by path in order, both ways.
fn compare(tree: &Path, files: &Files) -> Result<()> {
    let mut paths: Vec<Vec<u8>> = walk(tree).map(|(path, _)| path.into_os_string().into_vec()).collect();
    paths.sort_unstable();
    let found = files.iter().map(|pair| Ok(pair?.0)).collect::<Result<Vec<_>>>()?;
    // A file that comes or goes meanwhile is no fault of the index: only what is in the tree has to be there.
    if let Some(lost) = paths.iter().find(|path| found.binary_search(path).is_err()) {
        return Err(format!("LOST: {} is in the tree and not in the index", String::from_utf8_lossy(lost)).into());
    }
    if !found.is_sorted() {
        return Err("the index is not in order".into());
    }
    let backwards = files.iter().rev().map(|pair| Ok(pair?.0)).collect::<Result<Vec<_>>>()?;
    if backwards.iter().ne(found.iter().rev()) {
        return Err("the index is another one backwards".into());
    }
    Ok(())
}
