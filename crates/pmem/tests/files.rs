//! Pools in real files: growth, other processes, forks.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Release};

use durix_pmem::backing::{Access, Backing, BackingKind, FileBacking};
use durix_pmem::pool::State;
use durix_pmem::{Error, Hardware, Off, Owner, Pool, PoolOptions, Survives, Word};

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(1).chunk_size(4096).max_indices(2).lanes(2)
}

#[test]
fn contents_come_back_after_growth_through_many_openings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pool");
    let mut lens = Vec::new();
    for round in 0..6u64 {
        let pool = options().open_or_create(&path).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let extents = pool.space().extents(&op, Owner(0));
        assert_eq!(extents.len() as u64, round);
        for extent in &extents {
            let words = op.slice("extent", Off::<Word>::new(extent.off), extent.len / 8).unwrap();
            assert!(words.iter().all(|w| op.load(w, Acquire) == extent.off));
        }
        let reserved = pool.space().reserve_extent(&op, Owner(0), 300_000).unwrap();
        for word in op.slice("extent", Off::<Word>::new(reserved.off()), reserved.len() / 8).unwrap() {
            assert_eq!(op.load(word, Acquire), 0, "new space is zero");
            op.store(word, reserved.off(), Release);
        }
        pool.space().activate(&op, reserved).unwrap();
        lens.push(pool.mapping().len());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), pool.mapping().len());
        drop(op);
        if round % 2 == 0 {
            pool.close().unwrap();
        }
    }
    assert!(lens.is_sorted() && lens[0] < lens[5]);
}

#[test]
fn a_file_that_is_longer_than_its_header_says_opens_and_grows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pool");
    let pool = options().create(&path).unwrap();
    let size = pool.mapping().len();
    pool.close().unwrap();
    // What growing leaves that was cut by a crash.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size + 50_000).unwrap();
    let pool = options().open(&path).unwrap();
    assert_eq!(pool.mapping().len(), size);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.size, stats.file_size), (size, size + 50_000));
    let mut session = pool.session().unwrap();
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), 100_000).unwrap());
    assert!(pool.mapping().len() > size + 50_000);
}

#[test]
fn holes_are_filled_before_anything_is_stored() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pool");
    options().initial_size(1 << 20).create(&path).unwrap().close().unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20, "allocated when it is created");
    // A sparse copy.
    let head = std::fs::read(&path).unwrap()[..4096].to_vec();
    std::fs::write(&path, head).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20);
    options().open(&path).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
}

#[test]
fn an_ordinary_file_says_what_it_survives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pool");
    let pool = options().create(&path).unwrap();
    if FileBacking::open(&path).unwrap().kind() == BackingKind::Dax {
        eprintln!("skipped: the temporary directory is persistent memory");
        return;
    }
    assert_eq!(
        pool.guarantee().to_string(),
        "an operation that has returned survives the death of the process, not a power failure or a crash of the \
         operating system"
    );
    let State::Dirty { survives: Survives::ProcessDeath, .. } = pool.stats().unwrap().state else { panic!() };
    pool.close().unwrap();
    match options().assume_pmem(true).open(&path) {
        Err(error) => assert_eq!(
            error.to_string(),
            "this processor has no instruction that writes a cache line back to persistent memory; use an ordinary file \
             system"
        ),
        Ok(pool) => assert_eq!(
            pool.guarantee().to_string(),
            "an operation that has returned survives power failure, if the mapping is persistent memory as `assume_pmem` \
             says"
        ),
    }
}

#[test]
fn an_error_without_a_cause_in_the_file_is_one_line_too() {
    assert_eq!(
        Error::NoWriteBack.to_string(),
        "this processor has no instruction that writes a cache line back to persistent memory; use an ordinary file system"
    );
}

// ---- other processes ----

/// Set in a child of this test: what it is to do.
const CHILD: &str = "DURIX_TEST_CHILD";

/// Runs the test `name` of this binary again as a child, which finds `job` in its environment.
fn child(name: &str, job: &str, path: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env(CHILD, job).env("DURIX_TEST_PATH", path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn job() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(CHILD).ok()?, std::env::var_os("DURIX_TEST_PATH")?.into()))
}

/// In a child: opens the pool, says so, stores until it is killed.
fn store_until_killed(path: &Path) {
    let pool = options().open_or_create(path).unwrap();
    let mut session = pool.session().unwrap();
    {
        let op = session.enter().unwrap();
        let reserved = pool.space().reserve_extent(&op, Owner(0), 500_000).unwrap();
        pool.space().activate(&op, reserved).unwrap();
        op.fence();
    }
    print!("\nREADY\n");
    std::io::stdout().flush().unwrap();
    let mut wait = [0];
    let _ = std::io::stdin().read(&mut wait);
    panic!("the parent has not killed this child");
}

fn wait_until_ready(child: &mut std::process::Child) {
    let mut seen = Vec::new();
    let out = child.stdout.as_mut().unwrap();
    while !seen.ends_with(b"READY\n") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
}

#[test]
fn a_live_pool_of_another_process_can_be_looked_at_and_survives_its_death() {
    if let Some((_, path)) = job() {
        return store_until_killed(&path);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pool");
    let name = "a_live_pool_of_another_process_can_be_looked_at_and_survives_its_death";
    for round in 1..=3u64 {
        let mut child = child(name, "store", &path);
        wait_until_ready(&mut child);
        let stats = Pool::peek(&path).unwrap();
        assert!(matches!(stats.state, State::Dirty { .. }));
        assert_eq!(stats.space.by_owner, [(Owner(0), round * 123 * 4096)]);
        assert!(matches!(options().open(&path), Err(Error::Locked { .. })));
        child.kill().unwrap();
        child.wait().unwrap();
        let stats = Pool::peek(&path).unwrap();
        assert_eq!(stats.space.by_owner, [(Owner(0), round * 123 * 4096)]);
    }
    let pool = options().open(&path).unwrap();
    assert_eq!(pool.space().extents(&pool.session().unwrap().enter().unwrap(), Owner(0)).len(), 3);
}

/// What the child of a fork finds, as the code it exits with.
fn in_the_fork(pool: &Pool, session: &mut durix_pmem::Session) -> i32 {
    let text = "the pool was opened before this process was forked; open it again in the child, after the parent has closed \
                it";
    let checks = [
        session.enter().is_err_and(|e| e.to_string() == text),
        pool.session().is_err_and(|e| e.to_string() == text),
        pool.close().is_err_and(|e| e.to_string() == text),
        pool.rename("a", "b").is_err_and(|e| e.to_string() == text),
        pool.mapping().is_forked(),
    ];
    checks.iter().position(|ok| !ok).map_or(0, |i| i as i32 + 1)
}

#[test]
fn a_forked_child_is_refused_and_does_no_harm() {
    if job().is_none() {
        // Forked from a process of its own, without the threads of other tests.
        let dir = tempfile::tempdir().unwrap();
        let name = "a_forked_child_is_refused_and_does_no_harm";
        let path = dir.path().join("x.pool");
        assert!(child(name, "fork", &path).wait().unwrap().success());
        assert!(path.exists(), "the child has run");
        return;
    }
    let (_, path) = job().unwrap();
    let pool = options().create(&path).unwrap();
    let mut session = pool.session().unwrap();
    // SAFETY: the child only looks at the pool, allocates a few strings, and exits at once without running destructors
    // other than those of the pool; no other thread of this process holds a lock it needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let found = in_the_fork(&pool, &mut session);
        drop(session);
        drop(pool);
        // SAFETY: ends the child without unwinding into the test harness.
        unsafe { libc::_exit(found) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made, into a variable that lives.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(libc::WEXITSTATUS(status), 0, "number of the check that failed in the child");
    assert!(libc::WIFEXITED(status));
    // The child has neither closed the pool nor given its lock away.
    drop(session.enter().unwrap());
    assert!(matches!(Pool::peek(&path).unwrap().state, State::Dirty { .. }));
    assert!(matches!(options().open(&path), Err(Error::Locked { .. })));
    pool.close().unwrap();
    options().open(&path).unwrap();
}

#[test]
fn a_lock_is_given_back_while_a_forked_child_still_has_the_file() {
    if job().is_none() {
        let dir = tempfile::tempdir().unwrap();
        let name = "a_lock_is_given_back_while_a_forked_child_still_has_the_file";
        let path = dir.path().join("x.pool");
        assert!(child(name, "fork", &path).wait().unwrap().success());
        assert!(path.exists(), "the child has run");
        return;
    }
    let (_, path) = job().unwrap();
    let pool = options().create(&path).unwrap();
    // SAFETY: the child does nothing but wait for a signal.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe {
            libc::pause();
            libc::_exit(0)
        };
    }
    pool.close().unwrap();
    let reopened = options().open(&path);
    let mut status = 0;
    // SAFETY: ends and awaits the child just made.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &mut status, 0);
    }
    reopened.unwrap();
}

#[test]
fn backings_lock_as_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, [0; 4096]).unwrap();
    let open = || FileBacking::open(&path).unwrap();
    let (a, b) = (open(), open());
    a.try_lock(Access::Private).unwrap();
    b.try_lock(Access::Private).unwrap();
    assert!(matches!(open().try_lock(Access::Shared), Err(Error::Locked { .. })));
    open().try_lock(Access::Peek).unwrap();
    drop((a, b));
    let alone = open();
    alone.try_lock(Access::Shared).unwrap();
    assert!(matches!(open().try_lock(Access::Private), Err(Error::Locked { .. })));
    alone.unlock();
    open().try_lock(Access::Shared).unwrap();
    assert_eq!(Hardware::PAGE_CACHE.kind().to_string(), "page cache (no write-backs)");
}

/// A pipe would be waited for, and a device has no length.
#[test]
fn what_is_no_regular_file_is_no_pool() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, Path::new("/dev/zero"), dir.path()] {
        let told = [
            options().open(path).unwrap_err(),
            options().read_only(true).open(path).unwrap_err(),
            options().create(path).unwrap_err(),
            options().open_or_create(path).unwrap_err(),
        ];
        for error in told {
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
    }
}

/// What another process finds in the file of a pool without a journal.
#[test]
fn a_pool_without_a_journal_shows_its_operations_and_comes_to_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let options = PoolOptions::new().durability(durix_pmem::Level::Process);
    let pool = options.create(&path).unwrap();
    let told = || Pool::peek(&path).unwrap().progress.and_then(|progress| progress.operations);
    assert_eq!(told(), None, "nobody shows them");
    let _shown = pool.show_operations().unwrap().expect("a file without a journal");
    let before = told().unwrap();
    let mut session = pool.session().unwrap();
    (0..50).for_each(|_| drop(session.enter().unwrap()));
    let start = std::time::Instant::now();
    while told().unwrap() < before + 50 {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?} of {}", told(), before + 50);
        let _ = pool.tick(&mut session).unwrap();
    }
    assert_eq!(told(), Some(before + 50), "its own operations do not count");
    // A pool at rest has nothing to do: the service does not count itself.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(matches!(pool.tick(&mut session).unwrap(), durix_pmem::Tick::Idle(_)));
    drop(session);
    pool.close().unwrap();
    assert_eq!(told(), None);
    // Whoever opens it next does not show them: what an earlier opening stored is not taken for it, even after a crash.
    let crashed = {
        let pool = options.open(&path).unwrap();
        let _shown = pool.show_operations().unwrap();
        assert!(told().is_some());
        std::fs::read(&path).unwrap()
    };
    std::fs::write(&path, crashed).unwrap();
    let pool = PoolOptions::new().durability(durix_pmem::Level::Process).accept_copy(true).open(&path).unwrap();
    assert_eq!(told(), None);
    drop(pool);
    let journaled = PoolOptions::new().durability(durix_pmem::Level::Immediate).create(dir.path().join("j")).unwrap();
    assert!(journaled.show_operations().unwrap().is_none(), "its journal tells them");
}
