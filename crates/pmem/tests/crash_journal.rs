//! A journaled pool over simulated files: every state that a power failure can leave of the pool's file, of its journal, their lengths and
//! their names; in commits, checkpoints, creation and growth, in recoveries, after the death of the process; calls that fail; each sync
//! and each checksum left out.

mod bare;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bare::Bare;
use durix_crashsim::Explorer;
use durix_crashsim::fs::{FileSubject, Files, Open, SimulatedFs, SimulatedJournal, SimulatedPoolFile};
use durix_pmem::journal::{JournalFile, JournalPlace, Level};
use durix_pmem::{Error, Hardware, Off, Owner, Pool, PoolOptions, Result, Session, Word};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const LIMIT: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Stores into one of the structures.
    One(usize, u64),
    /// Stores into all of them.
    All(u64),
    /// Stores into one of the structures, in a commit that is larger than a segment.
    Wide(usize, u64),
    /// Stores into all of them, in a commit that does not fit into a segment behind another one.
    Broad(u64),
    /// Takes more space than there is.
    Grow,
    /// Takes as much as the pool has at first.
    Take,
}
use Do::{All, Broad, Grow, One, Take, Wide};

/// Which checksums are not looked at, or not written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Blind {
    #[default]
    None,
    Records,
    Headers,
    /// The checksums of pages stay what they are.
    StaleSums,
    /// Checksums of pages are written after the pages, and nothing says before what they will be.
    LateSums,
}

struct Journaled {
    /// Structures, each with a line of its own.
    structures: usize,
    blind: Blind,
    /// Whether the creation is crashed. Words of one sector can be torn: the pool's first word is there, and the salt is not, so nothing
    /// tells that its pages were never written.
    torn_creation: bool,
    /// Bytes of all segments of the journal. They have 8192 each once the structures are made.
    limit: u64,
}

struct Live {
    session: Session<Hardware>,
    words: Vec<Arc<Bare>>,
    pool: Pool,
}

impl Journaled {
    fn new(structures: usize) -> Self {
        Journaled { structures, blind: Blind::None, torn_creation: false, limit: 0 }
    }

    /// With up to three segments in its journal.
    fn growing(self) -> Self {
        Journaled { limit: 3 * 8192, ..self }
    }

    fn with_torn_creation(self) -> Self {
        Journaled { torn_creation: true, ..self }
    }

    fn open(&self, fs: &SimulatedFs) -> Result<Live> {
        let options = PoolOptions::new().chunk_size(4096).max_indices(16).lanes(2).initial_size(1).max_size(LIMIT);
        let options = options.durability(Level::Immediate).journal_segment(4096).journal_limit(self.limit);
        let options = options.pool_id([7; 16]).boot_id([4; 16]);
        let backing = || SimulatedPoolFile::new(fs, "pool", Open::OrNew, LIMIT);
        let journal = || Place { inner: SimulatedJournal::new(fs, "pool-journal"), blind: self.blind };
        let pool = match options.create_journaled_on(backing()?, journal()) {
            Err(Error::AlreadyExists { .. }) => options.open_journaled_on(backing()?, journal())?.recover()?,
            created => created?,
        };
        let open = |number: usize| pool.open_structure::<Bare>(&number.to_string(), &());
        let words = (0..self.structures).map(open).collect::<Result<_>>()?;
        let mut session = pool.session()?;
        pool.commit(&mut session)?;
        // Whatever a crash has interrupted, no page is taken for damaged, and none loses its checksum.
        let report = pool.check_pages()?;
        let as_expected =
            report.missing.is_none() && (self.torn_creation || report.unknown == 0) && report.damaged.is_empty();
        if !as_expected {
            let source = std::io::Error::other(format!("{report:?}"));
            return Err(Error::Io { action: "judging the pages".into(), source });
        }
        let spares = pool.check_spares(&session.enter()?);
        assert!(spares.is_empty(), "{spares:?}");
        Ok(Live { session, words, pool })
    }
}

impl Live {
    fn run(&mut self, what: Do) -> Result<()> {
        let op = self.session.enter()?;
        let store = |words: &Bare, value: u64| {
            let words = words.root.words(&op);
            words[..2].iter().for_each(|word| op.store(word, value, Relaxed));
            op.write_back(words);
        };
        let note_free_lines = |lines: u64| {
            let end = self.pool.mapping().len();
            op.write_back_slice(op.slice::<Word>("free lines", Off::new(end - lines * 64), lines * 8)?);
            Ok::<_, Error>(())
        };
        match what {
            One(number, value) => store(&self.words[number], value),
            All(value) => self.words.iter().for_each(|words| store(words, value)),
            Wide(number, value) => {
                store(&self.words[number], value);
                note_free_lines(150)?;
            }
            Broad(value) => {
                self.words.iter().for_each(|words| store(words, value));
                note_free_lines(100)?;
            }
            Take => drop(self.pool.space().reserve_extent(&op, Owner(0), self.pool.geometry().min_size())?),
            Grow => drop(self.pool.space().reserve_extent(&op, Owner(0), self.pool.mapping().len())?),
        }
        op.note_commit();
        drop(op);
        self.pool.settle(&mut self.session)
    }
}

impl FileSubject for Journaled {
    type Op = Do;
    type Ret = bool;
    type State = Vec<[u64; 2]>;
    type Model = Vec<u64>;
    type Live = Live;

    fn create(&self, fs: &SimulatedFs) -> Live {
        // Opened again, its journal is empty: no earlier record mends what a later one should have.
        let Live { session, words, pool } = self.open(fs).unwrap();
        drop((session, words));
        pool.close().unwrap();
        self.open(fs).unwrap()
    }
    fn recover(&self, fs: &SimulatedFs) -> Result<Live, String> {
        self.open(fs).map_err(|error| error.to_string())
    }
    fn apply(&self, live: &mut Live, what: &Do) -> bool {
        live.run(*what).is_ok()
    }
    fn observe(&self, live: &mut Live) -> Self::State {
        let op = live.session.enter().unwrap();
        live.words.iter().map(|words| [0, 1].map(|at| op.load(&words.root.words(&op)[at], Relaxed))).collect()
    }
    fn model(&self) -> Vec<u64> {
        vec![0; self.structures]
    }
    fn step(&self, model: &mut Vec<u64>, what: &Do) -> bool {
        match *what {
            One(number, value) | Wide(number, value) => model[number] = value,
            All(value) | Broad(value) => model.fill(value),
            Grow | Take => {}
        }
        true
    }
    fn expect(&self, model: &Vec<u64>) -> Self::State {
        model.iter().map(|value| [*value; 2]).collect()
    }
    fn has_failed(&self, answer: &bool) -> bool {
        !answer
    }
}

/// A journal whose checksums are made right as they are read: what a recovery would see that does not look at them.
#[derive(Debug)]
struct Place {
    inner: SimulatedJournal,
    blind: Blind,
}

impl JournalPlace for Place {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        Ok(self
            .inner
            .open(read_only)?
            .map(|file| Arc::new(Blinded { file, blind: self.blind }) as Arc<dyn JournalFile>))
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        Ok(Arc::new(Blinded { file: self.inner.create()?, blind: self.blind }))
    }
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        // The places that it knows are those of a journal.
        self.inner.sums().map(|inner| match self.blind {
            Blind::StaleSums => Arc::new(Stale(inner)) as Arc<dyn JournalPlace>,
            _ => inner,
        })
    }
}

/// Checksums of pages whose entries never change once the pool has been created.
#[derive(Debug)]
struct Stale(Arc<dyn JournalPlace>);

impl JournalPlace for Stale {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        let stale = |file| Arc::new(Blinded { file, blind: Blind::StaleSums }) as Arc<dyn JournalFile>;
        Ok(self.0.open(read_only)?.map(stale))
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        self.0.create()
    }
}

#[derive(Debug)]
struct Blinded {
    file: Arc<dyn JournalFile>,
    blind: Blind,
}

fn word(bytes: &[u8], number: usize) -> u64 {
    u64::from_le_bytes(bytes[number * 8..][..8].try_into().unwrap())
}

impl Blinded {
    /// The salt of either header.
    fn salts(&self) -> Result<Vec<u64>> {
        let mut salts = Vec::new();
        for at in [0, 4096] {
            let mut bytes = [0; 112];
            self.file.read_at(at, &mut bytes)?;
            salts.push(word(&bytes, 5));
        }
        Ok(salts)
    }

    fn mend(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if self.blind == Blind::Headers && offset < 8192 && bytes.len() == 112 {
            let sum = xxh3_64(&bytes[8..]);
            bytes[..8].copy_from_slice(&sum.to_le_bytes());
        }
        if self.blind == Blind::Records && offset >= 8192 {
            let salts = self.salts()?;
            let salt = salts.into_iter().find(|salt| *salt != 0).unwrap_or_default();
            let mut at = 0;
            while at + 64 <= bytes.len() && word(&bytes[at..], 1) == u64::from_le_bytes(*b"record\x1a\x00") {
                let len = 64 + word(&bytes[at..], 5) as usize;
                if len > bytes.len() - at {
                    break;
                }
                let sum = xxh3_64_with_seed(&bytes[at + 8..at + len], salt);
                bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
                at += len;
            }
        }
        Ok(())
    }
}

impl JournalFile for Blinded {
    fn describe(&self) -> String {
        self.file.describe()
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, bytes)?;
        self.mend(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let is_intent = bytes.len() >= 64 && word(bytes, 1) == u64::from_le_bytes(*b"intent\x1a\x00");
        match self.blind {
            Blind::StaleSums if offset >= 8192 => Ok(()),
            Blind::LateSums if is_intent => Ok(()),
            _ => self.file.write_at(offset, bytes),
        }
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }
    fn sync(&self) -> Result<()> {
        self.file.sync()
    }
    fn sync_name(&self) -> Result<()> {
        self.file.sync_name()
    }
}

fn files(explorer: Explorer) -> Files {
    Files::new(explorer.suggest(false))
}

/// Commits: 18 fill two segments and begin a third, so that the first is checkpointed and its place used again; 28 do so twice.
fn trims(commits: u64) -> Vec<Do> {
    (1..=commits).map(|value| if value % 9 == 4 { One(value as usize % 12, value) } else { All(value) }).collect()
}

#[test]
fn commits_survive() {
    let explorer = Explorer::new().crashes(2).crash_later(true);
    let report = files(explorer).run_then(&Journaled::new(2), &[One(0, 1), All(2), One(1, 3)], &[All(9)]).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn a_commit_that_a_dead_process_has_left_in_the_cache_is_not_shown_before_it_is_durable() {
    let explorer = Explorer::new().process_deaths(true);
    let report = files(explorer).run_then(&Journaled::new(2), &[One(0, 1), All(2)], &[One(1, 9)]).assert_ok();
    println!("{report}");
    assert!(report.complete && report.deaths > 0);
}

#[test]
fn checkpoints_and_trimming_survive() {
    let subject = Journaled::new(12);
    let mut live = subject.create(&SimulatedFs::new());
    trims(18).iter().for_each(|what| live.run(*what).unwrap());
    assert!(live.pool.journal_stats().unwrap().checkpoints > 0, "{:?}", live.pool.journal_stats());
    let report = files(Explorer::new()).run_then(&subject, &trims(18), &[All(11)]).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

/// Two commits fill a segment. With what creation has committed, the fourth adds a third segment, and the sixth needs a checkpoint, of two
/// generations.
fn outruns(commits: u64) -> Vec<Do> {
    (1..=commits).map(|value| if value % 2 == 0 { Broad(value) } else { All(value) }).collect()
}

/// The third segment is added, and full, before a checkpoint carries over two generations at once; then their segments are used again, in
/// another order.
#[test]
fn added_segments_and_checkpoints_of_several_generations_survive() {
    let subject = Journaled::new(4).growing();
    let mut live = subject.create(&SimulatedFs::new());
    let checkpoints: Vec<u64> = outruns(12)
        .iter()
        .map(|what| {
            live.run(*what).unwrap();
            live.pool.journal_stats().unwrap().checkpoints
        })
        .collect();
    assert_eq!(checkpoints, [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]);
    // A sector of 64 bytes holds no whole header.
    for (commits, sector) in [(12, 512), (7, 64)] {
        let files = files(Explorer::new().executions_per_point(60).samples(30)).sector(sector);
        let report = files.run_then(&subject, &outruns(commits), &[All(21)]);
        println!("{}", report.assert_ok());
    }
    let explorer = Explorer::new().crashes(2).process_deaths(true).executions_per_point(3).samples(1);
    println!("{}", files(explorer).run_then(&subject, &outruns(7), &[All(21)]).assert_ok());
}

/// Of the syncs of these: the file's length comes before the header that speaks of it, and that header before the first record behind what the one
/// before it speaks of; records, intent, pages, checksums and header of a checkpoint of two generations.
#[test]
fn every_sync_of_an_added_segment_and_its_checkpoint_is_needed() {
    let explorer = Explorer::new().executions_per_point(8).samples(4);
    let test = |files: &Files| files.run_then(&Journaled::new(4).growing(), &outruns(7), &[All(21)]);
    let sweep = files(explorer).sector(64).numbered_syncs_dropped(test);
    println!("{sweep}");
    let is_caught = |number: usize| sweep.syncs[number].1.failure.is_some();
    let of = |number: &usize, file: &str| sweep.syncs[*number].0.ends_with(file);
    let numbers = || 0..sweep.syncs.len();
    // Creation and closing are not crashed: all of the history lies between the first and the last that are caught.
    let first = numbers().find(|number| of(number, "-journal") && is_caught(*number)).expect("a commit");
    let sums = numbers().rfind(|number| of(number, "-sums") && is_caught(*number)).expect("the checksums");
    // But for the header of the checksums that names this opening alone: see `BACKUP`. It comes before the intent, not after pages.
    let names = |number: &usize| of(number, "-sums") && !of(&(number - 1), "/pool");
    assert_eq!((first..=sums).filter(names).count(), 1, "{sweep}");
    assert!((first..=sums + 1).filter(|number| !names(number)).all(is_caught), "{sweep}");
}

/// The journal becomes larger for a commit that fits into no segment: all before it is in the pool's file by then, whether its generation
/// was full already or not, and a header that is torn leaves the one before.
#[test]
fn a_commit_that_is_larger_than_a_segment_survives() {
    let before = |commits| (1..=commits).map(All).chain([One(1, 20), Wide(0, 21), One(2, 22), Wide(1, 23)]);
    let (fs, subject) = (SimulatedFs::new(), Journaled::new(4));
    let mut live = subject.create(&fs);
    let len = || SimulatedJournal::new(&fs, "pool-journal").open(true).unwrap().unwrap().len().unwrap();
    let short = len();
    before(1).for_each(|what| live.run(what).unwrap());
    assert!(len() > short, "the journal has {short} bytes");
    // A sector of 64 bytes holds no whole header.
    for (commits, sector) in [(1, 512), (6, 512), (1, 64)] {
        let files = files(Explorer::new().executions_per_point(60).samples(30)).sector(sector);
        let report = files.run_then(&subject, &before(commits).collect::<Vec<_>>(), &[One(3, 30)]);
        println!("{}", report.assert_ok());
    }
}

#[test]
fn creation_survives() {
    let explorer = Explorer::new().crash_in_create(true).executions_per_point(100).samples(40);
    let report = files(explorer).run_then(&Journaled::new(1).with_torn_creation(), &[All(1)], &[All(2)]).assert_ok();
    println!("{report}");
}

#[test]
fn growth_survives() {
    let report =
        files(Explorer::new().crashes(2)).run_then(&Journaled::new(1), &[All(1), Grow, All(2)], &[Grow]).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn calls_that_fail_lose_nothing() {
    let explorer = Explorer::new().process_deaths(true);
    let report =
        files(explorer).each_fault(true).run_then(&Journaled::new(2), &[All(1), Grow, All(2)], &[All(3)]).assert_ok();
    println!("{report}");
}

/// A sync that fails marks as written what is not. So records that a dead process has left in the cache are written again before any of
/// their lines is in the pool's file: those of both generations.
#[test]
fn records_of_either_generation_whose_sync_has_failed_are_written_again() {
    let explorer = Explorer::new().process_deaths(true).crashes(2).executions_per_point(8).samples(4);
    let files = files(explorer).each_fault(true);
    println!("{}", files.run_then(&Journaled::new(2), &[One(0, 1), Broad(2)], &[]).assert_ok());
}

/// A sync that fails marks as written what is not. So the length that growth has given the file may be lost later, by whichever sync that succeeds:
/// one of the same process, or of the next one, whose journal speaks of what lies there.
#[test]
fn a_length_whose_sync_has_failed_is_not_built_on() {
    let one = files(Explorer::new()).each_fault(true);
    println!("{}", one.run_then(&Journaled::new(1), &[Grow, Grow, All(2)], &[All(3)]).assert_ok());
}

#[test]
fn a_length_that_a_dead_process_has_left_after_a_failed_sync_is_not_built_on() {
    let two = files(Explorer::new().process_deaths(true).crashes(2).crash_later(true)).each_fault(true);
    println!("{}", two.run_then(&Journaled::new(1), &[Take], &[Take, All(3)]).assert_ok());
}

/// Nobody is told of the pool before a later sync of the same file (JN-J3), and its header is one sector.
const CREATION: &str = "creation: covered by JN-J3";
/// The folder is the same for all files, and is synced again before anybody is told of the pool.
const FOLDER: &str = "the folder: covered by its next sync, or by that of an earlier opening";
/// A table of checksums that does not go with the pool is begun anew; then pages have none, which a subject with a torn creation allows.
const TABLE: &str = "the table of checksums: begun anew where it is missing";
const SALT_AND_STATE: &str = "JN-J2: salt and state share a sector";
const AS_BEFORE: &str = "an opening that allocates what is there";
/// Only the size of the pool is in it. The next commit covers it.
const UNASKED: &str = "the commit of a growth: nothing tells that it is missing";
/// Up to the last one the journal holds everything. Without the last one the pool is replayed.
const CLOSING: &str = "closing: the journal holds everything";
/// Both headers of the table go with the pool's file as it is.
const BACKUP: &str = "JN-S4: where an older copy of the pool's file is put beside the table, which no crash does";
const NO_CRASH: &str = "closing after a recovery: this test has no crash there";

/// The syncs that may be left out of the history below, and why. By number, since all of them go through trait objects.
const EXCUSED: &[(&str, &str)] = &[
    ("operations 1 of /pool", CREATION),
    ("operations 2 of /", FOLDER),
    ("operations 3 of /pool", CREATION),
    ("operations 4 of /pool", CREATION),
    ("operations 5 of /pool", CREATION),
    ("operations 6 of /pool", CREATION),
    ("operations 8 of /", FOLDER),
    ("operations 10 of /", TABLE),
    ("operations 11 of /pool", SALT_AND_STATE),
    // The first closing: JN-T3, JN-Z2, JN-Z3.
    ("operations 19 of /pool-journal", CLOSING),
    ("operations 20 of /pool", CLOSING),
    ("operations 21 of /pool", CLOSING),
    // The second opening.
    ("operations 22 of /pool", AS_BEFORE),
    ("operations 24 of /", FOLDER),
    ("operations 25 of /pool-sums", TABLE),
    ("operations 26 of /", FOLDER),
    ("operations 27 of /pool", SALT_AND_STATE),
    ("operations 33 of /pool-journal", UNASKED),
    // The second closing, and the first checkpoint of this opening.
    ("operations 35 of /pool-sums", BACKUP),
    ("operations 39 of /pool-journal", CLOSING),
    ("operations 40 of /pool", CLOSING),
    ("operations 41 of /pool", CLOSING),
    ("recovery 16 of /pool-journal", NO_CRASH),
    ("recovery 17 of /pool-journal", NO_CRASH),
    ("recovery 18 of /pool", NO_CRASH),
    ("recovery 19 of /pool-sums", NO_CRASH),
    ("recovery 20 of /pool-journal", NO_CRASH),
    ("recovery 21 of /pool", NO_CRASH),
    ("recovery 22 of /pool", NO_CRASH),
    ("recovery 23 of /pool", NO_CRASH),
];

/// Every sync but the excused ones is needed, and every excuse.
///
/// The creation is crashed with larger sectors than a mapping has (see F1), so for pools without a journal this says nothing.
#[test]
fn every_other_sync_is_needed() {
    let explorer = Explorer::new().crash_in_create(true).crash_in_close(true).process_deaths(true);
    let test =
        |files: &Files| files.run_then(&Journaled::new(4).with_torn_creation(), &[All(1), Grow, All(2)], &[All(3)]);
    let sweep = files(explorer.executions_per_point(60).samples(30)).numbered_syncs_dropped(test);
    println!("{sweep}");
    let excuse = |sync: &str| EXCUSED.iter().find(|(excused, _)| *excused == sync).map(|(_, why)| *why);
    let unexcused: Vec<_> = sweep.missed().filter(|sync| excuse(sync).is_none()).collect();
    assert!(unexcused.is_empty(), "left out unnoticed: {unexcused:#?}");
    let unneeded: Vec<_> = EXCUSED.iter().filter(|(excused, _)| !sweep.missed().any(|sync| sync == *excused)).collect();
    assert!(unneeded.is_empty(), "excused and noticed, or not there: {unneeded:#?}");
    let is_caught =
        |name: &str| sweep.syncs.iter().any(|(sync, report)| sync.starts_with(name) && report.failure.is_some());
    assert!(is_caught("recovery 1 "), "records accepted and not written again: {sweep}");
}

#[test]
fn every_checksum_is_needed() {
    // Only a second checkpoint writes over a header, and a sector holds all of it.
    for (blind, sector, commits) in [(Blind::Records, 512, 2), (Blind::Headers, 64, 28)] {
        let run = |blind| {
            let explorer = Explorer::new().executions_per_point(60).samples(30);
            files(explorer).sector(sector).run_then(
                &Journaled { blind, ..Journaled::new(12) },
                &trims(commits),
                &[All(11)],
            )
        };
        println!("{blind:?}: {}", run(Blind::None).assert_ok());
        let failure = run(blind).failure.unwrap_or_else(|| panic!("{blind:?} missed"));
        println!("{failure}");
    }
}

/// Pages that change at a checkpoint have their next checksums in the journal by then, and in their own file before the journal is
/// trimmed.
#[test]
fn every_checksum_of_pages_is_needed() {
    for (blind, commits) in [(Blind::StaleSums, 18), (Blind::LateSums, 18)] {
        let run = |blind| {
            let explorer = Explorer::new().executions_per_point(60).samples(30);
            files(explorer).run_then(&Journaled { blind, ..Journaled::new(12) }, &trims(commits), &[All(11)])
        };
        let failure = run(blind).failure.unwrap_or_else(|| panic!("{blind:?} missed"));
        println!("{failure}");
    }
}

#[test]
fn checkpoints_survive_a_second_crash_in_recovery() {
    let explorer = Explorer::new().crashes(2).process_deaths(true).executions_per_point(8).samples(4);
    let report = files(explorer).run_then(&Journaled::new(12), &trims(18), &[All(11)]).assert_ok();
    println!("{report}");
}

/// Of the syncs of a checkpoint: that of the intent, of the pool's file, of the checksums, and of the header that skips the generation.
#[test]
fn every_sync_of_a_checkpoint_is_needed() {
    let explorer = Explorer::new().executions_per_point(20).samples(10);
    let test = |files: &Files| files.run_then(&Journaled::new(12), &trims(28), &[All(11)]);
    let sweep = files(explorer).numbered_syncs_dropped(test);
    println!("{sweep}");
    let caught = |number: usize| sweep.syncs.get(number).is_some_and(|(_, report)| report.failure.is_some());
    // That of the checksums is the third of four. The checkpoints of closing are not crashed here: none of their syncs is caught.
    let name = |number: usize| &*sweep.syncs[number].0;
    let is_third = |number: &usize| {
        name(*number).ends_with("of /pool-sums")
            && name(number - 1).ends_with("of /pool")
            && (number - 2..=number + 1).any(caught)
    };
    let checkpoints: Vec<usize> = (2..sweep.syncs.len()).filter(is_third).collect();
    assert_eq!(checkpoints.len(), 2, "{sweep}");
    for sums in checkpoints {
        assert!((sums - 2..=sums + 1).all(caught), "{sweep}");
    }
}
