//! The explorer of concurrent programs.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::rc::Rc;

use super::digest::{Digest, Mix};
use super::schedule::{CrashPoint, Promise};
use super::{Concurrent, MAX_OPS, MAX_THREADS, Mark, Scheduler, Segment, Wrong};
use crate::explore::{Allowed, Answers, Explorer, Found, Program, Run};
use crate::linear::{Search, Span, SpanOf, Spec};
use crate::model::trace::Event;
use crate::model::trace::place;
use crate::mutation;
use crate::random::next;
use crate::replay::Case;
use crate::report::{Cause, Failure, Report, Schedules};
use crate::subject::Contract;

/// States of the search for an order of operations, for one crash point.
const MAX_ORDERS: u64 = 1 << 20;

/// Preemptions that shrinking looks for, unless the failure needs more.
const SHRINK_PREEMPTIONS: u32 = 2;

/// Schedules with fewer preemptions that shrinking tries, at least.
const SHRINK_SCHEDULES: u64 = 20_000;

/// Schedules sampled for each try of shrinking what shuttle has found.
#[cfg(feature = "shuttle")]
const SHRINK_SAMPLES: u64 = 500;

/// Explores the interleavings of concurrent programs, with the crashes in each of them: what the [`Explorer`] does for
/// one sequence of operations, this does for several at a time.
///
/// ```text
/// let threads = Threads::new(Explorer::new());
/// let report = threads.run(&subject, &[vec![Insert(1)], vec![Remove(1)]], &[Insert(2)]).assert_ok();
/// assert!(report.complete);
/// ```
#[derive(Clone, Debug)]
pub struct Threads {
    explorer: Explorer,
    bound: Option<u32>,
    prunes: bool,
    verifies: bool,
    order: u64,
    sampled: bool,
    max_schedules: u64,
    shrinks: bool,
}

impl Threads {
    /// No bound on preemptions; crashes as `explorer` says (model, contract, nested crashes, budgets, replay).
    pub fn new(explorer: Explorer) -> Self {
        Threads {
            explorer,
            bound: None,
            prunes: true,
            verifies: false,
            order: 0,
            sampled: false,
            max_schedules: u64::MAX,
            shrinks: true,
        }
    }

    /// At most this many preemptions: a thread that could go on within an operation has to wait for another. Between
    /// operations, and where a thread waits for others, switches are free. The report names the bound.
    #[must_use]
    pub fn preemptions(self, bound: u32) -> Self {
        Threads { bound: Some(bound), ..self }
    }

    /// Gives up after this many schedules; the report then says "not complete".
    #[must_use]
    pub fn max_schedules(self, schedules: u64) -> Self {
        Threads { max_schedules: schedules.max(1), ..self }
    }

    /// Runs this many schedules picked at random, by the [seed](Explorer::seed), instead of exploring: for programs that are
    /// too large. Each is run to its end, and crashed everywhere; the report says "not complete".
    #[must_use]
    pub fn sampled(self, schedules: u64) -> Self {
        Threads { sampled: true, ..self.max_schedules(schedules) }
    }

    /// Whether executions are cut short where they meet a state that was met before. On unless set; off, every schedule is
    /// run to its end: for testing the pruning.
    #[must_use]
    pub fn prunes(self, prunes: bool) -> Self {
        Threads { prunes, ..self }
    }

    /// Makes the digest of each state a second time, from nothing, and compares: for testing the pruning, which rests on digests that change
    /// only with what has changed. It is slow. A run panics if a digest was wrong.
    #[must_use]
    pub fn verifies(self, verifies: bool) -> Self {
        Threads { verifies, ..self }
    }

    /// Tries schedules in another order, the same for the same number; with 0, as unless set, those with few switches
    /// first. What is found must not depend on it: for testing the pruning, and for runs that are given up early.
    #[must_use]
    pub fn order(self, order: u64) -> Self {
        Threads { order, ..self }
    }

    /// Runs one program: the operations of each thread. `after` runs on each recovered structure, alone.
    ///
    /// # Panics
    /// With more than 8 threads, or 64 operations in all.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run<S: Concurrent>(&self, subject: &S, program: &[Vec<S::Op>], after: &[S::Op]) -> Report {
        mutation::exploration(|sweeps| match sweeps {
            true => Threads { shrinks: false, ..self.clone() }.run_now(subject, program, after),
            false => self.run_now(subject, program, after),
        })
    }

    fn run_now<S: Concurrent>(&self, subject: &S, program: &[Vec<S::Op>], after: &[S::Op]) -> Report {
        let all = all_ops(program);
        if let Some(replay) = &self.explorer.replay
            && let Case::Threads { ops, schedule } = &replay.case
        {
            if schedule.is_empty() {
                // The schedule was too long for a replay string: what comes first in the same order is found again.
                let explorer = Explorer { replay: None, ..self.explorer.clone() };
                let mut report = Threads { explorer, ..self.clone() }.part(subject, program, after, *ops).explore();
                report.complete = false;
                return report;
            }
            return self.part(subject, program, after, *ops).again(schedule);
        }
        let mut report = self.part(subject, program, after, all).explore();
        if let Some(failure) = report.failure.take() {
            let smallest = self.shrinks.then(|| self.shrink(subject, program, after, all, &failure)).flatten();
            report.failure = Some(smallest.unwrap_or(failure));
        }
        report
    }

    /// Runs schedules that a scheduler of [shuttle](::shuttle) picks, such as its `PctScheduler` or `RandomScheduler`, as many
    /// as that wants to run, instead of exploring: each is run to its end, and crashed everywhere, and the report says "not
    /// complete". A failure is shrunk as by [`sampled`](Threads::sampled), and replayed by [`run`](Threads::run).
    ///
    /// # Panics
    /// As [`run`](Threads::run).
    #[cfg(feature = "shuttle")]
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run_by<S: Concurrent>(
        &self,
        scheduler: impl ::shuttle::scheduler::Scheduler + 'static,
        subject: &S,
        program: &[Vec<S::Op>],
        after: &[S::Op],
    ) -> Report {
        let all = all_ops(program);
        let mut report = self.part(subject, program, after, all).explore_by(scheduler);
        if let Some(failure) = report.failure.take() {
            let sampled = self.clone().sampled(SHRINK_SAMPLES);
            let smallest = self.shrinks.then(|| sampled.shrink(subject, program, after, all, &failure)).flatten();
            report.failure = Some(smallest.unwrap_or(failure));
        }
        report
    }

    /// Runs every program of `threads` threads with `len` operations each out of `alphabet`. Threads are
    /// alike, so programs that differ only in the order of their threads are run once. Stops at the first failure.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn programs<S: Concurrent>(
        &self,
        subject: &S,
        alphabet: &[S::Op],
        threads: usize,
        len: usize,
        after: &[S::Op],
    ) -> Report {
        let sequences = (alphabet.len() as u64).pow(len as u32);
        let sequence = |number: u64| -> Vec<S::Op> {
            let digit = |place: usize| number / (alphabet.len() as u64).pow(place as u32) % alphabet.len() as u64;
            (0..len).map(|place| alphabet[digit(place) as usize].clone()).collect()
        };
        let mut numbers = vec![0u64; threads];
        let mut total = Report::default();
        // A replay string does not name the program: its schedule leads elsewhere in others.
        let mut misfit = None;
        loop {
            let program: Vec<_> = numbers.iter().map(|number| sequence(*number)).collect();
            let mut report = self.run(subject, &program, after);
            if self.explorer.replay.is_some() {
                misfit = report.failure.take_if(|failure| failure.cause == Cause::Nondeterministic).or(misfit);
            }
            total.merge(report);
            // The next ascending tuple of numbers.
            let Some(at) = (0..threads).rev().find(|at| numbers[*at] + 1 < sequences) else { break };
            let next = numbers[at] + 1;
            numbers[at..].fill(next);
            if total.failure.is_some() {
                break;
            }
        }
        total.failure = total.failure.or(misfit);
        total
    }

    /// Draws `programs` programs by the [seed](Explorer::seed), and runs each: a thread for each of the `alphabets`, with `len`
    /// operations out of its own. Writers and a reader of neighbouring keys, say, with two operations and two
    /// [preemptions](Threads::preemptions): helping, bypassing and reuse beside a reader that was interrupted show only there.
    /// Stops at the first failure. The report says "not complete": other programs may be drawn.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn drawn<S: Concurrent>(
        &self,
        subject: &S,
        alphabets: &[Vec<S::Op>],
        len: usize,
        programs: u64,
        after: &[S::Op],
    ) -> Report {
        let (mut random, mut total) = (self.explorer.seed | 1, Report::default());
        let mut misfit = None;
        for _ in 0..programs {
            let mut draw = |from: &Vec<S::Op>| from[(next(&mut random) % from.len() as u64) as usize].clone();
            let program: Vec<Vec<S::Op>> =
                alphabets.iter().map(|from| (0..len).map(|_| draw(from)).collect()).collect();
            if total.failure.is_none() {
                let mut report = self.run(subject, &program, after);
                if self.explorer.replay.is_some() {
                    // As in `programs`.
                    misfit = report.failure.take_if(|failure| failure.cause == Cause::Nondeterministic).or(misfit);
                }
                total.merge(report);
            }
        }
        total.failure = total.failure.or(misfit);
        total.complete = false;
        total
    }

    /// What is answered, and what is observed after a crash anywhere, over all schedules and crash states: for each
    /// operation its answer, if it had returned by then, and how many had returned before it started; and the state
    /// recovered. Nothing is judged.
    pub fn outcomes<S: Concurrent>(&self, subject: &S, program: &[Vec<S::Op>]) -> BTreeSet<String> {
        let outcomes = RefCell::new(BTreeSet::new());
        let label = RefCell::new(String::new());
        let mut observe = |state: &dyn Debug| {
            outcomes.borrow_mut().insert(format!("{} | {state:?}", label.borrow()));
        };
        let threads = Threads { explorer: Explorer { judge: false, ..self.explorer.clone() }, ..self.clone() };
        let mut part = threads.part(subject, program, &[], u64::MAX);
        part.run = Run::new(&threads.explorer, subject, &[], &[], Some(&mut observe));
        part.label = Some(&label);
        part.explore().assert_ok();
        outcomes.into_inner()
    }

    /// What operations have to have done when they return.
    fn promises(&self) -> Vec<Promise> {
        let clflush = self.explorer.machine.flushes_at_once && self.explorer.contract == Contract::Strict;
        let fenced = clflush.then_some(Promise::Fenced);
        let settled = self.explorer.settled_returns.then_some(Promise::Settled);
        settled.into_iter().chain(fenced).filter(|_| self.explorer.judge).collect()
    }

    /// The operations named by the bits of `ops`.
    fn part<'a, S: Concurrent>(
        &'a self,
        subject: &'a S,
        program: &'a [Vec<S::Op>],
        after: &'a [S::Op],
        ops: u64,
    ) -> Part<'a, S> {
        let mut number = 0;
        let mut told = Vec::new();
        let part: Program<'a, S::Op> = program
            .iter()
            .map(|thread| {
                let numbered = thread.iter().map(|op| {
                    told.push(format!("{op:?}"));
                    number += 1;
                    (number - 1, op)
                });
                numbered.filter(|(number, _)| ops >> number & 1 == 1).collect()
            })
            .collect();
        let run = Run::new(&self.explorer, subject, &[], after, None);
        Part {
            label: None,
            threads: self,
            subject,
            ops,
            program: part,
            told,
            run,
            answers: Answers::new(number),
            known: HashMap::default(),
        }
    }

    /// The smallest program that still fails: without operations that do not matter, then with few preemptions.
    fn shrink<S: Concurrent>(
        &self,
        subject: &S,
        program: &[Vec<S::Op>],
        after: &[S::Op],
        all: u64,
        failure: &Failure,
    ) -> Option<Failure> {
        let most = failure.preemptions.max(SHRINK_PREEMPTIONS).min(self.bound.unwrap_or(u32::MAX));
        let quick = Threads { bound: Some(most), shrinks: false, ..self.clone() };
        let mut smallest = None;
        let mut ops = all;
        for op in (0..MAX_OPS).rev().filter(|op| all >> op & 1 == 1) {
            let fewer = ops & !(1 << op);
            if let Some(failure) = quick.part(subject, program, after, fewer).explore().failure {
                ops = fewer;
                smallest = Some(failure);
            }
        }
        let needed = smallest.as_ref().unwrap_or(failure).preemptions;
        for bound in 0..needed {
            let max_schedules = self.max_schedules.max(SHRINK_SCHEDULES);
            let fewer = Threads { bound: Some(bound), sampled: false, max_schedules, ..quick.clone() };
            if let Some(failure) = fewer.part(subject, program, after, ops).explore().failure {
                return Some(failure);
            }
        }
        smallest
    }
}

/// One program under exploration.
struct Part<'a, S: Concurrent> {
    threads: &'a Threads,
    subject: &'a S,
    ops: u64,
    program: Program<'a, S::Op>,
    /// All operations, told.
    told: Vec<String>,
    run: Run<'a, S>,
    answers: Answers<S::Ret>,
    /// By what the marks of an execution say: the states of the model that a crash may leave.
    known: HashMap<Digest, Rc<Vec<S::Model>>, Mix>,
    /// Where to tell what was answered before a crash, if anybody asks.
    label: Option<&'a RefCell<String>>,
}

/// What ends an exploration.
struct Stop {
    failure: Failure,
    event: usize,
}

impl<S: Concurrent> Part<'_, S> {
    fn explore(mut self) -> Report {
        let threads = self.threads;
        let (recorder, machine) = (self.run.recorder(), threads.explorer.machine);
        let scheduler = Scheduler::new(recorder, machine, threads.bound, threads.prunes);
        let mut scheduler =
            Some(scheduler.in_order(threads.order).verifying(threads.verifies).demanding(threads.promises()));
        let mut given_up = false;
        let failure = loop {
            if threads.sampled
                && let Some(scheduler) = &mut scheduler
            {
                scheduler.sample(threads.explorer.seed.wrapping_add(scheduler.totals.executions));
            }
            if let Err(stop) = self.execution(&mut scheduler) {
                break Some(self.told(*stop, scheduler.as_ref()));
            }
            let Some(scheduler) = &mut scheduler else { break None };
            given_up = threads.sampled || scheduler.next_schedule();
            if !given_up || scheduler.totals.executions >= threads.max_schedules {
                break None;
            }
        };
        let how = if threads.sampled { "picked at random" } else { "run" };
        self.report(scheduler.as_ref(), failure, given_up.then_some(how))
    }

    #[cfg(feature = "shuttle")]
    fn explore_by(mut self, picks: impl ::shuttle::scheduler::Scheduler + 'static) -> Report {
        let scheduler = Scheduler::new(self.run.recorder(), self.threads.explorer.machine, None, self.threads.prunes);
        let mut scheduler = Some(scheduler.driven().demanding(self.threads.promises()));
        let mut failure = None;
        super::shuttle::run(picks, &mut || {
            failure = self.execution(&mut scheduler).err().map(|stop| self.told(*stop, scheduler.as_ref()));
            failure.is_none() && scheduler.is_some()
        });
        self.report(scheduler.as_ref(), failure, Some("picked by shuttle"))
    }

    /// One execution, and the crashes in it that are new.
    fn execution(&mut self, scheduler: &mut Option<Scheduler>) -> Result<(), Box<Stop>> {
        let outcome = self.run.execute(&self.program, scheduler, &mut self.answers);
        let Some(scheduler) = scheduler else {
            let cause = outcome.err().unwrap_or(Cause::Nondeterministic);
            return Err(Box::new(Stop { failure: Failure::plain(cause, Vec::new()), event: 0 }));
        };
        let trace = outcome.map_err(|cause| plain(cause, self.run.trace().len()))?;
        let allowed = self.allowed(&scheduler.points, scheduler.marks())?;
        if let Some(wrong) = scheduler.wrong.take() {
            return Err(stopped(wrong, trace.len()));
        }
        let Some(label) = self.label else {
            return self.run.crash_threads(&allowed).map_err(|found| self.stop(*found));
        };
        for (allowed, point) in allowed.into_iter().zip(&scheduler.points) {
            label.replace(self.answered(&scheduler.marks()[..point.marks]));
            self.run.crash_threads(&[allowed]).map_err(|found| self.stop(*found))?;
        }
        Ok(())
    }

    /// The answers so far, by operation, each behind the number of operations that returned before it started.
    fn answered(&self, marks: &[Mark]) -> String {
        let mut answers: Vec<String> = self.told.iter().map(|_| "-".to_owned()).collect();
        let mut returned = 0;
        for mark in marks {
            match *mark {
                Mark::Invoked(op) => answers[op] = format!("{returned}:"),
                Mark::Returned(op, answer) => {
                    returned += 1;
                    answers[op] += &format!("{:?}", self.answers.get(op, answer));
                }
            }
        }
        answers.join(" ")
    }

    /// What may be found after a crash at each of some points.
    fn allowed(&mut self, points: &[CrashPoint], marks: &[Mark]) -> Result<Vec<Allowed<S::Model>>, Box<Stop>> {
        let mut allowed = Vec::with_capacity(points.len());
        for point in points {
            let before = &marks[..point.marks];
            let models = match self.known.get(&point.past) {
                Some(models) => Rc::clone(models),
                None => {
                    let models = Rc::new(self.finals(before).map_err(|cause| plain(cause, point.seq))?);
                    self.known.insert(point.past, Rc::clone(&models));
                    models
                }
            };
            let completed = before.iter().filter(|mark| matches!(mark, Mark::Returned(..))).count();
            allowed.push(Allowed { event: point.seq, completed, models });
        }
        Ok(allowed)
    }

    /// The states of the model that a crash after these marks may leave.
    fn finals(&self, marks: &[Mark]) -> Result<Vec<S::Model>, Cause> {
        let spec = ModelOf(self.subject);
        let numbered = self.program.iter().flatten();
        let op_of = |wanted: usize| numbered.clone().find(|(number, _)| *number == wanted).map(|(_, op)| *op);
        let mut spans: Vec<(usize, SpanOf<'_, ModelOf<'_, S>>)> = Vec::new();
        for (at, mark) in marks.iter().enumerate() {
            match *mark {
                Mark::Invoked(op) => {
                    let Some(what) = op_of(op) else { continue };
                    spans.push((op, Span { op: what, invoked: at as u64, returned: None }));
                }
                Mark::Returned(op, answer) => {
                    if let Some((_, span)) = spans.iter_mut().find(|(number, _)| *number == op) {
                        span.returned = Some((at as u64, self.answers.get(op, answer)));
                    }
                }
            }
        }
        let spans = spans.into_iter().map(|(_, span)| span).collect();
        let mut search = Search::new(&spec, spans, self.threads.explorer.contract, MAX_ORDERS);
        search.run(vec![self.subject.model()]);
        if search.gave_up() {
            return Err(Cause::Panic {
                during: "the search for an order",
                message: "too many operations overlap".into(),
            });
        }
        let finals = search.finals();
        match finals.is_empty() {
            _ if !self.threads.explorer.judge => Ok(vec![self.subject.model()]),
            true => Err(Cause::NotLinearizable { history: self.calls(marks) }),
            false => Ok(finals),
        }
    }

    fn calls(&self, marks: &[Mark]) -> String {
        let line = |mark: &Mark| match *mark {
            Mark::Invoked(op) => format!("  thread {} invokes {}", self.thread_of(op), self.told[op]),
            Mark::Returned(op, answer) => {
                let answer = self.answers.get(op, answer);
                format!("  thread {} returns {answer:?} from {}", self.thread_of(op), self.told[op])
            }
        };
        marks.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn thread_of(&self, op: usize) -> usize {
        self.program.iter().position(|ops| ops.iter().any(|(number, _)| *number == op)).unwrap_or_default()
    }

    fn stop(&mut self, found: Found) -> Box<Stop> {
        let event = found.event();
        let failure = self.run.threads_story(found, Case::Threads { ops: self.ops, schedule: Vec::new() });
        Box::new(Stop { failure, event })
    }

    /// Runs the schedule and the state that a replay string names.
    fn again(mut self, schedule: &[(usize, u32)]) -> Report {
        let mut scheduler = Scheduler::new(self.run.recorder(), self.threads.explorer.machine, None, false);
        scheduler.force(schedule.to_vec());
        let mut scheduler = Some(scheduler.demanding(self.threads.promises()));
        let failure = self.repeat(&mut scheduler).err().map(|stop| self.told(*stop, scheduler.as_ref()));
        self.report(scheduler.as_ref(), failure, Some("run"))
    }

    fn repeat(&mut self, scheduler: &mut Option<Scheduler>) -> Result<(), Box<Stop>> {
        let crashes = self.threads.explorer.replay.as_ref().map(|replay| replay.crashes.clone()).unwrap_or_default();
        self.execution(scheduler)?;
        let Some(scheduler) = scheduler.as_ref() else { return Ok(()) };
        let trace = self.run.trace();
        // Without a crash it is the answers that were wrong: all of them are looked at.
        let seq = crashes.first().map_or(trace.len(), |first| first.event.min(trace.len()));
        let before = trace[..seq].iter().filter(|e| matches!(e, Event::Invoke | Event::Return(_))).count();
        let point = CrashPoint { seq, marks: before, past: Digest::default() };
        let allowed = self.allowed(&[point], scheduler.marks())?.remove(0);
        if crashes.is_empty() {
            return Ok(());
        }
        self.run.crash_threads_again(allowed, &crashes).map_err(|found| self.stop(*found))
    }

    // ---- telling ----

    fn told(&self, stop: Stop, scheduler: Option<&Scheduler>) -> Failure {
        let Stop { mut failure, event } = stop;
        failure.ops = self.program.iter().flatten().map(|(number, _)| self.told[*number].clone()).collect();
        let Some(scheduler) = scheduler else { return failure };
        // Of a crash, only what came before it matters.
        let whole = failure.crash.is_none() && event >= self.run.trace().len();
        let matters = |(at, segment): &(usize, &Segment)| *at == 0 || whole || segment.from < event;
        let until: Vec<&Segment> = scheduler.segments.iter().enumerate().filter(matters).map(|(_, s)| s).collect();
        failure.timeline = self.timeline(&until, scheduler.marks(), event);
        failure.preemptions = preemptions(&until);
        if failure.crash.is_some() {
            failure.timeline.push("CRASH".into());
        }
        let schedule = until.iter().map(|segment| (segment.thread, segment.turns)).collect();
        failure.set_case(Case::Threads { ops: self.ops, schedule });
        failure
    }

    fn timeline(&self, segments: &[&Segment], marks: &[Mark], event: usize) -> Vec<String> {
        let trace = self.run.trace();
        let mut marks = marks.iter();
        let mut lines = Vec::new();
        for (at, segment) in segments.iter().enumerate() {
            let end = segments.get(at + 1).map_or(event, |next| next.from).min(event).min(trace.len());
            let indent = "    ".repeat(segment.thread);
            for what in trace[segment.from.min(end)..end].iter() {
                if !matches!(what, Event::Invoke | Event::Return(_)) {
                    continue;
                }
                lines.extend(marks.next().map(|mark| match *mark {
                    Mark::Invoked(op) => format!("{indent}thread {}: {}", segment.thread, self.told[op]),
                    Mark::Returned(op, answer) => {
                        let answer = self.answers.get(op, answer);
                        format!("{indent}thread {}: {} returns {answer:?}", segment.thread, self.told[op])
                    }
                }));
            }
            if let Some(stopped) = segment.stopped.filter(|_| at + 1 < segments.len()) {
                lines.push(format!("{indent}thread {}: stops before {}", segment.thread, place(stopped)));
            }
        }
        lines
    }

    fn report(&mut self, scheduler: Option<&Scheduler>, failure: Option<Failure>, given_up: Option<&str>) -> Report {
        let mut report = self.run.take_report();
        report.cases = 1;
        let totals = scheduler.map(|s| s.totals).unwrap_or_default();
        assert!(totals.stale == 0, "{} of {} states have the digest of another state", totals.stale, totals.states);
        let mut incomplete = Vec::new();
        if let Some(how) = given_up {
            incomplete.push(format!("only {} schedules were {how}", totals.executions));
        }
        if totals.hidden > 0 {
            incomplete.push("states that were equal went on differently: shared state passes the medium by".into());
        }
        incomplete.extend(self.subject.hidden().map(|what| format!("passes the medium by: {what}")));
        report.complete &= incomplete.is_empty() && failure.is_none();
        report.schedules = Some(Schedules {
            executions: totals.executions,
            states: totals.states,
            steps: totals.steps,
            preemptions: totals.preemptions,
            bound: self.threads.bound.filter(|_| totals.ruled_out > 0),
            incomplete,
        });
        report.failure = failure;
        report
    }
}

/// The bits of all operations of a program.
fn all_ops<O>(program: &[Vec<O>]) -> u64 {
    let ops: usize = program.iter().map(Vec::len).sum();
    assert!(program.len() < MAX_THREADS, "{} threads; at most {}", program.len(), MAX_THREADS - 1);
    assert!(ops <= MAX_OPS, "{ops} operations; at most {MAX_OPS}");
    if ops == MAX_OPS { u64::MAX } else { (1 << ops) - 1 }
}

fn plain(cause: Cause, event: usize) -> Box<Stop> {
    Box::new(Stop { failure: Failure::plain(cause, Vec::new()), event })
}

/// The story of an execution that did not come to its end.
fn stopped(wrong: Wrong, end: usize) -> Box<Stop> {
    let Wrong::Early { event, promise, at, .. } = wrong else { return plain(cause_of(wrong), end) };
    let mut stop = plain(cause_of(wrong), event + 1);
    if promise == Promise::Settled {
        stop.failure.details.push(format!("stored at {}, and not durable when the operation returned", place(at)));
    }
    stop
}

fn cause_of(wrong: Wrong) -> Cause {
    let during = "the operations";
    match wrong {
        Wrong::Early { op, promise: Promise::Settled, .. } => Cause::Unsettled { number: op },
        Wrong::Early { op, at, .. } => Cause::Unfenced { number: op, flushed_at: place(at) },
        Wrong::Panic(message) => Cause::Panic { during, message },
        Wrong::Deadlock => Cause::Panic { during, message: "all threads wait for each other, for ever".into() },
        Wrong::Endless => Cause::Panic { during, message: "no end: a loop that waits without `spin`?".into() },
        Wrong::Nondeterministic => Cause::Nondeterministic,
    }
}

/// Switches away from a thread that could have gone on within its operation.
fn preemptions(segments: &[&Segment]) -> u32 {
    segments.iter().filter(|segment| segment.preempted).count() as u32
}

/// The model of a subject, as a specification.
struct ModelOf<'s, S>(&'s S);

impl<S: Concurrent> Spec for ModelOf<'_, S> {
    type Op = S::Op;
    type Ret = S::Ret;
    type State = S::Model;

    fn initial(&self) -> S::Model {
        self.0.model()
    }
    fn step(&self, state: &mut S::Model, op: &S::Op) -> S::Ret {
        self.0.step(state, op)
    }
    fn is_sync(&self, op: &S::Op) -> bool {
        self.0.is_sync(op)
    }
}
