//! Figures 3 and 8: YCSB A with latency added to every fence, with InCLL and with the external log alone.

use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::medium::Delayed;

use super::trees::{
    DRAWS, Draw, Drawn, Mix, Order, Phase, Rounded, Take, drawn, empty, figure, keys_of, measure, panel, rounded,
    series,
};
use crate::interleave::{Outcome, Series};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIG3: Figure =
    figure("incll-fig3", "the durable Masstree by added latency, YCSB A", |context| run(context, false));
pub(in crate::paper) const FIG8: Figure =
    figure("incll-fig8", "with InCLL and with the external log alone, by added latency, YCSB A", |context| {
        run(context, true)
    });

/// Nanoseconds added to each fence.
const DELAYS: [u64; 6] = [0, 200, 400, 600, 800, 1000];
const PHASES: usize = DELAYS.len() * 2;

/// What is added at the moment. One for the process: figures run one after the other.
static DELAY: AtomicU64 = AtomicU64::new(0);

fn run(context: &Context<'_>, logging: bool) -> Result<Measured, Error> {
    let mut how = rounded(context, keys_of(context));
    // A tree is compared with itself, so its memory is the same.
    (how.epochs, how.rounds, how.fillings) = (how.epochs.div_ceil(2), 7, 1);
    // And its phases are, so they take turns.
    how.order = Order::RoundByRound;
    context.expect(1, how.all_rounds(PHASES));
    let mut measured = empty(context, how.keys);
    let drawn = [Draw::Uniform, Draw::Zipfian].map(|draw| drawn(how.keys, draw, 3));
    let set: [Box<dyn Fn()>; DELAYS.len()] = DELAYS.map(|ns| Box::new(move || DELAY.store(ns, Ordering::Relaxed)) as _);
    let phases: [Phase<'_>; PHASES] =
        std::array::from_fn(|n| Phase { mix: Mix::Puts(50), drawn: &drawn[n % 2] as &Drawn, before: &*set[n / 2] });
    for place in &context.places {
        context.now(format!("added latency, {}", place.pages));
        DELAY.store(0, Ordering::Relaxed);
        let medium = Delayed::adjustable(medium(), &DELAY);
        let take = Take { transient: false, logging };
        let outcomes = measure(context, (place, medium), &how, take, &phases)?;
        for (draw, (name, _)) in DRAWS.iter().enumerate() {
            measured.panels.push(throughput(place, &how, (draw, name), &outcomes));
            measured.claims.extend(claims(place, (draw, name), &outcomes));
        }
    }
    Ok(measured)
}

fn throughput(place: &Place, how: &Rounded, (draw, name): (usize, &str), outcomes: &[Outcome<PHASES>]) -> Panel {
    let x = DELAYS.iter().map(u64::to_string).collect();
    let mut panel =
        panel(format!("YCSB A, {name}"), place, how, ("added ns", x), ("million operations/s", Form::Lines));
    for outcome in outcomes {
        for at in 0..DELAYS.len() {
            panel.set(&outcome.name, at, Point::throughput(&outcome.phases[at * 2 + draw]));
        }
    }
    panel
}

/// What is lost of the throughput without added latency, in percent.
fn lost(none: &Series, all: &Series) -> f64 {
    (1.0 - none.ratio_to(all).median()) * 100.0
}

fn claims(place: &Place, (draw, name): (usize, &str), outcomes: &[Outcome<PHASES>]) -> Vec<Claim> {
    let papers = [("INCLL", ["4.1 to 4.3%", "5.7 to 6.0%"]), ("LOGGING", ["42.5%", "28.5%"])];
    let claim = |(contestant, paper): (&str, [&str; 2])| {
        let (none, all) = (series(outcomes, contestant, draw)?, series(outcomes, contestant, PHASES - 2 + draw)?);
        let lost = lost(none, all);
        let goal = contestant == "INCLL";
        Some(Claim {
            what: format!("{contestant}: throughput lost at 1 us, {name}, {}", place.pages),
            paper: paper[draw].into(),
            ours: format!("{lost:.1}%{}", if goal { " (goal: 4%)" } else { "" }),
            holds: goal.then_some(lost <= 4.0),
        })
    };
    papers.into_iter().filter_map(claim).collect()
}
