//! The bodies of the fuzz targets, shared with proptests so that stable Rust runs the same checks.

pub mod log_bytes;
pub mod logfree_ops;
pub mod pool_bytes;
pub mod set_ops;
