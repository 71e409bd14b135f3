//! Section 4.2, "Impact of Flush and Fence": the time of an insert without either, with write-backs alone, and with both. Three trees of a
//! kind take turns. Without a fence, a locked instruction still waits for write-backs.

use super::peers::{OURS, Which, in_turn, notes, peers_on};
use super::trees::figure;
use crate::cso_append::medium;
use crate::interleave::Series;
use crate::paper::fenceless::Fenceless;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use durix_pmem::{Hardware, Medium};

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-flushcost",
    "what write-backs and fences cost an insert, beside FAST&FAIR, FPTree, LB+-Tree and WORT",
    "keys in the end, instead of 50 million (400 thousand with --quick)",
    run,
);

const WHICH: [Which; 6] = [Which::Ours, Which::FastFair, Which::FpTree, Which::FpTreeBest, Which::LbTree, Which::Wort];
const LEVELS: [&str; 3] = ["neither", "write-backs", "write-backs and fences"];
/// The paper: time with write-backs to that without; time with fences, too, to that.
const PAPER: [Option<(f64, f64)>; 6] =
    [Some((1.59, 1.10)), Some((1.34, 1.12)), Some((1.83, 1.10)), None, None, Some((1.45, 1.13))];

/// The media of the three trees.
fn media(medium: Hardware) -> [Fenceless; 3] {
    [Fenceless::new(Hardware::PAGE_CACHE, false), Fenceless::new(medium, false), Fenceless::new(medium, true)]
}

/// A series for each level.
fn measure(
    context: &Context<'_>,
    place: &Place,
    which: Which,
    (keys, rounds): (u64, u64),
) -> Result<Vec<Series>, Error> {
    let mut peers = peers_on(place, keys, &media(medium()).map(|medium| (which, medium)))?;
    let mut samples = vec![Vec::new(); LEVELS.len()];
    for round in 0..rounds {
        let numbers = keys * round / rounds..keys * (round + 1) / rounds;
        let number = numbers.end - numbers.start;
        let times = in_turn(&mut peers, round as usize, number, |peer| peer.fill(numbers.clone()).map(|()| 0))?;
        // The first keys are those of a tree that fits into the nearest caches.
        if round > 0 {
            samples.iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
        }
        context.tick();
    }
    in_turn(&mut peers, 0, keys, |peer| peer.scan_all(&[0], keys))?;
    Ok(samples.into_iter().map(Series::new).collect())
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 400_000 } else { 50_000_000 });
    let rounds = (if context.quick { 16 } else { 50 }).min(keys / 2);
    context.expect(WHICH.len(), rounds as usize);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: notes() };
    for place in &context.places {
        let how =
            format!("{keys} keys; medians of {} rounds, the three trees of a kind in turn, one thread", rounds - 1);
        let panel = Panel::new("time of an insert", place, medium().describe(), how);
        let x = WHICH.iter().map(|which| which.name().to_owned()).collect();
        let mut panel = panel.axes("tree", x, "ns", Form::Bars);
        for (at, which) in WHICH.into_iter().enumerate() {
            context.now(format!("{}, {}", which.name(), place.pages));
            let series = measure(context, place, which, (keys, rounds))?;
            LEVELS.iter().zip(&series).for_each(|(level, series)| panel.set(level, at, Point::nanoseconds(series)));
            let found = |what: &str, paper: Option<f64>, ratio: f64| Claim {
                what: format!("{}: {what}, {}", which.name(), place.pages),
                paper: paper.map_or("–".into(), |paper| format!("{paper}")),
                ours: format!("{ratio:.2}"),
                // What others pay is no goal of ours.
                holds: paper.filter(|_| which.name() == OURS).map(|paper| ratio <= paper),
            };
            let (write_backs, fences) = (series[1].ratio_to(&series[0]), series[2].ratio_to(&series[1]));
            let paper = PAPER[at];
            measured.claims.extend([
                found("with write-backs to without", paper.map(|paper| paper.0), write_backs.median()),
                found("with fences, too, to that", paper.map(|paper| paper.1), fences.median()),
            ]);
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tree_works_at_every_level() {
        super::super::peers::with_context(|context, place| {
            for which in WHICH {
                let series = measure(context, place, which, (1500, 3)).unwrap();
                assert!(series.len() == LEVELS.len() && series.iter().all(|series| series.samples().len() == 2));
            }
        });
    }
}
