//! Figures 8a to 8c on one thread, as far as this project has goals for them: what each operation costs at N keys, in floors of the same
//! rounds. Merges are done by the same thread and are in its time.

use std::hint::black_box;

use durix_dptree::Direction;
use durix_pmem::Hardware;

use super::trees::{Floor, Random, Tree, figure, key, pool_for};
use crate::cso_append::medium;
use crate::interleave::{Series, Stopwatch};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-goals",
    "time of an operation, merges included, in floors (figures 8a to 8c, one thread)",
    "keys of the tree, instead of 10 million (one million with --quick)",
    run,
);

const PHASES: [&str; 7] = ["insert", "update", "insert over", "get", "get_many", "get, absent", "scan of 100"];
const INSERT: usize = 0;
const UPDATE: usize = 1;
const PUT: usize = 2;
const GET: usize = 3;
const MANY: usize = 4;
const ABSENT: usize = 5;
const SCAN: usize = 6;
const WARM_UP: usize = 2;
/// Keys of a batch of `get_many`.
const BATCH: usize = 64;

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 10_000_000 });
    let rounds = if context.quick { 15 } else { 31 };
    context.expect(1, rounds + WARM_UP);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let (filling, samples) = measure(context, place, keys, rounds)?;
        report(place, keys, (filling, &samples), &mut measured);
    }
    measured.notes.push(
        "processor time of the one thread that works and merges; the floor is a store, its write-back and a fence over successive \
         lines of 64 MiB, measured before each phase of each round"
            .into(),
    );
    if keys != 10_000_000 {
        measured.notes.push(format!("the goals are set for 10000000 keys; these are {keys}"));
    }
    Ok(measured)
}

/// For each phase the nanoseconds of each round, and the floor before it.
type Samples = [(Vec<f64>, Vec<f64>); PHASES.len()];

/// Returns the floors of an insert while the tree was filled, and the rounds.
fn measure(context: &Context<'_>, place: &Place, keys: u64, rounds: usize) -> Result<(f64, Samples), Error> {
    let number = (keys / 100).clamp(1000, 100_000);
    let grown = keys + number * (rounds + WARM_UP) as u64;
    let pool = pool_for(place, grown)?;
    let (mut tree, mut floor) = (Tree::new(&pool)?, Floor::new(place)?);
    context.now(format!("{keys} keys, {}", place.pages));
    context.step("filling");
    let filling = fill(context, &mut tree, &mut floor, keys)?;
    context.now(format!("{keys} keys, {}", place.pages));
    let mut samples: Samples = std::array::from_fn(|_| (Vec::new(), Vec::new()));
    let mut random = Random(88_172_645_463_325_252);
    for round in 0..rounds + WARM_UP {
        for (at, (own, floors)) in samples.iter_mut().enumerate() {
            let drawn: Vec<u64> = (0..number).map(|_| key(random.next() % tree.keys)).collect();
            let one = floor.round(number.min(20_000))?;
            let start = Stopwatch::start();
            let operations = phase(&mut tree, at, &drawn)?;
            let time = start.elapsed().as_nanos() as f64 / operations as f64;
            if round >= WARM_UP {
                own.push(time);
                floors.push(one);
            }
        }
        if !context.tick() && round >= WARM_UP + 5 {
            break;
        }
    }
    Ok((filling, samples))
}

/// Fills a tree; returns the mean of an insert, in floors.
fn fill(context: &Context<'_>, tree: &mut Tree<Hardware>, floor: &mut Floor, keys: u64) -> Result<f64, Error> {
    const PARTS: u64 = 20;
    let (mut own, mut floors) = (0.0, 0.0);
    for part in 0..PARTS {
        floors += floor.round(20_000)?;
        let number = keys * (part + 1) / PARTS - tree.keys;
        let start = Stopwatch::start();
        tree.insert(number)?;
        own += start.elapsed().as_nanos() as f64;
        context.tell();
    }
    Ok(own / keys as f64 / (floors / PARTS as f64))
}

/// One phase of a round; returns how many operations that were.
fn phase(tree: &mut Tree<Hardware>, what: usize, drawn: &[u64]) -> Result<usize, Error> {
    if what == INSERT {
        tree.insert(drawn.len() as u64)?;
        return Ok(drawn.len());
    }
    if what == UPDATE || what == PUT {
        for (i, key) in drawn.iter().enumerate() {
            let op = tree.session.enter()?;
            let was_there = if what == UPDATE {
                tree.tree.update(&op, *key, i as u64)?
            } else {
                !tree.tree.insert(&op, *key, i as u64)?
            };
            assert!(was_there, "all keys are there");
            drop(op);
            tree.tick(i as u64)?;
        }
        return Ok(drawn.len());
    }
    let Tree { tree, session, .. } = tree;
    let op = session.enter()?;
    let mut found = 0;
    match what {
        GET => {
            drawn.iter().try_for_each(|key| tree.get(&op, *key).map(|value| found += usize::from(value.is_some())))?
        }
        MANY => drawn
            .chunks(BATCH)
            .try_for_each(|batch| tree.get_many(&op, batch, |_, value| found += usize::from(value.is_some())))?,
        // Keys that differ from all others: the odd one out is a bit of a product.
        ABSENT => {
            drawn.iter().try_for_each(|key| tree.get(&op, !*key).map(|value| found += usize::from(value.is_none())))?
        }
        _ => {
            let starts = &drawn[..drawn.len() / 50];
            for key in starts {
                let mut left = 100;
                tree.scan(&op, *key.., Direction::Forward, |key, value| {
                    black_box((key, value));
                    left -= 1;
                    left > 0
                })?;
            }
            return Ok(starts.len());
        }
    }
    assert_eq!(found, drawn.len(), "{}", PHASES[what]);
    Ok(found)
}

fn report(place: &Place, keys: u64, (filling, samples): (f64, &Samples), measured: &mut Measured) {
    let series: Vec<(Series, Series)> =
        samples.iter().map(|(own, floors)| (Series::new(own.clone()), Series::new(floors.clone()))).collect();
    let how = format!("{keys} keys, one thread; medians of {} rounds, ratios within rounds", samples[0].0.len());
    let panel = |title: &str, unit: &str| {
        let panel = Panel::new(title, place, medium_text(), how.clone());
        panel.axes("operation", PHASES.map(String::from).to_vec(), unit, Form::Bars)
    };
    let (mut times, mut floors) = (panel("time of an operation", "ns"), panel("the same in floors", "floors"));
    for (at, (own, floor)) in series.iter().enumerate() {
        times.set("DPTree", at, Point::nanoseconds(own));
        times.set("floor", at, Point::nanoseconds(floor));
        floors.set("DPTree", at, Point::nanoseconds(&own.ratio_to(floor)));
    }
    measured.panels.extend([times, floors]);
    let median = |at: usize| series[at].0.median();
    let in_floors = |at: usize| series[at].0.ratio_to(&series[at].1).median();
    let ratio = |a: usize, b: usize| series[a].0.ratio_to(&series[b].0).median();
    let mut claim = |what: &str, paper: &str, ours: String, holds: Option<bool>| {
        let what = format!("{what}, {}", place.pages);
        measured.claims.push(Claim { what, paper: paper.into(), ours, holds });
    };
    let floors = |at: usize| format!("{:.2} floors, {:.0} ns", in_floors(at), median(at));
    claim("insert", "its own code 3.2 floors; goal 1.6", floors(INSERT), Some(in_floors(INSERT) <= 1.6));
    claim("insert, mean while filling", "–", format!("{filling:.2} floors"), None);
    claim("update", "goal 1.4 floors", floors(UPDATE), Some(in_floors(UPDATE) <= 1.4));
    claim("insert over a key", "–", floors(PUT), None);
    claim("get", "its own code 506 ns; goal 240 ns", format!("{:.0} ns", median(GET)), Some(median(GET) <= 240.0));
    let absent = ratio(ABSENT, GET);
    claim("absent key to get", "goal 1.1", format!("{absent:.2}"), Some(absent <= 1.1));
    let many = ratio(GET, MANY);
    claim(
        &format!("get to get_many, {keys} keys"),
        "goal 3, at 20 million keys",
        format!("{many:.2}"),
        Some(many >= 3.0),
    );
    claim("scan of 100", "–", format!("{:.0} ns", median(SCAN)), None);
}

fn medium_text() -> String {
    crate::paper::figure::medium_text(medium())
}
