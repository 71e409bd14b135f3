//! The kinds of index by name.
//!
//! A crate with index structures joins by one line in [`kinds`]. Tests, fuzz targets, the command and the tables of the guide
//! then take up its kinds by themselves.

use std::sync::Arc;

use durix_pmem::{Hardware, Kind, Medium, Pool};

use crate::{Error, Index, Lengths, Result};

pub use durix_index::kind::{Entry, Names, Openable};

/// The kind of an index whose creator does not choose.
pub const DEFAULT: &str = "pset";

/// The kind of an ordered index whose creator does not choose.
pub const DEFAULT_ORDERED: &str = "masstree";

/// All kinds of index that this build knows, the experimental ones included.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let crates = [
        durix_pset::kinds(),
        durix_incll::kinds(),
        durix_bplustree::kinds(),
        durix_logfree::kinds(),
        durix_dptree::kinds(),
    ];
    crates.into_iter().flatten().map(|entry| entry.among(name)).collect()
}

/// The kinds that are offered: all but the experimental ones.
pub fn offered<M: Medium>() -> Vec<Entry<M>> {
    kinds().into_iter().filter(|entry| !entry.experimental).collect()
}

/// The names of the offered kinds that take keys and values of any length, for messages.
pub fn of_any_length() -> String {
    let any = |entry: &&Entry<Hardware>| matches!(entry.limits.key, Lengths::UpTo(_));
    offered::<Hardware>().iter().filter(any).map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// The kind with that name.
///
/// # Errors
/// [`Error::UnknownKind`], which lists the names of the offered kinds.
pub fn named<M: Medium>(name: &str) -> Result<Entry<M>> {
    kinds::<M>().into_iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = offered::<M>().iter().map(|entry| entry.name).collect();
        Error::UnknownKind { name: name.into(), known: known.join(", ") }
    })
}

/// The kind that the pool calls so.
pub fn of<M: Medium>(kind: Kind) -> Option<Entry<M>> {
    kinds::<M>().into_iter().find(|entry| entry.kind == kind)
}

/// Whether a kind is the facade's own, the log of transactions or the table of type names, which is no index of anybody's.
pub fn is_internal(kind: Kind) -> bool {
    kind == crate::transaction::log::KIND || kind == crate::names::KIND
}

fn name(kind: Kind) -> Option<&'static str> {
    of::<Hardware>(kind).map(|entry| entry.name)
}

/// What messages call the kind of an index.
pub(crate) fn name_of<M: Medium>(index: &dyn Index<M>) -> &'static str {
    let root = index.root();
    let found = root.pool().indices().unwrap_or_default().into_iter().find(|info| info.owner == root.owner());
    found.and_then(|info| name(info.kind)).unwrap_or("structure of another build")
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
