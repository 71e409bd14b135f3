//! Transactions: changes to any number of maps of any kind, all or nothing.
//!
//! Until its commit a transaction changes no map. It keeps its writes in DRAM, and locks what it reads and writes. The design,
//! with the classes of a commit and the proofs, is in `docs/design/transactions.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | `locks` | the lock table of a map |
//! | `guard` | what stands before each open index |
//! | `shared` | what the transactions of a database share |
//! | `tx`, `part`, `touched` | a transaction under way, and its part in one map |
//! | `small`, `buffers` | bytes and memory of small transactions, without allocation |
//! | `savepoint` | moments of a transaction that it can go back to |
//! | `run`, `running` | `Db::transaction`: closures that run again |
//! | `bytes`, `typed`, `iter` | maps inside a transaction |
//! | `commit`, `later`, `pending` | how changes become durable together |
//! | `turns` | commits that give way to snapshots |
//! | `drops` | drops of indices beside snapshots that are opened |
//! | `log`, `recover` | intents, and what a crash leaves of them |

mod buffers;
mod bytes;
mod commit;
pub(crate) mod drops;
pub(crate) mod guard;
mod iter;
mod later;
mod locks;
pub(crate) mod log;
mod part;
mod pending;
mod put;
pub mod recover;
mod run;
mod running;
mod savepoint;
pub(crate) mod shared;
pub(crate) mod small;
mod touched;
pub(crate) mod turns;
mod tx;
mod typed;

pub use bytes::TxIndex;
pub use iter::{TxIter, TxPairs, TxRange};
pub use later::Later;
pub use savepoint::Savepoint;
pub use tx::Transaction;
pub use typed::TxMap;
