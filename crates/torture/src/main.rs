//! `durix-contend [kind] [seconds] [seed]`: contended stress of one kind, or of all, for longer than the tests have time.

use std::process::ExitCode;
use std::time::Duration;

use durix::Hardware;
use durix_torture::{Setting, contend};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = args.first().map_or("all", String::as_str);
    let number = |at: usize, or: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let (seconds, seed, mut failed) = (number(1, 10), number(2, 1), false);
    for kind in durix::kind::kinds::<Hardware>().iter().filter(|kind| wanted == "all" || kind.name == wanted) {
        for (share, (threads, keys, full)) in (0..).zip(Setting::SHAPES) {
            let time = Duration::from_secs(seconds) / Setting::SHAPES.len() as u32;
            match contend(kind, Setting { threads, keys, full, seed: seed + share, time }) {
                Ok(report) => println!("{:16} {threads} threads, {keys} keys, full {full}: {report:?}", kind.name),
                Err(what) => {
                    println!("FAILED {what}");
                    failed = true;
                }
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
