//! Figure 12: five mixes of operations, on one thread (the comparators are for one; the paper goes on to 32).

use super::peers::{FAST_FAIR, FPTREE, FPTREE_BEST, OURS, Step, Which, in_turn, named, notes, peers};
use super::trees::{Random, figure, key};
use crate::cso_append::medium;
use crate::interleave::{LEAST_ROUNDS, Series};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig12",
    "throughput of five mixes of operations, beside FAST&FAIR, FPTree and LB+-Tree, one thread",
    "keys before the mixes, instead of 50 million (one million with --quick)",
    run,
);

const WHICH: [Which; 5] = [Which::Ours, Which::FastFair, Which::FpTree, Which::FpTreeBest, Which::LbTree];
const WARM_UP: usize = 1;
/// Values of updates; inserted keys have smaller ones.
const FIRST_UPDATE: u64 = 1 << 40;

/// A mix: how many of a hundred operations are inserts, updates and scans; the others are lookups.
struct Mix {
    name: &'static str,
    inserts: u64,
    updates: u64,
    scans: u64,
}

const MIXES: [Mix; 5] = [
    Mix { name: "InsertOnly", inserts: 100, updates: 0, scans: 0 },
    Mix { name: "ReadOnly", inserts: 0, updates: 0, scans: 0 },
    Mix { name: "ReadUpdate", inserts: 0, updates: 50, scans: 0 },
    Mix { name: "ScanInsert", inserts: 5, updates: 0, scans: 95 },
    Mix { name: "Mixed", inserts: 20, updates: 20, scans: 10 },
];

/// Draws the steps of rounds.
struct Draw {
    random: Random,
    /// Keys that are there.
    keys: u64,
    value: u64,
    /// The longest scan.
    longest: u64,
}

impl Draw {
    fn new(keys: u64) -> Self {
        // The paper: 500 of 50 million on average, deviation 300. Uniform up to 1000 is 500 and 289.
        Draw { random: Random(88_172_645_463_325_252), keys, value: FIRST_UPDATE, longest: (keys / 16).clamp(1, 1000) }
    }

    fn step(&mut self, mix: &Mix) -> Step {
        let (dice, drawn) = (self.random.next() % 100, self.random.next());
        if dice < mix.inserts {
            self.keys += 1;
            Step::Insert(self.keys - 1)
        } else if dice < mix.inserts + mix.updates {
            self.value += 1;
            Step::Update(key(drawn % self.keys), self.value)
        } else if dice < mix.inserts + mix.updates + mix.scans {
            // Keys are spread evenly, so that much of them lies behind.
            let limit = u64::MAX - u64::MAX / self.keys * (2 * self.longest + 64);
            Step::Scan(drawn % limit, 1 + self.random.next() % self.longest)
        } else {
            Step::Get(key(drawn % self.keys))
        }
    }

    fn round(&mut self, mix: &Mix, operations: u64) -> Vec<Step> {
        let number = if mix.scans > 50 { (operations / 20).max(1) } else { operations };
        (0..number).map(|_| self.step(mix)).collect()
    }
}

/// For each mix the series of each tree.
fn measure(
    context: &Context<'_>,
    place: &Place,
    keys: u64,
    (rounds, operations): (usize, u64),
) -> Result<Vec<Vec<Series>>, Error> {
    // A round of all mixes inserts less than 1.3 times its operations.
    let mut peers = peers(place, keys + operations * 13 / 10 * (WARM_UP + rounds) as u64, &WHICH)?;
    context.now(format!("{keys} keys, {}", place.pages));
    context.step("filling");
    for peer in &mut peers {
        peer.fill(0..keys)?;
        context.tell();
    }
    let (mut draw, mut mixes) = (Draw::new(keys), Vec::new());
    for mix in &MIXES {
        context.now(format!("{}, {keys} keys, {}", mix.name, place.pages));
        let mut samples = vec![Vec::new(); peers.len()];
        for round in 0..WARM_UP + rounds {
            let steps = draw.round(mix, operations);
            let times = in_turn(&mut peers, round, steps.len() as u64, |peer| peer.work(&steps))?;
            if round >= WARM_UP {
                samples.iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
            }
            if !context.tick() && round + 1 >= WARM_UP + LEAST_ROUNDS {
                break;
            }
        }
        mixes.push(samples.into_iter().map(Series::new).collect());
    }
    Ok(mixes)
}

/// What the paper says of a mix: of a comparator's time to ours, and the least of it.
const CLAIMS: [(usize, &str, &str, Option<f64>); 8] = [
    (0, FAST_FAIR, "up to 1.36, at 32 threads", None),
    (0, FPTREE, "\"outperforms\"", Some(1.0)),
    (1, FAST_FAIR, "1.32 to 1.58", Some(1.32)),
    (1, FPTREE_BEST, "1.37 to 1.7", Some(1.37)),
    (2, FPTREE, "1.7 to 5.07, with FAST&FAIR", Some(1.7)),
    (3, FAST_FAIR, "\"similar\"", Some(0.9)),
    (3, FPTREE_BEST, "2 to 3", Some(2.0)),
    (4, FAST_FAIR, "\"the highest throughput\"", Some(1.0)),
];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 50_000_000 });
    let (rounds, operations) = if context.quick { (9, 30_000) } else { (25, 200_000) };
    context.expect(MIXES.len(), WARM_UP + rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: notes() };
    measured.notes.push("lookups and updates are of uniform keys; a scan returns 1 to 1000 pairs".into());
    for place in &context.places {
        let mixes = measure(context, place, keys, (rounds, operations))?;
        let rounds = mixes.iter().flatten().map(|series| series.samples().len()).min().unwrap_or(0);
        let how = format!("{keys} keys; medians of {rounds} rounds at least, contestants in turn, merges included");
        let panel = Panel::new("throughput", place, crate::paper::figure::medium_text(medium()), how);
        let x = MIXES.iter().map(|mix| mix.name.to_owned()).collect();
        let mut panel = panel.axes("mix", x, "million operations per second", Form::Bars);
        for (at, series) in mixes.iter().enumerate() {
            WHICH.iter().zip(series).for_each(|(which, series)| panel.set(which.name(), at, Point::throughput(series)));
        }
        measured.panels.push(panel);
        for (mix, other, paper, least) in CLAIMS {
            let of = |name: &str| named(&WHICH, &mixes[mix], name);
            let ratio = of(other).ratio_to(of(OURS)).median();
            measured.claims.push(Claim {
                what: format!("{}: our throughput to that of {other}, {}", MIXES[mix].name, place.pages),
                paper: paper.into(),
                ours: format!("{ratio:.2}"),
                holds: least.map(|least| ratio >= least),
            });
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_trees_give_the_same_answers_to_every_mix() {
        super::super::peers::with_context(|context, place| {
            let mixes = measure(context, place, 3000, (1, 400)).unwrap();
            assert!(mixes.len() == MIXES.len() && mixes.iter().all(|series| series.len() == WHICH.len()));
        });
    }

    #[test]
    fn a_mix_has_the_parts_that_it_says() {
        for mix in &MIXES {
            let (mut draw, mut parts) = (Draw::new(100_000), [0u64; 4]);
            for _ in 0..10_000 {
                match draw.step(mix) {
                    Step::Insert(number) => {
                        assert_eq!(number + 1, draw.keys);
                        parts[0] += 1;
                    }
                    Step::Update(_, value) => {
                        assert_eq!(value, draw.value);
                        parts[1] += 1;
                    }
                    Step::Scan(_, length) => {
                        assert!((1..=1000).contains(&length));
                        parts[2] += 1;
                    }
                    Step::Get(_) => parts[3] += 1,
                }
            }
            let wanted = [mix.inserts, mix.updates, mix.scans, 100 - mix.inserts - mix.updates - mix.scans];
            for (found, wanted) in parts.iter().zip(wanted) {
                assert!(found.abs_diff(wanted * 100) <= 200, "{}: {parts:?}", mix.name);
            }
        }
    }
}
