//! `Db::compact` on real files.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use durix::{Db, Error, Level};

type Pairs = BTreeMap<u64, u64>;

fn beside(path: &Path) -> [PathBuf; 3] {
    use durix_pmem::journal::DiskJournal;
    [DiskJournal::path_of(path), DiskJournal::sums_of(path), durix::copy::partial(path)]
}

/// A file with little in it, of much that there was; closed.
fn sparse(path: &Path, kind: &str, level: Level) -> Pairs {
    let db = Db::builder().durability(level).create(path).unwrap();
    let map = db.map_of_kind::<u64, u64>("map", kind).unwrap();
    map.bulk_load((0..30_000).map(|key| (key, key * 7))).unwrap();
    for key in (0..30_000).filter(|key| key % 50 != 0) {
        map.remove(&key).unwrap();
    }
    drop(map);
    db.close().unwrap();
    (0..30_000).step_by(50).map(|key| (key, key * 7)).collect()
}

fn pairs(db: &Db) -> Pairs {
    let map = db.map::<u64, u64>("map").unwrap();
    assert!(map.check().unwrap().is_empty());
    map.iter().map(|pair| pair.unwrap()).collect()
}

#[test]
fn a_compacted_file_is_smaller_and_holds_the_same() {
    for kind in ["pset", "masstree", "bplustree"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let expected = sparse(&path, kind, Level::Process);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let done = Db::compact(&link).unwrap();
        assert_eq!(done.indices, [("map".to_owned(), 600)], "{kind}");
        let there = path.metadata().unwrap();
        assert!(done.after < done.before / 4 && there.len() == done.after, "{kind}: {done:?}");
        assert!(there.blocks() * 512 <= done.after + (64 << 10));
        assert_eq!(there.mode() & 0o777, 0o640);
        assert!(link.is_symlink() && !beside(&path).iter().any(|path| path.exists()), "{kind}");
        let db = Db::open(&path).unwrap();
        assert_eq!(pairs(&db), expected, "{kind}");
        db.map::<u64, u64>("map").unwrap().insert(&1, &2).unwrap();
    }
}

/// With a journal, and after a crash: what was acknowledged is in the new file, and the old journal is not.
#[test]
fn what_a_journal_holds_is_in_the_compacted_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, left) = (dir.path().join("db"), dir.path().join("left"));
    let builder = Db::builder().durability(Level::Immediate);
    let db = builder.clone().no_background_threads().create(&path).unwrap();
    db.map::<u64, u64>("map").unwrap().insert(&3, &4).unwrap();
    // What a killed process leaves.
    for (from, to) in [(path.clone(), left.clone())].into_iter().chain(beside(&path).into_iter().zip(beside(&left))) {
        if from.exists() {
            std::fs::copy(from, to).unwrap();
        }
    }
    assert!(matches!(Db::compact(&left), Err(Error::Pool(durix_pmem::Error::CopiedOpen { .. }))));
    let done = builder.clone().accept_copy(true).compact(&left).unwrap();
    assert_eq!(done.indices, [("map".to_owned(), 1)]);
    assert!(!beside(&left).iter().any(|path| path.exists()));
    let compacted = builder.open(&left).unwrap();
    assert_eq!(pairs(&compacted), [(3, 4)].into());
    assert!(compacted.pool().check_pages().unwrap().missing.is_none());
}

#[test]
fn nobody_loses_a_file_that_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let expected = sparse(&path, "pset", Level::Process);
    let db = Db::open(&path).unwrap();
    let refused = Db::compact(&path).unwrap_err();
    assert!(matches!(refused, Error::Pool(durix_pmem::Error::Locked { .. })), "{refused}");
    assert!(!durix::copy::partial(&path).exists());
    db.close().unwrap();
    drop(db);
    // A reader keeps the old file, and nobody can write to that.
    let reader = Db::builder().read_only(true).open(&path).unwrap();
    let before = path.metadata().unwrap().ino();
    Db::compact(&path).unwrap();
    assert_ne!(path.metadata().unwrap().ino(), before);
    let compacted = Db::open(&path).unwrap();
    compacted.map::<u64, u64>("map").unwrap().insert(&1, &1).unwrap();
    assert_eq!(pairs(&reader), expected);
    drop(compacted);
    // Two at a time.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| Db::compact(&path).unwrap());
        }
    });
    assert_eq!(pairs(&Db::open(&path).unwrap()).len(), expected.len() + 1);
}

#[test]
fn what_cannot_be_compacted_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    assert!(Db::compact(&path).is_err() && !path.exists());
    let expected = sparse(&path, "pset", Level::Process);
    let before = std::fs::read(&path).unwrap();
    // Its place is taken by a folder.
    std::fs::create_dir(durix::copy::partial(&path)).unwrap();
    let refused = Db::compact(&path).unwrap_err().to_string();
    assert!(refused.contains("removing what an earlier copy left"), "{refused}");
    std::fs::remove_dir(durix::copy::partial(&path)).unwrap();
    assert!(std::fs::read(&path).unwrap()[4096..] == before[4096..]);
    assert_eq!(pairs(&Db::open(&path).unwrap()), expected);
}
