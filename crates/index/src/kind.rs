//! Kinds of index: what each is called, what it promises, and how one is opened.
//!
//! A crate with index structures exports `kinds()`, a list of [`Entry`]:
//!
//! ```ignore
//! pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
//!     vec![Entry::new::<MyTree<M>>("mytree", "ordered map of bytes, durable on return (paper)").ordered()]
//! }
//! ```

use std::panic::Location;
use std::sync::Arc;

use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Structure, Version, Versions};

use crate::error::{Error, Result};
use crate::index::{Index, Limits};
use crate::salvaged::Salvaged;

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
    /// Whether it is not offered: a kind that is never the best answer, or not finished. It can be made and opened by its
    /// name, and is tested as every kind is, but no default, guide or message recommends it.
    pub experimental: bool,
    /// Whether keys that come in ascending or descending order make its calls linear: a tree that is not balanced.
    pub unbalanced: bool,
    /// How the pool calls a new one.
    pub kind: Kind,
    /// Older versions that it opens, too: [`Structure::OLDER`].
    pub older: &'static [Version],
    /// The source file in which it was entered: tools that judge its persistence code find that by it.
    pub source: &'static str,
    open: Open<M>,
    /// Names of other kinds, for messages.
    names: Names,
}

/// Says what a kind is called.
pub type Names = fn(Kind) -> Option<&'static str>;

type Open<M> = fn(&Pool<M>, &str, How) -> Result<Arc<dyn Index<M>>>;

/// A structure that can be opened by the name of its kind.
pub trait Openable<M: Medium>: Structure<M> + Index<M> {
    /// What [`Index::limits`] returns.
    const LIMITS: Limits;

    /// Options with which a damaged one is opened for what can still be read of it, if it has such.
    fn salvaging() -> Self::Options {
        Self::Options::default()
    }

    /// Whether it has [`leftovers`](Self::leftovers).
    const HAS_LEFTOVERS: bool = false;

    /// All entries that lie in the blocks of the index, whether anything leads to them or not. Asked before a damaged index is
    /// opened, and told for keys only that it does not give itself. Reads whatever it finds, and reaches no further than the pool.
    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        let _ = (op, root);
        Vec::new()
    }

    /// Calls `found` with the pairs that leftovers stand for, as far as they can be read.
    fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, leftovers: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        let _ = (op, root, leftovers, found);
    }
}

/// An entry that was found in a block: two words that mean something to its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The key, or what stands for it.
    pub key: u64,
    /// The value, or where it lies.
    pub word: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Create,
    Existing,
    Salvage,
}

impl<M: Medium> Entry<M> {
    /// A kind that keeps no order, is durable on return, and takes any number of keys. The methods below say what differs.
    #[track_caller]
    pub fn new<S: Openable<M>>(name: &'static str, about: &'static str) -> Self
    where
        Error: From<S::Error>,
    {
        Entry {
            name,
            about,
            ordered: false,
            durability: Durability::Strict,
            limits: S::LIMITS,
            meant_for: u64::MAX,
            experimental: false,
            unbalanced: false,
            kind: S::KIND,
            older: S::OLDER,
            source: Location::caller().file(),
            open: open::<M, S>,
            names: |_| None,
        }
    }

    /// Whether it opens indices that the pool calls so.
    pub fn opens(&self, kind: Kind) -> bool {
        kind.tag == self.kind.tag && Versions { writes: self.kind.version, older: self.older }.opens(kind.version)
    }

    /// It keeps the order of keys: [`Index::as_ordered`] returns it.
    #[must_use]
    pub fn ordered(self) -> Self {
        Entry { ordered: true, ..self }
    }

    /// It is durable at checkpoints.
    #[must_use]
    pub fn buffered(self) -> Self {
        Entry { durability: Durability::Buffered, ..self }
    }

    /// It is meant for at most this number of keys.
    #[must_use]
    pub fn meant_for(self, keys: u64) -> Self {
        Entry { meant_for: keys, ..self }
    }

    /// It is not offered: see [`Entry::experimental`](Self#structfield.experimental).
    #[must_use]
    pub fn experimental(self) -> Self {
        Entry { experimental: true, ..self }
    }

    /// Keys have to come in random order: see [`Entry::unbalanced`](Self#structfield.unbalanced).
    #[must_use]
    pub fn unbalanced(self) -> Self {
        Entry { unbalanced: true, ..self }
    }

    /// Errors of this entry call other kinds by these names.
    #[must_use]
    pub fn among(self, names: Names) -> Self {
        Entry { names, ..self }
    }

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
            Error::Pool(durix_pmem::Error::WrongKind { name, found, .. }) => match (self.names)(found) {
                Some(other) if other != self.name => {
                    Error::WrongKind { index: name, found: other, expected: self.name }
                }
                _ => Error::ForeignKind { index: name, found },
            },
            Error::Corrupt { what, .. } => Error::Corrupt { index: name.into(), what },
            other => other,
        })
    }
}

fn open<M: Medium, S: Openable<M>>(pool: &Pool<M>, name: &str, how: How) -> Result<Arc<dyn Index<M>>>
where
    Error: From<S::Error>,
{
    if how == How::Salvage && S::HAS_LEFTOVERS {
        return Ok(pool.open_existing::<Salvaged<S, M>>(name, &S::salvaging())?);
    }
    let opened: Arc<S> = match how {
        How::Create => pool.open_structure(name, &S::Options::default())?,
        How::Existing => pool.open_existing(name, &S::Options::default())?,
        How::Salvage => pool.open_existing(name, &S::salvaging())?,
    };
    Ok(opened)
}
