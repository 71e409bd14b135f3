//! The subjects: each structure as the crash tests see it. The tests of the crates use them too.

pub mod epochs;
#[allow(dead_code, reason = "tests of the crate use the rest")]
pub(crate) mod incll;
pub mod list;
#[path = "../../../logfree/tests/common/mod.rs"]
pub(crate) mod logfree;
pub mod logs;
pub mod pool;
pub mod set;
pub mod space;
pub mod stack;
