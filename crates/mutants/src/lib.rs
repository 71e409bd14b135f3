//! Mutation of persistence code: a crash test that finds nothing proves nothing. Every write-back, fence, ordering point
//! and release store of every structure is made faulty in turn, and the published bug patterns are planted by hand;
//! each has to be noticed.
//!
//! `cargo run --release -p durix-mutants` prints the table. [`registry`] says how a structure is added.

pub mod clock;
pub mod goals;
pub mod patterns;
pub mod registry;
pub mod scenario;
pub mod subjects;
pub mod sweep;
pub mod table;
