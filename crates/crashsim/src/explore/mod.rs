//! The explorer: one execution, every crash.

mod attempt;
mod lazy;
mod minimise;
mod sample;

use std::fmt::Debug;
use std::rc::Rc;

use crate::count::Count;
use crate::layer::{Layer, Machine};
use crate::medium::Simulated;
use crate::recorder::RECORD;
use crate::report::{Cause, Failure, Report};
use crate::subject::{Contract, Persistency, Subject};
use crate::trace::Event;
use crate::window::Choice;

/// How crash states are enumerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Words are decided when recovery reads them: one execution stands for all the states it cannot tell apart.
    #[default]
    Lazy,
    /// Every state is an execution of its own. The yardstick for the other.
    Eager,
}

/// Explores the crashes of an execution. Cheap to clone; see the [crate's documentation](crate).
#[derive(Clone, Debug)]
pub struct Explorer {
    pub(crate) machine: Machine,
    pub(crate) contract: Contract,
    pub(crate) strategy: Strategy,
    pub(crate) crashes: usize,
    pub(crate) every_event: bool,
    pub(crate) judge: bool,
    pub(crate) executions_per_point: u64,
    pub(crate) samples: u64,
    pub(crate) seed: u64,
}

impl Default for Explorer {
    fn default() -> Self {
        Explorer {
            machine: Machine { model: Persistency::Pcso, locked_drains: false },
            contract: Contract::Strict,
            strategy: Strategy::Lazy,
            crashes: 1,
            every_event: false,
            judge: true,
            executions_per_point: 20_000,
            samples: 200,
            seed: 0x9E37_79B9_7F4A_7C15,
        }
    }
}

impl Explorer {
    /// PCSO, strict contract, one crash, lazy, at most 20 000 executions a crash point and 200 samples beyond.
    pub fn new() -> Self {
        Explorer::default()
    }

    /// What may be found of a line after a crash.
    #[must_use]
    pub fn model(self, model: Persistency) -> Self {
        Explorer { machine: Machine { model, ..self.machine }, ..self }
    }

    /// Whether locked instructions wait for pending write-backs, as on x86. Off by default: code must be right without.
    #[must_use]
    pub fn locked_drains(self, locked_drains: bool) -> Self {
        Explorer { machine: Machine { locked_drains, ..self.machine }, ..self }
    }

    /// What the structure promises.
    #[must_use]
    pub fn contract(self, contract: Contract) -> Self {
        Explorer { contract, ..self }
    }

    /// How crash states are enumerated.
    #[must_use]
    pub fn strategy(self, strategy: Strategy) -> Self {
        Explorer { strategy, ..self }
    }

    /// How many crashes follow each other at most: with 2, every recovery is crashed too, and recovered again.
    #[must_use]
    pub fn crashes(self, crashes: usize) -> Self {
        Explorer { crashes: crashes.max(1), ..self }
    }

    /// Crashes before every event of the memory, not only where it can make a difference. For testing the reduction.
    #[must_use]
    pub fn every_event(self, every_event: bool) -> Self {
        Explorer { every_event, ..self }
    }

    /// Executions for each crash point, beyond which the rest is sampled and the report says "not complete".
    #[must_use]
    pub fn executions_per_point(self, executions: u64) -> Self {
        Explorer { executions_per_point: executions.max(1), ..self }
    }

    /// Samples for a crash point that is beyond the budget.
    #[must_use]
    pub fn samples(self, samples: u64) -> Self {
        Explorer { samples, ..self }
    }

    /// Seed of the random samples.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Explorer { seed, ..self }
    }

    pub(crate) fn seed_value(&self) -> u64 {
        self.seed
    }

    /// Runs `ops`, then crashes and recovers in every way that the model allows, and compares with the reference model.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run<S: Subject>(&self, subject: &S, ops: &[S::Op]) -> Report {
        self.run_then(subject, ops, &[])
    }

    /// As [`run`](Explorer::run), and runs `after` on each recovered structure: several published bugs show only then.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run_then<S: Subject>(&self, subject: &S, ops: &[S::Op], after: &[S::Op]) -> Report {
        Run::new(self, subject, ops, after, None).run()
    }

    /// What is observed after a crash anywhere in `ops`, over all crash states; nothing is judged.
    pub fn outcomes<S: Subject>(&self, subject: &S, ops: &[S::Op]) -> std::collections::BTreeSet<String> {
        let mut outcomes = std::collections::BTreeSet::new();
        let mut observe = |state: &dyn Debug| {
            outcomes.insert(format!("{state:?}"));
        };
        let explorer = Explorer { judge: false, ..self.clone() };
        let report = Run::new(&explorer, subject, ops, &[], Some(&mut observe)).run();
        report.assert_ok();
        outcomes
    }
}

/// A decision that holds for all executions below a nested crash point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen {
    layer: u32,
    line: u32,
    word: u8,
    choice: Choice,
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
    after: &'a [S::Op],
    observe: Option<Observe<'a>>,
    models: Vec<S::Model>,
    states: Vec<S::State>,
    pub(crate) trace: Rc<Vec<Event>>,
    /// Crash points of recoveries in force, outermost first.
    pub(crate) inner: Vec<(usize, Vec<Event>)>,
    frozen: Vec<Frozen>,
    report: Report,
    random: u64,
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
            report: Report::default(),
            random,
        }
    }

    pub(crate) fn run(mut self) -> Report {
        if let Err(failure) = self.record().and_then(|()| self.crash_everywhere()) {
            self.report.failure = Some(*failure);
            self.report.complete = false;
        }
        std::mem::take(&mut self.report)
    }

    /// Runs the operations to their end, and keeps the trace.
    fn record(&mut self) -> Result<(), Box<Failure>> {
        let recorder = self.sim.recorder;
        recorder.restart(RECORD);
        let store = self.store.as_ref().expect("not dropped yet");
        let (subject, ops) = (self.subject, self.ops);
        let mut model = subject.model();
        let judge = self.explorer.judge;
        let outcome = attempt::quietly(|| {
            let mut live = subject.create(store);
            let mark = |event| recorder.lock().trace.push(event);
            mark(Event::Created);
            let mut wrong = None;
            for (number, op) in ops.iter().enumerate() {
                mark(Event::Invoke(number as u32));
                let answer = subject.apply(&mut live, op);
                mark(Event::Return(number as u32));
                let expected = subject.step(&mut model, op);
                if judge && answer != expected {
                    wrong = Some(Cause::Answer {
                        number,
                        answer: format!("{answer:?}"),
                        expected: format!("{expected:?}"),
                    });
                    break;
                }
            }
            recorder.mode.store(0, std::sync::atomic::Ordering::Relaxed);
            (live, wrong)
        });
        recorder.mode.store(0, std::sync::atomic::Ordering::Relaxed);
        self.trace = Rc::new(std::mem::take(&mut recorder.lock().trace));
        let cause = match outcome {
            Ok((live, wrong)) => {
                drop(live);
                wrong
            }
            Err(message) => Some(Cause::Panic { during: "the operations", message }),
        };
        self.report.cases = 1;
        self.report.events = self.trace.iter().filter(|e| !e.is_mark()).count() as u64;
        match cause {
            Some(cause) => Err(Box::new(self.plain_failure(cause))),
            None => Ok(()),
        }
    }

    /// Walks the trace, and crashes at each crash point.
    fn crash_everywhere(&mut self) -> Result<(), Box<Failure>> {
        let trace = Rc::clone(&self.trace);
        self.push_layer();
        let mut walk = Walk { created: false, dirty: true, last: None, completed: 0, in_flight: false, synced: 0 };
        for (seq, event) in trace.iter().enumerate() {
            let raises = self.sim.recorder.lock().layers[0].raises(self.explorer.machine, event);
            let mark = matches!(event, Event::Invoke(_) | Event::Return(_));
            if walk.created && (raises || mark || (self.explorer.every_event && !event.is_mark())) {
                self.crash_at(&mut walk, seq)?;
            }
            self.sim.recorder.step(0, seq as u32, event);
            walk.advance(event, |number| self.subject.is_sync(&self.ops[number]));
        }
        self.crash_at(&mut walk, trace.len())
    }

    fn crash_at(&mut self, walk: &mut Walk, event: usize) -> Result<(), Box<Failure>> {
        let oldest = match self.explorer.contract {
            Contract::Strict => walk.completed,
            Contract::Buffered => walk.synced,
        };
        let newest = walk.completed + usize::from(walk.in_flight);
        let point = Point { oldest, newest, completed: walk.completed, in_flight: walk.in_flight, event };
        let implied =
            !walk.dirty && walk.last.is_some_and(|(oldest, newest)| point.oldest <= oldest && newest <= point.newest);
        if implied && !self.explorer.every_event {
            return Ok(());
        }
        walk.dirty = false;
        walk.last = Some((point.oldest, point.newest));
        self.report.crash_points += 1;
        self.explore(&point).map_err(|found| Box::new(self.story(&point, *found)))
    }

    pub(crate) fn explore(&mut self, point: &Point) -> Result<(), Box<Found>> {
        match self.explorer.strategy {
            Strategy::Lazy => self.explore_lazily(point),
            Strategy::Eager => self.explore_eagerly(point),
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

    /// Number of states at this crash point: all open windows, or those of the uppermost layer.
    pub(crate) fn states_here(&self, windows: &[(u32, u32)]) -> Count {
        let state = self.sim.recorder.lock();
        windows.iter().fold(Count::one(), |product, window| product.times(state.window(*window).count()))
    }

    fn story(&self, point: &Point, found: Found) -> Failure {
        let mut crashes = vec![minimise::position(&self.trace, point.event)];
        crashes.extend(found.crashes);
        Failure {
            crash: Some((point.completed, point.in_flight)),
            crashes,
            details: found.details,
            deviating: found.deviating,
            ..self.plain_failure(found.cause)
        }
    }

    fn plain_failure(&self, cause: Cause) -> Failure {
        Failure::plain(cause, self.ops.iter().map(|op| format!("{op:?}")).collect())
    }
}

impl<S: Subject> Drop for Run<'_, S> {
    fn drop(&mut self) {
        self.store = None;
        self.sim.give_back();
    }
}

/// A state that is not allowed, as positions of all open windows.
pub(crate) struct Found {
    pub(crate) cause: Cause,
    pub(crate) states: Vec<((u32, u32), crate::window::Positions)>,
    /// Missing stores and reads, told in lines.
    pub(crate) details: Vec<String>,
    pub(crate) deviating: usize,
    pub(crate) crashes: Vec<String>,
}

/// Where a walk along the trace is.
struct Walk {
    created: bool,
    dirty: bool,
    last: Option<(usize, usize)>,
    completed: usize,
    in_flight: bool,
    synced: usize,
}

impl Walk {
    fn advance(&mut self, event: &Event, is_sync: impl Fn(usize) -> bool) {
        match *event {
            Event::Created => self.created = true,
            Event::Invoke(_) => self.in_flight = true,
            Event::Return(number) => {
                self.in_flight = false;
                self.completed = number as usize + 1;
                if is_sync(number as usize) {
                    self.synced = self.completed;
                }
            }
            _ => self.dirty = true,
        }
    }
}
