//! Every crash state of short sequences of operations on a durable tree, under the buffered contract: what comes back is
//! the tree of some boundary, no older than the last one, with every block reached exactly once. With `DURIX_DEEP` set,
//! sequences are longer.

#[path = "crash/subject.rs"]
mod subject;

use durix_crashsim::{Contract, Explorer, Report, Sites, mutation_sweep};
use durix_pmem::{Plan, SiteKind};
use subject::Act::{self, *};
use subject::Tested;

fn deep() -> bool {
    std::env::var_os("DURIX_DEEP").is_some()
}

fn explorer() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

fn puts(keys: impl Iterator<Item = u8>, v: u8) -> Vec<Act> {
    keys.map(|k| Put(k, v)).collect()
}

fn other(act: Act) -> Act {
    Other(Box::new(act))
}

/// Follows every recovery.
fn after() -> Vec<Act> {
    vec![Put(0, 7), Put(60, 107), Remove(1), Sync, Put(0, 108), Put(61, 8)]
}

#[track_caller]
fn complete(name: &str, report: Report) {
    let report = report.assert_ok();
    println!("{name}: {report}");
    assert!(report.complete, "{name} is not complete");
}

/// What is there before, and what is done: a window each.
fn scenarios() -> Vec<(&'static str, Vec<Act>, Vec<Act>)> {
    let some = puts((0..6).map(|k| k * 10), 1);
    let full = puts(0..14, 1);
    let records = puts(0..3, 101);
    let two = puts(0..15, 1);
    let interior_full = puts(0..199, 1);
    vec![
        ("P1 P2 first change: insert", some.clone(), vec![Put(5, 2)]),
        ("P1 P2 first change: update takes a slot", some.clone(), vec![Put(10, 2)]),
        ("P1 P2 first change: remove", some.clone(), vec![Remove(10)]),
        ("P4 remove, then insert, in one epoch", some.clone(), vec![Remove(10), Put(5, 2), Put(10, 3)]),
        ("a new key is updated in place", some.clone(), vec![Put(5, 2), Put(5, 3), Put(5, 104), Put(5, 4)]),
        ("two hot values, and the same value again", some.clone(), vec![Put(0, 2), Put(10, 2), Put(0, 2), Put(10, 3)]),
        ("P3 no slot is left", full.clone(), vec![Put(0, 2), Put(1, 3), Put(0, 4), Remove(2)]),
        (
            "P3 after InCLLp was used, inserts",
            full[..13].to_vec(),
            vec![Remove(0), Put(1, 2), Put(2, 3), Put(20, 4), Put(21, 4)],
        ),
        ("root splits", full.clone(), vec![Put(7, 2), Put(14, 2), Put(15, 2)]),
        ("border splits", two.clone(), puts((3..14).map(|k| k * 2 + 14), 2)),
        ("an interior root splits", interior_full, vec![Put(199, 2), Remove(0)]),
        (
            "records: free, and take in the next epoch",
            records,
            vec![Put(0, 102), Remove(1), Sync, Put(0, 103), Put(5, 104), Remove(2)],
        ),
        ("a record that nobody has seen", vec![], vec![Put(0, 101), Put(0, 102), Remove(0), Put(0, 103)]),
        ("a large value", vec![Put(0, 250)], vec![Put(1, 251), Remove(0), Sync, Put(2, 252)]),
        ("a layer is made", vec![Put(200, 1)], vec![Put(201, 2), Put(202, 103), Remove(200)]),
        ("layers in layers", vec![Put(230, 1)], vec![Put(231, 2), Put(200, 3), Remove(230), Remove(231)]),
        ("a layer goes", vec![Put(200, 1), Put(201, 1), Put(0, 1)], vec![Remove(200), Remove(201), Put(202, 3)]),
        (
            "nodes merge, the root gets lower",
            two,
            [Remove(14), Put(0, 2)].into_iter().chain((7..14).map(Remove)).collect(),
        ),
        (
            "two sessions",
            some.clone(),
            vec![Put(5, 2), other(Put(6, 103)), other(Sync), other(Put(10, 3)), Put(0, 104)],
        ),
        ("a boundary between", some, vec![Put(5, 2), Sync, Put(5, 3), Remove(0), Sync, Put(0, 4)]),
    ]
}

fn run(explorer: &Explorer, plan: &'static Plan, names: &str) -> Report {
    let mut total = Report::default();
    for (name, before, acts) in scenarios().into_iter().filter(|(name, ..)| name.contains(names)) {
        let start = std::time::Instant::now();
        let report = explorer.run_then(&Tested::new(plan, before), &acts, &after());
        if std::env::var_os("DURIX_VERBOSE").is_some() {
            println!("{name}: {:?} {report}", start.elapsed());
        }
        total.merge(report);
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn every_window_comes_back_whole() {
    complete("windows", run(&explorer(), Plan::new(), ""));
}
