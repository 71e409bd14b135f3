//! Figure 4(b): throughput of the logs with entries of half a line, by latency added to the fence.

use std::time::Duration;

use durix_pmem::medium::Delayed;

use super::logs::{SOURCE, medium_text, method, rounds, rounds_of_a_point, set_stress, stress_ratio};
use crate::cso_append::{measure_half, medium, region_in};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, ahead};

pub(in crate::paper) const FIGURE: Figure = Figure {
    name: "cso-fig4b",
    title: "throughput of single-trip logs, half a line an entry, by added latency",
    source: SOURCE,
    keys: None,
    run,
};

/// Nanoseconds added to each fence.
pub(in crate::paper) const DELAYS: [u64; 9] = [0, 100, 200, 300, 400, 500, 600, 700, 800];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = rounds(context);
    context.expect(DELAYS.len(), rounds_of_a_point(context));
    let x: Vec<String> = DELAYS.iter().map(u64::to_string).collect();
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let panel =
            Panel::new("stress test: append 512, read and discard", place, medium_text(), method(place, context));
        let mut panel = panel.axes("added ns", x.clone(), "million appends/s", Form::Lines);
        for (at, delay) in DELAYS.into_iter().enumerate() {
            context.now(format!("+{delay} ns, {}", place.pages));
            let medium = Delayed::new(medium(), Duration::from_nanos(delay));
            let outcomes =
                measure_half(place, medium, region_in(place, context.quick), rounds, &mut || context.tick())?;
            set_stress(&mut panel, at, &outcomes);
            let claims = [("TwoRounds", "50% behind"), ("AtlasLog", "33% behind")].map(|(name, paper)| {
                let ratio = stress_ratio(&outcomes, name, "CSO-VB")?;
                let what = format!("{name} to CSO-VB at {delay} ns, {}", place.pages);
                Some(Claim { what, paper: paper.into(), ours: ahead(ratio), holds: None })
            });
            measured.claims.extend(claims.into_iter().flatten().filter(|_| delay == 800));
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}
