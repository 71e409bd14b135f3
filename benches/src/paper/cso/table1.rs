//! Table 1: what the logs cost, counted and timed.

use super::logs::{SOURCE, all_sizes, medium_text, method, rounds_of_a_point};
use crate::cso_append::{SizeReport, measure_recovery};
use crate::logs::SIZES;
use crate::machine::Bytes;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = Figure {
    name: "cso-table1",
    title: "properties of logging algorithms, counted and timed",
    source: SOURCE,
    keys: None,
    run,
};

/// The rows of the paper's table: name, flushes an entry that is written n times, whether wrong contents can pass for an
/// entry (random ones, an adversary's), limit, overhead.
const PAPER: [(&str, &str); 10] = [
    ("CSO-VB", "n+1 flushes; never incorrect; up to 119 bytes"),
    ("CSO-FVB", "n+1 flushes; never incorrect; any size; an additional read"),
    ("CSO-Random", "2n+n/2^64 flushes; never incorrect; any size"),
    ("AtlasLog", "1.5n flushes; never incorrect; 24 bytes"),
    ("TwoRounds", "two round trips (not in the table)"),
    ("tornbit", "n+1 flushes; never incorrect; any size; slow reads"),
    ("CRC32", "n flushes; incorrect in 2^-32, always for an adversary; any size"),
    ("CRC64", "n flushes; incorrect in 2^-64, always for an adversary; slow"),
    ("MD5", "n flushes; incorrect in less than 2^-128; very slow"),
    ("SHA1", "n flushes; incorrect in less than 2^-128; very slow"),
];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let recoveries = if context.quick { 7 } else { 25 };
    context.expect(SIZES.len() + 1, rounds_of_a_point(context));
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for (number, place) in context.places.iter().enumerate() {
        let reports = all_sizes(context, place)?;
        if number == 0 {
            measured.panels.extend(counts(place, &reports));
            measured.claims.extend(PAPER.iter().filter_map(|(name, paper)| claim(name, paper, &reports)));
        }
        measured.panels.push(times(context, place, &reports[1], recoveries)?);
        measured.notes.extend(reports.into_iter().flat_map(|r| r.missing));
    }
    let note = "a payload that passes for an entry although it is none: what the logs here claim is tested in the crash \
                tests of `benches/src/logs`";
    measured.notes.push(note.into());
    Ok(measured)
}

fn counts(place: &Place, reports: &[SizeReport]) -> [Panel; 2] {
    let x: Vec<String> = SIZES.iter().map(|s| s.name.to_owned()).collect();
    let panel = |what: &str| {
        let panel = Panel::new(format!("{what} an append"), place, medium_text(), "exact");
        panel.axes("entry", x.clone(), what, Form::Bars)
    };
    let (mut write_backs, mut fences) = (panel("write-backs"), panel("fences"));
    for (at, report) in reports.iter().enumerate() {
        for (name, counts) in &report.counts {
            write_backs.set(name, at, Point::exact(counts.write_backs));
            fences.set(name, at, Point::exact(counts.fences));
        }
    }
    [write_backs, fences]
}

/// Appending, reading back and recovering entries of one line.
fn times(context: &Context<'_>, place: &Place, report: &SizeReport, recoveries: usize) -> Result<Panel, Error> {
    context.now(format!("recovery, {}", place.pages));
    let region = if context.quick { 1 << 20 } else { 8 << 20 };
    let recovered = measure_recovery(place, region, recoveries, &mut || context.tick())?;
    let how = format!("{}; recovery of full logs of {}", method(place, context), Bytes(region));
    let panel = Panel::new("entries of one line", place, medium_text(), how);
    let x = ["append", "read and discard", "recover"].map(String::from).to_vec();
    let mut panel = panel.axes("operation", x, "ns an entry", Form::Bars);
    for outcome in &report.outcomes {
        panel.set(&outcome.name, 0, Point::nanoseconds(&outcome.phases[0]));
        panel.set(&outcome.name, 1, Point::nanoseconds(&outcome.phases[1]));
    }
    for outcome in &recovered {
        panel.set(&outcome.name, 2, Point::nanoseconds(&outcome.phases[0]));
    }
    Ok(panel)
}

fn claim(name: &str, paper: &str, reports: &[SizeReport]) -> Option<Claim> {
    let of = |report: &SizeReport| report.counts.iter().find(|(n, _)| *n == name).map(|(_, c)| *c);
    let texts: Vec<String> = reports
        .iter()
        .filter_map(|report| {
            let counts = of(report)?;
            Some(format!("{}: {:.2} and {:.2}", report.size.name, counts.write_backs, counts.fences))
        })
        .collect();
    let ours = format!("write-backs and fences an append, {}", texts.first()?);
    let ours = texts.get(1).map_or(ours.clone(), |one| format!("{ours}; {one}"));
    Some(Claim { what: name.into(), paper: paper.into(), ours, holds: None })
}
