//! From a failing state to the one or two lines that matter, and their story.

use super::crashes::TRIES;
use super::point::{Deviation, Found, Point, Read, States};
use super::run::Run;
use super::story::position;
use crate::model::window::Positions;
use crate::report::Cause;
use crate::subject::Subject;

/// Recoveries spent on finding a state with fewer deviating lines.
const FEWER: usize = 4000;

impl<S: Subject> Run<'_, S> {
    /// Takes the decisions in force as the failing state, and lets as many stores as possible reach memory while it
    /// still fails.
    pub(super) fn minimise(&mut self, point: &Point, windows: &[(u32, u32)], cause: Cause) -> Box<Found> {
        self.found_at(point, windows, cause, true)
    }

    /// Takes the decisions in force as the failing state as they are, for a replay.
    pub(super) fn named(&mut self, point: &Point, windows: &[(u32, u32)], cause: Cause) -> Box<Found> {
        self.found_at(point, windows, cause, false)
    }

    fn found_at(&mut self, point: &Point, windows: &[(u32, u32)], mut cause: Cause, minimise: bool) -> Box<Found> {
        let mut states: Vec<((u32, u32), Positions)> = {
            let mut state = self.sim.recorder.lock();
            let states = windows.iter().map(|w| (*w, state.window(*w).highest_fitting())).collect();
            state.undo_decisions();
            state.forget_rejections();
            states
        };
        if !matches!(cause, Cause::Nondeterministic) {
            self.crashes.hold(&states);
            match self.attempt(point, 0) {
                Ok(()) => cause = Cause::Nondeterministic,
                Err(again) => {
                    cause = again;
                    if minimise {
                        if self.explorer.suggest {
                            self.fewer_lines(point, &mut states, &mut cause);
                        }
                        self.raise(point, &mut states, &mut cause);
                    }
                }
            }
        }
        self.crashes.canonical(&mut states);
        let deviating = self.crashes.deviating(&states);
        let reads = self.reads(point, &deviating);
        self.found(point, &deviating, reads, cause)
    }

    /// The decisions in force as they are, without running anything.
    pub(super) fn told(&mut self, point: &Point, windows: &[(u32, u32)], cause: Cause) -> Box<Found> {
        let states: Vec<_> = {
            let state = self.sim.recorder.lock();
            windows.iter().map(|w| (*w, state.window(*w).highest_fitting())).collect()
        };
        let deviating = self.crashes.deviating(&states);
        self.found(point, &deviating, Vec::new(), cause)
    }

    fn found(&self, point: &Point, deviating: &States, reads: Vec<Read>, cause: Cause) -> Box<Found> {
        let told = |(window, positions): &((u32, u32), Positions)| self.tell(point, *window, positions, &reads, &cause);
        let details = deviating.iter().flat_map(told).collect();
        Box::new(Found {
            point: *point,
            cause,
            deviating: deviating.len(),
            details,
            crashes: self.crashes.inner.iter().map(|(seq, trace)| position(trace, *seq)).collect(),
            replay: self.crashes.replay_of(point, deviating),
            missing: self.crashes.missing(deviating, &reads),
        })
    }

    /// Lets each line reach memory, or as much of it as may be, until nothing more can.
    fn raise(&mut self, point: &Point, states: &mut States, cause: &mut Cause) {
        let ceilings = self.crashes.ceilings(states);
        self.crashes.hold(states);
        loop {
            let mut raised = false;
            for (at, ceiling) in ceilings.iter().enumerate() {
                raised |= states[at].1 != *ceiling
                    && (self.try_state(point, states, at, ceiling, cause)
                        || self.fewer_missing(point, states, at, cause));
            }
            if !raised {
                return;
            }
        }
    }

    /// Looks for a failing state of this crash point in which one line alone deviates, or two.
    fn fewer_lines(&mut self, point: &Point, states: &mut Vec<((u32, u32), Positions)>, cause: &mut Cause) {
        let ceilings = self.crashes.ceilings(states);
        let top: Vec<_> = states.iter().zip(&ceilings).map(|((window, _), ceiling)| (*window, *ceiling)).collect();
        let lower: Vec<Vec<Positions>> =
            top.iter().map(|(window, ceiling)| self.crashes.lower_states(*window, ceiling)).collect();
        let mut budget = FEWER;
        for lines in 1..=2 {
            if states.iter().zip(&ceilings).filter(|((_, at), ceiling)| at != *ceiling).count() <= lines {
                break;
            }
            if let Some((failing, again)) = self.search(point, &top, &lower, lines, &mut budget) {
                (*states, *cause) = (failing, again);
                return;
            }
        }
        self.crashes.hold(states);
    }

    /// A failing state in which so many lines (one or two) deviate from `top`.
    fn search(
        &mut self,
        point: &Point,
        top: &States,
        lower: &[Vec<Positions>],
        lines: usize,
        budget: &mut usize,
    ) -> Option<(Vec<Deviation>, Cause)> {
        let one = || (0..top.len()).flat_map(|at| lower[at].iter().map(move |positions| (at, positions)));
        for (first, positions) in one() {
            let mut states = top.to_vec();
            states[first].1 = *positions;
            let seconds = one().filter(|(second, _)| lines == 2 && *second > first);
            for second in std::iter::once(None).filter(|_| lines == 1).chain(seconds.map(Some)) {
                *budget = budget.checked_sub(1)?;
                let mut states = states.clone();
                if let Some((second, positions)) = second {
                    states[second].1 = *positions;
                }
                self.crashes.hold(&states);
                if let Err(cause) = self.attempt(point, 0) {
                    return Some((states, cause));
                }
            }
        }
        None
    }

    /// Whether it still fails with another state of one line; keeps that state if so.
    fn try_state(
        &mut self,
        point: &Point,
        states: &mut States,
        at: usize,
        positions: &Positions,
        cause: &mut Cause,
    ) -> bool {
        let window = states[at].0;
        self.crashes.unfix(window);
        self.crashes.fix(window, positions);
        match self.attempt(point, 0) {
            Err(again) => {
                *cause = again;
                states[at].1 = *positions;
                true
            }
            Ok(()) => {
                let before = states[at].1;
                self.crashes.unfix(window);
                self.crashes.fix(window, &before);
                false
            }
        }
    }

    fn fewer_missing(&mut self, point: &Point, states: &mut States, at: usize, cause: &mut Cause) -> bool {
        let mut others: Vec<(usize, Positions)> = {
            self.crashes.unfix(states[at].0);
            self.crashes.freeze(0);
            let state = self.sim.recorder.lock();
            let window = state.window(states[at].0);
            let missing_now = window.missing(&states[at].1).count();
            let mut others = Vec::new();
            window.for_each_state(|positions| {
                let missing = window.missing(positions).count();
                if missing > 0 && missing < missing_now && others.len() < TRIES && window.agrees(positions) {
                    others.push((missing, *positions));
                }
            });
            others
        };
        others.sort_by_key(|(missing, _)| *missing);
        let before = states[at];
        self.crashes.hold(&[before]);
        others.iter().any(|(_, positions)| self.try_state(point, states, at, positions, cause))
    }
}
