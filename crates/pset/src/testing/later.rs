//! A set whose updates are settled later, by two tickets, as a subject. A key may be found with any of the values that it had since
//! it was last known to be durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::set::{self, M, Map, key};
use crate::PersistentSet;
use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Op, Plan, Pool, Session, Unsettled};

/// What is done. Tickets are numbered 0 and 1.
#[derive(Clone, Debug)]
pub enum Act {
    /// Durable when it returns.
    Now(set::Act),
    /// By a ticket.
    Later(usize, set::Act),
    /// A read whose answer has to be durable.
    Get(u8),
    /// A read that goes with a ticket.
    GetLater(usize, u8),
    /// Walks over all pairs.
    Walk,
    /// Counts.
    Len,
    /// Waits for a ticket.
    Wait(usize),
    /// The same by another session, after the one that has done the updates has ended.
    WaitElsewhere(usize),
    /// Drops a ticket, while an operation is open.
    Drop(usize),
    /// Adds the second ticket to the first.
    Join,
}
use Act::*;

/// What an act answers.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Whether something was changed, or there.
    Yes(bool),
    /// A value.
    Value(Option<Vec<u8>>),
    /// All pairs.
    Pairs(Map),
}

/// The set under test, with what is there before, all of it durable.
#[derive(Clone)]
pub struct LaterUnderTest(pub set::SetUnderTest);

/// The set at work.
pub struct Live {
    tickets: [Unsettled<M>; 2],
    session: Session<M>,
    set: Arc<PersistentSet<M>>,
    pool: Pool<M>,
    inner: set::Live,
}

/// The values that a key may be found with, the newest last, and which tickets wait for each.
type History = Vec<(Option<Vec<u8>>, [bool; 2])>;

/// All keys that were ever there.
#[derive(Clone, Default, Debug)]
pub struct Model(BTreeMap<Vec<u8>, History>);

impl LaterUnderTest {
    /// In a small pool, with a plan of mutations.
    pub fn new(plan: &'static Plan) -> Self {
        LaterUnderTest(set::SetUnderTest { plan, ..set::SetUnderTest::new() })
    }

    fn live(inner: set::Live) -> Live {
        let (set, pool) = (inner.set(), inner.pool());
        Live { tickets: [Unsettled::new(), Unsettled::new()], session: pool.session().unwrap(), set, pool, inner }
    }
}

impl Live {
    fn later<R>(&mut self, ticket: usize, run: impl FnOnce(&PersistentSet<M>, &Op<'_, M>) -> R) -> R {
        let op = self.session.enter_later(&mut self.tickets[ticket]).unwrap();
        let result = run(&self.set, &op);
        self.tickets[ticket] = op.finish();
        result
    }
}

fn get(set: &PersistentSet<M>, op: &Op<'_, M>, k: u8) -> Answer {
    Answer::Value(set.get_vec(op, &key(k)).unwrap())
}

impl Model {
    fn newest(&self) -> Map {
        let newest = self.0.iter().filter_map(|(key, history)| Some((key.clone(), history.last()?.0.clone()?)));
        newest.collect()
    }

    fn settle(&mut self, key: &[u8]) {
        self.0.entry(key.to_vec()).and_modify(|history| drop(history.drain(..history.len() - 1)));
    }

    fn depend(&mut self, key: &[u8], ticket: usize) {
        self.0.entry(key.to_vec()).and_modify(|history| history.last_mut().unwrap().1[ticket] = true);
    }

    fn wait(&mut self, ticket: usize) {
        for history in self.0.values_mut() {
            if let Some(last) = history.iter().rposition(|(_, tickets)| tickets[ticket]) {
                history.drain(..last);
                history[0].1 = [false; 2];
            }
        }
    }

    /// Runs an update; returns its answer and the keys that it names.
    fn update(&mut self, act: &set::Act, tickets: [bool; 2]) -> (bool, Vec<Vec<u8>>) {
        let before = self.newest();
        let mut after = before.clone();
        let answer = set::step(&mut after, act);
        let keys = act.keys();
        for key in keys.iter().filter(|key| before.get(*key) != after.get(*key)) {
            let history = self.0.entry(key.clone()).or_insert_with(|| vec![(None, [false; 2])]);
            history.push((after.get(key).cloned(), tickets));
        }
        (answer, keys)
    }
}

fn step(model: &mut Model, act: &Act) -> Answer {
    match act {
        Now(act) => {
            let (answer, keys) = model.update(act, [false; 2]);
            keys.iter().for_each(|key| model.settle(key));
            Answer::Yes(answer)
        }
        Later(ticket, act) => {
            let (answer, keys) = model.update(act, [*ticket == 0, *ticket == 1]);
            keys.iter().for_each(|key| model.depend(key, *ticket));
            Answer::Yes(answer)
        }
        Get(k) => {
            model.settle(&key(*k));
            Answer::Value(model.newest().remove(&key(*k)))
        }
        GetLater(ticket, k) => {
            model.depend(&key(*k), *ticket);
            Answer::Value(model.newest().remove(&key(*k)))
        }
        Walk | Len => {
            let newest = model.newest();
            let keys: Vec<_> = model.0.keys().cloned().collect();
            keys.iter().for_each(|key| model.settle(key));
            match act {
                Walk => Answer::Pairs(newest),
                _ => Answer::Yes(newest.is_empty()),
            }
        }
        Wait(ticket) | WaitElsewhere(ticket) | Drop(ticket) => {
            model.wait(*ticket);
            Answer::Yes(true)
        }
        Join => {
            for (_, tickets) in model.0.values_mut().flatten() {
                *tickets = [tickets[0] || tickets[1], false];
            }
            Answer::Yes(true)
        }
    }
}

impl Subject for LaterUnderTest {
    type Op = Act;
    type Ret = Answer;
    type State = Map;
    type Model = Model;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        self.0.store(medium)
    }

    fn create(&self, store: &Self::Store) -> Live {
        Self::live(self.0.create(store))
    }

    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        self.0.recover(store).map(Self::live)
    }

    fn apply(&self, live: &mut Live, act: &Act) -> Answer {
        match act {
            Now(act) => Answer::Yes(act.run(&live.set, &live.session.enter().unwrap()).unwrap()),
            Later(ticket, act) => Answer::Yes(live.later(*ticket, |set, op| act.run(set, op)).unwrap()),
            Get(k) => get(&live.set, &live.session.enter().unwrap(), *k),
            GetLater(ticket, k) => live.later(*ticket, |set, op| get(set, op, *k)),
            Walk => {
                let (op, mut pairs) = (live.session.enter().unwrap(), Map::new());
                live.set.for_each(&op, |k, v| drop(pairs.insert(k.to_vec(), v.to_vec()))).unwrap();
                Answer::Pairs(pairs)
            }
            Len => Answer::Yes(live.set.is_empty(&live.session.enter().unwrap())),
            Wait(ticket) => {
                live.pool.wait(&mut live.session, &mut live.tickets[*ticket]).unwrap();
                Answer::Yes(live.tickets[*ticket].is_empty())
            }
            WaitElsewhere(ticket) => {
                live.session = live.pool.session().unwrap();
                let mut session = live.pool.session().unwrap();
                live.pool.wait(&mut session, &mut live.tickets[*ticket]).unwrap();
                Answer::Yes(true)
            }
            Drop(ticket) => {
                let _op = live.session.enter().unwrap();
                drop(std::mem::take(&mut live.tickets[*ticket]));
                Answer::Yes(true)
            }
            Join => {
                let second = std::mem::take(&mut live.tickets[1]);
                live.tickets[0].join(second).unwrap();
                Answer::Yes(true)
            }
        }
    }

    fn observe(&self, live: &mut Live) -> Map {
        self.0.observe(&mut live.inner)
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        self.0.check(&mut live.inner)
    }

    fn model(&self) -> Model {
        Model(self.0.model().into_iter().map(|(key, value)| (key, vec![(Some(value), [false; 2])])).collect())
    }

    fn step(&self, model: &mut Model, act: &Act) -> Answer {
        step(model, act)
    }

    fn expect(&self, model: &Model) -> Map {
        model.newest()
    }

    fn assemble(&self, models: &[Model], state: &Map) -> Option<Model> {
        let of = |model: &Model, key: &[u8]| model.0.get(key).cloned().unwrap_or_else(|| vec![(None, [false; 2])]);
        let keys = models.iter().flat_map(|model| model.0.keys()).chain(state.keys());
        let mut found = Model::default();
        for key in keys {
            let value = state.get(key).cloned();
            // Before the act in flight, or after it.
            if !models.iter().any(|model| of(model, key).iter().any(|(possible, _)| *possible == value)) {
                return None;
            }
            found.0.insert(key.clone(), vec![(value, [false; 2])]);
        }
        Some(found)
    }

    fn is_sync(&self, _act: &Act) -> bool {
        // The model knows what is durable.
        true
    }
}
