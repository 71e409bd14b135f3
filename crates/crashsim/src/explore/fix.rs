//! What a suggestion adds to the source.

use crate::model::trace::{At, Event, place};

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
    /// Whether the addition puts back what was left out at a place, in one of the traces (of the operations, of a recovery) of
    /// the code with nothing left out.
    pub(crate) fn names(self, trace: &[Event], is_site: impl Fn(At) -> bool) -> bool {
        let removed =
            |event: &Event| matches!(event, Event::WriteBack { at, .. } | Event::Fence { at, .. } if is_site(at));
        (0..trace.len()).filter(|seq| removed(&trace[*seq])).any(|seq| self.puts_back(trace, seq))
    }

    /// Whether the addition stands for the event at this position.
    fn puts_back(self, trace: &[Event], seq: usize) -> bool {
        let stored =
            |store: At, of: u32| trace[..seq].iter().any(|e| stores_at(e, store).is_some_and(|(_, l)| l == of));
        let own = |slot: u16| move |event: &&Event| matches!(event, Event::Fence { slot: other, .. } if *other == slot);
        let covered = |slot: u16| {
            let since = trace[..seq].iter().rev().take_while(move |event| !own(slot)(event));
            since.filter_map(move |event| match *event {
                Event::WriteBack { slot: other, line, at } if other == slot => Some((line, at)),
                _ => None,
            })
        };
        let fenced_at =
            |slot: u16, fence: At| trace[seq..].iter().find(own(slot)).and_then(at_of).is_some_and(|at| at == fence);
        match (self, trace[seq]) {
            (Fix::FenceAfter { write_back }, Event::Fence { slot, .. }) => {
                covered(slot).any(|(_, at)| at == write_back)
            }
            (Fix::WriteBackBeforeFence { store, fence }, Event::WriteBack { slot, line, .. }) => {
                stored(store, line) && fenced_at(slot, fence)
            }
            (Fix::WriteBackAllBefore { fence }, Event::WriteBack { slot, .. }) => fenced_at(slot, fence),
            (Fix::WriteBackAndFence { store }, Event::WriteBack { line, .. }) => stored(store, line),
            (Fix::SettleInRecovery { store }, Event::WriteBack { line, .. }) => {
                in_recovery(trace, seq) && stored(store, line)
            }
            (Fix::SettleInRecovery { store }, Event::Fence { slot, .. }) => {
                in_recovery(trace, seq) && covered(slot).any(|(line, _)| stored(store, line))
            }
            _ => false,
        }
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

/// Whether a position is in the recovery after the death of a process.
fn in_recovery(trace: &[Event], seq: usize) -> bool {
    trace[..seq].iter().any(|e| matches!(e, Event::Death)) && trace[seq..].iter().any(|e| matches!(e, Event::Recovered))
}

pub(super) fn at_of(event: &Event) -> Option<At> {
    match event {
        Event::WriteBack { at, .. } | Event::Fence { at, .. } | Event::Store { at, .. } => Some(at),
        _ => None,
    }
}

/// Slot and line of a store made at a place.
pub(super) fn stores_at(event: &Event, place: At) -> Option<(u16, u32)> {
    match event {
        Event::Store { slot, word, at, .. } if std::ptr::eq(*at, place) || *at == place => Some((*slot, word / 8)),
        _ => None,
    }
}
