//! What became of a line, told in the order in which it happened: stores, write-backs, fences, the crash, the read.

use super::explorer::Explorer;
use super::point::{Point, Read};
use super::run::Run;
use crate::model::persistency::Persistency;
use crate::model::trace::{Event, place};
use crate::model::window::{Pending, Positions};
use crate::report::Cause;
use crate::subject::{Contract, Subject};

/// Missing stores told of a line, and reads.
const TOLD: usize = 4;

impl<S: Subject> Run<'_, S> {
    /// Runs the failing state once more to see where the lines that matter are read.
    pub(super) fn reads(&mut self, point: &Point, deviating: &[((u32, u32), Positions)]) -> Vec<Read> {
        for (window, _) in deviating {
            self.crashes.unfix(*window);
        }
        self.sim.recorder.lock().forced = deviating.to_vec();
        let _ = self.attempt(point, 0);
        let mut state = self.sim.recorder.lock();
        state.undo_decisions();
        state.forced.clear();
        let reads = std::mem::take(&mut state.reads);
        let told = reads.into_iter().filter_map(|(layer, line, word, found, at)| {
            let (_, positions) = deviating.iter().find(|(window, _)| *window == (layer, line))?;
            let highest = state.window((layer, line)).highest();
            let stale = positions[word as usize] < highest[word as usize];
            stale.then_some(Read { window: (layer, line), word, at, found })
        });
        told.collect()
    }

    /// The missing stores of a line, why they are not guaranteed, and who has read what was there instead.
    pub(super) fn tell(
        &self,
        point: &Point,
        window: (u32, u32),
        positions: &Positions,
        reads: &[Read],
        cause: &Cause,
    ) -> Vec<String> {
        let state = self.sim.recorder.lock();
        let number = state.lines[window.1 as usize].number;
        let (trace, end, who) = match window.0.checked_sub(1).map(|inner| &self.crashes.inner[inner as usize]) {
            None => (&**self.trace, point.event, "line"),
            Some((end, trace)) => (&**trace, *end, "stored after the first crash to line"),
        };
        let missing: Vec<Pending> = state.window(window).missing(positions).copied().collect();
        let mut told = vec![format!(
            "{who} {:#x}: {} of {} stores that were not yet guaranteed did not reach memory",
            u64::from(number) * 64,
            missing.len(),
            state.window(window).stores.len()
        )];
        let mut fates: Vec<(Vec<String>, Vec<String>)> = Vec::new();
        for store in missing.iter().take(TOLD) {
            let whose = if window.0 == 0 { whose(trace, store.seq as usize) } else { later(trace, store.seq as usize) };
            let stored = format!("word {} <- {:#x} at {}{whose}", store.word, store.value, place(store.at));
            let fate = fate(&trace[..end], store, number, self.explorer.machine.model);
            // Stores that share their fate are told together.
            match fates.last_mut() {
                Some((stores, last)) if *last == fate => stores.push(stored),
                _ => fates.push((vec![stored], fate)),
            }
        }
        for (stores, fate) in fates {
            told.extend(stores.into_iter().map(|stored| format!("    stored        {stored}")));
            told.extend(fate.into_iter().map(|line| format!("    {line}")));
        }
        if missing.len() > TOLD {
            told.push(format!("    and {} more stores", missing.len() - TOLD));
        }
        let by = match cause {
            Cause::Later { .. } | Cause::LaterState { .. } => "after the crash",
            _ => "by the recovery",
        };
        for read in reads.iter().filter(|read| read.window == window).take(TOLD) {
            let found = read.found.map_or("what was there before".to_owned(), |value| format!("{value:#x}"));
            told.push(format!("    read          word {} at {} {by}, found {found}", read.word, place(read.at)));
        }
        told
    }
}

impl Explorer {
    /// What a failure rests on, in words.
    pub(super) fn assumptions(&self) -> String {
        let contract = match self.contract {
            Contract::Strict => "what has returned is durable",
            Contract::Buffered => "everything up to the last sync is durable",
        };
        let drains = if self.machine.locked_drains { "wait" } else { "do not wait" };
        format!("{}; locked instructions {drains} for write-backs; contract: {contract}", self.machine.model)
    }
}

/// In which operation an event of the trace is, with a comma before.
fn whose(trace: &[Event], seq: usize) -> String {
    if !trace.iter().any(|event| matches!(event, Event::Created)) {
        return String::new();
    }
    let mut whose = ", by the creation".to_owned();
    let (mut returned, mut recovering) = (0, false);
    for event in &trace[..seq.min(trace.len())] {
        match event {
            Event::Created => whose = ", before the operations".into(),
            Event::Invoke => whose = format!(", by operation {returned}"),
            Event::Return(number) => returned = *number + 1,
            Event::Death => (whose, recovering) = (", by the recovery of the next process".into(), true),
            Event::Recovered => returned = 0,
            _ => {}
        }
        if recovering && matches!(event, Event::Invoke) {
            whose = ", by the next process".into();
        }
    }
    whose
}

/// The same after a first crash.
fn later(trace: &[Event], seq: usize) -> String {
    let trace = &trace[..seq.min(trace.len())];
    let operation = trace.iter().filter(|event| matches!(event, Event::Invoke)).count();
    match operation.checked_sub(1) {
        Some(operation) => format!(", by operation {operation} after the recovery"),
        None => ", by the recovery".into(),
    }
}

/// Why a store was not guaranteed by the time of the crash, a line each step.
fn fate(trace: &[Event], store: &Pending, number: u32, model: Persistency) -> Vec<String> {
    if !model.writes_back() {
        return vec!["not synced before the crash".into()];
    }
    if store.buffered {
        return vec!["around the cache, not fenced before the crash".into()];
    }
    let of_line = |event: &Event| match event {
        Event::WriteBack { line, at, slot } if *line == number => Some((*at, *slot)),
        _ => None,
    };
    let from = (store.seq as usize).min(trace.len());
    let Some((seq, (at, slot))) = trace.iter().enumerate().skip(from).find_map(|(i, e)| Some((i, of_line(e)?))) else {
        let early = trace[..from].iter().rev().take_while(|event| !matches!(event, Event::Return(_))).find_map(of_line);
        let early = early.map(|(at, _)| format!(" (the write-back at {} came before the store)", place(at)));
        return vec![format!("not written back before the crash{}", early.unwrap_or_default())];
    };
    let mut told = vec![format!("written back  at {}, not fenced before the crash", place(at))];
    let died = trace[seq..].iter().position(|event| matches!(event, Event::Death)).map_or(trace.len(), |n| seq + n);
    let foreign = trace[seq..].iter().find_map(|event| match event {
        Event::Fence { slot: other, at } if *other != slot => Some(*at),
        _ => None,
    });
    if died < trace.len() {
        told.push("              by a process that died before its fence".into());
    } else if let Some(at) = foreign {
        told.push(format!("fenced        at {}, but by another session, whose fence does not cover it", place(at)));
    }
    told
}

/// The event just before a position of a trace, told.
pub(crate) fn position(trace: &[Event], seq: usize) -> String {
    between(last(trace, seq), next(trace, seq))
}

/// The same of several threads. What another thread does next is left out: a replay ends before it.
pub(crate) fn position_of_threads(trace: &[Event], seq: usize) -> String {
    let last = last(trace, seq);
    between(last, next(trace, seq).filter(|next| last.is_some_and(|last| last.slot() == next.slot())))
}

fn last(trace: &[Event], seq: usize) -> Option<&Event> {
    trace[..seq].iter().rev().find(|e| !e.is_mark())
}

fn next(trace: &[Event], seq: usize) -> Option<&Event> {
    trace[seq..].iter().find(|e| !e.is_mark())
}

fn between(last: Option<&Event>, next: Option<&Event>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A replay ends where the schedule would go on with another thread: its story was another one.
    #[test]
    fn what_another_thread_does_next_is_no_part_of_a_position() {
        let at = std::panic::Location::caller();
        let stored = Event::Store { slot: 1, kind: crate::model::trace::StoreKind::Relaxed, word: 0, value: 1, at };
        let fence = |slot| Event::Fence { slot, at };
        let after = format!("after the store at {}", place(at));
        assert_eq!(position_of_threads(&[stored, Event::Return(0)], 1), after);
        assert_eq!(position_of_threads(&[stored, Event::Return(0), fence(2)], 1), after);
        let before = format!("just before the fence at {}", place(at));
        assert_eq!(position_of_threads(&[stored, fence(1)], 1), before);
        assert_eq!(position(&[stored, fence(2)], 1), before);
    }
}
