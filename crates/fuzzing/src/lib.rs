//! The bodies of the fuzz targets, shared with proptests so that stable Rust runs the same checks.

pub mod damage;
pub mod index_bytes;
pub mod index_ops;
pub mod log_bytes;
pub mod logfree_ops;
pub mod pool_bytes;
