//! What memory may hold after a crash: the persistency model, the windows of a line, layers of earlier executions, and the trace they
//! are made of.

pub(crate) mod layer;
pub(crate) mod persistency;
pub(crate) mod trace;
pub(crate) mod window;
