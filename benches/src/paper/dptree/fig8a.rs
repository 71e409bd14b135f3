//! Figure 8a: the time of an insert of a new key, by the number of keys; one thread. Merges are done by the same thread, and are in the time
//! of ours.

use super::peers::{FAST_FAIR, FPTREE, FPTREE_BEST, LB_TREE, OURS, WORT, Which, in_turn, named, notes, peers};
use super::trees::figure;
use crate::cso_append::medium;
use crate::interleave::Series;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig8a",
    "time of an insert by number of keys, beside FAST&FAIR, FPTree, LB+-Tree and WORT",
    "keys in the end, instead of 50 million (one million with --quick)",
    run,
);

const WHICH: [Which; 6] = [Which::Ours, Which::FastFair, Which::FpTree, Which::FpTreeBest, Which::LbTree, Which::Wort];
/// Sizes at which the time is shown: that of the inserts since the last size.
const POINTS: u64 = 4;

/// For each size the series of each tree.
fn measure(context: &Context<'_>, place: &Place, keys: u64, rounds: u64) -> Result<Vec<Vec<Series>>, Error> {
    let mut peers = peers(place, keys, &WHICH)?;
    let mut points = Vec::new();
    let mut round = 0;
    for point in 1..=POINTS {
        context.now(format!("to {} keys, {}", keys * point / POINTS, place.pages));
        let mut samples = vec![Vec::new(); peers.len()];
        for _ in 0..rounds {
            let of = |round: u64| keys * round / (POINTS * rounds);
            let numbers = of(round)..of(round + 1);
            let insert = |peer: &mut dyn super::peers::Peer| peer.fill(numbers.clone()).map(|()| 0);
            let times = in_turn(&mut peers, round as usize, numbers.end - numbers.start, insert)?;
            samples.iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
            round += 1;
            // All keys are inserted, however long that takes.
            context.tick();
        }
        points.push(samples.into_iter().map(Series::new).collect());
    }
    // Every tree has every key: a scan of all of them gives the same sum.
    in_turn(&mut peers, 0, keys, |peer| peer.scan_all(&[0], keys))?;
    Ok(points)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 50_000_000 });
    let rounds = (if context.quick { 9 } else { 25 }).min(keys / POINTS);
    context.expect(POINTS as usize, rounds as usize);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: notes() };
    for place in &context.places {
        let how =
            format!("medians of {rounds} rounds up to each size, contestants in turn, one thread, merges included");
        let panel = Panel::new("time of an insert", place, crate::paper::figure::medium_text(medium()), how);
        let sizes = (1..=POINTS).map(|point| (keys * point / POINTS).to_string()).collect();
        let mut panel = panel.axes("keys", sizes, "ns", Form::Lines);
        let points = measure(context, place, keys, rounds)?;
        for (at, series) in points.iter().enumerate() {
            WHICH
                .iter()
                .zip(series)
                .for_each(|(which, series)| panel.set(which.name(), at, Point::nanoseconds(series)));
        }
        measured.panels.push(panel);
        let mut claim = |other: &str, paper: &str, least: Option<f64>| {
            let ratios = points.iter().map(|series| {
                let of = |name: &str| named(&WHICH, series, name);
                of(other).ratio_to(of(OURS)).median()
            });
            let ratios: Vec<f64> = ratios.collect();
            let last = ratios[ratios.len() - 1];
            measured.claims.push(Claim {
                what: format!("{other}'s insert to ours, {keys} keys, {}", place.pages),
                paper: paper.into(),
                ours: format!("{last:.2} (at a quarter of the keys {:.2})", ratios[0]),
                holds: least.map(|least| last >= least),
            });
        };
        claim(FAST_FAIR, "1.27 to 1.43", Some(1.27));
        claim(FPTREE, "1.76 to 1.78", Some(1.76));
        claim(FPTREE_BEST, "–", None);
        claim(LB_TREE, "–", None);
        claim(WORT, "1.25", Some(1.25));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_trees_have_all_keys() {
        super::super::peers::with_context(|context, place| {
            let points = measure(context, place, 3000, 2).unwrap();
            assert_eq!(points.len(), POINTS as usize);
            assert!(points.iter().all(|series| series.len() == WHICH.len()));
            assert!(points.iter().flatten().all(|series| series.samples().len() == 2));
        });
    }
}
