//! Kills processes that work on a pool: what the torture tests of single structures share. These are in `tests/`, and not with their
//! structures, since this package is not optimised: they compile for long and compute little. The command's `torture` has a driver of
//! its own, which needs no test binary.
//!
//! A test runs its own binary as a child, which has a test named `child` as its body ([`task`]). Each thread of the child counts
//! on a [`Board`], a file, how many operations it has begun and ended. The parent kills the child at a random moment ([`kill`]) and
//! compares what is left with a model: ended operations must be found, the one in between may have happened or not.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use durix_pmem::backing::FileBacking;
use durix_pmem::testing::Shadow;
pub use durix_pmem::testing::mix;
use durix_pmem::{Hardware, Medium, Pool, PoolOptions};

/// The variable by which a child learns its task.
const TASK: &str = "DURIX_TORTURE_CHILD";
/// The file of the pool, in the folder of the torture.
pub const POOL: &str = "pool";
/// Largest size of the pool in bytes.
pub const MAX_SIZE: u64 = 64 << 20;

/// Rounds of a torture: `usual` of them, 500 with `DURIX_DEEP`, or `DURIX_TORTURE_ROUNDS`.
pub fn rounds(usual: u64) -> u64 {
    let rounds = std::env::var("DURIX_TORTURE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    rounds.unwrap_or(if std::env::var_os("DURIX_DEEP").is_some() { 500 } else { usual })
}

/// How far a thread has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Operations begun.
    pub begun: u64,
    /// Operations ended: one less than begun, or as many. Of a structure that promises later, operations promised.
    pub ended: u64,
}

/// Where threads count their operations: a file that outlives them.
#[derive(Debug)]
pub struct Board {
    file: File,
    threads: u64,
}

/// Bytes of a thread's two numbers.
const ENTRY: u64 = 16;

impl Board {
    /// The board in a folder, made where there is none.
    ///
    /// # Panics
    /// If the file system refuses.
    pub fn open(dir: &Path, threads: u64) -> Board {
        let path = dir.join("counters");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Board { file: file.expect("the counters"), threads }
    }

    /// Sets all numbers to zero.
    ///
    /// # Panics
    /// If the file system refuses.
    pub fn clear(&self) {
        self.file.set_len(0).expect("clearing the counters");
        self.file.set_len(self.threads * ENTRY).expect("clearing the counters");
    }

    /// Notes that a thread begins its operation of a number, counted from 0.
    pub fn begin(&self, thread: u64, number: u64) {
        self.set(thread * ENTRY, number + 1);
    }

    /// Notes that the operation has returned, or, of a structure that promises later, that it and those before it are promised.
    pub fn end(&self, thread: u64, number: u64) {
        self.set(thread * ENTRY + 8, number + 1);
    }

    /// How far a thread has come.
    pub fn progress(&self, thread: u64) -> Progress {
        Progress { begun: self.get(thread * ENTRY), ended: self.get(thread * ENTRY + 8) }
    }

    /// Operations that all threads have begun and ended.
    pub fn total(&self) -> Progress {
        (0..self.threads).map(|thread| self.progress(thread)).fold(Progress { begun: 0, ended: 0 }, |sum, one| {
            Progress { begun: sum.begun + one.begun, ended: sum.ended + one.ended }
        })
    }

    fn set(&self, at: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), at).expect("writing a counter");
    }

    fn get(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).expect("reading a counter");
        u64::from_le_bytes(bytes)
    }
}

// ---- the child ----

/// The words of this process's task; `None` where it is no child. From then on a panic in any thread ends the child at once, and is
/// told: after the kill nobody would hear of it.
pub fn task() -> Option<Vec<String>> {
    let task = std::env::var(TASK).ok()?;
    std::panic::set_hook(Box::new(|info| {
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{info}");
        std::process::exit(70);
    }));
    Some(task.split(' ').map(str::to_owned).collect())
}

/// Opens and recovers the pool of a folder under `Shadow`: only lines that were written back and fenced, and some others by chance,
/// reach its file.
///
/// # Panics
/// If it cannot be opened.
pub fn open<M: Medium>(dir: &Path, seed: u64, medium: impl FnOnce(Shadow<Hardware>) -> M) -> Pool<M> {
    open_up_to(MAX_SIZE, dir, seed, medium)
}

/// As [`open`], of a pool with another largest size.
///
/// # Panics
/// If it cannot be opened.
pub fn open_up_to<M: Medium>(
    max_size: u64,
    dir: &Path,
    seed: u64,
    medium: impl FnOnce(Shadow<Hardware>) -> M,
) -> Pool<M> {
    let file = FileBacking::create(dir.join(POOL)).expect("the file of the pool");
    let (backing, shadow) = Shadow::over(Hardware::PAGE_CACHE, file, 200, seed);
    let unrecovered = PoolOptions::new().max_size(max_size).open_on(backing, medium(shadow)).expect("a pool");
    unrecovered.recover().expect("recovered")
}

// ---- the parent ----

/// Runs a child for a while, and kills it. Kills before its first operation are those of every fourth seed.
///
/// # Errors
/// What it said, if it ended by itself.
///
/// # Panics
/// If no process can be started or killed.
pub fn kill(board: &Board, task: &str, seed: u64) -> Result<(), String> {
    // On a busy machine its start may take longer than its life is to be.
    let is_at_work = || seed.is_multiple_of(4) || board.total().begun > 0;
    kill_when(board, task, is_at_work, Duration::from_micros(3000 + mix(seed) % 45_000))
}

/// Runs a child until something is so, if it does not end by itself before, and for a while more; then kills it.
///
/// # Errors
/// What it said, if it ended by itself.
///
/// # Panics
/// If no process can be started or killed.
pub fn kill_when(board: &Board, task: &str, is_so: impl Fn() -> bool, and_then: Duration) -> Result<(), String> {
    board.clear();
    let mut child = Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", "child", "--test-threads=1"])
        .env(TASK, task)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    while !is_so() && child.try_wait().expect("its state").is_none() {
        std::thread::sleep(Duration::from_micros(500));
    }
    std::thread::sleep(and_then);
    child.kill().expect("a kill");
    let output = child.wait_with_output().expect("its end");
    // What it told counts, too, if the kill came before its end.
    if output.status.code().is_some() || !output.stderr.is_empty() {
        return Err(format!("the child ended by itself: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}
