//! Threads and crashes together: every interleaving of short concurrent programs on each map, every crash state of each,
//! operations after the recovery. No operation may return what a crash can take back: not a read, and not a failed insert
//! or remove. With `DURIX_DEEP` set, programs are longer and more.

use durix_crashsim::{Explorer, Persistency, Sites, Threads, mutation_sweep};
use durix_logfree::testing::Act::{self, *};
use durix_logfree::testing::{Map, Sim, UnderTest};
use durix_logfree::{
    BlobBst, BlobHash, BlobSkipList, Bst, BytesHash, HashTable, List, SkipList, SoftHash, SoftList, SoftSkipList,
};
use durix_pmem::{Plan, SiteKind};
use durix_subjects::explored::{self, deep};

fn after() -> Vec<Act> {
    vec![Insert(1, 90), Remove(0), Insert(0, 91), Get(1)]
}

fn subject<S: Map<Sim>>(before: &[Act]) -> UnderTest<S> {
    UnderTest { before: before.to_vec(), ..UnderTest::new(Plan::new()) }
}

/// Bounded: one preemption, between the change of a link and its fence, is what the known bugs of this kind need.
fn threads(model: Persistency) -> Threads {
    Threads::new(Explorer::new().model(model)).preemptions(if deep() { 2 } else { 1 })
}

#[track_caller]
fn complete<S: Map<Sim>>(name: &str, threads: &Threads, before: &[Act], program: &[Vec<Act>]) {
    explored::complete_in_time(name, || threads.run(&subject::<S>(before).boxed(), program, &after()));
}

/// A change in one thread, and what another may learn of it.
fn readers() -> Vec<(&'static str, Vec<Vec<Act>>)> {
    vec![
        ("insert and get", vec![vec![Insert(0, 5)], vec![Get(0)]]),
        ("insert and failed insert", vec![vec![Insert(0, 5)], vec![Insert(0, 6)]]),
        ("remove and get", vec![vec![Remove(1)], vec![Get(1)]]),
        ("remove and failed remove", vec![vec![Remove(1)], vec![Remove(1)]]),
        ("remove and insert", vec![vec![Remove(1)], vec![Insert(1, 7)]]),
        ("update and get", vec![vec![Update(1, 5)], vec![Get(1)]]),
        ("update and failed exchange", vec![vec![Update(1, 5)], vec![Cas(1, 10, 6)]]),
        ("two updates", vec![vec![Update(1, 5)], vec![Update(1, 6)]]),
        ("update and remove", vec![vec![Update(1, 5)], vec![Remove(1)]]),
        ("insert behind an insert", vec![vec![Insert(2, 5)], vec![Insert(4, 6)]]),
        ("remove and insert behind", vec![vec![Remove(1)], vec![Insert(3, 6)]]),
    ]
}

const BEFORE: [Act; 2] = [Insert(1, 10), Insert(5, 50)];

fn nobody_returns_what_a_crash_can_take_back<S: Map<Sim>>(model: Persistency) {
    for (name, program) in readers() {
        complete::<S>(name, &threads(model), &BEFORE, &program);
    }
}

#[test]
fn list_returns_nothing_that_a_crash_can_take_back() {
    nobody_returns_what_a_crash_can_take_back::<List<Sim>>(Persistency::Pcso);
    complete::<List<Sim>>("torn", &threads(Persistency::TornWords), &BEFORE, &readers()[6].1);
}

#[test]
fn hash_table_returns_nothing_that_a_crash_can_take_back() {
    nobody_returns_what_a_crash_can_take_back::<HashTable<Sim>>(Persistency::Pcso);
}

#[test]
fn skip_list_returns_nothing_that_a_crash_can_take_back() {
    nobody_returns_what_a_crash_can_take_back::<SkipList<Sim>>(Persistency::Pcso);
    complete::<SkipList<Sim>>("torn", &threads(Persistency::TornWords), &BEFORE, &readers()[6].1);
}

#[test]
fn search_tree_returns_nothing_that_a_crash_can_take_back() {
    nobody_returns_what_a_crash_can_take_back::<Bst<Sim>>(Persistency::Pcso);
    complete::<Bst<Sim>>("torn", &threads(Persistency::TornWords), &BEFORE, &readers()[6].1);
}

#[test]
fn soft_hash_returns_nothing_that_a_crash_can_take_back() {
    nobody_returns_what_a_crash_can_take_back::<SoftHash<Sim>>(Persistency::Pcso);
}

#[test]
fn soft_list_returns_nothing_that_a_crash_can_take_back() {
    nobody_returns_what_a_crash_can_take_back::<SoftList<Sim>>(Persistency::Pcso);
}

#[test]
fn soft_skip_list_returns_nothing_that_a_crash_can_take_back() {
    // The code of the list, on more levels, each of which multiplies the states.
    let programs = readers().into_iter().enumerate().filter(|(number, _)| deep() || number % 4 == 0);
    for (_, (name, program)) in programs {
        complete::<SoftSkipList<Sim>>(name, &threads(Persistency::Pcso), &BEFORE, &program);
    }
}

/// One key, in records that are written, replaced and removed by two threads. The programs that leave most states only with `DURIX_DEEP`.
#[test]
fn maps_of_byte_strings_return_nothing_that_a_crash_can_take_back() {
    let quick = ["insert and get", "update and get", "update and remove"];
    for (name, program) in readers() {
        if deep() || quick.contains(&name) {
            complete::<BlobHash<Sim>>(name, &threads(Persistency::Pcso), &BEFORE, &program);
        }
        if deep() {
            complete::<BlobBst<Sim>>(name, &threads(Persistency::Pcso), &BEFORE, &program);
            complete::<BlobSkipList<Sim>>(name, &threads(Persistency::Pcso), &BEFORE, &program);
        }
    }
}

/// All keys have one hash, and share a record.
#[test]
fn keys_with_one_hash_do_not_lose_each_other() {
    let programs = [
        [vec![Update(3, 12)], vec![Get(6)]],
        [vec![Insert(9, 4)], vec![Remove(3)]],
        [vec![Insert(9, 4)], vec![Insert(12, 8)]],
        [vec![Remove(3)], vec![Remove(6)]],
    ];
    for program in programs.into_iter().take(if deep() { 4 } else { 2 }) {
        let options = <BytesHash<Sim> as Map<Sim>>::small().hash_bits(0);
        let subject = UnderTest::<BytesHash<Sim>> { options, ..subject(&[Insert(3, 4), Insert(6, 8)]) };
        let report =
            threads(Persistency::Pcso).run(&subject.boxed(), &program, &[Remove(6), Insert(0, 16), Get(9)]).assert_ok();
        println!("one hash, {program:?}: {report}");
        assert!(report.complete, "{program:?} is not complete: {report}");
    }
}

#[test]
fn two_threads_of_two_operations() {
    let program = [vec![Insert(0, 2), Get(1)], vec![Remove(1), Get(0)]];
    let threads = threads(Persistency::Pcso).preemptions(if deep() { 3 } else { 1 });
    complete::<List<Sim>>("list", &threads, &BEFORE, &program);
    complete::<HashTable<Sim>>("hash table", &threads, &BEFORE, &program);
    complete::<SkipList<Sim>>("skip list", &threads, &BEFORE, &program);
    complete::<Bst<Sim>>("search tree", &threads, &BEFORE, &program);
    complete::<SoftHash<Sim>>("soft hash", &threads, &BEFORE, &program);
    complete::<SoftList<Sim>>("soft list", &threads, &BEFORE, &program);
}

#[test]
fn three_threads() {
    let program = [vec![Insert(2, 2)], vec![Remove(1)], vec![Update(1, 7)]];
    let threads = threads(Persistency::Pcso).preemptions(if deep() { 3 } else { 1 });
    complete::<List<Sim>>("list", &threads, &BEFORE, &program);
    complete::<SkipList<Sim>>("skip list", &threads, &BEFORE, &program);
    complete::<Bst<Sim>>("search tree", &threads, &BEFORE, &program);
    complete::<SoftHash<Sim>>("soft hash", &threads, &BEFORE, &program);
    complete::<SoftList<Sim>>("soft list", &threads, &BEFORE, &program);
}

/// LF-M2: the extent that one session has added is used by another, whose fence does not cover it.
#[test]
fn an_extent_is_durable_before_another_session_uses_it() {
    let mut sites = Sites::in_files("src/soft/store.rs");
    sites.kinds = vec![SiteKind::Fence];
    let sweep = mutation_sweep(&sites, |plan| {
        let subject = UnderTest::<SoftHash<Sim>> { chunk: 8192, used_before: true, ..UnderTest::new(plan) };
        let program = [vec![Insert(0, 1)], vec![Insert(1, 2)]];
        Threads::new(Explorer::new().executions_per_point(100).samples(20)).preemptions(1).run(
            &subject.boxed(),
            &program,
            &[],
        )
    });
    println!("{sweep}");
    // LF-M1 is the business of the sequential sweep, LF-M2 of this one.
    assert!(sweep.mutants.len() == 2 && sweep.mutants[1].caught(), "{sweep}");
}
