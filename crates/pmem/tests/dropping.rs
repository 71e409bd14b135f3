//! Dropping private pages of a journaled pool. The files are simulated, and beside the pool's there is a real one with the same contents, which is
//! mapped: so pages are private, are dropped, and read the file again as the kernel does it.

mod bare;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use bare::Bare;
use durix_crashsim::Explorer;
use durix_crashsim::fs::{FileSubject, Files, Open, SimulatedFs, SimulatedJournal, SimulatedPoolFile};
use durix_pmem::backing::{Access, Backing, BackingKind, CleanPages, FileBacking, Window};
use durix_pmem::journal::Level;
use durix_pmem::{Error, Extent, Off, Pool, PoolOptions, Reserve, Result, Session, WeakPool, Word};

const LIMIT: u64 = 256 << 10;
const PAGE: u64 = 4096;
const PAGES: u64 = 4;

/// What memory must show: the words of the extent that were stored to.
type Words = [[u64; 3]; PAGES as usize];

/// What happens at each write and sync of the pool's file, once a pool is open.
#[derive(Debug, Default)]
struct Hook {
    pool: Mutex<Option<(WeakPool, u64)>>,
    expected: Mutex<Words>,
    /// The next sync of the pool's file fails, and has lost what was written since the last one.
    loses: AtomicBool,
    wrong: Mutex<Vec<String>>,
    /// Where the next read, and the next write, of an offset waits.
    reads: Mutex<Option<Stop>>,
    writes: Mutex<Option<Stop>>,
}

/// A thread that is held up at an offset of the pool's file.
#[derive(Debug)]
struct Stop {
    offset: u64,
    came: SyncSender<()>,
    goes_on: Receiver<()>,
}

impl Stop {
    /// Has the next access of an offset wait. Returns what tells that it has come, and what it waits for.
    fn at(place: &Mutex<Option<Stop>>, offset: u64) -> (Receiver<()>, SyncSender<()>) {
        let ((came, has_come), (go_on, goes_on)) = (sync_channel(1), sync_channel(1));
        *place.lock().unwrap() = Some(Stop { offset, came, goes_on });
        (has_come, go_on)
    }

    fn meet(place: &Mutex<Option<Stop>>, range: std::ops::Range<u64>) {
        let stop = place.lock().unwrap().take_if(|stop| range.contains(&stop.offset));
        if let Some(stop) = stop {
            stop.came.send(()).unwrap();
            stop.goes_on.recv().unwrap();
        }
    }
}

impl Hook {
    /// Drops what can be dropped, and compares.
    fn act(&self, when: &str) {
        let Some((pool, extent)) = self.pool.lock().unwrap().clone() else { return };
        let Some(pool) = pool.upgrade() else { return };
        let mut session = pool.session().unwrap();
        pool.drop_written_pages(&mut session).unwrap();
        self.compare(&mut session, extent, when);
    }

    fn compare(&self, session: &mut Session, extent: u64, when: &str) {
        let op = session.enter().unwrap();
        let expected = self.expected.lock().unwrap();
        for (page, words) in expected.iter().enumerate() {
            for (line, expected) in words.iter().enumerate() {
                let found: u64 = op.load(op.at(word_at(extent, page, line)), Relaxed);
                if found != *expected {
                    let what = format!("{when}: line {line} of page {page} holds {found} instead of {expected}");
                    self.wrong.lock().unwrap().push(what);
                }
            }
        }
    }
}

fn word_at(extent: u64, page: usize, line: usize) -> Off<Word> {
    Off::new(extent + page as u64 * PAGE + line as u64 * 64)
}

/// A simulated file, and a real one that is mapped.
#[derive(Debug)]
struct Kernel {
    simulated: SimulatedPoolFile,
    mapped: FileBacking,
    real: File,
    hook: Arc<Hook>,
    /// What was there before writes that are not synced.
    before: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Kernel {
    fn new(fs: &SimulatedFs, hook: &Arc<Hook>) -> Result<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let real = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let simulated = SimulatedPoolFile::new(fs, "pool", Open::OrNew, LIMIT)?;
        let (mapped, hook, before) = (FileBacking::open(&path)?, Arc::clone(hook), Mutex::default());
        Ok(Kernel { simulated, mapped, real, hook, before })
    }

    fn mirror(&self, offset: u64, len: usize) -> Result<()> {
        let mut bytes = vec![0; len];
        self.simulated.read(offset, &mut bytes)?;
        self.real.write_all_at(&bytes, offset).unwrap();
        Ok(())
    }
}

impl Backing for Kernel {
    fn describe(&self) -> String {
        self.simulated.describe()
    }
    fn kind(&self) -> BackingKind {
        BackingKind::Anonymous
    }
    fn len(&self) -> Result<u64> {
        self.simulated.len()
    }
    fn limit(&self) -> u64 {
        LIMIT
    }
    fn try_lock(&self, access: Access) -> Result<()> {
        self.simulated.try_lock(access)
    }
    fn unlock(&self) {
        self.simulated.unlock();
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.simulated.read(offset, bytes)?;
        Stop::meet(&self.hook.reads, offset..offset + bytes.len() as u64);
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Stop::meet(&self.hook.writes, offset..offset + bytes.len() as u64);
        let mut before = vec![0; bytes.len()];
        self.simulated.read(offset, &mut before)?;
        self.before.lock().unwrap().push((offset, before));
        let written = self.simulated.write(offset, bytes);
        self.mirror(offset, bytes.len())?;
        self.hook.act("a write");
        written
    }
    fn private_page(&self) -> u64 {
        self.mapped.private_page()
    }
    fn drop_private(&self, pages: &CleanPages<'_>) -> bool {
        self.mapped.drop_private(pages)
    }
    fn reset(&self) -> Result<()> {
        self.simulated.reset()
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.simulated.allocate(len)
    }
    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        Reserve::pages(least, wanted.min(LIMIT))
    }
    fn map(&self, window: &Window<'_>) -> Result<()> {
        let range = window.range();
        self.mirror(range.start, (range.end - range.start) as usize)?;
        self.mapped.map(window)
    }
    fn sync(&self) -> Result<()> {
        self.hook.act("before a sync");
        if self.hook.loses.swap(false, SeqCst) {
            for (offset, bytes) in self.before.lock().unwrap().drain(..).rev() {
                self.real.write_all_at(&bytes, offset).unwrap();
            }
            self.hook.act("the pages of a sync are lost");
            let source = std::io::Error::from_raw_os_error(5);
            return Err(Error::Io { action: "syncing (planted)".into(), source });
        }
        self.simulated.sync()?;
        self.before.lock().unwrap().clear();
        self.hook.act("after a sync");
        Ok(())
    }
    fn sync_name(&self) -> Result<()> {
        self.simulated.sync_name()
    }
}

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Stores into a page and commits.
    Store {
        page: usize,
        line: usize,
        value: u64,
    },
    /// Stores into the third line of a page, and never writes that back.
    Unnoted {
        page: usize,
        value: u64,
    },
    Checkpoint,
}
use Do::{Checkpoint, Store, Unnoted};

struct Live {
    session: Session,
    pages: Arc<Bare>,
    pool: Pool,
    extent: Extent,
    hook: Arc<Hook>,
}

fn open(fs: &SimulatedFs) -> Result<Live> {
    let options = PoolOptions::new().chunk_size(4096).max_indices(16).lanes(2).initial_size(1).max_size(LIMIT);
    let options =
        options.durability(Level::Immediate).journal_segment(4096).journal_limit(0).pool_id([7; 16]).boot_id([4; 16]);
    let hook = Arc::new(Hook::default());
    let journal = || SimulatedJournal::new(fs, "pool-journal");
    let pool = match options.create_journaled_on(Kernel::new(fs, &hook)?, journal()) {
        Err(Error::AlreadyExists { .. }) => options.open_journaled_on(Kernel::new(fs, &hook)?, journal())?.recover()?,
        created => created?,
    };
    let pages = pool.open_structure::<Bare>("pages", &())?;
    let mut session = pool.session()?;
    let op = session.enter()?;
    let owner = pages.root.owner();
    let extent = match pool.space().extents(&op, owner).first() {
        Some(extent) => *extent,
        None => pool.space().activate(&op, pool.space().reserve_extent(&op, owner, PAGES * PAGE)?)?,
    };
    drop(op);
    pool.commit(&mut session)?;
    let op = session.enter()?;
    let words = std::array::from_fn(|page| {
        std::array::from_fn(|line| op.load(op.at(word_at(extent.off, page, line)), Relaxed))
    });
    drop(op);
    *hook.expected.lock().unwrap() = words;
    *hook.pool.lock().unwrap() = Some((pool.downgrade(), extent.off));
    Ok(Live { session, pages, pool, extent, hook })
}

impl Live {
    fn run(&mut self, what: Do) -> Result<()> {
        let (page, line, value) = match what {
            Store { page, line, value } => (page, line, value),
            Unnoted { page, value } => (page, 2, value),
            Checkpoint => {
                self.pool.checkpoint_journal()?;
                self.hook.act("after a checkpoint");
                return Ok(());
            }
        };
        let op = self.session.enter()?;
        let word = op.at(word_at(self.extent.off, page, line));
        op.store(word, value, Relaxed);
        self.hook.expected.lock().unwrap()[page][line] = value;
        if line < 2 {
            op.write_back(word);
        }
        op.note_commit();
        drop(op);
        self.hook.act("before a commit");
        self.pool.settle(&mut self.session)?;
        self.hook.act("after a commit");
        Ok(())
    }

    /// What was wrong in memory so far.
    fn wrong(&self) -> Vec<String> {
        self.hook.wrong.lock().unwrap().clone()
    }

    fn close(self) {
        *self.hook.pool.lock().unwrap() = None;
        drop((self.session, self.pages));
        self.pool.close().unwrap();
    }
}

/// Values repeat, so that memory can equal the file while a record that waits says something else.
#[test]
fn what_memory_shows_never_changes_at_a_drop() {
    let mut live = open(&SimulatedFs::new()).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    for step in 0..600 {
        let (page, line, value) = (below(PAGES) as usize, below(2) as usize, below(3));
        let what = match below(8) {
            0 => Unnoted { page, value },
            1 => Checkpoint,
            _ => Store { page, line, value },
        };
        live.run(what).unwrap();
        assert_eq!(live.wrong(), [] as [String; 0], "step {step}, {what:?}");
    }
    let stats = live.pool.journal_stats().unwrap();
    assert!(stats.dropped_bytes > 100 * PAGE && stats.checkpoints > 50, "{stats:?}");
    live.close();
}

#[test]
fn a_sync_that_fails_and_loses_pages_takes_nothing_from_memory() {
    for pages in 1..=2 {
        let fs = SimulatedFs::new();
        let mut live = open(&fs).unwrap();
        (0..2).for_each(|page| live.run(Store { page, line: 0, value: 5 }).unwrap());
        live.run(Checkpoint).unwrap();
        let dropped = live.pool.journal_stats().unwrap().dropped_bytes;
        assert!(dropped >= 2 * PAGE, "{dropped}");
        (0..pages).for_each(|page| live.run(Store { page, line: 1, value: 6 }).unwrap());
        live.hook.loses.store(true, SeqCst);
        let failed = live.pool.checkpoint_journal().unwrap_err();
        assert!(matches!(failed, Error::JournalFailed { .. }), "{failed}");
        assert_eq!(live.wrong(), [] as [String; 0]);
        let refused = live.pool.drop_written_pages(&mut live.session).unwrap_err();
        assert!(matches!(refused, Error::JournalFailed { .. }), "{refused}");
    }
}

/// A drop has found that a page equals the file. Two commits of two generations come meanwhile, and the second one brings back what the
/// file holds. So the page equals the file still; but the checkpoint of the first one is on its way.
#[test]
fn a_page_that_was_captured_since_is_not_dropped() {
    let mut live = open(&SimulatedFs::new()).unwrap();
    let (pool, hook, extent) = (live.pool.clone(), Arc::clone(&live.hook), live.extent.off);
    // Nothing but the drop below.
    *hook.pool.lock().unwrap() = None;
    let store = |value| Store { page: 0, line: 0, value };
    live.run(store(1)).unwrap();
    live.run(Checkpoint).unwrap();
    let (is_read, read_on) = Stop::at(&hook.reads, extent);
    std::thread::scope(|scope| {
        let mut session = pool.session().unwrap();
        let pool = &pool;
        let drop = scope.spawn(move || pool.drop_written_pages(&mut session).unwrap());
        is_read.recv().unwrap();
        live.run(store(2)).unwrap();
        let (is_written, write_on) = Stop::at(&hook.writes, extent);
        let checkpoint = scope.spawn(|| pool.checkpoint_journal().unwrap());
        is_written.recv().unwrap();
        live.run(store(1)).unwrap();
        read_on.send(()).unwrap();
        drop.join().unwrap();
        write_on.send(()).unwrap();
        checkpoint.join().unwrap();
    });
    let mut session = pool.session().unwrap();
    hook.compare(&mut session, extent, "after the checkpoint");
    assert_eq!(live.wrong(), [] as [String; 0]);
    drop((session, pool));
    live.close();
}

/// Pages are dropped after each operation, and at each write and sync of the pool's file.
struct Dropping;

impl FileSubject for Dropping {
    type Op = Do;
    type Ret = Vec<String>;
    type State = [[u64; 2]; PAGES as usize];
    type Model = [[u64; 2]; PAGES as usize];
    type Live = Live;

    fn create(&self, fs: &SimulatedFs) -> Live {
        open(fs).unwrap().close();
        open(fs).unwrap()
    }
    fn recover(&self, fs: &SimulatedFs) -> Result<Live, String> {
        open(fs).map_err(|error| error.to_string())
    }
    fn apply(&self, live: &mut Live, what: &Do) -> Vec<String> {
        live.run(*what).unwrap();
        live.wrong()
    }
    fn observe(&self, live: &mut Live) -> Self::State {
        let op = live.session.enter().unwrap();
        let load = |page, line| op.load(op.at(word_at(live.extent.off, page, line)), Relaxed);
        std::array::from_fn(|page| std::array::from_fn(|line| load(page, line)))
    }
    fn model(&self) -> Self::Model {
        Default::default()
    }
    fn step(&self, model: &mut Self::Model, what: &Do) -> Vec<String> {
        if let Store { page, line, value } = *what {
            model[page][line] = value;
        }
        Vec::new()
    }
    fn expect(&self, model: &Self::Model) -> Self::State {
        *model
    }
}

fn history() -> Vec<Do> {
    let store = |page, line, value| Store { page, line, value };
    vec![
        store(0, 0, 1),
        store(1, 0, 2),
        Unnoted { page: 1, value: 9 },
        Checkpoint,
        store(0, 1, 3),
        Checkpoint,
        store(0, 0, 4),
        store(1, 1, 5),
        Checkpoint,
    ]
}

#[test]
fn every_crash_state_is_right_whenever_pages_are_dropped() {
    let mut live = Dropping.create(&SimulatedFs::new());
    history().iter().for_each(|what| live.run(*what).unwrap());
    let stats = live.pool.journal_stats().unwrap();
    assert!(stats.dropped_bytes >= 4 * PAGE && stats.checkpoints >= 3, "{stats:?}");
    live.close();
    let explorer = Explorer::new().suggest(false).executions_per_point(60).samples(30);
    let report = Files::new(explorer).run_then(&Dropping, &history(), &[Checkpoint]).assert_ok();
    println!("{report}");
}

// ---- real files ----

/// A pool in a file, and an extent of it.
struct Real {
    dir: tempfile::TempDir,
    options: PoolOptions,
    pages: u64,
}

impl Real {
    fn new(pages: u64, limit: u64) -> Self {
        let options = PoolOptions::new().max_indices(16).lanes(2).durability(Level::Immediate).written_memory(limit);
        Real { dir: tempfile::tempdir().unwrap(), options, pages }
    }

    fn open(&self) -> (Pool, Arc<Bare>, u64) {
        let pool = self.options.open_or_create(self.dir.path().join("pool")).unwrap();
        let pages = pool.open_structure::<Bare>("pages", &()).unwrap();
        let (mut session, owner) = (pool.session().unwrap(), pages.root.owner());
        let op = session.enter().unwrap();
        let extent = pool.space().extents(&op, owner).first().copied().unwrap_or_else(|| {
            let reserved = pool.space().reserve_extent(&op, owner, self.pages * PAGE).unwrap();
            pool.space().activate(&op, reserved).unwrap()
        });
        (pool, pages, extent.off)
    }

    /// Bytes of private pages, as the kernel counts them.
    fn private_bytes(&self) -> u64 {
        let path = self.dir.path().canonicalize().unwrap().join("pool").display().to_string();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut inside, mut kib, mut found) = (false, 0, false);
        for line in smaps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[0].contains('-') {
                inside = fields.last() == Some(&path.as_str());
                found |= inside;
            } else if inside && ["Anonymous:", "Swap:"].contains(&fields[0]) {
                kib += fields[1].parse::<u64>().unwrap();
            }
        }
        assert!(found, "{path} is not mapped");
        kib * 1024
    }
}

/// Stores a number into some pages, and commits.
fn fill(pool: &Pool, session: &mut Session, extent: u64, pages: std::ops::Range<u64>, value: u64) {
    pool.services().admit(session).unwrap();
    let op = session.enter().unwrap();
    for page in pages {
        let word = op.at(word_at(extent, page as usize, page as usize % 64));
        op.store(word, value + page, Relaxed);
        op.write_back(word);
    }
    op.note_commit();
    drop(op);
    pool.settle(session).unwrap();
}

fn assert_filled(session: &mut Session, extent: u64, pages: u64, value: u64) {
    let op = session.enter().unwrap();
    for page in 0..pages {
        let found: u64 = op.load(op.at(word_at(extent, page as usize, page as usize % 64)), Relaxed);
        assert_eq!(found, value + page, "page {page}");
    }
}

/// Nobody drives the services: writers that meet the bound take part.
#[test]
fn written_pages_stay_below_the_bound_while_a_pool_eight_times_as_large_is_written() {
    const BOUND: u64 = 2 << 20;
    let real = Real::new(8 * BOUND / PAGE, BOUND);
    let (pool, pages, extent) = real.open();
    let mut session = pool.session().unwrap();
    let (step, mut most) = (64, 0);
    for round in 0..2 {
        for first in (0..real.pages).step_by(step) {
            fill(&pool, &mut session, extent, first..first + step as u64, round);
            most = most.max(real.private_bytes());
        }
        assert_filled(&mut session, extent, real.pages, round);
    }
    let stats = pool.journal_stats().unwrap();
    println!("at most {} KiB of {} KiB; {stats:?}", most >> 10, BOUND >> 10);
    // What the last batch has written comes on top, and pages that no commit has captured.
    assert!(most <= BOUND + 2 * step as u64 * PAGE, "{most} bytes of private pages");
    assert!(most > BOUND / 2, "{most} bytes: what is measured is not what was written");
    assert_eq!(stats.written_limit, BOUND);
    assert!(stats.dropped_bytes >= 14 * BOUND, "{stats:?}");
    drop((session, pages));
    pool.close().unwrap();
    let (pool, _pages, extent) = real.open();
    assert_filled(&mut pool.session().unwrap(), extent, real.pages, 1);
    assert_eq!(pool.check_pages().unwrap().damaged, []);
}

#[test]
fn an_idle_pool_drops_its_pages() {
    let real = Real::new(4096, 1 << 30);
    let (pool, _pages, extent) = real.open();
    let mut session = pool.session().unwrap();
    fill(&pool, &mut session, extent, 0..4096, 7);
    assert!(real.private_bytes() >= 4096 * PAGE);
    let begun = std::time::Instant::now();
    // It keeps 4 MiB.
    while real.private_bytes() > (1024 + 64) * PAGE {
        assert!(begun.elapsed().as_secs() < 100, "{:?}", pool.journal_stats());
        let _ = pool.tick(&mut session).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_filled(&mut session, extent, 4096, 7);
}

/// A store between the comparison and the drop would be lost: nobody notes these, so nothing else holds them.
#[test]
fn no_store_beside_drops_is_lost() {
    let live = open(&SimulatedFs::new()).unwrap();
    let (pool, extent) = (&live.pool, live.extent.off);
    // Nothing but the drops below.
    *live.hook.pool.lock().unwrap() = None;
    let ended = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let (mut session, mut last) = (pool.session().unwrap(), [0; PAGES as usize]);
            for value in 1.. {
                if ended.load(SeqCst) {
                    break;
                }
                let page = (value * 7 / 5) as usize % PAGES as usize;
                let op = session.enter().unwrap();
                let word = op.at(word_at(extent, page, 40));
                let found: u64 = op.load(word, Relaxed);
                assert_eq!(found, last[page], "page {page}");
                op.store(word, value, Relaxed);
                last[page] = value;
                drop(op);
                (0..value % 64 * 64).for_each(|_| std::hint::spin_loop());
            }
        });
        let mut session = pool.session().unwrap();
        for round in 1..=1000 {
            fill(pool, &mut session, extent, 0..PAGES, round);
            pool.checkpoint_journal().unwrap();
            (0..10).for_each(|_| _ = pool.drop_written_pages(&mut session).unwrap());
        }
        ended.store(true, SeqCst);
    });
    let dropped = live.pool.journal_stats().unwrap().dropped_bytes;
    println!("{} pages dropped", dropped / PAGE);
    assert!(dropped > 0);
    live.close();
}

/// The kernel keeps locked pages. Then nothing is dropped, and nobody waits for it.
#[test]
fn pages_that_must_stay_hold_nobody_up() {
    let real = Real::new(1024, 1 << 20);
    let (pool, _pages, extent) = real.open();
    let page = pool.mapping().base_addr() + extent as usize + 64 * PAGE as usize;
    // SAFETY: a page of the mapping, which outlives the test.
    assert_eq!(unsafe { libc::mlock(page as *const _, PAGE as usize) }, 0);
    let mut session = pool.session().unwrap();
    for first in (0..1024).step_by(64) {
        fill(&pool, &mut session, extent, first..first + 64, 3);
    }
    assert_filled(&mut session, extent, 1024, 3);
}
