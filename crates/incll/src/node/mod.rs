//! A node as an operation sees it.

pub(crate) mod cx;
pub(crate) mod descend;
pub(crate) mod entry;
pub(crate) mod fresh;
pub(crate) mod local;
pub(crate) mod lock;
pub(crate) mod part;
pub(crate) mod read;
mod recover;
