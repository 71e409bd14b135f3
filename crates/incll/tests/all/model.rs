//! The tree beside a `BTreeMap`: the same body for the durable one and both volatile ones.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use durix_incll::{
    BareOptions, Change, Durable, Error, InteriorInLine, LoggingOnly, MAX_KEY, Masstree, Pointers, Policy, Transient,
    Transient15,
};
use durix_pmem::{Hardware, Mapping, Op, Session};
use proptest::prelude::*;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Tree<P> = Masstree<Hardware, P>;

/// How a tree of each policy is made.
trait Made: Policy + Sized {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self>;
}
impl Made for Durable {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self> {
        Masstree::open_bare(session, mapping, BareOptions::default().chunk(8192)).unwrap()
    }
}
impl Made for Transient {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self> {
        Masstree::volatile(session, mapping, BareOptions::default()).unwrap()
    }
}
impl Made for Transient15 {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self> {
        Masstree::volatile(session, mapping, BareOptions::default()).unwrap()
    }
}

impl Made for LoggingOnly {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self> {
        Masstree::open_bare_as(session, mapping, BareOptions::default().chunk(8192)).unwrap()
    }
}
impl Made for InteriorInLine {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self> {
        Masstree::open_bare_as(session, mapping, BareOptions::default().chunk(8192)).unwrap()
    }
}
impl Made for Pointers {
    fn make(session: &mut Session<Hardware>, mapping: &Mapping<Hardware>) -> Tree<Self> {
        Masstree::open_bare_as(session, mapping, BareOptions::default().chunk(8192)).unwrap()
    }
}

#[derive(Clone, Debug)]
enum Act {
    Put(Vec<u8>, Vec<u8>),
    PutNew(Vec<u8>, Vec<u8>),
    Update(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Swap(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>),
    /// Removes all keys with that prefix.
    Clear(Vec<u8>),
    Sync,
}

/// Keys that share slices, end in the middle of them, and hold zeroes.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"aaaaaaaa".to_vec()),
        2 => Just(b"\0".to_vec()),
        2 => Just(b"b".to_vec()),
        1 => Just(b"\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()),
        3 => prop::collection::vec(any::<u8>(), 0..5),
    ];
    prop_oneof![
        3 => prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat()),
        3 => (0..200u64).prop_map(|n| n.to_be_bytes().to_vec()),
        1 => (0..40u64).prop_map(|n| format!("prefix-prefix-{n}").into_bytes()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any::<u64>().prop_map(|n| n.to_le_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (0..9000usize).prop_map(|n| vec![n as u8; n]),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (key(), value()).prop_map(|(k, v)| Act::Put(k, v)),
        1 => (key(), value()).prop_map(|(k, v)| Act::PutNew(k, v)),
        2 => (key(), value()).prop_map(|(k, v)| Act::Update(k, v)),
        5 => key().prop_map(Act::Remove),
        1 => (key(), prop::option::of(value()), prop::option::of(value())).prop_map(|(k, a, b)| Act::Swap(k, a, b)),
        1 => prop::collection::vec(any::<u8>(), 0..2).prop_map(Act::Clear),
        1 => Just(Act::Sync),
    ]
}

fn run<P: Made>(acts: &[Act], bounds: &[(Vec<u8>, Vec<u8>)]) {
    let mapping = Mapping::heap(16 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = P::make(&mut session, &mapping);
    let mut map = Map::new();
    for act in acts {
        apply(&tree, &mut session, &mut map, act);
    }
    let op = session.enter().unwrap();
    assert_eq!(tree.check(&op).unwrap(), []);
    let (mut up, mut down) = (Map::new(), Vec::new());
    tree.range(&op, Bound::Unbounded, Bound::Unbounded, |k, v| {
        assert!(up.insert(k.to_vec(), v.to_vec()).is_none());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(up, map);
    tree.range_rev(&op, Bound::Unbounded, Bound::Unbounded, |k, v| {
        down.push((k.to_vec(), v.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(down, map.clone().into_iter().rev().collect::<Vec<_>>());
    assert_eq!(tree.len(&op).unwrap(), map.len() as u64);
    assert_eq!(tree.is_empty(&op).unwrap(), map.is_empty());
    let pair = |pair: Option<(Vec<u8>, durix_incll::Value<'_, Hardware>)>| pair.map(|(k, v)| (k, v.to_vec()));
    assert_eq!(pair(tree.first(&op).unwrap()), map.clone().pop_first());
    assert_eq!(pair(tree.last(&op).unwrap()), map.clone().pop_last());
    let keys: Vec<_> = map.keys().cloned().chain(bounds.iter().map(|(a, _)| a.clone())).collect();
    let many: Vec<_> = tree.get_many(&op, &keys).unwrap().into_iter().map(|v| v.map(|v| v.to_vec())).collect();
    assert_eq!(many, keys.iter().map(|k| map.get(k).cloned()).collect::<Vec<_>>());
    for (from, to) in bounds {
        ranges(&tree, &op, &map, from, to);
    }
}

/// The process dies, with all that it has stored visible; the tree is opened again.
fn die<P: Made>(acts: &[Act]) {
    let mapping = Mapping::heap(16 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = P::make(&mut session, &mapping);
    let (mut map, mut durable) = (Map::new(), Map::new());
    for act in acts {
        apply(&tree, &mut session, &mut map, act);
        if matches!(act, Act::Sync) {
            durable = map.clone();
        }
    }
    drop(tree);
    let tree = P::make(&mut session, &mapping);
    let op = session.enter().unwrap();
    assert_eq!(tree.check(&op).unwrap(), []);
    let mut found = Map::new();
    tree.range(&op, Bound::Unbounded, Bound::Unbounded, |k, v| {
        found.insert(k.to_vec(), v.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(found, durable);
}

fn apply<P: Policy>(tree: &Tree<P>, session: &mut Session<Hardware>, map: &mut Map, act: &Act) {
    if matches!(act, Act::Sync) {
        return tree.sync(session).unwrap();
    }
    let op = session.enter().unwrap();
    match act {
        Act::Put(k, v) => {
            assert_eq!(tree.insert(&op, k, v).unwrap(), map.insert(k.clone(), v.clone()).is_none());
            assert_eq!(tree.get_vec(&op, k).unwrap().as_ref(), Some(v));
        }
        Act::PutNew(k, v) => {
            assert_eq!(tree.insert_if_absent(&op, k, v).unwrap(), !map.contains_key(k));
            map.entry(k.clone()).or_insert_with(|| v.clone());
        }
        Act::Update(k, v) => {
            let there = map.get_mut(k).map(|old| *old = v.clone()).is_some();
            assert_eq!(tree.update(&op, k, v).unwrap(), there);
        }
        Act::Remove(k) => {
            assert_eq!(tree.remove(&op, k).unwrap(), map.remove(k).is_some());
            assert!(!tree.contains(&op, k).unwrap());
        }
        Act::Swap(k, a, b) => {
            let matches = map.get(k) == a.as_ref();
            assert_eq!(tree.compare_and_set(&op, k, a.as_deref(), b.as_deref()).unwrap(), matches);
            match b {
                _ if !matches => {}
                Some(b) => drop(map.insert(k.clone(), b.clone())),
                None => drop(map.remove(k)),
            }
        }
        Act::Clear(prefix) => {
            let mut keys = Vec::new();
            let collect = |k: &[u8], _: durix_incll::Value<'_, Hardware>| {
                keys.push(k.to_vec());
                ControlFlow::Continue(())
            };
            tree.prefix(&op, prefix, collect).unwrap();
            assert_eq!(keys, map.keys().filter(|k| k.starts_with(prefix)).cloned().collect::<Vec<_>>());
            for key in keys {
                assert!(tree.remove(&op, &key).unwrap());
                map.remove(&key);
            }
        }
        Act::Sync => {}
    }
}

fn ranges<P: Policy>(tree: &Tree<P>, op: &durix_pmem::Op<'_, Hardware>, map: &Map, from: &[u8], to: &[u8]) {
    type Make = for<'a> fn(&'a [u8]) -> Bound<&'a [u8]>;
    let kinds: [Make; 3] = [|k| Bound::Included(k), |k| Bound::Excluded(k), |_| Bound::Unbounded];
    for (lower, upper) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (a(from), b(to)))) {
        let expected: Vec<_> = map
            .keys()
            .map(Vec::as_slice)
            .filter(|k| match lower {
                Bound::Included(l) => *k >= l,
                Bound::Excluded(l) => *k > l,
                Bound::Unbounded => true,
            })
            .filter(|k| match upper {
                Bound::Included(u) => *k <= u,
                Bound::Excluded(u) => *k < u,
                Bound::Unbounded => true,
            })
            .map(<[u8]>::to_vec)
            .collect();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        tree.range(op, lower, upper, |k, _| {
            up.push(k.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        tree.range_rev(op, lower, upper, |k, _| {
            down.push(k.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(up, expected, "{lower:?} {upper:?}");
        down.reverse();
        assert_eq!(down, expected, "downwards, {lower:?} {upper:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_btree_map(
        acts in prop::collection::vec(act(), 0..300),
        bounds in prop::collection::vec((key(), key()), 0..6),
    ) {
        run::<Durable>(&acts, &bounds);
        run::<Transient>(&acts, &bounds);
        run::<Transient15>(&acts, &bounds);
        run::<InteriorInLine>(&acts, &bounds);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 40 } else { 400 }))]

    #[test]
    fn every_durable_policy_undoes_the_epoch_that_a_death_ends(acts in prop::collection::vec(act(), 0..150)) {
        die::<Durable>(&acts);
        die::<LoggingOnly>(&acts);
        die::<Pointers>(&acts);
        die::<InteriorInLine>(&acts);
    }
}

/// Keys of an interior node that do not count are the largest slice: it must not be mistaken for one of them.
#[test]
fn the_largest_slice_separates_nodes_like_any_other() {
    fn body<P: Made>(order: impl Iterator<Item = u64>) {
        let mapping = Mapping::heap(16 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = P::make(&mut session, &mapping);
        let mut map = Map::new();
        for n in order {
            for tail in [&b""[..], b"x"] {
                let key = [&(u64::MAX - n).to_be_bytes()[..], tail].concat();
                apply(&tree, &mut session, &mut map, &Act::Put(key, n.to_le_bytes().to_vec()));
            }
        }
        let op = session.enter().unwrap();
        assert_eq!(tree.check(&op).unwrap(), []);
        let keys: Vec<_> = map.keys().collect();
        let many = tree.get_many(&op, &keys).unwrap();
        for ((key, value), found) in map.iter().zip(many) {
            assert!(found.is_some_and(|found| found.is(value)), "{key:x?}");
            assert!(tree.get(&op, key).unwrap().is_some_and(|found| found.is(value)), "{key:x?}");
        }
        for (from, to) in [(0u64, u64::MAX), (u64::MAX - 9, u64::MAX), (u64::MAX, u64::MAX)] {
            ranges(&tree, &op, &map, &from.to_be_bytes(), &to.to_be_bytes());
        }
    }
    body::<Durable>(0..500);
    body::<Durable>((0..500).rev());
    body::<Transient15>(0..500);
    body::<Transient15>((0..500).rev());
    body::<InteriorInLine>(0..500);
    body::<InteriorInLine>((0..500).rev());
}

#[test]
fn grows_and_shrinks_by_ten_thousands_in_every_order() {
    fn body<P: Made>() {
        let mapping = Mapping::heap(64 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = P::make(&mut session, &mapping);
        const N: u64 = 20_000;
        let orders: [fn(u64) -> u64; 3] = [|i| i, |i| N - 1 - i, |i| i * 7919 % N];
        for (order, back) in orders.iter().flat_map(|a| orders.iter().map(move |b| (a, b))) {
            let op = session.enter().unwrap();
            for i in 0..N {
                assert!(tree.insert(&op, &order(i).to_be_bytes(), &i.to_le_bytes()).unwrap());
            }
            assert_eq!(tree.check(&op).unwrap(), []);
            assert_eq!(tree.shape(&op).unwrap().keys, N);
            for i in 0..N {
                assert_eq!(tree.get(&op, &order(i).to_be_bytes()).unwrap().unwrap().as_u64(), i);
            }
            for i in 0..N {
                assert!(tree.remove(&op, &back(i).to_be_bytes()).unwrap());
            }
            assert_eq!(tree.check(&op).unwrap(), []);
            let shape = tree.shape(&op).unwrap();
            assert_eq!(shape.keys, 0);
            assert!(shape.borders * 6 <= N / 7, "{shape:?}");
            drop(op);
            tree.sync(&mut session).unwrap();
        }
    }
    body::<Durable>();
    body::<Transient>();
    body::<InteriorInLine>();
}

/// Interior nodes that lie differently are not mistaken for each other.
#[test]
fn a_tree_of_another_layout_is_not_opened() {
    fn refused<P: Made, Q: Made>() {
        let mapping = Mapping::heap(1 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        P::make(&mut session, &mapping);
        let options = BareOptions::default().chunk(8192);
        let error = Masstree::<_, Q>::open_bare_as(&mut session, &mapping, options).unwrap_err();
        assert!(matches!(error, Error::Corrupt { what: "the link to the root node", .. }), "{error}");
        assert!(P::make(&mut session, &mapping).is_empty(&session.enter().unwrap()).unwrap());
    }
    refused::<Durable, InteriorInLine>();
    refused::<InteriorInLine, Durable>();
}

#[test]
fn prefixes_of_kilobytes_make_layers_and_layers_go_again() {
    fn body<P: Made>() {
        let mapping = Mapping::heap(64 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = P::make(&mut session, &mapping);
        let op = session.enter().unwrap();
        let key = |n: u64| [vec![b'x'; 4000], n.to_be_bytes().to_vec(), vec![b'y'; n as usize % 20]].concat();
        for n in 0..200 {
            assert!(tree.insert(&op, &key(n), &n.to_le_bytes()).unwrap());
        }
        let shape = tree.shape(&op).unwrap();
        assert!(shape.layers >= 500 && shape.keys == 200, "{shape:?}");
        assert_eq!(tree.check(&op).unwrap(), []);
        for n in 0..200 {
            assert_eq!(tree.get(&op, &key(n)).unwrap().unwrap().as_u64(), n);
            assert!(tree.remove(&op, &key(n)).unwrap());
        }
        let shape = tree.shape(&op).unwrap();
        assert_eq!((shape.keys, shape.layers, shape.borders), (0, 1, 1), "{shape:?}");
        assert_eq!(tree.check(&op).unwrap(), []);
    }
    body::<Durable>();
    body::<Transient>();
}

#[test]
fn values_of_every_size_and_limits() {
    let mapping = Mapping::heap(64 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = Durable::make(&mut session, &mapping);
    for round in 0..3 {
        let op = session.enter().unwrap();
        for len in (0..600).chain([1000, 2000, 2033, 2048, 2049, 4000, 8192, 100_000, 1 << 20]) {
            let value = vec![(len + round) as u8; len];
            tree.insert(&op, b"a key that is longer than eight", &value).unwrap();
            assert_eq!(tree.get_vec(&op, b"a key that is longer than eight").unwrap().as_ref(), Some(&value));
            tree.insert(&op, format!("{len}").as_bytes(), &value).unwrap();
        }
        assert_eq!(tree.check(&op).unwrap(), []);
        drop(op);
        tree.sync(&mut session).unwrap();
    }
    let op = session.enter().unwrap();
    assert!(matches!(tree.get(&op, &vec![0; MAX_KEY + 1]), Err(Error::KeyTooLong { len: 65537 })));
    let longest = vec![1; MAX_KEY];
    tree.insert(&op, &longest, b"v").unwrap();
    tree.insert(&op, &[&longest[..MAX_KEY - 1], b"2"].concat(), b"w").unwrap();
    assert_eq!(tree.get_vec(&op, &longest).unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(tree.check(&op).unwrap(), []);
    bounds_may_be_longer_than_keys(&tree, &op, &longest);
    let mut dump = String::new();
    tree.dump(&op, &mut dump).unwrap().unwrap();
    assert!(dump.lines().count() > MAX_KEY / 8);
}

/// `longest` is the first of some hundred keys.
fn bounds_may_be_longer_than_keys(tree: &Tree<Durable>, op: &Op<'_>, longest: &[u8]) {
    use Bound::{Excluded, Included, Unbounded};
    let longer = [longest, b"0"].concat();
    let count = |from: Bound<&[u8]>, to: Bound<&[u8]>| {
        let [mut up, mut down] = [Vec::new(), Vec::new()];
        let go_on = |keys: &mut Vec<Vec<u8>>, key: &[u8]| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        };
        tree.range(op, from, to, |key, _| go_on(&mut up, key)).unwrap();
        tree.range_rev(op, from, to, |key, _| go_on(&mut down, key)).unwrap();
        down.reverse();
        assert_eq!(up, down);
        up.len()
    };
    let all = count(Unbounded, Unbounded);
    for longer in [Included(&longer[..]), Excluded(&longer[..])] {
        assert_eq!([count(longer, Unbounded), count(Unbounded, longer)], [all - 1, 1]);
    }
    assert_eq!(count(Included(&longer), Excluded(&[&longer[..], b"0"].concat())), 0);
    tree.prefix(op, &longer, |key, _| panic!("{} bytes", key.len())).unwrap();
}

#[test]
fn a_full_mapping_is_an_error_and_leaves_the_tree_as_it_was() {
    let mapping = Mapping::heap(128 << 10, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = Durable::make(&mut session, &mapping);
    let op = session.enter().unwrap();
    let mut map = Map::new();
    let mut refused = 0;
    for n in 0..3000u64 {
        let key = (n * 7919 % 3000).to_be_bytes().to_vec();
        let value = vec![n as u8; (n % 40) as usize];
        match tree.insert(&op, &key, &value) {
            Ok(_) => drop(map.insert(key, value)),
            Err(Error::Pool(durix_pmem::Error::Full { .. })) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0 && map.len() > 500, "{refused} {}", map.len());
    assert_eq!(tree.check(&op).unwrap(), []);
    for (key, value) in &map {
        assert_eq!(tree.get_vec(&op, key).unwrap().as_ref(), Some(value));
        assert!(tree.remove(&op, key).unwrap());
    }
    assert!(tree.is_empty(&op).unwrap());
}

/// What a boundary makes useless of the external log is used again; until then a node that has to be logged is refused, and stays
/// as it was.
#[test]
fn a_full_external_log_is_an_error_that_a_boundary_cures() {
    let mapping = Mapping::heap(128 << 10, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = Durable::make(&mut session, &mapping);
    let insert = |session: &mut Session<Hardware>, key: u64, value: u64| match tree.insert(
        &session.enter().unwrap(),
        &key.to_be_bytes(),
        &value.to_le_bytes(),
    ) {
        Ok(_) => true,
        Err(Error::Pool(durix_pmem::Error::Full { .. })) => false,
        Err(other) => panic!("{other}"),
    };
    let mut keys = 0;
    while insert(&mut session, keys, 0) {
        keys += 1;
        if keys % 16 == 0 {
            tree.sync(&mut session).unwrap();
        }
    }
    tree.sync(&mut session).unwrap();
    let value_of = |session: &mut Session<Hardware>, key: u64| {
        let op = session.enter().unwrap();
        tree.get(&op, &key.to_be_bytes()).unwrap().unwrap().as_u64()
    };
    let mut refused = 0;
    for key in 0..keys {
        if !insert(&mut session, key, key + 1) {
            refused += 1;
            assert_eq!(value_of(&mut session, key), 0, "as it was");
            tree.sync(&mut session).unwrap();
            assert!(insert(&mut session, key, key + 1), "key {key}: a boundary empties the log");
        }
    }
    assert!(keys > 1000 && refused > 3, "{keys} keys, {refused} refused");
    assert_eq!(tree.check(&session.enter().unwrap()).unwrap(), []);
    assert!((0..keys).all(|key| value_of(&mut session, key) == key + 1));
}

/// Keys with records and layers come and go, and every few boundaries the process dies in the middle of it.
#[test]
fn blocks_are_used_again_however_often_keys_come_and_go() {
    let mapping = Mapping::heap(4 << 20, Hardware::PAGE_CACHE);
    let key = |n: u64| match n % 3 {
        0 => n.to_be_bytes().to_vec(),
        1 => [&b"a prefix of some length "[..], &n.to_be_bytes()].concat(),
        _ => vec![n as u8; (n % 60) as usize],
    };
    let mut extents = Vec::new();
    for life in 0..30 {
        let mut session = mapping.session().unwrap();
        let tree = Durable::make(&mut session, &mapping);
        assert!(tree.is_empty(&session.enter().unwrap()).unwrap(), "life {life}");
        for _ in 0..3 {
            for (first, put) in [(0, true), (200, true), (0, false), (200, false)] {
                let op = session.enter().unwrap();
                for n in first..first + 200 {
                    match put {
                        true => _ = tree.insert(&op, &key(n), &vec![7; (n % 150) as usize]).unwrap(),
                        false => _ = tree.remove(&op, &key(n)).unwrap(),
                    }
                }
                drop(op);
                tree.sync(&mut session).unwrap();
            }
        }
        let op = session.enter().unwrap();
        assert_eq!(tree.check(&op).unwrap(), []);
        extents.push(tree.bytes_in_extents(&op));
        for n in 0..400 {
            tree.insert(&op, &key(n), &[1; 100]).unwrap();
        }
    }
    println!("bytes in extents after each life: {extents:?}");
    assert_eq!(extents[3], extents[29], "{extents:?}");
}

#[test]
fn change_decides_by_what_is_there() {
    let mapping = Mapping::heap(1 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = Transient::make(&mut session, &mapping);
    let op = session.enter().unwrap();
    for round in 0..5u64 {
        let old = tree.get(&op, b"n").unwrap().map_or(0, |v| v.as_u64());
        let new = (old + 1).to_le_bytes();
        tree.change(&op, b"n", |value| {
            assert_eq!(value.map_or(0, |v| v.as_u64()), old);
            Change::Set(&new)
        })
        .unwrap();
        assert_eq!(tree.get(&op, b"n").unwrap().unwrap().as_u64(), round + 1);
    }
    tree.change(&op, b"n", |_| Change::Keep).unwrap();
    tree.change(&op, b"n", |_| Change::Remove).unwrap();
    assert!(tree.is_empty(&op).unwrap());
}

/// Threads write keys of their own and read all; every value says whose it is and which key it belongs to.
fn hammer<P: Made>(rounds: u64) {
    let mapping = Mapping::heap(128 << 20, Hardware::PAGE_CACHE);
    let tree = P::make(&mut mapping.session().unwrap(), &mapping);
    const THREADS: u64 = 4;
    const KEYS: u64 = 600;
    let key = |n: u64| match n % 3 {
        0 => n.to_be_bytes().to_vec(),
        1 => [b"shared--".repeat(2), n.to_be_bytes().to_vec(), b"tail".to_vec()].concat(),
        _ => format!("{n}").into_bytes(),
    };
    let value =
        |n: u64, version: u64| [n.to_le_bytes().to_vec(), vec![version as u8; (version % 30) as usize]].concat();
    let good = |n: u64, v: &[u8]| v[..8] == n.to_le_bytes() && v[8..].iter().all(|b| *b == v[8]);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (tree, mapping) = (&tree, &mapping);
            s.spawn(move || {
                let mut session = mapping.session().unwrap();
                let mut mine = BTreeMap::new();
                let mut random = thread + 1;
                for round in 0..rounds {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let n = (random >> 33) % KEYS * THREADS + thread;
                    let op = session.enter().unwrap();
                    match (random >> 20) % 8 {
                        0..4 => {
                            assert_eq!(
                                tree.insert(&op, &key(n), &value(n, round)).unwrap(),
                                mine.insert(n, round).is_none()
                            );
                        }
                        4 | 5 => assert_eq!(tree.remove(&op, &key(n)).unwrap(), mine.remove(&n).is_some()),
                        6 => {
                            let other = (random >> 40) % (KEYS * THREADS);
                            if let Some(found) = tree.get_vec(&op, &key(other)).unwrap() {
                                assert!(good(other, &found), "{other} {found:?}");
                            }
                        }
                        _ => {
                            let (mut last, mut left) = (None, 50);
                            tree.range(&op, Bound::Included(&key(n)), Bound::Unbounded, |k, v| {
                                assert!(last.as_deref().is_none_or(|l: &[u8]| l < k));
                                last = Some(k.to_vec());
                                let v = v.to_vec();
                                assert!(good(u64::from_le_bytes(v[..8].try_into().unwrap()), &v));
                                left -= 1;
                                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                            })
                            .unwrap();
                        }
                    }
                    assert_eq!(tree.get_vec(&op, &key(n)).unwrap(), mine.get(&n).map(|r| value(n, *r)));
                    drop(op);
                    if round % 500 == 0 {
                        tree.sync(&mut session).unwrap();
                    }
                }
                let op = session.enter().unwrap();
                for (n, round) in mine {
                    assert_eq!(tree.get_vec(&op, &key(n)).unwrap(), Some(value(n, round)));
                    assert!(tree.remove(&op, &key(n)).unwrap());
                }
            });
        }
    });
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!(tree.check(&op).unwrap(), []);
    assert!(tree.is_empty(&op).unwrap());
}

#[test]
fn threads_on_a_durable_tree() {
    hammer::<Durable>(20_000);
}

#[test]
fn threads_on_a_volatile_tree() {
    hammer::<Transient>(20_000);
}

/// Entries in groups of all lengths, with keys that share slices and keys twice in a group.
fn many_entries_are_as_one_by_one<P: Made>() {
    let mapping = Mapping::heap(16 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = P::make(&mut session, &mapping);
    let (mut map, mut state, mut new) = (Map::new(), 3u64, 0);
    for len in (0..60).chain([400, 2000, 17, 3000]) {
        let entries: Vec<(Vec<u8>, Vec<u8>)> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let number = (state >> 33) % 4000;
                let key = format!("{:03}{number}", number % 7).repeat(1 + number as usize % 3).into_bytes();
                (key, state.to_le_bytes()[..number as usize % 9].to_vec())
            })
            .collect();
        let op = session.enter().unwrap();
        new += tree.insert_many(&op, &entries).unwrap();
        map.extend(entries);
        drop(op);
        tree.sync(&mut session).unwrap();
    }
    assert_eq!(new, map.len());
    let op = session.enter().unwrap();
    let mut found = Map::new();
    let all = tree.range(&op, Bound::Unbounded, Bound::Unbounded, |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    all.unwrap();
    assert_eq!(found, map);
    assert_eq!(tree.check(&op).unwrap(), []);
    let too_long = vec![0; MAX_KEY + 1];
    let entries = [(&b"a new one"[..], b"1"), (&too_long[..], b"2"), (&b"another"[..], b"3")];
    assert!(matches!(tree.insert_many(&op, &entries), Err(Error::KeyTooLong { .. })));
    assert!(tree.contains(&op, b"a new one").unwrap() && !tree.contains(&op, b"another").unwrap());
}

#[test]
fn many_entries_are_inserted_as_one_by_one() {
    many_entries_are_as_one_by_one::<Durable>();
    many_entries_are_as_one_by_one::<Transient>();
}

/// A removal that empties a node has taken place, also where there is no room for the images that taking the node out needs.
#[test]
fn a_removal_does_not_fail_because_its_node_cannot_be_taken_out() {
    let mapping = Mapping::heap(64 << 10, Hardware::PAGE_CACHE);
    let [mut filling, mut removing] = [(); 2].map(|()| mapping.session().unwrap());
    let tree = Durable::make(&mut filling, &mapping);
    let mut keys = Vec::new();
    for n in 0..5000u64 {
        let key =
            if n % 8 == 0 { [&b"a shared prefix "[..], &n.to_be_bytes()].concat() } else { n.to_be_bytes().to_vec() };
        if tree.insert(&filling.enter().unwrap(), &key, &[1; 8]).is_ok() {
            keys.push(key);
        }
    }
    assert!(keys.len() > 500);
    for key in &keys {
        // This session has no segment of the log, and there is no room for one.
        assert!(tree.remove(&removing.enter().unwrap(), key).unwrap());
    }
    assert!(tree.is_empty(&removing.enter().unwrap()).unwrap());
    tree.sync(&mut removing).unwrap();
    for key in &keys {
        assert!(tree.insert(&filling.enter().unwrap(), key, &[2; 8]).unwrap(), "there is room again");
    }
    assert_eq!(tree.check(&filling.enter().unwrap()).unwrap(), []);
}

/// Interior nodes whose children are themselves.
#[test]
fn nodes_that_lead_in_a_circle_end_every_lookup() {
    let mapping = Mapping::heap(1 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree = Durable::make(&mut session, &mapping);
    let op = session.enter().unwrap();
    for n in 0..100u64 {
        tree.insert(&op, &n.to_be_bytes(), &[1; 8]).unwrap();
    }
    let root = op.load(op.at(durix_pmem::Off::<durix_pmem::Word>::new(2048)), std::sync::atomic::Ordering::Relaxed);
    let node = op.at(durix_pmem::Off::<durix_incll::layout::Interior>::new(root));
    for child in &node.children {
        op.store(child, durix_pmem::Off::new(root), std::sync::atomic::Ordering::Relaxed);
    }
    let key = 7u64.to_be_bytes();
    assert!(matches!(tree.get(&op, &key), Err(Error::Corrupt { .. })));
    assert!(matches!(tree.get_many(&op, &[key, key]), Err(Error::Corrupt { .. })));
    assert!(tree.insert_many(&op, &[(key, key)]).is_err());
    assert!(tree.remove(&op, &key).is_err());
    assert!(tree.first(&op).is_err() && tree.last(&op).is_err());
    assert_ne!(tree.check(&op).unwrap(), []);
}

/// Keys come at one end and go at the other: what is left of nodes does not grow with what has passed.
#[test]
fn a_queue_takes_the_space_of_what_is_in_it() {
    fn queue<P: Made>(key: impl Fn(u64) -> Vec<u8>) {
        let mapping = Mapping::heap(1 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = P::make(&mut session, &mapping);
        for n in 0..20_000 {
            let op = session.enter().unwrap();
            tree.insert(&op, &key(n), &[1; 8]).unwrap();
            if n >= 300 {
                assert_eq!(
                    tree.first(&op).unwrap().unwrap().0.min(tree.last(&op).unwrap().unwrap().0),
                    key(n - 300).min(key(n))
                );
                assert!(tree.remove(&op, &key(n - 300)).unwrap());
            }
            drop(op);
            if n % 50 == 0 {
                tree.sync(&mut session).unwrap();
            }
        }
        let op = session.enter().unwrap();
        assert_eq!(tree.check(&op).unwrap(), []);
        let shape = tree.shape(&op).unwrap();
        assert!(shape.borders + shape.interiors < 120, "{shape:?}");
        (20_000 - 300..20_000).for_each(|n| assert!(tree.remove(&op, &key(n)).unwrap()));
        let shape = tree.shape(&op).unwrap();
        assert_eq!((shape.borders, shape.interiors, shape.layers), (1, 0, 1), "{shape:?}");
    }
    let up = |n: u64| n.to_be_bytes().to_vec();
    let down = |n: u64| (u64::MAX - n).to_be_bytes().to_vec();
    queue::<Durable>(up);
    queue::<Durable>(down);
    queue::<Durable>(|n| [&b"a prefix, "[..], &up(n), &b"and a suffix"[..]].concat());
    queue::<LoggingOnly>(up);
    queue::<InteriorInLine>(up);
    queue::<InteriorInLine>(down);
    queue::<Transient>(down);
}

/// Nodes go in any order, and so do the ancestors that lead to nothing else.
#[test]
fn nodes_that_go_in_any_order_leave_one() {
    fn any_order<P: Made>(seed: u64) {
        let mapping = Mapping::heap(8 << 20, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = P::make(&mut session, &mapping);
        let (count, mut map, mut random) = (6000u64, Map::new(), seed);
        for n in 0..count {
            let key = n.to_be_bytes().to_vec();
            tree.insert(&session.enter().unwrap(), &key, &key).unwrap();
            map.insert(key.clone(), key);
        }
        tree.sync(&mut session).unwrap();
        // Runs of keys, so that whole nodes go, and sometimes come back.
        while !map.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (first, len, back) =
                ((random >> 33) % count, (random >> 20) % 300, random >> 60 == 0 && map.len() > 500);
            let op = session.enter().unwrap();
            for n in first..(first + len).min(count) {
                let key = n.to_be_bytes().to_vec();
                match back {
                    true => assert_eq!(tree.insert(&op, &key, &key).unwrap(), map.insert(key.clone(), key).is_none()),
                    false => assert_eq!(tree.remove(&op, &key).unwrap(), map.remove(&key).is_some()),
                }
            }
            drop(op);
            tree.sync(&mut session).unwrap();
            let op = session.enter().unwrap();
            assert_eq!(tree.check(&op).unwrap(), []);
            assert_eq!(tree.len(&op).unwrap(), map.len() as u64);
        }
        let shape = tree.shape(&session.enter().unwrap()).unwrap();
        assert_eq!((shape.borders, shape.interiors), (1, 0), "{shape:?}");
    }
    (1..4).for_each(any_order::<Durable>);
    any_order::<InteriorInLine>(4);
    any_order::<Transient15>(5);
}
