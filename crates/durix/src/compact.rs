//! Compaction: copies the entries of a database that is not open into a new file, which then takes the place of the old one. Use it to give
//! unused space back to the file system. After a crash, the old file or the new one is there, whole.
//!
//! | edge | kept by | a crash between leaves | the next opening, or compaction |
//! |---|---|---|---|
//! | CO-X1 the old file is closed < it is read | the state in its header; its lock, shared, until the end | the old file | as before |
//! | CO-X2 the new file, whole and closed < it takes the name | sync of the file | the old file, and a part of a new one under another name | removes that part |
//! | CO-X3 the new file has the name < the call returns | sync of the folder | either file, whole | opens it |
//! | CO-X4 the new file has the name < journal and checksums of the old one go | sync of the folder | the new file, beside a journal and checksums of another pool | does not look at them, begins both anew |
//!
//! The new file is locked before it gets the name, until the journal of the old one is gone: otherwise another opener could begin its journal
//! under that name.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use durix_pmem::journal::DiskJournal;
use durix_pmem::pool::State;
use durix_pmem::{Error as PoolError, Geometry, Hardware, Medium, PoolOptions, Unrecovered};

use crate::builder::DbBuilder;
use crate::copy::{CopyReport, Disk, OsDisk, copy_into, folder_of, io, partial, remove_partial};
use crate::db::Db;
use crate::{Result, recover};

/// What became of a file that was compacted.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.durix");
/// use durix::{Compacted, Db};
///
/// # Db::open_or_create(&path)?.close()?;
/// let Compacted { indices, before, after, .. } = Db::compact(&path)?;
/// println!("{} indices, {before} bytes before, {after} after", indices.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Name and number of entries of each index, in the order of copying.
    pub indices: Vec<(String, u64)>,
    /// Bytes of the old file.
    pub before: u64,
    /// Bytes of the new file.
    pub after: u64,
}

impl Db {
    /// Makes the file of a closed database smaller: [`DbBuilder::compact`] with the usual options.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// let db = Db::open_or_create(&path)?;
    /// let notes = db.map::<u64, String>("notes")?;
    /// notes.insert(&1, "stays")?;
    /// drop(notes);
    /// db.close()?;
    /// let done = Db::compact(&path)?;
    /// assert_eq!(done.indices, [("notes".to_owned(), 1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`DbBuilder::compact`].
    pub fn compact(path: impl AsRef<Path>) -> Result<Compacted> {
        Db::builder().compact(path)
    }
}

impl DbBuilder {
    /// Makes the file of a closed database smaller: copies all entries into a new file beside it (`.partial` added to its
    /// name), which then takes its name, and gives the space of the old one back to the file system. It needs room for both until then.
    /// Permissions and owner are kept; other names of the file (hard links) keep the old one. The new file can be 64 MiB, or half of it,
    /// larger than it must be. Time in the number of entries.
    ///
    /// When it returns, the new file is durable under its name. A crash before leaves the old file or the new one, either of them whole, and
    /// perhaps the other name, which the next call removes. Readers that have the old file open go on with that. A program that waited for the
    /// file meanwhile, in order to write, is refused and has to open it again. Compactions in one folder wait for each other.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use durix::Db;
    ///
    /// Db::builder().initial_size(1 << 20).create(&path)?.close()?;
    /// let done = Db::builder().compact(&path)?;
    /// assert_eq!(done.after, path.metadata()?.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) with `Locked` where another database has it open for writing, `DiskFull` where there is no room for both;
    /// as [`open`](Self::open) and [`Db::copy_to`]. The old file is then as before, but recovered and closed.
    pub fn compact(&self, path: impl AsRef<Path>) -> Result<Compacted> {
        let path = path.as_ref();
        // Of a symbolic link it is the file that is replaced.
        let path = &path.canonicalize().map_err(io("looking for", path))?;
        let options = self.options().read_only(false);
        // One compaction at a time: both would use the same other name.
        let folder = folder_of(path);
        let turn = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
        let turn = turn.map_err(io("locking", folder))?;
        let closed = closed(&options, path)?;
        let Geometry { chunk, lanes, indices } = closed.geometry();
        let options = options.chunk_size(chunk).lanes(lanes).max_indices(indices).initial_size(1);
        let source = Db::over(closed.recover()?);
        let old = path.metadata().map_err(io("looking at", path))?;
        let mut lock = None;
        let report = replace_on(&OsDisk, &source, path, &options, |new| {
            take_over(&old, new)?;
            lock = Some(locked(new)?);
            Ok(())
        })?;
        let after = path.metadata().map_err(io("looking at", path))?.len();
        for beside in [DiskJournal::path_of(path), DiskJournal::sums_of(path)] {
            match std::fs::remove_file(&beside) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io("removing", &beside)(error));
                }
                _ => {}
            }
        }
        drop((lock, turn));
        Ok(Compacted { indices: report.indices, before: old.len(), after })
    }
}

/// A pool that was closed, opened for reading, so that nothing is written to it. A pool that was not closed is recovered and closed first.
fn closed(options: &PoolOptions, path: &Path) -> Result<Unrecovered<Hardware>> {
    let reading = options.clone().read_only(true);
    let found = reading.open_file(path)?;
    if found.state() == State::Clean {
        return Ok(found);
    }
    drop(found);
    let pool = options.open(path)?;
    recover(&pool)?;
    pool.close()?;
    drop(pool);
    let found = reading.open_file(path)?;
    if found.state() == State::Clean {
        return Ok(found);
    }
    // Somebody was faster, and has not closed it.
    let holder = "another program, or was until just now".into();
    Err(PoolError::Locked { name: path.display().to_string(), holder }.into())
}

/// Gives the new file the permissions and the owner of the old one.
fn take_over(old: &Metadata, new: &Path) -> Result<()> {
    std::fs::set_permissions(new, old.permissions()).map_err(io("setting the permissions of", new))?;
    let made = new.metadata().map_err(io("looking at", new))?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        std::os::unix::fs::chown(new, Some(old.uid()), Some(old.gid())).map_err(io("setting the owner of", new))?;
    }
    Ok(())
}

fn locked(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(io("opening", path))?;
    file.try_lock().map_err(|error| io("locking", path)(error.into()))?;
    Ok(file)
}

/// Copies a database into a new file, which then takes a name that another file may have. `ready` gets the new file when it is whole.
#[doc(hidden)]
pub fn replace_on<M: Medium>(
    disk: &impl Disk,
    source: &Db<M>,
    path: &Path,
    options: &PoolOptions,
    ready: impl FnOnce(&Path) -> Result<()>,
) -> Result<CopyReport> {
    let new: PathBuf = partial(path);
    remove_partial(disk, &new)?;
    let done = copy_into(disk, source, &new, options).and_then(|(report, _)| {
        ready(&new)?;
        // PERSIST CO-X2: sync
        disk.sync(&new).map_err(io("syncing", &new))?;
        disk.rename(&new, path).map_err(io("giving its name to", path))?;
        Ok(report)
    });
    let report = done.inspect_err(|_| drop(disk.remove_left(&new)))?;
    let folder = folder_of(path);
    // PERSIST CO-X3, CO-X4: sync of the folder
    disk.sync_folder(folder).map_err(io("syncing", folder))?;
    Ok(report)
}
