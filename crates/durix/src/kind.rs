//! The kinds of index: the data structures that can store a map, found by name or number. Use it to list them, to choose one for a new index,
//! or to open an index as what it is.
//!
//! A crate with index structures joins by one line in [`kinds`]. Tests, fuzz targets, the command and the tables of the guide
//! then take up its kinds by themselves.

use std::sync::Arc;

use durix_pmem::{Hardware, Kind, Medium, Pool};

use crate::{Error, Index, Lengths, Result};

/// A kind of index: its name, what it takes and promises, and how an index of it is opened.
///
/// ```
/// let masstree: durix::kind::Entry = durix::kind::named("masstree")?;
/// println!("{}: {}", masstree.name, masstree.about);
/// assert!(masstree.ordered && !masstree.experimental);
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::kind::Entry;

/// A function that says what a kind is called.
///
/// ```
/// use durix::{Hardware, kind};
///
/// let names: kind::Names = |kind| kind::kinds::<Hardware>().iter().find(|entry| entry.kind == kind).map(|entry| entry.name);
/// let masstree = kind::named::<Hardware>("masstree")?;
/// assert_eq!(names(masstree.kind), Some("masstree"));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::kind::Names;

/// What the structure of a kind implements, so that it can be opened by the name of the kind.
///
/// ```
/// use durix::kind::Openable;
/// use durix::{Hardware, Limits};
///
/// // What an index will take, before there is one.
/// fn limits<T: Openable<Hardware>>() -> Limits {
///     T::LIMITS
/// }
/// ```
#[doc(inline)]
pub use durix_index::kind::Openable;

/// The kind of an index whose creator does not choose.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<u64, u64>("squares")?;
/// assert_eq!(db.indices()?[0].kind, durix::kind::named::<durix::Hardware>(durix::kind::DEFAULT)?.kind);
/// # drop(map);
/// # Ok::<(), durix::Error>(())
/// ```
pub const DEFAULT: &str = "pset";

/// The kind of an ordered index whose creator does not choose.
///
/// ```
/// let kind = durix::kind::named::<durix::Hardware>(durix::kind::DEFAULT_ORDERED)?;
/// assert!(kind.ordered);
/// # Ok::<(), durix::Error>(())
/// ```
pub const DEFAULT_ORDERED: &str = "masstree";

/// All kinds of index that this build knows, the experimental ones included.
///
/// ```
/// let kinds = durix::kind::kinds::<durix::Hardware>();
/// assert!(kinds.iter().any(|kind| kind.name == "masstree" && kind.ordered));
/// ```
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
///
/// ```
/// for kind in durix::kind::offered::<durix::Hardware>() {
///     println!("{}: {}", kind.name, kind.about);
/// }
/// ```
pub fn offered<M: Medium>() -> Vec<Entry<M>> {
    kinds().into_iter().filter(|entry| !entry.experimental).collect()
}

/// The names of the offered kinds that take keys and values of any length, for messages.
///
/// ```
/// assert!(durix::kind::of_any_length().contains("pset"));
/// ```
pub fn of_any_length() -> String {
    let any = |entry: &&Entry<Hardware>| matches!(entry.limits.key, Lengths::UpTo(_));
    offered::<Hardware>().iter().filter(any).map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// The kind with that name.
///
/// ```
/// use durix::{Hardware, kind};
///
/// assert!(kind::named::<Hardware>("masstree")?.ordered);
/// let error = kind::named::<Hardware>("btree").err().unwrap();
/// assert!(error.to_string().contains("there are: pset"));
/// # Ok::<(), durix::Error>(())
/// ```
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
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.map::<u64, u64>("squares")?;
/// let kind = durix::kind::of::<durix::Hardware>(db.indices()?[0].kind).unwrap();
/// assert_eq!(kind.name, "pset");
/// # Ok::<(), durix::Error>(())
/// ```
pub fn of<M: Medium>(kind: Kind) -> Option<Entry<M>> {
    kinds::<M>().into_iter().find(|entry| entry.opens(kind))
}

/// Whether a kind is the facade's own, the log of transactions or the table of type names, which is no index of anybody's.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.map::<u64, u64>("squares")?;
/// let all = db.pool().indices()?;
/// assert_eq!(all.iter().filter(|info| !durix::kind::is_internal(info.kind)).count(), 1);
/// # Ok::<(), durix::Error>(())
/// ```
pub fn is_internal(kind: Kind) -> bool {
    // Of any version: that of another build is nobody's index either.
    [crate::transaction::log::KIND, crate::names::KIND].iter().any(|own| own.tag == kind.tag)
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
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.ordered_map::<u64, u64>("squares")?.insert(&2, &4)?;
/// let index = durix::kind::open_as_is(db.pool(), "squares")?;
/// assert!(index.as_ordered().is_some());
/// # Ok::<(), durix::Error>(())
/// ```
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
