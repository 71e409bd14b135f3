//! Databases of Durix with a journal.

use std::path::Path;

use durix::{Db, Handle, Level, Map};

use crate::store::{Contestant, EVERY, Error, Store, When, Worker, value};

pub const OURS: [Contestant; 3] = [
    Contestant {
        name: "pset",
        setup: "Db::map, Level::Immediate, a handle for each thread",
        make: |p, w| make(p, w, "pset"),
    },
    Contestant {
        name: "hash-bytes",
        setup: "Db::map_of_kind, otherwise the same",
        make: |p, w| make(p, w, "hash-bytes"),
    },
    Contestant { name: "masstree", setup: "Db::ordered_map, otherwise the same", make: |p, w| make(p, w, "masstree") },
];

struct Ours {
    map: Map<u64, Vec<u8>>,
    db: Db,
}

fn make(folder: &Path, when: When, kind: &str) -> Result<Box<dyn Store>, Error> {
    let level = if when == When::OnReturn { Level::Immediate } else { Level::Interval(EVERY) };
    let db = Db::builder().durability(level).create(folder.join("db"))?;
    Ok(Box::new(Ours { map: db.map_of_kind("t", kind)?, db }))
}

impl Store for Ours {
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(OurWorker { ours: self, handle: self.map.handle().expect("a session") })
    }

    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>) {
        let mut handle = self.map.handle().expect("a session");
        for (key, turn) in keys {
            handle.insert(&key, &value(key, turn).to_vec()).expect("Durix inserts");
        }
        self.db.sync().expect("Durix syncs");
    }
}

struct OurWorker<'a> {
    ours: &'a Ours,
    handle: Handle<u64, Vec<u8>>,
}

impl Worker for OurWorker<'_> {
    fn insert(&mut self, key: u64) {
        self.handle.insert(&key, &value(key, 0).to_vec()).expect("Durix inserts");
    }

    fn transaction(&mut self, keys: &[u64], turn: u64) {
        let map = &self.ours.map;
        let all = |tx: &durix::Transaction| {
            let map = tx.map(map)?;
            for key in keys {
                map.insert(key, &value(*key, turn).to_vec())?;
            }
            Ok(())
        };
        self.ours.db.transaction(all).expect("Durix commits");
    }

    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        self.handle.get(&key).expect("Durix gets")
    }
}
