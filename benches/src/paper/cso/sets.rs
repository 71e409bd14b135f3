//! What the figures of the persistent set (OOPSLA'17, section 5.4) share.
//!
//! The paper's stress test has 50% reads and 50% updates of keys that are there ("based on YCSB workload B"), one thread; which
//! distribution the keys have it does not say, here it is uniform. Reads and updates alternate. Neither of the paper's sets
//! is for threads. Ours is, so the comparator that counts has the same contract; the one for a single thread runs beside it.

use durix_pmem::Medium;

use crate::cso_append::{medium, warm_up};
use crate::interleave::Outcome;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point, ahead};
use crate::place::Place;
use crate::pset::{OPERATIONS, counts, measure};

/// Where all of it stands in the paper.
pub(in crate::paper) const SOURCE: &str =
    "Cohen, Friedman, Larus: Efficient Logging in Non-Volatile Memory (OOPSLA'17), section 5.4";

/// The comparator with the contract of ours, and the one for a single thread.
pub(in crate::paper) const COMPARATORS: [&str; 2] = ["TwoRounds", "TwoRounds, one thread"];

/// One point of a figure: sets of so many keys, entries of so many lines.
#[derive(Clone, Copy, Debug)]
pub(in crate::paper) struct At {
    pub(in crate::paper) keys: u64,
    pub(in crate::paper) lines: usize,
}

/// Rounds at one point.
pub(in crate::paper) fn rounds(context: &Context<'_>) -> usize {
    if context.quick { 25 } else { 60 }
}

/// Rounds that a point takes, those included that are not counted.
pub(in crate::paper) fn rounds_of_a_point(context: &Context<'_>) -> usize {
    rounds(context) + warm_up(rounds(context))
}

/// Makes sure that the place has room for the three sets of a point.
pub(in crate::paper) fn check_room(place: &Place, at: At) -> Result<(), Error> {
    let needed = at.keys * at.lines as u64 * 64 * 4 + (256 << 20);
    crate::paper::figure::check_room(place, needed, || {
        format!("three sets of {} keys in {} line(s)", at.keys, at.lines)
    })
}

/// Measures one point.
pub(in crate::paper) fn measure_at<M: Medium>(
    context: &Context<'_>,
    place: &Place,
    medium: M,
    at: At,
) -> Result<Vec<Outcome<3>>, Error> {
    check_room(place, at)?;
    Ok(measure(place, medium, (at.keys, at.lines), rounds(context), &mut || context.tick())?)
}

/// The panels of a figure: the paper's mix, and its two halves alone.
pub(in crate::paper) fn panels(
    context: &Context<'_>,
    place: &Place,
    x_label: &str,
    x: &[String],
    what: &str,
) -> [Panel; 3] {
    let how = format!("{what}; medians of {} interleaved rounds of {OPERATIONS} operations", rounds(context));
    ["half reads, half updates", "updates alone", "reads alone"].map(|title| {
        let panel = Panel::new(title, place, crate::paper::figure::medium_text(medium()), how.clone());
        panel.axes(x_label, x.to_vec(), "million operations/s", Form::Lines)
    })
}

/// Adds what was measured at place number `at` of the axis.
pub(in crate::paper) fn set_points(panels: &mut [Panel; 3], at: usize, outcomes: &[Outcome<3>]) {
    for outcome in outcomes {
        for (phase, panel) in panels.iter_mut().enumerate() {
            // The floor has no reads to speak of.
            if outcome.name != "floor" || phase == 1 {
                panel.set(&outcome.name, at, Point::throughput(&outcome.phases[phase]));
            }
        }
    }
}

/// How much STPS is ahead of a comparator in the mix.
pub(in crate::paper) fn ratio(outcomes: &[Outcome<3>], comparator: &str, phase: usize) -> f64 {
    let of = |name: &str| outcomes.iter().find(|o| o.name == name).map(|o| &o.phases[phase]);
    match (of(comparator), of("STPS")) {
        (Some(other), Some(ours)) => other.ratio_to(ours).median(),
        _ => f64::NAN,
    }
}

/// The claim of one point, with the goal of this project if there is one.
pub(in crate::paper) fn claim(outcomes: &[Outcome<3>], what: String, paper: &str, goal: Option<f64>) -> Claim {
    let [shared, single] = COMPARATORS.map(|comparator| ratio(outcomes, comparator, 0));
    let goal_text = goal.map_or(String::new(), |g| format!(" (goal: {:.0}%)", (g - 1.0) * 100.0));
    let ours = format!("{}{goal_text}; of the one for one thread {}", ahead(shared), ahead(single));
    Claim { what, paper: paper.into(), ours, holds: goal.map(|goal| shared >= goal) }
}

/// The exact counts of an update, as a claim.
pub(in crate::paper) fn count_claim(lines: usize) -> Result<Claim, Error> {
    let [(write_backs, fences), (other_write_backs, other_fences)] = counts(lines)?;
    Ok(Claim {
        what: format!("an update of {lines} line(s)"),
        paper: "one round trip instead of two".into(),
        ours: format!(
            "STPS {write_backs:.2} write-backs, {fences:.2} fences; TwoRounds {other_write_backs:.2} and {other_fences:.2}"
        ),
        holds: Some(fences == 1.0),
    })
}

/// A number of keys as the paper writes it.
pub(in crate::paper) fn keys_text(keys: u64) -> String {
    match keys {
        k if k >= 1 << 20 && k.is_multiple_of(1 << 20) => format!("{}M", k >> 20),
        k if k >= 1 << 10 && k.is_multiple_of(1 << 10) => format!("{}K", k >> 10),
        k => k.to_string(),
    }
}

/// A figure that varies one thing: measures each point in each place.
pub(in crate::paper) fn run_points(
    context: &Context<'_>,
    (x_label, x): (&str, Vec<String>),
    what: &str,
    points: &[At],
    claim_of: impl Fn(usize, &[Outcome<3>], &Place) -> Option<Claim>,
) -> Result<Measured, Error> {
    context.expect(points.len(), rounds_of_a_point(context));
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![CONTRACT.into()] };
    for place in &context.places {
        points.iter().try_for_each(|at| check_room(place, *at))?;
        let mut panels = panels(context, place, x_label, &x, what);
        for (number, at) in points.iter().enumerate() {
            context.now(format!("{} keys, {} line(s), {}", keys_text(at.keys), at.lines, place.pages));
            let outcomes = measure_at(context, place, medium(), *at)?;
            set_points(&mut panels, number, &outcomes);
            measured.claims.extend(claim_of(number, &outcomes, place));
        }
        measured.panels.extend(panels);
    }
    Ok(measured)
}

/// What a reader has to know of the comparators.
pub(in crate::paper) const CONTRACT: &str = "STPS and TwoRounds are for any number of threads and return only what is durable; \
                                   \"one thread\" is TwoRounds without locks, sequence numbers, or that promise";

/// A figure of section 5.4.
pub(in crate::paper) const fn figure(
    name: &'static str,
    title: &'static str,
    keys: &'static str,
    run: fn(&Context<'_>) -> Result<Measured, Error>,
) -> Figure {
    Figure { name, title, source: SOURCE, keys: Some(keys), run }
}
