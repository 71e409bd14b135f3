//! Threads and crashes together, on a durable list: the correct ones pass completely, planted bugs are found.

mod promises;

use durix_crashsim::{Explorer, Report, Sites, Threads, mutation_sweep};
use durix_subjects::concurrent_list as list;
use list::{Bug, List, ListOp, ListOp::*};

const AFTER: [ListOp; 3] = [Insert(9, 90), Remove(2), Get(1)];

fn threads() -> Threads {
    Threads::new(Explorer::new())
}

#[track_caller]
fn complete(report: Report) -> Report {
    let report = report.assert_ok();
    println!("{report}");
    assert!(report.complete, "{report}");
    report
}

#[test]
fn two_threads_of_two_operations_completely() {
    let programs: [&[Vec<ListOp>]; 3] = [
        &[vec![Insert(1, 10), Remove(2)], vec![Insert(2, 20), Get(1)]],
        &[vec![Insert(1, 10), Get(2)], vec![Insert(2, 20), Remove(1)]],
        &[vec![Insert(1, 10), Remove(1)], vec![Insert(1, 20), Get(1)]],
    ];
    for program in programs {
        for list in [List::lock_free(Bug::None), List::locked(Bug::None)] {
            let start = std::time::Instant::now();
            let report = complete(threads().run(&list, program, &AFTER));
            println!("  in {:?}", start.elapsed());
            assert_eq!(report.schedules.unwrap().bound, None);
        }
    }
}

/// Runs the correct list and the one with the bug; the one passes completely, the other fails.
#[track_caller]
fn finds(right: List, wrong: List, program: &[Vec<ListOp>]) -> durix_crashsim::Failure {
    let right = complete(threads().run(&right, program, &AFTER));
    let start = std::time::Instant::now();
    let report = threads().run(&wrong, program, &AFTER);
    let failure = report.failure.unwrap_or_else(|| panic!("{:?} was missed", wrong.bug));
    println!(
        "{:?}, found and shrunk in {:?} (complete: {})\n{failure}\n",
        wrong.bug,
        start.elapsed(),
        right.executions
    );
    assert!(failure.ops.len() <= 3, "{failure}");
    assert!(failure.preemptions <= 2, "{failure}");
    assert!(failure.deviating <= 2, "{failure}");
    assert!(failure.replay.len() <= 200, "{failure}");
    let again = Threads::new(Explorer::new().replay(&failure.replay)).run(&wrong, program, &AFTER);
    let again = again.failure.unwrap_or_else(|| panic!("{} does not fail again", failure.replay));
    assert_eq!((again.cause, again.timeline), (failure.cause.clone(), failure.timeline.clone()));
    failure
}

#[test]
fn finds_a_read_of_a_value_that_is_not_durable() {
    let program = [vec![Insert(1, 10), Insert(2, 20)], vec![Get(1), Get(2)]];
    finds(List::lock_free(Bug::None), List::lock_free(Bug::ReadNotDurable), &program);
}

#[test]
fn finds_an_unlock_before_the_write_back() {
    let program = [vec![Insert(1, 10), Insert(2, 20)], vec![Get(1), Get(2)]];
    finds(List::locked(Bug::None), List::locked(Bug::UnlockBeforeWriteBack), &program);
}

#[test]
fn finds_a_helper_that_does_not_write_back_the_winners_line() {
    let program = [vec![Insert(1, 10), Remove(2)], vec![Insert(1, 11), Get(2)]];
    finds(List::lock_free(Bug::None), List::lock_free(Bug::WinnerNotWrittenBack), &program);
}

#[test]
fn finds_an_insert_behind_a_pointer_that_is_not_durable() {
    let program = [vec![Insert(1, 10)], vec![Insert(2, 20), Get(3)]];
    finds(List::lock_free(Bug::None), List::lock_free(Bug::PathNotDurable), &program);
}

#[test]
fn finds_a_node_linked_before_it_is_durable() {
    let program = [vec![Insert(1, 10)], vec![Insert(2, 20)]];
    finds(List::lock_free(Bug::None), List::lock_free(Bug::NodeNotDurable), &program);
}

#[test]
fn finds_a_deadlock() {
    let program = [vec![Get(1)], vec![Get(1)]];
    let failure = finds(List::locked(Bug::None), List::locked(Bug::Deadlock), &program);
    assert!(failure.to_string().contains("wait for each other"), "{failure}");
}

#[test]
fn more_threads_or_operations_within_a_stated_bound() {
    let three: [Vec<ListOp>; 2] =
        [vec![Insert(1, 10), Remove(2), Get(1)], vec![Insert(2, 20), Remove(1), Insert(1, 11)]];
    let two = [vec![Insert(1, 10), Get(2)], vec![Insert(2, 20), Remove(1)], vec![Insert(1, 11), Get(2)]];
    for list in [List::lock_free(Bug::None), List::locked(Bug::None)] {
        for (program, bound) in [(&three[..], 3), (&two[..], 2)] {
            let start = std::time::Instant::now();
            let report = complete(threads().preemptions(bound).run(&list, program, &AFTER));
            println!("  in {:?}", start.elapsed());
            assert_eq!(report.schedules.as_ref().unwrap().bound, Some(bound));
            assert!(report.to_string().contains(&format!("at most {bound} preemptions")), "{report}");
        }
    }
}

/// Also those that only another thread can tell: what a reader or a loser writes back for others.
#[test]
fn every_write_back_and_fence_is_needed_by_two_threads() {
    let programs: [&[Vec<ListOp>]; 3] = [
        &[vec![Insert(1, 10)], vec![Insert(2, 20), Get(1)]],
        &[vec![Insert(1, 10), Remove(1)], vec![Remove(1), Get(1)]],
        &[vec![Insert(1, 10)], vec![Insert(1, 11), Remove(1)]],
    ];
    for list in [List::lock_free(Bug::None), List::locked(Bug::None)] {
        let sweep = mutation_sweep(&Sites::in_files("concurrent_list.rs"), |plan| {
            let mut total = Report::default();
            for program in programs {
                total.merge(threads().run(&List { plan, ..list }, program, &AFTER));
            }
            total
        });
        println!("{sweep}");
        sweep.assert_all_caught(&[]);
    }
}

#[test]
fn every_short_program_passes_with_crashes_in_recovery() {
    let alphabet = [Insert(1, 1), Insert(2, 2), Remove(1), Get(1)];
    for list in [List::lock_free(Bug::None), List::locked(Bug::None)] {
        let threads = Threads::new(Explorer::new().crashes(2));
        let report = complete(threads.programs(&list, &alphabet, 2, 1, &AFTER));
        assert_eq!(report.cases, 10);
    }
}

#[test]
fn programs_that_are_too_large_are_sampled() {
    let program = [
        vec![Insert(1, 10), Remove(2), Insert(3, 30), Get(4), Remove(3)],
        vec![Insert(2, 20), Get(1), Insert(4, 40), Remove(1), Get(3)],
        vec![Insert(1, 11), Get(2), Remove(4), Insert(2, 22), Get(1)],
    ];
    let sampled = threads().sampled(300);
    let report = sampled.run(&List::lock_free(Bug::None), &program, &AFTER).assert_ok();
    println!("{report}");
    assert!(!report.complete && report.to_string().contains("picked at random"), "{report}");
    for list in [
        List::lock_free(Bug::ReadNotDurable),
        List::lock_free(Bug::PathNotDurable),
        List::lock_free(Bug::WinnerNotWrittenBack),
        List::locked(Bug::UnlockBeforeWriteBack),
    ] {
        let start = std::time::Instant::now();
        let failure = sampled.run(&list, &program, &AFTER).failure.unwrap_or_else(|| panic!("{:?} missed", list.bug));
        println!("{:?} in {:?}\n{failure}", list.bug, start.elapsed());
        assert!(failure.ops.len() <= 3 && failure.preemptions <= 2 && failure.replay.len() <= 200, "{failure}");
        let again = Threads::new(Explorer::new().replay(&failure.replay)).run(&list, &program, &AFTER);
        assert_eq!(again.failure.expect("fails again").cause, failure.cause);
    }
}
