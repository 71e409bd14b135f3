//! `load`: lines, TSV, or the files of a directory tree.
//!
//! An entry that is there already with the same value is not written again; so an interrupted load is resumed by running it
//! again, which costs reads up to where it was interrupted.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use durix::{Db, Durability, Hardware, Lengths, Limits, Types};
use durix_pmem::Epochs;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::args::{Format, LoadArgs};
use crate::failure::{Code, Failure};
use crate::output;
use crate::pools::{self, Opened};

/// What became of the entries.
#[derive(Default)]
struct Loaded {
    added: u64,
    changed: u64,
    there: u64,
    too_long: u64,
}

pub fn run(args: &LoadArgs) -> Result<Code, Failure> {
    if let Some(tree) = args.tree.as_ref().filter(|tree| !tree.is_dir()) {
        return Err(Failure::usage(format!("{} is not a directory; --tree takes one", tree.display())));
    }
    for file in &args.files {
        File::open(file).map_err(Failure::io(format!("opening {}", file.display())))?;
    }
    // Before a pool is made for it.
    let entry = pools::new_kind(&args.at)?;
    pools::new_types(&entry, &args.types)?;
    if args.at.kind.is_some() {
        must_take(entry.name, entry.limits, args)?;
    }
    if args.at.pool.pool.is_dir() {
        return Err(Failure::Directory { path: args.at.pool.pool.clone() });
    }
    let mut options = pools::options(&args.at.pool);
    if let Some(max) = args.max_size {
        let chunk = durix_pmem::pool::geometry::DEFAULT_CHUNK;
        options = options.max_size(max).initial_size(max.min(durix_pmem::pool::DEFAULT_INITIAL_SIZE) / chunk * chunk);
    }
    let at =
        Opened::existing_or_new(pools::settled(options.open_or_create(&args.at.pool.pool)?)?, &args.at, &args.types)?;
    must_take(&format!("index {:?}", args.at.index), at.index.limits(), args)?;
    let buffered = at.index.durability() != Durability::Strict;
    let epochs = buffered.then(|| at.pool.epochs()).transpose()?;
    // Its threads take checkpoints and commit in time, also while the input makes the load wait.
    let threads = Db::builder().over(at.pool.clone())?;
    let mut load =
        Load { at, epochs, loaded: Loaded::default(), bar: bar(args)?, value: Vec::new(), done: 0, uncommitted: 0 };
    let start = Instant::now();
    let done = match &args.tree {
        Some(tree) => load.tree(tree),
        None => load.all_lines(args),
    };
    load.bar.finish_and_clear();
    let took = start.elapsed();
    drop(threads);
    let Load { mut at, loaded, .. } = load;
    let keys = at.index.len(&mut at.session);
    let closed = at.close();
    done?;
    let keys = keys?;
    closed?;
    report(args, &loaded, keys, took)?;
    Ok(Code::Done)
}

/// That what is to be loaded fits an index with these limits.
fn must_take(what: &str, limits: Limits, args: &LoadArgs) -> Result<(), Failure> {
    let refused = match (limits.key, limits.value) {
        (Lengths::Exactly(key), _) if args.tree.is_some() => {
            format!("--tree loads paths, and {what} takes keys of exactly {key} bytes")
        }
        (_, Lengths::Exactly(value)) if args.tree.is_none() && args.format == Format::Lines => {
            format!("lines have no values, and {what} takes values of exactly {value} bytes: use --format tsv")
        }
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("{refused}; kinds that take any: {}", durix::kind::of_any_length())))
}

/// A progress bar on a terminal: by bytes where their number is known.
fn bar(args: &LoadArgs) -> Result<ProgressBar, Failure> {
    if args.quiet || args.at.json || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = |text: &str| ProgressStyle::with_template(text).map_err(|e| Failure::usage(e.to_string()));
    if args.tree.is_some() || args.files.is_empty() {
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {human_pos} entries, {elapsed}, {per_sec}")?);
        bar.enable_steady_tick(Duration::from_millis(100));
        return Ok(bar);
    }
    let bytes = args.files.iter().filter_map(|file| file.metadata().ok()).map(|m| m.len()).sum();
    Ok(ProgressBar::new(bytes).with_style(style("{wide_bar} {bytes}/{total_bytes}, {eta}")?))
}

/// Entries between two looks at the clock, where the index is buffered.
const TICK_EVERY: u64 = 256;
/// Records between two commits, of a pool with a journal.
const COMMIT_EVERY: u64 = 10_000;
/// Bytes of keys and values between two commits.
const COMMIT_BYTES: usize = 4 << 20;

struct Load {
    at: Opened,
    /// Where the index is buffered: what a kill loses of the load is at most what came since the last checkpoint.
    epochs: Option<Arc<Epochs<Hardware>>>,
    done: u64,
    /// Bytes since the last commit that the load has asked for.
    uncommitted: usize,
    loaded: Loaded,
    bar: ProgressBar,
    value: Vec<u8>,
}

impl Load {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        if let Err(error) = self.at.index.limits().check(key, Some(value)) {
            match error {
                durix::Error::KeyTooLong { .. } | durix::Error::ValueTooLong { .. } => self.loaded.too_long += 1,
                other => return Err(other.into()),
            }
            return Ok(());
        }
        self.done += 1;
        if let Some(epochs) = self.epochs.as_ref().filter(|_| self.done.is_multiple_of(TICK_EVERY)) {
            epochs.tick(&mut self.at.session)?;
        }
        self.uncommitted += key.len() + value.len();
        if self.done.is_multiple_of(COMMIT_EVERY) || self.uncommitted >= COMMIT_BYTES {
            // A pool with a journal is committed in batches.
            self.at.pool.commit(&mut self.at.session)?;
            self.uncommitted = 0;
        }
        let op = self.at.session.enter()?;
        let found = self.at.index.get(&op, key, &mut self.value)?;
        if found && self.value == value {
            self.loaded.there += 1;
        } else if self.at.index.insert(&op, key, value)? {
            self.loaded.added += 1;
        } else {
            self.loaded.changed += 1;
        }
        Ok(())
    }

    /// The paths of a tree, with size and time as text.
    fn tree(&mut self, tree: &Path) -> Result<(), Failure> {
        let op = self.at.session.enter()?;
        let types = Types::of(&*self.at.index, &op);
        drop(op);
        if types != Types::default() {
            let what = format!("index holds {types}; --tree needs one of bytes to bytes, so choose another --index");
            return Err(Failure::usage(what));
        }
        for found in walkdir::WalkDir::new(tree).sort_by_file_name() {
            let entry = match found {
                Ok(entry) => entry,
                Err(error) => {
                    self.bar.suspend(|| eprintln!("durix: passed over: {error}"));
                    continue;
                }
            };
            let Ok(meta) = entry.metadata() else { continue };
            let time = meta.modified().map_or(0, |time| match time.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_secs().cast_signed(),
                Err(before) => -before.duration().as_secs().cast_signed(),
            });
            let value = format!("{} {time}", meta.len());
            self.put(entry.path().as_os_str().as_bytes(), value.as_bytes())?;
            self.bar.inc(1);
        }
        Ok(())
    }

    fn all_lines(&mut self, args: &LoadArgs) -> Result<(), Failure> {
        if args.files.is_empty() {
            return self.lines(BufReader::new(std::io::stdin().lock()), "standard input", args.format, 1);
        }
        for path in &args.files {
            let file = File::open(path).map_err(Failure::io(format!("opening {}", path.display())))?;
            let bar = self.bar.clone();
            let reader = BufReader::with_capacity(1 << 16, bar.wrap_read(file));
            self.lines(reader, &path.display().to_string(), args.format, 0)?;
        }
        Ok(())
    }

    fn lines(&mut self, mut reader: impl BufRead, input: &str, format: Format, step: u64) -> Result<(), Failure> {
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(Failure::io(format!("reading {input}")))?;
            if read == 0 {
                break;
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let bad = |what: String| Failure::BadInput { input: input.into(), line: number, what };
            let (key, value) = match format {
                Format::Lines => (text, &b""[..]),
                Format::Tsv => {
                    let tab = text.iter().position(|b| *b == b'\t');
                    let tab = tab.ok_or_else(|| bad("no tab, which ends the key; use --format lines".into()))?;
                    (&text[..tab], &text[tab + 1..])
                }
            };
            let escaped = format == Format::Tsv;
            let codec = self.at.codec;
            let key = codec.key_of_line(key, escaped).map_err(|f| bad(f.to_string()))?;
            let value = match format {
                Format::Lines if value.is_empty() => Vec::new(),
                _ => codec.value_of_line(value, escaped).map_err(|f| bad(f.to_string()))?,
            };
            self.put(&key, &value).map_err(|failure| match failure {
                Failure::Durix(error @ durix::Error::WrongLength { .. }) => bad(error.to_string()),
                other => other,
            })?;
            self.bar.inc(step);
        }
        Ok(())
    }
}

fn report(args: &LoadArgs, loaded: &Loaded, keys: u64, took: Duration) -> Result<(), Failure> {
    let Loaded { added, changed, there, too_long } = loaded;
    if args.at.json {
        return output::json(&json!({
            "added": added, "changed": changed, "there": there, "too_long": too_long,
            "keys": keys, "seconds": took.as_secs_f64(),
        }));
    }
    let mut text = format!("{added} added, {changed} changed, {there} there already");
    if *too_long > 0 {
        text.push_str(&format!(", {too_long} passed over (too long)"));
    }
    output::line(&format!("{text} in {:.2} s; index {:?} has {keys} keys", took.as_secs_f64(), args.at.index))
}
