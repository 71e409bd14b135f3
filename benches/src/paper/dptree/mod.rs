//! The figures of VLDB'19: DPTree.

pub(super) mod fig10;
pub(super) mod fig11;
pub(super) mod fig12;
pub(super) mod fig13;
pub(super) mod fig8a;
pub(super) mod fig8b;
pub(super) mod fig8c;
pub(super) mod fig8d;
pub(super) mod flushcost;
pub(super) mod goals;
mod peers;
pub(super) mod space;
pub(super) mod stalls;
pub(super) mod table1;
pub(super) mod table2;
pub(super) mod trees;
