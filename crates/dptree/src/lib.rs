//! A map from 8-byte keys to 8-byte values in the order of keys (kind `dptree`). Use it where updates must be durable when they return and
//! write as little as possible: an update costs one write-back and one fence. A batch is atomic. It is the DPTree (Zhou et al., *DPTree:
//! Differential Indexing for Persistent Memory*, VLDB 2019).
//!
//! An update appends a record to a log and puts its entry into a buffer in DRAM. Buffered entries are merged into persistent leaves many at
//! a time, range by range. `docs/design/dptree.md` describes what lies in the pool, and the persist order.
//!
//! | module | what it holds |
//! |---|---|
//! | `layout`, `record` | persistent structs, line maps, the record of an update |
//! | `units`, `log` | allocation: leaves and range blocks (DP-U1); log pages (DP-A1, DP-P1 to DP-P4) |
//! | `arena`, `bloom`, `prints`, `order`, `leaf`, `range`, `published` | DRAM: memory, filters, fingerprints, sorted lists for scans, leaves, ranges and their fronts, reclamation |
//! | `read`, `scan`, `window`, `update`, `in_place` | operations; values that are replaced in their slots (DP-V1, DP-V2) |
//! | `steps` | the order of steps that threads rely on, for loom |
//! | `plan`, `merge`, `queue` | merging a range: what is written (DP-B1), the flip (DP-B2); what waits for it, as a service of the pool |
//! | `batch`, `chains` | changes that are made together or not at all (DP-E1, DP-P4), and how recovery reads them |
//! | `load` | many changes at once, without the log |
//! | `recover`, `check` | recovery (DP-R1), findings, statistics, dump |
//! | `values`, `together` | values of any length, in records (DP-W1); changes of records that are made together |
//! | `bytes`, `group` | keys of any length: keys that share eight bytes are a word's, in a tree of records (DP-W1, DP-M1, DP-M2) |
//! | `leftovers`, `gaps` | what lies in the blocks of a damaged tree, and which keys of a group nothing sound leads to, for repair |
//! | `index` | the tree in the vocabulary of all indices |
//!
//! # Guarantees
//! Every operation on one key is durably linearizable: an update is durable when it returns, a read returns only what is durable. A scan
//! takes each of its batches from one range at one moment. Changes that are made together (`change_many`) are all or nothing after a crash, and lookups
//! see them at one moment. Nothing beyond 8-byte atomicity is assumed.

#![deny(missing_docs)]

mod arena;
mod batch;
mod bloom;
mod bytes;
mod chains;
mod check;
mod error;
mod front;
mod full;
mod gaps;
mod group;
mod in_place;
mod index;
pub mod layout;
mod leaf;
mod leftovers;
mod load;
mod log;
mod merge;
mod order;
mod plan;
#[doc(hidden)]
pub mod prints;
mod published;
mod queue;
mod range;
mod read;
mod record;
mod recover;
mod scan;
mod steps;
mod together;
mod units;
mod update;
mod values;
mod window;

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use durix_pmem::pool::Poison;
use durix_pmem::service::Registered;
use durix_pmem::{Hardware, Kind, Lock, Medium, Op, Pool, Root, Session, Structure};

pub use batch::MAX_BATCH;
pub use bytes::DpTreeBytes;
pub use check::Stats;
pub use durix_index::{Direction, Finding};
pub use error::{Error, Result};
pub use index::kinds;
pub use layout::{LAYOUT_VERSION, Shape};
use log::Log;
use published::{Limbo, Published};
use queue::Queue;
use range::Directory;
use units::Units;
pub use values::DpTreeValues;

/// How a tree is created and opened.
#[derive(Clone, Debug)]
pub struct Options {
    shape: Shape,
    ratio: f64,
    least_front: usize,
    /// Whether the pool also holds records, which the values lead to.
    with_records: bool,
    recovery_threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        let shape = Shape { slots: 256, leaves: 31, page_lines: 1023 };
        Options { shape, ratio: 0.1, least_front: 256, with_records: false, recovery_threads: 0 }
    }
}

impl Options {
    /// Sizes of what lies in the pool: 256 slots a leaf, 31 leaves a range, 1023 lines a log page, unless set. Counts when a tree is
    /// created. Larger leaves cost fewer write-backs a merged entry and more time a merge.
    #[must_use]
    pub fn shape(self, shape: Shape) -> Self {
        Options { shape, ..self }
    }

    /// The part of a range's keys that its front holds before it is merged; 0.1 unless set, between 0.001 and 10. Larger
    /// fronts cost fewer write-backs, more DRAM and a longer recovery.
    #[must_use]
    pub fn merge_ratio(self, ratio: f64) -> Self {
        Options { ratio: if ratio.is_finite() { ratio.clamp(0.001, 10.0) } else { 0.1 }, ..self }
    }

    /// Entries that a front holds at least before it is merged; 256 unless set.
    #[must_use]
    pub fn least_front(self, entries: usize) -> Self {
        Options { least_front: entries.max(1), ..self }
    }

    /// Threads that read the log when a tree is opened; 0, the number of processors, unless set. Few pages are read by one thread then.
    #[must_use]
    pub fn recovery_threads(self, threads: usize) -> Self {
        Options { recovery_threads: threads, ..self }
    }

    /// Entries at which the front of a range with so many keys in its leaves is frozen.
    fn bound(&self, keys: usize) -> usize {
        ((keys as f64 * self.ratio) as usize).max(self.least_front)
    }
}

/// A strict ordered index of 64-bit keys and values.
///
/// ```
/// use durix_dptree::DpTree;
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("stock.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let stock = DpTree::open(&pool, "stock")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// assert!(stock.insert(&op, 17, 3)?);
/// assert_eq!(stock.get(&op, 17)?, Some(3));
/// assert!(stock.compare_and_set(&op, 17, Some(3), None)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// All operations take the calling thread's [`Op`]. Merges are a service of the pool: somebody should call
/// [`Pool::tick`], as the facade's thread does. Where nobody does, a writer whose range is full merges that range itself.
pub struct DpTree<M: Medium = Hardware> {
    root: Root<M>,
    options: Options,
    shape: Shape,
    directory: Published<Directory>,
    /// Held by who changes the directory. Taken after the lock of a range.
    structure: Lock<()>,
    log: Log,
    units: Units,
    /// Ranges whose second front waits to be merged.
    queue: Queue,
    /// Who is told that there is something to merge.
    service: OnceLock<Registered<M>>,
    /// Entries that all fronts take, as last added up.
    room: AtomicU64,
    limbo: Limbo<Box<dyn Any + Send + Sync>>,
    poison: Poison<M>,
}

impl<M: Medium> fmt::Debug for DpTree<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DpTree").field("options", &self.options).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for DpTree<M> {
    const KIND: Kind = Kind { tag: *b"DPTREE\0\0", version: LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        DpTree::format(session, root, options)
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        DpTree::recover(session, root, options)
    }

    fn opened(self: &Arc<Self>) {
        let registered = self.root.pool().services().register(self);
        self.service.set(registered).expect("a structure is opened once");
    }
}

impl<M: Medium> DpTree<M> {
    /// Opens the tree named `name`, creating it if it is not there. Recovers it: reads a line for each leaf and the log.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`], [`Error::BadShape`].
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(pool, name, &Options::default())
    }

    /// As [`open`](Self::open), with options. A tree that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pool: &Pool<M>, name: &str, options: &Options) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    /// Its place in the pool.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }

    /// Sizes of what lies in the pool.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Takes an object that was replaced.
    fn retire(&self, op: &Op<'_, M>, object: Box<dyn Any + Send + Sync>) {
        self.limbo.put(op.medium(), object);
    }
}
