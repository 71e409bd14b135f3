//! `cargo bench -p durix-bench -- crashsim`: how many recoveries a second the crash simulator runs on one core, for a bare
//! structure in an arena of 64 lines, and through opening a whole pool.

use std::time::{Duration, Instant};

use durix_bench::run::Run;
use durix_crashsim::{Explorer, Report};
use durix_mutants::subjects::pool::{HISTORIES, Lifetime};
use durix_mutants::subjects::stack::Stack;
use durix_pmem::Plan;

fn measure(name: &str, time: Duration, explore: impl Fn() -> Report) {
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

fn main() {
    let run = Run::this();
    if !run.wants("crashsim") {
        return;
    }
    let time = Duration::from_millis(if run.quick { 100 } else { 2000 });
    println!("recoveries a second on one core:");
    let stack = |read, settled, pushes: u64| {
        let ops: Vec<u64> = (1..=pushes).collect();
        move || Explorer::new().run(&Stack { read, settled }, &ops)
    };
    measure("bare, 30 nodes, links alone", time, stack(0, true, 30));
    measure("bare, 2 nodes, all values open", time, stack(7, false, 2));
    measure("bare, 3 nodes, all values open", time, stack(7, false, 3));
    measure("through a pool", time, || Explorer::new().run(&Lifetime::new(Plan::new()), HISTORIES[1]));
}
