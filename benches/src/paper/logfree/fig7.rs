//! Figure 7: what durability costs: updates over those of the same code where nothing is written back, by size.

use super::sets::{
    Expected, claim, figure, fits, measure_at, panel, rounds_of_a_point, set_ratios, set_throughput, sizes_text,
};
use crate::logfree::make::{Protocol, Shape, What};
use crate::logfree::rounds::Mix;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure(
    "logfree-fig7",
    "updates over those of sets that are not durable, by size",
    Some("the one size of all sets, instead of several"),
    run,
);

const WAYS: [Protocol; 3] = [Protocol::Soft, Protocol::Links, Protocol::Volatile];

fn sizes(context: &Context<'_>, shape: Shape) -> Vec<u64> {
    match (context.keys, context.quick, shape) {
        (Some(keys), ..) => vec![keys],
        (None, true, Shape::List) => vec![32, 512],
        (None, true, _) => vec![1 << 10, 64 << 10],
        (None, false, Shape::List) => vec![32, 128, 512, 2 << 10, 8 << 10],
        (None, false, _) => vec![1 << 10, 16 << 10, 256 << 10, 4 << 20],
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let points: usize = Shape::ALL.iter().map(|shape| sizes(context, *shape).len()).sum();
    context.expect(points, rounds_of_a_point(context));
    let note = "not durable: link-and-persist with all its marks, but no write-back and no fence";
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![note.into()] };
    for place in &context.places {
        for shape in Shape::ALL {
            let sizes = sizes(context, shape);
            let x = sizes_text(&sizes);
            let title = |what: &str| format!("{}: {what}", shape.name());
            let mut throughput = panel(context, place, title("updates"), ("keys", &x), "million operations/s");
            let mut ratios = panel(context, place, title("over not durable"), ("keys", &x), "times not durable");
            for (at, keys) in sizes.iter().enumerate() {
                context.now(format!("{}, {} keys, {}", shape.name(), x[at], place.pages));
                let what = WAYS.map(|way| What { shape, way, keys: *keys, threads: 1, mix: Mix::UPDATES });
                let outcomes = measure_at(context, place, medium(), &what)?;
                set_throughput(&mut throughput, at, &outcomes);
                set_ratios(&mut ratios, at, &outcomes, Protocol::Volatile);
                let paper = "a constant cost an update: less apparent the larger the set";
                let what = format!("{}, {} keys, {}", shape.name(), x[at], place.pages);
                let ways = [(Protocol::Links, Protocol::Volatile), (Protocol::Soft, Protocol::Volatile)];
                let expected = ways.map(|ways| Expected { what: what.clone(), paper, ways, goal: None });
                measured.claims.extend(expected.into_iter().filter_map(|expected| claim(&outcomes, expected)));
            }
            measured.notes.extend(sizes.into_iter().map(fits));
            measured.panels.extend([throughput, ratios]);
        }
    }
    measured.notes.sort();
    measured.notes.dedup();
    Ok(measured)
}
