//! Logs in pools: by name, over restarts, growing.

use durix_crashsim::{Explorer, Simulated, Subject};
use durix_cso::log::{
    ChainGrowth, Error, FvbLog, FvbOptions, LinesLog, Log, NamedChain, NamedLog, NamedOptions, OneLine, VbLog,
};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Medium, Mutating, Plan, Pool, PoolOptions, Session};

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(4096).max_indices(4).lanes(1).pool_id([7; 16]).boot_id([7; 16])
}

fn pool() -> Pool<Hardware> {
    options().create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap()
}

fn words<M: Medium, L: Log + 'static>(session: &mut Session<M>, log: &NamedLog<M, L>) -> Vec<u64> {
    let op = session.enter().unwrap();
    log.lock(&op).iter(&op).map(|r| r.word(0)).collect()
}

#[test]
fn logs_of_several_kinds_live_in_one_pool_and_are_found_again() {
    let pool = pool();
    let small = NamedOptions { bytes: 4096, log: () };
    let flexible = NamedOptions { bytes: 8192, log: FvbOptions { lines: 4 } };
    for lap in 0..3 {
        let a = NamedLog::<_, LinesLog>::open(&pool, "a", &small).unwrap();
        let b = NamedLog::<_, FvbLog>::open(&pool, "b", &flexible).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        a.append(&op, 1, &(lap * 2u64).to_le_bytes()).unwrap();
        b.append(&op, 1, &(lap * 3u64).to_le_bytes()).unwrap();
        drop(op);
        let expected = |factor: u64| (0..=lap).map(|l| l * factor).collect::<Vec<_>>();
        assert_eq!(words(&mut session, &a), expected(2));
        assert_eq!(words(&mut session, &b), expected(3));
    }
    let error = NamedLog::<_, VbLog<OneLine>>::open(&pool, "a", &NamedOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "kind", .. }), "{error}");
    let error = NamedChain::open(&pool, "a", &ChainGrowth::default()).unwrap_err();
    assert!(matches!(error, Error::Pmem(_)), "{error}");
}

#[test]
fn a_chain_grows_until_it_may_not_and_trimmed_segments_are_used_again() {
    let pool = pool();
    let growth = ChainGrowth { segment_bytes: 4096, max_segments: 4 };
    let log = NamedChain::open(&pool, "chain", &growth).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut appended = 0u64;
    let error = loop {
        match log.append(&op, 0, &appended.to_le_bytes()) {
            Ok(_) => appended += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_eq!((log.lock(&op).segments(), appended), (4, 4 * (4096 - 128) / 64));
    for lap in 0..10u64 {
        let to = log.lock(&op).iter(&op).nth(100).unwrap().position();
        log.lock(&op).trim(&op, to).unwrap();
        for i in 0..60 {
            log.append(&op, 0, &(lap * 60 + i).to_le_bytes()).unwrap();
        }
        assert_eq!(log.lock(&op).check(&op), []);
        let to = log.lock(&op).iter(&op).nth(20).unwrap().position();
        log.lock(&op).trim(&op, to).unwrap();
        if log.lock(&op).iter(&op).count() < 130 {
            break;
        }
    }
    let before: Vec<u64> = log.lock(&op).iter(&op).map(|r| r.word(0)).collect();
    drop((op, log));
    let log = NamedChain::open(&pool, "chain", &growth).unwrap();
    let op = session.enter().unwrap();
    let after: Vec<u64> = log.lock(&op).iter(&op).map(|r| r.word(0)).collect();
    assert_eq!(before, after);
    assert_eq!(log.lock(&op).segments(), 4);
}

/// A pool with a chain of tiny segments.
struct Chain(&'static Plan);

type M = Mutating<Simulated>;

struct Live {
    session: Session<M>,
    log: std::sync::Arc<NamedChain<M>>,
    _pool: Pool<M>,
}

const LEN: u64 = 24 * 4096;
/// Three of these fill a segment of 62 lines.
const RECORD: usize = 20 * 56;

fn live(pool: Pool<M>) -> Result<Live, String> {
    let growth = ChainGrowth { segment_bytes: 4096, max_segments: 3 };
    let log = NamedChain::open(&pool, "chain", &growth).map_err(|e| e.to_string())?;
    let session = pool.session().map_err(|e| e.to_string())?;
    Ok(Live { session, log, _pool: pool })
}

impl Subject for Chain {
    type Op = u64;
    type Ret = ();
    type State = Vec<(u64, usize)>;
    type Model = Vec<(u64, usize)>;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.0))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let options = options().initial_size(LEN).max_size(LEN);
        let mut live = live(options.create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap()).unwrap();
        let op = live.session.enter().unwrap();
        for i in 0..5u64 {
            let mut bytes = vec![0; RECORD];
            bytes[..8].copy_from_slice(&(100 + i).to_le_bytes());
            live.log.append(&op, 0, &bytes).unwrap();
        }
        drop(op);
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let backing = simulated.backing(LEN);
        let pool = options().open_on(backing, *medium).map_err(|e| e.to_string())?;
        live(pool.recover().map_err(|e| e.to_string())?)
    }

    fn apply(&self, live: &mut Live, number: &u64) {
        let op = live.session.enter().unwrap();
        let mut bytes = vec![0; RECORD];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        live.log.append(&op, 0, &bytes).unwrap();
    }

    fn observe(&self, live: &mut Live) -> Self::State {
        let op = live.session.enter().unwrap();
        live.log.lock(&op).iter(&op).map(|r| (r.word(0), r.len())).collect()
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        live.log.lock(&op).check(&op).into_iter().map(|f| format!("{f:?}")).collect()
    }

    fn model(&self) -> Self::Model {
        (100..105).map(|i| (i, RECORD)).collect()
    }

    fn step(&self, model: &mut Self::Model, number: &u64) {
        model.push((*number, RECORD));
    }

    fn expect(&self, model: &Self::Model) -> Self::State {
        model.clone()
    }
}

/// The second record needs a third segment.
fn grow(plan: &'static Plan) -> durix_crashsim::Report {
    Explorer::new().executions_per_point(3_000).samples(100).run_then(&Chain(plan), &[1, 2], &[3])
}

#[test]
fn growing_loses_nothing_at_any_crash() {
    println!("{}", grow(Plan::new()).assert_ok());
}
