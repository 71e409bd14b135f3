//! The durable Masstree, alone in a mapping and two in a pool: the subjects and windows of its own crash tests.

#[path = "../../../incll/tests/trees/subject.rs"]
pub mod in_pools;
#[path = "../../../incll/tests/crash/scenarios.rs"]
pub mod scenarios;
#[path = "../../../incll/tests/crash/subject.rs"]
pub mod subject;
