//! Updates of the hash table that are settled later: every crash state of short sequences with two tickets, and of concurrent programs;
//! and the mutation of every write-back, fence and order of stores that they need. With `DURIX_DEEP` set, sequences are longer, and
//! preemptions more.

use std::collections::BTreeMap;
use std::sync::Arc;

use durix_crashsim::{
    Concurrent, Contract, Explorer, Report, Simulated, Sites, Subject, Threads, mutation_sweep, mutation_sweeps,
};
use durix_logfree::testing::Act::{self as Plain, Cas, Get, Insert, Remove, Update};
use durix_logfree::testing::{Contents, Sim, run, step};
use durix_logfree::{SoftHash, SoftOptions};
use durix_pmem::{Killable, Mutating, Plan, Pool, PoolOptions, Session, SiteKind, Unsettled};
use durix_subjects::explored::{complete, deep};

/// What is done. Tickets are numbered 0 and 1.
#[derive(Clone, Debug)]
enum Act {
    Now(Plain),
    /// By a ticket; also a read.
    Later(usize, Plain),
    /// By a ticket of its own, which is waited for.
    Soon(Plain),
    /// By a ticket of its own, which is dropped.
    Dropped(Plain),
    Wait(usize),
    WaitElsewhere(usize),
    Drop(usize),
}
use Act::*;

type History = Vec<(Option<u64>, [bool; 2])>;
/// The values that each key may be found with, the newest last, and which tickets wait for each.
#[derive(Clone, Default, Debug, PartialEq, Eq, Hash)]
struct Model(BTreeMap<u64, History>);

impl Model {
    fn newest(&self) -> Contents {
        self.0.iter().filter_map(|(key, history)| Some((*key, history.last()?.0?))).collect()
    }

    /// Runs an act, and returns its answer. What it names is durable, or waits for a ticket.
    fn run(&mut self, act: &Plain, ticket: Option<usize>) -> Option<u64> {
        let mut after = self.newest();
        let answer = step(&mut after, act);
        let keys = match act {
            Insert(k, _) | Remove(k) | Get(k) | Update(k, _) | Cas(k, ..) => vec![*k],
            _ => self.0.keys().copied().collect(),
        };
        for key in keys {
            let history = self.0.entry(key).or_insert_with(|| vec![(None, [false; 2])]);
            if history.last().unwrap().0 != after.get(&key).copied() {
                history.push((after.get(&key).copied(), [false; 2]));
            }
            match ticket {
                Some(ticket) => history.last_mut().unwrap().1[ticket] = true,
                None => drop(history.drain(..history.len() - 1)),
            }
        }
        answer
    }

    fn wait(&mut self, ticket: usize) {
        for history in self.0.values_mut() {
            if let Some(last) = history.iter().rposition(|(_, tickets)| tickets[ticket]) {
                history.drain(..last);
            }
        }
    }
}

#[derive(Clone)]
struct UnderTest {
    plan: &'static Plan,
    before: Vec<Plain>,
}

struct Live {
    tickets: [Unsettled<Sim>; 2],
    session: Session<Sim>,
    map: Arc<SoftHash<Sim>>,
    pool: Pool<Sim>,
}

const CHUNK: u64 = 4096;
const LEN: u64 = 6 * CHUNK;

impl UnderTest {
    fn new(plan: &'static Plan, before: &[Plain]) -> Self {
        UnderTest { plan, before: before.to_vec() }
    }

    fn options() -> PoolOptions {
        let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).pool_id([7; 16]).boot_id([7; 16]);
        options.initial_size(LEN).max_size(LEN)
    }

    fn live(pool: Pool<Sim>) -> Live {
        let session = pool.session().unwrap();
        let options = SoftOptions::default().buckets(1).recovery_threads(1);
        let map = SoftHash::open_with(&pool, "map", &options).unwrap();
        Live { tickets: Default::default(), session, map, pool }
    }
}

fn alone(session: &mut Session<Sim>, map: &SoftHash<Sim>, act: &Act) -> Option<u64> {
    match act {
        Now(act) => run(map, &session.enter().unwrap(), act),
        Soon(plain) | Dropped(plain) => {
            let op = session.enter_later(&mut Unsettled::new()).unwrap();
            let answer = run(map, &op, plain);
            let mut ticket = op.finish();
            if matches!(act, Soon(_)) {
                map.root().pool().wait(session, &mut ticket).unwrap();
            }
            answer
        }
        _ => unreachable!("by one thread only"),
    }
}

impl Subject for UnderTest {
    type Op = Act;
    type Ret = Option<u64>;
    type State = Contents;
    type Model = Model;
    type Store = (Simulated, Sim);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Killable::new(Mutating::new(medium, self.plan)))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let mut live = Self::live(Self::options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap());
        for act in &self.before {
            self.apply(&mut live, &Now(act.clone()));
        }
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let unrecovered = Self::options().open_on(simulated.backing(LEN), *medium).map_err(|e| e.to_string())?;
        Ok(Self::live(unrecovered.recover().map_err(|e| e.to_string())?))
    }

    fn apply(&self, live: &mut Live, act: &Act) -> Option<u64> {
        match act {
            Later(ticket, act) => {
                let op = live.session.enter_later(&mut live.tickets[*ticket]).unwrap();
                let answer = run(&*live.map, &op, act);
                live.tickets[*ticket] = op.finish();
                answer
            }
            Wait(ticket) => {
                live.pool.wait(&mut live.session, &mut live.tickets[*ticket]).unwrap();
                None
            }
            WaitElsewhere(ticket) => {
                live.session = live.pool.session().unwrap();
                let mut session = live.pool.session().unwrap();
                live.pool.wait(&mut session, &mut live.tickets[*ticket]).unwrap();
                None
            }
            Drop(ticket) => {
                let _op = live.session.enter().unwrap();
                drop(std::mem::take(&mut live.tickets[*ticket]));
                None
            }
            act => alone(&mut live.session, &live.map, act),
        }
    }

    fn observe(&self, live: &mut Live) -> Contents {
        let (op, mut found) = (live.session.enter().unwrap(), Contents::new());
        live.map.for_each(&op, |key, value| assert!(found.insert(key, value).is_none(), "a key twice")).unwrap();
        found.iter().for_each(|(key, value)| assert_eq!(live.map.get(&op, *key).unwrap(), Some(*value)));
        found
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let found = live.map.check(&live.session.enter().unwrap()).unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    fn model(&self) -> Model {
        let mut model = Model::default();
        self.before.iter().for_each(|act| _ = model.run(act, None));
        model
    }

    fn step(&self, model: &mut Model, act: &Act) -> Option<u64> {
        match act {
            Now(act) | Soon(act) | Dropped(act) => model.run(act, None),
            Later(ticket, act) => model.run(act, Some(*ticket)),
            Wait(ticket) | WaitElsewhere(ticket) | Drop(ticket) => {
                model.wait(*ticket);
                None
            }
        }
    }

    fn expect(&self, model: &Model) -> Contents {
        model.newest()
    }

    fn assemble(&self, models: &[Model], state: &Contents) -> Option<Model> {
        let of = |model: &Model, key: u64| model.0.get(&key).cloned().unwrap_or_else(|| vec![(None, [false; 2])]);
        let mut found = Model::default();
        for key in models.iter().flat_map(|model| model.0.keys()).chain(state.keys()) {
            let value = state.get(key).copied();
            if !models.iter().any(|model| of(model, *key).iter().any(|(possible, _)| *possible == value)) {
                return None;
            }
            found.0.insert(*key, vec![(value, [false; 2])]);
        }
        Some(found)
    }

    fn is_sync(&self, _act: &Act) -> bool {
        // The model knows what is durable.
        true
    }
}

impl Concurrent for UnderTest {
    type Thread = (Session<Sim>, Arc<SoftHash<Sim>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), Arc::clone(&live.map))
    }

    fn run(&self, (session, map): &mut Self::Thread, act: &Act) -> Option<u64> {
        alone(session, map, act)
    }
}

fn after() -> Vec<Act> {
    [Insert(1, 90), Remove(0), Insert(0, 91), Update(1, 92), Insert(5, 93), Remove(1), Insert(6, 94), Get(0)]
        .map(Now)
        .to_vec()
}

fn explorer() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

fn scenarios(plan: &'static Plan) -> Vec<(&'static str, UnderTest, Vec<Act>)> {
    let plain = UnderTest::new(plan, &[]);
    let begun = UnderTest::new(plan, &[Insert(0, 1), Insert(1, 1)]);
    let count = || Now(Plain::Count);
    vec![
        (
            "insert, wait",
            plain.clone(),
            vec![Later(0, Insert(0, 1)), Later(0, Insert(1, 2)), Wait(0), Now(Update(0, 3))],
        ),
        (
            "update, read",
            begun.clone(),
            vec![Later(0, Update(0, 2)), Now(Get(1)), Now(Get(0)), Later(0, Update(0, 3)), Wait(0)],
        ),
        (
            "remove, read",
            begun.clone(),
            vec![Later(0, Remove(0)), Now(Get(0)), Later(0, Remove(1)), Wait(0), Now(Insert(2, 1))],
        ),
        (
            "remove, reuse",
            begun.clone(),
            vec![Later(0, Remove(0)), Later(0, Insert(2, 2)), Wait(0), Now(Insert(3, 3)), Now(Insert(4, 4))],
        ),
        ("remove, insert", begun.clone(), vec![Later(0, Remove(0)), Later(0, Insert(0, 3)), Wait(0), Now(Get(0))]),
        (
            "remove, insert at once",
            begun.clone(),
            vec![Later(0, Remove(0)), Now(Insert(0, 3)), Wait(0), Now(Insert(2, 1))],
        ),
        (
            "updates of one line",
            begun.clone(),
            vec![Later(0, Update(0, 2)), Later(1, Update(0, 3)), Later(0, Update(0, 4)), Wait(1)],
        ),
        (
            "updates of one line, at once",
            begun.clone(),
            vec![Later(0, Update(0, 2)), Now(Update(0, 3)), Now(Update(0, 4)), Wait(0)],
        ),
        ("walk", begun.clone(), vec![Later(0, Remove(0)), Later(1, Insert(2, 2)), count(), Wait(1), Now(Insert(3, 3))]),
        (
            "dropped",
            begun.clone(),
            vec![Later(0, Update(0, 2)), Later(0, Insert(2, 3)), Drop(0), Now(Remove(0)), Now(Insert(3, 3))],
        ),
        (
            "elsewhere",
            begun.clone(),
            vec![Later(0, Update(0, 2)), Later(0, Remove(1)), WaitElsewhere(0), Now(Insert(2, 3))],
        ),
        (
            "reads go with a ticket",
            begun.clone(),
            vec![Later(0, Update(0, 2)), Later(1, Get(0)), Later(0, Remove(1)), Later(1, Get(1)), Wait(1)],
        ),
        (
            "refusals rest on what was found",
            begun,
            vec![
                Later(0, Remove(0)),
                Later(1, Remove(0)),
                Later(0, Update(1, 2)),
                Later(1, Cas(1, 1, 3)),
                Later(1, Insert(1, 4)),
                Wait(1),
            ],
        ),
    ]
}

fn run_all(explorer: &Explorer, plan: &'static Plan) -> Report {
    run_some(explorer, plan, usize::MAX)
}

/// The first so many scenarios.
fn run_some(explorer: &Explorer, plan: &'static Plan, number: usize) -> Report {
    let mut total = Report::default();
    for (_, subject, acts) in scenarios(plan).into_iter().take(number) {
        total.merge(explorer.run_then(&subject, &acts, &after()));
        if total.failure.is_some() {
            break;
        }
    }
    total
}

fn sites() -> Sites {
    let files = ["src/soft/later.rs", "src/soft/table.rs", "pmem/src/unsettled.rs"].map(String::from).to_vec();
    Sites { files, ..Sites::in_files("") }
}

#[test]
fn scenarios_pass_and_every_write_back_and_fence_is_needed() {
    let orders = Sites { kinds: vec![SiteKind::Release], ..Sites::in_files("src/soft/store.rs") };
    let sweeps = mutation_sweeps([&sites(), &orders], |plan| run_all(&explorer(), plan));
    assert!(sweeps[0].baseline.complete, "{}", sweeps[0].baseline);
    for sweep in &sweeps {
        println!("{sweep}");
    }
    assert_eq!(sweeps[0].missed().count(), 0);
    // The state of a line that is freed, now or later, is the only word stored then: nothing comes before it.
    let missed: Vec<_> = sweeps[1].missed().map(|mutant| mutant.site).collect();
    assert!(missed.len() <= 2 && missed.iter().all(|site| site.kind == SiteKind::Release), "{missed:?}");
}

#[test]
fn scenarios_pass_with_process_deaths_and_second_crashes() {
    let later = explorer().crashes(2).crash_later(true).executions_per_point(20).samples(4);
    if deep() {
        complete("process deaths", run_all(&explorer().process_deaths(true), Plan::new()));
        println!("later crashes: {}", run_all(&later, Plan::new()).assert_ok());
    } else {
        let deaths = explorer().deaths_in("src/soft/store.rs");
        println!("process deaths: {}", run_some(&deaths, Plan::new(), 4).assert_ok());
        println!("later crashes: {}", run_some(&later, Plan::new(), 4).assert_ok());
    }
}

#[test]
fn all_short_sequences() {
    let alphabet = [
        Later(0, Insert(0, 1)),
        Later(0, Remove(0)),
        Later(1, Update(0, 2)),
        Later(1, Insert(1, 3)),
        Now(Insert(0, 4)),
        Now(Remove(0)),
        Now(Get(0)),
        Wait(0),
        Drop(1),
    ];
    let len = if deep() { 5 } else { 3 };
    complete("hash", explorer().sequences(&UnderTest::new(Plan::new(), &[Insert(0, 9)]), &alphabet, len, &after()));
}

/// An update and the wait for its ticket are one act: what happens in between is for the other threads.
fn programs(plan: &'static Plan) -> Vec<(&'static str, UnderTest, Vec<Vec<Act>>)> {
    let begun = UnderTest::new(plan, &[Insert(0, 1)]);
    vec![
        ("a reader meets an insert", begun.clone(), vec![vec![Soon(Insert(1, 2))], vec![Now(Get(1)), Now(Get(1))]]),
        ("a reader meets an update", begun.clone(), vec![vec![Soon(Update(0, 2))], vec![Now(Get(0)), Now(Get(0))]]),
        ("a reader meets a removal", begun.clone(), vec![vec![Soon(Remove(0))], vec![Now(Get(0)), Now(Get(0))]]),
        ("a reader meets a dropped ticket", begun.clone(), vec![vec![Dropped(Update(0, 2))], vec![Now(Get(0))]]),
        (
            "a writer meets an update",
            begun.clone(),
            vec![vec![Soon(Update(0, 2))], vec![Now(Update(0, 3)), Now(Get(0))]],
        ),
        (
            "a removal meets an update",
            begun.clone(),
            vec![vec![Soon(Update(0, 2))], vec![Now(Remove(0)), Now(Insert(0, 4))]],
        ),
        ("an insert meets a removal", begun.clone(), vec![vec![Soon(Remove(0))], vec![Now(Insert(0, 3)), Now(Get(0))]]),
        ("a refusal meets an insert", begun.clone(), vec![vec![Soon(Insert(1, 2))], vec![Now(Insert(1, 3))]]),
        (
            "two tickets",
            begun.clone(),
            vec![vec![Soon(Update(0, 2)), Now(Get(0))], vec![Soon(Update(0, 3)), Now(Get(0))]],
        ),
        ("two tickets, a removal", begun.clone(), vec![vec![Soon(Remove(0))], vec![Soon(Update(0, 3)), Now(Get(0))]]),
        ("neighbours", begun.clone(), vec![vec![Soon(Insert(1, 2))], vec![Soon(Insert(2, 3))]]),
        ("a read with a ticket", begun.clone(), vec![vec![Soon(Update(0, 2))], vec![Soon(Get(0)), Now(Get(0))]]),
        ("a refusal with a ticket", begun, vec![vec![Soon(Remove(0))], vec![Soon(Remove(0)), Now(Get(0))]]),
    ]
}

fn bound() -> u32 {
    if deep() { 3 } else { 2 }
}

#[test]
fn two_threads_with_preemptions() {
    for (name, subject, program) in programs(Plan::new()) {
        let start = std::time::Instant::now();
        complete(name, Threads::new(Explorer::new()).preemptions(bound()).run(&subject, &program, &after()));
        println!("  in {:?}", start.elapsed());
    }
}

#[test]
fn threads_need_every_write_back_and_fence() {
    let sweep = mutation_sweep(&sites(), |plan| {
        let mut total = Report::default();
        for (_, subject, program) in programs(plan) {
            total.merge(Threads::new(Explorer::new()).preemptions(1).run(&subject, &program, &after()));
            if total.failure.is_some() {
                break;
            }
        }
        total
    });
    println!("{}", sweep.assert_all_caught(&[]));
}
