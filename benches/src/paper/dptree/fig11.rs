//! Figure 11: a B+-tree over a buffer manager with two tiers, by the part of its pages that is in DRAM, beside ours; one thread.

use durix_pmem::{Hardware, Session};

use super::trees::{Random, Tree, figure, key, pool_for};
use crate::cso_append::medium;
use crate::interleave::{Series, Stopwatch};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::trees::two_tier::TwoTier;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig11",
    "time of inserts and lookups, beside a B+-tree over a buffer manager, by its pages in DRAM",
    "keys, instead of 50 million (400 thousand with --quick)",
    run,
);

const PERCENT: [u64; 5] = [10, 25, 50, 75, 100];
const NAMES: [&str; 2] = ["DPTree", "2-Tier-BM"];

/// Both trees.
struct Both {
    ours: Tree<Hardware>,
    theirs: TwoTier,
    session: Session<Hardware>,
}

impl Both {
    /// Inserts the keys of these numbers into one of the two.
    fn insert(&mut self, who: usize, numbers: std::ops::Range<u64>) -> Result<u64, Error> {
        if who == 0 {
            self.ours.insert(numbers.end - numbers.start)?;
            return Ok(0);
        }
        for number in numbers {
            let is_new = self.theirs.insert(&self.session.enter()?, key(number), number + 1);
            assert!(is_new, "key number {number} is new");
        }
        Ok(0)
    }

    /// Looks keys up in one of the two. The sum of the numbers of the keys.
    fn get(&mut self, who: usize, keys: &[u64]) -> Result<u64, Error> {
        let mut sum = 0u64;
        for key in keys {
            let value = if who == 0 {
                self.ours.tree.get(&self.ours.session.enter()?, *key)?
            } else {
                self.theirs.get(&self.session.enter()?, *key).map(|value| value - 1)
            };
            sum = sum.wrapping_add(value.unwrap_or_else(|| panic!("{}: key {key} is there", NAMES[who])));
        }
        Ok(sum)
    }

    /// Both do the same in turn; nanoseconds for each of so many operations.
    fn in_turn(
        &mut self,
        (round, operations): (u64, u64),
        work: impl Fn(&mut Both, usize) -> Result<u64, Error>,
    ) -> Result<[f64; 2], Error> {
        let (mut times, mut sums) = ([0.0; 2], [0; 2]);
        for who in [round as usize % 2, (round as usize + 1) % 2] {
            let start = Stopwatch::start();
            sums[who] = work(self, who)?;
            times[who] = start.elapsed().as_nanos() as f64 / operations as f64;
        }
        assert_eq!(sums[0], sums[1], "both find the same");
        Ok(times)
    }
}

/// For inserts and lookups the series of each tree.
fn measure(
    context: &Context<'_>,
    place: &Place,
    (keys, percent): (u64, u64),
    (rounds, lookups): (u64, u64),
) -> Result<[[Series; 2]; 2], Error> {
    let mapping = place.map(TwoTier::bytes(keys), medium())?;
    let theirs = TwoTier::create(&mapping, keys, percent);
    let (pool, session) = (pool_for(place, keys)?, mapping.session()?);
    let mut both = Both { ours: Tree::new(&pool)?, theirs, session };
    let mut samples = [const { [const { Vec::new() }; 2] }; 2];
    let mut push = |phase: usize, times: [f64; 2]| {
        samples[phase].iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
    };
    for round in 0..rounds {
        let numbers = keys * round / rounds..keys * (round + 1) / rounds;
        let number = numbers.end - numbers.start;
        push(0, both.in_turn((round, number), |both, who| both.insert(who, numbers.clone()))?);
        context.tick();
    }
    let mut random = Random(88_172_645_463_325_252);
    for round in 0..rounds {
        let numbers: Vec<u64> = (0..lookups).map(|_| random.next() % keys).collect();
        let drawn: Vec<u64> = numbers.iter().map(|number| key(*number)).collect();
        push(1, both.in_turn((round, lookups), |both, who| both.get(who, &drawn))?);
        context.tick();
    }
    Ok(samples.map(|samples| samples.map(Series::new)))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 400_000 } else { 50_000_000 });
    let (rounds, lookups) = if context.quick { (9, 30_000) } else { (25, 200_000) };
    let rounds = rounds.min(keys);
    context.expect(PERCENT.len(), 2 * rounds as usize);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    measured.notes.push(
        "2-Tier-BM is written for this figure: pages of 16 KiB with hashed entries, lines loaded and written back one by one, images before \
         and after in a log of 30% of keys and values, checkpoints; without threads, removal, recovery and mini pages"
            .into(),
    );
    for place in &context.places {
        let how = format!(
            "{keys} keys; medians of {rounds} rounds, both in turn, one thread; both are made anew at each point"
        );
        let panel = |title: &str| {
            let panel = Panel::new(title, place, crate::paper::figure::medium_text(medium()), how.clone());
            panel.axes("% of its pages in DRAM", PERCENT.map(|percent| percent.to_string()).to_vec(), "ns", Form::Lines)
        };
        let mut panels = [panel("time of an insert"), panel("time of a lookup")];
        let mut ratios = [const { Vec::new() }; 2];
        for (at, percent) in PERCENT.into_iter().enumerate() {
            context.now(format!("{keys} keys, {percent}% in DRAM, {}", place.pages));
            let phases = measure(context, place, (keys, percent), (rounds, lookups))?;
            for (phase, series) in phases.iter().enumerate() {
                NAMES
                    .iter()
                    .zip(series)
                    .for_each(|(name, series)| panels[phase].set(name, at, Point::nanoseconds(series)));
                ratios[phase].push(series[1].ratio_to(&series[0]).median());
            }
        }
        measured.panels.extend(panels);
        let all = |ratios: &[f64]| ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(", ");
        let mut claim = |what: &str, paper: &str, ratios: &[f64], holds: bool| {
            let what = format!("{what}, {}", place.pages);
            measured.claims.push(Claim { what, paper: paper.into(), ours: all(ratios), holds: Some(holds) });
        };
        let [inserts, lookups] = &ratios;
        let least = inserts.iter().copied().fold(f64::INFINITY, f64::min);
        claim("2-Tier-BM's insert to ours, 10 to 100%", "more than 1 everywhere", inserts, least > 1.0);
        let last = lookups.len() - 1;
        claim(
            "2-Tier-BM's lookup to ours, below 100%",
            "more than 1",
            &lookups[..last],
            lookups[..last].iter().all(|r| *r > 1.0),
        );
        claim("2-Tier-BM's lookup to ours, 100%", "0.67: it is ahead", &lookups[last..], lookups[last] >= 0.67);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_find_the_same() {
        super::super::peers::with_context(|context, place| {
            for percent in PERCENT {
                let phases = measure(context, place, (6000, percent), (2, 1000)).unwrap();
                assert!(phases.iter().flatten().all(|series| series.samples().len() == 2));
            }
        });
    }
}
