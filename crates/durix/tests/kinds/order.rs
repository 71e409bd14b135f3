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
pub(super) fn meets(at: &mut At, model: &Pairs, range: &KeyRange) {
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

/// The same where it is read some pairs at a time.
fn meets_in_parts(at: &mut At, model: &Pairs, range: &KeyRange) {
    for direction in DIRECTIONS {
        let mut expected: Vec<_> =
            model.iter().filter(|(key, _)| range.contains(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        if direction == Direction::Backward {
            expected.reverse();
        }
        for most in [1, 7, 1000] {
            let found = read_in_parts(at, range, direction, most);
            assert_eq!(found, expected, "{}: {range:?} {direction:?}, {most} at a time", at.entry.name);
        }
    }
}

/// A range, read `most` pairs at a time.
pub(super) fn read_in_parts(
    at: &mut At,
    range: &KeyRange,
    direction: Direction,
    most: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let index = at.index.clone();
    let ordered = index.as_ordered().expect("it says that it is ordered");
    let (mut left, mut found, mut part) = (range.clone(), Vec::new(), durix::Pairs::new());
    // As whoever calls it has to.
    let mut more = !range.is_empty();
    while more {
        part.clear();
        let bounds = (left.lower.as_ref().map(Vec::as_slice), left.upper.as_ref().map(Vec::as_slice));
        let op = at.session.enter().unwrap();
        more = ordered.read_range(&op, bounds, direction, most, &mut part).unwrap();
        assert!(part.len() <= most && (!more || part.len() == most || part.bytes() > 1000));
        let Some((last, _)) = part.last() else { break };
        match direction {
            Direction::Forward => left.lower = Bound::Excluded(last.to_vec()),
            Direction::Backward => left.upper = Bound::Excluded(last.to_vec()),
        }
        found.extend((0..part.len()).filter_map(|n| part.get(n)).map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    found
}

#[test]
fn a_handle_walks_as_its_map_does() {
    for entry in kinds::<durix::Hardware>().into_iter().filter(|entry| entry.ordered) {
        let db = Db::builder().no_background_threads().over(heap()).unwrap();
        let map: OrderedMap<u64, u64> = db.ordered_map_of_kind("numbers", entry.name).unwrap();
        let mut random = Random(3);
        let mut model = std::collections::BTreeMap::new();
        for _ in 0..300 {
            let (key, value) = (random.below(1000), random.below(1000));
            map.insert(&key, &value).unwrap();
            model.insert(key, value);
        }
        let mut handle = map.handle().unwrap();
        let all = |pair: durix::Result<(u64, u64)>| pair.unwrap();
        for most in [0, 1, 2, 7, 8, 9, 10, 64, 65, 1000] {
            let (from, to) = (random.below(1000), random.below(1000));
            let (low, high) = (from.min(to), from.max(to));
            let expected: Vec<_> = model.range(low..high).take(most).map(|(k, v)| (*k, *v)).collect();
            let back: Vec<_> = model.range(low..=high).rev().take(most).map(|(k, v)| (*k, *v)).collect();
            let found: Vec<_> = handle.range(low..high).unwrap().take(most).map(all).collect();
            assert_eq!(found, expected, "{}: {most} from {low} to {high}", entry.name);
            let found: Vec<_> = map.range(low..high).unwrap().take(most).map(all).collect();
            assert_eq!(found, expected, "{}: {most} from {low} to {high} of the map", entry.name);
            for expecting in [1, most] {
                let range = handle.range(low..=high).unwrap().expecting(expecting);
                let found: Vec<_> = range.rev().take(most).map(all).collect();
                assert_eq!(found, back, "{}: {most} back from {high} to {low}", entry.name);
            }
            let found: Vec<_> = map.range(low..=high).unwrap().expecting(most).rev().take(most).map(all).collect();
            assert_eq!(found, back, "{}: {most} back from {high} to {low}", entry.name);
            assert!(handle.range(high + 1..low).unwrap().next().is_none(), "{}: crossed", entry.name);
        }
        let every: Vec<_> = model.iter().map(|(k, v)| (*k, *v)).collect();
        assert_eq!(handle.iter().map(all).collect::<Vec<_>>(), every, "{}", entry.name);
        // A walk sees what comes beyond what it has read already, and no key twice.
        let mut walk = handle.iter();
        let first = walk.next().unwrap().unwrap();
        map.insert(&2000, &1).unwrap();
        map.insert(&first.0, &7777).unwrap();
        let rest: Vec<_> = walk.map(all).collect();
        assert_eq!((rest.len(), rest.last()), (model.len(), Some(&(2000, 1))), "{}", entry.name);
        assert!(rest.iter().all(|(key, _)| *key > first.0), "{}", entry.name);
        assert_eq!(handle.get(&first.0).unwrap(), Some(7777));
    }
}

#[test]
fn both_ends_of_a_range_meet_where_one_of_them_has_read_ahead() {
    for entry in kinds::<durix::Hardware>().into_iter().filter(|entry| entry.ordered) {
        let db = Db::builder().no_background_threads().over(heap()).unwrap();
        let map: OrderedMap<u64, u64> = db.ordered_map_of_kind("numbers", entry.name).unwrap();
        (0..40).for_each(|key| _ = map.insert(&key, &key).unwrap());
        for front in 0..=41 {
            let mut range = map.iter();
            let mut met: Vec<u64> = range.by_ref().take(front).map(|pair| pair.unwrap().0).collect();
            met.extend(range.by_ref().rev().map(|pair| pair.unwrap().0));
            assert!(range.next().is_none() && range.next_back().is_none());
            met.sort_unstable();
            assert_eq!(met, (0..40).collect::<Vec<_>>(), "{}: {front} from the front", entry.name);
        }
    }
}

#[test]
fn both_ends_of_a_range_of_a_handle_meet() {
    for entry in kinds::<durix::Hardware>().into_iter().filter(|entry| entry.ordered) {
        let db = Db::builder().no_background_threads().over(heap()).unwrap();
        let map: OrderedMap<u64, u64> = db.ordered_map_of_kind("numbers", entry.name).unwrap();
        (0..40).for_each(|key| _ = map.insert(&key, &key).unwrap());
        let mut handle = map.handle().unwrap();
        let mut random = Random(11);
        // From the front first, then from the back; and each step from an end that chance takes.
        for front in 0..=41 {
            let mut range = handle.range(1..39).unwrap();
            let mut met: Vec<u64> = range.by_ref().take(front).map(|pair| pair.unwrap().0).collect();
            met.extend(range.by_ref().rev().map(|pair| pair.unwrap().0));
            assert!(range.next().is_none() && range.next_back().is_none());
            met.sort_unstable();
            assert_eq!(met, (1..39).collect::<Vec<_>>(), "{}: {front} from the front", entry.name);

            let mut range = handle.range(1..39).unwrap().expecting(front);
            let (mut low, mut high) = (1, 39);
            while low < high {
                if random.below(3) == 0 {
                    high -= 1;
                    assert_eq!(range.next_back().unwrap().unwrap(), (high, high), "{}: {low} to {high}", entry.name);
                } else {
                    assert_eq!(range.next().unwrap().unwrap(), (low, low), "{}: {low} to {high}", entry.name);
                    low += 1;
                }
            }
            assert!(range.next().is_none() && range.next_back().is_none() && range.next().is_none());
        }
        // What was inserted and removed meanwhile does not come behind the other end.
        let mut range = handle.iter();
        assert_eq!(range.next_back().unwrap().unwrap().0, 39);
        assert_eq!(range.next().unwrap().unwrap().0, 0);
        map.insert(&100, &100).unwrap();
        map.remove(&38).unwrap();
        assert_eq!(range.next_back().unwrap().unwrap().0, 37, "{}", entry.name);
        assert_eq!(range.map(|pair| pair.unwrap().0).max(), Some(36), "{}", entry.name);
    }
}

#[test]
fn ranges_of_every_ordered_kind_begin_and_end_at_any_bound() {
    for entry in kinds::<durix::Hardware>().into_iter().filter(|entry| entry.ordered) {
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
        for round in 0..400 {
            let mut bound = || {
                let (kind, at) = (random.below(3) as usize, random.below(bounds.len() as u64) as usize);
                kinds[kind](bounds[at].clone())
            };
            let range = KeyRange { lower: bound(), upper: bound() };
            meets(&mut at, &model, &range);
            if round % 16 == 0 {
                meets_in_parts(&mut at, &model, &range);
            }
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
    for entry in kinds::<durix::Hardware>().into_iter().filter(|entry| entry.ordered) {
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
