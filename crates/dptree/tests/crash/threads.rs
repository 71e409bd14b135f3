//! Threads and crashes together: interleavings of short programs on a tiny tree with at most two preemptions, every crash state of each,
//! operations after the recovery.

use std::time::Instant;

use crate::tree::{Act, Act::*, TreeUnderTest, after, merges_that_need_units};
use durix_crashsim::{Explorer, Report, Threads};
use durix_pmem::Plan;

/// Two merges at once, the first of which adds an extent of units for both. A part of the sweep, which passes it unmutated first.
pub fn merges_that_share_an_extent(plan: &'static Plan) -> Report {
    let subject = TreeUnderTest { plan, chunks: 20, ..TreeUnderTest::new(&[]) };
    let (before, [one, other]) = merges_that_need_units(&subject);
    let subject = TreeUnderTest { before, ..subject };
    Threads::new(Explorer::new()).preemptions(1).run(&subject, &[vec![one], vec![other]], &[Put(1, 9), Len])
}

/// One thread's merge makes log pages, the other's update takes one.
pub fn pages_made_ahead(plan: &'static Plan) -> Report {
    let subject = TreeUnderTest { plan, driven: true, ..TreeUnderTest::new(&[Put(1, 1), Put(2, 1)]) };
    Threads::new(Explorer::new()).preemptions(1).run(
        &subject,
        &[vec![Tick], vec![Put(1, 2), Get(2)]],
        &[Put(1, 9), Len],
    )
}

#[test]
fn log_pages_are_made_ahead() {
    let report = pages_made_ahead(Plan::new()).assert_ok();
    println!("pages made ahead: {report}");
    assert!(report.complete);
}

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

/// A reader has found the range that is split. Before readers see the split, the new range gets an update of the reader's key. It must not
/// replace the value in place: the reader looks at the old range's word. Takes minutes, so it needs `DURIX_DEEP`.
#[test]
fn a_reader_of_a_range_that_is_split_and_an_update_of_the_new_range() {
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
    if std::env::var_os("DURIX_DEEP").is_none() {
        return;
    }
    let start = Instant::now();
    let threads = Threads::new(Explorer::new()).preemptions(3);
    let program = [vec![Get(60)], vec![Tick], vec![Update(60, 2)]];
    let report = threads.run(&TreeUnderTest::new(&before), &program, &[Get(60)]).assert_ok();
    println!("three threads, in {:?}: {report}", start.elapsed());
    assert!(report.complete);
}
