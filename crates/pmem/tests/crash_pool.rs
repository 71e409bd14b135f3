//! Every crash state of short lives of a pool: creating it, indices that come, go and change their names, growing,
//! closing and opening again.

use durix_crashsim::{Explorer, Persistency, Sites, mutation_sweep};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Hardware, Mutation, Plan, SiteKind};
use durix_subjects::pool::Action::*;
use durix_subjects::pool::{AFTER, HISTORIES, LIMIT, Lifetime, options};

#[test]
fn short_lives_with_a_crash_in_recovery() {
    for model in [Persistency::Pcso, Persistency::TornWords, Persistency::Eadr] {
        let subject = Lifetime::new(Plan::new());
        for history in HISTORIES {
            let report = Explorer::new().model(model).crashes(2).run_then(&subject, history, &AFTER).assert_ok();
            println!("{model}: {report}");
            assert!(report.complete);
        }
    }
}

#[test]
fn all_sequences_of_index_changes() {
    let subject = Lifetime::new(Plan::new());
    let alphabet = [Open("a", 1), Open("b", 2), Rename("a", "b"), Drop("a"), Extend("a")];
    let report = Explorer::new().sequences(&subject, &alphabet, 3, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn what_a_dead_process_left_visible_is_durable_once_it_is_seen() {
    let subject = Lifetime::new(Plan::new());
    for history in [&[Open("a", 1), ExtendAndDie("a"), Open("b", 2)], &[Open("a", 1), ExtendAndDie("a"), Drop("a")]] {
        let report = Explorer::new().run_then(&subject, history, &AFTER).assert_ok();
        println!("{report}");
        assert!(report.complete);
    }
}

#[test]
fn a_crash_in_creation_leaves_a_pool_or_room_for_one() {
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let subject = Lifetime { from_nothing: true, ..Lifetime::new(Plan::new()) };
        let report = Explorer::new().model(model).run(&subject, &[Create, Open("a", 1), Reopen]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

#[test]
fn a_pool_says_that_it_was_closed_exactly_if_it_was() {
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let subject = Lifetime { closing: true, ..Lifetime::new(Plan::new()) };
        for history in [&[Open("a", 1), Close, OpenAgain, Close], &[Close, OpenAgain, Open("b", 1), Close]] {
            let report = Explorer::new().model(model).run(&subject, history).assert_ok();
            println!("{model}: {report}");
            assert!(report.complete);
        }
    }
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        except: vec![],
        files: vec!["pmem/src/pool/".into(), "pmem/src/space/".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![Mutation::Drop],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let explorer = Explorer::new().model(Persistency::TornWords);
        let from_nothing = Lifetime { from_nothing: true, ..Lifetime::new(plan) };
        let mut last = explorer.run(&from_nothing, &[Create, Open("a", 1)]);
        let closing = Lifetime { closing: true, ..Lifetime::new(plan) };
        if last.failure.is_none() {
            last = explorer.run(&closing, &[Open("a", 1), Close, OpenAgain, Rename("a", "b"), Close]);
        }
        for history in HISTORIES {
            if last.failure.is_none() {
                last = explorer.clone().crashes(2).run_then(&Lifetime::new(plan), history, &AFTER);
            }
        }
        // What opening writes back matters only after a process has died inside one of the pool's own operations.
        for history in [[Open("a", 1), Set("a", 8)], [Open("a", 1), Rename("a", "b")], [Open("a", 1), Drop("a")]] {
            if last.failure.is_none() {
                let deaths = Explorer::new().process_deaths(true);
                last = deaths.run_then(&Lifetime::new(plan), &history, &AFTER[..1]);
            }
        }
        last
    });
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}

#[test]
fn opening_writes_back_all_that_others_build_on() {
    let counting = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
    let pool = options().create_on(HeapBacking::new(LIMIT), counting).unwrap();
    pool.mapping().shut();
    let image = HeapBacking::image_of(pool.mapping());
    let before = counting.counts();
    let pool = options().open_on(HeapBacking::from_image(image), counting).unwrap().recover().unwrap();
    let written = (counting.counts() - before).write_backs;
    let (header, state, roots, tables) = (1, 1, 4 * 4, 1);
    assert_eq!(written, header + state + roots + tables);
    drop(pool);
}
