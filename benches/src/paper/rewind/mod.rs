//! The figures of VLDB'15: REWIND.

pub(super) mod checkpoints;
pub(super) mod fig3;
pub(super) mod micro;
pub(super) mod peers;
pub(super) mod recovery;
pub(super) mod threads;
pub(super) mod tpcc;
pub(super) mod tree;
pub(super) mod trees;
pub(super) mod words;
pub(super) mod world;
