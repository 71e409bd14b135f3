//! Random little programs: lazy exploration finds exactly what the plain enumeration finds, and the reduced crash
//! points find exactly what crashes before every event find.
//!
//! 10 000 programs, or 100 000 with `DURIX_DEEP=1`.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use durix_crashsim::{Explorer, Persistency, Simulated, Strategy, Subject};
use durix_pmem::{Mapping, Medium, Off, Op, Rmw, Session, Word};

/// Lines in play, and words used of each.
const LINES: u64 = 3;
const WORDS: u64 = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Store(u64, u64),
    Release(u64, u64),
    SeqCst(u64, u64),
    Around(u64, u64),
    Rmw(u64, u64),
    Cas(u64, u64, u64),
    WriteBack(u64),
    Order,
    Fence,
    SharedRmw,
}

fn random_step(random: &mut Random) -> Step {
    let word = random.below(LINES * WORDS);
    let value = random.below(4);
    match random.below(16) {
        0..4 => Step::Store(word, value),
        4..7 => Step::Release(word, value),
        7 => Step::SeqCst(word, value),
        8 => Step::Around(word, value),
        9 => Step::Rmw(word, value),
        10 => Step::Cas(word, random.below(2), value),
        11 | 12 => Step::WriteBack(word),
        13 => Step::Order,
        14 => Step::Fence,
        _ => Step::SharedRmw,
    }
}

fn word<'s>(op: &Op<'s, Simulated>, number: u64) -> &'s Word {
    op.at(Off::new(64 + number / WORDS * 64 + number % WORDS * 8))
}

fn step(op: &Op<'_, Simulated>, step: Step) {
    match step {
        Step::Store(w, v) => op.store(word(op, w), v, Relaxed),
        Step::Release(w, v) => op.store(word(op, w), v, Release),
        Step::SeqCst(w, v) => op.store(word(op, w), v, SeqCst),
        Step::Around(w, v) => op.store_nt(word(op, w), v),
        Step::Rmw(w, v) => {
            op.rmw(word(op, w), Rmw::Add, v);
        }
        Step::Cas(w, c, v) => {
            let _ = op.compare_exchange(word(op, w), c, v);
        }
        Step::WriteBack(w) => op.write_back(word(op, w)),
        Step::Order => op.order(),
        Step::Fence => op.fence(),
        Step::SharedRmw => {
            op.medium().shared_rmw(&Default::default(), Rmw::Or, 1);
        }
    }
}

/// A program of two threads, and a recovery whose reads and stores depend on what it reads.
struct Program {
    recovery: Vec<Step>,
    reads: usize,
}

impl Subject for Program {
    type Op = (bool, Step);
    type Ret = ();
    type State = Vec<u64>;
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = (Session<Simulated>, Session<Simulated>, Vec<u64>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(512, medium)
    }

    fn create(&self, store: &Self::Store) -> Self::Live {
        (store.session().unwrap(), store.session().unwrap(), Vec::new())
    }

    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        let (mut s, t, mut read) = self.create(store);
        let op = s.enter().unwrap();
        let mut at = 0;
        for turn in 0..self.reads.max(self.recovery.len()) {
            if turn < self.reads {
                let value = op.load(word(&op, at), Relaxed);
                read.push(value);
                at = (at + 1 + value) % (LINES * WORDS);
            }
            // Whether a store is made depends on what was read.
            if let Some(s) = self.recovery.get(turn)
                && (turn % 3 > 0 || read.iter().sum::<u64>() % 2 == 0)
            {
                step(&op, *s);
            }
        }
        drop(op);
        Ok((s, t, read))
    }

    fn apply(&self, live: &mut Self::Live, (second, s): &(bool, Step)) {
        let session = if *second { &mut live.1 } else { &mut live.0 };
        step(&session.enter().unwrap(), *s);
    }

    fn observe(&self, (s, _, read): &mut Self::Live) -> Vec<u64> {
        let op = s.enter().unwrap();
        let mut seen = read.clone();
        let last = read.last().copied().unwrap_or(0);
        seen.extend((last..LINES * WORDS).step_by(1 + read.len() % 3).map(|w| op.load(word(&op, w), Relaxed)));
        seen
    }

    fn model(&self) {}
    fn step(&self, (): &mut (), _: &(bool, Step)) {}
    fn expect(&self, (): &()) -> Vec<u64> {
        Vec::new()
    }
}

fn programs() -> u64 {
    if std::env::var_os("DURIX_DEEP").is_some_and(|v| v == "1") { 100_000 } else { 10_000 }
}

fn generate(seed: u64, len: u64, recovery: u64) -> (Program, Vec<(bool, Step)>) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for _ in 0..8 {
        random.below(2);
    }
    let len = 1 + random.below(len);
    let ops = (0..len).map(|_| (random.below(4) == 0, random_step(&mut random))).collect();
    let len = random.below(recovery);
    let recovery = (0..len).map(|_| random_step(&mut random)).collect();
    (Program { recovery, reads: 1 + random.below(5) as usize }, ops)
}

fn configurations(seed: u64) -> Explorer {
    let model = [Persistency::Pcso, Persistency::Pcso, Persistency::TornWords, Persistency::Eadr][seed as usize % 4];
    Explorer::new().model(model).locked_drains(seed / 4 % 2 == 1).executions_per_point(10_000_000)
}

fn differ(programs: u64, len: u64, recovery: u64, crashes: usize) {
    let (mut outcomes, mut executions, mut eagerly) = (0, 0, 0);
    for seed in 0..programs {
        let (program, ops) = generate(seed, len, recovery);
        let explorer = configurations(seed).crashes(crashes);
        let certified = |name, explorer: &Explorer| {
            let (outcomes, report) = explorer.recovered(&program, &ops);
            let report = report.assert_ok();
            let points = report.crash_points + report.nested_points;
            assert!(report.complete && report.certified == points, "{name}, seed {seed}: {report}");
            (outcomes, report)
        };
        let (lazy, report) = certified("lazy", &explorer);
        let (eager, all) = certified("eager", &explorer.clone().strategy(Strategy::Eager));
        assert_eq!(lazy, eager, "lazy and eager differ, seed {seed}: {ops:?}, recovery {:?}", program.recovery);
        let (full, _) = certified("full", &explorer.clone().every_event(true));
        assert_eq!(lazy, full, "reduced and full differ, seed {seed}: {ops:?}, recovery {:?}", program.recovery);
        if crashes == 1 {
            assert_eq!(report.crash_states, all.crash_states, "seed {seed}");
            assert_eq!(all.crash_states.small(), Some(u128::from(all.executions)), "seed {seed}");
        }
        outcomes += lazy.len();
        executions += report.executions;
        eagerly += all.executions;
    }
    println!(
        "{programs} programs, up to {crashes} crash(es): {outcomes} outcomes, the same each way; {executions} recoveries, \
         eagerly {eagerly}; every crash point with its certificate"
    );
    assert!(outcomes as u64 > 2 * programs);
}

#[test]
fn lazy_and_eager_and_full_agree() {
    differ(programs(), 10, 3, 1);
}

#[test]
fn lazy_and_eager_and_full_agree_with_crashes_in_recovery() {
    differ(programs() / 5, 6, 7, 2);
}

#[test]
fn a_crash_at_the_end_of_a_recovery_that_ends_early_is_not_lost() {
    // The recovery stores, then decides whether to store again: one that does not ends where the other went on.
    let recovery = vec![Step::SharedRmw, Step::Rmw(7, 1), Step::Fence, Step::Store(8, 2)];
    let program = Program { recovery, reads: 5 };
    let ops = [(false, Step::Store(8, 3)), (true, Step::Store(5, 1)), (false, Step::Cas(3, 0, 1))];
    let explorer = Explorer::new().model(Persistency::TornWords).crashes(2);
    let lazy = explorer.outcomes(&program, &ops);
    assert_eq!(lazy, explorer.strategy(Strategy::Eager).outcomes(&program, &ops));
    assert!(lazy.contains("[0, 0, 0, 1, 1, 0, 0, 2]"), "{lazy:?}");
}

#[test]
fn lazy_and_eager_agree_on_how_many_states_there_are() {
    for seed in 0..500 {
        let (program, ops) = generate(seed, 12, 1);
        let explorer = configurations(seed);
        let observe_only = Observed(program);
        let lazy = explorer.run(&observe_only, &ops).assert_ok();
        let eager = explorer.clone().strategy(Strategy::Eager).run(&observe_only, &ops).assert_ok();
        assert!(lazy.complete && eager.complete);
        assert_eq!(lazy.crash_states, eager.crash_states);
        assert!(lazy.executions <= eager.executions);
        assert_eq!(eager.crash_states.small(), Some(u128::from(eager.executions)));
    }
}

/// The same, observed without comparing anything.
struct Observed(Program);

impl Subject for Observed {
    type Op = (bool, Step);
    type Ret = ();
    type State = ();
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = (Session<Simulated>, Session<Simulated>, Vec<u64>);

    fn store(&self, medium: Simulated) -> Self::Store {
        self.0.store(medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        self.0.create(store)
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        self.0.recover(store)
    }
    fn apply(&self, live: &mut Self::Live, op: &(bool, Step)) {
        self.0.apply(live, op);
    }
    fn observe(&self, live: &mut Self::Live) {
        self.0.observe(live);
    }
    fn model(&self) {}
    fn step(&self, (): &mut (), _: &(bool, Step)) {}
    fn expect(&self, (): &()) {}
}
