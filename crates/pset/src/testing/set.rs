//! A set in a small pool, with a map as its model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::set::hash_word;
use crate::{Batch, Error, PersistentSet, SetOptions};
use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Error as PoolError, Killable, Mutating, Off, Op, Plan, Pool, PoolOptions, Session, Word};

use Act::*;

/// The medium.
pub type M = Killable<Mutating<Simulated>>;

/// An operation. Keys and values are numbers that stand for bytes, see [`key`] and [`value`].
#[derive(Clone, Debug)]
pub enum Act {
    /// Inserts, or replaces the value.
    Put(u8, u8),
    /// Inserts if the key is not there.
    PutNew(u8, u8),
    /// Removes.
    Remove(u8),
    /// Changes a value from one to another.
    Swap(u8, Option<u8>, Option<u8>),
    /// Changes several keys at once.
    Commit(Vec<(u8, Option<u8>)>),
    /// An operation that the full pool has to refuse.
    Refused(Box<Act>),
    /// An operation by another session.
    Other(Box<Act>),
    /// An operation in which the process dies, with all of it in the caches and nothing written back; the set is opened
    /// again without a power failure.
    Killed(Box<Act>),
}

/// The bytes of a key: 8 bytes for most; from 100 on it reaches beyond line 0, from 200 on beyond line 1.
pub fn key(k: u8) -> Vec<u8> {
    match k {
        0..100 => vec![k; 8],
        100..200 => vec![k; 60],
        200..HIDDEN => vec![k; 130],
        _ => vec![k; 8],
    }
}

/// The bytes of a value: one line with the short keys, two lines from 100 on, four from 200 on.
pub fn value(v: u8) -> Vec<u8> {
    match v {
        0..100 => vec![v; 12],
        100..200 => vec![v; 88],
        _ => vec![v; 200],
    }
}

/// What is tested, and how.
#[derive(Clone)]
pub struct SetUnderTest {
    /// The mutations.
    pub plan: &'static Plan,
    /// The set's options.
    pub options: SetOptions,
    /// Chunks of 4 KiB that sets can use.
    pub chunks: u64,
    /// Operations done before the ones under test.
    pub before: Vec<Act>,
    /// Operations on [hidden](HIDDEN) keys that follow each recovery as a part of it, so that crashes come in them, too.
    pub in_recovery: Vec<Act>,
    /// Whether the pool's chunks hold what another set has left in them.
    pub used_before: bool,
    /// Whether each crash also takes the pool's table of space, and what can be read is read.
    pub table_is_lost: bool,
}

/// Keys from here on are not observed.
pub const HIDDEN: u8 = 240;

/// A set at work.
pub struct Live {
    session: Session<M>,
    other: Session<M>,
    set: Arc<PersistentSet<M>>,
    pool: Pool<M>,
}

/// What is observed.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const CHUNK: u64 = 4096;
/// Header, lanes and roots take two chunks.
const TABLE: u64 = 2;
/// Then comes the allocator's table, in one.
const FIXED: u64 = TABLE + 1;

impl Default for SetUnderTest {
    fn default() -> Self {
        Self::new()
    }
}

impl SetUnderTest {
    /// A set in a small pool.
    pub fn new() -> Self {
        let options = SetOptions::default().shards(1).recovery_threads(1);
        SetUnderTest {
            plan: Plan::new(),
            options,
            chunks: 6,
            before: Vec::new(),
            in_recovery: Vec::new(),
            used_before: false,
            table_is_lost: false,
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
        // Not the session that recovers the set: its fences must not do for what recovery has written back.
        let session = pool.session().map_err(|e| e.to_string())?;
        let set = PersistentSet::open_with(&pool, "set", &self.options).map_err(|e| e.to_string())?;
        let other = pool.session().map_err(|e| e.to_string())?;
        Ok(Live { session, other, set, pool })
    }
}

impl SetUnderTest {
    /// The set of a pool whose table of space is zeroed.
    fn without_table(&self, pool: Pool<M>) -> Result<Live, String> {
        let mut session = pool.session().map_err(|e| e.to_string())?;
        let op = session.enter().map_err(|e| e.to_string())?;
        let table = op.at(Off::<[Word; CHUNK as usize / 8]>::new(TABLE * CHUNK));
        table.iter().for_each(|word| op.store(word, 0, Relaxed));
        drop(op);
        let options = self.options.clone().salvage(true);
        SetUnderTest { options, ..self.clone() }.live(pool)
    }
}

impl Live {
    fn reopen(&mut self, options: &SetOptions) {
        // The first set has to go before its name can be opened again.
        let aside = PersistentSet::open_with(&self.pool, "aside", options).unwrap();
        drop(std::mem::replace(&mut self.set, aside));
        self.set = PersistentSet::open_with(&self.pool, "set", options).unwrap();
    }
}

impl Live {
    pub(super) fn set(&self) -> Arc<PersistentSet<M>> {
        Arc::clone(&self.set)
    }

    pub(super) fn pool(&self) -> Pool<M> {
        self.pool.clone()
    }
}

impl Act {
    /// The keys that it names.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        match self {
            Act::Put(k, _) | Act::PutNew(k, _) | Act::Remove(k) | Act::Swap(k, ..) => vec![key(*k)],
            Act::Commit(changes) => changes.iter().map(|(k, _)| key(*k)).collect(),
            Act::Refused(act) | Act::Other(act) | Act::Killed(act) => act.keys(),
        }
    }

    pub(super) fn run(&self, set: &PersistentSet<M>, op: &Op<'_, M>) -> Result<bool, Error> {
        match self {
            Act::Put(k, v) => set.insert(op, &key(*k), &value(*v)),
            Act::PutNew(k, v) => set.insert_if_absent(op, &key(*k), &value(*v)),
            Act::Remove(k) => set.remove(op, &key(*k)),
            Act::Swap(k, a, b) => set.compare_and_set(op, &key(*k), a.map(value).as_deref(), b.map(value).as_deref()),
            Act::Commit(changes) => {
                let mut batch = Batch::new();
                for (k, v) in changes {
                    match v {
                        Some(v) => batch.insert(&key(*k), &value(*v)),
                        None => batch.remove(&key(*k)),
                    };
                }
                set.commit(op, &batch).map(|()| true)
            }
            Act::Refused(act) => match act.run(set, op) {
                Err(Error::Pool(PoolError::Full { .. })) => Ok(false),
                other => panic!("{other:?} instead of a refusal"),
            },
            Act::Other(_) | Act::Killed(_) => unreachable!("taken apart by the caller"),
        }
    }
}

pub(super) fn step(model: &mut Map, act: &Act) -> bool {
    match act {
        Act::Put(k, v) => model.insert(key(*k), value(*v)).is_none(),
        Act::PutNew(k, v) => {
            let new = !model.contains_key(&key(*k));
            model.entry(key(*k)).or_insert_with(|| value(*v));
            new
        }
        Act::Remove(k) => model.remove(&key(*k)).is_some(),
        Act::Swap(k, a, b) => {
            let matches = model.get(&key(*k)) == a.map(value).as_ref();
            match b {
                _ if !matches => {}
                Some(b) => drop(model.insert(key(*k), value(*b))),
                None => drop(model.remove(&key(*k))),
            }
            matches
        }
        Act::Commit(changes) => {
            for (k, v) in changes {
                match v {
                    Some(v) => drop(model.insert(key(*k), value(*v))),
                    None => drop(model.remove(&key(*k))),
                }
            }
            true
        }
        Act::Refused(_) => false,
        Act::Other(act) | Act::Killed(act) => step(model, act),
    }
}

impl Subject for SetUnderTest {
    type Op = Act;
    type Ret = bool;
    type State = Map;
    type Model = Map;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Killable::new(Mutating::new(medium, self.plan)))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let backing = simulated.backing(0).with_limit(self.len());
        let pool = self.pool_options().create_on(backing, *medium).unwrap();
        assert_eq!(pool.mapping().len(), self.len());
        if self.used_before {
            let old = PersistentSet::open_with(&pool, "old", &self.options).unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            (0..20).for_each(|k| assert!(old.insert(&op, &key(50 + k), &value(k)).unwrap()));
            drop((old, op));
            pool.drop_index("old").unwrap();
        }
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let unrecovered =
            self.pool_options().open_on(simulated.backing(self.len()), *medium).map_err(|e| e.to_string())?;
        let pool = unrecovered.recover().map_err(|e| e.to_string())?;
        if self.table_is_lost {
            return self.without_table(pool);
        }
        let mut live = self.live(pool)?;
        for act in &self.in_recovery {
            self.apply(&mut live, act);
        }
        Ok(live)
    }

    fn apply(&self, live: &mut Live, act: &Act) -> bool {
        match act {
            Act::Other(act) => act.run(&live.set, &live.other.enter().unwrap()),
            Act::Killed(act) => {
                let op = live.session.enter().unwrap();
                let answer = op.medium().dying(|| act.run(&live.set, &op));
                drop(op);
                live.reopen(&self.options);
                answer
            }
            act => act.run(&live.set, &live.session.enter().unwrap()),
        }
        .unwrap()
    }

    fn observe(&self, live: &mut Live) -> Map {
        let op = live.session.enter().unwrap();
        let mut map = Map::new();
        live.set.for_each(&op, |k, v| assert!(map.insert(k.to_vec(), v.to_vec()).is_none(), "a key twice")).unwrap();
        for (k, v) in &map {
            assert_eq!(live.set.get_vec(&op, k).unwrap().as_ref(), Some(v));
        }
        map.retain(|k, _| k.first().is_none_or(|b| *b < HIDDEN));
        map
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        let findings = live.set.check(&op).unwrap();
        // Without a table the check reports that.
        findings.iter().filter(|_| !self.table_is_lost).map(ToString::to_string).collect()
    }

    fn model(&self) -> Map {
        let mut model = Map::new();
        for act in &self.before {
            step(&mut model, act);
        }
        model
    }

    fn step(&self, model: &mut Map, act: &Act) -> bool {
        step(model, act)
    }

    fn expect(&self, model: &Map) -> Map {
        model.clone()
    }
}

/// What follows every recovery of a scenario.
pub fn follows(subject: &SetUnderTest) -> Vec<Act> {
    match subject {
        // Its chunks look free: nothing may be written to it.
        SetUnderTest { table_is_lost: true, .. } => Vec::new(),
        SetUnderTest { chunks: ..3, .. } => vec![Remove(12), Put(13, 3)],
        _ => after(),
    }
}

/// Follows every recovery: reuses slots, brings keys back, removes some.
pub fn after() -> Vec<Act> {
    let both = Commit(vec![(2, Some(6)), (0, None)]);
    vec![Put(1, 9), Remove(0), Put(2, 9), Put(0, 8), Remove(1), Put(3, 7), both, Put(4, 1)]
}

/// A transaction on two keys.
pub fn pair(a: u8, b: u8) -> Act {
    Commit(vec![(0, Some(a)), (1, Some(b))])
}

/// The short keys of a shard, of two.
pub fn keys_of(shard: u64) -> Vec<u8> {
    (0..100).filter(|k| hash_word(u64::from_le_bytes([*k; 8]), SetOptions::default().seed) & 1 == shard).collect()
}

/// Sets of two shards in a pool that one class has filled, so that a shard has to take the slots of the other.
pub fn scenarios_of_two_shards(plan: &'static Plan) -> Vec<(&'static str, SetUnderTest, Vec<Act>, Vec<Act>)> {
    let options = SetOptions::default().shards(2).recovery_threads(1);
    let tiny = SetUnderTest { plan, options, chunks: 1, ..SetUnderTest::new() };
    let (a, b) = (keys_of(0), keys_of(1));
    let fill = |keys: &[u8], value| keys.iter().map(|k| Put(*k, value)).collect::<Vec<_>>();
    let refused = |act| Refused(Box::new(act));
    // 63 slots of one line: 16 for the first shard, which asks first, and 47 for the other. That one has a tombstone of its
    // first key, and an older entry.
    let (first, second) = (fill(&a[..16], 1), fill(&b[..46], 1));
    let with_tombstone = vec![Put(b[0], 2), Remove(b[0])];
    let full = SetUnderTest { before: [first.clone(), second, with_tombstone].concat(), ..tiny.clone() };
    let both = || Commit(vec![(a[16], Some(1)), (a[17], Some(2))]);
    let three = Commit((16..19).map(|k| (a[k], Some(1))).collect());
    // The tombstone is all that the other has.
    let again = vec![Put(b[0], 2), Remove(b[0]), Put(b[46], 1)];
    let one = SetUnderTest { before: [first, fill(&b[..46], 1), again].concat(), ..tiny.clone() };
    // 31 slots of two lines: 8, and 23. The other has a slot left over from its ninth entry, whose version comes next here.
    let lines = [fill(&a[..8], 150), fill(&b[..22], 150), vec![Put(b[8], 151)]].concat();
    let lines = SetUnderTest { before: lines, ..tiny };
    // After every recovery: a removal makes room in the one shard or the other.
    let then = |value| vec![Remove(a[0]), Remove(b[1]), Put(b[0], value), Put(a[16], value)];
    let moves = vec![Put(a[16], 3), Put(a[17], 4), refused(Put(a[18], 5)), Remove(a[0])];
    let there_and_back = vec![Put(a[16], 3), Remove(a[16]), Put(b[0], 4), Put(b[46], 5)];
    let transaction = vec![both(), refused(Put(b[0], 4)), Remove(a[16]), Put(b[0], 4)];
    let too_few = vec![refused(three), Put(b[0], 4), Put(b[1], 5), Put(a[16], 6)];
    let one_too_few = vec![refused(both()), Put(b[0], 4), Remove(b[0]), Put(a[16], 6)];
    vec![
        ("slots of another shard", full.clone(), moves, then(7)),
        ("slots of another shard, and back", full.clone(), there_and_back, then(7)),
        ("slots of another shard, transaction", full.clone(), transaction, then(7)),
        ("slots of another shard, too few", full, too_few, then(7)),
        ("a slot of another shard, too few", one.clone(), one_too_few, then(7)),
        ("a slot of another shard, given back", one, vec![refused(both())], then(7)),
        ("lines of another shard", lines, vec![Put(a[8], 152), Remove(a[8]), Put(b[22], 153)], then(154)),
    ]
}

/// Short runs that reach every site: one for each thing that can go wrong.
pub fn scenarios(plan: &'static Plan) -> Vec<(&'static str, SetUnderTest, Vec<Act>)> {
    let plain = SetUnderTest { plan, ..SetUnderTest::new() };
    let used = SetUnderTest { used_before: true, ..plain.clone() };
    let without_table = SetUnderTest { table_is_lost: true, ..plain.clone() };
    let hidden = vec![Commit(vec![(250, Some(1)), (251, Some(1))]), Commit(vec![(250, Some(2)), (251, Some(2))])];
    let committing = SetUnderTest { in_recovery: hidden, ..plain.clone() };
    // The class of one line is full; an older value of key 0 lies in another class, as an entry of a transaction.
    let before = [pair(150, 151), Put(0, 1)].into_iter().chain((10..72).map(|k| Put(k, 1))).collect();
    let full = SetUnderTest { chunks: 2, before, ..plain.clone() };
    // One chunk is left: a transaction takes it for one class, and finds none for the other.
    let last = SetUnderTest { chunks: 1, ..plain.clone() };
    let refused = Refused(Box::new(Commit(vec![(0, Some(1)), (1, Some(150))])));
    let killed = |act| Killed(Box::new(act));
    // In one fence: a process that dies in an operation of several has gone through the earlier ones.
    let death = vec![Put(2, 150), Put(0, 1), killed(Put(0, 2)), Put(1, 3), killed(Put(1, 151)), Remove(1), Put(3, 4)];
    // Some of them go to the last slot of a chunk.
    let before = (10..72).map(|k| Put(k, 1)).collect();
    let nearly_full = SetUnderTest { before, ..plain.clone() };
    let last_slots = vec![Put(0, 1)];
    let by_other = |act| Other(Box::new(act));
    let begun = SetUnderTest { before: vec![Put(0, 1), Put(0, 2)], ..plain.clone() };
    let one_of_a_class = SetUnderTest { before: vec![Put(0, 150)], ..plain.clone() };
    let one_transaction = SetUnderTest { before: vec![pair(1, 2)], ..plain.clone() };
    let lines = vec![Put(100, 150), Put(100, 151), Put(101, 152), Remove(100), Put(200, 150), Put(201, 151)];
    vec![
        ("reuse", plain.clone(), vec![Put(0, 1), Put(0, 2), Put(1, 3), Put(1, 4), Remove(0), Put(2, 5), Put(0, 6)]),
        ("lines", plain.clone(), lines),
        ("classes", plain.clone(), vec![Put(0, 150), Remove(0), Put(1, 1), Put(2, 2), Put(3, 3)]),
        ("transactions", plain.clone(), vec![pair(1, 2), Put(0, 3), Put(0, 4), Put(0, 5), pair(6, 7), pair(8, 150)]),
        ("process death", plain.clone(), death),
        (
            "process death, watermark",
            plain.clone(),
            vec![pair(1, 2), Put(0, 3), killed(Put(0, 4)), Put(0, 5), Put(0, 6)],
        ),
        ("reuse, begun before", begun, vec![Put(1, 3), Put(1, 4), Put(2, 5), Put(0, 6)]),
        ("the last of a class goes", one_of_a_class, vec![Remove(0), Put(1, 1), Put(2, 2)]),
        ("process death after a transaction", one_transaction, vec![Put(0, 3), killed(Put(0, 4)), Put(0, 5)]),
        ("last slots", nearly_full, last_slots),
        ("the table of space is lost", without_table, vec![Put(0, 1), Put(1, 2)]),
        ("used space", used, vec![Put(0, 1), Put(0, 150), pair(1, 2)]),
        ("full pool", full, vec![Remove(0), Remove(10), Put(11, 2), Remove(1)]),
        ("last chunk", last, vec![refused, by_other(Put(2, 1)), Put(3, 1)]),
        ("recovered transactions", committing, vec![pair(150, 151), Put(0, 3)]),
    ]
}
