//! Subjects of the crash tests, for `durix-mutants` and benches, too.

#![allow(missing_docs, reason = "test code")]

pub mod concurrent;
pub mod later;
pub mod set;
