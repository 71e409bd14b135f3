//! The figures and tables of the papers, redrawn: a registry, and what all of them share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`report`] | what a figure has measured: panels of series of points, claims |
//! | [`terminal`], [`svg`], [`output`] | how it is shown and stored |
//! | [`all`] | all figures in one run, with a page that shows them |
//! | `cso`, `dptree`, `incll`, `logfree`, `rewind`; `pool_growth`, `kinds`, `facade_cost`, … | one module a figure, or for figures that differ in one thing |
//!
//! A figure is a [`Figure`] in [`FIGURES`]: its name, what the paper shows, and a function that measures. Whoever adds a figure
//! writes a module and a line in that table.

pub mod all;
mod bplustree;
mod cso;
mod dptree;
pub mod facade_cost;
mod fenceless;
mod figure;
mod incll;
mod journal_commit;
mod journal_interval;
mod journal_recovery;
mod kinds;
mod later;
mod logfree;
pub mod output;
mod pauses;
mod pool_growth;
pub mod report;
mod rewind;
mod scaling;
pub mod svg;
pub mod terminal;
mod tickets;
mod transactions;
mod working;

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::machine::Machine;
use crate::place::Place;
pub use figure::{Context, Error, Figure, MAX_KEYS, Measured};
use report::{Header, Report};

/// All figures, in the order in which `paper list` names them.
pub const FIGURES: &[Figure] = &[
    cso::table1::FIGURE,
    cso::fig4a::FIGURE,
    cso::fig4b::FIGURE,
    cso::fig7a::FIGURE,
    cso::fig7b::FIGURE,
    cso::fig7c::FIGURE,
    dptree::table1::FIGURE,
    dptree::table2::FIGURE,
    dptree::flushcost::FIGURE,
    dptree::goals::FIGURE,
    dptree::fig8a::FIGURE,
    dptree::fig8b::FIGURE,
    dptree::fig8c::FIGURE,
    dptree::fig8d::FIGURE,
    dptree::fig10::FIGURE,
    dptree::fig11::FIGURE,
    dptree::fig12::FIGURE,
    dptree::fig13::FIGURE,
    dptree::stalls::FIGURE,
    scaling::DPTREE,
    dptree::space::FIGURE,
    incll::fig2::FIGURE,
    incll::delays::FIG3,
    incll::fig4::FIGURE,
    incll::sizes::FIG5,
    incll::sizes::FIG6,
    incll::sizes::FIG7,
    incll::delays::FIG8,
    incll::flush::FIGURE,
    incll::recovery::FIGURE,
    incll::many::FIGURE,
    incll::layouts::FIGURE,
    incll::interior::FIGURE,
    incll::same::FIGURE,
    logfree::fig5::FIGURE,
    logfree::fig6::FIGURE,
    logfree::fig7::FIGURE,
    logfree::fig8::FIGURE,
    logfree::fig9::FIGURE,
    logfree::fig10::FIGURE,
    logfree::mixes::FIGURE,
    kinds::FIGURE,
    journal_commit::FIGURE,
    journal_interval::FIGURE,
    journal_recovery::FIGURE,
    tickets::FIGURE,
    pool_growth::FIGURE,
    rewind::fig3::FIGURE,
    rewind::recovery::FIG4,
    rewind::recovery::FIG5,
    rewind::checkpoints::FIGURE,
    rewind::trees::FIG7,
    rewind::trees::FIG8,
    rewind::threads::FIGURE,
    rewind::peers::FIGURE,
    rewind::trees::FIG10,
    rewind::tpcc::FIGURE,
    rewind::words::FIGURE,
    scaling::REWIND,
    bplustree::FIGURE,
    transactions::FIGURE,
    later::FIGURE,
    facade_cost::FIGURE,
];

/// The figure of a name.
///
/// # Errors
/// [`Error::Unknown`], with the nearest name if one is near.
pub fn find(name: &str) -> Result<&'static Figure, Error> {
    FIGURES.iter().find(|f| f.name == name).ok_or_else(|| {
        let near = FIGURES.iter().map(|f| (distance(name, f.name), f.name)).min();
        let hint = near.filter(|(d, _)| *d <= 4).map_or_else(String::new, |(_, n)| format!(", did you mean {n}"));
        Error::Unknown { name: name.to_owned(), hint }
    })
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let here = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[b.len()]
}

/// Runs a figure. Progress goes to standard error: a bar, or some lines where that is no terminal.
///
/// # Errors
/// Wrong options, and what keeps the figure from being measured.
pub fn run(figure: &'static Figure, quick: bool, keys: Option<u64>) -> Result<Report, Error> {
    run_within(figure, quick, keys, None)
}

/// As [`run`], with another time for the rounds of a quick figure.
///
/// # Errors
/// As [`run`].
pub fn run_within(
    figure: &'static Figure,
    quick: bool,
    keys: Option<u64>,
    rounds: Option<Duration>,
) -> Result<Report, Error> {
    match keys {
        Some(_) if figure.keys.is_none() => return Err(Error::NoKeys { name: figure.name }),
        Some(keys) if !(16..=MAX_KEYS).contains(&keys) => return Err(Error::Keys { keys }),
        _ => {}
    }
    let place = Place::from_env();
    let other = place.other_page_size();
    let mut notes = Vec::new();
    if other.is_none() {
        let how = "for the other size mount a tmpfs with huge=always, or set DURIX_HUGE_DIR";
        notes.push(format!("only {} can be had here: {how}", place.pages));
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:32} {bar:40} {percent:>3}% {elapsed_precise} (left {eta})");
    bar.set_style(style.expect("the template is a constant"));
    bar.enable_steady_tick(Duration::from_secs(1));
    let context = Context {
        quick,
        keys,
        rounds: rounds.unwrap_or(figure::QUICK),
        places: [Some(place), other].into_iter().flatten().collect(),
        bar: &bar,
        points: Cell::new(1),
        began: Cell::new(Instant::now()),
        told: Cell::new(None),
    };
    let measured = (figure.run)(&context);
    bar.finish_and_clear();
    let mut measured = measured?;
    notes.append(&mut measured.notes);
    let header = Header::new(figure, quick, &Machine::this());
    Ok(Report { header, panels: measured.panels, claims: measured.claims, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, d) in [("", "", 0), ("abc", "abc", 0), ("abc", "ac", 1), ("kitten", "sitting", 3), ("", "xy", 2)] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }
}
