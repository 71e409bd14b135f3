//! Maps of byte strings: every crash state of records that are written, replaced and removed, in one unit or in parts; what is left of
//! them by the death of a process; and the mutation of every write-back and fence.

use durix_crashsim::{Explorer, Persistency, Report, Sites, mutation_sweeps};
use durix_logfree::{BlobBst, BlobHash, BlobList, BlobSkipList, BytesHash};
use durix_pmem::{Plan, SiteKind};

use crate::durable_links::{MODELS, Scenario, killed, other, run_all};
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{Map, Sim, UnderTest};
use durix_subjects::explored::{complete, deep};

/// What follows a recovery: units are used again, records replaced and removed.
fn after() -> Vec<Act> {
    vec![Insert(1, 90), Remove(0), Insert(0, 91), Update(1, 92), Insert(5, 93), Remove(1), Get(0)]
}

/// Short runs that reach every site: one for each thing that can go wrong. Values of 0, 1, 2 and 3 modulo 4 have one line, three
/// lines, a part, and three parts.
fn scenarios<S: Map<Sim>>(plan: &'static Plan) -> Vec<Scenario<S>> {
    let plain = UnderTest::<S>::new(plan);
    let with = |before: &[Act]| UnderTest { before: before.to_vec(), ..plain.clone() };
    let used = UnderTest { used_before: true, chunks: S::chunks() + 4, ..plain.clone() };
    let filled = UnderTest { filled_before: true, ..plain.clone() };
    let pages = |values: u64| (10..10 + values).map(|k| Insert(k, k * 4)).collect::<Vec<_>>();
    let reopen = killed(Insert(9, 8), 1, false);
    let reopened = with(&[pages(6), vec![Insert(20, 3), reopen.clone()]].concat());
    // Free units of several pages when the table is trimmed.
    let sparse = [pages(12), vec![reopen.clone()], [10, 11, 13, 14, 16, 17, 19, 20].map(Remove).to_vec()].concat();
    let death = vec![killed(Update(1, 10), 1, false), Insert(2, 4), Update(1, 7), Remove(1), Insert(1, 8)];
    vec![
        ("I1 to I4, first records", plain.clone(), vec![Insert(0, 4), Insert(1, 7)], 1),
        ("I4, I6, updates", with(&[Insert(0, 4)]), vec![Update(0, 6), Cas(0, 6, 8), Cas(0, 6, 5), Remove(0)], 1),
        ("I1, used space", used, vec![Insert(0, 4), Insert(1, 6)], 1),
        ("I1, filled space", filled, vec![Insert(0, 4), Insert(1, 6)], 1),
        ("I5, pages of a session before", reopened, vec![Remove(10), Insert(0, 4), Update(20, 8)], 1),
        (
            "I5, of another session",
            with(&[Insert(0, 4), Insert(1, 7)]),
            vec![other(Remove(1)), other(Update(0, 8)), Insert(2, 4)],
            1,
        ),
        ("I6, reuse", with(&[Insert(0, 4), Insert(1, 8)]), vec![Remove(0), Remove(1), Insert(2, 12), Insert(3, 16)], 1),
        ("I7, trimming", with(&sparse), vec![Remove(21), Insert(0, 4), Insert(1, 7), other(Insert(2, 8))], 1),
        ("I4, parts", with(&[Insert(0, 4)]), vec![Insert(1, 7), Remove(1)], 2),
        ("I9, process death", with(&[Insert(0, 4), Insert(1, 6)]), death, 1),
    ]
}

fn run<S: Map<Sim>>(explorer: &Explorer, plan: &'static Plan) -> Report {
    run_all(explorer, scenarios::<S>(plan), &after())
}

/// Not complete where a run leaves more states than are explored; how much was, is printed.
fn sampled() -> Explorer {
    Explorer::new().executions_per_point(if deep() { 20_000 } else { 100 }).samples(if deep() { 2000 } else { 30 })
}

#[test]
fn scenarios_with_records() {
    for model in MODELS {
        let explorer = sampled().model(model);
        println!("hash table, {model}: {}", run::<BlobHash<Sim>>(&explorer, Plan::new()).assert_ok());
    }
    println!("search tree: {}", run::<BlobBst<Sim>>(&sampled(), Plan::new()).assert_ok());
    if deep() {
        println!("list: {}", run::<BlobList<Sim>>(&sampled(), Plan::new()).assert_ok());
        println!("skip list: {}", run::<BlobSkipList<Sim>>(&sampled(), Plan::new()).assert_ok());
        println!("byte keys: {}", run::<BytesHash<Sim>>(&sampled(), Plan::new()).assert_ok());
    }
}

fn sequences<S: Map<Sim>>(model: Persistency, before: &[Act], alphabet: &[Act], len: usize, crashes: usize) {
    let explorer = Explorer::new().model(model).crashes(crashes);
    let subject = UnderTest::<S> { before: before.to_vec(), ..UnderTest::new(Plan::new()) };
    let report = explorer.sequences(&subject.boxed(), alphabet, len, &after());
    complete(&format!("{}, {model}", std::any::type_name::<S>()), report);
}

/// What is the same for all maps is explored over the hash table; over the others each operation at least. With `DURIX_DEEP` set, all
/// sequences of 3 over each.
#[test]
fn all_short_sequences_with_records() {
    let alphabet = [Insert(0, 4), Insert(1, 6), Remove(0), Update(0, 6), Cas(0, 4, 8)];
    let (there, len) = ([Insert(0, 4)], if deep() { 3 } else { 2 });
    for model in MODELS {
        sequences::<BlobHash<Sim>>(model, &[], &alphabet[..4], len, 1);
    }
    sequences::<BytesHash<Sim>>(Persistency::Pcso, &there, &alphabet[1..4], len, 1);
    sequences::<BlobBst<Sim>>(Persistency::Pcso, &there, &alphabet[1..4], len, 1);
    let len = if deep() { 3 } else { 1 };
    sequences::<BlobList<Sim>>(Persistency::Pcso, &there, &alphabet[1..], len, 1);
    sequences::<BlobSkipList<Sim>>(Persistency::Pcso, &there, &alphabet[1..], len, 1);
}

#[test]
fn crashes_in_the_recovery_of_records_change_nothing() {
    sequences::<BlobHash<Sim>>(Persistency::Pcso, &[], &[Insert(0, 4), Update(0, 6)], 2, 2);
}

#[test]
fn every_write_back_and_fence_of_records_is_needed() {
    let quick = Explorer::new().executions_per_point(200).samples(60);
    let sites = ["crates/logfree/src/pages/units/", "crates/logfree/src/records/record.rs"]
        .map(|files| Sites { kinds: vec![SiteKind::WriteBack, SiteKind::Fence], ..Sites::in_files(files) });
    let mut mutants = 0;
    for sweep in mutation_sweeps(&sites, |plan| run::<BlobHash<Sim>>(&quick, plan)) {
        mutants += sweep.mutants.len();
        println!("{}", sweep.assert_all_caught(&[]));
    }
    // The write-back of a unit's bitmap is that of all bitmaps, in `pages/recover.rs`.
    assert!(mutants >= 8, "sites of records are not reached: {mutants}");
}

/// It gave up the units that it had while it made room for the page of the last, for ever.
#[test]
fn the_parts_of_a_value_find_room_where_the_table_of_active_pages_is_full() {
    let acts = [Insert(0, 4), Insert(1, 5)];
    let follows = [Insert(1, 90), Remove(0), Insert(0, 91)];
    let report = Explorer::new().run_then(&UnderTest::<BytesHash<Sim>>::new(Plan::new()).boxed(), &acts, &follows);
    complete("parts", report);
}
