//! Threads and crashes together: transactions on words of their own, checkpoints beside them.

use durix_crashsim::{Explorer, Report, Threads};
use durix_rewind::testing::*;
use durix_rewind::{Layers, LogKind, Options, Policy};
use durix_subjects::explored::deep;

#[track_caller]
fn run(name: &str, options: Options, program: &[Vec<Act>]) -> Report {
    // Between two points where threads meet everything is explored; what a crash leaves, in part.
    let explorer = Explorer::new().executions_per_point(if deep() { 200 } else { 4 }).samples(1);
    let threads =
        Threads::new(explorer).preemptions(if deep() { 2 } else { 1 }).max_schedules(if deep() { 20_000 } else { 60 });
    let tested = Tested { before: vec![Commit(vec![(0, 9), (3, 8)])], ..Tested::new(options) };
    let report = threads.run(&tested, program, &[Commit(vec![(0, 7), (3, 6)]), Checkpoint]).assert_ok();
    println!("{name}, {options}: {report}");
    report
}

fn configurations() -> [Options; 7] {
    let options = |log, layers, policy| Options::default().log(log).layers(layers).policy(policy).bucket(8);
    [
        options(LogKind::Simple, Layers::One, Policy::NoForce),
        options(LogKind::Optimized, Layers::One, Policy::Force),
        options(LogKind::Batch(3), Layers::One, Policy::NoForce),
        options(LogKind::Batch(3), Layers::One, Policy::Force),
        options(LogKind::Batch(3), Layers::Two, Policy::NoForce),
        options(LogKind::Batch(3), Layers::One, Policy::NoForce).lanes(2),
        options(LogKind::Optimized, Layers::Two, Policy::Force),
    ]
}

#[test]
fn commit_beside_commit() {
    for options in configurations() {
        run("two commits", options, &[vec![Commit(vec![(0, 1), (1, 2)])], vec![Commit(vec![(3, 3), (4, 4)])]]);
    }
}

#[test]
fn commit_beside_rollback() {
    for options in configurations() {
        run("commit and rollback", options, &[vec![Commit(vec![(0, 1)])], vec![Rollback(vec![(3, 3), (4, 4)])]]);
    }
}

#[test]
fn commit_beside_a_checkpoint() {
    for options in configurations() {
        run("commit and checkpoint", options, &[vec![Commit(vec![(0, 1), (1, 2)])], vec![Checkpoint]]);
    }
}
