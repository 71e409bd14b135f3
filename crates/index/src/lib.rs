//! The common interface of all indices of Durix: the trait [`Index`] over raw bytes, its errors, and the entries by which kinds of index are
//! found. Use this crate to write a new kind of index. Programs use the crate `durix`, which exports all of this.
//!
//! | item | what it is |
//! |---|---|
//! | [`Index`], [`OrderedIndex`], [`Cursor`] | what an index can do |
//! | [`KeyRange`], [`Direction`], [`Batch`], [`Change`], [`Pairs`] | what its calls take |
//! | [`Limits`], [`Lengths`], [`Ticket`], [`Finding`], [`IndexStats`] | what its calls return |
//! | [`Error`] | what can go wrong, for typed maps too |
//! | [`kind`] | [`Entry`] describes a kind of index and opens one; [`Openable`] is what its structure implements |
//! | [`implement`] | helpers for crates that implement an index |
//!
//! # A new kind of index
//! Its crate implements [`Index`] and [`Openable`] (and [`OrderedIndex`]), and exports `kinds()`, a list of [`Entry`]. The
//! facade names that function in its own list. The command, torture, fuzzing, tests and the tables of the guide take kinds
//! from there. `docs/adding-a-kind.md` walks through the smallest one.

mod batch;
mod error;
mod index;
pub mod kind;
mod pairs;
mod salvaged;
mod walk;
mod words;

pub use batch::{Batch, Change};
pub use error::{Error, Result, Unfit};
pub use index::{Cursor, Direction, Finding, Index, IndexStats, KeyRange, Lengths, Limits, OrderedIndex, Ticket};
pub use kind::{Entry, Leftover, Openable};
pub use pairs::Pairs;

/// Helpers for crates that implement an index.
pub mod implement {
    pub use crate::index::{Order, STEP, alone, have_crossed, writable};
    pub use crate::pairs::Place;
    pub use crate::walk::{Pair, Walk};
    pub use crate::words::{WORD, WORDS, WordRange, key_word, value_word};
}
