//! What an execution did to persistent memory, in the order in which it became visible.

use std::panic::Location;

/// How a store is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// After the thread's last order point; in any order with its neighbours.
    Relaxed,
    /// After everything earlier.
    Release,
    /// After everything earlier, before everything later.
    Locked,
    /// Around the cache.
    NonTemporal,
}

/// Where in the source something was done.
pub(crate) type At = &'static Location<'static>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// `word` counts words of the arena.
    Store {
        slot: u16,
        kind: StoreKind,
        word: u32,
        value: u64,
        at: At,
    },
    /// Everything earlier of the thread comes before everything later.
    Order {
        slot: u16,
    },
    /// What the thread has read may have been published by others: what they stored before comes before what it stores
    /// from here on.
    Acquire {
        slot: u16,
    },
    /// A locked instruction that stored nothing persistent: an order point that may drain.
    Locked {
        slot: u16,
    },
    WriteBack {
        slot: u16,
        line: u32,
        at: At,
    },
    Fence {
        slot: u16,
        at: At,
    },
    /// The backing has been synced: everything visible is on the disk, where there is one under the page cache.
    Sync {
        at: At,
    },
    /// The structure has been created; crashes count from here.
    Created,
    /// The next operation starts.
    Invoke,
    /// The operation of this index returns.
    Return(u32),
    /// The process dies; the next one sees what was visible, and none of its fences covers what was being written back.
    Death,
    /// The next process has recovered.
    Recovered,
}

impl Event {
    /// Whether it is a mark of the harness, not an event of the memory.
    pub(crate) fn is_mark(&self) -> bool {
        matches!(self, Event::Created | Event::Invoke | Event::Return(_) | Event::Death | Event::Recovered)
    }

    /// The session that did it; `None` for a sync and for marks.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            Event::Store { slot, .. }
            | Event::Order { slot }
            | Event::Acquire { slot }
            | Event::Locked { slot }
            | Event::WriteBack { slot, .. }
            | Event::Fence { slot, .. } => Some(*slot),
            _ => None,
        }
    }
}

/// A place in the source.
pub(crate) fn place(at: At) -> String {
    format!("{}:{}", at.file(), at.line())
}
