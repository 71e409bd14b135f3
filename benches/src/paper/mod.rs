//! The figures and tables of the papers, redrawn: a registry, and what all of them share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`report`] | what a figure has measured: panels of series of points, claims |
//! | [`terminal`], [`svg`], [`output`] | how it is shown and stored |
//! | [`all`] | all figures in one run, with a page that shows them |
//! | `cso_…`, `dptree_…`, `incll_…`, `logfree_…`, `rewind_…`, `pool_…`, `kinds`, `facade_cost` | one module a figure, or for figures that differ in one thing |
//!
//! A figure is a [`Figure`] in [`FIGURES`]: its name, what the paper shows, and a function that measures. Whoever adds a figure
//! writes a module and a line in that table.

pub mod all;
mod bplustree;
mod cso_fig4a;
mod cso_fig4b;
mod cso_fig7a;
mod cso_fig7b;
mod cso_fig7c;
mod cso_logs;
mod cso_sets;
mod cso_table1;
mod dptree_fig10;
mod dptree_fig11;
mod dptree_fig12;
mod dptree_fig13;
mod dptree_fig8a;
mod dptree_fig8b;
mod dptree_fig8c;
mod dptree_fig8d;
mod dptree_flushcost;
mod dptree_goals;
mod dptree_peers;
mod dptree_stalls;
mod dptree_table1;
mod dptree_table2;
mod dptree_trees;
pub mod facade_cost;
mod fenceless;
mod figure;
mod incll_delays;
mod incll_fig2;
mod incll_fig4;
mod incll_flush;
mod incll_interior;
mod incll_layouts;
mod incll_many;
mod incll_recovery;
mod incll_same;
mod incll_sizes;
mod incll_trees;
mod journal_commit;
mod kinds;
mod logfree_fig10;
mod logfree_fig5;
mod logfree_fig6;
mod logfree_fig7;
mod logfree_fig8;
mod logfree_fig9;
mod logfree_sets;
pub mod output;
mod pauses;
mod pool_growth;
pub mod report;
mod rewind_checkpoints;
mod rewind_fig3;
mod rewind_micro;
mod rewind_recovery;
mod rewind_threads;
mod rewind_tpcc;
mod rewind_tree;
mod rewind_trees;
mod rewind_words;
mod rewind_world;
pub mod svg;
pub mod terminal;
mod transactions;

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::machine::Machine;
use crate::place::Place;
pub use figure::{Context, Error, Figure, MAX_KEYS, Measured};
use report::{Header, Report};

/// All figures, in the order in which `paper list` names them.
pub const FIGURES: &[Figure] = &[
    cso_table1::FIGURE,
    cso_fig4a::FIGURE,
    cso_fig4b::FIGURE,
    cso_fig7a::FIGURE,
    cso_fig7b::FIGURE,
    cso_fig7c::FIGURE,
    dptree_table1::FIGURE,
    dptree_table2::FIGURE,
    dptree_flushcost::FIGURE,
    dptree_goals::FIGURE,
    dptree_fig8a::FIGURE,
    dptree_fig8b::FIGURE,
    dptree_fig8c::FIGURE,
    dptree_fig8d::FIGURE,
    dptree_fig10::FIGURE,
    dptree_fig11::FIGURE,
    dptree_fig12::FIGURE,
    dptree_fig13::FIGURE,
    dptree_stalls::FIGURE,
    incll_fig2::FIGURE,
    incll_delays::FIG3,
    incll_fig4::FIGURE,
    incll_sizes::FIG5,
    incll_sizes::FIG6,
    incll_sizes::FIG7,
    incll_delays::FIG8,
    incll_flush::FIGURE,
    incll_recovery::FIGURE,
    incll_many::FIGURE,
    incll_layouts::FIGURE,
    incll_interior::FIGURE,
    incll_same::FIGURE,
    logfree_fig5::FIGURE,
    logfree_fig6::FIGURE,
    logfree_fig7::FIGURE,
    logfree_fig8::FIGURE,
    logfree_fig9::FIGURE,
    logfree_fig10::FIGURE,
    kinds::FIGURE,
    journal_commit::FIGURE,
    pool_growth::FIGURE,
    rewind_fig3::FIGURE,
    rewind_recovery::FIG4,
    rewind_recovery::FIG5,
    rewind_checkpoints::FIGURE,
    rewind_trees::FIG7,
    rewind_trees::FIG8,
    rewind_threads::FIGURE,
    rewind_trees::FIG10,
    rewind_tpcc::FIGURE,
    rewind_words::FIGURE,
    bplustree::FIGURE,
    transactions::FIGURE,
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
    fn every_figure_is_found_by_its_name_and_a_near_one_is_proposed() {
        for figure in FIGURES {
            assert_eq!(find(figure.name).unwrap().name, figure.name);
            let named = FIGURES.iter().filter(|f| f.name == figure.name).count();
            assert_eq!(named, 1, "{}", figure.name);
        }
        let text = find("cso-fig7").unwrap_err().to_string();
        assert_eq!(text, "there is no figure \"cso-fig7\", did you mean cso-fig7a; `paper list` names all");
        assert_eq!(
            find("nonsense").unwrap_err().to_string(),
            "there is no figure \"nonsense\"; `paper list` names all"
        );
    }

    #[test]
    fn wrong_keys_are_refused_before_anything_is_measured() {
        let error = |name, keys| run(find(name).unwrap(), true, Some(keys)).unwrap_err().to_string();
        assert_eq!(error("cso-fig4a", 100), "cso-fig4a has no keys: leave --keys out");
        assert_eq!(error("cso-fig7a", 3), "--keys 3: at least 16, at most 268435456");
    }

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, d) in [("", "", 0), ("abc", "abc", 0), ("abc", "ac", 1), ("kitten", "sitting", 3), ("", "xy", 2)] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }
}
