//! The grammar: `durix COMMAND --pool FILE [--index NAME] [--kind KIND] …`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use durix::Level;
use durix::TypeTag;

/// Where the help lists the options that are seldom needed.
const POOL: &str = "Options of the pool";

/// Maps in a file that survive crashes: read, change, copy, check, repair them.
#[derive(Debug, Parser)]
#[command(name = "durix", version)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Load lines, TSV, CSV, JSON lines or a directory tree
    ///
    /// After an interruption, run it again with the same input: entries that are there already are not written again.
    Load(LoadArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Store a value under a key
    Put(PutArgs),
    /// Remove keys
    Del(DelArgs),
    /// Run a script over several indices in one transaction
    Exec(ExecArgs),
    /// Print keys and values: all, with a prefix, or in a range
    Scan(ScanArgs),
    /// Print what a pool holds, its space, and what survives a crash
    ///
    /// It works while another process has the pool open, too.
    Stat(WatchArgs),
    /// Look for damage and inconsistencies, without changing anything
    ///
    /// It reads the whole file, and compares each page with its checksum where there is one.
    Check(StatArgs),
    /// Check, and add the checksums that are missing
    ///
    /// A page that was written without a journal has no checksum.
    Scrub(ScrubArgs),
    /// Save what can still be read of a damaged pool into a new one
    Repair(RepairArgs),
    /// Write indices as text, which `restore` reads
    Dump(DumpArgs),
    /// Make a new pool from a dump
    Restore(RestoreArgs),
    /// Copy all indices into a new pool
    Copy(CopyArgs),
    /// Give unused space of a pool back to the file system
    ///
    /// It copies all entries into a new file, which then takes the place of the old one. No process may have the pool open for writing, and
    /// the disk needs room for both files. A crash leaves one of the two files, whole.
    Compact(CompactArgs),
    /// Measure a kind of index, or compare all kinds on your keys
    ///
    /// It runs YCSB workloads or TPC-C orders, and prints throughput, latency percentiles, and the exact numbers of write-backs and fences an
    /// operation. With --keys-from it compares all kinds on your keys and recommends one.
    Bench(BenchArgs),
    /// Kill a writing process again and again, and look for losses
    ///
    /// A loss is a change that the process had confirmed and that is not found afterwards.
    Torture(TortureArgs),
    #[command(hide = true)]
    TortureChild(TortureChildArgs),
    /// Print the kinds of index: what each takes and promises
    Kinds(KindsArgs),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page: `durix man | man -l -`
    Man,
}

#[derive(Debug, Args)]
pub struct KindsArgs {
    /// List experimental kinds, too: not recommended, but they can be made and opened by their names
    #[arg(long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print a Markdown table
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
}

#[derive(Debug, Args)]
pub struct PoolArgs {
    /// The file of the pool
    #[arg(long, value_name = "FILE")]
    pub pool: PathBuf,
    /// Take the file as persistent memory
    ///
    /// Without it, a file is persistent memory if the system says so.
    #[arg(long, help_heading = POOL)]
    pub assume_pmem: bool,
    /// Open a pool as a power failure, or copying it while it was open, has left it
    ///
    /// Without it, a pool that was open when the system stopped, and a copy of a pool that was open, are refused.
    #[arg(long, help_heading = POOL)]
    pub accept_unclean: bool,
    /// Which crashes a change survives: immediate, interval=64ms or process
    ///
    /// It is about ordinary files. immediate: power failure, as soon as the command has confirmed it. interval=64ms: power failure, after at
    /// most 64 ms and a flush. process: only the death of the process. Unless set: immediate, or process on a file system in memory (tmpfs)
    #[arg(long, value_name = "LEVEL", help_heading = POOL)]
    pub durability: Option<Level>,
    /// Greatest memory for written pages, in MiB, with a journal
    ///
    /// Unless set: a quarter of the memory of the machine
    #[arg(long, value_name = "MIB", help_heading = POOL, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub written_memory: Option<u64>,
    /// Wait for another process to close the pool
    ///
    /// Without it, a pool that another process has open is an error at once.
    #[arg(long, value_name = "SECONDS", help_heading = POOL, default_value_t = 0, hide_default_value = true)]
    pub wait: u32,
}

#[derive(Debug, Args)]
pub struct IndexArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The index in the pool
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub index: String,
    /// Kind of the index (`durix kinds` lists them)
    ///
    /// An existing index of another kind is an error.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Read \n, \t, \\ and \xNN in arguments
    ///
    /// It is for keys and values that are given as arguments.
    #[arg(long, short = 'e')]
    pub escaped: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl IndexArgs {
    /// How entries are printed.
    pub fn shown(&self, format: Shown) -> Shown {
        if self.json { Shown::Json } else { format }
    }
}

/// What a new index is to hold.
#[derive(Clone, Debug, Args)]
pub struct TypeArgs {
    /// Type of the keys of a new index: string, u64, "(u32, string)" …
    ///
    /// bytes, string, u8 to u128, i8 to i128, bool, char, or several as "(u32, string)", whose keys are written 7,text. Keys are then read,
    /// shown and ordered as this type. Unless set: bytes, or u64 where the kind takes 8 bytes only
    #[arg(long, value_name = "TYPE")]
    pub key_type: Option<TypeTag>,
    /// Type of the values of a new index
    #[arg(long, value_name = "TYPE")]
    pub value_type: Option<TypeTag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Each line is a key, with an empty value
    Lines,
    /// Key, tab, value; with \n, \t, \\ and \xNN as `scan` writes them
    Tsv,
    /// Key, comma, value; fields in quotes where they need it (RFC 4180)
    Csv,
    /// An object a line: {"key": …, "value": …}, as `scan --json` writes it
    #[value(alias = "jsonl")]
    Json,
    /// The bytes of key and value in hexadecimal digits, a tab between
    Hex,
}

/// How entries are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// Key, tab, value; with \n, \t, \\ and \xNN for what would not show
    #[default]
    Tsv,
    /// Key, comma, value; fields in quotes where they need it (RFC 4180), other bytes as they are
    Csv,
    /// An object a line: {"key": …, "value": …}
    #[value(alias = "jsonl")]
    Json,
    /// The bytes of key and value in hexadecimal digits, a tab between
    Hex,
}

#[derive(Debug, Args)]
pub struct LoadArgs {
    #[command(flatten)]
    pub at: IndexArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    /// Files to read; standard input if none is given, or `-`
    #[arg(value_name = "FILE", conflicts_with = "tree")]
    pub files: Vec<PathBuf>,
    /// Format of the input
    #[arg(long, value_enum, default_value = "lines", conflicts_with = "tree")]
    pub format: Format,
    /// The first record of each CSV file is a heading
    #[arg(long, conflicts_with = "tree")]
    pub header: bool,
    /// With --format csv: columns of the key and the value, from 1
    ///
    /// Without it a record has two columns.
    #[arg(long, value_name = "KEY,VALUE", value_parser = columns, conflicts_with = "tree")]
    pub columns: Option<[usize; 2]>,
    /// Load a directory tree: paths, with size and time of each file
    ///
    /// The size is in bytes, the time of modification in seconds.
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Load a table of a redb file, with its types
    ///
    /// It needs a build with the feature `redb`: `cargo install durix-cli --features redb`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tree", "files", "format", "key_type", "value_type"])]
    pub redb: Option<PathBuf>,
    /// With --redb: the table, if there are several
    #[arg(long, value_name = "NAME", requires = "redb")]
    pub table: Option<String>,
    /// Size in bytes that the pool can grow to
    #[arg(long, value_name = "BYTES")]
    pub max_size: Option<u64>,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Print how many entries of the input are durable, again and again
    ///
    /// It does so up to ten times a second. After an interruption, a load can go on with the entry after the last number.
    #[arg(long)]
    pub acknowledge: bool,
}

/// Two numbers of columns, as indices.
fn columns(text: &str) -> Result<[usize; 2], String> {
    let number = |text: &str| text.trim().parse().ok().and_then(|number: usize| number.checked_sub(1));
    text.split_once(',')
        .and_then(|(key, value)| Some([number(key)?, number(value)?]))
        .ok_or_else(|| "two numbers from 1 are expected, as in 1,3".to_owned())
}

#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    pub at: IndexArgs,
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// Print the bytes of the value as they are, without a newline
    #[arg(long, conflicts_with_all = ["json", "format"])]
    pub raw: bool,
    /// How the value is printed; --json is --format json
    #[arg(long, value_enum, default_value = "tsv", conflicts_with = "json")]
    pub format: Shown,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    #[command(flatten)]
    pub at: IndexArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// The value
    #[arg(allow_negative_numbers = true)]
    pub value: OsString,
    /// Make the pool and the index if they do not exist
    #[arg(long)]
    pub create: bool,
    /// Do nothing if the key is there already (exit code 1)
    #[arg(long)]
    pub if_absent: bool,
}

#[derive(Debug, Args)]
pub struct DelArgs {
    #[command(flatten)]
    pub at: IndexArgs,
    /// The keys
    #[arg(required = true, allow_negative_numbers = true)]
    pub keys: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The script; standard input if none is given, or `-`
    ///
    /// Lines are `put INDEX KEY VALUE`, `del INDEX KEY` and `get INDEX KEY`, read with the escapes that `scan` writes (\x20 is a space in a
    /// key; a key and a space after it put an empty value). Empty lines and lines that begin with # are skipped. All changes are made together,
    /// or none
    #[arg(value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ScanArgs {
    #[command(flatten)]
    pub at: IndexArgs,
    /// Only keys with this prefix
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
    /// Only keys from this one on
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub from: Option<OsString>,
    /// Only keys before this one
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub to: Option<OsString>,
    /// From the largest key down
    #[arg(long)]
    pub reverse: bool,
    /// At most N entries
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Do not print values
    #[arg(long)]
    pub keys_only: bool,
    /// Do not sort
    ///
    /// Without this option the entries of a kind that keeps no order are sorted, which takes memory for what is printed.
    #[arg(long, conflicts_with = "reverse")]
    pub unsorted: bool,
    /// How entries are printed; `load` reads each of them. --json is --format json
    #[arg(long, value_enum, default_value = "tsv", conflicts_with = "json")]
    pub format: Shown,
    /// Begin CSV with a heading
    #[arg(long)]
    pub header: bool,
}

#[derive(Debug, Args)]
pub struct StatArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// One index only
    #[arg(long, value_name = "NAME")]
    pub index: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ScrubArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(flatten)]
    pub stat: StatArgs,
    /// Print a line of figures every SECONDS (1), until it is interrupted
    ///
    /// Commits are those of the journal: `-` for a pool that is closed, on persistent memory, or at level process.
    /// There no file holds their numbers.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "index")]
    pub watch: Option<u32>,
    /// With --watch: end after N lines
    #[arg(long, value_name = "N", requires = "watch")]
    pub times: Option<u64>,
}

#[derive(Debug, Args)]
pub struct RepairArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The new pool
    #[arg(long, value_name = "FILE")]
    pub into: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DumpArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// One index only
    #[arg(long, value_name = "NAME")]
    pub index: Option<String>,
    /// Sort by key if the kind keeps no order (takes memory for the whole index)
    #[arg(long, conflicts_with = "redb")]
    pub sort: bool,
    /// Write a new redb file instead: a table for each index, with its types
    ///
    /// It needs a build with the feature `redb`: `cargo install durix-cli --features redb`. Types: bytes, string, u32, u64, i64 and u128;
    /// values also f64, bool and ().
    #[arg(long, value_name = "FILE")]
    pub redb: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The dump; standard input if none is given, or `-`
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Make all indices of this kind, instead of the kind that was dumped
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CopyArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The new pool
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompactArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Update heavy: 50% reads, 50% updates
    A,
    /// Read mostly: 95% reads, 5% updates
    B,
    /// Read only
    C,
    /// Read latest: 95% reads of what was inserted lately, 5% inserts
    D,
    /// Short ranges: 95% scans of 1 to 100 keys, 5% inserts (ordered kinds only)
    E,
    /// Read, modify, write: 50% reads, 50% read-modify-writes
    F,
    /// TPC-C's new-order: transactions over five maps; --keys are items, --ops orders, --threads terminals
    TpccNeworder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Each key is equally likely
    Uniform,
    /// Few keys most of the time (0.99), spread over the key space
    Zipfian,
    /// Few keys most of the time (0.99): the ones inserted last
    Latest,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The kind of index
    #[arg(long, value_name = "KIND", default_value = durix::kind::DEFAULT)]
    pub kind: String,
    /// Compare all kinds on the keys in this file, and recommend one
    ///
    /// Each line of the file is a key. Kinds that do not take these keys are left out.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "workload", "distribution", "threads"])]
    pub keys_from: Option<PathBuf>,
    /// With --keys-from: the type of the keys; u64 lets more kinds take part
    #[arg(long, value_name = "TYPE", requires = "keys_from")]
    pub key_type: Option<TypeTag>,
    /// With --keys-from: where the times are drawn as an SVG picture
    ///
    /// Unless set: beside the file of the keys, with .svg at the end of its name.
    #[arg(long, value_name = "FILE", requires = "keys_from")]
    pub svg: Option<PathBuf>,
    /// The workload: one of YCSB, or tpcc-neworder
    #[arg(long, value_name = "NAME", value_enum, ignore_case = true, default_value = "a")]
    pub workload: Workload,
    /// How keys are chosen
    ///
    /// Unless set: zipfian, and latest for workload D
    #[arg(long, value_name = "NAME", value_enum)]
    pub distribution: Option<Distribution>,
    /// Number of keys at the start
    ///
    /// Unless set: 1,000,000, or as many as the kind is meant for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub keys: Option<u64>,
    /// Operations of all threads together
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// Threads
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub threads: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    pub value_bytes: u64,
    /// Milliseconds between two checkpoints, where the kind is buffered
    #[arg(long, default_value_t = 64, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub checkpoint_ms: u64,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Folder of the pool, which is removed afterwards
    ///
    /// Unless set: DURIX_DIR or /dev/shm
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Take the folder as persistent memory only if it is
    ///
    /// Without this option any folder is taken as persistent memory. With it nothing is written back, but as --durability asks.
    #[arg(long)]
    pub page_cache: bool,
    /// With --page-cache: which crashes a change survives
    ///
    /// immediate, interval=64ms or process: as of the other commands
    #[arg(long, value_name = "LEVEL", default_value = "process", requires = "page_cache")]
    pub durability: Level,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TortureMedium {
    /// Only lines that were written back and fenced survive the kill, and some that were evicted
    Shadow,
    /// What the machine offers: on an ordinary file every store survives a kill
    Hardware,
}

#[derive(Clone, Debug, Args)]
pub struct TortureArgs {
    /// The kind of index; or `transactions`: bank transfers across three maps of different kinds
    pub kind: String,
    /// How often the process is killed and its files are verified
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Threads of the process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: u64,
    /// What survives a kill
    #[arg(long, value_enum, default_value = "shadow")]
    pub medium: TortureMedium,
    /// Work on a pool with a journal: immediate or interval=5ms
    ///
    /// What a thread has waited for (immediate) or a sync covers (interval=5ms) must be in the files when the process is killed.
    #[arg(long, value_name = "LEVEL", default_value = "process")]
    pub durability: Level,
    /// Seed of everything random but the moments of the kills
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of keys; a hundred to a million over the rounds unless set, if the kind is meant for as many
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub keys: Option<u64>,
    /// Largest size of the pool in bytes
    ///
    /// With more keys than fit, the pool is full all the time, and what it refuses must have changed nothing.
    #[arg(long, value_name = "BYTES", default_value_t = crate::torture::DEFAULT_MAX_SIZE, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub max_size: u64,
    /// Folder to work in; DURIX_DIR or /dev/shm unless set
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Self-test: leave one fence of an insert out, which has to be found
    #[arg(long, hide = true)]
    pub plant: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TortureChildArgs {
    pub kind: String,
    #[arg(long)]
    pub dir: PathBuf,
    #[arg(long)]
    pub threads: u64,
    #[arg(long)]
    pub seed: u64,
    #[arg(long)]
    pub keys: u64,
    #[arg(long, value_enum)]
    pub medium: TortureMedium,
    #[arg(long)]
    pub durability: Level,
    #[arg(long, default_value_t = crate::torture::DEFAULT_MAX_SIZE)]
    pub max_size: u64,
    #[arg(long)]
    pub plant: bool,
}
