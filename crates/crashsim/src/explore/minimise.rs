//! From a failing state to the one or two lines that matter, and their story.

use super::{Found, Missing, Point, Run};
use crate::Persistency;
use crate::replay::Crash;
use crate::report::Cause;
use crate::subject::Subject;
use crate::trace::Event;
use crate::window::{Pending, Positions};

/// States of a line tried in search of one with fewer missing stores.
const TRIES: usize = 256;

/// Missing stores told in a story.
const TOLD: usize = 4;

impl<S: Subject> Run<'_, S> {
    /// Takes the decisions in force as the failing state, and lets as many stores as possible reach memory while it
    /// still fails.
    pub(super) fn minimise(&mut self, point: &Point, windows: &[(u32, u32)], cause: Cause) -> Box<Found> {
        let rejected;
        let mut states: Vec<((u32, u32), Positions)> = {
            let mut state = self.sim.recorder.lock();
            let mut states: Vec<_> = windows.iter().map(|w| (*w, state.window(*w).highest_fitting())).collect();
            rejected = !state.rejected.is_empty();
            if let Some((range, _)) = state.rejected.last().copied() {
                // Some state that a checksum may reject: the first of the region's lines is missing.
                let lines = range.0 / 8..=(range.0 + range.1 - 1) / 8;
                let torn = states.iter_mut().find(|((_, line), highest)| {
                    let number = state.lines[*line as usize].number;
                    lines.contains(&number) && state.window((0, *line)).lowest_fitting() != *highest
                });
                torn.into_iter().for_each(|(window, at)| *at = state.window(*window).lowest_fitting());
            }
            state.undo_decisions();
            state.rejected.retain(|(_, before)| *before);
            states
        };
        let mut cause = cause;
        if !matches!(cause, Cause::Nondeterministic) {
            self.hold(&states);
            match self.attempt(point, 0) {
                // One of the states that a checksum rejects was tried, and is not the one that fails.
                Ok(()) if rejected => {}
                Ok(()) => cause = Cause::Nondeterministic,
                Err(again) => {
                    cause = again;
                    self.raise(point, &mut states, &mut cause);
                }
            }
        }
        let deviating = self.deviating(&states);
        let reads = self.reads(point, &deviating);
        self.found(point, &deviating, &reads, cause)
    }

    /// The decisions in force as they are, without running anything.
    pub(super) fn told(&mut self, point: &Point, windows: &[(u32, u32)], cause: Cause) -> Box<Found> {
        let states: Vec<_> = {
            let state = self.sim.recorder.lock();
            windows.iter().map(|w| (*w, state.window(*w).highest_fitting())).collect()
        };
        let deviating = self.deviating(&states);
        self.found(point, &deviating, &[], cause)
    }

    fn found(
        &self,
        point: &Point,
        deviating: &[((u32, u32), Positions)],
        reads: &[((u32, u32), String)],
        cause: Cause,
    ) -> Box<Found> {
        let mut details = Vec::new();
        for (window, positions) in deviating {
            details.extend(self.tell(point, *window, positions));
            details.extend(reads.iter().filter(|(of, _)| of == window).map(|(_, told)| format!("    {told}")));
        }
        Box::new(Found {
            point: *point,
            cause,
            deviating: deviating.len(),
            details,
            crashes: self.inner.iter().map(|(seq, trace)| position(trace, *seq)).collect(),
            replay: self.replay_of(point, deviating),
            missing: self.missing(deviating),
        })
    }

    /// Runs the failing state once more to see where the lines that matter are read.
    fn reads(&mut self, point: &Point, deviating: &[((u32, u32), Positions)]) -> Vec<((u32, u32), String)> {
        for (window, _) in deviating {
            self.unfix(*window);
        }
        self.sim.recorder.lock().forced = deviating.to_vec();
        let _ = self.attempt(point, 0);
        let mut state = self.sim.recorder.lock();
        state.undo_decisions();
        state.forced.clear();
        let reads = std::mem::take(&mut state.reads);
        let told = reads.into_iter().filter_map(|(layer, line, word, choice, at)| {
            let (_, positions) = deviating.iter().find(|(window, _)| *window == (layer, line))?;
            let highest = state.window((layer, line)).highest();
            let stale = positions[word as usize] < highest[word as usize];
            let found = choice.map_or("what was there before".to_owned(), |value| format!("{value:#x}"));
            stale.then(|| ((layer, line), format!("word {word} read at {}, found {found}", place(at))))
        });
        told.collect()
    }

    fn replay_of(&self, point: &Point, deviating: &[((u32, u32), Positions)]) -> Vec<Crash> {
        let state = self.sim.recorder.lock();
        let events = std::iter::once(point.event).chain(self.inner.iter().map(|(seq, _)| *seq));
        let crashes = events.enumerate().map(|(layer, event)| {
            let here = deviating.iter().filter(|((of, _), _)| *of == layer as u32);
            let lines = here.map(|((_, line), positions)| (state.lines[*line as usize].number, *positions));
            Crash { event, lines: Some(lines.collect()) }
        });
        crashes.collect()
    }

    fn missing(&self, deviating: &[((u32, u32), Positions)]) -> Vec<Missing> {
        let state = self.sim.recorder.lock();
        let own = deviating.iter().filter(|((layer, _), _)| *layer == 0);
        let stores = own.flat_map(|(window, positions)| {
            let line = state.lines[window.1 as usize].number;
            state.window(*window).missing(positions).map(move |store| Missing { line, seq: store.seq, at: store.at })
        });
        stores.collect()
    }

    fn hold(&mut self, states: &[((u32, u32), Positions)]) {
        for (window, positions) in states {
            self.unfix(*window);
            self.fix(*window, positions);
        }
    }

    /// What each line could be at most, given the decisions that led to a nested crash.
    fn ceilings(&mut self, states: &[((u32, u32), Positions)]) -> Vec<Positions> {
        for (window, _) in states {
            self.unfix(*window);
        }
        self.freeze(0);
        let state = self.sim.recorder.lock();
        states.iter().map(|(window, _)| state.window(*window).highest_fitting()).collect()
    }

    fn raise(&mut self, point: &Point, states: &mut [((u32, u32), Positions)], cause: &mut Cause) {
        let ceilings = self.ceilings(states);
        self.hold(states);
        for (at, ceiling) in ceilings.iter().enumerate() {
            if states[at].1 != *ceiling {
                let _ =
                    self.try_state(point, states, at, ceiling, cause) || self.fewer_missing(point, states, at, cause);
            }
        }
    }

    /// Whether it still fails with another state of one line; keeps that state if so.
    fn try_state(
        &mut self,
        point: &Point,
        states: &mut [((u32, u32), Positions)],
        at: usize,
        positions: &Positions,
        cause: &mut Cause,
    ) -> bool {
        let window = states[at].0;
        self.unfix(window);
        self.fix(window, positions);
        match self.attempt(point, 0) {
            Err(again) => {
                *cause = again;
                states[at].1 = *positions;
                true
            }
            Ok(()) => {
                let before = states[at].1;
                self.unfix(window);
                self.fix(window, &before);
                false
            }
        }
    }

    fn fewer_missing(
        &mut self,
        point: &Point,
        states: &mut [((u32, u32), Positions)],
        at: usize,
        cause: &mut Cause,
    ) -> bool {
        let mut others: Vec<(usize, Positions)> = {
            self.unfix(states[at].0);
            self.freeze(0);
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
        self.hold(&[before]);
        others.iter().any(|(_, positions)| self.try_state(point, states, at, positions, cause))
    }

    fn deviating(&self, states: &[((u32, u32), Positions)]) -> Vec<((u32, u32), Positions)> {
        let state = self.sim.recorder.lock();
        states.iter().filter(|(window, positions)| *positions != state.window(*window).highest()).copied().collect()
    }

    /// The missing stores of a line, and why they are not guaranteed.
    fn tell(&self, point: &Point, window: (u32, u32), positions: &Positions) -> Vec<String> {
        let state = self.sim.recorder.lock();
        let number = state.lines[window.1 as usize].number;
        let (trace, end, who) = match window.0.checked_sub(1).map(|inner| &self.inner[inner as usize]) {
            None => (&*self.trace, point.event, "line"),
            Some((end, trace)) => (trace, *end, "recovery's stores to line"),
        };
        let missing: Vec<Pending> = state.window(window).missing(positions).copied().collect();
        let mut told = vec![format!(
            "{who} {:#x}: {} of {} stores that were not yet guaranteed did not reach memory",
            u64::from(number) * 64,
            missing.len(),
            state.window(window).stores.len()
        )];
        for store in missing.iter().take(TOLD) {
            told.push(format!(
                "    word {} <- {:#x}, stored at {}; {}",
                store.word,
                store.value,
                place(store.at),
                fate(&trace[..end], store, number, self.explorer.machine.model)
            ));
        }
        if missing.len() > TOLD {
            told.push(format!("    and {} more", missing.len() - TOLD));
        }
        told
    }
}

/// Why a store was not guaranteed by the time of the crash.
fn fate(trace: &[Event], store: &Pending, number: u32, model: Persistency) -> String {
    if !model.writes_back() {
        return "not synced before the crash".into();
    }
    if store.nt {
        return "around the cache, not fenced before the crash".into();
    }
    let request = trace.iter().enumerate().skip(store.seq as usize).find_map(|(seq, event)| match event {
        Event::WriteBack { line, at, slot } if *line == number => Some((seq, *at, *slot)),
        _ => None,
    });
    match request {
        None => "not written back before the crash".into(),
        Some((_, at, _)) => format!("written back at {}, not fenced before the crash", place(at)),
    }
}

/// A place in the source.
pub(crate) fn place(at: crate::trace::At) -> String {
    format!("{}:{}", at.file(), at.line())
}

/// The event just before a position of a trace, told.
pub(crate) fn position(trace: &[Event], seq: usize) -> String {
    let last = trace[..seq].iter().rev().find(|e| !e.is_mark());
    let next = trace[seq..].iter().find(|e| !e.is_mark());
    match (last, next) {
        (_, Some(Event::Fence { at, .. })) => format!("just before the fence at {}", place(at)),
        (_, Some(Event::Sync { at })) => format!("just before the sync at {}", place(at)),
        (Some(event), _) => format!("after {}", describe(event)),
        (None, _) => "before anything was done".into(),
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Store { at, .. } => format!("the store at {}", place(at)),
        Event::WriteBack { at, .. } => format!("the write-back at {}", place(at)),
        Event::Fence { at, .. } => format!("the fence at {}", place(at)),
        Event::Sync { at } => format!("the sync at {}", place(at)),
        _ => "an ordering point".into(),
    }
}
