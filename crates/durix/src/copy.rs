//! Copies of a pool, for backups, while others write. A copy appears under its name only when it is whole and durable.
//!
//! A copy is made under another name, which all copies to one path share. Whoever makes one holds a lock on the file: its pool does until it is
//! closed, and publishing takes the lock again. A file without that lock was left by a dead process, and the next copy removes it. Between
//! closing and publishing another copy can do that to a file that is whole. Publishing finds it out: it locks the file that was open while the
//! pool was, and compares it with what the name stands for then.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
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
    /// The same, unless somebody holds the file: `WouldBlock`.
    fn remove_left(&self, path: &Path) -> std::io::Result<()> {
        self.remove(path)
    }
    /// Opens a file, so that it is known again.
    fn open(&self, _path: &Path) -> std::io::Result<Option<File>> {
        Ok(None)
    }
    /// Keeps others from removing a file in that way, which must still have its name, until it is unlocked or closed.
    fn hold(&self, _file: &File, _path: &Path) -> std::io::Result<()> {
        Ok(())
    }
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

    fn remove_left(&self, path: &Path) -> std::io::Result<()> {
        loop {
            let file = File::open(path)?;
            file.try_lock()?;
            // Others may have removed it before it was locked, and made another one.
            if is_named(&file, path)? {
                return std::fs::remove_file(path);
            }
        }
    }

    fn open(&self, path: &Path) -> std::io::Result<Option<File>> {
        File::open(path).map(Some)
    }

    fn hold(&self, file: &File, path: &Path) -> std::io::Result<()> {
        // Shared: whoever opens it for reading as soon as it has its name is not in the way.
        file.try_lock_shared()?;
        if is_named(file, path)? {
            return Ok(());
        }
        Err(std::io::Error::other("another copy to the same path has removed the file"))
    }

    fn sync_folder(&self, path: &Path) -> std::io::Result<()> {
        std::fs::File::open(path)?.sync_all()
    }
}

/// Whether a name still stands for this file.
fn is_named(file: &File, path: &Path) -> std::io::Result<bool> {
    let (of_file, of_name) = (file.metadata()?, std::fs::metadata(path));
    Ok(of_name.is_ok_and(|named| (named.dev(), named.ino()) == (of_file.dev(), of_file.ino())))
}

pub(crate) fn io(action: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let action = format!("{action} {}", path.display());
    move |source| Error::Pool(durix_pmem::Error::Io { action, source })
}

/// Gives a finished copy its name, which no other file may have by now. The copy is synced before, so that whoever finds the name
/// finds all of it. `pool` is the pool at [`partial(path)`](partial): it is closed before.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.durix");
/// durix::copy::clear(&path)?;
/// let pool = durix::PoolOptions::new().create(durix::copy::partial(&path))?;
/// durix::copy::publish(&pool, &path)?;
/// assert!(durix::Db::open(&path)?.indices()?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Pool`] with `AlreadyExists`, or what the system says; also where another copy to `path` has removed the file.
pub fn publish(pool: &Pool, path: &Path) -> Result<()> {
    let partial = partial(path);
    // While nobody else can have removed it: its pool holds the lock.
    let file = OsDisk.open(&partial).map_err(io("opening", &partial))?;
    pool.close()?;
    publish_on(&OsDisk, file, &partial, path)
}

/// Removes what a process that is dead has left of a copy to `path`, so that another can be made there.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.durix");
/// let partial = durix::copy::partial(&path);
/// std::fs::write(&partial, "half of it")?;
/// durix::copy::clear(&path)?;
/// assert!(!partial.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Pool`] with `Locked` while somebody makes a copy there, or what the system says.
pub fn clear(path: &Path) -> Result<()> {
    remove_partial(&OsDisk, &partial(path))
}

fn publish_on(disk: &impl Disk, file: Option<File>, partial: &Path, path: &Path) -> Result<()> {
    if let Some(file) = &file {
        disk.hold(file, partial).map_err(io("locking", partial))?;
    }
    disk.sync(partial).map_err(io("syncing", partial))?;
    // Unlike a rename, a link never replaces what is there.
    disk.link(partial, path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(path),
        _ => io("giving its name to", path)(error),
    })?;
    let _ = disk.remove(partial);
    if let Some(file) = file {
        // Closing alone would not do: a forked child holds the same open file.
        let _ = file.unlock();
    }
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
    /// before leaves `path` with `.partial` added, which the next copy overwrites. One copy to a path is made at a time.
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
    /// [`Error::Pool`] with `AlreadyExists` where there is a file at `path`, with `Locked` while another copy to `path` is made; [`Error::ForeignKind`] where an index
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
    done.inspect_err(|_| drop(disk.remove_left(&partial)))
        .and_then(|(report, file)| publish_on(disk, file, &partial, path).map(|()| report))
}

/// Removes what an interrupted copy has left. One that is being made stays.
pub(crate) fn remove_partial(disk: &impl Disk, partial: &Path) -> Result<()> {
    match disk.remove_left(partial) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            let holder = "a copy, restore, repair or compaction to the same path".into();
            Err(Error::Pool(durix_pmem::Error::Locked { name: partial.display().to_string(), holder }))
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("removing what an earlier copy left,", partial)(error))
        }
        _ => Ok(()),
    }
}

/// Copies a database into a new file. Returns the file, too, which was opened while its pool held the lock.
pub(crate) fn copy_into<M: Medium>(
    disk: &impl Disk,
    source: &Db<M>,
    path: &Path,
    options: &PoolOptions,
) -> Result<(CopyReport, Option<File>)> {
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
    let file = disk.open(path).map_err(io("opening", path))?;
    target.close()?;
    Ok((report, file))
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

    /// The files of the system, with something else at two moments: after a file was made, and before one is synced.
    #[derive(Clone, Default)]
    struct Met {
        created: Option<Arc<dyn Fn() + Send + Sync>>,
        syncing: Option<Arc<dyn Fn() + Send + Sync>>,
    }

    impl Disk for Met {
        fn exists(&self, path: &Path) -> bool {
            OsDisk.exists(path)
        }
        fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
            let pool = OsDisk.create(path, options)?;
            self.created.iter().for_each(|meet| meet());
            Ok(pool)
        }
        fn sync(&self, path: &Path) -> std::io::Result<()> {
            self.syncing.iter().for_each(|meet| meet());
            OsDisk.sync(path)
        }
        fn link(&self, from: &Path, to: &Path) -> std::io::Result<()> {
            OsDisk.link(from, to)
        }
        fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
            OsDisk.rename(from, to)
        }
        fn remove(&self, path: &Path) -> std::io::Result<()> {
            OsDisk.remove(path)
        }
        fn sync_folder(&self, path: &Path) -> std::io::Result<()> {
            OsDisk.sync_folder(path)
        }
        fn remove_left(&self, path: &Path) -> std::io::Result<()> {
            OsDisk.remove_left(path)
        }
        fn open(&self, path: &Path) -> std::io::Result<Option<File>> {
            OsDisk.open(path)
        }
        fn hold(&self, file: &File, path: &Path) -> std::io::Result<()> {
            OsDisk.hold(file, path)
        }
    }

    fn source() -> Db {
        let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        let pool = PoolOptions::new().create_on(heap, durix_pmem::Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        db.map::<u64, u64>("map").unwrap().insert(&1, &2).unwrap();
        db
    }

    /// A second copy removed the file of the first, and had its own, half of it, published by the first.
    #[test]
    fn a_copy_does_not_publish_the_file_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        let (source, options) = (source(), PoolOptions::new().initial_size(1));
        // What a dead process has left is in nobody's way.
        std::fs::write(partial(&path), "left").unwrap();
        let (go_on, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let (wait, tell, threads) =
            (Arc::new(Mutex::new(wait)), Arc::new(Mutex::new(tell)), Arc::new(Mutex::new(None)));
        let second = {
            let (source, options, path, threads) = (source.clone(), options.clone(), path.clone(), threads.clone());
            let (told, tell) = (Mutex::new(told), tell.clone());
            move || {
                let created = Some(Arc::new({
                    let (wait, tell) = (wait.clone(), tell.clone());
                    move || {
                        tell.lock().unwrap().send(None).unwrap();
                        let _ = wait.lock().unwrap().recv();
                    }
                }) as Arc<dyn Fn() + Send + Sync>);
                let (source, options, path, tell) = (source.clone(), options.clone(), path.clone(), tell.clone());
                *threads.lock().unwrap() = Some(std::thread::spawn(move || {
                    let done = copy_on(&Met { created, syncing: None }, &source, &path, &options);
                    let _ = tell.lock().unwrap().send(Some(done));
                }));
                // It has made its file, or was refused.
                if let Some(done) = told.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap() {
                    assert!(matches!(done, Err(Error::Pool(durix_pmem::Error::Locked { .. }))), "{done:?}");
                }
            }
        };
        copy_on(&Met { created: None, syncing: Some(Arc::new(second)) }, &source, &path, &options).unwrap();
        let copy = crate::PoolOptions::new().read_only(true).open(&path).map(|pool| Db::over(pool).indices());
        drop(go_on);
        threads.lock().unwrap().take().unwrap().join().unwrap();
        assert_eq!(copy.unwrap().unwrap().len(), 1);
        assert!(!partial(&path).exists());
        assert_eq!(Db::open(&path).unwrap().map::<u64, u64>("map").unwrap().get(&1).unwrap(), Some(2));
    }
}
