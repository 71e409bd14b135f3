//! Threads and crashes together: interleavings of a few threads' operations, with crashes in them.
//!
//! | module | what it holds |
//! |---|---|
//! | `concurrent` | what is tested |
//! | `coroutine` | simulated threads, one thread of the operating system |
//! | `schedule` | which thread takes the next step; which states were met before |
//! | `words`, `online`, `history` | what a state is made of: volatile words, persistent lines, operations |
//! | `digest` | equality of states |
//! | `run` | the explorer: programs, bounds, shrinking, replay |
//! | `shuttle` | shuttle's schedulers in the place of ours |

mod concurrent;
mod coroutine;
mod digest;
mod history;
mod online;
mod run;
mod schedule;
#[cfg(feature = "shuttle")]
mod shuttle;
mod words;

pub use concurrent::Concurrent;
pub(crate) use coroutine::{Body, begin, end, interleave, meet};
pub(crate) use history::{MAX_OPS, Mark};
pub use run::Threads;
pub(crate) use schedule::{Scheduler, Segment, Step, Wrong};
pub(crate) use words::MAX_THREADS;
