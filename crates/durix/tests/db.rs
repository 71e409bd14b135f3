//! The facade: maps, types, sessions, copies.

mod common;
mod fixtures;
mod kinds;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::Model;
use durix::{Db, Durability, Error, Map, MapBatch, Named, OrderedMap, Ticket, Types};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, MAX_SESSIONS, Pool, PoolOptions};

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct User {
    name: String,
    born: u16,
}

impl Named for User {
    const NAME: &'static str = "User 1";
}

fn memory() -> Db {
    Db::over(PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap())
}

#[test]
fn a_map_does_what_maps_do() {
    let db = memory();
    let map: Map<String, u64> = db.map("m").unwrap();
    assert!(map.insert("a", &1).unwrap() && !map.insert("a", &2).unwrap());
    assert!(!map.insert_if_absent("a", &3).unwrap() && map.insert_if_absent("b", &3).unwrap());
    assert!(map.update("b", &4).unwrap() && !map.update("c", &4).unwrap());
    assert!(!map.compare_and_set("a", Some(&1), Some(&9)).unwrap());
    assert!(map.compare_and_set("a", Some(&2), Some(&9)).unwrap());
    assert!(map.compare_and_set("c", None, Some(&5)).unwrap() && map.compare_and_set("c", Some(&5), None).unwrap());
    assert_eq!(map.get_many(&["b", "x", "a"]).unwrap(), [Some(4), None, Some(9)]);
    assert!(map.contains("a").unwrap() && !map.contains("c").unwrap());
    assert_eq!(map.count().unwrap(), 2);
    let mut batch = MapBatch::new();
    batch.insert("x", &1).unwrap().remove("a").unwrap().insert("x", &2).unwrap();
    map.apply(&batch).unwrap();
    let mut pairs: Vec<_> = map.iter().collect::<Result<_, _>>().unwrap();
    pairs.sort();
    assert_eq!(pairs, [("b".to_owned(), 4), ("x".to_owned(), 2)]);
    assert!(map.remove("x").unwrap() && !map.remove("x").unwrap());
    assert!(map.check().unwrap().is_empty());
    assert_eq!(map.stats().unwrap().keys, 1);
    map.sync().unwrap();
    let ticket = map.ticket().unwrap();
    assert_eq!(ticket, Ticket::DURABLE, "the set is strict");
    map.wait(ticket).unwrap();
    assert_eq!(map.name(), "m");
}

#[test]
fn a_handle_does_the_same_with_a_session_of_its_own() {
    let db = memory();
    let map: Map<u32, User> = db.map("m").unwrap();
    let mut handle = map.handle().unwrap();
    let ada = User { name: "Ada".into(), born: 1815 };
    assert!(handle.insert(&1, &ada).unwrap());
    assert_eq!(handle.get(&1).unwrap().as_ref(), Some(&ada));
    assert_eq!(map.get(&1).unwrap(), Some(ada));
    assert!(handle.get_bytes(&2).unwrap().is_none() && handle.get_bytes(&1).unwrap().is_some());
    assert!(handle.remove(&1).unwrap() && handle.is_empty().unwrap());
    std::thread::spawn(move || handle.count().unwrap()).join().unwrap();
}

/// A service of the pool holds an index for a step. A new map was refused then, as if it were filled with keys of another type.
#[test]
fn an_index_that_is_held_for_a_moment_below_the_facade_still_takes_its_types() {
    let db = memory();
    let held = durix::kind::open_as_is(db.pool(), {
        drop(db.open_index("m", Some("masstree")).unwrap());
        "m"
    })
    .unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(held);
    });
    db.map::<u32, u64>("m").unwrap().insert(&1, &2).unwrap();
    holder.join().unwrap();
}

#[test]
fn types_are_kept_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open_or_create(&path).unwrap();
    let users = db.map::<String, User>("users").unwrap();
    let taken = db.map::<u64, User>("users").unwrap_err();
    assert!(matches!(taken, Error::WrongType { role: "keys", .. }), "empty, but open: {taken}");
    users.insert("ada", &User { name: "Ada".into(), born: 1815 }).unwrap();
    drop(users);
    db.close().unwrap();
    let db = Db::open(&path).unwrap();
    let keys = db.map::<u64, User>("users").unwrap_err().to_string();
    assert_eq!(
        keys,
        "the keys of index \"users\" are of type string, not u64; open it with the type it was filled with"
    );
    let values = db.map::<String, u16>("users").unwrap_err().to_string();
    assert!(values.contains("the values of index \"users\" are of type User 1, not u16"), "{values}");
    let bytes = db.map::<Vec<u8>, Vec<u8>>("users").unwrap_err().to_string();
    assert!(bytes.contains("are of type string, not bytes"), "{bytes}");
    let users = db.map::<String, User>("users").unwrap();
    assert_eq!(users.get("ada").unwrap().unwrap().born, 1815);
    users.remove("ada").unwrap();
    drop(users);
    db.map::<(u32, String), u16>("users").unwrap().insert(&(1, "x"), &2).unwrap();
    db.rename("users", "others").unwrap();
    assert!(db.map::<String, User>("others").is_err(), "types follow the name");
    db.drop_index("others").unwrap();
    db.map::<u8, u8>("fresh").unwrap();
}

#[test]
fn what_bytes_have_put_in_is_checked_against_the_types() {
    let db = memory();
    let map: Map<String, u32> = db.map("m").unwrap();
    map.insert("good", &1).unwrap();
    let mut session = db.pool().session().unwrap();
    map.index().insert(&session.enter().unwrap(), b"bad", b"123").unwrap();
    let error = map.get("bad").unwrap_err().to_string();
    assert_eq!(
        error,
        "an entry of index \"m\" is not of its type: 3 bytes are too few for u32; look at it as bytes, and remove or rewrite it"
    );
    assert_eq!(map.iter().filter(Result::is_ok).count(), 1);
    assert_eq!(map.check().unwrap().len(), 1);
}

#[test]
fn kinds_are_told_apart() {
    let db = memory();
    let error = db.map_of_kind::<u8, u8>("m", "btree").unwrap_err().to_string();
    assert!(error.starts_with("there is no kind of index named \"btree\"; there are: pset"), "{error}");
    let error = db.ordered_map_of_kind::<u8, u8>("m", "pset").unwrap_err().to_string();
    assert!(error.contains("keeps no order of keys"), "{error}");
    drop(db.pool().open_structure::<Model<_>>("foreign", &()).unwrap());
    let error = db.map::<u8, u8>("foreign").unwrap_err().to_string();
    assert!(error.contains("of kind TESTTREE v1, which this build cannot open"), "{error}");
    let error = db.map_of_kind::<u8, u8>("foreign", "pset").unwrap_err().to_string();
    assert!(error.contains("of kind TESTTREE v1"), "{error}");
}

// ---- order ----

fn ordered<K: durix::Key, V: durix::Value>(db: &Db, name: &str) -> OrderedMap<K, V> {
    let model = db.pool().open_structure::<Model<_>>(name, &()).unwrap();
    OrderedMap::new(db.map_over(model).unwrap()).unwrap()
}

#[test]
fn ordered_maps_walk_ranges_and_prefixes_in_both_directions() {
    let db = memory();
    let map = ordered::<(i32, String), u8>(&db, "tree");
    for (i, key) in [(-1, "z"), (0, ""), (0, "a"), (0, "ab"), (7, "b")].into_iter().enumerate() {
        map.insert(&(key.0, key.1.to_owned()), &(i as u8)).unwrap();
    }
    fn values<K: std::fmt::Debug>(pairs: impl Iterator<Item = durix::Result<(K, u8)>>) -> Vec<u8> {
        pairs.map(|pair| pair.unwrap().1).collect()
    }
    assert_eq!(values(map.iter()), [0, 1, 2, 3, 4]);
    let key = |n: i32, s: &str| (n, s.to_owned());
    assert_eq!(values(map.range(key(0, "")..key(0, "ab")).unwrap()), [1, 2]);
    assert_eq!(values(map.range(key(0, "a")..=key(9, "")).unwrap().rev()), [4, 3, 2]);
    assert_eq!(values(map.range(..key(0, "")).unwrap()), [0]);
    assert_eq!(values(map.range(key(9, "")..key(0, "")).unwrap()), [0; 0]);
    assert_eq!(values(map.prefix(&(0,)).rev()), [3, 2, 1]);
    assert_eq!(map.first().unwrap().unwrap().0, key(-1, "z"));
    assert_eq!(map.last().unwrap().unwrap().1, 4);
    assert_eq!(map.guarantee().durability, Durability::Buffered);
    let words = ordered::<String, ()>(&db, "words");
    for word in ["tree", "trie", "tuple", "set"] {
        words.insert(word, &()).unwrap();
    }
    let found: Vec<_> = words.prefix("tr").map(|pair| pair.unwrap().0).collect();
    assert_eq!(found, ["tree", "trie"]);
    assert!(words.last().unwrap().unwrap().0 == "tuple" && map.range::<(i32, String), _>(..).is_ok());
}

#[test]
fn what_comes_first_and_last_can_be_taken() {
    let db = memory();
    let map = ordered::<u32, String>(&db, "queue");
    map.try_extend((0..600u32).map(|n| (n, n.to_string()))).unwrap();
    assert_eq!(map.count().unwrap(), 600);
    assert_eq!(map.pop_first().unwrap(), Some((0, "0".into())));
    assert_eq!(map.pop_last().unwrap(), Some((599, "599".into())));
    assert_eq!(map.retain(|key, _| key % 100 == 1).unwrap(), 592);
    let mut left = Vec::new();
    while let Some((key, _)) = map.pop_first().unwrap() {
        left.push(key);
    }
    assert_eq!(left, [1, 101, 201, 301, 401, 501]);
    assert_eq!(map.pop_last().unwrap(), None);
}

#[test]
fn threads_that_take_the_first_get_each_one_once() {
    let db = memory();
    let map = ordered::<u32, u32>(&db, "queue");
    map.try_extend((0..1000).map(|n| (n, n))).unwrap();
    let take = || std::iter::from_fn(|| map.pop_first().unwrap()).map(|(key, _)| key).collect::<Vec<_>>();
    let mut taken = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..1000));
}

#[test]
fn threads_that_count_by_a_function_lose_no_count() {
    let db = memory();
    let map = db.map::<String, u64>("counts").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..300).for_each(|_| _ = map.update_with("n", |old| Some(old.unwrap_or(0) + 1)).unwrap()));
        }
    });
    assert_eq!(map.get("n").unwrap(), Some(900));
    assert_eq!(map.update_with("n", |_| None).unwrap(), None);
    assert!(map.is_empty().unwrap());
    // The function may call the map.
    map.update_with("n", |old| old.or_else(|| map.insert("m", &1).ok().map(|_| 7))).unwrap();
    assert_eq!((map.get("n").unwrap(), map.get("m").unwrap()), (Some(7), Some(1)));
}

#[test]
fn types_of_the_standard_library_are_keys_and_values() {
    let db = memory();
    let map = ordered::<std::path::PathBuf, Vec<u32>>(&db, "paths");
    map.insert(std::path::Path::new("/usr"), &vec![1, 2]).unwrap();
    assert_eq!(map.get(std::path::Path::new("/usr")).unwrap(), Some(vec![1, 2]));
    let places = db.map::<(Option<String>, std::net::IpAddr), f64>("places").unwrap();
    let key = (None::<String>, std::net::IpAddr::from([127, 0, 0, 1]));
    places.insert(&key, &0.5).unwrap();
    assert_eq!(places.get(&key).unwrap(), Some(0.5));
    let error = db.map::<(Option<String>, u32), f64>("places").unwrap_err().to_string();
    assert!(error.contains("(Option<string>, ip)") && error.contains("(Option<string>, u32)"), "{error}");
}

// ---- sessions ----

/// How many sessions can still be opened.
fn free_sessions(db: &Db) -> usize {
    std::iter::from_fn(|| db.pool().session().ok()).take(MAX_SESSIONS as usize).collect::<Vec<_>>().len()
}

#[test]
fn threads_that_end_take_no_session_with_them() {
    let db = memory();
    let map: Map<u64, u64> = db.map("m").unwrap();
    let before = free_sessions(&db);
    for round in 0..20 {
        std::thread::scope(|scope| {
            for thread in 0..64 {
                let map = &map;
                scope.spawn(move || map.insert(&(round * 64 + thread), &thread).unwrap());
            }
        });
    }
    assert_eq!(map.count().unwrap(), 20 * 64);
    let after = free_sessions(&db);
    assert!(before - after <= 64, "at most the stripes: {before} before, {after} after 1280 threads");
    drop(map.handle().unwrap());
    drop(map);
    db.close().unwrap();
}

#[test]
fn calls_find_a_session_when_all_are_taken_for_a_while() {
    let db = memory();
    let map: Map<u64, u64> = db.map("m").unwrap();
    let all: Vec<_> = std::iter::from_fn(|| db.pool().session().ok()).collect();
    assert!(all.len() > 400);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let map = &map;
            scope.spawn(move || (0..50).for_each(|i| _ = map.insert(&(thread * 50 + i), &i).unwrap()));
        }
    });
    assert_eq!(map.count().unwrap(), 800);
    drop(all);
}

#[test]
fn rayon_threads_share_a_map() {
    use rayon::prelude::*;
    let db = memory();
    let map: Map<u64, u64> = db.map("m").unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    pool.install(|| (0..2000u64).into_par_iter().for_each(|i| _ = map.insert(&i, &(i * i)).unwrap()));
    let sum: u64 = pool.install(|| (0..2000u64).into_par_iter().map(|i| map.get(&i).unwrap().unwrap()).sum());
    assert_eq!(sum, (0..2000).map(|i| i * i).sum());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tokio_tasks_share_a_map() {
    let db = memory();
    let map: Map<String, u64> = db.map("m").unwrap();
    let tasks: Vec<_> = (0..100u64)
        .map(|i| {
            let (map, mut handle) = (map.clone(), map.handle().unwrap());
            tokio::spawn(async move {
                map.insert(&format!("map {i}"), &i).unwrap();
                tokio::task::yield_now().await;
                // On another thread, perhaps.
                handle.insert(&format!("handle {i}"), &i).unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(map.count().unwrap(), 200);
}

#[test]
fn tuples_are_given_in_borrowed_forms_everywhere() {
    type Nested = ((String, u32), Vec<u8>);
    let db = memory();
    let map = ordered::<(String, u64), (String, u8)>(&db, "pairs");
    let (name, key) = ("a".to_owned(), ("a", 5));
    assert!(map.insert(&key, &("x", 1)).unwrap());
    assert!(!map.insert_if_absent(&key, &("y", 1)).unwrap());
    assert!(map.update(&(&name, 5), &("x", 2)).unwrap());
    assert!(map.compare_and_set(&key, Some(&("x", 2)), Some(&("x", 3))).unwrap());
    let found = Some(("x".to_owned(), 3));
    assert_eq!(map.get(&key).unwrap(), found);
    assert_eq!(map.get(&(name.clone(), 5)).unwrap(), found);
    assert_eq!(map.get_many(&[&("b", 1), &key]).unwrap(), [None, found.clone()]);
    assert!(map.contains(&key).unwrap() && !map.contains(&("a", 6)).unwrap());
    assert_eq!(map.range(("a", 0)..("b", 0)).unwrap().count(), 1);
    assert_eq!(map.range(("a", 6)..).unwrap().count(), 0);
    assert_eq!(map.prefix(&("a",)).count(), 1);
    let mut handle = map.handle().unwrap();
    assert_eq!(handle.get(&key).unwrap(), found);
    assert_eq!(handle.range(..=("a", 5)).unwrap().count(), 1);
    drop(handle);
    let mut batch = MapBatch::new();
    batch.insert(&("b", 1), &("z", 9)).unwrap().remove(&("c", 1)).unwrap();
    map.apply(&batch).unwrap();

    let nested = ordered::<Nested, String>(&db, "nested");
    let deep = (("a", 7), &b"\0"[..]);
    db.transaction(|tx| {
        let (map, nested) = (tx.map(&map)?, tx.map(&nested)?);
        assert_eq!(map.get(&("b", 1))?, Some(("z".to_owned(), 9)));
        map.update_with(&key, |old| old.map(|(text, n)| (text + "!", n)))?;
        nested.insert(&deep, "in")
    })
    .unwrap();
    assert_eq!(nested.range(deep..=deep).unwrap().count(), 1);
    assert_eq!(nested.prefix(&(("a", 7),)).count(), 1);
    let snapshot = db.snapshot().unwrap();
    assert!(map.remove(&key).unwrap() && nested.remove(&(("a".to_owned(), 7), vec![0])).unwrap());
    assert_eq!(snapshot.map(&map).unwrap().get(&key).unwrap(), Some(("x!".to_owned(), 3)));
    assert_eq!(snapshot.map(&nested).unwrap().get(&deep).unwrap().as_deref(), Some("in"));
}

#[test]
fn a_panic_in_user_code_costs_nothing_but_the_call() {
    struct Explosive;
    impl durix::Encode for Explosive {
        fn encode(&self, _: &mut Vec<u8>) -> Result<(), durix::encode::Unfit> {
            panic!("in the middle of a call")
        }
    }
    impl durix::encode::GivenAs<Explosive> for Explosive {
        fn encode_given(given: &Explosive, out: &mut Vec<u8>) -> Result<(), durix::encode::Unfit> {
            durix::Encode::encode(given, out)
        }
    }
    impl durix::Decode for Explosive {
        fn decode(_: &[u8]) -> Result<Self, durix::encode::Unfit> {
            Ok(Explosive)
        }
    }
    impl durix::Value for Explosive {
        fn tag() -> durix::TypeTag {
            durix::TypeTag::BYTES
        }
    }
    let db = memory();
    let map: Map<u64, Explosive> = db.map("m").unwrap();
    let other: Map<u64, u64> = db.map("other").unwrap();
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| map.insert(&1, &Explosive)));
    assert!(panics.is_err());
    other.insert(&1, &1).unwrap();
    assert_eq!(map.count().unwrap(), 0);
    drop((map, other));
    db.close().unwrap();
}

/// Writes to its own map while it is encoded.
#[derive(Debug)]
struct Nested(Map<u64, u64>);

impl durix::Encode for Nested {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), durix::encode::Unfit> {
        self.0.insert(&7, &7).unwrap();
        self.0.sync().unwrap();
        durix::Encode::encode(&1u64, out)
    }
}

#[test]
fn user_code_within_a_call_may_call_again() {
    let db = memory();
    let map: Map<u64, u64> = db.map("m").unwrap();
    let mut batch = Vec::new();
    durix::Encode::encode(&Nested(map.clone()), &mut batch).unwrap();
    for pair in &map {
        let (key, value) = pair.unwrap();
        map.insert(&(key + 1000), &value).unwrap();
    }
    assert_eq!(map.get(&7).unwrap(), Some(7));
}

// ---- borrowed bytes, writing while iterating ----

#[test]
fn borrowed_bytes_hold_nothing_up() {
    let db = memory();
    let map: Map<u64, Vec<u8>> = db.map("m").unwrap();
    let mut handle = map.handle().unwrap();
    handle.insert(&1, &b"before"[..]).unwrap();
    let borrowed = handle.get_bytes(&1).unwrap().unwrap();
    let mut iter = map.iter();
    let first = iter.next().unwrap().unwrap();
    // Writers go on, and a moment without operations is found at once, as a checkpoint needs it.
    map.insert(&1, &b"after"[..]).unwrap();
    (2..500).for_each(|i| _ = map.insert(&i, &vec![0; 2000][..]).unwrap());
    let mut session = db.pool().session().unwrap();
    db.pool().mapping().quiesce(&mut session, Duration::from_millis(100), |_| ()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| map.remove(&1).unwrap());
    });
    assert_eq!((borrowed, &first.1[..]), (&b"before"[..], &b"before"[..]));
    drop(iter);
    assert_eq!(handle.get_bytes(&1).unwrap(), None);
}

#[test]
fn writing_while_iterating_meets_what_is_there_all_along_once() {
    let db = memory();
    let map: Map<u64, u64> = db.map("m").unwrap();
    (0..3000).for_each(|i| _ = map.insert(&i, &i).unwrap());
    let mut met = HashSet::new();
    for (step, pair) in map.iter().enumerate() {
        let (key, value) = pair.unwrap();
        assert!(met.insert(key), "{key} came twice");
        assert!(value == key || value == key + 1_000_000, "{key} has {value}");
        let step = step as u64;
        // The even ones stay; the odd ones go, new ones come, and values change.
        map.remove(&(step * 2 + 1)).unwrap();
        map.insert(&(step * 2 % 3000), &(step * 2 % 3000 + 1_000_000)).unwrap();
        map.insert(&(10_000 + step), &(10_000 + step)).unwrap();
    }
    assert!((0..3000).step_by(2).all(|i| met.contains(&i)), "something that stayed was not met");
}

// ---- copies ----

#[test]
fn a_copy_has_everything_that_nobody_changed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open_or_create(dir.path().join("db")).unwrap();
    let map: Map<u64, String> = db.map("m").unwrap();
    let raw: Map<Vec<u8>, Vec<u8>> = db.map("raw").unwrap();
    raw.insert(&b"k"[..], &b"v"[..]).unwrap();
    map.try_extend((0..5000).map(|i| (i, "old".to_string()))).unwrap();
    let (stop, target) = (AtomicBool::new(false), dir.path().join("copy"));
    let report = std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    map.insert(&(number * 2 % 2000 + writer), "new").unwrap();
                    map.remove(&(2000 + number * 2 % 1000 + writer)).unwrap();
                    map.insert(&(100_000 + number), "added").unwrap();
                }
            });
        }
        let report = db.copy_to(&target);
        stop.store(true, Ordering::Relaxed);
        report.unwrap()
    });
    assert_eq!(report.indices.len(), 2);
    assert!(!durix::copy::partial(&target).exists());
    let copy = Db::builder().read_only(true).open(&target).unwrap();
    let copied: Map<u64, String> = copy.map("m").unwrap();
    let found: BTreeMap<u64, String> = copied.iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(report.indices.iter().find(|(name, _)| name == "m").unwrap().1, found.len() as u64);
    assert!((3000..5000).all(|i| found.get(&i).is_some_and(|v| v == "old")), "untouched entries are all there");
    assert!((0..2000).all(|i| found.get(&i).is_some_and(|v| v == "old" || v == "new")), "updated ones, too");
    assert!(found.keys().all(|i| (0..5000).contains(i) || *i >= 100_000));
    assert!(copied.check().unwrap().is_empty());
    assert_eq!(copy.map::<Vec<u8>, Vec<u8>>("raw").unwrap().get(&b"k"[..]).unwrap(), Some(b"v".to_vec()));
}

#[test]
fn a_copy_replaces_nothing_and_goes_over_what_an_earlier_one_left() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open_or_create(dir.path().join("db")).unwrap();
    db.map::<u8, u8>("m").unwrap().insert(&1, &2).unwrap();
    let error = db.copy_to(dir.path().join("db")).unwrap_err().to_string();
    assert!(error.contains("holds a pool already"), "{error}");
    let target = dir.path().join("copy");
    std::fs::write(durix::copy::partial(&target), b"what a crash has left").unwrap();
    db.copy_to(&target).unwrap();
    assert_eq!(Db::open(&target).unwrap().map::<u8, u8>("m").unwrap().get(&1).unwrap(), Some(2));
    let nowhere = dir.path().join("no/such/folder");
    assert!(db.copy_to(&nowhere).is_err());
}

// ---- opening ----

/// On persistent memory an operation on a `masstree` that has returned may be lost.
#[test]
fn a_database_promises_what_its_weakest_open_map_does() {
    let dir = tempfile::tempdir().unwrap();
    let pool: Pool = PoolOptions::new().assume_pmem(true).create(dir.path().join("db")).unwrap();
    let db = Db::over(pool);
    let strict = "an operation that has returned survives power failure";
    let strict_map: Map<u64, u64> = db.map("strict").unwrap();
    assert!(db.guarantee().to_string().starts_with(strict), "{}", db.guarantee());
    assert_eq!(db.guarantee(), strict_map.guarantee());
    let tree: OrderedMap<u64, u64> = db.ordered_map("tree").unwrap();
    assert_eq!(db.guarantee(), tree.guarantee());
    let weaker = "what the last completed sync covers survives power failure";
    assert!(db.guarantee().to_string().starts_with(weaker), "{}", db.guarantee());
    assert!(strict_map.guarantee().to_string().starts_with(strict), "a map promises what it did");
    drop(tree);
    assert_eq!(db.guarantee(), strict_map.guarantee(), "of the maps that are open");
}

#[test]
fn what_is_there_is_found_again_and_a_database_in_use_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open_or_create(&path).unwrap();
    let map: Map<String, String> = db.map("m").unwrap();
    map.insert("k", "v").unwrap();
    let error = db.close().unwrap_err().to_string();
    assert!(error.contains("\"m\" is in use"), "{error}");
    map.insert("k", "w").unwrap();
    drop((map, db));
    let db = Db::builder().read_only(true).open(&path).unwrap();
    let map: Map<String, String> = db.map("m").unwrap();
    assert_eq!(map.get("k").unwrap().as_deref(), Some("w"));
    assert!(db.guarantee().to_string().contains("nothing survives"));
    drop((map, db));
    let pool: Pool = PoolOptions::new().open(&path).unwrap();
    let index = durix::kind::open_as_is(&pool, "m").unwrap();
    let mut session = pool.session().unwrap();
    assert_eq!(Types::of(&*index, &session.enter().unwrap()).to_string(), "string to string");
    assert!(matches!(durix::kind::open_as_is(&pool, "n"), Err(Error::Pool(durix_pmem::Error::NoSuchIndex { .. }))));
}

#[test]
fn updates_of_a_pool_opened_for_reading_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for entry in durix::kind::kinds::<durix::Hardware>() {
        let (path, key, value) = (dir.path().join(entry.name), [7; 8], [8; 8]);
        let pool: Pool = PoolOptions::new().create(&path).unwrap();
        let index = entry.open_or_create(&pool, "it").unwrap();
        let mut session = pool.session().unwrap();
        index.insert(&session.enter().unwrap(), &key, &value).unwrap();
        index.sync(&mut session).unwrap();
        drop((index, session));
        pool.close().unwrap();

        let pool: Pool = PoolOptions::new().read_only(true).open(&path).unwrap();
        let index = durix::kind::open_as_is(&pool, "it").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut batch = durix::Batch::new();
        batch.insert(&[9; 8], &value);
        let answers = [
            index.insert(&op, &[9; 8], &value),
            index.insert_if_absent(&op, &[9; 8], &value),
            index.update(&op, &key, &[9; 8]),
            index.compare_and_set(&op, &key, Some(&value), Some(&[9; 8])),
            index.remove(&op, &key),
            index.apply(&op, &batch).map(|()| true),
        ];
        for answer in answers {
            let error = answer.unwrap_err().to_string();
            assert!(error.contains("was opened for reading only"), "{}: {error}", entry.name);
        }
        assert_eq!(index.get_vec(&op, &key).unwrap().as_deref(), Some(&value[..]), "{}", entry.name);
        assert_eq!(index.get_vec(&op, &[9; 8]).unwrap(), None, "{}", entry.name);
    }
}

/// A program has transactions over its own words beside maps. After a crash their records ask for recovery; a database gives it.
#[test]
fn a_database_opens_a_pool_whose_engine_has_pending_records() {
    use durix_rewind::engine::{Engine, Error};
    type E = Engine<durix::Hardware>;
    let pool = PoolOptions::new().create_on(HeapBacking::new(16 << 20), durix::Hardware::PAGE_CACHE).unwrap();
    let db = Db::over(pool.clone());
    let map = db.map::<u64, u64>("map").unwrap();
    map.insert(&1, &2).unwrap();
    let tm = pool.open_structure::<E>("tm", &Default::default()).unwrap();
    let cell = tm.root_cell::<u64>(0).unwrap();
    tm.transaction(&mut pool.session().unwrap(), |tx| tx.set(cell, 7)).unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    let options = PoolOptions::new().accept_unclean(true);
    let open = || options.open_on(HeapBacking::from_image(image.clone()), durix::Hardware::PAGE_CACHE).unwrap();
    let crashed = open().recover().unwrap();
    assert!(crashed.has_pending_records(), "without a database nobody gets an index");
    assert!(crashed.open_structure::<E>("tm", &Default::default()).is_err());
    let db = Db::over(crashed.clone());
    assert_eq!(db.map::<u64, u64>("map").unwrap().get(&1).unwrap(), Some(2));
    let tm = crashed.open_structure::<E>("tm", &Default::default()).unwrap();
    let read = tm.transaction(&mut crashed.session().unwrap(), |tx| tx.get(cell));
    assert_eq!(read.unwrap_or_else(|error: Error| panic!("{error}")), 7);
}

#[test]
fn ranges_are_bounded_by_what_keys_borrow_as() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    use std::path::{Path, PathBuf};
    let db = memory();
    let words = db.ordered_map::<String, u8>("words").unwrap();
    words.try_extend(["a", "ab", "b", "c"].map(|word| (word.to_owned(), 1))).unwrap();
    let keys = |range: durix::Range<'_, String, u8>| -> Vec<String> { range.map(|pair| pair.unwrap().0).collect() };
    assert_eq!(keys(words.range("ab".."c").unwrap()), ["ab", "b"]);
    assert_eq!(keys(words.range("ab"..="c").unwrap()), ["ab", "b", "c"]);
    assert_eq!(keys(words.range(.."b").unwrap()), ["a", "ab"]);
    assert_eq!(keys(words.range("ab".to_owned()..).unwrap()), ["ab", "b", "c"]);
    assert_eq!(keys(words.range::<str, _>((Excluded("a"), Included("b"))).unwrap()), ["ab", "b"]);
    assert_eq!(keys(words.range::<str, _>((Unbounded::<&str>, Excluded("b"))).unwrap()), ["a", "ab"]);
    let (from, to) = ("ab".to_owned(), "b".to_owned());
    assert_eq!(keys(words.range::<String, _>(&from..=&to).unwrap()), ["ab", "b"]);
    let snapshot = db.snapshot().unwrap();
    assert_eq!(snapshot.map(&words).unwrap().range("b"..).unwrap().count(), 2);
    let between = db.transaction(|tx| Ok(tx.map(&words)?.range("b".."c")?.count())).unwrap();
    assert_eq!(between, 1);

    let paths = db.ordered_map::<PathBuf, u8>("paths").unwrap();
    paths.insert(Path::new("/etc/hosts"), &1).unwrap();
    assert_eq!(paths.range(Path::new("/etc")..Path::new("/usr")).unwrap().count(), 1);
    let lists = db.ordered_map::<Vec<u32>, u8>("lists").unwrap();
    lists.insert(&[1, 2][..], &1).unwrap();
    assert_eq!(lists.range(&[1u32][..]..&[1u32, 3][..]).unwrap().count(), 1);
    let numbers = db.ordered_map::<u16, u8>("numbers").unwrap();
    numbers.insert(&7, &1).unwrap();
    assert_eq!((numbers.range(5..).unwrap().count(), numbers.range(..).unwrap().count()), (1, 1));
}

#[test]
fn nested_and_standard_types_are_keys_and_values() {
    use std::net::Ipv4Addr;
    use std::time::{Duration, SystemTime};
    type Deep = ((String, u32), (Vec<u16>, Option<char>), [u8; 3]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let deep: Deep = (("a".into(), 1), (vec![1, 2], Some('x')), *b"abc");
    let db = Db::open_or_create(&path).unwrap();
    let map = db.ordered_map::<Deep, (u8, (u8, u8))>("deep").unwrap();
    map.insert(&deep, &(1, (2, 3))).unwrap();
    assert_eq!(map.prefix(&(("a".to_owned(), 1u32),)).count(), 1);
    let times = db.ordered_map::<(SystemTime, Ipv4Addr), Option<f64>>("times").unwrap();
    let (now, home) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1), Ipv4Addr::LOCALHOST);
    times.insert(&(now, home), &Some(0.5)).unwrap();
    assert_eq!(times.get(&(now, home)).unwrap(), Some(Some(0.5)));
    drop((map, times));
    db.close().unwrap();
    let db = Db::open(&path).unwrap();
    let map = db.ordered_map::<Deep, (u8, (u8, u8))>("deep").unwrap();
    assert_eq!(map.first().unwrap(), Some((deep, (1, (2, 3)))));
    let wrong = db.map::<u64, u64>("deep").unwrap_err().to_string();
    let name = "((string, u32), (Vec<u16>, Option<char>), [u8; 3])";
    assert!(wrong.contains(&format!("are of type {name}, not u64")), "{wrong}");
    assert_eq!(db.indices().unwrap().len(), 2, "the table of names is nobody's index");
    let copy = dir.path().join("copy");
    db.copy_to(&copy).unwrap();
    let copy = Db::open(&copy).unwrap();
    let wrong = copy.map::<u64, u64>("deep").unwrap_err().to_string();
    assert!(wrong.contains(name), "copies keep the names: {wrong}");
}

#[test]
fn a_pool_without_room_for_names_goes_without() {
    let pool = PoolOptions::new().max_indices(1).create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
    let db = Db::over(pool);
    let users = db.map::<u32, User>("users").unwrap();
    users.insert(&1, &User { name: "Ada".into(), born: 1815 }).unwrap();
    let wrong = db.map::<u32, u32>("users").unwrap_err().to_string();
    assert!(wrong.contains("are of type type#"), "{wrong}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Colour {
    Red = 3,
    Green = 1,
}

durix::stored_as!(Colour as u8, "Colour 1", |colour| *colour as u8, |code| match code {
    3 => Some(Colour::Red),
    1 => Some(Colour::Green),
    _ => None,
});

#[derive(Clone, Debug, PartialEq)]
struct Id(String);

durix::stored_as!(Id as String, "Id 1", |id| id.0.clone(), |text| Some(Id(text)));

#[test]
fn enums_and_new_types_are_keys_stored_as_something_else() {
    let db = memory();
    let map = db.ordered_map::<Colour, Id>("colours").unwrap();
    map.insert(&Colour::Red, &Id("r".into())).unwrap();
    map.insert(&Colour::Green, &Id("g".into())).unwrap();
    assert_eq!(map.first().unwrap(), Some((Colour::Green, Id("g".into()))), "in the order of their numbers");
    let wrong = db.map::<u8, String>("colours").unwrap_err().to_string();
    assert!(wrong.contains("are of type Colour 1, not u8"), "{wrong}");
    let pairs = db.ordered_map::<(Id, Option<Colour>), Vec<Colour>>("pairs").unwrap();
    pairs.insert(&(Id("x".into()), Some(Colour::Red)), &vec![Colour::Red, Colour::Green]).unwrap();
    assert_eq!(pairs.prefix(&(Id("x".into()),)).count(), 1);
    let index = map.index();
    let mut session = db.pool().session().unwrap();
    index.insert(&session.enter().unwrap(), &[7], b"x").unwrap();
    assert!(matches!(map.iter().last(), Some(Err(Error::Undecodable { .. }))), "7 is no colour");
}

#[test]
fn a_bulk_load_counts_new_keys_and_is_durable_on_return() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["pset", "masstree", "skiplist-values"] {
        let path = dir.path().join(kind);
        // Without threads, so that nobody changes the files while they are copied.
        let builder = Db::builder().durability(durix::Level::Immediate).no_background_threads();
        let db = builder.create(&path).unwrap();
        let map = db.map_of_kind::<u64, Vec<u8>>("loaded", kind).unwrap();
        map.insert(&7, &vec![1]).unwrap();
        let pairs = (0..3_000u64).map(|n| (n, vec![n as u8; 2_000]));
        assert_eq!(map.bulk_load(pairs).unwrap(), 2_999, "{kind}");
        assert_eq!(map.bulk_load([(1u64, vec![])]).unwrap(), 0);
        assert_eq!(map.bulk_load(Vec::<(u64, Vec<u8>)>::new()).unwrap(), 0);
        // What a process that dies now leaves: the two files, without closing.
        let left = dir.path().join(format!("{kind}-left"));
        std::fs::copy(&path, &left).unwrap();
        let journal =
            |path: &std::path::Path| path.with_file_name(format!("{}-journal", path.file_name().unwrap().display()));
        std::fs::copy(journal(&path), journal(&left)).unwrap();
        let left = Db::builder().accept_copy(true).open(&left).unwrap();
        let map = left.map::<u64, Vec<u8>>("loaded").unwrap();
        assert_eq!(map.count().unwrap(), 3_000, "{kind}");
        assert_eq!(map.get(&2_999).unwrap(), Some(vec![2_999u64 as u8; 2_000]));
        assert_eq!((map.get(&7).unwrap(), map.get(&1).unwrap()), (Some(vec![7; 2_000]), Some(vec![])));
    }
}
