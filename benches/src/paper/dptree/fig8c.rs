//! Figure 8c: scans, by the number of entries that a scan returns; one thread. In the paper these are 0.001% to 0.1% of 50 million keys,
//! so 500 to 50 000; here also 100, for which this project has a goal.

use super::peers::{FAST_FAIR, FPTREE_BEST, LB_TREE, OURS, WORT, Which, in_turn, named, notes, peers};
use super::trees::{Random, figure};
use crate::cso_append::medium;
use crate::interleave::{LEAST_ROUNDS, Series};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig8c",
    "time of a scan by its length, beside FAST&FAIR, FPTree, LB+-Tree and WORT",
    "keys, instead of 50 million (one million with --quick)",
    run,
);

const WHICH: [Which; 5] = [Which::Ours, Which::FastFair, Which::FpTreeBest, Which::LbTree, Which::Wort];
/// Entries of a scan, and of all scans of a round.
const LENGTHS: [u64; 4] = [100, 500, 5000, 50_000];
const WARM_UP: usize = 1;

/// As many of the lengths as there are keys for.
fn lengths(keys: u64) -> Vec<u64> {
    LENGTHS.into_iter().filter(|length| *length <= keys / 8).collect()
}

/// Starts of scans of a length, each with enough keys behind it: keys are spread evenly.
fn starts(random: &mut Random, number: u64, length: u64, keys: u64) -> Vec<u64> {
    let limit = u64::MAX - u64::MAX / keys * (2 * length + 64);
    (0..number).map(|_| random.next() % limit).collect()
}

fn measure(
    context: &Context<'_>,
    place: &Place,
    keys: u64,
    (rounds, entries): (usize, u64),
) -> Result<Vec<Vec<Series>>, Error> {
    let mut peers = peers(place, keys, &WHICH)?;
    context.now(format!("{keys} keys, {}", place.pages));
    context.step("filling");
    for peer in &mut peers {
        peer.fill(0..keys)?;
        context.tell();
    }
    let (mut points, mut random) = (Vec::new(), Random(88_172_645_463_325_252));
    for length in lengths(keys) {
        context.now(format!("scans of {length}, {}", place.pages));
        let number = (entries / length).max(1);
        let mut samples = vec![Vec::new(); peers.len()];
        for round in 0..WARM_UP + rounds {
            let starts = starts(&mut random, number, length, keys);
            let times = in_turn(&mut peers, round, number * length, |peer| peer.scan_all(&starts, length))?;
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
    let (rounds, entries) = if context.quick { (11, 200_000) } else { (25, 1_000_000) };
    let lengths = lengths(keys);
    context.expect(lengths.len(), WARM_UP + rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: notes() };
    if lengths.is_empty() {
        measured.notes.push(format!("{keys} keys are too few for scans of {}: set --keys to more", LENGTHS[0]));
        return Ok(measured);
    }
    for place in &context.places {
        let points = measure(context, place, keys, (rounds, entries))?;
        let rounds = points.iter().flatten().map(|series| series.samples().len()).min().unwrap_or(0);
        let how = format!("{keys} keys; medians of {rounds} rounds at least, contestants in turn, one thread");
        let panel = Panel::new("time of an entry of a scan", place, crate::paper::figure::medium_text(medium()), how);
        let x = lengths.iter().map(u64::to_string).collect();
        let mut panel = panel.axes("entries of a scan", x, "ns", Form::Lines);
        for (at, series) in points.iter().enumerate() {
            WHICH
                .iter()
                .zip(series)
                .for_each(|(which, series)| panel.set(which.name(), at, Point::nanoseconds(series)));
        }
        measured.panels.push(panel);
        let ratios = |a: &str, b: &str| -> Vec<f64> {
            let of = |series: &Vec<Series>| named(&WHICH, series, a).ratio_to(named(&WHICH, series, b)).median();
            points.iter().map(of).collect()
        };
        let all = |ratios: &[f64]| ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(", ");
        let wort = ratios(WORT, OURS);
        let (fptree, sorted) = (ratios(FPTREE_BEST, OURS), ratios(OURS, FAST_FAIR));
        let most = |ratios: &[f64]| ratios.iter().copied().fold(0.0, f64::max);
        let lb_tree = ratios(LB_TREE, OURS);
        let mut claim = |what: &str, paper: &str, ours: String, holds: Option<bool>| {
            let what = format!("{what}, {}", place.pages);
            measured.claims.push(Claim { what, paper: paper.into(), ours, holds });
        };
        claim("FPTree's scan to ours (best)", "up to 3.0", all(&fptree), Some(most(&fptree) >= 3.0));
        claim("LB+-Tree's scan to ours", "–", all(&lb_tree), None);
        claim("WORT's scan to ours", "up to 10.98", all(&wort), Some(most(&wort) >= 10.98));
        claim("our scan to FAST&FAIR's", "1.1 at most", all(&sorted), Some(most(&sorted) <= 1.1));
        let hundred = format!("{:.2}", sorted[0]);
        claim("our scan of 100 to FAST&FAIR's", "goal 1 at most", hundred, Some(sorted[0] <= 1.0));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scan_returns_as_many_entries_and_the_same_ones() {
        super::super::peers::with_context(|context, place| {
            let points = measure(context, place, 5000, (2, 2000)).unwrap();
            assert_eq!(points.len(), 2, "scans of 100 and 500");
            assert!(points.iter().flatten().all(|series| series.samples().len() == 2));
        });
    }

    #[test]
    fn starts_leave_room_for_a_scan() {
        let (keys, mut random) = (5000, Random(7));
        let mut sorted: Vec<u64> = (0..keys).map(super::super::trees::key).collect();
        sorted.sort_unstable();
        for length in lengths(keys) {
            for start in starts(&mut random, 1000, length, keys) {
                let behind = sorted.len() - sorted.partition_point(|key| *key < start);
                assert!(behind as u64 >= length, "{behind} from {start}");
            }
        }
    }
}
