//! What the figures of the logs (OOPSLA'17, section 5.1) share.

use crate::cso_append::{BATCH, SizeReport, measure, medium, region_in, warm_up};
use crate::interleave::Outcome;
use crate::logs::SIZES;
use crate::machine::Bytes;
use crate::paper::figure::{Context, Error};
use crate::paper::report::{Panel, Point};
use crate::place::Place;

/// Where all of it stands in the paper.
pub(in crate::paper) const SOURCE: &str =
    "Cohen, Friedman, Larus: Efficient Logging in Non-Volatile Memory (OOPSLA'17), section 5.1";

/// Rounds of a measurement of logs.
pub(in crate::paper) fn rounds(context: &Context<'_>) -> usize {
    if context.quick { 60 } else { 400 }
}

/// What a round is, in words.
pub(in crate::paper) fn method(place: &Place, context: &Context<'_>) -> String {
    let region = Bytes(region_in(place, context.quick));
    format!("medians of {} interleaved rounds of {BATCH} appends, {region} for each log", rounds(context))
}

/// Measures all logs at all sizes in a place.
pub(in crate::paper) fn all_sizes(context: &Context<'_>, place: &Place) -> Result<Vec<SizeReport>, Error> {
    let (rounds, region) = (rounds(context), region_in(place, context.quick));
    let mut reports = Vec::new();
    for size in SIZES {
        context.now(format!("{} entries, {}", size.name, place.pages));
        reports.push(measure(place, size, region, rounds, &mut || context.tick())?);
    }
    Ok(reports)
}

/// Rounds of a point, those included that are not counted.
pub(in crate::paper) fn rounds_of_a_point(context: &Context<'_>) -> usize {
    rounds(context) + warm_up(rounds(context))
}

/// The throughput of appending and reading, the paper's stress test, of each contestant but the floor.
pub(in crate::paper) fn set_stress(panel: &mut Panel, at: usize, outcomes: &[Outcome<2>]) {
    for outcome in outcomes.iter().filter(|o| !o.name.starts_with("floor")) {
        panel.set(&outcome.name, at, Point::throughput(&outcome.phases[0].plus(&outcome.phases[1])));
    }
}

/// Median of the ratio of the stress test's throughputs: how much `name` is ahead of `other`.
pub(in crate::paper) fn stress_ratio(outcomes: &[Outcome<2>], name: &str, other: &str) -> Option<f64> {
    let time = |name: &str| {
        let outcome = outcomes.iter().find(|o| o.name == name)?;
        Some(outcome.phases[0].plus(&outcome.phases[1]))
    };
    Some(time(other)?.ratio_to(&time(name)?).median())
}

/// The medium of the benches, in words.
pub(in crate::paper) fn medium_text() -> String {
    crate::paper::figure::medium_text(medium())
}
