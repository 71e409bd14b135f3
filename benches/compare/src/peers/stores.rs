//! Embedded stores. Each inserts in transactions as large as 64 ms allow, or one a transaction, and reads a batch in one
//! snapshot, as their documentation recommends; each has a cache that holds everything.

use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use durix_bench::place::Place;
use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use heed::byteorder::BigEndian;
use heed::types::{Bytes, U64};
use heed::{EnvFlags, EnvOpenOptions, WithoutTls};
use redb::{ReadableDatabase, TableDefinition};
use tempfile::TempDir;

use super::peer::{Error, Peer, Worker};
use super::value::{is_value_of, value_of};
use crate::plan::{EVERY, Plan, SCAN};

/// Bytes of cache, for those who have one.
const CACHE: usize = 1 << 30;

/// Keys between two looks at the clock.
const LOOK: usize = 64;

/// Splits keys into pieces that take about [`EVERY`]: `insert` inserts some, `settle` makes what was inserted durable.
fn in_time<T>(keys: &[u64], mut begin: impl FnMut() -> T, insert: impl Fn(&mut T, u64), settle: impl Fn(T)) {
    let mut rest = keys.chunks(LOOK).peekable();
    while rest.peek().is_some() {
        let start = Instant::now();
        let mut piece = begin();
        while let Some(some) = rest.next_if(|_| start.elapsed() < EVERY) {
            some.iter().for_each(|key| insert(&mut piece, *key));
        }
        settle(piece);
    }
}

/// Bytes of all files below a directory.
fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |e: std::fs::DirEntry| match e.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&e.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

fn directory(error: impl Fn(&dyn std::fmt::Display) -> Error) -> Result<TempDir, Error> {
    let place = Place::from_env();
    tempfile::Builder::new().prefix("durix-compare-").tempdir_in(&place.dir).map_err(|e| error(&e))
}

// ---- redb ----

const fn table<const N: usize>() -> TableDefinition<'static, u64, [u8; N]> {
    TableDefinition::new("t")
}

struct Redb<const N: usize> {
    db: redb::Database,
    dir: TempDir,
}

pub(super) fn redb<const N: usize>(_plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("redb");
    let dir = directory(&error)?;
    let db = redb::Database::builder().set_cache_size(CACHE).create(dir.path().join("db")).map_err(|e| error(&e))?;
    Ok(Box::new(Redb::<N> { db, dir }))
}

impl<const N: usize> Peer for Redb<N> {
    fn name(&self) -> &str {
        "redb"
    }
    fn durability(&self) -> &'static str {
        "power failure"
    }
    fn parameters(&self) -> String {
        format!("cache {} MiB, Durability::Immediate, one write transaction in 64 ms or for each insert", CACHE >> 20)
    }
    fn storage(&self) -> u64 {
        bytes_below(self.dir.path())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
}

impl<const N: usize> Redb<N> {
    fn commit(&self, keys: &mut std::iter::Peekable<std::slice::Iter<'_, u64>>, go_on: impl Fn(usize) -> bool) {
        let txn = self.db.begin_write().expect("redb begins");
        let mut table = txn.open_table(table::<N>()).expect("redb opens a table");
        let mut count = 0;
        while let Some(key) = keys.next_if(|_| go_on(count)) {
            table.insert(key, value_of(*key)).expect("redb inserts");
            count += 1;
        }
        drop(table);
        txn.commit().expect("redb commits");
    }
}

impl<const N: usize> Worker for &Redb<N> {
    fn insert(&mut self, keys: &[u64]) {
        let mut keys = keys.iter().peekable();
        while keys.peek().is_some() {
            let start = Instant::now();
            self.commit(&mut keys, |count| !count.is_multiple_of(LOOK) || count == 0 || start.elapsed() < EVERY);
        }
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        let mut keys = keys.iter().peekable();
        while keys.peek().is_some() {
            self.commit(&mut keys, |count| count == 0);
        }
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let txn = self.db.begin_read().expect("redb begins");
        let table = txn.open_table(table::<N>()).expect("redb opens a table");
        let is_there =
            |key: &&u64| table.get(*key).expect("redb gets").is_some_and(|v| is_value_of::<N>(&v.value(), **key));
        keys.iter().filter(is_there).count()
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        let txn = self.db.begin_read().expect("redb begins");
        let table = txn.open_table(table::<N>()).expect("redb opens a table");
        let scan = |start: &u64| {
            let range = table.range(*start..).expect("redb scans").take(SCAN);
            range.filter(|pair| pair.as_ref().is_ok_and(|(k, v)| is_value_of::<N>(&v.value(), k.value()))).count()
        };
        starts.iter().map(scan).sum()
    }
}

// ---- LMDB ----

type Be = U64<BigEndian>;

/// The name of LMDB's row.
pub const LMDB: &str = "LMDB (heed)";

struct Lmdb<const N: usize> {
    env: heed::Env<WithoutTls>,
    db: heed::Database<Be, Bytes>,
    dir: TempDir,
}

pub(super) fn lmdb<const N: usize>(plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("LMDB");
    let dir = directory(&error)?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size((plan.all_keys() as usize * (256 + 3 * N)).next_multiple_of(4096) + (1 << 30)).max_readers(128);
    // SAFETY: the flag lets LMDB write through its map, which nothing else touches; the directory is ours alone, and is opened
    // once.
    let env = unsafe { options.flags(EnvFlags::WRITE_MAP).open(dir.path()) }.map_err(|e| error(&e))?;
    let mut txn = env.write_txn().map_err(|e| error(&e))?;
    let db = env.create_database(&mut txn, None).map_err(|e| error(&e))?;
    txn.commit().map_err(|e| error(&e))?;
    Ok(Box::new(Lmdb::<N> { env, db, dir }))
}

impl<const N: usize> Peer for Lmdb<N> {
    fn name(&self) -> &str {
        LMDB
    }
    fn durability(&self) -> &'static str {
        "power failure"
    }
    fn parameters(&self) -> String {
        "WRITE_MAP, synchronous commits, one write transaction in 64 ms or for each insert".into()
    }
    fn storage(&self) -> u64 {
        bytes_below(self.dir.path())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
}

impl<const N: usize> Worker for &Lmdb<N> {
    fn insert(&mut self, keys: &[u64]) {
        let begin = || self.env.write_txn().expect("LMDB begins");
        let put = |txn: &mut heed::RwTxn<'_>, key: u64| self.db.put(txn, &key, &value_of::<N>(key)).expect("LMDB puts");
        in_time(keys, begin, put, |txn| txn.commit().expect("LMDB commits"));
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        for key in keys {
            let mut txn = self.env.write_txn().expect("LMDB begins");
            self.db.put(&mut txn, key, &value_of::<N>(*key)).expect("LMDB puts");
            txn.commit().expect("LMDB commits");
        }
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let txn = self.env.read_txn().expect("LMDB begins");
        let get = |key: &u64| self.db.get(&txn, key).expect("LMDB gets");
        keys.iter().filter(|key| get(key).is_some_and(|value| is_value_of::<N>(value, **key))).count()
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        let txn = self.env.read_txn().expect("LMDB begins");
        let scan = |start: &u64| {
            let range = self.db.range(&txn, &(*start..)).expect("LMDB scans").take(SCAN);
            range.filter(|pair| pair.as_ref().is_ok_and(|(k, v)| is_value_of::<N>(v, *k))).count()
        };
        starts.iter().map(scan).sum()
    }
}

// ---- fjall ----

struct Fjall {
    db: Database,
    keys: fjall::Keyspace,
    dir: TempDir,
}

pub(super) fn fjall(_plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("fjall");
    let dir = directory(&error)?;
    let db = Database::builder(dir.path().join("db")).cache_size(CACHE as u64).open().map_err(|e| error(&e))?;
    let options = || KeyspaceCreateOptions::default().expect_point_read_hits(true);
    let keys = db.keyspace("t", options).map_err(|e| error(&e))?;
    Ok(Box::new(Fjall { db, keys, dir }))
}

impl Peer for Fjall {
    fn name(&self) -> &str {
        "fjall"
    }
    fn durability(&self) -> &'static str {
        "power failure"
    }
    fn parameters(&self) -> String {
        format!(
            "cache {} MiB, point reads expected to hit, persist(SyncData) every 64 ms or for each insert",
            CACHE >> 20
        )
    }
    fn storage(&self) -> u64 {
        bytes_below(self.dir.path())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
}

impl Fjall {
    fn put(&self, key: u64) {
        self.keys.insert(key.to_be_bytes(), key.to_be_bytes()).expect("fjall inserts");
    }
    fn persist(&self) {
        self.db.persist(PersistMode::SyncData).expect("fjall persists");
    }
}

impl Worker for &Fjall {
    fn insert(&mut self, keys: &[u64]) {
        in_time(keys, || (), |(), key| self.put(key), |()| self.persist());
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        for key in keys {
            self.put(*key);
            self.persist();
        }
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let is_there = |key: &&u64| {
            let bytes = key.to_be_bytes();
            self.keys.get(bytes).expect("fjall gets").is_some_and(|v| *v == bytes)
        };
        keys.iter().filter(is_there).count()
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        let scan = |start: &u64| {
            let range = self.keys.range(start.to_be_bytes()..).take(SCAN);
            range.filter_map(|guard| guard.into_inner().ok()).filter(|(k, v)| **k == **v).count()
        };
        starts.iter().map(scan).sum()
    }
}

// ---- sled ----

struct Sled {
    db: sled::Db,
    dir: TempDir,
}

pub(super) fn sled(_plan: &Plan) -> Result<Box<dyn Peer>, Error> {
    let error = Error::of("sled");
    let dir = directory(&error)?;
    let config = sled::Config::new().path(dir.path().join("db")).cache_capacity(CACHE as u64).flush_every_ms(None);
    let db = config.mode(sled::Mode::HighThroughput).open().map_err(|e| error(&e))?;
    Ok(Box::new(Sled { db, dir }))
}

impl Peer for Sled {
    fn name(&self) -> &str {
        "sled"
    }
    fn durability(&self) -> &'static str {
        "power failure"
    }
    fn parameters(&self) -> String {
        format!("cache {} MiB, HighThroughput, flush() every 64 ms or for each insert", CACHE >> 20)
    }
    fn storage(&self) -> u64 {
        bytes_below(self.dir.path())
    }
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
}

impl Sled {
    fn put(&self, key: u64) {
        self.db.insert(key.to_be_bytes(), &key.to_be_bytes()).expect("sled inserts");
    }
    fn flush(&self) {
        self.db.flush().expect("sled flushes");
    }
}

impl Worker for &Sled {
    fn insert(&mut self, keys: &[u64]) {
        in_time(keys, || (), |(), key| self.put(key), |()| self.flush());
    }
    fn insert_each_durably(&mut self, keys: &[u64]) {
        for key in keys {
            self.put(*key);
            self.flush();
        }
    }
    fn get(&mut self, keys: &[u64]) -> usize {
        let is_there = |key: &&u64| {
            let bytes = key.to_be_bytes();
            self.db.get(bytes).expect("sled gets").is_some_and(|v| *v == bytes)
        };
        keys.iter().filter(is_there).count()
    }
    fn scan(&mut self, starts: &[u64]) -> usize {
        let scan = |start: &u64| {
            let range = self.db.range((Bound::Included(start.to_be_bytes()), Bound::<[u8; 8]>::Unbounded)).take(SCAN);
            range.filter(|pair| pair.as_ref().is_ok_and(|(k, v)| k == v)).count()
        };
        starts.iter().map(scan).sum()
    }
}
