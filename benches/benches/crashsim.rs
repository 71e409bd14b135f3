//! `cargo bench -p durix-bench -- crashsim`: how many recoveries a second the crash simulator runs on one core, for a bare
//! structure in an arena of 64 lines and through opening a whole pool; and how long complete explorations take: threads
//! and nested crashes on a list and on the set, large objects.

use std::time::{Duration, Instant};

use durix_bench::run::Run;
use durix_crashsim::{Concurrent, Explorer, Persistency, Report, Threads};
use durix_pmem::Plan;
use durix_pset::testing::concurrent::{Act, SetUnderTest};
use durix_subjects::concurrent_list::{Bug, List, ListOp};
use durix_subjects::large::{Kind, Large};
use durix_subjects::pool::{HISTORIES, Lifetime};
use durix_subjects::stack::Stack;

fn rate(name: &str, time: Duration, explore: impl Fn() -> Report) {
    let start = Instant::now();
    let (mut total, mut best) = (Report::default(), 0f64);
    while start.elapsed() < time {
        let (round, mut executions) = (Instant::now(), 0);
        while round.elapsed() < time / 20 {
            let report = explore().assert_ok();
            executions += report.executions;
            total.merge(report);
        }
        best = best.max(executions as f64 / round.elapsed().as_secs_f64());
    }
    let mean = total.executions as f64 / start.elapsed().as_secs_f64();
    println!("{name:32} {:8.3} M/s, at best {:6.3} M/s; {total}", mean / 1e6, best / 1e6);
}

fn rates(time: Duration) {
    println!("recoveries a second on one core:");
    let stack = |read, settled, pushes: u64| {
        let ops: Vec<u64> = (1..=pushes).collect();
        move || Explorer::new().crashes(1).run(&Stack { read, settled }, &ops)
    };
    rate("bare, 30 nodes, links alone", time, stack(0, true, 30));
    rate("bare, 2 nodes, all values open", time, stack(7, false, 2));
    rate("bare, 3 nodes, all values open", time, stack(7, false, 3));
    rate("through a pool", time, || Explorer::new().crashes(1).run(&Lifetime::new(Plan::new()), HISTORIES[1]));
}

fn once(name: &str, explore: impl FnOnce() -> Report) {
    let start = Instant::now();
    let report = explore().assert_ok();
    println!("{name:40} {:7.2} s; {report}", start.elapsed().as_secs_f64());
}

/// The programs of one subject: two threads of two operations without a bound on preemptions, of three operations with at
/// most three, three threads of two with at most two; and both crashes.
fn programs<S: Concurrent>(name: &str, subject: &S, programs: &[Vec<Vec<S::Op>>; 3], after: &[S::Op]) {
    let threads = |crashes| Threads::new(Explorer::new().crashes(crashes).crash_later(true));
    once(&format!("{name}, two of two"), || threads(1).run(subject, &programs[0], after));
    once(&format!("{name}, two of three, 3 preemptions"), || {
        threads(1).preemptions(3).run(subject, &programs[1], after)
    });
    once(&format!("{name}, three of two, 2 preemptions"), || {
        threads(1).preemptions(2).run(subject, &programs[2], after)
    });
    once(&format!("{name}, two of two, nested crashes"), || threads(2).run(subject, &programs[0], &after[..1]));
}

fn on_the_list() {
    use ListOp::{Get, Insert, Remove};
    let all = [
        vec![vec![Insert(1, 10), Remove(2)], vec![Insert(2, 20), Get(1)]],
        vec![vec![Insert(1, 10), Remove(2), Get(1)], vec![Insert(2, 20), Remove(1), Insert(1, 11)]],
        vec![vec![Insert(1, 10), Get(2)], vec![Insert(2, 20), Remove(1)], vec![Insert(1, 11), Get(2)]],
    ];
    let after = [Insert(9, 90), Remove(2), Get(1)];
    programs("list without locks", &List::lock_free(Bug::None), &all, &after);
    programs("list under a lock", &List::locked(Bug::None), &all, &after);
}

fn on_the_set() {
    use Act::{Get, Put, PutNew, Remove};
    let all = [
        vec![vec![Remove(0), Get(0)], vec![Put(0, 3), PutNew(0, 4)]],
        vec![vec![Put(0, 2), Remove(1), Get(0)], vec![Put(1, 3), Remove(0), Get(1)]],
        vec![vec![Put(0, 2), Get(1)], vec![Remove(0), Get(0)], vec![Get(1), Get(0)]],
    ];
    programs("set", &SetUnderTest::new(&[Put(0, 1)]), &all, &durix_pset::testing::concurrent::after());
}

fn large_objects() {
    once("node of 16 KiB, published", || Explorer::new().run(&Large(Kind::Node), &[1, 2]));
    let torn = Explorer::new().model(Persistency::TornWords);
    once("record of 4 KiB, checksummed, torn words", || torn.run(&Large(Kind::Record), &[1, 2, 3]));
}

fn main() {
    let run = Run::this();
    if !run.wants("crashsim") {
        return;
    }
    rates(Duration::from_millis(if run.quick { 100 } else { 2000 }));
    println!("complete explorations:");
    large_objects();
    on_the_list();
    if !run.quick {
        on_the_set();
    }
}
