//! Media and a backing that tests need: no pool of a program stands on them.
//!
//! | | what it does |
//! |---|---|
//! | [`Shadow`] | only what was written back and fenced reaches the file of a process that is killed |
//! | [`Killable`] | a process dies at a given step |
//! | [`Interposed`] | another thread runs at a given place of this one |
//! | [`Mutating`] | the write-backs or fences of one place are dropped, delayed or redirected |
//! | [`FaultBacking`] | calls of the file system fail |
//! | [`mix`] | numbers that look random |
//! | [`assert_each_has_a_row`], [`variants!`](crate::variants) | a table of tests has a row for each variant of an enum |

mod fault;
mod interposed;
mod killable;
mod mutating;
mod random;
mod shadow;
mod variants;

pub use fault::{Call, FaultBacking, Faults};
pub use interposed::{Before, Interposed};
pub use killable::Killable;
pub use mutating::{Mutating, Mutation, Plan, Site, SiteKind};
pub use random::mix;
pub use shadow::{Shadow, ShadowBacking};
pub use variants::assert_each_has_a_row;
