//! Table 2: cycles, instructions, misses of caches and of branch prediction of an operation; one thread. Without the processor's counters,
//! as in most virtual machines, it has the time alone, and says so.

use super::peers::{OURS, Peer, Step, Which, in_turn, notes, peers};
use super::trees::{Random, figure, key};
use crate::counters::{Counter, Event};
use crate::cso_append::medium;
use crate::interleave::{LEAST_ROUNDS, Series};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-table2",
    "cycles, instructions and misses of lookups and updates, beside FAST&FAIR and FPTree",
    "keys, instead of 50 million (one million with --quick)",
    run,
);

const WHICH: [Which; 4] = [Which::Ours, Which::FastFair, Which::FpTree, Which::FpTreeBest];
const EVENTS: [(Event, &str); 4] = [
    (Event::Cycles, "cycles"),
    (Event::Instructions, "instructions"),
    (Event::CacheMisses, "misses of the last-level cache"),
    (Event::BranchMisses, "branches predicted wrong"),
];
const MIXES: [&str; 2] = ["ReadUpdate", "ReadOnly"];
/// The paper's, for one thread: of each mix, for ours, FAST&FAIR and FPTree, each event.
const PAPER: [[[f64; 4]; 3]; 2] = [
    [[1768.0, 456.0, 3.05, 2.34], [2523.0, 696.0, 9.07, 7.77], [3581.0, 730.0, 5.25, 16.22]],
    [[1461.0, 444.0, 2.68, 1.76], [1931.0, 634.0, 7.55, 6.95], [1876.0, 662.0, 3.59, 14.96]],
];
const WARM_UP: usize = 1;
const FIRST_UPDATE: u64 = 1 << 40;

/// The counters that can be had, and why others cannot.
fn counters() -> (Vec<(usize, Counter)>, Vec<String>) {
    let (mut had, mut notes) = (Vec::new(), Vec::new());
    for (at, (event, name)) in EVENTS.iter().enumerate() {
        match Counter::start(*event) {
            Ok(counter) => had.push((at, counter)),
            Err(error) => notes.push(format!("{name} cannot be counted here: {error} (perf_event_open)")),
        }
    }
    (had, notes)
}

fn read(counters: &mut [(usize, Counter)]) -> Result<Vec<u64>, Error> {
    let read = |(_, counter): &mut (usize, Counter)| counter.read();
    let file = |source| Error::File { action: "reading", path: "a counter of the processor".into(), source };
    counters.iter_mut().map(read).collect::<std::io::Result<_>>().map_err(file)
}

/// The samples of a mix: for each tree its times, and the counts of an operation for each counter.
struct Samples {
    times: Vec<Vec<f64>>,
    counts: Vec<Vec<Vec<f64>>>,
}

fn measure(
    context: &Context<'_>,
    place: &Place,
    keys: u64,
    (rounds, operations): (usize, u64),
    counters: &mut [(usize, Counter)],
) -> Result<Vec<Samples>, Error> {
    let mut peers = peers(place, keys, &WHICH)?;
    context.now(format!("{keys} keys, {}", place.pages));
    context.step("filling");
    for peer in &mut peers {
        peer.fill(0..keys)?;
        context.tell();
    }
    let (mut random, mut value, mut mixes) = (Random(88_172_645_463_325_252), FIRST_UPDATE, Vec::new());
    for (mix, name) in MIXES.iter().enumerate() {
        context.now(format!("{name}, {keys} keys, {}", place.pages));
        let counts = vec![vec![Vec::new(); counters.len()]; peers.len()];
        let mut samples = Samples { times: vec![Vec::new(); peers.len()], counts };
        for round in 0..WARM_UP + rounds {
            let mut draw = |_| {
                let key = key(random.next() % keys);
                value += 1;
                if mix == 0 && random.next() % 2 == 0 { Step::Update(key, value) } else { Step::Get(key) }
            };
            let steps: Vec<Step> = (0..operations).map(&mut draw).collect();
            let mut who = round % peers.len();
            let times = in_turn(&mut peers, round, operations, |peer: &mut dyn Peer| {
                let before = read(counters)?;
                let sum = peer.work(&steps)?;
                let after = read(counters)?;
                if round >= WARM_UP {
                    for (series, (after, before)) in samples.counts[who].iter_mut().zip(after.iter().zip(before)) {
                        series.push((after - before) as f64 / operations as f64);
                    }
                }
                who = (who + 1) % WHICH.len();
                Ok(sum)
            })?;
            if round >= WARM_UP {
                samples.times.iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
            }
            if !context.tick() && round + 1 >= WARM_UP + LEAST_ROUNDS {
                break;
            }
        }
        mixes.push(samples);
    }
    Ok(mixes)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 50_000_000 });
    let (rounds, operations) = if context.quick { (11, 50_000) } else { (25, 200_000) };
    context.expect(MIXES.len(), WARM_UP + rounds);
    let (mut counters, missing) = counters();
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: missing };
    measured.notes.extend(notes());
    for place in &context.places {
        let mixes = measure(context, place, keys, (rounds, operations), &mut counters)?;
        let how = format!(
            "{keys} keys, one thread, user mode; medians of rounds of {operations} operations, contestants in turn"
        );
        let panel = |title: &str, unit: &str| {
            let panel = Panel::new(title, place, crate::paper::figure::medium_text(medium()), how.clone());
            panel.axes("mix", MIXES.map(String::from).to_vec(), unit, Form::Bars)
        };
        let mut times = panel("time of an operation", "ns");
        for (at, samples) in mixes.iter().enumerate() {
            for (which, times_of) in WHICH.iter().zip(&samples.times) {
                times.set(which.name(), at, Point::nanoseconds(&Series::new(times_of.clone())));
            }
        }
        measured.panels.push(times);
        for (number, (event, _)) in counters.iter().enumerate() {
            let name = EVENTS[*event].1;
            let mut counts = panel(&format!("{name} of an operation"), name);
            for (at, samples) in mixes.iter().enumerate() {
                for (who, which) in WHICH.iter().enumerate() {
                    let series = Series::new(samples.counts[who][number].clone());
                    counts.set(which.name(), at, Point::nanoseconds(&series));
                    if which.name() == OURS {
                        let paper = PAPER[at][0][*event];
                        let [fast_fair, fptree] = [PAPER[at][1][*event], PAPER[at][2][*event]];
                        measured.claims.push(Claim {
                            what: format!("{}: {name}, {}", MIXES[at], place.pages),
                            paper: format!("{paper} (FAST&FAIR {fast_fair}, FPTree {fptree})"),
                            ours: format!("{:.2}", series.median()),
                            holds: Some(series.median() <= paper),
                        });
                    }
                }
            }
            measured.panels.push(counts);
        }
        // What can be had everywhere: the paper's ratios of cycles beside ours of time.
        for (at, samples) in mixes.iter().enumerate() {
            for (who, paper) in [(1, PAPER[at][1][0]), (2, PAPER[at][2][0])] {
                let series = |who: usize| Series::new(samples.times[who].clone());
                let (paper, ratio) = (paper / PAPER[at][0][0], series(who).ratio_to(&series(0)).median());
                measured.claims.push(Claim {
                    what: format!("{}: {}'s time to ours, {}", MIXES[at], WHICH[who].name(), place.pages),
                    paper: format!("{paper:.2} (cycles)"),
                    ours: format!("{ratio:.2}"),
                    holds: Some(ratio >= paper),
                });
            }
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_is_measured_by_the_counters_that_can_be_had() {
        super::super::peers::with_context(|context, place| {
            let (mut counters, missing) = counters();
            assert_eq!(counters.len() + missing.len(), EVENTS.len(), "{missing:?}");
            let mixes = measure(context, place, 2000, (2, 500), &mut counters).unwrap();
            for samples in &mixes {
                assert!(samples.times.iter().all(|times| times.len() == 2));
                assert!(samples.counts.iter().flatten().all(|counts| counts.len() == 2));
            }
        });
    }
}
