//! Transactions, crashed at every point: each has happened in all its maps or in none, and a committed one has.

use std::collections::BTreeMap;
use std::time::Duration;

use durix::{Db, Error, Handle, Map, MapBatch, PoolOptions, Transaction};
use durix_crashsim::{
    Concurrent, Contract, Explorer, Persistency, Report, Simulated, Sites, Subject, Threads, mutation_sweep,
};
use durix_pmem::{Extent, Medium, Mutating, Plan};
use durix_subjects::explored::deep;

type M = Mutating<Simulated>;

/// Kinds of which each stands for a class of commits.
const CLASSES: [&str; 7] = ["pset", "masstree", "hash", "skiplist", "hash-values", "bplustree", "dptree"];

/// Two maps, and transactions over them.
struct Bank {
    kinds: [&'static str; 2],
    plan: &'static Plan,
    /// Done before what is crashed, and durable.
    before: &'static [Op],
    /// Done after that, and what it leaves is not made durable.
    unsettled: &'static [Op],
    /// Whether each plain update has the lock table of its map go, where no transaction uses it.
    tables_go: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Sets a key of both maps to a value, together, in one transaction of two keys each.
    Both(u64),
    /// Removes the first key of both maps, and sets another of the second.
    Swap(u64),
    /// A plain update of a key that `Both` changes.
    Plain(usize, u64),
    /// The same in the caller's own operation.
    Within(usize, u64),
    /// The same in a batch.
    Group(usize, u64),
    /// The same in a transaction of its own, of one change: it needs no record.
    Single(usize, u64),
    /// Opens a map again.
    Reopen(usize),
    /// Sets two keys of the first map, which `Both` changes, in one transaction.
    Pair(u64),
    /// Sets a key that is not observed in both maps, in a transaction that waits for a checkpoint and keeps its lane until then.
    Hold,
    /// Changes that key of the first map: the transaction is finished before.
    Meet,
    /// Sets a key that `Both` does not change in both maps, in a transaction.
    Aside(u64),
    /// A plain update of a key that no transaction changes.
    Beside(usize, u64),
    /// A plain removal of a key that `Both` changes.
    Cut(usize),
    /// Sets a key that is not observed in both maps, in a transaction.
    Seed,
    /// Fills the pool, and then both maps with keys that are not observed.
    Fill,
    /// As `Both`, with keys of its own, in a pool that is full: refused, until there is room.
    Crowded(u64),
    /// A transaction that is rolled back.
    Abort(u64),
    /// A plain read of a key that `Both` changes.
    Look(usize),
    /// Whether a snapshot shows different values of that key in the two maps.
    Differ,
    Sync,
}
use Op::*;

/// What both maps hold.
type State = [BTreeMap<u64, u64>; 2];

struct Live {
    db: Db<M>,
    maps: [Map<u64, u64, M>; 2],
    /// For plain updates: their session is another one, and its fences do not cover what a transaction has written back.
    handles: [Handle<u64, u64, M>; 2],
    /// What `Fill` has taken.
    filled: Vec<Extent>,
}

const LEN: u64 = 80 * 4096;

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(4096).max_indices(6).lanes(1).pool_id([7; 16]).boot_id([7; 16])
}

impl Bank {
    fn live(&self, db: Db<M>) -> Result<Live, Error> {
        let maps = [db.map_of_kind("first", self.kinds[0])?, db.map_of_kind("second", self.kinds[1])?];
        let handles = [maps[0].handle()?, maps[1].handle()?];
        if self.tables_go {
            db.set_idle_tables(1, Duration::ZERO);
        }
        Ok(Live { db, maps, handles, filled: Vec::new() })
    }

    fn options(&self) -> PoolOptions {
        options().initial_size(self.len()).max_size(self.len())
    }

    /// Bytes of the pool. What two of these trees hold back for recovery does not leave room for more in the smaller one.
    fn len(&self) -> u64 {
        if self.kinds == ["dptree", "dptree"] { 4 * LEN } else { LEN }
    }

    fn is_buffered(&self) -> bool {
        self.kinds.contains(&"masstree")
    }
}

type Maps = [Map<u64, u64, M>; 2];

fn both(tx: &Transaction<M>, maps: &Maps, value: u64) -> Result<(), Error> {
    maps.iter().try_for_each(|map| {
        let map = tx.map(map)?;
        map.insert(&1, &value)?;
        map.insert(&2, &(value + 1)).map(drop)
    })
}

/// Nothing, or what the first map has.
fn differ(db: &Db<M>, maps: &Maps) -> Option<u64> {
    let snapshot = db.snapshot().unwrap();
    let [first, second] = maps.each_ref().map(|map| snapshot.map(map).unwrap().get(&1).unwrap());
    if first == second { None } else { first.or(Some(0)) }
}

fn aside(tx: &Transaction<M>, maps: &Maps, value: u64) -> Result<(), Error> {
    maps.iter().try_for_each(|map| tx.map(map)?.insert(&9, &value).map(drop))
}

fn swap(tx: &Transaction<M>, maps: &Maps, value: u64) -> Result<(), Error> {
    let (first, second) = (tx.map(&maps[0])?, tx.map(&maps[1])?);
    first.remove(&1)?;
    second.remove(&1)?;
    second.insert(&3, &value).map(drop)
}

/// Keys from here on fill a map, and are not observed.
const UNSEEN: u64 = 1000;

/// Keys that the maps do not have.
const CROWD: std::ops::Range<u64> = 100..108;

fn crowded(tx: &Transaction<M>, maps: &Maps, value: u64) -> Result<(), Error> {
    maps.iter().try_for_each(|map| {
        let map = tx.map(map)?;
        CROWD.into_iter().try_for_each(|key| map.insert(&key, &value).map(drop))
    })
}

impl Subject for Bank {
    type Op = Op;
    type Ret = Option<u64>;
    type State = State;
    type Model = State;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.plan))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let db = Db::over(self.options().create_on(simulated.backing(0).with_limit(self.len()), *medium).unwrap());
        let mut live = self.live(db).unwrap();
        self.before.iter().for_each(|op| _ = self.apply(&mut live, op));
        live.db.sync().unwrap();
        self.unsettled.iter().for_each(|op| _ = self.apply(&mut live, op));
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let pool = self
            .options()
            .open_on(simulated.backing(self.len()), *medium)
            .and_then(|pool| pool.recover())
            .map_err(|e| e.to_string())?;
        self.live(Db::over(pool)).map_err(|e| e.to_string())
    }

    fn apply(&self, live: &mut Live, op: &Op) -> Option<u64> {
        let Live { db, maps, handles, filled } = live;
        match *op {
            Both(value) => db.transaction(|tx| both(tx, maps, value)).unwrap(),
            Swap(value) => db.transaction(|tx| swap(tx, maps, value)).unwrap(),
            Plain(map, value) => _ = handles[map].insert(&1, &value).unwrap(),
            Within(map, value) => {
                let (index, mut session) = (maps[map].index(), db.pool().session().unwrap());
                let [key, value] = [1, value].map(u64::to_be_bytes);
                index.insert(&session.enter().unwrap(), &key, &value).unwrap();
            }
            Group(map, value) => {
                let mut batch = MapBatch::new();
                batch.insert(&1, &value).unwrap();
                maps[map].apply(&batch).unwrap();
            }
            Single(map, value) => db.transaction(|tx| tx.map(&maps[map])?.insert(&1, &value).map(drop)).unwrap(),
            Pair(value) => db
                .transaction(|tx| {
                    let map = tx.map(&maps[0])?;
                    map.insert(&1, &value)?;
                    map.insert(&2, &(value + 1)).map(drop)
                })
                .unwrap(),
            Hold => {
                let held = db.transaction(|tx| {
                    maps.iter().try_for_each(|map| tx.map(map)?.insert(&UNSEEN, &0).map(drop))?;
                    Ok(tx.later())
                });
                drop(held.unwrap());
            }
            Meet => _ = handles[0].insert(&UNSEEN, &1).unwrap(),
            Aside(value) => db.transaction(|tx| aside(tx, maps, value)).unwrap(),
            Reopen(map) => {
                let other = &maps[1 - map];
                let name = maps[map].name();
                handles[map] = other.handle().unwrap();
                maps[map] = other.clone();
                maps[map] = db.map_of_kind(&name, self.kinds[map]).unwrap();
                handles[map] = maps[map].handle().unwrap();
            }
            Beside(map, value) => _ = handles[map].insert(&9, &value).unwrap(),
            Cut(map) => _ = handles[map].remove(&1).unwrap(),
            Seed => {
                let seed =
                    |tx: &Transaction<M>| maps.iter().try_for_each(|map| tx.map(map)?.insert(&UNSEEN, &0).map(drop));
                db.transaction(seed).unwrap();
            }
            Fill => {
                let filler: Map<u64, u64, M> = db.map_of_kind("filler", "pset").unwrap();
                let (owner, mut session) = (filler.index().root().owner(), db.pool().session().unwrap());
                let (op, space) = (session.enter().unwrap(), db.pool().space());
                while let Ok(reserved) = space.reserve_extent(&op, owner, 1) {
                    filled.push(space.activate(&op, reserved).unwrap());
                    op.fence();
                }
                drop(op);
                for map in handles {
                    (UNSEEN..).find(|key| map.insert(key, &0).is_err());
                }
            }
            Crowded(value) => {
                while let Err(error) = db.transaction(|tx| crowded(tx, maps, value)) {
                    assert!(matches!(error, Error::Pool(durix_pmem::Error::Full { .. })), "{error}");
                    let extent = filled.pop().expect("there is room for it somewhere");
                    let mut session = db.pool().session().unwrap();
                    db.pool().space().free_extent(&session.enter().unwrap(), extent).unwrap();
                }
            }
            Abort(value) => {
                let aborted: Result<(), _> = db.transaction(|tx| {
                    tx.map(&maps[0])?.insert(&1, &value)?;
                    tx.map(&maps[1])?.insert(&1, &value)?;
                    Err(Error::abort("on purpose"))
                });
                assert!(matches!(aborted, Err(Error::Aborted(_))));
            }
            Look(map) => return handles[map].get(&1).unwrap(),
            Differ => return differ(db, maps),
            Sync => db.sync().unwrap(),
        }
        None
    }

    fn observe(&self, live: &mut Live) -> State {
        let seen = |pair: &Result<(u64, u64), _>| !matches!(pair, Ok((key, _)) if *key >= UNSEEN);
        live.maps.each_ref().map(|map| map.iter().filter(seen).collect::<Result<_, _>>().unwrap())
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let findings = live.maps.iter().flat_map(|map| map.check().unwrap());
        findings.map(|finding| finding.to_string()).collect()
    }

    fn model(&self) -> State {
        let mut model = State::default();
        self.before.iter().chain(self.unsettled).for_each(|op| _ = self.step(&mut model, op));
        model
    }

    fn step(&self, model: &mut State, op: &Op) -> Option<u64> {
        match *op {
            Both(value) => model.iter_mut().for_each(|map| map.extend([(1, value), (2, value + 1)])),
            Swap(value) => {
                model.iter_mut().for_each(|map| _ = map.remove(&1));
                model[1].insert(3, value);
            }
            Plain(map, value) | Within(map, value) | Group(map, value) | Single(map, value) => {
                model[map].insert(1, value);
            }
            Pair(value) => model[0].extend([(1, value), (2, value + 1)]),
            Aside(value) => model.iter_mut().for_each(|map| _ = map.insert(9, value)),
            Beside(map, value) => _ = model[map].insert(9, value),
            Cut(map) => _ = model[map].remove(&1),
            Crowded(value) => model.iter_mut().for_each(|map| map.extend(CROWD.map(|key| (key, value)))),
            Look(map) => return model[map].get(&1).copied(),
            Abort(_) | Sync | Seed | Fill | Reopen(_) | Hold | Meet | Differ => {}
        }
        None
    }

    fn expect(&self, model: &State) -> State {
        model.clone()
    }

    /// A mixed transaction waits for its checkpoint, which makes everything before it durable.
    fn is_sync(&self, op: &Op) -> bool {
        let is_mixed = self.kinds.iter().any(|kind| *kind != "masstree");
        matches!(op, Sync) || (matches!(op, Both(_) | Swap(_)) && is_mixed)
    }
}

/// What a thread has: handles of its own.
struct Worker {
    db: Db<M>,
    maps: Maps,
    handles: [Handle<u64, u64, M>; 2],
}

impl Worker {
    /// Transactions without closures: all threads of a simulation are one of the operating system, on which closures would be nested.
    fn transaction(&self, run: impl Fn(&Transaction<M>) -> Result<(), Error>) {
        let medium = self.db.pool().mapping().medium();
        for turn in 0.. {
            let tx = self.db.begin().unwrap();
            match run(&tx) {
                Ok(()) => return tx.commit().unwrap(),
                Err(Error::Conflict { .. }) => drop(tx),
                Err(other) => panic!("{other}"),
            }
            medium.spin(turn);
        }
    }
}

impl Concurrent for Bank {
    type Thread = Worker;

    fn thread(&self, live: &Live, _number: usize) -> Worker {
        let maps = live.maps.clone();
        let mut handles = maps.each_ref().map(|map| map.handle().unwrap());
        if self.before.iter().any(|op| matches!(op, Seed)) {
            // From now on this session removes a node of that page without making something durable first.
            handles[0].remove(&UNSEEN).unwrap();
        }
        Worker { db: live.db.clone(), maps, handles }
    }

    fn run(&self, worker: &mut Worker, op: &Op) -> Option<u64> {
        match *op {
            Both(value) => worker.transaction(|tx| both(tx, &worker.maps, value)),
            Swap(value) => worker.transaction(|tx| swap(tx, &worker.maps, value)),
            Aside(value) => worker.transaction(|tx| aside(tx, &worker.maps, value)),
            Plain(map, value) => _ = worker.handles[map].insert(&1, &value).unwrap(),
            Beside(map, value) => _ = worker.handles[map].insert(&9, &value).unwrap(),
            Cut(map) => _ = worker.handles[map].remove(&1).unwrap(),
            Look(map) => return worker.handles[map].get(&1).unwrap(),
            Differ => return differ(&worker.db, &worker.maps),
            _ => unreachable!("not in threads"),
        }
        None
    }

    fn hidden(&self) -> Option<String> {
        Some("what the database keeps beside the medium".into())
    }
}

fn explorer(bank: &Bank) -> Explorer {
    let contract = if bank.is_buffered() { Contract::Buffered } else { Contract::Strict };
    let (executions, samples) = if deep() { (20_000, 500) } else { (60, 12) };
    Explorer::new().contract(contract).executions_per_point(executions).samples(samples)
}

fn bank(kinds: [&'static str; 2]) -> Bank {
    Bank { kinds, plan: Plan::new(), before: &[], unsettled: &[], tables_go: false }
}

/// Both maps change twice, with plain updates of the same keys after it: replay must not undo them.
const OPS: [Op; 4] = [Both(10), Plain(0, 20), Swap(30), Plain(1, 40)];
/// What comes after a recovery changes the same keys again.
const AFTER: [Op; 2] = [Plain(0, 50), Both(60)];

#[test]
fn every_pair_of_classes_is_all_or_nothing() {
    let mut pairs = 0;
    for (at, first) in CLASSES.iter().enumerate() {
        for second in &CLASSES[at..] {
            let bank = bank([first, second]);
            let ops: &[Op] = if bank.is_buffered() { &[Both(10), Plain(0, 20), Swap(30), Sync] } else { &OPS };
            let begun = std::time::Instant::now();
            let report = explorer(&bank).run_then(&bank, ops, &AFTER);
            println!("{first} and {second}: {} ({} ms)", report.assert_ok(), begun.elapsed().as_millis());
            pairs += 1;
        }
    }
    assert_eq!(pairs, 28);
}

/// A lock table goes while the retirement of a transaction is not durable. After that a plain update of one of its keys does not look for retirements.
#[test]
fn a_table_that_goes_leaves_no_retirement_pending() {
    for kinds in [["hash", "skiplist"], ["pset", "hash-values"], ["bplustree", "list"], ["hash", "masstree"]] {
        let bank = Bank { tables_go: true, ..bank(kinds) };
        let ops: &[Op] = match bank.is_buffered() {
            true => &[Both(10), Beside(0, 15), Plain(0, 20), Both(30), Sync],
            false => &[Both(10), Beside(0, 15), Plain(0, 20), Both(30), Beside(1, 35), Plain(1, 40), Plain(0, 45)],
        };
        let report = explorer(&bank).run_then(&bank, ops, &[Beside(0, 50), Plain(0, 55), Both(60)]);
        println!("{kinds:?}: {}", report.assert_ok());
    }
    // What another thread reads before the fence of the removal, no crash takes back.
    let before = Bank { before: &[Both(5), Seed], unsettled: &[Both(10)], ..bank(["list", "list"]) };
    let explorer = Explorer::new().executions_per_point(16).samples(8);
    let threads = Threads::new(explorer).preemptions(1);
    let programs = [vec![Beside(0, 15), Cut(0)], vec![Look(0)]];
    println!("{}", threads.run(&Bank { tables_go: true, ..before }, &programs, &[]).assert_ok());
}

/// Whatever changes a key of a transaction whose retirement is not durable makes it durable first, or replay would take the change back.
#[test]
fn every_way_of_changing_a_key_settles_the_record_that_has_it() {
    let changes: [&[Op]; 5] = [
        &[Within(0, 20)],
        &[Group(0, 20)],
        &[Single(0, 20)],
        &[Reopen(0), Plain(0, 20)],
        // The record is one of the same lane, which the next one overwrites.
        &[Swap(20), Within(1, 30)],
    ];
    for kinds in [["hash", "skiplist"], ["pset", "bplustree"], ["list-values", "dptree"]] {
        for change in changes {
            let bank = bank(kinds);
            let ops: Vec<Op> = [Both(10)].iter().chain(change).copied().collect();
            println!("{kinds:?}, {change:?}: {}", explorer(&bank).run_then(&bank, &ops, &[Within(0, 50)]).assert_ok());
        }
    }
}

/// A transaction that waits for a checkpoint keeps a lane, so the next one has another. Its record is not that which the third one
/// overwrites.
#[test]
fn a_mixed_transaction_settles_records_of_other_lanes() {
    for kinds in [["hash", "masstree"], ["pset", "masstree"]] {
        let bank = bank(kinds);
        println!("{}", explorer(&bank).run_then(&bank, &[Hold, Pair(10), Meet, Both(30)], &[Both(60)]).assert_ok());
    }
}

/// A snapshot comes before a transaction over a strict and a buffered map or after it, wherever the two meet.
#[test]
fn a_snapshot_shows_no_half_of_a_mixed_transaction() {
    let bank = Bank { before: &[Both(5)], ..bank(["list", "masstree"]) };
    let explorer = Explorer::new().contract(Contract::Buffered).executions_per_point(1).samples(1).crash_points(1);
    let threads = Threads::new(explorer).preemptions(1).max_schedules(if deep() { 4000 } else { 400 });
    println!("{}", threads.run(&bank, &[vec![Both(10)], vec![Differ]], &[]).assert_ok());
}

/// While one thread makes a retirement durable, another one retires the lane's next record: that is not durable yet.
#[test]
fn what_is_retired_during_a_settlement_is_not_settled() {
    let bank = Bank { before: &[Both(5)], unsettled: &[Both(10)], ..bank(["list", "list"]) };
    let threads = Threads::new(Explorer::new().executions_per_point(6).samples(2)).preemptions(1);
    let programs = [vec![Plain(0, 20)], vec![Aside(30), Beside(0, 40)]];
    println!("{}", threads.run(&bank, &programs, &[]).assert_ok());
}

#[test]
fn a_crash_in_the_recovery_is_as_one_before_it() {
    let pairs = [["pset", "hash"], ["hash", "skiplist"], ["masstree", "hash"]];
    for kinds in &pairs[..if deep() { 3 } else { 2 }] {
        let bank = bank(*kinds);
        let explorer = explorer(&bank).crashes(2).samples(if deep() { 300 } else { 4 });
        let explorer = if deep() { explorer } else { explorer.executions_per_point(8).crash_points(12) };
        let report = explorer.run_then(&bank, &[Both(10), Plain(0, 20)], &[Plain(1, 50)]);
        println!("{kinds:?}: {}", report.assert_ok());
    }
}

/// The death of the process after a store, in deep runs after every one; the next one recovers, goes on, and then the power fails.
#[test]
fn a_process_that_dies_leaves_what_the_next_one_makes_durable() {
    let bank = bank(["list", "list"]);
    let few = explorer(&bank).executions_per_point(1).samples(1);
    if deep() {
        let explorer = explorer(&bank).process_deaths(true);
        println!("{}", explorer.run_then(&bank, &[Abort(5), Both(10)], &[Plain(0, 50)]).assert_ok());
    }
    // The log's own stores, and those by which it asks for recovery.
    for file in ["transaction/log", "pool/"] {
        let report = few.clone().deaths_in(file).run_then(&bank, &[Abort(5), Both(10)], &[Plain(0, 50)]);
        println!("{file}: {}", report.assert_ok());
    }
}

#[test]
fn torn_words_are_survived() {
    let bank = bank(["hash-fast-open", "skiplist"]);
    let explorer = explorer(&bank).model(Persistency::TornWords);
    println!("{}", explorer.run_then(&bank, &[Both(10), Swap(30)], &AFTER).assert_ok());
}

/// Two threads with sessions and lanes of their own change and read the same keys. Wherever they meet, each transaction is whole, also
/// for plain reads of one key, and what was acknowledged, or read, no crash takes back: nor does one in the recovery that follows. Where
/// plain updates have lock tables go, they come back in the middle.
#[test]
fn threads_with_lanes_of_their_own_are_all_or_nothing() {
    let programs: [[Vec<Op>; 2]; 3] = [
        [vec![Both(10), Look(0)], vec![Both(20)]],
        [vec![Both(10), Both(11)], vec![Plain(0, 20), Look(0)]],
        [vec![Both(10), Look(1)], vec![Swap(30), Plain(1, 20)]],
    ];
    let subjects = [(["list", "list"], false), (["pset", "hash"], true), (["list", "skiplist"], true)];
    for ((kinds, tables_go), program) in subjects.into_iter().zip(&programs) {
        let bank = Bank { before: &[Both(5)], tables_go, ..bank(kinds) };
        let explorer = Explorer::new().executions_per_point(6).samples(2);
        let alone = explorer.clone().crash_points(if deep() { 60 } else { 8 });
        let threads = Threads::new(alone).preemptions(if deep() { 2 } else { 1 });
        let threads = threads.max_schedules(if deep() { 4000 } else { 120 });
        println!("{kinds:?}: {}", threads.run(&bank, program, &[Plain(0, 50)]).assert_ok());
        let again = explorer.crashes(2).executions_per_point(2).crash_points(if deep() { 12 } else { 2 });
        let threads = Threads::new(again).preemptions(1).max_schedules(if deep() { 400 } else { 20 });
        println!("{kinds:?}, twice: {}", threads.run(&bank, program, &[]).assert_ok());
    }
}

/// Another thread reads what a plain update has made visible, before the update's own fence: by then the record of the transaction before is
/// durably retired, or replay would take back what was read (TX-R). That transaction is done before the threads begin, and its retirement
/// is not durable then; a removal has no fence of its own before it is visible.
fn read_early(plan: &'static Plan) -> Report {
    let bank = Bank { plan, before: &[Both(5), Seed], unsettled: &[Both(10)], ..bank(["list", "list"]) };
    let explorer = Explorer::new().executions_per_point(16).samples(8);
    let threads = Threads::new(explorer).preemptions(1);
    threads.run(&bank, &[vec![Cut(0)], vec![Look(0)]], &[])
}

/// A pool that is full: recovery finds room for what it has to make again, whether the transaction was acknowledged, or was refused while
/// its record was durable.
#[test]
fn recovery_finds_room_where_there_is_none_for_others() {
    for kinds in [["pset", "hash-values"], ["bplustree", "skiplist"]] {
        let bank = Bank { before: &[Both(5), Fill], ..bank(kinds) };
        let explorer = explorer(&bank).executions_per_point(8).samples(4).crash_points(if deep() { 400 } else { 24 });
        println!("{kinds:?}: {}", explorer.run_then(&bank, &[Crowded(20)], &[Look(0)]).assert_ok());
    }
}

#[test]
fn what_is_read_before_it_is_acknowledged_is_not_taken_back() {
    println!("{}", read_early(Plan::new()).assert_ok());
}

/// What the sweep runs for each site: a short history, and deaths after what the log stores.
fn explore(plan: &'static Plan) -> Report {
    let bank = Bank { plan, ..bank(["list", "list"]) };
    let power = explorer(&bank).executions_per_point(40).samples(12);
    let mut report = power.run_then(&bank, &[Both(10), Plain(0, 20), Swap(30)], &[Plain(0, 50)]);
    if report.failure.is_none() {
        // What the next process does first is a removal: it has one fence, which comes after its link is visible. A recovered log
        // asks no more: a lost retirement shows once the next transaction has made it ask again.
        let bank = Bank { before: &[Both(10)], ..bank };
        let deaths = explorer(&bank).deaths_in("transaction/log").executions_per_point(40).samples(12);
        report.merge(deaths.run_then(&bank, &[Swap(30)], &[Plain(0, 50), Both(60)]));
    }
    if report.failure.is_none() {
        report.merge(read_early(plan));
    }
    report
}

/// Those of recovery (TX-V) too, which the death of a process needs.
#[test]
fn each_write_back_and_fence_of_the_log_is_needed() {
    let sweep = mutation_sweep(&Sites::in_files("transaction/log"), explore);
    println!("{sweep}");
    assert!(sweep.mutants.len() >= 10, "{} sites", sweep.mutants.len());
    // The fence of TX-R in recovery has that of RC-K3 after it, so that it takes three power failures to show that it is needed:
    // `transaction/log/tests.rs` of `durix`, with the first one made by hand.
    sweep.assert_all_caught(&["log/mod.rs:TX-R"]);
}
