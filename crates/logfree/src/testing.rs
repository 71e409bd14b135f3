//! What the tests share: one trait over all maps, operations on them, and a map in a small pool under the simulator.

#![allow(missing_docs, reason = "test code")]

use std::collections::BTreeMap;
use std::sync::Arc;

pub use crate::index::{Listed, Visit, each};
use crate::linked::{bst::BstCore, hash::HashCore, list::ListCore, skip::SkipCore};
use crate::soft::{SoftHashCore, SoftOrderedCore};
use crate::{Blobs, BytesHash, Error, Finding, Options, RecordMap, SoftOptions, WordMap, Words};
use durix_crashsim::{AnyConcurrent, Concurrent, Simulated, Subject};
use durix_pmem::{
    Error as PoolError, Killable, Medium, Mutating, Off, Op, Plan, Pool, PoolOptions, Session, Structure, Word,
};

/// A map under test.
pub trait Map<M: Medium>: Structure<M, Error = Error> {
    /// Options for the smallest pools.
    fn small() -> Self::Options;
    /// The last fence of an insert; of a remove, and of an update, right after the map was opened.
    fn last_fences() -> [u64; 3] {
        [2, 1, 3]
    }
    /// Chunks that the smallest pool has for it.
    fn chunks() -> u64 {
        4
    }
    /// Keys that a map has left in space that is used again.
    fn left() -> u64 {
        40
    }
    fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool, Error>;
    fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>, Error>;
    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>, Error>;
    fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>, Error>;
    fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool, Error>;
    fn for_each(&self, op: &Op<'_, M>, f: &mut dyn FnMut(u64, u64)) -> Result<(), Error>;
    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>, Error>;
    /// Makes everything durable: nothing to do where everything is.
    fn sync(&self, op: &Op<'_, M>) {
        let _ = op;
    }
    /// Doubles the buckets, where there are any that do not grow by themselves.
    fn grow(&self, op: &Op<'_, M>) {
        let _ = op;
    }
}

/// Three nodes a page, a table that is trimmed soon, generations of two.
pub fn small() -> Options {
    Options::default().page_size(256).active_pages(4).generation(2).buckets(2).grow_at(0).recovery_threads(1)
}

/// How a map of words is tested.
pub trait Tested<M: Medium>: WordMap<M> + Structure<M, Error = Error> {
    /// See [`Map::small`].
    fn small() -> Self::Options;
    /// See [`Map::last_fences`].
    fn last_fences() -> [u64; 3] {
        [2, 1, 3]
    }
    /// See [`Map::grow`].
    fn grow(&self, op: &Op<'_, M>) {
        let _ = op;
    }
}

impl<M: Medium> Tested<M> for ListCore<M> {
    fn small() -> Options {
        small()
    }
}

impl<M: Medium> Tested<M> for HashCore<M> {
    fn small() -> Options {
        small()
    }
    fn grow(&self, op: &Op<'_, M>) {
        HashCore::grow(self, op).unwrap();
    }
}

impl<M: Medium> Tested<M> for SkipCore<M> {
    /// Towers are tall, so that few keys make many levels.
    fn small() -> Options {
        small().tower_ratio(2)
    }
}

impl<M: Medium> Tested<M> for BstCore<M> {
    fn small() -> Options {
        small()
    }
    fn last_fences() -> [u64; 3] {
        [2, 2, 2]
    }
}

impl<M: Medium> Tested<M> for SoftHashCore<M> {
    fn small() -> SoftOptions {
        SoftOptions::default().buckets(1).recovery_threads(1)
    }
}

impl<M: Medium, const N: usize> Tested<M> for SoftOrderedCore<M, N> {
    fn small() -> SoftOptions {
        SoftOptions::default().recovery_threads(1)
    }
}

impl<S: Tested<M>, M: Medium> Map<M> for Words<S, M> {
    fn small() -> Self::Options {
        S::small()
    }
    fn last_fences() -> [u64; 3] {
        S::last_fences()
    }
    fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool, Error> {
        Words::insert(self, op, key, value)
    }
    fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>, Error> {
        Words::remove(self, op, key)
    }
    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>, Error> {
        Words::get(self, op, key)
    }
    fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>, Error> {
        Words::update(self, op, key, value)
    }
    fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool, Error> {
        Words::compare_and_set(self, op, key, expected, value)
    }
    fn for_each(&self, op: &Op<'_, M>, f: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        Words::for_each(self, op, f)
    }
    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>, Error> {
        Words::check(self, op)
    }
    fn sync(&self, op: &Op<'_, M>) {
        Words::sync(self, op).unwrap();
    }
    fn grow(&self, op: &Op<'_, M>) {
        self.map.grow(op);
    }
}

/// The bytes that stand for a value. In pages of 256 bytes they take a unit of one line, one of three, or one with one or three parts
/// of three.
pub fn long(value: u64) -> Vec<u8> {
    let len = [8, 120, 180, 400][value as usize % 4];
    let bytes = (0..).map(|at| value.wrapping_mul(31).wrapping_add(at) as u8);
    value.to_le_bytes().into_iter().chain(bytes.skip(8)).take(len).collect()
}

/// The value that bytes stand for.
pub fn short(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, long(value), "the bytes of no value");
    value
}

/// The bytes that stand for a key: none, a few, or many.
pub fn name(key: u64) -> Vec<u8> {
    match key {
        0 => Vec::new(),
        key => format!("{key}{}", "-".repeat(key as usize % 3 * 40)).into(),
    }
}

/// As [`name`], for as long as the process lives.
fn known_name(key: u64) -> &'static [u8] {
    static NAMES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| (0..1024).map(name).collect());
    names.get(key as usize).expect("tests have few keys")
}

/// The key that bytes stand for.
pub fn number(bytes: &[u8]) -> u64 {
    let digits: Vec<u8> = bytes.iter().copied().take_while(u8::is_ascii_digit).collect();
    let key = String::from_utf8(digits).unwrap().parse().unwrap_or(0);
    assert_eq!(bytes, name(key), "the bytes of no key");
    key
}

/// Maps with byte strings for values, whose keys are what `$key` makes of words, and back by `$number`. A macro, since keys of the two have
/// different types.
macro_rules! record_map {
    ([$($generic:tt)*] $map:ty, $key:expr, $number:expr, $small:expr, $grow:expr) => {
        impl<$($generic)*> Map<M> for $map {
            fn small() -> Self::Options {
                $small
            }
            fn last_fences() -> [u64; 3] {
                [3, 2, 4]
            }
            fn chunks() -> u64 {
                8
            }
            // More would not fit the records of two hashes.
            fn left() -> u64 {
                20
            }
            fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool, Error> {
                <$map>::insert(self, op, $key(key), &long(value))
            }
            fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>, Error> {
                let mut old = Vec::new();
                Ok(<$map>::take(self, op, $key(key), &mut old)?.then(|| short(&old)))
            }
            fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>, Error> {
                let mut value = Vec::new();
                Ok(<$map>::get(self, op, $key(key), &mut value)?.then(|| short(&value)))
            }
            fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>, Error> {
                let mut old = Vec::new();
                Ok(<$map>::replace(self, op, $key(key), &long(value), &mut old)?.then(|| short(&old)))
            }
            fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool, Error> {
                <$map>::compare_and_set(self, op, $key(key), &long(expected), &long(value))
            }
            fn for_each(&self, op: &Op<'_, M>, f: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
                <$map>::for_each(self, op, |key, value| f($number(key), short(value)))
            }
            fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>, Error> {
                <$map>::check(self, op)
            }
            fn grow(&self, op: &Op<'_, M>) {
                let grow: fn(&$map, &Op<'_, M>) = $grow;
                grow(self, op);
            }
        }
    };
}

record_map!([S: Tested<M, Options = Options> + RecordMap<M>, M: Medium] Blobs<S, M>, u64::from, u64::from, S::small(), |map, op| {
    map.words().grow(op);
});
// Every second key has the same hash.
record_map!([M: Medium] BytesHash<M>, known_name, number, small().hash_bits(1), |map, op| map.grow(op).unwrap());

/// An operation.
#[derive(Clone, Debug)]
pub enum Act {
    Insert(u64, u64),
    Remove(u64),
    Get(u64),
    Update(u64, u64),
    Cas(u64, u64, u64),
    /// The number of keys.
    Count,
    /// A walk over a map that keeps its keys in order: they have to ascend, beside any thread.
    Walk,
    /// By another session.
    Other(Box<Act>),
    /// The process dies at that fence of the operation, with everything in the caches; then the map is opened again, without
    /// a power failure. Whether the operation has had its effect by then.
    Killed(Box<Act>, u64, bool),
    /// Creates another map beside.
    Aside,
    /// Makes everything durable.
    Sync,
    /// Doubles the buckets of a hash table.
    Grow,
    /// An operation after which everything about its key is durable, although the map is buffered.
    Settling(Box<Act>),
}
use Act::{Aside, Cas, Count, Get, Grow, Insert, Killed, Other, Remove, Settling, Sync, Update, Walk};

pub type Contents = BTreeMap<u64, u64>;

pub fn run<M: Medium>(map: &impl Map<M>, op: &Op<'_, M>, act: &Act) -> Option<u64> {
    match *act {
        Insert(k, v) => map.insert(op, k, v).unwrap().then_some(v),
        Remove(k) => map.remove(op, k).unwrap(),
        Get(k) => map.get(op, k).unwrap(),
        Update(k, v) => map.update(op, k, v).unwrap(),
        Cas(k, e, v) => map.compare_and_set(op, k, e, v).unwrap().then_some(v),
        Sync => {
            map.sync(op);
            None
        }
        Grow => {
            map.grow(op);
            None
        }
        Count => {
            let mut count = 0;
            map.for_each(op, &mut |_, _| count += 1).unwrap();
            Some(count)
        }
        Walk => {
            let mut keys = Vec::new();
            map.for_each(op, &mut |k, _| keys.push(k)).unwrap();
            assert!(keys.is_sorted_by(|one, next| one < next), "a walk gave the keys {keys:?}");
            None
        }
        Settling(ref act) => run(map, op, act),
        Other(_) | Killed(..) | Aside => unreachable!("taken apart by the caller"),
    }
}

pub fn step(model: &mut Contents, act: &Act) -> Option<u64> {
    match act {
        Insert(k, _) if model.contains_key(k) => None,
        Insert(k, v) => {
            model.insert(*k, *v);
            Some(*v)
        }
        Remove(k) => model.remove(k),
        Get(k) => model.get(k).copied(),
        Count => Some(model.len() as u64),
        Update(k, v) => model.get_mut(k).map(|old| std::mem::replace(old, *v)),
        Cas(k, e, v) => model.get_mut(k).filter(|old| **old == *e).map(|old| {
            *old = *v;
            *v
        }),
        Other(act) | Settling(act) => step(model, act),
        Aside | Sync | Grow | Walk => None,
        Killed(act, _, happens) => {
            if *happens {
                step(model, act);
            }
            None
        }
    }
}

pub type Sim = Killable<Mutating<Simulated>>;

/// What is tested, and how.
pub struct UnderTest<S: Map<Sim>> {
    pub plan: &'static Plan,
    pub options: S::Options,
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Operations done before the ones under test.
    pub before: Vec<Act>,
    /// Whether the pool's chunks hold what another map has left in them.
    pub used_before: bool,
    /// Whether each word of the pool's chunks holds what means nothing.
    pub filled_before: bool,
    /// Whether there is a point to crash at after the last store of a recovery.
    pub fence_after_recovery: bool,
}

impl<S: Map<Sim>> Clone for UnderTest<S> {
    fn clone(&self) -> Self {
        UnderTest { options: self.options.clone(), before: self.before.clone(), ..*self }
    }
}

/// A map under test, whichever: the simulator is compiled once for all of them.
pub type AnyMap = AnyConcurrent<Act, Option<u64>, Contents, Contents>;

impl<S: Map<Sim>> UnderTest<S> {
    pub fn boxed(self) -> AnyMap {
        Box::new(self)
    }
}

pub struct Live<S: Map<Sim>> {
    session: Session<Sim>,
    other: Session<Sim>,
    map: Arc<S>,
    pool: Pool<Sim>,
}

/// Header, lanes and roots take two chunks, the allocator's table one.
const FIXED: u64 = 3;

impl<S: Map<Sim>> UnderTest<S> {
    pub fn new(plan: &'static Plan) -> Self {
        UnderTest {
            plan,
            options: S::small(),
            chunks: S::chunks(),
            chunk: 4096,
            before: Vec::new(),
            used_before: false,
            filled_before: false,
            fence_after_recovery: false,
        }
    }

    fn len(&self) -> u64 {
        (FIXED + self.chunks) * self.chunk
    }

    fn pool_options(&self) -> PoolOptions {
        let options =
            PoolOptions::new().chunk_size(self.chunk).lanes(1).max_indices(2).pool_id([7; 16]).boot_id([7; 16]);
        options.initial_size(self.len()).max_size(self.len())
    }

    /// Gives all chunks to an index, which leaves the same word everywhere and is dropped.
    fn fill(&self, pool: &Pool<Sim>) {
        drop(pool.open_structure::<S>("old", &self.options).unwrap());
        let owner = pool.indices().unwrap().into_iter().find(|index| index.name == "old").unwrap().owner;
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        while let Ok(reserved) = pool.space().reserve_extent(&op, owner, 1) {
            pool.space().activate(&op, reserved).unwrap();
            op.fence();
        }
        // Its own chunks, too: what it left there looks much like what comes.
        for extent in pool.space().extents(&op, owner) {
            let words = op.slice("a chunk", Off::<Word>::new(extent.off), extent.len / 8).unwrap();
            words.iter().for_each(|word| op.store(word, 0xA5A5_A5A5_A5A5_A541, std::sync::atomic::Ordering::Relaxed));
            op.write_back_slice(words);
        }
        op.fence();
        drop(op);
        pool.drop_index("old").unwrap();
    }

    fn live(&self, pool: Pool<Sim>) -> Result<Live<S>, String> {
        // Not the session that recovers the map: its fences must not do for what recovery has written back.
        let session = pool.session().map_err(|e| e.to_string())?;
        let map = pool.open_structure::<S>("map", &self.options).map_err(|e| e.to_string())?;
        let other = pool.session().map_err(|e| e.to_string())?;
        match pool.open_existing::<S>("aside", &self.options) {
            Ok(_) | Err(Error::Pool(PoolError::NoSuchIndex { .. })) => {}
            Err(error) => return Err(format!("the map beside: {error}")),
        }
        Ok(Live { session, other, map, pool })
    }
}

impl<S: Map<Sim>> Live<S> {
    fn reopen(&mut self, options: &S::Options) {
        // The first map has to go before its name can be opened again.
        let aside = self.pool.open_structure::<S>("aside", options).unwrap();
        let dead = std::mem::replace(&mut self.map, aside);
        // Nor does its process close it.
        self.pool.mapping().medium().dying(|| drop(dead));
        self.map = self.pool.open_structure::<S>("map", options).unwrap();
    }
}

impl<S: Map<Sim>> Subject for UnderTest<S> {
    type Op = Act;
    type Ret = Option<u64>;
    type State = Contents;
    type Model = Contents;
    type Store = (Simulated, Sim);
    type Live = Live<S>;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Killable::new(Mutating::new(medium, self.plan)))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live<S> {
        let backing = simulated.backing(0).with_limit(self.len());
        let pool = self.pool_options().create_on(backing, *medium).unwrap();
        if self.used_before {
            let old = pool.open_structure::<S>("old", &self.options).unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            (0..S::left()).for_each(|k| assert!(old.insert(&op, k, k + 1).unwrap()));
            drop((old, op));
            pool.drop_index("old").unwrap();
        }
        if self.filled_before {
            self.fill(&pool);
        }
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        if self.before.is_empty() {
            return live;
        }
        // Marks that were taken off links need not be durable, and each would double the number of states.
        let op = live.session.enter().unwrap();
        op.write_back_slice(op.slice("all", Off::<Word>::new(0), self.len() / 8).unwrap());
        op.fence();
        drop(op);
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live<S>, String> {
        let unrecovered =
            self.pool_options().open_on(simulated.backing(self.len()), *medium).map_err(|e| e.to_string())?;
        let mut live = self.live(unrecovered.recover().map_err(|e| e.to_string())?)?;
        match self.check(&mut live).as_slice() {
            [] => {
                if self.fence_after_recovery {
                    live.session.enter().map_err(|e| e.to_string())?.fence();
                }
                Ok(live)
            }
            findings => Err(format!("after recovery: {findings:?}")),
        }
    }

    fn apply(&self, live: &mut Live<S>, act: &Act) -> Option<u64> {
        match act {
            Other(act) => run(&*live.map, &live.other.enter().unwrap(), act),
            Killed(act, fence, _) => {
                let (session, act) = match &**act {
                    Other(act) => (&mut live.other, act),
                    _ => (&mut live.session, act),
                };
                let op = session.enter().unwrap();
                let died = op.medium().dying_at(*fence, || _ = run(&*live.map, &op, act));
                assert!(died, "the operation has fewer than {fence} fences");
                drop(op);
                live.reopen(&self.options);
                None
            }
            Aside => {
                live.pool.open_structure::<S>("aside", &self.options).unwrap();
                None
            }
            act => run(&*live.map, &live.session.enter().unwrap(), act),
        }
    }

    fn observe(&self, live: &mut Live<S>) -> Contents {
        let op = live.session.enter().unwrap();
        let mut map = Contents::new();
        live.map.for_each(&op, &mut |k, v| assert!(map.insert(k, v).is_none(), "a key twice")).unwrap();
        for (k, v) in &map {
            assert_eq!(live.map.get(&op, *k).unwrap(), Some(*v));
        }
        map
    }

    fn check(&self, live: &mut Live<S>) -> Vec<String> {
        let op = live.session.enter().unwrap();
        live.map.check(&op).unwrap().iter().map(ToString::to_string).collect()
    }

    fn model(&self) -> Contents {
        let mut model = Contents::new();
        for act in &self.before {
            step(&mut model, act);
        }
        model
    }

    fn step(&self, model: &mut Contents, act: &Act) -> Option<u64> {
        step(model, act)
    }

    fn expect(&self, model: &Contents) -> Contents {
        model.clone()
    }

    /// Buffered maps are so for each key.
    fn assemble(&self, models: &[Contents], state: &Contents) -> Option<Contents> {
        let mut keys = models.iter().flat_map(Contents::keys).chain(state.keys());
        let is_of_one = |key| models.iter().any(|model| model.get(key) == state.get(key));
        keys.all(is_of_one).then(|| state.clone())
    }

    fn is_sync(&self, act: &Act) -> bool {
        matches!(act, Sync | Settling(_))
    }
}

impl<S: Map<Sim>> Concurrent for UnderTest<S> {
    type Thread = (Session<Sim>, Arc<S>);

    fn thread(&self, live: &Live<S>, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), Arc::clone(&live.map))
    }

    fn run(&self, (session, map): &mut Self::Thread, act: &Act) -> Option<u64> {
        run(&**map, &session.enter().unwrap(), act)
    }
}

// ---- the upper levels of the skip list ----

/// A window of the upper levels.
pub struct Window {
    pub name: &'static str,
    /// Whether each word of the pool's chunks holds what means nothing.
    pub filled: bool,
    /// What is there before.
    pub before: Vec<Act>,
    pub acts: Vec<Act>,
    /// Follows each recovery, and is crashed, too. Where there is nothing, what follows is the caller's, and is not crashed.
    pub after: Option<Vec<Act>>,
}

fn put(k: u64) -> Act {
    Insert(k, k + 100)
}

fn others(keys: &[u64]) -> Vec<Act> {
    keys.iter().map(|k| Other(Box::new(put(*k)))).collect()
}

/// Windows of one thread. They know the heights: these are drawn by a generator of each session that starts anew when the
/// list is opened: in the first session 1, 2, 1, 1, 1, 4, 2, 3, 1, 1, 1, 1, 5, in the other 3, 4, 4, 1, 1, 3.
pub fn upper_levels() -> Vec<Window> {
    let dies_at_once = || Killed(Box::new(put(9)), 1, false);
    let dies = Killed(Box::new(Other(Box::new(put(20)))), 2, true);
    // Fifteen lines fill five pages: of the node with five levels the second line is on the sixth.
    let tall = [vec![put(30), put(31), dies_at_once()], (10..23).map(put).collect(), vec![dies_at_once()]].concat();
    vec![
        Window {
            // What led to 30 before 20 came between, and may still do so when the line of 30 is used again.
            name: "U2 U5 a stale upper link",
            filled: false,
            before: vec![put(10), put(30), put(40), put(50), put(60), Remove(40)],
            acts: vec![put(20), Remove(30), put(70)],
            after: None,
        },
        Window {
            name: "N5 a second line on a page of its own",
            filled: false,
            before: tall,
            acts: vec![Remove(21), Remove(22)],
            after: None,
        },
        Window {
            // The uppermost link to 20 is that of 5, and those below are of 10: recovery does not come by the first.
            name: "U8 an upper link of a dead process",
            filled: false,
            before: [others(&[10, 5, 30, 40]), vec![put(50), dies_at_once()], others(&[60])].concat(),
            acts: vec![dies, Remove(40), Remove(30), put(70)],
            after: None,
        },
        Window {
            // 20 has the last line of its page, so that no later search of the recovery writes back what leads to it; 19 gets
            // that line.
            name: "U6 a tower without its node",
            filled: false,
            before: vec![put(10), put(12), put(14), put(16), put(18)],
            acts: vec![put(20)],
            after: Some(vec![put(19)]),
        },
        Window {
            // The fence of the page is the only one that is left to who takes 10 out.
            name: "N5 a deleted node, taken out by who does nothing else",
            filled: false,
            before: vec![put(10), put(12)],
            acts: vec![Remove(10)],
            after: Some(vec![Remove(11)]),
        },
        Window {
            // The thirteenth node has five levels.
            name: "U1 a second line on space that was used",
            filled: true,
            before: (10..22).map(put).collect(),
            acts: vec![put(15 + 100)],
            after: None,
        },
    ]
}

/// A name, what is there before, and what each of five threads does.
pub type Towers = (&'static str, Vec<Act>, [Vec<Act>; 5]);

/// LF-U2: one thread inserts behind a node that is on level 0, and not durably on level 1, while its insert is under way; and on
/// level 2. What is there before, and the program. What the node's level 1 says is found by the one who inserts, or by
/// a third thread that does nothing else. (The heights of a session's nodes go by its number: the second thread draws two
/// levels, the fifth one five.)
pub fn behind_a_resolved_tower() -> [Towers; 2] {
    // 12 has one level, 10 has two: the links on both levels to 14 lie in different nodes.
    let before = || vec![put(12), put(10)];
    let program = |third: &[Act]| [vec![], vec![put(14)], third.to_vec(), vec![], vec![put(16)]];
    [
        ("behind a tower that was resolved", before(), program(&[])),
        ("behind a tower that a third has resolved", before(), program(&[Remove(15)])),
    ]
}

/// LF-U2: one thread inserts behind the node that another is about to insert, which it has reached by an upper link. What is
/// there before, and the program.
pub fn behind_a_rising_tower() -> (Vec<Act>, [Vec<Act>; 2]) {
    (vec![put(1), put(5)], [vec![put(4)], vec![put(3)]])
}
