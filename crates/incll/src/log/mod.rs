//! The external log.

pub(crate) mod replay;
pub(crate) mod undo;
