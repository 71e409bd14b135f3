//! The least addition that makes a failing case pass: tried out on the recorded trace, to which a write-back, a fence
//! or an ordering point can be added without changing the execution.

use std::rc::Rc;

use super::fix::{Fix, at_of, stores_at};
use super::point::Missing;
use super::run::Run;
use crate::model::trace::{At, Event};
use crate::subject::Subject;

/// Stores that suggestions are made for.
const TRIED: usize = 4;

/// Slot of an added session.
const ADDED: u16 = 1023;

impl<S: Subject> Run<'_, S> {
    /// An addition for one of the missing stores, with which this case passes. `event`: where the operations crashed.
    pub(super) fn suggest(&mut self, missing: &[Missing], event: usize) -> Option<Fix> {
        let original = Rc::clone(&self.trace);
        let report = self.report.clone();
        let mut fixes = Vec::new();
        for missing in missing.iter().take(TRIED) {
            let (trace, end) =
                match missing.layer.checked_sub(1).and_then(|inner| self.crashes.inner.get(inner as usize)) {
                    Some((end, trace)) => (&**trace, *end),
                    None => (&**original, event),
                };
            fixes.extend(fixes_for(trace, end, *missing));
        }
        let mut tried: Vec<String> = Vec::new();
        let works = fixes.into_iter().find(|fix| {
            let told = fix.told();
            if tried.contains(&told) {
                return false;
            }
            tried.push(told);
            self.crashes.unwind();
            self.trying = Some(*fix);
            self.trace = Rc::new(applied(&original, *fix).into_iter().map(|(_, event)| event).collect());
            self.crash_everywhere().is_ok()
        });
        self.trying = None;
        self.trace = original;
        self.report = report;
        works
    }
}

/// What could be missing around a store, the likeliest first.
fn fixes_for(trace: &[Event], end: usize, missing: Missing) -> Vec<Fix> {
    let store = missing.at;
    let start = (missing.seq as usize).min(trace.len());
    let end = end.clamp(start, trace.len());
    // Nothing that a dead process requested counts.
    let alive = trace[..end].iter().rposition(|e| matches!(e, Event::Death)).map_or(start, |death| death.max(start));
    let of_line = |at: &usize| matches!(trace[*at], Event::WriteBack { line, .. } if line == missing.line);
    // The last request comes first: it was the nearest to succeed.
    let mut fixes: Vec<Fix> =
        (alive..end).rev().filter(of_line).take(TRIED).flat_map(|at| after_request(trace, end, at, store)).collect();
    fixes.extend(before_fences(trace, (start, alive), missing));
    if alive > start {
        fixes.push(Fix::SettleInRecovery { store });
    }
    fixes.push(Fix::WriteBackAndFence { store });
    fixes.push(Fix::OrderAfter { store });
    fixes
}

/// A write-back was requested: what is missing is a fence, or, where another session of the same module fences, a write-back
/// of its own.
fn after_request(trace: &[Event], end: usize, request: usize, store: At) -> Vec<Fix> {
    let whose = slot_of(&trace[request]);
    let at = at_of(&trace[request]);
    let mut fixes = Vec::new();
    let fence = trace[request..end].iter().find(|e| matches!(e, Event::Fence { .. }));
    let foreign = fence.filter(|fence| slot_of(fence) != whose).and_then(at_of);
    let foreign = foreign.filter(|fence| at.is_some_and(|at| directory(at) == directory(fence)));
    if let Some(fence) = foreign {
        fixes.extend([Fix::WriteBackBeforeFence { store, fence }, Fix::WriteBackAllBefore { fence }]);
    }
    // Right there, or behind the last of the write-backs that are requested together.
    let own = |event: &&Event| slot_of(event) == whose;
    let together = trace[request..end].iter().filter(own).take_while(|e| !matches!(e, Event::Fence { .. }));
    let last = together.filter(|e| matches!(e, Event::WriteBack { .. })).last().and_then(at_of);
    fixes.extend([at, last].into_iter().flatten().map(|write_back| Fix::FenceAfter { write_back }));
    fixes
}

/// No write-back was requested, or not by who fences: one before a fence. The next fence of the session that stored is the
/// likeliest; after the death of a process, the one nearest in the source to where the line is read.
fn before_fences(trace: &[Event], (start, alive): (usize, usize), missing: Missing) -> Vec<Fix> {
    let store = missing.at;
    let fences: Vec<&Event> = trace[alive..].iter().filter(|e| matches!(e, Event::Fence { .. })).collect();
    let own = |fence: &&&Event| slot_of(fence) == trace.get(start).and_then(slot_of);
    let likeliest = if alive > start {
        let distance =
            |fence: &&&Event| at_of(fence).zip(missing.read).map_or(usize::MAX, |(at, read)| distance(at, read));
        fences.iter().min_by_key(distance)
    } else {
        fences.iter().find(own)
    };
    let mut fixes = Vec::new();
    for fence in likeliest.into_iter().chain(fences.first()).filter_map(|fence| at_of(fence)) {
        fixes.extend([Fix::WriteBackBeforeFence { store, fence }, Fix::WriteBackAllBefore { fence }]);
    }
    fixes
}

/// The directory of a place.
fn directory(at: At) -> &'static str {
    at.file().rsplit_once(['/', '\\']).map_or("", |(directory, _)| directory)
}

/// How far apart two files are: steps of their paths that differ.
fn distance(a: At, b: At) -> usize {
    let [a, b] = [a, b].map(|at| at.file().split(['/', '\\']).collect::<Vec<_>>());
    let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    a.len().max(b.len()) - shared
}

fn slot_of(event: &Event) -> Option<u16> {
    match *event {
        Event::WriteBack { slot, .. } | Event::Fence { slot, .. } | Event::Store { slot, .. } => Some(slot),
        _ => None,
    }
}

/// The trace as it would be with the addition; with each event its position in the trace as it is (for an added one, that of
/// the event which it precedes).
pub(super) fn applied(trace: &[Event], fix: Fix) -> Vec<(usize, Event)> {
    let mut addition = Addition { fix, waiting: Vec::new() };
    let mut out = Vec::with_capacity(trace.len() + 16);
    for (seq, event) in trace.iter().enumerate() {
        out.extend(addition.before(event).into_iter().map(|added| (seq, added)));
        out.push((seq, *event));
        out.extend(addition.behind(event).map(|added| (seq + 1, added)));
    }
    out
}

/// An addition on its way along a trace.
struct Addition {
    fix: Fix,
    /// Lines that have been stored, by whom and where, and wait for the write-back to be added.
    waiting: Vec<(u16, u32, At)>,
}

impl Addition {
    /// What is added before an event.
    fn before(&mut self, event: &Event) -> Vec<Event> {
        match (self.fix, event) {
            (
                Fix::WriteBackBeforeFence { fence, .. } | Fix::WriteBackAllBefore { fence },
                Event::Fence { slot, at },
            ) if *at == fence => {
                self.waiting.drain(..).map(|(_, line, at)| Event::WriteBack { slot: *slot, line, at }).collect()
            }
            (Fix::SettleInRecovery { .. }, Event::Recovered) => {
                // A session of its own: nobody else's write-backs are settled by the way.
                let waiting = self.waiting.drain(..);
                let mut added: Vec<_> =
                    waiting.map(|(_, line, at)| Event::WriteBack { slot: ADDED, line, at }).collect();
                added.extend(added.last().and_then(at_of).map(|at| Event::Fence { slot: ADDED, at }));
                added
            }
            (Fix::WriteBackAndFence { .. }, _) => self.settle_before(event),
            _ => Vec::new(),
        }
    }

    /// What is added behind an event.
    fn behind(&mut self, event: &Event) -> Option<Event> {
        match (self.fix, *event) {
            (Fix::FenceAfter { write_back }, Event::WriteBack { slot, at, .. }) if at == write_back => {
                return Some(Event::Fence { slot, at });
            }
            (Fix::WriteBackAllBefore { .. }, Event::Store { slot, word, at, .. })
                if !self.waiting.iter().any(|(_, line, _)| *line == word / 8) =>
            {
                self.waiting.push((slot, word / 8, at));
            }
            (
                Fix::WriteBackBeforeFence { store, .. }
                | Fix::WriteBackAndFence { store }
                | Fix::SettleInRecovery { store },
                _,
            ) => self.waiting.extend(stores_at(event, store).map(|(slot, line)| (slot, line, store))),
            (Fix::OrderAfter { store }, _) => {
                return stores_at(event, store).map(|(slot, _)| Event::Order { slot });
            }
            _ => {}
        }
        None
    }

    /// Before the operation returns, or its thread stores another line, what waits is written back and fenced.
    fn settle_before(&mut self, event: &Event) -> Vec<Event> {
        let due = self.waiting.extract_if(.., |(slot, line, _)| match event {
            Event::Store { slot: other, word, .. } => other == slot && word / 8 != *line,
            Event::Return(_) => true,
            _ => false,
        });
        due.flat_map(|(slot, line, at)| [Event::WriteBack { slot, line, at }, Event::Fence { slot, at }]).collect()
    }
}
