//! A map from byte strings to byte strings in the order of keys (kind `bplustree`). Use it where keys need order and an update must be durable
//! when it returns. An update costs one fence; a batch is atomic. Writers take turns; readers take no lock. It is the B+-tree of
//! REWIND (Chatzistergiou, Cintra, Viglas, VLDB 2015, section 5.2) over the [one-fence engine](durix_rewind::engine).
//! `docs/design/bplustree.md` describes it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | nodes, records, line maps |
//! | `node` | reading nodes and records |
//! | `read` | optimistic reads: lookups and walks |
//! | `update` | transactions on the tree: put, remove, split, merge (BT-1 to BT-4) |
//! | `check` | findings, statistics, dump, salvage |
//! | `index` | the tree in the vocabulary of all indices |
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | BT-1 redo record of all changes of a call < the first word in place, and the return | the engine's one fence (E1, E2) | no record: the tree as it was; a record: words of it in place or not | redoes the record |
//! | BT-2 new nodes and short records < the link to them | in the same redo record | free space | nothing to do, or redoes them with the link |
//! | BT-3 blocks of records above 1 KiB < the redo record | flush+fence (E7) | free space | nothing to do |
//! | BT-4 words in place < their redo record is trimmed; a freed block < its next use | the engine's trim (E3, E4) | the redo record | redoes it |
//!
//! Readers see words in place, so they see what BT-1 has made durable, and nothing else.

#![deny(missing_docs)]

mod check;
mod error;
mod index;
pub mod layout;
mod node;
mod read;
mod update;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use durix_pmem::pool::Poison;
use durix_pmem::{Hardware, Kind, Lock, Medium, Pool, Root, Session, Structure};
use durix_rewind::engine::{self, Engine};

pub use check::Stats;
pub use durix_index::Finding;
pub use error::{Error, Result};
pub use index::kinds;
pub use layout::LAYOUT_VERSION;

/// The word of the root entry that leads to the root node; the engine has word 0.
const ROOT: usize = 1;
/// Bytes of a log segment at most.
const LARGEST_SEGMENT: u64 = 256 << 10;
/// A log segment is this part of the pool, within bounds.
const SEGMENTS: u64 = 128;

/// How a tree is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    salvage: bool,
    segment: Option<u64>,
    trim_at: Option<usize>,
}

impl Options {
    /// Opens it for what can be read of it, also if its log is damaged. Updates are refused if it is.
    #[must_use]
    pub fn salvage(self) -> Self {
        Options { salvage: true, ..self }
    }

    /// Bytes of a log segment; unless set, a 128th of the pool, between a chunk and 256 KiB.
    #[must_use]
    pub fn segment(self, bytes: u64) -> Self {
        Options { segment: Some(bytes), ..self }
    }

    /// Segments of one session's log from which on its updates trim; 4 unless set. From half of them on a service of the pool
    /// does.
    #[must_use]
    pub fn trim_at(self, segments: usize) -> Self {
        Options { trim_at: Some(segments), ..self }
    }

    fn engine<M: Medium>(&self, pool: &Pool<M>) -> engine::Options {
        let default = engine::Options::default();
        let part = (pool.mapping().len() / SEGMENTS).min(LARGEST_SEGMENT).max(pool.space().chunk());
        engine::Options { segment: self.segment.unwrap_or(part), trim_at: self.trim_at.unwrap_or(default.trim_at) }
    }
}

/// A strict ordered map of byte strings.
///
/// ```
/// use durix_bplustree::BPlusTree;
/// use durix_index::{Index, OrderedIndex};
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("stock.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let stock = BPlusTree::open(&pool, "stock")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// stock.insert(&op, b"bolt", b"17")?; // durable
/// assert_eq!(stock.get_vec(&op, b"bolt")?.as_deref(), Some(&b"17"[..]));
/// let (mut key, mut value) = (Vec::new(), Vec::new());
/// assert!(stock.first(&op, &mut key, &mut value)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Writers take turns; readers take no lock, and read again if a writer has stored words meanwhile. Trimming the log is a service
/// of the pool; where nobody calls [`Pool::tick`], an update that finds the log long trims it.
pub struct BPlusTree<M: Medium = Hardware> {
    root: Root<M>,
    /// Offset of the word that leads to the root node.
    root_off: u64,
    /// `None` in a tree that was opened for salvage, whose log is damaged.
    engine: Option<Arc<Engine<M>>>,
    /// Held by whoever changes the tree. It is waited for inside operations, and its holder waits for nothing outside of them.
    latch: Lock<()>,
    /// Odd while a commit stores words in place.
    version: AtomicU64,
    poison: Poison<M>,
}

impl<M: Medium> fmt::Debug for BPlusTree<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BPlusTree").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for BPlusTree<M> {
    const KIND: Kind = Kind { tag: *b"BPLUSTRE", version: LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, _: &Options) -> Result<()> {
        // A line of zeroes is an empty tree.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let (engine, root_off) = {
            let op = session.enter()?;
            let engine = match Engine::part(&op, root.clone(), &options.engine(root.pool())) {
                Ok(engine) => Some(Arc::new(engine)),
                Err(_) if options.salvage => None,
                Err(error) => return Err(error.into()),
            };
            (engine, op.off_of(&root.words(&op)[ROOT]).get())
        };
        let poison = Poison::new(root.clone());
        Ok(BPlusTree { root, root_off, engine, latch: Lock::new(()), version: AtomicU64::new(0), poison })
    }

    fn opened(self: &Arc<Self>) {
        self.engine.iter().for_each(Engine::serve);
    }
}

impl<M: Medium> BPlusTree<M> {
    /// Opens the tree named `name`, creating it if it is not there. Recovers it: redoes the log since its last trim.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`].
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

    /// Writes back what the log holds, and gives the log's space and freed blocks back: what the service does. Two fences.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Corrupt`].
    pub fn trim(&self, session: &mut Session<M>) -> Result<()> {
        self.engine()?.trim(session)?;
        Ok(())
    }

    fn engine(&self) -> Result<&Engine<M>> {
        self.engine.as_deref().ok_or(Error::Corrupt { what: "the log", offset: 0, found: 0 })
    }

    /// Words of a record's block.
    fn block_words(&self) -> u64 {
        self.root.pool().space().max_block() / 8
    }
}
