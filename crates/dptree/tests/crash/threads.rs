//! Threads and crashes together: interleavings of short programs on a tiny tree with at most two preemptions, every crash state of each,
//! operations after the recovery.

use std::time::Instant;

use crate::tree::{Act, Act::*, TreeUnderTest, after};
use durix_crashsim::{Explorer, Threads};

#[track_caller]
fn complete(name: &str, before: &[Act], program: [Vec<Act>; 2]) {
    let start = Instant::now();
    let preemptions = if std::env::var_os("DURIX_DEEP").is_some() { 3 } else { 2 };
    let subject = TreeUnderTest::new(before);
    let report = Threads::new(Explorer::new()).preemptions(preemptions).run(&subject, &program, &after()).assert_ok();
    println!("{name}, in {:?}: {report}", start.elapsed());
    assert!(report.complete, "{name} is not complete");
}

#[test]
fn two_writers_of_one_key_and_a_reader_of_it() {
    complete("one key", &[Put(1, 1)], [vec![Put(1, 2), Get(1)], vec![Remove(1), Get(1)]]);
}

#[test]
fn a_writer_and_a_merge() {
    complete("merge", &[Put(1, 1), Put(2, 1)], [vec![Tick], vec![Put(1, 2), Get(2)]]);
}

#[test]
fn a_reader_and_two_merges() {
    let before = [Put(1, 1), Put(2, 1), Merge, Put(1, 2), Put(2, 2)];
    complete("reader", &before, [vec![Tick, Merge], vec![Get(1), Get(2)]]);
}

#[test]
fn a_scan_and_a_split_of_a_range() {
    let before = [
        Put(10, 1),
        Put(20, 1),
        Merge,
        Put(30, 1),
        Put(40, 1),
        Merge,
        Put(50, 1),
        Put(60, 1),
        Merge,
        Put(32, 2),
        Put(34, 2),
    ];
    complete("split", &before, [vec![Tick], vec![Next(33, true), Put(61, 1)]]);
}

#[test]
fn a_value_replaced_in_place_and_a_reader_of_it() {
    let before = [Put(1, 1), Put(2, 1), Merge];
    complete("in place", &before, [vec![Update(1, 2), Update(1, 3)], vec![Get(1), Get(1)]]);
}

#[test]
fn two_values_replaced_in_place_and_a_scan() {
    let before = [Put(1, 1), Put(2, 1), Merge];
    complete("in place, scan", &before, [vec![Update(1, 2), Update(2, 2)], vec![Next(0, true), Next(2, false)]]);
}

#[test]
fn a_value_replaced_in_place_and_a_merge() {
    let before = [Put(1, 1), Put(2, 1), Merge, Put(3, 1), Put(4, 1)];
    complete("in place, merge", &before, [vec![Update(1, 2), Update(2, 2)], vec![Tick, Get(1)]]);
}

/// The merge copies the key into a fresh leaf.
#[test]
fn a_value_is_not_replaced_in_place_where_a_merge_copies_it() {
    let before = [Put(10, 1), Put(20, 1), Merge, Put(30, 1), Put(40, 1), Merge, Put(12, 1), Put(14, 1)];
    for key in [10, 40] {
        complete("copied", &before, [vec![Tick, Get(key)], vec![Update(key, 2)]]);
    }
}

#[test]
fn a_value_replaced_in_place_in_a_range_that_is_split() {
    let before = [
        Put(10, 1),
        Put(20, 1),
        Merge,
        Put(30, 1),
        Put(40, 1),
        Merge,
        Put(50, 1),
        Put(60, 1),
        Merge,
        Put(32, 2),
        Put(34, 2),
    ];
    complete("in place, split", &before, [vec![Tick, Get(60)], vec![Update(60, 2), Get(60)]]);
    complete("read in a split", &before, [vec![Tick, Update(60, 2)], vec![Get(60), Get(60)]]);
}

#[test]
fn a_writer_whose_fronts_are_full_and_a_merge() {
    let before = [Put(1, 1), Put(2, 1), Put(3, 1), Put(4, 1)];
    complete("full fronts", &before, [vec![Put(5, 1)], vec![Tick, Get(5)]]);
}
