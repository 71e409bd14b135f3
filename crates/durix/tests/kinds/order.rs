//! What ordered kinds can do besides: ranges, prefixes, ends, in both directions.

use std::ops::Bound;

use durix::{Db, Direction, Key, KeyRange, OrderedMap};

use super::{At, Pairs, Random, heap, key, kinds, pairs, value};

const DIRECTIONS: [Direction; 2] = [Direction::Forward, Direction::Backward];

/// An index of the kind with some pairs, and the same pairs.
fn filled(entry: durix::kind::Entry, count: usize) -> (At, Pairs) {
    let (mut at, mut model, mut random) = (At::new(entry), Pairs::new(), Random(77));
    for _ in 0..count {
        let (key, value) = (key(&entry, &mut random), value(&entry, &mut random));
        at.index.insert(&at.session.enter().unwrap(), &key, &value).unwrap();
        model.insert(key, value);
    }
    (at, model)
}

/// That a walk meets what lies in the range, in its direction.
fn meets(at: &mut At, model: &Pairs, range: &KeyRange) {
    for direction in DIRECTIONS {
        let mut expected: Vec<_> =
            model.iter().filter(|(key, _)| range.contains(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        if direction == Direction::Backward {
            expected.reverse();
        }
        let index = at.index.clone();
        let ordered = index.as_ordered().expect("it says that it is ordered");
        let found = pairs(&mut *ordered.range(range, direction), &mut at.session);
        assert_eq!(found, expected, "{}: {range:?} {direction:?}", at.entry.name);
    }
}

#[test]
fn ranges_of_every_ordered_kind_begin_and_end_at_any_bound() {
    for entry in kinds().into_iter().filter(|entry| entry.ordered) {
        let (mut at, model) = filled(entry, 300);
        // Bounds that are there, beside what is there, shorter, longer, and at the ends.
        let mut bounds: Vec<Vec<u8>> = model.keys().step_by(9).cloned().collect();
        for key in model.keys().step_by(20) {
            bounds.push([&key[..], &[0]].concat());
            bounds.push([&key[..], &[255]].concat());
            bounds.push(key[..key.len() / 2].to_vec());
        }
        bounds.extend([vec![], vec![0; 8], vec![255; 8], vec![255; 9]]);
        type Kind = fn(Vec<u8>) -> Bound<Vec<u8>>;
        let kinds: [Kind; 3] = [Bound::Included, Bound::Excluded, |_| Bound::Unbounded];
        let mut random = Random(5);
        for _ in 0..400 {
            let mut bound = || {
                let (kind, at) = (random.below(3) as usize, random.below(bounds.len() as u64) as usize);
                kinds[kind](bounds[at].clone())
            };
            meets(&mut at, &model, &KeyRange { lower: bound(), upper: bound() });
        }
        meets(&mut at, &model, &KeyRange::all());
        for prefix in &bounds {
            meets(&mut at, &model, &KeyRange::prefix(prefix));
            let ordered = at.index.as_ordered().unwrap();
            let found = pairs(&mut *ordered.prefix(prefix, Direction::Forward), &mut at.pool.session().unwrap());
            assert!(found.iter().all(|(key, _)| key.starts_with(prefix)));
        }
    }
}

#[test]
fn the_ends_of_every_ordered_kind_are_its_first_and_last_key() {
    for entry in kinds().into_iter().filter(|entry| entry.ordered) {
        for count in [0, 1, 200] {
            let (mut at, model) = filled(entry, count);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let op = at.session.enter().unwrap();
            let ordered = at.index.as_ordered().unwrap();
            let first = ordered.first(&op, &mut key, &mut value).unwrap().then(|| (key.clone(), value.clone()));
            assert_eq!(first, model.first_key_value().map(|(k, v)| (k.clone(), v.clone())), "{}", entry.name);
            let last = ordered.last(&op, &mut key, &mut value).unwrap().then(|| (key.clone(), value.clone()));
            assert_eq!(last, model.last_key_value().map(|(k, v)| (k.clone(), v.clone())), "{}", entry.name);
        }
    }
}

fn typed<K: Key>(db: &Db, kind: &str, name: &str) -> OrderedMap<K, u64> {
    db.ordered_map_of_kind(name, kind).unwrap()
}

#[test]
fn typed_ranges_of_every_ordered_kind_follow_the_order_of_the_type() {
    let db = Db::over(heap());
    for entry in kinds::<durix::Hardware>().into_iter().filter(|entry| entry.ordered) {
        let map: OrderedMap<i64, u64> = typed(&db, entry.name, entry.name);
        for key in [3, -7, 0, 250, i64::MIN, -8] {
            map.insert(&key, &key.unsigned_abs()).unwrap();
        }
        fn keys(pairs: impl Iterator<Item = durix::Result<(i64, u64)>>) -> Vec<i64> {
            pairs.map(|pair| pair.unwrap().0).collect()
        }
        assert_eq!(keys(map.iter()), [i64::MIN, -8, -7, 0, 3, 250]);
        assert_eq!(keys(map.range(-8..3).unwrap()), [-8, -7, 0]);
        assert_eq!(keys(map.range(-7..).unwrap().rev()), [250, 3, 0, -7]);
        assert_eq!(keys(map.range(..=-8).unwrap().rev()), [-8, i64::MIN]);
        assert_eq!(keys(map.range((Bound::Included(5), Bound::Excluded(2))).unwrap()), [0; 0]);
        assert_eq!((map.first().unwrap().unwrap().0, map.last().unwrap().unwrap().0), (i64::MIN, 250));
        let pairs: OrderedMap<(u32, i32), u64> = typed(&db, entry.name, &format!("{} of pairs", entry.name));
        for key in [(1, -1), (1, 5), (2, 0), (7, 7)] {
            pairs.insert(&key, &0).unwrap();
        }
        let found: Vec<_> = pairs.prefix(&(1,)).rev().map(|pair| pair.unwrap().0).collect();
        assert_eq!(found, [(1, 5), (1, -1)], "{}", entry.name);
    }
}

#[test]
fn an_ordered_map_is_a_masstree_unless_it_is_something_else_already() {
    let db = Db::over(heap());
    let words: OrderedMap<String, u8> = db.ordered_map("words").unwrap();
    words.insert("b", &2).unwrap();
    words.insert("a", &1).unwrap();
    assert_eq!(words.first().unwrap(), Some(("a".into(), 1)));
    let index = durix::kind::open_as_is(db.pool(), "words").unwrap();
    assert_eq!(index.durability(), durix::Durability::Buffered);
    drop(db.ordered_map_of_kind::<u64, u64>("list", "list").unwrap());
    assert!(db.ordered_map::<u64, u64>("list").is_ok(), "it is ordered, too");
    drop(db.map::<u64, u64>("set").unwrap());
    assert!(matches!(db.ordered_map::<u64, u64>("set"), Err(durix::Error::NotOrdered { kind: "pset", .. })));
}
