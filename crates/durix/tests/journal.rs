//! Journaled databases in real files. A crash is a copy of both files while the database is open: what a killed process leaves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use durix::{Db, Level, kind};

fn crashed(path: &Path, name: &str) -> PathBuf {
    let copy = path.with_file_name(name);
    std::fs::copy(path, &copy).unwrap();
    std::fs::copy(journal(path), journal(&copy)).unwrap();
    copy
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
                let found = Db::builder().durability(Level::Immediate).open(&copy).unwrap();
                let found = found.map::<u64, u64>("map").unwrap();
                assert!(found.check().unwrap().is_empty(), "{}", kind.name);
                for there in 1..=key {
                    let gone = (there + 1) % 5 == 0;
                    assert_eq!(found.get(&there).unwrap(), (!gone).then_some(there * 7), "{}: {there}", kind.name);
                }
                assert_eq!(found.len().unwrap(), key - key / 5);
            }
        }
        drop(map);
        db.close().unwrap();
        // Closed, it needs no journal.
        std::fs::remove_file(journal(&path)).unwrap();
        let found = Db::open(&path).unwrap();
        assert_eq!(found.map::<u64, u64>("map").unwrap().len().unwrap(), 16);
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
    let found = Db::open(&copy).unwrap();
    let (a, b) = (found.map::<u64, u64>("a").unwrap(), found.ordered_map::<u64, u64>("b").unwrap());
    let (in_a, in_b) = (a.len().unwrap(), b.len().unwrap());
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
    let found = Db::open(crashed(&path, "copy")).unwrap();
    assert_eq!(found.map::<u64, u64>("strict").unwrap().len().unwrap(), 100);
    assert_eq!(found.ordered_map::<u64, u64>("tree").unwrap().len().unwrap(), 100);
    assert_eq!(
        tree.guarantee().to_string(),
        "an operation that has returned survives power failure, by a flush of the journal"
    );
}
