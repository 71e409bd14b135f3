//! Updates that are settled later: every crash state of short sequences with two tickets, and of concurrent programs; and the mutation of
//! every write-back, fence and order of stores that they need. With `DURIX_DEEP` set, sequences are longer, and preemptions more.

use durix_crashsim::{Contract, Explorer, Report, Sites, Threads, mutation_sweep, mutation_sweeps};
use durix_pmem::{Mutation, Plan, SiteKind};
use durix_pset::SetOptions;
use durix_pset::testing::concurrent::{self, Act as Together};
use durix_pset::testing::later::Act::{self, *};
use durix_pset::testing::later::LaterUnderTest;
use durix_pset::testing::set::Act::{Commit, Put, PutNew, Remove, Swap};
use durix_pset::testing::set::{SetUnderTest, keys_of};
use durix_subjects::explored::{complete, deep};

fn explorer() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

/// Follows every recovery: ordinary updates, which reuse slots.
fn after() -> Vec<Act> {
    vec![Now(Put(1, 9)), Now(Remove(0)), Now(Put(2, 9)), Later(0, Put(0, 8)), Now(Put(3, 7)), Wait(0), Now(Put(4, 1))]
}

/// A set in which every slot of a line is used but a few.
fn nearly_full(plan: &'static Plan, chunks: u64, keys: u8) -> LaterUnderTest {
    let before = (10..keys).map(|k| Put(k, 1)).collect();
    LaterUnderTest(SetUnderTest { plan, chunks, before, ..SetUnderTest::new() })
}

fn scenarios(plan: &'static Plan) -> Vec<(&'static str, LaterUnderTest, Vec<Act>)> {
    let plain = LaterUnderTest::new(plan);
    let of = |before: Vec<_>| LaterUnderTest(SetUnderTest { before, ..plain.0.clone() });
    let begun = of(vec![Put(0, 1), Put(1, 1)]);
    let pair = |a, b| Commit(vec![(0, Some(a)), (1, Some(b))]);
    let two_shards = SetOptions::default().shards(2).recovery_threads(1);
    let shards = LaterUnderTest(SetUnderTest { options: two_shards, ..plain.0.clone() });
    let (a, b) = (keys_of(0)[0], keys_of(1)[0]);
    // A tombstone hides an older entry; the slot of that is written by an update that is settled later, and then the tombstone's.
    let hidden = of(vec![Put(0, 1), Put(0, 2), Remove(0)]);
    let hiding = vec![
        Later(0, Put(1, 1)),
        Later(1, Put(2, 1)),
        Now(Put(3, 1)),
        Now(Put(4, 1)),
        Now(Put(5, 1)),
        Wait(0),
        Now(Put(6, 2)),
    ];
    vec![
        ("insert, wait", plain.clone(), vec![Later(0, Put(0, 1)), Later(0, Put(1, 2)), Wait(0), Now(Put(0, 3))]),
        (
            "lines",
            plain.clone(),
            vec![Later(0, Put(0, 150)), Later(0, Put(100, 1)), Wait(0), Later(0, Put(0, 1)), Wait(0)],
        ),
        (
            "update, read",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Get(1), Get(0), Later(0, Put(1, 150)), Get(1), Wait(0)],
        ),
        (
            "remove, read",
            begun.clone(),
            vec![Later(0, Remove(0)), Get(0), Later(0, Remove(1)), Wait(0), Now(Put(2, 1))],
        ),
        ("remove, insert", begun.clone(), vec![Later(0, Remove(0)), Later(0, PutNew(0, 3)), Wait(0), Get(0)]),
        (
            "remove, insert at once",
            begun.clone(),
            vec![Later(0, Remove(0)), Now(PutNew(0, 3)), Wait(0), Now(Put(2, 1))],
        ),
        ("walk", begun.clone(), vec![Later(0, Remove(0)), Later(1, Put(2, 2)), Walk, Now(Put(3, 3)), Wait(1)]),
        ("len", begun.clone(), vec![Later(0, Remove(0)), Later(1, Remove(1)), Len, Wait(0)]),
        (
            "one over another",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Later(1, Put(0, 3)), Wait(1), Now(Put(1, 2)), Wait(0)],
        ),
        (
            "one before another",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Later(1, Put(0, 3)), Wait(0), Now(Put(1, 2)), Wait(1)],
        ),
        (
            "three over each other",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Later(1, Remove(0)), Later(0, Put(0, 4)), Get(0), Wait(1)],
        ),
        (
            "at once over later",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Now(Put(0, 3)), Now(Put(1, 4)), Now(Put(2, 5)), Wait(0)],
        ),
        (
            "dropped",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Later(0, Put(2, 150)), Drop(0), Now(Put(1, 3)), Now(Put(1, 4))],
        ),
        ("elsewhere", begun.clone(), vec![Later(0, Put(0, 2)), Later(0, Remove(1)), WaitElsewhere(0), Now(Put(2, 3))]),
        ("joined", begun.clone(), vec![Later(0, Put(0, 2)), Later(1, Put(0, 3)), Later(1, Put(2, 2)), Join, Wait(0)]),
        (
            "reads go with a ticket",
            begun.clone(),
            vec![Later(0, Put(0, 2)), GetLater(1, 0), Later(0, Remove(1)), GetLater(1, 1), Wait(1)],
        ),
        (
            "refusals rest on what was found",
            begun.clone(),
            vec![
                Later(0, Remove(0)),
                Later(1, Remove(0)),
                Later(0, Put(1, 2)),
                Later(1, Swap(1, Some(1), Some(3))),
                Wait(1),
            ],
        ),
        (
            "transaction",
            begun.clone(),
            vec![Later(0, Put(0, 2)), Now(pair(3, 4)), Later(0, Put(1, 5)), Now(pair(6, 7)), Wait(0)],
        ),
        (
            "transaction entries",
            of(vec![pair(1, 2), pair(3, 4)]),
            vec![Later(0, Put(0, 5)), Wait(0), Later(0, Put(0, 6)), Wait(0)],
        ),
        ("a tombstone's turn", hidden, hiding),
        (
            "scrubbing",
            of(vec![Put(0, 150), Remove(0)]),
            vec![Later(0, Put(1, 1)), Later(0, Put(2, 2)), Later(0, Put(3, 3)), Wait(0)],
        ),
        (
            "lines at once",
            begun.clone(),
            vec![Later(0, Put(0, 150)), Now(Put(0, 151)), Later(0, Put(1, 150)), Now(Put(2, 152)), Wait(0)],
        ),
        (
            "two shards",
            shards,
            vec![Later(0, Put(a, 1)), Later(0, Put(b, 1)), Wait(0), Later(0, Remove(a)), Now(Put(b, 2)), Wait(0)],
        ),
        (
            "full",
            nearly_full(plan, 1, 72),
            vec![Later(0, Put(10, 2)), Later(0, Put(11, 3)), Now(Put(12, 4)), Later(0, Remove(13)), Wait(0)],
        ),
    ]
}

fn run(explorer: &Explorer, plan: &'static Plan) -> Report {
    run_some(explorer, plan, usize::MAX)
}

/// The first so many scenarios.
fn run_some(explorer: &Explorer, plan: &'static Plan, number: usize) -> Report {
    let mut total = Report::default();
    for (_, subject, acts) in scenarios(plan).into_iter().take(number) {
        let follows = if subject.0.chunks == 1 { vec![Now(Remove(12)), Now(Put(13, 3))] } else { after() };
        total.merge(explorer.run_then(&subject, &acts, &follows));
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn scenarios_pass_and_every_write_back_and_fence_is_needed() {
    let calls = Sites {
        files: ["pset/src/later.rs", "pset/src/entry.rs", "pmem/src/unsettled.rs"].map(String::from).to_vec(),
        ..Sites::in_files("")
    };
    let mut lines = Sites::in_files("pmem/src/unsettled.rs");
    lines.kinds = vec![SiteKind::WriteBack];
    lines.mutations = vec![Mutation::WithoutLastLine, Mutation::Delay];
    let orders = Sites { kinds: vec![SiteKind::Order, SiteKind::Release], ..Sites::in_files("pset/src/entry.rs") };
    let sweeps = mutation_sweeps([&calls, &lines, &orders], |plan| run(&explorer(), plan));
    assert!(sweeps[0].baseline.complete, "{}", sweeps[0].baseline);
    for sweep in sweeps {
        println!("{}", sweep.assert_all_caught(&[]));
    }
}

#[test]
fn scenarios_pass_with_process_deaths_and_second_crashes() {
    let later = explorer().crashes(2).crash_later(true).executions_per_point(20).samples(4);
    if deep() {
        complete("process deaths", run(&explorer().process_deaths(true), Plan::new()));
        println!("later crashes: {}", run(&later, Plan::new()).assert_ok());
    } else {
        let deaths = explorer().deaths_in("pset/src/entry.rs");
        println!("process deaths: {}", run_some(&deaths, Plan::new(), 4).assert_ok());
        println!("later crashes: {}", run_some(&later, Plan::new(), 4).assert_ok());
    }
}

#[test]
fn all_short_sequences() {
    let of = |before: Vec<_>| LaterUnderTest(SetUnderTest { before, ..SetUnderTest::new() });
    let len = if deep() { 5 } else { 3 };
    let one_key = [
        Later(0, Put(0, 1)),
        Later(0, Remove(0)),
        Later(1, PutNew(0, 2)),
        Later(1, Put(0, 150)),
        Now(Put(0, 3)),
        Now(Remove(0)),
        Wait(0),
        Get(0),
        Drop(1),
    ];
    complete("one key", explorer().sequences(&of(vec![Put(0, 9)]), &one_key, len, &after()));
    let two_keys = [
        Later(0, Put(0, 1)),
        Later(0, Remove(1)),
        Later(1, Put(1, 2)),
        Now(Put(2, 3)),
        Now(Put(0, 4)),
        GetLater(1, 0),
        Wait(0),
        Wait(1),
    ];
    complete("two keys", explorer().sequences(&of(vec![Put(1, 9)]), &two_keys, len, &after()));
}

// ---- threads ----

#[track_caller]
fn together(name: &str, threads: &Threads, subject: &concurrent::SetUnderTest, program: &[Vec<Together>]) {
    complete(name, threads.run(subject, program, &concurrent::after()));
}

/// An update and the wait for its ticket are one act: what happens in between is for the other threads.
fn programs(plan: &'static Plan) -> Vec<(&'static str, concurrent::SetUnderTest, Vec<Vec<Together>>)> {
    use Together::*;
    let begun = concurrent::SetUnderTest { plan, ..concurrent::SetUnderTest::new(&[Put(0, 1)]) };
    vec![
        ("a reader meets an insert", begun.clone(), vec![vec![PutLater(1, 2)], vec![Get(1), Get(1)]]),
        ("a reader meets an update", begun.clone(), vec![vec![PutLater(0, 2)], vec![Get(0), Get(0)]]),
        ("a reader meets a removal", begun.clone(), vec![vec![RemoveLater(0)], vec![Get(0), Get(0)]]),
        ("a reader meets a dropped ticket", begun.clone(), vec![vec![PutDropped(0, 2)], vec![Get(0), Get(0)]]),
        ("a writer meets an update", begun.clone(), vec![vec![PutLater(0, 2)], vec![Put(0, 3), Get(0)]]),
        ("a removal meets an update", begun.clone(), vec![vec![PutLater(0, 2)], vec![Remove(0), PutNew(0, 4)]]),
        ("an insert meets a removal", begun.clone(), vec![vec![RemoveLater(0)], vec![PutNew(0, 3), Get(0)]]),
        ("a refusal meets an insert", begun.clone(), vec![vec![PutLater(1, 2)], vec![PutNew(1, 3), Get(1)]]),
        ("a transaction meets an update", begun.clone(), vec![vec![PutLater(0, 2)], vec![Both(0, 1, 3)]]),
        ("two tickets", begun.clone(), vec![vec![PutLater(0, 2), Get(0)], vec![PutLater(0, 3), Get(0)]]),
        ("two tickets, a removal", begun.clone(), vec![vec![RemoveLater(0), Get(0)], vec![PutLater(0, 3), Get(0)]]),
        ("a read with a ticket", begun.clone(), vec![vec![PutLater(0, 2)], vec![GetLater(0), Get(0)]]),
        ("a refusal with a ticket", begun, vec![vec![RemoveLater(0)], vec![RemoveLater(0), Get(0)]]),
    ]
}

#[test]
fn two_threads_with_two_preemptions_or_any_number() {
    let threads = Threads::new(Explorer::new());
    let threads = if deep() { threads } else { threads.preemptions(2) };
    for (name, subject, program) in programs(Plan::new()) {
        together(name, &threads, &subject, &program);
    }
}

#[test]
fn three_threads_with_preemptions() {
    use Together::*;
    let subject = concurrent::SetUnderTest::new(&[Put(0, 1)]);
    let threads = Threads::new(Explorer::new()).preemptions(if deep() { 2 } else { 1 });
    let programs = [
        ("writers and a reader", vec![vec![PutLater(0, 2)], vec![PutLater(0, 3)], vec![Get(0), Get(0)]]),
        ("a removal between", vec![vec![PutLater(0, 2)], vec![RemoveLater(0)], vec![Get(0), Put(1, 4)]]),
        ("two readers", vec![vec![PutLater(1, 2)], vec![Get(1)], vec![GetLater(1)]]),
    ];
    for (name, program) in programs {
        together(name, &threads, &subject, &program);
    }
}

/// The write-backs and fences of readers and second writers are needed beside other threads, too.
#[test]
fn threads_need_every_write_back_and_fence() {
    let files = ["pset/src/later.rs", "pmem/src/unsettled.rs"].map(String::from).to_vec();
    let sites = Sites { files, ..Sites::in_files("") };
    let sweep = mutation_sweep(&sites, |plan| {
        let mut total = Report::default();
        for (_, subject, program) in programs(plan) {
            total.merge(Threads::new(Explorer::new()).preemptions(1).run(&subject, &program, &concurrent::after()));
            if total.failure.is_some() {
                break;
            }
        }
        total
    });
    println!("{}", sweep.assert_all_caught(&[]));
}
