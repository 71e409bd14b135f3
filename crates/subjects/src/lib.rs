//! Subjects of crash tests that need no index: parts of `durix-pmem`, and toy structures for the simulator's own tests.
//!
//! Tests, `durix-mutants` and benches share them. They lie in a crate of their own because `durix-crashsim` depends on
//! `durix-pmem`, so neither can hold them. The crates above keep their subjects in their module `testing`, behind the
//! feature of that name.

pub mod concurrent_list;
pub mod epochs;
pub mod explored;
pub mod large;
pub mod list;
pub mod pool;
pub mod space;
pub mod stack;
