//! Every crash state of short sequences of transactions, in every configuration, and crashes in recovery.

use durix_crashsim::{Explorer, Persistency, Report};
use durix_rewind::testing::*;
use durix_rewind::{Layers, LogKind, Options, Policy};
use durix_subjects::explored::{complete, deep};

fn explorer() -> Explorer {
    Explorer::new().model(Persistency::TornWords)
}

/// Where removing many records at a time leaves too many states: a part of them, and samples. All of them with `DURIX_DEEP=1`.
fn bounded() -> Explorer {
    if deep() { explorer() } else { explorer().executions_per_point(200).samples(20) }
}

#[track_caller]
fn sound(name: &str, report: Report) {
    println!("{name}: {}", report.assert_ok());
}

/// For what takes long: all configurations only with `DURIX_DEEP=1`.
fn some(run: impl Fn(&str, Options)) {
    let options = if deep() { all_options() } else { few_options().to_vec() };
    options.into_iter().for_each(|options| run(&options.to_string(), options));
}

fn each(run: impl Fn(&str, Options)) {
    all_options().into_iter().for_each(|options| run(&options.to_string(), options));
}

#[test]
fn transactions_are_all_or_nothing() {
    each(|name, options| {
        let acts = [Commit(vec![(0, 1), (1, 2), (0, 3)]), Rollback(vec![(0, 4), (2, 5)]), Commit(vec![(1, 6)])];
        complete(name, explorer().run_then(&Tested::new(options), &acts, &after()));
    });
}

#[test]
fn crashes_in_recovery_change_nothing() {
    some(|name, options| {
        let tested = Tested { before: vec![Commit(vec![(0, 1), (1, 2)])], ..Tested::new(options) };
        let acts = [Rollback(vec![(0, 4), (2, 5), (0, 6)])];
        let acts = if deep() { [Commit(vec![(3, 1)]), acts[0].clone()].to_vec() } else { acts.to_vec() };
        complete(name, explorer().crashes(2).run_then(&tested, &acts, &[Sum, Commit(vec![(1, 7)])]));
    });
}

#[test]
fn transactions_beside_each_other() {
    each(|name, options| {
        let acts = [
            Beside(vec![(0, 1), (1, 2)], vec![(2, 3), (3, 4)]),
            CheckpointBeside(vec![(0, 5), (4, 6), (0, 7)], vec![(2, 8), (3, 9), (2, 10)]),
        ];
        sound(name, bounded().run_then(&Tested::new(options), &acts, &after()[..2]));
    });
}

#[test]
fn blocks_are_neither_lost_nor_freed_too_early() {
    each(|name, options| {
        let acts = [Put(6, 5), Put(6, 6), PutAndRollback(6, 7), Take(6), Checkpoint, Put(7, 8)];
        sound(name, bounded().run_then(&Tested::new(options), &acts, &after()[..3]));
    });
}

#[test]
fn blocks_and_crashes_in_recovery() {
    some(|name, options| {
        let tested = Tested { before: vec![Put(6, 5)], ..Tested::new(options) };
        for act in [Put(6, 6), PutAndRollback(7, 7)] {
            let explorer = if deep() { explorer() } else { explorer().executions_per_point(5).samples(1) };
            sound(name, explorer.crashes(2).run_then(&tested, &[act], &[Put(7, 8)]));
        }
    });
}

#[test]
fn checkpoints_clear_the_log() {
    each(|name, options| {
        let acts = [Commit(vec![(0, 1), (1, 2), (0, 3)]), Checkpoint, Commit(vec![(3, 1), (2, 1)]), Checkpoint];
        complete(name, explorer().run_then(&Tested::new(options), &acts, &after()[..2]));
    });
}

/// Compaction, buckets that fill up and buckets that become empty, beside a transaction whose records stay.
#[test]
fn buckets_roll_over_and_are_compacted() {
    each(|name, options| {
        let many = |from: u64| -> Writes { (0..14).map(|n| (n as usize % 3, from + n)).collect() };
        let acts = [CheckpointBeside(many(10), vec![(4, 1), (4, 2)]), Commit(vec![(5, 3)])];
        sound(name, bounded().run_then(&Tested::new(options), &acts, &after()[..2]));
    });
}

#[test]
fn all_short_sequences() {
    let alphabet = [
        Commit(vec![(0, 1), (1, 2)]),
        Commit(vec![(0, 3)]),
        Rollback(vec![(0, 4), (0, 5)]),
        Checkpoint,
        Beside(vec![(2, 7)], vec![(1, 8)]),
    ];
    let len = if deep() { 4 } else { 2 };
    // What PCSO can leave, torn words can leave.
    each(|name, options| {
        complete(name, explorer().sequences(&Tested::new(options), &alphabet, len, &after()[..2]));
    });
}

/// The log as the next process finds it may be lost in the power failure that follows: recovery makes it durable before it
/// builds on it.
#[test]
fn a_process_dies_then_the_power_fails() {
    let explorer = Explorer::new().executions_per_point(3).samples(1).process_deaths(true).crash_points(4);
    for options in all_options() {
        for act in [Commit(vec![(0, 1), (1, 2)]), Rollback(vec![(0, 4)])] {
            let tested = Tested { before: vec![Commit(vec![(0, 9)])], ..Tested::new(options) };
            sound(&options.to_string(), explorer.clone().run_then(&tested, &[act], &[Commit(vec![(1, 6)])]));
        }
        // The same in the second of two lanes.
        let tested = Tested { before: vec![CommitOther(vec![(0, 9)])], ..Tested::new(options.lanes(2)) };
        let [act, again] = [CommitOther(vec![(0, 1), (1, 2)]), CommitOther(vec![(1, 6)])];
        sound(&tested.options.to_string(), explorer.clone().run_then(&tested, &[act], &[again]));
    }
}

/// A process dies when it has removed records, but not durably. The next one finds an empty log, and uses the records' units
/// again: the removed pointers must not come back and lead to them.
#[test]
fn what_a_dead_process_has_removed_does_not_come_back() {
    let options = |layers, log| Options::default().layers(layers).log(log).policy(Policy::Force).bucket(8);
    for options in [options(Layers::One, LogKind::Optimized), options(Layers::Two, LogKind::Optimized)] {
        let explorer = Explorer::new().executions_per_point(12).samples(4).process_deaths(true).crash_points(30);
        let tested = Tested { before: vec![Commit(vec![(0, 9)])], ..Tested::new(options) };
        let again = [Commit(vec![(1, 6)]), Commit(vec![(0, 7)])];
        sound(&options.to_string(), explorer.clone().run_then(&tested, &[Commit(vec![(2, 1)])], &again));
        // The same in the second of two lanes.
        let tested = Tested { before: vec![CommitOther(vec![(0, 9)])], ..Tested::new(options.lanes(2)) };
        let again = [CommitOther(vec![(1, 6)]), CommitOther(vec![(0, 7)])];
        sound(&tested.options.to_string(), explorer.run_then(&tested, &[CommitOther(vec![(2, 1)])], &again));
    }
}

/// Two lanes hold values of the same word, the younger one in the lane that is cleared first: redoing the other would bring the
/// older value back.
#[test]
fn a_trimmed_lane_does_not_let_another_bring_old_values_back() {
    for layers in [Layers::One, Layers::Two] {
        for policy in [Policy::NoForce, Policy::Force] {
            let options = Options::default().log(LogKind::Batch(3)).layers(layers).policy(policy).bucket(8).lanes(2);
            for (first, second) in [
                (Commit(vec![(0, 1), (1, 2)]), CommitOther(vec![(0, 3), (1, 4)])),
                (CommitOther(vec![(0, 1), (1, 2)]), Commit(vec![(0, 3), (1, 4)])),
            ] {
                let tested = Tested::new(options);
                let name = format!("{options}, {first:?} first");
                let run = [first.clone(), second.clone(), Checkpoint];
                complete(&name, explorer().run_then(&tested, &run, &after()[..2]));
                // The recovery clears the lanes one after the other.
                let tested = Tested { before: vec![first], ..Tested::new(options) };
                let few = explorer().executions_per_point(60).samples(5).crashes(2);
                sound(&name, few.run_then(&tested, &[second], &[Sum]));
            }
        }
    }
}
