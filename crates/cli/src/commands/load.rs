//! `load`: lines, TSV, or the files of a directory tree.
//!
//! An entry that is there already with the same value is not written again; so an interrupted load is resumed by running it
//! again, which costs reads up to where it was interrupted.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use durix::kind::Entry;
use durix::{Db, Durability, Hardware, Index, Lengths, Limits, Pool, Types};
use durix_pmem::Epochs;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::args::{Format, LoadArgs, TypeArgs};
use crate::csv;
use crate::failure::{Code, Failure};
use crate::output;
use crate::pools::{self, Opened, is_standard_input};
use crate::redb::Table;
use crate::text::Codec;

/// What became of the entries.
#[derive(Default)]
struct Loaded {
    added: u64,
    changed: u64,
    there: u64,
    too_long: u64,
}

pub fn run(args: &LoadArgs) -> Result<Code, Failure> {
    if args.format != Format::Csv && (args.header || args.columns.is_some()) {
        return Err(Failure::usage("only CSV has a heading and columns; add --format csv"));
    }
    if let Some(tree) = args.tree.as_ref().filter(|tree| !tree.is_dir()) {
        return Err(Failure::usage(format!("{} is not a directory; --tree takes one", tree.display())));
    }
    for file in args.files.iter().filter(|file| !is_standard_input(file)) {
        File::open(file).map_err(Failure::io(format!("opening {}", file.display())))?;
    }
    let table = args.redb.as_ref().map(|path| Table::open(path, args.table.as_deref())).transpose()?;
    let types = match &table {
        Some(Table { types: Types { key, value }, .. }) => TypeArgs { key_type: Some(*key), value_type: Some(*value) },
        None => args.types.clone(),
    };
    // Before a pool is made for it.
    let entry = pools::new_kind(&args.at)?;
    pools::new_types(&entry, &types)?;
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
    pools::folder_must_be_there(&args.at.pool.pool)?;
    let at = Opened::existing_or_new(pools::settled(options.open_or_create(&args.at.pool.pool)?)?, &args.at, &types)?;
    must_take(&format!("index {:?}", args.at.index), at.index.limits(), args)?;
    let buffered = at.index.durability() != Durability::Strict;
    let epochs = buffered.then(|| at.pool.epochs()).transpose()?;
    // Its threads take checkpoints and commit in time, also while the input makes the load wait.
    let threads = Db::builder().over(at.pool.clone())?;
    let (bar, in_order) = (bar(args)?, InOrder::of(&at));
    let acknowledger = args.acknowledge.then(|| Acknowledger::start(&at, args.at.json));
    let taken = acknowledger.as_ref().map(|acknowledger| Arc::clone(&acknowledger.taken)).unwrap_or_default();
    let loaded = Loaded::default();
    let mut load = Load { at, epochs, loaded, bar, in_order, taken, value: Vec::new(), done: 0, uncommitted: 0 };
    let start = Instant::now();
    let done = match (&table, &args.tree) {
        (Some(table), _) => table.for_each(&mut |key, value| load.put(key, value).map(|()| load.bar.inc(1))),
        (None, Some(tree)) => load.tree(tree),
        (None, None) => load.all_lines(args),
    };
    load.bar.finish_and_clear();
    let acknowledged = acknowledger.map_or(Ok(()), Acknowledger::finish);
    let took = start.elapsed();
    drop(threads);
    let Load { mut at, loaded, .. } = load;
    let keys = at.index.count(&mut at.session);
    let closed = at.close();
    done?;
    let keys = keys?;
    closed?;
    acknowledged?;
    report(args, &loaded, keys, took)?;
    Ok(Code::Done)
}

/// That what is to be loaded fits an index with these limits.
fn must_take(what: &str, limits: Limits, args: &LoadArgs) -> Result<(), Failure> {
    let refused = match (limits.key, limits.value) {
        (Lengths::Exactly(key), _) if args.tree.is_some() => {
            format!("--tree loads paths, and {what} takes keys of exactly {key} bytes")
        }
        (_, Lengths::Exactly(value)) if args.tree.is_none() && args.redb.is_none() && args.format == Format::Lines => {
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
    if args.tree.is_some() || args.redb.is_some() || args.files.iter().all(|file| is_standard_input(file)) {
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

/// New keys in ascending or descending order after which a load into a tree that is not balanced warns.
const ROW: u64 = 2000;

/// Looks for keys in order, where the kind of index is not balanced.
struct InOrder {
    /// The name of such a kind, until it has warned.
    kind: Option<&'static str>,
    last: Vec<u8>,
    direction: Ordering,
    row: u64,
}

impl InOrder {
    fn of(at: &Opened) -> Self {
        let owner = at.index.root().owner();
        let info = at.pool.indices().unwrap_or_default().into_iter().find(|info| info.owner == owner);
        let is_kind = |entry: &Entry| info.as_ref().is_some_and(|info| info.kind == entry.kind);
        let kind = durix::kind::kinds().into_iter().find(|entry| entry.unbalanced && is_kind(entry));
        InOrder { kind: kind.map(|entry| entry.name), last: Vec::new(), direction: Ordering::Equal, row: 0 }
    }

    /// Takes note of a new key. Returns the warning, once.
    fn pass(&mut self, key: &[u8]) -> Option<String> {
        let kind = self.kind?;
        let direction = key.cmp(&self.last);
        self.row = if direction == self.direction { self.row + 1 } else { 1 };
        self.direction = direction;
        self.last.clear();
        self.last.extend_from_slice(key);
        if self.row < ROW {
            return None;
        }
        self.kind = None;
        Some(format!(
            "keys come in order, and a {kind} is not balanced: each call takes time in the number of keys, and a load of n keys n² \
             steps. Stop, and load into an index of another kind (--kind bplustree or skiplist), or load the keys in random order (shuf)"
        ))
    }
}

struct Load {
    at: Opened,
    in_order: InOrder,
    /// Where the index is buffered: what a kill loses of the load is at most what came since the last checkpoint.
    epochs: Option<Arc<Epochs<Hardware>>>,
    done: u64,
    /// Bytes since the last commit that the load has asked for.
    uncommitted: usize,
    loaded: Loaded,
    bar: ProgressBar,
    /// How many entries were taken from the input.
    taken: Arc<AtomicU64>,
    value: Vec<u8>,
}

/// Says how many entries are durable, by the clock: a thread of its own, because the load may wait for its input.
struct Acknowledger {
    taken: Arc<AtomicU64>,
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

/// Time between two acknowledgements.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(100);

impl Acknowledger {
    fn start(at: &Opened, as_json: bool) -> Self {
        let (stop, stopped) = mpsc::channel();
        let taken = Arc::new(AtomicU64::new(0));
        let (pool, index, count) = (at.pool.clone(), Arc::clone(&at.index), Arc::clone(&taken));
        let thread = std::thread::spawn(move || acknowledge(&pool, &*index, &count, &stopped, as_json));
        Acknowledger { taken, stop, thread }
    }

    /// Says the last number.
    fn finish(self) -> Result<(), Failure> {
        // It may have ended because nobody reads what it says.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn acknowledge(
    pool: &Pool,
    index: &dyn Index,
    taken: &AtomicU64,
    stopped: &mpsc::Receiver<()>,
    as_json: bool,
) -> Result<(), Failure> {
    let mut session = pool.session()?;
    let mut said = 0;
    loop {
        let is_last = stopped.recv_timeout(ACKNOWLEDGE_EVERY) != Err(mpsc::RecvTimeoutError::Timeout);
        let now = taken.load(Acquire);
        if now > said {
            index.sync(&mut session)?;
            pool.commit(&mut session)?;
            match as_json {
                true => output::json(&json!({ "durable": now }))?,
                false => output::line(&format!("{now} entries are durable"))?,
            }
            said = now;
        }
        if is_last {
            return Ok(());
        }
    }
}

impl Load {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.put_one(key, value)?;
        // Whoever reads the number finds the entry.
        self.taken.fetch_add(1, Release);
        Ok(())
    }

    fn put_one(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
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
        // As before any update: what a service has failed at is told, and one that is outrun holds the load up.
        self.at.pool.services().admit(&mut self.at.session)?;
        let op = self.at.session.enter()?;
        let found = self.at.index.get(&op, key, &mut self.value)?;
        if found && self.value == value {
            self.loaded.there += 1;
        } else if self.at.index.insert(&op, key, value)? {
            self.loaded.added += 1;
            drop(op);
            if let Some(warning) = self.in_order.pass(key) {
                self.bar.suspend(|| eprintln!("durix: warning: {warning}"));
            }
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
            let types = self.at.codec.type_names();
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
        if args.files.iter().all(|file| is_standard_input(file)) {
            return self.lines(BufReader::new(std::io::stdin().lock()), "standard input", args, 1);
        }
        for path in &args.files {
            if is_standard_input(path) {
                self.lines(BufReader::new(std::io::stdin().lock()), "standard input", args, 0)?;
                continue;
            }
            let file = File::open(path).map_err(Failure::io(format!("opening {}", path.display())))?;
            let bar = self.bar.clone();
            let reader = BufReader::with_capacity(1 << 16, bar.wrap_read(file));
            self.lines(reader, &path.display().to_string(), args, 0)?;
        }
        Ok(())
    }

    fn lines(&mut self, mut reader: impl BufRead, input: &str, args: &LoadArgs, step: u64) -> Result<(), Failure> {
        let mut line = Vec::new();
        let mut next = 1;
        let longest = longest_open(self.at.index.limits());
        loop {
            let number = next;
            let bad = |what: String| Failure::BadInput { input: input.into(), line: number, what };
            line.clear();
            let mut is_quoted = false;
            loop {
                let before = line.len();
                let read = reader.read_until(b'\n', &mut line).map_err(Failure::io(format!("reading {input}")))?;
                next += u64::from(read > 0);
                // A record of CSV may have line ends within quotes.
                is_quoted ^= args.format == Format::Csv && csv::is_odd(&line[before..]);
                if read == 0 || !is_quoted {
                    break;
                }
                if line.len() > longest {
                    return Err(bad(format!("a field whose quotes do not end within {longest} bytes")));
                }
            }
            if line.is_empty() {
                break;
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            if args.header && number == 1 {
                continue;
            }
            let entry = entry(args, &self.at.codec, text).map_err(|failure| bad(failure.to_string()))?;
            let Some((key, value)) = entry else { continue };
            self.put(&key, &value).map_err(|failure| match failure {
                Failure::Durix(error @ durix::Error::WrongLength { .. }) => bad(error.to_string()),
                other => other,
            })?;
            self.bar.inc(step);
        }
        Ok(())
    }
}

/// Bytes of the other columns and of the text of numbers, in a record of several lines.
const BESIDES: usize = 1 << 20;

/// The bytes of a record of CSV, quotes doubled, beyond which no quote that is open is waited for.
fn longest_open(limits: Limits) -> usize {
    let of = |lengths: Lengths| match lengths {
        Lengths::Exactly(len) | Lengths::UpTo(len) => len,
    };
    2 * (of(limits.key) + of(limits.value)) + BESIDES
}

/// The bytes of a key and of its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The bytes of the key and of the value that a line, or a record of CSV, stands for; `None` for an empty line of CSV or JSON.
fn entry(args: &LoadArgs, codec: &Codec, text: &[u8]) -> Result<Option<Pair>, Failure> {
    let bad = |what: String| Failure::usage(what);
    let tabbed = |instead: &str| {
        let tab = text.iter().position(|b| *b == b'\t');
        let tab = tab.ok_or_else(|| bad(format!("no tab, which ends the key; use {instead}")))?;
        Ok::<_, Failure>((&text[..tab], &text[tab + 1..]))
    };
    let is_empty = text.trim_ascii().is_empty();
    let pair = match args.format {
        Format::Lines => (codec.key_of_line(text, false)?, Vec::new()),
        Format::Tsv => {
            let (key, value) = tabbed("--format lines")?;
            (codec.key_of_line(key, true)?, codec.value_of_line(value, true)?)
        }
        Format::Hex => {
            let (key, value) = tabbed("the format that the file has")?;
            (codec.key_of_hex(key)?, codec.value_of_hex(value)?)
        }
        Format::Csv | Format::Json if is_empty => return Ok(None),
        Format::Csv => {
            let fields = csv::fields(text.strip_suffix(b"\r").unwrap_or(text)).map_err(bad)?;
            let found = output::counted(fields.len() as u64, "field");
            let [key, value] = match args.columns {
                None if fields.len() != 2 => {
                    return Err(bad(format!(
                        "{found}, not a key and a value; choose two with --columns, as in --columns 1,2"
                    )));
                }
                columns => columns.unwrap_or([0, 1]),
            };
            let field = |at: usize| fields.get(at).ok_or_else(|| bad(format!("{found}, and no column {}", at + 1)));
            (codec.key_of_line(field(key)?, false)?, codec.value_of_line(field(value)?, false)?)
        }
        Format::Json => {
            let object: serde_json::Value =
                serde_json::from_slice(text).map_err(|error| bad(format!("not JSON: {error}")))?;
            let of = |name: &str| {
                object
                    .get(name)
                    .ok_or_else(|| bad(format!("{name:?} is missing; a line is {{\"key\": …, \"value\": …}}")))
            };
            (codec.key_of_json(of("key")?)?, codec.value_of_json(of("value")?)?)
        }
    };
    Ok(Some(pair))
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
    let keys = output::counted(keys, "key");
    output::line(&format!("{text} in {:.2} s; index {:?} has {keys}", took.as_secs_f64(), args.at.index))
}
