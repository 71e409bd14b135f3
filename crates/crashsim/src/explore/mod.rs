//! The explorer: one execution, every crash.

mod attempt;
mod death;
mod later;
mod lazy;
mod minimise;
mod sample;
mod story;
pub(crate) mod suggest;
mod threaded;

pub(crate) use attempt::{message_of, quietly};
pub(crate) use sample::next;
pub(crate) use story::place;
pub(crate) use threaded::{Allowed, Answers, Program};

use std::fmt::Debug;
use std::rc::Rc;

use crate::count::Count;
use crate::layer::{Layer, Machine};
use crate::medium::Simulated;
use crate::mutation;
use crate::recorder::{CLOSE, RECORD};
use crate::replay::{Crash, Replay};
use crate::report::{Cause, Failure, Report};
use crate::subject::{Contract, Persistency, Subject};
use crate::trace::{At, Event};
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
    pub(crate) suggest: bool,
    pub(crate) crash_in_create: bool,
    pub(crate) crash_in_close: bool,
    pub(crate) crash_later: bool,
    pub(crate) crash_points: Option<u64>,
    pub(crate) settled_returns: bool,
    pub(crate) process_deaths: bool,
    pub(crate) deaths_in: Option<&'static str>,
    pub(crate) observe_first: bool,
    pub(crate) shrink_ops: bool,
    pub(crate) replay: Option<Replay>,
}

impl Default for Explorer {
    fn default() -> Self {
        Explorer {
            machine: Machine { model: Persistency::Pcso, locked_drains: false, flushes_at_once: false },
            contract: Contract::Strict,
            strategy: Strategy::Lazy,
            crashes: 1,
            every_event: false,
            judge: true,
            executions_per_point: 20_000,
            samples: 200,
            seed: 0x9E37_79B9_7F4A_7C15,
            suggest: true,
            crash_in_create: false,
            crash_in_close: false,
            crash_later: false,
            crash_points: None,
            settled_returns: false,
            process_deaths: false,
            deaths_in: None,
            observe_first: true,
            shrink_ops: false,
            replay: None,
        }
    }
}

impl Explorer {
    /// PCSO, strict contract, one crash, lazy, at most 20 000 executions a crash point and 200 samples beyond.
    /// ([`CrashTest`](crate::CrashTest) and [`crash_test!`](crate::crash_test) explore second crashes unless told otherwise.)
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

    /// Whether a write-back waits for itself, as `clflush` does. Off by default: the others only start it. Where it is on,
    /// an operation that returns with something flushed and not fenced is a failure under [`Contract::Strict`]: on a machine
    /// with `clwb` it would be lost.
    #[must_use]
    pub fn flushes_at_once(self, flushes_at_once: bool) -> Self {
        Explorer { machine: Machine { flushes_at_once, ..self.machine }, ..self }
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

    /// How many crashes follow each other at most: with 2 every recovery is crashed too, and recovered again; and with
    /// [`crash_later`](Explorer::crash_later) the operations after it. What the first recovery has shown must be there after
    /// the second.
    #[must_use]
    pub fn crashes(self, crashes: usize) -> Self {
        Explorer { crashes: crashes.max(1), ..self }
    }

    /// Crashes also while the structure is being created: [`Subject::recover`] then has to cope with nothing, or with
    /// half of it, and create it anew.
    #[must_use]
    pub fn crash_in_create(self, crash_in_create: bool) -> Self {
        Explorer { crash_in_create, ..self }
    }

    /// Crashes also while the structure is being dropped, after the last operation.
    #[must_use]
    pub fn crash_in_close(self, crash_in_close: bool) -> Self {
        Explorer { crash_in_close, ..self }
    }

    /// Whether with [`crashes`](Explorer::crashes) beyond one the operations after a recovery are crashed as the recovery is. Off
    /// by default: it multiplies the executions.
    #[must_use]
    pub fn crash_later(self, crash_later: bool) -> Self {
        Explorer { crash_later, ..self }
    }

    /// Crashes at so many places of an execution only, picked at random by the [seed](Explorer::seed) and the operations: for
    /// many random histories. The report then says "not complete".
    #[must_use]
    pub fn crash_points(self, points: u64) -> Self {
        Explorer { crash_points: Some(points), ..self }
    }

    /// Demands that no operation returns while something it stored is not durable yet, whether or not recovery can tell:
    /// a dropped write-back that no state of this size shows. Not for structures that leave lines unwritten on purpose. Of
    /// several [`Threads`](crate::Threads) each answers for what it has stored itself.
    #[must_use]
    pub fn settled_returns(self, settled_returns: bool) -> Self {
        Explorer { settled_returns, ..self }
    }

    /// Lets the process die, too, with the power on: after each store, the next process finds everything that was visible,
    /// recovers, and runs the operations after the recovery; then the power fails. What the first process had not made
    /// durable is found, may be built upon, and can still be lost: recovery has to write back what it reads.
    #[must_use]
    pub fn process_deaths(self, process_deaths: bool) -> Self {
        Explorer { process_deaths, ..self }
    }

    /// As [`process_deaths`](Explorer::process_deaths), after some stores only: those that a source file makes whose path contains
    /// `file`; of several in a row from one place in the source, after the last. For the edges of one module, where a death after
    /// every store of the whole operation takes too long. The report then says "not complete".
    #[must_use]
    pub fn deaths_in(self, file: &'static str) -> Self {
        Explorer { process_deaths: true, deaths_in: Some(file), ..self }
    }

    /// Whether all of the structure is read and checked right after a recovery, before the operations that follow. On by
    /// default. Off, the first of these operations is the first that looks at what was recovered: reading everything may have
    /// repaired what this operation would have met. What was recovered is then judged by the answers, and by what is observed
    /// at the end. See [`first_looks`](Explorer::first_looks).
    #[must_use]
    pub fn observe_first(self, observe_first: bool) -> Self {
        Explorer { observe_first, ..self }
    }

    /// Whether a failure comes with a suggestion, which costs a few runs of the case. On by default.
    #[must_use]
    pub fn suggest(self, suggest: bool) -> Self {
        Explorer { suggest, ..self }
    }

    /// Leaves operations out of a failing [`run`](Explorer::run) while it still fails in the same way.
    /// ([`sequences`](Explorer::sequences) and [`check`](Explorer::check) look for small cases anyway.)
    #[must_use]
    pub fn shrink_ops(self, shrink_ops: bool) -> Self {
        Explorer { shrink_ops, ..self }
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

    /// Runs only what a failure's replay string names, with everything else as it was when the string was printed.
    ///
    /// # Panics
    /// If it is no replay string.
    #[must_use]
    pub fn replay(self, replay: &str) -> Self {
        let replay = replay.parse().unwrap_or_else(|error| panic!("{error}"));
        Explorer { replay: Some(replay), ..self }
    }

    /// Runs `ops`, then crashes and recovers in every way that the model allows, and compares with the reference model.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run<S: Subject>(&self, subject: &S, ops: &[S::Op]) -> Report {
        self.run_then(subject, ops, &[])
    }

    /// As [`run`](Explorer::run), and runs `after` on each recovered structure: several published bugs show only then.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run_then<S: Subject>(&self, subject: &S, ops: &[S::Op], after: &[S::Op]) -> Report {
        mutation::exploration(|sweeps| match sweeps {
            true => Explorer { suggest: false, ..self.clone() }.run_now(subject, ops, after),
            false => self.run_now(subject, ops, after),
        })
    }

    /// As [`run_then`](Explorer::run_then), once for each of `looks`: that operation is the first that looks at what was
    /// recovered, `after` follows, and only then is everything [observed](Subject::observe). Give one operation for each entry
    /// point of the structure, those that change something included: a scan that comes first may repair what a lookup would
    /// have met, and hide that the lookup trusts it. With [`crashes`](Explorer::crashes) and
    /// [`crash_later`](Explorer::crash_later) a second crash comes in that first operation, too.
    ///
    /// Not for a contract that holds for [parts](Subject::assemble).
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn first_looks<S: Subject>(&self, subject: &S, ops: &[S::Op], looks: &[S::Op], after: &[S::Op]) -> Report {
        let explorer = self.clone().observe_first(false);
        let mut total = Report::default();
        for look in looks {
            let after: Vec<_> = [look].into_iter().chain(after).cloned().collect();
            if total.failure.is_none() {
                total.merge(explorer.run_then(subject, ops, &after));
            }
        }
        total
    }

    fn run_now<S: Subject>(&self, subject: &S, ops: &[S::Op], after: &[S::Op]) -> Report {
        if let Some((ops, after)) = self.kept(ops, after) {
            let mut report = Run::new(self, subject, &ops, &after, None).run();
            let case = self.replay.as_ref().map(|replay| replay.case.clone()).unwrap_or_default();
            report.failure.iter_mut().for_each(|failure| failure.set_case(case.clone()));
            return report;
        }
        let report = Run::new(self, subject, ops, after, None).run();
        if self.shrink_ops { self.shrunk(subject, ops, after, report, |_, _| true) } else { report }
    }

    /// Whether the suggestion of a failure puts back what was left out at the place for which `is_site` holds; `intact` is
    /// the subject with nothing left out, run with the same operations. For measuring the suggestions.
    #[doc(hidden)]
    pub fn suggestion_names<S: Subject>(
        &self,
        intact: &S,
        ops: &[S::Op],
        after: &[S::Op],
        failure: &Failure,
        is_site: impl Fn(&std::panic::Location<'_>) -> bool,
    ) -> bool {
        let Some(fix) = failure.fix else { return false };
        let replaying = Explorer { replay: Some(failure.code.clone()), suggest: false, ..self.clone() };
        let (ops, after) = replaying.kept(ops, after).unwrap_or_else(|| (ops.to_vec(), after.to_vec()));
        let mut run = Run::new(&replaying, intact, &ops, &after, None);
        run.kept = Some(Vec::new());
        let recorded = run.record().is_ok();
        let in_operations = recorded && fix.names(&run.trace, &is_site);
        let _ = run.power_failures().and_then(|()| run.process_deaths());
        let recoveries = run.kept.take().unwrap_or_default();
        in_operations || recoveries.iter().any(|trace| fix.names(trace, &is_site))
    }

    /// What is observed after a crash anywhere in `ops`, and how much was explored for it. Nothing is judged.
    #[doc(hidden)]
    pub fn recovered<S: Subject>(&self, subject: &S, ops: &[S::Op]) -> (std::collections::BTreeSet<String>, Report) {
        let mut outcomes = std::collections::BTreeSet::new();
        let mut observe = |state: &dyn Debug| {
            outcomes.insert(format!("{state:?}"));
        };
        let explorer = Explorer { judge: false, process_deaths: false, ..self.clone() };
        let report = Run::new(&explorer, subject, ops, &[], Some(&mut observe)).run();
        (outcomes, report)
    }

    /// What is observed after a crash anywhere in `ops`, over all crash states; nothing is judged.
    pub fn outcomes<S: Subject>(&self, subject: &S, ops: &[S::Op]) -> std::collections::BTreeSet<String> {
        let (outcomes, report) = self.recovered(subject, ops);
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
    /// What the last recovery that was recorded has shown: see [`later`].
    stages: Vec<Vec<S::Model>>,
    death: Option<death::Death<S>>,
    /// A suggestion that is being tried: everything is explored, whatever a replay string names.
    trying: Option<suggest::Fix>,
    /// Traces of recoveries that are replayed, and of next processes, for those who ask for them.
    kept: Option<Vec<Vec<Event>>>,
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
            stages: Vec::new(),
            death: None,
            trying: None,
            kept: None,
            report: Report::default(),
            random,
        }
    }

    pub(crate) fn run(mut self) -> Report {
        let failure = match self.record() {
            Err(failure) => Some(*failure),
            Ok(()) => self.power_failures().and_then(|()| self.process_deaths()).err().map(|failure| *failure),
        };
        self.report.complete &=
            failure.is_none() && self.explorer.replay.is_none() && self.explorer.crash_points.is_none();
        self.report.failure = failure;
        std::mem::take(&mut self.report)
    }

    fn power_failures(&mut self) -> Result<(), Box<Failure>> {
        if self.explorer.replay.as_ref().is_some_and(|replay| replay.death.is_some()) {
            return Ok(());
        }
        self.crash_everywhere().map_err(|found| Box::new(self.story(*found)))
    }

    fn process_deaths(&mut self) -> Result<(), Box<Failure>> {
        let wanted = match &self.explorer.replay {
            Some(replay) if replay.death.is_some() || !replay.crashes.is_empty() => replay.death.is_some(),
            _ => self.explorer.process_deaths,
        };
        if wanted { self.die_everywhere() } else { Ok(()) }
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
                mark(Event::Invoke);
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
            if self.explorer.crash_in_close && wrong.is_none() {
                drop(live);
                return (None, wrong);
            }
            recorder.mode.store(0, std::sync::atomic::Ordering::Relaxed);
            (Some(live), wrong)
        });
        recorder.mode.store(0, std::sync::atomic::Ordering::Relaxed);
        self.trace = Rc::new(std::mem::take(&mut recorder.lock().trace));
        let cause = match outcome {
            Ok((live, wrong)) => {
                recorder.mode.store(CLOSE, std::sync::atomic::Ordering::Relaxed);
                let dropped = attempt::quietly(|| drop(live));
                recorder.mode.store(0, std::sync::atomic::Ordering::Relaxed);
                wrong.or_else(|| dropped.err().map(|message| Cause::Panic { during: "closing", message }))
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
    fn crash_everywhere(&mut self) -> Result<(), Box<Found>> {
        let trace = Rc::clone(&self.trace);
        self.push_layer();
        let created = self.explorer.crash_in_create && self.death.is_none();
        let mut walk = Walk { created, dirty: true, last: None, completed: 0, ahead: 0, synced: 0 };
        let mut born = self.death.is_none();
        let picked = self.picked(&trace);
        let everywhere = self.explorer.every_event;
        let replayed = self.replayed();
        let stops = |seq: usize, event: &Event| event.is_mark() || everywhere || replayed == Some(seq);
        let mut seq = 0;
        loop {
            let from = seq;
            seq = self.sim.recorder.walk(0, &trace, from, stops);
            // What the first process did is over.
            walk.dirty |= born && seq > from;
            let Some(event) = trace.get(seq) else { break };
            let mark = matches!(event, Event::Invoke | Event::Return(_) | Event::Recovered);
            let wanted = mark || !event.is_mark();
            let skipped = picked.as_ref().is_some_and(|picked| !picked.contains(&seq));
            if walk.created && wanted && !skipped {
                self.crash_at(&mut walk, seq)?;
            }
            self.sim.recorder.step(0, seq as u32, event);
            if let Event::Return(number) = event
                && walk.created
            {
                self.demand_settled(&walk, *number as usize, seq)?;
                self.demand_fenced(&walk, *number as usize, seq)?;
            }
            born |= matches!(event, Event::Death);
            if born {
                let found = self.death.as_ref().map_or(0, |death| death.found);
                walk.advance(event, found, |number| self.syncs(number));
            }
            seq += 1;
        }
        match picked {
            Some(picked) if !picked.contains(&trace.len()) => Ok(()),
            _ => self.crash_at(&mut walk, trace.len()),
        }
    }

    /// The positions that [`Explorer::crash_points`] leaves, out of those where something may become durable or an operation
    /// starts or returns.
    fn picked(&mut self, trace: &[Event]) -> Option<Vec<usize>> {
        let points = self.explorer.crash_points.filter(|_| self.trying.is_none() && self.explorer.replay.is_none())?;
        let created = trace.iter().position(|e| matches!(e, Event::Created)).unwrap_or_default();
        let from = if self.explorer.crash_in_create { 0 } else { created };
        let places = trace.iter().enumerate().skip(from).filter(|(_, event)| {
            matches!(event, Event::Fence { .. } | Event::Sync { .. } | Event::Invoke | Event::Return(_))
        });
        let mut places: Vec<usize> = places.map(|(seq, _)| seq).chain([trace.len()]).collect();
        let mut picked = Vec::new();
        while !places.is_empty() && (picked.len() as u64) < points {
            let at = sample::next(&mut self.random) % places.len() as u64;
            picked.push(places.swap_remove(at as usize));
        }
        Some(picked)
    }

    /// Nothing may be flushed and not fenced when an operation returns.
    fn demand_fenced(&mut self, walk: &Walk, number: usize, event: usize) -> Result<(), Box<Found>> {
        if !self.explorer.machine.flushes_at_once || self.explorer.contract != Contract::Strict {
            return Ok(());
        }
        let Some(at) = self.sim.recorder.lock().layers[0].unfenced() else { return Ok(()) };
        let (oldest, newest, completed) = (walk.completed, walk.completed + 1, walk.completed);
        let point = Point { oldest, newest, completed, in_flight: walk.ahead > 0, event };
        Err(self.told(&point, &[], Cause::Unfenced { number, flushed_at: place(at) }))
    }

    /// Nothing may be open when an operation returns.
    fn demand_settled(&mut self, walk: &Walk, number: usize, event: usize) -> Result<(), Box<Found>> {
        if !self.explorer.settled_returns {
            return Ok(());
        }
        let windows = self.sim.recorder.lock().open_windows();
        if windows.is_empty() {
            return Ok(());
        }
        for window in &windows {
            let lowest = self.sim.recorder.lock().window(*window).lowest_fitting();
            self.fix(*window, &lowest);
        }
        let (oldest, newest, completed) = (walk.completed, walk.completed + 1, walk.completed);
        let point = Point { oldest, newest, completed, in_flight: walk.ahead > 0, event };
        Err(self.told(&point, &windows, Cause::Unsettled { number }))
    }

    fn replay(&self) -> Option<&'a Replay> {
        self.explorer.replay.as_ref().filter(|_| self.trying.is_none())
    }

    /// The position of the crash to be replayed.
    fn replayed(&self) -> Option<usize> {
        self.replay().and_then(|r| r.crashes.first()).map(|crash| crash.event)
    }

    fn crash_at(&mut self, walk: &mut Walk, event: usize) -> Result<(), Box<Found>> {
        let oldest = match self.explorer.contract {
            Contract::Strict => walk.completed,
            Contract::Buffered => walk.synced,
        };
        let newest = walk.completed + walk.ahead;
        let point = Point { oldest, newest, completed: walk.completed, in_flight: walk.ahead > 0, event };
        if let Some(replay) = self.replay().filter(|replay| !replay.crashes.is_empty()) {
            return if self.replayed() == Some(event) { self.rerun(&point, &replay.crashes) } else { Ok(()) };
        }
        let implied =
            !walk.dirty && walk.last.is_some_and(|(oldest, newest)| point.oldest <= oldest && newest <= point.newest);
        if implied && !self.explorer.every_event {
            return Ok(());
        }
        walk.dirty = false;
        walk.last = Some((point.oldest, point.newest));
        self.report.crash_points += 1;
        self.explore(&point)
    }

    /// Runs the one state that a replay string names.
    fn rerun(&mut self, point: &Point, crashes: &[Crash]) -> Result<(), Box<Found>> {
        let Some((crash, deeper)) = crashes.split_first() else { return Ok(()) };
        let Some(lines) = &crash.lines else { return self.explore(point) };
        let windows = self.sim.recorder.lock().open_windows();
        let top = self.inner.len() as u32;
        for window in windows.iter().copied().filter(|(layer, _)| *layer == top) {
            let positions = {
                let state = self.sim.recorder.lock();
                let number = state.lines[window.1 as usize].number;
                let highest = state.window(window).highest();
                let named = lines.iter().find(|(line, _)| *line == number).map(|(_, at)| *at);
                // What is no state of this line is a string from other code.
                named.filter(|at| state.window(window).is_state(at)).unwrap_or(highest)
            };
            self.fix(window, &positions);
        }
        if deeper.is_empty() {
            return self.attempt(point, 0).map_err(|cause| self.named(point, &windows, cause));
        }
        let _ = self.attempt(point, RECORD);
        let trace = std::mem::take(&mut self.sim.recorder.lock().trace);
        let stages = std::mem::take(&mut self.stages);
        self.push_layer();
        let depth = self.inner.len() + 1;
        let end = deeper[0].event.min(trace.len());
        self.kept.iter_mut().for_each(|kept| kept.push(trace.clone()));
        self.inner.push((end, trace));
        let mut at = later::At::default();
        for seq in 0..end {
            let event = self.inner[depth - 1].1[seq];
            self.sim.recorder.step(depth, seq as u32, &event);
            at.advance(&event, |number| self.subject.is_sync(&self.after[number]));
        }
        self.crash_later(point, at, &stages, |run, point| run.rerun(point, deeper))
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

    /// Number of states at this crash point.
    pub(crate) fn states_here(&self, windows: &[(u32, u32)]) -> Count {
        self.sim.recorder.lock().states_of(windows)
    }

    fn story(&mut self, found: Found) -> Failure {
        let point = found.point;
        let mut crashes = vec![story::position(&self.trace, point.event)];
        crashes.extend(found.crashes);
        let death = self.death.as_ref().map(|death| death.event);
        let replay = Replay { crashes: found.replay, death, ..Replay::default() };
        let suggestion = self.explorer.suggest.then(|| self.suggest(&found.missing, point.event)).flatten();
        let mut failure = Failure {
            crash: Some((point.completed, point.in_flight)),
            crashes,
            details: found.details,
            deviating: found.deviating,
            suggestion: suggestion.map(suggest::Fix::told),
            fix: suggestion,
            replay: replay.encode(),
            code: replay,
            after: self.after.iter().map(|op| format!("{op:?}")).collect(),
            assumed: self.explorer.assumptions(),
            explored: self.report.so_far(),
            ..self.plain_failure(found.cause)
        };
        self.tell_death(&mut failure);
        failure
    }

    /// Forgets the crash under exploration, wherever it was left.
    fn unwind(&mut self) {
        self.inner.clear();
        self.frozen.clear();
        while self.sim.recorder.lock().depth > 0 {
            self.pop_layer();
        }
        self.sim.recorder.lock().forget_path();
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
    details: Vec<String>,
    deviating: usize,
    /// Where the crashes in recoveries were.
    crashes: Vec<String>,
    replay: Vec<Crash>,
    missing: Vec<Missing>,
}

/// Where a walk along the trace is.
struct Walk {
    created: bool,
    dirty: bool,
    last: Option<(usize, usize)>,
    completed: usize,
    /// Operations that may have happened beyond those: the one under way.
    ahead: usize,
    synced: usize,
}

impl Walk {
    /// `found` is the number of states that a successor of a dead process may find.
    fn advance(&mut self, event: &Event, found: usize, is_sync: impl Fn(usize) -> bool) {
        match *event {
            Event::Created => self.created = true,
            Event::Death => (self.created, self.ahead, self.dirty) = (true, found - 1, true),
            Event::Recovered => {
                (self.completed, self.ahead) = (found, 0);
            }
            Event::Invoke => self.ahead = 1,
            Event::Return(number) => {
                self.ahead = 0;
                self.completed = number as usize + 1;
                if is_sync(number as usize) {
                    self.synced = self.completed;
                }
            }
            _ => self.dirty = true,
        }
    }
}
