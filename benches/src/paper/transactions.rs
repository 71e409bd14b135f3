//! Not in a paper: what a transaction over two maps costs beyond its calls without atomicity, in floors, with one and two threads; and what
//! transactions and snapshots cost those who use none.
//!
//! The second part compares databases that differ in what they have met. Nobody has met more than its row says:
//!
//! | contestant | its database |
//! |---|---|
//! | plain | has met neither a transaction nor a snapshot |
//! | transaction before | had one transaction on the map, more than 100 ms and 1024 updates ago |
//! | lock table | has one transaction on the map before each round, so the map has its lock table; none runs meanwhile |
//! | snapshots closed | had snapshots; none is open |
//! | snapshot open, first | a snapshot is opened before each round, which changes each key once, so each update keeps the old value |
//! | snapshot open, again | the same, after each key was changed once since the snapshot was opened, so none keeps anything |
//! | bare index | has met nothing, and is called without the facade, with an operation of its own for each update |

use std::sync::Arc;
use std::time::Duration;

use durix::{Db, Handle, Index, Map, Snapshot};
use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Hardware, Medium, PoolOptions, Session};

use super::report::{Claim, Form, Panel, Point};
use super::rewind::words::Floor;
use super::{Context, Error, Figure, Measured};
use crate::interleave::{Contestant, Series, Stopwatch, interleave_telling};
use crate::place::Place;
use crate::workload::medium;

pub(super) const FIGURE: Figure = Figure {
    name: "transactions",
    title: "two gets and two updates over two maps in a transaction, beyond the same calls alone",
    source: "none: a measurement of this project",
    keys: None,
    run,
};

/// A kind of each class: native words, transactions of its own, an epoch, logical records.
const CLASSES: [&str; 4] = ["bplustree", "pset", "masstree", "skiplist"];
const BUFFERED: &str = "masstree";
/// Keys of a map, and calls of a round: a round uses no key twice, because a mixed transaction keeps its keys until its checkpoint.
const KEYS: u64 = 4096;
const CALLS: u64 = 256;

/// Longer than a map keeps its lock table without a transaction.
const IDLE: Duration = Duration::from_millis(150);

/// Threads that work on the same two maps.
const THREADS: [u64; 2] = [1, 2];

/// Two maps, of which two keys each are read and changed together or one by one.
struct Pair<M: Medium = Hardware> {
    name: String,
    kinds: [&'static str; 2],
    db: Db<M>,
    maps: [Map<u64, u64, M>; 2],
    is_transaction: bool,
    threads: u64,
    next: u64,
}

impl<M: Medium> Pair<M> {
    fn new(db: Db<M>, kinds: [&'static str; 2], is_transaction: bool) -> Result<Self, Error> {
        let maps = [db.map_of_kind("a", kinds[0])?, db.map_of_kind("b", kinds[1])?];
        for key in 0..KEYS {
            maps.iter().try_for_each(|map| map.insert(&key, &key).map(drop))?;
        }
        db.sync()?;
        let name = format!("{} + {}", kinds[0], kinds[1]);
        Ok(Pair { name, kinds, db, maps, is_transaction, threads: 1, next: 0 })
    }

    fn threads(self, threads: u64) -> Self {
        Pair { threads, ..self }
    }

    /// Call number `value` of a thread.
    fn call(&self, thread: u64, value: u64) -> durix::Result<()> {
        let Pair { db, maps: [a, b], .. } = self;
        // Steps of an odd number: no key comes twice before all have come. Each thread has keys of its own.
        let own = KEYS / self.threads;
        let (first, second) = (thread * own + value * 5 % own, thread * own + value * 11 % own);
        if !self.is_transaction {
            let sum = a.get(&first)?.unwrap_or(0).wrapping_add(b.get(&second)?.unwrap_or(0));
            a.insert(&first, &(sum ^ value))?;
            b.insert(&second, &value)?;
            return Ok(());
        }
        let is_mixed = self.is_mixed();
        db.transaction(|tx| {
            if is_mixed {
                tx.later();
            }
            let (a, b) = (tx.map(a)?, tx.map(b)?);
            let sum = a.get(&first)?.unwrap_or(0).wrapping_add(b.get(&second)?.unwrap_or(0));
            a.insert(&first, &(sum ^ value))?;
            b.insert(&second, &value)?;
            Ok(())
        })
    }

    fn is_mixed(&self) -> bool {
        self.kinds.contains(&BUFFERED) && self.kinds != [BUFFERED; 2]
    }
}

impl Contestant<1> for Pair {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let first = self.next + 1;
        self.next += CALLS;
        let calls = |thread: u64| {
            let start = Stopwatch::start();
            (first..first + CALLS).try_for_each(|value| self.call(thread, value)).expect("a pool with room");
            start.elapsed()
        };
        let took: Duration = if self.threads == 1 {
            calls(0)
        } else {
            // At the same time, as far as there are processors.
            let barrier = std::sync::Barrier::new(self.threads as usize);
            std::thread::scope(|scope| {
                let (calls, barrier) = (&calls, &barrier);
                let run = move |thread: u64| {
                    barrier.wait();
                    calls(thread)
                };
                let all: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || run(thread))).collect();
                all.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
            })
        };
        // The checkpoint, and what mixed transactions do after it, are not in it.
        self.db.sync().expect("a checkpoint");
        [took.as_nanos() as f64 / (CALLS * self.threads) as f64]
    }
}

fn pairs() -> Vec<[&'static str; 2]> {
    let second = |first: usize| CLASSES[first..].iter().map(move |kind| [CLASSES[first], *kind]);
    (0..CLASSES.len()).flat_map(second).collect()
}

/// Floors beyond the calls alone: more where intents are written.
fn goal(kinds: [&str; 2]) -> f64 {
    let needs_intents = kinds != ["bplustree"; 2] && kinds != ["pset"; 2] && kinds != [BUFFERED; 2];
    if needs_intents { 2.5 } else { 2.0 }
}

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(48 << 20).max_size(512 << 20).assume_pmem(true)
}

fn new_db(place: &Place) -> Result<Db, Error> {
    let path = place.unused_path();
    let pool = options().create_on(FileBacking::create(&path)?, medium());
    let _ = std::fs::remove_file(&path);
    Ok(Db::builder().no_background_threads().over(pool?)?)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 9 } else { 61 };
    context.expect(THREADS.len() + 1, rounds);
    let notes = vec![
        "processor time of a thread, the mean of all. Alone: the same calls on maps that have never met a transaction. Mixtures with a \
         buffered kind do not wait for their checkpoint, and what follows it is not in their time"
            .into(),
        "two threads have keys of their own in the same two maps; the floor is one thread's".into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: nothing_written(context)?, notes };
    for place in &context.places {
        for threads in THREADS {
            together(context, place, (threads, rounds), &mut measured)?;
        }
        beside(context, place, rounds, &mut measured)?;
    }
    Ok(measured)
}

/// Transactions beside the same calls alone, by so many threads.
fn together(
    context: &Context<'_>,
    place: &Place,
    (threads, rounds): (u64, usize),
    measured: &mut Measured,
) -> Result<(), Error> {
    context.now(format!("pairs of classes, {threads} thread(s), {}", place.pages));
    let mut all: Vec<Box<dyn Contestant<1>>> = Vec::new();
    for kinds in pairs() {
        for is_transaction in [false, true] {
            all.push(Box::new(Pair::new(new_db(place)?, kinds, is_transaction)?.threads(threads)));
        }
    }
    let below = new_db(place)?;
    all.push(Box::new(Floor::new(below.pool(), 16 << 20)?));
    let outcomes = interleave_telling(&mut all, 2, rounds, &mut || context.tick());
    let floor = &outcomes.last().expect("the floor is the last").phases[0];
    let how = format!("medians of {rounds} interleaved rounds of {CALLS} calls a thread, differences within rounds");
    let title = format!("two gets, two updates, two maps, {threads} thread(s)");
    let panel = Panel::new(title, place, medium().describe(), how);
    let x = pairs().iter().map(|[a, b]| format!("{a} + {b}")).collect();
    let mut panel = panel.axes("kinds", x, "floors", Form::Bars);
    for (at, (kinds, both)) in pairs().into_iter().zip(outcomes.chunks(2)).enumerate() {
        let [alone, together] = [&both[0].phases[0], &both[1].phases[0]].map(|series| series.ratio_to(floor));
        let more = together.samples().iter().zip(alone.samples()).map(|(with, without)| with - without);
        let more = Series::new(more.collect());
        panel.set("alone", at, Point::nanoseconds(&alone));
        panel.set("in a transaction", at, Point::nanoseconds(&together));
        panel.set("more", at, Point::nanoseconds(&more));
        measured.claims.push(Claim {
            what: format!("{} + {}, {threads} thread(s), {}", kinds[0], kinds[1], place.pages),
            paper: format!("goal {:.1} floors more", goal(kinds)),
            ours: format!("{:.2} floors of {:.0} ns", more.median(), floor.median()),
            holds: Some(more.median() <= goal(kinds)),
        });
    }
    measured.panels.push(panel);
    Ok(())
}

/// What the database of an updated map has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Nothing,
    /// Long ago.
    Transaction,
    /// Just now: the map has its lock table.
    Transactions,
    ClosedSnapshots,
    /// No key has changed since it was opened.
    OpenSnapshot,
    /// Each key has.
    PassedSnapshot,
    /// Nothing, and it is called without the facade.
    NoFacade,
}

impl Met {
    const ALL: [(Met, &'static str); 7] = [
        (Met::Nothing, "plain"),
        (Met::Transaction, "transaction before"),
        (Met::Transactions, "lock table"),
        (Met::ClosedSnapshots, "snapshots closed"),
        (Met::OpenSnapshot, "snapshot open, first"),
        (Met::PassedSnapshot, "snapshot open, again"),
        (Met::NoFacade, "bare index"),
    ];

    /// The least part of the plain map's speed that is the goal.
    fn goal(self) -> Option<f64> {
        match self {
            Met::Transaction => Some(0.98),
            Met::ClosedSnapshots => Some(0.99),
            Met::OpenSnapshot | Met::PassedSnapshot => Some(0.7),
            Met::Nothing | Met::Transactions | Met::NoFacade => None,
        }
    }
}

/// How a map is updated.
enum Way {
    Facade(Handle<u64, u64>),
    Bare(Arc<dyn Index<Hardware>>, Session<Hardware>),
}

/// A map of which each key is updated once a round.
struct Updated {
    name: String,
    met: Met,
    way: Way,
    db: Db,
    value: u64,
}

impl Updated {
    fn new(place: &Place, kind: &'static str, (met, name): (Met, &str)) -> Result<Self, Error> {
        let db = new_db(place)?;
        let way = if met == Met::NoFacade {
            let index = durix::kind::named(kind)?.open_or_create(db.pool(), "a")?;
            Way::Bare(index, db.pool().session()?)
        } else {
            Way::Facade(db.map_of_kind::<u64, u64>("a", kind)?.handle()?)
        };
        let mut updated = Updated { name: format!("{kind}, {name}"), met, way, db, value: 0 };
        updated.update_all()?;
        if met == Met::Transaction {
            updated.transaction()?;
            for _ in 0..2 {
                updated.update_all()?;
                std::thread::sleep(IDLE);
            }
        }
        if met == Met::ClosedSnapshots {
            for _ in 0..3 {
                let snapshot = updated.snapshot()?;
                updated.update_all()?;
                drop(snapshot);
            }
        }
        updated.db.sync()?;
        Ok(updated)
    }

    fn transaction(&self) -> Result<(), Error> {
        let map = self.db.map::<u64, u64>("a")?;
        Ok(self.db.transaction(|tx| tx.map(&map)?.insert(&0, &0).map(drop))?)
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        Ok(self.db.snapshot()?)
    }

    fn update_all(&mut self) -> Result<(), Error> {
        self.value += 1;
        let value = self.value;
        // In no order.
        let keys = (0..KEYS).map(|key| key * 1229 % KEYS);
        match &mut self.way {
            Way::Facade(handle) => {
                for key in keys {
                    handle.insert(&key, &(key ^ value))?;
                }
            }
            Way::Bare(index, session) => {
                for key in keys {
                    let value = key ^ value;
                    index.insert(
                        &session.enter().map_err(durix::Error::from)?,
                        &key.to_be_bytes(),
                        &value.to_le_bytes(),
                    )?;
                }
            }
        }
        Ok(())
    }
}

impl Contestant<1> for Updated {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let is_open = [Met::OpenSnapshot, Met::PassedSnapshot].contains(&self.met);
        let snapshot = is_open.then(|| self.snapshot().expect("a snapshot"));
        if self.met == Met::PassedSnapshot {
            self.update_all().expect("a pool with room");
        }
        if self.met == Met::Transactions {
            self.transaction().expect("a pool with room");
        }
        let start = Stopwatch::start();
        self.update_all().expect("a pool with room");
        let took = start.elapsed().as_nanos() as f64 / KEYS as f64;
        drop(snapshot);
        self.db.sync().expect("a checkpoint");
        [took]
    }
}

/// Updates of one map, beside those of databases that have met transactions and snapshots.
fn beside(context: &Context<'_>, place: &Place, rounds: usize, measured: &mut Measured) -> Result<(), Error> {
    context.now(format!("updates beside transactions and snapshots, {}", place.pages));
    let mut all: Vec<Box<dyn Contestant<1>>> = Vec::new();
    for kind in CLASSES {
        for met in Met::ALL {
            all.push(Box::new(Updated::new(place, kind, met)?));
        }
    }
    let outcomes = interleave_telling(&mut all, 2, rounds, &mut || context.tick());
    let how = format!("medians of {rounds} interleaved rounds of {KEYS} updates, ratios within rounds; one thread");
    let panel = Panel::new("updates of a map of words", place, medium().describe(), how);
    let x = CLASSES.map(str::to_owned).to_vec();
    let mut panel = panel.axes("kind", x, "speed, of a plain map's", Form::Bars);
    for (at, (kind, of_kind)) in CLASSES.iter().zip(outcomes.chunks(Met::ALL.len())).enumerate() {
        let plain = &of_kind[0].phases[0];
        for ((met, name), outcome) in Met::ALL.iter().zip(of_kind) {
            let speed = plain.ratio_to(&outcome.phases[0]);
            panel.set(name, at, Point::nanoseconds(&speed));
            let Some(goal) = met.goal() else { continue };
            measured.claims.push(Claim {
                what: format!("updates of {kind}, {name}, {}", place.pages),
                paper: format!("goal {goal} of a plain map's speed"),
                ours: format!("{:.3} (plain {:.0} ns)", speed.median(), plain.median()),
                holds: Some(speed.median() >= goal),
            });
        }
    }
    measured.panels.push(panel);
    Ok(())
}

/// Empty transactions, and those that only read, write nothing back.
fn nothing_written(context: &Context<'_>) -> Result<Vec<Claim>, Error> {
    let mut claims = Vec::new();
    for kinds in pairs() {
        context.step("counting");
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let pool = options().create_on(HeapBacking::new(64 << 20), counting)?;
        let pair = Pair::new(Db::builder().no_background_threads().over(pool)?, kinds, true)?;
        // Their tables are there from the first transaction on.
        pair.call(0, 1)?;
        pair.db.sync()?;
        let before = counting.counts();
        for key in 0..100 {
            pair.db.transaction(|_| Ok(()))?;
            pair.db.transaction(|tx| {
                tx.map(&pair.maps[0])?.get(&key)?;
                tx.map(&pair.maps[1])?.get(&key).map(drop)
            })?;
        }
        let counts = counting.counts() - before;
        claims.push(Claim {
            what: format!("{}: transactions that write nothing", pair.name),
            paper: "goal 0 write-backs, 0 fences".into(),
            ours: format!("{} write-backs, {} fences", counts.write_backs, counts.fences),
            holds: Some(counts.write_backs + counts.fences == 0),
        });
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_both_threads_arrive() {
        let place = Place::at(std::env::temp_dir());
        for is_transaction in [false, true] {
            let pair = Pair::new(new_db(&place).unwrap(), ["pset", "skiplist"], is_transaction).unwrap();
            let mut pair = pair.threads(2);
            pair.round();
            for thread in 0..2 {
                let key = thread * KEYS / 2 + CALLS * 11 % (KEYS / 2);
                assert_eq!(pair.maps[1].get(&key).unwrap(), Some(CALLS), "thread {thread}");
            }
        }
    }

    #[test]
    fn whoever_updates_each_key_of_a_map_once_does() {
        let place = Place::at(std::env::temp_dir());
        for met in Met::ALL {
            let mut updated = Updated::new(&place, "skiplist", met).unwrap();
            let snapshot = updated.snapshot().unwrap();
            updated.round();
            drop(snapshot);
            let value = updated.value;
            if let Way::Facade(handle) = &mut updated.way {
                assert!((0..KEYS).all(|key| handle.get(&key).unwrap() == Some(key ^ value)));
            }
        }
    }
}
