//! Every sync of the code under test is left out in turn, and a crash test has to notice.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Files;
use super::files::{Asked, At, Change};
use crate::explore::Explorer;
use crate::model::trace::place;
use crate::report::Report;

/// What became of each sync that was left out.
#[derive(Clone, Debug)]
pub struct SyncSweep {
    /// What the test found with all syncs in place: no failure.
    pub baseline: Report,
    /// For each sync, by its place in the source or by its number, what the test found without it.
    pub syncs: Vec<(String, Report)>,
}

impl SyncSweep {
    /// The places whose sync was not missed.
    pub fn missed(&self) -> impl Iterator<Item = &str> {
        self.syncs.iter().filter(|(_, report)| report.failure.is_none()).map(|(place, _)| place.as_str())
    }

    /// Hands the sweep back if there were syncs and each one was missed, except those at the places given (`file suffix:line`).
    ///
    /// # Panics
    /// With the table, otherwise.
    #[track_caller]
    pub fn assert_all_caught(self, except: &[&str]) -> Self {
        assert!(!self.syncs.is_empty(), "nothing was left out: the test syncs nothing\n{self}");
        let excused = |place: &&str| except.iter().any(|except| place.ends_with(except));
        let missed = self.missed().filter(|place| !excused(place)).count();
        assert!(missed == 0, "{missed} sync(s) can be left out\n{self}");
        self
    }
}

impl fmt::Display for SyncSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "with all syncs: {}", self.baseline)?;
        for (place, report) in &self.syncs {
            let verdict = if report.failure.is_some() { "caught" } else { "MISSED" };
            writeln!(f, "{verdict}  without the sync: {place}: {} executions", report.executions)?;
        }
        let (syncs, missed) = (self.syncs.len(), self.missed().count());
        write!(f, "syncs {syncs}, caught {}, missed {missed}", syncs - missed)
    }
}

impl Files {
    /// Runs `test` once as it is, then once without each sync that was asked for in it, by the place in the source. The test explores with
    /// the settings it is given. Syncs through a trait object all have the place of its implementation: for those there is
    /// [`numbered_syncs_dropped`](Self::numbered_syncs_dropped).
    ///
    /// # Panics
    /// If the test fails with all syncs in place.
    pub fn syncs_dropped(&self, test: impl Fn(&Files) -> Report) -> SyncSweep {
        let (baseline, asked) = self.asked(&test);
        let mut places: Vec<At> = asked.iter().map(|asked| asked.at).collect();
        places.sort_by_key(|at| (at.file(), at.line(), at.column()));
        places.dedup();
        let syncs = places.into_iter().map(|at| (place(at), self.without(Change::Drop(at), &test))).collect();
        SyncSweep { baseline, syncs }
    }

    /// The same for each sync by its number: the first that the operations ask for, the second, and so on, those of the creation among them;
    /// then the first of each recovery and of what follows it, the second, and so on. For tests of one history.
    ///
    /// # Panics
    /// If the test fails with all syncs in place.
    pub fn numbered_syncs_dropped(&self, test: impl Fn(&Files) -> Report) -> SyncSweep {
        let (baseline, mut asked) = self.asked(&test);
        asked.sort_by_key(|asked| (asked.recovering, asked.number));
        asked.dedup_by_key(|asked| (asked.recovering, asked.number));
        let one = |asked: Asked| {
            let Asked { recovering, number, path, .. } = asked;
            let of = if recovering { "recovery" } else { "operations" };
            (format!("{of} {number} of {path}"), self.without(Change::DropNumber { recovering, number }, &test))
        };
        SyncSweep { baseline, syncs: asked.into_iter().map(one).collect() }
    }

    /// Runs the test as it is. Returns the syncs, too.
    fn asked(&self, test: impl Fn(&Files) -> Report) -> (Report, Vec<Asked>) {
        let sites: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let baseline = test(&Files { sites: Some(Arc::clone(&sites)), ..self.clone() }).assert_ok();
        (baseline, std::mem::take(&mut *sites.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn without(&self, change: Change, test: impl Fn(&Files) -> Report) -> Report {
        let quick = Explorer { suggest: false, shrink_ops: false, ..self.explorer.clone() };
        test(&Files { change: Some(change), ..self.with(&quick) })
    }
}
