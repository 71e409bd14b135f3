//! What the benches of Durix share: interleaved measuring, places to measure in, the floor of a persist, and the
//! comparators of the papers, each as well made as ours.

pub mod comparators;
pub mod counters;
pub mod cso_append;
pub mod floor;
pub mod interleave;
pub mod logfree;
pub mod machine;
pub mod paper;
pub mod place;
pub mod processors;
pub mod pset;
pub mod run;
pub mod workload;

pub use comparators::{logs, sets, sets_lockfree, sets_logged, trees};
