//! A concurrent map from byte strings to byte strings, in the order of keys (kind `masstree`, the default of `Db::ordered_map`). Use it for
//! ranges and prefixes, and where updates must not wait for memory. An update is durable at the next checkpoint
//! ([epochs](durix_pmem::epoch), every 64 ms, or [`sync`](Masstree::sync)); a crash takes back what came after the last one. It is a
//! Masstree with logs inside its cache lines (Cohen, Aksun, Avni and Larus, ASPLOS'19): recovery undoes unfinished epochs by them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | nodes, bitmaps, and the words in them |
//! | `alloc` | extents; the durable allocator |
//! | `log` | the external log, and putting back what it holds |
//! | `node` | a node as an operation sees it; ways into nodes; locks; lazy recovery |
//! | `ops` | one operation each |
//! | `experiments` | trees for measurements; interior nodes under InCLL |
//! | `check` | invariants |
//! | `index` | the tree as an [`Index`](durix_index::Index), and its entry among the kinds |
//!
//! The design, with line maps and persist order, is in `docs/design/masstree.md`.
//!
//! ```
//! use durix_incll::Masstree;
//! use durix_pmem::PoolOptions;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("users.pool");
//! let pool = PoolOptions::new().open_or_create(&path)?;
//! let users = Masstree::open(&pool, "users")?;
//! let mut session = pool.session()?;
//! {
//!     let op = session.enter()?;
//!     users.insert(&op, b"ada", b"1815")?;
//!     users.insert(&op, b"alan", b"1912")?;
//!     assert_eq!(users.get_vec(&op, b"ada")?.as_deref(), Some(&b"1815"[..]));
//! }
//! // Durable at the next boundary: at the latest here.
//! users.sync(&mut session)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alloc;
mod check;
mod error;
mod experiments;
mod index;
pub mod layout;
mod log;
mod node;
mod ops;
mod salvage;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tree;
mod value;

pub use check::Shape;
pub use durix_index::Finding;
pub use error::{Error, Result};
pub use experiments::{InteriorInLine, LoggingOnly, Pointers, Transient15};
pub use index::kinds;
pub use ops::update::Change;
pub use salvage::Found;
pub use tree::{BareOptions, Masstree, TransientMasstree, TreeOptions};
pub use value::Value;

/// Longest key in bytes.
pub const MAX_KEY: usize = 1 << 16;
/// Longest value in bytes.
pub const MAX_VALUE: usize = 1 << 28;

/// Whether a tree is durable: a parameter of [`Masstree`], so that both are the same code.
pub trait Policy: std::fmt::Debug + Send + Sync + 'static {
    /// Whether changes are undone after a crash.
    const DURABLE: bool;
    /// Whether a durable tree undoes what it can by InCLL; otherwise every node that an epoch changes is written to the external
    /// log first.
    const IN_LINE: bool = true;
    /// Whether values of eight bytes lie in the node where the key allows it; otherwise each value has a block of its own.
    const IN_PLACE: bool = true;
    /// Whether interior nodes are under InCLL, too (section 6.1): [`layout::Slotted`] instead of [`layout::Interior`]. Only with
    /// [`IN_LINE`](Self::IN_LINE), where the tree is durable.
    const INTERIOR_IN_LINE: bool = false;
    /// Keys of a border node before it splits, at most [`layout::SLOTS`].
    const CAPACITY: usize;
}

/// Durable by InCLL and the external log. 14 keys a node, so that an update always finds one of its 15 slots.
#[derive(Debug)]
pub struct Durable;

impl Policy for Durable {
    const DURABLE: bool = true;
    const CAPACITY: usize = 14;
}

/// Nothing survives, nothing is logged or written back: the paper's MT+. 14 keys a node, as [`Durable`].
#[derive(Debug)]
pub struct Transient;

impl Policy for Transient {
    const DURABLE: bool = false;
    const CAPACITY: usize = 14;
}
