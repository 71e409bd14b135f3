//! Figure 8: what each technique contributes: updates over those of the log-based sets at 1024 elements, for one thread and two.
//!
//! The paper's second bar, the link cache, is missing: it is not built yet.

use super::logfree_sets::{CONTRACT, Expected, claim, figure, fits, measure_at, panel, rounds_of_a_point, set_ratios};
use super::report::Form;
use super::{Context, Error, Figure, Measured};
use crate::cso_append::medium;
use crate::logfree::make::{Shape, Way, What};

pub(super) const FIGURE: Figure = figure(
    "logfree-fig8",
    "updates over those of log-based sets at one size, by technique",
    Some("keys of the sets (default 1024)"),
    run,
);

const WAYS: [Way; 3] = [Way::Soft, Way::Links, Way::Redo];
const THREADS: [u64; 2] = [1, 2];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(1 << 10);
    context.expect(Shape::ALL.len() * THREADS.len(), rounds_of_a_point(context));
    let x: Vec<String> = Shape::ALL.iter().map(|shape| shape.name().to_owned()).collect();
    let missing = "the paper's link cache, which is to bring more in most cases, is not built yet";
    let notes = vec![CONTRACT.into(), missing.into(), fits(keys)];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        for threads in THREADS {
            let title = format!("{keys} keys, {threads} thread(s): over the redo log");
            let mut ratios = panel(context, place, title, ("set", &x), "times the redo log");
            ratios.form = Form::Bars;
            for (at, shape) in Shape::ALL.into_iter().enumerate() {
                context.now(format!("{}, {threads} thread(s), {}", shape.name(), place.pages));
                let what = WAYS.map(|way| What { shape, way, keys, threads });
                let outcomes = measure_at(context, place, medium(), &what)?;
                set_ratios(&mut ratios, at, &outcomes, Way::Redo);
                let paper = "link-and-persist ahead for all sets, with one thread and with several";
                let what = format!("{}, {threads} thread(s), {}", shape.name(), place.pages);
                let ways = (Way::Links, Way::Redo);
                measured.claims.extend(claim(&outcomes, Expected { what, paper, ways, goal: Some(1.0) }));
            }
            measured.panels.push(ratios);
        }
    }
    Ok(measured)
}
