//! The crashes in force, and what is decided below them: which of its states each line is in.

use super::point::{Missing, Point, Read, States};
use crate::count::Count;
use crate::model::layer::Layer;
use crate::model::trace::Event;
use crate::model::window::{Choice, Positions};
use crate::record::medium::Simulated;
use crate::replay::Crash;

/// States of a line tried in search of one with fewer missing stores.
pub(super) const TRIES: usize = 256;

/// A decision that holds for all executions below a nested crash point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frozen {
    pub(super) layer: u32,
    pub(super) line: u32,
    pub(super) word: u8,
    pub(super) choice: Choice,
}

/// The crashes in force.
pub(super) struct Crashes {
    sim: Simulated,
    /// Crash points of recoveries, outermost first, each with the trace of its recovery.
    pub(super) inner: Vec<(usize, Vec<Event>)>,
    /// What was decided before the innermost of them.
    pub(super) frozen: Vec<Frozen>,
}

impl Crashes {
    pub(super) fn new(sim: Simulated) -> Self {
        Crashes { sim, inner: Vec::new(), frozen: Vec::new() }
    }

    /// A new layer on top, empty.
    pub(super) fn push_layer(&mut self) {
        let mut state = self.sim.recorder.lock();
        state.depth += 1;
        if state.layers.len() < state.depth {
            state.layers.push(Layer::default());
        }
        let depth = state.depth;
        state.layers[depth - 1].clear();
    }

    /// Takes the uppermost layer away.
    pub(super) fn pop_layer(&mut self) {
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
    pub(super) fn states_here(&self, windows: &[(u32, u32)]) -> Count {
        self.sim.recorder.lock().states_of(windows)
    }

    /// Forgets the crash under exploration, wherever it was left.
    pub(super) fn unwind(&mut self) {
        self.inner.clear();
        self.frozen.clear();
        while self.sim.recorder.lock().depth > 0 {
            self.pop_layer();
        }
        self.sim.recorder.lock().forget_path();
    }

    pub(super) fn freeze(&mut self, from: usize) {
        let recorder = self.sim.recorder;
        let mut state = recorder.lock();
        for f in &self.frozen[from..] {
            state.layers[f.layer as usize].windows[f.line as usize].decide(f.word as usize, f.choice);
            recorder.queue(&mut state, f.line);
        }
    }

    pub(super) fn thaw(&mut self, from: usize) {
        let recorder = self.sim.recorder;
        let mut state = recorder.lock();
        for f in self.frozen.drain(from..) {
            state.layers[f.layer as usize].windows[f.line as usize].undecide(f.word as usize);
            recorder.queue(&mut state, f.line);
        }
    }

    pub(super) fn fix(&mut self, window: (u32, u32), positions: &Positions) {
        let recorder = self.sim.recorder;
        let mut state = recorder.lock();
        state.fix(window, positions);
        recorder.queue(&mut state, window.1);
    }

    pub(super) fn unfix(&mut self, window: (u32, u32)) {
        let recorder = self.sim.recorder;
        let mut state = recorder.lock();
        state.unfix(window);
        recorder.queue(&mut state, window.1);
    }

    /// Positions that cannot be told apart, because the values are equal, become those that a replay arrives at.
    pub(super) fn canonical(&mut self, states: &mut States) {
        self.hold(states);
        let state = self.sim.recorder.lock();
        states.iter_mut().for_each(|(window, positions)| *positions = state.window(*window).highest_fitting());
    }

    pub(super) fn replay_of(&self, point: &Point, deviating: &States) -> Vec<Crash> {
        let state = self.sim.recorder.lock();
        let events = std::iter::once(point.event).chain(self.inner.iter().map(|(seq, _)| *seq));
        let crashes = events.enumerate().map(|(layer, event)| {
            let here = deviating.iter().filter(|((of, _), _)| *of == layer as u32);
            let lines = here.map(|((_, line), positions)| (state.lines[*line as usize].number, *positions));
            Crash { event, lines: Some(lines.collect()) }
        });
        crashes.collect()
    }

    /// The missing stores; those of the recovery that was crashed last come first.
    pub(super) fn missing(&self, deviating: &States, reads: &[Read]) -> Vec<Missing> {
        let state = self.sim.recorder.lock();
        let stores = deviating.iter().flat_map(|(window, positions)| {
            let line = state.lines[window.1 as usize].number;
            let read = reads.iter().find(|read| read.window == *window).map(|read| read.at);
            let of_line = state.window(*window).missing(positions);
            of_line.map(move |store| Missing { layer: window.0, line, seq: store.seq, at: store.at, read })
        });
        let mut missing: Vec<_> = stores.collect();
        missing.sort_by_key(|missing| std::cmp::Reverse(missing.layer));
        missing
    }

    pub(super) fn hold(&mut self, states: &States) {
        for (window, positions) in states {
            self.unfix(*window);
            self.fix(*window, positions);
        }
    }

    /// What each line could be at most, given the decisions that led to a nested crash.
    pub(super) fn ceilings(&mut self, states: &States) -> Vec<Positions> {
        for (window, _) in states {
            self.unfix(*window);
        }
        self.freeze(0);
        let state = self.sim.recorder.lock();
        states.iter().map(|(window, _)| state.window(*window).highest_fitting()).collect()
    }

    /// The states of a window below the greatest, those with the fewest missing stores first.
    pub(super) fn lower_states(&self, window: (u32, u32), ceiling: &Positions) -> Vec<Positions> {
        let state = self.sim.recorder.lock();
        let window = state.window(window);
        let mut lower = Vec::new();
        window.for_each_state(|positions| {
            if positions != ceiling && lower.len() < TRIES && window.agrees(positions) {
                lower.push((window.missing(positions).count(), *positions));
            }
        });
        lower.sort_by_key(|(missing, _)| *missing);
        lower.into_iter().map(|(_, positions)| positions).collect()
    }

    pub(super) fn deviating(&self, states: &States) -> Vec<((u32, u32), Positions)> {
        let state = self.sim.recorder.lock();
        states.iter().filter(|(window, positions)| *positions != state.window(*window).highest()).copied().collect()
    }

    pub(super) fn middle(&self, window: (u32, u32)) -> Option<Positions> {
        let state = self.sim.recorder.lock();
        let window = state.window(window);
        let middle = window.prefix(window.stores.len() / 2);
        window.agrees(&middle).then_some(middle)
    }
}
