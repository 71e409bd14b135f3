//! The threads of a database: checkpoints without anybody's doing, and what becomes of errors, panics, forks and the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use durix::{Db, Hardware, Level};
use durix_pmem::backing::HeapBacking;
use durix_pmem::service::Urgency;
use durix_pmem::{Due, Lane, PoolOptions, Result, Service, Session};

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How often the pool has crossed a boundary.
fn checkpoints(db: &Db) -> u64 {
    db.pool().epochs().unwrap().stats().boundaries
}

#[test]
fn a_database_takes_checkpoints_by_itself_unless_it_is_told_not_to() {
    let dir = tempfile::tempdir().unwrap();
    // With a journal, each commit would be a checkpoint.
    let process = || Db::builder().durability(Level::Process);
    let quiet = process().no_background_threads().create(dir.path().join("quiet")).unwrap();
    let tree = quiet.ordered_map::<u64, u64>("m").unwrap();
    tree.insert(&1, &1).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(checkpoints(&quiet), 0, "nobody takes one");
    assert!(quiet.tick().unwrap(), "the usual interval has passed");
    quiet.sync().unwrap();
    assert_eq!(checkpoints(&quiet), 2);

    let path = dir.path().join("busy");
    let busy = process().create(&path).unwrap();
    let tree = busy.ordered_map::<u64, u64>("m").unwrap();
    let start = Instant::now();
    let ticket = {
        tree.insert(&1, &1).unwrap();
        tree.ticket().unwrap().checkpoint().expect("a tree is buffered")
    };
    while !busy.pool().epochs().unwrap().is_durable(ticket) {
        assert!(start.elapsed() < Duration::from_secs(20), "no checkpoint came");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(busy.close().is_err(), "a map is open");
    let before = checkpoints(&busy);
    tree.insert(&2, &2).unwrap();
    while checkpoints(&busy) == before {
        assert!(start.elapsed() < Duration::from_secs(20), "a database that could not be closed goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let epochs = busy.pool().epochs().unwrap();
    let taken = || epochs.stats().boundaries;
    wait_until("all that has happened is durable", || {
        let before = taken();
        std::thread::sleep(Duration::from_millis(150));
        taken() == before
    });
    let idle = taken();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(taken(), idle, "where no operation has begun, there is nothing to take");
    drop(tree);
    busy.close().unwrap();
    assert!(busy.sync().is_err(), "it is closed");
    let again = Db::builder().read_only(true).checkpoint_every(Duration::from_millis(1)).open(&path).unwrap();
    assert_eq!(again.ordered_map::<u64, u64>("m").unwrap().get(&1).unwrap(), Some(1));
}

#[test]
fn a_checkpoint_that_cannot_be_taken_is_told_by_the_next_sync() {
    let pool = PoolOptions::new().create_on(durix_pmem::backing::HeapBacking::new(16 << 20), Hardware::PAGE_CACHE);
    let db = Db::builder().checkpoint_every(Duration::from_millis(5)).over(pool.unwrap()).unwrap();
    db.sync().unwrap();
    let mut session = db.pool().session().unwrap();
    // An operation that takes longer than a checkpoint waits.
    let op = session.enter().unwrap();
    std::thread::sleep(Duration::from_secs(12));
    drop(op);
    let error = db.sync().unwrap_err().to_string();
    assert!(error.contains("operation"), "{error}");
    db.sync().unwrap();
}

/// A service that does one thing, once.
struct Once<F> {
    lane: Lane,
    done: AtomicBool,
    does: F,
}

impl<F: Fn() -> Result<()> + Send + Sync> Once<F> {
    fn new(lane: Lane, does: F) -> Arc<Self> {
        Arc::new(Once { lane, done: AtomicBool::new(false), does })
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

impl<F: Fn() -> Result<()> + Send + Sync> Service<Hardware> for Once<F> {
    fn name(&self) -> String {
        "the planted service".into()
    }
    fn lane(&self) -> Lane {
        self.lane
    }
    fn due(&self) -> Due {
        if self.is_done() { Due::No } else { Due::Now(Urgency::Leisure) }
    }
    fn step(&self, _: &mut Session<Hardware>) -> Result<()> {
        self.done.store(true, Ordering::SeqCst);
        (self.does)()
    }
}

fn on_heap() -> Db {
    let pool = PoolOptions::new().create_on(HeapBacking::new(16 << 20), Hardware::PAGE_CACHE);
    Db::builder().over(pool.unwrap()).unwrap()
}

#[test]
fn what_a_service_fails_at_is_told_by_the_next_update_or_sync_once() {
    let db = on_heap();
    let map = db.map::<u64, u64>("m").unwrap();
    let fail = || Err(durix_pmem::Error::Full { needed: 7 });
    let told = |error: durix::Error| {
        let error = error.to_string();
        assert!(error.starts_with("the planted service failed: the pool is full"), "{error}");
    };
    for (turn, lane) in [Lane::Prompt, Lane::Disk, Lane::Disk].into_iter().enumerate() {
        let service = Once::new(lane, fail);
        db.pool().services().register(&service);
        wait_until("it is called", || service.is_done());
        wait_until("it is reported", || match turn {
            0 => map.insert(&1, &1).map_err(told).is_err(),
            1 => map.sync().map_err(told).is_err(),
            _ => db.sync().map_err(told).is_err(),
        });
        map.insert(&1, &1).unwrap();
        map.sync().unwrap();
        db.sync().unwrap();
    }
}

#[test]
fn a_panic_in_a_service_stops_neither_the_thread_nor_readers_and_is_told_to_writers() {
    let db = on_heap();
    let map = db.map::<u64, u64>("m").unwrap();
    map.insert(&1, &1).unwrap();
    let bad = Once::new(Lane::Prompt, || panic!("planted"));
    db.pool().services().register(&bad);
    wait_until("it is told", || map.insert(&1, &1).is_err());
    assert!(map.insert(&1, &2).unwrap_err().to_string().contains("close the pool and open it again"));
    assert!(db.sync().is_err());
    assert_eq!(map.get(&1).unwrap(), Some(1));
    let good = Once::new(Lane::Prompt, || Ok(()));
    db.pool().services().register(&good);
    wait_until("the thread goes on", || good.is_done());
    drop((bad, good, map));
    db.close().unwrap();
}

/// The threads of this process with that name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)).count()
}

#[test]
fn threads_are_started_when_needed_and_end_with_the_database() {
    let name = "threads_are_started_when_needed_and_end_with_the_database";
    if std::env::var_os("DURIX_ALONE").is_none() {
        // Alone in a process, so that it can count.
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([&format!("kinds::background::{name}"), "--exact", "--nocapture"]).env("DURIX_ALONE", "1");
        assert!(again.status().unwrap().success());
        return;
    }
    let running = || ["durix-services", "durix-commits", "durix-disk"].map(threads_named);
    let dir = tempfile::tempdir().unwrap();
    let process = || Db::builder().durability(Level::Process);
    let db = on_heap();
    let strict = db.map::<u64, u64>("strict").unwrap();
    strict.insert(&1, &1).unwrap();
    assert_eq!(running(), [0, 0, 0], "there is nothing to do yet");
    let tree = db.ordered_map::<u64, u64>("tree").unwrap();
    wait_until("one for checkpoints", || running() == [1, 0, 0]);
    drop((strict, tree));
    db.close().unwrap();
    wait_until("it ends when the database is closed", || running() == [0, 0, 0]);
    let db = process().create(dir.path().join("p")).unwrap();
    wait_until("one that tells how many operations there were", || running() == [1, 0, 0]);
    db.close().unwrap();
    wait_until("it ends when the database is closed", || running() == [0, 0, 0]);
    let db = process().open(dir.path().join("p")).unwrap();
    let tree = db.ordered_map::<u64, u64>("tree").unwrap();
    drop(db);
    wait_until("a map keeps the database", || running() == [1, 0, 0]);
    drop(tree);
    wait_until("it ends with the last handle", || running() == [0, 0, 0]);
    for level in [Level::Process, Level::Immediate] {
        let quiet = Db::builder().no_background_threads().durability(level);
        let db = quiet.open(dir.path().join("p")).unwrap();
        let tree = db.ordered_map::<u64, u64>("tree").unwrap();
        tree.insert(&1, &1).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(running(), [0, 0, 0]);
    }
    let db = Db::builder().durability(Level::Immediate).open(dir.path().join("p")).unwrap();
    wait_until("one for the journal", || running()[1] == 1);
    db.close().unwrap();
    wait_until("it ends when the database is closed, too", || running() == [0, 0, 0]);
}

#[test]
fn a_service_that_holds_the_last_handle_ends_the_database_from_its_own_thread() {
    let db = on_heap();
    let last = std::sync::Mutex::new(Some(db.clone()));
    let (taken, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (took, goes) = (Arc::clone(&taken), Arc::clone(&go));
    let service = Once::new(Lane::Prompt, move || {
        let db = last.lock().unwrap().take();
        took.store(true, Ordering::SeqCst);
        while !goes.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(db);
        Ok(())
    });
    db.pool().services().register(&service);
    wait_until("it has the handle", || taken.load(Ordering::SeqCst));
    let pool = db.pool().downgrade();
    drop(db);
    go.store(true, Ordering::SeqCst);
    wait_until("the pool goes away", || pool.upgrade().is_none());
}

#[test]
fn a_forked_child_can_let_go_of_a_database_with_threads() {
    let name = "a_forked_child_can_let_go_of_a_database_with_threads";
    if std::env::var_os("DURIX_ALONE").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([&format!("kinds::background::{name}"), "--exact", "--nocapture"]).env("DURIX_ALONE", "1");
        assert!(again.status().unwrap().success());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let db = Db::builder().checkpoint_every(Duration::from_millis(1)).create(&path).unwrap();
    let tree = db.ordered_map::<u64, u64>("tree").unwrap();
    for round in 0..50 {
        tree.insert(&round, &round).unwrap();
        // SAFETY: the child calls nothing that another thread of the parent may hold: it lets go, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let refused = tree.insert(&1, &1).is_err() && db.close().is_err();
            drop((tree, db));
            // SAFETY: ends the child without unwinding into the test harness.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let (mut status, start) = (0, Instant::now());
        // SAFETY: asks for the child just made, with a variable that lives.
        while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "the child hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
    wait_until("the parent's thread goes on", || {
        tree.insert(&1, &2).unwrap();
        checkpoints(&db) > 1
    });
}
