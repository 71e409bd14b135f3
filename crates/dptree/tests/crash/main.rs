//! Every crash state of short sequences of operations on a tiny tree: merges, splits of leaves and ranges, growth and reuse of the log,
//! crashes in recovery, operations after it; and the mutation of every write-back and fence. With `DURIX_DEEP` set, sequences are
//! longer and samples more.

mod bytes;
mod threads;
mod tree;
mod values;

use durix_crashsim::{Explorer, Persistency, Report, Sites, mutation_sweep};
use durix_dptree::{Options, Shape};
use durix_pmem::Plan;
use durix_subjects::explored::{complete_in_time as complete, deep};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use tree::{Act, Act::*, TreeUnderTest, after, batches_until_full, puts_until_full};

/// Executions for a crash point in a batch over two pages, at most.
const MOST: u64 = 100_000;

/// Two leaves with three keys, in one range.
fn two_leaves() -> Vec<Act> {
    vec![Put(10, 1), Put(20, 1), Merge, Put(30, 1), Put(40, 1), Merge, Put(50, 1), Put(60, 1), Merge]
}

/// Short runs that reach every site.
fn scenarios(plan: &'static Plan) -> Vec<(&'static str, TreeUnderTest, Vec<Act>)> {
    let of = |before: &[Act]| TreeUnderTest { plan, ..TreeUnderTest::new(before) };
    let killed = |act| Killed(Box::new(act));
    let other = |act| Other(Box::new(act));
    vec![
        ("first merge", of(&[]), vec![Put(10, 1), Put(20, 2), Tick, Put(10, 3)]),
        ("merge in place", of(&[Put(10, 1), Put(20, 1), Merge]), vec![Put(10, 2), Remove(20), Tick, Put(30, 3)]),
        ("leaf splits", of(&[Put(10, 1), Put(20, 1), Merge]), vec![Put(12, 1), Put(14, 1), Tick, Get(12)]),
        ("range splits", of(&two_leaves()), vec![Put(32, 2), Put(34, 2), Tick, Put(12, 2)]),
        ("leaf goes", of(&two_leaves()), vec![Remove(10), Remove(20), Tick, Put(15, 2)]),
        ("two merges", of(&[Put(10, 1), Merge]), vec![Put(10, 2), Put(11, 2), Tick, Put(10, 3), Put(11, 3), Tick]),
        (
            "log page is used again",
            of(&[]),
            vec![Put(1, 1), Put(1, 2), Merge, Put(1, 3), Put(1, 4), Merge, Put(2, 1), Put(1, 6), Put(1, 7)],
        ),
        ("process death in an update", of(&[Put(1, 1)]), vec![killed(Put(10, 1)), Put(20, 2), Tick, Put(10, 3)]),
        ("two sessions", of(&[]), vec![Put(1, 1), other(Put(1, 2)), other(Tick), Put(2, 1), other(Remove(1))]),
        (
            "one session merges, the other uses the log page again",
            of(&[]),
            vec![Put(1, 1), Put(2, 1), other(Tick), Put(5, 1), Put(6, 1), Put(7, 1)],
        ),
        ("values are replaced in place", of(&in_leaves()), in_place_acts()),
        ("sorted changes in an empty tree", of(&[]), vec![many(&[10, 20, 30], 1), Put(10, 2), many(&[40, 50], 3)]),
        (
            "sorted changes split a range",
            of(&two_leaves()),
            vec![Put(60, 2), many(&[70, 71, 72, 73], 3), Update(70, 4), Tick, Many(vec![(20, None), (21, Some(5))])],
        ),
        (
            "sorted changes of keys in both fronts",
            of(&[Put(1, 1), Put(2, 1), Put(1, 2)]),
            vec![Put(2, 2), Put(3, 2), Many(vec![(1, Some(7)), (2, None), (4, Some(7))]), Put(1, 8)],
        ),
        (
            "a batch over two ranges, two lines of a log page",
            TreeUnderTest { options: long_pages(), ..of(&[&two_ranges()[..], &[Put(11, 2)]].concat()) },
            vec![batch(&[10, 60, 61], 7), Put(10, 8)],
        ),
        // The first page of the batch holds records of the lower range only, which is merged. It must not be used again.
        (
            "a batch over two pages, one range is merged",
            of(&two_ranges()),
            vec![batch(&[10, 20, 60], 7), Tick, Put(10, 8), Put(11, 8), Put(12, 8)],
        ),
        (
            "a batch over two pages, one range is merged, and a restart",
            of(&two_ranges()),
            vec![batch(&[10, 20, 60], 7), Tick, Reopen, Put(10, 8), Put(11, 8), Put(12, 8)],
        ),
        (
            "two batches over the same two pages",
            of(&[&two_ranges()[..], &[batch(&[10, 20, 60, 61], 7), Put(11, 7), Merge]].concat()),
            vec![batch(&[10, 20, 60, 61], 8), Get(60)],
        ),
        ("process death in a batch", of(&two_ranges()), vec![killed(batch(&[10, 60], 7)), Put(61, 8), Tick]),
        ("an extent for each unit", one_unit_an_extent(plan), vec![Put(1, 1), Put(2, 1), Tick, Put(3, 1)]),
        ("a page that was not full", partly_used_page(plan), vec![Put(60, 5)]),
    ]
}

/// Keys that get the same value together.
fn many(keys: &[u64], value: u64) -> Act {
    Many(keys.iter().map(|key| (*key, Some(value))).collect())
}

/// A batch that puts some keys and removes one: the second.
fn batch(keys: &[u64], value: u64) -> Act {
    Many(keys.iter().enumerate().map(|(i, key)| (*key, (i != 1).then_some(value))).collect())
}

/// Two ranges: 10 and 20 are of the lower one, 60 is of the upper one. All log pages are free.
pub(crate) fn two_ranges() -> Vec<Act> {
    let mut before = two_leaves();
    before.extend([Put(32, 2), Put(34, 2), Merge]);
    before
}

/// As `tiny`, with log pages of four records.
fn long_pages() -> Options {
    Options::default().shape(Shape { slots: 4, leaves: 2, page_lines: 2 }).least_front(2)
}

/// Two keys in a leaf, in no front.
fn in_leaves() -> Vec<Act> {
    vec![Put(10, 1), Put(11, 1), Merge]
}

/// Replaces values in place, then by the log, then in place again. The third insert finds that the others have met their key.
fn in_place_acts() -> Vec<Act> {
    let mut acts =
        vec![Update(10, 2), Get(10), Put(11, 3), Update(11, 4), Put(10, 5), Swap(10, Some(5), Some(6)), Tick];
    acts.extend([Update(11, 7), Merge, Update(11, 8), Put(11, 9), Next(10, true), Remove(10), Put(10, 3)]);
    acts
}

/// A tree whose blocks are so large that each extent has one unit.
fn one_unit_an_extent(plan: &'static Plan) -> TreeUnderTest {
    let options = Options::default().shape(Shape { slots: 4, leaves: 20, page_lines: 1 }).least_front(2);
    TreeUnderTest { plan, options, ..TreeUnderTest::new(&[]) }
}

/// Two ranges: the lower one has had many updates, the upper one few. All log pages are free, hold records of the lower one, and none of
/// them is known to be full.
fn partly_used_page(plan: &'static Plan) -> TreeUnderTest {
    let mut before = two_leaves();
    before.extend([Put(32, 2), Put(34, 2), Merge]);
    before.extend((0..6).flat_map(|i| [Remove(10), Remove(20), Put(10, 70 + i), Put(20, 90 + i)]));
    before.extend([Merge, Reopen]);
    TreeUnderTest { plan, chunks: 30, ..TreeUnderTest::new(&before) }
}

fn run(explorer: &Explorer, plan: &'static Plan) -> Report {
    let mut total = Report::default();
    for (_, subject, acts) in scenarios(plan) {
        total.merge(explorer.run_then(&subject, &acts, &after()));
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn scenarios_pass_where_lines_tear() {
    let explorer = Explorer::new().model(Persistency::TornWords).executions_per_point(2000).samples(20);
    for (name, subject, acts) in scenarios(Plan::new()) {
        println!("{name}: {}", explorer.run_then(&subject, &acts, &after()).assert_ok());
    }
}

/// What follows the recovery of a second process: it reuses what the first has freed.
fn short_after() -> Vec<Act> {
    vec![Put(10, 9), Tick, Put(11, 9), Tick]
}

fn deaths(plan: &'static Plan) -> Report {
    let of = |before: &[Act]| TreeUnderTest { plan, chunks: 8, ..TreeUnderTest::new(before) };
    let mut scenarios = vec![
        ("update", of(&[Put(1, 1), Put(1, 2)]), vec![Put(10, 1)]),
        ("merge", of(&[Put(10, 1), Put(11, 1)]), vec![Tick]),
        ("batch", TreeUnderTest { chunks: 12, ..of(&two_ranges()) }, vec![batch(&[10, 20, 60], 7)]),
    ];
    if deep() {
        scenarios = self::scenarios(plan);
        scenarios.retain(|(name, ..)| !name.starts_with("process death"));
    }
    let mut total = Report::default();
    for (_, subject, acts) in scenarios {
        if total.failure.is_none() {
            let explorer = Explorer::new().process_deaths(true).executions_per_point(MOST);
            total.merge(explorer.run_then(&subject, &acts, &short_after()));
        }
    }
    // The next process reads a value that the one before has replaced in place, and the power fails.
    for after in [[Get(10), Get(11)], [Next(10, true), Len]] {
        if total.failure.is_none() {
            let subject = of(&in_leaves());
            total.merge(Explorer::new().process_deaths(true).run_then(&subject, &[Update(10, 2)], &after));
        }
    }
    total
}

#[test]
fn crashes_in_recovery_and_after_it() {
    let takes_long = |name: &str| ["process", "a batch over two ranges"].iter().any(|begin| name.starts_with(begin));
    for (name, subject, acts) in scenarios(Plan::new()).into_iter().filter(|(name, ..)| deep() || !takes_long(name)) {
        let subject = TreeUnderTest { in_recovery: vec![Merge], ..subject };
        let explorer = Explorer::new().crashes(2).executions_per_point(MOST);
        complete(name, || explorer.run_then(&subject, &acts, &[Put(1, 9), Remove(10)]));
    }
}

/// The scenarios, deaths of processes, used space, a full pool and threads pass completely, and fail without any write-back or fence.
#[test]
fn every_write_back_and_fence_is_needed() {
    let sweep = mutation_sweep(&Sites::in_files("dptree/src/"), |plan| {
        let mut total = run(&Explorer::new(), plan);
        let in_threads: [fn(&'static Plan) -> Report; 2] =
            [threads::merges_that_share_an_extent, threads::pages_made_ahead];
        let parts: [fn(&'static Plan) -> Report; 4] = [in_used_space, deaths, in_full_pool, without_locks];
        for part in parts.into_iter().chain(in_threads) {
            if total.failure.is_none() {
                total.merge(part(plan));
            }
        }
        total
    });
    assert!(sweep.baseline.complete, "{}", sweep.baseline);
    println!("{}", sweep.assert_all_caught(&[]));
}

/// A tree in chunks that hold what another one has left.
fn in_used_space(plan: &'static Plan) -> Report {
    let subject = TreeUnderTest { plan, used_before: true, ..TreeUnderTest::new(&[]) };
    let acts = [Put(1, 1), Put(2, 1), Tick, Put(3, 1), Put(1, 2), Tick];
    Explorer::new().run_then(&subject, &acts, &after())
}

/// A page that was not full, where lines tear and locked instructions do not wait for write-backs.
fn without_locks(plan: &'static Plan) -> Report {
    let explorer = Explorer::new().model(Persistency::TornWords).locked_drains(false);
    explorer.run_then(&partly_used_page(plan), &[Put(60, 5)], &after())
}

/// Keys are removed from a tree that has filled its pool in the middle of a merge, by more removals than its fronts and its log page
/// take: keys that lie in a front, keys that lie in a leaf, and keys that lie in both.
fn in_full_pool(plan: &'static Plan) -> Report {
    let subject = TreeUnderTest { plan, chunks: 8, ..TreeUnderTest::new(&[]) };
    let mut before = puts_until_full(&subject, 1);
    let keys: Vec<u64> =
        before.iter().filter_map(|act| if let Put(key, _) = act { Some(*key) } else { None }).collect();
    before.extend(keys.last().map(|last| Remove(*last)));
    let (first, last) = (&keys[..3], &keys[keys.len() - 5..keys.len() - 1]);
    let acts: Vec<Act> = last.iter().chain(first).map(|key| Remove(*key)).collect();
    let after = [Remove(keys[3]), Remove(keys[4]), Get(keys[5]), Remove(keys[5]), Len];
    Explorer::new().run_then(&TreeUnderTest { before, ..subject }, &acts, &after)
}

/// Keys of which several records count: the older ones have to go first, or a crash brings an older value back.
fn with_several_records(plan: &'static Plan) -> Report {
    let subject = TreeUnderTest { plan, chunks: 8, ..TreeUnderTest::new(&[]) };
    let before = puts_until_full(&subject, 3);
    let mut keys: Vec<u64> =
        before.iter().filter_map(|act| if let Put(key, _) = act { Some(*key) } else { None }).collect();
    keys.dedup();
    let last: Vec<Act> = keys.iter().rev().take(3).map(|key| Remove(*key)).collect();
    Explorer::new().run_then(&TreeUnderTest { before, ..subject }, &last, &[Get(keys[0]), Len])
}

#[test]
fn keys_with_several_records_are_removed_in_a_full_pool() {
    complete("several records", || with_several_records(Plan::new()));
}

// ---- all short sequences ----

fn sequences(name: &str, before: &[Act], alphabet: &[Act], len: usize) {
    let len = if deep() { len + 1 } else { len };
    complete(name, || Explorer::new().sequences(&TreeUnderTest::new(before), alphabet, len, &after()));
}

#[test]
fn all_short_sequences_from_an_empty_tree() {
    let alphabet = [Put(1, 1), Put(1, 2), Remove(1), Put(2, 1), Tick, Merge];
    sequences("empty", &[], &alphabet, 3);
}

#[test]
fn all_short_sequences_on_two_leaves() {
    let alphabet = [Put(32, 1), Put(10, 2), Remove(20), Remove(10), Tick, Merge];
    sequences("two leaves", &two_leaves(), &alphabet, 3);
}

#[test]
fn all_short_sequences_of_other_operations() {
    let alphabet =
        [PutNew(1, 3), Update(1, 4), Swap(1, Some(4), None), Swap(1, None, Some(5)), Next(0, true), Len, Merge];
    sequences("others", &[Put(2, 1)], &alphabet, 3);
}

#[test]
fn all_short_sequences_of_values_replaced_in_place() {
    let alphabet = [Put(10, 2), Update(10, 3), Update(11, 4), Remove(10), Swap(10, Some(3), Some(5)), Tick, Merge];
    sequences("in place", &in_leaves(), &alphabet, 3);
}

/// All keys stay in one range, and are merged into its leaves without the log.
#[test]
fn all_short_sequences_of_sorted_changes() {
    let mixed = Many(vec![(5, Some(4)), (10, None), (11, Some(4))]);
    let alphabet = [many(&[10, 12], 2), many(&[60, 61], 3), mixed, Put(10, 5), Remove(60), Tick, Merge];
    let options = Options::default().shape(Shape { slots: 4, leaves: 12, page_lines: 1 }).least_front(2);
    let subject = TreeUnderTest { options, ..TreeUnderTest::new(&in_leaves()) };
    let len = if deep() { 4 } else { 3 };
    complete("sorted changes", || Explorer::new().sequences(&subject, &alphabet, len, &after()));
}

/// Batches over two ranges, by the log.
#[test]
fn all_short_sequences_of_batches_over_two_ranges() {
    let alphabet = [many(&[10, 11, 20, 60], 2), batch(&[11, 60], 3), Put(20, 5), Remove(10), Tick, Reopen];
    sequences("batches", &two_ranges(), &alphabet, 2);
}

/// The pool is full, and no range can be merged. A key is removed that a batch has put: its record goes, and the batch remains.
fn removal_of_a_key_of_a_batch(plan: &'static Plan) -> Report {
    let subject = TreeUnderTest { plan, chunks: 14, ..TreeUnderTest::new(&two_ranges()) };
    let (before, [low, high]) = batches_until_full(&subject);
    let subject = TreeUnderTest { before, ..subject };
    let of = |key, other| Explorer::new().run_then(&subject, &[Remove(key)], &[Get(other), Len]);
    let mut report = of(low, high);
    report.merge(of(high, low));
    report
}

#[test]
fn a_key_of_a_batch_is_removed_in_a_full_pool() {
    complete("of a batch", || removal_of_a_key_of_a_batch(Plan::new()));
}

/// A batch that the pool has no room for changes nothing, and the tree goes on.
#[test]
fn a_batch_that_does_not_fit_changes_nothing() {
    let subject = TreeUnderTest { chunks: 14, ..TreeUnderTest::new(&two_ranges()) };
    let (before, [low, high]) = batches_until_full(&subject);
    let subject = TreeUnderTest { before, ..subject };
    let acts = [TooMany(vec![(low, Some(99)), (low + 1, Some(99)), (high, None)]), Remove(low), Get(high)];
    complete("no room", || Explorer::new().run_then(&subject, &acts, &[Get(low), Remove(high), Len]));
}

/// Every entry point comes first after a crash in a merge that splits a range.
#[test]
fn every_entry_point_is_the_first_access_after_a_crash() {
    let first = [
        Put(12, 7),
        PutNew(32, 7),
        Update(32, 8),
        Remove(32),
        Swap(32, Some(2), Some(3)),
        Get(32),
        GetTwo(60, 32),
        Load(vec![(12, 7), (32, 8), (60, 9)]),
        Next(31, true),
        Next(33, false),
        Len,
        many(&[12, 13, 14], 7),
        Tick,
        Merge,
    ];
    for act in first {
        let after = [act.clone(), Len, Get(10), Put(13, 1), Merge];
        complete(&format!("{act:?}"), || {
            Explorer::new().run_then(&TreeUnderTest::new(&two_leaves()), &[Put(32, 2), Put(34, 2), Tick], &after)
        });
    }
}

#[test]
fn all_is_deleted_and_used_again() {
    let mut before = two_leaves();
    before.extend([10, 20, 30, 40, 50, 60].map(Remove));
    let acts = [Merge, Put(10, 2), Put(20, 2), Tick, Put(30, 2), Put(40, 2), Tick];
    complete("deleted", || Explorer::new().run_then(&TreeUnderTest::new(&before), &acts, &after()));
}

// ---- long ones ----

fn act() -> impl Strategy<Value = Act> {
    let key = || 0u64..12;
    prop_oneof![
        6 => (key(), 0u64..5).prop_map(|(k, v)| Put(k, v)),
        3 => key().prop_map(Remove),
        1 => (key(), 0u64..5).prop_map(|(k, v)| PutNew(k, v)),
        1 => (key(), 0u64..5).prop_map(|(k, v)| Other(Box::new(Put(k, v)))),
        1 => key().prop_map(Get),
        2 => (vec((key(), proptest::option::of(0u64..5)), 1..6)).prop_map(Many),
        3 => Just(Tick),
        1 => Just(Merge),
    ]
}

#[test]
fn long_sequences_sampled() {
    let cases = if deep() { 3000 } else { 20 };
    let subject = TreeUnderTest { chunks: 30, ..TreeUnderTest::new(&[]) };
    let explorer = Explorer::new().executions_per_point(20).samples(10);
    let report = explorer.check(&subject, cases, &(vec(act(), 5..40), vec(act(), 0..8)));
    println!("long sequences: {}", report.assert_ok());
}
