//! The `durix` command: loads, reads, checks, copies, benchmarks and tortures persistent indices.

mod args;
mod bench;
mod commands;
mod csv;
mod failure;
mod help;
mod output;
mod pools;
mod redb;
mod surroundings;
mod text;
mod torture;

use std::process::ExitCode;

use args::{Cli, Verb};
use failure::Failure;

/// What a shell shows of a command that SIGPIPE has ended.
const BROKEN_PIPE: u8 = 128 + 13;

fn main() -> ExitCode {
    surroundings::handle_signals();
    let cli = help::parse();
    match run(&cli) {
        Ok(code) => code.into(),
        // Whoever reads our output has seen enough, and knows: nothing is said. But the output was not written.
        Err(failure) if failure.is_broken_pipe() => ExitCode::from(BROKEN_PIPE),
        Err(failure) => {
            eprintln!("durix: {failure}");
            failure.code().into()
        }
    }
}

fn run(cli: &Cli) -> Result<failure::Code, Failure> {
    match &cli.verb {
        Verb::Load(args) => commands::load::run(args),
        Verb::Get(args) => commands::entries::get(args),
        Verb::Put(args) => commands::entries::put(args),
        Verb::Del(args) => commands::entries::del(args),
        Verb::Exec(args) => commands::exec::run(args),
        Verb::Scan(args) => commands::scan::run(args),
        Verb::Stat(args) => match args.watch {
            Some(seconds) => commands::watch::run(args, seconds),
            None => commands::stat::run(&args.stat),
        },
        Verb::Check(args) => commands::check::run(args),
        Verb::Scrub(args) => commands::check::scrub(args),
        Verb::Repair(args) => commands::repair::run(args),
        Verb::Dump(args) => commands::dump::run(args),
        Verb::Restore(args) => commands::restore::run(args),
        Verb::Copy(args) => commands::copy::run(args),
        Verb::Compact(args) => commands::compact::run(args),
        Verb::Kinds(args) => commands::kinds::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Torture(args) => torture::run(args),
        Verb::TortureChild(args) => torture::child::run(args),
        Verb::Completions { shell } => commands::shell::completions(*shell),
        Verb::Man => commands::shell::man(),
    }
}
