//! Journaled databases in real files. A crash is a copy of both files while the database is open: what a killed process leaves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use durix::{Db, Hardware, Level, PoolOptions, kind};
use durix_pmem::backing::HeapBacking;

fn crashed(path: &Path, name: &str) -> PathBuf {
    let copy = path.with_file_name(name);
    std::fs::copy(path, &copy).unwrap();
    std::fs::copy(journal(path), journal(&copy)).unwrap();
    copy
}

/// Opens what a crash has left in copied files.
fn reopened(path: impl AsRef<Path>) -> durix::Result<Db> {
    Db::builder().accept_copy(true).open(path)
}

fn journal(path: &Path) -> PathBuf {
    durix_pmem::journal::DiskJournal::path_of(path)
}

fn db(path: &Path, level: Level) -> Db {
    Db::builder().initial_size(1 << 20).durability(level).open_or_create(path).unwrap()
}

#[test]
fn what_has_returned_is_in_the_files_for_every_kind() {
    let dir = tempfile::tempdir().unwrap();
    for kind in kind::kinds::<durix::Hardware>() {
        let path = dir.path().join(kind.name);
        let db = db(&path, Level::Immediate);
        let map = db.map_of_kind::<u64, u64>("map", kind.name).unwrap();
        for key in 1..=20u64 {
            map.insert(&key, &(key * 7)).unwrap();
            if key % 5 == 0 {
                map.remove(&(key - 1)).unwrap();
            }
            if key % 10 == 0 {
                let copy = crashed(&path, "copy");
                let found = Db::builder().durability(Level::Immediate).accept_copy(true).open(&copy).unwrap();
                let found = found.map::<u64, u64>("map").unwrap();
                assert!(found.check().unwrap().is_empty(), "{}", kind.name);
                for there in 1..=key {
                    let gone = (there + 1) % 5 == 0;
                    assert_eq!(found.get(&there).unwrap(), (!gone).then_some(there * 7), "{}: {there}", kind.name);
                }
                assert_eq!(found.count().unwrap(), key - key / 5);
            }
        }
        drop(map);
        db.close().unwrap();
        // Closed, it needs no journal.
        std::fs::remove_file(journal(&path)).unwrap();
        let found = Db::open(&path).unwrap();
        assert_eq!(found.map::<u64, u64>("map").unwrap().count().unwrap(), 16);
    }
}

#[test]
fn an_interval_pool_is_consistent_and_as_new_as_its_last_sync() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = db(&path, Level::Interval(Duration::from_secs(3600)));
    let (a, b) = (db.map::<u64, u64>("a").unwrap(), db.ordered_map::<u64, u64>("b").unwrap());
    for key in 0..2000u64 {
        a.insert(&key, &key).unwrap();
        b.insert(&key, &key).unwrap();
        if key == 1000 {
            db.sync().unwrap();
        }
    }
    let copy = crashed(&path, "copy");
    let found = reopened(&copy).unwrap();
    let (a, b) = (found.map::<u64, u64>("a").unwrap(), found.ordered_map::<u64, u64>("b").unwrap());
    let (in_a, in_b) = (a.count().unwrap(), b.count().unwrap());
    assert!(in_a >= 1001 && in_b <= in_a && in_a <= in_b + 1, "{in_a} {in_b}");
    assert!(db.guarantee().to_string().contains("at most 3600s"), "{}", db.guarantee());
}

#[test]
fn threads_share_flushes_and_transactions_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = db(&path, Level::Immediate);
    let (strict, tree) = (db.map::<u64, u64>("strict").unwrap(), db.ordered_map::<u64, u64>("tree").unwrap());
    let before = db.pool().journal_stats().unwrap().commits;
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let (db, strict, tree) = (&db, &strict, &tree);
            s.spawn(move || {
                for i in 0..25 {
                    let key = thread * 100 + i;
                    if i % 5 == 0 {
                        let both = |tx: &durix::Transaction| {
                            tx.map(strict)?.insert(&key, &key)?;
                            tx.map(tree)?.insert(&key, &key)?;
                            Ok(())
                        };
                        db.transaction(both).unwrap();
                    } else {
                        strict.insert(&key, &key).unwrap();
                        tree.insert(&key, &key).unwrap();
                    }
                    assert_eq!(strict.get(&key).unwrap(), Some(key));
                }
            });
        }
    });
    let commits = db.pool().journal_stats().unwrap().commits - before;
    assert!(commits <= 4 * 25 * 3, "{commits} flushes");
    let found = reopened(crashed(&path, "copy")).unwrap();
    assert_eq!(found.map::<u64, u64>("strict").unwrap().count().unwrap(), 100);
    assert_eq!(found.ordered_map::<u64, u64>("tree").unwrap().count().unwrap(), 100);
    assert_eq!(
        tree.guarantee().to_string(),
        "an operation that has returned survives power failure, by a flush of the journal"
    );
}

/// A folder that is not in memory, as far as the machine has one.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Whether a folder lies in memory, by what the kernel says in words.
fn in_memory(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    // Of two mounts at one place the later one is seen.
    let found = fields.filter(|f| folder.starts_with(f[1])).max_by_key(|f| f[1].len());
    found.is_some_and(|f| ["tmpfs", "ramfs"].contains(&f[2]))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn without_a_word_a_database_on_a_disk_survives_power_failure() {
    let dir = folder();
    let path = dir.path().join("db");
    let disk = !in_memory(dir.path());
    let expected = disk.then_some(Level::Immediate);
    let db = Db::open_or_create(&path).unwrap();
    assert_eq!(db.pool().level(), expected);
    let map = db.map::<u64, u64>("map").unwrap();
    map.insert(&1, &2).unwrap();
    let survives = if disk { "survives power failure, by a flush of the journal" } else { "not a power failure" };
    assert!(map.guarantee().to_string().contains(survives), "{}", map.guarantee());
    if disk {
        let found = reopened(crashed(&path, "copy")).unwrap();
        assert_eq!(found.map::<u64, u64>("map").unwrap().get(&1).unwrap(), Some(2));
    }
    drop(map);
    db.close().unwrap();

    // A database that was used without a journal gets one, and the other way round; options of the pool change nothing.
    let db = Db::builder().durability(Level::Process).open(&path).unwrap();
    assert_eq!(db.pool().level(), None);
    db.map::<u64, u64>("map").unwrap().insert(&3, &4).unwrap();
    drop(db);
    let db = Db::builder().pool_options(durix::PoolOptions::new()).open(&path).unwrap();
    assert_eq!(db.pool().level(), expected);
    assert_eq!(db.map::<u64, u64>("map").unwrap().get(&3).unwrap(), Some(4));
    drop(db);
    let db = Db::builder().read_only(true).open(&path).unwrap();
    assert_eq!((db.pool().level(), db.map::<u64, u64>("map").unwrap().count().unwrap()), (None, 2));
}

#[test]
fn in_memory_there_is_no_journal_unless_asked_for_and_it_promises_no_more() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() || !in_memory(shm) {
        return;
    }
    let dir = tempfile::tempdir_in(shm).unwrap();
    let path = dir.path().join("db");
    let db = Db::open_or_create(&path).unwrap();
    assert_eq!(db.pool().level(), None);
    assert_eq!(names(dir.path()), ["db"]);
    drop(db);
    for level in [Level::Immediate, Level::Interval(Duration::from_secs(1))] {
        let db = Db::builder().durability(level).open(&path).unwrap();
        assert_eq!(db.pool().level(), Some(level));
        assert!(db.guarantee().to_string().contains("not a power failure"), "{}", db.guarantee());
    }
}

/// Ranges did not: they returned what a power failure could still take back.
#[test]
fn every_walk_waits_until_what_it_has_seen_is_durable() {
    type Walk = fn(&durix::OrderedMap<u64, u64>) -> u64;
    let walks: [(&str, Walk); 6] = [
        ("range", |map| map.range(5..).unwrap().next().unwrap().unwrap().1),
        ("backwards", |map| map.range(0..).unwrap().next_back().unwrap().unwrap().1),
        ("first", |map| map.first().unwrap().unwrap().1),
        ("a handle's range", |map| map.handle().unwrap().range(5..).unwrap().next().unwrap().unwrap().1),
        ("all of the map", |map| (**map).iter().next().unwrap().unwrap().1),
        ("an update that changes nothing", |map| map.update_with(&7, |old| old).unwrap().unwrap()),
    ];
    for (name, walk) in walks {
        let dir = folder();
        let path = dir.path().join("db");
        let builder = Db::builder().initial_size(1 << 20).durability(Level::Immediate).no_background_threads();
        let db = builder.create(&path).unwrap();
        let map = db.ordered_map::<u64, u64>("map").unwrap();
        let mut session = db.pool().session().unwrap();
        // Visible, and nobody has waited for its commit: calls by bytes do not.
        let (key, value) = (7u64.to_be_bytes(), 9u64.to_be_bytes());
        map.index().insert(&session.enter().unwrap(), &key, &value).unwrap();
        let without = reopened(crashed(&path, "before")).unwrap().ordered_map::<u64, u64>("map").unwrap();
        assert_eq!(without.get(&7).unwrap(), None, "the test shows nothing if it is durable already");
        assert_eq!(walk(&map), 9, "{name}");
        let found = reopened(crashed(&path, "after")).unwrap().ordered_map::<u64, u64>("map").unwrap();
        assert_eq!(found.get(&7).unwrap(), Some(9), "{name}");
    }
}

#[test]
fn nothing_that_the_facade_hands_out_holds_up_commits() {
    let dir = folder();
    let db = db(&dir.path().join("db"), Level::Immediate);
    let (map, tree) = (db.map::<u64, u64>("map").unwrap(), db.ordered_map::<u64, u64>("tree").unwrap());
    for key in 0..10 {
        map.insert(&key, &key).unwrap();
        tree.insert(&key, &key).unwrap();
    }
    let (mut all, mut range) = (map.iter(), tree.range(2..).unwrap());
    all.next().unwrap().unwrap();
    range.next().unwrap().unwrap();
    let snapshot = db.snapshot().unwrap();
    let handle = map.handle().unwrap();
    let tx = db.begin().unwrap();
    tx.map(&map).unwrap().insert(&0, &100).unwrap();
    // An update that had to wait for one of them would fail after 10 s.
    map.insert(&20, &20).unwrap();
    tree.insert(&20, &20).unwrap();
    map.update_with(&21, |_| {
        tree.insert(&21, &21).unwrap();
        Some(21)
    })
    .unwrap();
    map.retain(|key, _| {
        tree.insert(key, &22).unwrap();
        true
    })
    .unwrap();
    db.transaction(|tx| {
        tx.map(&tree)?.insert(&1, &1)?;
        map.insert(&30, &30)?;
        Ok(())
    })
    .unwrap();
    tx.commit().unwrap();
    drop((all, range, snapshot, handle));
    assert_eq!(map.get(&0).unwrap(), Some(100));
}

#[test]
fn a_copy_is_one_file_whatever_level_its_options_name() {
    let dir = folder();
    let db = db(&dir.path().join("db"), Level::Immediate);
    db.map::<u64, u64>("map").unwrap().insert(&1, &2).unwrap();
    let options = durix::PoolOptions::new().initial_size(1 << 20).durability(Level::Immediate);
    db.copy_to_with(dir.path().join("copy"), &options).unwrap();
    assert_eq!(names(dir.path()), ["copy", "db", "db-journal", "db-sums"]);
    let found = Db::open(dir.path().join("copy")).unwrap();
    assert_eq!(found.map::<u64, u64>("map").unwrap().get(&1).unwrap(), Some(2));
}

#[test]
fn a_link_to_a_pool_leads_to_its_journal_which_has_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let dir = folder();
    let (path, link) = (dir.path().join("db"), dir.path().join("link"));
    std::fs::write(&path, b"").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("db", &link).unwrap();
    let db = db(&link, Level::Immediate);
    db.map::<u64, u64>("map").unwrap().insert(&1, &2).unwrap();
    assert_eq!(names(dir.path()), ["db", "db-journal", "db-sums", "link"]);
    assert_eq!(journal(&path).metadata().unwrap().permissions().mode() & 0o777, 0o640);
    let found = reopened(crashed(&path, "copy")).unwrap();
    assert_eq!(found.map::<u64, u64>("map").unwrap().get(&1).unwrap(), Some(2));
}

#[test]
fn many_large_pairs_go_in_by_batches_of_bounded_size() {
    let dir = folder();
    let path = dir.path().join("db");
    let db = db(&path, Level::Immediate);
    let map = db.map::<u64, Vec<u8>>("map").unwrap();
    let before = db.pool().journal_stats().unwrap().commits;
    map.try_extend((0..40u64).map(|key| (key, vec![key as u8; 256 << 10]))).unwrap();
    let commits = db.pool().journal_stats().unwrap().commits - before;
    // 10 MiB by batches of 1 MiB; the database's own thread may commit, too.
    assert!(commits >= 10, "{commits} commits");
    let before = db.pool().journal_stats().unwrap().commits;
    map.try_extend((0..1000u64).map(|key| (key, vec![1]))).unwrap();
    let commits = db.pool().journal_stats().unwrap().commits - before;
    assert!((4..500).contains(&commits), "{commits} commits");
}

#[test]
fn a_look_at_a_live_database_sees_what_its_journal_holds() {
    let dir = folder();
    let path = dir.path().join("db");
    let db = db(&path, Level::Immediate);
    for number in 0..30u64 {
        let name = format!("map {number}");
        db.map::<u64, Vec<u8>>(&name).unwrap().insert(&number, &vec![7; 100_000]).unwrap();
        let seen = durix::Pool::peek(&path).unwrap();
        assert_eq!(seen.indices.len(), number as usize + 1, "{name}");
        assert_eq!(seen.size, path.metadata().unwrap().len().min(seen.size));
        assert!(seen.space.free < seen.space.total);
    }
}

/// Bytes of private pages of a file that is mapped, as the kernel counts them.
fn private_bytes(path: &Path) -> u64 {
    let path = path.canonicalize().unwrap().display().to_string();
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

/// Random updates of an index that is several times as large as its pages may be: all kinds of stores, also those that nobody notes.
#[test]
fn a_database_larger_than_the_bound_of_written_pages_stays_below_it() {
    const BOUND: u64 = 2 << 20;
    const KEYS: u64 = 40_000;
    let dir = tempfile::tempdir().unwrap();
    for threads in [true, false] {
        let path = dir.path().join(format!("db-{threads}"));
        let builder = Db::builder().initial_size(1 << 20).durability(Level::Immediate).written_memory(BOUND);
        let builder = if threads { builder } else { builder.no_background_threads() };
        let db = builder.open_or_create(&path).unwrap();
        let map = db.ordered_map::<u64, [u8; 256]>("map").unwrap();
        let value = |key: u64, round: u64| std::array::from_fn(|at| (key + round + at as u64) as u8);
        let mut most = 0;
        for round in 0..2 {
            for first in 0..KEYS / 500 {
                let keys = (0..500).map(|at| (at * (KEYS / 500) + first) * 7919 % KEYS);
                map.try_extend(keys.map(|key| (key, value(key, round)))).unwrap();
                most = most.max(private_bytes(&path));
            }
        }
        let stats = db.pool().journal_stats().unwrap();
        let size = db.pool().mapping().len();
        println!("at most {} KiB of {} KiB, pool of {} KiB; {stats:?}", most >> 10, BOUND >> 10, size >> 10);
        assert!(size > 6 * BOUND && stats.dropped_bytes > 2 * BOUND, "{stats:?}");
        // A batch writes to 500 nodes, and to what leads there.
        assert!((BOUND / 2..=BOUND + 700 * 4096).contains(&most), "{most} bytes of private pages");
        for key in (0..KEYS).step_by(7) {
            assert_eq!(map.get(&key).unwrap(), Some(value(key, 1)), "{key}");
        }
        assert!(map.check().unwrap().is_empty());
        drop(map);
        db.close().unwrap();
        let db = Db::open(&path).unwrap();
        let map = db.ordered_map::<u64, [u8; 256]>("map").unwrap();
        assert_eq!(map.count().unwrap(), KEYS);
        assert_eq!(map.get(&9).unwrap(), Some(value(9, 1)));
        assert_eq!(db.pool().check_pages().unwrap().damaged, []);
    }
}

/// The threads of the database drive the scrub, and whoever updates next is told.
#[test]
fn a_damaged_page_of_an_open_database_is_an_error_of_an_update_which_can_be_repeated() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::builder().initial_size(1 << 20).durability(Level::Immediate).scrub_every(Duration::from_nanos(1));
    let db = db.create(&path).unwrap();
    let map = db.map::<u64, u64>("map").unwrap();
    (0..100).for_each(|key| _ = map.insert(&key, &key).unwrap());
    db.pool().checkpoint_journal().unwrap();
    let pages = db.pool().mapping().len() / 4096;
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    // The last page is free space: what finds it is the scrub, nothing else.
    file.write_all_at(&[1], (pages - 1) * 4096 + 5).unwrap();
    let begun = std::time::Instant::now();
    let told = loop {
        match map.insert(&1, &1) {
            Ok(_) => assert!(begun.elapsed().as_secs() < 100, "{:?}", db.pool().journal_stats()),
            Err(error) => break error.to_string(),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(told.contains("is damaged: bytes") && told.contains("free space"), "{told}");
    map.insert(&1, &2).unwrap();
    assert_eq!((map.get(&1).unwrap(), db.pool().journal_stats().unwrap().scrub_damaged), (Some(2), 1));
}

#[test]
fn a_transaction_has_a_level_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Level::Interval(Duration::from_secs(3600));
    // Strict maps, buffered ones, and both.
    for kinds in [["pset", "hash-bytes"], ["masstree"; 2], ["masstree", "pset"]] {
        for of_database in [Level::Immediate, hour] {
            let case = format!("{kinds:?}, {of_database}");
            let path = dir.path().join(&case);
            let db = Db::builder().initial_size(1 << 20).durability(of_database).no_background_threads();
            let db = db.create(&path).unwrap();
            let maps_of = |db: &Db| {
                [("a", kinds[0]), ("b", kinds[1])].map(|(name, kind)| db.map_of_kind::<u64, u64>(name, kind).unwrap())
            };
            let maps = maps_of(&db);
            maps.iter().for_each(|map| _ = map.insert(&0, &0).unwrap());
            db.sync().unwrap();
            let commits = || db.pool().journal_stats().unwrap().commits;
            let set = |level: Level, value: u64| {
                let before = commits();
                db.transaction(|tx| {
                    tx.durability(level);
                    maps.iter().try_for_each(|map| tx.map(map)?.insert(&1, &value).map(|_| ()))
                })
                .unwrap();
                commits() - before
            };
            let found = || maps_of(&reopened(crashed(&path, "copy")).unwrap()).map(|map| map.get(&1).unwrap());
            assert_eq!((set(Level::Immediate, 10), found()), (1, [Some(10); 2]), "{case}");
            assert_eq!((set(hour, 20), found()), (0, [Some(10); 2]), "{case}");
            // It reads what the last one has written: that waits, where reads do.
            let waits = u64::from(of_database == Level::Immediate);
            let before = if waits == 1 { 20 } else { 10 };
            assert_eq!((set(Level::Process, 30), found()), (waits, [Some(before); 2]), "{case}");
            // A read of another key does not wait for it; one that sees it does, where reads do.
            let before = commits();
            assert_eq!((maps[0].get(&0).unwrap(), commits() - before), (Some(0), 0), "{case}");
            assert_eq!((maps[0].get(&1).unwrap(), commits() - before), (Some(30), waits), "{case}");
            let before = commits();
            let read = db.transaction(|tx| {
                tx.durability(Level::Immediate);
                tx.map(&maps[0])?.get(&1)
            });
            assert_eq!((read.unwrap(), commits() - before), (Some(30), 1 - waits), "{case}: what it has read");
            assert_eq!(found(), [Some(30); 2], "{case}");
        }
    }
}

#[test]
fn what_a_later_commit_of_a_journaled_pool_waits_for_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let hour = Level::Interval(Duration::from_secs(3600));
    let db = Db::builder().durability(hour).no_background_threads().create(&path).unwrap();
    let maps = ["a", "b"].map(|name| db.map_of_kind::<u64, u64>(name, "hash").unwrap());
    let later = db.transaction(|tx| {
        maps.iter().try_for_each(|map| tx.map(map)?.insert(&1, &1).map(drop))?;
        Ok(tx.later())
    });
    let later = later.unwrap();
    assert!(!later.is_durable());
    later.wait().unwrap();
    assert!(later.is_durable());
    let found = reopened(crashed(&path, "copy")).unwrap();
    assert_eq!(found.map_of_kind::<u64, u64>("b", "hash").unwrap().get(&1).unwrap(), Some(1));
}

/// Whatever the level, and whatever the class of the commit: the ticket is what waits.
#[test]
fn a_later_commit_of_a_journaled_pool_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Level::Interval(Duration::from_secs(3600));
    // A single map, which makes the change by itself; strict maps; buffered ones; both.
    for kinds in [&["hash"][..], &["pset", "hash-bytes"], &["masstree"], &["masstree", "pset"]] {
        for (of_database, own) in [(Level::Immediate, None), (Level::Immediate, Some(Level::Immediate)), (hour, None)] {
            let case = format!("{kinds:?}, {of_database}, {}", own.is_some());
            let path = dir.path().join(&case);
            let db = Db::builder().initial_size(1 << 20).durability(of_database).no_background_threads();
            let db = db.create(&path).unwrap();
            let maps: Vec<_> = kinds.iter().map(|kind| db.map_of_kind::<u64, u64>(kind, kind).unwrap()).collect();
            maps.iter().for_each(|map| _ = map.insert(&0, &0).unwrap());
            db.sync().unwrap();
            let commits = || db.pool().journal_stats().unwrap().commits;
            let before = commits();
            let later = db.transaction(|tx| {
                own.into_iter().for_each(|level| tx.durability(level));
                maps.iter().try_for_each(|map| tx.map(map)?.insert(&1, &1).map(drop))?;
                Ok(tx.later())
            });
            let later = later.unwrap();
            assert_eq!((later.is_durable(), commits() - before), (false, 0), "{case}: it has not waited");
            // Nor does what the thread does next, as long as it has nothing to do with it.
            assert_eq!((maps[0].get(&0).unwrap(), commits() - before), (Some(0), 0), "{case}");
            let found = |name| {
                let found = reopened(crashed(&path, name)).unwrap();
                let get = |kind: &&str| found.map_of_kind::<u64, u64>(kind, kind).unwrap().get(&1).unwrap();
                kinds.iter().map(get).collect::<Vec<_>>()
            };
            assert_eq!(found("before"), vec![None; kinds.len()], "{case}");
            later.wait().unwrap();
            assert_eq!((later.is_durable(), commits() - before), (true, 1), "{case}");
            assert_eq!(found("after"), vec![Some(1); kinds.len()], "{case}");
        }
    }
}

/// One change of one map needs no record of its own, and the commit of the pool all the same. What a boundary of the epochs covers is in
/// memory only until then.
#[test]
fn a_later_commit_of_one_map_is_durable_when_the_journal_has_it_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, keys) in [("hash", 1..2), ("pset", 1..2), ("masstree", 1..2), ("masstree", 1..4), ("dptree", 1..2)] {
        let path = dir.path().join(format!("{kind}-{}", keys.end));
        let hour = Level::Interval(Duration::from_secs(3600));
        let db = Db::builder().durability(hour).no_background_threads().create(&path).unwrap();
        let map = db.map_of_kind::<u64, u64>("map", kind).unwrap();
        let later = db.transaction(|tx| {
            keys.clone().try_for_each(|key| tx.map(&map)?.insert(&key, &7).map(drop))?;
            Ok(tx.later())
        });
        let (later, mut copies) = (later.unwrap(), 0);
        let mut survives = || {
            copies += 1;
            let found = reopened(crashed(&path, &format!("copy{copies}"))).unwrap();
            found.map_of_kind::<u64, u64>("map", kind).unwrap().get(&1).unwrap() == Some(7)
        };
        assert_eq!((later.is_durable(), survives()), (false, false), "{kind}, {keys:?}");
        later.wait().unwrap();
        assert_eq!((later.is_durable(), survives()), (true, true), "{kind}, {keys:?}");
    }
}

/// What a repair saves of a file that was open when the machine stopped, and whose journal is damaged.
#[test]
fn a_repair_saves_what_file_and_damaged_journal_hold_together() {
    const KEYS: u64 = 120;
    for kind in ["pset", "masstree", "bplustree", "hash-bytes", "dptree"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let insert = |keys: std::ops::Range<u64>| {
            let live = db(&path, Level::Immediate);
            let map = live.map_of_kind::<u64, u64>("map", kind).unwrap();
            keys.for_each(|key| _ = map.insert(&key, &(key * 7)).unwrap());
            drop(map);
            live
        };
        // Closing carries the first half to the file; the other one is in the journal alone.
        insert(0..KEYS / 2).close().unwrap();
        let live = insert(KEYS / 2..KEYS);
        let copy = crashed(&path, "copy");
        let (file, whole) = (std::fs::read(&copy).unwrap(), std::fs::read(journal(&copy)).unwrap());
        let another = dir.path().join("other");
        let other = db(&another, Level::Immediate);
        other.map_of_kind::<u64, u64>("map", kind).unwrap().insert(&1, &1).unwrap();
        let other = crashed(&another, "other copy");
        let foreign = std::fs::read(journal(&other)).unwrap();
        // Where records lie: each begins with its checksum, and then this word.
        let marks: Vec<usize> =
            (0..whole.len() - 16).step_by(8).filter(|at| whole[at + 8..].starts_with(b"record\x1a\0")).collect();
        assert!(marks.len() > KEYS as usize / 2, "{kind}: a record for each insert");
        let middle = marks[KEYS as usize / 4];
        let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            Some(bytes)
        };
        // What the journal is then, how many keys have to be saved, and what is said.
        let cases: [(&str, Option<Vec<u8>>, u64, &str); 7] = [
            ("as it was", damaged(&|_| {}), KEYS, ""),
            ("a bit of a record", damaged(&|bytes| bytes[middle + 100] ^= 4), KEYS - 20, "but for 1 of them"),
            (
                "a zeroed page of it",
                damaged(&|bytes| bytes[middle..middle + 4096].fill(0)),
                KEYS - 60,
                "were read, but for ",
            ),
            ("its headers", damaged(&|bytes| bytes[..8192].fill(0x77)), KEYS, "were read, but for 0 of them"),
            ("cut off", damaged(&|bytes| bytes.truncate(middle)), KEYS * 3 / 4 - 20, "were read, but for 0 of them"),
            ("gone", None, KEYS / 2, "is not there: what was changed since the last checkpoint may be missing"),
            ("that of another pool", Some(foreign), KEYS / 2, "has no sound record of this pool"),
        ];
        for (what, bytes, least, says) in cases {
            let name = format!("{kind}, its journal {what}");
            // Its updates lie in a log of its own first, which ends where a record is missing.
            let least = if kind == "bplustree" { least.min(KEYS * 3 / 4 - 20) } else { least };
            match &bytes {
                Some(bytes) => std::fs::write(journal(&copy), bytes).unwrap(),
                None => std::fs::remove_file(journal(&copy)).unwrap(),
            }
            let is_refused = reopened(&copy).is_err();
            assert_eq!(is_refused, !says.is_empty(), "{name}: nothing is guessed");
            std::fs::write(&copy, &file).unwrap();
            bytes.iter().for_each(|bytes| std::fs::write(journal(&copy), bytes).unwrap());
            let source = PoolOptions::new().for_repair().open(&copy).unwrap();
            let target = PoolOptions::new().create_on(HeapBacking::new(16 << 20), Hardware::PAGE_CACHE).unwrap();
            let repaired = durix::repair::salvage_into(&source, &target).unwrap();
            assert!(
                repaired.pool.iter().any(|line| line.contains(says)) || says.is_empty(),
                "{name}: {:?}",
                repaired.pool
            );
            assert_eq!(repaired.pool.is_empty(), says.is_empty(), "{name}: {:?}", repaired.pool);
            let saved = Db::over(target);
            let mut right = 0;
            if !repaired.indices.is_empty() {
                for pair in &saved.map::<u64, u64>("map").unwrap() {
                    let (key, value) = pair.unwrap();
                    assert_eq!(value, key * 7, "{name}");
                    right += 1;
                }
            }
            assert!(right >= least && right <= KEYS, "{name}: {right} of {KEYS}; {:?}", repaired.indices);
            drop(source);
            assert_eq!(std::fs::read(&copy).unwrap(), file, "{name}: the source stays as it is");
            assert_eq!(std::fs::read(journal(&copy)).ok(), bytes, "{name}: and its journal");
        }
        drop(live);
    }
}

/// A file that was closed has everything, and its journal nothing, though its records are still there. Whoever writes to the file without a journal
/// does not touch them.
#[test]
fn a_repair_does_not_go_back_to_the_journal_of_a_file_that_was_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    for (level, value) in [(Level::Immediate, 1), (Level::Process, 2)] {
        let db = db(&path, level);
        db.map_of_kind::<u64, u64>("map", "hash").unwrap().insert(&1, &value).unwrap();
        db.close().unwrap();
    }
    assert!(journal(&path).exists());
    // The line of the header that says that the file was closed, and with which journal it was last open.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[128..192].fill(0x77);
    std::fs::write(&path, bytes).unwrap();
    assert!(Db::open(&path).is_err());
    let source = PoolOptions::new().for_repair().open(&path).unwrap();
    let target = PoolOptions::new().create_on(HeapBacking::new(16 << 20), Hardware::PAGE_CACHE).unwrap();
    durix::repair::salvage_into(&source, &target).unwrap();
    assert_eq!(Db::over(target).map::<u64, u64>("map").unwrap().get(&1).unwrap(), Some(2));
}

/// What is read when an index is opened is durable by then: it does not go through the journal once more. (The table of space does.)
#[test]
fn opening_an_index_does_not_put_it_into_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["pset", "hash", "bplustree", "dptree"] {
        let path = dir.path().join(kind);
        let db = db(&path, Level::Immediate);
        let map = db.map_of_kind::<u64, u64>("map", kind).unwrap();
        map.try_extend((0..4000_u64).map(|key| (key * 0x9e37_79b9, key))).unwrap();
        drop(map);
        db.close().unwrap();
        let db = self::db(&path, Level::Immediate);
        let map = db.map::<u64, u64>("map").unwrap();
        assert_eq!(map.count().unwrap(), 4000);
        db.sync().unwrap();
        let bytes = db.pool().journal_stats().unwrap().bytes;
        // The entries of the first two alone are 250 KiB.
        assert!(bytes < 96 << 10, "{kind}: {bytes} bytes");
    }
}
