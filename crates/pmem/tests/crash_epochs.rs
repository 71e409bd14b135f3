//! The checkpoint epochs under simulation: two toy structures in one mapping, each a few cells with an undo copy on their
//! own line, must come back as one consistent cut that is no older than the last boundary.

use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Contract, Explorer, Report, Sites, crash_test, mutation_sweeps};
use durix_pmem::epoch::layout::{EpochWord, FailedRange, LAST_EPOCH};
use durix_pmem::{Epochs, Error, Hardware, Mapping, Mutation, Plan, Session, SiteKind, Sweeping};
use durix_subjects::epochs::Act::{Ahead, Both, Left, Restart, Right, Sync};
use durix_subjects::epochs::{self, RECORD, Tested};

fn explorer() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

fn scenario(plan: &'static Plan) -> Report {
    let acts = [Left(0, 1), Ahead, Both(2), Sync, Right(1, 3), Ahead, Left(0, 4), Sync, Both(5), Right(1, 6)];
    explorer().crashes(2).run_then(&Tested { plan }, &acts, &[Left(2, 8), Sync, Both(9)])
}

/// The scenario, and where it passes a short one in which processes die with the power on.
fn scenario_with_deaths(plan: &'static Plan) -> Report {
    let report = scenario(plan);
    if report.failure.is_some() {
        return report;
    }
    let report =
        explorer().process_deaths(true).crashes(2).run_then(&Tested { plan }, &[Left(0, 1), Sync], &[Both(7), Sync]);
    if report.failure.is_some() { report } else { closed_for_a_while(plan) }
}

fn closed_for_a_while(plan: &'static Plan) -> Report {
    let [acts, after] = epochs::closed_for_a_while();
    explorer().run_then(&Tested { plan }, &acts, &after)
}

#[test]
fn a_structure_that_stays_closed_keeps_what_it_needs() {
    let report = closed_for_a_while(Plan::new()).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn passes_of_a_sweep_among_restarts() {
    let acts = [Both(1), Sync, Both(2), Restart, Both(3), Sync, Restart, Left(1, 4), Sync, Sync, Restart, Sync, Sync];
    let after: Vec<_> = vec![Sync; 5].into_iter().chain([Restart, Both(8), Sync, Restart]).collect();
    let report = explorer().run_then(&Tested { plan: Plan::new() }, &acts, &after).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn two_structures_share_one_consistent_cut() {
    let report = scenario(Plan::new()).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

crash_test! {
    name: all_short_sequences,
    subject: Tested { plan: Plan::new() },
    explorer: explorer(),
    alphabet: [Left(0, 1), Left(0, 2), Right(0, 3), Both(4), Sync, Ahead],
    len: 4,
    after: [Both(7), Sync, Left(1, 8)],
}

#[test]
fn crashes_in_recovery_and_right_after_it_change_nothing() {
    let alphabet = [Left(0, 1), Both(4), Sync];
    let report = explorer().crashes(3).sequences(&Tested { plan: Plan::new() }, &alphabet, 2, &[Both(7)]).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

/// The epoch word of a boundary can be visible and not yet durable when the process dies: its number is then known as
/// failed, and a power failure must not lead to an epoch of that number again.
#[test]
fn an_epoch_that_was_seen_to_fail_never_comes_again() {
    let alphabet = [Left(0, 1), Both(4), Sync];
    let explorer = explorer().process_deaths(true).crashes(2);
    let report =
        explorer.sequences(&Tested { plan: Plan::new() }, &alphabet, 2, &[Both(7), Sync, Left(0, 8)]).assert_ok();
    println!("{report}");
    assert!(report.complete && report.deaths > 0);
}

#[test]
fn every_write_back_and_fence_of_the_service_is_needed_and_comes_in_time() {
    let calls = Sites::in_files("src/epoch/");
    let late = Sites { kinds: vec![SiteKind::WriteBack], mutations: vec![Mutation::Delay], ..calls.clone() };
    // The scenario runs once for both.
    for sweep in mutation_sweeps([&calls, &late], scenario_with_deaths) {
        println!("{}", sweep.assert_all_caught(&[]));
    }
}

// ---- without crashes ----

fn plain() -> Mapping<Hardware> {
    Mapping::heap(1 << 14, Hardware::PAGE_CACHE)
}

#[test]
fn tickets_come_with_boundaries_and_ticks_keep_the_interval() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
    let ticket = epochs.ticket(&session.enter().unwrap());
    assert!(!epochs.is_durable(ticket));
    epochs.wait(&mut session, ticket).unwrap();
    assert!(epochs.is_durable(ticket));
    epochs.wait(&mut session, ticket).unwrap();
    assert_eq!((epochs.stats().boundaries, epochs.stats().epoch), (1, 2));
    epochs.set_interval(std::time::Duration::from_secs(3600));
    assert!(!epochs.tick(&mut session).unwrap());
    epochs.set_interval(std::time::Duration::ZERO);
    assert!(epochs.tick(&mut session).unwrap());
    let other = plain();
    assert!(matches!(epochs.sync(&mut other.session().unwrap()), Err(Error::ForeignSession)));
}

/// The first of those who wait cannot run its boundary before an operation ends; then it serves all of them.
#[test]
fn those_who_wait_share_a_boundary() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
    for round in 1..=3 {
        let op = session.enter().unwrap();
        let ticket = epochs.ticket(&op);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    epochs.wait(&mut mapping.session().unwrap(), ticket).unwrap();
                    assert!(epochs.is_durable(ticket));
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!epochs.is_durable(ticket), "a boundary beside an operation");
            drop(op);
        });
        assert_eq!(epochs.stats().boundaries, round, "boundaries for eight that wait");
    }
}

#[test]
fn every_sync_covers_what_was_done_before_it() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let mut session = mapping.session().unwrap();
                for _ in 0..200 {
                    let ticket = epochs.ticket(&session.enter().unwrap());
                    epochs.sync(&mut session).unwrap();
                    assert!(epochs.is_durable(ticket));
                }
            });
        }
    });
    assert!(epochs.stats().boundaries >= 200);
}

/// Whoever leads gets its error; the next one leads, and gets it, too: nobody waits for ever.
#[test]
fn everybody_who_waits_is_told_of_an_error() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
    let ticket = epochs.ticket(&session.enter().unwrap());
    epochs.stop("a structure".into());
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let told = epochs.wait(&mut mapping.session().unwrap(), ticket);
                assert!(matches!(told, Err(Error::Poisoned { .. })), "{told:?}");
            });
        }
    });
    assert!(!epochs.is_durable(ticket));
}

#[test]
fn each_unclean_opening_fails_one_epoch_in_one_range() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    for round in 0..300 {
        let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
        let op = session.enter().unwrap();
        assert_eq!((epochs.current(&op), epochs.trusted()), (1 + round, if round == 0 { 0 } else { 1 + round }));
        assert!((1..=round).all(|epoch| epochs.is_failed(epoch)) && !epochs.is_failed(0));
        assert!(!epochs.is_failed(1 + round));
        assert_eq!(epochs.stats().failed_ranges, usize::from(round > 0));
    }
}

/// Opens the epochs of a mapping whose last run was cut short, with a structure that takes part.
fn joined(mapping: &Mapping<Hardware>, session: &mut Session<Hardware>) -> Result<Epochs<Hardware>, Error> {
    let op = session.enter().unwrap();
    let epochs = Epochs::open(&op, mapping, RECORD)?;
    epochs.join(&op, epochs.seat(&op));
    Ok(epochs)
}

#[test]
fn a_structure_that_is_never_swept_keeps_its_failed_epochs_up_to_the_limit() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    for round in 0..113 {
        let epochs = joined(&mapping, &mut session).unwrap();
        assert_eq!(epochs.stats().failed_ranges, round);
        assert_eq!(epochs.is_pressed(), round > 56);
        epochs.sync(&mut session).unwrap();
    }
    let refused = joined(&mapping, &mut session).unwrap_err();
    assert!(matches!(refused, Error::TooManyFailedEpochs { limit: 112 }), "{refused}");
}

#[test]
fn a_full_record_makes_room_where_nobody_needs_what_it_holds() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    for _ in 0..300 {
        let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
        epochs.sync(&mut session).unwrap();
    }
}

#[test]
fn passes_end_however_short_the_runs_between_crashes_are() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    let mut most = 0;
    for _ in 0..600u64 {
        let epochs = joined(&mapping, &mut session).unwrap();
        most = most.max(epochs.stats().failed_ranges);
        let sweeping = Sweeping::default();
        for _ in 0..2 {
            epochs.sync(&mut session).unwrap();
            let op = session.enter().unwrap();
            // Twenty steps a pass: what a structure takes that makes its steps larger when it is pressed.
            sweeping.step(&epochs, &op, epochs.seat(&op), |cursor| (cursor < 20).then_some(cursor + 1));
        }
    }
    println!("at most {most} ranges at a time");
    assert!((20..100).contains(&most));
}

#[test]
fn a_swept_epoch_is_forgotten_and_counts_until_the_next_opening() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    drop(joined(&mapping, &mut session).unwrap());
    let epochs = joined(&mapping, &mut session).unwrap();
    let sweeping = Sweeping::default();
    let step = |session: &mut Session<Hardware>| {
        let op = session.enter().unwrap();
        sweeping.step(&epochs, &op, epochs.seat(&op), |_| None)
    };
    assert!(step(&mut session));
    assert!(step(&mut session), "no boundary has passed");
    assert_eq!(epochs.stats().failed_ranges, 1);
    epochs.sync(&mut session).unwrap();
    assert!(!step(&mut session));
    assert_eq!((epochs.stats().failed_ranges, epochs.is_failed(1)), (0, true));
}

/// A range has sixteen bits for its number of epochs.
#[test]
fn more_epochs_fail_in_a_row_than_a_range_counts() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    let crashes = 2 * FailedRange::MAX_COUNT + 3;
    for _ in 0..crashes {
        Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
    }
    let epochs = Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap();
    assert_eq!((epochs.trusted(), epochs.stats().failed_ranges), (crashes + 1, 3));
    assert!((1..=crashes).all(|epoch| epochs.is_failed(epoch)));
    assert!(!epochs.is_failed(0) && !epochs.is_failed(crashes + 1));
}

#[test]
fn damage_is_an_error() {
    let mapping = plain();
    let mut session = mapping.session().unwrap();
    drop(Epochs::open(&session.enter().unwrap(), &mapping, RECORD).unwrap());
    let op = session.enter().unwrap();
    let word = op.load(&op.at(RECORD).epoch, Relaxed);
    let flipped = durix_pmem::Bits::from_bits(durix_pmem::Bits::to_bits(word) ^ 4);
    op.store::<EpochWord>(&op.at(RECORD).epoch, flipped, Relaxed);
    let error = Epochs::open(&op, &mapping, RECORD).unwrap_err();
    assert!(matches!(error, Error::DamagedEpochs { offset: 1024, .. }), "{error}");
    assert!(matches!(Epochs::open_at(&op, &mapping, RECORD, 0), Err(Error::BadOption { .. })));
}

#[test]
fn a_boundary_beyond_the_last_epoch_is_refused_and_what_is_there_can_be_opened() {
    let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let open = |session: &mut Session<Hardware>| {
        Epochs::open_at(&session.enter().unwrap(), &mapping, RECORD, LAST_EPOCH - 1).unwrap()
    };
    let epochs = open(&mut session);
    epochs.sync(&mut session).unwrap();
    let ticket = epochs.ticket(&session.enter().unwrap());
    assert_eq!(ticket.epoch(), LAST_EPOCH);
    for _ in 0..2 {
        assert!(matches!(epochs.sync(&mut session), Err(Error::EpochsExhausted { last: LAST_EPOCH })));
        assert!(matches!(epochs.wait(&mut session, ticket), Err(Error::EpochsExhausted { .. })));
        assert_eq!(epochs.current(&session.enter().unwrap()), LAST_EPOCH, "operations go on");
    }
    assert!(!epochs.is_durable(ticket));
    for opening in 1..=3 {
        let again = open(&mut session);
        assert_eq!(again.current(&session.enter().unwrap()), LAST_EPOCH + opening);
        assert!(again.is_failed(LAST_EPOCH) && !again.is_failed(LAST_EPOCH - 1));
        assert!(matches!(again.sync(&mut session), Err(Error::EpochsExhausted { .. })));
    }
}
