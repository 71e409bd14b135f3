//! Figure 5: updates of the log-free sets over those that are made durable by redo logs, by size, for one thread and two.

use super::sets::{
    CONTRACT, Expected, check_room, claim, count_claims, figure, fits, floor_claim, measure_at, panel,
    rounds_of_a_point, set_ratios, set_throughput, sizes_text,
};
use crate::logfree::make::{Protocol, Shape, What};
use crate::logfree::report::Outcomes;
use crate::logfree::rounds::Mix;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Panel};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure(
    "logfree-fig5",
    "updates over those of log-based sets, by size, 1 and 2 threads",
    Some("the one size of all sets, instead of several"),
    run,
);

const WAYS: [Protocol; 4] = [Protocol::Soft, Protocol::Links, Protocol::Redo, Protocol::Cso];
const THREADS: [u64; 2] = [1, 2];
/// The size for which there are goals.
const GOAL_KEYS: u64 = 1 << 10;

fn sizes(context: &Context<'_>, shape: Shape) -> Vec<u64> {
    match (context.keys, context.quick, shape) {
        (Some(keys), ..) => vec![keys],
        (None, true, Shape::List) => vec![128, 1 << 10],
        (None, true, _) => vec![1 << 10, 64 << 10],
        (None, false, Shape::List) => vec![32, 128, 1 << 10, 4 << 10],
        (None, false, _) => vec![128, 1 << 10, 16 << 10, 256 << 10, 4 << 20],
    }
}

/// Link-and-persist over the redo log at 1024 keys, at least.
fn goal(shape: Shape) -> Option<f64> {
    match shape {
        Shape::Hash => Some(1.8),
        Shape::Bst => Some(1.4),
        Shape::SkipList => Some(5.0),
        Shape::List => None,
    }
}

/// And at any size.
const NEVER_BELOW: f64 = 0.95;

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let points: usize = Shape::ALL.iter().map(|shape| sizes(context, *shape).len()).sum();
    context.expect(points * THREADS.len(), rounds_of_a_point(context));
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![CONTRACT.into()] };
    for place in &context.places {
        for shape in Shape::ALL {
            for threads in THREADS {
                let (panels, claims) = curves(context, place, shape, threads)?;
                measured.panels.extend(panels);
                measured.claims.extend(claims);
            }
        }
    }
    for shape in Shape::ALL {
        measured.claims.extend(count_claims(shape, if shape == Shape::List { 128 } else { GOAL_KEYS })?);
    }
    let mut all: Vec<u64> = Shape::ALL.iter().flat_map(|shape| sizes(context, *shape)).collect();
    all.sort_unstable();
    all.dedup();
    measured.notes.extend(all.into_iter().map(fits));
    Ok(measured)
}

fn curves(context: &Context<'_>, place: &Place, shape: Shape, threads: u64) -> Result<([Panel; 2], Vec<Claim>), Error> {
    let sizes = sizes(context, shape);
    let x = sizes_text(&sizes);
    let title = |what: &str| format!("{}, {threads} thread(s): {what}", shape.name());
    let mut throughput = panel(context, place, title("updates"), ("keys", &x), "million operations/s");
    let mut ratios = panel(context, place, title("over the redo log"), ("keys", &x), "times the redo log");
    let mut claims = Vec::new();
    for (at, keys) in sizes.into_iter().enumerate() {
        context.now(format!("{}, {} keys, {threads} thread(s)", shape.name(), x[at]));
        let what = WAYS.map(|way| What { shape, way, keys, threads, mix: Mix::UPDATES });
        check_room(place, &what)?;
        let outcomes = measure_at(context, place, medium(), &what)?;
        set_throughput(&mut throughput, at, &outcomes);
        set_ratios(&mut ratios, at, &outcomes, Protocol::Redo);
        claims.extend(claims_of(&outcomes, shape, threads, keys, format!("{}, {}", x[at], place.pages)));
    }
    Ok(([throughput, ratios], claims))
}

fn claims_of(outcomes: &Outcomes, shape: Shape, threads: u64, keys: u64, at: String) -> Vec<Claim> {
    let what = format!("{}, {at}, {threads} thread(s)", shape.name());
    let paper = match shape {
        Shape::SkipList => "about an order of magnitude",
        _ => "several-fold for small and medium sizes, less for large ones",
    };
    let goal = goal(shape).filter(|_| keys == GOAL_KEYS).unwrap_or(NEVER_BELOW);
    let links = Expected { what: what.clone(), paper, ways: (Protocol::Links, Protocol::Redo), goal: Some(goal) };
    let soft_goal = (shape == Shape::Hash && keys == GOAL_KEYS).then_some(2.0);
    let soft =
        Expected { what: what.clone(), paper: "(ours)", ways: (Protocol::Soft, Protocol::Links), goal: soft_goal };
    let mut claims: Vec<Claim> = [links, soft].into_iter().filter_map(|expected| claim(outcomes, expected)).collect();
    if shape == Shape::Hash && keys == GOAL_KEYS && threads == 1 {
        claims.extend(floor_claim(outcomes, what, 1.35));
    }
    claims
}
