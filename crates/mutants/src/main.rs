//! `cargo run --release -p durix-mutants [-- [--quick] [--json] [--show] [STRUCTURE…]]`

use std::process::ExitCode;

use durix_mutants::patterns::patterns;
use durix_mutants::registry::structures;
use durix_mutants::sweep::{Effort, sweep};
use durix_mutants::table;

const HELP: &str = "\
Plants faults in every structure, and shows that the crash tests notice.

usage: durix-mutants [--quick] [--json] [--show] [STRUCTURE…]
  --quick   only dropped calls and planted patterns; failures are not shrunk
  --json    one JSON object a fault instead of the table
  --show    prints the failure of each fault
  STRUCTURE only those whose name contains this";

fn main() -> ExitCode {
    let (flags, names): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let flag = |name: &str| flags.iter().any(|f| f == name);
    if flag("--help") || flag("-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = flags.iter().find(|f| !["--quick", "--json", "--show"].contains(&f.as_str())) {
        eprintln!("unknown option {unknown}\n\n{HELP}");
        return ExitCode::from(2);
    }
    let effort = Effort { quick: flag("--quick"), quality: !flag("--quick") };
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| name.contains(n.as_str()));
    let mut faults = Vec::new();
    for structure in structures().iter().filter(|s| wanted(s.name)) {
        faults.extend(sweep(structure, effort, |fault| {
            if let Some(told) = fault.told.as_ref().filter(|_| flag("--show")) {
                eprintln!("== {} {} {}\n{}\n", fault.structure, fault.place, fault.kind, told.failure);
            }
        }));
        eprintln!("{}: {} faults so far", structure.name, faults.len());
    }
    if wanted("planted") {
        faults.extend(patterns().iter().map(|pattern| pattern.attempt()));
    }
    if flag("--json") {
        print!("{}", table::json(&faults));
    } else {
        println!("{}", table::table(&faults));
        print!("{}", table::quality(&faults));
    }
    println!("{}", table::summary(&faults));
    if faults.iter().all(|f| f.caught.is_some()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
