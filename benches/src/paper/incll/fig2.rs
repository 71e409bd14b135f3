//! Figure 2: throughput of the transient and of the durable Masstree on YCSB A, B, C and E.

use super::trees::{
    DRAWS, Draw, Drawn, MIXES, Mix, Phase, Rounded, Take, drawn, empty, figure, keys_of, measure, overhead, panel,
    rounded, series,
};
use crate::interleave::Outcome;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("incll-fig2", "throughput of Masstree without and with durability, YCSB", run);

/// What the paper has found, in percent, and our goal, by mix and way of drawing.
const OVERHEADS: [[(&str, f64); 2]; 4] = [
    [("15.4%", 8.0), ("10.3%", 12.0)],
    [("7.8 to 15.4%", 5.0), ("5.9 to 10.3%", 5.0)],
    [("7.8 to 15.4%", 5.0), ("5.9 to 10.3%", 5.0)],
    [("7.8 to 15.4%", 5.0), ("5.9 to 10.3%", 5.0)],
];

const PHASES: usize = MIXES.len() * DRAWS.len();

/// All mixes with both ways of drawing, mix by mix.
fn phases(drawn: &[Drawn; 2]) -> [Phase<'_>; PHASES] {
    std::array::from_fn(|n| Phase { mix: MIXES[n / 2].1, drawn: &drawn[n % 2], before: &|| {} })
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let how = rounded(context, keys_of(context));
    context.expect(1, how.all_rounds(PHASES));
    let mut measured = empty(context, how.keys);
    let drawn = [Draw::Uniform, Draw::Zipfian].map(|draw| drawn(how.keys, draw, 2));
    for place in &context.places {
        context.now(format!("YCSB, {}", place.pages));
        let take = Take { transient: true, logging: false };
        let outcomes = measure(context, (place, medium()), &how, take, &phases(&drawn))?;
        for (number, (name, _)) in DRAWS.iter().enumerate() {
            measured.panels.push(throughput(place, &how, (number, name), &outcomes));
        }
        measured.claims.extend(claims(place, &outcomes));
    }
    Ok(measured)
}

fn throughput(place: &Place, how: &Rounded, (draw, name): (usize, &str), outcomes: &[Outcome<PHASES>]) -> Panel {
    let x = MIXES.iter().map(|(mix, _)| format!("YCSB {mix}")).collect();
    let mut panel = panel(name, place, how, ("workload", x), ("million operations/s", Form::Bars));
    for name in ["MT+", "INCLL"] {
        for mix in 0..MIXES.len() {
            if let Some(series) = series(outcomes, name, mix * 2 + draw) {
                panel.set(name, mix, Point::throughput(series));
            }
        }
    }
    panel
}

fn claims(place: &Place, outcomes: &[Outcome<PHASES>]) -> Vec<Claim> {
    let claim = |n: usize| {
        let ((mix, kind), (draw, _)) = (MIXES[n / 2], DRAWS[n % 2]);
        let (paper, goal) = OVERHEADS[n / 2][n % 2];
        let found = overhead(outcomes, n);
        let scans = if kind == Mix::Scan { ", scans of 10" } else { "" };
        Claim {
            what: format!("cost of durability, YCSB {mix} {draw}{scans}, {}", place.pages),
            paper: paper.into(),
            ours: format!("{found:.1}% (goal: {goal:.0}%)"),
            holds: Some(found <= goal),
        }
    };
    (0..PHASES).map(claim).collect()
}
