//! The least addition that makes a failing case pass: tried out on the recorded trace, to which a write-back, a fence
//! or an ordering point can be added without changing the execution.

use std::rc::Rc;

use super::minimise::place;
use super::{Missing, Run};
use crate::subject::Subject;
use crate::trace::{At, Event};

/// Stores that suggestions are made for.
const TRIED: usize = 4;

/// Slot of an added session.
const ADDED: u16 = 1023;

/// An addition to the source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fix {
    FenceAfter {
        write_back: At,
    },
    WriteBackBeforeFence {
        store: At,
        fence: At,
    },
    WriteBackAndFence {
        store: At,
    },
    /// Of everything stored since the fence before.
    WriteBackAllBefore {
        fence: At,
    },
    OrderAfter {
        store: At,
    },
    SettleInRecovery {
        store: At,
    },
}

impl Fix {
    /// Whether the addition puts back what was left out at a place: `trace` is that of the code with nothing left out.
    pub(crate) fn names(self, trace: &[Event], is_site: impl Fn(At) -> bool) -> bool {
        let removed = trace
            .iter()
            .enumerate()
            .filter(|(_, e)| matches!(e, Event::WriteBack { at, .. } | Event::Fence { at, .. } if is_site(at)));
        let mut removed = removed;
        if let Fix::SettleInRecovery { .. } = self {
            // What was left out is in the recovery, which is not part of this trace.
            return removed.all(|(_, event)| matches!(event, Event::WriteBack { .. }));
        }
        removed.any(|(seq, event)| match (self, *event) {
            (Fix::FenceAfter { write_back }, Event::Fence { slot, .. }) => {
                let since =
                    trace[..seq].iter().rev().take_while(|e| !matches!(e, Event::Fence { slot: s, .. } if *s == slot));
                since
                    .into_iter()
                    .any(|e| matches!(e, Event::WriteBack { at, slot: s, .. } if *at == write_back && *s == slot))
            }
            (Fix::WriteBackBeforeFence { store, fence }, Event::WriteBack { slot, line, .. }) => {
                let next = trace[seq..].iter().find(|e| matches!(e, Event::Fence { slot: s, .. } if *s == slot));
                let stored = trace[..seq].iter().any(|e| stores_at(e, store).is_some_and(|(_, of)| of == line));
                stored && next.is_some_and(|e| matches!(e, Event::Fence { at, .. } if *at == fence))
            }
            (Fix::WriteBackAllBefore { fence }, Event::WriteBack { slot, .. }) => {
                let next = trace[seq..].iter().find(|e| matches!(e, Event::Fence { slot: s, .. } if *s == slot));
                next.is_some_and(|e| matches!(e, Event::Fence { at, .. } if *at == fence))
            }
            (Fix::WriteBackAndFence { store }, Event::WriteBack { line, .. }) => {
                trace[..seq].iter().any(|e| stores_at(e, store).is_some_and(|(_, of)| of == line))
            }
            _ => false,
        })
    }

    pub(crate) fn told(self) -> String {
        match self {
            Fix::FenceAfter { write_back } => format!("a fence after the write-back at {}", place(write_back)),
            Fix::WriteBackBeforeFence { store, fence } => {
                format!("a write-back of what is stored at {} before the fence at {}", place(store), place(fence))
            }
            Fix::WriteBackAndFence { store } => {
                format!("a write-back of what is stored at {}, and a fence", place(store))
            }
            Fix::WriteBackAllBefore { fence } => {
                format!("a write-back of everything stored so far before the fence at {}", place(fence))
            }
            Fix::SettleInRecovery { store } => {
                format!("a write-back in the recovery of what is stored at {}, and a fence", place(store))
            }
            Fix::OrderAfter { store } => format!("an ordering point (`order`) after the store at {}", place(store)),
        }
    }
}

impl<S: Subject> Run<'_, S> {
    /// An addition for one of the missing stores, with which this case passes.
    pub(super) fn suggest(&mut self, missing: &[Missing]) -> Option<Fix> {
        let original = Rc::clone(&self.trace);
        let report = self.report.clone();
        let mut fixes = Vec::new();
        for missing in missing.iter().take(TRIED) {
            fixes.extend(fixes_for(&original, *missing));
        }
        self.trying = true;
        let works = fixes.into_iter().find(|fix| {
            self.unwind();
            self.trace = Rc::new(applied(&original, *fix));
            self.crash_everywhere().is_ok()
        });
        self.trying = false;
        self.trace = original;
        self.report = report;
        works
    }
}

/// What could be missing around a store, the likeliest first.
fn fixes_for(trace: &[Event], missing: Missing) -> Vec<Fix> {
    let of_line = |event: &&Event| matches!(event, Event::WriteBack { line, .. } if *line == missing.line);
    let store = missing.at;
    let start = (missing.seq as usize).min(trace.len());
    let slot = |event: &Event| match *event {
        Event::WriteBack { slot, .. } | Event::Fence { slot, .. } | Event::Store { slot, .. } => Some(slot),
        _ => None,
    };
    let requested = trace[start..].iter().position(|e| of_line(&e)).map(|at| start + at);
    let write_back = requested.and_then(|at| at_of(&trace[at]));
    let fences = |from: usize| trace[from..].iter().filter(|e| matches!(e, Event::Fence { .. }));
    // A fence covers its own session: after one of another session, that session should have written back.
    let foreign = requested.and_then(|at| fences(at).next().filter(|e| slot(e) != slot(&trace[at])));
    let own = trace.get(start).and_then(slot);
    let fence = foreign.or_else(|| fences(start).find(|e| slot(e) == own)).or_else(|| fences(start).next());
    let fence = fence.and_then(at_of);
    let mut fixes = Vec::new();
    if trace.iter().any(|e| matches!(e, Event::Death)) {
        fixes.push(Fix::SettleInRecovery { store });
    }
    let another = fence.map(|fence| Fix::WriteBackBeforeFence { store, fence });
    fixes.extend(another.filter(|_| foreign.is_some()));
    fixes.extend(write_back.map(|write_back| Fix::FenceAfter { write_back }));
    fixes.extend(another.filter(|_| foreign.is_none()));
    fixes.extend(fence.map(|fence| Fix::WriteBackAllBefore { fence }));
    fixes.push(Fix::WriteBackAndFence { store });
    fixes.push(Fix::OrderAfter { store });
    fixes
}

fn at_of(event: &Event) -> Option<At> {
    match event {
        Event::WriteBack { at, .. } | Event::Fence { at, .. } | Event::Store { at, .. } => Some(at),
        _ => None,
    }
}

/// Slot and line of a store made at a place.
fn stores_at(event: &Event, place: At) -> Option<(u16, u32)> {
    match event {
        Event::Store { slot, word, at, .. } if std::ptr::eq(*at, place) || *at == place => Some((*slot, word / 8)),
        _ => None,
    }
}

/// The trace as it would be with the addition.
fn applied(trace: &[Event], fix: Fix) -> Vec<Event> {
    let mut out = Vec::with_capacity(trace.len() + 16);
    // Lines that have been stored at the place and wait for the write-back to be added.
    let mut waiting: Vec<(u16, u32, At)> = Vec::new();
    for event in trace {
        match (fix, event) {
            (
                Fix::WriteBackBeforeFence { fence, .. } | Fix::WriteBackAllBefore { fence },
                Event::Fence { slot, at },
            ) if *at == fence => {
                out.extend(waiting.drain(..).map(|(_, line, at)| Event::WriteBack { slot: *slot, line, at }));
            }
            (Fix::SettleInRecovery { .. }, Event::Recovered) => {
                // A session of its own: nobody else's write-backs are settled by the way.
                out.extend(waiting.drain(..).map(|(_, line, at)| Event::WriteBack { slot: ADDED, line, at }));
                out.extend(out.last().and_then(at_of).map(|at| Event::Fence { slot: ADDED, at }));
            }
            (Fix::WriteBackAndFence { .. }, _) => settle_before(event, &mut waiting, &mut out),
            _ => {}
        }
        out.push(*event);
        match (fix, event) {
            (Fix::FenceAfter { write_back }, Event::WriteBack { slot, at, .. }) if *at == write_back => {
                out.push(Event::Fence { slot: *slot, at });
            }
            (Fix::WriteBackAllBefore { .. }, Event::Store { slot, word, at, .. })
                if !waiting.iter().any(|(_, line, _)| *line == word / 8) =>
            {
                waiting.push((*slot, word / 8, at));
            }
            (
                Fix::WriteBackBeforeFence { store, .. }
                | Fix::WriteBackAndFence { store }
                | Fix::SettleInRecovery { store },
                _,
            ) => {
                waiting.extend(stores_at(event, store).map(|(slot, line)| (slot, line, store)));
            }
            (Fix::OrderAfter { store }, _) => {
                out.extend(stores_at(event, store).map(|(slot, _)| Event::Order { slot }));
            }
            _ => {}
        }
    }
    out
}

/// Before the operation returns, or its thread stores another line, what waits is written back and fenced.
fn settle_before(event: &Event, waiting: &mut Vec<(u16, u32, At)>, out: &mut Vec<Event>) {
    for (slot, line, at) in waiting.extract_if(.., |(slot, line, _)| match event {
        Event::Store { slot: other, word, .. } => other == slot && word / 8 != *line,
        Event::Return(_) => true,
        _ => false,
    }) {
        out.push(Event::WriteBack { slot, line, at });
        out.push(Event::Fence { slot, at });
    }
}
