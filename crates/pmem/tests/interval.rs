//! A journaled pool at [`Level::Interval`]: who flushes, and when writers are held back. Its files are simulated; syncs of the journal, and of the
//! checksums of pages, can be held up.

mod bare;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use bare::Bare;
use durix_crashsim::fs::{Open, SimulatedFs, SimulatedJournal, SimulatedPoolFile};
use durix_pmem::journal::{JournalFile, JournalPlace, Level};
use durix_pmem::service::Tick;
use durix_pmem::{Hardware, Lane, Off, Pool, PoolOptions, Result, Session, Word};

const LIMIT: u64 = 256 << 10;
const D: Duration = Duration::from_millis(20);

/// The syncs of a journal: who made them, and whether they end.
#[derive(Debug, Default)]
struct Syncs {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    made: Vec<ThreadId>,
    held: bool,
}

impl Syncs {
    fn hold(&self, held: bool) {
        self.state.lock().unwrap().held = held;
        self.changed.notify_all();
    }

    fn made(&self) -> Vec<ThreadId> {
        self.state.lock().unwrap().made.clone()
    }

    fn by_this_thread(&self) -> usize {
        let me = std::thread::current().id();
        self.made().iter().filter(|thread| **thread == me).count()
    }

    fn wait_for(&self, count: usize) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.made.len() < count).unwrap());
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.made.push(std::thread::current().id());
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.held).unwrap());
    }
}

#[derive(Debug)]
struct Place {
    fs: SimulatedFs,
    inner: SimulatedJournal,
    syncs: Arc<Syncs>,
    /// Those of the checksums of pages: the last thing that a checkpoint waits for, but for its journal.
    of_sums: Arc<Syncs>,
}

impl Place {
    fn watched(&self, file: Arc<dyn JournalFile>) -> Arc<dyn JournalFile> {
        Arc::new(Watched { file, syncs: Arc::clone(&self.syncs) })
    }
}

impl JournalPlace for Place {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        Ok(self.inner.open(read_only)?.map(|file| self.watched(file)))
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        Ok(self.watched(self.inner.create()?))
    }
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        let (inner, syncs) = (SimulatedJournal::new(&self.fs, "pool-sums"), Arc::clone(&self.of_sums));
        Some(Arc::new(Place { inner, fs: self.fs.clone(), syncs, of_sums: Arc::default() }))
    }
}

#[derive(Debug)]
struct Watched {
    file: Arc<dyn JournalFile>,
    syncs: Arc<Syncs>,
}

impl JournalFile for Watched {
    fn describe(&self) -> String {
        self.file.describe()
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }
    fn sync(&self) -> Result<()> {
        self.syncs.pass();
        self.file.sync()
    }
    fn sync_name(&self) -> Result<()> {
        self.file.sync_name()
    }
}

/// A pool that nobody drives, with one structure; all that its creation has done is durable.
fn pool(interval: Duration) -> (Pool, Arc<Bare>, Arc<Syncs>) {
    pool_of(LIMIT, interval)
}

fn pool_of(limit: u64, interval: Duration) -> (Pool, Arc<Bare>, Arc<Syncs>) {
    let (pool, words, syncs, _) = pool_with_checkpoints(limit, interval);
    (pool, words, syncs)
}

/// The same, with the syncs of the checksums of its pages.
fn pool_with_checkpoints(limit: u64, interval: Duration) -> (Pool, Arc<Bare>, Arc<Syncs>, Arc<Syncs>) {
    let (fs, syncs, of_sums) = (SimulatedFs::new(), Arc::<Syncs>::default(), Arc::<Syncs>::default());
    let options = PoolOptions::new().chunk_size(4096).max_indices(16).lanes(2).initial_size(limit).max_size(limit);
    let options = options
        .durability(Level::Interval(interval))
        .scrub_every(Duration::ZERO)
        .journal_segment(8192)
        .journal_limit(0);
    let backing = SimulatedPoolFile::new(&fs, "pool", Open::OrNew, limit).unwrap();
    let inner = SimulatedJournal::new(&fs, "pool-journal");
    let place = Place { fs, inner, syncs: Arc::clone(&syncs), of_sums: Arc::clone(&of_sums) };
    let pool = options.create_journaled_on(backing, place).unwrap();
    let words = pool.open_structure::<Bare>("words", &()).unwrap();
    pool.commit(&mut pool.session().unwrap()).unwrap();
    (pool, words, syncs, of_sums)
}

/// An update that is settled as the pool's level asks for. Returns the number of its commit.
fn update(pool: &Pool, words: &Bare, session: &mut Session<Hardware>, value: u64) -> u64 {
    let op = session.enter().unwrap();
    let words = words.root.words(&op);
    op.store(&words[0], value, Relaxed);
    op.write_back(words);
    let number = op.note_commit();
    drop(op);
    pool.settle(session).unwrap();
    number
}

#[test]
fn a_writer_that_pauses_for_longer_than_two_intervals_is_not_held_back() {
    let (pool, words, syncs) = pool(D);
    let mut session = pool.session().unwrap();
    for round in 1..=3 {
        std::thread::sleep(5 * D);
        let number = update(&pool, &words, &mut session, round);
        assert!(!pool.is_settled(number), "round {round}: somebody has flushed");
        let before = syncs.made().len();
        std::thread::scope(|s| {
            s.spawn(|| pool.commit(&mut pool.session().unwrap()).unwrap());
        });
        assert!(pool.is_settled(number) && syncs.made().len() > before);
        std::thread::sleep(5 * D);
    }
    // That of its creation.
    let own = syncs.by_this_thread();
    update(&pool, &words, &mut session, 9);
    assert_eq!(syncs.by_this_thread(), own, "the writer has flushed");
}

#[test]
fn without_anybody_who_commits_a_writer_is_held_back_at_twice_the_interval_and_not_before() {
    let (pool, words, syncs) = pool(D);
    let mut session = pool.session().unwrap();
    for round in 0..3 {
        let (own, start) = (syncs.by_this_thread(), Instant::now());
        let mut number = 0;
        while syncs.by_this_thread() == own {
            number = update(&pool, &words, &mut session, round);
            std::thread::yield_now();
        }
        assert!(start.elapsed() > 2 * D, "round {round}: held back after {:?}", start.elapsed());
        assert!(pool.is_settled(number), "round {round}");
        assert_eq!(syncs.by_this_thread(), own + 1, "round {round}");
    }
}

#[test]
fn while_a_flush_takes_long_no_update_returns_that_begins_two_intervals_after_the_oldest_one() {
    let (pool, words, syncs) = pool(D);
    let mut session = pool.session().unwrap();
    update(&pool, &words, &mut session, 1);
    let oldest = Instant::now();
    let before = syncs.made().len();
    syncs.hold(true);
    let (begun, released) = std::thread::scope(|s| {
        s.spawn(|| pool.commit(&mut pool.session().unwrap()).unwrap());
        syncs.wait_for(before + 1);
        let writer = s.spawn(|| {
            let (mut session, mut begun) = (pool.session().unwrap(), Vec::new());
            while oldest.elapsed() < 20 * D {
                let at = Instant::now();
                update(&pool, &words, &mut session, 2);
                begun.push((at, Instant::now()));
            }
            begun
        });
        std::thread::sleep(10 * D);
        let released = Instant::now();
        syncs.hold(false);
        (writer.join().unwrap(), released)
    });
    let early: Vec<_> = begun.iter().filter(|(_, returned)| *returned < released).collect();
    println!("{} updates returned before the flush ended, {} in all", early.len(), begun.len());
    assert!(early.iter().all(|(at, _)| *at <= oldest + 2 * D), "an update was not held back");
    assert!(begun.len() > early.len(), "the writer has not gone on");
}

/// Has the services do all that is due.
fn drive(pool: &Pool) {
    let mut session = pool.session().unwrap();
    while pool.tick(&mut session).unwrap() == Tick::Worked {}
}

#[test]
fn the_service_commits_what_is_an_interval_old_and_not_before() {
    let (early, words, syncs) = pool(Duration::from_secs(3600));
    let (mut session, before) = (early.session().unwrap(), syncs.made().len());
    let number = update(&early, &words, &mut session, 1);
    drive(&early);
    assert!(!early.is_settled(number) && syncs.made().len() == before, "a commit before its time");

    let (pool, words, _) = pool(D);
    let mut session = pool.session().unwrap();
    for value in 1..=3 {
        let number = update(&pool, &words, &mut session, value);
        std::thread::sleep(D);
        drive(&pool);
        assert!(pool.is_settled(number), "update {value} is older than the interval");
    }
}

#[test]
fn the_service_does_not_wait_where_a_commit_would_keep_operations_out_for_long() {
    let (pool, words, _) = pool_of(8 << 20, Duration::from_secs(3600));
    let mut session = pool.session().unwrap();
    // 36 K lines are few enough to wait, 52 K are not.
    for (round, at, bytes) in [(1, 1 << 20, (36 << 10) * 64), (2, 4 << 20, (16 << 10) * 64)] {
        let op = session.enter().unwrap();
        op.write_back_slice(op.slice::<Word>("lines", Off::new(at), bytes / 8).unwrap());
        drop(op);
        let number = update(&pool, &words, &mut session, round);
        drive(&pool);
        assert_eq!(pool.is_settled(number), round == 2, "round {round}");
    }
}

#[test]
fn commits_do_not_wait_for_a_checkpoint() {
    let (pool, words, _, of_sums) = pool_with_checkpoints(LIMIT, Duration::from_millis(1));
    let (mut session, done) = (pool.session().unwrap(), AtomicBool::new(false));
    let mut commits = |value| {
        let number = update(&pool, &words, &mut session, value);
        std::thread::sleep(Duration::from_millis(1));
        let worked = pool.tick_in(&mut session, &[Lane::Commit]).unwrap() == Tick::Worked;
        worked && pool.is_settled(number)
    };
    let before = of_sums.made().len();
    of_sums.hold(true);
    let (filled, beside, waits) = std::thread::scope(|s| {
        s.spawn(|| {
            let mut session = pool.session().unwrap();
            while !done.load(Relaxed) {
                let _ = pool.tick_in(&mut session, &[Lane::Disk]).unwrap();
                std::thread::yield_now();
            }
        });
        // Until a segment is full, and its checkpoint waits for the disk.
        let filled = (1..1000).all(|value| commits(value) && of_sums.made().len() == before);
        let beside = (1000..1010).all(&mut commits);
        let waits = of_sums.made().len() == before + 1;
        done.store(true, Relaxed);
        of_sums.hold(false);
        (!filled, beside, waits)
    });
    assert!(filled && waits, "no checkpoint was held up: {filled}, {waits}");
    assert!(beside, "a commit has waited for the checkpoint");
    assert!(pool.journal_stats().unwrap().checkpoints > 0);
}

/// A round has written all lines back that were noted. The commit has to begin another epoch all the same, or a recovery undoes what it holds.
#[test]
fn a_commit_after_a_round_of_the_epochs_crosses_their_boundary() {
    let (pool, words, _) = pool(Duration::from_secs(3600));
    let (epochs, mut session) = (pool.epochs().unwrap(), pool.session().unwrap());
    for round in 1..=3 {
        let before = epochs.stats().epoch;
        let op = session.enter().unwrap();
        let word = &words.root.words(&op)[0];
        op.store(word, round, Relaxed);
        epochs.dirty(&op, word);
        drop(op);
        assert!(epochs.write_ahead(&mut session).unwrap());
        pool.commit(&mut session).unwrap();
        assert_eq!(epochs.stats().epoch, before + 1, "round {round}");
        // Where nothing was noted, there is none.
        assert!(epochs.write_ahead(&mut session).unwrap());
        pool.commit(&mut session).unwrap();
        assert_eq!(epochs.stats().epoch, before + 1, "round {round}");
    }
}
