//! A tree of tiny leaves, ranges and log pages in a small pool, with a map as its model. Its values are words, or records that stand for them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use durix_crashsim::{Concurrent, Simulated, Subject};
use durix_dptree::{Direction, DpTree, DpTreeBytes, DpTreeValues, Options, Shape};
use durix_index::{Batch, Index, KeyRange, OrderedIndex};
use durix_pmem::backing::HeapBacking;
use durix_pmem::service::{Driver, Lane};
use durix_pmem::{Hardware, Killable, Mutating, Op, Plan, Pool, PoolOptions, Session};

/// The medium.
pub type M = Killable<Mutating<Simulated>>;

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Inserts, or replaces the value.
    Put(u64, u64),
    /// Inserts if the key is not there.
    PutNew(u64, u64),
    /// Replaces the value, if the key is there.
    Update(u64, u64),
    /// Removes.
    Remove(u64),
    /// Changes from one value to another.
    Swap(u64, Option<u64>, Option<u64>),
    /// Reads.
    Get(u64),
    /// Reads two keys in one call.
    GetTwo(u64, u64),
    /// The first pair from a key on, upwards or downwards.
    Next(u64, bool),
    /// Counts.
    Len,
    /// Changes keys together.
    Many(Vec<(u64, Option<u64>)>),
    /// The same, where there is no room for it.
    TooMany(Vec<(u64, Option<u64>)>),
    /// Loads pairs.
    Load(Vec<(u64, u64)>),
    /// Merges what waits for it.
    Tick,
    /// Freezes every front, and merges all.
    Merge,
    /// An operation by another session.
    Other(Box<Act>),
    /// The tree is closed and opened again.
    Reopen,
    /// An operation in which the process dies, with all of it in the caches and nothing written back; the tree is opened again
    /// without a power failure.
    Killed(Box<Act>),
}
use Act::*;

/// What an operation answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// Whether something was changed.
    Yes(bool),
    /// A value.
    Value(Option<u64>),
    /// Two values.
    Values([Option<u64>; 2]),
    /// A pair.
    Pair(Option<(u64, u64)>),
    /// A number.
    Number(u64),
    /// Nothing.
    Done,
}
use Answer::*;

/// The model: what is there.
pub type Map = BTreeMap<u64, u64>;

/// The tree under test.
#[derive(Clone)]
pub struct TreeUnderTest {
    /// The mutations.
    pub plan: &'static Plan,
    /// Sizes.
    pub options: Options,
    /// Chunks of 4 KiB that trees can use.
    pub chunks: u64,
    /// What was done before.
    pub before: Vec<Act>,
    /// What follows each recovery as a part of it, so that crashes come in it, too; it changes nothing.
    pub in_recovery: Vec<Act>,
    /// Whether the pool's chunks hold what another tree has left in them.
    pub used_before: bool,
    /// Whether the tree is told that somebody drives the pool's services, so that merges make log pages ahead.
    pub driven: bool,
    /// Whether values are of any length.
    pub values: bool,
    /// Whether keys are, too.
    pub bytes: bool,
}

/// Drives nothing: the operations of a test tick.
struct Nobody;

impl Driver for Nobody {
    fn wake(&self, _: Lane) {}
}

/// A tree.
#[derive(Clone)]
pub enum Tree {
    /// Its values are words.
    Words(Arc<DpTree<M>>),
    /// Its values are bytes: of three lengths, so that their records lie in pages of their own. The word that they stand for comes first.
    Values(Arc<DpTreeValues<M>>),
    /// Its keys are bytes, too: nine of them, the first eight of which 64 keys have in common.
    Bytes(Arc<DpTreeBytes<M>>),
}

fn bytes(word: u64) -> Vec<u8> {
    let len = [8, 100, 5000][word as usize % 3];
    word.to_be_bytes().into_iter().chain(std::iter::repeat(word as u8)).take(len).collect()
}

fn word(value: &[u8]) -> u64 {
    let word = u64::from_be_bytes(*value.first_chunk().expect("a word"));
    assert!(value == bytes(word), "a value of {} bytes for {word}", value.len());
    word
}

/// Keys that 64 numbers share a word of, in the order of the numbers.
const SHARED: u64 = 64;

impl Tree {
    fn open(pool: &Pool<M>, name: &str, subject: &TreeUnderTest) -> Result<Self, String> {
        if subject.bytes {
            pool.mapping().limit_generations(1);
            return DpTreeBytes::open_with(pool, name, &subject.options).map(Tree::Bytes).map_err(|e| e.to_string());
        }
        if subject.values {
            pool.mapping().limit_generations(1);
            return DpTreeValues::open_with(pool, name, &subject.options).map(Tree::Values).map_err(|e| e.to_string());
        }
        DpTree::open_with(pool, name, &subject.options).map(Tree::Words).map_err(|e| e.to_string())
    }

    fn tree(&self) -> &DpTree<M> {
        match self {
            Tree::Words(tree) => tree,
            Tree::Values(values) => values.tree(),
            Tree::Bytes(map) => map.tree(),
        }
    }

    /// The bytes of a key; of the largest one, ones that come after all others.
    fn key(&self, key: u64) -> Vec<u8> {
        match self {
            Tree::Bytes(_) => [&(key / SHARED).to_be_bytes()[..], &[(key % SHARED) as u8]].concat(),
            _ => key.to_be_bytes().to_vec(),
        }
    }

    fn number(&self, bytes: &[u8]) -> u64 {
        match (self, bytes) {
            (Tree::Bytes(_), [first @ .., last]) => {
                u64::from_be_bytes(first.try_into().unwrap()) * SHARED + u64::from(*last)
            }
            _ => u64::from_be_bytes(bytes.try_into().unwrap()),
        }
    }

    fn ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        match self {
            Tree::Words(_) => None,
            Tree::Values(values) => Some(&**values),
            Tree::Bytes(map) => Some(&**map),
        }
    }

    fn get(&self, op: &Op<'_, M>, key: u64) -> Option<u64> {
        match self {
            Tree::Words(tree) => tree.get(op, key).unwrap(),
            Tree::Values(values) => values.get_vec(op, &self.key(key)).unwrap().map(|value| word(&value)),
            Tree::Bytes(map) => map.get_vec(op, &self.key(key)).unwrap().map(|value| word(&value)),
        }
    }

    /// The pairs from a key on, up to a number of them.
    fn pairs(&self, op: &Op<'_, M>, from: u64, up: bool, most: usize) -> Vec<(u64, u64)> {
        let (direction, mut found) = (if up { Direction::Forward } else { Direction::Backward }, Vec::new());
        match self {
            Tree::Words(tree) => {
                let ends = if up { from..=u64::MAX } else { 0..=from };
                let visit = |key, value| {
                    found.push((key, value));
                    found.len() < most
                };
                tree.scan(op, ends, direction, visit).unwrap();
            }
            Tree::Values(_) | Tree::Bytes(_) => {
                let from = self.key(from);
                let bounds = [Bound::Included(&from[..]), Bound::Unbounded];
                let range = KeyRange::new(bounds[usize::from(!up)], bounds[usize::from(up)]);
                let mut cursor = self.ordered().expect("it is").range(&range, direction);
                while found.len() < most
                    && let Some((key, value)) = cursor.next(op).unwrap()
                {
                    found.push((self.number(key), word(value)));
                }
            }
        }
        found
    }
}

/// A tree at work.
pub struct Live {
    session: Session<M>,
    other: Session<M>,
    tree: Tree,
    pool: Pool<M>,
}

const CHUNK: u64 = 4096;
/// Header, lanes and roots take two chunks, the allocator's table one.
const FIXED: u64 = 3;

/// Two leaves of four slots a range, fronts of two entries, log pages of two records.
pub fn tiny() -> Options {
    Options::default().shape(Shape { slots: 4, leaves: 2, page_lines: 1 }).least_front(2)
}

impl TreeUnderTest {
    /// A tiny tree in which `before` was done.
    pub fn new(before: &[Act]) -> Self {
        TreeUnderTest {
            plan: Plan::new(),
            options: tiny(),
            chunks: 12,
            before: before.to_vec(),
            in_recovery: Vec::new(),
            used_before: false,
            driven: false,
            values: false,
            bytes: false,
        }
    }

    fn len(&self) -> u64 {
        (FIXED + self.chunks) * CHUNK
    }

    fn pool_options(&self) -> PoolOptions {
        let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).pool_id([7; 16]).boot_id([7; 16]);
        options.initial_size(self.len()).max_size(self.len())
    }

    fn live(&self, pool: Pool<M>) -> Result<Live, String> {
        // Not the session that recovers the tree: its fences must not do for what recovery has written back.
        let session = pool.session().map_err(|e| e.to_string())?;
        let tree = Tree::open(&pool, "tree", self)?;
        let other = pool.session().map_err(|e| e.to_string())?;
        if self.driven {
            pool.services().drive(Some(Arc::new(Nobody)));
        }
        Ok(Live { session, other, tree, pool })
    }
}

impl Live {
    fn reopen(&mut self, subject: &TreeUnderTest) {
        // The first tree has to go before its name can be opened again.
        let aside = Tree::open(&self.pool, "aside", subject).unwrap();
        drop(std::mem::replace(&mut self.tree, aside));
        self.tree = Tree::open(&self.pool, "tree", subject).unwrap();
        self.pool.drop_index("aside").unwrap();
    }
}

/// Runs an operation.
pub fn run(tree: &Tree, session: &mut Session<M>, act: &Act) -> Answer {
    match act {
        Merge => tree.tree().merge_all(session).unwrap(),
        Load(pairs) => tree.tree().load(session, pairs.clone()).unwrap(),
        act => return operate(tree, &session.enter().unwrap(), act),
    }
    Done
}

/// Runs an operation in a scope.
pub fn operate(tree: &Tree, op: &Op<'_, M>, act: &Act) -> Answer {
    match *act {
        Get(k) => Value(tree.get(op, k)),
        GetTwo(a, b) => {
            let mut values = [None; 2];
            tree.tree().get_many(op, &[a, b], |at, value| values[at] = value).unwrap();
            Answer::Values(values)
        }
        Next(k, up) => Pair(tree.pairs(op, k, up, 1).first().copied()),
        Len => Number(match tree {
            Tree::Bytes(_) => tree.pairs(op, 0, true, usize::MAX).len() as u64,
            _ => tree.tree().len(op),
        }),
        Tick => {
            tree.tree().tick_in(op).unwrap();
            Done
        }
        Merge | Load(_) | Reopen | Other(_) | Killed(_) => unreachable!("taken apart by the caller"),
        ref act => match tree {
            Tree::Words(tree) => change_words(tree, op, act),
            Tree::Values(values) => change_values(&**values, op, act, &|k| tree.key(k)),
            Tree::Bytes(map) => change_values(&**map, op, act, &|k| tree.key(k)),
        },
    }
}

fn change_words(tree: &DpTree<M>, op: &Op<'_, M>, act: &Act) -> Answer {
    match *act {
        Put(k, v) => Yes(tree.insert(op, k, v).unwrap()),
        PutNew(k, v) => Yes(tree.insert_if_absent(op, k, v).unwrap()),
        Update(k, v) => Yes(tree.update(op, k, v).unwrap()),
        Remove(k) => Yes(tree.remove(op, k).unwrap()),
        Swap(k, a, b) => Yes(tree.compare_and_set(op, k, a, b).unwrap()),
        Many(ref changes) => {
            tree.change_many(op, &mut changes.clone()).unwrap();
            Done
        }
        TooMany(ref changes) => {
            assert!(tree.change_many(op, &mut changes.clone()).is_err(), "there is room");
            Done
        }
        ref act => unreachable!("{act:?} changes nothing"),
    }
}

fn change_values(values: &dyn Index<M>, op: &Op<'_, M>, act: &Act, key: &dyn Fn(u64) -> Vec<u8>) -> Answer {
    match *act {
        Put(k, v) => Yes(values.insert(op, &key(k), &bytes(v)).unwrap()),
        PutNew(k, v) => Yes(values.insert_if_absent(op, &key(k), &bytes(v)).unwrap()),
        Update(k, v) => Yes(values.update(op, &key(k), &bytes(v)).unwrap()),
        Remove(k) => Yes(values.remove(op, &key(k)).unwrap()),
        Swap(k, a, b) => {
            let [a, b] = [a, b].map(|v| v.map(bytes));
            Yes(values.compare_and_set(op, &key(k), a.as_deref(), b.as_deref()).unwrap())
        }
        Many(ref changes) => {
            let mut batch = Batch::new();
            for (k, v) in changes {
                match v {
                    Some(v) => batch.insert(&key(*k), &bytes(*v)),
                    None => batch.remove(&key(*k)),
                };
            }
            values.apply(op, &batch).unwrap();
            Done
        }
        ref act => unreachable!("{act:?} is not tried with values of any length"),
    }
}

/// Runs an operation on the model.
pub fn step(model: &mut Map, act: &Act) -> Answer {
    match *act {
        Put(k, v) => Yes(model.insert(k, v).is_none()),
        PutNew(k, v) => {
            let new = !model.contains_key(&k);
            model.entry(k).or_insert(v);
            Yes(new)
        }
        Update(k, v) => Yes(model.get_mut(&k).map(|old| *old = v).is_some()),
        Remove(k) => Yes(model.remove(&k).is_some()),
        Swap(k, a, b) => {
            let matches = model.get(&k).copied() == a;
            match b {
                _ if !matches => {}
                Some(b) => drop(model.insert(k, b)),
                None => drop(model.remove(&k)),
            }
            Yes(matches)
        }
        Get(k) => Value(model.get(&k).copied()),
        GetTwo(a, b) => Answer::Values([a, b].map(|k| model.get(&k).copied())),
        Load(ref pairs) => {
            model.extend(pairs.iter().copied());
            Done
        }
        Next(k, true) => Pair(model.range(k..).next().map(|(k, v)| (*k, *v))),
        Next(k, false) => Pair(model.range(..=k).next_back().map(|(k, v)| (*k, *v))),
        Len => Number(model.len() as u64),
        Many(ref changes) => {
            for (key, new) in changes {
                match new {
                    Some(value) => drop(model.insert(*key, *value)),
                    None => drop(model.remove(key)),
                }
            }
            Done
        }
        Tick | Merge | Reopen | TooMany(_) => Done,
        Other(ref act) | Killed(ref act) => step(model, act),
    }
}

impl Subject for TreeUnderTest {
    type Op = Act;
    type Ret = Answer;
    type State = Map;
    type Model = Map;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Killable::new(Mutating::new(medium, self.plan)))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = self.pool_options().create_on(simulated.backing(0).with_limit(self.len()), *medium).unwrap();
        if self.used_before {
            let old = Tree::open(&pool, "old", self).unwrap();
            let mut session = pool.session().unwrap();
            (0..12).for_each(|k| assert_eq!(run(&old, &mut session, &Put(k, 77)), Yes(true)));
            (0..12).for_each(|k| assert_eq!(run(&old, &mut session, &Put(k, 78)), Yes(false)));
            run(&old, &mut session, &Merge);
            drop(old);
            pool.drop_index("old").unwrap();
        }
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let backing = simulated.backing(self.len());
        let unrecovered = self.pool_options().open_on(backing, *medium).map_err(|e| e.to_string())?;
        let mut live = self.live(unrecovered.recover().map_err(|e| e.to_string())?)?;
        for act in &self.in_recovery {
            self.apply(&mut live, act);
        }
        Ok(live)
    }

    fn apply(&self, live: &mut Live, act: &Act) -> Answer {
        match act {
            Other(act) => run(&live.tree, &mut live.other, act),
            Reopen => {
                live.reopen(self);
                Done
            }
            Killed(act) => {
                let op = live.session.enter().unwrap();
                let answer = op.medium().dying(|| operate(&live.tree, &op, act));
                drop(op);
                live.reopen(self);
                answer
            }
            act => run(&live.tree, &mut live.session, act),
        }
    }

    fn observe(&self, live: &mut Live) -> Map {
        let op = live.session.enter().unwrap();
        let pairs = live.tree.pairs(&op, 0, true, usize::MAX);
        assert!(pairs.is_sorted_by(|below, above| below.0 < above.0), "keys in disorder");
        let map = Map::from_iter(pairs);
        for (k, v) in &map {
            assert_eq!(live.tree.get(&op, *k), Some(*v));
        }
        map
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let findings = match &live.tree {
            Tree::Words(tree) => tree.check(&live.session.enter().unwrap()),
            Tree::Values(values) => Index::check(&**values, &mut live.session).unwrap(),
            Tree::Bytes(map) => Index::check(&**map, &mut live.session).unwrap(),
        };
        findings.iter().map(ToString::to_string).collect()
    }

    fn model(&self) -> Map {
        let mut model = Map::new();
        for act in &self.before {
            step(&mut model, act);
        }
        model
    }

    fn step(&self, model: &mut Map, act: &Act) -> Answer {
        step(model, act)
    }

    fn expect(&self, model: &Map) -> Map {
        model.clone()
    }
}

impl Concurrent for TreeUnderTest {
    type Thread = (Session<M>, Tree);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), live.tree.clone())
    }

    fn run(&self, (session, tree): &mut Self::Thread, act: &Act) -> Answer {
        run(tree, session, act)
    }
}

/// Puts of ascending keys, each `times` times in a row, that fill a pool, up to the one that would be refused. Tried out on a tree in
/// ordinary memory, whose decisions are the same.
pub fn puts_until_full(subject: &TreeUnderTest, times: u64) -> Vec<Act> {
    let pool = subject.pool_options().create_on(HeapBacking::new(subject.len()), Hardware::PAGE_CACHE).unwrap();
    let tree = DpTree::open_with(&pool, "tree", &subject.options).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let fit = |(key, value): &(u64, u64)| tree.insert(&op, *key, *value).is_ok();
    let all = (1..).flat_map(|number: u64| (1..=times).map(move |value| (number * 10, value)));
    all.take_while(fit).map(|(key, value)| Put(key, value)).collect()
}

/// Puts of keys of a group, in an order that fills its nodes unevenly, that fill a pool, up to the one that would be refused. Tried out on a tree
/// in ordinary memory, whose decisions are the same.
pub fn bytes_until_full(subject: &TreeUnderTest) -> Vec<Act> {
    let pool = subject.pool_options().create_on(HeapBacking::new(subject.len()), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    pool.mapping().limit_generations(1);
    let map = DpTreeBytes::open_with(&pool, "tree", &subject.options).unwrap();
    let key = |number: u64| [0, 0, 0, 0, 0, 0, 0, 0, (number % SHARED) as u8];
    let mut fit = |number: &u64| map.insert(&session.enter().unwrap(), &key(*number), &bytes(1)).is_ok();
    let all = (1..SHARED).map(|number| number * 5 % SHARED);
    let puts: Vec<_> = all.take_while(&mut fit).map(|number| Put(number, 1)).collect();
    assert!(puts.len() as u64 + 1 < SHARED, "the keys of a group do not fill it");
    puts
}

/// What was done before in a tree, and batches of two new keys of different ranges, up to the first one that would be refused; and the keys of
/// the last batch. Tried out on a tree in ordinary memory, whose decisions are the same.
pub fn batches_until_full(subject: &TreeUnderTest) -> (Vec<Act>, [u64; 2]) {
    let pool = subject.pool_options().create_on(HeapBacking::new(subject.len()), Hardware::PAGE_CACHE).unwrap();
    let tree = DpTree::open_with(&pool, "tree", &subject.options).unwrap();
    let mut session = pool.session().unwrap();
    for act in &subject.before {
        match act {
            Put(key, value) => _ = tree.insert(&session.enter().unwrap(), *key, *value).unwrap(),
            Merge => tree.merge_all(&mut session).unwrap(),
            act => panic!("{act:?}"),
        }
    }
    let (mut acts, mut last) = (subject.before.clone(), [0; 2]);
    for number in 1.. {
        let keys = [number, 1000 + number];
        let changes: Vec<_> = keys.iter().map(|key| (*key, Some(number))).collect();
        if tree.change_many(&session.enter().unwrap(), &mut changes.clone()).is_err() {
            break;
        }
        acts.push(Many(changes));
        last = keys;
    }
    (acts, last)
}

/// The smallest pool in which puts and merges can be done, without room for a record of one more session. Tried out on a tree in ordinary
/// memory, whose decisions are the same.
pub fn in_smallest_pool(before: &[Act]) -> TreeUnderTest {
    let fits = |subject: &TreeUnderTest| {
        let pool = subject.pool_options().create_on(HeapBacking::new(subject.len()), Hardware::PAGE_CACHE).unwrap();
        let tree = DpTree::open_with(&pool, "tree", &subject.options).unwrap();
        let [mut one, mut other] = [(); 2].map(|()| pool.session().unwrap());
        let put = |session: &mut Session, act: &Act| match act {
            Put(key, value) => tree.insert(&session.enter().unwrap(), *key, *value).is_ok(),
            Merge => tree.merge_all(session).is_ok(),
            act => panic!("{act:?}"),
        };
        let fit = before.iter().all(|act| match act {
            Other(act) => put(&mut other, act),
            act => put(&mut one, act),
        });
        fit && !put(&mut pool.session().unwrap(), &Put(u64::MAX, 1))
    };
    let subjects = (1..20).map(|chunks| TreeUnderTest { chunks, ..TreeUnderTest::new(before) });
    subjects.into_iter().find(fits).expect("a pool that they fill")
}

/// A tree of several ranges without a free unit, in two of which both fronts are full and a merge needs a unit; and an insert into each of
/// the two. Tried out on a tree in ordinary memory, whose decisions are the same.
pub fn merges_that_need_units(subject: &TreeUnderTest) -> (Vec<Act>, [Act; 2]) {
    let pool = subject.pool_options().create_on(HeapBacking::new(subject.len()), Hardware::PAGE_CACHE).unwrap();
    let tree = DpTree::open_with(&pool, "tree", &subject.options).unwrap();
    let mut session = pool.session().unwrap();
    let mut acts = Vec::new();
    for key in (1u64..).map(|number| number * 10) {
        let stats = tree.stats(&session.enter().unwrap());
        if stats.ranges >= 3 && stats.free_units == 0 && key % 20 == 10 {
            break;
        }
        assert!(tree.insert(&session.enter().unwrap(), key, 1).unwrap());
        acts.push(Put(key, 1));
        if key % 20 == 0 {
            tree.merge_all(&mut session).unwrap();
            acts.push(Merge);
        }
    }
    // Two keys of a leaf fill a front. The lowest keys and the highest ones are of different ranges.
    let top = acts.len() as u64 / 3 * 20;
    let fronts = [1, 2, 3, 4].map(|i| Put(10 + i, 2)).into_iter().chain([1, 2, 3, 4].map(|i| Put(top + i, 2)));
    acts.extend(fronts);
    (acts, [Put(15, 2), Put(top + 5, 2)])
}

/// Follows every recovery: reuses slots, leaves and log pages, brings keys back, removes some.
pub fn after() -> Vec<Act> {
    vec![Put(1, 9), Remove(0), Put(2, 9), Tick, Put(0, 8), Remove(1), Put(3, 7), Tick, Len]
}
