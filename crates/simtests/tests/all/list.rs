//! A durable list: the correct one passes, planted bugs are found.

use durix_crashsim::{Cause, Explorer, Sites, Strategy, mutation_sweep};
use durix_subjects::list::{Bug, List, ListOp, ListOp::*};
use proptest::collection::vec;
use proptest::prelude::{Strategy as Generate, prop_oneof};

const OPS: [ListOp; 5] = [Insert(1, 10), Insert(2, 20), Remove(1), Insert(2, 21), Insert(3, 30)];
const AFTER: [ListOp; 3] = [Insert(4, 40), Remove(2), Insert(1, 11)];

#[test]
fn the_correct_list_passes_completely() {
    for explorer in [Explorer::new(), Explorer::new().strategy(Strategy::Eager), Explorer::new().crashes(2)] {
        let report = explorer.run_then(&List::new(Bug::None), &OPS, &AFTER).assert_ok();
        println!("{report}");
        assert!(report.complete);
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::NodeNotWrittenBack, Bug::OneFenceForBoth, Bug::LinkNotWrittenBack, Bug::UnlinkNotFenced] {
        for strategy in [Strategy::Lazy, Strategy::Eager] {
            let report = Explorer::new().strategy(strategy).run_then(&List::new(bug), &OPS, &AFTER);
            let failure = report.failure.unwrap_or_else(|| panic!("{bug:?} {strategy:?} was missed"));
            println!("{bug:?} {strategy:?}\n{failure}\n");
        }
    }
}

#[test]
fn a_recovery_that_is_not_idempotent_needs_a_crash_in_recovery() {
    let subject = List::new(Bug::RecoveryPops);
    assert!(Explorer::new().run(&subject, &OPS).assert_ok().complete);
    for strategy in [Strategy::Lazy, Strategy::Eager] {
        let failure = Explorer::new().strategy(strategy).crashes(2).run(&subject, &OPS).failure.expect("missed");
        println!("{failure}");
    }
}

fn op() -> impl Generate<Value = ListOp> {
    prop_oneof![(1..4u64, 1..100u64).prop_map(|(k, v)| Insert(k, v)), (1..4u64).prop_map(Remove)]
}

#[test]
fn all_short_sequences_pass() {
    let alphabet = [Insert(1, 1), Insert(2, 2), Insert(1, 3), Remove(1), Remove(2)];
    let report = Explorer::new().crashes(2).sequences(&List::new(Bug::None), &alphabet, 4, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
    assert_eq!(report.cases, 625);
}

#[test]
fn reduced_crash_points_find_what_crashes_before_every_event_find() {
    let alphabet = [Insert(1, 1), Insert(2, 2), Remove(1)];
    let bugs = [Bug::None, Bug::NodeNotWrittenBack, Bug::OneFenceForBoth, Bug::LinkNotWrittenBack];
    for bug in bugs.into_iter().chain([Bug::UnlinkNotFenced, Bug::RecoveryPops]) {
        let explorer = Explorer::new().crashes(2);
        let reduced = explorer.sequences(&List::new(bug), &alphabet, 3, &AFTER);
        let full = explorer.every_event(true).sequences(&List::new(bug), &alphabet, 3, &AFTER);
        assert_eq!(reduced.failure.is_some(), full.failure.is_some(), "{bug:?}");
        assert_eq!(reduced.failure.as_ref().map(|f| &f.ops), full.failure.as_ref().map(|f| &f.ops), "{bug:?}");
        assert!(reduced.crash_points <= full.crash_points, "{bug:?}");
        assert!(bug != Bug::None || 2 * reduced.crash_points < full.crash_points, "{reduced}\n{full}");
    }
}

#[test]
fn generated_failures_are_shrunk() {
    let generate = (vec(op(), 1..12), vec(op(), 0..3));
    let report = Explorer::new().check(&List::new(Bug::None), 200, &generate).assert_ok();
    println!("{report}");
    for bug in [Bug::NodeNotWrittenBack, Bug::OneFenceForBoth, Bug::LinkNotWrittenBack, Bug::UnlinkNotFenced] {
        let failure = Explorer::new().check(&List::new(bug), 200, &generate).failure.expect("missed");
        assert!(failure.ops.len() <= 2, "{failure}");
        assert_eq!(failure.deviating, 1, "{failure}");
    }
}

#[test]
fn every_write_back_and_fence_of_the_list_is_needed() {
    let sweep = mutation_sweep(&Sites::in_files("list.rs"), |plan| {
        let list = List::with_plan(Bug::None, plan);
        let report = Explorer::new().run_then(&list, &OPS, &AFTER);
        if report.failure.is_some() {
            return report;
        }
        // What recovery writes back matters only after the mere death of a process.
        Explorer::new().process_deaths(true).run_then(&list, &OPS, &AFTER)
    });
    println!("{sweep}");
    assert_eq!(sweep.assert_all_caught(&[]).mutants.len(), 11);
}

#[test]
fn a_recovery_that_is_not_deterministic_is_reported() {
    let failure = Explorer::new().run(&List::new(Bug::RecoveryFlips), &OPS).failure.expect("missed");
    assert_eq!(failure.cause, Cause::Nondeterministic, "{failure}");
}
