//! Crash tests of the logs: every crash state of every short sequence of operations.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use durix_crashsim::{AnySubject, Explorer, Persistency, Report, Sites, mutation_sweep};
use durix_cso::log::{
    ChainLog, FvbEntryLog, FvbLog, HalfLine, LinesLog, OneLine, RandomLog, TwoLines, VbLog, WordsLog,
};
use durix_cso::testing::{AFTER, Do, Plain, RUNS, State, Tested, Tiny, World};
use durix_pmem::{Plan, SiteKind};
use durix_subjects::explored::deep;

const ALPHABET: [Do; 6] = [Do::Stage(0), Do::Stage(1), Do::Commit, Do::Trim(1), Do::Trim(9), Do::Reopen];

/// A log under test, whichever: the simulator is compiled once for all of them.
type AnyLog = AnySubject<Do, (), State, BTreeSet<World>>;

fn tested<L: Tiny + 'static>(age: usize, holed: bool) -> AnyLog {
    Box::new(Tested::<L, _> { age, held: 0, holed, wrap: Plain, _log: PhantomData })
}

/// Length of the sequences: more with `DURIX_DEEP=1`.
fn len() -> usize {
    if deep() { 5 } else { 3 }
}

fn show(name: &str, report: &Report) {
    println!("{name}: {report}");
    assert!(report.complete, "{name}: {report}");
}

fn all_short_sequences<L: Tiny + 'static>() {
    for age in [0, 1, 3] {
        let report = Explorer::new().sequences(&tested::<L>(age, false), &ALPHABET, len(), &AFTER).assert_ok();
        show(&format!("age {age}"), &report);
    }
}

fn crashes_in_recovery<L: Tiny + 'static>() {
    use Do::{Commit, Reopen, Stage, Trim};
    let runs: [(bool, &[Do]); 4] = [
        (false, &[Stage(0), Commit, Trim(1), Stage(1)]),
        (false, &[Stage(1), Stage(0), Reopen]),
        (false, &[Stage(1), Commit, Trim(1), Reopen]),
        (true, &[Reopen, Stage(0)]),
    ];
    for age in [0, 1, 3] {
        for (holed, ops) in runs {
            let report = Explorer::new().crashes(2).run_then(&tested::<L>(age, holed), ops, &AFTER).assert_ok();
            show(&format!("age {age} {ops:?}"), &report);
        }
    }
}

/// The process dies after any of its stores, the next one goes on, and then the power fails.
fn deaths<L: Tiny + 'static>() {
    use Do::{Commit, Stage, Trim};
    for age in [0, 1, 3] {
        let explorer = Explorer::new().process_deaths(true).executions_per_point(200).samples(20);
        let ops = [Stage(1), Commit, Trim(1), Stage(0), Commit];
        let report = explorer.run_then(&tested::<L>(age, false), &ops, &AFTER).assert_ok();
        println!("age {age}: {report}");
    }
}

fn formatting_is_all_or_nothing<L: Tiny + 'static>() {
    let ops = [Do::Stage(0), Do::Stage(1), Do::Commit, Do::WillFormat, Do::Format, Do::Stage(1), Do::Commit];
    let report = Explorer::new().crashes(2).run_then(&tested::<L>(3, false), &ops, &AFTER).assert_ok();
    show("format", &report);
}

/// CS-T3: the head must not be durable before a staged record that it passes: the record's unit would still have the polarity of
/// two laps ago, and look valid as a unit of the next.
#[test]
fn t3_a_trim_past_staged_records_does_not_expose_old_units() {
    let full = [Do::Stage(0); 5];
    show("one line", &Explorer::new().run_then(&tested::<VbLog<OneLine>>(0, false), &full, &AFTER).assert_ok());
    show("flexible", &Explorer::new().run_then(&tested::<FvbLog>(0, false), &full, &AFTER).assert_ok());
}

/// CS-R0: a process dies with a trim that is not durable; recovery in the next must not re-initialise what the old head,
/// still in memory, needs.
#[test]
fn r0_recovery_makes_the_head_durable_before_it_reinitialises() {
    let ops = [Do::Stage(0), Do::Stage(1), Do::Trim(9), Do::Reopen];
    show("random", &Explorer::new().crashes(2).run_then(&tested::<RandomLog>(0, false), &ops, &AFTER).assert_ok());
}

/// Whether the kind survives torn lines.
fn torn<L: Tiny + 'static>() -> Report {
    let explorer = Explorer::new().model(Persistency::TornWords);
    explorer.sequences(&tested::<L>(3, false), &[Do::Stage(0), Do::Stage(1), Do::Commit, Do::Trim(1)], 3, &AFTER)
}

macro_rules! for_kinds {
    ($($name:ident: $log:ty),* $(,)?) => { $(
        mod $name {
            use super::*;
            #[test]
            fn all_short_sequences() {
                super::all_short_sequences::<$log>();
            }
            #[test]
            fn crashes_in_recovery() {
                super::crashes_in_recovery::<$log>();
            }
            #[test]
            fn what_a_dead_process_left_survives_the_power_failure_that_follows() {
                super::deaths::<$log>();
            }
            #[test]
            fn formatting_is_all_or_nothing() {
                super::formatting_is_all_or_nothing::<$log>();
            }
        }
    )* };
}

for_kinds! {
    vb_half: VbLog<HalfLine>,
    vb_one: VbLog<OneLine>,
    vb_two: VbLog<TwoLines>,
    lines: LinesLog,
    words_1: WordsLog<1, 0, 63>,
    words_4: WordsLog<4, 3, 56>,
    words_16: WordsLog<16, 5, 0>,
    fvb: FvbLog,
    fvb_entry: FvbEntryLog,
    random: RandomLog,
    chain: ChainLog,
}

#[test]
fn records_of_one_word_survive_torn_lines() {
    show("torn", &torn::<WordsLog<1, 0, 63>>().assert_ok());
}

#[test]
fn everything_else_needs_lines_written_back_in_order() {
    macro_rules! fails {
        ($($log:ty),* $(,)?) => { $(
            let report = torn::<$log>();
            let failure = report.failure.as_ref().unwrap_or_else(|| panic!("{} survived", stringify!($log)));
            println!("{}: {}", stringify!($log), failure.cause);
        )* };
    }
    fails!(VbLog<HalfLine>, VbLog<OneLine>, VbLog<TwoLines>, LinesLog, WordsLog<4, 3, 56>);
    fails!(WordsLog<16, 5, 0>, FvbLog, FvbEntryLog, RandomLog);
}

/// The shortest runs that reach every site of a log.
fn sweep_of<L: Tiny + 'static>(plan: &'static Plan) -> Report {
    let explorer = Explorer::new().executions_per_point(2_000).samples(50);
    let mut total = Report::default();
    for (age, holed, ops) in RUNS {
        let tested: AnyLog = Box::new(Tested::<L, _> { age, held: 0, holed, wrap: plan, _log: PhantomData });
        let report = explorer.run_then(&tested, ops, &AFTER);
        let failed = report.failure.is_some();
        total.merge(report);
        if failed {
            break;
        }
    }
    total
}

macro_rules! sweeps {
    ($($name:ident: $log:ty),* $(,)?) => {
        /// Every write-back and every fence is needed, and so is every release store.
        mod sweep {
            use super::*;
            $(
                #[test]
                fn $name() {
                    let mut sites = Sites::in_files("cso/src/log/");
                    sites.kinds.push(SiteKind::Release);
                    let sweep = mutation_sweep(&sites, sweep_of::<$log>);
                    println!("{sweep}");
                    sweep.assert_all_caught(&[]);
                }
            )*
        }
    };
}

sweeps! {
    vb_half: VbLog<HalfLine>,
    vb_one: VbLog<OneLine>,
    vb_two: VbLog<TwoLines>,
    lines: LinesLog,
    words_4: WordsLog<4, 3, 56>,
    words_16: WordsLog<16, 5, 0>,
    fvb: FvbLog,
    fvb_entry: FvbEntryLog,
    random: RandomLog,
}

/// The sites of the header's formatting (CS-F1, CS-F3) are swept above; opening a chain writes everything back once more.
#[test]
fn every_write_back_and_fence_of_a_chain_is_needed() {
    let mut sites = Sites::in_files("cso/src/log/chain");
    sites.files.push("cso/src/log/lines".into());
    sites.kinds.push(SiteKind::Release);
    let sweep = mutation_sweep(&sites, sweep_of::<ChainLog>);
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}
