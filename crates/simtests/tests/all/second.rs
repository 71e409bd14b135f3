//! The execution after a recovery, crashed in its operations; crashes in closing; machines whose write-backs wait for
//! themselves; executions without operations; replay strings that would be too long.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Cause, Contract, Explorer, Simulated, Strategy, Subject};
use durix_pmem::{Mapping, Off, Op, Session, Word, persistent};

persistent! {
    struct Cells: align(64) { value: Word, rest: [Word; 7] }
}
const VALUE: Off<Cells> = Off::new(64);
const EPOCH: Off<Cells> = Off::new(128);
const CLEAN: Off<Cells> = Off::new(192);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// Operations of an execution that has recovered do not fence.
    LazyAfterRecovery,
    /// Recovery shows a newer value than it makes durable.
    ShowsTooMuch,
    /// Closing says that all is well before it is.
    CleanTooEarly,
    /// Operations flush and do not fence.
    NoFence,
}

/// A number. Closing leaves it to a mark whether the value or the copy behind it counts.
struct Number {
    bug: Bug,
    closes: bool,
}

struct Live {
    session: Session<Simulated>,
    recovered: bool,
    bug: Bug,
    closes: bool,
}

fn persist(op: &Op<'_, Simulated>, at: Off<Cells>, value: u64, fence: bool) {
    op.store(&op.at(at).value, value, Release);
    op.write_back(op.at(at));
    if fence {
        op.fence();
    }
}

impl Drop for Live {
    /// Moves the number to its other place, marked as clean.
    fn drop(&mut self) {
        if !self.closes {
            return;
        }
        let early = self.bug == Bug::CleanTooEarly;
        let Ok(op) = self.session.enter() else { return };
        let value = op.load(&op.at(VALUE).value, Relaxed);
        persist(&op, EPOCH, value + 100, !early);
        persist(&op, CLEAN, 1, true);
    }
}

impl Subject for Number {
    type Op = u64;
    type Ret = ();
    type State = u64;
    type Model = u64;
    type Store = Mapping<Simulated>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Live {
        Live { session: store.session().unwrap(), recovered: false, bug: self.bug, closes: self.closes }
    }
    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        let mut live = self.create(store);
        live.recovered = true;
        let op = live.session.enter().map_err(|e| e.to_string())?;
        if op.load(&op.at(CLEAN).value, Relaxed) == 1 {
            let value = op.load(&op.at(EPOCH).value, Relaxed).wrapping_sub(100);
            persist(&op, VALUE, value, true);
            persist(&op, CLEAN, 0, true);
        }
        if self.bug == Bug::ShowsTooMuch {
            // The newer of two values is taken over, and only visibly so.
            let newer = op.load(&op.at(EPOCH).value, Relaxed).max(op.load(&op.at(VALUE).value, Relaxed));
            op.store(&op.at(VALUE).value, newer, Release);
            persist(&op, EPOCH, 0, true);
        }
        drop(op);
        Ok(live)
    }
    fn apply(&self, live: &mut Live, value: &u64) {
        let op = live.session.enter().unwrap();
        if self.bug == Bug::ShowsTooMuch {
            return persist(&op, EPOCH, *value, true);
        }
        let lazy = self.bug == Bug::LazyAfterRecovery && live.recovered;
        persist(&op, VALUE, *value, !lazy && self.bug != Bug::NoFence);
    }
    fn observe(&self, live: &mut Live) -> u64 {
        let op = live.session.enter().unwrap();
        op.load(&op.at(VALUE).value, Relaxed)
    }
    fn model(&self) -> u64 {
        0
    }
    fn step(&self, model: &mut u64, value: &u64) {
        *model = *value;
    }
    fn expect(&self, model: &u64) -> u64 {
        *model
    }
}

fn number(bug: Bug) -> Number {
    Number { bug, closes: false }
}

fn nested() -> Explorer {
    Explorer::new().crashes(2).crash_later(true)
}

#[test]
fn operations_after_a_recovery_are_crashed_too() {
    let report = nested().run_then(&number(Bug::None), &[1, 2], &[3, 4]).assert_ok();
    println!("{report}");
    assert!(report.complete && report.nested_points > 0);
    let bug = number(Bug::LazyAfterRecovery);
    assert!(Explorer::new().run_then(&bug, &[1], &[3, 4]).assert_ok().complete);
    assert!(nested().crash_later(false).run_then(&bug, &[1], &[3, 4]).assert_ok().complete);
    for strategy in [Strategy::Lazy, Strategy::Eager] {
        let failure = nested().strategy(strategy).run_then(&bug, &[1], &[3, 4]).failure.expect("missed");
        println!("{failure}");
        assert!(matches!(failure.cause, Cause::Recovered { .. }), "{failure}");
        assert!(failure.to_string().contains("after the recovery"), "{failure}");
        let again = nested().replay(&failure.replay).run_then(&bug, &[1], &[3, 4]).failure.expect("again");
        assert_eq!((again.cause, again.crashes), (failure.cause.clone(), failure.crashes.clone()));
    }
}

#[test]
fn a_buffered_contract_lets_operations_after_a_recovery_be_lost() {
    let buffered = nested().contract(Contract::Buffered);
    assert!(buffered.run_then(&number(Bug::LazyAfterRecovery), &[1], &[3, 4]).assert_ok().complete);
}

#[test]
fn what_a_recovery_has_shown_must_be_there_after_the_next() {
    let bug = number(Bug::ShowsTooMuch);
    assert!(Explorer::new().run(&bug, &[1, 2]).assert_ok().complete);
    let failure = nested().run(&bug, &[1, 2]).failure.expect("missed");
    println!("{failure}");
}

#[test]
fn crashes_in_closing_are_explored_where_asked_for() {
    let right = Number { bug: Bug::None, closes: true };
    let wrong = Number { bug: Bug::CleanTooEarly, closes: true };
    assert!(Explorer::new().crash_in_close(true).run(&right, &[1, 2]).assert_ok().complete);
    assert!(Explorer::new().run(&wrong, &[1, 2]).assert_ok().complete);
    let failure = Explorer::new().crash_in_close(true).run(&wrong, &[1, 2]).failure.expect("missed");
    println!("{failure}");
    assert_eq!(failure.crash.map(|(done, _)| done), Some(failure.ops.len()));
}

#[test]
fn a_flush_that_waits_for_itself_still_wants_its_fence() {
    let flushing = Explorer::new().flushes_at_once(true);
    let report = flushing.run(&number(Bug::None), &[1, 2]).assert_ok();
    assert!(report.complete);
    let failure = flushing.run(&number(Bug::NoFence), &[1, 2]).failure.expect("missed");
    println!("{failure}");
    assert!(matches!(failure.cause, Cause::Unfenced { number: 0, .. }), "{failure}");
    assert!(failure.to_string().contains("second.rs"), "{failure}");
    // Where operations may be lost anyway, nothing is promised when they return.
    assert!(flushing.contract(Contract::Buffered).run(&number(Bug::NoFence), &[1, 2]).assert_ok().complete);
    let failure = Explorer::new().run(&number(Bug::NoFence), &[1, 2]).failure.expect("missed");
    assert!(matches!(failure.cause, Cause::State { .. }), "{failure}");
}

#[test]
fn an_execution_without_operations_is_crashed_as_well() {
    let report = nested().run_then(&number(Bug::None), &[], &[1]).assert_ok();
    assert!(report.complete && report.crash_points == 1 && report.executions > 1, "{report}");
}

#[test]
fn crash_points_picked_at_random_are_no_complete_exploration() {
    let report = Explorer::new().crash_points(1).run(&number(Bug::None), &[1, 2, 3]).assert_ok();
    assert!(!report.complete && report.crash_points == 1, "{report}");
    let found = (0..40).filter(|seed| {
        let picked = Explorer::new().crash_points(1).seed(*seed);
        picked.run(&number(Bug::NoFence), &[1, 2, 3]).failure.is_some()
    });
    assert!(found.count() > 10);
}
