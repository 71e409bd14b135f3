//! Operations on a tree, one a file.

pub(crate) mod get;
mod layer;
mod many;
mod range;
mod scan;
mod shrink;
mod snapshot;
pub(crate) mod split;
pub(crate) mod update;
