//! Copies of a pool, for backups, while others write. A copy appears under its name only when it is whole and durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use durix_pmem::{Level, Medium, Pool, PoolOptions};

use crate::db::Db;
use crate::kind;
use crate::names::TypeNames;
use crate::snapshot::SnapshotIndex;
use crate::types::Types;
use crate::{Error, Index, Result};

/// How many entries were copied of which index.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("copy.durix");
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.map::<String, u64>("ages")?.insert("ada", &36)?;
/// let report = db.copy_to(&path)?;
/// assert_eq!(report.indices, [("ages".to_owned(), 1)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Name and number of entries, in the order of copying.
    pub indices: Vec<(String, u64)>,
}

/// Entries that are read in one operation.
const STEP: usize = 64;

/// Where a copy is made until it is whole.
///
/// ```
/// let partial = durix::copy::partial("app.durix".as_ref());
/// assert_eq!(partial.to_str(), Some("app.durix.partial"));
/// ```
pub fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// What copying asks of the file system: a seam for crash tests.
#[doc(hidden)]
pub trait Disk {
    /// Whether there is a file of that name.
    fn exists(&self, path: &Path) -> bool;
    /// Creates a pool.
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool>;
    /// Makes a file durable, contents and length.
    fn sync(&self, path: &Path) -> std::io::Result<()>;
    /// Gives a file a second name, which must be free.
    fn link(&self, from: &Path, to: &Path) -> std::io::Result<()>;
    /// Gives a file another name, which that of another file may be.
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()>;
    /// Takes a name from a file.
    fn remove(&self, path: &Path) -> std::io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> std::io::Result<()>;
}

/// The files of the operating system.
pub(crate) struct OsDisk;

impl Disk for OsDisk {
    fn exists(&self, path: &Path) -> bool {
        path.try_exists().unwrap_or(true)
    }

    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        Ok(options.create(path)?)
    }

    fn sync(&self, path: &Path) -> std::io::Result<()> {
        std::fs::File::open(path)?.sync_all()
    }

    fn link(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> std::io::Result<()> {
        std::fs::File::open(path)?.sync_all()
    }
}

pub(crate) fn io(action: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let action = format!("{action} {}", path.display());
    move |source| Error::Pool(durix_pmem::Error::Io { action, source })
}

/// Gives a finished copy its name, which no other file may have by now. The copy is synced before, so that whoever finds the name
/// finds all of it.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.durix");
/// let partial = durix::copy::partial(&path);
/// std::fs::write(&partial, "all of it")?;
/// durix::copy::publish(&partial, &path)?;
/// assert_eq!(std::fs::read(&path)?, b"all of it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Pool`] with `AlreadyExists`, or what the system says.
pub fn publish(partial: &Path, path: &Path) -> Result<()> {
    publish_on(&OsDisk, partial, path)
}

fn publish_on(disk: &impl Disk, partial: &Path, path: &Path) -> Result<()> {
    disk.sync(partial).map_err(io("syncing", partial))?;
    // Unlike a rename, a link never replaces what is there.
    disk.link(partial, path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(path),
        _ => io("giving its name to", path)(error),
    })?;
    let _ = disk.remove(partial);
    // The name itself is durable once its folder is.
    let folder = folder_of(path);
    disk.sync_folder(folder).map_err(io("syncing", folder))
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn exists(path: &Path) -> Error {
    Error::Pool(durix_pmem::Error::AlreadyExists { name: path.display().to_string() })
}

impl<M: Medium> Db<M> {
    /// Copies all indices into a new database at `path`, as of one moment, while others go on writing: it copies a
    /// [`snapshot`](Self::snapshot). The file at `path` appears when the copy is whole and, as far as the medium goes, durable; a crash
    /// before leaves `path` with `.partial` added, which the next copy overwrites.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("copy.durix");
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let ages = db.map::<String, u64>("ages")?;
    /// ages.insert("ada", &36)?;
    /// db.copy_to(&path)?;
    /// let copy = durix::Db::open(&path)?;
    /// assert_eq!(copy.map::<String, u64>("ages")?.get("ada")?, Some(36));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`] with `AlreadyExists` where there is a file at `path`; [`Error::ForeignKind`] where an index
    /// cannot be opened; [`Error::Corrupt`]; [`Error::Pool`]; as [`snapshot`](Self::snapshot), and
    /// [`Error::SnapshotTooOld`].
    pub fn copy_to(&self, path: impl AsRef<Path>) -> Result<CopyReport> {
        self.copy_to_with(path, &PoolOptions::new())
    }

    /// As [`copy_to`](Self::copy_to), with options for the new pool. A level of durability has no meaning: the copy is closed before it
    /// gets its name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("copy.durix");
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// db.copy_to_with(&path, &durix::PoolOptions::new().initial_size(32 << 20))?;
    /// assert_eq!(std::fs::metadata(&path)?.len(), 32 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_to_with(&self, path: impl AsRef<Path>, options: &PoolOptions) -> Result<CopyReport> {
        copy_on(&OsDisk, self, path.as_ref(), options)
    }
}

/// [`Db::copy_to_with`] on any files.
#[doc(hidden)]
pub fn copy_on<M: Medium>(disk: &impl Disk, source: &Db<M>, path: &Path, options: &PoolOptions) -> Result<CopyReport> {
    if disk.exists(path) {
        return Err(exists(path));
    }
    let partial = partial(path);
    remove_partial(disk, &partial)?;
    let done = copy_into(disk, source, &partial, options);
    match done {
        Ok(report) => publish_on(disk, &partial, path).map(|()| report),
        Err(error) => {
            let _ = disk.remove(&partial);
            Err(error)
        }
    }
}

/// Removes what an interrupted copy has left.
pub(crate) fn remove_partial(disk: &impl Disk, partial: &Path) -> Result<()> {
    match disk.remove(partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("removing what an earlier copy left,", partial)(error))
        }
        _ => Ok(()),
    }
}

pub(crate) fn copy_into<M: Medium>(
    disk: &impl Disk,
    source: &Db<M>,
    path: &Path,
    options: &PoolOptions,
) -> Result<CopyReport> {
    // Nobody sees the copy before it is whole and synced, so it needs no journal, whatever the options say.
    let target = disk.create(path, &options.clone().durability(Level::Process))?;
    let snapshot = source.snapshot()?;
    let mut report = CopyReport::default();
    for info in snapshot.indices() {
        let from = source.open_owner(info.owner)?;
        let entry = kind::of::<durix_pmem::Hardware>(info.kind)
            .ok_or_else(|| Error::ForeignKind { index: info.name.clone(), found: info.kind })?;
        let to = entry.open_or_create(&target, &info.name)?;
        let copied = copy_view(&snapshot.index(&from)?, &from, &target, &to)?;
        report.indices.push((info.name.clone(), copied));
    }
    target.close()?;
    Ok(report)
}

/// Copies an index as a snapshot sees it into an empty one. Returns how many entries there were.
fn copy_view<M: Medium, N: Medium>(
    view: &SnapshotIndex<'_, M>,
    from: &Arc<dyn Index<M>>,
    target: &Pool<N>,
    to: &Arc<dyn Index<N>>,
) -> Result<u64> {
    let mut writing = target.session()?;
    let types = Types::of(&**from, &from.root().pool().session()?.enter()?);
    TypeNames::of(from.root().pool()).keep(target, types)?;
    types.declare(&**to, &writing.enter()?);
    let mut copied = 0;
    for pair in view.iter() {
        let (key, value) = pair?;
        copied += u64::from(to.insert(&writing.enter()?, &key, &value)?);
    }
    to.sync(&mut writing)?;
    Ok(copied)
}

/// Copies all entries and the types of one index into another, which is empty. Returns how many entries there were.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// db.map::<String, u64>("ages")?.insert("ada", &36)?;
/// let (from, to) = (db.open_index("ages", None)?, db.open_index("new", Some("masstree"))?);
/// assert_eq!(durix::copy::copy_index(db.pool(), &from, db.pool(), &to)?, 1);
/// # drop((from, to));
/// assert_eq!(db.ordered_map::<String, u64>("new")?.get("ada")?, Some(36));
/// # Ok::<(), durix::Error>(())
/// ```
///
/// # Errors
/// As [`Index::get`] and [`Index::insert`].
pub fn copy_index<M: Medium, N: Medium>(
    source: &Pool<M>,
    from: &Arc<dyn Index<M>>,
    target: &Pool<N>,
    to: &Arc<dyn Index<N>>,
) -> Result<u64> {
    let (mut reading, mut writing) = (source.session()?, target.session()?);
    let types = Types::of(&**from, &reading.enter()?);
    TypeNames::of(source).keep(target, types)?;
    types.declare(&**to, &writing.enter()?);
    let mut cursor = from.cursor();
    let mut copied = 0;
    let mut step: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        {
            // Not longer than a step: an operation holds up checkpoints.
            let op = reading.enter()?;
            while step.len() < STEP
                && let Some((key, value)) = cursor.next(&op)?
            {
                step.push((key.to_vec(), value.to_vec()));
            }
        }
        if step.is_empty() {
            break;
        }
        for (key, value) in step.drain(..) {
            copied += u64::from(to.insert(&writing.enter()?, &key, &value)?);
        }
    }
    to.sync(&mut writing)?;
    Ok(copied)
}
