//! A node as an operation sees it.

pub(crate) mod cx;
pub(crate) mod descend;
pub(crate) mod entry;
mod recover;
