//! What a figure is, and how it is measured.

use std::cell::Cell;
use std::time::{Duration, Instant};

use durix_pmem::Medium;
use indicatif::ProgressBar;

use super::report::{Claim, Panel};
use crate::machine::Bytes;
use crate::place::{Place, Refused, free_bytes};
use crate::pset;

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
    /// A DPTree.
    #[error("{0}; set DURIX_DIR to another directory, or --keys to less")]
    Dptree(#[from] durix_dptree::Error),
    /// A database.
    #[error(transparent)]
    Db(#[from] durix::Error),
    /// The transactions.
    #[error(transparent)]
    Rewind(#[from] durix_rewind::Error),
    /// The one-fence engine.
    #[error(transparent)]
    Engine(#[from] durix_rewind::engine::Error),
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

/// Makes sure that a place has room.
///
/// # Errors
/// [`Error::Room`], with what there is room for.
pub(super) fn check_room(place: &Place, needed: u64, what: impl FnOnce() -> String) -> Result<(), Error> {
    match free_bytes(&place.dir) {
        Some(free) if free < needed => {
            let (needed, free, dir) = (Bytes(needed), Bytes(free), place.dir.display().to_string());
            Err(Error::Room { what: what(), needed, free, dir })
        }
        _ => Ok(()),
    }
}

/// How a figure is to be measured.
#[derive(Debug)]
pub struct Context<'a> {
    /// In less than a minute.
    pub quick: bool,
    /// Keys, where the user has said.
    pub keys: Option<u64>,
    /// What the rounds of all points may take, where it is quick.
    pub rounds: Duration,
    /// Where, one for each page size that can be had.
    pub places: Vec<Place>,
    pub(super) bar: &'a ProgressBar,
    /// Points that are to be measured, and when the current one began.
    pub(super) points: Cell<u32>,
    pub(super) began: Cell<Instant>,
    /// Where standard error is no terminal: when a line was printed last.
    pub(super) told: Cell<Option<Instant>>,
}

/// Between two lines of progress, where standard error is no terminal.
const TELL: Duration = Duration::from_secs(5);

/// What a quick figure may take in all, for rounds; filling sets comes on top.
pub(super) const QUICK: Duration = Duration::from_secs(36);

impl Context<'_> {
    /// So many points to come in each place, each of so many rounds.
    pub(super) fn expect(&self, points: usize, rounds: usize) {
        let points = points * self.places.len();
        self.points.set(points as u32);
        self.bar.set_length((points * rounds) as u64);
    }

    /// What is being measured from now on.
    pub(super) fn now(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.began.set(Instant::now());
        self.tell();
    }

    /// A part of what is being measured now begins that is no round: a set is filled.
    pub(super) fn step(&self, what: &str) {
        let message = self.bar.message();
        let point = message.split(" | ").next().unwrap_or_default();
        self.bar.set_message(format!("{point} | {what}"));
        self.tell();
    }

    /// Prints a line now and then, where there is no terminal for the bar.
    pub(super) fn tell(&self) {
        if self.bar.is_hidden() && self.told.get().is_none_or(|told| told.elapsed() >= TELL) {
            let percent = self.bar.position() * 100 / self.bar.length().unwrap_or(1).max(1);
            eprintln!("{percent:>3}% after {} s: {}", self.bar.elapsed().as_secs(), self.bar.message());
            self.told.set(Some(Instant::now()));
        }
    }

    /// A round is over. Returns whether there is time for more: a quick figure divides a minute among its points, so that it
    /// takes no longer on a busy machine, only fewer rounds.
    pub(super) fn tick(&self) -> bool {
        self.bar.inc(1);
        self.tell();
        !self.quick || self.began.get().elapsed() < self.rounds / self.points.get().max(1)
    }

    /// Keys: what the user has said, or by default so many.
    pub(super) fn keys_or(&self, keys: u64) -> u64 {
        self.keys.unwrap_or(keys)
    }
}

/// A medium of the benches, in words.
pub(super) fn medium_text(medium: impl Medium) -> String {
    medium.describe()
}
