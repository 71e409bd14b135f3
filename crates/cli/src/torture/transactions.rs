//! `torture transactions`: bank transfers across three maps of different kinds, killed again and again.
//!
//! The process moves amounts between accounts in any of three maps, in transactions of several threads. Each transaction also
//! writes its number for its thread into the first and the last map. Another thread takes snapshots and sums the accounts up.
//! After a kill: the sum is as it was; both maps hold the same number of each thread; it is at least that of the last
//! transaction that had returned (at intervals: that a completed sync covers), and at most that of the last one begun.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use durix::{Db, Level, Map, Medium, Pool, PoolOptions, Snapshot};
use durix_pmem::backing::FileBacking;
use durix_pmem::testing::{Shadow, mix};
use durix_pmem::{Hardware, Mutating, Mutation, Plan as Mutants, Site, SiteKind};
use serde_json::json;

use super::board::Board;
use super::child::SEGMENT;
use super::{DEFAULT_MAX_SIZE, POOL, default_dir, progress, random_seed};
use crate::args::{TortureArgs, TortureChildArgs, TortureMedium};
use crate::failure::{Code, Failure};
use crate::output;

/// What the command calls it.
pub const NAME: &str = "transactions";
/// The kinds of the three maps, one row for each pool in turn: all strict, and mixed with a buffered one.
const KINDS: [[&str; 3]; 7] = [
    ["pset", "skiplist", "hash"],
    ["bplustree", "dptree", "hash"],
    ["masstree", "bplustree", "dptree"],
    ["masstree", "hash-fast-open", "pset"],
    ["hash-values", "bst", "hash"],
    ["skiplist", "masstree", "hash"],
    ["dptree", "pset", "bplustree"],
];
const MAPS: [&str; 3] = ["first", "second", "third"];
/// Rounds on one pool.
const ROUNDS_A_POOL: u64 = 10;
/// What each account begins with.
const EACH: u64 = 1000;
/// Accounts of a map, unless told.
const ACCOUNTS: u64 = 50;
/// Where the numbers of the threads are, above all accounts.
const NUMBERS: u64 = 1 << 40;
const LONGEST_WORK: Duration = Duration::from_millis(80);
const PATIENCE: Duration = Duration::from_secs(120);
/// Transactions between two syncs of a thread, of a pool that is committed at intervals.
const SYNC_EVERY: u64 = 64;
/// One store in so many also evicts a line that nobody has written back.
const EVICT_ONE_IN: u64 = 200;

/// The maps of a pool.
struct Bank<M: Medium> {
    db: Db<M>,
    maps: [Map<u64, u64, M>; 3],
    accounts: u64,
}

impl<M: Medium> Bank<M> {
    fn open(db: Db<M>, kinds: Option<[&str; 3]>, accounts: u64) -> Result<Self, durix::Error> {
        let open = |at: usize| match kinds {
            Some(kinds) => db.map_of_kind(MAPS[at], kinds[at]),
            None => db.map(MAPS[at]),
        };
        let maps = [open(0)?, open(1)?, open(2)?];
        Ok(Bank { db, maps, accounts })
    }

    fn fill(&self) -> Result<(), durix::Error> {
        for (map, key) in self.maps.iter().flat_map(|map| (0..self.accounts).map(move |key| (map, key))) {
            map.insert(&key, &EACH)?;
        }
        self.db.sync()
    }

    fn total(&self) -> u64 {
        3 * self.accounts * EACH
    }

    /// Moves an amount between two accounts, and writes the number of the thread's transaction. An account that is empty is
    /// removed.
    fn transfer(&self, random: u64, thread: u64, number: u64) -> Result<(), durix::Error> {
        let pick = |bits: u64| ((bits % 3) as usize, bits / 3 % self.accounts);
        let ((from, payer), (to, payee)) = (pick(random >> 20), pick(mix(random) >> 20));
        self.db.transaction(|tx| {
            let at = [tx.map(&self.maps[0])?, tx.map(&self.maps[1])?, tx.map(&self.maps[2])?];
            let had = at[from].get(&payer)?.unwrap_or(0);
            let amount = if random.is_multiple_of(5) { had } else { had.min(random % 100) };
            match had - amount {
                0 => _ = at[from].remove(&payer)?,
                left => _ = at[from].insert(&payer, &left)?,
            }
            let has = at[to].get(&payee)?.unwrap_or(0) + amount;
            if has > 0 {
                at[to].insert(&payee, &has)?;
            }
            at[0].insert(&(NUMBERS + thread), &(number + 1))?;
            at[2].insert(&(NUMBERS + thread), &(number + 1))?;
            Ok(())
        })
    }

    /// The sum of all accounts that a snapshot sees, and how far each thread is by the first and the last map.
    fn look(&self, snapshot: &Snapshot<M>, threads: u64) -> Result<(u64, Vec<[u64; 2]>), durix::Error> {
        let (mut sum, mut numbers) = (0, vec![[0; 2]; threads as usize]);
        for (at, map) in self.maps.iter().enumerate() {
            for pair in snapshot.map(map)?.iter() {
                let (key, value) = pair?;
                match key.checked_sub(NUMBERS) {
                    None => sum += value,
                    Some(thread) => {
                        if let Some(number) = numbers.get_mut(thread as usize) {
                            number[usize::from(at == 2)] = value;
                        }
                    }
                }
            }
        }
        Ok((sum, numbers))
    }

    /// That a snapshot holds the sum, and no half of a transaction.
    fn verify(&self, threads: u64) -> Result<Result<Vec<u64>, String>, durix::Error> {
        let (sum, numbers) = self.look(&self.db.snapshot()?, threads)?;
        if sum != self.total() {
            return Ok(Err(format!("the accounts hold {sum} in all, not {}", self.total())));
        }
        if let Some((thread, [first, third])) = numbers.iter().enumerate().find(|(_, [first, third])| first != third) {
            let what = format!("thread {thread} is at transaction {first} in the first map, at {third} in the third");
            return Ok(Err(what));
        }
        Ok(Ok(numbers.iter().map(|[first, _]| *first).collect()))
    }
}

// ---- the process that is killed ----

pub fn child(args: &TortureChildArgs) -> Result<Code, Failure> {
    let path = args.dir.join(POOL);
    let options = PoolOptions::new().max_size(DEFAULT_MAX_SIZE).durability(args.durability).journal_segment(SEGMENT);
    if args.durability != Level::Process {
        return work(options.open(&path)?, args);
    }
    if args.medium == TortureMedium::Hardware {
        return work(options.open(&path)?, args);
    }
    let (backing, medium) = Shadow::over(Hardware::PAGE_CACHE, FileBacking::open(&path)?, EVICT_ONE_IN, args.seed);
    if !args.plant {
        return work(options.open_on(backing, medium)?.recover()?, args);
    }
    let mutants = Mutants::new();
    let pool = options.open_on(backing, Mutating::new(medium, mutants))?.recover()?;
    plant(&pool, mutants)?;
    work(pool, args)
}

/// Leaves out the write-back of a transaction's intents: the last one in the code of their log.
fn plant<M: Medium>(pool: &Pool<M>, mutants: &'static Mutants) -> Result<(), Failure> {
    let db = Db::over(pool.clone());
    let maps = [db.map::<u64, u64>(MAPS[0])?, db.map::<u64, u64>(MAPS[2])?];
    // Of no thread, and no account.
    let nobody = NUMBERS + u64::from(u32::MAX);
    db.transaction(|tx| maps.iter().try_for_each(|map| tx.map(map)?.insert(&nobody, &1).map(drop)))?;
    let own = |site: &Site| site.kind == SiteKind::WriteBack && site.file.contains("transaction/log");
    let site = mutants.sites().into_iter().map(|(site, _)| site).filter(own).max_by_key(|site| site.line);
    mutants.mutate(site.ok_or_else(|| Failure::usage("a transaction writes no intents"))?, Mutation::Drop);
    Ok(())
}

/// Works until it is killed.
fn work<M: Medium>(pool: Pool<M>, args: &TortureChildArgs) -> Result<Code, Failure> {
    let board = Board::open(&args.dir)?;
    let bank = Bank::open(Db::builder().over(pool)?, None, args.keys)?;
    let begin_at = bank.verify(args.threads)?.map_err(Failure::usage)?;
    board.say_ready();
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let (bank, board) = (&bank, &board);
        let spawn = |thread: u64| {
            let first = begin_at[thread as usize];
            scope.spawn(move || transfers(bank, board, args.seed, thread, first))
        };
        let mut threads: Vec<_> = (0..args.threads).map(spawn).collect();
        threads.push(scope.spawn(move || snapshots(bank, args.threads)));
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.into_iter().collect::<Result<(), _>>()?;
    Ok(Code::Done)
}

fn transfers<M: Medium>(bank: &Bank<M>, board: &Board, seed: u64, thread: u64, first: u64) -> Result<(), Failure> {
    let at_intervals = matches!(bank.db.pool().level(), Some(Level::Interval(_)));
    for number in first.. {
        board.begin(thread, number);
        if let Err(error) = bank.transfer(mix(seed ^ mix(thread << 48 | number)), thread, number) {
            fail(&error.to_string());
        }
        board.end(thread, number);
        if at_intervals && number % SYNC_EVERY == SYNC_EVERY - 1 {
            if let Err(error) = bank.db.sync() {
                fail(&error.to_string());
            }
            board.synced(thread, number + 1);
        }
    }
    Ok(())
}

fn snapshots<M: Medium>(bank: &Bank<M>, threads: u64) -> Result<(), Failure> {
    loop {
        match bank.verify(threads) {
            Ok(Ok(_)) => std::thread::sleep(Duration::from_micros(500)),
            Ok(Err(what)) => fail(&format!("in a snapshot: {what}")),
            Err(error) => fail(&error.to_string()),
        }
    }
}

/// Ends the process: the other threads work for ever.
fn fail(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(3)
}

// ---- the process that kills ----

struct Torture<'a> {
    args: &'a TortureArgs,
    dir: &'a Path,
    board: Board,
    seed: u64,
    accounts: u64,
    kinds: [&'static str; 3],
    /// What was found last of each thread.
    numbers: Vec<u64>,
    kills: u64,
    in_recovery: u64,
}

pub fn run(args: &TortureArgs) -> Result<Code, Failure> {
    if args.plant && args.medium == TortureMedium::Hardware {
        return Err(Failure::usage("a write-back is left out on the shadow medium only"));
    }
    let seed = args.seed.unwrap_or_else(random_seed);
    let folder = args.dir.clone().unwrap_or_else(default_dir);
    let made = tempfile::Builder::new().prefix("durix-torture-").tempdir_in(&folder);
    let dir = made.map_err(Failure::io(format!("making a folder in {}", folder.display())))?;
    let board = Board::open(dir.path())?;
    let accounts = args.keys.unwrap_or(ACCOUNTS);
    let (kinds, path) = (KINDS[0], dir.path());
    let (numbers, kills, in_recovery) = (Vec::new(), 0, 0);
    let mut torture = Torture { args, dir: path, board, seed, accounts, kinds, numbers, kills, in_recovery };
    let (start, bar) = (Instant::now(), progress(args));
    for round in 0..args.rounds {
        if let Err(what) = torture.round(round)? {
            bar.finish_and_clear();
            let kinds = torture.kinds;
            return lost(args, seed, round, kinds, &what, &dir.keep());
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    torture.done(start.elapsed())
}

impl Torture<'_> {
    fn round(&mut self, round: u64) -> Result<Result<(), String>, Failure> {
        if round.is_multiple_of(ROUNDS_A_POOL) {
            self.new_pool(round / ROUNDS_A_POOL)?;
        }
        let random = mix(self.seed ^ mix(round));
        if random.is_multiple_of(3)
            && let Err(what) = self.kill(random ^ 1, Some(Duration::from_micros(random >> 32 & 0x3fff)))?
        {
            return Ok(Err(what));
        }
        self.kill(random, None)
    }

    fn new_pool(&mut self, number: u64) -> Result<(), Failure> {
        self.numbers = vec![0; self.args.threads as usize];
        self.kinds = KINDS[(number % KINDS.len() as u64) as usize];
        let path = self.dir.join(POOL);
        let _ = std::fs::remove_file(durix_pmem::journal::DiskJournal::path_of(&path));
        let _ = std::fs::remove_file(durix_pmem::journal::DiskJournal::sums_of(&path));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::Io { what: format!("removing {}", path.display()), source: error });
            }
            _ => {}
        }
        let pool = PoolOptions::new().initial_size(1 << 20).max_size(DEFAULT_MAX_SIZE).create(&path)?;
        let bank = Bank::open(Db::over(pool), Some(self.kinds), self.accounts)?;
        bank.fill()?;
        let Bank { db, maps, .. } = bank;
        drop(maps);
        Ok(db.close()?)
    }

    /// Kills a child: so long after its start, or at some time after it has recovered. Then verifies what is left.
    fn kill(&mut self, random: u64, early: Option<Duration>) -> Result<Result<(), String>, Failure> {
        self.board.clear();
        let mut child = self.spawn(random)?;
        match early {
            Some(time) => std::thread::sleep(time),
            None => {
                let start = Instant::now();
                while !self.board.is_ready() && start.elapsed() < PATIENCE && matches!(child.try_wait(), Ok(None)) {
                    std::thread::sleep(Duration::from_micros(200));
                }
                std::thread::sleep(LONGEST_WORK.mul_f64((random >> 40 & 0xffff) as f64 / 65536.0));
            }
        }
        child.kill().map_err(Failure::io("killing the child"))?;
        let output = child.wait_with_output().map_err(Failure::io("waiting for the child"))?;
        if let Some(code) = output.status.code() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Ok(Err(format!("the process ended by itself with code {code}: {}", said.trim())));
        }
        self.kills += 1;
        self.in_recovery += u64::from(!self.board.is_ready());
        self.verify()
    }

    fn spawn(&self, seed: u64) -> Result<std::process::Child, Failure> {
        let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let medium = if self.args.medium == TortureMedium::Shadow { "shadow" } else { "hardware" };
        let mut command = Command::new(own);
        command
            .args(["torture-child", NAME, "--medium", medium])
            .args(["--threads", &self.args.threads.to_string(), "--seed", &seed.to_string()])
            .args(["--keys", &self.accounts.to_string()])
            .args(["--durability", &self.args.durability.to_string()])
            .arg("--dir")
            .arg(self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if self.args.plant {
            command.arg("--plant");
        }
        command.spawn().map_err(Failure::io("starting this program again"))
    }

    /// Looks at what the kill has left, without changing it.
    fn verify(&mut self) -> Result<Result<(), String>, Failure> {
        let options = PoolOptions::new().read_only(true).accept_unclean(self.args.durability == Level::Process);
        let opened = options.open(self.dir.join(POOL)).map_err(durix::Error::from);
        let opened = opened.and_then(|pool| Bank::open(Db::builder().over(pool)?, None, self.accounts));
        let bank = match opened {
            Ok(bank) => bank,
            Err(error) => return Ok(Err(format!("what was left cannot be opened: {error}"))),
        };
        let numbers = match bank.verify(self.args.threads)? {
            Ok(numbers) => numbers,
            Err(what) => return Ok(Err(what)),
        };
        for (thread, &number) in (0..).zip(&numbers) {
            let done = self.board.progress(thread);
            // What an earlier child has left, and was found before, is not lost any more.
            let before = self.numbers[thread as usize];
            let (least, how) = match self.args.durability {
                Level::Interval(_) => (done.synced.max(before), "was synced"),
                _ => (done.ended.max(before), "had returned"),
            };
            if !(least..=done.begun.max(before)).contains(&number) {
                let begun = done.begun;
                let what =
                    format!("thread {thread}: transaction {least} {how}, {begun} was begun, and {number} is found");
                return Ok(Err(what));
            }
        }
        self.numbers = numbers;
        for map in &bank.maps {
            if let Some(finding) = map.check()?.first() {
                return Ok(Err(format!("check of {}: {finding}", map.name())));
            }
        }
        Ok(Ok(()))
    }

    fn done(&self, took: Duration) -> Result<Code, Failure> {
        let (rounds, seconds) = (self.args.rounds, took.as_secs_f64());
        let at_intervals = matches!(self.args.durability, Level::Interval(_));
        let promised = if at_intervals { "was synced" } else { "had returned" };
        if self.args.json {
            output::json(&json!({
                "lost": false, "rounds": rounds, "kills": self.kills, "kills_in_recovery": self.in_recovery,
                "seed": self.seed, "seconds": seconds,
            }))?;
        } else {
            output::line(&format!(
                "{} ({} in recovery) in {}, 3 maps of {}: every sum held, and no transaction that {promised} was lost \
                 ({seconds:.0} s, seed {})",
                output::counted(self.kills, "kill"),
                self.in_recovery,
                output::counted(rounds, "round"),
                output::counted(self.accounts, "account"),
                self.seed,
            ))?;
        }
        Ok(Code::Done)
    }
}

fn lost(args: &TortureArgs, seed: u64, round: u64, kinds: [&str; 3], what: &str, kept: &Path) -> Result<Code, Failure> {
    let pool = kept.join(POOL);
    let mut again =
        format!("durix torture {NAME} --rounds {} --threads {} --seed {seed}", (round + 1) * 2, args.threads);
    if args.durability != Level::Process {
        again.push_str(&format!(" --durability {}", args.durability));
    }
    if args.json {
        output::json(&json!({
            "lost": true, "round": round, "what": what, "seed": seed, "kinds": kinds, "pool": pool, "replay": again,
        }))?;
    } else {
        let (kinds, pool) = (kinds.join(", "), pool.display());
        output::line(&format!(
            "LOST in round {round}: {what}\n  seed    {seed}\n  kinds   {kinds}\n  pool    {pool} (as the kill has left it)\n  again   {again}"
        ))?;
    }
    Ok(Code::No)
}
