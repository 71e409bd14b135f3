//! Figure 6: what checkpoints cost, by their frequency.

use durix_pmem::{Hardware, Medium};
use durix_rewind::{LogKind, Options};

use super::micro::{Table, figure};
use crate::interleave::{Series, Stopwatch};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::paper::{Context, Error, Figure, Measured};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure("rewind-fig6", "overhead of checkpoints by their frequency", run);

/// Updates of a transaction.
const UPDATES: u64 = 100;

fn logs() -> [(&'static str, Options, &'static str); 3] {
    let of = |log| Options::default().log(log);
    [
        ("Simple", of(LogKind::Simple), "79% to 60%"),
        ("Optimized", of(LogKind::Optimized), "32% to 9%"),
        ("Batch 8", of(LogKind::Batch(8)), "20% to 3%"),
    ]
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let records: u64 = if context.quick { 50_000 } else { 1_000_000 };
    let every: &[u64] = if context.quick { &[1000, 5000, 25_000] } else { &[1000, 5000, 25_000, 100_000, 500_000] };
    let rounds = if context.quick { 5 } else { 9 };
    context.expect(every.len(), rounds);
    let notes = vec![
        format!("{records} records a round; the paper inserts ten million"),
        "a checkpoint runs in the thread that logs, and all of it is charged; the paper's runs beside".into(),
        "a log without a checkpoint is cleared between the rounds, which is not charged".into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        let how = format!("medians of {rounds} rounds, each with and without checkpoints; one layer, no force");
        let x = every.iter().map(u64::to_string).collect();
        let panel = Panel::new("overhead of checkpoints", place, medium().describe(), how);
        let mut panel = panel.axes("records between two checkpoints", x, "% of the time without", Form::Lines);
        for (at, every) in every.iter().enumerate() {
            context.now(format!("every {every} records, {}", place.pages));
            let mut tables = logs()
                .map(|(_, options, _)| Table::at(place, medium(), options))
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            let mut overheads = [const { Vec::new() }; 3];
            for _ in 0..rounds {
                for (table, overheads) in tables.iter_mut().zip(&mut overheads) {
                    let plain = logged(table, records, u64::MAX)?;
                    overheads.push((logged(table, records, *every)? / plain - 1.0) * 100.0);
                }
                if !context.tick() && overheads[0].len() >= 3 {
                    break;
                }
            }
            for ((name, ..), overheads) in logs().into_iter().zip(overheads) {
                panel.set(name, at, Point::nanoseconds(&Series::new(overheads)));
            }
        }
        measured.claims.extend(claims(place, &panel));
        measured.panels.push(panel);
    }
    Ok(measured)
}

/// Time of so many records, with a checkpoint each time so many are there.
fn logged(table: &mut Table<Hardware>, records: u64, every: u64) -> Result<f64, Error> {
    let words: Vec<_> = (0..UPDATES).map(|_| table.next()).collect();
    let Table { tm, session, .. } = table;
    let start = Stopwatch::start();
    let mut since = 0;
    for _ in 0..records / (UPDATES + 1) {
        let mut tx = tm.begin(session)?;
        words.iter().try_for_each(|(word, value)| tx.set(*word, *value))?;
        tx.commit()?;
        since += UPDATES + 1;
        if since >= every {
            tm.checkpoint(session)?;
            since = 0;
        }
    }
    let time = start.elapsed().as_secs_f64();
    tm.checkpoint(session)?;
    Ok(time)
}

fn claims(place: &Place, panel: &Panel) -> Vec<Claim> {
    let of = |(name, _, paper): (&str, Options, &str)| {
        let points = panel.series.iter().find(|curve| curve.name == name).map(|curve| &curve.points);
        let median = |point: Option<&Option<Point>>| point.copied().flatten().map_or(f64::NAN, |point| point.median);
        let [first, last] = [points.and_then(|p| p.first()), points.and_then(|p| p.last())].map(median);
        let what = format!("{name}, {}", place.pages);
        Claim { what, paper: paper.into(), ours: format!("{first:.0}% to {last:.0}%"), holds: None }
    };
    logs().into_iter().map(of).collect()
}
