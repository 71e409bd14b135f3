//! Every crash state of short sequences of operations on the maps with volatile links, and what it rests on: the order of
//! stores within a line. With `DURIX_DEEP` set, sequences are longer and samples more.

use durix_crashsim::{Explorer, Persistency, Report, Sites, mutation_sweep};
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{Map, Sim, UnderTest};
use durix_logfree::{SoftHash, SoftList, SoftSkipList};
use durix_pmem::{Plan, Site, SiteKind};
use durix_subjects::explored::{complete, deep};
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};

fn after() -> Vec<Act> {
    vec![Insert(1, 90), Remove(0), Insert(0, 91), Update(1, 92), Insert(5, 93), Remove(1), Insert(6, 94), Get(0)]
}

/// The scenario of a pool without room.
const FULL: &str = "the last line";

fn killed(act: Act, fence: u64, happens: bool) -> Act {
    Killed(Box::new(act), fence, happens)
}

fn scenarios<S: Map<Sim>>(plan: &'static Plan) -> Vec<(&'static str, UnderTest<S>, Vec<Act>, usize)> {
    let plain = UnderTest::<S> { chunks: 3, ..UnderTest::new(plan) };
    let used = UnderTest { used_before: true, ..plain.clone() };
    let full = UnderTest { before: (10..66).map(|k| Insert(k, k)).collect(), ..plain.clone() };
    let reuse = vec![Insert(0, 1), Remove(0), Insert(1, 2), Remove(1), Insert(2, 3), Remove(2), Insert(3, 4)];
    let updates = vec![Insert(0, 1), Update(0, 2), Cas(0, 2, 3), Cas(0, 9, 4), Update(0, 5), Remove(0), Insert(0, 6)];
    let session = vec![Insert(0, 1), Other(Box::new(Insert(1, 2))), Other(Box::new(Remove(0))), Remove(1)];
    // What a dead process has left visible must be durable before others build on it.
    let removed = vec![Insert(0, 1), Insert(1, 2), killed(Remove(0), 1, true), Insert(2, 3), Insert(0, 4)];
    let updated = vec![Insert(0, 1), killed(Update(0, 2), 1, true), Update(0, 3), Get(0)];
    // One line is free, and rests for nobody.
    let last_line = UnderTest { before: (100..163).map(|k| Insert(k, k)).collect(), chunks: 1, ..plain.clone() };
    let at_once = vec![Insert(0, 1), Remove(0), Insert(1, 2), Update(1, 3), Remove(1), Insert(2, 3)];
    let warm = UnderTest { before: vec![Insert(9, 9)], ..plain.clone() };
    vec![
        ("reuse", plain.clone(), reuse, 1),
        (FULL, last_line, at_once, 1),
        ("updates", plain.clone(), updates, 1),
        ("creation", plain.clone(), vec![Aside, Insert(0, 1)], 2),
        ("used space", used, vec![Insert(0, 1), Insert(1, 2), Remove(0)], 1),
        ("a second extent", full, vec![Insert(0, 1), Remove(10), Insert(1, 2)], 1),
        ("two sessions", plain.clone(), session, 1),
        ("process death in a remove", warm.clone(), removed, 1),
        ("process death in an update", warm, updated, 1),
    ]
}

fn run<S: Map<Sim>>(explorer: &Explorer, plan: &'static Plan) -> Report {
    let mut total = Report::default();
    for (name, subject, acts, crashes) in scenarios::<S>(plan) {
        let after = if name == FULL { vec![Remove(100), Insert(50, 1), Get(2)] } else { after() };
        let report = explorer.clone().crashes(crashes).run_then(&subject.boxed(), &acts, &after);
        if let Some(failure) = &report.failure {
            println!("{name}: {}", failure.cause);
        }
        total.merge(report);
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn scenarios_pass_completely() {
    complete("hash", run::<SoftHash<Sim>>(&Explorer::new(), Plan::new()));
    complete("list", run::<SoftList<Sim>>(&Explorer::new(), Plan::new()));
    complete("skip list", run::<SoftSkipList<Sim>>(&Explorer::new(), Plan::new()));
}

/// All but one: that an extent is durable before it is used (LF-M2) matters only where a second session uses it, before the
/// first has fenced for its own sake. `threads.rs` catches it.
fn every_site_is_needed<S: Map<Sim>>(least: usize) {
    let quick = Explorer::new().executions_per_point(200).samples(60);
    let sweep = mutation_sweep(&Sites::in_files("src/soft/"), |plan| run::<S>(&quick, plan));
    println!("{sweep}");
    let missed: Vec<_> = sweep.missed().map(|m| m.site).collect();
    let is_m2 = |site: &Site| site.kind == SiteKind::Fence && site.file.ends_with("src/soft/store.rs");
    assert!(sweep.mutants.len() >= least && missed.len() <= 1 && missed.iter().all(is_m2), "{missed:?}");
}

#[test]
fn every_write_back_and_fence_is_needed() {
    every_site_is_needed::<SoftHash<Sim>>(10);
    every_site_is_needed::<SoftList<Sim>>(10);
    every_site_is_needed::<SoftSkipList<Sim>>(10);
}

/// The release stores that the persist order rests on: of the state, when a member is made and when it gets a value.
#[test]
fn every_release_store_of_a_state_is_needed() {
    let mut sites = Sites::in_files("src/soft/store.rs");
    sites.kinds = vec![SiteKind::Release];
    let sweep = mutation_sweep(&sites, |plan| {
        run::<SoftHash<Sim>>(&Explorer::new().executions_per_point(200).samples(60), plan)
    });
    println!("{sweep}");
    let missed: Vec<_> = sweep.missed().map(|m| m.site).collect();
    // The state of a line that is freed is the only word stored then: nothing comes before it.
    assert!(sweep.mutants.len() >= 3 && missed.len() <= 1, "{missed:?}");
}

#[test]
fn all_short_sequences() {
    let alphabet = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Cas(0, 1, 4)];
    let len = if deep() { 5 } else { 3 };
    let subject = UnderTest::<SoftHash<Sim>>::new(Plan::new()).boxed();
    complete("hash", Explorer::new().sequences(&subject, &alphabet, len, &after()));
    let subject = UnderTest::<SoftList<Sim>>::new(Plan::new()).boxed();
    complete("list", Explorer::new().sequences(&subject, &alphabet, len, &after()));
    let subject = UnderTest::<SoftSkipList<Sim>>::new(Plan::new()).boxed();
    complete("skip list", Explorer::new().sequences(&subject, &alphabet, len, &after()));
}

#[test]
fn crashes_in_recovery_change_nothing() {
    let alphabet = [Insert(0, 1), Remove(0), Update(0, 3)];
    let (explorer, after) = (Explorer::new().crashes(2), [Insert(1, 5), Remove(0)]);
    complete("hash", explorer.sequences(&UnderTest::<SoftHash<Sim>>::new(Plan::new()).boxed(), &alphabet, 2, &after));
    complete(
        "skip list",
        explorer.sequences(&UnderTest::<SoftSkipList<Sim>>::new(Plan::new()).boxed(), &alphabet, 2, &after),
    );
}

fn act() -> impl Strategy<Value = Act> {
    let (key, value) = (|| 0u64..8, || 1u64..100);
    prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Insert(k, v)),
        4 => key().prop_map(Remove),
        2 => (key(), value()).prop_map(|(k, v)| Update(k, v)),
        1 => (key(), value()).prop_map(|(k, v)| Other(Box::new(Insert(k, v)))),
    ]
}

#[test]
fn long_sequences_sampled() {
    let cases = if deep() { 2000 } else { 8 };
    let explorer = Explorer::new().executions_per_point(20).samples(10);
    let acts = (vec(act(), 5..25), vec(act(), 0..8));
    let report = explorer.check(&UnderTest::<SoftHash<Sim>>::new(Plan::new()).boxed(), cases, &acts);
    println!("hash: {}", report.assert_ok());
    let report = explorer.check(&UnderTest::<SoftList<Sim>>::new(Plan::new()).boxed(), cases, &acts);
    println!("list: {}", report.assert_ok());
    let report = explorer.check(&UnderTest::<SoftSkipList<Sim>>::new(Plan::new()).boxed(), cases, &acts);
    println!("skip list: {}", report.assert_ok());
}

/// The map rests on the order of stores within a line. Where lines can tear, a member can come back with the value, or the
/// key, that its line held before: this is the failure that docs/design/logfree.md names.
#[test]
fn torn_words_break_a_member() {
    let acts = [Insert(0, 1), Remove(0), Insert(1, 2)];
    let torn = Explorer::new().model(Persistency::TornWords);
    let subject = UnderTest::<SoftHash<Sim>>::new(Plan::new()).boxed();
    let failure = torn.run(&subject, &acts).failure.expect("a torn line goes unnoticed");
    println!("{failure}");
    complete("the same under PCSO", Explorer::new().run(&subject, &acts));
}
