//! The fence of edge TX-R in recovery. To lose what it keeps takes three power failures: one leaves a record that was not retired; one comes in
//! the recovery, and leaves a root that asks no more without the retirement; and one comes when the next transaction has made the root
//! ask again: then the old record is made again, over what was changed since. Here the state that the first one leaves is made by hand, and what the
//! second one leaves is judged by the rule that the third one needs: a log that asks for nothing holds no record that counts.

use std::collections::BTreeMap;

use durix_crashsim::{Explorer, Report, Simulated, Subject};
use durix_pmem::backing::HeapBacking;
use durix_pmem::pool::Moments;
use durix_pmem::{Counting, Hardware, Mutating, Mutation, Plan, PoolOptions, SiteKind};

use super::super::recover::finish_all;
use super::*;
use crate::{Db, Map};

type M = Mutating<Simulated>;

/// Two maps.
struct Bank(&'static Plan);

struct Live {
    db: Db<M>,
    maps: [Map<u64, u64, M>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Recovers a log whose last record is not retired.
    Recover,
    /// Sets a key of both maps in one transaction.
    Both(u64),
    /// Closes the log, as where the database is closed.
    Close,
}

const LEN: u64 = 80 * 4096;

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(6).lanes(1).pool_id([7; 16]).boot_id([7; 16]);
    options.initial_size(LEN).max_size(LEN)
}

fn live(db: Db<M>) -> Result<Live> {
    let maps = [db.map_of_kind("first", "list")?, db.map_of_kind("second", "list")?];
    Ok(Live { db, maps })
}

impl Live {
    fn both(&self, value: u64) {
        let set =
            |tx: &crate::Transaction<M>| self.maps.iter().try_for_each(|map| tx.map(map)?.insert(&1, &value).map(drop));
        self.db.transaction(set).unwrap();
    }

    /// What the pool does for a root that asks, in a state that a power failure can leave.
    fn recover(&self) {
        let log = self.db.shared.transactions.log().unwrap();
        let mut session = self.db.pool().session().unwrap();
        let op = session.enter().unwrap();
        let lane = log.lanes.lock(op.medium()).all[0];
        lane.retire_now(&op, lane.number - 1);
        drop(op);
        finish_all(&mut session, self.db.pool()).unwrap();
        log.ask(&session.enter().unwrap(), Moments::NONE).unwrap();
    }
}

impl Subject for Bank {
    type Op = Do;
    type Ret = ();
    type State = [BTreeMap<u64, u64>; 2];
    type Model = Self::State;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.0))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap();
        let live = live(Db::over(pool)).unwrap();
        live.both(1);
        live.both(10);
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let pool = options().open_on(simulated.backing(LEN), *medium).and_then(|pool| pool.recover());
        live(Db::over(pool.map_err(|error| error.to_string())?)).map_err(|error| error.to_string())
    }

    fn apply(&self, live: &mut Live, op: &Do) {
        match *op {
            Do::Recover => live.recover(),
            Do::Both(value) => live.both(value),
            Do::Close => live.db.shared.transactions.close_log(),
        }
    }

    fn observe(&self, live: &mut Live) -> Self::State {
        live.maps.each_ref().map(|map| map.iter().collect::<Result<_, _>>().unwrap())
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let log = IntentLog::existing(live.db.pool()).unwrap();
        let mut session = live.db.pool().session().unwrap();
        let asks = log.asks(&session.enter().unwrap()).unwrap() != Moments::NONE;
        let left =
            (!asks && !log.is_idle(live.db.pool().mapping().medium())).then(|| "a record that counts".to_owned());
        let findings = live.maps.iter().flat_map(|map| map.check().unwrap()).map(|finding| finding.to_string());
        left.into_iter().chain(findings).collect()
    }

    fn model(&self) -> Self::State {
        [BTreeMap::from([(1, 10)]), BTreeMap::from([(1, 10)])]
    }

    fn step(&self, model: &mut Self::State, op: &Do) {
        match *op {
            Do::Recover | Do::Close => {}
            Do::Both(value) => model.iter_mut().for_each(|map| _ = map.insert(1, value)),
        }
    }

    fn expect(&self, model: &Self::State) -> Self::State {
        model.clone()
    }
}

/// A log that is closed asks for nothing once the retirement of its last record is durable. A record that came back would be made again
/// after a later crash, when the log asks again.
#[test]
fn a_closed_log_holds_no_record_that_counts() {
    let explorer = Explorer::new().executions_per_point(40).samples(40).suggest(false);
    println!("{}", explorer.run_then(&Bank(Plan::new()), &[Do::Both(20), Do::Close], &[Do::Both(60)]).assert_ok());
}

/// A record takes its lane to the last byte, and none takes a word more: behind it lies what belongs to somebody else. A lane that is new
/// is used by another session once its descriptor is durable.
#[test]
fn a_lane_is_taken_for_what_fits_into_it_and_when_it_is_durable() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), counting).unwrap();
    let db = Db::over(pool);
    let log = db.shared.transactions.log().unwrap();
    let mut session = db.pool().session().unwrap();
    let op = session.enter().unwrap();
    let take = |payload| Arc::clone(&log).take(&op, payload, &Need::default()).unwrap();
    let fences_of_cancel = |lane: LaneGuard<_>| {
        let before = counting.counts().fences;
        lane.cancel(&op);
        counting.counts().fences - before
    };
    let lane = take(8);
    let most = lane.lane.extent.len - PAYLOAD_AT;
    assert_eq!((lane.number(), fences_of_cancel(lane)), (0, 1));
    let lane = take(most);
    assert_eq!((lane.number(), fences_of_cancel(lane)), (0, 0));
    // A panic has kept this one from its end.
    let lane = take(most + 8);
    assert!(lane.number() == 1 && lane.lane.extent.len - PAYLOAD_AT >= most + 8);
    drop(lane);
    let lane = take(most + 8);
    assert_eq!((lane.number(), fences_of_cancel(lane)), (2, 1));
}

fn explore(plan: &'static Plan) -> Report {
    let explorer = Explorer::new().executions_per_point(40).samples(40).suggest(false);
    explorer.run_then(&Bank(plan), &[Do::Recover], &[Do::Both(60)])
}

#[test]
fn the_retirement_by_recovery_is_durable_before_the_root_asks_no_more() {
    let plan = Plan::new();
    println!("{}", explore(plan).assert_ok());
    let source = include_str!("mod.rs");
    let label = source.lines().position(|line| line.contains("// PERSIST TX-R")).unwrap() as u32;
    let is_it = |site: &durix_pmem::Site| {
        site.kind == SiteKind::Fence && site.file.ends_with("log/mod.rs") && site.line == label + 2
    };
    let (site, _) = plan.sites().into_iter().find(|(site, _)| is_it(site)).expect("recovery fences there");
    let plan = Plan::new();
    plan.mutate(site, Mutation::Drop);
    let report = explore(plan);
    println!("without it: {report}");
    assert!(report.failure.is_some(), "the loss of the fence shows nowhere");
}

/// A lane that needs more room gives back what it holds. Its last record may be replayed until its retirement is durable, and then
/// needs that room: so the retirement becomes durable first. A lane that holds enough, or nothing, costs no fence.
#[test]
fn room_is_given_back_when_no_record_needs_it() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let db = Db::over(PoolOptions::new().create_on(HeapBacking::new(64 << 20), counting).unwrap());
    let (log, retirements) = (db.shared.transactions.log().unwrap(), &db.shared.transactions.retirements);
    let mut session = db.pool().session().unwrap();
    let op = session.enter().unwrap();
    let need = |bytes| {
        let mut need = Need::default();
        need.change(bytes, false);
        need
    };
    let mut draft = Vec::new();
    record::begin(&mut draft);
    // The first one makes the lane.
    for (turn, bytes, fences) in [(0, 8, 1), (1, 8, 0), (2, 1 << 20, 1), (3, 1 << 20, 0), (4, 8, 0)] {
        let before = counting.counts().fences;
        let mut lane = Arc::clone(&log).take(&op, record::payload(&draft), &need(bytes)).unwrap();
        let taken = counting.counts().fences - before;
        assert!(turn == 0 || taken == fences, "turn {turn}: {taken} fences");
        lane.write(&op, retirements, 0, &mut draft).unwrap();
        lane.retire(&op, retirements, std::iter::empty());
    }
}
