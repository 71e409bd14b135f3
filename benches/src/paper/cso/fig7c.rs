//! Figure 7(c): throughput of the persistent set by size of entry.

use super::sets::{At, claim, figure, keys_text, run_points};
use crate::paper::figure::{Context, Error, Figure, Measured};

pub(in crate::paper) const FIGURE: Figure = figure(
    "cso-fig7c",
    "throughput of the persistent set by size of entry",
    "keys of the sets (default 1048576, or 65536 with --quick)",
    run,
);

/// Lines of an entry.
const LINES: [usize; 5] = [1, 2, 4, 8, 16];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 64 << 10 } else { 1 << 20 });
    let points: Vec<At> = LINES.iter().map(|lines| At { keys, lines: *lines }).collect();
    let x = LINES.iter().map(usize::to_string).collect();
    let what = format!("{} keys", keys_text(keys));
    run_points(context, ("lines an entry", x), &what, &points, |at, outcomes, place| {
        let paper = match LINES[at] {
            1 | 2 => "25.9% to 26.5% ahead",
            4 | 8 => "16.4% to 16.7% ahead",
            _ => "9.1% ahead",
        };
        let what = format!("STPS to TwoRounds, {} line(s), {}", LINES[at], place.pages);
        Some(claim(outcomes, what, paper, None))
    })
}
