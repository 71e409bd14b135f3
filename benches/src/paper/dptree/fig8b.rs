//! Figure 8b: the time of a lookup of a key that is there, by the number of keys; one thread.

use super::peers::{FAST_FAIR, FPTREE_BEST, LB_TREE, OURS, WORT, Which, in_turn, named, notes, peers};
use super::trees::{Random, figure, key};
use crate::cso_append::medium;
use crate::interleave::{LEAST_ROUNDS, Series};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig8b",
    "time of a lookup by number of keys, beside FAST&FAIR, FPTree, LB+-Tree and WORT",
    "keys in the end, instead of 50 million (one million with --quick)",
    run,
);

const WHICH: [Which; 5] = [Which::Ours, Which::FastFair, Which::FpTreeBest, Which::LbTree, Which::Wort];
const POINTS: u64 = 4;
const WARM_UP: usize = 1;

fn measure(
    context: &Context<'_>,
    place: &Place,
    keys: u64,
    (rounds, lookups): (usize, u64),
) -> Result<Vec<Vec<Series>>, Error> {
    let mut peers = peers(place, keys, &WHICH)?;
    let (mut points, mut random) = (Vec::new(), Random(88_172_645_463_325_252));
    for point in 1..=POINTS {
        let (had, size) = (keys * (point - 1) / POINTS, keys * point / POINTS);
        context.now(format!("{size} keys, {}", place.pages));
        context.step("filling");
        for peer in &mut peers {
            peer.fill(had..size)?;
            context.tell();
        }
        context.now(format!("{size} keys, {}", place.pages));
        let mut samples = vec![Vec::new(); peers.len()];
        for round in 0..WARM_UP + rounds {
            let numbers: Vec<u64> = (0..lookups).map(|_| random.next() % size).collect();
            let drawn: Vec<u64> = numbers.iter().map(|number| key(*number)).collect();
            let wanted = numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(number + 1));
            let times = in_turn(&mut peers, round, lookups, |peer| {
                let sum = peer.get_all(&drawn)?;
                assert_eq!(sum, wanted, "{}: the values of the keys", peer.name());
                Ok(sum)
            })?;
            if round >= WARM_UP {
                samples.iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
            }
            if !context.tick() && round + 1 >= WARM_UP + LEAST_ROUNDS {
                break;
            }
        }
        points.push(samples.into_iter().map(Series::new).collect());
    }
    Ok(points)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 50_000_000 });
    let (rounds, lookups) = if context.quick { (11, 50_000) } else { (25, 200_000) };
    context.expect(POINTS as usize, WARM_UP + rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: notes() };
    for place in &context.places {
        let points = measure(context, place, keys, (rounds, lookups))?;
        let rounds = points.iter().flatten().map(|series| series.samples().len()).min().unwrap_or(0);
        let how =
            format!("medians of {rounds} rounds of {lookups} random keys at least, contestants in turn, one thread");
        let panel = Panel::new("time of a lookup", place, crate::paper::figure::medium_text(medium()), how);
        let sizes = (1..=POINTS).map(|point| (keys * point / POINTS).to_string()).collect();
        let mut panel = panel.axes("keys", sizes, "ns", Form::Lines);
        for (at, series) in points.iter().enumerate() {
            WHICH
                .iter()
                .zip(series)
                .for_each(|(which, series)| panel.set(which.name(), at, Point::nanoseconds(series)));
        }
        measured.panels.push(panel);
        let claims = [
            (FAST_FAIR, "up to 1.82", Some(1.82)),
            (FPTREE_BEST, "up to 1.85", Some(1.85)),
            (LB_TREE, "–", None),
            (WORT, "up to 2.19", Some(2.19)),
        ];
        for (other, paper, least) in claims {
            let ratios = points.iter().map(|series| {
                let of = |name: &str| named(&WHICH, series, name);
                of(other).ratio_to(of(OURS)).median()
            });
            let ratios: Vec<f64> = ratios.collect();
            let (last, most) = (ratios[ratios.len() - 1], ratios.iter().copied().fold(0.0, f64::max));
            measured.claims.push(Claim {
                what: format!("{other}'s lookup to ours, up to {keys} keys, {}", place.pages),
                paper: paper.into(),
                ours: format!("up to {most:.2} (with all keys {last:.2})"),
                holds: least.map(|least| most >= least),
            });
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lookup_finds_its_value() {
        super::super::peers::with_context(|context, place| {
            let points = measure(context, place, 3000, (2, 1000)).unwrap();
            assert!(points.len() == POINTS as usize && points.iter().all(|series| series.len() == WHICH.len()));
            assert!(points.iter().flatten().all(|series| series.samples().len() == 2));
        });
    }
}
