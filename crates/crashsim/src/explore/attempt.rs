//! One recovery, judged.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::point::Point;
use super::run::Run;
use crate::panics::quietly;
use crate::record::recorder::{CLOSE, DECIDE};
use crate::report::Cause;
use crate::subject::Subject;

impl<S: Subject> Run<'_, S> {
    /// Recovers from the crash state in force and compares; `record` adds `RECORD` to keep a trace of the recovery.
    pub(super) fn attempt(&mut self, point: &Point, record: u32) -> Result<(), Cause> {
        let recorder = self.sim.recorder;
        recorder.restart(DECIDE | record);
        self.report.executions += 1;
        let subject = self.subject;
        let mut live = None;
        let during = Cell::new("the recovery");
        self.judge.stages.clear();
        let outcome = quietly(|| {
            let store = self.store.as_ref().expect("not dropped yet");
            let recovered = subject.recover(store).map_err(|message| Cause::Recovery { message })?;
            let at_work = live.insert(recovered);
            if !self.explorer.crash_later {
                recorder.mode.store(DECIDE, Ordering::Relaxed);
            }
            during.set("the operations after the recovery");
            self.judge.compare(point, at_work)?;
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
}
