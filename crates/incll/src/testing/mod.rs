//! Subjects of the crash tests, and the windows that they go through, for `durix-mutants` and benches, too.

#![allow(missing_docs, reason = "test code")]

pub mod scenarios;
pub mod subject;
pub mod trees;
