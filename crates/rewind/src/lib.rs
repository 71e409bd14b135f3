//! Transactions over words in persistent memory. Use this crate to make changes of a persistent structure of your own atomic; for maps, use
//! the transactions of the crate `durix`. After a crash a committed transaction is found whole, any other not at all. It is REWIND, the
//! Recovery Write-Ahead System for In-Memory Non-Volatile Data-Structures of Chatzistergiou, Cintra and Viglas (VLDB 2015), and an
//! [`engine`] that needs one fence for a transaction.
//!
//! REWIND changes persistent words in place. Before each change, a record with the old and the new value goes to a log, which lies in
//! persistent memory, too, and recovers by itself.
//!
//! | module | what it holds |
//! |---|---|
//! | `tm`, `config` | the transaction manager, and the configurations |
//! | `tx` | reading, writing, allocating, committing, rolling back (RW-W1 to RW-W5, RW-A1, RW-A2, RW-K1) |
//! | `field` | words within objects |
//! | `checkpoint` | clearing the log beside running transactions (RW-K1 to RW-K3) |
//! | `recover` | analysis, redo, undo (RW-R1 to RW-R6) |
//! | `store` | where records go: one body over both layerings and all logs |
//! | `tree` | the atomic AVL tree of the two-layer log (RW-T1 to RW-T7) |
//! | `log` | the one-layer logs: Simple, Optimized, Batch (RW-B1 to RW-B4, RW-G1, RW-G2, RW-C1, RW-C2) |
//! | `adll` | the atomic doubly-linked list (RW-D0 to RW-D6) |
//! | [`engine`] | the one-fence engine: redo records of a whole transaction under one fence (RE-E1 to RE-E8) |
//! | `record`, `layout` | what a record says; persistent structs, line maps |
//! | `arena` | the log's memory: units of whole lines (RW-M1, RW-M2) |
#![deny(missing_docs)]

mod adll;
mod arena;
mod checkpoint;
mod config;
pub mod engine;
mod error;
mod field;
#[cfg(test)]
mod findings;
mod layout;
mod log;
mod record;
mod recover;
mod store;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tm;
mod tree;
mod tx;

pub use adll::StorePolicy;
pub use config::{DEFAULT_SLOTS, Layers, LogKind, MAX_GROUP, MAX_LANES, MAX_SLOTS, Options, Policy};
pub use error::{Error, Result};
pub use field::project;
pub use layout::{LAYOUT_VERSION, USER_CELLS};
pub use recover::LogRecovery;
pub use tm::TransactionManager;
pub use tx::Tx;
