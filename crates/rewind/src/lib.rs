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
//! | `tx` | reading, writing, allocating, committing, rolling back (W1 to W5, A1, A2, K1) |
//! | `field` | words within objects |
//! | `checkpoint` | clearing the log beside running transactions (K1 to K3) |
//! | `recover` | analysis, redo, undo (R1 to R6) |
//! | `store` | where records go: one body over both layerings and all logs |
//! | `tree` | the atomic AVL tree of the two-layer log (T1 to T7) |
//! | `log` | the one-layer logs: Simple, Optimized, Batch (B1 to B4, G1, G2, C1, C2) |
//! | `adll` | the atomic doubly-linked list (D0 to D6) |
//! | [`engine`] | the one-fence engine: redo records of a whole transaction under one fence (E1 to E6) |
//! | `record`, `layout` | what a record says; persistent structs, line maps |
//! | `arena` | the log's memory: units of whole lines (M1, M2) |
#![deny(missing_docs)]

mod adll;
mod arena;
mod checkpoint;
mod config;
pub mod engine;
mod error;
mod field;
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
