//! Every crash state of short sequences of allocations: what is linked is allocated, what is allocated is linked, and
//! an object is durable when its link is.

use durix_crashsim::{Explorer, Persistency, Report, Sites, Threads, crash_test, mutation_sweep};
use durix_pmem::{Plan, SiteKind};
use durix_subjects::space::Action::{self, *};
use durix_subjects::space::{AFTER, ALPHABET, Allocator, HISTORIES, LINKS};
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};

#[test]
fn all_short_sequences_with_a_crash_in_recovery() {
    for model in [Persistency::Pcso, Persistency::TornWords, Persistency::Eadr] {
        let subject = Allocator { plan: Plan::new() };
        let report = Explorer::new().model(model).crashes(2).sequences(&subject, &ALPHABET, 3, &AFTER).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

#[test]
fn extents_found_by_owner_come_and_go() {
    let subject = Allocator { plan: Plan::new() };
    let actions = [Extent(1), FreeExtent, Extent(2), FreeExtent, FreeExtent, Extent(3), ExtentAndDie(4)];
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let report = Explorer::new().model(model).crashes(2).run_then(&subject, &actions, &[FreeExtent]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

fn action() -> impl Strategy<Value = Action> + 'static {
    prop_oneof![
        3 => (0..LINKS, 1..100u64).prop_map(|(i, v)| Block(i, v)),
        2 => (0..LINKS, 1..100u64).prop_map(|(i, v)| LinkedExtent(i, v)),
        4 => (0..LINKS).prop_map(Free),
        2 => (0..LINKS).prop_map(Mark),
    ]
}

crash_test! {
    name: long_random_sequences_sampled,
    subject: Allocator { plan: Plan::new() },
    explorer: Explorer::new(),
    histories: (vec(action(), 8..30), vec(action(), 0..5)),
    cases: if std::env::var_os("DURIX_DEEP").is_some() { 5000 } else { 60 },
}

/// Blocks of one slab, extents of neighbouring chunks, and a chunk that one thread gives back and the other may take.
#[test]
fn two_threads_that_allocate_and_free() {
    let programs = [
        ("blocks", [vec![Block(0, 7), Free(0)], vec![Block(1, 8), Free(1)]]),
        ("a block and an extent", [vec![Block(0, 7), Free(0)], vec![LinkedExtent(1, 8), Free(1)]]),
        ("extents", [vec![LinkedExtent(0, 7), Free(0)], vec![LinkedExtent(1, 8), Block(1, 9)]]),
        ("what is freed is taken", [vec![Free(0), Block(0, 7)], vec![OtherBlock(1, 8), Free(1)]]),
    ];
    for (name, program) in programs {
        let threads = Threads::new(Explorer::new()).preemptions(2);
        let report = threads.run(&Allocator { plan: Plan::new() }, &program, &AFTER).assert_ok();
        println!("{name}: {report}");
        assert!(report.complete, "{name}");
    }
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        except: vec![],
        files: vec!["pmem/src/space/".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![durix_pmem::Mutation::Drop],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let subject = Allocator { plan };
        let explorer = Explorer::new().crashes(2);
        let mut last = Report::default();
        for history in HISTORIES {
            if last.failure.is_none() {
                last = explorer.run_then(&subject, history, &AFTER);
            }
        }
        last
    });
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}
