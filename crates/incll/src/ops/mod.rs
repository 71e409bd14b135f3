//! Operations on a tree, one a file.

pub(crate) mod get;
mod layer;
mod many;
mod reverse;
pub(crate) mod scan;
mod shrink;
pub(crate) mod split;
pub(crate) mod update;
