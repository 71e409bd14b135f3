//! Durix is a key-value database inside your program: typed maps in a file, used from any thread like those of the standard library.
//! Use it where data must be there again after a crash, and a server of its own is too much. On an ordinary disk, a change survives the
//! death of the process and a power failure as soon as its call has returned; [`Db::guarantee`] says what holds for a file. Several changes
//! to several maps are all made or none, by [`Db::transaction`].
//!
//! ```
//! use durix::Db;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("app.durix");
//! let db = Db::open_or_create(&path)?;
//! let users = db.map::<String, u16>("users")?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| users.insert("ada", &1815));
//!     scope.spawn(|| users.insert("grace", &1906));
//! });
//! assert_eq!(users.get("grace")?, Some(1906));
//! println!("{}", users.guarantee());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | item | what it is |
//! |---|---|
//! | [`Db`], [`Map`], [`OrderedMap`] | a database in a file, and its typed maps, for any thread |
//! | [`Handle`] | a map with a session of its own: the fast path of one thread |
//! | [`Key`], [`Value`], [`Named`], [`encode`] | what can be a key or a value, and how it becomes bytes |
//! | [`Db::transaction`], [`Transaction`] | changes to any number of maps, all or nothing |
//! | [`Db::snapshot`], [`Snapshot`] | all maps as of one moment |
//! | [`Index`], [`OrderedIndex`] | what every structure can do, over raw bytes, in the caller's operation |
//! | [`kind`] | the structures by name, so that an index can be opened as what it is |
//! | [`copy`] | copies of pools, while others write |
//! | [`repair`] | what can be read of a damaged pool |
//!
//! # Features
//! None is on unless you ask for it. No feature changes the file format or what a crash can take.
//!
//! | feature | adds |
//! |---|---|
//! | `uuid` | `uuid::Uuid` as a key, a value, and a part of other keys and values |
//!
//! # What a call promises
//! Each call says when its change is durable and whether it may wait; each iterator says what it shows while others write.
//! `docs/design/durix.md` says all of it in one place.

mod background;
mod builder;
mod coding;
pub mod compact;
pub mod copy;
mod db;
pub mod encode;
mod ends;
pub mod kind;
mod map;
mod map_batch;
mod map_bulk;
mod map_calls;
mod map_handle;
mod map_iter;
mod map_later;
mod names;
mod ordered;
mod ordered_handle;
pub mod repair;
mod sessions;
mod shared;
mod snapshot;
mod transaction;
mod types;
mod unsettled;
mod versions;
mod visible;
mod vocabulary;

pub use builder::DbBuilder;
pub use compact::Compacted;
pub use copy::CopyReport;
pub use db::Db;
pub use encode::{Decode, Encode, Key, Named, TypeTag, Value};
pub use map::Map;
pub use map_batch::MapBatch;
pub use map_handle::Handle;
pub use map_iter::Iter;
pub use names::TypeNames;
pub use ordered::{OrderedMap, Range};
pub use ordered_handle::{HandleRange, OrderedHandle};
pub use snapshot::{Snapshot, SnapshotIndex, SnapshotIter, SnapshotMap, SnapshotPairs, SnapshotRange};
pub use transaction::recover::recover;
pub use transaction::{Later, Savepoint, Transaction, TxIndex, TxIter, TxMap, TxPairs, TxRange};
pub use types::Types;
pub use unsettled::Unsettled;
pub use vocabulary::{
    Batch, Change, Cursor, Direction, Durability, Error, Finding, Guarantee, Hardware, Index, IndexStats, KeyRange,
    Lengths, Level, Limits, Medium, Op, OrderedIndex, Pairs, Pool, PoolOptions, Reach, Result, Session, Ticket,
};
