//! Figure 7(b): throughput of the persistent set by its size.

use super::sets::{At, claim, figure, keys_text, run_points};
use crate::paper::figure::{Context, Error, Figure, Measured};

pub(in crate::paper) const FIGURE: Figure = figure(
    "cso-fig7b",
    "throughput of the persistent set by number of keys",
    "keys of the largest sets (default 33554432, or 524288 with --quick)",
    run,
);

/// The smallest set of the paper; each is four times as large as the one before.
const SMALLEST: u64 = 2 << 10;

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let largest = context.keys_or(if context.quick { 512 << 10 } else { 32 << 20 });
    let smallest = SMALLEST.min(largest);
    let sizes: Vec<u64> =
        std::iter::successors(Some(smallest), |k| Some(k * 4)).take_while(|k| *k <= largest).collect();
    let points: Vec<At> = sizes.iter().map(|keys| At { keys: *keys, lines: 1 }).collect();
    let x = sizes.iter().map(|keys| keys_text(*keys)).collect();
    run_points(context, ("keys", x), "one line an entry", &points, |at, outcomes, place| {
        let paper = if sizes[at] <= 128 << 10 { "52% to 56% ahead" } else { "23% to 29% ahead" };
        let what = format!("STPS to TwoRounds, {} keys, {}", keys_text(sizes[at]), place.pages);
        Some(claim(outcomes, what, paper, None))
    })
}
