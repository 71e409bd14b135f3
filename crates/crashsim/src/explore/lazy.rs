//! Depth first over the decisions that recovery asks for; and the plain enumeration of all states.

use super::crashes::Frozen;
use super::point::{At, Found, Point};
use super::run::Run;
use super::suggest;
use crate::count::Count;
use crate::model::trace::Event;
use crate::model::window::Positions;
use crate::record::recorder::{RECORD, Recorder};
use crate::record::state::{Decision, State};
use crate::report::Cause;
use crate::subject::Subject;

/// A path of decisions in force, and the number of states that it is about.
type Outer = (Vec<Decision>, Option<u128>);

/// What comes after an execution.
struct Next {
    /// The number of states that it stood for; `None` if too large.
    weight: Option<u128>,
    /// Length of the recovery's trace where the next one differs, if there is a next one.
    first_new: Option<usize>,
}

impl Next {
    fn of(state: &mut State) -> Next {
        let weight = state.leaf_weight();
        let more = state.next_path(0);
        Next { weight, first_new: state.path.last().filter(|_| more).map(|last| last.trace_len as usize) }
    }
}

impl<S: Subject> Run<'_, S> {
    /// Explores the crash state in force by what recovery reads.
    pub(super) fn explore_lazily(&mut self, point: &Point) -> Result<(), Box<Found>> {
        let (windows, total, outer) = self.take_path();
        let (mut sum, mut first_new, mut executions) = (Some(0u128), None, 0);
        let complete = loop {
            let next = self.one_lazy(point, &windows, first_new)?;
            executions += 1;
            sum = sum.and_then(|sum| sum.checked_add(next.weight?));
            first_new = next.first_new;
            if first_new.is_none() {
                break true;
            }
            if executions >= self.explorer.executions_per_point {
                break false;
            }
        };
        let exact = self.put_path_back(outer);
        let added_up = sum.is_none_or(|sum| total.equals(sum)) && exact;
        if complete {
            self.report.count(&total, added_up);
            return Ok(());
        }
        self.report.complete = false;
        self.sample(point, &windows)
    }

    fn one_lazy(
        &mut self,
        point: &Point,
        windows: &[(u32, u32)],
        first_new: Option<usize>,
    ) -> Result<Next, Box<Found>> {
        let recorder = self.sim.recorder;
        let nested = self.crashes.inner.len() + 1 < self.explorer.crashes;
        let outcome = self.attempt(point, if nested { RECORD } else { 0 });
        let mut state = recorder.lock();
        let consistent = !state.nondeterministic && state.cursor == state.path.len() && recorder.met_expected();
        let outcome = if consistent { outcome } else { Err(Cause::Nondeterministic) };
        if !nested && outcome.is_ok() {
            return Ok(Next::of(&mut state));
        }
        let trace = std::mem::take(&mut state.trace);
        drop(state);
        if let Err(cause) = outcome {
            return Err(self.minimise(point, windows, cause));
        }
        recorder.lock().undo_decisions();
        self.crash_in_recovery(point, &trace, first_new)?;
        let mut state = recorder.lock();
        state.trace = trace;
        state.trace.clear();
        Ok(Next::of(&mut state))
    }

    /// The windows that are open and the number of their states; starts a path of decisions, and gives back the one in
    /// force.
    fn take_path(&mut self) -> (Vec<(u32, u32)>, Count, Outer) {
        let mut state = self.sim.recorder.lock();
        let state = &mut *state;
        let windows = state.open_windows();
        let total = state.states_of(&windows);
        state.undo_decisions();
        let fresh = state.paths.pop().unwrap_or_default();
        let outer = (std::mem::replace(&mut state.path, fresh), std::mem::replace(&mut state.total, total.small()));
        (windows, total, outer)
    }

    /// Whether the numbers of states have always added up at the branches of the path that ends here.
    fn put_path_back(&mut self, (path, total): Outer) -> bool {
        let mut state = self.sim.recorder.lock();
        while !state.path.is_empty() {
            state.drop_last();
        }
        state.undo_decisions();
        let used = std::mem::replace(&mut state.path, path);
        state.paths.push(used);
        state.total = total;
        state.exact
    }

    /// Crashes the recovery whose trace this is, at each crash point after `first_new` (those before were visited with
    /// the same decisions by an earlier execution). Decisions made up to the crash point hold below it; later ones do
    /// not, because that recovery never came so far.
    fn crash_in_recovery(
        &mut self,
        point: &Point,
        trace: &[Event],
        first_new: Option<usize>,
    ) -> Result<(), Box<Found>> {
        let stages = std::mem::take(&mut self.judge.stages);
        self.crashes.push_layer();
        let depth = self.crashes.inner.len() + 1;
        self.crashes.inner.push((0, trace.to_vec()));
        // With the addition that is being tried, if any.
        let changed = self.trying.map(|fix| suggest::applied(trace, fix));
        let mut at = At::default();
        for step in 0..changed.as_ref().map_or(trace.len(), Vec::len) {
            let (seq, event) =
                changed.as_ref().map_or_else(|| (step, &trace[step]), |changed| (changed[step].0, &changed[step].1));
            if self.is_nested_point(depth, event) && self.is_new_point(seq, first_new) {
                self.crash_later(point, at, &stages, |run, point| run.crash_inside(point, seq))?;
            }
            self.sim.recorder.step(depth, step as u32, event);
            at.advance(event, |number| self.subject.is_sync(&self.judge.after[number]));
        }
        let stored = !self.sim.recorder.lock().layers[depth].lines.is_empty();
        if stored && self.is_new_point(trace.len(), first_new) {
            self.crash_later(point, at, &stages, |run, point| run.crash_inside(point, trace.len()))?;
        }
        self.crashes.inner.pop();
        self.crashes.pop_layer();
        Ok(())
    }

    /// Whether a crash just before `event` can leave what no later one can, or may leave less.
    fn is_nested_point(&self, depth: usize, event: &Event) -> bool {
        let state = self.sim.recorder.lock();
        let layer = &state.layers[depth];
        if layer.lines.is_empty() {
            return false;
        }
        let starts = matches!(event, Event::Invoke);
        let everywhere = self.explorer.every_event && !event.is_mark();
        starts || everywhere || layer.raises(self.explorer.machine, event, |line| state.index_of(line))
    }

    /// Whether no earlier execution has crashed at this position with the same decisions. The execution differs from
    /// earlier ones from the decision at `first_new` on; a crash just at that position comes before the decision, and is
    /// new only if the earlier executions had no reason to crash there.
    fn is_new_point(&self, seq: usize, first_new: Option<usize>) -> bool {
        let Some(first) = first_new else { return true };
        let state = self.sim.recorder.lock();
        seq > first || (seq == first && !state.path.iter().any(|d| d.trace_len as usize == seq && d.crashed_here))
    }

    fn crash_inside(&mut self, point: &Point, seq: usize) -> Result<(), Box<Found>> {
        let frozen_before = self.crashes.frozen.len();
        let rejected_before;
        let decisions: Vec<Frozen> = {
            let mut state = self.sim.recorder.lock();
            for decision in state.path.iter_mut().filter(|d| d.trace_len as usize == seq) {
                decision.crashed_here = true;
            }
            let before = state.path.iter().filter(|d| (d.trace_len as usize) < seq);
            let mut frozen = Vec::new();
            for d in before {
                if let Some(region) = &d.region {
                    frozen.extend(region.group.iter().map(|d| Frozen {
                        layer: d.0,
                        line: d.1,
                        word: d.2,
                        choice: d.3,
                    }));
                } else {
                    let choice = d.candidates[d.taken as usize].0;
                    frozen.push(Frozen { layer: d.layer, line: d.line, word: d.word, choice });
                }
            }
            let rejected = state.rejected_before(seq);
            state.forget_rejections();
            rejected_before = state.rejected.len();
            state.rejected.extend(rejected);
            frozen
        };
        self.crashes.frozen.extend(decisions);
        self.crashes.freeze(frozen_before);
        self.crashes.inner.last_mut().expect("a recovery is being crashed").0 = seq;
        self.report.nested_points += 1;
        self.explore(point)?;
        self.crashes.thaw(frozen_before);
        self.sim.recorder.lock().rejected.truncate(rejected_before);
        Ok(())
    }

    /// Runs every state of the uppermost layer's open windows, those below being fixed already.
    pub(super) fn explore_eagerly(&mut self, point: &Point) -> Result<(), Box<Found>> {
        let all = self.sim.recorder.lock().open_windows();
        let top = self.crashes.inner.len() as u32;
        let windows: Vec<_> = all.iter().copied().filter(|(layer, _)| *layer == top).collect();
        let total = self.crashes.states_here(&windows);
        if !total.at_most(u128::from(self.explorer.executions_per_point)) {
            self.report.complete = false;
            return self.sample(point, &all);
        }
        let states: Vec<Vec<Positions>> = windows.iter().map(|w| states_of(self.sim.recorder, *w)).collect();
        let mut at = vec![0; windows.len()];
        let mut executions = 0u128;
        loop {
            for (window, (states, at)) in windows.iter().zip(states.iter().zip(&at)) {
                self.crashes.fix(*window, &states[*at]);
            }
            self.one_eager(point, &all)?;
            executions += 1;
            let Some(next) = (0..at.len()).find(|i| at[*i] + 1 < states[*i].len()) else { break };
            at[next] += 1;
            at[..next].fill(0);
        }
        for window in &windows {
            self.crashes.unfix(*window);
        }
        self.report.count(&total, total.equals(executions));
        Ok(())
    }

    fn one_eager(&mut self, point: &Point, windows: &[(u32, u32)]) -> Result<(), Box<Found>> {
        let nested = self.crashes.inner.len() + 1 < self.explorer.crashes;
        let outcome = self.attempt(point, if nested { RECORD } else { 0 });
        let trace = std::mem::take(&mut self.sim.recorder.lock().trace);
        if let Err(cause) = outcome {
            return Err(self.minimise(point, windows, cause));
        }
        if nested {
            self.crash_in_recovery(point, &trace, None)?;
        }
        Ok(())
    }
}

fn states_of(recorder: &Recorder, window: (u32, u32)) -> Vec<Positions> {
    let state = recorder.lock();
    let mut states = Vec::new();
    state.window(window).for_each_state(|positions| states.push(*positions));
    states
}
