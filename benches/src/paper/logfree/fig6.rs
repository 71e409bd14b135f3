//! Figure 6: the same by latency added to the fence, at sizes that the caches hold.

use std::time::Duration;

use durix_pmem::medium::Delayed;

use super::sets::{
    CONTRACT, Expected, claim, figure, measure_at, panel, rounds_of_a_point, set_ratios, set_throughput,
};
use crate::logfree::make::{Protocol, Shape, What, count};
use crate::logfree::rounds::Mix;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure(
    "logfree-fig6",
    "updates over those of log-based sets, by added write latency",
    Some("keys of the sets (default 1024, the list 128)"),
    run,
);

const WAYS: [Protocol; 4] = [Protocol::Soft, Protocol::Links, Protocol::Redo, Protocol::Cso];

/// Nanoseconds added to each fence.
fn delays(context: &Context<'_>) -> &'static [u64] {
    if context.quick { &[0, 500] } else { &[0, 125, 250, 500, 1000] }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let delays = delays(context);
    context.expect(Shape::ALL.len() * delays.len(), rounds_of_a_point(context));
    let x: Vec<String> = delays.iter().map(u64::to_string).collect();
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![CONTRACT.into()] };
    for place in &context.places {
        for shape in Shape::ALL {
            let keys = context.keys_or(if shape == Shape::List { 128 } else { 1 << 10 });
            let title = |what: &str| format!("{} of {keys} keys: {what}", shape.name());
            let mut throughput = panel(context, place, title("updates"), ("added ns", &x), "million operations/s");
            let mut ratios = panel(context, place, title("over the redo log"), ("added ns", &x), "times the redo log");
            let fences = |way| {
                Ok::<_, Error>(count(What { shape, way, keys, threads: 1, mix: Mix::UPDATES })?.map(|c| c.fences))
            };
            let limit = fences(Protocol::Redo)?.zip(fences(Protocol::Links)?).map(|(redo, links)| redo / links);
            for (at, delay) in delays.iter().enumerate() {
                context.now(format!("{}, +{delay} ns, {}", shape.name(), place.pages));
                let medium = Delayed::new(medium(), Duration::from_nanos(*delay));
                let what = WAYS.map(|way| What { shape, way, keys, threads: 1, mix: Mix::UPDATES });
                let outcomes = measure_at(context, place, medium, &what)?;
                set_throughput(&mut throughput, at, &outcomes);
                set_ratios(&mut ratios, at, &outcomes, Protocol::Redo);
                let paper = limit.map_or(String::new(), |limit| format!("tends to the ratio of fences, {limit:.2}"));
                let what = format!("{}, +{delay} ns, {}", shape.name(), place.pages);
                let ways = (Protocol::Links, Protocol::Redo);
                measured.claims.extend(claim(&outcomes, Expected { what, paper: &paper, ways, goal: None }));
            }
            measured.panels.extend([throughput, ratios]);
        }
    }
    Ok(measured)
}
