//! Any kind of index in a small simulated pool, with an operation for each of its entry points.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

use durix::kind::{self, Entry};
use durix::{Batch, Direction, Index, KeyRange, Lengths};
use durix_crashsim::{Concurrent, Contract, Explorer, Simulated, Subject};
use durix_pmem::backing::Backing;
use durix_pmem::pool::{Durability, State as PoolState};
use durix_pmem::{Mutating, Op, Plan, Pool, PoolOptions, Session};

use Act::*;

/// The medium.
pub type M = Mutating<Simulated>;

/// Keys and values, as the numbers that stand for them.
pub type Pairs = BTreeMap<u8, u8>;

/// All kinds.
pub fn kinds() -> Vec<Entry<M>> {
    kind::kinds()
}

/// An operation. Keys and values are numbers that stand for bytes.
#[derive(Clone, Debug)]
pub enum Act {
    /// Maps a key to a value, whatever it was mapped to.
    Put(u8, u8),
    /// The same if the key is not there.
    PutNew(u8, u8),
    /// The same if it is there.
    Update(u8, u8),
    /// Removes a key.
    Remove(u8),
    /// Changes a key from one value to another.
    Swap(u8, Option<u8>, Option<u8>),
    /// Several changes in one call.
    Apply(Vec<(u8, Option<u8>)>),
    /// Looks a key up.
    Get(u8),
    /// Whether a key is there.
    Contains(u8),
    /// Looks several keys up in one call.
    GetMany(Vec<u8>),
    /// The number of keys.
    Len,
    /// Whether there is none.
    IsEmpty,
    /// The number of keys, by the numbers about the index.
    Stats,
    /// Looks for inconsistencies; there must be none.
    Check,
    /// Writes all of it, for people.
    Dump,
    /// All pairs.
    Walk,
    /// The smallest key.
    First,
    /// The largest key.
    Last,
    /// The keys from one to before another, upwards or downwards.
    Range(u8, u8, Direction),
    /// All keys, by the prefix that they share.
    Prefix(Direction),
    /// Makes everything durable.
    Sync,
    /// The index is closed and opened again, in the same pool.
    Reopen,
    /// The pool is closed.
    Close,
    /// By another session.
    Other(Box<Act>),
}

/// What an operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Whether it did something, or found something.
    Done(bool),
    /// A number of keys.
    Count(u64),
    /// Pairs, in the order of the call; in that of keys where there is none.
    Found(Vec<(u8, u8)>),
}
use Answer::{Count, Done, Found};

/// The index, and whether its pool says that it was closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    /// Its contents.
    pub pairs: Pairs,
    /// Whether the pool was closed, if that matters.
    pub closed: bool,
}

/// What is tested, and how.
#[derive(Clone)]
pub struct Kind {
    /// The kind.
    pub entry: Entry<M>,
    /// The mutations.
    pub plan: &'static Plan,
    /// Done before what is tested, and durable.
    pub before: Vec<Act>,
    /// How many other indices stand before it in the table of roots, so that its words and its first space lie elsewhere.
    pub neighbours: u32,
    /// Whether an index of the kind was there before, and was dropped: what it has left is in the chunks that are used next.
    pub used_before: bool,
    /// Whether it matters that the pool was closed.
    pub closing: bool,
    /// Whether memory is used again as soon as nobody can hold it. Otherwise the log-free kinds collect 256 objects first.
    pub reuses_at_once: bool,
}

/// An index at work.
pub struct Live {
    session: Session<M>,
    other: Session<M>,
    /// `None` once the pool is closed.
    index: Option<Arc<dyn Index<M>>>,
    pool: Pool<M>,
    closed: bool,
}

const CHUNK: u64 = 16 << 10;
const LEN: u64 = 128 * CHUNK;

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(4).pool_id([7; 16]).boot_id([7; 16]);
    options.initial_size(LEN).max_size(LEN)
}

impl Kind {
    /// An index of a kind; these operations come before what is tested.
    pub fn new(entry: Entry<M>, before: &[Act]) -> Self {
        Kind {
            entry,
            plan: Plan::new(),
            before: before.to_vec(),
            neighbours: 0,
            used_before: false,
            closing: false,
            reuses_at_once: false,
        }
    }

    /// How it is explored: by its contract.
    pub fn explorer(&self) -> Explorer {
        Explorer::new().executions_per_point(60).samples(12).contract(match self.entry.durability {
            Durability::Strict => Contract::Strict,
            _ => Contract::Buffered,
        })
    }

    /// Every entry point that reads, and every one that writes, on `key` and its neighbours.
    pub fn looks(&self, key: u8) -> Vec<Act> {
        let mut looks = vec![
            Get(key),
            Contains(key),
            GetMany(vec![key, key + 1, key - 1]),
            Len,
            IsEmpty,
            Stats,
            Check,
            Dump,
            Walk,
            Put(key, 91),
            PutNew(key, 92),
            Update(key, 93),
            Remove(key),
            Swap(key, Some(1), Some(94)),
            Swap(key, None, Some(95)),
            Apply(vec![(key, Some(96)), (key + 1, None), (key + 2, Some(97))]),
            Sync,
            Reopen,
        ];
        if self.entry.ordered {
            let both = [Direction::Forward, Direction::Backward];
            looks.extend([First, Last]);
            looks.extend(both.map(|direction| Range(key - 1, key + 2, direction)));
            looks.extend(both.map(Prefix));
        }
        looks
    }

    fn key(&self, k: u8) -> Vec<u8> {
        match self.entry.limits.key {
            Lengths::Exactly(len) => [&vec![0; len - 1][..], &[k]].concat(),
            // Some keys are longer than what fits beside their entry.
            Lengths::UpTo(_) if k >= 100 => [&b"a prefix that is shared by the long keys"[..], &[k]].concat(),
            Lengths::UpTo(_) => vec![0, k],
        }
    }

    fn value(&self, v: u8) -> Vec<u8> {
        match self.entry.limits.value {
            Lengths::Exactly(len) => [&vec![0; len - 1][..], &[v]].concat(),
            Lengths::UpTo(_) => vec![v; [8, 40, 120][v as usize % 3]],
        }
    }

    fn live(&self, pool: Pool<M>) -> Result<Live, String> {
        if self.reuses_at_once {
            pool.mapping().limit_generations(1);
        }
        // Not the session that recovers the index: its fences must not do for what recovery has written back.
        let session = pool.session().map_err(|e| e.to_string())?;
        let index = self.entry.open_or_create(&pool, "it").map_err(|e| e.to_string())?;
        let other = pool.session().map_err(|e| e.to_string())?;
        Ok(Live { session, other, index: Some(index), pool, closed: false })
    }

    /// Fills an index, and drops it.
    fn leave_traces(&self, pool: &Pool<M>) {
        let mut session = pool.session().unwrap();
        let index = self.entry.open_or_create(pool, "dropped").unwrap();
        for number in 0..40 {
            index.insert(&session.enter().unwrap(), &self.key(number), &self.value(90 + number)).unwrap();
        }
        index.sync(&mut session).unwrap();
        drop((index, session));
        pool.drop_index("dropped").unwrap();
    }

    fn run(&self, index: &dyn Index<M>, session: &mut Session<M>, act: &Act) -> Answer {
        match act {
            Len => Count(index.count(session).unwrap()),
            Stats => Count(index.stats(session).unwrap().keys),
            Check => Found(index.check(session).unwrap().iter().map(|finding| panic!("{finding}")).collect()),
            Sync => Done(index.sync(session).is_ok()),
            act => self.run_in(index, &session.enter().unwrap(), act),
        }
    }

    fn run_in(&self, index: &dyn Index<M>, op: &Op<'_, M>, act: &Act) -> Answer {
        let (key, value) = (|k: &u8| self.key(*k), |v: &u8| self.value(*v));
        match act {
            Put(k, v) => Done(index.insert(op, &key(k), &value(v)).unwrap()),
            PutNew(k, v) => Done(index.insert_if_absent(op, &key(k), &value(v)).unwrap()),
            Update(k, v) => Done(index.update(op, &key(k), &value(v)).unwrap()),
            Remove(k) => Done(index.remove(op, &key(k)).unwrap()),
            Swap(k, a, b) => {
                let [a, b] = [a, b].map(|v| v.as_ref().map(value));
                Done(index.compare_and_set(op, &key(k), a.as_deref(), b.as_deref()).unwrap())
            }
            Apply(changes) => Done(index.apply(op, &self.batch(changes)).is_ok()),
            Get(k) => Found(index.get_vec(op, &key(k)).unwrap().iter().map(|v| (*k, v[v.len() - 1])).collect()),
            Contains(k) => Done(index.contains(op, &key(k)).unwrap()),
            GetMany(keys) => self.get_many(index, op, keys),
            IsEmpty => Done(index.is_empty(op).unwrap()),
            Dump => Done(index.dump(op, &mut String::new()).is_ok()),
            other => Found(self.walk(index, op, other)),
        }
    }

    fn batch(&self, changes: &[(u8, Option<u8>)]) -> Batch {
        let mut batch = Batch::new();
        for (k, v) in changes {
            match v {
                Some(v) => batch.insert(&self.key(*k), &self.value(*v)),
                None => batch.remove(&self.key(*k)),
            };
        }
        batch
    }

    fn get_many(&self, index: &dyn Index<M>, op: &Op<'_, M>, numbers: &[u8]) -> Answer {
        let keys: Vec<_> = numbers.iter().map(|k| self.key(*k)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = Vec::new();
        let mut note = |at: usize, value: Option<&[u8]>| found.extend(value.map(|v| (numbers[at], v[v.len() - 1])));
        index.get_many(op, &keys, &mut note).unwrap();
        found.sort_unstable();
        Found(found)
    }

    /// What a cursor gives; in the order of keys where the kind keeps none.
    fn walk(&self, index: &dyn Index<M>, op: &Op<'_, M>, act: &Act) -> Vec<(u8, u8)> {
        let ordered = || index.as_ordered().expect("is ordered");
        let (mut key, mut value, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let one = |key: &[u8], value: &[u8]| (key[key.len() - 1], value[value.len() - 1]);
        let mut cursor = match act {
            First if ordered().first(op, &mut key, &mut value).unwrap() => return vec![one(&key, &value)],
            Last if ordered().last(op, &mut key, &mut value).unwrap() => return vec![one(&key, &value)],
            First | Last => return vec![],
            Range(from, to, direction) => {
                let range = KeyRange { lower: Included(self.key(*from)), upper: Excluded(self.key(*to)) };
                ordered().range(&range, *direction)
            }
            Prefix(direction) => ordered().prefix(&[0], *direction),
            _ => index.cursor(),
        };
        while cursor.next_into(op, &mut key, &mut value).unwrap() {
            found.push(one(&key, &value));
        }
        if !self.entry.ordered {
            found.sort_unstable();
        }
        found
    }

    /// What a walk has to give.
    fn expected(&self, pairs: &Pairs, act: &Act) -> Vec<(u8, u8)> {
        let all = || pairs.iter().map(|(k, v)| (*k, *v));
        let directed = |mut found: Vec<(u8, u8)>, direction: &Direction| {
            if *direction == Direction::Backward {
                found.reverse();
            }
            found
        };
        match act {
            First => all().next().into_iter().collect(),
            Last => all().next_back().into_iter().collect(),
            Range(from, to, direction) => directed(all().filter(|(k, _)| (from..to).contains(&k)).collect(), direction),
            Prefix(direction) => directed(all().filter(|(k, _)| *k < 100).collect(), direction),
            _ => all().collect(),
        }
    }
}

/// Opens and recovers the pool, and says whether it was closed.
fn open(backing: impl Backing, medium: M) -> Result<(Pool<M>, bool), String> {
    let unrecovered = options().open_on(backing, medium).map_err(|e| e.to_string())?;
    let closed = unrecovered.state() == PoolState::Clean;
    Ok((unrecovered.recover().map_err(|e| e.to_string())?, closed))
}

fn step(model: &mut Model, act: &Act) -> bool {
    let pairs = &mut model.pairs;
    match act {
        Put(k, v) => pairs.insert(*k, *v).is_none(),
        PutNew(k, v) => {
            let new = !pairs.contains_key(k);
            pairs.entry(*k).or_insert(*v);
            new
        }
        Update(k, v) => pairs.get_mut(k).map(|old| *old = *v).is_some(),
        Remove(k) => pairs.remove(k).is_some(),
        Swap(k, expected, new) => {
            let matches = pairs.get(k) == expected.as_ref();
            match new {
                _ if !matches => {}
                Some(v) => _ = pairs.insert(*k, *v),
                None => _ = pairs.remove(k),
            }
            matches
        }
        Apply(changes) => {
            for (k, v) in changes {
                match v {
                    Some(v) => pairs.insert(*k, *v),
                    None => pairs.remove(k),
                };
            }
            true
        }
        Contains(k) => pairs.contains_key(k),
        IsEmpty => pairs.is_empty(),
        Close => {
            model.closed = true;
            true
        }
        _ => true,
    }
}

impl Subject for Kind {
    type Op = Act;
    type Ret = Answer;
    type State = Model;
    type Model = Model;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.plan))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap();
        for neighbour in 0..self.neighbours {
            drop(self.entry.open_or_create(&pool, &format!("neighbour {neighbour}")).unwrap());
        }
        if self.used_before {
            self.leave_traces(&pool);
        }
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        self.apply(&mut live, &Sync);
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let (pool, closed) = open(simulated.backing(LEN), *medium)?;
        Ok(Live { closed: closed && self.closing, ..self.live(pool)? })
    }

    fn apply(&self, live: &mut Live, act: &Act) -> Answer {
        let index = live.index.clone();
        let is_open = "nothing follows once the pool is closed";
        match act {
            Reopen => {
                drop((index, live.index.take()));
                live.index = Some(self.entry.open(&live.pool, "it").unwrap());
                Done(true)
            }
            Close => {
                drop((index, live.index.take()));
                live.pool.close().unwrap();
                live.closed = true;
                Done(true)
            }
            Other(act) => self.run(&*index.expect(is_open), &mut live.other, act),
            act => self.run(&*index.expect(is_open), &mut live.session, act),
        }
    }

    fn observe(&self, live: &mut Live) -> Model {
        let index = live.index.clone().expect("only what was recovered is observed");
        let op = live.session.enter().unwrap();
        let all = self.walk(&*index, &op, &Walk);
        let pairs: Pairs = all.iter().copied().collect();
        assert_eq!(pairs.len(), all.len(), "a key twice: {all:?}");
        for (k, v) in &all {
            assert_eq!(self.run_in(&*index, &op, &Get(*k)), Found(vec![(*k, *v)]), "by key");
        }
        Model { pairs, closed: live.closed }
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let index = live.index.clone().expect("only what was recovered is checked");
        index.check(&mut live.session).unwrap().iter().map(ToString::to_string).collect()
    }

    fn model(&self) -> Model {
        let mut model = Model::default();
        for act in &self.before {
            self.step(&mut model, act);
        }
        model
    }

    fn step(&self, model: &mut Model, act: &Act) -> Answer {
        let pairs = &model.pairs;
        match act {
            Get(k) => Found(pairs.get(k).map(|v| (*k, *v)).into_iter().collect()),
            GetMany(keys) => Found(pairs.iter().filter(|(k, _)| keys.contains(k)).map(|(k, v)| (*k, *v)).collect()),
            Len | Stats => Count(pairs.len() as u64),
            Check => Found(vec![]),
            Walk | First | Last | Range(..) | Prefix(_) => Found(self.expected(pairs, act)),
            Other(act) => self.step(model, act),
            act => Done(step(model, act)),
        }
    }

    fn expect(&self, model: &Model) -> Model {
        Model { closed: model.closed && self.closing, ..model.clone() }
    }

    fn is_sync(&self, act: &Act) -> bool {
        match act {
            Sync | Close => true,
            Other(act) => self.is_sync(act),
            _ => false,
        }
    }
}

impl Concurrent for Kind {
    type Thread = (Session<M>, Arc<dyn Index<M>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), live.index.clone().expect("open"))
    }

    fn run(&self, (session, index): &mut Self::Thread, act: &Act) -> Answer {
        Kind::run(self, &**index, session, act)
    }

    fn hidden(&self) -> Option<String> {
        Some("what a kind keeps beside the medium".into())
    }
}
