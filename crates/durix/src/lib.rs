//! Durix: persistent indices, by one vocabulary.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Index`], [`OrderedIndex`] | what every structure can do, over raw bytes, in the caller's operation |
//! | [`kind`] | the structures by name, so that an index can be opened as what it is |

mod batch;
pub mod copy;
mod db;
pub mod encode;
mod error;
mod index;
pub mod kind;
mod map;
mod ordered;
mod pset;
mod sessions;
mod types;

pub use batch::{Batch, Change};
pub use copy::CopyReport;
pub use db::{Db, DbBuilder};
pub use durix_pmem::pool::{Durability, Guarantee, Reach};
pub use durix_pmem::{Hardware, Medium, Op, Pool, PoolOptions, Session};
pub use encode::{Decode, Encode, Key, Named, TypeTag, Value};
pub use error::{Error, Result};
pub use index::{Cursor, Direction, Finding, Index, IndexStats, KeyRange, Limits, OrderedIndex, Ticket};
pub use map::{Handle, Iter, Map, MapBatch};
pub use ordered::OrderedMap;
pub use types::Types;
