//! Figure 4(a): throughput of the logs by size of entry.

use super::logs::{SOURCE, all_sizes, medium_text, method, rounds_of_a_point, set_stress, stress_ratio};
use crate::cso_append::SizeReport;
use crate::logs::SIZES;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point, ahead};

pub(in crate::paper) const FIGURE: Figure = Figure {
    name: "cso-fig4a",
    title: "throughput of single-trip logs by size of entry",
    source: SOURCE,
    keys: None,
    run,
};

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    context.expect(SIZES.len(), rounds_of_a_point(context));
    let x: Vec<String> = SIZES.iter().map(|s| s.name.to_owned()).collect();
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let reports = all_sizes(context, place)?;
        let panel = |title: &str| {
            let panel = Panel::new(title, place, medium_text(), method(place, context));
            panel.axes("entry", x.clone(), "million appends/s", Form::Lines)
        };
        let mut stress = panel("stress test: append 512, read and discard");
        let mut appends = panel("appends alone");
        for (at, report) in reports.iter().enumerate() {
            set_stress(&mut stress, at, &report.outcomes);
            for outcome in &report.outcomes {
                appends.set(&outcome.name, at, Point::throughput(&outcome.phases[0]));
            }
            measured.notes.extend(report.missing.iter().cloned());
        }
        measured.panels.extend([stress, appends]);
        measured.claims.extend(claims(&reports, &place.pages.to_string()));
    }
    Ok(measured)
}

fn claims(reports: &[SizeReport], pages: &str) -> Vec<Claim> {
    let claim = |size: usize, name: &str, to: &str, paper: &str| {
        let report = &reports[size];
        let stress = stress_ratio(&report.outcomes, name, to)?;
        let appends = report.ratio(to, name)?;
        let what = format!("{name} to {to}, {}, {pages}", report.size.name);
        let ours = format!("{}; appends alone {}", ahead(stress), ahead(appends));
        Some(Claim { what, paper: paper.into(), ours, holds: None })
    };
    let mut claims: Vec<Option<Claim>> = Vec::new();
    for size in 0..reports.len() {
        claims.push(claim(size, "CSO-VB", "TwoRounds", "ahead, most of all"));
    }
    claims.push(claim(1, "CSO-FVB", "CSO-VB", "2% to 7% behind"));
    claims.push(claim(1, "CSO-Random", "CSO-VB", "2% to 7% behind"));
    claims.push(claim(0, "tornbit", "CSO-VB", "very efficient at half a line"));
    claims.push(claim(4, "tornbit", "CSO-FVB", "deteriorates with size"));
    claims.push(claim(1, "CRC32", "CSO-FVB", "close"));
    claims.push(claim(4, "CRC64", "TwoRounds", "slower for large entries"));
    claims.into_iter().flatten().collect()
}
