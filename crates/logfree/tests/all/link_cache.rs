//! Every crash state of lists and hash tables with a link cache, in both modes: short sequences, threads, reuse of nodes,
//! trimming, process death; and the mutation of every write-back and fence.

use crate::durable_links::{Scenario, after, killed, quick, run_all, scenarios};
use durix_crashsim::{Contract, Explorer, Persistency, Report, Sites, Threads, mutation_sweep};
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{Map, Sim, UnderTest, small};
use durix_logfree::{HashTable, LinkCacheMode, List, Options};
use durix_pmem::Plan;
use durix_subjects::explored::{complete, deep};

const MODELS: [Persistency; 2] = [Persistency::Pcso, Persistency::TornWords];

/// One bucket, so that keys meet in it and it is full soon.
fn options(mode: LinkCacheMode) -> Options {
    small().link_cache(mode, 1)
}

fn durable(model: Persistency) -> Explorer {
    Explorer::new().model(model)
}

fn buffered(model: Persistency) -> Explorer {
    Explorer::new().model(model).contract(Contract::Buffered)
}

fn subject<S: Map<Sim, Options = Options>>(plan: &'static Plan, mode: LinkCacheMode) -> UnderTest<S> {
    UnderTest { options: options(mode), ..UnderTest::new(plan) }
}

/// What is tried without a link cache, with one.
fn durable_scenarios<S: Map<Sim, Options = Options>>(plan: &'static Plan) -> Vec<Scenario<S>> {
    let mut scenarios = scenarios::<S>(plan);
    for (_, subject, ..) in &mut scenarios {
        subject.options = options(LinkCacheMode::Durable);
    }
    scenarios
}

fn fill(keys: std::ops::Range<u64>) -> Vec<Act> {
    keys.map(|key| Insert(key, key + 100)).chain([Sync]).collect()
}

/// Runs that leave links in the cache when something happens that has to reckon with them.
fn buffered_scenarios<S: Map<Sim, Options = Options>>(plan: &'static Plan) -> Vec<Scenario<S>> {
    let plain = subject::<S>(plan, LinkCacheMode::Buffered);
    let with = |before: Vec<Act>| UnderTest { before, ..plain.clone() };
    let reopen = killed(Insert(9, 9), 1, false);
    vec![
        ("first operations", plain.clone(), vec![Insert(0, 1), Insert(1, 2), Remove(0), Sync, Update(1, 3)], 2),
        ("sync", plain.clone(), vec![Insert(0, 1), Sync, Update(0, 2), Sync, Remove(0), Sync], 1),
        ("a full bucket", plain.clone(), [fill(0..9), vec![Remove(3), Sync]].concat(), 1),
        // Nodes are used again, whose links, or links to which, lay in the cache.
        ("reuse", plain.clone(), vec![Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Insert(2, 3), Insert(3, 4)], 1),
        // The link to 4 is in the cache, behind it 6 and 8 go, and their nodes are used again at once: a durable link of 2 must
        // not lead to 6 then. (Inserts at the head have no predecessor, whose scan would flush.)
        (
            "reuse behind an insert",
            with(vec![Insert(2, 1), Insert(6, 1), Insert(8, 1), Sync]),
            vec![Insert(4, 2), Remove(6), Remove(8), Insert(1, 3), Insert(0, 4)],
            1,
        ),
        // The third page leaves the table with the 13th insert, while the links to its nodes are in the cache.
        (
            "trimming behind inserts",
            with([(30..36).rev().map(|key| Insert(key, 1)).collect(), vec![Sync]].concat()),
            (20..27).rev().map(|key| Insert(key, 2)).collect(),
            1,
        ),
        ("trimming", with(fill(10..22)), vec![Insert(0, 1), Remove(10), Insert(1, 2), Remove(16), Insert(2, 3)], 1),
        (
            "trimming free nodes",
            with([fill(10..25), vec![reopen.clone()], [10, 11, 13, 14, 16, 17].map(Remove).to_vec()].concat()),
            vec![Remove(22), Insert(0, 1), Insert(1, 2), Sync],
            1,
        ),
        (
            "unlink in an inactive page",
            with([fill(10..16), vec![reopen]].concat()),
            vec![Remove(10), Remove(13), Insert(0, 1), Sync],
            1,
        ),
        (
            "process death",
            plain.clone(),
            vec![
                Insert(1, 10),
                Insert(2, 20),
                Remove(1),
                Update(2, 21),
                killed(Insert(3, 30), 1, false),
                Insert(4, 40),
            ],
            1,
        ),
        (
            "what was asked for is durable",
            with(fill(1..3)),
            vec![Insert(0, 1), Settling(Box::new(Get(0))), Settling(Box::new(Insert(0, 2)))],
            1,
        ),
        ("what was removed, too", with(fill(1..3)), vec![Remove(1), Settling(Box::new(Remove(1)))], 1),
        (
            "what was changed, too",
            with(fill(1..3)),
            vec![Update(1, 7), Settling(Box::new(Cas(1, 0, 8))), Remove(1), Settling(Box::new(Get(1)))],
            1,
        ),
    ]
}

#[test]
fn scenarios_with_a_link_cache_pass_completely() {
    for model in MODELS {
        let plan = Plan::new;
        complete("durable, list", run_all(&durable(model), durable_scenarios::<List<Sim>>(plan()), &after()));
        complete(
            "durable, hash table",
            run_all(&durable(model), durable_scenarios::<HashTable<Sim>>(plan()), &after()),
        );
        complete("buffered, list", run_all(&buffered(model), buffered_scenarios::<List<Sim>>(plan()), &after()));
        complete(
            "buffered, hash table",
            run_all(&buffered(model), buffered_scenarios::<HashTable<Sim>>(plan()), &after()),
        );
    }
}

#[test]
fn all_short_sequences_with_a_link_cache() {
    let updates = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Get(0)];
    let with_sync = [Insert(0, 1), Insert(1, 2), Remove(0), Remove(1), Update(0, 3), Sync];
    // Of a single key whatever was asked for is durable.
    let one_key = [Insert(0, 1), Remove(0), Update(0, 3), Settling(Box::new(Get(0))), Sync];
    let len = if deep() { 5 } else { 3 };
    for model in MODELS {
        for (explorer, mode, alphabet) in [
            (durable(model), LinkCacheMode::Durable, &updates[..]),
            (buffered(model), LinkCacheMode::Buffered, &with_sync),
            (buffered(model), LinkCacheMode::Buffered, &one_key),
        ] {
            let list = subject::<List<Sim>>(Plan::new(), mode).boxed();
            complete(&format!("list, {mode:?}"), explorer.sequences(&list, alphabet, len, &after()));
            let table = subject::<HashTable<Sim>>(Plan::new(), mode).boxed();
            complete(&format!("hash table, {mode:?}"), explorer.sequences(&table, alphabet, len, &after()));
        }
    }
}

/// The cache is what makes it so: without the sync something is lost.
#[test]
fn a_buffered_list_is_not_strict() {
    let list = subject::<List<Sim>>(Plan::new(), LinkCacheMode::Buffered);
    let report = durable(Persistency::Pcso).run_then(&list.boxed(), &[Insert(0, 1)], &[]);
    assert!(report.failure.is_some(), "an insert that has returned is never lost: {report}");
}

/// Different keys may be of different moments: that is why the contract is one of each key.
#[test]
fn a_buffered_list_keeps_each_key_by_itself_only() {
    let plain = subject::<List<Sim>>(Plan::new(), LinkCacheMode::Buffered);
    let list = UnderTest { before: vec![Insert(5, 50), Sync], ..plain };
    let states = buffered(Persistency::Pcso).outcomes(&list.boxed(), &[Insert(7, 1), Insert(0, 2)]);
    assert!(states.contains("{0: 2, 5: 50}"), "the second without the first: {states:?}");
}

// ---- threads ----

const BEFORE: [Act; 3] = [Insert(1, 10), Insert(5, 50), Sync];

fn threaded<S: Map<Sim, Options = Options>>(explorer: Explorer, mode: LinkCacheMode, programs: Vec<Vec<Vec<Act>>>) {
    let threads = Threads::new(explorer).preemptions(if deep() { 2 } else { 1 });
    for program in programs {
        let subject = UnderTest { before: BEFORE.to_vec(), ..subject::<S>(Plan::new(), mode) };
        complete(&format!("{mode:?}, {program:?}"), threads.run(&subject.boxed(), &program, &after()));
    }
}

/// A change in one thread, and what another may learn of it.
fn pairs() -> Vec<Vec<Vec<Act>>> {
    let pair = |a: Act, b: Act| vec![vec![a], vec![b]];
    vec![
        pair(Insert(0, 5), Get(0)),
        pair(Insert(0, 5), Insert(0, 6)),
        pair(Remove(1), Get(1)),
        pair(Remove(1), Remove(1)),
        pair(Remove(1), Insert(1, 7)),
        pair(Update(1, 5), Get(1)),
        pair(Update(1, 5), Cas(1, 10, 6)),
        pair(Update(1, 5), Remove(1)),
        pair(Insert(2, 5), Insert(4, 6)),
        pair(Remove(1), Insert(3, 6)),
        pair(Insert(0, 5), Count),
        pair(Remove(1), Count),
        vec![vec![Insert(2, 5), Get(1)], vec![Remove(1), Get(2)]],
    ]
}

/// In the buffered mode, what the second thread has learned of the key it asks for.
fn learners() -> Vec<Vec<Vec<Act>>> {
    let learn = |a: Act, b: Act| vec![vec![a], vec![Settling(Box::new(b))]];
    vec![
        learn(Insert(0, 5), Get(0)),
        learn(Remove(1), Get(1)),
        learn(Update(1, 5), Get(1)),
        vec![vec![Insert(0, 5), Sync], vec![Remove(1), Sync]],
        vec![vec![Insert(0, 5), Update(0, 6)], vec![Insert(2, 7), Sync]],
    ]
}

#[test]
fn threads_with_a_link_cache_return_nothing_that_a_crash_can_take_back() {
    let pcso = Persistency::Pcso;
    threaded::<List<Sim>>(durable(pcso), LinkCacheMode::Durable, pairs());
    threaded::<HashTable<Sim>>(durable(pcso), LinkCacheMode::Durable, pairs());
}

#[test]
fn threads_with_a_buffered_link_cache_keep_what_was_synced_or_asked_for() {
    let pcso = Persistency::Pcso;
    threaded::<List<Sim>>(buffered(pcso), LinkCacheMode::Buffered, learners());
    threaded::<HashTable<Sim>>(buffered(pcso), LinkCacheMode::Buffered, learners());
}

// ---- mutation ----

/// Both modes, in crashes of one thread and of two.
fn both_modes<S: Map<Sim, Options = Options>>(plan: &'static Plan) -> Report {
    let mut total = run_all(&quick(), durable_scenarios::<S>(plan), &after());
    let buffered = quick().contract(Contract::Buffered);
    for (explorer, mode, programs) in
        [(quick(), LinkCacheMode::Durable, pairs()), (buffered.clone(), LinkCacheMode::Buffered, learners())]
    {
        let threads = Threads::new(explorer).preemptions(1);
        for program in programs {
            if total.failure.is_some() {
                return total;
            }
            let subject = UnderTest { before: BEFORE.to_vec(), ..subject::<S>(plan, mode) };
            total.merge(threads.run(&subject.boxed(), &program, &after()));
        }
    }
    if total.failure.is_none() {
        total.merge(run_all(&buffered, buffered_scenarios::<S>(plan), &after()));
    }
    total
}

fn sweep<S: Map<Sim, Options = Options>>() {
    let sites = Sites::in_files("crates/logfree/src/linked/link_cache/");
    let sweep = mutation_sweep(&sites, both_modes::<S>);
    println!("{}", sweep.assert_all_caught(&[]));
}

#[test]
fn every_write_back_and_fence_of_the_link_cache_is_needed() {
    sweep::<HashTable<Sim>>();
    if deep() {
        sweep::<List<Sim>>();
    }
}
