//! Works on a pool on a DAX file system, and says what it finds there: the program that `ci/dax-vm.sh` runs inside its
//! virtual machine. It works on any other file system, too.
//!
//! ```text
//! dax_probe describe POOL [TEXT…]      what the pool chose; fails unless each TEXT is part of what it says
//! dax_probe verify POOL ACKNOWLEDGED   recovers; everything acknowledged must be there
//! dax_probe work POOL ACKNOWLEDGED     the same, then updates without end, each acknowledged by a line once it is durable
//! dax_probe torture POOL ROUNDS        runs `work` as a child, kills it (SIGKILL), verifies, round after round
//! ```
//!
//! What update number `n` does follows from `n` alone. So the contents after a crash must be those after some number of
//! updates that is not less than the number acknowledged, not merely contain what was acknowledged.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use durix_pmem::backing::{Backing, FileBacking};
use durix_pmem::{Medium, Pool, PoolOptions, Session};
use durix_pset::{PersistentSet, SetOptions};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Keys that the updates go to.
const KEYS: u64 = 1000;
/// Updates that may have happened beyond the last one whose acknowledgement was seen: what a pipe or a console can hold.
const UNSEEN: u64 = 100_000;

const USAGE: &str = "usage: dax_probe describe POOL [TEXT…] | verify POOL N | work POOL N | torture POOL ROUNDS";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dax_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Result<()> {
    match *args {
        ["describe", pool, ref wanted @ ..] => describe(pool.as_ref(), wanted),
        ["verify", pool, acknowledged] => Probe::open(pool.as_ref())?.verify(acknowledged.parse()?).map(drop),
        ["work", pool, acknowledged] => work(pool.as_ref(), acknowledged.parse()?),
        ["torture", pool, rounds] => torture(pool.as_ref(), rounds.parse()?),
        _ => Err(USAGE.into()),
    }
}

/// Says what the pool chose. Each of `wanted` must be part of it.
fn describe(path: &Path, wanted: &[&str]) -> Result<()> {
    let kind = FileBacking::create(path)?.kind();
    let pool = open(path)?;
    let sync = if is_mapped_synchronously(path)? { "MAP_SYNC" } else { "not MAP_SYNC" };
    let text = format!("{kind}, {sync}; {}; {}", pool.mapping().medium().describe(), pool.guarantee());
    println!("pool: {text}");
    match wanted.iter().find(|w| !text.contains(**w)) {
        Some(missing) => Err(format!("it does not say \"{missing}\"").into()),
        None => Ok(()),
    }
}

/// Whether the kernel says of every mapping of the file that its page faults are synchronous.
fn is_mapped_synchronously(path: &Path) -> Result<bool> {
    let path = path.canonicalize()?;
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let (mut ours, mut flags) = (false, Vec::new());
    for line in smaps.lines() {
        if let Some(list) = line.strip_prefix("VmFlags:") {
            flags.extend(ours.then(|| list.split_whitespace().any(|f| f == "sf")));
        } else if line.split_whitespace().next().is_some_and(|first| first.contains('-')) {
            ours = line.ends_with(&*path.to_string_lossy());
        }
    }
    Ok(!flags.is_empty() && flags.iter().all(|sync| *sync))
}

fn open(path: &Path) -> Result<Pool> {
    // Small, so that it grows while it is in use.
    Ok(PoolOptions::new().initial_size(1 << 20).max_size(256 << 20).open_or_create(path)?)
}

// ---- updates ----

fn mix(number: u64) -> u64 {
    let z = (number.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ z >> 31
}

/// What update `number` does: to which key, and which value it maps it to, or none.
fn update(number: u64) -> (u64, Option<Vec<u8>>) {
    let random = mix(number);
    let len = (random >> 20) % 3000;
    let value = (!(random >> 40).is_multiple_of(4)).then(|| (0..len).map(|i| (number + i) as u8).collect());
    (random % KEYS, value)
}

/// The contents as a map, and how many of its keys differ from those of the set.
#[derive(Default)]
struct Model {
    found: BTreeMap<u64, Vec<u8>>,
    contents: BTreeMap<u64, Vec<u8>>,
    different: usize,
}

impl Model {
    fn new(found: BTreeMap<u64, Vec<u8>>) -> Self {
        Model { different: found.len(), found, ..Model::default() }
    }

    fn apply(&mut self, number: u64) {
        let (key, value) = update(number);
        let differs = |m: &Model| usize::from(m.found.get(&key) != m.contents.get(&key));
        self.different -= differs(self);
        match value {
            Some(value) => self.contents.insert(key, value),
            None => self.contents.remove(&key),
        };
        self.different += differs(self);
    }
}

struct Probe {
    set: Arc<PersistentSet>,
    session: Session,
    pool: Pool,
}

impl Probe {
    fn open(path: &Path) -> Result<Probe> {
        let pool = open(path)?;
        let set = PersistentSet::open_with(&pool, "probe", &SetOptions::default().shards(4))?;
        Ok(Probe { set, session: pool.session()?, pool })
    }

    /// Checks that the contents are those after some number of updates, `acknowledged` or more. Returns that number.
    fn verify(&mut self, acknowledged: u64) -> Result<u64> {
        let op = self.session.enter()?;
        let findings = self.set.check(&op)?;
        if !findings.is_empty() {
            return Err(format!("the set is not sound: {findings:?}").into());
        }
        let mut found = BTreeMap::new();
        for key in 0..KEYS {
            if let Some(value) = self.set.get_vec(&op, &key.to_le_bytes())? {
                found.insert(key, value);
            }
        }
        let mut model = Model::new(found);
        for number in 0..acknowledged + UNSEEN {
            if number >= acknowledged && model.different == 0 {
                let size = self.pool.mapping().len() >> 10;
                println!("verified: {acknowledged} acknowledged, {number} found, in a pool of {size} KiB");
                return Ok(number);
            }
            model.apply(number);
        }
        Err(format!("of {acknowledged} acknowledged updates, some are lost").into())
    }

    fn update(&mut self, number: u64) -> Result<()> {
        let (key, value) = update(number);
        let op = self.session.enter()?;
        match value {
            Some(value) => self.set.insert(&op, &key.to_le_bytes(), &value)?,
            None => self.set.remove(&op, &key.to_le_bytes())?,
        };
        Ok(())
    }
}

/// Updates until it is killed.
fn work(path: &Path, acknowledged: u64) -> Result<()> {
    let mut probe = Probe::open(path)?;
    let mut out = std::io::stdout();
    for number in probe.verify(acknowledged)?.. {
        probe.update(number)?;
        // Returned: durable. In one write, so that a line is seen whole or not at all.
        out.write_all(format!("acknowledged {}\n", number + 1).as_bytes())?;
    }
    Ok(())
}

/// Kills children at work, and verifies.
fn torture(path: &Path, rounds: u64) -> Result<()> {
    let mut acknowledged = 0;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("work")
            .arg(path)
            .arg(acknowledged.to_string())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("the child has no output")?).lines();
        // Some are killed while they recover, most at work.
        let until = Instant::now() + Duration::from_millis(mix(round) % 1200);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            child.kill().and_then(|()| child.wait())
        });
        for line in lines {
            if let Some(number) = line?.strip_prefix("acknowledged ") {
                acknowledged = number.parse()?;
            }
        }
        let status = killer.join().map_err(|_| "the thread that kills panicked")??;
        if status.code().is_some() {
            return Err(format!("the child ended by itself in round {round}: {status}").into());
        }
    }
    let found = Probe::open(path)?.verify(acknowledged)?;
    println!("torture: {rounds} processes killed, {found} updates, nothing lost");
    Ok(())
}
