//! A tree with keys of any length: every crash state of what tells it from one with values of any length. Keys share their first eight bytes, so that a
//! change writes a record, and the nodes that lead to it.

use durix_crashsim::{Explorer, Persistency, Report, Sites, Threads, mutation_sweeps};
use durix_pmem::Plan;

use crate::tree::{Act, Act::*, TreeUnderTest, bytes_until_full};
use crate::values::with_long_pages;
use crate::{complete, deep};

fn of(plan: &'static Plan, before: &[Act]) -> TreeUnderTest {
    TreeUnderTest { plan, bytes: true, chunks: 40, ..TreeUnderTest::new(before) }
}

fn puts(keys: impl Iterator<Item = u64>) -> Vec<Act> {
    keys.map(|key| Put(key, 3)).collect()
}

/// Each line of each new node may be durable before the fence: too many crash states to look at all.
fn explorer() -> Explorer {
    let few = Explorer::new().executions_per_point(80).samples(10);
    if deep() { few.executions_per_point(4000).samples(200) } else { few }
}

/// What follows a crash: records are used again, of pages that were active.
fn after() -> Vec<Act> {
    vec![Put(1, 9), Remove(10), Put(2, 9), Tick, Put(10, 12), Update(1, 6), Len]
}

fn scenarios(plan: &'static Plan) -> Vec<(&'static str, TreeUnderTest, Vec<Act>)> {
    let other = |act| Other(Box::new(act));
    let two_nodes = puts(1..=15);
    // The left one has four keys, the right one has all others.
    let few = [&two_nodes[..], &[Remove(2), Remove(4), Remove(6), Remove(12), Remove(14)]].concat();
    vec![
        ("a group begins and ends", of(plan, &[]), vec![Put(10, 3), Put(11, 3), Remove(10), Remove(11), Put(12, 1)]),
        ("a change of a group", of(plan, &puts(8..12)), vec![Update(10, 6), Put(9, 1), Swap(9, Some(1), None)]),
        ("a node is split", of(plan, &puts((1..=14).map(|n| n * 2))), vec![Put(5, 3), Remove(28), Next(9, false)]),
        ("two nodes are joined", of(plan, &few), vec![Remove(1), Put(2, 3), Next(3, true)]),
        ("merge", of(plan, &[Put(10, 3), Put(80, 3)]), vec![Tick, Put(11, 6), Remove(80), Tick, Put(140, 9)]),
        (
            "in place",
            of(plan, &[Put(10, 3), Put(11, 3), Merge]),
            vec![Update(10, 4), Put(12, 3), Swap(10, Some(4), Some(7)), Remove(11), Remove(10)],
        ),
        (
            "batches",
            with_long_pages(of(plan, &[Put(1, 3), Put(2, 3), Put(70, 3), Merge])),
            vec![
                Many(vec![(1, Some(6)), (2, None), (3, Some(3)), (70, Some(4)), (71, None)]),
                Many(vec![(1, None), (3, None), (2, Some(3)), (130, Some(3))]),
            ],
        ),
        (
            "a batch of two groups",
            with_long_pages(of(plan, &[Put(1, 3), Put(70, 3), Merge])),
            vec![Many(vec![(1, Some(6)), (70, Some(9))]), Get(1)],
        ),
        ("two sessions", of(plan, &puts(1..3)), vec![other(Put(1, 6)), Put(2, 6), other(Remove(2)), Put(3, 9)]),
        (
            "records are used again",
            of(plan, &[Put(1, 3), Put(2, 3), Put(70, 3), Merge, Remove(1)]),
            vec![Put(3, 6), Update(2, 9), Put(71, 12), Merge, Remove(3), Put(1, 15)],
        ),
    ]
}

/// The pool is full: entries are marked, also those of a group that goes then.
fn in_full_pool(plan: &'static Plan) -> (TreeUnderTest, Vec<Act>) {
    let subject = TreeUnderTest { chunks: 16, ..of(plan, &[]) };
    let mut before = bytes_until_full(&subject);
    // The session's last free units go.
    before.extend([Remove(5), Remove(10)]);
    let acts = vec![Remove(15), Get(15), Remove(20), Next(14, true), Remove(25), Len];
    (TreeUnderTest { before, ..subject }, acts)
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
fn keys_of_any_length_pass() {
    for (name, subject, acts) in scenarios(Plan::new()) {
        if ["a group begins and ends", "merge"].contains(&name) {
            complete(name, || Explorer::new().run_then(&subject, &acts, &after()));
        } else {
            println!("{name}: {}", explorer().run_then(&subject, &acts, &after()).assert_ok());
        }
    }
}

#[test]
fn keys_of_any_length_pass_where_lines_tear() {
    for (name, subject, acts) in scenarios(Plan::new()) {
        let explorer = explorer().model(Persistency::TornWords);
        println!("{name}: {}", explorer.run_then(&subject, &acts, &after()).assert_ok());
    }
}

#[test]
fn crashes_while_groups_are_recovered() {
    for (name, subject, acts) in scenarios(Plan::new()).into_iter().filter(|(name, ..)| deep() || *name == "merge") {
        let subject = TreeUnderTest { in_recovery: vec![Merge], ..subject };
        println!("{name}: {}", explorer().crashes(2).run_then(&subject, &acts, &[Put(1, 9), Remove(10)]).assert_ok());
    }
}

#[test]
fn processes_die_in_a_change_of_a_group() {
    let subject = of(Plan::new(), &[Put(10, 3), Put(11, 3), Merge]);
    let acts = [Update(10, 4), Remove(11), Put(12, 3)];
    let explorer = explorer().process_deaths(true).executions_per_point(20).samples(6);
    println!("deaths: {}", explorer.run_then(&subject, &acts, &[Put(10, 9), Put(11, 9), Get(12)]).assert_ok());
}

#[test]
fn every_fence_before_a_link_to_a_group_is_needed() {
    // Where locked instructions do not wait for write-backs: a batch takes locks after its fence.
    let explorer = Explorer::new().locked_drains(false).executions_per_point(200).samples(60);
    let sites = ["dptree/src/bytes.rs", "dptree/src/together.rs"].map(Sites::in_files);
    for sweep in mutation_sweeps(&sites, |plan| run(&explorer, plan)) {
        println!("{}", sweep.assert_all_caught(&[]));
    }
}

/// A removal that marks its key, and after it, or beside it, one who meets the mark.
fn marks(plan: &'static Plan) -> Report {
    let (subject, acts) = in_full_pool(plan);
    let mut report = explorer().run_then(&subject, &acts, &[Get(15), Get(20), Remove(30), Len]);
    for reads in [vec![Get(15)], vec![Next(15, true)], vec![Len]] {
        if report.failure.is_none() {
            let threads = Threads::new(explorer().executions_per_point(10).samples(4)).preemptions(1).max_schedules(60);
            report.merge(threads.run(&subject, &[vec![Remove(15)], reads], &[Get(15)]));
        }
    }
    report
}

/// The sweep also runs them without a fault: keys of any length are removed in a full pool.
#[test]
fn every_write_back_and_fence_of_marks_is_needed() {
    let sites = ["dptree/src/group.rs", "logfree/src/records/store.rs"].map(Sites::in_files);
    for sweep in mutation_sweeps(&sites, marks) {
        println!("{}", sweep.assert_all_caught(&[]));
    }
}

#[track_caller]
fn together(name: &str, before: &[Act], program: [Vec<Act>; 2]) {
    let (preemptions, schedules) = if deep() { (3, 3000) } else { (2, 40) };
    let explorer = Explorer::new().executions_per_point(10).samples(4);
    let threads = Threads::new(explorer).preemptions(preemptions).max_schedules(schedules);
    println!("{name}: {}", threads.run(&of(Plan::new(), before), &program, &after()).assert_ok());
}

#[test]
fn a_group_changes_beside_a_reader_and_a_merge() {
    let reader = vec![Get(10), Next(9, true)];
    together("reader", &[Put(10, 3), Put(11, 3), Merge], [vec![Update(10, 4), Put(12, 7)], reader]);
    together("merge", &puts(1..3), [vec![Tick], vec![Put(1, 6), Remove(2)]]);
    together("writers", &puts(1..3), [vec![Put(1, 6), Remove(1)], vec![Swap(2, Some(3), Some(9)), Put(4, 12)]]);
}
