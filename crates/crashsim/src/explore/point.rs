//! A crash point, and what is found there.

use crate::model::trace::{At as Place, Event};
use crate::model::window::Positions;
use crate::replay::Crash;
use crate::report::Cause;

/// Which models a recovered state may agree with, and where the crash was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Oldest and newest number of operations done.
    pub(crate) oldest: usize,
    pub(crate) newest: usize,
    /// Operations that have returned.
    pub(crate) completed: usize,
    pub(crate) in_flight: bool,
    /// Position in the trace: the crash is just before this event.
    pub(crate) event: usize,
}

/// How far a recovery and the operations after it have come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    /// The contents have been observed.
    pub(super) shown: bool,
    /// Operations that have returned.
    pub(super) done: usize,
    pub(super) in_flight: bool,
    /// Operations that are durable under a buffered contract.
    pub(super) synced: usize,
}

impl At {
    pub(super) fn advance(&mut self, event: &Event, is_sync: impl Fn(usize) -> bool) {
        match event {
            Event::Recovered => self.shown = true,
            Event::Invoke => self.in_flight = true,
            Event::Return(number) => {
                (self.done, self.in_flight) = (*number as usize + 1, false);
                if is_sync(*number as usize) {
                    self.synced = self.done;
                }
            }
            _ => {}
        }
    }
}

/// A window, by layer and line, and the positions that its words are at.
pub(super) type Deviation = ((u32, u32), Positions);
pub(super) type States = [Deviation];

/// A read of a line that matters, by the recovery that failed: layer and line, word, what it found.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) window: (u32, u32),
    pub(super) word: u8,
    pub(super) at: Place,
    pub(super) found: Option<u64>,
}

/// A store that did not reach memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    /// Of the operations (0), or of a recovery.
    pub(crate) layer: u32,
    pub(crate) line: u32,
    /// Position in the trace.
    pub(crate) seq: u32,
    pub(crate) at: Place,
    /// Where its line is read first.
    pub(crate) read: Option<Place>,
}

/// A state that is not allowed.
pub(crate) struct Found {
    pub(crate) point: Point,
    pub(crate) cause: Cause,
    /// Missing stores and reads, told in lines.
    pub(super) details: Vec<String>,
    pub(super) deviating: usize,
    /// Where the crashes in recoveries were.
    pub(super) crashes: Vec<String>,
    pub(super) replay: Vec<Crash>,
    pub(super) missing: Vec<Missing>,
}
