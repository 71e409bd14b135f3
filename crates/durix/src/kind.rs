//! The kinds of index by name.
//!
//! A structure joins with an entry in [`kinds`]: its name, what it is, and its type, which is a [`Structure`], an [`Index`]
//! and [`Openable`]. Tests, fuzz targets and the command then take it up by themselves.

use std::sync::Arc;

use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Pool, Structure};

use crate::error::{Error, Result};
use crate::index::{Index, Lengths, Limits};

/// The kind of an index whose creator does not choose.
pub const DEFAULT: &str = "pset";

/// The kind of an ordered index whose creator does not choose.
pub const DEFAULT_ORDERED: &str = "masstree";

/// A kind of index: what it is called, and how one is opened.
#[derive(Clone, Copy, Debug)]
pub struct Entry<M: Medium = Hardware> {
    /// Its name, as `--kind` takes it.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Whether it keeps the order of keys.
    pub ordered: bool,
    /// Its contract.
    pub durability: Durability,
    /// What it takes for keys, values and batches.
    pub limits: Limits,
    /// How many keys it is meant for, at most: the operations of a list are linear.
    pub meant_for: u64,
    /// How the pool calls it.
    pub kind: Kind,
    open: Open<M>,
}

type Open<M> = fn(&Pool<M>, &str, How) -> Result<Arc<dyn Index<M>>>;

/// A structure that can be opened by the name of its kind.
pub trait Openable<M: Medium>: Structure<M> + Index<M> {
    /// What [`Index::limits`] returns.
    const LIMITS: Limits;

    /// Options with which a damaged one is opened for what can still be read of it, if it has such.
    fn salvaging() -> Self::Options {
        Self::Options::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Create,
    Existing,
    Salvage,
}

/// What is fixed about a kind, besides its type.
struct About {
    name: &'static str,
    about: &'static str,
    ordered: bool,
    durability: Durability,
    meant_for: u64,
}

/// All kinds of index that this build knows.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    use Durability::{Buffered, Strict};
    let about = |name, about, ordered, durability| About { name, about, ordered, durability, meant_for: u64::MAX };
    vec![
        entry::<M, durix_cso::set::PersistentSet<M>>(about(
            "pset",
            "hash map of bytes, durable on return with one fence an update, atomic batches (STPS)",
            false,
            Strict,
        )),
        entry::<M, durix_incll::Masstree<M>>(about(
            "masstree",
            "ordered map of bytes, durable at checkpoints, no fence an update (Masstree with InCLL)",
            true,
            Buffered,
        )),
        entry::<M, durix_logfree::SoftHash<M>>(about(
            "hash",
            "hash map of 8-byte keys and values, durable on return with one fence an update (SOFT); recovery reads all of it",
            false,
            Strict,
        )),
        entry::<M, durix_logfree::HashTable<M>>(about(
            "hash-links",
            "lock-free hash map of 8-byte keys and values, durable on return (link-and-persist); recovery reads hardly anything",
            false,
            Strict,
        )),
        entry::<M, durix_logfree::BytesHash<M>>(about(
            "hash-bytes",
            "lock-free hash map of bytes, durable on return (link-and-persist); recovery reads hardly anything",
            false,
            Strict,
        )),
        entry::<M, durix_logfree::BlobHash<M>>(about(
            "hash-values",
            "as hash-links, with values of any length",
            false,
            Strict,
        )),
        entry::<M, durix_logfree::SkipList<M>>(about(
            "skiplist",
            "lock-free skip list of 8-byte keys and values, durable on return (link-and-persist); recovery reads hardly anything",
            true,
            Strict,
        )),
        entry::<M, durix_logfree::BlobSkipList<M>>(about(
            "skiplist-values",
            "as skiplist, with values of any length",
            true,
            Strict,
        )),
        entry::<M, durix_logfree::Bst<M>>(about(
            "bst",
            "lock-free search tree of 8-byte keys and values, durable on return (link-and-persist)",
            true,
            Strict,
        )),
        entry::<M, durix_logfree::BlobBst<M>>(about("bst-values", "as bst, with values of any length", true, Strict)),
        entry::<M, durix_logfree::SoftSkipList<M>>(about(
            "skiplist-soft",
            "skip list of 8-byte keys and values, durable on return with one fence an update (SOFT); recovery reads all of it",
            true,
            Strict,
        )),
        entry::<M, durix_logfree::SoftList<M>>(About {
            meant_for: 1000,
            ..about(
                "list-soft",
                "sorted list of 8-byte keys and values, durable on return with one fence an update (SOFT)",
                true,
                Strict,
            )
        }),
        entry::<M, durix_logfree::List<M>>(About {
            meant_for: 1000,
            ..about(
                "list",
                "lock-free sorted list of 8-byte keys and values, durable on return; for hundreds of keys",
                true,
                Strict,
            )
        }),
        entry::<M, durix_logfree::BlobList<M>>(About {
            meant_for: 1000,
            ..about("list-values", "as list, with values of any length", true, Strict)
        }),
    ]
}

/// The names of the kinds that take keys and values of any length, for messages.
pub fn of_any_length() -> String {
    let any = |entry: &&Entry<Hardware>| matches!(entry.limits.key, Lengths::UpTo(_));
    kinds::<Hardware>().iter().filter(any).map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

fn entry<M: Medium, S: Openable<M>>(about: About) -> Entry<M>
where
    Error: From<S::Error>,
{
    fn open<M: Medium, S: Openable<M>>(pool: &Pool<M>, name: &str, how: How) -> Result<Arc<dyn Index<M>>>
    where
        Error: From<S::Error>,
    {
        let opened: Arc<S> = match how {
            How::Create => pool.open_structure(name, &S::Options::default())?,
            How::Existing => pool.open_existing(name, &S::Options::default())?,
            How::Salvage => pool.open_existing(name, &S::salvaging())?,
        };
        Ok(opened)
    }
    let About { name, about, ordered, durability, meant_for } = about;
    Entry { name, about, ordered, durability, limits: S::LIMITS, meant_for, kind: S::KIND, open: open::<M, S> }
}

impl<M: Medium> Entry<M> {
    /// Opens the index named `name`, creating it if it is not there. Recovers it.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::WrongKind`], [`Error::ForeignKind`], [`Error::Corrupt`].
    pub fn open_or_create(&self, pool: &Pool<M>, name: &str) -> Result<Arc<dyn Index<M>>> {
        self.open_with(pool, name, How::Create)
    }

    /// Opens the index named `name`, which must be there.
    ///
    /// # Errors
    /// As [`open_or_create`](Self::open_or_create).
    pub fn open(&self, pool: &Pool<M>, name: &str) -> Result<Arc<dyn Index<M>>> {
        self.open_with(pool, name, How::Existing)
    }

    /// Opens an index that may be damaged for what can be read of it. Only for pools that were opened for reading.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn salvage(&self, pool: &Pool<M>, name: &str) -> Result<Arc<dyn Index<M>>> {
        self.open_with(pool, name, How::Salvage)
    }

    fn open_with(&self, pool: &Pool<M>, name: &str, how: How) -> Result<Arc<dyn Index<M>>> {
        (self.open)(pool, name, how).map_err(|error| match error {
            Error::Pool(durix_pmem::Error::WrongKind { name, found, .. }) => match of::<M>(found) {
                Some(entry) if entry.name != self.name => {
                    Error::WrongKind { index: name, found: entry.name, expected: self.name }
                }
                _ => Error::ForeignKind { index: name, found },
            },
            Error::Corrupt { what, .. } => Error::Corrupt { index: name.into(), what },
            other => other,
        })
    }
}

/// The kind with that name.
///
/// # Errors
/// [`Error::UnknownKind`], which lists all names.
pub fn named<M: Medium>(name: &str) -> Result<Entry<M>> {
    let all = kinds::<M>();
    all.iter().find(|entry| entry.name == name).copied().ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|entry| entry.name).collect();
        Error::UnknownKind { name: name.into(), known: known.join(", ") }
    })
}

/// The kind that the pool calls so.
pub fn of<M: Medium>(kind: Kind) -> Option<Entry<M>> {
    kinds::<M>().into_iter().find(|entry| entry.kind == kind)
}

/// What messages call the kind of an index.
pub(crate) fn name_of<M: Medium>(index: &dyn Index<M>) -> &'static str {
    let root = index.root();
    let found = root.pool().indices().unwrap_or_default().into_iter().find(|info| info.owner == root.owner());
    found.and_then(|info| of::<M>(info.kind)).map_or("structure of another build", |entry| entry.name)
}

/// Opens the index named `name` as what it is.
///
/// # Errors
/// [`Error::Pool`] where there is none, [`Error::ForeignKind`], [`Error::Corrupt`].
pub fn open_as_is<M: Medium>(pool: &Pool<M>, name: &str) -> Result<Arc<dyn Index<M>>> {
    let (found, mut damaged) = pool.readable_indices()?;
    let Some(info) = found.into_iter().find(|info| info.name == name) else {
        // A damaged entry may be the one that is meant.
        return Err(damaged.pop().unwrap_or_else(|| durix_pmem::Error::NoSuchIndex { name: name.into() }).into());
    };
    let kind = info.kind;
    let entry = of::<M>(kind).ok_or_else(|| Error::ForeignKind { index: name.into(), found: kind })?;
    entry.open(pool, name)
}
