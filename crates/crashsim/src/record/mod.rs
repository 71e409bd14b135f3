//! An execution is recorded: the simulated medium and its backing, the regions they stand for, and the recorder of their events.

pub(crate) mod backing;
mod expected;
pub(crate) mod medium;
pub(crate) mod recorder;
pub(crate) mod region;
pub(crate) mod state;
