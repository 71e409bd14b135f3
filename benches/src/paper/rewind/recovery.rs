//! Figures 4 and 5: rolling one transaction back, recovering it after a crash, and the total of logging and recovery. The crash is
//! that of the process: memory stays as the caches have it.

use durix_pmem::{Hardware, Medium};
use durix_rewind::{Layers, LogKind, Options, Policy};

use super::micro::{CONTRACT, Table, figure};
use crate::interleave::{Series, Stopwatch};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIG4: Figure =
    figure("rewind-fig4", "rollback and recovery of one transaction by skip records", fig4);
pub(in crate::paper) const FIG5: Figure =
    figure("rewind-fig5", "logging and recovery by the part of transactions that is recovered", fig5);

/// Records of the transaction that is measured.
const OWN: u64 = 50;
/// Transactions of figure 5, and the updates of each.
const TRANSACTIONS: u64 = 20;

/// How the transaction ends that is measured.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Commit,
    Rollback,
    /// The process dies in it; the other transactions have committed.
    Crash,
}

fn optimized(layers: Layers, policy: Policy) -> Options {
    Options::default().log(LogKind::Optimized).layers(layers).policy(policy)
}

/// Logs one transaction among others, and ends it. Returns milliseconds: of logging, and of the end.
fn one_among(table: &mut Table<Hardware>, skip: u64, end: End) -> Result<(f64, f64), Error> {
    let words: Vec<_> = (0..OWN * (skip + 1)).map(|_| table.next()).collect();
    let Table { tm, session, other, .. } = table;
    let start = Stopwatch::start();
    let (mut one, mut two) = (tm.begin(session)?, tm.begin(other)?);
    for chunk in words.chunks(skip as usize + 1) {
        one.set(chunk[0].0, chunk[0].1)?;
        chunk[1..].iter().try_for_each(|(word, value)| two.set(*word, *value))?;
    }
    let logging = start.elapsed().as_secs_f64() * 1e3;
    let start = Stopwatch::start();
    match end {
        End::Commit => one.commit()?,
        End::Rollback => one.rollback()?,
        End::Crash => std::mem::forget(one),
    }
    let ending = start.elapsed().as_secs_f64() * 1e3;
    two.commit()?;
    let ending = if end == End::Crash { table.reopen()? } else { ending };
    table.tm.checkpoint(&mut table.session)?;
    Ok((logging, ending))
}

fn fig4(context: &Context<'_>) -> Result<Measured, Error> {
    let skips: &[u64] = if context.quick { &[100, 1000] } else { &[100, 200, 400, 600, 800, 1000] };
    let rounds = if context.quick { 5 } else { 15 };
    context.expect(2 * skips.len(), rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![CONTRACT.into()] };
    for place in &context.places {
        for (title, end, policy) in
            [("rollback", End::Rollback, Policy::Force), ("recovery", End::Crash, Policy::NoForce)]
        {
            let panel = by_skips(context, place, (title, end, policy), skips, rounds)?;
            let at = |name: &str| {
                let curve = panel.series.iter().find(|curve| curve.name == name);
                curve.and_then(|curve| curve.points.last().copied().flatten()).map_or(f64::NAN, |point| point.median)
            };
            let paper = match end {
                End::Rollback => "two layers are ahead from about 400 skip records on",
                _ => "one layer is far ahead at any number of skip records",
            };
            let last = skips.last().copied().unwrap_or_default();
            let ours = format!("at {last}: one layer {:.3} ms, two layers {:.3} ms", at("one layer"), at("two layers"));
            measured.claims.push(Claim {
                what: format!("{title}, {}", place.pages),
                paper: paper.into(),
                ours,
                holds: None,
            });
            measured.panels.push(panel);
        }
    }
    measured.notes.push(
        "recovery is measured without force: with force the other transactions' records are gone when they have committed"
            .into(),
    );
    Ok(measured)
}

fn by_skips(
    context: &Context<'_>,
    place: &Place,
    (title, end, policy): (&str, End, Policy),
    skips: &[u64],
    rounds: usize,
) -> Result<Panel, Error> {
    let how = format!("medians of {rounds} rounds; a transaction of {OWN} updates among others");
    let x = skips.iter().map(u64::to_string).collect();
    let panel = Panel::new(title, place, medium().describe(), how);
    let mut panel = panel.axes("records of others between two records", x, "milliseconds", Form::Lines);
    for (at, skip) in skips.iter().enumerate() {
        context.now(format!("{title}, {skip} skip records, {}", place.pages));
        let mut one = Table::at(place, medium(), optimized(Layers::One, policy))?;
        let mut two = Table::at(place, medium(), optimized(Layers::Two, policy))?;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            times[0].push(one_among(&mut one, *skip, end)?.1);
            times[1].push(one_among(&mut two, *skip, end)?.1);
            context.tick();
        }
        for (name, times) in ["one layer", "two layers"].into_iter().zip(times) {
            panel.set(name, at, Point::nanoseconds(&Series::new(times)));
        }
    }
    Ok(panel)
}

fn fig5(context: &Context<'_>) -> Result<Measured, Error> {
    let percents: &[u64] = if context.quick { &[0, 50, 100] } else { &[0, 10, 25, 50, 75, 100] };
    let rounds = if context.quick { 3 } else { 9 };
    context.expect(percents.len(), rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: vec![CONTRACT.into()] };
    for place in &context.places {
        let how = format!("medians of {rounds} rounds of {TRANSACTIONS} transactions of {OWN} updates; one layer");
        let x = percents.iter().map(u64::to_string).collect();
        let panel = Panel::new("logging, and commit or recovery", place, medium().describe(), how);
        let mut panel = panel.axes("% of the transactions recovered", x, "milliseconds", Form::Lines);
        for (at, percent) in percents.iter().enumerate() {
            context.now(format!("{percent}% recovered, {}", place.pages));
            let mut contestants = Vec::new();
            for skip in [10, 150, 300] {
                for (name, policy) in [("force", Policy::Force), ("no force", Policy::NoForce)] {
                    let table = Table::at(place, medium(), optimized(Layers::One, policy))?;
                    contestants.push((format!("{name}, {skip} skip records"), skip, table, Vec::new()));
                }
            }
            for _ in 0..rounds {
                for (_, skip, table, times) in &mut contestants {
                    let mut total = 0.0;
                    for number in 0..TRANSACTIONS {
                        let end = if number * 100 < percent * TRANSACTIONS { End::Crash } else { End::Commit };
                        let (logging, ending) = one_among(table, *skip, end)?;
                        total += logging + ending;
                    }
                    times.push(total);
                }
                context.tick();
            }
            for (name, _, _, times) in contestants {
                panel.set(&name, at, Point::nanoseconds(&Series::new(times)));
            }
        }
        measured.claims.push(crossing(place, &panel));
        measured.panels.push(panel);
    }
    Ok(measured)
}

/// Which policy is ahead at either end.
fn crossing(place: &Place, panel: &Panel) -> Claim {
    let at = |name: &str, last: bool| {
        let points = panel.series.iter().find(|curve| curve.name == name).map(|curve| &curve.points);
        let point = points.and_then(|points| if last { points.last() } else { points.first() });
        point.copied().flatten().map_or(f64::NAN, |point| point.median)
    };
    let ratio = |last| at("force, 300 skip records", last) / at("no force, 300 skip records", last);
    Claim {
        what: format!("force to no force, 300 skip records, {}", place.pages),
        paper: "slightly behind where nothing is recovered, ahead where much is".into(),
        ours: format!("{:.2} at 0%, {:.2} at 100%", ratio(false), ratio(true)),
        holds: None,
    }
}
