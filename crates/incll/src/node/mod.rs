//! A node as an operation sees it.

pub(crate) mod context;
pub(crate) mod descend;
pub(crate) mod entry;
pub(crate) mod local;
pub(crate) mod lock;
pub(crate) mod new_blocks;
pub(crate) mod part;
pub(crate) mod read;
mod recover;
