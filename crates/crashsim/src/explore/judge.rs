//! What a recovery may have found: the models, and the comparison with them.

use std::fmt::Debug;
use std::sync::atomic::Ordering;

use super::explorer::Explorer;
use super::point::{At, Point};
use crate::model::trace::Event;
use crate::record::medium::Simulated;
use crate::record::recorder::DECIDE;
use crate::report::Cause;
use crate::subject::{Contract, Subject};

pub(super) type Observe<'a> = &'a mut dyn FnMut(&dyn Debug);

/// The models of one execution, and who compares with them.
pub(super) struct Judge<'a, S: Subject> {
    explorer: &'a Explorer,
    subject: &'a S,
    sim: Simulated,
    /// Operations that follow a recovery.
    pub(super) after: &'a [S::Op],
    observe: Option<Observe<'a>>,
    /// The models after no operation, after the first, and so on; and the states that they expect.
    pub(super) models: Vec<S::Model>,
    pub(super) states: Vec<S::State>,
    /// What the last recovery that was recorded has shown: see [`later`](super::later).
    pub(super) stages: Vec<Vec<S::Model>>,
}

impl<'a, S: Subject> Judge<'a, S> {
    pub(super) fn new(
        explorer: &'a Explorer,
        subject: &'a S,
        sim: Simulated,
        (ops, after): (&'a [S::Op], &'a [S::Op]),
        observe: Option<Observe<'a>>,
    ) -> Self {
        let mut models = vec![subject.model()];
        for op in ops {
            let mut model = models.last().expect("never empty").clone();
            subject.step(&mut model, op);
            models.push(model);
        }
        let states = models.iter().map(|m| subject.expect(m)).collect();
        Judge { explorer, subject, sim, after, observe, models, states, stages: Vec::new() }
    }

    /// Takes other models; returns those there were, with their states.
    pub(super) fn replace(&mut self, models: Vec<S::Model>) -> (Vec<S::Model>, Vec<S::State>) {
        let states = models.iter().map(|model| self.subject.expect(model)).collect();
        (std::mem::replace(&mut self.models, models), std::mem::replace(&mut self.states, states))
    }

    pub(super) fn compare(&mut self, point: &Point, live: &mut S::Live) -> Result<(), Cause> {
        if !self.explorer.observe_first && self.explorer.judge && !self.after.is_empty() {
            return self.compare_answers(point, live);
        }
        let observed = self.subject.observe(live);
        if let Some(observe) = &mut self.observe {
            observe(&observed);
        }
        if !self.explorer.judge {
            return Ok(());
        }
        let allowed = point.oldest..=point.newest;
        let is_one = allowed.clone().any(|n| self.states[n] == observed);
        let assembled = if is_one { None } else { self.assembled(point, &observed) };
        if !is_one && assembled.is_none() {
            let allowed = allowed.map(|n| (n, format!("{:?}", self.states[n]))).collect();
            return Err(Cause::State { observed: format!("{observed:?}"), allowed });
        }
        self.find("after the recovery", live)?;
        let recorder = self.sim.recorder;
        if self.after.is_empty() && !recorder.records() {
            return Ok(());
        }
        let matching = allowed.filter(|n| self.states[*n] == observed);
        let models: Vec<_> = matching.map(|n| self.models[n].clone()).chain(assembled).collect();
        self.stage(Event::Recovered, &models);
        let models = self.go_on(models, live)?;
        // What follows is no longer the structure's own doing.
        recorder.mode.store(DECIDE, Ordering::Relaxed);
        if self.after.is_empty() { Ok(()) } else { self.compare_later(&models, live) }
    }

    /// Judges what was recovered by the operations that follow, none of which finds it as another reader has left it.
    pub(super) fn compare_answers(&mut self, point: &Point, live: &mut S::Live) -> Result<(), Cause> {
        let models = self.models[point.oldest..=point.newest].to_vec();
        self.stage(Event::Recovered, &models);
        let models = self.go_on(models, live)?;
        self.sim.recorder.mode.store(DECIDE, Ordering::Relaxed);
        self.compare_later(&models, live)
    }

    /// The model of what was found, where the contract holds for parts.
    pub(super) fn assembled(&self, point: &Point, observed: &S::State) -> Option<S::Model> {
        let is_buffered = self.explorer.contract == Contract::Buffered;
        is_buffered.then(|| self.subject.assemble(&self.models[point.oldest..=point.newest], observed))?
    }

    pub(super) fn find(&self, when: &'static str, live: &mut S::Live) -> Result<(), Cause> {
        let findings = self.subject.check(live);
        if findings.is_empty() { Ok(()) } else { Err(Cause::Findings { when, findings }) }
    }

    /// Runs the operations after the recovery; at least one of the models must agree all along.
    pub(super) fn go_on(&mut self, mut models: Vec<S::Model>, live: &mut S::Live) -> Result<Vec<S::Model>, Cause> {
        for (number, op) in self.after.iter().enumerate() {
            let recorder = self.sim.recorder;
            if recorder.records() {
                recorder.lock().trace.push(Event::Invoke);
            }
            let answer = self.subject.apply(live, op);
            let mut expected = None;
            models.retain_mut(|model| {
                let answers = self.subject.step(model, op);
                let agrees = answers == answer;
                expected = Some(answers);
                agrees
            });
            if models.is_empty() {
                let (op, answer, expected) = (format!("{op:?}"), format!("{answer:?}"), format!("{expected:?}"));
                return Err(Cause::Later { number, op, answer, expected });
            }
            self.stage(Event::Return(number as u32), &models);
        }
        Ok(models)
    }

    pub(super) fn compare_later(&self, models: &[S::Model], live: &mut S::Live) -> Result<(), Cause> {
        let observed = self.subject.observe(live);
        if !models.iter().any(|model| self.subject.expect(model) == observed) {
            let allowed = models.iter().map(|m| format!("{:?}", self.subject.expect(m))).collect();
            return Err(Cause::LaterState { observed: format!("{observed:?}"), allowed });
        }
        self.find("after the operations that followed the recovery", live)
    }

    /// Takes note of the models that agree with everything shown so far, if this execution is to be crashed.
    pub(super) fn stage(&mut self, event: Event, models: &[S::Model]) {
        if self.sim.recorder.records() {
            self.sim.recorder.lock().trace.push(event);
            self.stages.push(models.to_vec());
        }
    }

    pub(super) fn allowed_later(&self, at: At, stages: &[Vec<S::Model>]) -> Vec<S::Model> {
        let oldest = match self.explorer.contract {
            Contract::Strict => at.done,
            Contract::Buffered => at.synced,
        };
        let shown = stages.get(oldest..=at.done).unwrap_or_default();
        let mut models: Vec<S::Model> = shown.iter().flatten().cloned().collect();
        if at.in_flight {
            models.extend(stages[at.done].iter().cloned().map(|mut model| {
                self.subject.step(&mut model, &self.after[at.done]);
                model
            }));
        }
        models
    }
}
