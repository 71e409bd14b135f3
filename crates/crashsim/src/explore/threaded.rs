//! An execution of several threads, and the crashes in it.

use std::cell::RefCell;
use std::rc::Rc;

use super::point::{Found, Point};
use super::run::Run;
use crate::model::trace::Event;
use crate::panics::quietly;
use crate::record::recorder::{CLOSE, RECORD, Recorder};
use crate::replay::{Case, Crash, Replay};
use crate::report::{Cause, Failure, Report};
use crate::threads::{Body, Concurrent, Scheduler, begin, end, interleave};

/// The answers that operations have given in any execution so far, by operation, each once.
#[derive(Debug)]
pub(crate) struct Answers<R>(Vec<Vec<R>>);

impl<R: PartialEq> Answers<R> {
    pub(crate) fn new(ops: usize) -> Self {
        Answers((0..ops).map(|_| Vec::new()).collect())
    }

    /// The number of an answer among those of its operation.
    fn number(&mut self, op: usize, answer: R) -> usize {
        let known = &mut self.0[op];
        known.iter().position(|other| *other == answer).unwrap_or_else(|| {
            known.push(answer);
            known.len() - 1
        })
    }

    pub(crate) fn get(&self, op: usize, number: usize) -> &R {
        &self.0[op][number]
    }
}

/// The operations of each thread, with their numbers among all.
pub(crate) type Program<'p, O> = Vec<Vec<(usize, &'p O)>>;

/// A place for a crash, and the states of the model that may be found after it.
pub(crate) struct Allowed<T> {
    pub(crate) event: usize,
    pub(crate) completed: usize,
    pub(crate) models: Rc<Vec<T>>,
}

struct Thread<'t, S: Concurrent> {
    subject: &'t S,
    handle: &'t mut S::Thread,
    ops: &'t [(usize, &'t S::Op)],
    answers: &'t RefCell<&'t mut Answers<S::Ret>>,
}

impl<S: Concurrent> Body for Thread<'_, S> {
    fn run(&mut self) {
        for (number, op) in self.ops {
            begin(*number);
            let answer = self.subject.run(self.handle, op);
            let answer = self.answers.borrow_mut().number(*number, answer);
            end(*number, answer);
        }
    }
}

impl<S: Concurrent> Run<'_, S> {
    /// Runs a program on a structure just created, as the scheduler says.
    pub(crate) fn execute(
        &mut self,
        program: &Program<'_, S::Op>,
        scheduler: &mut Option<Scheduler>,
        answers: &mut Answers<S::Ret>,
    ) -> Result<Rc<Vec<Event>>, Cause> {
        let recorder = self.sim.recorder;
        recorder.reset(self.explorer.machine);
        recorder.restart(RECORD);
        let (subject, store) = (self.subject, self.store.as_ref().expect("not dropped yet"));
        let outcome = quietly(|| {
            let live = subject.create(store);
            let mut handles: Vec<S::Thread> = (0..program.len()).map(|n| subject.thread(&live, n)).collect();
            recorder.lock().trace.push(Event::Created);
            let answers = RefCell::new(answers);
            let threads = handles.iter_mut().zip(program);
            let mut bodies: Vec<Box<dyn Body + '_>> = Vec::with_capacity(program.len());
            for (handle, ops) in threads {
                bodies.push(Box::new(Thread { subject, handle, ops, answers: &answers }));
            }
            if let Some(mut ready) = scheduler.take() {
                ready.begin(program.iter().map(|ops| !ops.is_empty()));
                *scheduler = Some(interleave(ready, &mut bodies));
            }
            recorder.mode.store(CLOSE, std::sync::atomic::Ordering::Relaxed);
            drop(bodies);
            drop((handles, live));
        });
        recorder.mode.store(0, std::sync::atomic::Ordering::Relaxed);
        let trace = Rc::new(std::mem::take(&mut recorder.lock().trace));
        self.report.events += trace.iter().filter(|e| !e.is_mark()).count() as u64;
        self.trace = Rc::clone(&trace);
        outcome.map(|()| trace).map_err(|message| Cause::Panic { during: "creating or closing", message })
    }

    /// Crashes the execution just run at each of some points, in order.
    pub(crate) fn crash_threads(&mut self, points: &[Allowed<S::Model>]) -> Result<(), Box<Found>> {
        self.walk_threads(points, |run, point| run.explore(point))
    }

    /// Runs the one state that a replay string names.
    pub(crate) fn crash_threads_again(
        &mut self,
        allowed: Allowed<S::Model>,
        crashes: &[Crash],
    ) -> Result<(), Box<Found>> {
        self.walk_threads(&[allowed], |run, point| run.rerun(point, crashes))
    }

    fn walk_threads(
        &mut self,
        points: &[Allowed<S::Model>],
        mut crash: impl FnMut(&mut Self, &Point) -> Result<(), Box<Found>>,
    ) -> Result<(), Box<Found>> {
        let trace = Rc::clone(&self.trace);
        self.crashes.push_layer();
        let mut taken = 0;
        for allowed in points {
            for seq in taken..allowed.event {
                self.sim.recorder.step(0, seq as u32, &trace[seq]);
            }
            taken = allowed.event;
            self.judge.replace(allowed.models.to_vec());
            let newest = self.judge.models.len() - 1;
            let completed = allowed.completed;
            let point = Point { oldest: 0, newest, completed, in_flight: false, event: allowed.event };
            self.report.crash_points += 1;
            crash(self, &point)?;
        }
        self.crashes.pop_layer();
        Ok(())
    }

    /// The story of a state that is not allowed; the timeline is added by whoever knows it.
    pub(crate) fn threads_story(&mut self, found: Found, case: Case) -> Failure {
        let mut crashes = vec![super::story::position_of_threads(&self.trace, found.point.event)];
        crashes.extend(found.crashes);
        let code = Replay { case, crashes: found.replay, ..Replay::default() };
        let cause = match found.cause {
            // How many operations are done says nothing of several threads.
            Cause::State { observed, allowed } => {
                Cause::Recovered { observed, allowed: allowed.into_iter().map(|(_, state)| state).collect() }
            }
            cause => cause,
        };
        Failure {
            crash: Some((found.point.completed, false)),
            crashes,
            details: found.details,
            deviating: found.deviating,
            replay: code.encode(),
            code,
            after: self.judge.after.iter().map(|op| format!("{op:?}")).collect(),
            assumed: self.explorer.assumptions(),
            ..Failure::plain(cause, Vec::new())
        }
    }

    pub(crate) fn recorder(&self) -> &'static Recorder {
        self.sim.recorder
    }

    pub(crate) fn trace(&self) -> &[Event] {
        &self.trace
    }

    pub(crate) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }
}

impl Found {
    pub(crate) fn event(&self) -> usize {
        self.point.event
    }
}
