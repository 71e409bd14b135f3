//! The same bodies over every kind of index there is.

mod background;
mod batches;
mod full;
mod later;
mod lengths;
mod order;
mod space;
mod threads;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use durix::kind::{Entry, kinds};
use durix::{Batch, Cursor, Db, Durability, Error, Index, Lengths, Level, Map, OrderedMap, Pool, PoolOptions, Session};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn heap() -> Pool {
    PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap()
}

/// An index of a kind, at work.
struct At {
    entry: Entry,
    pool: Pool,
    index: Arc<dyn Index>,
    session: Session,
}

impl At {
    fn new(entry: Entry) -> At {
        At::over(entry, heap())
    }

    fn over(entry: Entry, pool: Pool) -> At {
        let index = entry.open_or_create(&pool, "tried").unwrap();
        let session = pool.session().unwrap();
        At { entry, pool, index, session }
    }

    /// Opens what a process would find after the death of the one that was at work.
    fn after_a_death(self) -> At {
        let image = HeapBacking::image_of(self.pool.mapping());
        let options = PoolOptions::new();
        At::over(
            self.entry,
            options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap(),
        )
    }

    fn pairs(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        pairs(&mut *self.index.cursor(), &mut self.session)
    }

    /// That it holds exactly this, however it is asked.
    fn holds(&mut self, expected: &Pairs) {
        let name = self.entry.name;
        let mut found = self.pairs();
        if !self.entry.ordered {
            found.sort();
        }
        assert_eq!(found, expected.clone().into_iter().collect::<Vec<_>>(), "{name}");
        assert_eq!(self.index.count(&mut self.session).unwrap(), expected.len() as u64, "{name}");
        // Known without a walk, or not at all.
        let known = self.index.len(&self.session.enter().unwrap());
        assert_eq!(known, (name == "pset").then_some(expected.len() as u64), "{name}");
        assert_eq!(self.index.is_empty(&self.session.enter().unwrap()).unwrap(), expected.is_empty(), "{name}");
        assert_eq!(self.index.stats(&mut self.session).unwrap().keys, expected.len() as u64, "{name}");
        let op = self.session.enter().unwrap();
        let keys: Vec<&[u8]> = expected.keys().map(Vec::as_slice).collect();
        let mut count = 0;
        let mut found = |at: usize, value: Option<&[u8]>| {
            count += 1;
            assert_eq!(value, Some(&expected[keys[at]][..]), "{name}");
        };
        self.index.get_many(&op, &keys, &mut found).unwrap();
        assert_eq!(count, keys.len(), "{name}");
        drop(op);
        assert_eq!(self.index.check(&mut self.session).unwrap(), [], "{name}");
    }
}

fn pairs(cursor: &mut dyn Cursor, session: &mut Session) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut pairs, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    while cursor.next_into(&session.enter().unwrap(), &mut key, &mut value).unwrap() {
        pairs.push((key.clone(), value.clone()));
    }
    pairs
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn takes_any_length(entry: &Entry) -> bool {
    matches!(entry.limits.key, Lengths::UpTo(_))
}

/// One of a few keys that the kind takes: words that lie close together and far apart, and what is longer or shorter.
fn key(entry: &Entry, random: &mut Random) -> Vec<u8> {
    let number = random.below(60);
    let word = [number, number << 56, u64::MAX - number][random.below(3) as usize].to_be_bytes();
    if !takes_any_length(entry) {
        return word.to_vec();
    }
    match random.below(3) {
        0 => word.to_vec(),
        1 => word[..(number % 8) as usize].to_vec(),
        _ => [&word[..], &vec![number as u8; (number * 7) as usize]].concat(),
    }
}

fn value(entry: &Entry, random: &mut Random) -> Vec<u8> {
    match entry.limits.value {
        Lengths::Exactly(len) => random.below(5).to_be_bytes()[8 - len..].to_vec(),
        Lengths::UpTo(_) => vec![random.below(5) as u8; [0, 1, 8, 100, 3000][random.below(5) as usize]],
    }
}

/// An operation, and the same on the model; both must answer alike.
fn step(at: &mut At, model: &mut Pairs, random: &mut Random) {
    let (key, new) = (key(&at.entry, random), value(&at.entry, random));
    let (op, index, there) = (at.session.enter().unwrap(), &at.index, model.get(&key).cloned());
    let what = random.below(10);
    let (answer, expected, then) = match what {
        0..3 => (index.insert(&op, &key, &new), there.is_none(), Some(new)),
        3 => (index.insert_if_absent(&op, &key, &new), there.is_none(), there.or(Some(new))),
        4 => (index.update(&op, &key, &new), there.is_some(), there.map(|_| new)),
        5 => (index.remove(&op, &key), there.is_some(), None),
        6 => (index.compare_and_set(&op, &key, there.as_deref(), Some(&new)), true, Some(new)),
        7 => (index.compare_and_set(&op, &key, there.as_deref(), None), true, None),
        8 => {
            let other = value(&at.entry, random);
            let fits = there.as_ref() == Some(&other);
            (index.compare_and_set(&op, &key, Some(&other), None), fits, there.filter(|_| !fits))
        }
        _ => (index.contains(&op, &key), there.is_some(), there),
    };
    assert_eq!(answer.unwrap(), expected, "{}: operation {what} on {key:?}", at.entry.name);
    match then {
        Some(value) => _ = model.insert(key.clone(), value),
        None => _ = model.remove(&key),
    }
    assert_eq!(index.get_vec(&op, &key).unwrap().as_ref(), model.get(&key), "{}", at.entry.name);
}

#[test]
fn every_kind_does_what_the_model_does_also_after_a_death_and_a_restart() {
    for entry in kinds::<Hardware>() {
        let (mut at, mut model, mut random) = (At::new(entry), Pairs::new(), Random(0x9E37_79B9_7F4A_7C15));
        at.holds(&model);
        let (rounds, steps) = if std::env::var_os("DURIX_DEEP").is_some() { (12, 1000) } else { (4, 300) };
        for round in 0..rounds {
            (0..steps).for_each(|_| step(&mut at, &mut model, &mut random));
            at.holds(&model);
            // What is strict is durable by itself.
            if entry.durability == Durability::Buffered {
                at.index.sync(&mut at.session).unwrap();
            }
            at = if round % 2 == 0 { at.after_a_death() } else { restarted(at) };
            at.holds(&model);
        }
        let At { pool, index, session, .. } = at;
        drop((index, session));
        pool.close().unwrap();
    }
}

/// Closes the pool and opens it again.
fn restarted(at: At) -> At {
    let At { entry, pool, index, session } = at;
    drop((index, session));
    pool.close().unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    let opened = PoolOptions::new().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
    At::over(entry, opened.recover().unwrap())
}

#[test]
fn what_a_buffered_kind_has_not_synced_is_undone_whole_by_a_death() {
    for entry in kinds().into_iter().filter(|entry| entry.durability == Durability::Buffered) {
        let mut at = At::new(entry);
        let word = |n: u64| n.to_be_bytes();
        at.index.insert(&at.session.enter().unwrap(), &word(1), &word(1)).unwrap();
        let ticket = at.index.ticket(&at.session.enter().unwrap());
        at.index.wait(&mut at.session, ticket).unwrap();
        at.index.insert(&at.session.enter().unwrap(), &word(1), &word(9)).unwrap();
        at.index.insert(&at.session.enter().unwrap(), &word(2), &word(2)).unwrap();
        let mut at = at.after_a_death();
        at.holds(&Pairs::from([(word(1).to_vec(), word(1).to_vec())]));
    }
}

#[test]
fn batches_of_every_kind_make_all_their_changes() {
    for entry in kinds::<Hardware>() {
        let mut at = At::new(entry);
        let word = |n: u64| n.to_be_bytes();
        let mut batch = Batch::new();
        batch.insert(&word(1), &word(1)).insert(&word(2), &word(2)).remove(&word(1)).insert(&word(2), &word(3));
        at.index.apply(&at.session.enter().unwrap(), &batch).unwrap();
        let expected = Pairs::from([(word(2).to_vec(), word(3).to_vec())]);
        at.holds(&expected);
        if !takes_any_length(&entry) {
            batch.insert(b"too short", &word(1));
            let refused = at.index.apply(&at.session.enter().unwrap(), &batch);
            assert!(matches!(refused, Err(Error::WrongLength { role: "key", len: 9, expected: 8 })), "{refused:?}");
            at.holds(&expected);
        }
    }
}

#[test]
fn lengths_that_a_kind_does_not_take_are_told_with_the_kinds_that_do() {
    for entry in kinds::<Hardware>() {
        let mut at = At::new(entry);
        let op = at.session.enter().unwrap();
        let (index, word) = (&at.index, 7u64.to_be_bytes());
        assert_eq!(index.limits(), entry.limits);
        match entry.limits.key {
            Lengths::UpTo(limit) => {
                let long = vec![0; limit + 1];
                let told = |error: durix::Result<bool>| assert!(matches!(error, Err(Error::KeyTooLong { .. })));
                told(index.insert(&op, &long, b""));
                told(index.contains(&op, &long));
                told(index.remove(&op, &long));
                assert!(index.insert(&op, &long[1..], b"longest").unwrap());
                assert_eq!(index.get_vec(&op, &long[1..]).unwrap().unwrap(), b"longest");
            }
            Lengths::Exactly(_) => {
                let text = index.insert(&op, b"a long key", &word).unwrap_err().to_string();
                assert!(text.starts_with("a key of 10 bytes does not fit: this kind of index takes keys of exactly 8"));
                assert!(text.ends_with("use a kind that takes any length (`durix kinds` lists all)"), "{text}");
                if let Lengths::Exactly(_) = entry.limits.value {
                    let text = index.insert(&op, &word, b"").unwrap_err().to_string();
                    assert!(text.starts_with("a value of 0 bytes does not fit"), "{text}");
                }
                assert!(index.get_vec(&op, b"").is_err());
                let text = index.remove(&op, b"x").unwrap_err().to_string();
                assert!(text.starts_with("a key of 1 byte does not fit"), "{text}");
                // What cannot be there is not there.
                assert!(!index.compare_and_set(&op, &word, Some(b"long value"), None).unwrap());
            }
        }
        drop(op);
        assert_eq!(at.index.check(&mut at.session).unwrap(), []);
    }
}

// ---- through the facade ----

fn numbers(db: &Db, entry: &Entry, name: &str) -> Map<i64, u64> {
    db.map_of_kind(name, entry.name).unwrap()
}

#[test]
fn every_kind_holds_maps_of_integers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let keys = [i64::MIN, -5, -1, 0, 1, 1000, i64::MAX];
    let db = Db::builder().durability(Level::Process).create(&path).unwrap();
    for entry in kinds::<Hardware>() {
        let map = numbers(&db, &entry, entry.name);
        for key in keys {
            assert!(map.insert(&key, &(key as u64)).unwrap());
        }
        assert!(map.compare_and_set(&-5, Some(&(-5i64 as u64)), Some(&5)).unwrap());
        assert_eq!(map.get_many(&[&-5, &7]).unwrap(), [Some(5), None]);
        assert_eq!(map.guarantee().durability, entry.durability, "{}", entry.name);
        assert_eq!(map.guarantee(), db.guarantee().with(entry.durability), "the weaker of both");
    }
    db.close().unwrap();
    let db = Db::open(&path).unwrap();
    for entry in kinds::<Hardware>() {
        let map: Map<i64, u64> = db.map(entry.name).unwrap();
        let mut found: Vec<i64> = map.iter().map(|pair| pair.unwrap().0).collect();
        match OrderedMap::new(map.clone()) {
            Ok(ordered) => assert_eq!(ordered.last().unwrap(), Some((i64::MAX, i64::MAX as u64))),
            Err(error) => {
                assert!(!entry.ordered);
                assert_eq!(
                    error.to_string(),
                    format!(
                        "index \"{0}\" is a {0}, which keeps no order of keys; use an ordered kind, or iterate and sort",
                        entry.name
                    )
                );
                found.sort_unstable();
            }
        }
        assert_eq!(found, keys, "{}", entry.name);
        assert_eq!(map.count().unwrap(), keys.len() as u64);
        assert_eq!(map.len().unwrap(), (entry.name == "pset").then_some(keys.len() as u64), "{}", entry.name);
        assert!(map.check().unwrap().is_empty());
        assert!(db.map::<u64, u64>(entry.name).is_err(), "other types");
    }
}

#[test]
fn types_that_a_kind_cannot_hold_are_refused_before_it_is_created() {
    let db = Db::over(heap());
    let of_words = |entry: &Entry| matches!(entry.limits.value, Lengths::Exactly(_));
    for entry in kinds().into_iter().filter(|entry| !takes_any_length(entry) && of_words(entry)) {
        let error = db.map_of_kind::<String, u64>("m", entry.name).unwrap_err().to_string();
        let text = format!(
            "a {} takes keys of exactly 8 bytes (u64, i64, [u8; 8]), so keys of type string do not fit; kinds that take any: \
             pset, masstree, bplustree, hash-bytes",
            entry.name
        );
        assert_eq!(error, text);
        assert!(matches!(db.map_of_kind::<u64, u32>("m", entry.name), Err(Error::UnfitType { role: "value", .. })));
        assert!(db.indices().unwrap().is_empty(), "nothing was created");
        let pairs: Map<(u32, u32), (i16, u32, u16)> = db.map_of_kind("m", entry.name).unwrap();
        assert!(pairs.insert(&(1, 2), &(-3, 4, 5)).unwrap());
        assert_eq!(pairs.get(&(1, 2)).unwrap(), Some((-3, 4, 5)));
        let array: Map<[u8; 8], Vec<u8>> = db.map_of_kind("bytes", entry.name).unwrap();
        assert!(array.insert(&[1; 8], &vec![2; 8]).unwrap());
        assert!(matches!(array.insert(&[1; 8], &vec![2; 9]), Err(Error::WrongLength { role: "value", .. })));
        let taken = db.map::<(u32, u32), String>("m").unwrap_err();
        assert!(matches!(taken, Error::UnfitType { role: "value", .. }), "{taken}");
        drop((pairs, array));
        db.drop_index("m").unwrap();
        db.drop_index("bytes").unwrap();
    }
}

#[test]
fn a_copy_keeps_every_kind_and_its_contents() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open_or_create(dir.path().join("db")).unwrap();
    for entry in kinds::<Hardware>() {
        let map = numbers(&db, &entry, entry.name);
        map.try_extend((0..500).map(|i| (i - 250, i as u64))).unwrap();
    }
    let report = db.copy_to(dir.path().join("copy")).unwrap();
    assert_eq!(report.indices.len(), kinds::<Hardware>().len());
    let copy = Db::open(dir.path().join("copy")).unwrap();
    for entry in kinds::<Hardware>() {
        let (from, to) = (numbers(&db, &entry, entry.name), numbers(&copy, &entry, entry.name));
        let sorted = |map: &Map<i64, u64>| map.iter().collect::<durix::Result<BTreeMap<_, _>>>().unwrap();
        assert_eq!(sorted(&from), sorted(&to), "{}", entry.name);
        assert!(to.check().unwrap().is_empty());
    }
}
