//! The figures of OOPSLA'17: logs and hash sets with one round trip.

pub(super) mod fig4a;
pub(super) mod fig4b;
pub(super) mod fig7a;
pub(super) mod fig7b;
pub(super) mod fig7c;
pub(super) mod logs;
pub(super) mod sets;
pub(super) mod table1;
