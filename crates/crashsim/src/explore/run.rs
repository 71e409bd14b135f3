//! One execution under exploration: its operations, the models of what they make, and the crashes in force.

use std::rc::Rc;

use super::crashes::Crashes;
use super::explorer::Explorer;
use super::fix::Fix;
use super::judge::{Judge, Observe};
use crate::model::trace::Event;
use crate::record::medium::Simulated;
use crate::report::{Cause, Failure, Report};
use crate::subject::Subject;

/// One execution under exploration.
pub(crate) struct Run<'a, S: Subject> {
    pub(crate) explorer: &'a Explorer,
    pub(crate) subject: &'a S,
    pub(crate) sim: Simulated,
    /// `None` only while it is being dropped.
    pub(crate) store: Option<S::Store>,
    pub(crate) ops: &'a [S::Op],
    pub(crate) trace: Rc<Vec<Event>>,
    pub(super) judge: Judge<'a, S>,
    pub(super) crashes: Crashes,
    pub(super) death: Option<Death<S>>,
    /// A suggestion that is being tried: everything is explored, whatever a replay string names.
    pub(super) trying: Option<Fix>,
    /// Traces of recoveries that are replayed, and of next processes, for those who ask for them.
    pub(super) kept: Option<Vec<Vec<Event>>>,
    pub(super) report: Report,
    pub(super) random: u64,
}

impl<'a, S: Subject> Run<'a, S> {
    pub(crate) fn new(
        explorer: &'a Explorer,
        subject: &'a S,
        ops: &'a [S::Op],
        after: &'a [S::Op],
        observe: Option<Observe<'a>>,
    ) -> Self {
        let sim = Simulated::new();
        sim.recorder.reset(explorer.machine);
        let store = Some(subject.store(sim));
        let judge = Judge::new(explorer, subject, sim, (ops, after), observe);
        let random = explorer.seed | 1;
        Run {
            explorer,
            subject,
            sim,
            store,
            ops,
            trace: Rc::default(),
            judge,
            crashes: Crashes::new(sim),
            death: None,
            trying: None,
            kept: None,
            report: Report::default(),
            random,
        }
    }

    pub(super) fn plain_failure(&self, cause: Cause) -> Failure {
        Failure::plain(cause, self.ops.iter().map(|op| format!("{op:?}")).collect())
    }
}

impl<S: Subject> Drop for Run<'_, S> {
    fn drop(&mut self) {
        self.store = None;
        self.sim.give_back();
    }
}

/// A death under exploration.
pub(super) struct Death<S: Subject> {
    /// Position in the first process's trace: it dies just before this event.
    pub(super) event: usize,
    /// Operations of the first process that have returned, and whether one was under way.
    pub(super) crash: (usize, bool),
    /// Where that was.
    pub(super) told: String,
    /// Number of states that the second process may find.
    pub(super) found: usize,
    pub(super) before: Before<S>,
}

/// What the exploration of power failures in the first process works with.
pub(super) struct Before<S: Subject> {
    pub(super) trace: Rc<Vec<Event>>,
    pub(super) models: Vec<S::Model>,
    pub(super) states: Vec<S::State>,
}
