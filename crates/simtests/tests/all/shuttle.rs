//! shuttle's schedulers pick the interleavings: the correct list passes, planted bugs are found, shrunk and replayed.

use durix_crashsim::{Explorer, Threads};
use durix_subjects::concurrent_list as list;
use list::{Bug, List, ListOp, ListOp::*};
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, RoundRobinScheduler, Scheduler};

const AFTER: [ListOp; 3] = [Insert(9, 90), Remove(2), Get(1)];
const SCHEDULES: usize = 300;

fn program() -> [Vec<ListOp>; 3] {
    [vec![Insert(1, 10), Remove(2)], vec![Insert(2, 20), Get(1)], vec![Insert(1, 11), Get(2)]]
}

fn run_by(scheduler: impl Scheduler + 'static, list: &List) -> durix_crashsim::Report {
    Threads::new(Explorer::new()).run_by(scheduler, list, &program(), &AFTER)
}

#[test]
fn correct_lists_pass_whoever_picks_the_threads() {
    for list in [List::lock_free(Bug::None), List::locked(Bug::None)] {
        let reports = [
            run_by(RandomScheduler::new_from_seed(1, SCHEDULES), &list),
            run_by(PctScheduler::new_from_seed(1, 3, SCHEDULES), &list),
        ];
        for report in reports.map(durix_crashsim::Report::assert_ok) {
            println!("{report}");
            assert!(!report.complete, "{report}");
            assert!(report.to_string().contains("only 300 schedules were picked by shuttle"), "{report}");
            let schedules = report.schedules.unwrap();
            assert_eq!(schedules.executions, SCHEDULES as u64);
            assert!(schedules.preemptions > 0 && report.crash_points > 100);
        }
    }
}

#[test]
fn one_schedule_of_a_round_robin_takes_turns() {
    let report = run_by(RoundRobinScheduler::new(1), &List::lock_free(Bug::None)).assert_ok();
    let schedules = report.schedules.unwrap();
    assert_eq!(schedules.executions, 1);
    // Three threads in turn, each of at least ten steps.
    assert!(schedules.preemptions > 20, "{schedules:?}");
}

#[test]
fn every_schedule_of_a_small_program_finds_what_our_own_exploration_finds() {
    let list = List::lock_free(Bug::None);
    let program = [vec![Get(1)], vec![Get(1)]];
    let dfs = Threads::new(Explorer::new()).run_by(DfsScheduler::new(None, false), &list, &program, &[]).assert_ok();
    let own = Threads::new(Explorer::new()).run(&list, &program, &[]).assert_ok();
    assert_eq!(dfs.crash_points, own.crash_points, "{dfs}\n{own}");
    assert!(dfs.schedules.unwrap().executions >= own.schedules.unwrap().executions);
}

#[test]
fn planted_bugs_are_found_and_replayed() {
    let bugs = [
        List::lock_free(Bug::ReadNotDurable),
        List::lock_free(Bug::WinnerNotWrittenBack),
        List::locked(Bug::UnlockBeforeWriteBack),
        List::locked(Bug::Deadlock),
    ];
    for list in bugs {
        for report in [
            run_by(RandomScheduler::new_from_seed(7, 10 * SCHEDULES), &list),
            run_by(PctScheduler::new_from_seed(7, 3, 10 * SCHEDULES), &list),
        ] {
            let failure = report.failure.unwrap_or_else(|| panic!("{:?} was missed", list.bug));
            println!("{:?}\n{failure}", list.bug);
            assert!(failure.ops.len() <= 3 && failure.preemptions <= 2 && failure.replay.len() <= 200, "{failure}");
            let again = Threads::new(Explorer::new().replay(&failure.replay)).run(&list, &program(), &AFTER);
            let again = again.failure.unwrap_or_else(|| panic!("{} does not fail again", failure.replay));
            assert_eq!((again.cause, again.timeline), (failure.cause, failure.timeline));
        }
    }
}
