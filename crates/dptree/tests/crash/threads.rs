//! Threads and crashes together: interleavings of short programs on a tiny tree with at most two preemptions, every crash state of each,
//! operations after the recovery.

use crate::tree::{Act, Act::*, TreeUnderTest, after, in_smallest_pool, merges_that_need_units};
use durix_crashsim::{Explorer, Report, Threads};
use durix_pmem::Plan;
use durix_subjects::explored::{complete_in_time, deep};

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
    complete_in_time("pages made ahead", || pages_made_ahead(Plan::new()));
}

#[track_caller]
fn complete(name: &str, before: &[Act], program: [Vec<Act>; 2]) {
    complete_with(name, 2, &TreeUnderTest::new(before), program, &after());
}

/// With so many preemptions, and one more with `DURIX_DEEP`.
#[track_caller]
fn complete_with(name: &str, preemptions: u32, subject: &TreeUnderTest, program: [Vec<Act>; 2], after: &[Act]) {
    explored(name, (Explorer::new(), preemptions), subject, program, after);
}

#[track_caller]
fn explored(
    name: &str,
    (explorer, preemptions): (Explorer, u32),
    subject: &TreeUnderTest,
    program: [Vec<Act>; 2],
    after: &[Act],
) {
    let threads = Threads::new(explorer).preemptions(preemptions + u32::from(deep()));
    complete_in_time(name, || threads.run(subject, &program, after));
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

/// The next merge splits the only range.
fn before_a_split() -> Vec<Act> {
    let mut before = crate::two_leaves();
    before.extend([Put(32, 2), Put(34, 2)]);
    before
}

#[test]
fn a_scan_and_a_split_of_a_range() {
    complete("split", &before_a_split(), [vec![Tick], vec![Next(33, true), Put(61, 1)]]);
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
    complete("in place, split", &before_a_split(), [vec![Tick, Get(60)], vec![Update(60, 2), Get(60)]]);
    complete("read in a split", &before_a_split(), [vec![Tick, Update(60, 2)], vec![Get(60), Get(60)]]);
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
    if !deep() {
        return;
    }
    let threads = Threads::new(Explorer::new()).preemptions(3);
    let program = [vec![Get(60)], vec![Tick], vec![Update(60, 2)]];
    complete_in_time("three threads", || threads.run(&TreeUnderTest::new(&before_a_split()), &program, &[Get(60)]));
}

/// A reader has found the range that is split. Before readers see the split, the new range is merged, too: not into slots that the reader's
/// snapshot names.
#[test]
fn a_reader_of_a_range_that_is_split_and_a_merge_of_the_new_range() {
    let mut before = vec![Put(10, 1), Put(20, 1), Merge, Put(40, 1), Put(60, 1), Merge];
    before.extend([Put(80, 1), Put(60, 2), Merge, Put(65, 1), Put(67, 1), Put(61, 1)]);
    let subject = TreeUnderTest { chunks: 20, ..TreeUnderTest::new(&before) };
    let threads = Threads::new(Explorer::new().crash_points(1)).preemptions(2);
    // All of them are 145 000. A merge of the new range that does not wait is found after 23 000.
    let threads = threads.max_schedules(if deep() { 1 << 20 } else { 40_000 });
    let program = [vec![Get(80)], vec![Tick], vec![Put(62, 1), Tick]];
    println!("{}", threads.run(&subject, &program, &[Get(80), Len]).assert_ok());
}

/// A merge looks for free log pages. Meanwhile the other thread fills a page and seals it, and its records are not merged. The page must not
/// be taken for free: the first thread's next update would write over it. (The look comes when a page is sealed, the one of 1 and 2.)
#[test]
fn a_page_that_is_sealed_beside_a_look_for_free_ones_is_not_free() {
    let subject = TreeUnderTest::new(&[Put(1, 1), Put(2, 1), Merge, Put(3, 1), Put(4, 1)]);
    let program = [vec![Tick, Put(9, 1)], vec![Put(5, 1), Put(6, 1), Put(7, 1)]];
    complete_with("sealed", 1, &subject, program, &[Put(8, 9), Len]);
}

/// A merge drops a leaf. The other thread finds both fronts of another range full, and merges that range, which takes a unit: not the one of
/// the leaf before the flip is durable. A crash would leave the old side, and in its leaf what the other merge has written. A locked
/// instruction does not stand for the fence: the lock of the units has one.
#[test]
fn a_unit_is_not_used_again_before_the_flip_is_durable() {
    let mut before = crate::two_leaves();
    before.extend([Put(32, 2), Put(34, 2), Merge, Remove(10), Remove(20), Merge, Remove(30), Remove(32)]);
    before.extend([61, 62, 63, 64].map(|key| Put(key, 2)));
    let subject = TreeUnderTest { chunks: 20, ..TreeUnderTest::new(&before) };
    let explorer = Explorer::new().locked_drains(false);
    explored("units", (explorer, 1), &subject, [vec![Tick], vec![Put(65, 2)]], &[Put(12, 9), Len]);
}

/// The pool is full, so the removal takes the key's slot and records out. A merge of the same range has read them, and would bring them back.
#[test]
fn a_removal_in_a_full_pool_waits_for_the_merge_of_its_range() {
    // The key lies in a leaf and in the second front. All log pages are in use.
    let before = [Put(10, 1), Put(20, 1), Merge, Put(10, 2), Put(11, 2), Other(Box::new(Put(12, 1)))];
    let subject = in_smallest_pool(&before);
    complete_with("full", 1, &subject, [vec![Tick], vec![Remove(10), Get(10)]], &[Get(10), Len]);
}

fn both(value: u64) -> Act {
    Many(vec![(10, Some(value)), (60, Some(value))])
}

/// Whoever sees one key of a batch sees the other one.
#[test]
fn a_batch_over_two_ranges_and_readers_of_both() {
    complete("batch", &crate::two_ranges(), [vec![both(7)], vec![Get(10), Get(60)]]);
    complete("batch", &crate::two_ranges(), [vec![both(7)], vec![Get(60), Get(10)]]);
}

/// The batch fills the fronts, and a merge makes them readable without a lock.
#[test]
fn a_batch_over_two_ranges_that_fills_fronts_and_a_merge() {
    let before = [&crate::two_ranges()[..], &[Put(11, 2), Put(61, 2)]].concat();
    complete_with(
        "batch, merge",
        1,
        &TreeUnderTest::new(&before),
        [vec![both(7), Tick], vec![Get(60), Tick, Get(10)]],
        &after(),
    );
}

#[test]
fn two_batches_over_the_same_ranges() {
    complete_with(
        "two batches",
        1,
        &TreeUnderTest::new(&crate::two_ranges()),
        [vec![both(7), Get(60)], vec![both(8), Get(10)]],
        &after(),
    );
}

/// The fronts of the batch's second range are both full: it has to be merged first, by one of the two.
#[test]
fn a_batch_that_waits_for_a_merge_beside_a_merge() {
    let before = [&crate::two_ranges()[..], &[60, 61, 62, 63].map(|key| Put(key, 2))].concat();
    let subject = TreeUnderTest { chunks: 20, ..TreeUnderTest::new(&before) };
    complete_with("waits", 1, &subject, [vec![both(7)], vec![Tick, Put(10, 8)]], &after());
}
