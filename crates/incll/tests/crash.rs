//! Every crash state of short sequences of operations on a durable tree, under the buffered contract: what comes back is
//! the tree of some boundary, no older than the last one, with every block reached exactly once. With `DURIX_DEEP` set,
//! sequences are longer.

#[path = "crash/subject.rs"]
mod subject;
#[path = "crash/threads.rs"]
mod threads;

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
    let evens = puts((0..28).map(|k| k * 2), 1);
    let interior_full = puts((81..200).rev(), 1);
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
        ("border splits", evens, vec![Put(5, 2), Put(0, 3)]),
        ("an interior root splits", interior_full, vec![Put(80, 2), Remove(190)]),
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
        ("a restart undoes", some.clone(), vec![Put(5, 2), Remove(0), Restart, Put(6, 3), Sync, Put(6, 4)]),
        (
            "a node merely read after a restart",
            some.clone(),
            vec![Put(5, 2), Sync, Put(6, 2), Restart, Get(5), Restart, Get(5)],
        ),
        (
            "a log that is replayed, and is not again",
            full,
            vec![Put(0, 2), Put(1, 3), Restart, Put(0, 4), Sync, Put(2, 5), Restart],
        ),
        (
            "blocks after a restart",
            puts(0..3, 101),
            vec![Remove(0), Put(5, 102), Restart, Put(6, 103), Put(0, 104), Sync, Put(1, 105)],
        ),
        (
            "a log that is replayed counts no more, whoever fences",
            puts(0..14, 1),
            vec![Put(0, 2), Put(1, 3), Restart, other(Put(0, 4)), other(Sync), other(Put(2, 5))],
        ),
        (
            "the process dies in an update",
            puts(0..3, 101),
            vec![Put(5, 1), Killed(Box::new(Put(0, 102))), other(Put(6, 104)), other(Sync), Put(1, 3)],
        ),
        (
            "the process dies with a new slab",
            vec![],
            vec![Killed(Box::new(Put(0, 101))), other(Put(1, 101)), other(Sync), Put(2, 102)],
        ),
        (
            "the process dies in a split",
            puts(0..14, 1),
            vec![Killed(Box::new(Put(14, 2))), other(Put(15, 3)), other(Sync), Put(16, 3)],
        ),
        (
            "the process dies with an image",
            puts(0..14, 1),
            vec![Put(0, 2), Killed(Box::new(Put(1, 3))), other(Put(0, 4)), other(Sync)],
        ),
        ("a split is undone by a restart", puts(0..14, 1), vec![Put(14, 2), Restart, Put(15, 2), Sync, Put(16, 3)]),
        (
            "W1 F1 a sweep undoes what nobody looks at",
            puts(0..15, 1),
            vec![Put(0, 2), Put(14, 3), Restart, Sync, Sync, Sync, Restart, Put(0, 4)],
        ),
        (
            "W2 passes of several steps, cut short by restarts",
            [puts(0..15, 1), puts(20..22, 101)].concat(),
            // The second restart falls behind the start of a second pass, and the third behind its end.
            [Put(0, 2), Put(14, 102), Restart, Sync, Sync, Put(1, 3)]
                .into_iter()
                .chain((0..10).map(|i| if i % 3 == 0 { Restart } else { Sync }))
                .collect(),
        ),
        (
            "W1 a sweep among changes",
            puts(0..15, 1),
            vec![Put(0, 2), Restart, Put(20, 101), Sync, Remove(14), Sync, Put(1, 3), Sync],
        ),
        ("a boundary between", some, vec![Put(5, 2), Sync, Put(5, 3), Remove(0), Sync, Put(0, 4)]),
    ]
}

/// Windows of the sweep take it a slab at a time.
fn tested(name: &str, plan: &'static Plan, before: Vec<Act>) -> Tested {
    Tested { sweep_step: if name.starts_with('W') { 1 } else { 2048 }, ..Tested::new(plan, before) }
}

fn run(explorer: &Explorer, plan: &'static Plan, names: &str) -> Report {
    let mut total = Report::default();
    for (name, before, acts) in scenarios().into_iter().filter(|(name, ..)| name.contains(names)) {
        let start = std::time::Instant::now();
        let report = explorer.run_then(&tested(name, plan, before), &acts, &after());
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

fn sequences(name: &str, before: Vec<Act>, alphabet: &[Act], crashes: usize) {
    let len = if deep() { 4 } else { 3 };
    let tested = Tested::new(Plan::new(), before);
    complete(name, explorer().crashes(crashes).sequences(&tested, alphabet, len, &after()));
}

#[test]
fn all_short_sequences_in_one_node() {
    let alphabet = [Put(0, 2), Put(0, 3), Remove(0), Put(1, 2), Remove(10), Sync];
    sequences("one node", puts([0, 10, 20].into_iter(), 1), &alphabet, 1);
}

#[test]
fn all_short_sequences_with_records_and_restarts() {
    let alphabet = [Put(0, 102), Remove(0), Put(1, 103), Sync, Restart];
    sequences("records", vec![Put(0, 101)], &alphabet, 1);
}

#[test]
fn all_short_sequences_with_layers() {
    let alphabet = [Put(200, 2), Put(201, 103), Remove(200), Sync];
    sequences("layers", vec![Put(200, 101)], &alphabet, 1);
}

#[test]
fn crashes_in_recovery_change_nothing() {
    let explorer = explorer().crashes(2);
    for names in ["P1 P2", "a restart undoes", "a record", "a layer goes", "merely read"] {
        complete(names, run(&explorer, Plan::new(), names));
    }
    let full = puts(0..14, 1);
    let tested = Tested::new(Plan::new(), full);
    let report = explorer.run_then(&tested, &[Put(0, 2), Put(1, 3), Restart, Put(0, 4)], &[Put(2, 5)]).assert_ok();
    println!("external log: {report}");
}

#[test]
fn caches_that_survive_change_nothing() {
    let explorer = explorer().model(durix_crashsim::Persistency::Eadr);
    complete("eADR", run(&explorer, Plan::new(), ""));
}

#[test]
fn a_crash_in_creation_leaves_nothing_or_an_empty_tree() {
    let tested = Tested::new(Plan::new(), vec![]);
    complete("creation", explorer().crash_in_create(true).run_then(&tested, &[Put(0, 1)], &after()));
}

#[test]
fn epochs_of_forty_bits() {
    for first_epoch in [0xfffe, 0xffff_fffe, (1 << 39) - 1] {
        let tested = Tested { first_epoch, ..Tested::new(Plan::new(), puts(0..14, 101)) };
        let acts = [Put(0, 2), Sync, Put(1, 3), Sync, Remove(2), Restart, Put(3, 4), Sync, Put(4, 5)];
        complete("large epochs", explorer().run_then(&tested, &acts, &after()));
    }
}

/// The places in the source right behind a comment that holds `words`, as the sweep names them.
fn marked(words: &str) -> Vec<String> {
    let files = [
        ("src/slab.rs", include_str!("../src/slab.rs")),
        ("src/tree.rs", include_str!("../src/tree.rs")),
        ("src/cx.rs", include_str!("../src/cx.rs")),
        ("src/update.rs", include_str!("../src/update.rs")),
    ];
    let lines = |(file, text): (&str, &str)| {
        let marked = text.lines().enumerate().filter(|(_, line)| line.contains(words));
        marked.map(|(number, _)| format!("{file}:{}", number + 2)).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(lines).collect()
}

/// The windows, with a smaller budget for each crash point.
fn quick(plan: &'static Plan) -> Report {
    let explorer = explorer().executions_per_point(400).samples(60);
    let mut total = Report::default();
    let creation = Tested::new(plan, vec![]);
    total.merge(explorer.clone().crash_in_create(true).run_then(&creation, &[Put(0, 1)], &after()));
    for (name, before, acts) in scenarios().into_iter().filter(|(name, ..)| *name != "an interior root splits") {
        if total.failure.is_some() {
            break;
        }
        total.merge(explorer.run_then(&tested(name, plan, before), &acts, &after()));
    }
    total
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sweep = mutation_sweep(&Sites::in_files("crates/incll/src/"), quick);
    let elsewhere = marked("Shown to be needed by `tests/pool.rs`");
    println!("{}", sweep.assert_all_caught(&elsewhere.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn every_order_of_stores_is_needed() {
    let mut sites = Sites::in_files("crates/incll/src/");
    sites.kinds = vec![SiteKind::Order, SiteKind::Release];
    let volatile = marked("elease for other threads alone");
    let except: Vec<_> = volatile.iter().map(String::as_str).collect();
    println!("{}", mutation_sweep(&sites, quick).assert_all_caught(&except));
}

#[test]
fn a_block_freed_before_its_slab_was_read_is_not_given_out_twice() {
    let tested = Tested::new(Plan::new(), vec![Put(0, 101)]);
    complete("double", explorer().run_then(&tested, &[Restart, Put(0, 7), Put(60, 107), Sync, Put(0, 108)], &after()));
}
