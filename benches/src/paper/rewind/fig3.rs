//! Figure 3: what logging costs. Left: by the part of the time that is spent on updates. Right: by the number of records of
//! other transactions between two records of one (skip records), with force.

use durix_pmem::Medium;
use durix_rewind::{Layers, LogKind, Options, Policy, StorePolicy};

use super::micro::{CONTRACT, Logged, PLAIN, Plain, Table, configurations, counted, figure, turn_ns};
use crate::interleave::{Contestant, Outcome, Series, Stopwatch, interleave_telling};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("rewind-fig3", "logging overhead by update intensity and by skip records", run);

/// Percent of the time of the non-recoverable program that updates take.
const INTENSITIES: [u64; 5] = [10, 25, 50, 75, 100];
/// Updates of a transaction.
const UPDATES: u64 = 1000;
/// Records of the transaction that is measured among others.
const OWN: u64 = 50;

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let skips: &[u64] = if context.quick { &[100, 1000] } else { &[100, 200, 400, 600, 800, 1000] };
    let rounds = if context.quick { 7 } else { 25 };
    context.expect(INTENSITIES.len() + skips.len() + 1, rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![CONTRACT.into()] };
    for (number, place) in context.places.iter().enumerate() {
        if number == 0 {
            measured.panels.push(counts(place)?);
        }
        measured.panels.push(left(context, place, rounds, &mut measured.claims)?);
        measured.panels.push(right(context, place, rounds, skips)?);
        measured.panels.push(policies(context, place, rounds, &mut measured.claims)?);
    }
    measured.notes.push(
        "skip records: a transaction keeps the positions of its records in volatile memory, so one layer does not scan the log \
         when it commits; paper: two layers are ahead from about 600 skip records on"
            .into(),
    );
    Ok(measured)
}

/// Exact counts of an update.
fn counts(place: &Place) -> Result<Panel, Error> {
    let x: Vec<String> = configurations().iter().map(|(name, _)| (*name).to_owned()).collect();
    let how = format!("exact, in transactions of {UPDATES}");
    let panel = Panel::new("write-backs and fences an update", place, "counting", how);
    let mut panel = panel.axes("configuration", x, "an update", Form::Bars);
    for (at, (_, options)) in configurations().into_iter().enumerate() {
        let (write_backs, fences) = counted(options, UPDATES)?;
        panel.set("write-backs", at, Point::exact(write_backs));
        panel.set("fences", at, Point::exact(fences));
    }
    Ok(panel)
}

fn contestants<'a>(place: &Place, turns: u64) -> Result<Vec<Box<dyn Contestant<1> + 'a>>, Error> {
    let plain = Plain { table: Table::at(place, medium(), Options::default())?, updates: UPDATES, turns };
    let mut all: Vec<Box<dyn Contestant<1>>> = vec![Box::new(plain)];
    for (name, options) in configurations() {
        let table = Table::at(place, medium(), options)?;
        all.push(Box::new(Logged { name: name.into(), table, updates: UPDATES, turns }));
    }
    Ok(all)
}

/// How the words of a list's header are made durable: the logs whose records, or buckets of them, are nodes of a list. The default first.
const POLICIES: [(StorePolicy, &str); 2] =
    [(StorePolicy::WriteBack, "store and write-back"), (StorePolicy::NonTemporal, "non-temporal store")];
const LOGS: [(LogKind, &str); 3] =
    [(LogKind::Simple, "Simple"), (LogKind::Optimized, "Optimized"), (LogKind::Batch(8), "Batch 8")];

fn policies(context: &Context<'_>, place: &Place, rounds: usize, claims: &mut Vec<Claim>) -> Result<Panel, Error> {
    context.now(format!("stores of the list, {}", place.pages));
    let mut all: Vec<Box<dyn Contestant<1>>> = Vec::new();
    for (log, name) in LOGS {
        for (stores, how) in POLICIES {
            let table = Table::at(place, medium(), Options::default().log(log).stores(stores))?;
            all.push(Box::new(Logged { name: format!("{name}, {how}"), table, updates: UPDATES, turns: 0 }));
        }
    }
    let outcomes = interleave_telling(&mut all, 2, rounds, &mut || context.tick());
    let how = format!("medians of {rounds} interleaved transactions of {UPDATES} updates; one layer, no force");
    let panel = Panel::new("stores to the header of the list", place, medium().describe(), how);
    let mut panel = panel.axes("log", LOGS.map(|(_, name)| name.to_owned()).to_vec(), "ns an update", Form::Bars);
    for (at, ((log, name), both)) in LOGS.into_iter().zip(outcomes.chunks(POLICIES.len())).enumerate() {
        let mut counts = Vec::new();
        for ((stores, how), outcome) in POLICIES.iter().zip(both) {
            panel.set(how, at, Point::nanoseconds(&outcome.phases[0]));
            let (write_backs, fences) = counted(Options::default().log(log).stores(*stores), UPDATES)?;
            counts.push(format!("{write_backs:.2} and {fences:.2}"));
        }
        let ratio = both[1].phases[0].ratio_to(&both[0].phases[0]).median();
        claims.push(Claim {
            what: format!("{name}: time with non-temporal stores to that with write-backs, {}", place.pages),
            paper: "non-temporal; here the default is the faster one: goal 1".into(),
            ours: format!("{ratio:.2}; write-backs and fences an update {} to {}", counts[1], counts[0]),
            holds: Some(ratio >= 1.0),
        });
    }
    Ok(panel)
}

fn ratio(outcomes: &[Outcome<1>], name: &str) -> Option<Series> {
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.name == name).map(|outcome| &outcome.phases[0]);
    Some(of(name)?.ratio_to(of(PLAIN)?))
}

fn left(context: &Context<'_>, place: &Place, rounds: usize, claims: &mut Vec<Claim>) -> Result<Panel, Error> {
    let x = INTENSITIES.map(|percent| percent.to_string()).to_vec();
    let how = format!("medians of {rounds} interleaved transactions of {UPDATES} updates, ratios within rounds");
    let panel = Panel::new("overhead of logging by update intensity", place, medium().describe(), how);
    let mut panel = panel.axes("% of the time spent on updates", x, "times the non-recoverable program", Form::Lines);
    let turn = turn_ns();
    for (at, percent) in INTENSITIES.into_iter().enumerate() {
        context.now(format!("{percent}% updates, {}", place.pages));
        let store = {
            let mut plain =
                Plain { table: Table::at(place, medium(), Options::default())?, updates: UPDATES, turns: 0 };
            (0..5).map(|_| plain.round()[0]).fold(f64::INFINITY, f64::min)
        };
        let turns = (store * (100 - percent) as f64 / percent as f64 / turn) as u64;
        let mut all = contestants(place, turns)?;
        let outcomes = interleave_telling(&mut all, 2, rounds, &mut || context.tick());
        for (name, _) in configurations() {
            let Some(ratio) = ratio(&outcomes, name) else { continue };
            panel.set(name, at, Point::nanoseconds(&ratio));
            let paper = match (name, percent) {
                ("1L-NFP", 10) => "1.5 times",
                ("2L-NFP", 10) => "8.5 times",
                ("Batch 8 1L-NFP", 10) => "(not shown; one layer, no force: 1.5 times)",
                _ => continue,
            };
            let goal = name.contains("1L").then_some(1.5);
            let ours = format!("{:.2} times", ratio.median());
            let what = format!("{name}, 10% updates, {}", place.pages);
            claims.push(Claim { what, paper: paper.into(), ours, holds: goal.map(|goal| ratio.median() <= goal) });
        }
    }
    Ok(panel)
}

/// A transaction of [`OWN`] updates with `skip` updates of another one after each; only its own time counts.
fn among_others(table: &mut Table<durix_pmem::Hardware>, skip: u64) -> Result<f64, Error> {
    let words: Vec<_> = (0..OWN * (skip + 1)).map(|_| table.next()).collect();
    let Table { tm, session, other, .. } = table;
    let (mut one, mut two) = (tm.begin(session)?, tm.begin(other)?);
    let mut time = 0.0;
    for chunk in words.chunks(skip as usize + 1) {
        let start = Stopwatch::start();
        one.set(chunk[0].0, chunk[0].1)?;
        time += start.elapsed().as_nanos() as f64;
        chunk[1..].iter().try_for_each(|(word, value)| two.set(*word, *value))?;
    }
    let start = Stopwatch::start();
    one.commit()?;
    time += start.elapsed().as_nanos() as f64;
    two.commit()?;
    tm.checkpoint(session)?;
    Ok(time / OWN as f64)
}

fn right(context: &Context<'_>, place: &Place, rounds: usize, skips: &[u64]) -> Result<Panel, Error> {
    let x = skips.iter().map(u64::to_string).collect();
    let how = format!("medians of {rounds} rounds; a transaction of {OWN} updates, its commit included; force");
    let panel = Panel::new("overhead of logging by skip records", place, medium().describe(), how);
    let mut panel =
        panel.axes("records of others between two records", x, "times the non-recoverable program", Form::Lines);
    let force = Options::default().log(LogKind::Optimized).policy(Policy::Force);
    for (at, skip) in skips.iter().enumerate() {
        context.now(format!("{skip} skip records, {}", place.pages));
        let mut plain = Plain { table: Table::at(place, medium(), force)?, updates: OWN, turns: 0 };
        let mut tables = [("1L-FP", Layers::One), ("2L-FP", Layers::Two)]
            .map(|(name, layers)| (name, force.layers(layers)))
            .map(|(name, options)| Table::at(place, medium(), options).map(|table| (name, table)));
        let mut ratios = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let floor = plain.round()[0];
            for (table, ratios) in tables.iter_mut().zip(&mut ratios) {
                match table {
                    Ok((_, table)) => ratios.push(among_others(table, *skip)? / floor),
                    Err(_) => continue,
                }
            }
            context.tick();
        }
        for (table, ratios) in tables.into_iter().zip(ratios) {
            panel.set(table?.0, at, Point::nanoseconds(&Series::new(ratios)));
        }
    }
    Ok(panel)
}
