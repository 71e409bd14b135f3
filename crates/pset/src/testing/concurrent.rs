//! A persistent set in a small pool, as a subject for concurrent programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Batch, PersistentSet, SetOptions};
use durix_crashsim::{Concurrent, Simulated, Subject};
use durix_pmem::{Mutating, Op, Plan, Pool, PoolOptions, Session, Unsettled};

type M = Mutating<Simulated>;
type Map = BTreeMap<u8, u8>;

/// Keys and values are numbers that stand for eight, and twelve or (from 100 on) ninety bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Put(u8, u8),
    /// Inserts if the key is not there.
    PutNew(u8, u8),
    Remove(u8),
    Get(u8),
    /// Inserts or replaces, settled later, and waits for the ticket.
    PutLater(u8, u8),
    /// Removes, settled later, and waits for the ticket.
    RemoveLater(u8),
    /// Reads, with a ticket that is waited for.
    GetLater(u8),
    /// Inserts or replaces, settled later, and drops the ticket.
    PutDropped(u8, u8),
    /// Changes two keys at once.
    Both(u8, u8, u8),
}
use Act::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// Whether something was changed, or was there.
    Yes(bool),
    Value(Option<u8>),
}

fn key(k: u8) -> [u8; 8] {
    [k; 8]
}

fn value(v: u8) -> Vec<u8> {
    vec![v; if v < 100 { 12 } else { 90 }]
}

/// The set under test.
#[derive(Clone)]
pub struct SetUnderTest {
    /// The mutations.
    pub plan: &'static Plan,
    /// Into how many parts the set is divided.
    pub shards: usize,
    /// What is there before the threads start.
    pub before: Vec<Act>,
}

const CHUNK: u64 = 4096;
const LEN: u64 = 9 * CHUNK;

/// The set at work.
pub struct Live {
    session: Session<M>,
    set: Arc<PersistentSet<M>>,
    pool: Pool<M>,
}

impl SetUnderTest {
    /// A set of one shard, in which `before` was done.
    pub fn new(before: &[Act]) -> Self {
        SetUnderTest { plan: Plan::new(), shards: 1, before: before.to_vec() }
    }

    /// The pool cannot grow: growth passes the medium by.
    fn options(&self) -> PoolOptions {
        let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).pool_id([7; 16]).boot_id([7; 16]);
        options.initial_size(LEN).max_size(LEN)
    }

    fn live(&self, pool: Pool<M>) -> Result<Live, String> {
        let session = pool.session().map_err(|e| e.to_string())?;
        let options = SetOptions::default().shards(self.shards).recovery_threads(1);
        let set = PersistentSet::open_with(&pool, "set", &options).map_err(|e| e.to_string())?;
        Ok(Live { session, set, pool })
    }
}

impl Act {
    /// The same in a session, with or without a ticket.
    fn run_in(&self, session: &mut Session<M>, set: &PersistentSet<M>) -> Answer {
        if !matches!(self, PutLater(..) | RemoveLater(_) | GetLater(_) | PutDropped(..)) {
            return self.run(set, &session.enter().unwrap());
        }
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        let answer = self.run(set, &op);
        let mut ticket = op.finish();
        if !matches!(self, PutDropped(..)) {
            set.root().pool().wait(session, &mut ticket).unwrap();
        }
        answer
    }

    fn run(&self, set: &PersistentSet<M>, op: &Op<'_, M>) -> Answer {
        match *self {
            Put(k, v) | PutLater(k, v) | PutDropped(k, v) => Answer::Yes(set.insert(op, &key(k), &value(v)).unwrap()),
            PutNew(k, v) => Answer::Yes(set.insert_if_absent(op, &key(k), &value(v)).unwrap()),
            Remove(k) | RemoveLater(k) => Answer::Yes(set.remove(op, &key(k)).unwrap()),
            Get(k) | GetLater(k) => Answer::Value(set.get_vec(op, &key(k)).unwrap().map(|found| {
                assert_eq!(found, value(found[0]), "half a value");
                found[0]
            })),
            Both(a, b, v) => {
                let mut batch = Batch::new();
                batch.insert(&key(a), &value(v));
                batch.insert(&key(b), &value(v));
                set.commit(op, &batch).unwrap();
                Answer::Yes(true)
            }
        }
    }
}

fn step(model: &mut Map, act: &Act) -> Answer {
    match *act {
        Put(k, v) | PutLater(k, v) | PutDropped(k, v) => Answer::Yes(model.insert(k, v).is_none()),
        PutNew(k, v) => {
            let new = !model.contains_key(&k);
            model.entry(k).or_insert(v);
            Answer::Yes(new)
        }
        Remove(k) | RemoveLater(k) => Answer::Yes(model.remove(&k).is_some()),
        Get(k) | GetLater(k) => Answer::Value(model.get(&k).copied()),
        Both(a, b, v) => {
            model.extend([(a, v), (b, v)]);
            Answer::Yes(true)
        }
    }
}

impl Subject for SetUnderTest {
    type Op = Act;
    type Ret = Answer;
    type State = Map;
    type Model = Map;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.plan))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = self.options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap();
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let backing = simulated.backing(LEN);
        let unrecovered = self.options().open_on(backing, *medium).map_err(|e| e.to_string())?;
        self.live(unrecovered.recover().map_err(|e| e.to_string())?)
    }

    fn apply(&self, live: &mut Live, act: &Act) -> Answer {
        act.run_in(&mut live.session, &live.set)
    }

    fn observe(&self, live: &mut Live) -> Map {
        let op = live.session.enter().unwrap();
        let mut map = Map::new();
        live.set
            .for_each(&op, |k, v| {
                assert_eq!((k, v), (&key(k[0])[..], &value(v[0])[..]), "half an entry");
                assert!(map.insert(k[0], v[0]).is_none(), "a key twice");
            })
            .unwrap();
        map
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        live.set.check(&op).unwrap().iter().map(ToString::to_string).collect()
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

impl Concurrent for SetUnderTest {
    type Thread = (Session<M>, Arc<PersistentSet<M>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), Arc::clone(&live.set))
    }

    fn run(&self, (session, set): &mut Self::Thread, act: &Act) -> Answer {
        act.run_in(session, set)
    }
}

/// Follows every recovery: reuses slots, brings keys back, removes some.
pub fn after() -> Vec<Act> {
    vec![Put(1, 9), Remove(0), Put(2, 9), Put(0, 8), Get(1)]
}
