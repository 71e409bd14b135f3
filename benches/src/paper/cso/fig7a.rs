//! Figure 7(a): throughput of the persistent set by latency added to the fence.

use std::time::Duration;

use durix_pmem::medium::Delayed;

use super::fig4b::DELAYS;
use super::sets::{
    At, CONTRACT, claim, count_claim, figure, keys_text, measure_at, panels, rounds_of_a_point, set_points,
};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("cso-fig7a", "throughput of the persistent set by added latency", "keys of the sets (default 16384)", run);

/// A set that the caches hold.
const KEYS: u64 = 16 << 10;

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let at = At { keys: context.keys_or(KEYS), lines: 1 };
    context.expect(DELAYS.len(), rounds_of_a_point(context));
    let x: Vec<String> = DELAYS.iter().map(u64::to_string).collect();
    let mut measured = Measured { panels: Vec::new(), claims: vec![count_claim(1)?], notes: vec![CONTRACT.into()] };
    for place in &context.places {
        let what = format!("{} keys, one line an entry", keys_text(at.keys));
        let mut panels = panels(context, place, "added ns", &x, &what);
        for (number, delay) in DELAYS.into_iter().enumerate() {
            context.now(format!("+{delay} ns, {}", place.pages));
            let medium = Delayed::new(medium(), Duration::from_nanos(delay));
            let outcomes = measure_at(context, place, medium, at)?;
            set_points(&mut panels, number, &outcomes);
            let (paper, goal) = match delay {
                0 => ("25% ahead", Some(1.25)),
                800 => ("86% ahead", Some(1.70)),
                _ => ("between 25% and 86% ahead", None),
            };
            let what = format!("STPS to TwoRounds, +{delay} ns, {}", place.pages);
            measured.claims.push(claim(&outcomes, what, paper, goal));
        }
        measured.panels.extend(panels);
    }
    Ok(measured)
}
