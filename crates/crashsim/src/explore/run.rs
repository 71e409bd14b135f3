//! One execution under exploration: its operations, the models of what they make, and the crashes in force.

use std::fmt::Debug;
use std::rc::Rc;

use super::explorer::Explorer;
use super::fix::Fix;
use crate::count::Count;
use crate::model::layer::Layer;
use crate::model::trace::{At, Event};
use crate::model::window::Choice;
use crate::record::medium::Simulated;
use crate::replay::Crash;
use crate::report::{Cause, Failure, Report};
use crate::subject::Subject;

/// A decision that holds for all executions below a nested crash point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen {
    pub(super) layer: u32,
    pub(super) line: u32,
    pub(super) word: u8,
    pub(super) choice: Choice,
}

/// Which models a recovered state may agree with, and where the crash was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Oldest and newest number of operations done.
    pub(crate) oldest: usize,
    pub(crate) newest: usize,
    /// Operations that have returned.
    pub(crate) completed: usize,
    pub(crate) in_flight: bool,
    /// Position in the trace: the crash is just before this event.
    pub(crate) event: usize,
}

type Observe<'a> = &'a mut dyn FnMut(&dyn Debug);

/// One execution under exploration.
pub(crate) struct Run<'a, S: Subject> {
    pub(crate) explorer: &'a Explorer,
    pub(crate) subject: &'a S,
    pub(crate) sim: Simulated,
    /// `None` only while it is being dropped.
    pub(crate) store: Option<S::Store>,
    pub(crate) ops: &'a [S::Op],
    pub(super) after: &'a [S::Op],
    pub(super) observe: Option<Observe<'a>>,
    pub(super) models: Vec<S::Model>,
    pub(super) states: Vec<S::State>,
    pub(crate) trace: Rc<Vec<Event>>,
    /// Crash points of recoveries in force, outermost first.
    pub(crate) inner: Vec<(usize, Vec<Event>)>,
    pub(super) frozen: Vec<Frozen>,
    /// What the last recovery that was recorded has shown: see [`later`](super::later).
    pub(super) stages: Vec<Vec<S::Model>>,
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
        let mut models = vec![subject.model()];
        for op in ops {
            let mut model = models.last().expect("never empty").clone();
            subject.step(&mut model, op);
            models.push(model);
        }
        let states = models.iter().map(|m| subject.expect(m)).collect();
        let random = explorer.seed | 1;
        Run {
            explorer,
            subject,
            sim,
            store,
            ops,
            after,
            observe,
            models,
            states,
            trace: Rc::default(),
            inner: Vec::new(),
            frozen: Vec::new(),
            stages: Vec::new(),
            death: None,
            trying: None,
            kept: None,
            report: Report::default(),
            random,
        }
    }

    /// A new layer on top, empty.
    pub(crate) fn push_layer(&mut self) {
        let mut state = self.sim.recorder.lock();
        state.depth += 1;
        if state.layers.len() < state.depth {
            state.layers.push(Layer::default());
        }
        let depth = state.depth;
        state.layers[depth - 1].clear();
    }

    pub(crate) fn pop_layer(&mut self) {
        let recorder = self.sim.recorder;
        let mut state = recorder.lock();
        let depth = state.depth - 1;
        for line in state.layers[depth].lines.clone() {
            recorder.queue(&mut state, line);
        }
        state.layers[depth].clear();
        state.depth = depth;
    }

    /// Number of states at this crash point.
    pub(crate) fn states_here(&self, windows: &[(u32, u32)]) -> Count {
        self.sim.recorder.lock().states_of(windows)
    }

    /// Forgets the crash under exploration, wherever it was left.
    pub(super) fn unwind(&mut self) {
        self.inner.clear();
        self.frozen.clear();
        while self.sim.recorder.lock().depth > 0 {
            self.pop_layer();
        }
        self.sim.recorder.lock().forget_path();
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

/// A store that did not reach memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    /// Of the operations (0), or of a recovery.
    pub(crate) layer: u32,
    pub(crate) line: u32,
    /// Position in the trace.
    pub(crate) seq: u32,
    pub(crate) at: At,
    /// Where its line is read first.
    pub(crate) read: Option<At>,
}

/// A state that is not allowed.
pub(crate) struct Found {
    pub(crate) point: Point,
    pub(crate) cause: Cause,
    /// Missing stores and reads, told in lines.
    pub(super) details: Vec<String>,
    pub(super) deviating: usize,
    /// Where the crashes in recoveries were.
    pub(super) crashes: Vec<String>,
    pub(super) replay: Vec<Crash>,
    pub(super) missing: Vec<Missing>,
}
