//! One recovery, judged.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::run::{Point, Run};
use crate::model::trace::Event;
use crate::panics::quietly;
use crate::record::recorder::{CLOSE, DECIDE};
use crate::report::Cause;
use crate::subject::{Contract, Subject};

impl<S: Subject> Run<'_, S> {
    /// Recovers from the crash state in force and compares; `record` adds `RECORD` to keep a trace of the recovery.
    pub(super) fn attempt(&mut self, point: &Point, record: u32) -> Result<(), Cause> {
        let recorder = self.sim.recorder;
        recorder.restart(DECIDE | record);
        self.report.executions += 1;
        let subject = self.subject;
        let mut live = None;
        let during = Cell::new("the recovery");
        self.stages.clear();
        let outcome = quietly(|| {
            let store = self.store.as_ref().expect("not dropped yet");
            let recovered = subject.recover(store).map_err(|message| Cause::Recovery { message })?;
            let at_work = live.insert(recovered);
            if !self.explorer.crash_later {
                recorder.mode.store(DECIDE, Ordering::Relaxed);
            }
            during.set("the operations after the recovery");
            self.judge(point, at_work)?;
            // What dropping reads must not branch.
            recorder.mode.store(CLOSE, Ordering::Relaxed);
            during.set("closing");
            drop(live.take());
            Ok(())
        });
        recorder.mode.store(CLOSE, Ordering::Relaxed);
        if live.is_some() {
            // It has failed already.
            let _ = quietly(|| drop(live));
        }
        recorder.mode.store(0, Ordering::Relaxed);
        outcome.unwrap_or_else(|message| Err(Cause::Panic { during: during.get(), message }))
    }

    fn judge(&mut self, point: &Point, live: &mut S::Live) -> Result<(), Cause> {
        if !self.explorer.observe_first && self.explorer.judge && !self.after.is_empty() {
            return self.judge_by_answers(point, live);
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
        if self.after.is_empty() { Ok(()) } else { self.judge_later(&models, live) }
    }

    /// Judges what was recovered by the operations that follow, none of which finds it as another reader has left it.
    fn judge_by_answers(&mut self, point: &Point, live: &mut S::Live) -> Result<(), Cause> {
        let models = self.models[point.oldest..=point.newest].to_vec();
        self.stage(Event::Recovered, &models);
        let models = self.go_on(models, live)?;
        self.sim.recorder.mode.store(DECIDE, Ordering::Relaxed);
        self.judge_later(&models, live)
    }

    /// The model of what was found, where the contract holds for parts.
    fn assembled(&self, point: &Point, observed: &S::State) -> Option<S::Model> {
        let is_buffered = self.explorer.contract == Contract::Buffered;
        is_buffered.then(|| self.subject.assemble(&self.models[point.oldest..=point.newest], observed))?
    }

    fn find(&self, when: &'static str, live: &mut S::Live) -> Result<(), Cause> {
        let findings = self.subject.check(live);
        if findings.is_empty() { Ok(()) } else { Err(Cause::Findings { when, findings }) }
    }

    /// Runs the operations after the recovery; at least one of the models must agree all along.
    fn go_on(&mut self, mut models: Vec<S::Model>, live: &mut S::Live) -> Result<Vec<S::Model>, Cause> {
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

    fn judge_later(&self, models: &[S::Model], live: &mut S::Live) -> Result<(), Cause> {
        let observed = self.subject.observe(live);
        if !models.iter().any(|model| self.subject.expect(model) == observed) {
            let allowed = models.iter().map(|m| format!("{:?}", self.subject.expect(m))).collect();
            return Err(Cause::LaterState { observed: format!("{observed:?}"), allowed });
        }
        self.find("after the operations that followed the recovery", live)
    }
}
