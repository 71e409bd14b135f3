//! The subjects: each structure as the crash tests see it. The tests of the crates use them too.

pub mod list;
pub mod logs;
pub mod pool;
pub mod set;
pub mod space;
pub mod stack;
