//! Checksums of the pages of a journaled pool, in real files: what is found, what it costs, and what happens where they are missing, stale
//! or damaged themselves.

mod bare;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bare::Bare;
use durix_pmem::backing::FileBacking;
use durix_pmem::journal::{BesidePool, DiskJournal, JournalFile, JournalPlace, Level};
use durix_pmem::pool::{PageOwner, PageReport};
use durix_pmem::testing::{FaultBacking, Faults};
use durix_pmem::{Error, Extent, Off, Pool, PoolOptions, Result, Tick, Word};

const PAGE: u64 = 4096;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench { dir: tempfile::tempdir().unwrap() }
    }
    fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }
    fn sums(&self) -> PathBuf {
        DiskJournal::sums_of(&self.path())
    }
    fn open(&self) -> Pool {
        options().open_or_create(self.path()).unwrap()
    }
    /// What `check` sees.
    fn check(&self) -> PageReport {
        options().read_only(true).open(self.path()).unwrap().check_pages().unwrap()
    }
    /// Changes a byte of a file, and returns what undoes it.
    fn flip(&self, path: &Path, at: u64) {
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
}

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(16).lanes(2).initial_size(1).accept_copy(true);
    options.durability(Level::Immediate)
}

/// Gives an index six pages, and writes to them and commits as often as asked.
fn work(pool: &Pool, commits: u64) -> Extent {
    let index = pool.open_structure::<Bare>("index", &()).unwrap();
    let mut session = pool.session().unwrap();
    let there = pool.space().extents(&session.enter().unwrap(), index.root.owner()).first().copied();
    let extent = there.unwrap_or_else(|| {
        let op = session.enter().unwrap();
        let reserved = pool.space().reserve_extent(&op, index.root.owner(), 6 * PAGE).unwrap();
        pool.space().activate(&op, reserved).unwrap()
    });
    for commit in 1..=commits {
        let op = session.enter().unwrap();
        for page in 0..6 {
            let word = op.at(Off::<Word>::new(extent.off + page * PAGE + commit % 60 * 64));
            op.store(word, commit + page, Relaxed);
            op.write_back(word);
        }
        drop(op);
        pool.commit(&mut session).unwrap();
    }
    extent
}

#[test]
fn a_flip_in_any_page_is_found_and_its_owner_is_named() {
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 5);
    let heap = pool.geometry().heap_off();
    assert_eq!(pool.check_pages().unwrap().damaged, [], "while it is open");
    pool.close().unwrap();
    let sound = bench.check();
    let pages = fs::metadata(bench.path()).unwrap().len() / PAGE;
    assert_eq!((sound.pages, sound.unknown, sound.damaged.len(), sound.missing), (pages, 0, 0, None));
    for page in 0..pages {
        let at = page * PAGE + 1000;
        bench.flip(&bench.path(), at);
        let found = bench.check().damaged;
        bench.flip(&bench.path(), at);
        let [found] = &found[..] else { panic!("page {page}: {found:?}") };
        assert_eq!(found.range, page * PAGE..(page + 1) * PAGE);
        let off = page * PAGE;
        let owner = match off {
            0 => PageOwner::Header,
            _ if off < heap => PageOwner::Directory,
            _ if off == heap => PageOwner::Tables,
            _ if (extent.off..extent.off + extent.len).contains(&off) => PageOwner::Index("index".into()),
            _ => PageOwner::Free,
        };
        assert_eq!(found.owner, owner, "page {page}");
    }
    assert_eq!(bench.check().damaged, []);
}

/// Nothing but the address in a checksum tells that two pages and their checksums have changed places.
#[test]
fn pages_that_changed_places_together_with_their_checksums_are_found() {
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 2);
    pool.close().unwrap();
    let (one, other) = (extent.off / PAGE, extent.off / PAGE + 1);
    for (path, start, len) in [(bench.path(), 0, PAGE), (bench.sums(), 8192, 8)] {
        let mut bytes = fs::read(&path).unwrap();
        let (a, b) = ((start + one * len) as usize, (start + other * len) as usize);
        (0..len as usize).for_each(|i| bytes.swap(a + i, b + i));
        fs::write(&path, bytes).unwrap();
    }
    let found: Vec<u64> = bench.check().damaged.iter().map(|page| page.range.start / PAGE).collect();
    assert_eq!(found, [one, other]);
}

#[test]
fn a_checkpoint_does_not_give_damage_a_checksum() {
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 2);
    pool.close().unwrap();
    bench.flip(&bench.path(), extent.off + 4000);
    let pool = bench.open();
    work(&pool, 3);
    assert_eq!(pool.check_pages().unwrap().damaged.len(), 1, "before the checkpoint");
    pool.close().unwrap();
    assert_eq!(pool.journal_stats().unwrap().damaged_pages, 1);
    let found = bench.check().damaged;
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        format!(
            "bytes {:#x} to {:#x} of the file do not have their checksum; they belong to index \"index\"",
            extent.off,
            extent.off + 4095
        )
    );
}

#[test]
fn what_was_written_without_a_journal_has_no_checksum_until_it_is_scrubbed() {
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 2);
    pool.close().unwrap();
    let pool = options().durability(Level::Process).open(bench.path()).unwrap();
    assert!(pool.check_pages().unwrap().missing.is_some());
    pool.close().unwrap();
    assert_eq!(bench.check().missing.as_deref(), Some("it was last open without a journal"));
    let pool = bench.open();
    let found = pool.check_pages().unwrap();
    // The header's page has one from the start.
    assert_eq!((found.unknown, found.missing), (pool.mapping().len() / PAGE - 1, None));
    assert_eq!(pool.scrub().unwrap().unknown, 0);
    assert_eq!(pool.check_pages().unwrap().unknown, 0);
    pool.close().unwrap();
    bench.flip(&bench.path(), extent.off);
    assert_eq!(bench.check().damaged.len(), 1);
}

#[test]
fn checksums_that_a_scrub_gives_are_durable_when_it_returns() {
    let bench = Bench::new();
    let pool = options().durability(Level::Process).create(bench.path()).unwrap();
    work(&pool, 2);
    pool.close().unwrap();
    let counts = Arc::new(Counts::default());
    let place = Counting { place: Arc::new(BesidePool::new(bench.path())), counts: Arc::clone(&counts) };
    let pool = options().open_journaled_on(FileBacking::open(bench.path()).unwrap(), place).unwrap().recover().unwrap();
    let pages = pool.mapping().len() / PAGE;
    assert!(pages < 64, "one step");
    counts.take();
    assert_eq!(pool.scrub().unwrap().unknown, 0);
    let [.., syncs, bytes] = counts.take();
    assert_eq!((syncs, bytes), (1, (pages - 1) * 8), "the header's page has one from the start");
}

#[test]
fn no_checkpoint_comes_between_a_checksum_and_its_page() {
    let bench = Bench::new();
    let counts = Arc::new(Counts::default());
    let place = Counting { place: Arc::new(BesidePool::new(bench.path())), counts: Arc::clone(&counts) };
    let pool = options().create_journaled_on(FileBacking::create(bench.path()).unwrap(), place).unwrap();
    work(&pool, 3);
    *counts.meanwhile.lock().unwrap() = Some(pool.clone());
    assert_eq!(pool.check_pages().unwrap().damaged, []);
    assert!(counts.meanwhile.lock().unwrap().is_none());
}

/// What is in the file is half of what its checksums speak of.
#[test]
fn checksums_are_not_used_where_the_journal_that_goes_with_them_is_gone() {
    let copy = killed(&Bench::new(), 5);
    fs::remove_file(DiskJournal::path_of(&copy.path())).unwrap();
    let report = options().accept_unclean(true).read_only(true).open(copy.path()).unwrap().check_pages().unwrap();
    assert_eq!(report.missing.as_deref(), Some("the journal that goes with them could not be replayed"));
}

/// A commit waits for an operation that leaves half of something: it takes nothing of it.
#[test]
fn a_commit_takes_no_half_of_what_it_has_waited_for() {
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 1);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let word = op.at(Off::<Word>::new(extent.off));
    op.store(word, 77, Relaxed);
    op.write_back(word);
    std::thread::scope(|scope| {
        let pool = &pool;
        let commits = scope.spawn(|| pool.session().and_then(|mut session| pool.commit(&mut session)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!commits.is_finished(), "it waits for the operation");
        drop(pool.whole(&op).unwrap());
        drop(op);
        let refused = commits.join().unwrap().unwrap_err().to_string();
        assert!(refused.contains("half done"), "{refused}");
    });
    drop((session, pool));
    let pool = bench.open();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_ne!(op.load(op.at(Off::<Word>::new(extent.off)), Relaxed), 77);
}

/// Where a crash has come before the first checkpoint of an opening, it is the recovery that changes entries.
#[test]
fn a_backup_beside_checksums_that_a_recovery_has_changed_has_none() {
    let bench = Bench::new();
    work(&bench.open(), 2);
    let backup = fs::read(bench.path()).unwrap();
    let copy = killed(&bench, 5);
    // It is not recovered any further: nothing binds the table anew.
    drop(options().open_file(copy.path()).unwrap());
    fs::write(copy.path(), &backup).unwrap();
    let why = format!("{} belongs to another opening of this pool", copy.sums().display());
    assert_eq!(copy.check().missing.unwrap_or_default(), why);
}

/// Closing marks of before do not count after a crash: they rest on this number.
#[test]
fn each_opening_after_a_crash_is_counted() {
    let bench = Bench::new();
    let crashes = |pool: &Pool| pool.crashes(&pool.session().unwrap().enter().unwrap());
    let pool = bench.open();
    let before = crashes(&pool);
    pool.close().unwrap();
    let pool = bench.open();
    assert_eq!(crashes(&pool), before, "it was closed");
    drop(pool);
    let copy = killed(&bench, 1);
    let pool = copy.open();
    assert_eq!(crashes(&pool), before + 1);
    pool.close().unwrap();
    assert_eq!(crashes(&copy.open()), before + 1);
}

#[test]
fn checksums_that_do_not_go_with_the_pool_are_not_used_and_the_report_says_why() {
    let bench = Bench::new();
    work(&bench.open(), 2);
    let name = bench.sums().display().to_string();
    let (backup, sums) = (fs::read(bench.path()).unwrap(), fs::read(bench.sums()).unwrap());
    let missing = |bench: &Bench| bench.check().missing.unwrap_or_default();

    fs::remove_file(bench.sums()).unwrap();
    assert_eq!(missing(&bench), format!("there is no {name}"));

    let mut damaged = sums.clone();
    damaged[8] ^= 1;
    damaged[4096 + 8] ^= 1;
    fs::write(bench.sums(), damaged).unwrap();
    assert_eq!(missing(&bench), format!("{name} is damaged: no sound header in its first 8192 bytes"));

    // An older state of the pool's file, beside checksums of a later one.
    fs::write(bench.sums(), &sums).unwrap();
    for openings in 1..=2 {
        work(&bench.open(), 2);
        let newer = fs::read(bench.path()).unwrap();
        fs::write(bench.path(), &backup).unwrap();
        let why = format!("{name} belongs to another opening of this pool");
        assert_eq!(missing(&bench), why, "{openings} openings later");
        fs::write(bench.path(), newer).unwrap();
        assert_eq!(missing(&bench), "");
    }

    let other = Bench::new();
    work(&other.open(), 1);
    fs::copy(other.sums(), bench.sums()).unwrap();
    assert!(missing(&bench).starts_with(&format!("{name} belongs to pool ")), "{}", missing(&bench));

    // It opens all the same, and begins a new table.
    work(&bench.open(), 1);
    let found = bench.check();
    assert!(found.missing.is_none() && found.unknown > 0 && found.damaged.is_empty(), "{found:?}");
}

#[test]
fn a_damaged_word_that_names_the_journal_or_the_file_is_found() {
    for word in [144, 152, 160, 168, 176] {
        let bench = Bench::new();
        work(&bench.open(), 1);
        bench.flip(&bench.path(), word);
        let found = bench.check();
        assert_eq!(found.damaged.len(), 1, "{found:?}");
        assert_eq!(found.damaged[0].owner, PageOwner::Header);
    }
}

#[test]
fn a_pool_that_grows_is_covered_where_it_has_grown() {
    let bench = Bench::new();
    let pool = bench.open();
    work(&pool, 1);
    let mut session = pool.session().unwrap();
    let before = pool.mapping().len();
    drop(pool.space().reserve_extent(&session.enter().unwrap(), durix_pmem::Owner(0), 100 * PAGE).unwrap());
    assert!(pool.mapping().len() > before);
    drop(session);
    pool.close().unwrap();
    let len = fs::metadata(bench.path()).unwrap().len();
    assert!(fs::metadata(bench.sums()).unwrap().len() >= 8192 + len / PAGE * 8);
    assert_eq!(bench.check().damaged, []);
    bench.flip(&bench.path(), len - 1);
    assert_eq!(bench.check().damaged[0].range, len - PAGE..len, "it was never written, and is not zero");
}

/// A pool that was not closed: the files as they are while it is open.
fn killed(bench: &Bench, commits: u64) -> Bench {
    killed_with(bench, &bench.open(), commits)
}

fn killed_with(bench: &Bench, pool: &Pool, commits: u64) -> Bench {
    work(pool, commits);
    copied(bench)
}

/// The files as they are.
fn copied(bench: &Bench) -> Bench {
    let copy = Bench::new();
    for (from, to) in [
        (bench.path(), copy.path()),
        (bench.sums(), copy.sums()),
        (DiskJournal::path_of(&bench.path()), DiskJournal::path_of(&copy.path())),
    ] {
        fs::copy(from, to).unwrap();
    }
    copy
}

#[test]
fn a_record_that_is_damaged_before_the_last_one_is_not_taken_for_the_torn_end() {
    let copy = killed(&Bench::new(), 5);
    assert_eq!(copy.check().damaged, []);
    let journal = DiskJournal::path_of(&copy.path());
    copy.flip(&journal, 8192 + 100);
    let error = options().open(copy.path()).unwrap_err();
    assert!(matches!(error, Error::DamagedJournal { .. }), "{error}");
    assert!(error.to_string().contains("which is later, is sound"), "{error}");
    copy.flip(&journal, 8192 + 100);
    options().open(copy.path()).unwrap().close().unwrap();
    assert_eq!(copy.check().damaged, []);
}

/// The older generation is full, and the newer one begins in the other segment: neither ends where a record is damaged.
#[test]
fn a_damaged_record_of_either_generation_is_not_taken_for_the_torn_end() {
    let bench = Bench::new();
    let pool = options().journal_segment(2 * PAGE).journal_limit(0).create(bench.path()).unwrap();
    let copy = killed_with(&bench, &pool, 20);
    assert_eq!(pool.journal_stats().unwrap().checkpoints, 0, "both generations are in the journal");
    assert_eq!(copy.check().damaged, []);
    let journal = DiskJournal::path_of(&copy.path());
    // Behind a segment is room for intents, a page for each of two.
    for segment in [8192, 8192 + 4 * PAGE] {
        copy.flip(&journal, segment + 100);
        let error = options().open(copy.path()).unwrap_err();
        assert!(error.to_string().contains("which is later, is sound"), "{segment}: {error}");
        copy.flip(&journal, segment + 100);
    }
}

#[test]
fn damage_is_judged_after_the_journal_was_replayed_and_stays_known() {
    let bench = Bench::new();
    let extent = work(&bench.open(), 1);
    let copy = killed(&bench, 5);
    // A line that the journal does not hold, in a page that it changes.
    copy.flip(&copy.path(), extent.off + 4000);
    assert_eq!(copy.check().damaged.len(), 1, "replayed in memory");
    options().open(copy.path()).unwrap().close().unwrap();
    assert_eq!(copy.check().damaged.len(), 1, "replayed to the file");
}

/// A repair reads what is left of the journal. The checksums go on to say which pages of the file are damaged.
#[test]
fn a_damaged_journal_leaves_the_checksums_of_the_pages_in_force() {
    const JOURNAL_ID: u64 = 144;
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 1);
    pool.close().unwrap();
    let pool = bench.open();
    work(&pool, 5);
    // A record has all lines of this page.
    let rewritten = extent.off + 5 * PAGE;
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    for at in (rewritten..rewritten + PAGE).step_by(64) {
        let word = op.at(Off::<Word>::new(at));
        op.store(word, at, Relaxed);
        op.write_back(word);
    }
    drop(op);
    pool.commit(&mut session).unwrap();
    drop(session);
    let copy = copied(&bench);
    drop(pool);
    let (file, whole) = (fs::read(copy.path()).unwrap(), fs::read(DiskJournal::path_of(&copy.path())).unwrap());
    let journal = DiskJournal::path_of(&copy.path());
    let repaired = || {
        let pool = options().for_repair().open(copy.path()).unwrap();
        let found = pool.check_pages().unwrap();
        assert_eq!((found.missing, found.unknown), (None, 0));
        found.damaged.into_iter().map(|page| page.range.start).collect::<Vec<u64>>()
    };
    // What is damaged, and whether the record of the whole page is there.
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, bool, Damage); 4] = [
        ("the first record", true, |bytes| bytes[8192 + 100] ^= 4),
        ("its headers", true, |bytes| bytes[..8192].fill(0x77)),
        ("all records", false, |bytes| bytes[8192..].fill(0)),
        ("cut off", false, |bytes| bytes.truncate(8192 + 500)),
    ];
    for (what, has_all, damage) in cases {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(&journal, bytes).unwrap();
        assert_eq!(repaired(), [], "{what}: stale is not damaged");
        // Line 62 of a page that the records change, and a page that they do not.
        let free = file.len() as u64 - PAGE;
        for at in [extent.off + 4000, free] {
            copy.flip(&copy.path(), at);
            assert_eq!(repaired(), [at / PAGE * PAGE], "{what}");
            copy.flip(&copy.path(), at);
        }
        copy.flip(&copy.path(), rewritten + 4000);
        assert_eq!(repaired(), if has_all { vec![] } else { vec![rewritten] }, "{what}");
        copy.flip(&copy.path(), rewritten + 4000);
    }
    // The journal's header has the salt, too.
    fs::write(&journal, &whole).unwrap();
    copy.flip(&copy.path(), JOURNAL_ID);
    copy.flip(&copy.path(), extent.off + 4000);
    assert_eq!(repaired(), [0, extent.off], "the header's page, for the salt");
}

/// A place that counts.
#[derive(Debug)]
struct Counting {
    place: Arc<dyn JournalPlace>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    journal: [AtomicU64; 2],
    sums: [AtomicU64; 2],
    /// What is carried over once the checksums have been read.
    meanwhile: Mutex<Option<Pool>>,
}

impl Counts {
    /// Syncs and bytes of the journal, and of the checksums.
    fn take(&self) -> [u64; 4] {
        [&self.journal[0], &self.journal[1], &self.sums[0], &self.sums[1]].map(|count| count.swap(0, Relaxed))
    }
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn JournalFile>,
    counts: Arc<Counts>,
    is_sums: bool,
}

impl Counting {
    fn file(&self, file: Arc<dyn JournalFile>) -> Arc<dyn JournalFile> {
        let is_sums = self.place.sums().is_none() || self.place.describe().ends_with("-sums");
        Arc::new(CountingFile { file, counts: Arc::clone(&self.counts), is_sums })
    }
}

impl JournalPlace for Counting {
    fn describe(&self) -> String {
        self.place.describe()
    }
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        Ok(self.place.open(read_only)?.map(|file| self.file(file)))
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        Ok(self.file(self.place.create()?))
    }
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        let place = self.place.sums()?;
        Some(Arc::new(Counting { place, counts: Arc::clone(&self.counts) }))
    }
}

impl CountingFile {
    fn count(&self, what: usize, by: u64) {
        let counts = if self.is_sums { &self.counts.sums } else { &self.counts.journal };
        counts[what].fetch_add(by, Relaxed);
    }
}

impl JournalFile for CountingFile {
    fn describe(&self) -> String {
        self.file.describe()
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, bytes)?;
        let meanwhile = if self.is_sums { self.counts.meanwhile.lock().unwrap().take() } else { None };
        if let Some(pool) = meanwhile {
            let carries = std::thread::spawn(move || pool.checkpoint_journal().unwrap());
            // It waits for whoever compares, or is done by then.
            let begun = Instant::now();
            while !carries.is_finished() && begun.elapsed() < Duration::from_millis(50) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.count(1, bytes.len() as u64);
        self.file.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }
    fn sync(&self) -> Result<()> {
        self.count(0, 1);
        self.file.sync()
    }
    fn sync_name(&self) -> Result<()> {
        self.file.sync_name()
    }
}

#[test]
fn what_checksums_cost_a_commit_and_a_checkpoint() {
    let bench = Bench::new();
    let counts = Arc::new(Counts::default());
    let place = Counting { place: Arc::new(BesidePool::new(bench.path())), counts: Arc::clone(&counts) };
    let pool = options().create_journaled_on(FileBacking::create(bench.path()).unwrap(), place).unwrap();
    work(&pool, 1);
    counts.take();
    // A record of six lines that do not touch: 64 bytes, and 72 for each line.
    work(&pool, 1);
    assert_eq!(counts.take(), [1, 64 + 6 * 72, 0, 0], "a commit");
    pool.close().unwrap();
    let stats = pool.journal_stats().unwrap();
    assert_eq!(stats.checkpoints, 1);
    let pages = stats.checkpoint_pages;
    // A commit of the mark of the table of space, a line; the intent, and the header that skips the generation; the entries.
    let mark = 64 + 72;
    assert_eq!(counts.take(), [3, mark + 64 + 16 * pages + 112, 1, 8 * pages], "a checkpoint, when it is closed");
}

/// Runs steps of services until the scrub has read so many pages more. Returns what they have failed at.
fn scrub(pool: &Pool, pages: u64) -> Vec<String> {
    let read = || pool.journal_stats().unwrap().scrubbed_pages;
    let (end, mut session, mut failures) = (read() + pages, pool.session().unwrap(), Vec::new());
    let begun = Instant::now();
    while read() < end {
        assert!(begun.elapsed().as_secs() < 100, "{:?}", pool.journal_stats());
        let before = read();
        match pool.tick(&mut session) {
            Ok(Tick::Worked) => {}
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => failures.push(error.to_string()),
        }
        assert!(read() - before <= 64, "a step is bounded");
    }
    failures
}

#[test]
fn the_scrub_of_an_open_pool_tells_of_each_damaged_page_once_and_names_its_index() {
    let bench = Bench::new();
    let pool = options().initial_size(1 << 20).scrub_every(Duration::from_nanos(1)).create(bench.path()).unwrap();
    let extent = work(&pool, 3);
    pool.checkpoint_journal().unwrap();
    let pages = pool.mapping().len() / PAGE;
    assert!(pages > 3 * 64, "a pass takes some steps");
    assert_eq!(scrub(&pool, 2 * pages), [""; 0], "all is sound");
    bench.flip(&bench.path(), extent.off + 4000);
    let name = bench.path().display().to_string();
    let (start, end) = (extent.off, extent.off + 4095);
    let told = format!(
        "the scrub of {name} failed: {name} is damaged: bytes {start:#x} to {end:#x} of the file do not have their \
         checksum; they belong to index \"index\"; check all of it, then repair it or restore a copy"
    );
    assert_eq!(scrub(&pool, 2 * pages), [told]);
    assert_eq!(scrub(&pool, 2 * pages), [""; 0], "it was told of");
    // Of three more, the first of each pass is told of, and all count.
    [pages - 1, pages - 2, pages / 2].iter().for_each(|page| bench.flip(&bench.path(), page * PAGE));
    let more = scrub(&pool, 2 * pages);
    assert!((1..=2).contains(&more.len()), "{more:?}");
    assert_eq!(pool.journal_stats().unwrap().scrub_damaged, 4);
    let found: Vec<u64> = pool.check_pages().unwrap().damaged.iter().map(|page| page.range.start / PAGE).collect();
    assert_eq!(found, [extent.off / PAGE, pages / 2, pages - 2, pages - 1]);
}

#[test]
fn a_scrub_is_as_slow_as_it_was_asked_to_be() {
    for every in [Duration::ZERO, Duration::from_secs(3600)] {
        let bench = Bench::new();
        let pool = options().initial_size(1 << 20).scrub_every(every).create(bench.path()).unwrap();
        work(&pool, 1);
        let mut session = pool.session().unwrap();
        for _ in 0..20 {
            let _: Tick = pool.tick(&mut session).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pool.journal_stats().unwrap().scrubbed_pages, 0, "{every:?}");
    }
}

/// A damaged offset leads anywhere in the address range of a pool. What is stored there belongs to nothing.
#[test]
fn a_line_behind_the_end_of_the_pool_gets_into_no_commit() {
    let bench = Bench::new();
    let pool = bench.open();
    let extent = work(&pool, 1);
    let len = fs::metadata(bench.path()).unwrap().len();
    let mut session = pool.session().unwrap();
    for at in [len, len + 5000, 1 << 30] {
        let op = session.enter().unwrap();
        for at in [at, extent.off] {
            let word = op.at(Off::<Word>::new(at));
            op.store(word, 77, Relaxed);
            op.write_back(word);
        }
        drop(op);
        pool.commit(&mut session).unwrap();
    }
    assert_eq!(pool.journal_stats().unwrap().stray_lines, 3);
    let copy = copied(&bench);
    let found = copy.open();
    let mut reader = found.session().unwrap();
    let op = reader.enter().unwrap();
    assert_eq!(op.load(op.at(Off::<Word>::new(extent.off)), Relaxed), 77);
    drop(op);
    drop(session);
    pool.close().unwrap();
    assert_eq!(fs::metadata(bench.path()).unwrap().len(), len);
    assert!(fs::metadata(bench.sums()).unwrap().len() < 1 << 20);
    assert_eq!(bench.check().damaged, []);
}

/// The system refuses to read a page: as one that is damaged. What commits hold of it is written all the same.
#[test]
fn a_page_that_cannot_be_read_is_a_damaged_one_and_ends_nothing() {
    for whole in [false, true] {
        let bench = Bench::new();
        let faults = Faults::default();
        let backing =
            |opens: fn(PathBuf) -> Result<FileBacking>| FaultBacking::new(opens(bench.path()).unwrap(), faults.clone());
        let pool = options().create_journaled_on(backing(FileBacking::create), BesidePool::new(bench.path())).unwrap();
        let extent = work(&pool, 1);
        pool.checkpoint_journal().unwrap();
        let page = extent.off + 3 * PAGE;
        faults.unreadable(page..page + PAGE);
        work(&pool, 2);
        if whole {
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            for at in (page..page + PAGE).step_by(64) {
                let word = op.at(Off::<Word>::new(at));
                op.store(word, at, Relaxed);
                op.write_back(word);
            }
            drop(op);
            pool.commit(&mut session).unwrap();
        }
        let copy = copied(&bench);
        pool.checkpoint_journal().unwrap();
        assert_eq!(pool.journal_stats().unwrap().damaged_pages, u64::from(!whole));
        pool.close().unwrap();
        faults.readable();
        let found = |bench: &Bench| bench.check().damaged.iter().map(|page| page.range.start).collect::<Vec<_>>();
        assert_eq!(found(&bench), if whole { vec![] } else { vec![page] });
        let first_word = |bench: &Bench| {
            u64::from_le_bytes(fs::read(bench.path()).unwrap()[page as usize + 64..][..8].try_into().unwrap())
        };
        let expected = if whole { page + 64 } else { 4 };
        assert_eq!(first_word(&bench), expected);

        // The same in a recovery.
        faults.unreadable(page..page + PAGE);
        let backing = FaultBacking::new(FileBacking::open(copy.path()).unwrap(), faults.clone());
        let pool = options().open_journaled_on(backing, BesidePool::new(copy.path())).unwrap().recover().unwrap();
        pool.close().unwrap();
        faults.readable();
        assert_eq!(found(&copy), if whole { vec![] } else { vec![page] });
        assert_eq!(first_word(&copy), expected);
    }
}

/// A crash can leave a table that is shorter than its pool. Growth and a checkpoint must not both make it longer.
#[test]
fn an_opening_makes_the_checksums_as_long_as_their_pool() {
    let bench = Bench::new();
    work(&bench.open(), 2);
    let pages = fs::metadata(bench.path()).unwrap().len() / PAGE;
    let sums = fs::OpenOptions::new().write(true).open(bench.sums()).unwrap();
    sums.set_len(8192 + 8).unwrap();
    let pool = bench.open();
    assert!(sums.metadata().unwrap().len() >= 8192 + pages * 8);
    drop(pool);
}
