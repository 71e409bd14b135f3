//! Mutation of persistence code: a crash test that finds nothing proves nothing. Every write-back, fence, ordering point
//! and release store of every structure is made faulty in turn, and the published bug patterns are planted by hand;
//! each has to be noticed. The module `registry` says how a structure is added.
//!
//! `cargo run --release -p durix-mutants [-- [--quick] [--json] [--show] [--patterns] [--only STRUCTURE]…]`

mod clock;
mod erased;
mod goals;
mod patterns;
mod registry;
mod scenario;
mod sweep;
mod table;

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::clock::processor_time;
use crate::goals::goals;
use crate::registry::structures;
use crate::sweep::{Effort, Structure, sweep};

// For its test.
#[doc(hidden)]
pub use crate::patterns::patterns;
#[doc(hidden)]
pub use crate::sweep::Fault;

const HELP: &str = "\
Plants faults in every structure, one at a time, and shows that the crash tests notice each.

usage: durix-mutants [--quick] [--patterns] [--only NAME]… [--show] [--json] [--list]
  --quick      only dropped calls and planted patterns; failures are not shrunk. Without it, calls also come late, go
               astray or cover too few lines, each failure is shrunk, replayed, and its suggested fix is judged
  --patterns   only the planted patterns
  --only NAME  only structures whose name contains this; may be given several times
  --show       prints the failure of each fault, on the standard error
  --json       an object a fault instead of the tables
  --list       the names of the structures

Ends with `sites N, caught N, redundant 0, missed 0`, and with success if it does. A fault is caught if a crash test fails
with it, redundant if the call was shown to change nothing (then take it out), and missed otherwise.";

struct Options {
    effort: Effort,
    patterns_only: bool,
    only: Vec<String>,
    show: bool,
    json: bool,
    list: bool,
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options {
        effort: Effort { quick: false, quality: true },
        patterns_only: false,
        only: Vec::new(),
        show: false,
        json: false,
        list: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--quick" => options.effort = Effort { quick: true, quality: false },
            "--patterns" => options.patterns_only = true,
            "--only" => options.only.push(args.next().ok_or("--only needs a name")?),
            "--show" => options.show = true,
            "--json" => options.json = true,
            "--list" => options.list = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Some(options))
}

/// What the program does, with the arguments that it was called with.
pub fn run() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()));
    let wanted = || structures().into_iter().filter(|structure| wanted(structure.name)).collect::<Vec<_>>();
    if options.list {
        wanted().iter().for_each(|structure| println!("{}", structure.name));
        return ExitCode::SUCCESS;
    }
    let mut faults = if options.patterns_only { Vec::new() } else { all_swept(&wanted, &options) };
    if !options.patterns_only && faults.is_empty() {
        eprintln!("no structure has such a name; --list names them");
        return ExitCode::from(2);
    }
    let planted = if options.only.is_empty() { planted(&options) } else { Vec::new() };
    if options.json {
        print!("{}{}", table::json(&faults), table::json(&planted));
    } else {
        print_tables(&faults, &planted);
    }
    faults.extend(planted);
    for goal in goals(&faults) {
        println!("{goal}");
    }
    println!("{}", table::summary(&faults));
    let counts = |fault: &Fault| fault.caught.is_some() || fault.is_excluded();
    if faults.iter().all(counts) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The faults of all structures, in their order. Each thread takes the next structure.
fn all_swept(wanted: &(impl Fn() -> Vec<Structure> + Sync), options: &Options) -> Vec<Fault> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                // Scenarios stay in their thread, so each has its own.
                let structures = wanted();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(structure) = structures.get(number) else { break };
                    let faults = swept(structure, (number + 1, structures.len()), options);
                    done.lock().expect("no thread has panicked").push((number, faults));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread has panicked");
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().flat_map(|(_, faults)| faults).collect()
}

/// The faults of one structure; says how far it has come.
fn swept(structure: &Structure, (number, of): (usize, usize), options: &Options) -> Vec<Fault> {
    let start = processor_time();
    let mut tried = 0;
    let faults = sweep(structure, options.effort, |fault, all| {
        tried += 1;
        if stderr().is_terminal() {
            eprint!("\r[{number:2}/{of}] {}: {tried} of {all} faults", structure.name);
            // A line that is not shown is no harm.
            let _ = stderr().flush();
        }
        show(fault, options);
    });
    let missed = faults.iter().filter(|fault| fault.is_missed()).count();
    let begin = if stderr().is_terminal() { "\r" } else { "" };
    let time = (processor_time() - start).as_secs_f64();
    eprintln!("{begin}[{number:2}/{of}] {}: {} faults, {missed} missed, {time:.1} s", structure.name, faults.len());
    faults
}

fn planted(options: &Options) -> Vec<Fault> {
    let tried = patterns().into_iter().map(|pattern| {
        let fault = pattern.attempt(options.effort.quality);
        show(&fault, options);
        fault
    });
    tried.collect()
}

fn show(fault: &Fault, options: &Options) {
    if let Some(told) = fault.told.as_ref().filter(|_| options.show) {
        eprintln!("\n== {} {} {}\n{}\n", fault.structure, fault.place, fault.kind, told.failure);
    }
}

fn print_tables(faults: &[Fault], planted: &[Fault]) {
    if !faults.is_empty() {
        println!("{}\n\n{}\n", table::faults(faults), table::structures(faults));
    }
    if !planted.is_empty() {
        println!("{}\n", table::patterns(planted));
    }
    println!("{}", table::LEGEND);
    let excluded = table::excluded(faults);
    if !excluded.is_empty() {
        println!("\nnot counted, because they change nothing:\n{excluded}");
    }
    println!();
}
