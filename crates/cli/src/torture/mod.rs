//! `torture`: a process works on a real file and is killed at random moments; what it had promised must be found.
//!
//! The command runs itself as a child ([`child`]), which recovers the index and works on it with several threads, and kills
//! it with SIGKILL: while it recovers, while it works, while its pool grows. Then it looks at the file as the kill has left
//! it, through a private mapping, so that the next child recovers the same crash again and may be killed in that. What must
//! be found is worked out from the seed and from how far each thread had said it was ([`board`], [`clocks`], [`steps`], [`verify`]).

mod board;
pub mod child;
mod clocks;
mod steps;
mod transactions;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix::{Level, Pool, PoolOptions, Session};
use durix_pmem::journal::DiskJournal;
use durix_pmem::testing::mix;
use serde_json::json;

use crate::args::{TortureArgs, TortureMedium};
use crate::failure::{Code, Failure};
use crate::output;
use board::{Board, Progress};
use steps::{Contents, Form, Plan};
use verify::Model;

/// The file of the pool, in the folder of the torture.
const POOL: &str = "pool";
/// The index in it.
const INDEX: &str = "tortured";
/// Largest size of a pool unless another one is asked for.
pub const DEFAULT_MAX_SIZE: u64 = 16 << 30;
/// Rounds on one pool, before the next one is made.
const ROUNDS_A_POOL: u64 = 10;
/// A pool in so many is of each size, the largest first that divides.
const SIZES: [(u64, u64); 5] = [(1_000_000, 25), (100_000, 8), (10_000, 4), (1_000, 2), (100, 1)];
/// Longest time that a child works.
const LONGEST_WORK: Duration = Duration::from_millis(60);
/// How long a child may take to recover before something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happened so far.
#[derive(Default)]
struct Tally {
    kills: u64,
    /// Kills of a process that had not ended its recovery.
    in_recovery: u64,
    acknowledged: u64,
    largest: u64,
    growths: u64,
    /// Operations that a full pool has refused.
    refused: u64,
}

pub fn run(args: &TortureArgs) -> Result<Code, Failure> {
    if args.kind == transactions::NAME {
        return transactions::run(args);
    }
    let kind = durix::kind::named::<durix::Hardware>(&args.kind)?;
    if args.plant && args.medium == TortureMedium::Hardware {
        return Err(Failure::usage(
            "a fence is left out on the shadow medium only: on an ordinary file every store survives a kill",
        ));
    }
    if args.max_size != DEFAULT_MAX_SIZE
        && (kind.durability != durix::Durability::Strict || args.durability != Level::Process)
    {
        return Err(Failure::usage(
            "a pool is kept full for strict kinds without a journal only: nobody can tell what others have refused",
        ));
    }
    if let Some(keys) = args.keys.filter(|keys| *keys > kind.meant_for) {
        let what = format!("{} is meant for {} keys at most, not {keys}", args.kind, kind.meant_for);
        return Err(Failure::usage(what));
    }
    let seed = args.seed.unwrap_or_else(random_seed);
    let folder = args.dir.clone().unwrap_or_else(default_dir);
    let made = tempfile::Builder::new().prefix("durix-torture-").tempdir_in(&folder);
    let dir = made.map_err(Failure::io(format!("making a folder in {}", folder.display())))?;
    let mut torture = Torture {
        args,
        kind,
        seed,
        dir: dir.path().to_owned(),
        board: Board::open(dir.path())?,
        model: Model::default(),
        keys: 0,
        size: 0,
        recovery: Duration::from_millis(5),
        tally: Tally::default(),
    };
    let start = Instant::now();
    let bar = progress(args);
    for round in 0..args.rounds {
        if let Err(what) = torture.round(round)? {
            bar.finish_and_clear();
            let kept = dir.keep();
            return failed(args, &torture, round, &what, &kept);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    succeeded(args, kind.durability, &torture, start.elapsed())
}

/// `DURIX_DIR`, or memory.
pub fn default_dir() -> PathBuf {
    let memory = || Some(PathBuf::from("/dev/shm")).filter(|dir| dir.is_dir()).unwrap_or_else(std::env::temp_dir);
    std::env::var_os("DURIX_DIR").map_or_else(memory, PathBuf::from)
}

fn random_seed() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    mix(time.map_or(0, |t| t.as_nanos() as u64) ^ u64::from(std::process::id())) >> 32
}

fn progress(args: &TortureArgs) -> indicatif::ProgressBar {
    use std::io::IsTerminal;
    if args.json || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    indicatif::ProgressBar::new(args.rounds)
}

struct Torture<'a> {
    args: &'a TortureArgs,
    kind: Entry,
    seed: u64,
    dir: PathBuf,
    board: Board,
    model: Model,
    /// Of the pool there is.
    keys: u64,
    size: u64,
    /// How long the last child took to recover.
    recovery: Duration,
    tally: Tally,
}

impl Torture<'_> {
    /// Kills one child, or several one after the other, and verifies what is left; the inner error is what was lost.
    fn round(&mut self, round: u64) -> Result<Result<(), String>, Failure> {
        if round.is_multiple_of(ROUNDS_A_POOL) {
            self.new_pool(round / ROUNDS_A_POOL)?;
        }
        let random = mix(self.seed ^ mix(round));
        // Now and then a child is killed early, and what it should have recovered is left to the next one.
        if random.is_multiple_of(3) {
            let early = self.recovery.mul_f64((random >> 32 & 0xff) as f64 / 256.0);
            if let Err(what) = self.kill_a_child(random ^ 1, Kill::AfterStart(early))? {
                return Ok(Err(what));
            }
        }
        let work = LONGEST_WORK.mul_f64((random >> 40 & 0xffff) as f64 / 65536.0);
        self.kill_a_child(random, Kill::AfterReady(work))
    }

    /// Makes a pool for the next rounds, with half of its keys.
    fn new_pool(&mut self, number: u64) -> Result<(), Failure> {
        let wanted = self.args.keys.unwrap_or_else(|| {
            // The first ones small; each size comes up within the first pools, and in its share later.
            let nth = number + 1;
            let fits = |(keys, every): &&(u64, u64)| *keys <= self.kind.meant_for && nth.is_multiple_of(*every);
            SIZES.iter().find(fits).map_or(100, |(keys, _)| *keys)
        });
        let path = self.dir.join(POOL);
        let _ = std::fs::remove_file(DiskJournal::path_of(&path));
        let _ = std::fs::remove_file(DiskJournal::sums_of(&path));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::Io { what: format!("removing {}", path.display()), source: error });
            }
            _ => {}
        }
        let pool = PoolOptions::new().initial_size(1 << 20).max_size(self.args.max_size).create(&path)?;
        let index = self.kind.open_or_create(&pool, INDEX)?;
        self.keys = wanted;
        let plan = self.plan(0, wanted);
        self.model = Model { threads: vec![Contents::new(); self.args.threads as usize], ..Model::default() };
        let mut session: Session = pool.session()?;
        for (thread, contents) in self.model.threads.iter_mut().enumerate() {
            // In no order: a search tree that does not balance itself would become a list.
            let mut numbers: Vec<u64> = (0..plan.keys_of_a_thread()).step_by(2).collect();
            numbers.sort_unstable_by_key(|number| mix(*number));
            for number in numbers {
                let id = mix(self.seed ^ mix(number << 8 | thread as u64));
                let (key, value) = (plan.form.key(thread as u64, number), plan.form.value(id));
                match index.insert(&session.enter()?, &key, &value) {
                    Err(error) if child::is_full(&error) => break,
                    inserted => inserted?,
                };
                contents.insert(number, id);
            }
        }
        index.sync(&mut session)?;
        drop((index, session));
        pool.close()?;
        self.size = file_size(&path);
        self.tally.largest = self.tally.largest.max(wanted);
        self.recovery = Duration::from_millis(5 + wanted / 1000);
        Ok(())
    }

    fn plan(&self, seed: u64, keys: u64) -> Plan {
        Plan { seed, threads: self.args.threads, keys, form: Form::of(self.kind.limits) }
    }

    fn kill_a_child(&mut self, random: u64, kill: Kill) -> Result<Result<(), String>, Failure> {
        let plan = self.plan(mix(random), self.keys);
        self.board.clear();
        let mut child = self.spawn(&plan)?;
        let mut waited = Duration::ZERO;
        match kill {
            Kill::AfterStart(time) => std::thread::sleep(time),
            Kill::AfterReady(time) => {
                while !self.board.is_ready() && waited < PATIENCE && matches!(child.try_wait(), Ok(None)) {
                    let before = Instant::now();
                    std::thread::sleep(Duration::from_micros(200));
                    // If the whole machine, or both processes, were stopped meanwhile, recovery did not get that time.
                    waited += before.elapsed().min(Duration::from_millis(20));
                }
                self.recovery = waited;
                std::thread::sleep(time);
            }
        }
        child.kill().map_err(Failure::io("killing the child"))?;
        let output = child.wait_with_output().map_err(Failure::io("waiting for the child"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if self.board.has_failed() {
            return Ok(Err(format!("an operation failed: {}", said.trim())));
        }
        if let Some(code) = output.status.code() {
            return Ok(Err(format!("the process ended by itself with code {code}: {}", said.trim())));
        }
        self.tally.kills += 1;
        if !self.board.is_ready() {
            self.tally.in_recovery += 1;
            if waited >= PATIENCE {
                return Ok(Err(format!("recovery did not end within {PATIENCE:?}")));
            }
        }
        self.verify(&plan)
    }

    fn spawn(&self, plan: &Plan) -> Result<std::process::Child, Failure> {
        let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let medium = if self.args.medium == TortureMedium::Shadow { "shadow" } else { "hardware" };
        let mut command = Command::new(own);
        command
            .args(["torture-child", &self.args.kind, "--medium", medium])
            .args(["--threads", &plan.threads.to_string(), "--seed", &plan.seed.to_string()])
            .args(["--keys", &plan.keys.to_string()])
            .args(["--durability", &self.args.durability.to_string()])
            .args(["--max-size", &self.args.max_size.to_string()])
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if self.args.plant {
            command.arg("--plant");
        }
        command.spawn().map_err(Failure::io("starting this program again"))
    }

    /// Looks at what the kill has left, without changing it.
    fn verify(&mut self, plan: &Plan) -> Result<Result<(), String>, Failure> {
        let done: Vec<Progress> = (0..plan.threads).map(|thread| self.board.progress(thread)).collect();
        self.tally.acknowledged += done.iter().map(|p| p.ended).sum::<u64>();
        self.tally.refused += (0..plan.threads).map(|thread| self.board.refused(thread)).sum::<u64>();
        let path = self.dir.join(POOL);
        let size = file_size(&path);
        self.tally.growths += u64::from(size > self.size);
        self.size = size;
        let options = PoolOptions::new().read_only(true).accept_unclean(self.args.durability == Level::Process);
        let opened = options.open(&path).map_err(durix::Error::from).and_then(|pool: Pool| {
            let index = self.kind.open(&pool, INDEX)?;
            Ok((pool, index))
        });
        let (pool, index) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(format!("what was left cannot be opened: {error}"))),
        };
        let clocks = || clocks::Clocks::open(&self.dir, plan.threads);
        if let Err(what) =
            verify::verify(&pool, &*index, &mut self.model, plan, (&done, &self.board), self.args.durability, clocks)
        {
            return Ok(Err(what));
        }
        let mut session = pool.session()?;
        let findings = index.check(&mut session)?;
        let op = session.enter()?;
        let space = pool.check_space(&op, |owner| owner == index.root().owner());
        let first = findings.iter().map(ToString::to_string).chain(space.iter().map(ToString::to_string)).next();
        Ok(first.map_or(Ok(()), |what| Err(format!("check: {what}"))))
    }
}

/// When a child is killed.
enum Kill {
    /// So long after its start: in its recovery, most likely.
    AfterStart(Duration),
    /// So long after it has recovered.
    AfterReady(Duration),
}

fn file_size(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

fn replay(args: &TortureArgs, seed: u64, rounds: u64) -> String {
    let mut command = format!("durix torture {} --rounds {rounds} --threads {} --seed {seed}", args.kind, args.threads);
    if args.medium == TortureMedium::Hardware {
        command.push_str(" --medium hardware");
    }
    if args.durability != Level::Process {
        command.push_str(&format!(" --durability {}", args.durability));
    }
    if let Some(keys) = args.keys {
        command.push_str(&format!(" --keys {keys}"));
    }
    if args.max_size != DEFAULT_MAX_SIZE {
        command.push_str(&format!(" --max-size {}", args.max_size));
    }
    if args.plant {
        command.push_str(" --plant");
    }
    command
}

fn failed(args: &TortureArgs, torture: &Torture<'_>, round: u64, what: &str, kept: &Path) -> Result<Code, Failure> {
    // The moment of a kill does not repeat; everything else does, so a few tries more than it took.
    let command = replay(args, torture.seed, (round + 1) * 2);
    if args.json {
        output::json(&json!({
            "lost": true, "round": round, "what": what, "seed": torture.seed, "keys": torture.keys,
            "pool": kept.join(POOL), "replay": command,
        }))?;
        return Ok(Code::No);
    }
    output::line(&format!(
        "LOST in round {round}: {what}\n  seed    {}\n  keys    {}\n  pool    {} (as the kill has left it)\n  again   {command}",
        torture.seed,
        torture.keys,
        kept.join(POOL).display(),
    ))?;
    Ok(Code::No)
}

fn succeeded(
    args: &TortureArgs,
    durability: durix::Durability,
    torture: &Torture<'_>,
    took: Duration,
) -> Result<Code, Failure> {
    let Tally { kills, in_recovery, acknowledged, largest, growths, refused } = &torture.tally;
    if args.json {
        output::json(&json!({
            "lost": false, "rounds": args.rounds, "kills": kills, "kills_in_recovery": in_recovery,
            "acknowledged": acknowledged, "largest_keys": largest, "growths": growths, "refused": refused, "seed": torture.seed,
            "seconds": took.as_secs_f64(),
        }))?;
        return Ok(Code::Done);
    }
    let strict = durability == durix::Durability::Strict || args.durability == Level::Immediate;
    let promise = if strict && !matches!(args.durability, Level::Interval(_)) { "acknowledged" } else { "synced" };
    output::line(&format!(
        "{} ({in_recovery} in recovery) in {}; {} ended, up to {}; growths of the pool: {growths}; operations without \
         room: {refused}. Nothing {promise} was lost ({:.0} s, seed {})",
        output::counted(*kills, "kill"),
        output::counted(args.rounds, "round"),
        output::counted(*acknowledged, "operation"),
        output::counted(*largest, "key"),
        took.as_secs_f64(),
        torture.seed,
    ))?;
    Ok(Code::Done)
}
