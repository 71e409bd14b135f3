//! Threads and crashes together on a set in a small pool: every interleaving of short concurrent programs, every crash
//! state of each, operations after the recovery.

use durix_crashsim::{Explorer, Report, Threads};
use durix_pset::testing::concurrent::{Act, Act::*, SetUnderTest, after};
use durix_subjects::explored;

#[track_caller]
fn complete(name: &str, threads: &Threads, subject: &SetUnderTest, program: &[Vec<Act>]) -> Report {
    explored::complete_in_time(name, || threads.run(subject, program, &after()))
}

fn threads() -> Threads {
    Threads::new(Explorer::new())
}

#[test]
fn two_threads_of_two_operations_without_a_bound() {
    let subject = SetUnderTest::new(&[Put(0, 1)]);
    let programs = [
        ("put and get", [vec![Put(0, 2), Get(1)], vec![Put(1, 3), Get(0)]]),
        ("remove and put", [vec![Remove(0), Get(0)], vec![Put(0, 3), PutNew(0, 4)]]),
    ];
    for (name, program) in programs {
        let report = complete(name, &threads(), &subject, &program);
        assert_eq!(report.schedules.unwrap().bound, None);
    }
}

#[test]
fn two_threads_of_three_operations_with_three_preemptions() {
    let subject = SetUnderTest::new(&[Put(0, 1)]);
    let program = [vec![Put(0, 2), Remove(1), Get(0)], vec![Put(1, 3), Remove(0), Get(1)]];
    let report = complete("two of three", &threads().preemptions(3), &subject, &program);
    assert_eq!(report.schedules.unwrap().bound, Some(3));
}

#[test]
fn three_threads_of_two_operations_with_two_preemptions() {
    let subject = SetUnderTest::new(&[Put(0, 1)]);
    let program = [vec![Put(0, 2), Get(1)], vec![Remove(0), Get(0)], vec![Get(1), Get(0)]];
    let report = complete("three of two", &threads().preemptions(2), &subject, &program);
    assert_eq!(report.schedules.unwrap().bound, Some(2));
}

#[test]
fn transactions() {
    let subject = SetUnderTest { shards: 2, ..SetUnderTest::new(&[Put(0, 1)]) };
    let program = [vec![Both(0, 1, 2)], vec![Both(1, 0, 3), Get(0)]];
    complete("transactions", &threads(), &subject, &program);
}
