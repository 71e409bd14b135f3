//! The death of the process as a crash of its own kind: the next process sees every store, and none of them is durable for
//! that. It recovers, goes on, and then the power fails.
//!
//! The second process is a continuation of the same trace: its stores go to the same windows, and its write-backs cover what
//! the first has left in the caches.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::point::Found;
use super::run::{Before, Death, Run};
use super::story;
use crate::model::persistency::Persistency;
use crate::model::trace::Event;
use crate::panics::quietly;
use crate::record::recorder::{CLOSE, RECORD};
use crate::report::{Cause, Failure};
use crate::subject::{Contract, Subject};

/// What the second process did.
struct Second<S: Subject> {
    trace: Vec<Event>,
    models: Vec<S::Model>,
    wrong: Option<Cause>,
}

/// Range of models that the second process may find: what had returned, and what was under way.
#[derive(Clone, Copy)]
struct At {
    event: usize,
    oldest: usize,
    completed: usize,
    in_flight: bool,
}

impl<S: Subject> Run<'_, S> {
    /// Lets the process die after every store, and where each operation has returned.
    pub(super) fn die_everywhere(&mut self) -> Result<(), Box<Failure>> {
        let trace = Rc::clone(&self.trace);
        self.report.complete &= self.explorer.deaths_in.is_none();
        let only = self.explorer.replay.as_ref().and_then(|replay| replay.death);
        let mut at = At { event: 0, oldest: 0, completed: 0, in_flight: false };
        let mut created = false;
        for (seq, event) in trace.iter().enumerate() {
            match event {
                Event::Created => created = true,
                Event::Invoke => at.in_flight = true,
                Event::Return(number) => {
                    (at.completed, at.in_flight) = (*number as usize + 1, false);
                    let synced =
                        self.explorer.contract == Contract::Strict || self.subject.is_sync(&self.ops[*number as usize]);
                    at.oldest = if synced { at.completed } else { at.oldest };
                }
                Event::Store { .. } => {}
                _ => continue,
            }
            at.event = seq + 1;
            let visible = match self.explorer.deaths_in {
                Some(file) => ends_stores_of(file, &trace[seq..]),
                None => matches!(event, Event::Store { .. } | Event::Return(_)),
            };
            if created && visible && only.is_none_or(|only| only == at.event) {
                self.die_at(at)?;
            }
        }
        Ok(())
    }

    fn die_at(&mut self, at: At) -> Result<(), Box<Failure>> {
        let newest = at.completed + usize::from(at.in_flight);
        let mut second = self.second_process(at.event, at.oldest..=newest);
        let mut trace = self.trace[..at.event].to_vec();
        let told = story::position(&trace, at.event);
        trace.push(Event::Death);
        trace.append(&mut second.trace);
        self.kept.iter_mut().for_each(|kept| kept.push(trace.clone()));
        let mut models = self.judge.models[at.oldest..=newest].to_vec();
        let found = models.len();
        models.append(&mut second.models);
        let (models, states) = self.judge.replace(models);
        let before = Before { trace: std::mem::replace(&mut self.trace, Rc::new(trace)), models, states };
        self.death = Some(Death { event: at.event, crash: (at.completed, at.in_flight), told, found, before });
        self.report.deaths += 1;
        let outcome = match second.wrong {
            Some(cause) => Err(Box::new(self.died(cause))),
            None => self.crash_everywhere().map_err(|found: Box<Found>| Box::new(self.story(*found))),
        };
        self.crashes.unwind();
        let Some(Death { before, .. }) = self.death.take() else { unreachable!("set above") };
        (self.trace, self.judge.models, self.judge.states) = (before.trace, before.models, before.states);
        outcome
    }

    /// Runs the second process on everything that the first had made visible.
    fn second_process(&mut self, event: usize, allowed: std::ops::RangeInclusive<usize>) -> Second<S> {
        let recorder = self.sim.recorder;
        self.crashes.unwind();
        recorder.lock().machine.model = Persistency::Eadr;
        self.crashes.push_layer();
        for (seq, event) in self.trace[..event].iter().enumerate() {
            recorder.step(0, seq as u32, event);
        }
        recorder.restart(RECORD);
        let mut models = Vec::new();
        let outcome = quietly(|| self.second_run(allowed, &mut models));
        recorder.mode.store(CLOSE, Ordering::Relaxed);
        let outcome = outcome.map_err(|message| Cause::Panic { during: "the next process", message });
        let dropped = match outcome {
            Ok(Ok(live)) => quietly(|| drop(live))
                .map_err(|message| Cause::Panic { during: "closing in the next process", message }),
            Ok(Err(cause)) | Err(cause) => Err(cause),
        };
        recorder.mode.store(0, Ordering::Relaxed);
        let trace = std::mem::take(&mut recorder.lock().trace);
        self.crashes.pop_layer();
        recorder.lock().machine = self.explorer.machine;
        Second { trace, models, wrong: dropped.err() }
    }

    /// Recovers, compares, and runs the operations that follow. Collects the models from the recovery on.
    fn second_run(
        &self,
        allowed: std::ops::RangeInclusive<usize>,
        models: &mut Vec<S::Model>,
    ) -> Result<S::Live, Cause> {
        let recorder = self.sim.recorder;
        let store = self.store.as_ref().expect("not dropped yet");
        let (subject, base) = (self.subject, allowed.clone().count());
        let mark = |event| recorder.lock().trace.push(event);
        let mut live = subject.recover(store).map_err(|message| Cause::Recovery { message })?;
        let shown = if self.explorer.observe_first { Some(subject.observe(&mut live)) } else { None };
        mark(Event::Recovered);
        let is_shown = |n: &usize| shown.as_ref().is_none_or(|shown| self.judge.states[*n] == *shown);
        // Of each state that may have been found: the models from the recovery on. The newest first.
        let mut candidates: Vec<Vec<S::Model>> =
            allowed.clone().rev().filter(is_shown).map(|n| vec![self.judge.models[n].clone()]).collect();
        if let (Some(shown), true) = (shown, candidates.is_empty()) {
            return Err(self.not_allowed(&shown, allowed));
        }
        for (number, op) in self.judge.after.iter().enumerate() {
            mark(Event::Invoke);
            let answer = subject.apply(&mut live, op);
            mark(Event::Return((base + number) as u32));
            let mut expected = None;
            candidates.retain_mut(|models| {
                let mut model = models.last().expect("never empty").clone();
                let answers = subject.step(&mut model, op);
                models.push(model);
                let agrees = answers == answer;
                expected = Some(answers);
                agrees
            });
            if candidates.is_empty() {
                let (op, answer, expected) = (format!("{op:?}"), format!("{answer:?}"), format!("{expected:?}"));
                return Err(Cause::Later { number, op, answer, expected });
            }
        }
        if !self.explorer.observe_first {
            let observed = subject.observe(&mut live);
            let last = |models: &Vec<S::Model>| subject.expect(models.last().expect("never empty"));
            let allowed = candidates.iter().map(|models| format!("{:?}", last(models))).collect();
            candidates.retain(|models| last(models) == observed);
            if candidates.is_empty() {
                return Err(Cause::LaterState { observed: format!("{observed:?}"), allowed });
            }
        }
        models.append(&mut candidates[0]);
        Ok(live)
    }

    fn not_allowed(&self, observed: &S::State, allowed: std::ops::RangeInclusive<usize>) -> Cause {
        let allowed = allowed.map(|n| (n, format!("{:?}", self.judge.states[n]))).collect();
        Cause::State { observed: format!("{observed:?}"), allowed }
    }

    /// The failure of the second process itself, without a power failure.
    fn died(&self, cause: Cause) -> Failure {
        let mut failure = self.plain_failure(cause);
        self.tell_death(&mut failure);
        failure.replay = failure.code.encode();
        failure
    }

    /// Notes the death in a failure; a crash after it was in the recovery, or in one of the operations that followed.
    pub(super) fn tell_death(&self, failure: &mut Failure) {
        let Some(death) = &self.death else { return };
        failure.crash_after =
            failure.crash.take().and_then(|(done, in_it)| Some((done.checked_sub(death.found)?, in_it)));
        failure.crash = Some(death.crash);
        failure.death = Some(death.told.clone());
        failure.after = self.judge.after.iter().map(|op| format!("{op:?}")).collect();
        failure.code.death = Some(death.event);
    }

    /// Whether an operation of the trace in force makes everything before it durable.
    pub(super) fn syncs(&self, number: usize) -> bool {
        match &self.death {
            None => self.subject.is_sync(&self.ops[number]),
            Some(death) => self.subject.is_sync(&self.judge.after[number - death.found]),
        }
    }
}

/// Whether a trace begins with a store that a file has made, and does not go on with another from the same place.
fn ends_stores_of(file: &str, trace: &[Event]) -> bool {
    let place = |event: Option<&Event>| match event {
        Some(Event::Store { at, .. }) => Some(*at),
        _ => None,
    };
    let stored = place(trace.first()).filter(|at| at.file().contains(file));
    stored.is_some_and(|at| place(trace.get(1)) != Some(at))
}
