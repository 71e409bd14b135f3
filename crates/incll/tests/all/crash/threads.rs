//! Threads and crashes together: interleavings of short programs on one tree, every crash state of each, operations after
//! the recovery. What comes back must be a cut of one order in which the operations can have taken effect, no older than
//! the last boundary that had ended.

use std::time::Instant;

use durix_crashsim::Threads;
use durix_pmem::Plan;

use super::subject::Act::{self, *};
use super::subject::Tested;
use super::{deep, explorer, puts};

/// Two threads, with so many preemptions, and one more in deep runs.
#[track_caller]
fn explore(name: &str, tested: &Tested, preemptions: u32, program: [Vec<Act>; 2]) {
    let start = Instant::now();
    let explorer = explorer().executions_per_point(40).samples(8);
    let threads = Threads::new(explorer).preemptions(preemptions + u32::from(deep()));
    let report = threads.run(tested, &program, &[Put(0, 7), Sync, Put(60, 107)]).assert_ok();
    println!("{name}, in {:?}: {report}", start.elapsed());
    let schedules = report.schedules.expect("threads have schedules").executions;
    assert!(schedules > 10, "{name}: {schedules} schedules");
}

#[test]
fn two_writers_of_one_node_and_a_boundary() {
    let tested = Tested::new(Plan::new(), puts([0, 10].into_iter(), 1));
    explore("one node", &tested, 2, [vec![Put(5, 2), Sync], vec![Put(6, 103)]]);
    explore("one key", &tested, 1, [vec![Put(0, 2), Put(0, 3)], vec![Remove(0), Sync]]);
}

#[test]
fn a_boundary_while_a_root_splits() {
    let tested = Tested::new(Plan::new(), puts(0..14, 1));
    explore("root splits", &tested, 1, [vec![Put(14, 2)], vec![Sync, Put(0, 3)]]);
}

#[test]
fn a_boundary_while_a_border_splits() {
    let tested = Tested::new(Plan::new(), puts((0..28).map(|k| k * 2), 1));
    explore("border splits", &tested, 1, [vec![Put(5, 2), Put(4, 3)], vec![Sync]]);
}

#[test]
fn a_descent_that_has_waited_for_a_split_goes_on_at_once() {
    let tested = Tested::new(Plan::new(), puts((0..28).map(|k| k * 2), 1));
    explore("descent beside a split", &tested, 1, [vec![Put(5, 2)], vec![Put(4, 3)]]);
    if deep() {
        explore("descent beside a split and a boundary", &tested, 1, [vec![Put(5, 2)], vec![Put(4, 3), Sync]]);
    }
}

#[test]
fn two_threads_recover_one_node() {
    let before = [puts(0..3, 1), vec![Sync, Put(0, 2), Remove(1), Restart]].concat();
    // No sweep: the threads shall meet the node as the crash has left it.
    let tested = Tested { sweep_step: 0, ..Tested::new(Plan::new(), before) };
    explore("recovery", &tested, 2, [vec![Get(0), Put(1, 3)], vec![Put(0, 4)]]);
    explore("recovery and a boundary", &tested, 2, [vec![Get(0)], vec![Put(2, 4), Sync]]);
}

#[test]
fn a_sweep_while_another_thread_works() {
    let before = [puts(0..15, 1), vec![Sync, Put(0, 2), Put(14, 3), Restart]].concat();
    let tested = Tested { sweep_step: 0, ..Tested::new(Plan::new(), before) };
    let swept = Tested { sweep_step: 1, ..tested };
    explore("sweep", &swept, 1, [vec![Sync, Sync], vec![Put(0, 4), Put(20, 101)]]);
}

#[test]
fn write_backs_ahead_of_the_boundary_while_another_thread_works() {
    let tested = Tested::new(Plan::new(), puts([0, 10].into_iter(), 1));
    explore("ahead", &tested, 2, [vec![Put(5, 2), Ahead, Sync], vec![Put(5, 3)]]);
    explore("ahead, in place", &tested, 1, [vec![Ahead, Sync], vec![Put(0, 3), Put(0, 4)]]);
}

/// The last keys of a layer go, and the layer with them, while another thread is on its way into it: that thread has to look for the layer
/// again, or what it inserts is lost with the node.
#[test]
fn a_layer_goes_while_another_thread_is_on_its_way_into_it() {
    let tested = Tested::new(Plan::new(), vec![Put(200, 1), Put(201, 1), Put(0, 1)]);
    explore("an insert", &tested, 1, [vec![Put(202, 2), Get(202)], vec![Remove(200), Remove(201)]]);
    explore("a lookup", &tested, 1, [vec![Get(201), Get(201)], vec![Remove(200), Remove(201), Put(201, 3)]]);
}
