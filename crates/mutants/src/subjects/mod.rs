//! The subjects: each structure as the crash tests see it. The tests of the crates use them too; the subjects of
//! the crates above stand in their own tests, and the binary includes them from there.

pub mod epochs;
pub mod list;
pub mod logs;
pub mod pool;
pub mod set;
pub mod space;
pub mod stack;
