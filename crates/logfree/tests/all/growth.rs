//! Growth of the hash table: every crash state of growth before, in and after each operation, of two threads, of growth that
//! is crashed in recovery, and after the mere death of a process.

use durix_crashsim::{Contract, Explorer, Persistency, Report, Threads};
use durix_logfree::{HashTable, Options};
use durix_pmem::Plan;

use crate::durable_links::{MODELS, Scenario, killed, other, run_all};
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{Map, Sim, UnderTest};
use durix_subjects::explored::{complete, deep};

type Subject = UnderTest<HashTable<Sim>>;

/// One bucket at first. By quarters of the table, in its order: 0, 2 | 5, 3 | 31, 22 | 8, 24, 9, 12.
fn subject(plan: &'static Plan, before: &[Act]) -> Subject {
    let options = HashTable::<Sim>::small().buckets(1);
    UnderTest { before: before.to_vec(), options, chunks: 10, ..UnderTest::new(plan) }
}

fn put(k: u64) -> Act {
    Insert(k, k + 100)
}

/// What follows a recovery: both halves change, nodes are used again, the table grows further.
fn after() -> Vec<Act> {
    vec![put(12), Remove(22), Insert(22, 91), Remove(0), Insert(5, 93), Remove(12), Grow, Insert(0, 90), Get(22)]
}

/// Runs that reach every site of growth: what is there before, what is done, and how many crashes.
fn scenarios(plan: &'static Plan) -> Vec<Scenario<HashTable<Sim>>> {
    let some: Vec<Act> = [22, 3, 8].map(put).to_vec();
    let make = |before: &[Act]| subject(plan, before);
    let used = UnderTest { used_before: true, ..make(&some) };
    let filled = UnderTest { filled_before: true, ..make(&some) };
    // The process dies before the entry of the directory is durable, and before the cut or the new head is.
    let dead = |fence| vec![killed(Grow, fence, false), Remove(22), put(24), put(9), Remove(3), put(31)];
    let halves = [some.clone(), vec![Grow]].concat();
    vec![
        ("H2 to K6, empty", make(&[]), vec![Grow, put(0), put(22)], 1),
        ("H2 to K6", make(&some), vec![Grow, Remove(22), put(0)], 2),
        ("H1 used space", UnderTest { used_before: true, ..make(&[]) }, vec![put(0), put(22), Remove(0)], 1),
        ("H2 used space", used, vec![Grow, put(0)], 1),
        ("H2 filled space", filled, vec![Grow, put(0)], 1),
        ("a second time", make(&halves), vec![Grow, Remove(8), put(9)], 1),
        ("two cuts together", make(&halves), vec![put(0), Grow, put(2), put(9)], 1),
        ("by another session", make(&some), vec![other(Grow), Remove(3), other(put(2)), Remove(22)], 1),
        ("H3 process death", make(&some), dead(2), 1),
        ("H4, H7 process death", make(&some), dead(3), 1),
        ("K5 process death", make(&some), dead(4), 1),
        ("K6 process death", make(&some), dead(5), 1),
    ]
}

pub(crate) fn run(explorer: &Explorer, plan: &'static Plan) -> Report {
    run_all(explorer, scenarios(plan), &after())
}

#[test]
fn growth_passes_completely() {
    for model in MODELS {
        complete(&format!("growth, {model}"), run(&Explorer::new().model(model), Plan::new()));
    }
}

#[test]
fn growth_between_all_short_sequences() {
    let alphabet = [Insert(0, 1), Insert(22, 2), Remove(0), Remove(22), Update(22, 3), Grow];
    let len = if deep() { 4 } else { 3 };
    for before in [vec![], vec![put(3), put(22)]] {
        for model in MODELS {
            let explorer = Explorer::new().model(model);
            let report = explorer.sequences(&subject(Plan::new(), &before).boxed(), &alphabet, len, &after());
            complete(&format!("growth in sequences, {model}"), report);
        }
    }
}

#[test]
fn growth_that_crashes_again_in_recovery_and_behind_it() {
    let acts = [Grow, put(0)];
    let befores = [vec![put(22), put(3)], vec![put(22), put(3), Grow, put(8)]];
    for before in befores.into_iter().take(if deep() { 2 } else { 1 }) {
        let explorer = Explorer::new().crashes(2).crash_later(true);
        let follows = if deep() { vec![Remove(22), put(9), Grow] } else { vec![Remove(22), put(9)] };
        let report = explorer.run_then(&subject(Plan::new(), &before).boxed(), &acts, &follows);
        complete("growth, two crashes", report);
    }
}

/// Growth in one thread, and an operation on either half in another.
fn programs() -> Vec<(&'static str, Vec<Vec<Act>>)> {
    vec![
        ("insert, first half", vec![vec![Grow], vec![put(0)]]),
        ("insert, second half", vec![vec![Grow], vec![put(9)]]),
        ("insert before the cut", vec![vec![Grow], vec![put(2)]]),
        ("remove before the cut", vec![vec![Grow], vec![Remove(3)]]),
        ("remove behind the cut", vec![vec![Grow], vec![Remove(22)]]),
        ("update before the cut", vec![vec![Grow], vec![Update(3, 7)]]),
        ("update behind the cut", vec![vec![Grow], vec![Update(22, 7)]]),
        ("get", vec![vec![Grow], vec![Get(22), Get(3)]]),
        ("failed insert and remove", vec![vec![Grow], vec![Insert(22, 7), Remove(0)]]),
        ("two at once", vec![vec![Grow], vec![Grow]]),
        ("all", vec![vec![Grow], vec![Count]]),
    ]
}

fn threads(preemptions: u32) -> Threads {
    Threads::new(Explorer::new()).preemptions(preemptions)
}

#[test]
fn growth_and_another_thread() {
    for (name, program) in programs() {
        // A walk over all is not atomic, so nobody else changes anything.
        let subject = subject(Plan::new(), &[put(22), put(3)]);
        let report =
            threads(if deep() { 2 } else { 1 }).run(&subject.boxed(), &program, &[put(12), Remove(22), Get(3)]);
        let report = report.assert_ok();
        println!("growth, {name}: {report}");
        assert!(report.complete, "{name} is not complete");
    }
}

#[test]
fn growth_of_an_empty_table_and_another_thread() {
    for program in [vec![vec![Grow], vec![put(22)]], vec![vec![Grow], vec![put(0)]]] {
        let report =
            threads(if deep() { 2 } else { 1 }).run(&subject(Plan::new(), &[]).boxed(), &program, &[put(12), Get(22)]);
        println!("growth, empty: {}", report.assert_ok());
    }
}

#[test]
fn growth_and_two_other_threads() {
    let program = [vec![Grow], vec![Remove(22)], vec![Insert(9, 7)]];
    let report = threads(1).run(&subject(Plan::new(), &[put(22), put(3)]).boxed(), &program, &[Get(3)]).assert_ok();
    println!("growth, three threads: {report}");
}

#[test]
fn growth_with_a_link_cache() {
    use durix_logfree::LinkCacheMode::{Buffered, Durable};
    for (mode, model) in
        [(Durable, Persistency::Pcso), (Durable, Persistency::TornWords), (Buffered, Persistency::Pcso)]
    {
        let options: Options = HashTable::<Sim>::small().buckets(1).link_cache(mode, 1);
        let contract = if mode == Buffered { Contract::Buffered } else { Contract::Strict };
        let explorer = Explorer::new().model(model).contract(contract);
        let subject = UnderTest { options, ..subject(Plan::new(), &[put(22), put(3), Sync]) }.boxed();
        for acts in [vec![Grow, put(0), Remove(22)], vec![put(9), Grow, Remove(9)], vec![Remove(3), Grow, put(2), Sync]]
        {
            complete(&format!("growth with a link cache, {model}"), explorer.run_then(&subject, &acts, &after()));
        }
    }
}
