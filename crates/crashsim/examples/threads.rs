//! Threads and crashes together, on the durable list of the tests: what is explored, how long it takes, and what a found
//! bug looks like.

use std::time::Instant;

use durix_crashsim::{Explorer, Threads};
use durix_subjects::concurrent_list as list;
use list::{Bug, List, ListOp, ListOp::*};

fn main() {
    let two_of_two = [vec![Insert(1, 10), Remove(2)], vec![Insert(2, 20), Get(1)]];
    let two_of_three = [vec![Insert(1, 10), Remove(2), Get(1)], vec![Insert(2, 20), Remove(1), Insert(1, 11)]];
    let three_of_two = [vec![Insert(1, 10), Get(2)], vec![Insert(2, 20), Remove(1)], vec![Insert(1, 11), Get(2)]];
    let after = [Insert(9, 90), Remove(2), Get(1)];
    let threads = Threads::new(Explorer::new());
    for (what, list) in [("without locks", List::lock_free(Bug::None)), ("under a lock", List::locked(Bug::None))] {
        explore(&format!("{what}, two threads of two operations"), &threads, &list, &two_of_two, &after);
        let bounded = threads.clone().preemptions(3);
        explore(&format!("{what}, two threads of three operations"), &bounded, &list, &two_of_three, &after);
        let bounded = threads.clone().preemptions(2);
        explore(&format!("{what}, three threads of two operations"), &bounded, &list, &three_of_two, &after);
    }
    for list in [
        List::lock_free(Bug::ReadNotDurable),
        List::locked(Bug::UnlockBeforeWriteBack),
        List::lock_free(Bug::WinnerNotWrittenBack),
        List::lock_free(Bug::PathNotDurable),
    ] {
        let program = [vec![Insert(1, 10), Insert(2, 20)], vec![Insert(1, 11), Get(2)]];
        let start = Instant::now();
        let failure = threads.run(&list, &program, &after).failure.expect("the bug is found");
        println!("\n{:?}, found and shrunk in {:.1?}:\n{failure}", list.bug, start.elapsed());
    }
}

fn explore(what: &str, threads: &Threads, list: &List, program: &[Vec<ListOp>], after: &[ListOp]) {
    let start = Instant::now();
    let report = threads.run(list, program, after).assert_ok();
    println!("{what}, {:.1?}: {report}", start.elapsed());
    assert!(report.complete);
}
