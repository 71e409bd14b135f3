//! Beyond the budget: states picked where bugs are, not uniformly.

use super::point::{Found, Point};
use super::run::Run;
use crate::model::window::Positions;
use crate::random::next;
use crate::subject::Subject;

impl<S: Subject> Run<'_, S> {
    /// All low, all high, each line alone low or high, prefix midpoints, then at random.
    pub(super) fn sample(&mut self, point: &Point, windows: &[(u32, u32)]) -> Result<(), Box<Found>> {
        // Below a nested crash point some words are decided; only states that agree with them can be.
        let (lows, highs): (Vec<Positions>, Vec<Positions>) = {
            let state = self.sim.recorder.lock();
            windows.iter().map(|w| (state.window(*w).lowest_fitting(), state.window(*w).highest_fitting())).unzip()
        };
        let mut budget = self.explorer.samples;
        let mut plan: Vec<Vec<Positions>> = vec![lows.clone(), highs.clone()];
        for at in 0..windows.len() {
            for (base, other) in [(&highs, &lows), (&lows, &highs)] {
                let mut states = base.clone();
                states[at] = other[at];
                plan.push(states);
            }
            let middle = self.crashes.middle(windows[at]);
            for base in [&highs, &lows] {
                if let Some(middle) = middle {
                    let mut states = base.clone();
                    states[at] = middle;
                    plan.push(states);
                }
            }
        }
        for states in plan {
            if budget == 0 {
                return Ok(());
            }
            budget -= 1;
            self.sample_one(point, windows, &states)?;
        }
        for _ in 0..budget {
            let states: Vec<Positions> = windows.iter().zip(&highs).map(|(w, high)| self.random(*w, high)).collect();
            self.sample_one(point, windows, &states)?;
        }
        Ok(())
    }

    fn random(&mut self, window: (u32, u32), otherwise: &Positions) -> Positions {
        let state = self.sim.recorder.lock();
        let window = state.window(window);
        let random = &mut self.random;
        (0..8).map(|_| window.random(|below| next(random) % below)).find(|p| window.agrees(p)).unwrap_or(*otherwise)
    }

    fn sample_one(&mut self, point: &Point, windows: &[(u32, u32)], states: &[Positions]) -> Result<(), Box<Found>> {
        for (window, positions) in windows.iter().zip(states) {
            self.crashes.fix(*window, positions);
        }
        self.report.samples += 1;
        let outcome = self.attempt(point, 0);
        if let Err(cause) = outcome {
            return Err(self.minimise(point, windows, cause));
        }
        for window in windows {
            self.crashes.unfix(*window);
        }
        self.crashes.freeze(0);
        Ok(())
    }
}
