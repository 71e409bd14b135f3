//! The figures of ASPLOS'19: Masstree made durable.

pub(super) mod delays;
pub(super) mod fig2;
pub(super) mod fig4;
pub(super) mod flush;
pub(super) mod interior;
pub(super) mod layouts;
pub(super) mod many;
pub(super) mod recovery;
pub(super) mod same;
pub(super) mod sizes;
pub(super) mod trees;
