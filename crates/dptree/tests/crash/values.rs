//! A tree with values of any length: every crash state of what tells it from a tree of words, beside merges, log pages that are used again,
//! records that are used again at once, and a full pool.

use durix_crashsim::{Explorer, Persistency, Report, Sites, Threads, mutation_sweeps};
use durix_dptree::{Options, Shape};
use durix_pmem::Plan;

use crate::tree::{Act, Act::*, TreeUnderTest};
use crate::{complete, deep, in_leaves};

fn of(plan: &'static Plan, before: &[Act]) -> TreeUnderTest {
    TreeUnderTest { plan, values: true, chunks: 24, ..TreeUnderTest::new(before) }
}

/// Log pages of sixteen records, so that a batch needs no new page, whose fence would do for its records, too.
pub(crate) fn with_long_pages(subject: TreeUnderTest) -> TreeUnderTest {
    let options = Options::default().shape(Shape { slots: 4, leaves: 2, page_lines: 8 }).least_front(2);
    TreeUnderTest { options, ..subject }
}

/// What follows a crash: records are used again, of pages that were active.
fn after() -> Vec<Act> {
    vec![Put(1, 9), Remove(10), Put(2, 9), Tick, Put(10, 12), Update(1, 6), Len]
}

fn scenarios(plan: &'static Plan) -> Vec<(&'static str, TreeUnderTest, Vec<Act>)> {
    let other = |act| Other(Box::new(act));
    vec![
        ("first values", of(plan, &[]), vec![Put(10, 3), Update(10, 6), Put(20, 1), Remove(10)]),
        ("a value in parts", of(plan, &[Put(10, 3)]), vec![Put(10, 2), Update(10, 5), Swap(10, Some(5), None)]),
        ("merge", of(plan, &[Put(10, 3), Put(20, 3)]), vec![Tick, Put(10, 6), Remove(20), Tick, Put(30, 9)]),
        (
            "in place",
            of(plan, &in_leaves()),
            vec![Update(10, 4), Put(11, 3), Swap(10, Some(4), Some(7)), Remove(11), Update(10, 10)],
        ),
        (
            "batches",
            with_long_pages(of(plan, &[Put(1, 3), Put(2, 3), Merge])),
            vec![Many(vec![(1, Some(6)), (2, None), (60, Some(9)), (61, None)]), Many(vec![(1, None), (2, Some(3))])],
        ),
        ("two sessions", of(plan, &[Put(1, 3)]), vec![other(Put(1, 6)), Put(2, 3), other(Remove(2)), Put(1, 9)]),
        (
            "records are used again",
            of(plan, &[Put(1, 3), Put(2, 3), Merge, Remove(1)]),
            vec![Put(3, 6), Update(2, 9), Put(4, 12), Merge, Remove(3), Put(1, 15)],
        ),
    ]
}

fn run(explorer: &Explorer, plan: &'static Plan) -> Report {
    let mut total = Report::default();
    for (_, subject, acts) in scenarios(plan) {
        if total.failure.is_none() {
            total.merge(explorer.run_then(&subject, &acts, &after()));
        }
    }
    total
}

#[test]
fn values_of_any_length_pass_completely() {
    for (name, subject, acts) in scenarios(Plan::new()) {
        complete(name, || Explorer::new().run_then(&subject, &acts, &after()));
    }
}

#[test]
fn values_of_any_length_pass_where_lines_tear() {
    let explorer = Explorer::new().model(Persistency::TornWords).executions_per_point(300).samples(10);
    for (name, subject, acts) in scenarios(Plan::new()) {
        println!("{name}: {}", explorer.run_then(&subject, &acts, &after()).assert_ok());
    }
}

#[test]
fn crashes_while_records_are_recovered() {
    for (name, subject, acts) in scenarios(Plan::new()).into_iter().filter(|(name, ..)| deep() || *name == "merge") {
        let subject = TreeUnderTest { in_recovery: vec![Merge], ..subject };
        let explorer = Explorer::new().crashes(2).executions_per_point(200).samples(20);
        println!("{name}: {}", explorer.run_then(&subject, &acts, &[Put(1, 9), Remove(10)]).assert_ok());
    }
}

#[test]
fn processes_die_in_an_update_of_a_value() {
    let subject = of(Plan::new(), &in_leaves());
    let acts = [Update(10, 4), Remove(11), Put(12, 3)];
    let explorer = Explorer::new().process_deaths(true).executions_per_point(200).samples(20);
    println!("deaths: {}", explorer.run_then(&subject, &acts, &[Put(10, 9), Put(11, 9), Get(12)]).assert_ok());
}

#[test]
fn every_fence_before_a_link_to_a_record_is_needed() {
    // Where locked instructions do not wait for write-backs: a batch takes locks after its fence.
    let explorer = Explorer::new().locked_drains(false).executions_per_point(200).samples(60);
    let sites = ["dptree/src/values.rs", "dptree/src/together.rs"].map(Sites::in_files);
    for sweep in mutation_sweeps(&sites, |plan| run(&explorer, plan)) {
        println!("{}", sweep.assert_all_caught(&[]));
    }
}

#[track_caller]
fn together(name: &str, before: &[Act], program: [Vec<Act>; 2]) {
    let (preemptions, schedules) = if deep() { (3, 3000) } else { (2, 60) };
    let explorer = Explorer::new().executions_per_point(20).samples(4);
    let threads = Threads::new(explorer).preemptions(preemptions).max_schedules(schedules);
    println!("{name}: {}", threads.run(&of(Plan::new(), before), &program, &after()).assert_ok());
}

#[test]
fn a_value_is_replaced_beside_a_reader_and_a_merge() {
    together("reader", &in_leaves(), [vec![Update(10, 4), Put(12, 7)], vec![Get(10), Next(9, true)]]);
    together("merge", &[Put(1, 3), Put(2, 3)], [vec![Tick], vec![Put(1, 6), Remove(2)]]);
    together("writers", &[Put(1, 3)], [vec![Put(1, 6), Remove(1)], vec![Swap(1, Some(3), Some(9)), Put(1, 12)]]);
}
