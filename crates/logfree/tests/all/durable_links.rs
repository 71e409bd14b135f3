//! Every crash state of short sequences of operations on list and hash table, under PCSO and with torn words: updates, page
//! activation, trimming, reuse of nodes, process death, crashes in recovery, operations after it; and the mutation of every
//! write-back, fence and order site. With `DURIX_DEEP` set, sequences are longer and samples more.

use durix_crashsim::{Explorer, Persistency, Report, Sites, Threads, mutation_sweep};
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{
    Map, Sim, UnderTest, Window, behind_a_resolved_tower, behind_a_rising_tower, upper_levels,
};
use durix_logfree::{Bst, HashTable, List, SkipList};
use durix_pmem::{Plan, SiteKind};
use durix_subjects::explored::{complete, deep};
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};

pub(crate) fn after() -> Vec<Act> {
    vec![Insert(1, 90), Remove(0), Insert(0, 91), Update(1, 92), Insert(5, 93), Remove(1), Insert(6, 94), Get(0)]
}

pub(crate) fn other(act: Act) -> Act {
    Other(Box::new(act))
}

pub(crate) fn killed(act: Act, fence: u64, happens: bool) -> Act {
    Killed(Box::new(act), fence, happens)
}

fn inserts(keys: std::ops::Range<u64>) -> Vec<Act> {
    keys.map(|k| Insert(k, k + 100)).collect()
}

/// Short runs that reach every site: one for each thing that can go wrong.
pub(crate) fn scenarios<S: Map<Sim>>(plan: &'static Plan) -> Vec<Scenario<S>> {
    let plain = UnderTest::<S>::new(plan);
    let used = UnderTest { used_before: true, ..plain.clone() };
    // Four pages are active, all nodes in use: the next allocation trims.
    let full_table = UnderTest { before: inserts(10..22), ..plain.clone() };
    // Nodes of several pages go: the table is trimmed with free nodes in it, whose bits are cleared.
    let reopen = killed(Insert(9, 9), 1, false);
    let removes = [10, 11, 13, 14, 16, 17, 19, 20].map(Remove);
    let sparse = UnderTest { before: [inserts(10..25), vec![reopen], removes.to_vec()].concat(), ..plain.clone() };
    // Kept from the last session: pages that are in nobody's table.
    let reopened =
        UnderTest { before: [inserts(10..16), vec![killed(Insert(9, 9), 1, false)]].concat(), ..plain.clone() };
    let one_extent = UnderTest { before: inserts(10..57), ..plain.clone() };
    let warm = UnderTest { before: vec![Insert(30, 1)], ..plain.clone() };
    let [insert, remove, update] = S::last_fences();
    let death = vec![
        killed(Insert(1, 10), insert, true),
        killed(Remove(1), remove, true),
        Insert(2, 20),
        killed(Update(2, 21), update, true),
        Insert(3, 30),
    ];
    // A bypass is visible, and was not written back when the process died: its node must not be used again before.
    let bypassed =
        vec![Insert(1, 10), Insert(2, 20), Remove(1), killed(Insert(3, 30), 1, false), Insert(4, 40), Remove(2)];
    let bypassed_last = vec![Insert(1, 10), Insert(2, 20), Remove(2), killed(Insert(3, 30), 1, false), Insert(0, 40)];
    // The bypass of a node in an inactive page waits for its generation: it is visible, and not written back.
    let inactive = |key| vec![Remove(key), killed(Insert(3, 30), 1, false), Insert(4, 40), Remove(12)];
    // The link past a node is what makes its removal durable, and its mark does not outlive the process.
    let removal = |key| vec![Insert(1, 10), Insert(2, 20), killed(Remove(key), 1, true), Insert(0, 40), Insert(5, 50)];
    vec![
        ("first operations", plain.clone(), vec![Insert(0, 1), Remove(0), Insert(1, 2), Update(1, 3)], 2),
        ("creation", plain.clone(), vec![Aside, Insert(0, 1)], 1),
        ("reuse", plain.clone(), vec![Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Insert(2, 3), Insert(3, 4)], 1),
        ("updates", plain.clone(), vec![Insert(0, 1), Update(0, 2), Cas(0, 2, 3), Cas(0, 2, 4), Remove(0)], 1),
        ("used space", used, vec![Insert(0, 1), Insert(1, 2), Remove(0)], 1),
        ("trimming", full_table, vec![Insert(0, 1), Remove(10), Insert(1, 2), Remove(11), Remove(16), Insert(2, 3)], 1),
        ("trimming free nodes", sparse, vec![Remove(22), Insert(0, 1), Insert(1, 2), other(Insert(2, 2))], 1),
        ("second session", plain.clone(), vec![Insert(0, 1), other(Insert(1, 2)), other(Remove(0)), Remove(1)], 1),
        ("process death after a bypass in an inactive page", reopened.clone(), inactive(10), 1),
        ("process death after a bypass of the last in an inactive page", reopened.clone(), inactive(15), 1),
        ("process death at a removal", plain.clone(), removal(1), 1),
        ("process death at the removal of the last", plain.clone(), removal(2), 1),
        ("unlink in an inactive page", reopened, vec![Remove(10), Remove(13), Insert(0, 1), Insert(1, 2)], 1),
        ("a second extent", one_extent, vec![Insert(0, 1), Insert(1, 2)], 1),
        ("process death", warm, death, 1),
        ("process death after a bypass", plain.clone(), bypassed, 1),
        ("process death after a bypass of the last", plain, bypassed_last, 1),
    ]
}

/// A name, the map, what is done, and how often it is crashed at most.
pub(crate) type Scenario<S> = (&'static str, UnderTest<S>, Vec<Act>, usize);

/// Runs scenarios up to the first that fails, and says which it was.
pub(crate) fn run_all<S: Map<Sim>>(explorer: &Explorer, scenarios: Vec<Scenario<S>>, after: &[Act]) -> Report {
    let mut total = Report::default();
    for (name, subject, acts, crashes) in scenarios {
        let report = explorer.clone().crashes(crashes).run_then(&subject.boxed(), &acts, after);
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

fn run<S: Map<Sim>>(explorer: &Explorer, plan: &'static Plan) -> Report {
    run_all(explorer, scenarios::<S>(plan), &after())
}

pub(crate) const MODELS: [Persistency; 2] = [Persistency::Pcso, Persistency::TornWords];

#[test]
fn scenarios_pass_completely() {
    for model in MODELS {
        let explorer = Explorer::new().model(model);
        complete(&format!("list, {model}"), run::<List<Sim>>(&explorer, Plan::new()));
        complete(&format!("hash table, {model}"), run::<HashTable<Sim>>(&explorer, Plan::new()));
        let report = run::<SkipList<Sim>>(&explorer, Plan::new()).assert_ok();
        println!("skip list, {model}: {report}");
        // Where words tear, the upper levels of one scenario leave more states than are explored: those are sampled.
        assert!(report.complete || model == Persistency::TornWords, "skip list, {model} is not complete");
        complete(&format!("search tree, {model}"), run::<Bst<Sim>>(&explorer, Plan::new()));
    }
}

/// For mutants, some of which leave many lines open that recovery reads.
pub(crate) fn quick() -> Explorer {
    Explorer::new().executions_per_point(200).samples(60)
}

/// LF-B4: thawed edges are durable before the table of active pages is emptied: where words tear, one edge of a branch may be
/// found frozen, and the other with its leaf. The page is full, and no search for another of its branches comes by the one
/// that is thawed: it would write it back.
#[test]
fn the_thawing_of_edges_is_durable() {
    let mut sites = Sites::in_files("crates/logfree/src/linked/bst/thaw.rs");
    sites.kinds = vec![SiteKind::WriteBack];
    let sweep = mutation_sweep(&sites, |plan| {
        let before = vec![Insert(1, 1), Insert(5, 2), Remove(5), Insert(7, 3)];
        let subject = UnderTest::<Bst<Sim>> { before, fence_after_recovery: true, ..UnderTest::new(plan) };
        let explorer = Explorer::new().model(Persistency::TornWords).crashes(2);
        explorer.run_then(&subject.boxed(), &[Remove(7)], &[Insert(6, 90)])
    });
    println!("{}", sweep.assert_all_caught(&[]));
}

/// LF-N8: a removal that splices nothing leaves the mark of its session. After the death of the process nothing but the reading of
/// that very branch makes it durable: the page is full, and no search for another of its branches comes by the edge.
#[test]
fn a_removal_in_a_search_tree_that_splices_nothing_outlives_the_process() {
    let before = vec![Insert(1, 1), Insert(5, 2), Insert(7, 3)];
    let subject = UnderTest::<Bst<Sim>> { before, ..UnderTest::new(Plan::new()) };
    for model in MODELS {
        let report = Explorer::new().model(model).run_then(&subject, &[killed(Remove(7), 1, true), Get(7)], &after());
        complete(&format!("removal, {model}"), report);
    }
}

/// As `run`, with the windows of the upper levels, and two threads there.
fn run_skip_list(plan: &'static Plan) -> Report {
    let mut total = run::<SkipList<Sim>>(&quick(), plan);
    for Window { filled, before, acts, after: follows, .. } in upper_levels() {
        let subject = UnderTest::<SkipList<Sim>> { filled_before: filled, before, ..UnderTest::new(plan) };
        if total.failure.is_none() {
            total.merge(match follows {
                None => quick().run_then(&subject.boxed(), &acts, &after()),
                Some(follows) => {
                    Explorer::new().crashes(2).crash_later(true).run_then(&subject.boxed(), &acts, &follows)
                }
            });
        }
    }
    let (before, program) = behind_a_rising_tower();
    let towers = behind_a_resolved_tower().map(|(_, before, program)| (before, program.to_vec()));
    for (before, program) in towers.into_iter().chain([(before, program.to_vec())]) {
        let subject = UnderTest::<SkipList<Sim>> { before, ..UnderTest::new(plan) };
        if total.failure.is_none() {
            total.merge(Threads::new(quick()).preemptions(1).run(&subject.boxed(), &program, &[]));
        }
    }
    total
}

fn sweep(kinds: &[SiteKind], run: impl Fn(&'static Plan) -> Report) {
    let mut sites = Sites::in_files("crates/logfree/src/");
    sites.kinds = kinds.to_vec();
    let mut sweep = mutation_sweep(&sites, run);
    // That one takes torn words and two crashes, as above.
    sweep.mutants.retain(|mutant| mutant.caught() || !mutant.site.file.ends_with("bst/thaw.rs"));
    println!("{}", sweep.assert_all_caught(&[]));
}

#[test]
fn every_write_back_and_fence_of_the_list_is_needed() {
    sweep(&[SiteKind::WriteBack, SiteKind::Fence], |plan| run::<List<Sim>>(&quick(), plan));
}

#[test]
fn every_write_back_and_fence_of_the_hash_table_is_needed() {
    let mut sites = Sites::in_files("crates/logfree/src/");
    sites.kinds = vec![SiteKind::WriteBack, SiteKind::Fence];
    let mut sweep = mutation_sweep(&sites, |plan| run::<HashTable<Sim>>(&quick(), plan));
    // That is the business of growth.
    sweep.mutants.retain(|mutant| mutant.caught() || !mutant.site.file.contains("src/linked/hash/"));
    println!("{}", sweep.assert_all_caught(&[]));
}

#[test]
fn every_write_back_and_fence_of_growth_is_needed() {
    let mut sites = Sites::in_files("crates/logfree/src/linked/hash/");
    sites.kinds = vec![SiteKind::WriteBack, SiteKind::Fence];
    let sweep = mutation_sweep(&sites, |plan| crate::growth::run(&quick(), plan));
    assert!(sweep.mutants.len() >= 11, "sites of growth are not reached: {sweep}");
    println!("{}", sweep.assert_all_caught(&[]));
}

#[test]
fn every_write_back_and_fence_of_the_skip_list_is_needed() {
    sweep(&[SiteKind::WriteBack, SiteKind::Fence], run_skip_list);
}

#[test]
fn every_write_back_and_fence_of_the_search_tree_is_needed() {
    sweep(&[SiteKind::WriteBack, SiteKind::Fence], |plan| run::<Bst<Sim>>(&quick(), plan));
}

// ---- all short sequences ----

fn sequences<S: Map<Sim>>(name: &str, alphabet: &[Act], len: usize, crashes: usize, after: &[Act]) {
    for model in MODELS {
        let explorer = Explorer::new().model(model).crashes(crashes);
        let report = explorer.sequences(&UnderTest::<S>::new(Plan::new()).boxed(), alphabet, len, after);
        complete(&format!("{name}, {model}"), report);
    }
}

fn len() -> usize {
    if deep() { 5 } else { 3 }
}

#[test]
fn all_short_sequences_of_a_list() {
    let alphabet = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Cas(0, 1, 4)];
    sequences::<List<Sim>>("list", &alphabet, len(), 1, &after());
}

#[test]
fn all_short_sequences_of_a_hash_table() {
    let alphabet = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Get(0)];
    sequences::<HashTable<Sim>>("hash table", &alphabet, len(), 1, &after());
}

#[test]
fn all_short_sequences_of_a_skip_list() {
    let alphabet = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Cas(0, 1, 4)];
    sequences::<SkipList<Sim>>("skip list", &alphabet, len(), 1, &after());
}

#[test]
fn all_short_sequences_of_a_search_tree() {
    let alphabet = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Cas(0, 1, 4)];
    sequences::<Bst<Sim>>("search tree", &alphabet, len(), 1, &after());
}

#[test]
fn crashes_in_recovery_change_nothing() {
    let alphabet = [Insert(0, 1), Remove(0), Update(0, 3)];
    sequences::<List<Sim>>("list", &alphabet, 2, 2, &[Insert(1, 5), Remove(0)]);
    sequences::<HashTable<Sim>>("hash table", &alphabet, 2, 2, &[Insert(1, 5), Remove(0)]);
    sequences::<SkipList<Sim>>("skip list", &alphabet, 2, 2, &[Insert(1, 5), Remove(0)]);
    sequences::<Bst<Sim>>("search tree", &alphabet, 2, 2, &[Insert(1, 5), Remove(0)]);
}

// ---- long ones ----

fn act() -> impl Strategy<Value = Act> {
    let (key, value) = (|| 0u64..8, || 1u64..100);
    let one = move || {
        prop_oneof![
            4 => (key(), value()).prop_map(|(k, v)| Insert(k, v)),
            4 => key().prop_map(Remove),
            2 => (key(), value()).prop_map(|(k, v)| Update(k, v)),
            1 => key().prop_map(Get),
        ]
    };
    prop_oneof![5 => one(), 1 => one().prop_map(other)]
}

#[test]
fn long_sequences_sampled() {
    let cases = if deep() { 2000 } else { 6 };
    for model in MODELS {
        let explorer = Explorer::new().model(model).executions_per_point(20).samples(10);
        let generate = (vec(act(), 5..25), vec(act(), 0..8));
        let report = explorer.check(&UnderTest::<List<Sim>>::new(Plan::new()).boxed(), cases, &generate);
        println!("list, long sequences: {}", report.assert_ok());
        let report = explorer.check(&UnderTest::<HashTable<Sim>>::new(Plan::new()).boxed(), cases, &generate);
        println!("hash table, long sequences: {}", report.assert_ok());
        let report = explorer.check(&UnderTest::<SkipList<Sim>>::new(Plan::new()).boxed(), cases, &generate);
        println!("skip list, long sequences: {}", report.assert_ok());
        let report = explorer.check(&UnderTest::<Bst<Sim>>::new(Plan::new()).boxed(), cases, &generate);
        println!("search tree, long sequences: {}", report.assert_ok());
    }
}
