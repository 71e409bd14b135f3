//! Durix beside other embedded stores and volatile maps.
//!
//! | module | what it holds |
//! |---|---|
//! | [`plan`] | how much is done |
//! | [`harness`] | keys, phases, rounds, the table |
//! | [`peers`] | everything that is compared, each set up as its documentation recommends |
//!
//! `cargo bench` in this folder prints one table. `docs/measurements/README.md` says how to read it.

pub mod harness;
pub mod peers;
pub mod plan;
