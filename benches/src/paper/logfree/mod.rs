//! The figures of ATC'18: lock-free sets.

pub(super) mod fig10;
pub(super) mod fig5;
pub(super) mod fig6;
pub(super) mod fig7;
pub(super) mod fig8;
pub(super) mod fig9;
pub(super) mod mixes;
pub(super) mod sets;
