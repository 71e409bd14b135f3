//! The explorer: one execution, every crash.

mod attempt;
mod crashes;
mod death;
mod explorer;
pub(crate) mod fix;
mod judge;
mod later;
mod lazy;
mod minimise;
mod point;
mod run;
mod sample;
mod story;
mod suggest;
mod threaded;

pub use explorer::{Explorer, Strategy};
pub(crate) use point::Found;
pub(crate) use run::Run;
pub(crate) use threaded::{Allowed, Answers, Program};

use std::fmt::Debug;
use std::rc::Rc;

use point::Point;

use crate::model::trace::{Event, place};
use crate::mutation;
use crate::panics::quietly;
use crate::random::next;
use crate::record::recorder::{CLOSE, RECORD};
use crate::replay::{Crash, Replay};
use crate::report::{Cause, Failure, Report};
use crate::subject::{Contract, Subject};

impl Explorer {
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

impl<'a, S: Subject> Run<'a, S> {
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
        let outcome = quietly(|| {
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
                let dropped = quietly(|| drop(live));
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
        self.crashes.push_layer();
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
            let at = next(&mut self.random) % places.len() as u64;
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
            self.crashes.fix(*window, &lowest);
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
        let top = self.crashes.inner.len() as u32;
        for window in windows.iter().copied().filter(|(layer, _)| *layer == top) {
            let positions = {
                let state = self.sim.recorder.lock();
                let number = state.lines[window.1 as usize].number;
                let highest = state.window(window).highest();
                let named = lines.iter().find(|(line, _)| *line == number).map(|(_, at)| *at);
                // What is no state of this line is a string from other code.
                named.filter(|at| state.window(window).is_state(at)).unwrap_or(highest)
            };
            self.crashes.fix(window, &positions);
        }
        if deeper.is_empty() {
            return self.attempt(point, 0).map_err(|cause| self.named(point, &windows, cause));
        }
        let _ = self.attempt(point, RECORD);
        let trace = std::mem::take(&mut self.sim.recorder.lock().trace);
        let stages = std::mem::take(&mut self.judge.stages);
        self.crashes.push_layer();
        let depth = self.crashes.inner.len() + 1;
        let end = deeper[0].event.min(trace.len());
        self.kept.iter_mut().for_each(|kept| kept.push(trace.clone()));
        self.crashes.inner.push((end, trace));
        let mut at = point::At::default();
        for seq in 0..end {
            let event = self.crashes.inner[depth - 1].1[seq];
            self.sim.recorder.step(depth, seq as u32, &event);
            at.advance(&event, |number| self.subject.is_sync(&self.judge.after[number]));
        }
        self.crash_later(point, at, &stages, |run, point| run.rerun(point, deeper))
    }

    pub(crate) fn explore(&mut self, point: &Point) -> Result<(), Box<Found>> {
        match self.explorer.strategy {
            Strategy::Lazy => self.explore_lazily(point),
            Strategy::Eager => self.explore_eagerly(point),
        }
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
            suggestion: suggestion.map(fix::Fix::told),
            fix: suggestion,
            replay: replay.encode(),
            code: replay,
            after: self.judge.after.iter().map(|op| format!("{op:?}")).collect(),
            assumed: self.explorer.assumptions(),
            explored: self.report.so_far(),
            ..self.plain_failure(found.cause)
        };
        self.tell_death(&mut failure);
        failure
    }
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
