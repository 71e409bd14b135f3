//! The subjects whose persistence code `durix-mutants` makes faulty: each structure as the crash tests see it.
//!
//! `cargo run --release -p durix-mutants` plants the faults and prints the table. This library holds only what the tests and
//! benches of other crates share with it, so that they do not wait for all of it to be compiled.

pub mod subjects;
