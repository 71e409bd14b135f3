//! The figures and tables of the papers, redrawn: a registry, and what all of them share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`report`] | what a figure has measured: panels of series of points, claims |
//! | [`terminal`], [`svg`], [`output`] | how it is shown and stored |
//! | `cso_…`, `incll_…`, `logfree_…` | one module a figure, or for figures that differ in one thing |
//!
//! A figure is a [`Figure`] in [`FIGURES`]: its name, what the paper shows, and a function that measures. Whoever adds a figure
//! writes a module and a line in that table.

mod cso_fig4a;
mod cso_fig4b;
mod cso_fig7a;
mod cso_fig7b;
mod cso_fig7c;
mod cso_logs;
mod cso_sets;
mod cso_table1;
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
mod logfree_fig10;
mod logfree_fig5;
mod logfree_fig6;
mod logfree_fig7;
mod logfree_fig8;
mod logfree_fig9;
mod logfree_sets;
pub mod output;
pub mod report;
pub mod svg;
pub mod terminal;

use std::cell::Cell;
use std::time::{Duration, Instant};

use durix_pmem::Medium;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::machine::Machine;
use crate::place::{Place, Refused};
use crate::pset;
use report::{Claim, Header, Panel, Report};

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// What it is called on the command line: the crate, then the number in the paper.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The paper, and where in it.
    pub source: &'static str,
    /// What `--keys` means, if it means anything.
    pub keys: Option<&'static str>,
    /// Measures it.
    pub run: fn(&Context<'_>) -> Result<Measured, Error>,
}

/// All figures, in the order in which `paper list` names them.
pub const FIGURES: &[Figure] = &[
    cso_table1::FIGURE,
    cso_fig4a::FIGURE,
    cso_fig4b::FIGURE,
    cso_fig7a::FIGURE,
    cso_fig7b::FIGURE,
    cso_fig7c::FIGURE,
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
];

/// The largest `--keys`.
pub const MAX_KEYS: u64 = 1 << 28;

/// What a figure has measured.
#[derive(Debug)]
pub struct Measured {
    /// What was measured where.
    pub panels: Vec<Panel>,
    /// The paper's claims beside ours.
    pub claims: Vec<Claim>,
    /// What could not take part, and why; what a reader has to know.
    pub notes: Vec<String>,
}

/// Why a figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such figure.
    #[error("there is no figure \"{name}\"{hint}; `paper list` names all")]
    Unknown {
        /// What was asked for.
        name: String,
        /// `, did you mean …`, or nothing.
        hint: String,
    },
    /// `--keys` for a figure without keys.
    #[error("{name} has no keys: leave --keys out")]
    NoKeys {
        /// The figure.
        name: &'static str,
    },
    /// `--keys` out of range.
    #[error("--keys {keys}: at least 16, at most {MAX_KEYS}")]
    Keys {
        /// What was asked for.
        keys: u64,
    },
    /// The directory does not do.
    #[error(transparent)]
    Place(#[from] Refused),
    /// A tree.
    #[error("{0}; set DURIX_DIR to another directory, or --keys to less")]
    Tree(#[from] durix_incll::Error),
    /// The mapping.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),
    /// The pool or a set.
    #[error(transparent)]
    Set(#[from] pset::Error),
    /// One of the log-free sets, or of their comparators.
    #[error(transparent)]
    Logfree(#[from] crate::logfree::Error),
    /// Not enough memory for what was asked.
    #[error(
        "{what} needs {needed} in {dir}, where {free} are free; set DURIX_DIR to another directory, or --keys to less"
    )]
    Room {
        /// What.
        what: String,
        /// How much.
        needed: crate::machine::Bytes,
        /// How much there is.
        free: crate::machine::Bytes,
        /// Where.
        dir: String,
    },
    /// A file that was asked for cannot be written.
    #[error("{action} {path}: {source}")]
    File {
        /// What was done.
        action: &'static str,
        /// With what.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The drawing failed.
    #[error("drawing {path}: {reason}")]
    Drawing {
        /// The file.
        path: String,
        /// What the library says.
        reason: String,
    },
}

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

/// How a figure is to be measured.
#[derive(Debug)]
pub struct Context<'a> {
    /// In less than a minute.
    pub quick: bool,
    /// Keys, where the user has said.
    pub keys: Option<u64>,
    /// Where, one for each page size that can be had.
    pub places: Vec<Place>,
    bar: &'a ProgressBar,
    /// Points that are to be measured, and when the current one began.
    points: Cell<u32>,
    began: Cell<Instant>,
    /// Where standard error is no terminal: when a line was printed last.
    told: Cell<Option<Instant>>,
}

/// Between two lines of progress, where standard error is no terminal.
const TELL: Duration = Duration::from_secs(5);

/// What a quick figure may take in all, for rounds; filling sets comes on top.
const QUICK: Duration = Duration::from_secs(36);

impl Context<'_> {
    /// So many points to come in each place, each of so many rounds.
    fn expect(&self, points: usize, rounds: usize) {
        let points = points * self.places.len();
        self.points.set(points as u32);
        self.bar.set_length((points * rounds) as u64);
    }

    /// What is being measured from now on.
    fn now(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.began.set(Instant::now());
        self.tell();
    }

    /// A part of what is being measured now begins that is no round: a set is filled.
    fn step(&self, what: &str) {
        let message = self.bar.message();
        let point = message.split(" | ").next().unwrap_or_default();
        self.bar.set_message(format!("{point} | {what}"));
        self.tell();
    }

    /// Prints a line now and then, where there is no terminal for the bar.
    fn tell(&self) {
        if self.bar.is_hidden() && self.told.get().is_none_or(|told| told.elapsed() >= TELL) {
            let percent = self.bar.position() * 100 / self.bar.length().unwrap_or(1).max(1);
            eprintln!("{percent:>3}% after {} s: {}", self.bar.elapsed().as_secs(), self.bar.message());
            self.told.set(Some(Instant::now()));
        }
    }

    /// A round is over. Returns whether there is time for more: a quick figure divides a minute among its points, so that it
    /// takes no longer on a busy machine, only fewer rounds.
    fn tick(&self) -> bool {
        self.bar.inc(1);
        self.tell();
        !self.quick || self.began.get().elapsed() < QUICK / self.points.get().max(1)
    }

    /// Keys: what the user has said, or by default so many.
    fn keys_or(&self, keys: u64) -> u64 {
        self.keys.unwrap_or(keys)
    }
}

/// Runs a figure. Progress goes to standard error: a bar, or some lines where that is no terminal.
///
/// # Errors
/// Wrong options, and what keeps the figure from being measured.
pub fn run(figure: &'static Figure, quick: bool, keys: Option<u64>) -> Result<Report, Error> {
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

/// A medium of the benches, in words.
fn medium_text(medium: impl Medium) -> String {
    medium.describe()
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
