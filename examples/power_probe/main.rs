//! Takes power failures at a file system in a real kernel: the program that `ci/power-vm.sh` runs inside its virtual machine.
//!
//! The kernel's dm-log-writes target records everything that a file system writes to a disk, in the order in which it became durable.
//! `work` uses a database on that file system, and marks in the same record what was acknowledged. `replay` then makes the disk of
//! each moment at which something became durable, mounts it, opens the database, checks it, and compares it with the marks.
//!
//! ```text
//! power_probe work FOLDER ROUNDS UPDATES        a database in FOLDER, on the device-mapper device "recorded"
//! power_probe copy FROM TO                      copies a disk, but for blocks of zeroes
//! power_probe replay RECORD DISK CHANGES KIND STATES
//!                                               at least STATES flush points must be had; KIND is that of the file system; CHANGES is
//!                                               a disk for what a mounted state changes
//! ```
//!
//! `POWER_PROBE_FAULT=journal` makes `work` leave out the syncs of its journal: then `replay` must fail.
//!
//! What update number `n` of a thread does follows from the thread and `n` alone. The thread waits for each update, so the contents
//! after a power failure are those after exactly as many updates as were acknowledged, or one more. In rounds at intervals, up to as
//! many more as lie between two barriers.

mod device_mapper;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use device_mapper::{DeviceMapper, mount, unmount};
use durix::{Db, Level, Map, PoolOptions};
use durix_pmem::backing::FileBacking;
use durix_pmem::journal::BesidePool;
use durix_pmem::{JournalFile, JournalPlace};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Values = Map<u64, Vec<u8>>;

const USAGE: &str =
    "usage: power_probe work FOLDER ROUNDS UPDATES | copy FROM TO | replay RECORD DISK CHANGES KIND STATES";

/// Threads that update, each its own keys.
const THREADS: u64 = 3;
/// Keys of a thread in each map.
const KEYS: u64 = 40;
/// The maps that are there from the start, by kind.
const KINDS: [&str; 3] = ["pset", "masstree", "hash-bytes"];
/// What is made, filled, and dropped again, round by round.
const PASSING: [&str; 6] = ["bplustree", "skiplist-values", "bst-values", "hash-values", "masstree", "pset"];
/// Entries of these.
const ENTRIES: u64 = 12;
/// Updates between two barriers, in rounds at intervals.
const BARRIER: u64 = 8;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("power_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Result<()> {
    match *args {
        ["work", folder, rounds, updates] => work(folder.as_ref(), rounds.parse()?, updates.parse()?),
        ["copy", from, to] => copy(from.as_ref(), to.as_ref()),
        ["replay", record, disk, changes, kind, states] => {
            Replay::new(record.as_ref(), disk.as_ref(), changes.as_ref(), kind)?.run(states.parse()?)
        }
        _ => Err(USAGE.into()),
    }
}

fn mix(number: u64) -> u64 {
    let z = (number.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn value(seed: u64) -> Vec<u8> {
    let len = mix(seed) % 1200;
    (0..len).map(|i| (seed + i * 7) as u8).collect()
}

// ---- updates ----

/// A change of one map: which, which key, what it maps to then.
type Change = (usize, u64, Option<Vec<u8>>);

/// What update `number` of `thread` does, all or nothing: one change, or a transaction of some.
fn update(thread: u64, number: u64) -> Vec<Change> {
    let seed = mix(thread << 48 | number);
    let changes = if seed.is_multiple_of(3) { 2 + seed / 3 % 4 } else { 1 };
    let change = |i: u64| {
        let random = mix(seed + i);
        let map = (random % KINDS.len() as u64) as usize;
        // Keys of one transaction differ, so that their order is of no account.
        let key = (thread << 32) | ((random >> 8) % (KEYS / 8) * 8) | i;
        (map, key, (!(random >> 32).is_multiple_of(4)).then(|| value(seed + i)))
    };
    (0..changes).map(change).collect()
}

/// The contents of the maps that are there from the start, of one thread.
type Contents = BTreeMap<(usize, u64), Vec<u8>>;

fn apply(contents: &mut Contents, changes: Vec<Change>) {
    for (map, key, value) in changes {
        match value {
            Some(value) => contents.insert((map, key), value),
            None => contents.remove(&(map, key)),
        };
    }
}

// ---- the database ----

/// A journal whose syncs do nothing: the planted fault.
#[derive(Debug)]
struct Unsynced<T>(T);

impl JournalFile for Unsynced<Arc<dyn JournalFile>> {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn len(&self) -> durix_pmem::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> durix_pmem::Result<()> {
        self.0.read_at(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> durix_pmem::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> durix_pmem::Result<()> {
        self.0.set_len(len)
    }
    fn allocate(&self, len: u64) -> durix_pmem::Result<()> {
        self.0.allocate(len)
    }
    fn sync(&self) -> durix_pmem::Result<()> {
        Ok(())
    }
    fn sync_name(&self) -> durix_pmem::Result<()> {
        self.0.sync_name()
    }
}

impl JournalPlace for Unsynced<BesidePool> {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn open(&self, read_only: bool) -> durix_pmem::Result<Option<Arc<dyn JournalFile>>> {
        Ok(self.0.open(read_only)?.map(|file| Arc::new(Unsynced(file)) as Arc<dyn JournalFile>))
    }
    fn create(&self) -> durix_pmem::Result<Arc<dyn JournalFile>> {
        Ok(Arc::new(Unsynced(self.0.create()?)))
    }
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        self.0.sums()
    }
}

fn options() -> PoolOptions {
    // Small, so that the file grows, and checkpoints are frequent.
    PoolOptions::new().initial_size(1 << 20).max_size(256 << 20).journal_segment(128 << 10)
}

fn open(path: &Path, level: Level, fault: bool) -> Result<Db> {
    let pool = options().durability(level);
    if !fault {
        return Ok(Db::builder().pool_options(pool).open_or_create(path)?);
    }
    let (there, place) = (path.exists(), Unsynced(BesidePool::new(path)));
    let backing = FileBacking::create(path)?;
    let pool = if there {
        pool.open_journaled_on(backing, place)?.recover()?
    } else {
        pool.create_journaled_on(backing, place)?
    };
    Ok(Db::builder().over(pool)?)
}

fn maps(db: &Db) -> Result<Vec<Values>> {
    Ok(KINDS.iter().map(|kind| db.map_of_kind(kind, kind)).collect::<durix::Result<_>>()?)
}

fn passing(round: u64) -> String {
    format!("round {round}")
}

// ---- the work ----

/// Writes marks into the record.
struct Marker(DeviceMapper);

impl Marker {
    /// Of one word: what separates the words of `text` in the record is a colon.
    fn mark(&self, text: &str) -> Result<()> {
        Ok(self.0.message("recorded", &format!("mark {}", text.replace(' ', ":")))?)
    }
}

/// Rounds of opening, updating by threads, and closing. Every fourth one is at intervals.
fn work(folder: &Path, rounds: u64, updates: u64) -> Result<()> {
    let fault = match std::env::var("POWER_PROBE_FAULT").as_deref() {
        Ok("journal") => true,
        Ok(other) if !other.is_empty() => {
            return Err(format!("POWER_PROBE_FAULT={other}: there is only journal").into());
        }
        _ => false,
    };
    let (path, marker) = (folder.join("db"), Marker(DeviceMapper::open()?));
    let mark = |text: &str| marker.mark(text);
    for round in 0..rounds {
        let at_intervals = round % 4 == 3;
        mark(if at_intervals { "intervals" } else { "immediate" })?;
        let level = if at_intervals { Level::Interval(Duration::from_millis(20)) } else { Level::Immediate };
        let db = open(&path, level, fault)?;
        let maps = maps(&db)?;
        // At intervals, too: an index is made, and its types stored, by a commit of its own.
        mark("opened")?;
        std::thread::scope(|scope| -> Result<()> {
            let work = |thread| {
                let (db, maps, marker) = (&db, &maps, &marker);
                let numbers = round * updates..(round + 1) * updates;
                move || work_of(thread, db, maps, marker, numbers, at_intervals).map_err(|error| error.to_string())
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
            pass(&db, &marker, round, at_intervals)?;
            threads.into_iter().try_for_each(|thread| Ok(thread.join().map_err(|_| "a thread panicked")??))
        })?;
        drop(maps);
        db.close()?;
        // Closed is durable at all levels.
        (0..THREADS).try_for_each(|thread| mark(&format!("done {thread} {}", (round + 1) * updates)))?;
    }
    Ok(())
}

fn work_of(
    thread: u64,
    db: &Db,
    maps: &[Values],
    marker: &Marker,
    numbers: std::ops::Range<u64>,
    at_intervals: bool,
) -> Result<()> {
    for number in numbers {
        match &update(thread, number)[..] {
            [(map, key, Some(value))] => drop(maps[*map].insert(key, value)?),
            [(map, key, None)] => drop(maps[*map].remove(key)?),
            changes => db.transaction(|tx| {
                for (map, key, value) in changes {
                    let map = tx.map(&maps[*map])?;
                    match value {
                        Some(value) => drop(map.insert(key, value)?),
                        None => drop(map.remove(key)?),
                    }
                }
                Ok(())
            })?,
        }
        if at_intervals {
            if (number + 1).is_multiple_of(BARRIER) {
                db.sync()?;
            } else {
                continue;
            }
        }
        marker.mark(&format!("done {thread} {}", number + 1))?;
    }
    Ok(())
}

/// Makes this round's index, fills it in one batch, and drops that of the round before.
fn pass(db: &Db, marker: &Marker, round: u64, at_intervals: bool) -> Result<()> {
    let map: Values = db.map_of_kind(&passing(round), PASSING[(round % PASSING.len() as u64) as usize])?;
    for key in 0..ENTRIES {
        map.insert(&key, &value(round + key))?;
    }
    if at_intervals {
        db.sync()?;
    }
    marker.mark(&format!("made {round}"))?;
    if let Some(before) = round.checked_sub(1) {
        marker.mark(&format!("dropping {before}"))?;
        db.drop_index(&passing(before))?;
        marker.mark(&format!("dropped {before}"))?;
    }
    Ok(())
}

/// Copies a disk to one that holds zeroes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (File::open(from)?, OpenOptions::new().write(true).open(to)?);
    let (mut block, zeroes) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut offset = 0;
    loop {
        let count = from.read_at(&mut block, offset)?;
        if count == 0 {
            return Ok(to.sync_all()?);
        }
        if block[..count] != zeroes[..count] {
            to.write_all_at(&block[..count], offset)?;
        }
        offset += count as u64;
    }
}

// ---- the record ----

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
const SECTOR: u64 = 512;

/// What dm-log-writes has recorded; see the kernel's documentation of the target.
struct Record {
    file: File,
    /// Bytes of a sector of the record.
    sector: u64,
    /// Entries that are left.
    left: u64,
    /// Where the next one lies.
    offset: u64,
}

/// One entry of the record.
struct Entry {
    /// Where it was written, in bytes.
    offset: u64,
    bytes: Vec<u8>,
    flags: u64,
    /// The text of a mark.
    mark: String,
}

impl Entry {
    /// Whether everything before it is durable with it. A write with FUA is durable itself.
    fn is_durable(&self) -> bool {
        self.flags & (FLUSH | FUA) != 0
    }

    fn is_write(&self) -> bool {
        !self.bytes.is_empty()
    }
}

impl Record {
    fn open(path: &Path) -> Result<Record> {
        let file = File::open(path)?;
        let mut head = [0; 28];
        file.read_exact_at(&mut head, 0)?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let sector = u64::from(u32::from_le_bytes(head[24..28].try_into().expect("four bytes")));
        if word(0) != MAGIC || word(8) != 1 || !sector.is_multiple_of(SECTOR) {
            return Err(format!("{} is no record of dm-log-writes", path.display()).into());
        }
        Ok(Record { file, sector, left: word(16), offset: sector })
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut head = vec![0; self.sector as usize];
        self.file.read_exact_at(&mut head, self.offset)?;
        let word = |at: usize| u64::from_le_bytes(head[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        let (offset, len, flags, mark) = (word(0) * self.sector, word(1) * self.sector, word(2), word(3) as usize);
        let mark = if flags & MARK == 0 { String::new() } else { String::from_utf8(head[32..32 + mark].to_vec())? };
        let mut bytes = vec![0; if flags & DISCARD == 0 { len as usize } else { 0 }];
        self.file.read_exact_at(&mut bytes, self.offset + self.sector)?;
        self.left -= 1;
        self.offset += self.sector + bytes.len() as u64;
        Ok(Some(Entry { offset, bytes, flags, mark: mark.trim_end_matches('\0').to_owned() }))
    }
}

// ---- replaying ----

/// What the marks so far say.
#[derive(Default)]
struct Marks {
    opened: bool,
    at_intervals: bool,
    /// Updates that were acknowledged, and the contents after them, by thread.
    done: [(u64, Contents); THREADS as usize],
    made: BTreeSet<u64>,
    dropping: BTreeSet<u64>,
    dropped: BTreeSet<u64>,
    all: u64,
}

impl Marks {
    fn add(&mut self, text: &str) -> Result<()> {
        self.all += 1;
        match text.split(':').collect::<Vec<_>>()[..] {
            ["immediate"] => self.at_intervals = false,
            ["intervals"] => self.at_intervals = true,
            ["opened"] => self.opened = true,
            ["done", thread, number] => {
                let (thread, number) = (thread.parse::<u64>()?, number.parse()?);
                let (done, contents) = &mut self.done[thread as usize];
                (*done..number).for_each(|number| apply(contents, update(thread, number)));
                *done = number;
            }
            ["made", round] => drop(self.made.insert(round.parse()?)),
            ["dropping", round] => drop(self.dropping.insert(round.parse()?)),
            ["dropped", round] => drop(self.dropped.insert(round.parse()?)),
            // The target writes one itself at its end.
            ["dm-log-writes-end"] => {}
            _ => return Err(format!("a mark that nobody makes: {text:?}").into()),
        }
        Ok(())
    }
}

/// Checks the database of one state against the marks. Returns how many updates there were beyond those acknowledged.
fn verify(path: &Path, marks: &Marks) -> Result<u64> {
    if marks.opened && !path.exists() {
        return Err("the database is gone".into());
    }
    let db = open(path, Level::Immediate, false)?;
    let maps = maps(&db)?;
    let mut found: [Contents; THREADS as usize] = Default::default();
    for (number, map) in maps.iter().enumerate() {
        let findings = map.check()?;
        if !findings.is_empty() {
            return Err(format!("{} is not sound: {findings:?}", KINDS[number]).into());
        }
        for pair in map.iter() {
            let (key, value) = pair?;
            let thread = found.get_mut((key >> 32) as usize).ok_or("a key of nobody")?;
            thread.insert((number, key), value);
        }
    }
    let mut beyond = 0;
    for (thread, (done, contents)) in marks.done.iter().enumerate() {
        beyond += verify_thread(thread as u64, *done, contents, &found[thread], marks.at_intervals)?;
    }
    for round in marks.made.difference(&marks.dropping) {
        verify_passing(&db, *round)?;
    }
    for info in db.indices()? {
        if marks.dropped.iter().any(|round| passing(*round) == info.name) {
            return Err(format!("{:?} was dropped, and is there", info.name).into());
        }
    }
    let pages = db.pool().check_pages()?;
    if !pages.damaged.is_empty() {
        return Err(format!("damaged pages: {:?}", pages.damaged).into());
    }
    // It can be used.
    maps[0].insert(&u64::MAX, &vec![1])?;
    drop(maps);
    db.close()?;
    Ok(beyond)
}

fn verify_thread(thread: u64, done: u64, contents: &Contents, found: &Contents, at_intervals: bool) -> Result<u64> {
    let mut contents = contents.clone();
    let most = if at_intervals { BARRIER } else { 1 };
    for beyond in 0..=most {
        if contents == *found {
            return Ok(beyond);
        }
        apply(&mut contents, update(thread, done + beyond));
    }
    Err(format!(
        "thread {thread}: {done} updates were acknowledged; what is found are not these, nor up to {most} more"
    )
    .into())
}

fn verify_passing(db: &Db, round: u64) -> Result<()> {
    let name = passing(round);
    if !db.indices()?.iter().any(|info| info.name == name) {
        return Err(format!("{name:?} is gone").into());
    }
    let map: Values = db.map(&name)?;
    let findings = map.check()?;
    if !findings.is_empty() {
        return Err(format!("{name:?} is not sound: {findings:?}").into());
    }
    for key in 0..ENTRIES {
        if map.get(&key)? != Some(value(round + key)) {
            return Err(format!("{name:?} has lost key {key}").into());
        }
    }
    Ok(())
}

/// Makes a state of the disk after the other.
struct Replay {
    record: Record,
    disk: File,
    path: PathBuf,
    sectors: u64,
    /// The disk that takes what a mounted state changes.
    changes: PathBuf,
    mapper: DeviceMapper,
    kind: String,
    marks: Marks,
    /// States that were verified: at flush points, and with a part of what was written after one.
    whole: u64,
    partial: u64,
    /// Flush points with nothing written since the one before.
    same: u64,
    beyond: u64,
}

/// Where the disks of states are mounted.
const MOUNTED: &str = "/mnt";

impl Replay {
    fn new(record: &Path, disk: &Path, changes: &Path, kind: &str) -> Result<Replay> {
        let file = OpenOptions::new().read(true).write(true).open(disk)?;
        let sectors = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0))? / SECTOR;
        let record = Record::open(record)?;
        let (path, changes, kind) = (disk.to_owned(), changes.to_owned(), kind.to_owned());
        let (mapper, marks, disk) = (DeviceMapper::open()?, Marks::default(), file);
        let (whole, partial, same, beyond) = (0, 0, 0, 0);
        Ok(Replay { record, disk, path, sectors, changes, mapper, kind, marks, whole, partial, same, beyond })
    }

    fn run(&mut self, wanted: u64) -> Result<()> {
        // Everything up to a flush point is durable. What was written later, up to the next one, may be on the disk or not.
        let mut later: Vec<Entry> = Vec::new();
        let mut changed = true;
        while let Some(entry) = self.record.next()? {
            if entry.flags & MARK != 0 {
                self.marks.add(&entry.mark)?;
            } else if !entry.is_durable() {
                later.push(entry);
            } else {
                // The state of the flush point before, with all marks that came before this one.
                self.state(changed, &later)?;
                changed = !later.is_empty() || entry.is_write();
                for write in later.drain(..).chain([entry]).filter(Entry::is_write) {
                    self.disk.write_all_at(&write.bytes, write.offset)?;
                }
                self.disk.sync_data()?;
            }
        }
        self.state(true, &later)?;
        let Replay { whole, partial, same, beyond, .. } = *self;
        let done: u64 = self.marks.done.iter().map(|(done, _)| done).sum();
        println!(
            "power: {}: {whole} flush points and {partial} states between two, all sound; {done} updates in {} marks, \
             nothing acknowledged lost; {beyond} times one more was found; {same} flush points changed nothing",
            self.kind, self.marks.all
        );
        if whole < wanted {
            return Err(format!("only {whole} flush points, {wanted} are wanted").into());
        }
        Ok(())
    }

    fn state(&mut self, changed: bool, later: &[Entry]) -> Result<()> {
        if changed {
            self.verify(&[]).map_err(|error| self.describe("flush point", &*error))?;
            self.whole += 1;
        } else {
            self.same += 1;
        }
        if later.len() > 1 && self.whole.is_multiple_of(2) {
            let chosen = self.choose(later);
            self.verify(&chosen).map_err(|error| self.describe("flush point and a part of what follows", &*error))?;
            self.partial += 1;
        }
        Ok(())
    }

    fn describe(&self, what: &str, error: &dyn Error) -> String {
        let done: Vec<u64> = self.marks.done.iter().map(|(done, _)| *done).collect();
        format!(
            "LOST: {}, {what} {}, after mark {} ({done:?} acknowledged): {error}",
            self.kind, self.whole, self.marks.all
        )
    }

    /// About half of the blocks of 4096 bytes that were written, by random bits.
    fn choose(&self, later: &[Entry]) -> Vec<(u64, Vec<u8>)> {
        let mut chosen = Vec::new();
        for (number, entry) in later.iter().enumerate() {
            for (block, bytes) in entry.bytes.chunks(4096).enumerate() {
                if mix(self.whole << 40 ^ (number as u64) << 20 ^ block as u64).is_multiple_of(2) {
                    chosen.push((entry.offset + block as u64 * 4096, bytes.to_vec()));
                }
            }
        }
        chosen
    }

    /// Verifies the disk with some more writes. All changes go to a snapshot, which is thrown away.
    fn verify(&mut self, more: &[(u64, Vec<u8>)]) -> Result<()> {
        let parameters = format!("{} {} N 8", self.path.display(), self.changes.display());
        let snapshot = self.mapper.create("state", self.sectors, "snapshot", &parameters)?;
        let verified = self.verify_snapshot(&snapshot, more);
        let removed = self.mapper.remove("state");
        self.beyond += verified?;
        Ok(removed?)
    }

    fn verify_snapshot(&self, snapshot: &Path, more: &[(u64, Vec<u8>)]) -> Result<u64> {
        if !more.is_empty() {
            let snapshot = OpenOptions::new().write(true).open(snapshot)?;
            more.iter().try_for_each(|(offset, bytes)| snapshot.write_all_at(bytes, *offset))?;
            snapshot.sync_data()?;
        }
        mount(snapshot, MOUNTED, &self.kind)?;
        let verified = verify(&Path::new(MOUNTED).join("db"), &self.marks);
        let unmounted = unmount(MOUNTED);
        let beyond = verified?;
        unmounted?;
        Ok(beyond)
    }
}
