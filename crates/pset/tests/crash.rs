//! Every crash state of short sequences of operations on a set: reuse of slots, tombstones, entries that change their
//! class, transactions, a full pool, crashes in recovery, operations after it; and the mutation of every write-back, fence
//! and order site. With `DURIX_DEEP` set, sequences are longer and samples more.

use durix_crashsim::{Explorer, Persistency, Report, Sites, mutation_sweep, mutation_sweeps};
use durix_pmem::{Mutation, Plan, SiteKind};
use durix_pset::SetOptions;
use durix_pset::testing::set::Act::{self, *};
use durix_pset::testing::set::{SetUnderTest, after, follows, keys_of, pair, scenarios, scenarios_of_two_shards};
use durix_subjects::explored::{complete, deep};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Strategy, prop_oneof};

fn run(explorer: &Explorer, plan: &'static Plan) -> Report {
    let mut total = Report::default();
    for (name, subject, acts) in scenarios(plan) {
        let crashes = if name == "recovered transactions" { 2 } else { 1 };
        total.merge(explorer.clone().crashes(crashes).run_then(&subject, &acts, &follows(&subject)));
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn scenarios_pass_where_every_store_is_durable() {
    // Every store is a crash point there.
    let explorer = Explorer::new().model(Persistency::Eadr);
    for (name, subject, acts) in scenarios(Plan::new()).into_iter().take(4) {
        complete(&format!("{name}, eADR"), explorer.run_then(&subject, &acts[..3], &[]));
    }
}

/// The scenarios pass completely, and fail without any write-back, fence or order of stores, and if a write-back leaves out the last line of
/// an entry, or comes late.
#[test]
fn every_write_back_fence_and_order_is_needed() {
    let calls = Sites::in_files("pset/src/");
    let orders = Sites { kinds: vec![SiteKind::Order, SiteKind::Release], ..calls.clone() };
    let mut lines = Sites::in_files("pset/src/entry.rs");
    lines.kinds = vec![SiteKind::WriteBack];
    lines.mutations = vec![Mutation::WithoutLastLine, Mutation::Delay];
    // The scenarios run once for all three.
    let sweeps = mutation_sweeps([&calls, &orders, &lines], |plan| run(&Explorer::new(), plan));
    assert!(sweeps[0].baseline.complete, "{}", sweeps[0].baseline);
    for sweep in sweeps {
        println!("{}", sweep.assert_all_caught(&[]));
    }
}

// ---- a full pool, where a shard takes slots of another ----

fn run_two_shards(crashes: usize, plan: &'static Plan) -> Report {
    let mut total = Report::default();
    for (_, subject, acts, after) in scenarios_of_two_shards(plan) {
        total.merge(Explorer::new().crashes(crashes).run_then(&subject, &acts, &after));
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn slots_go_from_shard_to_shard() {
    complete("slots of another shard", run_two_shards(2, Plan::new()));
}

#[test]
fn slots_go_from_shard_to_shard_by_write_backs_and_fences_that_are_needed() {
    let mut sites = Sites::in_files("pset/src/update.rs");
    sites.files.extend(["entry.rs", "txn.rs"].map(|file| format!("pset/src/{file}")));
    println!("{}", mutation_sweep(&sites, |plan| run_two_shards(1, plan)).assert_all_caught(&[]));
}

// ---- all short sequences ----

fn sequences(name: &str, subject: &SetUnderTest, alphabet: &[Act], crashes: usize) {
    let len = if deep() { 4 } else { 3 };
    complete(name, Explorer::new().crashes(crashes).sequences(subject, alphabet, len, &after()));
}

#[test]
fn all_short_sequences_in_one_line() {
    let alphabet = [Put(0, 1), Put(0, 2), Remove(0), Put(1, 1), Remove(1), PutNew(0, 3)];
    sequences("one line", &SetUnderTest::new(), &alphabet, 1);
}

#[test]
fn all_short_sequences_that_change_the_class() {
    let alphabet = [Put(0, 1), Put(0, 150), Remove(0), Put(100, 1), Remove(100)];
    sequences("classes", &SetUnderTest::new(), &alphabet, 1);
}

#[test]
fn all_short_sequences_of_transactions() {
    let both_shards =
        SetUnderTest { options: SetOptions::default().shards(2).recovery_threads(1), ..SetUnderTest::new() };
    let alphabet = [pair(1, 2), Commit(vec![(0, None), (1, Some(3))]), Put(0, 4), Remove(1)];
    sequences("transactions", &both_shards, &alphabet, 1);
}

#[test]
fn crashes_in_recovery_change_nothing() {
    let alphabet = [pair(1, 2), Put(0, 3), Remove(0)];
    let report = Explorer::new().crashes(2).sequences(&SetUnderTest::new(), &alphabet, 2, &[Put(0, 5), Remove(1)]);
    complete("crashes in recovery", report);
}

// ---- what a restart queues, and crashes after it ----

/// Recovery queues what lost in the order of versions: a tombstone is not overwritten before what it hides. The keys that come
/// after the restart are others, and the crash that shows it comes after them.
#[test]
fn what_lost_before_a_restart_is_reused_in_order() {
    let then = |keys: std::ops::Range<u8>| keys.map(|k| Put(k, 9)).collect::<Vec<_>>();
    let explorer = Explorer::new().crashes(2).crash_later(true).executions_per_point(40).samples(8);
    // Older entries behind the tombstone, and in another class.
    for (keys, before) in [(70, vec![Put(0, 1), Put(0, 2), Put(0, 3)]), (64, vec![Put(0, 1), Put(0, 150), Put(0, 2)])] {
        // Nothing is free: what comes next overwrites what lost.
        let full = (10..keys).map(|k| Put(k, 1));
        let subject = SetUnderTest { chunks: 2, before: full.chain(before).collect(), ..SetUnderTest::new() };
        println!("{}", explorer.run_then(&subject, &[Remove(0)], &then(1..4)).assert_ok());
    }
}

/// The watermark counts once it is durable: an entry of a transaction is not overwritten under the fence that makes it so, also
/// not after a restart that has found the transaction above the watermark.
#[test]
fn a_watermark_counts_when_it_is_durable() {
    let explorer = Explorer::new().crashes(2).crash_later(true).executions_per_point(40).samples(8);
    let before: Vec<_> = (10..70).map(|k| Put(k, 1)).collect();
    let subject = SetUnderTest { chunks: 2, before, ..SetUnderTest::new() };
    let report = explorer.run_then(&subject, &[pair(1, 2)], &[Put(0, 3), Put(0, 4), Put(0, 5)]);
    println!("{}", report.assert_ok());
    let report = Explorer::new().run_then(&subject, &[pair(1, 2), Put(0, 3), Put(0, 4), Put(0, 5)], &after());
    println!("{}", report.assert_ok());
}

/// A transaction has a version above the watermark, also in a shard that none of those below has changed: otherwise recovery would count
/// its entries one by one before all of them are durable.
#[test]
fn a_transaction_of_another_shard_comes_above_the_watermark() {
    let options = SetOptions::default().shards(2).recovery_threads(1);
    let of = |shard: u64, value: u8| Commit(keys_of(shard)[..2].iter().map(|key| (*key, Some(value))).collect());
    // The third has the second covered by the durable watermark.
    let before = [1, 2, 3].map(|value| of(0, value)).to_vec();
    let subject = SetUnderTest { options, before, ..SetUnderTest::new() };
    complete("another shard", Explorer::new().run_then(&subject, &[of(1, 4), of(0, 5), of(1, 6)], &after()));
}

// ---- long ones ----

fn act() -> impl Strategy<Value = Act> {
    let key = || prop_oneof![3 => 0u8..4, 1 => 100u8..102, 1 => 200u8..201];
    let value = || prop_oneof![3 => 0u8..100, 1 => 100u8..200, 1 => 200u8..240];
    let changes = vec((key(), option::of(value())), 1..4);
    prop_oneof![
        5 => (key(), value()).prop_map(|(k, v)| Put(k, v)),
        3 => key().prop_map(Remove),
        1 => (key(), value()).prop_map(|(k, v)| PutNew(k, v)),
        1 => (key(), option::of(value()), option::of(value())).prop_map(|(k, a, b)| Swap(k, a, b)),
        2 => changes.prop_map(Commit),
        1 => (key(), value()).prop_map(|(k, v)| Other(Box::new(Put(k, v)))),
    ]
}

#[test]
fn long_sequences_sampled() {
    let cases = if deep() { 2000 } else { 4 };
    let subject = SetUnderTest { chunks: 12, ..SetUnderTest::new() };
    let explorer = Explorer::new().executions_per_point(20).samples(10);
    let report = explorer.check(&subject, cases, &(vec(act(), 5..25), vec(act(), 0..8)));
    println!("long sequences: {}", report.assert_ok());
}

// ---- errata ----

#[test]
fn errata_transaction_entry_superseded_and_reused_does_not_drop_the_others() {
    let three = Commit(vec![(0, Some(1)), (1, Some(2)), (2, Some(3))]);
    let acts = [three, Put(0, 4), Put(0, 5), Put(0, 6), Put(3, 7), Remove(0)];
    complete("errata 4.4", Explorer::new().run_then(&SetUnderTest::new(), &acts, &after()));
}

#[test]
fn errata_fifo_overwrites_are_durable_one_before_the_next() {
    // The slots of two old values of key 0, then of its tombstone, are overwritten by other keys.
    let acts = [Put(0, 1), Put(0, 2), Remove(0), Put(1, 1), Put(2, 1), Put(3, 1), Put(4, 1)];
    complete("errata 4.2", Explorer::new().run_then(&SetUnderTest::new(), &acts, &after()));
    // One transaction overwrites all of them under one fence: the tombstone must wait for the next.
    let all = Commit((1..5).map(|k| (k, Some(1))).collect());
    let acts = [Put(0, 1), Put(0, 2), Remove(0), all.clone(), all];
    complete("errata 4.2, transactions", Explorer::new().run_then(&SetUnderTest::new(), &acts, &after()));
}

// ---- what it rests on ----

/// The set rests on the order of stores within a line. Where lines can tear, an entry can come back valid without a part
/// of its content: this is the failure that docs/design/pset.md names.
#[test]
fn torn_words_break_an_entry() {
    let acts = [Put(0, 1), Put(0, 2), Put(1, 3)];
    let torn = Explorer::new().model(Persistency::TornWords);
    let failure = torn.run(&SetUnderTest::new(), &acts).failure.expect("a torn line goes unnoticed");
    println!("{failure}");
    complete("the same under PCSO", Explorer::new().run(&SetUnderTest::new(), &acts));
}
