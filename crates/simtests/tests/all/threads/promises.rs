//! What an operation has promised when it returns, thread by thread; and programs without operations.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_crashsim::{Cause, Concurrent, Explorer, Report, Simulated, Subject, Threads};
use durix_pmem::{Mapping, Off, Session, Word};

/// `Some(v)` writes, `None` reads.
type Act = Option<u64>;

const VALUE: Off<Word> = Off::new(64);
/// No recovery reads it.
const SCRATCH: Off<Word> = Off::new(128);
const FIRST: u64 = 7;

/// What a write leaves behind, where nobody can tell after a crash.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    Nothing,
    Stored,
    Flushed,
    /// Nothing; but creating the register does not wait for its first value.
    FirstValue,
}

/// A durable register.
struct Register(Leaves);

impl Subject for Register {
    type Op = Act;
    type Ret = u64;
    type State = u64;
    type Model = u64;
    type Store = Mapping<Simulated>;
    type Live = (Mapping<Simulated>, Session<Simulated>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(1024, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        let mut session = store.session().unwrap();
        let op = session.enter().unwrap();
        op.store(op.at(VALUE), FIRST, Release);
        op.write_back(op.at(VALUE));
        if self.0 != Leaves::FirstValue {
            op.fence();
        }
        drop(op);
        (store.clone(), session)
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok((store.clone(), store.session().map_err(|e| e.to_string())?))
    }
    fn apply(&self, (_, session): &mut Self::Live, act: &Act) -> u64 {
        self.run(session, act)
    }
    fn observe(&self, (_, session): &mut Self::Live) -> u64 {
        self.run(session, &None)
    }
    fn model(&self) -> u64 {
        FIRST
    }
    fn step(&self, model: &mut u64, act: &Act) -> u64 {
        *model = act.unwrap_or(*model);
        *model
    }
    fn expect(&self, model: &u64) -> u64 {
        *model
    }
}

impl Concurrent for Register {
    type Thread = Session<Simulated>;

    fn thread(&self, (mapping, _): &Self::Live, _number: usize) -> Self::Thread {
        mapping.session().unwrap()
    }

    fn run(&self, session: &mut Self::Thread, act: &Act) -> u64 {
        let op = session.enter().unwrap();
        let word = op.at(VALUE);
        let Some(value) = *act else {
            let value = op.load(word, Acquire);
            op.persist(word);
            return value;
        };
        op.store(word, value, Release);
        op.persist(word);
        if matches!(self.0, Leaves::Stored | Leaves::Flushed) {
            op.store(op.at(SCRATCH), value, Relaxed);
        }
        if self.0 == Leaves::Flushed {
            op.write_back(op.at(SCRATCH));
        }
        value
    }
}

fn program() -> [Vec<Act>; 2] {
    [vec![None, Some(1)], vec![Some(2), None]]
}

#[track_caller]
fn complete(report: Report) {
    let report = report.assert_ok();
    println!("{report}");
    assert!(report.complete, "{report}");
}

/// The failure, which its replay string repeats.
#[track_caller]
fn fails(explorer: &Explorer, leaves: Leaves) -> durix_crashsim::Failure {
    let failure = Threads::new(explorer.clone()).run(&Register(leaves), &program(), &[]).failure.expect("missed");
    println!("{failure}");
    assert_eq!((failure.ops.len(), failure.preemptions), (1, 0), "{failure}");
    assert!(failure.timeline.last().unwrap().contains("returns"), "{failure}");
    let again = Threads::new(explorer.clone().replay(&failure.replay)).run(&Register(leaves), &program(), &[]);
    let again = again.failure.expect("fails again");
    assert_eq!((&again.cause, &again.timeline), (&failure.cause, &failure.timeline));
    failure
}

#[test]
fn a_thread_answers_for_its_own_stores_only() {
    for explorer in [Explorer::new().settled_returns(true), Explorer::new().flushes_at_once(true)] {
        complete(Threads::new(explorer).run(&Register(Leaves::Nothing), &program(), &[None]));
    }
}

#[test]
fn what_a_thread_has_stored_and_no_recovery_reads_is_settled_when_it_returns() {
    complete(Threads::new(Explorer::new()).run(&Register(Leaves::Stored), &program(), &[]));
    for leaves in [Leaves::Stored, Leaves::Flushed] {
        let failure = fails(&Explorer::new().settled_returns(true), leaves);
        assert!(matches!(failure.cause, Cause::Unsettled { .. }), "{failure}");
        assert!(failure.details[0].contains("promises.rs"), "{failure}");
    }
}

#[test]
fn what_a_thread_has_flushed_and_not_fenced_is_reported() {
    complete(Threads::new(Explorer::new()).run(&Register(Leaves::Flushed), &program(), &[]));
    let failure = fails(&Explorer::new().flushes_at_once(true), Leaves::Flushed);
    assert!(matches!(failure.cause, Cause::Unfenced { .. }), "{failure}");
}

#[test]
fn a_program_without_operations_is_crashed_after_its_creation() {
    let nothing = [Vec::new(), Vec::new()];
    let report = Threads::new(Explorer::new()).run(&Register(Leaves::Nothing), &nothing, &[None]).assert_ok();
    assert!(report.complete && report.crash_points == 1, "{report}");
    let report = Threads::new(Explorer::new()).run(&Register(Leaves::FirstValue), &nothing, &[]);
    let failure = report.failure.expect("creation leaves its value on the way");
    println!("{failure}");
    assert!(matches!(failure.cause, Cause::Recovered { .. }), "{failure}");
}

#[test]
fn a_replay_string_of_many_programs_finds_its_own() {
    let alphabet = [Some(1), Some(2), None];
    let threads = |explorer: Explorer| Threads::new(explorer.settled_returns(true));
    let run = |explorer| threads(explorer).programs(&Register(Leaves::Stored), &alphabet, 2, 1, &[]);
    let failure = run(Explorer::new()).failure.expect("missed");
    let again = run(Explorer::new().replay(&failure.replay)).failure.expect("fails again");
    assert_eq!((again.cause, again.timeline), (failure.cause, failure.timeline));
}
