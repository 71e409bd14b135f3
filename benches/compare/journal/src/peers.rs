//! Other stores that are linked to this program, each set up as its documentation recommends for commits that are durable on return.

use std::path::Path;
use std::sync::Mutex;

use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use heed::byteorder::BigEndian;
use heed::types::{Bytes, U64};
use heed::{EnvFlags, EnvOpenOptions, WithoutTls};
use redb::{ReadableDatabase, TableDefinition};
use rusqlite::Connection;

use crate::store::{Contestant, Error, Store, When, Worker, for_a_while, value};

pub const PEERS: [Contestant; 4] = [
    Contestant { name: "redb", setup: "Durability::Immediate, one-phase commits (defaults)", make: redb },
    Contestant { name: "LMDB", setup: "heed, WRITE_MAP, synchronous commits", make: lmdb },
    Contestant {
        name: "fjall",
        setup: "manual_journal_persist, persist(SyncData); batches with SyncData",
        make: fjall,
    },
    Contestant {
        name: "SQLite",
        setup: "WAL, synchronous=FULL, locking_mode=EXCLUSIVE, one connection for all threads, cached statements",
        make: sqlite,
    },
];

// ---- redb ----

pub const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("t");

fn redb(folder: &Path, _: When) -> Result<Box<dyn Store>, Error> {
    Ok(Box::new(redb::Database::create(folder.join("db"))?))
}

pub fn redb_commit(db: &redb::Database, work: impl FnOnce(&mut redb::Table<'_, u64, &[u8]>)) {
    let txn = db.begin_write().expect("redb begins");
    {
        let mut table = txn.open_table(TABLE).expect("redb opens a table");
        work(&mut table);
    }
    txn.commit().expect("redb commits");
}

impl Store for redb::Database {
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>) {
        redb_commit(self, |table| {
            for_a_while(keys, |key, value| drop(table.insert(key, &value[..]).expect("redb inserts")));
        });
    }
}

impl Worker for &redb::Database {
    fn insert(&mut self, key: u64) {
        redb_commit(self, |table| drop(table.insert(key, &value(key, 0)[..]).expect("redb inserts")));
    }
    fn transaction(&mut self, keys: &[u64], turn: u64) {
        redb_commit(self, |table| {
            keys.iter().for_each(|key| drop(table.insert(key, &value(*key, turn)[..]).expect("redb inserts")));
        });
    }
    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        let txn = self.begin_read().expect("redb begins");
        let table = txn.open_table(TABLE).expect("redb opens a table");
        table.get(key).expect("redb gets").map(|found| found.value().to_vec())
    }
}

// ---- LMDB ----

pub struct Lmdb {
    env: heed::Env<WithoutTls>,
    pub db: heed::Database<U64<BigEndian>, Bytes>,
}

fn lmdb(folder: &Path, _: When) -> Result<Box<dyn Store>, Error> {
    Ok(Box::new(Lmdb::open(folder)?))
}

impl Lmdb {
    pub fn open(folder: &Path) -> Result<Lmdb, Error> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(4 << 30).max_readers(128);
        // SAFETY: the flag lets LMDB write through its map, which nothing else touches; the folder is ours alone, and is opened once.
        let env = unsafe { options.flags(EnvFlags::WRITE_MAP).open(folder) }?;
        let mut txn = env.write_txn()?;
        let db = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb { env, db })
    }

    pub fn commit(&self, work: impl FnOnce(&mut heed::RwTxn<'_>)) {
        let mut txn = self.env.write_txn().expect("LMDB begins");
        work(&mut txn);
        txn.commit().expect("LMDB commits");
    }
}

impl Store for Lmdb {
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>) {
        self.commit(|txn| for_a_while(keys, |key, value| self.db.put(txn, &key, &value).expect("LMDB puts")));
    }
}

impl Worker for &Lmdb {
    fn insert(&mut self, key: u64) {
        self.commit(|txn| self.db.put(txn, &key, &value(key, 0)).expect("LMDB puts"));
    }
    fn transaction(&mut self, keys: &[u64], turn: u64) {
        self.commit(|txn| {
            keys.iter().for_each(|key| self.db.put(txn, key, &value(*key, turn)).expect("LMDB puts"));
        });
    }
    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        let txn = self.env.read_txn().expect("LMDB begins");
        self.db.get(&txn, &key).expect("LMDB gets").map(<[u8]>::to_vec)
    }
}

// ---- fjall ----

struct Fjall {
    db: Database,
    keys: fjall::Keyspace,
}

fn fjall(folder: &Path, _: When) -> Result<Box<dyn Store>, Error> {
    let db = Database::builder(folder.join("db")).manual_journal_persist(true).open()?;
    let options = || KeyspaceCreateOptions::default().manual_journal_persist(true);
    Ok(Box::new(Fjall { keys: db.keyspace("t", options)?, db }))
}

impl Fjall {
    fn put(&self, key: u64, value: &[u8]) {
        self.keys.insert(key.to_be_bytes(), value).expect("fjall inserts");
    }
    fn persist(&self) {
        self.db.persist(PersistMode::SyncData).expect("fjall persists");
    }
}

impl Store for Fjall {
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>) {
        for_a_while(keys, |key, value| self.put(key, &value));
        self.persist();
    }
}

impl Worker for &Fjall {
    fn insert(&mut self, key: u64) {
        self.put(key, &value(key, 0));
        self.persist();
    }
    fn transaction(&mut self, keys: &[u64], turn: u64) {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        keys.iter().for_each(|key| batch.insert(&self.keys, key.to_be_bytes(), &value(*key, turn)[..]));
        batch.commit().expect("fjall commits");
    }
    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        self.keys.get(key.to_be_bytes()).expect("fjall gets").map(|found| found.to_vec())
    }
}

// ---- SQLite ----

struct Sqlite(Mutex<Connection>);

const PUT: &str = "INSERT INTO t VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v";

fn sqlite(folder: &Path, _: When) -> Result<Box<dyn Store>, Error> {
    let connection = Connection::open(folder.join("db"))?;
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB NOT NULL)",
    )?;
    Ok(Box::new(Sqlite(Mutex::new(connection))))
}

fn sqlite_put(connection: &Connection, key: u64, value: &[u8]) {
    let mut put = connection.prepare_cached(PUT).expect("SQLite prepares");
    put.execute((key as i64, value)).expect("SQLite inserts");
}

impl Sqlite {
    fn commit(&self, work: impl FnOnce(&Connection)) {
        let mut connection = self.0.lock().expect("nobody has panicked");
        let txn = connection.transaction().expect("SQLite begins");
        work(&txn);
        txn.commit().expect("SQLite commits");
    }
}

impl Store for Sqlite {
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>) {
        self.commit(|connection| for_a_while(keys, |key, value| sqlite_put(connection, key, &value)));
    }
}

impl Worker for &Sqlite {
    fn insert(&mut self, key: u64) {
        sqlite_put(&self.0.lock().expect("nobody has panicked"), key, &value(key, 0));
    }
    fn transaction(&mut self, keys: &[u64], turn: u64) {
        self.commit(|connection| keys.iter().for_each(|key| sqlite_put(connection, *key, &value(*key, turn))));
    }
    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        let connection = self.0.lock().expect("nobody has panicked");
        let mut get = connection.prepare_cached("SELECT v FROM t WHERE k = ?1").expect("SQLite prepares");
        let mut rows = get.query([key as i64]).expect("SQLite gets");
        rows.next().expect("SQLite gets").map(|row| row.get(0).expect("a blob"))
    }
}
